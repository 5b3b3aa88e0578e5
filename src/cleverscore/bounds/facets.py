"""An attack of this package's own: one start per class, each polished, the nearest kept.

The region of a class is bounded by one surface per other class, and an attack that follows gradients ends on whichever
it meets first. This one walks to the surfaces of the likeliest other classes in turn (by Newton steps on the margin, as
DeepFool does, in the norm asked for and inside the box) and polishes every point that it reaches.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cleverscore.bounds.effort import Effort
from cleverscore.bounds.goals import Goal
from cleverscore.bounds.polish import distances, nearest_in_half_space, polished

WALKING_STEPS = 30
OVERSHOOT = 1.02  # as DeepFool has it: a Newton step alone comes to rest on the surface, not behind it


@torch.no_grad()
def facets(goal: Goal, *, p: float, effort: Effort) -> torch.Tensor:
    """The nearest adversarial inputs found (n, *shape), the input itself where there is none.

    `effort.searches` classes, `effort.iterations` polishing steps for each.
    """
    best = goal.x.clone()
    smallest = torch.full((len(goal),), torch.inf, dtype=torch.float64, device=goal.x.device)
    for towards in _class_by_class(goal, effort.searches):
        points = walked(towards, p=p)
        there = goal.margins(points) < 0.0
        if not bool(there.any()):
            continue
        points[there] = polished(goal.rows(there), points[there], p=p, steps=effort.iterations)
        sizes = distances(goal.x, points, p)
        better = there & (sizes < smallest)
        smallest = torch.where(better, sizes, smallest)
        best = torch.where(better.reshape(goal.column), points, best)
    return best


def _class_by_class(goal: Goal, count: int) -> list[Goal]:
    """The same inputs with one target each: their likeliest other class, the next, and so on."""
    if goal.targeted:
        return [goal]
    logits = goal.classifier.logits(goal.x)
    ranked = logits.scatter(1, goal.classes[:, None], -torch.inf).argsort(1, descending=True)
    count = min(count, logits.shape[1] - 1)
    return [replace(goal, classes=ranked[:, i], targeted=True) for i in range(count)]


def walked(goal: Goal, *, p: float) -> torch.Tensor:
    """Newton steps on the margin from the inputs, until each goal is reached or the steps are used up."""
    points = goal.x.clone()
    for _ in range(WALKING_STEPS):
        margins, slopes = goal.margins_and_gradients(points)
        there = margins < 0.0
        if bool(there.all()):
            break
        nearest = nearest_in_half_space(goal, points, points, margins, slopes, p=p)
        step = (points + OVERSHOOT * (nearest - points)).maximum(goal.low).minimum(goal.high)
        points = torch.where(there.reshape(goal.column), points, step)
    return points
