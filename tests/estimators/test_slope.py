"""SLOPE: slopes between pairs of points, in CLEVER's blocks and with its fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.estimators.slope import pair_slopes
from cleverscore.inputs.balls import LpBall, tile_points
from tests.helpers import PlaneReLU, affine, affine_distance


def small_network() -> cs.Classifier:
    torch.manual_seed(3)
    return cs.Classifier(nn.Sequential(nn.Linear(5, 16), nn.Softplus(), nn.Linear(16, 3)).double())


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_maxima_are_those_of_a_plain_loop(p: float) -> None:
    classifier = small_network()
    x = torch.rand(2, 5, dtype=torch.float64)
    size, blocks, seed = 2 * tile_points(5) + 7, 4, 11  # three tiles, the last one odd
    scores = cs.clever(
        classifier, x, p=p, targets="all", radius=0.5, blocks=blocks, block_size=size, seed=seed, method="slope"
    )
    ball = LpBall(p, 0.5)
    for row in scores.rows:
        for block in range(blocks):
            counts = [256, 256, 7]
            points = torch.cat(
                [
                    ball.points(x[row.input], count=n, seed=seed, input_id=row.input, block=block, tile=tile)
                    for tile, n in enumerate(counts)
                ]
            )
            logits = classifier(points)
            g = (logits[:, row.predicted] - logits[:, row.target]).tolist()
            largest = max(
                abs(g[i] - g[i + 1]) / float(np.linalg.norm((points[i] - points[i + 1]).numpy(), p))
                for i in range(0, size - 1, 2)
            )
            assert row.maxima[block] == pytest.approx(largest, rel=1e-9)


def test_rows_say_that_they_are_slopes() -> None:
    scores = cs.clever(small_network(), torch.rand(2, 5), p="inf", blocks=20, block_size=16, ids=[4, 9], method="slope")
    frame = scores.to_frame()
    assert set(frame["method"]) == {"slope"}
    assert set(frame["input"]) == {4, 9}
    assert list(frame["norm"].unique()) == ["inf"]
    assert len(scores) == 2


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_affine_slopes_never_exceed_the_gradient(p: float) -> None:
    """|w . (x - y)| <= ||w||_q ||x - y||_p: the score is never below the exact distance, and CLEVER's is that."""
    classifier = affine(3, 4)
    x = torch.rand(3, 3, dtype=torch.float64)
    slopes = cs.clever(classifier, x, p=p, targets="runner_up", radius=50.0, blocks=60, block_size=256, method="slope")
    for score in slopes:
        exact = affine_distance(classifier, x[score.input], score.predicted, score.target, p)
        assert score.maxima.max() <= score.margin / exact * (1 + 1e-6)
        # In three dimensions some pair is nearly aligned with the gradient.
        assert score.margin / score.maxima.max() == pytest.approx(exact, rel=0.05)
        assert score.value == pytest.approx(exact, rel=0.05)


def test_in_one_dimension_an_affine_slope_is_exact() -> None:
    classifier = affine(1, 3)
    x = torch.rand(4, 1, dtype=torch.float64)
    slopes = cs.clever(classifier, x, p=2, radius=50.0, blocks=20, block_size=8, method="slope")
    gradients = cs.clever(classifier, x, p=2, radius=50.0, blocks=20, block_size=8, method="slope")
    # Points are float32 numbers: a short pair has few digits.
    np.testing.assert_allclose(slopes.values, gradients.values, rtol=1e-3)


def test_slopes_stay_below_the_largest_gradient_of_a_relu_network() -> None:
    plane = PlaneReLU()
    x0 = np.array([0.3, -0.2])
    values, _probabilities = plane.distribution(x0, 1.0, 2.0)
    scores = cs.clever(
        plane.classifier, torch.tensor(x0)[None], p=2, radius=1.0, blocks=50, block_size=128, method="slope"
    )
    assert scores[0].maxima.max() <= values[-1] * (1 + 1e-9)
    assert scores[0].maxima.min() > 0.0


@pytest.mark.parametrize("chunk_size", [1, 2, 7, 64, 5000])
def test_chunk_size_and_workers_do_not_matter(chunk_size: int) -> None:
    classifier, x = small_network(), torch.rand(2, 5)
    one = cs.clever(classifier, x, blocks=12, block_size=50, workers=1, method="slope")
    other = cs.clever(classifier, x, blocks=12, block_size=50, workers=2, chunk_size=chunk_size, method="slope")
    for a, b in zip(one.rows, other.rows, strict=True):
        np.testing.assert_allclose(a.maxima, b.maxima, rtol=1e-12)


def test_an_input_is_scored_alike_alone_and_in_company() -> None:
    classifier, x = small_network(), torch.rand(3, 5)
    together = cs.clever(classifier, x, blocks=12, block_size=32, method="slope")
    alone = cs.clever(classifier, x[2:], blocks=12, block_size=32, ids=[2], method="slope")
    np.testing.assert_allclose(together[2].maxima, alone[0].maxima, rtol=1e-12)


def test_a_pair_of_equal_points_has_no_slope() -> None:
    points = torch.zeros(4, 5, dtype=torch.float64)
    points[2] = 1.0
    slopes = pair_slopes(small_network(), points, predicted=0, targets=[1], p=2.0)
    assert slopes[0, 0] == 0.0
    assert slopes[1, 0] > 0.0


def test_one_point_is_no_pair() -> None:
    with pytest.raises(cs.CleverError, match="two points"):
        cs.clever(small_network(), torch.rand(1, 5), block_size=1, method="slope")
