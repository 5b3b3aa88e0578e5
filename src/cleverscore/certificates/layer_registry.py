"""Maps traced calls (layers of torch.nn, functions, tensor methods) to operations that can be bounded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cleverscore.certificates import relaxations
from cleverscore.certificates.linear_layers import Affine, Concat, Convolution, Dense, Scale, Sum, Weighted
from cleverscore.certificates.max_pool import MaxPool
from cleverscore.certificates.relaxations import Activation

Operation = Affine | Sum | Concat | Activation | MaxPool
TRACED = object()  # stands for an argument that depends on the input
NEVER = 20.0  # with at least this threshold, torch's softplus differs from the smooth function by at most 2e-9


class UnknownLayerError(Exception):
    """Raised for a call that cannot be bounded, with the reason."""


@dataclass(frozen=True)
class Call:
    """One call (of a layer, function or method) in a traced network.

    name            the name of the layer's class, of the function or of the tensor method.
    layer           the layer; None for a function or a tensor method.
    function        the call as a function of its one argument that depends on the input, for any batch size.
    arguments       the positional arguments, with TRACED in place of those that depend on the input.
    named           the named arguments, likewise.
    shapes, shape   shapes of the arguments that depend on the input, and of the result, without the batch axis.
    like            a tensor with the dtype and the device of the network.
    ends            whether the result is the model's output.
    """

    name: str
    layer: nn.Module | None
    function: Callable[[torch.Tensor], torch.Tensor]
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    like: torch.Tensor
    ends: bool

    def get(self, place: int, name: str, default: Any = None) -> Any:
        """A setting of the call: an attribute of the layer, or an argument by name or position."""
        if self.layer is not None:
            return getattr(self.layer, name, default)
        if name in self.named:
            return self.named[name]
        return self.arguments[place] if len(self.arguments) > place else default

    def only_traced_first(self) -> None:
        """Raise an error if any argument but the first depends on the input."""
        rest = [*self.arguments[1:], *self.named.values()]
        if len(self.shapes) != 1 or any(value is TRACED for value in rest):
            raise UnknownLayerError("only its first argument may depend on the input")


def operation_of(call: Call) -> Operation | None:
    """The operation of a call; None for a call that returns its argument, and for a softmax at the end.

    Raises an UnknownLayerError for a call that cannot be bounded.
    """
    if call.layer is not None:
        build = next((MODULES[kind] for kind in MODULES if type(call.layer) is kind), None)
    else:
        build = FUNCTIONS.get(call.name)
    if build is None:
        raise UnknownLayerError("there are no bounds for it")
    if build not in (_plus, _times, _concat):
        call.only_traced_first()
    return build(call)


def _dropout(call: Call) -> None:
    if call.layer is None and call.get(2, "training", True):
        raise UnknownLayerError("it is on in evaluation mode: call it with training=self.training")


def _ending(call: Call) -> None:
    """Leave out a softmax or log-softmax over the classes at the end, so that the logits before it are bounded.

    The predicted class stays the same: the probabilities p and the logits f have log p_c - log p_j = f_c - f_j.
    """
    if not call.ends or call.get(1, "dim", 1) not in (1, -1) or len(call.shape) != 1:
        raise UnknownLayerError("it can be left aside only as the last layer, over the classes")


def _structural(call: Call) -> Affine:
    """Reshapes, averages and selections: affine operations without negative weights."""
    return Affine(call.function, call.shapes[0], call.like)


def _average(call: Call) -> Affine:
    """Average pooling; without padding it is a convolution, whose rows stay on small windows."""
    shape = call.shapes[0]
    high, wide = _pair(call.get(1, "kernel_size"))
    plain = _pair(call.get(3, "padding", 0)) == (0, 0) and not call.get(4, "ceil_mode", False)
    if len(shape) != 3 or not plain or call.get(6, "divisor_override") is not None:
        return _structural(call)
    weight = torch.full((shape[0], 1, high, wide), 1.0 / (high * wide), dtype=call.like.dtype, device=call.like.device)
    stride = _pair(call.get(2, "stride") or (high, wide))
    return Convolution(weight, None, shape, stride=stride, padding=(0, 0), dilation=(1, 1), groups=shape[0])


def _convolution(call: Call) -> Affine:
    weight, bias = call.get(1, "weight"), call.get(2, "bias")
    stride, padding, dilation = call.get(3, "stride", 1), call.get(4, "padding", 0), call.get(5, "dilation", 1)
    groups, mode = call.get(6, "groups", 1), getattr(call.layer, "padding_mode", "zeros")
    if padding == "valid":
        padding = 0
    if weight.ndim == 4 and mode == "zeros" and not isinstance(padding, str):
        return Convolution(
            weight, bias, call.shapes[0],
            stride=_pair(stride), padding=_pair(padding), dilation=_pair(dilation), groups=groups,
        )  # fmt: skip
    return _any_convolution(call)


def _any_convolution(call: Call) -> Affine:
    """Other convolutions (1-d, 3-d, transposed, other paddings): A^T v comes from automatic differentiation."""
    layer = call.layer
    if layer is None:
        raise UnknownLayerError("as a function it is bounded only in two dimensions with zero padding; use the layer")
    given = {name: value.abs() if name == "weight" else 0.0 * value for name, value in layer.named_parameters()}

    def absolute(x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, given, (x,))  # type: ignore[no-any-return]

    return Weighted(call.function, absolute, call.shapes[0], call.like)


def _batch_norm(call: Call) -> Scale:
    mean, variance = call.get(1, "running_mean"), call.get(2, "running_var")
    if mean is None or (call.layer is None and call.get(5, "training", False)):
        raise UnknownLayerError("it uses the statistics of the batch, so an input has no output of its own")
    slope = (variance.double() + call.get(7, "eps", 1e-5)).rsqrt()
    weight, bias = call.get(3, "weight"), call.get(4, "bias")
    slope = slope if weight is None else slope * weight.double()
    shift = -mean.double() * slope
    shift = shift if bias is None else shift + bias.double()
    shape = call.shapes[0]
    over = (1, -1, *[1] * (len(shape) - 1))
    return Scale(slope.view(over).to(call.like), shift.view(over).to(call.like), shape)


def _constant(value: Any, call: Call) -> torch.Tensor:
    tensor = torch.as_tensor(value, dtype=call.like.dtype, device=call.like.device)
    if tensor.ndim == len(call.shape) + 1 and len(tensor) != 1:
        raise UnknownLayerError("its constant has one value per input of the batch")
    if call.shape != call.shapes[0]:
        raise UnknownLayerError("its constant makes the values larger than they were")
    return tensor if tensor.ndim == len(call.shape) + 1 else tensor.expand(1, *call.shape)


def _plus(call: Call) -> Operation:
    first, second = call.arguments[0], call.arguments[1] if len(call.arguments) > 1 else call.named["other"]
    alpha = float(call.named.get("alpha", 1.0)) * (-1.0 if call.name in ("sub", "isub", "subtract") else 1.0)
    if first is TRACED and second is TRACED:
        if any(shape != call.shape for shape in call.shapes):
            raise UnknownLayerError("it adds values of different shapes")
        return Sum((1.0, alpha))
    shift = _constant(second if first is TRACED else first, call)
    one = torch.ones_like(call.like)
    return Scale(one, alpha * shift, call.shape) if first is TRACED else Scale(alpha * one, shift, call.shape)


def _times(call: Call) -> Operation:
    first, second = call.arguments[0], call.arguments[1] if len(call.arguments) > 1 else call.named["other"]
    if first is TRACED and second is TRACED:
        raise UnknownLayerError("it multiplies two values that both depend on the input")
    if call.named.get("rounding_mode") is not None:
        raise UnknownLayerError("it rounds its quotient")
    factor = _constant(second if first is TRACED else first, call)
    if call.name in ("truediv", "itruediv", "div", "divide"):
        if first is not TRACED:
            raise UnknownLayerError("it divides by a value that depends on the input")
        factor = 1.0 / factor
    return Scale(factor, torch.zeros_like(call.like), call.shape)


def _negative(call: Call) -> Scale:
    return Scale(-torch.ones_like(call.like), torch.zeros_like(call.like), call.shape)


def _concat(call: Call) -> Concat:
    if call.layer is None and not all(value is TRACED for value in call.arguments[0]):
        raise UnknownLayerError("it joins constants with values that depend on the input")
    axis = int(call.get(1, "dim", 0)) % (len(call.shape) + 1)
    if axis == 0:
        raise UnknownLayerError("it joins along the batch")
    return Concat(axis, tuple(shape[axis - 1] for shape in call.shapes))


def _max_pool(call: Call) -> MaxPool:
    if len(call.shape) != 3:
        raise UnknownLayerError("maximum pooling is bounded in two dimensions")
    if call.get(5, "ceil_mode", False) or call.get(6, "return_indices", False):
        raise UnknownLayerError("maximum pooling is bounded without ceil_mode and return_indices")
    kernel = _pair(call.get(1, "kernel_size"))
    return MaxPool(
        call.shapes[0], kernel, _pair(call.get(2, "stride") or kernel), _pair(call.get(3, "padding", 0)),
        _pair(call.get(4, "dilation", 1)),
    )  # fmt: skip


def _leaky_relu(call: Call) -> Activation:
    slope = float(call.get(1, "negative_slope", 0.01))
    if not 0.0 <= slope <= 1.0:
        raise UnknownLayerError(f"a slope of {slope:g} is not between 0 and 1")
    return relaxations.leaky_relu(slope)


def _elu(call: Call) -> Activation:
    alpha = float(call.get(1, "alpha", 1.0))
    if not 0.0 <= alpha <= 1.0:
        raise UnknownLayerError(f"alpha={alpha:g} is not between 0 and 1")
    return relaxations.elu(alpha)


def _softplus(call: Call) -> Activation:
    beta, threshold = float(call.get(1, "beta", 1.0)), float(call.get(2, "threshold", 20.0))
    if beta <= 0.0 or threshold < NEVER:
        raise UnknownLayerError(f"beta={beta:g}, threshold={threshold:g} make a function with a jump")
    return relaxations.softplus(beta)


def _clamp(call: Call) -> Activation:
    if call.name.lower() == "relu6":
        return relaxations.Clamp(0.0, 6.0)
    low, high = ("min_val", "max_val") if "hardtanh" in call.name.lower() else ("min", "max")
    ends = (-1.0, 1.0) if low == "min_val" else (None, None)
    floor, ceiling = call.get(1, low, ends[0]), call.get(2, high, ends[1])
    if call.name == "clamp_min":
        ceiling = None
    if call.name == "clamp_max":
        floor, ceiling = None, call.get(1, "max")
    if isinstance(floor, torch.Tensor) or isinstance(ceiling, torch.Tensor):
        raise UnknownLayerError("its limits must be numbers")
    return relaxations.Clamp(
        -math.inf if floor is None else float(floor), math.inf if ceiling is None else float(ceiling)
    )


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _linear(call: Call) -> Dense:
    return Dense(call.get(1, "weight"), call.get(2, "bias"), call.shapes[0])


Builder = Callable[[Call], Operation | None]
MODULES: dict[type[nn.Module], Builder] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.ReLU: lambda call: relaxations.relu(),
    nn.LeakyReLU: _leaky_relu,
    nn.ELU: _elu,
    nn.Softplus: _softplus,
    nn.Hardtanh: _clamp,
    nn.ReLU6: _clamp,
    nn.Tanh: lambda call: relaxations.Tanh(),
    nn.Sigmoid: lambda call: relaxations.Tanh(0.5, 0.5, 0.5),
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average,
    **dict.fromkeys((nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d), _any_convolution),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm),
    **dict.fromkeys(
        (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout), lambda call: None
    ),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax), _ending),
    **dict.fromkeys(
        (
            *(nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
            *(nn.AvgPool1d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        ),
        _structural,
    ),
}
FUNCTIONS: dict[str, Builder] = {
    "linear": _linear,
    "conv2d": _convolution,
    "batch_norm": _batch_norm,
    "relu": lambda call: relaxations.relu(),
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "softplus": _softplus,
    "tanh": lambda call: relaxations.Tanh(),
    "sigmoid": lambda call: relaxations.Tanh(0.5, 0.5, 0.5),
    "max_pool2d": _max_pool,
    "avg_pool2d": _average,
    "neg": _negative,
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "alpha_dropout"), _dropout),
    **dict.fromkeys(("clamp", "clip", "hardtanh", "relu6", "clamp_min", "clamp_max"), _clamp),
    **dict.fromkeys(("add", "iadd", "sub", "isub", "subtract"), _plus),
    **dict.fromkeys(("mul", "imul", "multiply", "truediv", "itruediv", "div", "divide"), _times),
    **dict.fromkeys(("cat", "concat", "concatenate"), _concat),
    **dict.fromkeys(("contiguous", "clone", "detach"), lambda call: None),
    **dict.fromkeys(("softmax", "log_softmax"), _ending),
    **dict.fromkeys(
        (
            *("flatten", "unflatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "getitem"),
            *("mean", "sum", "avg_pool1d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "pixel_shuffle"),
        ),
        _structural,
    ),
}
