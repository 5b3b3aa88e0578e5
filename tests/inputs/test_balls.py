from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

import cleverscore as cs
from cleverscore.inputs.balls import LpBall, tile_points
from cleverscore.norms import dual_exponent, parse_norm

NORMS = [1.0, 1.5, 2.0, 3.0, math.inf]
# 5 norms x 2 dimensions x 2 laws = 20 tests with fixed seeds; at this level a correct sampler fails one of them with
# probability 0.02 over the choice of seeds. 20,000 points tell a K-S distance of 0.014 from 0.
LEVEL = 0.001
POINTS = 20_000


def draw(p: float, dim: int, points: int = POINTS, radius: float = 3.0) -> np.ndarray:
    ball = LpBall(p, radius)
    size = tile_points(dim)
    tiles = [
        ball.offsets(dim=dim, count=size, seed=11, input_id=5, block=tile // 4, tile=tile % 4)
        for tile in range(math.ceil(points / size))
    ]
    return torch.cat(tiles)[:points].double().numpy()


def marginal_cdf(p: float, dim: int) -> stats.rv_continuous | object:
    """CDF of one coordinate of a uniform point of the unit ball: |x|^p is Beta(1/p, (dim - 1)/p + 1)."""

    def cdf(t: np.ndarray) -> np.ndarray:
        if math.isinf(p):
            return np.clip((t + 1) / 2, 0, 1)
        inside = special.betainc(1 / p, (dim - 1) / p + 1, np.clip(np.abs(t), 0, 1) ** p)
        return 0.5 * (1 + np.sign(t) * inside)

    return cdf


@pytest.mark.parametrize("dim", [2, 50])
@pytest.mark.parametrize("p", NORMS)
def test_radii_follow_r_to_the_d(p: float, dim: int) -> None:
    radii = np.linalg.norm(draw(p, dim), p, axis=1) / 3.0
    assert stats.kstest(radii, lambda r: np.clip(r, 0, 1) ** dim).pvalue > LEVEL


@pytest.mark.parametrize("dim", [2, 50])
@pytest.mark.parametrize("p", NORMS)
def test_coordinates_follow_the_marginal_law(p: float, dim: int) -> None:
    points = draw(p, dim) / 3.0
    for axis in (0, dim - 1):
        assert stats.kstest(points[:, axis], marginal_cdf(p, dim)).pvalue > LEVEL


@pytest.mark.parametrize("p", NORMS)
def test_directions_do_not_depend_on_the_radius_or_each_other(p: float) -> None:
    points = draw(p, 2)
    radii = np.linalg.norm(points, p, axis=1)
    angles = np.abs(points[:, 0]) / np.maximum(np.abs(points).sum(1), 1e-30)
    inner = radii < np.median(radii)
    assert stats.ks_2samp(angles[inner], angles[~inner]).pvalue > LEVEL
    assert abs(np.corrcoef(points.T)[0, 1]) < 5 / math.sqrt(POINTS)


@given(
    p=st.one_of(st.floats(1.0, 20.0), st.just(math.inf)),
    dim=st.integers(1, 300),
    radius=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**64 - 1),
    input_id=st.integers(0, 2**40),
    block=st.integers(0, 10**6),
)
def test_points_lie_in_the_ball(p: float, dim: int, radius: float, seed: int, input_id: int, block: int) -> None:
    offsets = LpBall(p, radius).offsets(dim=dim, count=8, seed=seed, input_id=input_id, block=block, tile=0)
    assert offsets.shape == (8, dim)
    assert (np.linalg.norm(offsets.double().numpy(), p, axis=1) <= radius * (1 + 1e-5)).all()


@pytest.mark.parametrize("p", NORMS)
def test_a_short_draw_is_the_beginning_of_a_long_one(p: float) -> None:
    where = {"dim": 7, "seed": 1, "input_id": 2, "block": 3, "tile": 0}
    ball = LpBall(p, 1.0)
    assert torch.equal(ball.offsets(count=3, **where), ball.offsets(count=64, **where)[:3])


