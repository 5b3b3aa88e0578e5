"""Corners of the l1 ball, which are moves of a single coordinate, and points halfway between two of them.

A convex function on the l1 ball is largest at a corner, and margins of networks often decrease most at one: of 80
inputs of five networks, the nearest crossing without a box moved one coordinate for half of them, and two for many
others. Descents follow gradients, which change along so long a move, and seldom meet such crossings. But there are only
two corners per coordinate, and a forward pass at each tells how far the margin decreases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

# With more corners than this, those are tried towards which the gradient at the input decreases most.
MOST_CORNERS = 2048
WHOLE = 0.5  # share of the corners that are also tried at the whole length, after all were tried at half of it
PAIRED = 32  # of these each two are tried together
BEYOND = 1.15  # points are tried at this multiple of the nearest crossing's distance: descents shorten the moves


def corner_gradients(dim: int) -> float:
    """The cost of `sparse_moves` in gradients; a forward pass counts as a third."""
    corners = min(2 * dim, MOST_CORNERS)
    return ((1.0 + WHOLE) * corners + PAIRED * (PAIRED - 1) / 2) / 3.0


def sparse_moves(
    margins: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    gradient: torch.Tensor,
    distance: float,
    count: int,
    box: tuple[float, float] | None = None,
) -> torch.Tensor:
    """Offsets of one and of two coordinates with the smallest margins: up to (2 * count, d), the best of each kind.

    margins     of points (n, *shape): (n,).
    gradient    (d,): of the margin at the input.
    distance    of the nearest crossing known.
    box         moves end at its sides.

    >>> both = lambda z: 1.0 - z[:, 0] * z[:, 1] - 0.1 * z[:, 2]
    >>> sparse_moves(both, torch.zeros(3), torch.tensor([0.0, 0.0, -0.1]), distance=2.0, count=1)
    tensor([[0.0000, 0.0000, 2.3000],
            [1.1500, 1.1500, 0.0000]])
    """
    moves = _Moves(margins, x, box)
    length = BEYOND * distance
    dim = x.numel()
    chosen = torch.cat([gradient, -gradient]).argsort(stable=True)[:MOST_CORNERS]
    coordinates, signs = (chosen % dim)[:, None], torch.where(chosen < dim, 1.0, -1.0).to(x)[:, None]
    order = moves.order(coordinates, signs * length / 2)
    coordinates, signs = coordinates[order], signs[order]
    few = max(1, round(WHOLE * len(order)))
    ones = moves.order(coordinates[:few], signs[:few] * length)[:count]
    first, second = torch.triu_indices(min(PAIRED, len(order)), min(PAIRED, len(order)), 1, device=x.device)
    pairs, lengths = (torch.cat([each[first], each[second]], 1) for each in (coordinates, signs * length / 2))
    apart = pairs[:, 0] != pairs[:, 1]  # the two corners of a coordinate cancel each other
    pairs, lengths = pairs[apart], lengths[apart]
    twos = moves.order(pairs, lengths)[:count]
    singles = moves.offsets(coordinates[ones], signs[ones] * length)
    return torch.cat([singles, moves.offsets(pairs[twos], lengths[twos])])


@dataclass(frozen=True)
class _Moves:
    """Moves of a few coordinates of the input x, which end at the sides of the box."""

    margins: Callable[[torch.Tensor], torch.Tensor]
    x: torch.Tensor
    box: tuple[float, float] | None

    def offsets(self, coordinates: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The offsets (n, d) that move k coordinates (n, k) by these lengths (n, k)."""
        flat = self.x.flatten()
        if self.box is not None:
            lengths = (flat[coordinates] + lengths).clamp(*self.box) - flat[coordinates]
        return flat.new_zeros(len(coordinates), len(flat)).scatter(1, coordinates, lengths)

    def order(self, coordinates: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Positions of the moves (n,), the one with the smallest margin first."""
        if not len(coordinates):
            return coordinates[:, 0]
        offsets = self.offsets(coordinates, lengths).view(-1, *self.x.shape)
        return self.margins(self.x + offsets).nan_to_num(torch.inf).argsort(stable=True)
