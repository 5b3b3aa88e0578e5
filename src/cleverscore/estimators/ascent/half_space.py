"""The point of a half-space that is nearest to a given point in an lp norm, inside a box or without one."""

from __future__ import annotations

import math

import torch

# The largest number of Newton's steps for the multiplier t (see below). In each, some coordinates reach the side of the
# box. Eight were the most ever needed in 784 and 3072 dimensions. A row that needs more ends before the half-space.
NEWTON_STEPS = 20
CONVERGED = 1e-6  # relative change of the multiplier


def nearest_in_half_space(
    centers: torch.Tensor,
    points: torch.Tensor,
    margins: torch.Tensor,
    slopes: torch.Tensor,
    *,
    p: float,
    low: torch.Tensor | None = None,
    high: torch.Tensor | None = None,
) -> torch.Tensor:
    """The z that minimises ||z - center||_p with margin + slope . (z - point) <= 0 and low <= z <= high, for each row.

    centers, points, slopes and the result are (n, d), margins (n,); low and high broadcast to (n, d), and centers lie
    between them. If the box contains no such point, the result is a point of the box at which margin + slope . (z -
    point) is smallest. If the slope is zero, the result is the center.

    Let w be the slope, and room_i the distance from the center to the side of the box towards which coordinate i moves,
    against the sign of w_i. It moves by min(room_i, t |w_i|^(1/(p-1))), for p = inf by min(room_i, t), and for p = 1
    the coordinates with the largest |w_i| move first, each as far as its room allows. The multiplier t is the smallest
    that satisfies the inequality. The decrease of its left side is concave and piecewise linear in t, so Newton's
    method converges when it begins below the root.
    """
    sizes = slopes.abs()
    largest = sizes.amax(1, keepdim=True)
    sizes = sizes / torch.where(largest > 0.0, largest, 1.0)  # so that powers neither overflow nor underflow
    needs = (margins + (slopes * (centers - points)).sum(1)) / torch.where(largest > 0.0, largest, 1.0)[:, 0]
    needs = needs.clamp_min(0.0)
    room = None
    if low is not None and high is not None:
        room = torch.where(slopes > 0.0, centers - low, high - centers).clamp_min(0.0)
    moves = _greedy_moves(sizes, needs, room) if p == 1.0 else _moves(sizes, needs, room, p)
    return centers - slopes.sign() * moves


def _greedy_moves(sizes: torch.Tensor, needs: torch.Tensor, room: torch.Tensor | None) -> torch.Tensor:
    if room is None:
        return torch.zeros_like(sizes).scatter(1, sizes.argmax(1, keepdim=True), needs[:, None])
    order = sizes.argsort(1, descending=True)
    gains = (sizes * room).gather(1, order)
    before = gains.cumsum(1) - gains
    used = (needs[:, None] - before).clamp_min(0.0).minimum(gains)
    ordered = torch.where(gains > 0.0, used / sizes.gather(1, order), 0.0)
    return torch.zeros_like(ordered).scatter(1, order, ordered).minimum(room)


def _moves(sizes: torch.Tensor, needs: torch.Tensor, room: torch.Tensor | None, p: float) -> torch.Tensor:
    shares = (sizes > 0.0).to(sizes) if math.isinf(p) else sizes if p == 2.0 else sizes ** (1.0 / (p - 1.0))
    rates = sizes * shares
    total = rates.sum(1)
    multiplier = torch.where(total > 0.0, needs / total, 0.0)
    if room is None:
        return multiplier[:, None] * shares
    used_up = torch.where(shares > 0.0, room / shares, 0.0)  # the t at which a coordinate reaches the box's side
    for _ in range(NEWTON_STEPS):
        free = used_up > multiplier[:, None]
        gained = (sizes * torch.where(free, multiplier[:, None] * shares, room)).sum(1)
        rate = (rates * free).sum(1)
        step = torch.where(rate > 0.0, (needs - gained) / rate, 0.0)
        step = torch.where(step > CONVERGED * multiplier, step, 0.0)
        if not bool(step.any()):
            break
        multiplier = multiplier + step
    return torch.minimum(room, multiplier[:, None] * shares)
