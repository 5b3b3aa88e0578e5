"""Steps within lp balls: the steepest direction of each norm, and projections onto the ball."""

from __future__ import annotations

import math

import torch

from cleverscore.norms import dual_exponent


def steepest(gradients: torch.Tensor, p: float) -> torch.Tensor:
    """For each gradient g (n, d), the direction v with ||v||_p = 1 and the largest <g, v>, except for p = 1: (n, d).

    p = inf: sign(g); else sign(g) |g|^(q-1) / || |g|^(q-1) ||_p, which is g / ||g||_2 for p = 2. For p = 1 the best
    direction moves one coordinate, which makes an ascent slow. So v then moves all coordinates whose |g_i| is at least
    half of the largest one, in proportion to g_i. v is zero where g is zero.
    """
    largest = gradients.abs().amax(1, keepdim=True)
    scaled = gradients / torch.where(largest > 0.0, largest, 1.0)
    if math.isinf(p):
        return scaled.sign()
    if p == 1.0:
        step = torch.where(scaled.abs() >= 0.5, scaled, 0.0)
    else:
        step = scaled.sign() * scaled.abs() ** (dual_exponent(p) - 1.0)
    length = torch.linalg.vector_norm(step, p, dim=1, keepdim=True)
    return step / torch.where(length > 0.0, length, 1.0)


def onto_ball(offsets: torch.Tensor, radii: torch.Tensor, p: float) -> torch.Tensor:
    """Offsets (n, d) moved into the balls ||v||_p <= radii (n,); offsets inside are unchanged.

    For p = 1, 2 and inf this is the point of the ball that is nearest in l2, found by soft thresholding, scaling and
    clipping coordinates. For other p the offset is scaled, which does not give the nearest point.
    """
    limit = radii[:, None]
    if math.isinf(p):
        return torch.maximum(torch.minimum(offsets, limit), -limit)
    if p == 1.0:
        return _onto_l1_ball(offsets, limit)
    length = torch.linalg.vector_norm(offsets, p, dim=1, keepdim=True)
    outside = length > limit  # not limit / maximum(length, limit), which is 0 / 0 in a ball of radius 0
    return offsets * torch.where(outside, limit / torch.where(outside, length, 1.0), 1.0)


def _onto_l1_ball(offsets: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """Soft thresholding of offsets v (n, d): sign(v) max(|v| - t, 0).

    Sorting finds the t for which the l1 norm is `limit` (n, 1); t is 0 for offsets inside the ball.
    """
    magnitude = offsets.abs()
    ordered = magnitude.sort(1, descending=True).values
    excess = ordered.cumsum(1) - limit
    count = torch.arange(1, offsets.shape[1] + 1, device=offsets.device, dtype=offsets.dtype)
    # The number of coordinates that stay: the largest k whose k-th magnitude is above the threshold for k coordinates.
    kept = (ordered * count > excess).sum(1, keepdim=True).clamp_min(1)
    threshold = (excess.gather(1, kept - 1) / kept).clamp_min(0.0)
    return offsets.sign() * (magnitude - threshold).clamp_min(0.0)
