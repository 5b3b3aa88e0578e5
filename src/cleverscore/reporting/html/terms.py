"""The terms of the pages, each with an explanation of a sentence or two that appears on hover or focus."""

from __future__ import annotations

from cleverscore.reporting.html.page import escape

TERMS = {
    "CLEVER": "The paper's score: the margin between two classes divided by the largest gradient norm near the input, "
    "which is extrapolated from random points. An estimate of the distance to the nearest other class.",
    "sharp": "The distance at which the largest falls of the margin that a search found add up to the margin. A closer "
    "estimate of the distance to the nearest other class than CLEVER.",
    "score": "Estimated distance to the nearest input that the model classifies otherwise. Larger is more robust.",
    "certified": "Proved: no change shorter than this alters the class.",
    "best attack": "Shown by an example: a change of this length alters the class. The true distance is not larger.",
    "attack": "Shown by an example: a change of this length alters the class. The true distance is not larger.",
    "accuracy": "Share of inputs that the model classifies correctly. Misclassified inputs count as 0 in every median "
    "and in robust accuracy.",
    "robust accuracy": "Share of inputs that are classified correctly and keep their class under every change up to "
    "epsilon.",
    "radius": "Scores are computed within this distance. A score at the radius (≥) may be larger.",
    "95% interval": "Statistical error of the estimate from sampling; no guarantee that the true distance lies inside.",
    "nearest class": "The class that the estimate says can be reached with the smallest change.",
    "margin": "Logit of the predicted class minus that of the nearest class.",
    "largest gradient norm": "The constant that the margin is divided by: the fitted end-point of the gradient norms.",
    "K-S p": "Kolmogorov-Smirnov test of the fitted law, as in the paper; nearly every fit passes it.",
    "A-D p": "Anderson-Darling test that knows that the law was fitted; a small value rejects the fit.",
    "fit": "How the fit of the tail, or the search in its place, ended.",
    "blocks": "Block maxima that the law was fitted to.",
    "score above attack": "Share of attacked inputs whose score is above the attack. Believe the attack there.",
    "certified above 0": "Share of inputs for which something was proved.",
    "smallest": "The least robust input; a misclassified one counts as 0.",
}


def term(name: str) -> str:
    """The markup of a term with its explanation; for a term without one, its name alone."""
    words = TERMS.get(name)
    if words is None:
        return escape(name)
    return f'<span class="term" tabindex="0" data-tip="{escape(words)}">{escape(name)}</span>'
