"""Models whose scores are known in closed form, and the program run in this process."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

import cleverscore as cs
from cleverscore import exact as truth
from cleverscore.cli.main import main
from cleverscore.threads import one_thread

ROOT = Path(__file__).parents[1]
SCORE_DIGITS = ("score", "zoo:mnist-mlp", "zoo:mnist")
FEW = ["--preset", "paper", "--blocks", "12", "--block-size", "8"]


def cleverscore(*arguments: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the program's own entry point in this process: a new one would import torch each time."""
    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    before, place = sys.argv, Path.cwd()
    sys.argv = ["cleverscore", *map(str, arguments)]
    os.chdir(folder)
    code: object = 0
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")
            main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before
        os.chdir(place)
    out.flush()
    return subprocess.CompletedProcess(sys.argv, int(code or 0), out.buffer.getvalue().decode(), errors.getvalue())


def in_a_new_process(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cleverscore", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def rows(run: Path) -> pd.DataFrame:
    output = cleverscore("export", run).stdout
    path = run / "rows.csv"
    path.write_text(output)
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def affine(dim: int = 6, classes: int = 4, *, seed: int = 0, scale: float = 1.0) -> cs.Classifier:
    """f(x) = W x + b: the gradient of a margin is w_c - w_j everywhere."""
    torch.manual_seed(seed)
    model = nn.Linear(dim, classes).double()
    with torch.no_grad():
        model.weight.mul_(scale)
        model.bias.mul_(scale)
    return cs.Classifier(model)


def affine_distance(classifier: cs.Classifier, x: torch.Tensor, predicted: int, target: int, p: float) -> float:
    """Exact lp distance of one input to the plane where two logits are equal: margin / ||w_c - w_j||_q."""
    model = classifier.module
    difference = (model.weight[predicted] - model.weight[target]).detach().numpy()
    logits = model(x[None])[0].detach().numpy()
    q = 1.0 if math.isinf(p) else math.inf if p == 1.0 else p / (p - 1.0)
    return float((logits[predicted] - logits[target]) / np.linalg.norm(difference, q))


class PlaneReLU:
    """One hidden ReLU layer on the plane, two classes: its gradient is constant on the cells of a line arrangement.

    Theorem D.1 of the paper: the gradient norm of a uniform point of the ball is discrete, with the cells' areas as
    probabilities. Cells are cut exactly: polygons for p = 1 and inf, polygons within a disc for p = 2.
    """

    def __init__(self, units: int = 7, *, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.w = generator.normal(size=(units, 2))
        self.b = generator.normal(size=units) * 0.4
        self.v = generator.normal(size=(2, units))
        model = nn.Sequential(nn.Linear(2, units), nn.ReLU(), nn.Linear(units, 2)).double()
        with torch.no_grad():
            model[0].weight.copy_(torch.from_numpy(self.w))
            model[0].bias.copy_(torch.from_numpy(self.b))
            model[2].weight.copy_(torch.from_numpy(self.v))
            model[2].bias.copy_(torch.tensor([3.0, 0.0]))
        self.classifier = cs.Classifier(model)

    def gradient_norm(self, x: np.ndarray, q: float) -> float:
        """||grad(f_0 - f_1)(x)||_q inside a cell."""
        active = self.w @ x + self.b > 0
        return float(np.linalg.norm(((self.v[0] - self.v[1]) * active) @ self.w, q))

    def distribution(self, x0: np.ndarray, radius: float, p: float) -> tuple[np.ndarray, np.ndarray]:
        """Exact values of the gradient norm in B_p(x0, radius), ascending, and their probabilities."""
        q = 1.0 if math.isinf(p) else math.inf if p == 1.0 else p / (p - 1.0)
        if p == 1.0:
            start = x0 + radius * np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
        else:
            start = x0 + radius * np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
        cells = [start]
        for normal, offset in zip(self.w, self.b, strict=True):
            cells = [
                part
                for cell in cells
                for part in (_cut(cell, normal, offset), _cut(cell, -normal, -offset))
                if len(part) > 2
            ]
        areas = [(_disc_area(cell - x0, radius) if p == 2.0 else _area(cell), cell) for cell in cells]
        total = math.pi * radius**2 if p == 2.0 else _area(start)
        found: dict[float, float] = {}
        for area, cell in areas:
            if area > 1e-12 * total:
                value = round(self.gradient_norm(cell.mean(0), q), 12)
                found[value] = found.get(value, 0.0) + area / total
        values = np.array(sorted(found))
        return values, np.array([found[value] for value in values])


def _cut(polygon: np.ndarray, normal: np.ndarray, offset: float) -> np.ndarray:
    """The part of a convex polygon where normal . x + offset >= 0."""
    kept = []
    for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        da, db = normal @ a + offset, normal @ b + offset
        if da >= 0:
            kept.append(a)
        if (da > 0 > db) or (da < 0 < db):
            kept.append(a + (b - a) * da / (da - db))
    return np.array(kept).reshape(-1, 2)


def _area(polygon: np.ndarray) -> float:
    x, y = polygon.T
    return 0.5 * abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1)))


