"""The same function, faster: batch normalisation folded into layers, channels-last and one-channel convolutions.

Such a change affects only rounding; this is checked on the user's own inputs. A change that is not possible, or that
changes logits or gradients by more than rounding, is not made.
"""

from __future__ import annotations

import copy

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from cleverscore.models.classifier import Classifier
from cleverscore.models.one_channel_conv import is_thin, thinned

CHECKED_INPUTS = 8
# The largest relative change of logits, and of gradients, that counts as rounding. Rounding changes logits by about
# 1e-7. It can change the sign of a ReLU's input that is nearly zero; this changes gradients by 1e-3 on networks of
# ImageNet size. Two libraries differ by as much.
TOLERANCES = (1e-4, 1e-2)

_FUSE = {
    (nn.Conv1d, nn.BatchNorm1d): fuse_conv_bn_eval,
    (nn.Conv2d, nn.BatchNorm2d): fuse_conv_bn_eval,
    (nn.Conv3d, nn.BatchNorm3d): fuse_conv_bn_eval,
    (nn.Linear, nn.BatchNorm1d): fuse_linear_bn_eval,
}


def tuned(classifier: Classifier, x: torch.Tensor) -> Classifier:
    """A classifier with the same logits and cheaper gradients, checked on up to eight inputs `x` (n, *input_shape).

    The classifier itself, if no change is possible.
    """
    module = classifier.module
    changes = [_fold_batch_norm]
    if x.ndim == 4:
        changes += [_channels_last]
    if classifier.device.type == "cpu":
        changes += [_thin]
    for change in changes:
        changed = change(module)
        if changed is not None and _same(classifier, changed, x[:CHECKED_INPUTS]):
            module = changed
    if module is classifier.module:
        return classifier
    return classifier.with_module(module)


def _same(classifier: Classifier, module: nn.Module, x: torch.Tensor) -> bool:
    try:
        before, after = (_logits_and_gradient(each, x) for each in (classifier, classifier.with_module(module)))
    except Exception:  # a layer that cannot compute after the change
        return False
    return all(
        float((b - a).norm()) <= tolerance * float(a.norm())
        for a, b, tolerance in zip(before, after, TOLERANCES, strict=True)
    )


def _logits_and_gradient(classifier: Classifier, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    points = x.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        logits = classifier.logits(points)
        (gradient,) = torch.autograd.grad(logits[:, 0].sum() - logits[:, 1].sum(), points)
    return logits.detach(), gradient


def _channels_last(module: nn.Module) -> nn.Module | None:
    if not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return None
    try:
        return copy.deepcopy(module).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    except Exception:  # modules that cannot be copied keep their format
        return None


def _thin(module: nn.Module) -> nn.Module | None:
    if not any(is_thin(layer) for layer in module.modules()):
        return None
    try:
        return thinned(copy.deepcopy(module))
    except Exception:  # modules that cannot be copied keep their layers
        return None


def _fold_batch_norm(module: nn.Module) -> nn.Module | None:
    """A copy in which each layer with batch normalisation after it is one layer; None if there is no such layer.

    A layer is left alone if anything but the batch normalisation uses its output, or if it is called more than once.
    Also None if the module cannot be traced.
    """
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        return None
    try:
        traced = fx.symbolic_trace(copy.deepcopy(module))
    except Exception:  # control flow that depends on data cannot be traced
        return None
    layers = dict(traced.named_modules())
    folded = False
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not node.args or not isinstance(node.args[0], fx.Node):
            continue
        source = node.args[0]
        if source.op != "call_module" or len(source.users) != 1:
            continue
        first, second = layers[str(source.target)], layers[str(node.target)]
        fuse = _FUSE.get((type(first), type(second)))
        if fuse is None or not getattr(second, "track_running_stats", False):
            continue
        # A layer that is called twice must keep its weights for the other call.
        if sum(n.op == "call_module" and n.target == source.target for n in traced.graph.nodes) != 1:
            continue
        parent, _, name = str(source.target).rpartition(".")
        setattr(traced.get_submodule(parent), name, fuse(first, second))  # type: ignore[operator]
        layers = dict(traced.named_modules())
        node.replace_all_uses_with(source)
        traced.graph.erase_node(node)
        folded = True
    if not folded:
        return None
    traced.recompile()
    return traced.eval().requires_grad_(False)
