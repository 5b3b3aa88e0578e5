"""Affine layers y = A x + b, with the operations that bound propagation needs.

forward      A x + b.
magnitude    |A| x with the absolute values of A's entries, for intervals and operator norms.
transposed   A^T v.
backward     linear functions ("rows") of y as linear functions of x, without the constant part.
added        the constant part, which comes from b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from cleverscore.certificates.linear_forms import Rows

FEW_CHANNELS = 4  # input channels up to which a product and a fold are faster than a transposed convolution
Function = Callable[[torch.Tensor], torch.Tensor]


class Affine:
    """An affine operation whose matrix has no negative entry, given as a function: reshapes, averages and the like.

    The product with the transposed matrix comes from automatic differentiation.

    function    A x + b for inputs x (n, *shape).
    shape       the shape of one input, without a batch axis.
    like        a tensor with the dtype and the device of the weights.
    """

    def __init__(self, function: Function, shape: tuple[int, ...], like: torch.Tensor) -> None:
        self.function = function
        self.shape, self.like = shape, like
        with torch.no_grad():
            offset = function(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))[0]
        self.offset = offset if bool(offset.any()) else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A x + b for x (n, *shape)."""
        return self.function(x)

    def magnitude(self, x: torch.Tensor) -> torch.Tensor:
        """|A| x for x (n, *shape)."""
        y = self.function(x)
        return y if self.offset is None else y - self.offset

    def transposed(self, values: torch.Tensor) -> torch.Tensor:
        """A^T v for each of the rows v in `values` (R, *output shape)."""
        return transposed(self.function, values, self.shape)

    def added(self, rows: Rows) -> torch.Tensor | float:
        """The constants that the offset b adds to R rows over the output: (R,), or 0.0 without an offset."""
        if self.offset is None:
            return 0.0
        return (rows.values * rows.local(self.offset[None])).flatten(1).sum(1)

    def backward(self, rows: Rows, shape: tuple[int, ...]) -> Rows:
        """Rows over the input from rows over the output; `shape` is that of the output."""
        dense = rows.dense(shape)
        return Rows(self.transposed(dense.values), dense.owner)


