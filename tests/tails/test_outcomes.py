from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cleverscore.tails import FitOutcome, fit, interval, kolmogorov_smirnov

RNG = np.random.default_rng(5)


def with_top(values: list[float], blocks: int = 100) -> np.ndarray:
    return np.concatenate([RNG.random(blocks - len(values)), values])


QUANTILES = -np.log((np.arange(500, 0, -1) - 0.5) / 500)  # of an exponential law, ascending
CASES = {
    "constant": (np.full(50, 3.25), FitOutcome.CONSTANT),
    "constant to rounding": (3.0 + 1e-13 * RNG.random(50), FitOutcome.CONSTANT),
    "two equal": (np.full(2, 1.5), FitOutcome.CONSTANT),
    "zero": (np.zeros(50), FitOutcome.ZERO),
    "single zero": (np.zeros(1), FitOutcome.ZERO),
    "single": (np.ones(1), FitOutcome.TOO_FEW),
    "nine": (RNG.random(9), FitOutcome.TOO_FEW),
    "four values": (np.concatenate([np.repeat([1.0, 2.0, 3.0], 10), [4.0]]), FitOutcome.TOO_FEW),
    "tied": (with_top([2.0] * 3), FitOutcome.TIED_MAXIMA),
    "tied in float32": (with_top([2.0, 2.0 + 1e-7, 2.0 - 1e-7]), FitOutcome.TIED_MAXIMA),
    "twice is no tie": (2.0 - np.sort(RNG.weibull(2.0, 100))[np.r_[0, 0, 2:100]], FitOutcome.OK),
    "three of 500 are no tie": (1.0 - np.sort(RNG.weibull(2.0, 500))[np.r_[0, 0, 0, 3:500]], FitOutcome.OK),
    "corner": (2.0 - np.random.default_rng(1).weibull(0.9, 200), FitOutcome.SHAPE_AT_ONE),
    "no end": (RNG.gumbel(size=500), FitOutcome.NO_ENDPOINT),
    "shape of Gaussian norms": (2.0 - QUANTILES ** (1.0 / 14.0), FitOutcome.NO_ENDPOINT),
    "seldom steeper": (np.r_[2.0 - QUANTILES[3:] ** 0.5, 2.0, 2.05, 2.1], FitOutcome.DRIFTING),
    "two clusters": (1.0 + 0.01 * RNG.standard_normal(500) + (np.arange(500) % 2), FitOutcome.POOR),
    "one in 100 far out": (
        np.r_[1.0 + 0.01 * RNG.standard_normal(495), np.full(5, 2.0) + 0.01 * RNG.random(5)],
        FitOutcome.POOR,
    ),
    "regular": (2.0 - RNG.weibull(3.0, 200), FitOutcome.OK),
    "nan": (with_top([np.nan]), FitOutcome.NOT_FINITE),
    "inf": (with_top([np.inf]), FitOutcome.NOT_FINITE),
    "minus inf": (with_top([-np.inf]), FitOutcome.NOT_FINITE),
}


@pytest.mark.parametrize("penalty", [0.0, 0.01])
@pytest.mark.parametrize("name", CASES)
def test_edge_case(name: str, penalty: float) -> None:
    x, expected = CASES[name]
    found = fit(x, penalty)[()]
    limits = interval(x, fit(x, penalty))
    statistic, pvalue = kolmogorov_smirnov(x, fit(x, penalty))
    assert found.outcome is expected
    if expected is FitOutcome.NOT_FINITE:
        assert np.isnan([found.location, limits.low, limits.high]).all()
    elif expected.extrapolates and name != "two clusters":  # whose end-point is the sample maximum
        assert found.location > x.max()
    else:
        assert found.location == x.max() == limits.low
    assert np.isfinite(statistic) == np.isfinite(pvalue) == np.isfinite(found.scale) == expected.has_law
    if expected in (FitOutcome.CONSTANT, FitOutcome.ZERO, FitOutcome.TIED_MAXIMA):
        assert limits.high == x.max()
    assert (limits.low == x.max() and limits.high == np.inf) == expected.bounded_below_only
    assert np.isfinite(found.ad_pvalue) == expected.has_law


def test_no_end_reports_the_penalised_value() -> None:
    x = CASES["no end"][0]
    assert fit(x, 0.0)[()].location == fit(x, 0.01)[()].location


def test_every_outcome_is_tested_and_has_one_sentence_of_advice() -> None:
    # No fits of ours: tests/test_sharp.py, tests/test_extend.py.
    others = {FitOutcome.ASCENDED, FitOutcome.UNSETTLED, FitOutcome.CUSTOM_MODEL}
    assert {outcome for _, outcome in CASES.values()} == set(FitOutcome) - others
    for outcome in FitOutcome:
        assert outcome.advice.endswith(".")
        assert outcome.advice.count(". ") == 0
        assert str(outcome) == outcome.value
    assert [o for o in FitOutcome if o.has_law and not o.extrapolates] == [FitOutcome.SHAPE_AT_ONE]


numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 1.0, 1.0 + 1e-15, 1.0 - 1e-9, 1e-300, 1e-30, 1e30, 1e300, -1e300, 5e-324]),
    st.integers(-3, 3).map(float),
)
samples = st.one_of(
    st.lists(numbers, min_size=1, max_size=40),
    st.tuples(st.lists(st.floats(0.0, 1.0), min_size=10, max_size=80), st.floats(1e-300, 1e300)).map(
        lambda pair: [value * pair[1] for value in pair[0]]
    ),
    st.tuples(st.integers(0, 10_000), st.floats(0.2, 60.0), st.floats(-1e6, 1e6), st.floats(1e-9, 1e9)).map(
        lambda p: list(p[2] - p[3] * np.random.default_rng(p[0]).weibull(p[1], 90))
    ),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(samples, st.sampled_from([0.0, 0.01, 5.0]))
@example([1.0 + 1e-11 * k for k in range(12)], 0.0)
@example([5e-324 * k for k in range(12)], 0.0)
@example([1.7e308, -1.7e308, *(float(k) for k in range(12))], 0.01)
@pytest.mark.slow
def test_never_below_the_maximum_and_never_a_warning(sample: list[float], penalty: float) -> None:
    x = np.array(sample)
    fits = fit(x, penalty)  # pytest turns any RuntimeWarning into an error
    assert np.isfinite(fits.location)
    assert fits.location >= x.max()
    for method in ("posterior", "profile"):
        limits = interval(x, fits, method=method)
        assert x.max() <= limits.low <= fits.location <= limits.high
    kolmogorov_smirnov(x, fits)
