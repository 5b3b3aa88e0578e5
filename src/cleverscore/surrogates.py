"""Smooth gates for the direction of an ascent through piecewise linear layers; values stay those of the true network.

The gradient of a ReLU network is constant on pieces, so its own derivative is zero and shows no way up. Within
`SmoothGates` a kink of slope `jump` at z = k keeps its value and its slope, and only the derivative of the slope
changes: from 0 to jump * beta * s(beta (z - k)) * (1 - s(beta (z - k))), s the logistic function and beta = 5 / sd(z),
sd over the units of the layer, one point at a time. A max-pool passes on what its winner gets; the derivative of who
wins is that of softmax(beta z) over the window.

Points can also be sent through a rounded network, in which every kink of size `jump` has the values, slopes and
curvature of jump * softplus. Its landscape is the smoother the smaller beta is, and an ascent that begins there and
sharpens the gates on its way ends in better places of the true network than one that never leaves it. But smooth
landscapes have few summits, and climbs from all over the ball end on the same. So each point can have a network of its
own, whose kinks are moved by random numbers of gate widths (sd(z) / sharpness): as gates sharpen, kinks come home.
Max-pools stay as they are.

Functions are caught as they are called (`__torch_function__`), so any module that calls them is served, traced or not.
What is compiled (TorchScript) is out of reach: ascent then finds no direction, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

Number = float | torch.Tensor

SHARPNESS = 5.0  # gates change over about two fifths of the units' standard deviation
GUARD = 1e-6  # clamp(z, min=1e-12) guards a logarithm or a quotient; it is no gate
PATTERNS = 128  # of random moves of kinks, for each layer; the same for every input, target and ball


@dataclass(frozen=True)
class Softness:
    """How sharp gates are, times the units' spread, and which points see a rounded network; for all, or one by one.

    sharpness   a number, or (points,).
    rounded     (points,), or None where no point does.
    moves       (points,), how far the kinks of a rounded network are moved, in widths of its gates; None: not at all.
    patterns    (points,), by which random numbers.
    layer       which function of the network this is, in the order of calls.
    """

    sharpness: Number
    rounded: torch.Tensor | None = None
    moves: torch.Tensor | None = None
    patterns: torch.Tensor | None = None
    layer: int = 0


GATES = Softness(SHARPNESS)


@dataclass(frozen=True)
class _Kinks:
    """Where a function's slope jumps, and by how much; and how soft its stand-in is.

    own     the largest beta that makes sense: that of a smooth function which is sharper than its stand-in.
    """

    jumps: tuple[tuple[float, Any], ...]
    soft: Softness
    own: float = math.inf


def _rows(values: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """One value per row of `z`, where a layer may have turned each point into several rows (tokens, windows)."""
    return values if len(values) == len(z) else values.repeat_interleave(-(-len(z) // len(values)))[: len(z)]


def _beta(z: torch.Tensor, sharpness: Number) -> torch.Tensor:
    """sharpness / sd over all units of a point, shaped to multiply `z`."""
    flat = z.flatten(1)
    # Five times faster than std(); where a mean far above the spread makes it inexact, gates are only a little softer.
    variance = torch.linalg.vector_norm(flat, dim=1).square() / flat.shape[1] - flat.mean(1).square()
    spread = variance.clamp_min(0.0).sqrt().clamp_min(torch.finfo(z.dtype).tiny ** 0.5)
    if isinstance(sharpness, torch.Tensor):
        sharpness = _rows(sharpness, z)
    beta: torch.Tensor = sharpness / spread
    return beta.view(-1, *[1] * (z.ndim - 1))


@lru_cache(maxsize=256)
def _patterns(layer: int, units: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Random numbers (patterns, *units), always the same for a layer."""
    generator = torch.Generator().manual_seed(layer)
    return torch.randn((PATTERNS, *units), generator=generator).to(device, dtype)


def _softened(z: torch.Tensor, kinks: _Kinks) -> tuple[torch.Tensor, torch.Tensor]:
    """How sharp the gates of `z` are, and where gates that have been moved see it."""
    soft = kinks.soft
    free = _beta(z, soft.sharpness)
    if soft.moves is None or soft.patterns is None:
        return free.clamp_max(kinks.own), z
    # Channels of images and features of tokens are moved as a whole, as if by their bias.
    units = (z.shape[1], *[1] * (z.ndim - 2)) if z.ndim != 3 else (1, z.shape[2])
    moves = _patterns(soft.layer, units, z.device, z.dtype)[_rows(soft.patterns, z) % PATTERNS]
    far = _rows(soft.moves, z).to(z.dtype).view(-1, *[1] * (z.ndim - 1))
    return free.clamp_max(kinks.own), z + far * moves / free


