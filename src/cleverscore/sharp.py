"""The sharp method: radial profiles by ascent, for all targets of an input side by side.

Round 0 takes the gradient at the input: L(0), so no score can be above margin / L(0). Round 1 climbs at four radii up
to there and brackets the crossing. Round 2 puts eight radii between 0 and the crossing, each with two starts: the best
of all points found so far, brought to that radius, and the best of a few random ones. Further rounds do the same again
with what was found meanwhile, until one of them lowers the score by less than the tolerance. The targets of an
untargeted score race: one whose score is still far above the smallest gets no further rounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.allocator import kept_pages
from cleverscore.ascent import (
    CANDIDATES,
    FEW_DIMENSIONS,
    Climbs,
    Summit,
    best_starts,
    box_for,
    candidates,
    climb,
    climb_cost,
    random_starts,
)
from cleverscore.balls import LpBall
from cleverscore.budget import Budget
from cleverscore.classifier import Classifier
from cleverscore.descent import DESCENT_STARTS, descent_cost, nearest_crossings
from cleverscore.gradients import margin_gradient_norms
from cleverscore.maxima import pool
from cleverscore.profile import Profile
from cleverscore.reasons import ALL_STARTS, BUDGET, EXACT, LOST, SETTLED
from cleverscore.subjects import Subject
from cleverscore.tails import FitOutcome

Array = npt.NDArray[np.float64]

TOLERANCE = 0.01  # one more round that lowers the score by less ends the search
BRACKET_RADII, BRACKET_STARTS, BRACKET_STEPS = 4, 3, 15
RADII, STEPS = 8, 19
STARTS = 2  # per radius and round: one from the best points of all radii, one random
MOST_ROUNDS = 5
# The finest radii end a little beyond the expected crossing, so that it is not missed when they move it.
BEYOND = 1.03
# A target is out when its score is so many times the smallest after round 0, 1, 2, ...; benchmarks/sharp.py measures
# what that costs: how often another target would have won, and by how much.
SLACK = (2.0, 1.2, 1.1, 1.05, 1.05)
SAME = 1e-5  # relative range of norms that are one number in float32
# Starts and best points of all inputs that are searched together: 64 MB of float32.
NUMBERS_TOGETHER = 2**24
MOST_TOGETHER = 16


def _round_cost(rounds: int, dim: int) -> int:
    """Gradient equivalents of a target's next round, after so many rounds."""
    if rounds == 0:
        return BRACKET_RADII * (BRACKET_STARTS * climb_cost(BRACKET_STEPS) + (BRACKET_STARTS - 1) * candidates(dim))
    return RADII * (STARTS * climb_cost(STEPS) + candidates(dim) + RADII + BRACKET_RADII)


def most_gradients(dim: int) -> int:
    """Gradient equivalents of one target at most.

    >>> most_gradients(784) < 512_000 / 100
    True
    """
    descents = descent_cost() if dim <= FEW_DIMENSIONS else 0
    return 1 + sum(_round_cost(rounds, dim) for rounds in range(MOST_ROUNDS)) + descents


@dataclass(frozen=True)
class _Start:
    """One climb of a target: its radius, and the offsets (k, d) of which the best is where it begins."""

    target: int
    radius: float
    offers: torch.Tensor


@dataclass
class _Ladder:
    """The radii of one target, with the largest norm and its place found at each."""

    radii: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    offsets: dict[float, torch.Tensor] = field(default_factory=dict)
    fine: list[float] = field(default_factory=list)
    gradients: int = 0
    moved: bool = False
    met: float = math.inf

    def take(self, radius: float, norm: float, offset: torch.Tensor) -> None:
        if radius not in self.offsets:
            self.radii.append(radius)
            self.norms.append(norm)
            self.offsets[radius] = offset
            return
        place = self.radii.index(radius)
        if norm > self.norms[place]:
            self.offsets[radius] = offset
        self.norms[place] = float(np.maximum(self.norms[place], norm))  # keeps NaN

    def profile(self, outcome: FitOutcome) -> Profile:
        return Profile.of(
            np.array(self.radii), np.array(self.norms), gradients=self.gradients, outcome=outcome.value, met=self.met
        )


