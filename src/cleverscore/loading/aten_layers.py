"""Turns operations of torch.export programs back into layers: convolutions, dense layers and normalisations.

An exported program consists of operations only. With layers instead, batch normalisation can be folded, memory layouts
changed and bounds propagated, as for the original network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

aten = torch.ops.aten
CONVOLUTIONS: dict[Any, Callable[..., nn.Module]] = {
    aten.conv1d.default: nn.Conv1d,
    aten.conv2d.default: nn.Conv2d,
    aten.conv3d.default: nn.Conv3d,
}
# Operations, and the functions of torch that compute the same from the same arguments in the same order.
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.adaptive_avg_pool2d.default: nn.functional.adaptive_avg_pool2d,
    aten.avg_pool2d.default: nn.functional.avg_pool2d,
    aten.cat.default: torch.cat,
    aten.flatten.using_ints: torch.flatten,
    aten.max_pool2d.default: nn.functional.max_pool2d,
    aten.mul.Tensor: torch.mul,
    aten.relu.default: torch.relu,
    aten.relu_.default: torch.relu,
    aten.reshape.default: torch.reshape,
    aten.sigmoid.default: torch.sigmoid,
    aten.sub.Tensor: torch.sub,
    aten.tanh.default: torch.tanh,
}


def with_layers(module: fx.GraphModule) -> fx.GraphModule:
    """A graph module that computes the same function with layers in place of operations, as far as possible.

    It is in evaluation mode and, unlike the module of an exported program, can be copied.
    """
    written = fx.GraphModule(module, module.graph)
    for node in list(written.graph.nodes):
        if node.op != "call_function":
            continue
        layer = _layer(written, node)
        if layer is not None:
            name = f"layer_{node.name}"
            written.add_submodule(name, layer)
            with written.graph.inserting_before(node):
                call = written.graph.call_module(name, (node.args[0],))
            call.meta = dict(node.meta)
            node.replace_all_uses_with(call)
            written.graph.erase_node(node)
        elif node.target in FUNCTIONS:
            node.target = FUNCTIONS[node.target]
    written.graph.eliminate_dead_code()
    written.recompile()
    written.delete_all_unused_submodules()
    return written.eval().requires_grad_(False)


def _weight(module: fx.GraphModule, node: Any) -> torch.Tensor | None:
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


def _parameter(value: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach(), requires_grad=False)


def _layer(module: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    if node.kwargs:
        return None
    weights = [_weight(module, argument) for argument in node.args]
    given: list[Any] = list(node.args)
    if node.target in CONVOLUTIONS or node.target is aten.linear.default:
        weight, bias = weights[1], weights[2] if len(weights) > 2 else None
        if weight is None or (len(given) > 2 and given[2] is not None and bias is None):
            return None
        if node.target is aten.linear.default:
            made: nn.Module = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        else:
            made = _convolution(CONVOLUTIONS[node.target], weight, given[3:])
        made.weight = _parameter(weight)
        if bias is not None:
            made.bias = _parameter(bias)
        return made
    if node.target is aten.batch_norm.default:
        return _batch_norm(node, weights[1:5], given)
    return None


def _convolution(kind: Callable[..., nn.Module], weight: torch.Tensor, given: list[Any]) -> nn.Module:
    axes = weight.ndim - 2
    defaults: list[Any] = [[1] * axes, [0] * axes, [1] * axes, 1]
    stride, padding, dilation, groups = [*given, *defaults[len(given) :]]
    return kind(
        weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), stride=tuple(stride),
        padding=tuple(padding), dilation=tuple(dilation), groups=groups, bias=False, device="meta",
    )  # fmt: skip


def _batch_norm(node: fx.Node, weights: list[torch.Tensor | None], given: list[Any]) -> nn.Module | None:
    shape = getattr(node.args[0].meta.get("val"), "shape", None) if isinstance(node.args[0], fx.Node) else None
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    weight, bias, mean, variance = weights
    if shape is None or len(shape) not in kinds or given[5] or mean is None or variance is None:
        return None
    if weight is None or bias is None:
        return None
    made = kinds[len(shape)](len(mean), eps=float(given[7]), device="meta")
    made.weight, made.bias = _parameter(weight), _parameter(bias)
    made.running_mean, made.running_var = mean.detach(), variance.detach()
    made.num_batches_tracked = torch.zeros((), dtype=torch.long)
    return made
