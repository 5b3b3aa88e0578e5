"""CW and I-FGSM until every image is moved; the best minimum-norm attack; sharp scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import cleverscore as cs
from cleverscore.attacks.foolbox_adapter import EPSILONS
from cleverscore.attacks.presets import PRESETS
from paper.medium.store import Arrays
from paper.networks import LARGE, SEED, CorrectImages
from paper.sizes import Size

# What an attack tries after it failed: factors of its iterations and of CW's rate, with all nine constants. The factors
# are smaller on ImageNet, where ten times the iterations are an hour for one image.
LONGER = {"small": ((1, 1), (3, 2), (10, 5)), "large": ((1, 1), (3, 3), (5, 5))}


def attacked(
    classifier: cs.Classifier, network: str, question: str, examples: CorrectImages, part: slice, size: Size
) -> Arrays:
    """What CW or I-FGSM found, each image by the shortest try that moved it.

    l2, linf    (n,) distortions, infinite where all tries failed.
    iterations  (n,) of the try that succeeded: constants or epsilons times steps; of all tries where none did.
    tries       (n,) how many tries it took.
    """
    attack, kind = question.split("-")
    x = examples.x[part]
    targets = None if kind == "any" else np.array([classes[kind] for classes in examples.kinds[part]])
    found = {name: np.full(len(x), math.inf) for name in ("l2", "linf")}
    iterations, tries = (np.zeros(len(x), np.int32) for _ in range(2))
    waiting = np.arange(len(x))
    for i, (longer, faster) in enumerate(LONGER["large" if network in LARGE else "small"]):
        preset = size.preset if i == 0 else "paper"
        steps = (size.cw if attack == "cw" else size.ifgsm) * longer
        again = cs.attack(
            classifier, x[waiting], attack, targets=None if targets is None else targets[waiting].tolist(),
            preset=preset, iterations=steps, learning_rate=size.rate * faster if attack == "cw" else None,
            seed=SEED, workers=1,
        )  # fmt: skip
        count = PRESETS[preset]["cw"].searches if attack == "cw" else len(EPSILONS)
        iterations[waiting] = np.where(again.success, 0, iterations[waiting]) + count * steps
        tries[waiting] += 1
        found["l2"][waiting], found["linf"][waiting] = again.l2, again.linf
        waiting = waiting[~again.success]
        if not len(waiting):
            break
    return {
        "ids": np.array(examples.ids[part], np.int32),
        "kinds": _kinds(examples, part),
        "iterations": iterations,
        "tries": tries,
        **{name: values.astype(np.float32) for name, values in found.items()},
    }


def best(classifier: cs.Classifier, question: str, examples: CorrectImages, part: slice) -> Arrays:
    """The best minimum-norm attack: `distortion` (n,) in its norm."""
    _, norm, kind = question.split("-")
    targets = None if kind == "any" else [classes[kind] for classes in examples.kinds[part]]
    found = cs.best_attack(
        classifier, examples.x[part], p=norm.removeprefix("l"), targets=targets, seed=SEED, workers=1
    )
    return {
        "ids": np.array(examples.ids[part], np.int32),
        "kinds": _kinds(examples, part),
        "distortion": found.distortion.astype(np.float32),
    }


def sharp(classifier: cs.Classifier, question: str, examples: CorrectImages, part: slice) -> Arrays:
    """Sharp scores (n,), and `crossing`, the distance of the nearest other class that the search met."""
    _, norm, kind = question.split("-")
    ids, labels = examples.ids[part], examples.labels[part]
    targets: Any = "untargeted" if kind == "any" else [[classes[kind]] for classes in examples.kinds[part]]
    scores = cs.clever(
        classifier, examples.x[part], p=norm.removeprefix("l"), targets=targets, method="sharp", seed=SEED, ids=ids,
        labels=labels, workers=1, progress=False,
    )  # fmt: skip
    return {
        "ids": np.array(ids, np.int32),
        "kinds": _kinds(examples, part),
        "score": np.array([score.value for score in scores], np.float32),
        "crossing": np.array([score.upper for score in scores], np.float32),
    }


def _kinds(examples: CorrectImages, part: slice) -> Any:
    return np.array([list(classes.values()) for classes in examples.kinds[part]], np.int16)