class Search:
    """The search for one input's profiles: which climbs come next, and what their results mean."""

    def __init__(
        self,
        subject: Subject,
        center_norms: Array,
        *,
        ball: LpBall,
        seed: int,
        tolerance: float = TOLERANCE,
        race: bool = False,
    ) -> None:
        self.subject = subject
        self.ball = ball
        self.seed = seed
        self.tolerance = tolerance
        self.race = race
        self.rounds = 0
        self.seconds = 0.0
        self.stopped: list[str] = ["" for _ in subject.targets]
        self.margins = np.array(subject.margins)
        nowhere = torch.zeros(subject.x.numel(), device=subject.x.device, dtype=subject.x.dtype)
        self.ladders = [_Ladder([0.0], [float(norm)], {0.0: nowhere}, gradients=1) for norm in center_norms]
        self.scores = np.array([self._score(t) for t in range(len(self.ladders))])
        self._drop()

    @property
    def active(self) -> list[int]:
        """Positions of targets that still climb."""
        return [t for t, reason in enumerate(self.stopped) if not reason]

    def cost(self) -> int:
        """Gradient equivalents of the next round."""
        return len(self.active) * _round_cost(self.rounds, self.subject.x.numel())

    @property
    def steps(self) -> int:
        """Steps of the next round's climbs."""
        return BRACKET_STEPS if self.rounds == 0 else STEPS

    def starts(self) -> list[_Start]:
        """The climbs of the next round."""
        count = BRACKET_RADII * (BRACKET_STARTS - 1) if self.rounds == 0 else RADII
        x, subject = self.subject.x, self.subject
        each = candidates(x.numel())
        drawn = random_starts(
            self.ball, dim=x.numel(), count=count * each, seed=self.seed, input_id=subject.input_id, batch=self.rounds
        )
        drawn = drawn.to(x.device, x.dtype).view(count, each, -1)
        return [
            start
            for t in self.active
            for start in (self._bracket(t, drawn) if self.rounds == 0 else self._refine(t, drawn))
        ]

    def _bracket(self, t: int, drawn: torch.Tensor) -> Iterator[_Start]:
        """Radii up to where the score must end, from the input itself and from random points."""
        top = self.scores[t]
        for i in range(BRACKET_RADII):
            radius = float(top * (i + 1) / BRACKET_RADII)
            yield _Start(t, radius, torch.zeros_like(drawn[0, :1]))
            for k in range(BRACKET_STARTS - 1):
                yield _Start(t, radius, drawn[i * (BRACKET_STARTS - 1) + k] * radius)

    def _refine(self, t: int, drawn: torch.Tensor) -> Iterator[_Start]:
        """Eight radii up to the crossing, each from the best points of all radii and from a random one."""
        ladder = self.ladders[t]
        if not ladder.fine:
            expected = ladder.profile(FitOutcome.ASCENDED).expected_distance(float(self.margins[t]), self.ball.radius)
            top = min(self.ball.radius, BEYOND * expected)
            ladder.fine = [float(top * (i + 1) / RADII) for i in range(RADII)]
        # The steepest place of another ball, brought to this radius, is often near this one's.
        known = [(r, ladder.offsets[r]) for r in ladder.radii if r > 0.0]
        for i, radius in enumerate(ladder.fine):
            yield _Start(t, radius, torch.stack([offset * (radius / r) for r, offset in known]))
            yield _Start(t, radius, drawn[i] * radius)

    def add(self, starts: Sequence[_Start], summit: Summit) -> None:
        """Take the results of a round."""
        norms, moved, costs = summit.norms.double().tolist(), summit.moved.tolist(), summit.gradients.tolist()
        for start, norm, offset, has_moved, cost in zip(starts, norms, summit.offsets, moved, costs, strict=True):
            ladder = self.ladders[start.target]
            ladder.take(start.radius, norm, offset)
            ladder.gradients += cost + (len(start.offers) if len(start.offers) > 1 else 0)
            ladder.moved |= has_moved
        self.rounds += 1
        before = self.scores.copy()
        active = self.active
        for t in active:
            self.scores[t] = self._score(t)
            if self._constant(t):
                self.stopped[t] = EXACT
            elif self.rounds > 2 and not self.scores[t] < before[t] * (1.0 - self.tolerance):
                self.stopped[t] = SETTLED
            elif self.rounds == MOST_ROUNDS or np.isnan(self.scores[t]):
                self.stopped[t] = ALL_STARTS
        self._drop()
        for t in active:
            if self.stopped[t]:
                self.ladders[t].offsets.clear()  # they are of no more use, and large

    def doubted(self) -> list[int]:
        """Positions of targets whose score a descent may refute: all that count and are below the radius.

        In many dimensions none was ever refuted on the networks measured, and descents are left out.
        """
        if self.subject.x.numel() > FEW_DIMENSIONS:
            return []
        return [
            t
            for t, reason in enumerate(self.stopped)
            if reason != LOST and self.rounds and 0.0 < self.scores[t] < self.ball.radius and not self._constant(t)
        ]

    def descent_starts(self) -> torch.Tensor:
        """Where descents begin (starts, d), in a ball of radius 1: at the input, and at random points."""
        drawn = random_starts(
            self.ball, dim=self.subject.x.numel(), count=DESCENT_STARTS, seed=self.seed,
            input_id=self.subject.input_id, batch=MOST_ROUNDS,
        )  # fmt: skip
        drawn[0] = 0.0
        return drawn

    def meet(self, t: int, distance: float) -> None:
        """Take the distance at which a descent met the other class."""
        self.ladders[t].met = distance
        self.ladders[t].gradients += descent_cost()
        self.scores[t] = self._score(t)

    def stop(self, reason: str) -> None:
        """End the search for all targets."""
        for t in self.active:
            self.stopped[t] = reason

    def profiles(self) -> tuple[Profile, ...]:
        """What was found, per target."""
        return tuple(ladder.profile(self._outcome(t)) for t, ladder in enumerate(self.ladders))

    def _score(self, t: int) -> float:
        return self.ladders[t].profile(FitOutcome.ASCENDED).distance(float(self.margins[t]), self.ball.radius)

    def _constant(self, t: int) -> bool:
        norms = self.ladders[t].norms
        return not self.ladders[t].moved and len(norms) > 1 and max(norms) - min(norms) <= SAME * max(norms)

    def _outcome(self, t: int) -> FitOutcome:
        ladder = self.ladders[t]
        if not np.isfinite(ladder.norms).all():
            return FitOutcome.NOT_FINITE
        if max(ladder.norms) == 0.0:
            return FitOutcome.ZERO
        if self._constant(t):
            return FitOutcome.CONSTANT
        if self.rounds and len(ladder.radii) > 1 and not ladder.moved:
            return FitOutcome.NO_DIRECTION
        return FitOutcome.UNSETTLED if self.stopped[t] in (ALL_STARTS, BUDGET) else FitOutcome.ASCENDED

    def _drop(self) -> None:
        """Take out targets that are too far behind, and those that have no margin to begin with."""
        for t in self.active:
            if self.scores[t] == 0.0:
                self.stopped[t] = EXACT
        if not self.race or np.isnan(self.scores).any():
            return
        limit = SLACK[min(self.rounds, len(SLACK) - 1)] * self.scores.min()
        for t in self.active:
            if self.scores[t] > limit:
                self.stopped[t] = LOST


