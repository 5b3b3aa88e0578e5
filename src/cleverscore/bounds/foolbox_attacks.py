"""Attacks of foolbox 3, run in coordinates in which every input box is [0, 1], and its faults put right.

- FMN in l2 never projects onto its ball (it divides a norm by itself): the projection is written here.
- FMN can come to rest exactly on the boundary and find nothing: it starts again from a point beyond it.
- CW and EAD return a black image where they found nothing: such rows come back as the input itself.
- Steps are absolute numbers meant for a box of width 1: hence the coordinates.
- The cross-entropy of logits that are far apart, as distilled networks have them, has no gradient in floating point:
  I-FGSM sees them divided by a temperature.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch
from torch import nn

from cleverscore.bounds.effort import Effort
from cleverscore.bounds.facets import walked
from cleverscore.bounds.goals import Goal
from cleverscore.bounds.polish import distances
from cleverscore.errors import MissingExtraError

# The eight of section 5.2, as shares of the box's width.
EPSILONS = (0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0)
PAPER_CONSTANT = 0.01
# The gradient of the cross-entropy holds p - 1 of the predicted class, which keeps its digits up to such margins.
LARGEST_MARGIN = {torch.float64: 30.0, torch.float32: 10.0}
ELASTIC_NET = 0.01  # EAD's weight of the l1 norm, as its authors have it


def load_foolbox() -> ModuleType:
    """The library, without the warning about the scipy module that it imports."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            import foolbox
    except ImportError as error:
        raise MissingExtraError.of("foolbox", "attacks", "an attack") from error
    module: ModuleType = foolbox
    return module


