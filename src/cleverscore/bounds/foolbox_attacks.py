"""Attacks of foolbox 3, run in coordinates in which every input box is [0, 1], and its faults put right.

- FMN in l2 never projects onto its ball (it divides a norm by itself): the projection is written here.
- FMN can come to rest exactly on the boundary and find nothing: it starts again from a point beyond it.
- CW and EAD return a black image where they found nothing: such rows come back as the input itself.
- Steps are absolute numbers meant for a box of width 1: hence the coordinates.
"""

from __future__ import annotations

import math
import warnings
from types import ModuleType
from typing import Any

import torch
from torch import nn

from cleverscore.bounds.effort import Effort
from cleverscore.bounds.facets import walked
from cleverscore.bounds.goals import Goal
from cleverscore.errors import MissingExtraError

# The eight of section 5.2, as shares of the box's width.
EPSILONS = (0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0)
PAPER_CONSTANT = 0.01
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
    """The classifier on coordinates u in [0, 1]: x = low + width u, row by row."""

    def __init__(self, goal: Goal) -> None:
        super().__init__()
        self.goal = goal
        self.width = goal.high - goal.low

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
        return logits.to(u.dtype)


def run(goal: Goal, name: str, *, p: float, effort: Effort, seed: int) -> torch.Tensor:
    """Candidates (n, *shape) of one attack on one batch; nothing is promised about them yet."""
    foolbox = load_foolbox()
    model = _UnitBox(goal).eval()
    fmodel = foolbox.PyTorchModel(model, bounds=(0.0, 1.0), device=goal.x.device)
    criterion = _criterion(foolbox, goal)
    start = model.units(goal.x)
    devices = [goal.x.device] if goal.x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        if name == "ifgsm":
            return _best_epsilon(foolbox, fmodel, model, goal, criterion, start, effort)
        found = _method(foolbox, name, p, effort).run(fmodel, start, criterion)
        if name == "fmn":
            _start_again(foolbox, found, goal, p=p, effort=effort)
    nothing = (found == 0.0).flatten(1).all(1) & ~(start == 0.0).flatten(1).all(1)
    shape = (-1, *[1] * (start.ndim - 1))
    return torch.where(nothing.reshape(shape), goal.x, model.inputs(found))


def _start_again(foolbox: Any, found: torch.Tensor, goal: Goal, *, p: float, effort: Effort) -> None:
    """Run FMN from the other side of the boundary where it found nothing; `found` is changed in place."""
    from eagerpy.astensor import astensor  # foolbox takes its own tensors here

    good, _found = goal.reached(_UnitBox(goal).inputs(found), chunk_size=len(goal))
    places = (~good).nonzero()[:, 0]
    if len(places) == 0:
        return
    beyond = walked(goal.rows(places), p=p)
    there, _found = goal.rows(places).reached(beyond, chunk_size=len(places))
    if not bool(there.any()):
        return
    places, beyond = places[there], beyond[there]
    rest = goal.rows(places)
    model = _UnitBox(rest).eval()
    points = astensor(model.units(beyond))
    try:
        again = _method(foolbox, "fmn", p, effort).run(
            foolbox.PyTorchModel(model, bounds=(0.0, 1.0), device=rest.x.device),
            model.units(rest.x),
            _criterion(foolbox, rest),
            starting_points=points,
        )
    except AssertionError:  # in its own coordinates a point lies on the wrong side by a rounding error
        again = points.raw
    found[places] = again.to(found.dtype)


def _criterion(foolbox: Any, goal: Goal) -> Any:
    kind = foolbox.criteria.TargetedMisclassification if goal.targeted else foolbox.Misclassification
    return kind(goal.classes)


def _method(foolbox: Any, name: str, p: float, effort: Effort) -> Any:
    attacks = foolbox.attacks
    if name == "cw":
        return attacks.L2CarliniWagnerAttack(
            binary_search_steps=effort.searches,
            steps=effort.iterations,
            stepsize=effort.learning_rate,
            confidence=0.0,
            initial_const=PAPER_CONSTANT,
        )
    if name == "ead":
        return attacks.EADAttack(
            binary_search_steps=effort.searches,
            steps=effort.iterations,
            initial_stepsize=effort.learning_rate,
            confidence=0.0,
            initial_const=PAPER_CONSTANT,
            regularization=ELASTIC_NET,
            decision_rule="L1",
        )
    if name == "ddn":
        return attacks.DDNAttack(steps=effort.iterations)
    if math.isinf(p):
        return attacks.LInfFMNAttack(steps=effort.iterations)
    return (
        attacks.L1FMNAttack(steps=effort.iterations) if p == 1.0 else _projecting_fmn(attacks)(steps=effort.iterations)
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


def _best_epsilon(
    foolbox: Any, fmodel: Any, model: _UnitBox, goal: Goal, criterion: Any, start: torch.Tensor, effort: Effort
) -> torch.Tensor:
    """I-FGSM as in the paper: steps of epsilon / iterations, the epsilon of the smallest linf distortion per input."""
    method = foolbox.attacks.LinfBasicIterativeAttack(
        rel_stepsize=1.0 / effort.iterations, steps=effort.iterations, random_start=False
    )
    shape = (-1, *[1] * (start.ndim - 1))
    best = goal.x.clone()
    smallest = torch.full((len(goal),), torch.inf, dtype=torch.float64, device=goal.x.device)
    for epsilon in EPSILONS:
        points = model.inputs(method.run(fmodel, start, criterion, epsilon=epsilon))
        good, _found = goal.reached(points, chunk_size=len(points))
        size = (points.double() - goal.x.double()).flatten(1).abs().amax(1)
        better = good & (size < smallest)
        smallest = torch.where(better, size, smallest)
        best = torch.where(better.reshape(shape), points, best)
    return best
