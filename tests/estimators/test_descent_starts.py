"""Where descents begin, and when there were enough of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleverscore.estimators.ascent.descent_starts import JUMP_LENGTHS, NEAREST, START_LENGTHS, settled, starts


@given(number=st.integers(1, 30), count=st.integers(1, 60))
def test_lengths_are_spread_evenly_in_the_logarithm(number: int, count: int) -> None:
    drawn = starts(number, count)
    assert len(drawn) == count
    for start in drawn:
        low, high = START_LENGTHS if start.around is None else JUMP_LENGTHS
        assert low <= start.length <= high * (1 + 1e-9)
        assert start.around is None or 0 <= start.around < NEAREST
    far = np.log([start.length for start in drawn if start.around is None])
    if number == 1 and count > 2:
        assert np.diff(far) == pytest.approx(np.log(START_LENGTHS[1] / START_LENGTHS[0]) / count)


def test_later_rounds_look_around_what_was_found_and_at_other_lengths() -> None:
    first, second, third = (starts(number, 12) for number in (1, 2, 3))
    assert all(start.around is None for start in first)
    assert sorted({start.around for start in second if start.around is not None}) == [0, 1, 2]
    assert not {start.length for start in second} & {start.length for start in third}


@given(st.lists(st.floats(1.0, 5.0), min_size=1, max_size=40))
def test_more_descents_never_unsettle_what_they_met(distances: list[float]) -> None:
    nearest = min(distances)
    if settled(distances, nearest, count=12):
        assert settled([*distances, 9.0], nearest, count=12)
        assert sum(distance <= 1.02 * nearest for distance in distances) >= 15
    assert not settled([], 1.0, count=1)
    assert not settled([math.inf] * 40, math.inf, count=12)  # nothing was met at all
