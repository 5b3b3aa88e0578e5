"""ONNX operators as torch functions: f(node, *inputs) -> output or a tuple of outputs.

They run on tensors, on tensors without values (to infer shapes) and on symbols (to trace the graph). So they do not
read the values of their inputs, except Range, whose inputs are constants; other values that must be known are in the
node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from cleverscore.loading.onnx.node import Node

Operator = Callable[..., Any]
LONGEST_RANGE = 2**24
FAR = 2**31  # files write "to the end" of a slice as the largest number of a type


def _unary(function: Callable[[Any], Any]) -> Operator:
    return lambda node, x: function(x)


def _binary(function: Callable[[Any, Any], Any]) -> Operator:
    return lambda node, a, b: function(a, b)


def _many(function: Callable[[Any, Any], Any]) -> Operator:
    return lambda node, *xs: reduce(function, xs)


def _divide(node: Node, a: Any, b: Any) -> Any:
    whole = all(isinstance(x, torch.Tensor) and not x.is_floating_point() for x in (a, b))
    return torch.div(a, b, rounding_mode="trunc") if whole else torch.div(a, b)


def _modulo(node: Node, a: Any, b: Any) -> Any:
    return torch.fmod(a, b) if node.get("fmod", 0) else torch.remainder(a, b)


def _power(node: Node, a: Any, b: Any) -> Any:
    exponent = node.values[1]
    single = isinstance(exponent, torch.Tensor) and exponent.numel() == 1
    return torch.pow(a, float(exponent)) if single else torch.pow(a, b)


def _clip(node: Node, x: Any, *_: Any) -> Any:
    return torch.clamp(x, node.number(1, "min"), node.number(2, "max"))


def _prelu(node: Node, x: Any, slope: Any) -> Any:
    return torch.where(x < 0, x * slope, x)


def _matmul(node: Node, a: Any, b: Any) -> Any:
    return torch.matmul(a, b)


def _gemm(node: Node, a: Any, b: Any, c: Any = None) -> Any:
    a = a.transpose(0, 1) if node.get("transA", 0) else a
    b = b.transpose(0, 1) if node.get("transB", 0) else b
    product = float(node.get("alpha", 1.0)) * torch.matmul(a, b)
    return product if c is None else product + float(node.get("beta", 1.0)) * c


def _softmax(node: Node, x: Any) -> Any:
    function = torch.softmax if node.operator == "Softmax" else torch.log_softmax
    if node.opset >= 13:
        return function(x, int(node.get("axis", -1)))
    axis = int(node.get("axis", 1)) % max(1, node.rank())  # before opset 13 all axes from here on are one
    if axis == node.rank() - 1:
        return function(x, axis)
    return function(x.flatten(axis), axis).unflatten(axis, node.shape()[axis:])  # type: ignore[no-untyped-call]


def _reduce(function: Callable[[Any, list[int], bool], Any]) -> Operator:
    def run(node: Node, x: Any, *_: Any) -> Any:
        axes = node.axes()
        if not axes:
            if node.get("noop_with_empty_axes", 0):
                return x
            axes = list(range(node.rank()))
        return function(x, axes, bool(node.get("keepdims", 1)))

    return run


def _product(x: Any, axes: list[int], keep: bool) -> Any:
    for axis in sorted(axes, key=lambda a: a if a >= 0 else a + 64, reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


def _arg(function: Callable[..., Any]) -> Operator:
    return lambda node, x: function(x, int(node.get("axis", 0)), keepdim=bool(node.get("keepdims", 1)))


def _reshape(node: Node, x: Any, *_: Any) -> Any:
    target = node.ints(1)
    if not node.get("allowzero", 0):
        sides = node.shape()
        target = [
            (node.batch if i == 0 and sides[0] == 2 else sides[i]) if isinstance(s, int) and s == 0 else s
            for i, s in enumerate(target)
        ]
    node.sized(target)
    batched = [i for i, side in enumerate(target) if not isinstance(side, int)]
    flat = len(target) == 2 and batched == [0] and target[0] is node.batch and node.rank() >= 2
    if flat and target[1] in (-1, math.prod(node.shape()[1:])):
        return torch.flatten(x, 1)
    if len(batched) == 1 and not any(isinstance(side, int) and side == -1 for side in target):
        target[batched[0]] = -1
    return torch.reshape(x, tuple(target))


def _flatten(node: Node, x: Any) -> Any:
    axis = int(node.get("axis", 1))
    if axis == 1:
        return torch.flatten(x, 1)
    axis += node.rank() if axis < 0 else 0
    return torch.reshape(x, (1, -1)) if axis == 0 else torch.flatten(torch.flatten(x, 0, axis - 1), 1)


def _transpose(node: Node, x: Any) -> Any:
    return x.permute(*node.get("perm", list(range(node.rank()))[::-1]))


def _squeeze(node: Node, x: Any, *_: Any) -> Any:
    axes = node.axes()
    if axes is None:
        axes = [i for i, side in enumerate(node.shape()) if side == 1]
    for axis in sorted((a % node.rank() for a in axes), reverse=True):
        x = torch.squeeze(x, axis)
    return x


def _unsqueeze(node: Node, x: Any, *_: Any) -> Any:
    axes = node.axes() or []
    rank = node.rank() + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = torch.unsqueeze(x, axis)
    return x


def _split(node: Node, x: Any, *_: Any) -> Any:
    axis = int(node.get("axis", 0))
    sizes = node.ints(1) if node.has(1) else node.get("split")
    if sizes is None:
        sizes = -(-node.shape()[axis] // int(node.get("num_outputs", node.outputs)))
    pieces = torch.split(x, list(sizes) if not isinstance(sizes, int) else sizes, axis)
    return tuple(pieces[i] for i in range(node.outputs))


def _slice(node: Node, x: Any, *_: Any) -> Any:
    if node.opset < 10:
        starts, ends = list(node.get("starts")), list(node.get("ends"))
        axes, steps = list(node.get("axes", range(len(starts)))), [1] * len(starts)
    else:
        starts, ends = node.ints(1), node.ints(2)
        axes = node.ints(3) if node.has(3) else list(range(len(starts)))
        steps = node.ints(4) if node.has(4) else [1] * len(starts)
    index: list[Any] = [slice(None)] * node.rank()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0:
            if start != -1 or step != -1 or end > -(2**31):
                raise node.error("slices with negative steps are supported only over a whole axis")
            x = torch.flip(x, [axis])
        else:
            start, end = (max(-FAR, min(FAR, p)) if isinstance(p, int) else p for p in (start, end))
            index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _gather(node: Node, x: Any, places: Any) -> Any:
    axis = int(node.get("axis", 0)) % max(1, node.rank())
    if not isinstance(node.values[1], torch.Tensor):
        return x[tuple([slice(None)] * axis + [places.long()])]

    where = node.known(1).long()
    if where.ndim == 0:
        return torch.select(x, axis, int(where))
    where = torch.where(where < 0, where + node.shape()[axis], where)
    chosen = torch.index_select(x, axis, where.flatten())
    return chosen if where.ndim == 1 else chosen.unflatten(axis, tuple(where.shape))  # type: ignore[no-untyped-call]


def _expand(node: Node, x: Any, *_: Any) -> Any:
    # ONNX lets the input be the larger one on an axis; torch's expand does not.
    target, sides = node.ints(1), list(node.shape())
    sides = [1] * (len(target) - len(sides)) + sides
    target = [1] * (len(sides) - len(target)) + target
    pairs = zip(target, sides, strict=True)
    shape = [-1 if side != 1 and (not isinstance(t, int) or t in (1, side)) else t for t, side in pairs]
    missing = len(sides) - node.rank()
    return x.expand(
        *node.sized([1 if i < missing and isinstance(t, int) and t == -1 else t for i, t in enumerate(shape)])
    )


def _tile(node: Node, x: Any, *_: Any) -> Any:
    repeats = node.ints(1)
    node.sized([r * s if isinstance(r, int) else r for r, s in zip(repeats, node.shape(), strict=True)])
    return x.repeat(*repeats)


def _pad(node: Node, x: Any, *_: Any) -> Any:
    pads = node.ints(1) if node.has(1) else list(node.get("pads"))
    axes = node.ints(3) if node.has(3) else list(range(node.rank()))
    before, after = [0] * node.rank(), [0] * node.rank()
    for i, axis in enumerate(axes):
        before[axis], after[axis] = pads[i], pads[i + len(axes)]
    node.sized([a + s + b for a, s, b in zip(before, node.shape(), after, strict=True)])
    widths = [w for pair in zip(reversed(before), reversed(after), strict=True) for w in pair]
    mode = node.get("mode", b"constant")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    if mode == "constant":
        return functional.pad(x, widths, value=node.number(2, "value", 0.0) or 0.0)
    while len(widths) > 2 * (node.rank() - 2) and widths[-2:] == [0, 0]:
        widths = widths[:-2]
    return functional.pad(x, widths, mode={"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode])


def _constant_of_shape(node: Node, *_: Any) -> Any:
    value = node.get("value", torch.zeros(1))
    return torch.full(tuple(node.sized(node.ints(0))), value.item(), dtype=value.dtype)


def _range(node: Node, start: Any, limit: Any, step: Any) -> Any:
    start, limit, step = (x.item() for x in (start, limit, step))
    if not step or abs((limit - start) / step) > LONGEST_RANGE:
        raise node.error(f"a range from {start} to {limit} in steps of {step} is not supported")
    return torch.arange(start, limit, step)


def _cast(node: Node, x: Any, *_: Any) -> Any:
    return x.to(node.get("to"))


def _cast_like(node: Node, x: Any, like: Any) -> Any:
    return x.type_as(like)


def _instance_norm(node: Node, x: Any, weight: Any, bias: Any) -> Any:
    return functional.instance_norm(x, weight=weight, bias=bias, eps=float(node.get("epsilon", 1e-5)))


def _layer_norm(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    if node.outputs > 1:
        raise node.error("only its first output is supported")
    axes = list(range(int(node.get("axis", -1)) % node.rank(), node.rank()))
    centred = x - x.mean(axes, keepdim=True)
    scaled = centred / torch.sqrt((centred * centred).mean(axes, keepdim=True) + float(node.get("epsilon", 1e-5)))
    return scaled * weight if bias is None else scaled * weight + bias


def _lrn(node: Node, x: Any) -> Any:
    size = int(node.get("size"))
    return functional.local_response_norm(
        x, size, float(node.get("alpha", 1e-4)), float(node.get("beta", 0.75)), float(node.get("bias", 1.0))
    )


def _lp_norm(node: Node, x: Any) -> Any:
    return functional.normalize(x, float(node.get("p", 2)), int(node.get("axis", -1)), eps=0.0)


def _global_pool(function: Callable[..., Any]) -> Operator:
    return lambda node, x: function(x, list(range(2, node.rank())), keepdim=True)


def _dropout(node: Node, x: Any, *_: Any) -> Any:
    return (x, torch.ones_like(x, dtype=torch.bool))


def _resize(node: Node, x: Any, *_: Any) -> Any:
    if node.has(3):
        sizes = node.ints(3)[2:]
    elif node.has(2):
        sizes = [math.floor(s * f) for s, f in zip(node.shape()[2:], node.known(2).tolist()[2:], strict=True)]
    else:
        raise node.error("it has neither sizes nor scales")
    node.sized([*node.shape()[:2], *sizes])
    mode, how = (
        v.decode() if isinstance(v, bytes) else v
        for v in (node.get("mode", "nearest"), node.get("coordinate_transformation_mode", "half_pixel"))
    )
    if mode == "nearest":
        rounding = node.get("nearest_mode", b"round_prefer_floor")
        exact = "nearest" if how == "asymmetric" and rounding in (b"floor", "floor") else "nearest-exact"
        return functional.interpolate(x, size=sizes, mode=exact)
    names = {("linear", 3): "linear", ("linear", 4): "bilinear", ("linear", 5): "trilinear", ("cubic", 4): "bicubic"}
    if (mode, node.rank()) not in names or how not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise node.error(f"mode {mode} with {how} coordinates is not supported")
    return functional.interpolate(x, size=sizes, mode=names[mode, node.rank()], align_corners=how == "align_corners")


def _einsum(node: Node, *xs: Any) -> Any:
    equation = node.get("equation")
    return torch.einsum(equation.decode() if isinstance(equation, bytes) else equation, *xs)


def _depth_to_space(node: Node, x: Any) -> Any:
    b, (_, c, h, w) = int(node.get("blocksize")), node.shape()
    if node.get("mode", b"DCR") in (b"CRD", "CRD"):
        return functional.pixel_shuffle(x, b)
    return x.reshape(-1, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(-1, c // b**2, h * b, w * b)


def _space_to_depth(node: Node, x: Any) -> Any:
    b, (_, c, h, w) = int(node.get("blocksize")), node.shape()
    return x.reshape(-1, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(-1, c * b * b, h // b, w // b)


def _trilu(node: Node, x: Any, *_: Any) -> Any:
    diagonal = node.ints(1)[0] if node.has(1) else 0
    return torch.triu(x, diagonal) if node.get("upper", 1) else torch.tril(x, diagonal)


def _top_k(node: Node, x: Any, *_: Any) -> Any:
    found = torch.topk(x, node.ints(1)[0], int(node.get("axis", -1)), bool(node.get("largest", 1)))
    return found[0], found[1]


def _along_axis(node: Node, scale: Any, zero: Any) -> tuple[Any, Any]:
    """Scale and zero point of a quantisation, ready for arithmetic with the node's first input.

    If there is one for each position along the node's `axis`, they are reshaped to broadcast along it.
    """
    if node.rank(1) != 1 or node.shape(1) == (1,):
        return scale, zero
    shape = [1] * node.rank()
    shape[int(node.get("axis", 1))] = -1
    return scale.reshape(shape), None if zero is None else zero.reshape(shape)


def _dequantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    scale, zero = _along_axis(node, scale, zero)
    values = x.to(torch.float32)
    return (values if zero is None else values - zero.to(torch.float32)) * scale


def _quantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    limits = torch.iinfo(node.known(2).dtype if node.has(2) else torch.uint8)
    scale, zero = _along_axis(node, scale, zero)
    rounded = torch.round(x / scale)
    rounded = rounded if zero is None else rounded + zero.to(torch.float32)
    return torch.clamp(rounded, limits.min, limits.max)  # kept as a float: the values are the same


def _shape(node: Node, x: Any) -> Any:
    raise node.error("the shape of this input is not known beforehand")


OPERATORS: dict[str, Operator] = {
    "Abs": _unary(torch.abs), "Add": _binary(torch.add), "And": _binary(torch.logical_and),
    "ArgMax": _arg(torch.argmax), "ArgMin": _arg(torch.argmin), "Cast": _cast, "CastLike": _cast_like,
    "Ceil": _unary(torch.ceil), "Celu": lambda node, x: functional.celu(x, float(node.get("alpha", 1.0))),
    "Clip": _clip, "Concat": lambda node, *xs: torch.cat(xs, int(node.get("axis", 0))),
    "ConstantOfShape": _constant_of_shape, "Cos": _unary(torch.cos),
    "CumSum": lambda node, x, axis: torch.cumsum(x, node.ints(1)[0]), "DepthToSpace": _depth_to_space,
    "DequantizeLinear": _dequantize, "Div": _divide, "Dropout": _dropout, "Einsum": _einsum,
    "Equal": _binary(torch.eq), "Erf": _unary(torch.erf), "Exp": _unary(torch.exp), "Expand": _expand,
    "Flatten": _flatten, "Floor": _unary(torch.floor), "Gather": _gather,
    "GatherElements": lambda node, x, i: torch.gather(x, int(node.get("axis", 0)), i.long()), "Gemm": _gemm,
    "GlobalMaxPool": _global_pool(torch.amax), "GlobalAveragePool": _global_pool(torch.mean),
    "Greater": _binary(torch.gt), "GreaterOrEqual": _binary(torch.ge),
    "HardSigmoid": lambda node, x: torch.clamp(
        float(node.get("alpha", 0.2)) * x + float(node.get("beta", 0.5)), 0.0, 1.0),
    "HardSwish": _unary(functional.hardswish), "Identity": _unary(lambda x: x),
    "InstanceNormalization": _instance_norm, "IsInf": _unary(torch.isinf), "IsNaN": _unary(torch.isnan),
    "LayerNormalization": _layer_norm, "Less": _binary(torch.lt), "LessOrEqual": _binary(torch.le),
    "Log": _unary(torch.log), "LogSoftmax": _softmax, "LpNormalization": _lp_norm, "LRN": _lrn, "MatMul": _matmul,
    "Max": _many(torch.maximum), "Mean": lambda node, *xs: reduce(torch.add, xs) / len(xs),
    "Min": _many(torch.minimum), "Mish": _unary(functional.mish), "Mod": _modulo, "Mul": _binary(torch.mul),
    "Neg": _unary(torch.neg), "Not": _unary(torch.logical_not), "Or": _binary(torch.logical_or), "Pad": _pad,
    "Pow": _power, "PRelu": _prelu, "QuantizeLinear": _quantize, "Range": _range,
    "Reciprocal": _unary(torch.reciprocal), "ReduceL1": _reduce(lambda x, a, k: torch.sum(torch.abs(x), a, keepdim=k)),
    "ReduceL2": _reduce(lambda x, a, k: torch.linalg.vector_norm(x, 2, a, keepdim=k)),
    "ReduceLogSumExp": _reduce(lambda x, a, k: torch.logsumexp(x, a, keepdim=k)),
    "ReduceMax": _reduce(lambda x, a, k: torch.amax(x, a, keepdim=k)),
    "ReduceMean": _reduce(lambda x, a, k: torch.mean(x, a, keepdim=k)),
    "ReduceMin": _reduce(lambda x, a, k: torch.amin(x, a, keepdim=k)), "ReduceProd": _reduce(_product),
    "ReduceSum": _reduce(lambda x, a, k: torch.sum(x, a, keepdim=k)),
    "ReduceSumSquare": _reduce(lambda x, a, k: torch.sum(x * x, a, keepdim=k)), "Reshape": _reshape,
    "Resize": _resize, "Round": _unary(torch.round), "Selu": _unary(functional.selu), "Shape": _shape,
    "Sign": _unary(torch.sign), "Sin": _unary(torch.sin), "Size": _shape, "Slice": _slice, "Softmax": _softmax,
    "Softsign": _unary(functional.softsign), "SpaceToDepth": _space_to_depth, "Split": _split,
    "Sqrt": _unary(torch.sqrt), "Squeeze": _squeeze, "Sub": _binary(torch.sub), "Sum": _many(torch.add),
    "ThresholdedRelu": lambda node, x: torch.where(x > float(node.get("alpha", 1.0)), x, torch.zeros_like(x)),
    "Tile": _tile, "TopK": _top_k, "Transpose": _transpose, "Trilu": _trilu, "Unsqueeze": _unsqueeze,
    "Where": lambda node, c, a, b: torch.where(c, a, b),
    "Xor": _binary(torch.logical_xor),
}  # fmt: skip


def as_tensor(array: Any) -> torch.Tensor:
    """A numpy array as a tensor, copied and in the native byte order."""
    values = np.array(array)
    if values.dtype.kind not in "fiub":
        raise TypeError(f"values of type {values.dtype} cannot be used")
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))
