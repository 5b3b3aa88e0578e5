"""Attacks of foolbox 3, in coordinates in which every input box is [0, 1], with corrections of foolbox's faults.

- FMN in l2 never projects onto its ball (it divides a norm by itself): this module has the projection.
- FMN can stop exactly on the boundary without success: it is started again from a point beyond the boundary.
- CW and EAD return a black image where they failed: such rows are replaced by the input itself.
- Step sizes are absolute numbers for a box of width 1: hence the coordinates in [0, 1].
- The cross-entropy of logits that are far apart, as distilled networks have them, has no gradient in floating point:
  for I-FGSM the logits are divided by a temperature.
"""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from cleverscore.attacks.criterion import Criterion
from cleverscore.attacks.presets import Effort
from cleverscore.attacks.refine import nearest_of
from cleverscore.errors import MissingExtraError
from cleverscore.estimators.ascent.boundary_descent import descend
from cleverscore.models.margin_gradients import dual_norms
from cleverscore.norms import dual_exponent

# The eight epsilons of I-FGSM in section 5.2 of the paper, as shares of the box's width.
EPSILONS = (0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0)
PAPER_CONSTANT = 0.01  # the constant in CW and EAD with which their search begins
# The gradient of the cross-entropy depends on 1 minus the probability of the predicted class. Up to these margins this
# difference has enough correct digits in floating point.
LARGEST_MARGIN = {torch.float64: 30.0, torch.float32: 10.0}
ELASTIC_NET = 0.01  # EAD's weight of the l1 norm, as its authors have it
# Where inputs have no box, a coordinate may move this many times as far as it would have to if the model were linear.
FIRST_ORDER_STEPS = 10.0
RESTART_STEPS = 30  # gradients for a start beyond the boundary, where FMN found nothing


def load_foolbox() -> ModuleType:
    """Import foolbox without its warning about a deprecated scipy module."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            import foolbox
    except ImportError as error:
        raise MissingExtraError.of("foolbox", "attacks", "an attack") from error
    module: ModuleType = foolbox
    return module


class _UnitBox(nn.Module):
    """The classifier as a function of coordinates u in [0, 1]: input x = low + width * u, with each input's own box.

    temperature     (n, 1): logits are divided by it, and get its floating-point type; None: logits as they are.
    """

    def __init__(self, criterion: Criterion, temperature: torch.Tensor | None = None) -> None:
        super().__init__()
        self.criterion = criterion
        self.width = criterion.high - criterion.low
        self.temperature = temperature

    def units(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs as coordinates u in [0, 1]; in float32 at least, since steps are small."""
        u = ((x - self.criterion.low) / self.width).clamp(0.0, 1.0)
        return u if u.dtype == torch.float64 else u.float()

    def inputs(self, u: torch.Tensor) -> torch.Tensor:
        """Coordinates u as inputs in the classifier's units, never outside the box."""
        x = (self.criterion.low + self.width * u).to(self.criterion.x.dtype)
        return x.maximum(self.criterion.low).minimum(self.criterion.high)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        """Logits (n, K) of coordinates u."""
        logits = self.criterion.classifier.logits((self.criterion.low + self.width * u).to(self.criterion.x.dtype))
        return logits.to(u.dtype) if self.temperature is None else logits.to(self.temperature.dtype) / self.temperature


def run(criterion: Criterion, name: str, *, p: float, effort: Effort, seed: int) -> torch.Tensor:
    """Candidates (n, *shape) of one attack on one batch; the caller has to check them.

    name    "ifgsm", "cw", "ead", "ddn" or "fmn".
    p       the norm that FMN minimises, and in which the nearest of several runs is chosen.
    """
    foolbox = load_foolbox()
    criterion = criterion if criterion.boxed else _in_reach(criterion, p)
    devices = [criterion.x.device] if criterion.x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        if name == "ifgsm":
            method, temperature = _sign_steps(foolbox, effort), _temperature(criterion)
            runs = (_run(foolbox, criterion, method, temperature=temperature, epsilon=e) for e in EPSILONS)
        elif name in ("cw", "ead"):
            return _run(foolbox, criterion, _searching(foolbox, name, effort))
        elif name == "ddn":
            methods = [foolbox.attacks.DDNAttack(steps=effort.iterations, gamma=gamma) for gamma in effort.variants]
            runs = (_run(foolbox, criterion, method) for method in methods)
        else:
            runs = (_fmn(foolbox, criterion, p, effort.iterations, step) for step in effort.variants)
        return nearest_of(criterion, runs, p=p, chunk_size=len(criterion))


