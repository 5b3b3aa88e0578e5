"""The text of `cleverscore inspect`: how a model and its data were understood."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cleverscore.brackets.presets import PRESETS
from cleverscore.certificates.certify import check_method
from cleverscore.certificates.tracing import trace
from cleverscore.errors import CertificateError, InputError
from cleverscore.inputs.radius import LARGEST_USUAL_INPUT, looks_like_bytes
from cleverscore.loading.row_selection import LOOKED_AT, predictions
from cleverscore.loading.sources import Images, Labels, Source
from cleverscore.models.classifier import Classifier
from cleverscore.scores.cost import duration, estimate

NORM_LAYERS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)
# Gradients per input that the preset quick computes: in a search by sharp (docs/agreement.md: a median of 2,400 over
# networks), and in an attack (docs/attacks.md).
SEARCH_GRADIENTS, ATTACK_GRADIENTS = 2400, 400
READ_AT_ONCE = 256
MOSTLY_RIGHT = 0.75
CHANNELS = (1, 3)  # numbers of channels for which usual normalisations are known
# (mean, std) that networks for images are usually trained with, by number of channels: those of MNIST, ImageNet and
# CIFAR-10, and those that map [0, 1] to [-1, 1].
USUAL_NORMALISATIONS: dict[int, tuple[tuple[str, str], ...]] = {
    1: (("0.1307", "0.3081"), ("0.5", "0.5")),
    3: (
        ("0.485,0.456,0.406", "0.229,0.224,0.225"),
        ("0.4914,0.4822,0.4465", "0.2470,0.2435,0.2616"),
        ("0.5,0.5,0.5", "0.5,0.5,0.5"),
    ),
}
TRIED_INPUTS = 100  # normalisations are tried on so many inputs: enough for a sign test, and quick with any network
RIGHT_ENOUGH = 0.9  # with this accuracy or a higher one, no normalisation is tried
LEAST_GAIN_PVALUE = 0.01
# Operations with steps: their gradient is zero or does not exist, so a score says nothing about what they change.
STEPS = frozenset(
    ("round", "floor", "ceil", "trunc", "sign", "sgn", "argmax", "argmin", "bucketize", "heaviside", "sort", "topk")
)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the torch operations in a forward pass by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[function._schema.name.partition("::")[2]] += 1
        return function(*args, **(kwargs or {}))


def operations(classifier: Classifier, x: torch.Tensor) -> Counter[str]:
    """How often each torch operation runs in a forward pass of inputs `x`, by name, such as "relu"."""
    with torch.no_grad(), _Watch() as watch:
        classifier.module(classifier.standardised(x))
    seen: Counter[str] = watch.seen
    return seen


def describe(classifier: Classifier, data: Source | None, *, command: str | None = None) -> str:
    """A text with one property of a classifier per line: its name and its value.

    With data, accuracy, cost and the `command` to run next are among them. Raises an InputError for data that the
    classifier cannot take.
    """
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
    """The operations in a forward pass of `x` that hide gradients, or that there are none, as text."""
    seen = operations(classifier, x)
    steps = [f"{count} {name}" for name, count in seen.items() if name in STEPS or "quantize" in name]
    return f"steps in the way ({', '.join(steps)}): a score cannot see past them" if steps else "nothing in the way"


def _certificates(classifier: Classifier, shape: tuple[int, ...]) -> str:
    """Whether crown has bounds for every layer, as text, with the reason if not."""
    try:
        check_method(classifier, "crown")
        trace(classifier, shape, torch.float32)
    except CertificateError as error:
        return f"none by crown: {error}"
    return "crown has bounds for every layer"


def _needed_options(classifier: Classifier, data: str) -> str:
    """The option --bounds for the next command, if the range of values in the line `data` suggests it; else empty."""
    low, high = (float(word) for word in data.split("values from ")[1].split(",")[0].split(" to "))
    if classifier.bounds is not None:
        return ""
    if looks_like_bytes(low, high):
        return " --bounds 0,255"
    return " --bounds 0,1" if low >= 0.0 and high <= 1.0 else ""


def near_chance(right: int, count: int, classes: int) -> bool:
    """Whether an accuracy may be that of guessing among `classes` classes, given that `right` of `count` are right.

    It may if guessing gets as many right with a probability above 1%, and if less than 75% are right.

    >>> near_chance(3, 20, 10), near_chance(12, 20, 10), near_chance(11, 20, 2), near_chance(2, 2, 2)
    (True, False, True, False)
    """
    return right < MOSTLY_RIGHT * count and float(stats.binom.sf(right - 1, count, 1.0 / classes)) > 0.01


def normalised_hint(classifier: Classifier, x: torch.Tensor | npt.NDArray[Any], low: float, high: float) -> str | None:
    """A remark if inputs seem to be normalised images, so that distances are not in pixels; else None.

    Images in [0, 1] or [0, 255] have no negative values, and images in [-1, 1] have none above 1; normalised ones
    nearly always have both. There is no remark if inputs do not have the shape of images, nor for a classifier with
    bounds, `mean`, `std` or `transform`.

    x           some of the inputs, (n, *input_shape).
    low, high   the smallest and the largest value of all inputs.
    """
    if classifier.bounds is not None or _prepares(classifier) or not _image_shaped(tuple(x.shape[1:])):
        return None
    if not (low < 0.0 and high > 1.0 and max(-low, high) <= LARGEST_USUAL_INPUT):
        return None
    return (
        f"inputs reach from {low:.3g} to {high:.3g}: if they are normalised images, distances are in normalised units "
        "and no box of valid pixels is known; for distances in pixels give the images before normalisation (0 to 1), "
        "the --mean and --std of the training, and --bounds 0,1"
    )


def missing_normalisation(classifier: Classifier, x: torch.Tensor | npt.NDArray[Any], labels: Labels) -> str | None:
    """A remark if a usual normalisation of images in [0, 1] would make the classifier much more accurate; else None.

    x, labels   inputs (n, *input_shape) and their labels (n,); normalisations are tried on at most 100 of them.

    There is a remark only if the normalisation at least halves the errors, and if it corrects significantly more inputs
    than it spoils (sign test, 1%). A network that was trained on [0, 1] hardly ever gains so much from another scale; a
    network that expects normalised inputs often becomes right nearly everywhere. No normalisation is tried if at
    least 90% of the inputs are classified correctly, nor for a classifier that has a `mean`, `std` or `transform`.
    """
    inputs = classifier.inputs(x)
    shape = tuple(inputs.shape[1:])
    if _prepares(classifier) or len(shape) != 3 or shape[0] not in CHANNELS:  # `mean` and `std` are per channel, axis 1
        return None
    if float(inputs.min()) < 0.0 or float(inputs.max()) > 1.0:
        return None
    chosen: list[int] = np.linspace(0, len(inputs) - 1, min(len(inputs), TRIED_INPUTS)).round().astype(int).tolist()
    inputs, truth = inputs[chosen], torch.from_numpy(labels[chosen]).to(inputs.device)
    before = _logits(classifier, inputs).argmax(1) == truth
    share = float(before.double().mean())
    if share >= RIGHT_ENOUGH:
        return None
    found = []
    for mean, std in USUAL_NORMALISATIONS[shape[0]]:
        shift, scale = (
            inputs.new_tensor([float(v) for v in text.split(",")]).reshape(-1, 1, 1) for text in (mean, std)
        )
        logits = _logits(classifier, (inputs - shift) / scale)
        likelihood = float(
            -nn.functional.cross_entropy(logits.double(), truth)
        )  # decides between equally accurate ones
        found.append((logits.argmax(1) == truth, likelihood, mean, std))
    after, _, mean, std = max(found, key=lambda each: (int(each[0].sum()), each[1]))
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    errors = int((~before).sum())
    pvalue = float(stats.binom.sf(gained - 1, gained + lost, 0.5))
    if errors - (gained - lost) > 0.5 * errors or pvalue > LEAST_GAIN_PVALUE:
        return None
    return (
        f"with --mean {mean} --std {std} accuracy on {len(inputs)} inputs would be {float(after.double().mean()):.0%} "
        f"instead of {share:.0%}: does the model expect normalised images? Give the mean and std of its training"
    )


def _prepares(classifier: Classifier) -> bool:
    return any(step is not None for step in (classifier.mean, classifier.std, classifier.transform))


def _image_shaped(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and (shape[0] in CHANNELS or shape[2] in CHANNELS)


def _logits(classifier: Classifier, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([classifier.logits(part) for part in torch.split(x, LOOKED_AT)])


def _accuracy(classifier: Classifier, data: Source, classes: int) -> dict[str, str]:
    if data.labels is not None and data.labels.max() >= classes:
        way_out = "; subtract 1 if labels start at 1" if data.labels.max() == classes and data.labels.min() > 0 else ""
        raise InputError(
            f"the data has the label {data.labels.max()}; the model has classes 0 to {classes - 1}{way_out}"
        )
    right, below, above = 0, 0, 0
    low, high = math.inf, -math.inf
    step = math.ceil(data.count / TRIED_INPUTS)  # tried inputs are spread over the data, which is often sorted by class
    tried: list[Images] = []
    for start in range(0, data.count, READ_AT_ONCE):
        rows = range(start, min(start + READ_AT_ONCE, data.count))
        inputs = data.read(rows)
        low, high = min(low, float(inputs.min())), max(high, float(inputs.max()))
        tried.append(inputs[(-start) % step :: step].copy())
        found = predictions(classifier, inputs).numpy()
        if data.labels is not None:
            labels = data.labels[rows.start : rows.stop]
            right += int((found == labels).sum())
            below += int((found == labels - 1).sum())
            above += int((found == labels + 1).sum())
    lines = {"data": f"{data.count} inputs, values from {low:g} to {high:g}"}
    if data.labels is not None:
        lines["data"] += f", labels from {data.labels.min()} to {data.labels.max()}"
    few = np.concatenate(tried)
    units = normalised_hint(classifier, few, low, high)
    if units is not None:
        lines["units"] = units
    if data.labels is None:
        return lines | {"accuracy": f"unknown: no labels with the {data.count} inputs"}
    hint = ""
    normalisation = missing_normalisation(classifier, few, data.labels[::step])
    if max(below, above) > max(0.5 * data.count, 2 * right):
        way, share = ("lower", below) if below > above else ("higher", above)
        hint = f"; {share / data.count:.2%} with every label one {way}: do labels and model count from the same number?"
    elif normalisation is not None:
        hint = f"; {normalisation}"
    elif near_chance(right, data.count, classes):
        hint = (
            f"; guessing among {classes} classes does as well: are the weights loaded, is preprocessing missing "
            "(--mean, --std), are the inputs in other units than in training?"
        )
    elif right < 0.5 * data.count:
        hint = "; few: is preprocessing missing (--mean, --std), are the inputs in other units than in training?"
    return lines | {"accuracy": f"{right / data.count:.2%} of {data.count} inputs{hint}"}


def _cost(classifier: Classifier, x: torch.Tensor, count: int | None) -> dict[str, str]:
    """Lines with the time of the presets quick and paper, and of one block, from a short measurement with `x`."""
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
