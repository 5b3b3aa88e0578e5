"""Units of work: small, independent, each kept in a file of its own as soon as it is done.

A unit is a few images of one network under one question. Its file is written whole or not at all, so that whatever is
interrupted goes on from there, and a second call finds everything done.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cleverscore as cs
from cleverscore.errors import CleverWarning
from cleverscore.loading.row_selection import predictions
from cleverscore.scores.score import Score
from paper.networks import (
    KINDS,
    NETWORKS,
    SEED,
    CorrectImages,
    classifier_of,
    correct_images_of,
    fingerprint,
    images_of,
    test_data,
)
from paper.sizes import BLOCK_COUNTS, PAPER, RELEASED, Size

Rows = list[dict[str, Any]]
NORMS = ("2", "inf")
ALONE = ("time", "accuracy")  # one unit for the whole network
TIMED_SECONDS = 10.0  # of gradients behind the seconds per block


@dataclass(frozen=True)
class Question:
    """What is asked of a network's images.

    kind    "clever" and "slope" (detail: the method and the norm), "cw" and "ifgsm" (detail: the kind of target or
            "any"), "many" (detail: the norm; all numbers of blocks), "time", "accuracy".
    """

    kind: str
    detail: str = ""

    @property
    def name(self) -> str:
        """As it stands in the name of a file."""
        return f"{self.kind}-{self.detail}" if self.detail else self.kind


@dataclass(frozen=True)
class Unit:
    """Images `start` to `stop` of a network under one question."""

    network: str
    question: Question
    size: Size
    start: int
    stop: int

    @property
    def file(self) -> str:
        """Where its rows are kept; other sizes are other files."""
        if self.question.kind in ALONE:
            return f"{self.network}/{self.question.name}.json"
        words = self.size.words(self.question.kind)
        short = "".join(letter for letter in words if letter.isalnum() or letter == ".")
        return f"{self.network}/{self.question.name}-{short}-{self.start}-{self.stop}.json"

    def __str__(self) -> str:
        if self.question.kind in ALONE:
            return f"{NETWORKS[self.network].title}: {self.question.name}"
        images = f"images {self.start + 1} to {self.stop}" if self.stop > self.start + 1 else f"image {self.stop}"
        return f"{NETWORKS[self.network].title}: {self.question.name}, {images}"


def clever(norm: str, method: str = PAPER) -> Question:
    """CLEVER scores; a method may name its radius, as in "paper@0.1"."""
    return Question("clever", f"{method}-l{norm}")


def units_of(network: str, question: Question, size: Size) -> list[Unit]:
    """The units of one question."""
    if question.kind in ALONE:
        return [Unit(network, question, size, 0, 1)]
    images = size.images
    if question.kind == "many":
        images = size.many
    elif RELEASED in question.detail:
        images = size.released
    group = 1 if question.kind == "many" else size.group
    return [Unit(network, question, size, i, min(i + group, images)) for i in range(0, images, group)]


class Kept:
    """Rows of finished units in a folder."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        self._answers: dict[tuple[str, Question, Size], Rows] = {}  # tables and figures ask the same many times

    def rows(self, unit: Unit) -> Rows | None:
        """What a unit found, or None where it has not run with these weights."""
        try:
            content = json.loads((self.folder / unit.file).read_text())
        except (OSError, ValueError):
            return None
        rows: Rows = content["rows"]
        if content["weights"] != fingerprint(unit.network, self.data):
            return None
        if unit.question.kind == "accuracy" and not rows[0]["images"] and test_data(unit.network, self.data):
            return None  # its test images were not there then, and are now
        return rows

    def save(self, unit: Unit, rows: Rows, seconds: float) -> None:
        """Keep what a unit found, whole or not at all."""
        path = self.folder / unit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"weights": fingerprint(unit.network, self.data), "seconds": seconds, "rows": rows}
        draft = path.with_suffix(".part")
        with draft.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def answers(self, network: str, question: Question, size: Size) -> Rows:
        """All rows of a question; none of it counts before all of it is there."""
        key = network, question, size
        if key not in self._answers:
            parts = [self.rows(unit) for unit in units_of(network, question, size)]
            whole = [part for part in parts if part is not None]
            if len(whole) < len(parts):
                return []
            self._answers[key] = [row for part in whole for row in part]
        return self._answers[key]


def run(unit: Unit, data: Path) -> Rows:
    """Compute a unit."""
    classifier = classifier_of(unit.network, data)
    question, size = unit.question, unit.size
    if question.kind == "accuracy":
        return [accuracy(classifier, unit.network, data)]
    examples = correct_images_of(unit.network, data, 1 if question.kind == "time" else size.images)
    part = slice(unit.start, unit.stop)
    if question.kind in ("cw", "ifgsm"):
        return _attacked(classifier, examples, part, question, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CleverWarning)  # few blocks are what the quick sizes are
        return _scored(classifier, examples, part, question, size, NETWORKS[unit.network].family == "imagenet")


