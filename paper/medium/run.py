"""Compute units that are not there yet, one after the other or on several processes."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from cleverscore.errors import CleverWarning
from cleverscore.threads import one_thread
from paper.medium import attacks, maxima
from paper.medium.plan import Unit
from paper.medium.store import Arrays, Store, about
from paper.networks import classifier_of, correct_images_of, fingerprint
from paper.sizes import MEDIUM, Size
from paper.work import accuracy


def computed(unit: Unit, data: Path, size: Size) -> Arrays:
    """Compute a unit on one thread, so that it is the same to the last bit each time."""
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", CleverWarning)  # constant maxima and the like show in the fits
        classifier = classifier_of(unit.network, data)
        text = np.array(about(unit, size, fingerprint(unit.network, data)))
        if unit.kind == "accuracy":
            row = accuracy(classifier, unit.network, data)
            return {"about": text, **{name: np.array(value) for name, value in row.items()}}
        examples, part = correct_images_of(unit.network, data, size.images), slice(unit.start, unit.stop)
        if unit.kind == "maxima":
            found = maxima.drawn(classifier, unit.network, unit.question, examples, part, size)
        elif unit.kind == "slope":
            found = maxima.slopes(classifier, unit.question, examples, part, size)
        elif unit.kind == "sharp":
            found = attacks.sharp(classifier, unit.question, examples, part)
        elif unit.kind == "best":
            found = attacks.best(classifier, unit.question, examples, part)
        else:
            found = attacks.attacked(classifier, unit.network, unit.question, examples, part, size)
    return {"about": text, **found}


def finish(unit: Unit, data: Path, folder: Path, size: Size) -> float:
    """Compute a unit and keep it; seconds of a core that it took, whatever else the machine did."""
    began = time.process_time()
    arrays = computed(unit, data, size)
    seconds = time.process_time() - began
    store = Store(folder)
    store.save(unit, arrays)
    store.note(unit, seconds)
    return seconds


def _work(task: tuple[Unit, Path, Path, Size]) -> tuple[Unit, float]:
    torch.set_num_threads(1)
    return task[0], finish(*task)


def run(
    units: Sequence[Unit], data: Path, folder: Path, *, workers: int = 1, sizes: dict[str, Size] = MEDIUM
) -> Iterator[tuple[Unit, float]]:
    """Compute units in their order; each is kept as soon as it is done, so that killing this loses those under way."""
    tasks = [(unit, data, folder, sizes[unit.network]) for unit in units]
    if workers == 1:
        yield from map(_work, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_work, tasks)
