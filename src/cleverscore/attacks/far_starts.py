"""Starts for inputs from which no gradient leads to another class: other inputs, the negative of the input, images of
one value, and noise.
"""

from __future__ import annotations

import torch

from cleverscore.attacks.criterion import Criterion
from cleverscore.attacks.refine import bisected, distances

PLAIN = 5  # the number of images of one value, which go from the lowest value to the highest
# `NOISY_NUMBERS` over the number of components of an input is the number of images of uniform noise, within the first
# two limits; as many images have the lowest or the highest value, at random, in each component. There are more images
# where inputs are small, since a small region of another class takes a larger share of the box there.
LEAST_NOISY, MOST_NOISY, NOISY_NUMBERS = 16, 1024, 2**14
NEIGHBOURS = 64  # the largest number of other inputs that are tried, those nearest to the input


@torch.no_grad()
def far_starts(criterion: Criterion, others: torch.Tensor, *, p: float, seed: int) -> torch.Tensor:
    """An adversarial point for each input, (n, *shape); the input itself where none was found.

    Many candidates are tried. Those that are adversarial are moved towards the input by bisection, and the nearest is
    the result.

    others      (m, *shape): the inputs of the batch, which serve as candidates.
    p           the norm of the distances.
    """
    best = criterion.x.clone()
    for row in range(len(criterion)):
        one = criterion.rows(slice(row, row + 1))
        candidates = _candidates(one, others, p, seed)
        many = criterion.rows(torch.full((len(candidates),), row, device=best.device))
        good = many.margins(candidates) < 0.0
        if bool(good.any()):
            near = bisected(many.rows(good), candidates[good])
            best[row] = near[distances(one.x, near, p).argmin()]
    return best


def _candidates(one: Criterion, others: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """Candidates (m, *shape) for one input; without a box, values lie between the extremes of `others`."""
    x = one.x[0]
    low, high = (one.low, one.high) if one.boxed else (others.amin(), others.amax())
    low, high = low.expand_as(one.x)[0], high.expand_as(one.x)[0]
    noisy = min(max(NOISY_NUMBERS // x.numel(), LEAST_NOISY), MOST_NOISY)
    noise = torch.rand(noisy, *x.shape, generator=torch.Generator().manual_seed(seed)).to(x)
    plain = torch.linspace(0.0, 1.0, PLAIN).to(x).reshape(-1, *[1] * x.ndim)
    nearest = distances(one.x, others, p).argsort()[:NEIGHBOURS]
    negative = low + high - x
    return one.inside(
        torch.cat(
            [
                negative[None],
                low + plain * (high - low),
                low + noise * (high - low),
                torch.where(noise < 0.5, low, high),
                others[nearest],
            ]
        )
    )
