"""From subjects to evidence: all blocks for all targets, or rounds in which targets race and budgets end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.budget import Budget
from cleverscore.chunks import checked_chunk_size, default_chunk_size
from cleverscore.classifier import Classifier
from cleverscore.errors import SettingError
from cleverscore.maxima import BlockMaxima, Request, default_workers, sample
from cleverscore.racing import ALL_BLOCKS, BUDGET
from cleverscore.score import Evidence
from cleverscore.settings import Settings
from cleverscore.subjects import Subject
from cleverscore.tuning import CHECKED_INPUTS, tuned

Array = npt.NDArray[np.float64]

RACED_TOGETHER = 16  # inputs: enough work for all threads in a round, and results early
LEAST_BLOCKS = 10  # a tail fit needs them; a budget that runs out earlier is exceeded


def gather(
    classifier: Classifier,
    subjects: Sequence[Subject],
    settings: Settings,
    *,
    chunk_size: int | None = None,
    workers: int | None = None,
    on_points: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Evidence]]:
    """Draw the blocks of all subjects and yield (position, evidence) as each input is complete."""
    if workers is None:
        workers = default_workers(classifier)
    elif int(workers) != workers or workers < 1:
        raise SettingError(f"workers={workers}: give a whole number of threads, at least 1")
    classifier = tuned(classifier, torch.stack([subject.x for subject in subjects[:CHECKED_INPUTS]]))
    if chunk_size is None:
        chunk_size = default_chunk_size(classifier, subjects[0].x, workers=workers)
    draw = partial(sample, classifier, chunk_size=checked_chunk_size(chunk_size), workers=workers, on_points=on_points)
    if settings.adaptive:
        yield from _adaptive(draw, subjects, settings)
        return
    requests = [_request(subject, settings, subject.targets, range(settings.blocks)) for subject in subjects]
    for position, maxima in draw(requests):
        subject = subjects[position]
        stopped = (ALL_BLOCKS,) * len(subject.targets)
        yield position, _evidence(subject, settings, tuple(maxima.values), maxima.seconds, stopped)


def _request(subject: Subject, settings: Settings, targets: tuple[int, ...], blocks: range) -> Request:
    return Request(
        x=subject.x,
        input_id=subject.input_id,
        predicted=subject.predicted,
        targets=targets,
        ball=settings.ball,
        blocks=blocks,
        block_size=settings.block_size,
        seed=settings.seed,
    )


def _evidence(
    subject: Subject, settings: Settings, maxima: tuple[Array, ...], seconds: float, stopped: tuple[str, ...]
) -> Evidence:
    return Evidence(
        input_id=subject.input_id,
        label=subject.label,
        predicted=subject.predicted,
        targets=subject.targets,
        margins=subject.margins,
        maxima=maxima,
        block_size=settings.block_size,
        seconds=seconds,
        stopped=stopped,
    )


def _adaptive(
    draw: Callable[[list[Request]], Iterator[tuple[int, BlockMaxima]]], subjects: Sequence[Subject], settings: Settings
) -> Iterator[tuple[int, Evidence]]:
    """Rounds of more blocks for the races that still run, a group of inputs at a time."""
    budget = Budget.parse(settings.budget)
    for start in range(0, len(subjects), RACED_TOGETHER):
        group = range(start, min(start + RACED_TOGETHER, len(subjects)))
        races = {i: settings.race(subjects[i]) for i in group}
        seconds = dict.fromkeys(group, 0.0)
        purse = budget.share(len(group), len(subjects) - start)
        while races:
            ahead = {i: race.next_look() - race.drawn for i, race in races.items()}
            costs = {i: len(race.active) * settings.block_size for i, race in races.items()}
            allowed = purse.allowed_blocks(
                costs, ahead, least=max(0, LEAST_BLOCKS - min(r.drawn for r in races.values()))
            )
            if allowed == 0:
                for race in races.values():
                    race.stop(BUDGET)
            else:
                order = list(races)
                requests = []
                for i in order:
                    race = races[i]
                    targets = tuple(race.targets[t] for t in race.active)
                    blocks = range(race.drawn, race.drawn + min(ahead[i], allowed))
                    requests.append(_request(subjects[i], settings, targets, blocks))
                with purse.paying(sum(costs[i] * len(r.blocks) for i, r in zip(order, requests, strict=True))):
                    for position, maxima in draw(requests):
                        races[order[position]].add(maxima.values)
                        seconds[order[position]] += maxima.seconds
            for i in [i for i, race in races.items() if not race.active]:
                race = races.pop(i)
                yield i, _evidence(subjects[i], settings, tuple(race.maxima), seconds[i], tuple(race.stopped))
