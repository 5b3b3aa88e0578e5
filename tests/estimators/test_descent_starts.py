"""Where descents begin, and when there were enough of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleverscore.estimators.ascent.boundary_descent import descend_halving
from cleverscore.estimators.ascent.descent_starts import (
    CUTS,
    ENOUGH,
    JUMP_LENGTHS,
    MOST_UNSEEN,
    MOST_WANTED,
    START_LENGTHS,
    UNSEEN_WHERE_CURVED,
    FarGroups,
    descent_gradients,
    groups,
)
from tests.estimators.test_boundary_descent import affine


@given(number=st.integers(0, 30), count=st.integers(1, 60), met=st.integers(0, 9))
def test_lengths_are_spread_evenly_in_the_logarithm(number: int, count: int, met: int) -> None:
    for group in groups(number, count, ENOUGH, met):
        low, high = JUMP_LENGTHS if group.jumps else START_LENGTHS
        assert len(group.lengths) == count
        assert low <= min(group.lengths) and max(group.lengths) <= high * (1 + 1e-9)
        if count > 1:
            assert np.diff(np.log(group.lengths)) == pytest.approx(np.log(high / low) / count)


def test_rounds_begin_far_then_jump_and_differ() -> None:
    first, second, third = (groups(number, 12, ENOUGH, met=1) for number in (0, 1, 2))
    assert len(first) == ENOUGH and not any(group.jumps for group in first)
    assert [group.jumps for group in second] == [group.jumps for group in third] == [False, False, True]
    numbers = [group.number for group in (*first, *second, *third)]
    lengths = [group.lengths for group in (*first, *second, *third)]
    assert len(set(numbers)) == len(set(lengths)) == len(numbers)


def test_a_search_that_met_enough_still_jumps_once() -> None:
    (last,) = groups(1, 12, ENOUGH, met=ENOUGH)
    assert last.jumps
    assert not groups(2, 12, ENOUGH, met=ENOUGH)


@given(st.floats(0.0, 1e6), st.floats(1e-6, 1e6))
def test_more_groups_are_wanted_where_the_first_order_distance_is_far_off(first_order: float, nearest: float) -> None:
    wanted = FarGroups(first_order).wanted(nearest)
    assert ENOUGH <= wanted <= MOST_WANTED
    assert wanted <= FarGroups(2.0 * first_order).wanted(nearest)
    assert wanted == ENOUGH or first_order > nearest
    assert FarGroups(first_order).wanted(math.inf) == FarGroups(math.nan).wanted(nearest) == ENOUGH


@given(st.lists(st.floats(1.0, 5.0), min_size=1, max_size=40))
def test_meetings_are_counted_within_three_percent(distances: list[float]) -> None:
    nearest = min(distances)
    far = FarGroups(nearest, distances)
    assert far.meetings(nearest) == sum(distance <= 1.03 * nearest for distance in distances) >= 1
    assert far.settled(nearest) == (far.meetings(nearest) >= ENOUGH)
    assert FarGroups(1.0, []).meetings(1.0) == FarGroups(1.0, [math.inf] * 40).meetings(math.inf) == 0


@given(st.lists(st.floats(1.0, 2.0), min_size=ENOUGH, max_size=9), st.floats(0.1, 100.0))
def test_more_is_taken_off_where_groups_met_crossings_at_different_distances(
    met: list[float], first_order: float
) -> None:
    unseen = FarGroups(first_order, met).unseen(1.0, True)
    assert 0.0 <= unseen <= MOST_UNSEEN + UNSEEN_WHERE_CURVED
    assert unseen <= FarGroups(first_order, [1.1 * distance for distance in met]).unseen(1.0, True)
    assert unseen <= FarGroups(first_order, met[:1]).unseen(1.0, True)  # too few to tell


def test_nothing_is_taken_off_where_gradients_tell_the_distance_and_groups_agree() -> None:
    assert FarGroups(1.0, [1.0] * ENOUGH).unseen(1.0, True) == 0.0
    assert FarGroups(1.0, []).unseen(math.inf, True) == 0.0  # nothing was met: the score is the radius
    assert FarGroups(math.nan, [1.0] * ENOUGH).unseen(1.0, True) == UNSEEN_WHERE_CURVED


def test_halving_spends_what_is_promised_and_goes_on_with_the_nearest_of_each_group() -> None:
    import torch

    x, _w, function = affine(30, 24, dtype=torch.float64)
    asked: list[torch.Tensor] = []

    def function_of_rows(rows: torch.Tensor):  # type: ignore[no-untyped-def]
        def margins_and_gradients(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append(rows)
            full = x.clone()
            full[rows] = points
            margins, gradients = function(full)
            return margins[rows], gradients[rows]

        return margins_and_gradients

    kinds = torch.arange(24) % 2
    sizes, points = descend_halving(function_of_rows, x, x, p=2.0, steps=28, groups=kinds, cuts=CUTS)
    assert sum(len(rows) for rows in asked) == 2 * descent_gradients(12, 28)
    last = asked[-1]
    assert sorted(kinds[last].tolist()) == [0, 0, 1, 1]
    whole, _ = descend_halving(function_of_rows, x, x, p=2.0, steps=28)
    torch.testing.assert_close(sizes[last], whole[last])  # rows that go on do not notice those that are left out
    met = torch.isfinite(sizes)
    assert torch.linalg.vector_norm((points - x)[met], dim=1) == pytest.approx(sizes[met].tolist())
    assert (function(points)[0][met] <= 0.0).all()
