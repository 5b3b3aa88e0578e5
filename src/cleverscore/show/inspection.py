"""What was understood of a model, in words."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import nn

from cleverscore.classifier import Classifier
from cleverscore.cost import estimate

NORM_LAYERS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)


def describe(classifier: Classifier, data: tuple[Any, Any] | None) -> str:
    """Lines "name: value" about a classifier, and its accuracy on data."""
    layers = Counter(type(module).__name__ for module in classifier.module.modules() if not list(module.children()))
    parameters = sum(parameter.numel() for parameter in classifier.module.parameters())
    precision = str(classifier.dtype or "any precision").removeprefix("torch.")
    shape = classifier.input_shape if data is None else tuple(data[0].shape[1:])
    lines = {
        "model": classifier.name,
        "parameters": f"{parameters:,}, {precision} on {classifier.device}",
        "input": "unknown, give DATA" if shape is None else " x ".join(map(str, shape)),
        "box": "none" if classifier.bounds is None else f"{classifier.bounds[0]:g} to {classifier.bounds[1]:g}",
        "preprocessing": _preprocessing(classifier),
        "layers": ", ".join(f"{count} {name}" for name, count in layers.most_common()),
        "normalisation": f"{sum(isinstance(module, NORM_LAYERS) for module in classifier.module.modules())} layers",
    }
    if data is not None or shape is not None:
        x = classifier.inputs(data[0]) if data is not None else _samples(classifier, shape or ())
        probe = classifier.check(x)
        lines["classes"] = str(probe.num_classes)
        lines["outputs"] = f"{classifier.outputs}, as they should be"
        if data is not None and data[1] is not None:
            with torch.no_grad():
                predicted = torch.cat([classifier.logits(part).argmax(1) for part in torch.split(x, 256)]).cpu().numpy()
            lines["accuracy"] = f"{np.mean(predicted == data[1]):.2%} of {len(predicted)} inputs"
        if data is not None:
            cost = estimate(classifier, x[:1])
            lines["500 x 1024 points"] = f"{cost}, per input and norm"
    width = max(map(len, lines))
    return "\n".join(f"{name.rjust(width)}  {value}" for name, value in lines.items())


def _samples(classifier: Classifier, shape: tuple[int, ...]) -> torch.Tensor:
    low, high = classifier.bounds or (0.0, 1.0)
    return classifier.inputs(low + (high - low) * torch.rand(4, *shape))


def _preprocessing(classifier: Classifier) -> str:
    words = [] if classifier.transform is None else [f"transform {classifier.transform!r}, gradients past it"]
    if classifier.mean is None and classifier.std is None:
        return words[0] if words else "none"
    mean, std = (None if t is None else [round(v, 6) for v in t.tolist()] for t in (classifier.mean, classifier.std))
    return ", then ".join([*words, f"(x - {mean or 0}) / {std or 1}"])
