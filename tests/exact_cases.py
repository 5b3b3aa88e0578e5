"""The exact linf minimum distortion of a small ReLU network, as a mixed-integer linear programme (HiGHS)."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import nn


def minimum_distortion(model: nn.Sequential, x: torch.Tensor, upper: float, bounds: tuple[float, float]) -> float:
    """min ||z - x||_inf over the box where another class wins, given that it is at most `upper`.

    Unknowns are z, every unit's output a and switch s, and eps. With pre-activation u in [bottom, top] on the ball of
    radius `upper`: a >= u, a <= u - bottom (1 - s), 0 <= a <= top s.
    """
    layers = [
        (m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in model if hasattr(m, "weight")
    ]
    logits = model(x[None])[0].detach().double().numpy()
    predicted = int(logits.argmax())
    others = [j for j in range(len(logits)) if j != predicted]
    return min(_towards(layers, x.double().numpy(), predicted, j, upper, bounds) for j in others)


def _towards(
    layers: list[tuple[np.ndarray, np.ndarray]],
    x: np.ndarray,
    predicted: int,
    target: int,
    upper: float,
    bounds: tuple[float, float],
) -> float:
    d = len(x)
    low, high = np.maximum(x - upper, bounds[0]), np.minimum(x + upper, bounds[1])
    hidden = [len(b) for _w, b in layers[:-1]]
    total = d + 2 * sum(hidden) + 1
    least, most = np.zeros(total), np.ones(total)
    least[:d], most[:d], most[-1] = low, high, upper
    rows: list[np.ndarray] = []
    limits: list[float] = []  # rows @ v <= limits

    def add(limit: float, **parts: object) -> None:
        row = np.zeros(total)
        for where, values in parts.values():  # type: ignore[misc]
            row[where] += values
        rows.append(row)
        limits.append(limit)

    for i in range(d):
        add(x[i], z=(i, 1.0), eps=(total - 1, -1.0))
        add(-x[i], z=(i, -1.0), eps=(total - 1, -1.0))
    inputs, position = np.arange(d), d
    switches = np.zeros(total)
    for w, b in layers[:-1]:
        centre, reach = w @ (low + high) / 2 + b, np.abs(w) @ (high - low) / 2
        bottom, top = centre - reach, centre + reach
        units = np.arange(position, position + len(b))
        switch = units + len(b)
        switches[switch] = 1
        for k in range(len(b)):
            a, s = units[k], switch[k]
            most[a] = max(top[k], 0.0)
            least[s], most[s] = (1, 1) if bottom[k] >= 0 else (0, 0) if top[k] <= 0 else (0, 1)
            add(-b[k], u=(inputs, w[k]), a=(a, -1.0))
            add(b[k] - bottom[k], u=(inputs, -w[k]), a=(a, 1.0), s=(s, -bottom[k]))
            add(0.0, a=(a, 1.0), s=(s, -max(top[k], 0.0)))
        inputs, position = units, position + 2 * len(b)
        low, high = np.maximum(bottom, 0.0), np.maximum(top, 0.0)
    w, b = layers[-1]
    add(b[target] - b[predicted], u=(inputs, w[predicted] - w[target]))
    cost = np.zeros(total)
    cost[-1] = 1.0
    found = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), -np.inf, np.array(limits)),
        bounds=Bounds(least, most),
        integrality=switches,
        options={"mip_rel_gap": 1e-6},
    )
    return float(found.fun) if found.status == 0 else np.inf
