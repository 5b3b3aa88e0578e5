"""One hidden ReLU layer in the plane: where the gradient norm is constant: `python -m paper.planes`.

In the plane a network with one hidden ReLU layer has a constant gradient in each region between the lines on which its
units switch. So the gradient norm at a point drawn from a disc takes finitely many values, each with the probability
that its regions have of the disc's area, and its distribution function is a staircase (the paper's Theorem D.1).
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from paper import figure
from paper.command import Product, main
from paper.results import Results

Array = npt.NDArray[np.float64]

W = np.array([[1.1, 0.3], [-0.7, 0.9], [-0.35, -1.2]])  # three units: seven regions
B = np.array([0.4, 0.3, 0.35])
V = np.array([1.0, 0.8, -1.1])  # weights of the margin g = V relu(W x + B)
RADII = (0.7, 1.6)
DRAWN = 20_000
LABELLED = -0.6 * math.pi  # the direction in which discs have their names
RIGHT = 2.6  # end of the axis, beyond the largest norm


def norm(pattern: tuple[int, ...]) -> float:
    """The gradient norm where exactly the units of `pattern` are on."""
    return float(np.linalg.norm((V * np.array(pattern)) @ W))


def clipped(polygon: Array, normal: Array, offset: float) -> Array:
    """The part of a convex polygon (n, 2) where normal . x + offset >= 0."""
    kept = []
    for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        at_a, at_b = float(normal @ a + offset), float(normal @ b + offset)
        if at_a >= 0.0:
            kept.append(a)
        if at_a * at_b < 0.0:
            kept.append(a + (b - a) * at_a / (at_a - at_b))
    return np.array(kept).reshape(-1, 2)


def disc_area(polygon: Array, radius: float) -> float:
    """The area of a polygon's part inside the disc around 0: a triangle or a sector for each piece of each edge.

    >>> square = np.array([[-9.0, -9.0], [9.0, -9.0], [9.0, 9.0], [-9.0, 9.0]])
    >>> round(disc_area(square, 1.0) - math.pi, 12), round(disc_area(square / 18.0, 1.0), 12)
    (0.0, 1.0)
    """
    total = 0.0
    for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        step = b - a
        # Where the edge meets the circle: |a + t step| = radius.
        p, q, r = float(step @ step), float(a @ step), float(a @ a) - radius**2
        inside = q * q - p * r
        cuts = [0.0, 1.0]
        if p > 0.0 and inside > 0.0:
            cuts += [t for t in ((-q - math.sqrt(inside)) / p, (-q + math.sqrt(inside)) / p) if 0.0 < t < 1.0]
        cuts.sort()
        for start, end in itertools.pairwise(cuts):
            u, v = a + start * step, a + end * step
            cross, dot = float(u[0] * v[1] - u[1] * v[0]), float(u @ v)
            middle = a + 0.5 * (start + end) * step
            if float(middle @ middle) <= radius**2:
                total += 0.5 * cross
            else:
                total += 0.5 * radius**2 * math.atan2(cross, dot)
    return abs(total)


def distribution(radius: float) -> tuple[Array, Array]:
    """The values of the gradient norm in the disc, ascending, and their exact probabilities."""
    side = 4.0 * radius
    found: dict[float, float] = {}
    for pattern in itertools.product((0, 1), repeat=len(B)):
        region = np.array([[-side, -side], [side, -side], [side, side], [-side, side]])
        for on, normal, offset in zip(pattern, W, B, strict=True):
            sign = 1.0 if on else -1.0
            region = clipped(region, sign * normal, sign * float(offset))
        share = disc_area(region, radius) / (math.pi * radius**2)
        if share > 1e-12:
            value = round(norm(pattern), 12)
            found[value] = found.get(value, 0.0) + share
    values = np.array(sorted(found))
    return values, np.array([found[value] for value in values.tolist()])


def sampled(radius: float, count: int = DRAWN) -> Array:
    """Gradient norms at points drawn uniformly from the disc."""
    drawn = np.random.default_rng(0)
    angles, lengths = drawn.uniform(0.0, 2.0 * math.pi, count), radius * np.sqrt(drawn.uniform(size=count))
    points = lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
    on = points @ W.T + B > 0.0
    return np.linalg.norm((on * V) @ W, axis=1)


def draw() -> Any:
    """The plane with two discs on the left, both distribution functions on the right."""
    made, axes = figure.subplots(1, 2, height=2.7)
    plane, staircase = axes[0]
    edge = 2.0
    grid = np.linspace(-edge, edge, 700)
    x, y = np.meshgrid(grid, grid)
    points = np.stack([x.ravel(), y.ravel()], 1)
    norms = np.linalg.norm(((points @ W.T + B > 0.0) * V) @ W, axis=1).reshape(x.shape)
    picture = plane.imshow(norms, extent=(-edge, edge, -edge, edge), origin="lower", cmap="cividis", alpha=0.75)
    for normal, offset in zip(W, B, strict=True):
        plane.axline(-offset * normal / (normal @ normal), slope=-normal[0] / normal[1], color="white", lw=1.2)
    colours = (figure.COLOURS["CW"], figure.COLOURS["CLEVER"])
    angles = np.linspace(0.0, 2.0 * math.pi, 300)
    for radius, colour, dash in zip(RADII, colours, ("--", "-"), strict=True):
        plane.plot(radius * np.cos(angles), radius * np.sin(angles), dash, color=colour, lw=1.6)
        plane.annotate(
            f"R = {radius:g}", (radius * math.cos(LABELLED), radius * math.sin(LABELLED)), ha="center", va="center",
            fontsize=7, bbox={"fc": "white", "ec": colour, "lw": 0.7, "pad": 1.5},
        )  # fmt: skip
        values, shares = distribution(radius)
        heights = np.concatenate([[0.0], np.cumsum(shares)])
        ends = [0.0, *values, RIGHT]
        staircase.step(ends, [*heights, 1.0], where="post", color=colour, ls=dash, label=f"exact, R = {radius:g}")
        found = np.sort(sampled(radius))
        marks = np.linspace(0.05, RIGHT - 0.05, 29)
        below = np.searchsorted(found, marks, side="right") / len(found)
        staircase.plot(marks, below, "o", ms=2.2, color=colour, mec="none", label=f"{DRAWN:,} points, R = {radius:g}")
    plane.plot([0], [0], "k+", ms=6)
    plane.set(xlim=(-edge, edge), ylim=(-edge, edge), xlabel="x1", ylabel="x2", title="three units, seven regions")
    made.colorbar(picture, ax=plane, label="gradient norm", shrink=0.9)
    staircase.set(
        xlabel="gradient norm y", ylabel="P(norm <= y)", xlim=(0, RIGHT), ylim=(0, 1.04), title="its distribution"
    )
    staircase.legend(loc="upper left", handlelength=1.6)
    return made


def make(results: Results) -> None:
    """Write it."""
    figure.write(draw(), "planes", results.out)


PRODUCT = Product("planes", (), (), make)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
