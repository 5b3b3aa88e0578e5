"""An adversarial input made closer: bisection towards the input, then steps along the linearised decision boundary.

A step looks at the margin m near the current point y, m(y) + w . (z - y), and takes the point z nearest to the input
where that is at most zero, in the norm asked for and inside the box. y + t (z - y) is never farther than y, because y
itself satisfies the constraint; it replaces y where the network agrees. So a step can only tighten, and on an affine
classifier the first one is exact.
"""

from __future__ import annotations

import math

import torch

from cleverscore.bounds.goals import Goal

BISECTIONS = 20  # a millionth of the way
SMALLEST_STEP = 2.0**-12


def distances(x: torch.Tensor, y: torch.Tensor, p: float) -> torch.Tensor:
    """||y - x||_p of each row, in double: (n, *shape) -> (n,)."""
    norms: torch.Tensor = torch.linalg.vector_norm((y.double() - x.double()).flatten(1), p, dim=1)
    return norms


@torch.no_grad()
def bisected(goal: Goal, adversarial: torch.Tensor) -> torch.Tensor:
    """The point nearest to the input on the line to `adversarial` that still reaches the goal."""
    best = adversarial
    inside = torch.zeros(len(goal), dtype=goal.x.dtype, device=goal.x.device)
    outside = torch.ones_like(inside)
    for _ in range(BISECTIONS):
        middle = 0.5 * (inside + outside)
        points = goal.x + middle.reshape(goal.column) * (adversarial - goal.x)
        good = goal.margins(points) < 0.0
        best = torch.where(good.reshape(goal.column), points, best)
        outside = torch.where(good, middle, outside)
        inside = torch.where(good, inside, middle)
    return best


@torch.no_grad()
def polished(goal: Goal, adversarial: torch.Tensor, *, p: float, steps: int) -> torch.Tensor:
    """`adversarial` (n, *shape), all of which reach the goal, moved nearer to the inputs in norm p."""
    best = bisected(goal, adversarial)
    margins, slopes = goal.margins_and_gradients(best)
    share = torch.ones(len(goal), dtype=goal.x.dtype, device=goal.x.device)
    for _ in range(steps):
        nearest = nearest_in_half_space(goal, goal.x, best, margins, slopes, p=p)
        points = best + share.reshape(goal.column) * (nearest - best)
        new_margins, new_slopes = goal.margins_and_gradients(points)
        better = (new_margins < 0.0) & (distances(goal.x, points, p) < distances(goal.x, best, p))
        here = better.reshape(goal.column)
        best = torch.where(here, points, best)
        margins = torch.where(better, new_margins, margins)
        slopes = torch.where(here, new_slopes, slopes)
        share = torch.where(better, (2.0 * share).clamp_max(1.0), 0.5 * share)
        if bool((share < SMALLEST_STEP).all()):
            break
    return best


def nearest_in_half_space(
    goal: Goal, centre: torch.Tensor, y: torch.Tensor, margins: torch.Tensor, slopes: torch.Tensor, *, p: float
) -> torch.Tensor:
    """argmin ||z - centre||_p over the box with m(y) + w . (z - y) <= 0; the box's best corner where that is empty.

    Coordinate i moves against the sign of w_i, by at most its room to the box's edge. By the Lagrangian its move is
    min(room_i, t |w_i|^(1/(p-1))), and min(room_i, t) for p = inf. The gain is piecewise linear in t: its kinks, where
    coordinates have used up their room, are sorted and the root is read off. For p = 1 coordinates are used up in the
    order of |w_i|.
    """
    x, w = centre.double().flatten(1), slopes.double().flatten(1)
    need = margins.double() + (w * (x - y.double().flatten(1))).sum(1)
    room = torch.where(w > 0.0, x - goal.low.double().flatten(1), goal.high.double().flatten(1) - x).clamp_min(0.0)
    size = w.abs()
    if p == 1.0:
        moves = _greedy(size, room, need)
    else:
        # In units of the largest slope, so that powers do not overflow.
        relative = size / size.amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        profile = (size > 0.0).double() if math.isinf(p) else relative ** (1.0 / (p - 1.0))
        moves = room.minimum(_multiplier(size, profile, room, need) * profile)
    return (x - torch.sign(w) * moves).reshape(y.shape).to(y.dtype)


def _greedy(size: torch.Tensor, room: torch.Tensor, need: torch.Tensor) -> torch.Tensor:
    order = size.argsort(1, descending=True)
    gains = (size * room).gather(1, order)
    before = gains.cumsum(1) - gains
    used = (need[:, None] - before).clamp_min(0.0).minimum(gains)
    sorted_moves = torch.where(gains > 0.0, used / size.gather(1, order), 0.0)
    return torch.zeros_like(sorted_moves).scatter(1, order, sorted_moves)


def _multiplier(size: torch.Tensor, profile: torch.Tensor, room: torch.Tensor, need: torch.Tensor) -> torch.Tensor:
    """The t >= 0 with sum_i size_i min(room_i, t profile_i) = need, or the one that uses up every room; (n, 1)."""
    kinks, order = torch.where(profile > 0.0, room / profile, 0.0).sort(1)
    used = (size * room * (profile > 0.0)).gather(1, order)
    rates = (size * profile).gather(1, order)
    used_before = used.cumsum(1) - used
    rates_left = rates.flip(1).cumsum(1).flip(1)
    enough = used_before + kinks * rates_left >= need[:, None]
    first = enough.to(torch.uint8).argmax(1, keepdim=True)
    root = (need[:, None] - used_before.gather(1, first)) / rates_left.gather(1, first)
    root = torch.where(enough.any(1, keepdim=True), root, kinks[:, -1:])
    return root.nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0)
