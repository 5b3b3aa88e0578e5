"""Checked inputs with their predicted classes, targets and margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.errors import InputError
from cleverscore.inputs.targets import TargetsLike, choose
from cleverscore.models.classifier import Classifier, checked_classifier

Array = npt.NDArray[np.float64]

FORWARD_CHUNK = 64


@dataclass(frozen=True)
class Example:
    """One input with its predicted class, its target classes and the margin to each of these.

    x           (*input_shape), on the classifier's device.
    input_id    the input's row in its data set.
    """

    x: torch.Tensor
    input_id: int
    label: int | None
    predicted: int
    targets: tuple[int, ...]
    margins: tuple[float, ...]


def prepare(
    classifier: Classifier,
    images: Any,
    *,
    targets: TargetsLike = "untargeted",
    labels: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    seed: int = 0,
) -> list[Example]:
    """Check the model and the images, predict, and choose the targets: one example per image, in order.

    ids     the row of each image in its data set, default 0..n-1.
    seed    for random targets.
    """
    x = checked_classifier(classifier).inputs(images)
    ids = _checked_ids(ids, len(x))
    if labels is not None:
        labels = _checked_labels(labels, len(x))
    probe = classifier.check(x)
    if labels is not None:
        for input_id, label in zip(ids, labels, strict=True):
            if not 0 <= label < probe.num_classes:
                last = probe.num_classes - 1
                way_out = "; subtract 1 if labels start at 1" if label == last + 1 and min(labels) > 0 else ""
                raise InputError(
                    f"the label of input {input_id} is {label}; the model has classes 0 to {last}{way_out}"
                )
    with torch.no_grad():
        # Margins of float32 logits are formed in double, so that the difference of two logits is not rounded again.
        logits = torch.cat([classifier.logits(part) for part in torch.split(x, FORWARD_CHUNK)]).double().cpu()
    finite = torch.isfinite(logits).all(1)
    if not bool(finite.all()):
        raise InputError(f"the model's outputs for input {ids[int((~finite).nonzero()[0])]} are NaN or infinite")
    chosen = choose(logits, targets, ids=ids, seed=seed)
    predicted = logits.argmax(1).tolist()
    return [
        Example(
            x=x[i],
            input_id=ids[i],
            label=None if labels is None else labels[i],
            predicted=predicted[i],
            targets=chosen[i],
            margins=tuple(float(logits[i, predicted[i]] - logits[i, j]) for j in chosen[i]),
        )
        for i in range(len(x))
    ]


def _checked_labels(labels: Sequence[int], count: int) -> list[int]:
    array = np.asarray(labels)
    if array.shape != (count,):
        if array.ndim == 1:
            raise InputError(f"there are {len(array)} labels for {count} inputs")
        raise InputError(f"labels have shape {array.shape}; give one class number per input, not one-hot rows")
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"labels are of type {array.dtype}; give whole numbers")
    return [int(label) for label in array]


def _checked_ids(ids: Sequence[int] | None, count: int) -> list[int]:
    if ids is None:
        return list(range(count))
    whole = [int(input_id) for input_id in ids]
    if len(whole) != count:
        raise InputError(f"there are {len(whole)} ids for {count} inputs")
    if any(input_id < 0 for input_id in whole) or len(set(whole)) != count:
        raise InputError("ids must be different whole numbers, none below 0; an id is the input's row in the data")
    return whole