class _UnitBox(nn.Module):
    """The classifier on coordinates u in [0, 1]: x = low + width u, row by row.

    With a temperature, logits are divided by it, and have its precision.
    """

    def __init__(self, goal: Goal, temperature: torch.Tensor | None = None) -> None:
        super().__init__()
        self.goal = goal
        self.width = goal.high - goal.low
        self.temperature = temperature

    def units(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs in units of the box; in float32 at least, since steps are small."""
        u = ((x - self.goal.low) / self.width).clamp(0.0, 1.0)
        return u if u.dtype == torch.float64 else u.float()

    def inputs(self, u: torch.Tensor) -> torch.Tensor:
        """Back to the classifier's units, never outside the box."""
        x = (self.goal.low + self.width * u).to(self.goal.x.dtype)
        return x.maximum(self.goal.low).minimum(self.goal.high)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits = self.goal.classifier.logits((self.goal.low + self.width * u).to(self.goal.x.dtype))
        return logits.to(u.dtype) if self.temperature is None else logits.to(self.temperature.dtype) / self.temperature


def run(goal: Goal, name: str, *, p: float, effort: Effort, seed: int) -> torch.Tensor:
    """Candidates (n, *shape) of one attack on one batch; nothing is promised about them yet."""
    foolbox = load_foolbox()
    devices = [goal.x.device] if goal.x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        if name == "ifgsm":
            method, temperature = _sign_steps(foolbox, effort), _temperature(goal)
            runs = (_run(foolbox, goal, method, temperature=temperature, epsilon=e) for e in EPSILONS)
            return _best_of(goal, runs, p=p)
        if name in ("cw", "ead"):
            return _run(foolbox, goal, _searching(foolbox, name, effort))
        if name == "ddn":
            methods = [foolbox.attacks.DDNAttack(steps=effort.iterations, gamma=gamma) for gamma in effort.variants]
            return _best_of(goal, (_run(foolbox, goal, method) for method in methods), p=p)
        return _best_of(goal, (_fmn(foolbox, goal, p, effort.iterations, step) for step in effort.variants), p=p)


def _temperature(goal: Goal) -> torch.Tensor:
    """A temperature for each input, (n, 1): 1 unless its logits are too far apart for the cross-entropy's gradient."""
    precise = torch.float32 if goal.x.device.type == "mps" else torch.float64  # Apple's GPUs have no doubles
    with torch.no_grad():
        best = goal.classifier.logits(goal.x).topk(2, dim=1).values.to(precise)
    return ((best[:, :1] - best[:, 1:]) / LARGEST_MARGIN[precise]).clamp_min(1.0)


def _run(
    foolbox: Any, goal: Goal, method: Any, *, temperature: torch.Tensor | None = None, **arguments: Any
) -> torch.Tensor:
    """What one of foolbox's attacks returns, in the classifier's units; the input where it returns a black image."""
    model = _UnitBox(goal, temperature).eval()
    start = model.units(goal.x)
    fmodel = foolbox.PyTorchModel(model, bounds=(0.0, 1.0), device=goal.x.device)
    found = method.run(fmodel, start, _criterion(foolbox, goal), **arguments)
    nothing = (found == 0.0).flatten(1).all(1) & ~(start == 0.0).flatten(1).all(1)
    return torch.where(nothing.reshape(goal.column), goal.x, model.inputs(found))


def _best_of(goal: Goal, runs: Iterable[torch.Tensor], *, p: float) -> torch.Tensor:
    """Of several runs the nearest success of each input, the input itself where there is none."""
    best = goal.x.clone()
    smallest = torch.full((len(goal),), torch.inf, dtype=torch.float64, device=goal.x.device)
    for points in runs:
        good, _found = goal.reached(points, chunk_size=len(points))
        sizes = distances(goal.x, points, p)
        better = good & (sizes < smallest)
        smallest = torch.where(better, sizes, smallest)
        best = torch.where(better.reshape(goal.column), points, best)
    return best


def _fmn(foolbox: Any, goal: Goal, p: float, iterations: int, step: float) -> torch.Tensor:
    """FMN, started again from the other side of the boundary where it found nothing."""
    attacks = foolbox.attacks
    kind = attacks.LInfFMNAttack if math.isinf(p) else attacks.L1FMNAttack if p == 1.0 else _projecting_fmn(attacks)
    method = kind(steps=iterations, max_stepsize=step)
    points = _run(foolbox, goal, method)
    good, _found = goal.reached(points, chunk_size=len(goal))
    if bool(good.all()):
        return points
    lost = (~good).nonzero()[:, 0]
    beyond = walked(goal.rows(lost), p=p)
    there, _found = goal.rows(lost).reached(beyond, chunk_size=len(lost))
    if not bool(there.any()):
        return points
    lost, beyond = lost[there], beyond[there]
    points[lost] = beyond
    rest = goal.rows(lost)
    from eagerpy.astensor import astensor  # foolbox takes its own tensors here

    with suppress(AssertionError):  # in the coordinates of the box a point may be on the wrong side by a rounding error
        points[lost] = _run(foolbox, rest, method, starting_points=astensor(_UnitBox(rest).units(beyond)))
    return points


def _criterion(foolbox: Any, goal: Goal) -> Any:
    kind = foolbox.criteria.TargetedMisclassification if goal.targeted else foolbox.Misclassification
    return kind(goal.classes)


def _searching(foolbox: Any, name: str, effort: Effort) -> Any:
    """CW or EAD: a search for the constant that weighs the margin against the distortion."""
    common = {
        "binary_search_steps": effort.searches,
        "steps": effort.iterations,
        "confidence": 0.0,
        "initial_const": PAPER_CONSTANT,
    }
    if name == "cw":
        return foolbox.attacks.L2CarliniWagnerAttack(stepsize=effort.learning_rate, **common)
    return foolbox.attacks.EADAttack(
        initial_stepsize=effort.learning_rate, regularization=ELASTIC_NET, decision_rule="L1", **common
    )


def _sign_steps(foolbox: Any, effort: Effort) -> Any:
    """I-FGSM as in the paper: steps of epsilon / iterations in the sign of the gradient of the cross-entropy."""
    return foolbox.attacks.LinfBasicIterativeAttack(
        rel_stepsize=1.0 / effort.iterations, steps=effort.iterations, random_start=False
    )


def _projecting_fmn(attacks: Any) -> Any:
    """FMN in l2 with the projection onto the ball of radius epsilon that foolbox's own leaves out."""

    class ProjectingFMN(attacks.L2FMNAttack):  # type: ignore[misc]
        def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
            offset = (x - x0).raw
            norms = torch.linalg.vector_norm(offset.flatten(1), dim=1).clamp_min(1e-12)
            factor = (epsilon.raw / norms).clamp_max(1.0).to(offset.dtype)
            return x0 + type(x)(offset * factor.reshape(-1, *[1] * (offset.ndim - 1)))

    return ProjectingFMN