def searches(
    classifier: Classifier,
    subjects: Sequence[Subject],
    *,
    ball: LpBall,
    seed: int,
    tolerance: float | None,
    budget: Budget,
    race: bool,
    chunk_size: int,
    workers: int,
    on_points: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Search]]:
    """Search all subjects, a group at a time, and yield (position, finished search)."""
    box = box_for(ball, classifier)
    most_targets = max(len(subject.targets) for subject in subjects)
    together = NUMBERS_TOGETHER // (subjects[0].x.numel() * (most_targets * RADII + RADII * CANDIDATES))
    size = min(MOST_TOGETHER, max(1, together))
    with kept_pages(), pool(workers) as executor:
        team = _Team(classifier, executor, ball.p, box, chunk_size, workers, on_points)
        for first in range(0, len(subjects), size):
            group = range(first, min(first + size, len(subjects)))
            purse = budget.share(len(group), len(subjects) - first)
            running: dict[int, Search] = {}
            for i in group:
                subject = subjects[i]
                with purse.paying(len(subject.targets)):
                    began = time.perf_counter()
                    norms = margin_gradient_norms(
                        classifier, subject.x[None], predicted=subject.predicted, targets=subject.targets, q=ball.q
                    )
                    running[i] = Search(
                        subject,
                        norms[0].double().cpu().numpy(),
                        ball=ball,
                        seed=seed,
                        tolerance=TOLERANCE if tolerance is None else tolerance,
                        race=race,
                    )
                    running[i].seconds += time.perf_counter() - began
            while running:
                finished = {i: search for i, search in running.items() if not search.active}
                team.descend(list(finished.values()))
                for i, search in finished.items():
                    del running[i]
                    yield i, search
                cost = sum(search.cost() for search in running.values())
                if any(search.rounds for search in running.values()) and not purse.affords(cost):
                    for search in running.values():
                        search.stop(BUDGET)
                    continue
                with purse.paying(cost):
                    team.climb(list(running.values()))