def _rounding(z: torch.Tensor, kinks: _Kinks) -> tuple[torch.Tensor, torch.Tensor]:
    """What rounding its kinks adds to a function's values and slopes, 0 for points that see the true network."""
    beta, seen = _softened(z, kinks)
    value, slope = torch.zeros_like(z), torch.zeros_like(z)
    for place, jump in kinks.jumps:
        there, moved = z - place, seen - place
        if math.isinf(kinks.own):
            own_value, own_slope = torch.relu(there), (there > 0.0).to(z.dtype)
        else:
            own_value, own_slope = nn.functional.softplus(there, kinks.own), torch.sigmoid(kinks.own * there)
        value += jump * (nn.functional.softplus(beta * moved) / beta - own_value)
        slope += jump * (torch.sigmoid(beta * moved) - own_slope)
    assert kinks.soft.rounded is not None  # the caller asked
    chosen = _rows(kinks.soft.rounded, z).to(z.dtype).view(-1, *[1] * (z.ndim - 1))
    return value * chosen, slope * chosen


class _Gate(torch.autograd.Function):
    """An elementwise, piecewise linear function with its own values and slopes, or rounded ones."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, function: Callable[..., torch.Tensor], kinks: _Kinks) -> torch.Tensor:
        with torch.enable_grad():
            inner = z.detach().requires_grad_(True)
            value = function(inner)
            (slope,) = torch.autograd.grad(value.sum(), inner)
        value = value.detach()
        if kinks.soft.rounded is not None:
            more_value, more_slope = _rounding(z.detach(), kinks)
            value, slope = value + more_value, slope + more_slope
        ctx.save_for_backward(z, slope)
        ctx.kinks = kinks
        return value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        z, slope = ctx.saved_tensors
        return _Slope.apply(gradient, z, slope, ctx.kinks), None, None  # type: ignore[no-untyped-call]


class _Slope(torch.autograd.Function):
    """gradient * slope(z), whose derivative for z is that of the smooth gate."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, z: torch.Tensor, slope: torch.Tensor, kinks: _Kinks) -> torch.Tensor:
        ctx.save_for_backward(gradient, z, slope)
        ctx.kinks = kinks
        return gradient * slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        gradient, z, slope = ctx.saved_tensors
        beta, seen = _softened(z, ctx.kinks)
        curvature = torch.zeros_like(z)
        for place, jump in ctx.kinks.jumps:
            gate = torch.sigmoid(beta * (seen - place))
            curvature += jump * (gate - gate * gate)
        return above * slope, above * gradient * curvature.mul_(beta), None, None


