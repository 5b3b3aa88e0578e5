"""The text of `cleverscore inspect`: how a model was understood."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from scipy import stats
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cleverscore.brackets.presets import PRESETS
from cleverscore.certificates.certify import check_method
from cleverscore.certificates.tracing import trace
from cleverscore.errors import CertificateError, InputError
from cleverscore.inputs.radius import looks_like_bytes
from cleverscore.loading.row_selection import predictions
from cleverscore.loading.sources import Source
from cleverscore.models.classifier import Classifier
from cleverscore.scores.cost import duration, estimate

NORM_LAYERS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)
# Gradients of an input in the preset quick: of a search by sharp (docs/agreement.md: a median of 2,400 over networks),
# and of a quick attack (docs/attacks.md).
SEARCH_GRADIENTS, ATTACK_GRADIENTS = 2400, 400
READ_AT_ONCE = 256
MOSTLY_RIGHT = 0.75
# Steps: their gradient is zero or there is none, so a score cannot see through them.
STEPS = frozenset(
    ("round", "floor", "ceil", "trunc", "sign", "sgn", "argmax", "argmin", "bucketize", "heaviside", "sort", "topk")
)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the names of the operations in a forward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[function._schema.name.partition("::")[2]] += 1
        return function(*args, **(kwargs or {}))


def operations(classifier: Classifier, x: torch.Tensor) -> Counter[str]:
    """How often each torch operation runs in a forward pass of inputs `x`."""
    with torch.no_grad(), _Watch() as watch:
        classifier.module(classifier.standardised(x))
    seen: Counter[str] = watch.seen
    return seen


def describe(classifier: Classifier, data: Source | None, *, command: str | None = None) -> str:
    """Lines "name: value" about a classifier, its accuracy and cost on data, and the `command` to run next."""
    layers = Counter(type(module).__name__ for module in classifier.module.modules() if not list(module.children()))
    parameters = sum(parameter.numel() for parameter in classifier.module.parameters())
    precision = str(classifier.dtype or "any precision").removeprefix("torch.")
    first = None if data is None else classifier.inputs(data.read([0]))
    shape = classifier.input_shape if first is None else tuple(first.shape[1:])
    lines = {
        "model": classifier.name,
        "origin": classifier.origin or "a torch module",
        "parameters": f"{parameters:,}, {precision} on {classifier.device}",
        "input": "unknown, give DATA" if shape is None else " x ".join(map(str, shape)),
        "box": "none" if classifier.bounds is None else f"{classifier.bounds[0]:g} to {classifier.bounds[1]:g}",
        "preprocessing": _preprocessing(classifier),
        **({} if classifier.preparation is None else {"reads": str(classifier.preparation)}),
        "layers": ", ".join(f"{count} {name}" for name, count in layers.most_common()),
        "normalisation": f"{sum(isinstance(module, NORM_LAYERS) for module in classifier.module.modules())} layers",
    }
    if shape is not None:
        x = first if first is not None else _samples(classifier, shape)
        probe = classifier.check(x)
        lines["classes"] = f"{probe.num_classes}{_names(classifier, data)}"
        lines["outputs"] = f"{classifier.outputs}, as they should be"
        lines |= {"gradients": _gradients(classifier, x), "certificates": _certificates(classifier, shape)}
        if data is not None:
            lines |= _accuracy(classifier, data, probe.num_classes)
        lines |= _cost(classifier, x[:1], None if data is None else data.count)
    if command is not None and data is not None:
        lines["next"] = f"{command}{_needed_options(classifier, lines['data'])}"
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


def _names(classifier: Classifier, data: Source | None) -> str:
    names = classifier.class_names or (None if data is None else data.class_names)
    if not names:
        return ""
    return f": {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


def _gradients(classifier: Classifier, x: torch.Tensor) -> str:
    """Which operations hide gradients."""
    seen = operations(classifier, x)
    steps = [f"{count} {name}" for name, count in seen.items() if name in STEPS or "quantize" in name]
    return f"steps in the way ({', '.join(steps)}): a score cannot see past them" if steps else "nothing in the way"


def _certificates(classifier: Classifier, shape: tuple[int, ...]) -> str:
    """Whether crown has bounds for every layer."""
    try:
        check_method(classifier, "crown")
        trace(classifier, shape, torch.float32)
    except CertificateError as error:
        return f"none by crown: {error}"
    return "crown has bounds for every layer"


def _needed_options(classifier: Classifier, data: str) -> str:
    """Options that the next command needs, judged by the values of the data."""
    low, high = (float(word) for word in data.split("values from ")[1].split(",")[0].split(" to "))
    if classifier.bounds is not None:
        return ""
    if looks_like_bytes(low, high):
        return " --bounds 0,255"
    return " --bounds 0,1" if low >= 0.0 and high <= 1.0 else ""


def near_chance(right: int, count: int, classes: int) -> bool:
    """Whether guessing gets `right` or more of `count` inputs right with probability above 1%; False if most are right.

    >>> near_chance(3, 20, 10), near_chance(12, 20, 10), near_chance(11, 20, 2), near_chance(2, 2, 2)
    (True, False, True, False)
    """
    return right < MOSTLY_RIGHT * count and float(stats.binom.sf(right - 1, count, 1.0 / classes)) > 0.01


def _accuracy(classifier: Classifier, data: Source, classes: int) -> dict[str, str]:
    if data.labels is not None and data.labels.max() >= classes:
        way_out = "; subtract 1 if labels start at 1" if data.labels.max() == classes and data.labels.min() > 0 else ""
        raise InputError(
            f"the data has the label {data.labels.max()}; the model has classes 0 to {classes - 1}{way_out}"
        )
    right, below, above = 0, 0, 0
    low, high = math.inf, -math.inf
    for start in range(0, data.count, READ_AT_ONCE):
        rows = range(start, min(start + READ_AT_ONCE, data.count))
        inputs = data.read(rows)
        low, high = min(low, float(inputs.min())), max(high, float(inputs.max()))
        found = predictions(classifier, inputs).numpy()
        if data.labels is not None:
            labels = data.labels[rows.start : rows.stop]
            right += int((found == labels).sum())
            below += int((found == labels - 1).sum())
            above += int((found == labels + 1).sum())
    lines = {"data": f"{data.count} inputs, values from {low:g} to {high:g}"}
    if data.labels is None:
        return lines | {"accuracy": f"unknown: no labels with the {data.count} inputs"}
    lines["data"] += f", labels from {data.labels.min()} to {data.labels.max()}"
    hint = ""
    if max(below, above) > max(0.5 * data.count, 2 * right):
        step, share = ("lower", below) if below > above else ("higher", above)
        hint = (
            f"; {share / data.count:.2%} with every label one {step}: do labels and model count from the same number?"
        )
    elif near_chance(right, data.count, classes):
        hint = (
            f"; guessing among {classes} classes does as well: are the weights loaded, is preprocessing missing "
            "(--mean, --std), are the inputs in other units than in training?"
        )
    elif right < 0.5 * data.count:
        hint = "; few: is preprocessing missing (--mean, --std), are the inputs in other units than in training?"
    return lines | {"accuracy": f"{right / data.count:.2%} of {data.count} inputs{hint}"}


def _cost(classifier: Classifier, x: torch.Tensor, count: int | None) -> dict[str, str]:
    """The time of the presets quick and paper, and of one block, from a short measurement."""
    quick, paper = PRESETS["quick"], PRESETS["paper"]
    assert quick.inputs is not None  # the preset has a number
    one = estimate(classifier, x, targets="runner_up", blocks=paper.blocks, block_size=paper.block_size)
    every = estimate(classifier, x, blocks=paper.blocks, block_size=paper.block_size)
    sampled = every.seconds * quick.blocks * quick.block_size / every.points
    searched = (SEARCH_GRADIENTS + ATTACK_GRADIENTS) * one.seconds / one.gradients
    inputs = quick.inputs if count is None else min(quick.inputs, count)
    return {
        "quick run": f"about {duration(inputs * (sampled + searched))} for {inputs} inputs in one norm, attacks "
        "included: `cleverscore score` without options",
        "one block": f"{duration(one.seconds / paper.blocks)} for {paper.block_size} points and one target",
        "full run": f"--preset paper: {duration(one.seconds)} per input and norm for one target; untargeted {every}",
    }
