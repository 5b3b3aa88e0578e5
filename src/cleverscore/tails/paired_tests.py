"""Statistics of scores over inputs: the median with its interval, and paired differences of two models; no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]

RESAMPLES = 4000  # of the bootstrap: the ends of a 95% interval are then known to about 2% of its width
BOOTSTRAP_SEED = 0x70616972
POWER = 0.8  # `inputs_needed` and `blocks_factor` are for detecting the difference with this probability
MOST_NEEDED = 1_000_000  # a larger number of inputs is given as None


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval; NaN where they cannot be computed."""

    value: float
    low: float
    high: float


FEWEST = 6  # from so many values on, the population median lies between smallest and largest with 95% probability


def median_interval(values: Array, level: float = 0.95) -> Interval:
    """The median of the values, and two of them between which the population median lies with the probability `level`.

    NaN values are left out. The number of values below the population median is binomial (n, 1/2) for any continuous
    distribution, so the probability is at least `level`. With fewer than six values it is less than 95% for any two of
    them; the smallest and largest are then returned.

    >>> median_interval(np.arange(1.0, 11.0))
    Interval(value=5.5, low=2.0, high=9.0)
    """
    known = np.sort(values[~np.isnan(values)])
    if len(known) == 0:
        return Interval(math.nan, math.nan, math.nan)
    held: Any = stats.quantile_test(known, p=0.5).confidence_interval(level)
    low, high = (known[0], known[-1]) if np.isnan([held.low, held.high]).any() else (held.low, held.high)
    return Interval(float(np.median(known)), float(low), float(high))


@dataclass(frozen=True)
class Difference:
    """How the scores of two models on the same inputs differ (second minus first).

    count                   number of inputs.
    mean, median            mean and median of the differences, with bootstrap intervals over inputs at `level`.
    above, below, ties      numbers of inputs on which the second score is larger, smaller, equal.
    sign_pvalue             p-value of the two-sided sign test of whether `above` and `below` are equally likely.
    level                   the confidence level of the intervals and of the verdict.
    verdict                 1 if the second model is more robust, -1 if the first is, 0 if undecided. 1 and -1 require
                            that the interval of the mean excludes 0, and that the sign test is significant with the
                            same sign.
    inputs_needed           number of inputs that would detect a difference of this size with probability 0.8; None if
                            above a million, or if mean and signs do not point to the same model.
    blocks_factor           factor by which the number of blocks would have to grow to detect the difference with the
                            same inputs with probability 0.8; None if no factor is enough or the noise is not known.
    """

    count: int
    mean: Interval
    median: Interval
    above: int
    below: int
    ties: int
    sign_pvalue: float
    level: float
    verdict: int
    inputs_needed: int | None
    blocks_factor: float | None


def difference(
    first: Array, second: Array, *, noise: Array | None = None, level: float = 0.95, seed: int = BOOTSTRAP_SEED
) -> Difference:
    """Compare the scores of two models on the same inputs, (inputs,) each.

    noise   (inputs,), the variance of each difference that comes from the random sample of gradients, which more blocks
            would lower; for `blocks_factor`.
    level   the confidence level of the intervals and of the verdict.
    seed    the seed of the bootstrap.

    >>> difference(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), np.array([2.0, 3.5, 4.0, 5.0, 6.5, 7.0, 8.0])).verdict
    1
    """
    change = np.asarray(second - first, np.float64)
    count = len(change)
    if count == 0:
        nothing = Interval(math.nan, math.nan, math.nan)
        return Difference(0, nothing, nothing, 0, 0, 0, 1.0, level, 0, None, None)
    drawn = [(change[picks].mean(1), np.median(change[picks], axis=1)) for picks in _resamples(count, seed)]
    means, medians = (np.concatenate(part) for part in zip(*drawn, strict=True))
    tail = (1.0 - level) / 2.0
    mean = Interval(float(change.mean()), *(float(v) for v in np.quantile(means, [tail, 1.0 - tail])))
    median = Interval(float(np.median(change)), *(float(v) for v in np.quantile(medians, [tail, 1.0 - tail])))
    above, below = int((change > 0.0).sum()), int((change < 0.0).sum())
    pvalue = float(stats.binomtest(above, above + below).pvalue) if above + below else 1.0
    direction = 1 if mean.low > 0.0 else -1 if mean.high < 0.0 else 0
    agree = pvalue < 1.0 - level and (above > below) == (direction > 0)
    verdict = direction if direction and agree else 0
    return Difference(
        count=count,
        mean=mean,
        median=median,
        above=above,
        below=below,
        ties=count - above - below,
        sign_pvalue=pvalue,
        level=level,
        verdict=verdict,
        inputs_needed=_inputs_needed(change, level),
        blocks_factor=_blocks_factor(change, noise, level),
    )