def transposed(function: Function, values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A^T v for each v of `values`, by automatic differentiation of an affine function of inputs (R, *shape)."""
    with torch.enable_grad():
        x = torch.zeros(len(values), *shape, dtype=values.dtype, device=values.device, requires_grad=True)
        (found,) = torch.autograd.grad(function(x), x, values)
    return found


class Weighted(Affine):
    """A layer with weights of any sign: `absolute` is the same layer with |weights| and without offset."""

    def __init__(self, function: Function, absolute: Function, shape: tuple[int, ...], like: torch.Tensor) -> None:
        super().__init__(function, shape, like)
        self.absolute = absolute

    def magnitude(self, x: torch.Tensor) -> torch.Tensor:
        """|A| x for x (n, *shape)."""
        return self.absolute(x)


class Dense(Weighted):
    """A dense layer: a matrix applied to the last axis."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, shape: tuple[int, ...]) -> None:
        self.weight = weight
        super().__init__(
            lambda x: functional.linear(x, weight, bias), lambda x: functional.linear(x, weight.abs()), shape, weight
        )

    def transposed(self, values: torch.Tensor) -> torch.Tensor:
        """A^T v for rows v over the output."""
        return values @ self.weight


class Scale(Weighted):
    """slope * x + shift, elementwise: preprocessing, batch normalisation, constants."""

    def __init__(self, slope: torch.Tensor, shift: torch.Tensor, shape: tuple[int, ...]) -> None:
        self.slope, self.shift = (values.expand(1, *shape) for values in (slope, shift))
        super().__init__(lambda x: self.slope * x + self.shift, lambda x: self.slope.abs() * x, shape, slope)

    def transposed(self, values: torch.Tensor) -> torch.Tensor:
        """A^T v for rows v over the output."""
        return values * self.slope

    def backward(self, rows: Rows, shape: tuple[int, ...]) -> Rows:
        """Rows over the input: the rows times the slopes."""
        return replace(rows, values=rows.values * rows.local(self.slope))


class Convolution(Weighted):
    """A two-dimensional convolution with zero padding."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        shape: tuple[int, ...],
        *,
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        groups: int,
    ) -> None:
        self.weight, self.bias, self.groups = weight, bias, groups
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.inside = torch.ones(1, *shape, dtype=weight.dtype, device=weight.device)

        def convolve(x: torch.Tensor, kernel: torch.Tensor, constant: torch.Tensor | None) -> torch.Tensor:
            return functional.conv2d(x, kernel, constant, stride, padding, dilation, groups)

        super().__init__(lambda x: convolve(x, weight, bias), lambda x: convolve(x, weight.abs(), None), shape, weight)

    def added(self, rows: Rows) -> torch.Tensor | float:
        """The constants that the bias adds to R rows: (R,), or 0.0 without a bias; it is the same at every position."""
        return 0.0 if self.bias is None else rows.values.sum((2, 3)) @ self.bias

    @property
    def reach(self) -> tuple[int, int]:
        """Height and width of the window of one output, with its dilation."""
        high, wide = self.weight.shape[2:]
        return self.dilation[0] * (high - 1) + 1, self.dilation[1] * (wide - 1) + 1

    def transposed(self, values: torch.Tensor) -> torch.Tensor:
        """A^T v for rows v over the output."""
        # Computed over the padded input, then cut to the input; 0 in rows and columns that the stride left over.
        full = self._spread(values)
        down, across = self.padding
        high, wide = self.shape[1:]
        missing = (max(0, down + high - full.shape[2]), max(0, across + wide - full.shape[3]))
        full = functional.pad(full, (0, missing[1], 0, missing[0])) if any(missing) else full
        return full[:, :, down : down + high, across : across + wide]

    def _spread(self, values: torch.Tensor) -> torch.Tensor:
        """A^T v over the padded input, up to the last row and column that a window reaches."""
        if self.groups == 1 and self.weight.shape[1] <= FEW_CHANNELS:
            # Libraries are tuned for many channels; one product and a fold are two to three times faster here.
            size = tuple(
                (n - 1) * step + reach for n, step, reach in zip(values.shape[2:], self.stride, self.reach, strict=True)
            )
            columns = self.weight.flatten(1).T @ values.flatten(2)
            return functional.fold(columns, size, self.weight.shape[2:], stride=self.stride, dilation=self.dilation)
        # Channels-last convolutions are twice as fast, which pays for the copies.
        spread = functional.conv_transpose2d(
            values.contiguous(memory_format=torch.channels_last),
            self.weight.contiguous(memory_format=torch.channels_last),
            stride=self.stride,
            dilation=self.dilation,
            groups=self.groups,
        )
        return spread.contiguous()

    def backward(self, rows: Rows, shape: tuple[int, ...]) -> Rows:
        """Rows over the input, on larger windows; coefficients at positions in the padding are 0."""
        if rows.corner is None:
            return Rows(self.transposed(rows.values), rows.owner)
        spread = rows.moved(self._spread(rows.values), stride=self.stride, padding=self.padding)
        if any(self.padding):
            spread = replace(spread, values=spread.values * spread.local(self.inside))
        return spread.trimmed(self.shape)


@dataclass(frozen=True)
class Sum:
    """The sum of nodes of the same shape, each times its factor in `signs` (1, -1 or torch.add's alpha)."""

    signs: tuple[float, ...]

    def __call__(self, given: list[torch.Tensor]) -> torch.Tensor:
        """The sum of the given values, each times its factor."""
        return sum((sign * value for sign, value in zip(self.signs, given, strict=True)), torch.zeros_like(given[0]))

    def backward(self, rows: Rows) -> list[Rows]:
        """Rows over each summand: the rows over the sum, times the factor of the summand."""
        return [replace(rows, values=sign * rows.values) for sign in self.signs]


@dataclass(frozen=True)
class Concat:
    """Nodes concatenated along `axis` (0 is the batch axis); `sizes` are their sizes along it."""

    axis: int
    sizes: tuple[int, ...]

    def __call__(self, given: list[torch.Tensor]) -> torch.Tensor:
        """The concatenated values."""
        return torch.cat(given, self.axis)

    def backward(self, rows: Rows, shape: tuple[int, ...]) -> list[Rows]:
        """Rows over each node: its part of the coefficients.

        Rows on windows can only be split by channels; for other axes they become rows over whole maps of `shape`.
        """
        if self.axis != 1:
            rows = rows.dense(shape)
        return [replace(rows, values=part) for part in torch.split(rows.values, list(self.sizes), self.axis)]
