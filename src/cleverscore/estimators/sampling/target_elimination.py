"""When to stop: checkpoints, intervals that are narrow enough, and targets that cannot have the smallest score.

An untargeted score is a minimum over targets, so a target whose score cannot become the smallest needs no more
gradients. All targets of an input share the same points, so their scores are compared in pairs: the standard deviation
of the difference of two log scores over random halves of the blocks estimates that of the difference for all blocks. A
target is eliminated when its difference to the smallest score is enough of these standard deviations above zero. The
comparison predicts the scores after all blocks. These are much better known than scores from the true end-points, and
the fewer blocks are left, the better.

With few blocks the fitted shape may be wrong, though: all halves then agree on an end-point that later blocks move far
up. So the score of an eliminated target must also be above the smallest one with a larger end-point than the fitted
one. This is the smaller of two: the upper limit of the end-point's interval, which may be infinite; and the end-point
that fits to maxima of a Gumbel law would seldom exceed (`gumbel_reach`). The Gumbel law has the mean and the standard
deviation of the maxima so far; it is the limit of reverse Weibull laws and has the heaviest tail of them.
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

FIRST_CHECKPOINT = 32  # blocks; a tail fit to fewer tells little
HALVES = 24  # random halves per checkpoint: the standard deviation over so many is known to 15%
# The log score from n of N blocks differs from that of all N by about sqrt(1 - n / N) times its standard error. A
# target is eliminated only if its log score is four times this (DROP_DEVIATIONS) above the smallest one; two or three
# times would be too little, because the estimates have heavier tails than a normal law, above all for few blocks. It
# must also be three standard errors (LEAST_DEVIATIONS) above, so that its true score is hardly the smallest, either.
DROP_DEVIATIONS, LEAST_DEVIATIONS = 4.0, 3.0
HALVES_SEED = 0x68616C76
# `gumbel_reach` fits so many samples of a Gumbel law; it gives the end-point that this share of the fits do not exceed.
GUMBEL_SAMPLES, GUMBEL_SHARE = 400, 0.95
GUMBEL_SEED = 0x67756D62

EQUAL_MAXIMA = (FitOutcome.TIED_MAXIMA, FitOutcome.CONSTANT, FitOutcome.ZERO)

# The prefilter. With more targets than this, some are eliminated by norms at a few single points before blocks are
# drawn. These points are blocks of one point each, with numbers from PREFILTER_START, which no real block has.
PREFILTERED_ABOVE = 32
PREFILTER_START = 2**40
MOST_PREFILTER_POINTS, LEAST_PREFILTER_POINTS = 32, 8
# The sketch, before the prefilter: random directions at the first points of the prefilter give a norm for every target,
# with an error of about a tenth. The largest of a thousand norms is 1.2 to 3 times their mean on the networks measured.
# So a target with a score from this norm 2.5 times the smallest one is taken to have no chance.
SKETCHED_POINTS, SKETCHED_DIRECTIONS = 8, 16
SKETCHED_FACTOR = 2.5
PREFILTER_SHARE = 4  # the prefilter costs at most about as much as all blocks for so many targets
# The largest of about a thousand norms with a light tail is up to 7.3 standard deviations above their mean; from 32
# norms, this number is known to about 1. A target is eliminated if its score is above that of another one even when its
# own largest norm is taken to be 12 (PREFILTER_HIGH) standard deviations above the mean, and the other's 4.
PREFILTER_HIGH, PREFILTER_LOW = 12.0, 4.0


def checkpoints(blocks: int) -> list[int]:
    """Numbers of blocks after which sampling may stop: 32, 64, 128, ..., and `blocks`, the number of all.

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
    """A number that (fitted end-point - mode) / scale exceeds in only 5% of samples of this many Gumbel maxima.

    Mode and scale are those of the Gumbel law, the end-point is that of `tails.law` with this penalty. Simulated.

    >>> gumbel_reach(500, 0.1) > gumbel_reach(64, 0.1) > 6.0
    True
    """
    samples = np.random.default_rng(GUMBEL_SEED).gumbel(size=(GUMBEL_SAMPLES, blocks))
    return float(np.quantile(tails.law(samples, penalty).location, GUMBEL_SHARE))


@dataclass(frozen=True)
class Stopping:
    """When sampling may end before all blocks are drawn.

    tolerance   sampling ends for a target when both limits of its score's interval are within tolerance / sqrt(2) times
                the score of it; with 0 it does not end for this reason.
    smallest    whether only the smallest score of all targets counts, so that other targets may be eliminated.
    threshold   if given, only which side of it the score is on counts; sampling ends when that is clear.
    """

    tolerance: float
    smallest: bool
    threshold: float | None = None

    def __post_init__(self) -> None:
        if not is_number(self.tolerance) or not 0.0 <= self.tolerance < 1.0:
            raise SettingError(f"tolerance={self.tolerance!r}: give a share below 1, such as 0.05, or 0")


