"""attack(): how far an input has to be moved at most, by an example (an upper bound on the minimum distortion).

Attacks come from foolbox; distortions are computed here in double from the adversarial input itself, and whether it is
one is asked of the user's classifier again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.bounds.effort import OWN_EFFORT, PRESETS, Effort
from cleverscore.bounds.facets import facets
from cleverscore.bounds.foolbox_attacks import load_foolbox, run
from cleverscore.bounds.goals import Goal, make_goal
from cleverscore.bounds.polish import distances, polished
from cleverscore.checks import is_whole
from cleverscore.chunks import resolved_chunk_size
from cleverscore.classifier import Classifier
from cleverscore.errors import SettingError
from cleverscore.norms import parse_norm
from cleverscore.settings import LARGEST_SEED
from cleverscore.tuning import CHECKED_INPUTS, tuned

Array = npt.NDArray[np.float64]

# The norms that each attack can make small, its own first.
ATTACKS: dict[str, tuple[float, ...]] = {
    "cw": (2.0,),  # Carlini & Wagner 2017
    "ifgsm": (math.inf,),  # Kurakin et al. 2017, best of eight epsilons
    "ead": (1.0,),  # Chen et al. 2018
    "ddn": (2.0,),  # Rony et al. 2019
    "fmn": (math.inf, 2.0, 1.0),  # Pintor et al. 2021
    "facets": (math.inf, 2.0, 1.0),  # this package's own: one start per class
}
# What is tightest for its time in each norm.
BEST: dict[float, tuple[str, ...]] = {
    1.0: ("fmn", "facets"),
    2.0: ("ddn", "fmn", "facets"),
    math.inf: ("fmn", "facets"),
}


class AttackFunction(Protocol):
    """An attack of your own: from a goal to candidates (n, *shape), which are checked and measured like any other's.

    goal    the inputs, their classes and their box; `goal.margins_and_gradients(points)` is what most attacks need.
    p       the norm to make small.
    seed    torch's own generator is seeded with it before the call.
    """

    def __call__(self, goal: Goal, *, p: float, seed: int) -> torch.Tensor:
        """Candidates; the input itself where there is none."""
        ...


@dataclass(frozen=True)
class Attacked:
    """What one attack found for each of n inputs.

    attack          its name.
    p               the norm it tried to make small.
    adversarial     (n, *shape), the input itself where it failed.
    success         (n,), by a forward pass of the user's classifier.
    found           (n,), the class of the adversarial input.
    l1, l2, linf    (n,), distortion, infinite where it failed.
    """

    attack: str
    p: float
    adversarial: torch.Tensor = field(repr=False)
    success: npt.NDArray[np.bool_]
    found: npt.NDArray[np.int64]
    l1: Array
    l2: Array
    linf: Array
    seconds: float

    def __len__(self) -> int:
        return len(self.success)


def attack(
    classifier: Classifier,
    images: Any,
    name: str | AttackFunction = "cw",
    *,
    p: float | str | None = None,
    targets: Any = None,
    preset: str = "paper",
    iterations: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    chunk_size: int | None = None,
) -> Attacked:
    """Attack a batch inside the classifier's box; an input is attacked away from the class that the model predicts.

    images      (n, *input_shape), in the classifier's input units.
    name        "cw", "ifgsm", "ead", "ddn", "fmn" or "facets", or a function of your own (`AttackFunction`).
    p           the norm to make small; default: the attack's own. An attack that has no such variant runs in its own.
    targets     None (any other class), "runner_up", "least_likely", "random", or one class per input.
    preset      "paper", "quick" (a few seconds), "strong" (longer, then polished in norm p, which only tightens).
    iterations, learning_rate   instead of the preset's: the paper has 2000 for CW on MNIST.
    chunk_size  inputs at a time; CW and EAD stop early when a whole chunk makes no progress, as their authors' do.

    >>> classifier = Classifier(torch.nn.Linear(4, 3), bounds=(-4.0, 4.0))
    >>> attacked = attack(classifier, torch.rand(2, 4), "fmn", p="inf", preset="quick")
    >>> attacked.success, bool((attacked.linf <= attacked.l1).all())
    (array([ True,  True]), True)
    """
    effort, norm = _checked(name, p, preset, iterations, learning_rate, seed)
    if isinstance(name, str):
        load_foolbox()
    goal = make_goal(classifier, images, targets=targets, p=norm, seed=seed)
    chunk_size = resolved_chunk_size(classifier, goal.x[0], chunk_size, workers=1)
    return _attack(goal, name, norm, effort, seed, chunk_size)


def attack_name(attack: str | AttackFunction) -> str:
    """How an attack is called in results."""
    return attack if isinstance(attack, str) else getattr(attack, "__name__", type(attack).__name__)


def _checked(
    name: str | AttackFunction,
    p: float | str | None,
    preset: str,
    iterations: int | None,
    learning_rate: float | None,
    seed: int,
) -> tuple[Effort, float]:
    if not callable(name) and name not in ATTACKS:
        raise SettingError(f"attack={name!r}: choose one of {', '.join(ATTACKS)}, or give a function")
    if preset not in PRESETS:
        raise SettingError(f"preset={preset!r}: choose one of {', '.join(PRESETS)}")
    if not is_whole(seed) or not 0 <= seed <= LARGEST_SEED:
        raise SettingError(f"seed={seed}: give a whole number from 0 to 2**64 - 1")
    if not isinstance(name, str):
        if iterations is not None or learning_rate is not None:
            raise SettingError("iterations and learning_rate are for attacks by name; give them to your own function")
        return OWN_EFFORT[preset], 2.0 if p is None else parse_norm(p)
    effort = PRESETS[preset][name]
    if iterations is not None:
        if not is_whole(iterations) or iterations < 1:
            raise SettingError(f"iterations={iterations}: give a whole number, at least 1")
        effort = replace(effort, iterations=int(iterations))
    if learning_rate is not None:
        if not 0.0 < learning_rate < math.inf:
            raise SettingError(f"learning_rate={learning_rate}: give a positive number")
        effort = replace(effort, learning_rate=float(learning_rate))
    return effort, ATTACKS[name][0] if p is None else parse_norm(p)


def _attack(goal: Goal, name: str | AttackFunction, p: float, effort: Effort, seed: int, chunk_size: int) -> Attacked:
    began = time.perf_counter()
    own = p if not isinstance(name, str) or p in ATTACKS[name] else ATTACKS[name][0]
    # The attack may work on a faster network of the same function; what it found is judged by the user's own.
    faster = replace(goal, classifier=tuned(goal.classifier, goal.x[:CHECKED_INPUTS]))
    parts = []
    for start in range(0, len(goal), chunk_size):
        rows = slice(start, start + chunk_size)
        part, working = goal.rows(rows), faster.rows(rows)
        if not isinstance(name, str):
            points = _own_candidates(name, working, p=p, seed=seed)
        elif name == "facets":
            points = facets(working, p=p, effort=effort)
        else:
            points = run(working, name, p=own, effort=effort, seed=seed)
        good, _found = part.reached(points, chunk_size=chunk_size)
        if effort.polish and bool(good.any()):
            nearer = points.clone()
            nearer[good] = polished(working.rows(good), points[good], p=p, steps=effort.polish)
            still, _found = part.reached(nearer, chunk_size=chunk_size)
            points = torch.where(still.reshape(goal.column), nearer, points)
        parts.append(points)
    adversarial = torch.cat(parts)
    # What counts is the classifier's word on the final points; a claim that does not hold is a failure.
    good, _found = goal.reached(adversarial, chunk_size=chunk_size)
    adversarial = torch.where(good.reshape(goal.column), adversarial, goal.x)
    _good, found = goal.reached(adversarial, chunk_size=chunk_size)
    success = good.cpu().numpy()
    l1, l2, linf = (
        np.where(success, distances(goal.x, adversarial, norm).cpu().numpy(), math.inf) for norm in (1.0, 2.0, math.inf)
    )
    return Attacked(
        attack=attack_name(name),
        p=p if effort.polish else own,
        adversarial=adversarial,
        success=success,
        found=found.cpu().numpy(),
        l1=l1,
        l2=l2,
        linf=linf,
        seconds=time.perf_counter() - began,
    )


def _own_candidates(function: AttackFunction, goal: Goal, *, p: float, seed: int) -> torch.Tensor:
    """What an attack of the user gives, brought into the box."""
    devices = [goal.x.device] if goal.x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        points = function(goal, p=p, seed=seed)
    if not isinstance(points, torch.Tensor) or points.shape != goal.x.shape:
        given = tuple(points.shape) if isinstance(points, torch.Tensor) else type(points).__name__
        raise SettingError(f"attack {attack_name(function)} gave {given}; a tensor {tuple(goal.x.shape)} is wanted")
    return points.detach().to(goal.x).maximum(goal.low).minimum(goal.high)


@dataclass(frozen=True)
class BestAttack:
    """The smallest distortion that any of several attacks found, input by input.

    p               the norm in which they are compared.
    attacks         what each attack found.
    distortion      (n,), the smallest in norm p, infinite where all failed.
    names           the attack that found it, "" where all failed.
    adversarial     (n, *shape), its adversarial input, the input itself where all failed.
    found           (n,), its class.
    """

    p: float
    attacks: tuple[Attacked, ...]
    distortion: Array
    names: tuple[str, ...]
    adversarial: torch.Tensor = field(repr=False)
    found: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.distortion)

    @property
    def success(self) -> npt.NDArray[np.bool_]:
        """Whether any attack succeeded."""
        return np.isfinite(self.distortion)

    @property
    def seconds(self) -> float:
        """Time of all attacks together."""
        return sum(attacked.seconds for attacked in self.attacks)


def best_attack(
    classifier: Classifier,
    images: Any,
    names: str | AttackFunction | Sequence[str | AttackFunction] = "best",
    *,
    p: float | str = 2.0,
    targets: Any = None,
    preset: str = "strong",
    seed: int = 0,
    chunk_size: int | None = None,
) -> BestAttack:
    """Run several attacks and keep the smallest distortion in norm p, any p >= 1; other arguments as `attack` has them.

    names       attacks, or "best": what is tightest for its time in that norm; also functions of your own.
    preset      "strong", "paper" or "quick".

    >>> classifier = Classifier(torch.nn.Linear(4, 3), bounds=(-4.0, 4.0))
    >>> best = best_attack(classifier, torch.rand(2, 4), p=1.5, preset="quick")
    >>> best.success, len(best.names)
    (array([ True,  True]), 2)
    """
    norm = parse_norm(p)
    if isinstance(names, str):
        names = BEST.get(norm, BEST[2.0]) if names == "best" else (names,)
    elif callable(names):
        names = (names,)
    if not names:
        raise SettingError(f"names={names!r}: name at least one of {', '.join(ATTACKS)}, or say 'best'")
    efforts = {name: _checked(name, norm, preset, None, None, seed)[0] for name in names}
    if any(isinstance(name, str) for name in names):
        load_foolbox()
    goal = make_goal(classifier, images, targets=targets, p=norm, seed=seed)
    chunk_size = resolved_chunk_size(classifier, goal.x[0], chunk_size, workers=1)
    attacks = tuple(_attack(goal, name, norm, effort, seed, chunk_size) for name, effort in efforts.items())
    sizes = np.stack(
        [np.where(each.success, distances(goal.x, each.adversarial, norm).cpu().numpy(), math.inf) for each in attacks]
    )
    winners = sizes.argmin(0)
    rows = range(len(goal))
    distortion = sizes[winners, list(rows)]
    return BestAttack(
        p=norm,
        attacks=attacks,
        distortion=distortion,
        names=tuple(attacks[winners[i]].attack if np.isfinite(distortion[i]) else "" for i in rows),
        adversarial=torch.stack([attacks[winners[i]].adversarial[i] for i in rows]),
        found=np.array([attacks[winners[i]].found[i] for i in rows], dtype=np.int64),
    )
