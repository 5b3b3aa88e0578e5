"""Corners of the l1 ball, which are moves of a single coordinate, and moves of a few coordinates grown from them.

A convex function on the l1 ball is largest at a corner, and margins of networks often decrease most at one: of 80
inputs of five networks, the nearest crossing without a box moved one coordinate for half of them, and two for many
others. Descents follow gradients, which change along so long a move, and seldom meet such crossings. But there are only
two corners per coordinate, and a forward pass at each tells how far the margin decreases. Moves of more coordinates are
grown: the gradient at the end of a good move tells which coordinate to add to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

# With more corners than this, those are tried towards which the gradient at the input decreases most.
MOST_CORNERS = 2048
WHOLE = 0.5  # share of the corners that are also tried at the whole length, after all were tried at half of it
# Moves grow by one coordinate at a time: so many of the best moves, each in so many ways. Coordinates may decrease the
# margin together where each alone does little, so many single ones are tried. (CNN with max-pools: the nearest crossing
# of one input moves two pixels, of which alone one is the 75th to 92nd best and the other the 336th or worse.)
GROWTH = ((192, 4), (32, 8), (32, 8))
BEYOND = 1.15  # points are tried at this multiple of the nearest crossing's distance: descents shorten the moves


def corner_gradients(dim: int) -> float:
    """The cost of `sparse_moves` in gradients; a forward pass counts as a third."""
    corners = min(2 * dim, MOST_CORNERS)
    return 1.0 + (1.0 + WHOLE) * corners / 3.0 + sum(moves * (1.0 + ways / 3.0) for moves, ways in GROWTH)


def sparse_moves(
    margins: Callable[[torch.Tensor], torch.Tensor],
    gradients: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    distance: float,
    count: int,
    box: tuple[float, float] | None = None,
) -> torch.Tensor:
    """Offsets of one and of a few coordinates with the smallest margins: up to (2 * count, d), the best of each kind.

    margins     of points (n, *shape): (n,).
    gradients   of the margins at points (n, *shape): (n, d).
    distance    of the nearest crossing known.
    box         moves end at its sides.

    >>> both = lambda z: 1.0 - z[:, 0] * z[:, 1] - 0.1 * z[:, 2]
    >>> slopes = lambda z: torch.stack([-z[:, 1], -z[:, 0], torch.full_like(z[:, 2], -0.1)], 1)
    >>> sparse_moves(both, slopes, torch.zeros(3), distance=2.0, count=1)
    tensor([[0.0000, 0.0000, 2.3000],
            [1.1500, 1.1500, 0.0000]])
    """
    moves = _Moves(margins, x, box)
    length = BEYOND * distance
    dim = x.numel()
    gradient = gradients(x[None])[0]
    chosen = torch.cat([gradient, -gradient]).argsort(stable=True)[:MOST_CORNERS]
    coordinates, signs = (chosen % dim)[:, None], torch.where(chosen < dim, 1.0, -1.0).to(x)[:, None]
    order = moves.order(coordinates, signs * length / 2)[0]
    coordinates, signs = coordinates[order], signs[order]
    few = max(1, round(WHOLE * len(order)))
    ones = moves.order(coordinates[:few], signs[:few] * length)[0][:count]
    found = [moves.offsets(coordinates[ones], signs[ones] * length)]
    several, values = [], []
    for moved, (best, ways) in enumerate(GROWTH[: dim - 1], 1):
        coordinates, signs = moves.grown(gradients, coordinates[:best], signs[:best], length / moved, ways)
        order, sizes = moves.order(coordinates, signs * length / (moved + 1))
        coordinates, signs = coordinates[order], signs[order]
        several.append(moves.offsets(coordinates[:count], signs[:count] * length / (moved + 1)))
        values.append(sizes[:count])
    if several:
        found.append(torch.cat(several)[torch.cat(values).argsort(stable=True)[:count]])
    return torch.cat(found)


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

    def grown(
        self,
        gradients: Callable[[torch.Tensor], torch.Tensor],
        coordinates: torch.Tensor,
        signs: torch.Tensor,
        length: float,
        ways: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Moves of k coordinates, grown by one more coordinate: coordinates and signs (m, k + 1).

        Each of n moves changes its coordinates (n, k) by `length` in the direction of the signs (n, k). Added, in turn,
        are those `ways` coordinates along which the margin decreases most where the move ends.
        """
        flat = self.x.flatten()
        points = flat + self.offsets(coordinates, signs * length)
        slopes = gradients(points.view(-1, *self.x.shape)).nan_to_num(0.0, 0.0, 0.0).scatter(1, coordinates, 0.0)
        if self.box is not None:  # no move leads out of the box
            low, high = self.box
            slopes = torch.where(((slopes > 0.0) & (flat <= low)) | ((slopes < 0.0) & (flat >= high)), 0.0, slopes)
        added = slopes.abs().topk(min(ways, slopes.shape[1] - coordinates.shape[1]), dim=1).indices
        ways = added.shape[1]
        more = torch.cat([coordinates.repeat_interleave(ways, 0), added.reshape(-1, 1)], 1)
        turned = torch.cat([signs.repeat_interleave(ways, 0), -slopes.gather(1, added).sign().reshape(-1, 1)], 1)
        sorted_more, places = more.sort(1)
        turned = turned.gather(1, places)
        kept = dict.fromkeys(map(tuple, torch.cat([sorted_more.to(turned), turned], 1).tolist()))
        different = torch.tensor(list(kept), device=more.device).view(-1, 2, more.shape[1])
        return different[:, 0].long(), different[:, 1].to(signs)

    def order(self, coordinates: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions of the moves (n,), the one with the smallest margin first, and the margins in this order."""
        if not len(coordinates):
            return coordinates[:, 0], lengths[:, 0]
        offsets = self.offsets(coordinates, lengths).view(-1, *self.x.shape)
        margins, order = self.margins(self.x + offsets).nan_to_num(torch.inf).sort(stable=True)
        return order, margins
