"""Corners of the l1 ball, which are moves of a single coordinate, and moves of a few coordinates grown from them.

A convex function on the l1 ball is largest at a corner, and margins of networks often decrease most at a corner, too:
without a box, the nearest crossing moved one coordinate for half of 80 inputs of five networks, and two coordinates for
many of the others. Descents seldom find such crossings, because one coordinate moves far and gradients change along the
way. But the ball has only two corners per coordinate, and a forward pass at each shows how much the margin decreases.
Moves of more coordinates are grown: the gradient at the end of a good move shows which coordinate to add to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cleverscore.models.input_box import Moves

# Of more corners than this, those are tried at which the margin would be smallest if its gradient were the same
# everywhere as at the input.
MOST_CORNERS = 2048
# All corners are tried at half of the length, and the best of them, this share, also at the whole length.
WHOLE = 0.5
# Moves grow by one coordinate at a time, to four. Each pair: how many of the best moves are grown, and with how many
# different coordinates each. Two coordinates may decrease the margin together although each alone does little, so many
# moves of one coordinate are grown. (CNN with max-pools: the nearest crossing of one input moves two pixels. Alone, one
# of them is the 75th to 92nd best, and the other the 336th or worse.)
GROWTH = ((192, 4), (32, 8), (32, 8))
BEYOND = 1.15  # length of moves over the nearest known crossing's distance; descents then shorten them


def corner_gradients(dim: int) -> float:
    """The cost of `sparse_moves` for an input of `dim` components, in gradients; a forward pass counts as a third."""
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
    """Offsets of one coordinate, then offsets of two to four, with the smallest margins: at most `count` of each of the
    two kinds, so up to (2 * count, d).

    margins     a function from points (n, *shape) to their margins (n,).
    gradients   a function from points (n, *shape) to the gradients of the margins there, (n, d).
    x           the input, (*shape).
    distance    the l1 distance of the nearest crossing known; offsets are a little longer (`BEYOND`).
    box         (low, high): offsets are clipped so that they end inside; None for no box.

    >>> both = lambda z: 1.0 - z[:, 0] * z[:, 1] - 0.1 * z[:, 2]
    >>> slopes = lambda z: torch.stack([-z[:, 1], -z[:, 0], torch.full_like(z[:, 2], -0.1)], 1)
    >>> sparse_moves(both, slopes, torch.zeros(3), distance=2.0, count=1)
    tensor([[0.0000, 0.0000, 2.3000],
            [1.1500, 1.1500, 0.0000]])
    """
    moves = _SparseMoves(margins, x, box)
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
class _SparseMoves:
    """Moves of a few coordinates of the input x, clipped to the box (low, high) if there is one.

    margins     a function from points (n, *shape) to their margins (n,).
    """

    margins: Callable[[torch.Tensor], torch.Tensor]
    x: torch.Tensor
    box: tuple[float, float] | None

    def offsets(self, coordinates: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The offsets (n, d) of n moves of k coordinates (n, k) by these lengths (n, k), clipped to the box."""
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
        """Each move grown by one more coordinate, in `ways` ways, without duplicates: coordinates and signs (m, k + 1).

        Each of the n given moves changes its coordinates (n, k) by `length` in the direction of the signs (n, k). The
        coordinates to add are the `ways` ones in which the gradient is largest at the end of the move; their signs are
        those that decrease the margin.
        """
        flat = self.x.flatten()
        points = flat + self.offsets(coordinates, signs * length)
        slopes = gradients(points.view(-1, *self.x.shape)).nan_to_num(0.0, 0.0, 0.0).scatter(1, coordinates, 0.0)
        within = Moves.of(flat, self.box)
        if within is not None:  # no coordinate is added whose change would leave the box
            slopes = within.masked(slopes)
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
        """Positions (n,) of moves of k coordinates (n, k) by these lengths (n, k), the one with the smallest margin
        first, and the margins in this order (n,).
        """
        if not len(coordinates):
            return coordinates[:, 0], lengths[:, 0]
        offsets = self.offsets(coordinates, lengths).view(-1, *self.x.shape)
        margins, order = self.margins(self.x + offsets).nan_to_num(torch.inf).sort(stable=True)
        return order, margins
