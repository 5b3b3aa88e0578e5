"""A short descent of the margin: it shows whether the other class is nearer than the norms found say."""

from __future__ import annotations

import math

import torch

from cleverscore.ascent import Climbs, inside_box
from cleverscore.classifier import Classifier
from cleverscore.projections import onto_ball, steepest

DESCENTS, DESCENT_STARTS, DESCENT_STEPS, HALVINGS, NEARER = 3, 4, 12, 10, 0.99


def descent_cost() -> int:
    """Gradient equivalents of `nearest_crossings` at most: a forward pass is half a gradient."""
    return DESCENTS * (DESCENT_STARTS * DESCENT_STEPS + HALVINGS // 2)


def nearest_crossings(
    classifier: Classifier, climbs: Climbs, *, p: float, bounds: tuple[float, float] | None = None
) -> torch.Tensor:
    """How far a short descent of the margin has to go within each ball until it meets the target's class: (n,).

    Infinite where it does not. What is met is brought as near as the straight way back allows, and the descent repeated
    in a ball a little smaller than that. A climb's start is where its descent begins, as a share of the radius.
    """
    centers, shape = climbs.centers.flatten(1), climbs.centers.shape
    nearest = torch.full_like(climbs.radii, math.inf)
    radii = climbs.radii
    for _ in range(DESCENTS):
        offsets = inside_box(climbs.starts * radii[:, None], centers, bounds)
        places = offsets
        met = torch.zeros(len(offsets), dtype=torch.bool, device=offsets.device)
        for step in range(DESCENT_STEPS):
            margins, ways = _margins(classifier, climbs, (centers + offsets).view(shape), gradient=True)
            crossed = (margins <= 0.0) & ~met
            places = torch.where(crossed[:, None], offsets, places)
            met |= crossed
            reach = (1.0 - step / DESCENT_STEPS) * radii[:, None]
            offsets = inside_box(onto_ball(offsets - reach * steepest(ways, p), radii, p), centers, bounds)
        if not bool(met.any()):
            break
        near, far = torch.zeros_like(radii), torch.ones_like(radii)
        for _ in range(HALVINGS):
            middle = (near + far) / 2
            margins, _ = _margins(classifier, climbs, (centers + middle[:, None] * places).view(shape), gradient=False)
            near, far = torch.where(margins > 0.0, middle, near), torch.where(margins > 0.0, far, middle)
        lengths = torch.linalg.vector_norm(far[:, None] * places, p, dim=1)
        nearest = torch.where(met, torch.minimum(nearest, lengths), nearest)
        radii = torch.where(met, NEARER * nearest, radii)
    return nearest


def _margins(
    classifier: Classifier, climbs: Climbs, points: torch.Tensor, *, gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Margins at points, and their gradients (n, d) where asked for."""
    points = points.detach().requires_grad_(gradient)
    with torch.set_grad_enabled(gradient):
        logits = classifier.logits(points)
        margins = (logits.gather(1, climbs.predicted[:, None]) - logits.gather(1, climbs.targets[:, None]))[:, 0]
        if not gradient:
            return margins, points
        (ways,) = torch.autograd.grad(margins.sum(), points)
    return margins.detach(), ways.flatten(1).nan_to_num(0.0, 0.0, 0.0).to(climbs.starts.dtype)
