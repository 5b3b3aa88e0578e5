"""Maximum pooling, bounded by two linear functions of its inputs.

The inputs x_j of a window lie in intervals [l_j, u_j], y is their maximum, and l_m is the largest of the l_j. The bound
below is y >= x_m. Above there are two bounds, y <= max_j u_j and
    y <= l_m + sum over j with u_j > l_m of (u_j - l_m) / (u_j - l_j) (x_j - l_j),
where each max(x_j - l_m, 0) is bounded by its chord; the one that is lower at the middle of all intervals is used.
Where only x_m can be the largest, both bounds are x_m itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from cleverscore.certificates.linear_forms import Rows


class Planes(NamedTuple):
    """Linear bounds of the maximum of each window: below . x <= maximum <= above . x + shift.

    `below` and `above` (T, n, C, h, w) are the slopes at the T positions of each window, `shift` is (n, C, h, w), where
    (C, h, w) is the shape of the output.
    """

    below: torch.Tensor
    above: torch.Tensor
    shift: torch.Tensor


@dataclass(frozen=True)
class MaxPool:
    """Two-dimensional maximum pooling of inputs of `shape` (C, H, W)."""

    shape: tuple[int, ...]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def reach(self) -> tuple[int, int]:
        """Height and width of the window of one output, with its dilation."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))  # type: ignore[return-value]

    @property
    def shares(self) -> int:
        """An upper bound of the number of windows that contain one input."""
        return math.prod(-(-reach // step) for reach, step in zip(self.reach, self.stride, strict=True))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The largest value of each window."""
        return functional.max_pool2d(x, self.kernel, self.stride, self.padding, self.dilation)

    def _places(self) -> list[tuple[int, int]]:
        down, across = self.dilation
        return [(down * i, across * j) for i in range(self.kernel[0]) for j in range(self.kernel[1])]

    def patches(self, x: torch.Tensor) -> torch.Tensor:
        """The values of x (n, C, H, W) at the T positions of each window, -inf in the padding: (T, n, C, h, w)."""
        down, across = self.padding
        padded = functional.pad(x, (across, across, down, down), value=-math.inf)
        high, wide = (
            (side - reach) // step + 1
            for side, reach, step in zip(padded.shape[2:], self.reach, self.stride, strict=True)
        )
        (s, t) = self.stride
        return torch.stack(
            [padded[:, :, i : i + (high - 1) * s + 1 : s, j : j + (wide - 1) * t + 1 : t] for i, j in self._places()]
        )

    def open(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Mask (n, C, H, W) of inputs that can be the largest of a window in which another one can be, too."""
        lows, highs = self.patches(low), self.patches(high)
        rivals = highs > lows.amax(0)
        wanted = (rivals & (rivals.sum(0) > 1)).to(low.dtype)
        return self._folded(list(wanted), low.shape[2:]) > 0

    def planes(self, low: torch.Tensor, high: torch.Tensor) -> Planes:
        """Linear functions below and above the maximum of each window, for inputs in [low, high]."""
        lows, highs = self.patches(low), self.patches(high)
        best, winner = lows.max(0)
        below = torch.zeros_like(lows).scatter_(0, winner[None], 1.0)
        width = highs - lows
        # A rival has u_j > l_m >= l_j, so its width is positive; m itself has slope 1, also where l_m = u_m.
        rival = (highs > best) & (below == 0)
        above = torch.where(rival, (highs - best) / torch.where(rival, width, 1.0), below)
        shift = best - torch.where(above > 0, above * torch.where(above > 0, lows, 0.0), 0.0).sum(0)
        top = highs.amax(0)
        middle = torch.where(above > 0, above * torch.where(above > 0, 0.5 * (lows + highs), 0.0), 0.0).sum(0) + shift
        flat = rival.any(0) & (top < middle)
        return Planes(below, torch.where(flat, 0.0, above), torch.where(flat, top, shift))

    def _folded(self, parts: list[torch.Tensor], size: torch.Size | tuple[int, int]) -> torch.Tensor:
        """Maps of `size`: the sum of the T values of every window, each added at the position that it came from."""
        down, across = self.padding
        (s, t), (high, wide) = self.stride, parts[0].shape[2:]
        full = parts[0].new_zeros(*parts[0].shape[:2], size[0] + 2 * down, size[1] + 2 * across)
        for (i, j), part in zip(self._places(), parts, strict=True):
            full[:, :, i : i + (high - 1) * s + 1 : s, j : j + (wide - 1) * t + 1 : t] += part
        return full[:, :, down : down + size[0], across : across + size[1]]

    def backward(self, rows: Rows, planes: Planes) -> tuple[Rows, torch.Tensor]:
        """Bound linear functions of the outputs from below by linear functions of the inputs, with the bounds `planes`.

        rows    R linear functions of the outputs.

        Returns R linear functions of the inputs and R constants (R,). Each function plus its constant is at most the
        given function of the outputs, for all inputs for which `planes` hold.
        """
        positive, negative = rows.values.clamp_min(0.0), rows.values.clamp_max(0.0)
        bias = (negative * rows.local(planes.shift)).flatten(1).sum(1)
        parts = [
            positive * rows.local(below) + negative * rows.local(above)
            for below, above in zip(planes.below, planes.above, strict=True)
        ]
        if rows.corner is None:
            return Rows(self._folded(parts, self.shape[1:]), rows.owner), bias  # type: ignore[arg-type]
        sides = [
            (w - 1) * step + reach
            for w, step, reach in zip(rows.values.shape[2:], self.stride, self.reach, strict=True)
        ]
        (s, t), (high, wide) = self.stride, rows.values.shape[2:]
        full = rows.values.new_zeros(*rows.values.shape[:2], *sides)
        for (i, j), part in zip(self._places(), parts, strict=True):
            full[:, :, i : i + (high - 1) * s + 1 : s, j : j + (wide - 1) * t + 1 : t] += part
        return rows.moved(full, stride=self.stride, padding=self.padding).trimmed(self.shape), bias
