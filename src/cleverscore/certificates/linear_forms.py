"""Rows: linear functions of a layer's values, stored on small windows where convolutions make them local.

A neuron of a convolution depends on a small window of every earlier feature map. Its coefficients are stored on that
window alone, as (C, h, w), with the position of the window's corner, until the window is about as large as the map.
Rows of the same input with the same window form a group: work that depends on the window alone is done once per group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

DENSE_SHARE = 0.5  # a window that covers a larger share of the map costs more than the whole map


@dataclass(frozen=True)
class Rows:
    """Coefficients of R linear functions of one node.

    values          (R, *shape) for rows over whole maps, (R, C, h, w) for rows on windows.
    owner           (R,): which input of the batch a row belongs to.
    corner          (G, 2): row and column of the top left corner of each group's window.
    group           (R,): the group of each row.
    group_owner     (G,): which input of the batch a group belongs to.
    The last three are None for rows over whole maps.
    """

    values: torch.Tensor
    owner: torch.Tensor
    corner: torch.Tensor | None = None
    group: torch.Tensor | None = None
    group_owner: torch.Tensor | None = None

    def local(self, maps: torch.Tensor) -> torch.Tensor:
        """The entries of `maps` at the positions of each row's coefficients, in a shape that broadcasts with `values`.

        maps    (n, *shape), one map for each input, or (1, *shape), the same for all; 0 is taken outside of it.
        """
        if self.corner is None or self.group is None or self.group_owner is None:
            if len(maps) == 1:
                return maps
            first = int(self.owner[0])
            return maps[first : first + 1] if bool((self.owner == first).all()) else maps[self.owner]
        high, wide = self.values.shape[2:]
        owner = torch.zeros_like(self.group_owner) if len(maps) == 1 else self.group_owner
        view, shift = _windows(maps, self.corner, high, wide)
        return view[owner, :, self.corner[:, 0] + shift[0], self.corner[:, 1] + shift[1]][self.group]

    def dense(self, shape: tuple[int, ...]) -> Rows:
        """The same rows over whole maps of `shape`."""
        if self.corner is None or self.group is None:
            return self
        high, wide = self.values.shape[2:]
        maps = self.values.new_zeros(len(self.values), *shape)
        view, shift = _windows(maps, self.corner, high, wide)
        rows = torch.arange(len(self.values), device=maps.device)
        corner = self.corner[self.group]
        view[rows, :, corner[:, 0] + shift[0], corner[:, 1] + shift[1]] = self.values
        base = view._base if view._base is not None else view
        values = base[:, :, shift[0] : shift[0] + shape[1], shift[1] : shift[1] + shape[2]]
        return Rows(values.contiguous(), self.owner)

    def trimmed(self, shape: tuple[int, ...]) -> Rows:
        """The same rows: on windows if these cover at most DENSE_SHARE of a map of `shape`, else over whole maps."""
        if self.corner is None:
            return self
        high, wide = self.values.shape[2:]
        return self.dense(shape) if high * wide > DENSE_SHARE * shape[1] * shape[2] else self

    def moved(self, values: torch.Tensor, *, stride: tuple[int, int], padding: tuple[int, int]) -> Rows:
        """Rows with coefficients `values` over the input of a convolution or pooling.

        The corner (i, j) of a window over the output becomes (i, j) * stride - padding.
        """
        assert self.corner is not None
        scale, shift = (torch.tensor(pair, device=self.corner.device) for pair in (stride, padding))
        return replace(self, values=values, corner=self.corner * scale - shift)

    def __add__(self, other: Rows) -> Rows:
        """The sum of two sets of rows on windows over the same node, for which `fits` must hold."""
        if self.corner is None or other.corner is None:
            raise ValueError("windows are added to windows; make both dense first")
        small, large = sorted((self, other), key=lambda rows: rows.values.shape[2:].numel())
        assert small.corner is not None
        assert large.corner is not None
        down, across = (small.corner - large.corner)[0].tolist()
        high, wide = small.values.shape[2:]
        values = large.values.clone()
        values[:, :, down : down + high, across : across + wide] += small.values
        return replace(large, values=values)

    def fits(self, other: Rows) -> bool:
        """Whether the windows of one set of rows contain those of the other, at the same offset in every group."""
        if self.corner is None or other.corner is None:
            return False
        small, large = sorted((self, other), key=lambda rows: rows.values.shape[2:].numel())
        assert small.corner is not None
        assert large.corner is not None
        shift = small.corner - large.corner
        room = torch.tensor(large.values.shape[2:]) - torch.tensor(small.values.shape[2:])
        first = shift[0].cpu()
        return bool((shift == shift[0]).all() and (first >= 0).all() and (first <= room).all())


def merged(first: Rows, second: Rows, shape: tuple[int, ...]) -> Rows:
    """The sum of two sets of rows over the same node, whose values have `shape`."""
    if first.fits(second):
        return first + second
    first, second = first.dense(shape), second.dense(shape)
    return Rows(first.values + second.values, first.owner)


def one_hot(neurons: torch.Tensor, owner: torch.Tensor, signs: torch.Tensor, shape: tuple[int, ...]) -> Rows:
    """Rows that select single neurons of a node of `shape`, times a sign.

    neurons (R,) are flat indices; owner (R,) and signs (R,) are the input and the sign of each row.
    """
    count = len(neurons)
    places = torch.arange(count, device=neurons.device)
    if len(shape) != 3:
        values = signs.new_zeros(count, int(torch.Size(shape).numel()))
        values[places, neurons] = signs
        return Rows(values.view(count, *shape), owner)
    channels, high, wide = shape
    values = signs.new_zeros(count, channels, 1, 1)
    values[places, neurons // (high * wide), 0, 0] = signs
    inside = neurons % (high * wide)
    keys, group = torch.unique(owner * (high * wide) + inside, return_inverse=True)
    inside = keys % (high * wide)
    corner = torch.stack([inside // wide, inside % wide], 1)
    return Rows(values, owner, corner, group, keys // (high * wide)).trimmed(shape)


def _windows(maps: torch.Tensor, corner: torch.Tensor, high: int, wide: int) -> tuple[torch.Tensor, tuple[int, int]]:
    """All windows of size `high` x `wide` of maps: a view (n, C, rows, columns, high, wide), and a shift.

    The maps are padded with 0 so that the windows at `corner` lie inside. The window at corner (i, j) of the maps has
    row and column (i, j) + shift in the view.
    """
    least, most = corner.amin(0).tolist(), corner.amax(0).tolist()
    top, left = max(0, -least[0]), max(0, -least[1])
    bottom = max(0, most[0] + high - maps.shape[2])
    right = max(0, most[1] + wide - maps.shape[3])
    padded = functional.pad(maps, (left, right, top, bottom))
    return padded.unfold(2, high, 1).unfold(3, wide, 1), (top, left)