class TargetElimination:
    """The targets of one input in one norm, with the block maxima drawn so far, and which targets need no more.

    targets, margins    the target classes, and the margin at the input for each.
    limit       the largest possible score: the radius, or infinity.
    penalty, level      of the tail fit and of intervals.
    blocks, block_size  the number of blocks if sampling does not end early, and points in a block.
    stopping    when sampling may end early.

    The caller draws blocks for the `active` targets and passes their maxima to `add`, until no target is active. Before
    that it may call `sketch` and `prefilter`, if `needs_prefilter`. The results, with one entry per target, are in the
    attributes `maxima`, `block_sizes`, `gradients` and `stopped` (the reason, "" for an active target).
    """

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
        self._record = math.inf  # smallest score of the targets that ended at earlier checkpoints, not by elimination

    @property
    def active(self) -> list[int]:
        """Positions in `targets` of those for which sampling has not ended."""
        return [t for t, reason in enumerate(self.stopped) if not reason]

    @property
    def drawn(self) -> int:
        """The number of blocks drawn for each active target; all have the same number."""
        return max((len(self.maxima[t]) for t in self.active), default=0)

    def next_checkpoint(self) -> int:
        """The number of blocks at the next checkpoint."""
        return next(size for size in self.checkpoints if size > self.drawn)

    @property
    def needs_prefilter(self) -> bool:
        """Whether there are so many active targets that some should be eliminated by norms at a few points first."""
        return self.stopping.smallest and len(self.active) > PREFILTERED_ABOVE

    @property
    def prefilter_blocks(self) -> range:
        """The numbers of the prefilter's blocks, which have one point each.

        There are 32 of them, or fewer, but at least 8, if all blocks together are few points for so many targets.
        """
        affordable = PREFILTER_SHARE * self.checkpoints[-1] * max(self.block_sizes) // max(1, len(self.active))
        return range(
            PREFILTER_START, PREFILTER_START + min(MOST_PREFILTER_POINTS, max(LEAST_PREFILTER_POINTS, affordable))
        )

    def sketch(self, norms: Array) -> None:
        """Eliminate targets by one approximate norm per target (targets,).

        An eliminated target keeps this norm as its only maximum.
        """
        ratios = capped_ratio(self.margins, norms, self.limit)
        for t in np.flatnonzero(ratios > SKETCHED_FACTOR * np.nanmin(ratios)):
            self._end_early(int(t), norms[[t]], StopReason.SKETCHED)

    def prefilter(self, norms: Array) -> None:
        """Eliminate targets by norms at single points (active targets, points).

        An eliminated target keeps these norms as its maxima. A target with a norm that is not finite stays active, so
        that blocks are drawn for it and its score is reported as not finite.
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
        """Add the maxima of new blocks (active targets, blocks), then end sampling for targets that need no more."""
        active = self.active
        for i, t in enumerate(active):
            self.maxima[t] = np.concatenate([self.maxima[t], values[i]])
            self.gradients[t] += values.shape[1] * self.block_sizes[t]
        self._check()

    def stop(self, reason: str) -> None:
        """End sampling for all active targets, with this reason."""
        for t in self.active:
            self.stopped[t] = reason

    def _check(self) -> None:
        active = self.active
        maxima = np.stack([self.maxima[t] for t in active])
        fits = tails.law(maxima, self.penalty)
        margins = self.margins[active]
        values = capped_ratio(margins, fits.location, self.limit)
        logs, needed = self._halves(active, maxima), self._needed(maxima.shape[1])
        # More blocks make only the statistical error smaller, not that of a law that is not reached. So the interval is
        # that for maxima that follow the law.
        intervals = tails.interval(
            maxima, fits, level=self.level, method="posterior", checkpoints=len(self.checkpoints)
        )
        low, high = (capped_ratio(margins, ends, self.limit) for ends in (intervals.high, intervals.low))
        # Equal maxima have an interval of width zero, but there may be steeper pieces of the network that no point has
        # met yet. So they do not count as narrow. (Affine networks, whose gradient is known to be constant, are not
        # sampled here.)
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
        """Log scores (halves, active targets) from random halves of the blocks; maxima (active targets, blocks).

        None if the halves are too small for a fit, or if there are no scores to compare with each other or a threshold.
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
        """Eliminate active targets whose score will stay above the smallest one.

        logs        (halves, active targets), log scores from random halves of the blocks.
        values      (active targets,), scores from all blocks so far.
        low         (active targets,), lower limits of the scores.
        needed      how many standard deviations the log score of a target must be above the smallest one.
        """
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
        """A score that target `t` is hardly below after all blocks if its maxima follow a Gumbel law; 0 if unknown."""
        scale = self.maxima[t].std(ddof=1) * math.sqrt(6.0) / math.pi
        mode = self.maxima[t].mean() - np.euler_gamma * scale
        reach = gumbel_reach(self.checkpoints[-1], self.penalty)
        if scale == 0.0:  # equal maxima do not show how far their tail reaches
            return 0.0
        return float(capped_ratio(self.margins[t], mode + reach * scale, self.limit))

    def _needed(self, drawn: int) -> float:
        """How many standard deviations log scores must differ by after `drawn` blocks to predict their final order."""
        return max(LEAST_DEVIATIONS, DROP_DEVIATIONS * math.sqrt(1.0 - drawn / self.checkpoints[-1]))

    def _decide(
        self, active: list[int], logs: Array | None, values: Array, low: Array, high: Array, needed: float
    ) -> None:
        """End sampling for active targets whose side of the threshold is clear, or for all if one is clearly below.

        active, values, low     as in `_drop`.
        logs        as in `_drop`; if None, only the limits `low` and `high` decide.
        high        (active targets,), upper limits of the scores.
        needed      how many standard deviations a log score must be from the log of the threshold, on either side.
        """
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
    # The score after all blocks has an error, too, so the difference of the two scores is larger than the error of one.
    share = tolerance / math.sqrt(2.0)
    return tolerance > 0.0 and low >= value * (1.0 - share) and high <= value * (1.0 + share)