def relative_change(
    first: Array, second: Array, *, of: str = "mean", level: float = 0.95, seed: int = BOOTSTRAP_SEED
) -> Interval:
    """mean(second) / mean(first) - 1 over paired values, with a bootstrap interval over inputs.

    With of="median", medians take the place of the means. The mean uses the pairing better: in a bootstrap sample both
    means change together, while medians jump from one input to another. The value is NaN if the first mean is not
    positive or one of the means is not finite. The interval is NaN with fewer than six inputs.

    >>> relative_change(np.arange(1.0, 11.0), 0.85 * np.arange(1.0, 11.0)).value
    -0.15000000000000002
    """
    statistic: Callable[..., Any] = np.mean if of == "mean" else np.median
    count = len(first)
    nothing = Interval(math.nan, math.nan, math.nan)
    if count == 0:
        return nothing
    base, now = float(statistic(first)), float(statistic(second))
    if not (math.isfinite(base) and math.isfinite(now) and base > 0.0):
        return nothing
    if count < FEWEST:
        return Interval(now / base - 1.0, math.nan, math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.concatenate(
            [statistic(second[p], axis=1) / statistic(first[p], axis=1) - 1.0 for p in _resamples(count, seed)]
        )
    # A resample in which both means are 0 has no ratio, so it is left out.
    drawn = np.sort(drawn[~np.isnan(drawn)])
    tail = (1.0 - level) / 2.0
    places = [math.floor(tail * (len(drawn) - 1)), math.ceil((1.0 - tail) * (len(drawn) - 1))]
    return Interval(now / base - 1.0, *(float(drawn[place]) for place in places))


def _resamples(count: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Bootstrap resamples: indices (resamples, count) from 0 to count - 1, in parts of limited memory."""
    generator = np.random.default_rng([seed, count])
    at_once = max(1, 2_000_000 // count)
    for start in range(0, RESAMPLES, at_once):
        yield generator.integers(0, count, (min(at_once, RESAMPLES - start), count))


def _reach(level: float) -> float:
    """How many standard errors from zero the true mean must lie for a test to detect it with probability `POWER`."""
    return float(stats.norm.ppf(0.5 + level / 2.0) + stats.norm.ppf(POWER))


def _inputs_needed(change: Array, level: float) -> int | None:
    """The number of inputs with which both the interval of the mean and the sign test detect the observed difference.

    None if it is larger than MOST_NEEDED, or if mean and signs do not agree on which model has the larger scores.
    """
    if len(change) < 2:
        return None
    mean, spread = float(change.mean()), float(change.std(ddof=1))
    signs = change[change != 0.0] > 0.0
    share = float(signs.mean()) if len(signs) else 0.5
    if mean == 0.0 or share == 0.5 or (share > 0.5) != (mean > 0.0):
        return None
    for_mean = (_reach(level) * spread / mean) ** 2
    z, power = float(stats.norm.ppf(0.5 + level / 2.0)), float(stats.norm.ppf(POWER))
    for_signs = ((0.5 * z + power * math.sqrt(share * (1.0 - share))) / (share - 0.5)) ** 2
    # If all n inputs have the same sign, the p-value of the sign test is 2^(1-n).
    least = math.ceil(1.0 - math.log2(1.0 - level)) + 1
    needed = max(for_mean, for_signs / max(len(signs) / len(change), 1e-9), least)
    return None if needed > MOST_NEEDED else math.ceil(needed)


def _blocks_factor(change: Array, noise: Array | None, level: float) -> float | None:
    """The factor on the number of blocks that makes the variance of the mean small enough to detect the difference.

    The variance from sampling (`noise`) decreases as 1 / blocks, the variance between inputs does not. None if no
    factor is enough.
    """
    if noise is None or len(change) < 2:
        return None
    sampling = float(np.nanmean(noise)) if np.isfinite(noise).any() else 0.0
    between = max(0.0, float(change.var(ddof=1)) - sampling)
    allowed = len(change) * (float(change.mean()) / _reach(level)) ** 2
    if allowed <= between or sampling == 0.0:
        return None
    return max(1.0, sampling / (allowed - between))
