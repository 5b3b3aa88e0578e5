from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleverscore.profile import Profile


def profile(radii: np.ndarray, norms: np.ndarray) -> Profile:
    return Profile.of(np.asarray(radii, float), np.asarray(norms, float), gradients=1, outcome="ascended")


def test_radii_are_sorted_and_norms_inherited() -> None:
    made = profile([2.0, 0.0, 1.0, 3.0], [1.5, 1.0, 2.0, 4.0])
    assert made.radii.tolist() == [0.0, 1.0, 2.0, 3.0] and made.norms.tolist() == [1.0, 2.0, 2.0, 4.0]
    assert math.isnan(profile([0.0, 1.0, 2.0], [1.0, np.nan, 2.0]).norms[-1])


def test_linear_profiles_have_their_closed_forms() -> None:
    """L(s) = 1 + s: margin = r + r^2 / 2, and r (1 + r) = margin for the self-consistent radius."""
    radii = np.linspace(0.0, 5.0, 20_001)
    made = profile(radii, 1.0 + radii)
    for margin in (0.1, 1.0, 4.0):
        assert made.distance(margin, 9.0) == pytest.approx(math.sqrt(1 + 2 * margin) - 1, rel=1e-3)
        assert made.expected_distance(margin, 9.0) == pytest.approx(math.sqrt(1 + 2 * margin) - 1, rel=1e-6)
        assert made.self_consistent_radius(margin, 9.0) == pytest.approx((math.sqrt(1 + 4 * margin) - 1) / 2, rel=1e-3)
        assert made.mean_norm(made.distance(margin, 9.0)) == pytest.approx(margin / made.distance(margin, 9.0))


def test_a_constant_norm_gives_the_plain_quotient_capped() -> None:
    made = profile([0.0, 2.0], [4.0, 4.0])
    assert made.distance(2.0, 5.0) == made.self_consistent_radius(2.0, 5.0) == 0.5
    assert made.distance(100.0, 5.0) == made.self_consistent_radius(100.0, 5.0) == 5.0
    assert made.distance(0.0, 5.0) == made.distance(-1.0, 5.0) == made.self_consistent_radius(-1.0, 5.0) == 0.0
    assert profile([0.0, 2.0], [0.0, 0.0]).distance(1.0, 5.0) == 5.0


def test_a_broken_norm_leaves_no_distance() -> None:
    assert math.isnan(profile([0.0, 1.0], [1.0, math.nan]).distance(1.0, 5.0))


@given(
    steps=st.lists(st.floats(0.01, 2.0), min_size=1, max_size=8),
    rises=st.lists(st.floats(0.0, 3.0), min_size=9, max_size=9),
    margin=st.floats(0.01, 20.0),
)
def test_upper_sums_err_on_the_safe_side(steps: list[float], rises: list[float], margin: float) -> None:
    """Between the self-consistent radius and the quotient by L(0); never above what linear interpolation says."""
    radii = np.concatenate([[0.0], np.cumsum(steps)])
    norms = 0.5 + np.cumsum(rises)[: len(radii)]
    made = profile(radii, norms)
    distance = made.distance(margin, 100.0)
    assert made.self_consistent_radius(margin, 100.0) <= distance * (1 + 1e-9)
    assert distance <= made.expected_distance(margin, 100.0) * (1 + 1e-9)
    assert distance <= margin / norms[0] * (1 + 1e-9)
    # One more radius with the larger norm of its interval changes nothing, with a smaller norm lengthens the distance.
    middle = 0.5 * (radii[0] + radii[1])
    same = profile(np.append(radii, middle), np.append(norms, norms[1]))
    finer = profile(np.append(radii, middle), np.append(norms, 0.5 * (norms[0] + norms[1])))
    assert same.distance(margin, 100.0) == pytest.approx(distance)
    assert finer.distance(margin, 100.0) >= distance * (1 - 1e-9)