def test_neighbouring_large_seeds_differ() -> None:
    where = {"dim": 5, "count": 4, "input_id": 2, "block": 3, "tile": 0}
    ball = LpBall(2.0, 1.0)
    assert not torch.equal(ball.offsets(seed=2**64 - 1, **where), ball.offsets(seed=2**64 - 2, **where))


@pytest.mark.parametrize("change", [{"seed": 2}, {"input_id": 3}, {"block": 4}, {"tile": 1}])
def test_every_part_of_the_key_matters(change: dict[str, int]) -> None:
    where = {"dim": 7, "count": 4, "seed": 1, "input_id": 2, "block": 3, "tile": 0}
    ball = LpBall(2.0, 1.0)
    assert not torch.isclose(ball.offsets(**where), ball.offsets(**{**where, **change})).any()


def test_norms_have_streams_of_their_own() -> None:
    where = {"dim": 1, "count": 200, "seed": 1, "input_id": 2, "block": 3, "tile": 0}
    cube, other = LpBall(math.inf, 1.0), LpBall(1.0, 1.0)
    assert abs(np.corrcoef(cube.offsets(**where)[:, 0], other.offsets(**where)[:, 0])[0, 1]) < 0.3


def test_the_box_clips_points_and_the_ball_does_not() -> None:
    x = torch.full((1, 4, 4), 0.5)
    where = {"count": 32, "seed": 0, "input_id": 0, "block": 0, "tile": 0, "bounds": (0.0, 1.0)}
    free = LpBall(math.inf, 2.0).points(x, **where)
    clipped = LpBall(math.inf, 2.0, "box").points(x, **where)
    assert free.min() < 0 < 1 < free.max()
    assert clipped.min() == 0 and clipped.max() == 1
    assert torch.equal(clipped, free.clamp(0, 1))


@pytest.mark.parametrize(("p", "q"), [(1, math.inf), (2, 2), (math.inf, 1), (3, 1.5), (1.5, 3)])
def test_dual_exponent(p: float, q: float) -> None:
    assert dual_exponent(p) == pytest.approx(q)


@pytest.mark.parametrize("text", ["inf", "Inf", "linf", "2", 2, "1.5"])
def test_norms_can_be_written(text: str | float) -> None:
    assert parse_norm(text) >= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0.5, 1.0), "below 1"),
        (("two", 1.0), "not a number"),
        ((math.nan, 1.0), "below 1"),
        ((2.0, 0.0), "radius"),
        ((2.0, -1.0), "radius"),
        ((2.0, math.inf), "radius"),
        ((2.0, 1.0, "clip"), "region"),
    ],
)
def test_impossible_balls_are_refused(arguments: tuple, words: str) -> None:
    with pytest.raises(cs.CleverError, match=words):
        LpBall(*arguments)


def test_the_box_without_bounds_is_refused() -> None:
    with pytest.raises(cs.CleverError, match="bounds"):
        LpBall(2.0, 1.0, "box").points(torch.zeros(2), count=1, seed=0, input_id=0, block=0, tile=0)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
@pytest.mark.parametrize("region", ["ball", "box"])
def test_several_tiles_at_once_are_the_tiles_one_by_one(p: float, region: str) -> None:
    ball, x = cs.LpBall(p, 2.5, region), torch.rand(7, 11, generator=torch.Generator().manual_seed(0))
    where = {"seed": 1, "input_id": 4, "block": 3, "bounds": (0.0, 1.0)}
    size = tile_points(x.numel())
    whole = ball.points(x, count=2 * size + 5, tile=1, following=True, **where)
    parts = [ball.points(x, count=count, tile=tile, **where) for tile, count in ((1, size), (2, size), (3, 5))]
    assert torch.equal(whole, torch.cat(parts))
