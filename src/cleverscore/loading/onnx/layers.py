"""ONNX nodes as torch layers where there is one, because optimisation and certificates recognise layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cleverscore.loading.onnx.node import LARGEST_TENSOR, Node

CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
MAXIMA: dict[int, Any] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGES: dict[int, Any] = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}
NORMALISATIONS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def layer(node: Node) -> nn.Module | None:
    """The torch layer for a node; None for a node that is converted as an operation (`operators`)."""
    build = LAYERS.get(node.operator)
    return None if build is None else build(node)


class Pad(nn.Module):
    """Padding with a constant; `widths` as in `torch.nn.functional.pad`."""

    def __init__(self, widths: list[int], value: float = 0.0) -> None:
        super().__init__()
        self.widths, self.value = widths, value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The padded input."""
        return nn.functional.pad(x, self.widths, value=self.value)


def _parameter(values: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(values.clone(), requires_grad=False)


def _geometry(node: Node, kernel: list[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, and the padding before and after each axis."""
    axes = len(kernel)
    strides, dilations = list(node.get("strides", [1] * axes)), list(node.get("dilations", [1] * axes))
    pads = list(node.get("pads", [0] * 2 * axes))
    if axes not in CONVOLUTIONS or any(len(part) != axes for part in (strides, dilations)) or len(pads) != 2 * axes:
        raise node.error(
            f"{axes} axes with strides {strides}, dilations {dilations} and pads {pads} do not go together"
        )
    if min([*kernel, *strides, *dilations]) < 1 or not 0 <= min(pads) <= max(pads) < 2**15:
        raise node.error(f"kernel {kernel}, strides {strides}, dilations {dilations} or pads {pads} are out of range")
    mode = _text(node.get("auto_pad", "NOTSET"))
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        sides = node.shape()[2:]
        total = [
            max(0, (-(-side // stride) - 1) * stride + (width - 1) * dilation + 1 - side)
            for side, stride, width, dilation in zip(sides, strides, kernel, dilations, strict=True)
        ]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = less + more if mode == "SAME_UPPER" else more + less
    elif mode == "VALID":
        pads = [0] * 2 * axes
    return strides, dilations, pads[:axes], pads[axes:]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _border(before: list[int], after: list[int]) -> list[int]:
    """Padding in the order of `torch.nn.functional.pad`: last axis first."""
    pairs = zip(reversed(before), reversed(after), strict=True)
    return [width for pair in pairs for width in pair]


def _convolution(node: Node) -> nn.Module | None:
    if not isinstance(node.values[1], torch.Tensor) or (node.has(2) and not isinstance(node.values[2], torch.Tensor)):
        raise node.error("its weights must be constants")
    weight = node.known(1)
    strides, dilations, before, after = _geometry(node, list(weight.shape[2:]))
    groups = int(node.get("group", 1))
    channels = node.shape()[1]
    if node.operator == "Conv":
        if groups < 1 or weight.shape[0] % groups or weight.shape[1] * groups != channels:
            raise node.error(f"weights of shape {tuple(weight.shape)} do not fit {channels} channels, {groups} groups")
        even = before == after
        made: nn.Module = CONVOLUTIONS[len(strides)](
            channels, weight.shape[0], tuple(weight.shape[2:]), tuple(strides), tuple(before) if even else 0,
            tuple(dilations), groups, bias=False, device="meta",
        )  # fmt: skip
    else:
        if groups < 1 or weight.shape[0] != channels or before != after or node.get("output_shape"):
            raise node.error("uneven padding, output_shape or channels that do not fit are not supported")
        even = True
        made = TRANSPOSED[len(strides)](
            channels, weight.shape[1] * groups, tuple(weight.shape[2:]), tuple(strides), tuple(before),
            tuple(node.get("output_padding", [0] * len(strides))), groups, bias=False, dilation=tuple(dilations),
            device="meta",
        )  # fmt: skip
    made.weight = _parameter(weight)
    if node.has(2):
        made.bias = _parameter(node.known(2))
    return made if even else nn.Sequential(Pad(_border(before, after)), made)


def _gemm(node: Node) -> nn.Module | None:
    scaled = float(node.get("alpha", 1.0)) != 1.0 or float(node.get("beta", 1.0)) != 1.0
    if scaled or node.get("transA", 0) or not isinstance(node.values[1], torch.Tensor) or node.rank() != 2:
        return None
    weight = node.known(1)
    weight = weight if node.get("transB", 0) else weight.T
    bias = None
    if node.has(2):
        if not isinstance(node.values[2], torch.Tensor):
            return None
        bias = node.known(2).flatten()
        bias = bias.expand(len(weight)) if bias.numel() == 1 else bias
        if bias.shape != weight.shape[:1]:
            return None
    return _linear(weight, bias)


def _matmul(node: Node) -> nn.Module | None:
    if not isinstance(node.values[1], torch.Tensor) or node.known(1).ndim != 2 or node.rank() < 2:
        return None
    return _linear(node.known(1).T, None)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Module:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = _parameter(weight.contiguous())
    if bias is not None:
        made.bias = _parameter(bias.contiguous())
    return made


def _batch_norm(node: Node) -> nn.Module | None:
    if node.get("training_mode", 0):
        raise node.error("it is in training mode: export the model in evaluation mode")
    weight, bias, mean, variance = (node.known(position) for position in range(1, 5))
    if node.rank() not in NORMALISATIONS or any(t.shape != (node.shape()[1],) for t in (weight, bias, mean, variance)):
        raise node.error(f"its constants do not fit an input of shape {node.shape()}")
    made = NORMALISATIONS[node.rank()](len(mean), eps=float(node.get("epsilon", 1e-5)), device="meta")
    made.weight, made.bias = _parameter(weight), _parameter(bias)
    made.running_mean, made.running_var = mean.clone(), variance.clone()
    made.num_batches_tracked = torch.zeros((), dtype=torch.long)
    return made.eval()


def _max_pool(node: Node) -> nn.Module | None:
    if node.outputs > 1:
        raise node.error("the indices of the maxima are not supported")
    kernel = list(node.get("kernel_shape"))
    strides, dilations, before, after = _geometry(node, kernel)
    even = before == after and all(2 * pad <= width for pad, width in zip(before, kernel, strict=True))
    made: nn.Module = MAXIMA[len(kernel)](
        tuple(kernel), tuple(strides), tuple(before) if even else 0, tuple(dilations),
        ceil_mode=bool(node.get("ceil_mode", 0)),
    )  # fmt: skip
    return made if even else nn.Sequential(Pad(_border(before, after), -float("inf")), made)


class _InnerAverage(nn.Module):
    """Average pooling with asymmetric padding, in which averages are over the values that are not padding."""

    counted: torch.Tensor

    def __init__(self, pad: Pad, pool: nn.Module, ones: torch.Tensor) -> None:
        super().__init__()
        self.pad, self.pool = pad, pool
        self.register_buffer("counted", pool(pad(ones)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The average over each window of the values that are not padding."""
        pooled: torch.Tensor = self.pool(self.pad(x)) / self.counted
        return pooled


def _average_pool(node: Node) -> nn.Module | None:
    kernel = list(node.get("kernel_shape"))
    strides, dilations, before, after = _geometry(node, kernel)
    if any(dilation != 1 for dilation in dilations):
        raise node.error("dilated averages are not supported")
    counted, ceil = bool(node.get("count_include_pad", 0)), bool(node.get("ceil_mode", 0))
    even = before == after and all(2 * pad <= width for pad, width in zip(before, kernel, strict=True))
    made: nn.Module = AVERAGES[len(kernel)](
        tuple(kernel), tuple(strides), tuple(before) if even else 0, ceil_mode=ceil, count_include_pad=counted
    )
    if even:
        return made
    pad = Pad(_border(before, after))
    return nn.Sequential(pad, made) if counted else _InnerAverage(pad, made, torch.ones(1, 1, *node.shape()[2:]))


def _global_average(node: Node) -> nn.Module | None:
    pools: dict[int, Any] = {3: nn.AdaptiveAvgPool1d, 4: nn.AdaptiveAvgPool2d, 5: nn.AdaptiveAvgPool3d}
    made: nn.Module | None = pools[node.rank()](1) if node.rank() in pools else None
    return made


def _layer_norm(node: Node) -> nn.Module | None:
    shape = list(node.shape()[int(node.get("axis", -1)) :])
    constants = [isinstance(value, torch.Tensor) for value in node.values[1:] if value is not None]
    if node.outputs > 1 or not all(constants) or list(node.known(1).shape) != shape:
        return None
    made = nn.LayerNorm(shape, eps=float(node.get("epsilon", 1e-5)), bias=node.has(2), device="meta")
    made.weight = _parameter(node.known(1))
    if node.has(2):
        made.bias = _parameter(node.known(2))
    return made


def _group_norm(node: Node) -> nn.Module | None:
    groups = int(node.get("num_groups", 1))
    weight, bias = node.known(1), node.known(2)
    channels = node.shape()[1]
    if groups < 1 or channels % groups or channels > LARGEST_TENSOR:
        raise node.error(f"{channels} channels do not make {groups} groups")
    if len(weight) != channels:  # opset 18 scales each group, opset 21 each channel
        weight, bias = (t.repeat_interleave(channels // groups) for t in (weight, bias))
    made = nn.GroupNorm(groups, channels, eps=float(node.get("epsilon", 1e-5)), device="meta")
    made.weight, made.bias = _parameter(weight), _parameter(bias)
    return made


def _clip(node: Node) -> nn.Module | None:
    limits = (node.number(1, "min"), node.number(2, "max"))
    if limits == (0.0, 6.0):
        return nn.ReLU6()
    return nn.ReLU() if limits == (0.0, None) else None


LAYERS: dict[str, Callable[[Node], nn.Module | None]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "Dropout": lambda node: nn.Identity() if node.outputs == 1 else None,
    "Elu": lambda node: nn.ELU(float(node.get("alpha", 1.0))),
    "Gelu": lambda node: nn.GELU(_text(node.get("approximate", "none"))),
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda node: nn.LeakyReLU(float(node.get("alpha", 0.01))),
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Relu": lambda node: nn.ReLU(),
    "Sigmoid": lambda node: nn.Sigmoid(),
    "Softplus": lambda node: nn.Softplus(),
    "Tanh": lambda node: nn.Tanh(),
}
