"""Crossings that move one or two coordinates, which no gradient shows."""

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


def test_moves_stay_in_the_box() -> None:
    x = torch.full((4,), 0.25)
    moves = sparse_moves(lambda z: z.sum(1), x, torch.ones(4), distance=3.0, count=2, box=(0.0, 1.0))
    assert torch.equal((x + moves).clamp(0.0, 1.0), x + moves)
    assert sorted(moves.count_nonzero(1).tolist()) == [1, 1, 2, 2]


def test_of_very_many_corners_the_steepest_are_tried() -> None:
    asked = []

    def margins(points: torch.Tensor) -> torch.Tensor:
        asked.append(points)
        return points @ slopes

    slopes = torch.linspace(-1.0, 1.0, 5_000)
    sparse_moves(margins, torch.zeros(5_000), slopes, distance=1.0, count=3)
    assert sum(map(len, asked)) <= 3 * corner_gradients(5_000) + 1
    moved = torch.cat(asked).nonzero()[:, 1].unique()
    assert np.all(slopes.abs().numpy()[moved.numpy()] > 0.5)
