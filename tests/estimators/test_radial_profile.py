"""The radial profile: what follows from its falls."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cleverscore.estimators.ascent.radial_profile import RadialProfile


def profile(falls: list[float], distance: float = 3.0) -> RadialProfile:
    equal = tuple((k + 1) / len(falls) for k in range(len(falls)))
    return RadialProfile(distance, 0.9 * distance, math.inf, np.array(falls), equal, 10, "ascended")


@pytest.mark.parametrize("falls", [[6.0], [1.0, 2.0, 3.0], [0.0, 6.0]])
def test_the_area_under_the_slopes_is_the_sum_of_the_falls(falls: list[float]) -> None:
    found = profile(falls)
    assert found.radii[0] == 0.0 and found.radii[-1] == 3.0 and len(found.radii) == len(falls) + 1
    assert np.diff(found.radii) @ found.slopes == pytest.approx(6.0)
    assert found.slopes * (3.0 / len(falls)) == pytest.approx(falls)
    assert found.mean_slope == pytest.approx(2.0)


def test_without_falls_or_at_distance_zero_there_is_no_slope() -> None:
    assert math.isnan(profile([]).mean_slope) and len(profile([]).slopes) == 0
    at_zero = profile([0.0, 0.0], distance=0.0)
    assert math.isnan(at_zero.mean_slope) and np.isnan(at_zero.slopes).all()
