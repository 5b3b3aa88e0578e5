"""Crossings that move a few coordinates, which no gradient at the input shows."""

import math

import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore.estimators.ascent.corners import corner_gradients, sparse_moves

DIM = 120


class Hidden(torch.nn.Module):
    """The margin decreases by .4 per coordinate and by .5 in the given ones, and fast where these alone exceed 2."""

    def __init__(self, *coordinates: int) -> None:
        super().__init__()
        self.coordinates = list(coordinates)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        alone = z[:, self.coordinates]
        rest = z.abs().sum(1) - alone.abs().sum(1)
        margin = 5.0 - 0.4 * z.sum(1) - 0.1 * alone.sum(1)
        margin = margin - 10.0 * (alone.amin(1) - 2.0 - 10.0 * rest).clamp_min(0.0)
        return torch.stack([margin, torch.zeros_like(margin)], 1)


@pytest.mark.parametrize(("coordinates", "distance"), [((7,), 25 / 10.5), ((3, 90), 50 / 11)])
def test_scores_and_attacks_in_l1_find_crossings_of_few_coordinates(
    coordinates: tuple[int, ...], distance: float
) -> None:
    network = cs.Classifier(Hidden(*coordinates), input_shape=(DIM,))
    score = cs.clever(network, torch.zeros(1, DIM), p=1, method="sharp", radius=50.0)[0]
    assert score.upper == pytest.approx(distance, rel=2e-3)
    assert score.value <= distance
    attacked = cs.best_attack(network, torch.zeros(1, DIM), p=1)
    assert attacked.distortion[0] == pytest.approx(distance, rel=2e-3)


class Together(torch.nn.Module):
    """The margin decreases by .4 per coordinate and by .3 in the given ones, but by twice their product where these
    alone move.
    """

    def __init__(self, *coordinates: int) -> None:
        super().__init__()
        self.coordinates = list(coordinates)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        those = z[:, self.coordinates]
        rest = z.abs().sum(1) - those.abs().sum(1)
        together = (2.0 * (those.clamp_min(0.0) + 0.01).prod(1) - 10.0 * rest).clamp_min(0.0)
        margin = 5.0 - 0.4 * z.sum(1) + 0.1 * those.sum(1) - together
        return torch.stack([margin, torch.zeros_like(margin)], 1)


def test_two_coordinates_that_do_least_alone_are_found_where_they_do_most_together() -> None:
    network = cs.Classifier(Together(3, 90), input_shape=(DIM,))
    side = (math.sqrt(0.6**2 + 8.0 * 5.006) - 0.6) / 4.0 - 0.01  # of 5 = .6 t + 2 (t + .01)^2
    score = cs.clever(network, torch.zeros(1, DIM), p=1, method="sharp", radius=50.0)[0]
    assert score.upper == pytest.approx(2.0 * side, rel=2e-3)
    attacked = cs.best_attack(network, torch.zeros(1, DIM), p=1)
    assert attacked.distortion[0] == pytest.approx(2.0 * side, rel=2e-3)


def sums(points: torch.Tensor) -> torch.Tensor:
    return points.sum(1)


def test_moves_stay_in_the_box() -> None:
    x = torch.full((4,), 0.25)
    moves = sparse_moves(sums, torch.ones_like, x, distance=3.0, count=2, box=(0.0, 1.0))
    assert torch.equal((x + moves).clamp(0.0, 1.0), x + moves)
    assert sorted(moves.count_nonzero(1).tolist()) == [1, 1, 3, 4]


def test_a_move_grows_by_coordinates_that_it_does_not_have_yet_and_each_set_is_tried_once() -> None:
    asked = []

    def margins(points: torch.Tensor) -> torch.Tensor:
        asked.append(points)
        return points.sum(1)

    sparse_moves(margins, torch.ones_like, torch.zeros(6), distance=2.0, count=3)
    grown = torch.cat([points for points in asked if int(points[0].count_nonzero()) > 1])
    assert set(grown.count_nonzero(1).tolist()) == {2, 3, 4}
    assert len(grown.unique(dim=0)) == len(grown)


def test_of_very_many_corners_the_steepest_are_tried() -> None:
    asked = []

    def margins(points: torch.Tensor) -> torch.Tensor:
        asked.append(points)
        return points @ slopes

    slopes = torch.linspace(-1.0, 1.0, 5_000)

    def gradients(points: torch.Tensor) -> torch.Tensor:
        spent.append(len(points))
        return slopes.expand_as(points)

    spent: list[int] = []
    sparse_moves(margins, gradients, torch.zeros(5_000), distance=1.0, count=3)
    assert sum(map(len, asked)) / 3 + sum(spent) <= corner_gradients(5_000) + 1
    moved = torch.cat(asked).nonzero()[:, 1].unique()
    assert np.all(slopes.abs().numpy()[moved.numpy()] > 0.5)