def _in_reach(criterion: Criterion, p: float) -> Criterion:
    """The criterion with a box around inputs that have none.

    A coordinate may move `FIRST_ORDER_STEPS` times as far as any coordinate would have to if the model were linear.
    With gradient w, the step to the boundary that is shortest in lp would then change the coordinate with the largest
    |w_i| most, by margin * max_i |w_i|^(q-1) / ||w||_q^q, where 1/p + 1/q = 1.
    """
    margins, gradients = criterion.margins_and_gradients(criterion.x)
    q, largest = dual_exponent(p), dual_norms(gradients, torch.inf)
    norms = dual_norms(gradients, q)
    shares = (1.0 if p == 1.0 else (largest / norms) ** (q - 1.0)) / norms
    steps = (margins.abs() * shares).to(criterion.x.dtype)
    sizes = 1.0 + criterion.x.flatten(1).abs().amax(1)
    usable = torch.isfinite(steps) & (steps > 0.0)
    reach = torch.where(usable, FIRST_ORDER_STEPS * steps, sizes).reshape(criterion.column)
    return replace(criterion, low=criterion.x - reach, high=criterion.x + reach)


def _temperature(criterion: Criterion) -> torch.Tensor:
    """A temperature for each input, (n, 1): 1 unless its logits are too far apart for the cross-entropy's gradient."""
    precise = torch.float32 if criterion.x.device.type == "mps" else torch.float64  # Apple's GPUs have no doubles
    with torch.no_grad():
        best = criterion.classifier.logits(criterion.x).topk(2, dim=1).values.to(precise)
    return ((best[:, :1] - best[:, 1:]) / LARGEST_MARGIN[precise]).clamp_min(1.0)


def _run(
    foolbox: Any, criterion: Criterion, method: Any, *, temperature: torch.Tensor | None = None, **arguments: Any
) -> torch.Tensor:
    """The result (n, *shape) of a foolbox attack, in the classifier's units; the input itself where foolbox returns a
    black image.
    """
    model = _UnitBox(criterion, temperature).eval()
    start = model.units(criterion.x)
    fmodel = foolbox.PyTorchModel(model, bounds=(0.0, 1.0), device=criterion.x.device)
    found = method.run(fmodel, start, _criterion(foolbox, criterion), **arguments)
    nothing = (found == 0.0).flatten(1).all(1) & ~(start == 0.0).flatten(1).all(1)
    return torch.where(nothing.reshape(criterion.column), criterion.x, model.inputs(found))


def _fmn(foolbox: Any, criterion: Criterion, p: float, iterations: int, step: float) -> torch.Tensor:
    """Candidates (n, *shape) of FMN, which is started again where it failed, from a point beyond the boundary that a
    descent found.

    step    the size of FMN's first steps.
    """
    attacks = foolbox.attacks
    kind = attacks.LInfFMNAttack if math.isinf(p) else attacks.L1FMNAttack if p == 1.0 else _projecting_fmn(attacks)
    method = kind(steps=iterations, max_stepsize=step)
    points = _run(foolbox, criterion, method)
    good, _found = criterion.reached(points, chunk_size=len(criterion))
    if bool(good.all()):
        return points
    failed = (~good).nonzero()[:, 0]
    rest = criterion.rows(failed)
    _sizes, beyond = descend(
        rest.margins_and_gradients, rest.x, rest.x, p=p, steps=RESTART_STEPS, low=rest.low, high=rest.high
    )
    there, _found = rest.reached(beyond, chunk_size=len(failed))
    if not bool(there.any()):
        return points
    failed, beyond = failed[there], beyond[there]
    points[failed] = beyond
    rest = criterion.rows(failed)
    from eagerpy.astensor import astensor  # foolbox takes its own tensors here

    # Rounded to coordinates in [0, 1], a start may be before the boundary; foolbox refuses it, and `beyond` is kept.
    with suppress(AssertionError):
        points[failed] = _run(foolbox, rest, method, starting_points=astensor(_UnitBox(rest).units(beyond)))
    return points


def _criterion(foolbox: Any, criterion: Criterion) -> Any:
    kind = foolbox.criteria.TargetedMisclassification if criterion.targeted else foolbox.Misclassification
    return kind(criterion.classes)


def _searching(foolbox: Any, name: str, effort: Effort) -> Any:
    """foolbox's CW or EAD, which search for the constant that weighs the margin against the distortion."""
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
    """foolbox's I-FGSM as in the paper: steps of epsilon / iterations, along the signs of the gradient."""
    return foolbox.attacks.LinfBasicIterativeAttack(
        rel_stepsize=1.0 / effort.iterations, steps=effort.iterations, random_start=False
    )


def _projecting_fmn(attacks: Any) -> Any:
    """A class of FMN in l2 with the projection onto the ball of radius epsilon, which foolbox's version lacks."""

    class ProjectingFMN(attacks.L2FMNAttack):  # type: ignore[misc]
        def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
            offset = (x - x0).raw
            norms = torch.linalg.vector_norm(offset.flatten(1), dim=1).clamp_min(1e-12)
            factor = (epsilon.raw / norms).clamp_max(1.0).to(offset.dtype)
            return x0 + type(x)(offset * factor.reshape(-1, *[1] * (offset.ndim - 1)))

    return ProjectingFMN