class _Pool(torch.autograd.Function):
    """Two-dimensional max-pooling; `window` is (kernel, stride, padding, dilation, ceil_mode)."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, window: tuple[Any, ...], sharpness: Number) -> torch.Tensor:
        kernel, stride, padding, dilation, ceil_mode = window
        value, winners = torch.ops.aten.max_pool2d_with_indices(z, kernel, stride, padding, dilation, ceil_mode)
        ctx.save_for_backward(z, winners)
        ctx.window, ctx.sharpness = window, sharpness
        return value  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        z, winners = ctx.saved_tensors
        return _Route.apply(gradient, z, winners, ctx.window, ctx.sharpness), None, None  # type: ignore[no-untyped-call]


class _Route(torch.autograd.Function):
    """Gradients handed to the winners of their windows; the derivative is that of a softmax."""

    @staticmethod
    def forward(
        ctx: Any,
        gradient: torch.Tensor,
        z: torch.Tensor,
        winners: torch.Tensor,
        window: tuple[Any, ...],
        sharpness: Number,
    ) -> torch.Tensor:
        ctx.save_for_backward(gradient, z, winners)
        ctx.window, ctx.sharpness = window, sharpness
        return torch.ops.aten.max_pool2d_with_indices_backward(gradient, z, *window, winners)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None, None]:
        gradient, z, winners = ctx.saved_tensors
        beta = _beta(z, ctx.sharpness)
        cut = _Windows(ctx.window, z.shape, gradient.shape)
        shares = torch.softmax(cut.apart(beta * z, torch.finfo(z.dtype).min), 0)
        offered = cut.apart(above, 0.0)
        change = shares * (offered - (shares * offered).sum(0)) * gradient
        taken = above.flatten(2).gather(2, winners.flatten(2)).view_as(gradient)
        return taken, cut.together(change) * beta, None, None, None


class _Windows:
    """Images cut into pooling windows (places, n, c, high, wide), and put together again by adding up."""

    def __init__(self, window: tuple[Any, ...], image: torch.Size, output: torch.Size) -> None:
        kernel, stride, padding, dilation, _ceil = window
        self.places = []
        sides = []
        spans = [(output[2 + axis] - 1) * stride[axis] + 1 for axis in (0, 1)]
        for axis in (0, 1):
            reach = spans[axis] + dilation[axis] * (kernel[axis] - 1)
            # With ceil_mode the last window can reach further out than the padding.
            sides.append((padding[axis], max(0, reach - image[2 + axis] - padding[axis])))
        for row in range(kernel[0]):
            for column in range(kernel[1]):
                top, left = row * dilation[0], column * dilation[1]
                down, across = (
                    slice(at, at + span, step) for at, span, step in zip((top, left), spans, stride, strict=True)
                )
                self.places.append((..., down, across))
        self.image = image
        self.margins = (*sides[1], *sides[0])

    def apart(self, values: torch.Tensor, outside: float) -> torch.Tensor:
        padded = nn.functional.pad(values, self.margins, value=outside) if any(self.margins) else values
        return torch.stack([padded[place] for place in self.places])

    def together(self, windows: torch.Tensor) -> torch.Tensor:
        n, c, height, width = self.image
        left, right, top, bottom = self.margins
        image = windows.new_zeros(n, c, height + top + bottom, width + left + right)
        for place, values in zip(self.places, windows, strict=True):
            image[place] += values
        return image[:, :, top : top + height, left : left + width]


class _Conv(torch.autograd.Function):
    """A convolution with constant weights; autograd's own second derivative also computes one for the weights."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, weight: torch.Tensor, bias: Any, rest: tuple[Any, ...]) -> torch.Tensor:
        ctx.save_for_backward(z, weight)
        ctx.rest = rest
        stride, padding, dilation, groups = rest
        return nn.functional.conv2d(z, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _ConvBack.apply(gradient, *ctx.saved_tensors, ctx.rest), None, None, None  # type: ignore[no-untyped-call]


class _ConvBack(torch.autograd.Function):
    """The adjoint of a convolution, whose own adjoint is the convolution."""

    @staticmethod
    def forward(
        ctx: Any, gradient: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, rest: tuple[Any, ...]
    ) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.rest = rest
        stride, padding, dilation, groups = rest
        only_input = [True, False, False]
        return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
            gradient, z, weight, None, stride, padding, dilation, False, [0, 0], groups, only_input
        )[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.rest
        return nn.functional.conv2d(above, weight, None, stride, padding, dilation, groups), None, None, None


def _gated(
    z: torch.Tensor, function: Callable[..., torch.Tensor], kinks: _Kinks, inplace: bool = False
) -> torch.Tensor:
    if not (z.is_floating_point() and z.ndim > 1):
        return z.copy_(function(z)) if inplace else function(z)
    if inplace:
        return z.copy_(_Gate.apply(z.clone(), function, kinks))  # type: ignore[no-untyped-call]
    gated: torch.Tensor = _Gate.apply(z, function, kinks)  # type: ignore[no-untyped-call]
    return gated


def _relu(soft: Softness, z: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return _gated(z, torch.relu, _Kinks(((0.0, 1.0),), soft), inplace)


def _relu_(soft: Softness, z: torch.Tensor) -> torch.Tensor:
    return _relu(soft, z, inplace=True)


def _softplus(soft: Softness, z: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor:
    """Its own curvature is that of the gate with its own beta; a sharper one is softened."""
    return _gated(z, lambda v: nn.functional.softplus(v, beta, threshold), _Kinks(((0.0, 1.0),), soft, beta))


def _leaky_relu(soft: Softness, z: torch.Tensor, negative_slope: float = 0.01, inplace: bool = False) -> torch.Tensor:
    kinks = _Kinks(((0.0, 1.0 - negative_slope),), soft)
    return _gated(z, lambda v: nn.functional.leaky_relu(v, negative_slope), kinks, inplace)


def _prelu(soft: Softness, z: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    jump = 1.0 - (weight if weight.numel() == 1 else weight.view(1, -1, *[1] * (z.ndim - 2)))
    return _gated(z, lambda v: torch.prelu(v, weight), _Kinks(((0.0, jump),), soft))


def _hardtanh(
    soft: Softness, z: torch.Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> torch.Tensor:
    kinks = _Kinks(((min_val, 1.0), (max_val, -1.0)), soft)
    return _gated(z, lambda v: nn.functional.hardtanh(v, min_val, max_val), kinks, inplace)


def _relu6(soft: Softness, z: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return _hardtanh(soft, z, 0.0, 6.0, inplace)


def _hardsigmoid(soft: Softness, z: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    kinks = _Kinks(((-3.0, 1.0 / 6.0), (3.0, -1.0 / 6.0)), soft)
    return _gated(z, nn.functional.hardsigmoid, kinks, inplace)


def _abs(soft: Softness, z: torch.Tensor) -> torch.Tensor:
    return _gated(z, torch.abs, _Kinks(((0.0, 2.0),), soft))


def _clamp(soft: Softness, z: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    limits = [(limit, jump) for limit, jump in ((min, 1.0), (max, -1.0)) if limit is not None]
    if any(isinstance(limit, torch.Tensor) or 0.0 < abs(limit) < GUARD for limit, _jump in limits):
        return torch.clamp(z, min, max)
    jumps = tuple((float(limit), jump) for limit, jump in limits)
    return _gated(z, lambda v: torch.clamp(v, min, max), _Kinks(jumps, soft))


def _clamp_min(soft: Softness, z: torch.Tensor, min: Any) -> torch.Tensor:
    return _clamp(soft, z, min)


def _clamp_max(soft: Softness, z: torch.Tensor, max: Any) -> torch.Tensor:
    return _clamp(soft, z, None, max)


def _maximum(soft: Softness, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return b + _relu(soft, a - b)


def _minimum(soft: Softness, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return b - _relu(soft, b - a)


def _pair(value: Any) -> tuple[int, int]:
    both = (value, value) if isinstance(value, int) else tuple(value)
    return (both[0], both[-1])


def _max_pool2d(
    soft: Softness,
    z: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    window = (_pair(kernel_size), _pair(stride or kernel_size), _pair(padding), _pair(dilation), ceil_mode)
    if return_indices or z.ndim != 4:
        return nn.functional.max_pool2d(  # type: ignore[call-overload]
            z, kernel_size, stride, padding, dilation, ceil_mode, return_indices
        )
    return _Pool.apply(z, window, soft.sharpness)  # type: ignore[no-untyped-call]


def _conv2d(
    _soft: Softness,
    z: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> torch.Tensor:
    if isinstance(padding, str) or z.ndim != 4 or weight.requires_grad:
        return nn.functional.conv2d(z, weight, bias, stride, padding, dilation, groups)
    rest = (_pair(stride), _pair(padding), _pair(dilation), groups)
    convolved: torch.Tensor = _Conv.apply(z, weight, bias, rest)  # type: ignore[no-untyped-call]
    return convolved


_STAND_INS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.relu, torch.Tensor.relu, nn.functional.relu, torch.ops.aten.relu.default), _relu),
    **dict.fromkeys((torch.relu_, torch.Tensor.relu_, torch.ops.aten.relu_.default), _relu_),
    nn.functional.relu6: _relu6,
    **dict.fromkeys((nn.functional.softplus, torch.ops.aten.softplus.default), _softplus),
    **dict.fromkeys((nn.functional.leaky_relu, torch.ops.aten.leaky_relu.default), _leaky_relu),
    **dict.fromkeys((torch.prelu, torch.Tensor.prelu, nn.functional.prelu, torch.ops.aten.prelu.default), _prelu),
    **dict.fromkeys((nn.functional.hardtanh, torch.ops.aten.hardtanh.default), _hardtanh),
    nn.functional.hardsigmoid: _hardsigmoid,
    **dict.fromkeys((torch.abs, torch.Tensor.abs, torch.ops.aten.abs.default), _abs),
    **dict.fromkeys((torch.clamp, torch.Tensor.clamp, torch.clip, torch.Tensor.clip), _clamp),
    torch.ops.aten.clamp.default: _clamp,
    **dict.fromkeys((torch.clamp_min, torch.Tensor.clamp_min, torch.ops.aten.clamp_min.default), _clamp_min),
    **dict.fromkeys((torch.clamp_max, torch.Tensor.clamp_max, torch.ops.aten.clamp_max.default), _clamp_max),
    **dict.fromkeys((torch.maximum, torch.Tensor.maximum, torch.ops.aten.maximum.default), _maximum),
    **dict.fromkeys((torch.minimum, torch.Tensor.minimum, torch.ops.aten.minimum.default), _minimum),
    **dict.fromkeys((nn.functional.max_pool2d, torch.max_pool2d, torch.ops.aten.max_pool2d.default), _max_pool2d),
    **dict.fromkeys((nn.functional.conv2d, torch.ops.aten.conv2d.default), _conv2d),
}


class SmoothGates(TorchFunctionMode):
    """Within this context second derivatives see smooth gates; values and first derivatives are the true ones.

    A `Softness` also says which points see a rounded network instead, and how far its kinks are moved.

    >>> z = torch.tensor([[-1.0, 0.5]], requires_grad=True)
    >>> with SmoothGates():
    ...     value = torch.relu(z)
    >>> (slope,) = torch.autograd.grad(value.sum(), z, create_graph=True)
    >>> slope.tolist(), bool((torch.autograd.grad(slope.sum(), z)[0] > 0).all())
    ([[0.0, 1.0]], True)
    """

    def __init__(self, soft: Softness = GATES) -> None:
        super().__init__()
        self.soft = soft
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the stand-in of a function that has one."""
        stand_in = _STAND_INS.get(func)
        if stand_in is None:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        return stand_in(replace(self.soft, layer=self.calls), *args, **(kwargs or {}))
