"""clever(): the CLEVER score of a batch of inputs in one call (Algorithms 1 and 2 of the paper)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from cleverscore.errors import CleverWarning
from cleverscore.estimators.estimator import Estimator
from cleverscore.estimators.settings import Settings
from cleverscore.inputs.examples import prepare
from cleverscore.inputs.radius import box_width, resolved_radius
from cleverscore.inputs.targets import TargetsLike
from cleverscore.models.classifier import Classifier, checked_classifier
from cleverscore.progress import progress as show_progress
from cleverscore.scores.score import Scores, score_from
from cleverscore.tails import FitOutcome


def clever(
    classifier: Classifier,
    images: Any,
    *,
    p: float | str = 2.0,
    targets: TargetsLike = "untargeted",
    radius: float | str | None = None,
    blocks: int = 500,
    block_size: int = 1024,
    seed: int = 0,
    method: str | Estimator = "paper",
    region: str = "ball",
    level: float = 0.95,
    tolerance: float | None = None,
    budget: str | int | None = None,
    penalty: float | None = None,
    labels: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    chunk_size: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Scores:
    """CLEVER scores of a batch: min(margin / L, radius), L an estimate of the largest gradient norm in a ball.

    The margin is f_c - f_j, for the predicted class c and a target j, and L is an estimate of the largest
    ||grad(f_c - f_j)||_q in the ball B_p(x0, radius) around the input x0.

    images      (n, *input_shape), in the classifier's input units.
    p           the norm: any p >= 1, or "inf".
    targets     "untargeted" (the smallest score over all other classes), "top:N" (the smallest over the N classes with
                the largest logits after the predicted one), "runner_up", "least_likely", "random", "all", or one list
                of classes per input.
    radius      radius of the ball; default: the method's, which is 5 for "paper", as in the paper. "auto": 5 in l2, 0.3
                in linf, times the width of the classifier's bounds.
    blocks, block_size      N_b and N_s: every block has `block_size` new random points; a law for maxima is fitted to
                            the largest gradient norm of each block, and L is its end-point.
    method      "paper": sampling and fit as the paper describes them; "released-code": those of the code that the
                authors published; "sharp": a search for the largest decreases of the margin around the input
                (docs/sharp.md), which does not use blocks, block_size and tolerance; "slope": slopes between pairs of
                points, without gradients; "second-order": curvatures, for smooth networks and p = 2; or your own
                estimator, as an object or as "package.module:attribute" (docs/extend.md).
    level       confidence level of the intervals of scores.
    tolerance   stop early where more blocks would hardly change the score by more than this share, such as 0.05
                (docs/speed.md), and draw no more blocks for targets that cannot have the smallest score. 0 does only
                the latter. Default: all blocks for all targets. "sharp" ignores it.
    budget      end after this many gradients in total (2_000_000), or after this time ("90s", "10m", "2h"), but not
                before 10 blocks of each input.
    penalty     weight of the penalty (scale / range)^2 in the tail fit; default 0.01, as in the authors' program. Where
                maxima look as if they had no upper limit (like those of a Gumbel law), it keeps the end-point finite,
                and so gives larger scores than the plain likelihood, penalty 0.
    labels      the true class of each input; tables and medians count misclassified inputs as 0.
    seed, ids   random points depend on (seed, id, norm, block). An id is the row of an input in its data set; default:
                0..n-1.
    region      "ball": every point of the ball counts, also points that are no valid inputs (as in the paper). "box":
                only points within the classifier's bounds count, which gives larger scores for inputs at the bounds,
                such as black and white pixels. The method "released-code" clips its points to the bounds in either
                region.
    chunk_size  points per forward pass; the default fits memory and cache.
    workers     number of threads; default: one per core, or one on an accelerator.
    progress    whether to show a progress bar on stderr; default: only if stderr is a terminal.

    >>> import torch
    >>> scores = clever(Classifier(torch.nn.Linear(4, 3)), torch.rand(2, 4), p=2, blocks=20, block_size=8)
    >>> len(scores), scores[0].outcome.value
    (2, 'constant')
    """
    if isinstance(radius, str):
        x = checked_classifier(classifier).inputs(images)
        radius = resolved_radius(radius, p, box_width(classifier.bounds, float(x.min()), float(x.max())))
    settings = Settings(
        p=p,  # type: ignore[arg-type]  # a name such as "inf" becomes a number in Settings
        targets=targets, radius=radius, blocks=blocks, block_size=block_size, seed=seed, method=method, region=region,
        level=level, tolerance=tolerance, budget=budget, penalty=penalty,
    )  # fmt: skip
    examples = prepare(classifier, images, targets=targets, labels=labels, ids=ids, seed=seed)
    estimator = settings.estimator
    ready = estimator.prepare(classifier, examples, settings, chunk_size=chunk_size, workers=workers)
    total = len(examples) * ready.max_work(examples[0].x.numel())
    bar = nullcontext(None) if progress is False else show_progress(total, estimator.activity)
    with bar as on_work:
        found = dict(ready.measure(examples, on_work=on_work))
    scores = score_from([found[i] for i in range(len(examples))], settings.rule)
    scores = replace(scores, class_names=classifier.class_names)
    _warn(scores)
    return scores


def _warn(scores: Scores) -> None:
    flat = sum(row.outcome is FitOutcome.ZERO and not row.slope for row in scores.rows)
    if flat:
        warnings.warn(
            f"all sampled gradients are zero for {flat} of {len(scores.rows)} rows: {FitOutcome.ZERO.advice}",
            CleverWarning,
            stacklevel=3,
        )
    broken = [row for row in scores.rows if row.outcome is FitOutcome.NOT_FINITE]
    if broken:
        warnings.warn(
            f"gradients are NaN or infinite for input {broken[0].input}, target {broken[0].target} "
            f"({len(broken)} rows in all); they have no score",
            CleverWarning,
            stacklevel=3,
        )


def second_order_clever(
    classifier: Classifier, images: Any, *, blocks: int = 50, block_size: int = 32, **options: Any
) -> Scores:
    """Second-order CLEVER scores of a batch, p = 2: the r with margin = slope r + K r^2 / 2, at most the radius.

    slope is the gradient norm of the margin at the input, and K is an estimate of the largest curvature in the ball:
    the end-point of sampled curvatures. The same as `clever` with method="second-order", but with fewer points by
    default, since a point costs 5 to 20 Hessian-vector products per target. In result rows, `lipschitz` is K, and
    `gradients` is the number of points.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    >>> scores = second_order_clever(Classifier(model), torch.rand(2, 4), blocks=20, block_size=8)
    >>> len(scores), scores[0].method
    (2, 'second-order')
    """
    return clever(classifier, images, blocks=blocks, block_size=block_size, method="second-order", **options)