def _disc_area(polygon: np.ndarray, radius: float) -> float:
    """Area of a polygon within the disc of `radius` around 0: signed sectors and triangles over the edges."""
    return abs(sum(_edge_area(a, b, radius) for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True)))


def _edge_area(a: np.ndarray, b: np.ndarray, radius: float) -> float:
    direction = b - a
    length2 = float(direction @ direction)
    if length2 == 0.0:
        return 0.0
    # Where the segment crosses the circle.
    half, constant = float(a @ direction) / length2, (float(a @ a) - radius**2) / length2
    root = half * half - constant
    cuts = [0.0, 1.0]
    if root > 0:
        cuts += [t for t in (-half - math.sqrt(root), -half + math.sqrt(root)) if 0.0 < t < 1.0]
    total = 0.0
    for s, t in itertools.pairwise(sorted(cuts)):
        first, second, middle = a + s * direction, a + t * direction, a + 0.5 * (s + t) * direction
        cross, dot = first[0] * second[1] - first[1] * second[0], float(first @ second)
        if float(middle @ middle) <= radius**2:
            total += 0.5 * cross
        else:
            total += 0.5 * radius**2 * math.atan2(cross, dot)
    return float(total)


@functools.cache
@one_thread()
def trained_relu_network(
    dim: int = 12, *, units: tuple[int, ...] = (20, 20), classes: int = 5, seed: int = 0
) -> tuple[cs.Classifier, torch.Tensor, torch.Tensor]:
    """A ReLU network trained on noisy clusters, 20 inputs that it classifies correctly, and their labels; in float64.

    Small enough for exact answers: `cleverscore.exact.exact_minimum_distortion` takes a fraction of a second per input.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(2 * classes, dim, generator=generator, dtype=torch.float64)
    group = torch.randint(2 * classes, (1024,), generator=generator)
    x = centres[group] + 1.0 * torch.randn(1024, dim, generator=generator, dtype=torch.float64)
    y = group % classes
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = (dim, *units)
        hidden = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
        model = nn.Sequential(*hidden, nn.Linear(sizes[-1], classes)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        logits = model(x)
    top = logits.topk(2).values
    margins = torch.where(logits.argmax(1) == y, top[:, 0] - top[:, 1], torch.inf)
    # Inputs in the middle of their class need large balls, in which hardly a unit is fixed: the exact search is slow.
    near = margins.argsort()[: int(torch.isfinite(margins).sum()) // 3]
    chosen = near[torch.linspace(0, len(near) - 1, 20).long()]
    return cs.Classifier(model), x[chosen], y[chosen]


@functools.cache
def exact_distortion(i: int, p: float) -> truth.Exact:
    """The exact minimum distortion, over all other classes, of input i of `trained_relu_network()`."""
    classifier, x, _ = trained_relu_network()
    return truth.exact_minimum_distortion(classifier, x[i], p=p)
