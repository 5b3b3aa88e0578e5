"""Moves adversarial inputs nearer to the inputs: by bisection, and by descent along the decision boundary."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from cleverscore.attacks.criterion import Criterion
from cleverscore.estimators.ascent.boundary_descent import NEAR, descend

BISECTIONS = 20  # the error is then a millionth of the way


def distances(x: torch.Tensor, y: torch.Tensor, p: float) -> torch.Tensor:
    """||y - x||_p of each row, in double precision: (n, *shape) -> (n,)."""
    norms: torch.Tensor = torch.linalg.vector_norm((y.double() - x.double()).flatten(1), p, dim=1)
    return norms


def nearest_of(criterion: Criterion, runs: Iterable[torch.Tensor], *, p: float, chunk_size: int) -> torch.Tensor:
    """For each input, the nearest candidate in norm p that meets the criterion, else the input itself: (n, *shape).

    runs    each run has one candidate per input, (n, *shape).
    """
    best = criterion.x.clone()
    smallest = torch.full((len(criterion),), torch.inf, dtype=torch.float64, device=best.device)
    for points in runs:
        good, _found = criterion.reached(points, chunk_size=chunk_size)
        sizes = distances(criterion.x, points, p)
        better = good & (sizes < smallest)
        smallest = torch.where(better, sizes, smallest)
        best = torch.where(better.reshape(criterion.column), points, best)
    return best


@torch.no_grad()
def bisected(criterion: Criterion, adversarial: torch.Tensor) -> torch.Tensor:
    """The last point that meets the criterion in a bisection of the line from each input to its `adversarial` input:
    (n, *shape), as are the adversarial inputs, all of which meet the criterion.
    """
    best = adversarial
    inside = torch.zeros(len(criterion), dtype=criterion.x.dtype, device=criterion.x.device)
    outside = torch.ones_like(inside)
    for _ in range(BISECTIONS):
        middle = 0.5 * (inside + outside)
        points = criterion.x + middle.reshape(criterion.column) * (adversarial - criterion.x)
        good = criterion.margins(points) < 0.0
        best = torch.where(good.reshape(criterion.column), points, best)
        outside = torch.where(good, middle, outside)
        inside = torch.where(good, inside, middle)
    return best


def refined(criterion: Criterion, adversarial: torch.Tensor, *, p: float, steps: int) -> torch.Tensor:
    """Move adversarial inputs (n, *shape), all of which meet the criterion, nearer to the inputs in norm p: first by
    bisection, then by a descent along the decision boundary with `steps` gradients.
    """
    best = bisected(criterion, adversarial)
    low, high = (criterion.low, criterion.high) if criterion.boxed else (None, None)
    sizes, points = descend(
        criterion.margins_and_gradients, criterion.x, best, p=p, steps=steps, schedule=NEAR, low=low, high=high
    )
    better = torch.isfinite(sizes) & (distances(criterion.x, points, p) < distances(criterion.x, best, p))
    return torch.where(better.reshape(criterion.column), points, best)