@dataclass(frozen=True)
class _Team:
    """Threads that climb, a chunk of climbs at a time."""

    classifier: Classifier
    executor: ThreadPoolExecutor
    p: float
    box: tuple[float, float] | None
    chunk_size: int
    workers: int
    on_points: Callable[[int], None] | None

    def climb(self, running: Sequence[Search]) -> None:
        """One round of every search."""
        for steps in sorted({search.steps for search in running}):
            together = [search for search in running if search.steps == steps]
            starts = [search.starts() for search in together]
            work = [(search.subject, start) for search, own in zip(together, starts, strict=True) for start in own]
            chunks = [work[i : i + self.chunk_size] for i in range(0, len(work), self.chunk_size)]
            found = list(self.executor.map(partial(self._chunk, steps), chunks))
            parts = ((s.norms, s.offsets, s.moved, s.gradients) for s, _ in found)
            whole = [torch.cat(part) for part in zip(*parts, strict=True)]
            seconds = sum(took for _, took in found) / self.workers / max(1, len(work))
            first = 0
            for search, own in zip(together, starts, strict=True):
                norms, offsets, moved, cost = (part[first : first + len(own)] for part in whole)
                search.add(own, Summit(norms, offsets.clone(), moved, cost))
                search.seconds += seconds * len(own)
                first += len(own)

    def descend(self, finished: Sequence[Search]) -> None:
        """See whether the other class is nearer than the scores say."""
        work = [(search, t) for search in finished for t in search.doubted()]
        chunks = [work[i : i + self.chunk_size] for i in range(0, len(work), self.chunk_size)]
        for chunk, met in zip(chunks, self.executor.map(self._descended, chunks), strict=True):
            for (search, t), distance in zip(chunk, met, strict=True):
                search.meet(t, distance)

    def _descended(self, work: Sequence[tuple[Search, int]]) -> list[float]:
        x = work[0][0].subject.x
        climbs = Climbs(
            centers=torch.stack([search.subject.x for search, _ in work]),
            predicted=torch.tensor([search.subject.predicted for search, _ in work], device=x.device),
            targets=torch.tensor([search.subject.targets[t] for search, t in work], device=x.device),
            radii=torch.tensor([search.scores[t] for search, t in work], device=x.device, dtype=x.dtype),
            starts=torch.zeros(len(work), x.numel(), device=x.device, dtype=x.dtype),
        )
        places = torch.stack([search.descent_starts() for search, _ in work], 1).to(x.device, x.dtype)
        found = [
            nearest_crossings(self.classifier, replace(climbs, starts=starts), p=self.p, bounds=self.box)
            for starts in places
        ]
        return [float(distance) for distance in torch.stack(found).amin(0).double()]

    def _chunk(self, steps: int, work: Sequence[tuple[Subject, _Start]]) -> tuple[Summit, float]:
        began = time.perf_counter()
        x = work[0][0].x
        climbs = Climbs(
            centers=torch.stack([subject.x for subject, _ in work]),
            predicted=torch.tensor([subject.predicted for subject, _ in work], device=x.device),
            targets=torch.tensor([subject.targets[start.target] for subject, start in work], device=x.device),
            radii=torch.tensor([start.radius for _, start in work], device=x.device, dtype=x.dtype),
            starts=torch.zeros(len(work), x.numel(), device=x.device, dtype=x.dtype),
        )
        offers = [start.offers for _, start in work]
        chosen = best_starts(self.classifier, climbs, offers, p=self.p, chunk_size=self.chunk_size, bounds=self.box)
        summit = climb(self.classifier, replace(climbs, starts=chosen), p=self.p, steps=steps, bounds=self.box)
        if self.on_points is not None:
            self.on_points(int(summit.gradients.sum()))
        return summit, time.perf_counter() - began
