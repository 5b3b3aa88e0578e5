"""The ascent across shells: its root against a closed form and against a grid of all directions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.estimators.ascent.margin_rows import MarginRows
from cleverscore.estimators.ascent.projected_ascent import ShellAscent
from cleverscore.norms import dual_exponent

STEPS, STARTS = 40, 8


def ascent(
    classifier: cs.Classifier,
    x: torch.Tensor,
    *,
    p: float,
    shells: int,
    limit: float,
    box: tuple[float, float] | None = None,
    starts: int = STARTS,
) -> tuple[ShellAscent, float]:
    """An ascent for f_0 - f_1 from random directions, and the margin at the input."""
    logits = classifier.logits(x[None])[0].detach()
    rows = MarginRows(classifier, 0, [1], chunk_size=64)
    drawn = torch.randn(1, starts, x.numel(), dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    margin = logits[:1] - logits[1:2]
    found = ShellAscent.begin(
        rows,
        x,
        torch.tensor([1]),
        margin,
        torch.tensor([limit], dtype=x.dtype),
        drawn,
        p=p,
        edges=[(k + 1) / shells for k in range(shells)],
        box=box,
    )
    return found, float(margin)


def ball_grid(p: float, count: int = 81) -> torch.Tensor:
    """Points (n, 2) all over the unit ball of the plane, its surface included."""
    side = torch.linspace(-1.0, 1.0, count, dtype=torch.float64)
    inside = torch.cartesian_prod(side, side)
    turns = torch.linspace(0.0, 2 * math.pi, 361, dtype=torch.float64)
    surface = torch.stack([turns.cos(), turns.sin()], 1)
    surface = surface / torch.linalg.vector_norm(surface, p, dim=1, keepdim=True)
    return torch.cat([inside[torch.linalg.vector_norm(inside, p, dim=1) <= 1.0], surface])


def brute_force_root(
    classifier: cs.Classifier, x: torch.Tensor, margin: float, *, p: float, shells: int, limit: float
) -> float:
    """The smallest r at which the largest falls of all shells, over a grid of directions, add up to the margin."""
    grid = ball_grid(p)

    def total(radius: float) -> float:
        rays = [classifier.logits(x + k / shells * radius * grid).detach() for k in range(shells + 1)]
        margins = torch.stack([logits[:, 0] - logits[:, 1] for logits in rays])
        return float((margins[:-1] - margins[1:]).amax(1).sum())

    low, high = 0.0, limit
    for _ in range(10):  # the largest falls grow with the radius
        middle = (low + high) / 2
        low, high = (low, middle) if total(middle) >= margin else (middle, high)
    return high


def plane(activation: type[nn.Module], seed: int) -> cs.Classifier:
    torch.manual_seed(seed)
    return cs.Classifier(nn.Sequential(nn.Linear(2, 10), activation(), nn.Linear(10, 2)).double())


@pytest.mark.parametrize("shells", [1, 4])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
def test_an_affine_margin_has_its_root_at_the_exact_distance(p: float, shells: int) -> None:
    torch.manual_seed(0)
    classifier = cs.Classifier(nn.Linear(6, 2).double())
    with torch.no_grad():
        classifier.module.bias.copy_(torch.tensor([3.0, 0.0]))
    x = torch.rand(6, dtype=torch.float64)
    found, margin = ascent(classifier, x, p=p, shells=shells, limit=50.0)
    found.climb(0, STEPS, STEPS)
    radii, falls = found.roots()
    slope = (classifier.module.weight[0] - classifier.module.weight[1]).detach()
    assert float(radii) == pytest.approx(margin / float(torch.linalg.vector_norm(slope, dual_exponent(p))), rel=0.01)
    assert float(falls.sum()) == pytest.approx(margin, rel=0.01)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_roots_in_the_plane_are_those_of_a_grid_of_directions(p: float, activation: type[nn.Module]) -> None:
    for seed in (1, 2):
        classifier, x = plane(activation, seed), torch.tensor([0.2, -0.1], dtype=torch.float64)
        with torch.no_grad():
            classifier.module[-1].bias.add_(torch.tensor([0.7, 0.0]))
        for shells in (1, 4):
            found, margin = ascent(classifier, x, p=p, shells=shells, limit=4.0, starts=24)
            assert margin > 0.0
            found.climb(0, STEPS, STEPS)
            exact = brute_force_root(classifier, x, margin, p=p, shells=shells, limit=4.0)
            # Below it only by what a grid misses, above it only where a maximum was missed.
            assert 0.97 * exact - 0.02 <= float(found.roots()[0]) <= 1.02 * exact + 0.02


def test_points_of_the_last_steps_stay_in_the_ball_and_the_box() -> None:
    classifier = plane(nn.Tanh, 1)
    x = torch.tensor([0.05, 0.9], dtype=torch.float64)
    for p in (1.0, 2.0, math.inf):
        found, _margin = ascent(classifier, x, p=p, shells=3, limit=2.0, box=(0.0, 1.0))
        found.climb(0, 12, 12)
        assert float(torch.linalg.vector_norm(found.directions, p, dim=-1).max()) <= 1.0 + 1e-9
        points = x + found.radii[:, None, None, None] * found.directions
        assert float(points.min()) >= -1e-9 and float(points.max()) <= 1.0 + 1e-9


def test_a_root_that_is_not_reached_is_the_limit() -> None:
    classifier, x = plane(nn.Tanh, 1), torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        classifier.module[-1].bias.copy_(torch.tensor([50.0, 0.0]))
    found, margin = ascent(classifier, x, p=2.0, shells=3, limit=0.5)
    found.climb(0, STEPS, STEPS)
    radii, falls = found.roots()
    assert float(radii) == 0.5 and 0.0 < float(falls.sum()) < margin
    assert math.isinf(float(found.nearest))


def test_selected_targets_go_on_alone() -> None:
    torch.manual_seed(4)
    classifier = cs.Classifier(nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 4)).double())
    x = torch.rand(5, dtype=torch.float64)
    predicted, *others = classifier.logits(x[None])[0].argsort(descending=True).tolist()
    logits = classifier.logits(x[None])[0].detach()
    starts = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def begun(places: list[int]) -> ShellAscent:
        targets = torch.tensor([others[i] for i in places])
        rows = MarginRows(classifier, predicted, others, chunk_size=1000)
        limits = torch.full((len(places),), 5.0, dtype=torch.float64)
        return ShellAscent.begin(
            rows, x, targets, logits[predicted] - logits[targets], limits, starts[places], p=2.0, edges=(0.5, 0.8, 1.0)
        )

    together, alone = begun([0, 1, 2]), begun([2])
    together.climb(0, 5, 10)
    together.select(torch.tensor([2]))
    together.climb(5, 10, 10)
    alone.climb(0, 10, 10)
    torch.testing.assert_close(together.roots()[0], alone.roots()[0], rtol=1e-6, atol=0.0)
