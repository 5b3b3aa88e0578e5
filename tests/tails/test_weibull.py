from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from benchmarks.tails import dense_optimum, penalised_value, released_fit
from cleverscore.errors import SettingError
from cleverscore.tails import PENALTY, FitOutcome, fit, law

SHAPES = (0.5, 1.0, 1.2, 1.5, 2.5, 5.0, 10.0, 30.0)


def draw(shape: float, rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    return 2.0 - np.random.default_rng([seed, blocks, int(10 * shape)]).weibull(shape, size=(rows, blocks))


@pytest.mark.parametrize("blocks", [50, 200, 500])
@pytest.mark.parametrize("shape", SHAPES)
def test_likelihood_reaches_a_dense_grid(shape: float, blocks: int) -> None:
    x = draw(shape, 25, blocks)
    fits = law(x, 0.0)
    plain = np.isin(fits.outcome.astype(str), ["ok", "shape_at_one"])
    assert plain.any()
    assert np.all(dense_optimum(x[plain]) - fits.log_likelihood[plain] < 1e-3)
    assert np.all(fits.location >= x.max(axis=1))


@pytest.mark.parametrize("penalty", [0.0, 0.01])
@pytest.mark.parametrize("shape", [1.5, 4.0, 12.0])
def test_reported_log_likelihood_is_that_of_the_reported_law(shape: float, penalty: float) -> None:
    x = draw(shape, 40, 120)
    for row, found in zip(x, fit(x, penalty), strict=True):
        law = stats.weibull_max(found.shape, found.location, found.scale)
        assert law.logpdf(row).sum() == pytest.approx(found.log_likelihood, abs=1e-6)


@pytest.mark.parametrize("penalty", [0.0, 0.01, 1.0])
def test_the_fit_is_a_local_maximum(penalty: float) -> None:
    x = draw(4.0, 30, 150)
    for row, found in zip(x, fit(x, penalty), strict=True):

        def value(location: float, scale: float, shape: float, row: np.ndarray = row) -> float:
            plain = stats.weibull_max.logpdf(row, shape, location, scale).sum()
            return float(plain - penalty * (scale / np.ptp(row)) ** 2)

        best = value(found.location, found.scale, found.shape)
        for factor in (0.999, 1.001):
            beyond = found.sample_max + (found.location - found.sample_max) * factor
            assert value(beyond, found.scale, found.shape) < best
            assert value(found.location, found.scale * factor, found.shape) < best
            assert value(found.location, found.scale, found.shape * factor) < best


@pytest.mark.parametrize("shape", [1.5, 2.5, 6.0])
def test_penalised_fit_is_the_released_procedure(shape: float) -> None:
    x = draw(shape, 2, 150, seed=3)
    for row, ours in zip(x, fit(x, PENALTY), strict=True):
        location, scale, c = released_fit(row)
        theirs = penalised_value(row, location, scale, c)
        assert penalised_value(row, ours.location, ours.scale, ours.shape) >= theirs - 1e-9
        # Nelder-Mead stops at 1e-4 in the parameters, which leaves a few 1e-6 of the range in most samples.
        assert abs(ours.location - location) < 1e-4 * np.ptp(row)
        assert penalised_value(row, ours.location, ours.scale, ours.shape) - theirs < 1e-5


def test_accuracy_on_synthetic_data() -> None:
    # Upper limits: 1.25 times the error of the score (percent) measured on 1,000 samples per cell.
    limits = {
        (1.5, 100): (2.5, 2.5),
        (2.5, 50): (11.0, 10.9),
        (5.0, 100): (20.6, 19.4),
        (10.0, 500): (17.9, 17.1),
        (30.0, 500): (39.8, 30.3),
    }
    for (shape, blocks), (plain, penalised) in limits.items():
        x = draw(shape, 300, blocks, seed=4)
        errors = [100 * np.sqrt(np.mean((2.0 / fit(x, p).location - 1.0) ** 2)) for p in (0.0, 0.01)]
        sample_max = 100 * np.sqrt(np.mean((2.0 / x.max(axis=1) - 1.0) ** 2))
        assert errors[0] < plain
        assert errors[1] < penalised
        assert errors[1] < errors[0] * 1.02
        assert errors[1] < sample_max


@pytest.mark.parametrize("penalty", [0.0, 0.01])
def test_fit_is_equivariant(penalty: float) -> None:
    x = draw(3.0, 20, 100)
    base = fit(x, penalty)
    moved = fit(7.5 * x - 3.0, penalty)
    np.testing.assert_allclose(moved.location, 7.5 * base.location - 3.0, rtol=1e-6)
    np.testing.assert_allclose(moved.scale, 7.5 * base.scale, rtol=1e-5)
    np.testing.assert_allclose(moved.shape, base.shape, rtol=1e-5)


def test_rows_do_not_depend_on_each_other() -> None:
    x = np.concatenate([draw(c, 20, 300) for c in SHAPES])
    together = fit(x, 0.01)
    order = np.random.default_rng(0).permutation(len(x))
    apart = fit(x[order][:37], 0.01)
    np.testing.assert_allclose(apart.location, together.location[order][:37], rtol=1e-9)
    assert list(apart.outcome) == list(together.outcome[order][:37])
    np.testing.assert_array_equal(fit(x, 0.01).location, together.location)
    np.testing.assert_allclose(fit(np.sort(x, axis=1), 0.01).location, together.location, rtol=1e-12)


def test_leading_shape_and_dtype() -> None:
    x = draw(3.0, 6, 60).astype(np.float32).reshape(2, 3, 60)
    fits = fit(x)
    assert fits.location.shape == fits.outcome.shape == (2, 3)
    assert fits.location.dtype == np.float64
    assert fits[1, 2].location == fits.location[1, 2]
    assert isinstance(fits[1, 2].outcome, FitOutcome)
    assert fit(x[0, 0])[()].blocks == 60
    assert len(list(fit(x[0]))) == 3
    assert fit(np.empty((0, 20))).location.shape == (0,)


@pytest.mark.slow
def test_memory_does_not_grow_with_rows() -> None:
    peaks = []
    for rows in (1500, 6000):
        x = draw(2.5, rows, 500)
        tracemalloc.start()
        fit(x)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 5e6
    assert peaks[1] < 200e6


def test_bad_settings_are_refused() -> None:
    for maxima, penalty in [
        (np.empty((3, 0)), 0.0),
        (np.float64(1.0), 0.0),
        ([["a", "b"]], 0.0),
        ([[1.0, 2.0]], -0.1),
        ([[1.0, 2.0]], float("nan")),
        ([[1.0, 2.0]], float("inf")),
    ]:
        with pytest.raises(SettingError):
            fit(maxima, penalty)
    with pytest.raises(SettingError, match="several"):
        fit(np.ones((2, 3, 12)))[0]
