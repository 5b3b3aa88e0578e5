from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from cleverscore.errors import SettingError
from cleverscore.tails import POOR_FIT, anderson_darling, fit, kolmogorov_smirnov


def test_kolmogorov_smirnov_is_scipys() -> None:
    rng = np.random.default_rng(0)
    for x in (2.0 - rng.weibull(3.0, (6, 80)), 2.0 - rng.weibull(0.8, (6, 500)), rng.standard_cauchy((6, 60))):
        fits = fit(x)
        statistic, pvalue = kolmogorov_smirnov(x, fits)
        for i, found in enumerate(fits):
            if found.outcome.has_law:
                law = stats.weibull_max(found.shape, found.location, found.scale)
                expected = stats.kstest(x[i], law.cdf)
                assert statistic[i] == pytest.approx(expected.statistic, abs=1e-9)
                assert pvalue[i] == pytest.approx(expected.pvalue, abs=1e-7)


def test_anderson_darling_statistic_is_scipys() -> None:
    x = np.random.default_rng(1).weibull(3.0, (3, 80)) * -1.0
    fits = fit(x)
    statistic, _ = anderson_darling(x, fits)
    for i, found in enumerate(fits):
        u = np.sort(stats.weibull_max(found.shape, found.location, found.scale).cdf(x[i]))
        n = len(u)
        expected = -n - np.mean((2 * np.arange(1, n + 1) - 1) * (np.log(u) + np.log1p(-u[::-1])))
        assert statistic[i] == pytest.approx(expected, rel=1e-6)


def test_anderson_darling_holds_its_level() -> None:
    # 150 samples at 5%: 7.5 rejections expected, more than 17 with probability 0.05%.
    x = np.concatenate([2.0 - np.random.default_rng(2).weibull(c, (50, 200)) for c in (1.2, 3.0, 10.0)])
    _, pvalue = anderson_darling(x, fit(x), replicates=99)
    assert 1 <= np.count_nonzero(pvalue <= 0.05) <= 17


def test_anderson_darling_sees_a_mixture_that_the_naive_test_passes() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((40, 500)) + 2.3 * (rng.random((40, 500)) < 0.5)
    fits = fit(x)
    assert np.mean(kolmogorov_smirnov(x, fits)[1] > 0.05) >= 0.9
    assert np.mean(anderson_darling(x, fits, replicates=99)[1] <= 0.05) >= 0.5


@pytest.mark.parametrize("blocks", [12, 70, 500])
@pytest.mark.parametrize("shape", [1.0, 1.3, 3.0, 12.0])
def test_the_table_agrees_with_the_bootstrap(shape: float, blocks: int) -> None:
    # 399 replicates: a p-value of 0.1 has a standard error of 0.015, one of 0.5 of 0.025; the table's own is a third.
    rng = np.random.default_rng([4, blocks, int(10 * shape)])
    x = 2.0 - rng.weibull(shape, (20, blocks)) + 0.05 * rng.standard_normal((20, blocks))
    fits = fit(x)
    drawn = anderson_darling(x, fits, replicates=399)[1]
    for p, expected in zip(fits.ad_pvalue, drawn, strict=True):
        assert p == pytest.approx(expected, abs=0.03 + 4.0 * np.sqrt(expected * (1.0 - expected) / 400.0))


def test_poor_fits_are_those_that_the_test_rejects_whatever_the_penalty() -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((60, 300)) + 2.6 * (rng.random((60, 300)) < 0.5)
    for penalty in (0.0, 0.01, 1.0):
        fits = fit(x, penalty)
        assert np.array_equal(fits.outcome == "poor", fits.ad_pvalue < POOR_FIT)
        assert 10 < np.count_nonzero(fits.outcome == "poor") < 60
        np.testing.assert_array_equal(fits.ad_pvalue, fit(x).ad_pvalue)


def test_bootstrap_is_deterministic_and_rows_are_independent() -> None:
    x = 2.0 - np.random.default_rng(4).weibull(3.0, (2, 3, 60))
    fits = fit(x)
    statistic, pvalue = anderson_darling(x, fits, replicates=19)
    assert statistic.shape == (2, 3)
    np.testing.assert_array_equal(anderson_darling(x, fits, replicates=19)[1], pvalue)
    alone = anderson_darling(x[1, 2], fit(x[1, 2]), replicates=19)[1]
    assert alone == pvalue[1, 2]


def test_rows_without_a_law_are_nan() -> None:
    x = np.stack([np.ones(30), np.random.default_rng(5).random(30)])
    statistic, pvalue = anderson_darling(x, fit(x), replicates=9)
    assert np.isnan(statistic[0])
    assert np.isnan(pvalue[0])
    assert np.isfinite(pvalue[1])


def test_bad_settings_are_refused() -> None:
    x = np.random.default_rng(6).random((2, 30))
    with pytest.raises(SettingError, match="replicates"):
        anderson_darling(x, fit(x), replicates=-1)
    with pytest.raises(SettingError, match="seed"):
        anderson_darling(x, fit(x), replicates=9, seed=-1)
    with pytest.raises(SettingError, match="belong together"):
        kolmogorov_smirnov(x, fit(x[:1]))