def _scored(
    classifier: cs.Classifier, examples: CorrectImages, part: slice, question: Question, size: Size, large: bool
) -> Rows:
    ids, kinds = examples.ids[part], examples.kinds[part]
    few = [list(dict.fromkeys(kind[name] for name in KINDS)) for kind in kinds]
    common: dict[str, Any] = {"ids": ids, "labels": examples.labels[part], "seed": SEED}
    x = examples.x[part]
    if question.kind == "time":
        return [_timed(classifier, x)]
    if question.kind == "many":
        scores = cs.clever(
            classifier, x, p=question.detail[1:], targets=few, blocks=BLOCK_COUNTS[-1], block_size=size.many_size,
            progress=False, **common,
        )  # fmt: skip
        return [_row(score, kinds, ids, maxima=True) for score in scores.rows]
    whole, norm = question.detail.rsplit("-l", 1)
    method, _, radius = whole.partition("@")
    targets: Any = few if large else "all"
    sizes = {"blocks": size.blocks, "block_size": size.block_size}
    if question.kind == "slope":
        scores = cs.clever(classifier, x, p=norm, targets=targets, method="slope", progress=False, **sizes, **common)
    else:
        scores = cs.clever(
            classifier, x, p=norm, targets=targets, method=method, radius=float(radius) if radius else None,
            progress=False, **sizes, **common,
        )  # fmt: skip
    return [_row(score, kinds, ids, maxima=question.kind == "clever") for score in scores.rows]


def _row(score: Score, kinds: Sequence[dict[str, int]], ids: Sequence[int], *, maxima: bool) -> dict[str, Any]:
    meant = kinds[list(ids).index(score.input)]
    row = score.row()
    row["kinds"] = [kind for kind, target in meant.items() if target == score.target]
    if maxima:
        row["maxima"] = [float(f"{value:.7g}") for value in score.maxima]
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in row.items()}


def _attacked(classifier: cs.Classifier, examples: CorrectImages, part: slice, question: Question, size: Size) -> Rows:
    ids, kinds = examples.ids[part], examples.kinds[part]
    targets = None if question.detail == "any" else [kind[question.detail] for kind in kinds]
    cw = question.kind == "cw"
    found = cs.attack(
        classifier, examples.x[part], question.kind, targets=targets, preset=size.preset, seed=SEED,
        iterations=size.cw if cw else size.ifgsm, learning_rate=size.rate if cw else None,
    )  # fmt: skip
    return [
        {"input": i, "success": bool(good), "l2": float(l2), "linf": float(linf)}
        for i, good, l2, linf in zip(ids, found.success, found.l2, found.linf, strict=True)
    ]


def accuracy(classifier: cs.Classifier, name: str, data: Path) -> dict[str, Any]:
    """The share of test images, or of the pictures of an ImageNet network, that are classified correctly."""
    parameters = sum(parameter.numel() for parameter in classifier.module.parameters())
    if NETWORKS[name].family == "imagenet":
        hits = [int(predictions(classifier, x[None])[0]) == label for _, x, label in images_of(name, data)]
    else:
        place = test_data(name, data)
        if place is None:
            return {"accuracy": math.nan, "images": 0, "parameters": parameters}
        images, labels = cs.load_data(place)
        hits = (predictions(classifier, images).numpy() == labels).tolist()
    return {"accuracy": sum(hits) / len(hits), "images": len(hits), "parameters": parameters}


def _timed(classifier: cs.Classifier, x: Any) -> dict[str, Any]:
    """Seconds for 1024 gradients of one target in l2."""
    each = cs.estimate(classifier, x, targets="runner_up", blocks=10, block_size=8)
    size = max(1, min(103, round(TIMED_SECONDS / 10 / (each.seconds / each.points))))
    began = time.perf_counter()
    cs.clever(classifier, x, targets="runner_up", blocks=10, block_size=size, progress=False)
    seconds = (time.perf_counter() - began) / (10 * size) * 1024
    device = "a GPU" if classifier.device.type != "cpu" else f"{os.cpu_count()} cores of a CPU"
    return {"seconds": seconds, "gradients": 10 * size, "machine": device}


def in_turn(units: Sequence[Unit], data: Path) -> Iterator[tuple[Unit, Rows, float]]:
    """Compute units one after the other on this machine."""
    for unit in units:
        began = time.perf_counter()
        yield unit, run(unit, data), time.perf_counter() - began


def on_ray(units: Sequence[Unit], data: Path, address: str) -> Iterator[tuple[Unit, Rows, float]]:
    """Compute units on a Ray cluster whose nodes have this project and the same data folder."""
    import ray

    ray.init(address=None if address == "local" else address)

    @ray.remote(max_retries=3)
    def work(unit: Unit) -> tuple[Rows, float]:
        began = time.perf_counter()
        return run(unit, data), time.perf_counter() - began

    waiting = {work.remote(unit): unit for unit in units}
    while waiting:
        ready, _ = ray.wait(list(waiting))
        for reference in ready:
            rows, seconds = ray.get(reference)
            yield waiting.pop(reference), rows, seconds
