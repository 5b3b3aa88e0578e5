"""When to stop: checkpoints, intervals that are narrow enough, and targets that cannot have the smallest score.

An untargeted score is a minimum, so a target whose score cannot become the smallest needs no more gradients. All
targets of an input share the same points, so their scores are compared in pairs: the spread of the difference of two
log scores over random halves of the blocks estimates the spread of this difference over all blocks. A target is
eliminated when the difference is far enough above zero, in standard deviations. The comparison predicts the scores
after all blocks. These are much better known than the true end-point, and the better the fewer blocks are left.

With few blocks the fitted shape may be wrong, though: all halves then agree on an end-point that later blocks move far
up. So the score of an eliminated target must also stay above the smallest one with the largest end-point in its
interval. If that end-point is infinite or very large, the score must stay above with a Gumbel law fitted to the maxima
so far; it is the limit of reverse Weibull laws and has the heaviest tail of them. The end-point that is fitted after
all blocks of Gumbel maxima is simulated once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cleverscore import tails
from cleverscore.errors import SettingError
from cleverscore.estimators.score_rule import capped_ratio
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.tails import FitOutcome
from cleverscore.validation import is_number

Array = npt.NDArray[np.float64]

FIRST_CHECKPOINT = 32  # blocks; below, a tail fit tells little
HALVES = 24  # random halves per checkpoint: their standard deviation is known to 15%
# Of n blocks out of N, the log score differs from that of all N by about sqrt(1 - n / N) times its own standard error.
# The estimates have heavier tails than a normal law, above all for few blocks, so it takes four of these; and never
# fewer than three of the standard error itself, so that a rival's true score is hardly the smallest, either.
DROP_DEVIATIONS, LEAST_DEVIATIONS = 4.0, 3.0
HALVES_SEED = 0x68616C76
# Samples of a Gumbel law that tell how far the estimator may go on it, and in which share of them it goes less far.
GUMBEL_SAMPLES, GUMBEL_SHARE = 400, 0.95
GUMBEL_SEED = 0x67756D62

EQUAL_MAXIMA = (FitOutcome.TIED_MAXIMA, FitOutcome.CONSTANT, FitOutcome.ZERO)

# With more targets than this, single points are looked at before blocks are drawn.
PREFILTERED_ABOVE = 32
PREFILTER_START = 2**40  # its blocks are of one point each, far from the numbers of real blocks
MOST_PREFILTER_POINTS, LEAST_PREFILTER_POINTS = 32, 8
# Before that, random projections at a few of these points tell all norms to about a tenth. Blocks of a thousand norms
# reach 1.2 to 3 times the mean norm on the networks measured, so a target 2.5 times behind the best cannot win.
SKETCHED_POINTS, SKETCHED_DIRECTIONS = 8, 16
SKETCHED_FACTOR = 2.5
PREFILTER_SHARE = 4  # it costs at most about as much as this many targets with all their blocks
# Blocks of about a thousand norms with a light tail reach 7.3 standard deviations above the mean. From 32 norms that
# number is known to about one; a target stays in unless 12 for it and 4 for the best still leave it behind.
PREFILTER_HIGH, PREFILTER_LOW = 12.0, 4.0


def checkpoints(blocks: int) -> list[int]:
    """Numbers of blocks after which sampling may stop: 32, 64, 128, ... and all.

    >>> checkpoints(500)
    [32, 64, 128, 256, 500]
    """
    at = []
    size = FIRST_CHECKPOINT
    while size < blocks:
        at.append(size)
        size *= 2
    return [*at, blocks]


@lru_cache
def gumbel_reach(blocks: int, penalty: float) -> float:
    """(Fitted end-point - mode) / scale for this many maxima of a Gumbel law: an upper limit that is seldom exceeded.

    >>> gumbel_reach(500, 0.1) > gumbel_reach(64, 0.1) > 6.0
    True
    """
    samples = np.random.default_rng(GUMBEL_SEED).gumbel(size=(GUMBEL_SAMPLES, blocks))
    return float(np.quantile(tails.law(samples, penalty).location, GUMBEL_SHARE))


@dataclass(frozen=True)
class Stopping:
    """When sampling may end before all blocks are drawn.

    tolerance   relative half-width of a score's interval at which sampling ends; 0 only eliminates targets.
    smallest    whether only the smallest score of all targets counts, so that other targets may be eliminated.
    threshold   decide only whether the score exceeds the threshold; sampling ends when that is clear.
    """

    tolerance: float
    smallest: bool
    threshold: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.tolerance) or not 0.0 <= self.tolerance < 1.0:
            raise SettingError(f"tolerance={self.tolerance!r}: give a share below 1, such as 0.05, or 0")


class TargetElimination:
    """The targets of one input and norm, with the block maxima drawn for each so far."""

    def __init__(
        self,
        targets: Sequence[int],
        margins: Sequence[float],
        *,
        limit: float,
        penalty: float,
        level: float,
        blocks: int,
        block_size: int,
        stopping: Stopping,
    ) -> None:
        self.targets = tuple(targets)
        self.margins = np.asarray(margins, dtype=np.float64)
        self.limit = limit
        self.penalty = penalty
        self.level = level
        self.checkpoints = checkpoints(blocks)
        self.stopping = stopping
        self.block_sizes = [block_size for _ in self.targets]
        self.maxima: list[Array] = [np.empty(0) for _ in self.targets]
        self.gradients = [0 for _ in self.targets]
        self.stopped: list[str] = ["" for _ in self.targets]
        self._record = math.inf  # smallest score among targets that ended without losing, at earlier checkpoints

    @property
    def active(self) -> list[int]:
        """Positions of the targets that are not eliminated."""
        return [t for t, reason in enumerate(self.stopped) if not reason]

    @property
    def drawn(self) -> int:
        """The number of blocks drawn for active targets."""
        return max((len(self.maxima[t]) for t in self.active), default=0)

    def next_checkpoint(self) -> int:
        """Number of blocks at the next checkpoint."""
        return next(size for size in self.checkpoints if size > self.drawn)

    @property
    def needs_prefilter(self) -> bool:
        """Whether there are so many targets that some should first be eliminated by a few points."""
        return self.stopping.smallest and len(self.active) > PREFILTERED_ABOVE

    @property
    def prefilter_blocks(self) -> range:
        """Number of points for the first elimination of targets: 32, or fewer if blocks are few and small."""
        affordable = PREFILTER_SHARE * self.checkpoints[-1] * max(self.block_sizes) // max(1, len(self.active))
        return range(
            PREFILTER_START, PREFILTER_START + min(MOST_PREFILTER_POINTS, max(LEAST_PREFILTER_POINTS, affordable))
        )

    def sketch(self, norms: Array) -> None:
        """Eliminate targets by one approximate norm per target; an eliminated target keeps this norm as its maximum."""
        ratios = capped_ratio(self.margins, norms, self.limit)
        for t in np.flatnonzero(ratios > SKETCHED_FACTOR * np.nanmin(ratios)):
            self._end_early(int(t), norms[[t]], StopReason.SKETCHED)

    def prefilter(self, norms: Array) -> None:
        """Eliminate targets by norms at single points (active targets, points); eliminated targets keep them as maxima.

        A target with a gradient that is not finite stays active, so that it is reported.
        """
        active = self.active
        mean, spread = norms.mean(1), norms.std(1, ddof=1)
        near = capped_ratio(self.margins[active], mean + PREFILTER_HIGH * spread, self.limit)
        far = capped_ratio(self.margins[active], mean + PREFILTER_LOW * spread, self.limit)
        for i in np.flatnonzero(near > np.nanmin(far)):
            self._end_early(active[i], norms[i], StopReason.PREFILTERED)

    def _end_early(self, t: int, norms: Array, reason: str) -> None:
        self.maxima[t], self.block_sizes[t], self.stopped[t] = norms, 1, reason
        self.gradients[t] = len(norms)

    def add(self, values: Array) -> None:
        """Add block maxima (active targets, blocks), then check whether sampling may stop or targets are eliminated."""
        active = self.active
        for i, t in enumerate(active):
            self.maxima[t] = np.concatenate([self.maxima[t], values[i]])
            self.gradients[t] += values.shape[1] * self.block_sizes[t]
        self._check()

    def stop(self, reason: str) -> None:
        """End sampling for all targets."""
        for t in self.active:
            self.stopped[t] = reason

    def _check(self) -> None:
        active = self.active
        maxima = np.stack([self.maxima[t] for t in active])
        fits = tails.law(maxima, self.penalty)
        margins = self.margins[active]
        values = capped_ratio(margins, fits.location, self.limit)
        logs, needed = self._halves(active, maxima), self._needed(maxima.shape[1])
        # More blocks make the statistical error smaller, and that alone: the law is taken for granted here.
        intervals = tails.interval(
            maxima, fits, level=self.level, method="posterior", checkpoints=len(self.checkpoints)
        )
        low, high = (capped_ratio(margins, ends, self.limit) for ends in (intervals.high, intervals.low))
        # Equal maxima have an interval without width: it knows nothing of steeper pieces that no point has met yet.
        # (Affine networks, whose gradient is known to be constant, do not come here.)
        tied = np.array([outcome in EQUAL_MAXIMA for outcome in fits.outcome], dtype=bool)
        low[tied] = 0.0
        for i, t in enumerate(active):
            if low[i] >= self.limit:
                self.stopped[t] = StopReason.AT_RADIUS
            elif _narrow(values[i], low[i], high[i], self.stopping.tolerance):
                self.stopped[t] = StopReason.NARROW
        finished = [values[i] for i, t in enumerate(active) if self.stopped[t]]
        if self.stopping.smallest and logs is not None:
            self._drop(active, logs, values, low, needed)
        if self.stopping.threshold is not None:
            self._decide(active, None if tied.any() else logs, values, low, high, needed)
        self._record = min([self._record, *finished])
        if self.drawn >= self.checkpoints[-1]:
            self.stop(StopReason.ALL_BLOCKS)

    def _halves(self, active: list[int], maxima: Array) -> Array | None:
        """Log scores (halves, targets) from random halves of the blocks.

        None if the halves are too small for a fit, or if there are no scores to compare.
        """
        half = maxima.shape[1] // 2
        alone = len(active) == 1 and math.isinf(self._record)
        if half < 10 or (self.stopping.threshold is None and (alone or not self.stopping.smallest)):
            return None
        generator = np.random.default_rng([HALVES_SEED, maxima.shape[1]])
        picks = np.argsort(generator.random((HALVES, maxima.shape[1])), axis=1)[:, :half]
        halves = maxima[:, picks].swapaxes(0, 1)  # (halves, targets, half)
        locations = tails.law(halves, self.penalty).location
        logs: Array = np.log(np.maximum(capped_ratio(self.margins[active], locations, self.limit), 1e-300))
        return logs

    def _drop(self, active: list[int], logs: Array, values: Array, low: Array, needed: float) -> None:
        """Eliminate targets whose score will stay above the smallest one."""
        if len(self.targets) == 1 or np.isnan(values).any():
            return
        best = int(np.argmin(values))
        record = self._record
        own = np.log(max(values[best], 1e-300))
        leader = min(record, values[best])
        for i, t in enumerate(active):
            if self.stopped[t] or (i == best and record >= values[best]):
                continue
            if record < values[best]:
                gap, spread = math.log(max(values[i], 1e-300) / max(record, 1e-300)), float(logs[:, i].std(ddof=1))
            else:
                gap = math.log(max(values[i], 1e-300)) - own
                spread = float((logs[:, i] - logs[:, best]).std(ddof=1))
            if gap > 0.0 and gap > needed * spread and max(low[i], self._gumbel_score(t)) > leader:
                self.stopped[t] = StopReason.ELIMINATED

    def _gumbel_score(self, t: int) -> float:
        """The smallest score that a target may have after all blocks, if its maxima follow a Gumbel law."""
        scale = self.maxima[t].std(ddof=1) * math.sqrt(6.0) / math.pi
        mode = self.maxima[t].mean() - np.euler_gamma * scale
        reach = gumbel_reach(self.checkpoints[-1], self.penalty)
        if scale == 0.0:  # equal maxima do not tell how far a tail reaches
            return 0.0
        return float(capped_ratio(self.margins[t], mode + reach * scale, self.limit))

    def _needed(self, drawn: int) -> float:
        """How many standard deviations are needed after this many blocks to predict the result after all blocks."""
        return max(LEAST_DEVIATIONS, DROP_DEVIATIONS * math.sqrt(1.0 - drawn / self.checkpoints[-1]))

    def _decide(
        self, active: list[int], logs: Array | None, values: Array, low: Array, high: Array, needed: float
    ) -> None:
        """Stop targets whose side of the threshold is clear; one score below the threshold ends sampling for all."""
        threshold = self.stopping.threshold
        assert threshold is not None  # the caller asked
        for i, t in enumerate(active):
            if math.isnan(values[i]):
                continue
            below = values[i] < threshold
            clear = high[i] < threshold if below else low[i] >= threshold
            if not clear and logs is not None and threshold > 0.0:
                gap = abs(math.log(max(values[i], 1e-300) / threshold))
                clear = gap > needed * float(logs[:, i].std(ddof=1))
            if clear and below:
                self.stop(StopReason.DECIDED)
            elif clear and not self.stopped[t]:
                self.stopped[t] = StopReason.DECIDED


def _narrow(value: float, low: float, high: float, tolerance: float) -> bool:
    # The score after all blocks has an error, too: two scores differ by more than the error of each.
    share = tolerance / math.sqrt(2.0)
    return tolerance > 0.0 and low >= value * (1.0 - share) and high <= value * (1.0 + share)
