"""CROWN by the library auto_LiRPA, if it is installed: it bounds more kinds of layers than this package."""

from __future__ import annotations

import numpy as np
import torch

from cleverscore.certificates.crown_radius import gradient_norms
from cleverscore.certificates.radius_search import RadiusSearch, largest_radii
from cleverscore.certificates.request import MARGIN_ROUNDING, CertificateRequest, Floats, objectives
from cleverscore.errors import CertificateError, MissingExtraError
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier


class _Logits(torch.nn.Module):
    """A classifier's logits as a module, with the preprocessing."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.module, self.classifier = classifier.module, classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, K)."""
        return self.classifier.logits(x)


def auto_lirpa_radii(classifier: Classifier, examples: list[Example], request: CertificateRequest) -> list[Floats]:
    """Certified radii of each input, (T,) for its T targets, by auto_LiRPA's CROWN and this package's search."""
    try:
        from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm
    except ImportError:
        raise MissingExtraError(
            "method='auto-lirpa' needs auto_LiRPA, which is not installed; install it from its repository "
            "(github.com/Verified-Intelligence/auto_LiRPA), or use method='crown'"
        ) from None
    x = torch.stack([example.x for example in examples])
    try:
        bounded = BoundedModule(_Logits(classifier), x[:1], device=classifier.device)
    except Exception as error:  # the library has no common error class
        raise CertificateError(f"auto_LiRPA cannot bound {classifier.name}: {error}") from error
    logits = classifier.logits(x)
    hidden = (MARGIN_ROUNDING * torch.finfo(x.dtype).eps * logits.abs().amax(1)).double().cpu().numpy()
    radii = []
    for i, example in enumerate(examples):
        rows = objectives(example, logits.shape[1])
        margins = (rows @ logits[i].double()).cpu().numpy() - hidden[i]
        slopes = gradient_norms(classifier, example, request.p)
        parts = [range(len(rows))] if request.smallest else [range(j, j + 1) for j in range(len(rows))]
        found = np.zeros(len(rows))
        for part in parts:
            chosen = rows[list(part)][None].to(x.dtype)

            def evaluate(some: list[int], at: Floats) -> list[Floats]:
                ball = PerturbationLpNorm(norm=request.p, eps=float(at[0]))
                point = BoundedTensor(x[i : i + 1], ball)  # noqa: B023
                low, _ = bounded.compute_bounds(x=(point,), C=chosen, method="CROWN", bound_upper=False)  # noqa: B023
                return [low[0].detach().double().cpu().numpy() - hidden[i]]  # noqa: B023

            search = RadiusSearch(margins[list(part)], slopes[list(part)], request.limit, request.precision)
            largest_radii([search], evaluate, together=1)
            found[list(part)] = search.best if request.smallest else search.low
        radii.append(found)
    return radii
