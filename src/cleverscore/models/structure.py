"""The layers of a network in order, and whether the network is affine, judged by the types of its layers."""

from __future__ import annotations

from torch import nn

from cleverscore.models.classifier import Classifier

SHAPE_LAYERS = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
AFFINE_LAYERS = (
    *SHAPE_LAYERS,
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
)


def layers_in_order(module: nn.Module) -> list[nn.Module] | None:
    """The layers of nested `Sequential`s, first to last; None if a module that is no `Sequential` contains others.

    What such a module computes from the modules in it is in its `forward`, which is not looked at.
    """
    if type(module) is nn.Sequential:
        parts = [layers_in_order(child) for child in module]
        return None if any(part is None for part in parts) else [layer for part in parts for layer in part or ()]
    return [module] if not list(module.children()) else None


def is_affine(classifier: Classifier) -> bool:
    """Whether the logits are affine in the input, judged by the types of the layers; False if this is not known."""
    layers = layers_in_order(classifier.module)
    if layers is None or classifier.outputs != "logits" or not layers or classifier.transform is not None:
        return False
    return all(type(layer) in AFFINE_LAYERS and getattr(layer, "track_running_stats", True) for layer in layers)
