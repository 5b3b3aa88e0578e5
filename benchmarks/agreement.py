"""Does a score rank inputs as attacks do? `python -m benchmarks.agreement --folder NETWORKS [--work DIR] [--out docs]`.

NETWORKS is what `python -m benchmarks.trained_networks` made. For each network and norm, scores of 16 inputs are
compared with a referee: the smallest distance that any attack in ATTACKS found. Scores are about the whole ball around
an input, so attacks may leave the input box.

Every (network, norm, method, seed) is a piece of work, kept as one file in --work, so an interrupted run goes on;
--again computes pieces anew. Referees depend on the networks and attacks alone. With --only table, nothing is
computed: what --work holds is summarised.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

import cleverscore as cs
from benchmarks.attacks import Whole
from benchmarks.trained_networks import LARGE, NAMES, ROBUST, load, role
from cleverscore.balls import LpBall
from cleverscore.budget import Budget
from cleverscore.estimators.ascent.profile_search import Effort as SearchEffort
from cleverscore.estimators.ascent.profile_search import searches
from cleverscore.subjects import prepare
from cleverscore.tuning import tuned

Piece = dict[str, Any]
NETWORKS = tuple(name for name in NAMES if name not in LARGE)
NORMS = {"1": 1.0, "2": 2.0, "inf": math.inf}
# l1 takes longest and says least: one network of each of six kinds.
L1_NETWORKS = ("mlp-relu", "mlp-gelu-squared", "robust-mlp-l2", "cnn-max-pool", "mnist-net_256x4", "zoo:mnist-mlp")
RADII = {1.0: 50.0, 2.0: 5.0, math.inf: 5.0}  # l1 distances are larger than the default radius, which caps scores
ROUNDING = 1e-4  # a score is above the referee if it is so by more than this share: what bisections leave
FAR = 3.0  # times the first-order distance: a guess where a quick attack moved no input
OTHERS = 64  # further inputs, towards which attacks start


# Attacks


@dataclass(frozen=True)
class Effort:
    """How long attacks run.

    steps, sizes, gammas        of FMN and DDN: steps of a run, and a run for each first step size or factor.
    restarts, rounds, descent   of PGD: starts per input, balls that shrink, steps of a descent.
    beyond, between             starts per input, and steps, of FMN from points of other classes.
    """

    steps: int = 1000
    sizes: tuple[float, ...] = (0.2, 1.0)
    gammas: tuple[float, ...] = (0.05,)
    restarts: int = 10
    rounds: int = 8
    descent: int = 60
    beyond: tuple[int, int] = (8, 200)
    between: tuple[int, int] = (16, 300)


LONG = Effort()
MODERATE = Effort(steps=300, sizes=(0.5,), restarts=8, rounds=5, descent=40, beyond=(4, 150), between=(10, 200))
SHORT = Effort(steps=150, sizes=(0.5,), restarts=4, rounds=3, descent=30, beyond=(2, 100), between=(5, 120))
SHORTEST = Effort(steps=100, sizes=(0.5,), restarts=3, rounds=2, descent=25, beyond=(2, 60), between=(4, 80))
EFFORTS = {
    "zoo:cifar-cnn": SHORTEST, "zoo:cifar-dd": SHORTEST, "zoo:cifar-brelu": SHORTEST,
    "zoo:mnist-cnn": SHORT, "zoo:mnist-dd": SHORT, "zoo:mnist-brelu": SHORT, "cifar-residual": SHORT,
    "cifar-average-pool": SHORT, "vit": MODERATE, "cnn-max-pool": MODERATE,
}  # fmt: skip


def without_box(classifier: cs.Classifier) -> cs.Classifier:
    free = copy.copy(classifier)
    free.bounds = None
    return free


def load_foolbox() -> Any:
    """The library, without the warning about the scipy module that it imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import foolbox
    return foolbox


def distances(x: torch.Tensor, y: torch.Tensor, p: float) -> torch.Tensor:
    """||y - x||_p of each row, in double: (n, *shape) -> (n,)."""
    return torch.linalg.vector_norm((y.double() - x.double()).flatten(1), p, dim=1)


# Own code and not the package's, with which scores share their search for the boundary.
@dataclass(frozen=True)
class Goal:
    """Inputs `x` (n, *shape) that are to leave their `classes` (n,)."""

    classifier: cs.Classifier
    x: torch.Tensor
    classes: torch.Tensor

    @property
    def column(self) -> tuple[int, ...]:
        """The shape in which one number per input is broadcast over it."""
        return (-1, *[1] * (self.x.ndim - 1))

    def rows(self, places: torch.Tensor) -> Goal:
        return replace(self, x=self.x[places], classes=self.classes[places])

    def margins(self, points: torch.Tensor) -> torch.Tensor:
        """f_c - max f_j, and a little more, so that signs do not change from batch to batch: (n, *shape) -> (n,)."""
        logits = self.classifier.logits(points)
        own = logits.gather(1, self.classes[:, None])[:, 0]
        margins = own - logits.scatter(1, self.classes[:, None], -math.inf).amax(1)
        return margins + 8.0 * torch.finfo(logits.dtype).eps * logits.detach().abs().amax(1)

    def margins_and_gradients(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        points = points.detach().requires_grad_()
        with torch.enable_grad():
            margins = self.margins(points)
        (gradients,) = torch.autograd.grad(margins, points, torch.ones_like(margins))
        return margins.detach(), gradients

    @torch.no_grad()
    def reached(self, points: torch.Tensor) -> torch.Tensor:
        """Whether the network puts each point into another class."""
        logits = torch.cat([self.classifier.logits(part) for part in points.split(64)])
        return torch.isfinite(logits).all(1) & (logits.argmax(1) != self.classes)


@torch.no_grad()
def bisected(goal: Goal, points: torch.Tensor) -> torch.Tensor:
    """On the line from each input to a point of another class, the nearest point found in another class."""
    best = points
    inside, outside = torch.zeros(len(points)), torch.ones(len(points))
    for _ in range(20):
        middle = 0.5 * (inside + outside)
        tried = goal.x + middle.reshape(goal.column) * (points - goal.x)
        good = goal.margins(tried) < 0.0
        best = torch.where(good.reshape(goal.column), tried, best)
        inside, outside = torch.where(good, inside, middle), torch.where(good, middle, outside)
    return best


@torch.no_grad()
def refined(goal: Goal, points: torch.Tensor, *, p: float, steps: int) -> torch.Tensor:
    """Points of other classes moved nearer: towards the nearest point of the linearised boundary, where that helps.

    With margin m and gradient w at y, that point is x - max(0, m + w.(x - y)) v, v the shortest vector with w.v = 1.
    """
    best = bisected(goal, points)
    margins, slopes = goal.margins_and_gradients(best)
    share, sizes = torch.ones(len(best)), distances(goal.x, best, p)
    for _ in range(steps):
        w, y, x = slopes.double().flatten(1), best.double().flatten(1), goal.x.double().flatten(1)
        need = (margins.double() + (w * (x - y)).sum(1)).clamp_min(0.0)
        v = steepest(w, p, torch.zeros(len(w)))
        v = v / (w * v).sum(1, keepdim=True).clamp_min(1e-300)
        nearest = (x - need[:, None] * v).reshape(best.shape).to(best)
        tried = best + share.reshape(goal.column) * (nearest - best)
        new_margins, new_slopes = goal.margins_and_gradients(tried)
        new_sizes = distances(goal.x, tried, p)
        better = (new_margins < 0.0) & (new_sizes < sizes)
        here = better.reshape(goal.column)
        best, slopes = torch.where(here, tried, best), torch.where(here, new_slopes, slopes)
        margins, sizes = torch.where(better, new_margins, margins), torch.where(better, new_sizes, sizes)
        share = torch.where(better, (2.0 * share).clamp_max(1.0), 0.5 * share)
        if bool((share < 2.0**-12).all()):
            break
    return best


@dataclass(frozen=True)
class Case:
    """One network, norm and batch of inputs.

    sizes   (n,): rough distances to the boundary in norm p, from which attacks take their units.
    others  (m, *shape): more inputs of the data.
    """

    classifier: cs.Classifier
    goal: Goal
    p: float
    sizes: torch.Tensor
    others: torch.Tensor
    effort: Effort

    @property
    def x(self) -> torch.Tensor:
        return self.goal.x

    def repeated(self, count: int) -> Case:
        """Each input `count` times."""
        rows = torch.arange(len(self.x)).repeat_interleave(count)
        return replace(self, goal=self.goal.rows(rows), sizes=self.sizes[rows])

    def column(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self.x).reshape(self.goal.column)

    def scales(self) -> torch.Tensor:
        """(n,): l2 sizes of offsets of norm `sizes`, if all coordinates were alike (p = inf) or as they come (p < inf).

        foolbox's steps are l2 lengths meant for distances of about one.
        """
        return self.sizes * math.sqrt(self.x[0].numel()) if math.isinf(self.p) else self.sizes


def make_case(classifier: cs.Classifier, x: torch.Tensor, others: torch.Tensor, p: float, effort: Effort) -> Case:
    """Sizes are those of a quick attack, then of short descents in smaller balls: some networks fool quick attacks."""
    free = without_box(classifier)
    with torch.no_grad():
        goal = Goal(free, x, free.logits(x).argmax(1))
    quick = cs.best_attack(free, x, p=p, preset="quick").distortion
    found = np.isfinite(quick)
    # At saturated inputs the first-order distance can be anything; other inputs of the network tell more.
    typical = np.median(quick[found]) if found.any() else FAR * np.median(slope(free, x, p).scores)
    case = Case(free, goal, p, torch.from_numpy(np.where(found, quick, typical)), others, effort)
    torch.manual_seed(0)
    _nearest, sizes = shrunk(case, restarts=4, steps=20, rounds=10, factor=0.7)
    return replace(case, sizes=torch.minimum(case.sizes, sizes))


class Scaled(torch.nn.Module):
    """The classifier in coordinates u: x = x0 + scale (u - 1/2), row by row, with logits divided by a temperature."""

    def __init__(self, case: Case, scales: torch.Tensor, temperature: torch.Tensor | float = 1.0) -> None:
        super().__init__()
        self.case, self.scales, self.temperature = case, case.column(scales), temperature

    def inputs(self, u: torch.Tensor) -> torch.Tensor:
        return self.case.x + self.scales * (u - 0.5)

    def units(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.case.x) / self.scales + 0.5

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return self.case.classifier.logits(self.inputs(u)) / self.temperature


def _foolbox(
    case: Case, method: Any, *, temperature: torch.Tensor | float = 1.0, starts: torch.Tensor | None = None
) -> torch.Tensor:
    """What one of foolbox's attacks finds, in the classifier's units."""
    foolbox = load_foolbox()
    model = Scaled(case, case.scales(), temperature).eval()
    wrapped = foolbox.PyTorchModel(model, bounds=(-100.0, 100.0), device="cpu")
    more = {}
    if starts is not None:
        from eagerpy.astensor import astensor  # foolbox takes its own tensors here

        more["starting_points"] = astensor(model.units(starts))
    centre = torch.full_like(case.x, 0.5)
    return model.inputs(method.run(wrapped, centre, foolbox.Misclassification(case.goal.classes), **more))


def _fmn(p: float, **settings: Any) -> Any:
    """FMN (Pintor et al., 2021), with the projection in l2 that foolbox leaves out."""
    attacks = load_foolbox().attacks

    class Projecting(attacks.L2FMNAttack):
        def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
            offset = (x - x0).raw
            factor = (epsilon.raw / offset.flatten(1).norm(dim=1).clamp_min(1e-12)).clamp_max(1.0).to(offset.dtype)
            return x0 + type(x)(offset * factor.reshape(-1, *[1] * (offset.ndim - 1)))

    kinds = {1.0: attacks.L1FMNAttack, 2.0: Projecting, math.inf: attacks.LInfFMNAttack}
    return kinds[p](**settings)


def fmn(case: Case, seed: int) -> list[torch.Tensor]:
    return [_foolbox(case, _fmn(case.p, steps=case.effort.steps, max_stepsize=size)) for size in case.effort.sizes]


def beyond(case: Case, seed: int) -> list[torch.Tensor]:
    """FMN from where descents in larger balls end: from the input alone it misses near slivers of other classes."""
    count, steps = case.effort.beyond
    torch.manual_seed(seed)
    many = case.repeated(count)
    # Every other ball has the size that is usual for the network: an input's own may be far too large.
    usual = (torch.arange(count) // 2 % 2 == 1).repeat(len(case.x))
    radii = torch.where(usual, case.sizes.median(), many.sizes)
    radii = radii * torch.linspace(1.3, 3.0, count, dtype=torch.float64).repeat(len(case.x))
    ends = descended(many.goal, radii, aims(case, count).reshape(-1), case.p, 30)
    return _fmn_from(case, ends, torch.arange(len(case.x)).repeat_interleave(count), steps)


def between(case: Case, seed: int) -> list[torch.Tensor]:
    """FMN from the boundary on the way to inputs of other classes, which needs no gradient at the input.

    On saturated networks other attacks can miss the nearest boundary by a factor of two. The nearest start of each
    class comes first, then the nearest of any class.
    """
    count, steps = case.effort.between
    with torch.no_grad():
        classes = case.classifier.logits(case.others).argmax(1)
    starts, rows = [], []
    for row in range(len(case.x)):
        there = classes != case.goal.classes[row]
        goal = case.goal.rows(torch.full((int(there.sum()),), row))
        ends = bisected(goal, case.others[there])
        ends = goal.x + 1.01 * (ends - goal.x)  # FMN needs starts that are beyond the boundary for certain
        order = distances(goal.x, ends, case.p).argsort()
        rank = torch.zeros(len(order), dtype=torch.long)  # among those of its class
        for place, own in enumerate(classes[there][order].tolist()):
            rank[place] = (classes[there][order][:place] == own).sum()
        chosen = order[(rank > 0).long().argsort(stable=True)[:count]]
        starts.append(ends[chosen])
        rows += [row] * len(chosen)
    return _fmn_from(case, torch.cat(starts), torch.tensor(rows), steps)


def _fmn_from(case: Case, starts: torch.Tensor, rows: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """FMN from several points for each input: `rows` says whose; those that are not in another class are left out."""
    many = replace(case, goal=case.goal.rows(rows), sizes=case.sizes[rows])
    model = Scaled(many, many.scales())
    with torch.no_grad():  # as foolbox will ask, in coordinates that round
        good = model(model.units(starts)).argmax(1) != many.goal.classes
    if not bool(good.any()):
        return []
    many = replace(many, goal=many.goal.rows(good), sizes=many.sizes[good])
    starts, rows = starts[good], rows[good]
    places = torch.cat([torch.arange(int((rows == row).sum())) for row in rows.unique()])
    found = []
    for size in (0.3, 1.0):
        points = _foolbox(many, _fmn(case.p, steps=steps, max_stepsize=size), starts=starts)
        for place in range(int(places.max()) + 1):
            candidates = case.x.clone()
            candidates[rows[places == place]] = points[places == place]
            found.append(candidates)
    return found


def ddn(case: Case, seed: int) -> list[torch.Tensor]:
    """DDN (Rony et al., 2019); its cross-entropy needs margins that floats resolve, hence a temperature."""
    attack = load_foolbox().attacks.DDNAttack
    with torch.no_grad():
        temperature = (case.goal.margins(case.x) / 5.0).clamp_min(1e-6)[:, None]
    methods = (attack(steps=case.effort.steps, gamma=gamma) for gamma in case.effort.gammas)
    return [_foolbox(case, method, temperature=temperature) for method in methods]


def best(case: Case, seed: int) -> list[torch.Tensor]:
    """The package's own best attack, at its strongest."""
    return [cs.best_attack(case.classifier, case.x, p=case.p, preset="long", seed=seed).adversarial]


def projected(offset: torch.Tensor, radius: torch.Tensor, p: float) -> torch.Tensor:
    """The nearest point (l2) of the lp ball: (n, d), (n,) -> (n, d)."""
    radius = radius[:, None]
    if math.isinf(p):
        return offset.clamp(-radius, radius)
    if p == 2.0:
        return offset * (radius / offset.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
    size = offset.abs()  # Duchi et al. (2008): all shrink by the same amount
    ordered = size.sort(1, descending=True).values
    excess = (ordered.cumsum(1) - radius) / torch.arange(1, size.shape[1] + 1)
    last = (ordered > excess).sum(1, keepdim=True) - 1
    inside = size.sum(1, keepdim=True) <= radius
    return torch.where(inside, offset, offset.sign() * (size - excess.gather(1, last)).clamp_min(0.0))


def steepest(gradient: torch.Tensor, p: float, kept: torch.Tensor) -> torch.Tensor:
    """A step of lp norm one along the gradient; in l1 over the share `kept` of coordinates (Tramèr & Boneh, 2019)."""
    if math.isinf(p):
        return gradient.sign()
    if p == 2.0:
        return gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-12)
    ordered = gradient.abs().sort(1, descending=True).values
    count = (kept * gradient.shape[1]).long().clamp_min(1)
    step = gradient.sign() * (gradient.abs() >= ordered.gather(1, count[:, None] - 1))
    return step / step.abs().sum(1, keepdim=True).clamp_min(1.0)


def pgd(case: Case, seed: int) -> list[torch.Tensor]:
    """Descents of the margin from many starts, in balls that shrink."""
    torch.manual_seed(seed)
    effort = case.effort
    nearest, _sizes = shrunk(case, restarts=effort.restarts, steps=effort.descent, rounds=effort.rounds, factor=0.85)
    return [nearest]


def shrunk(case: Case, *, restarts: int, steps: int, rounds: int, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest points that descents find and their distances, (n, *shape) and (n,), infinite where there is none.

    The first ball has the size of the case. A found point makes the ball `factor` times its distance; where none is
    found there, the next one is nearer to that distance.
    """
    count = len(case.x)
    nearest = case.x.clone()
    smallest = torch.full((count,), math.inf, dtype=torch.float64)
    targets = aims(case, restarts)
    ball, factors = case.sizes.clone(), torch.full((count,), factor, dtype=torch.float64)
    active = torch.arange(count)
    for _ in range(rounds):
        every = case.goal.rows(active.repeat_interleave(restarts))
        ends = descended(every, ball[active].repeat_interleave(restarts), targets[active].reshape(-1), case.p, steps)
        good = every.reached(ends)
        if bool(good.any()):
            # All of them: the nearest after a descent is often not the nearest after polishing.
            ends[good] = refined(every.rows(good), ends[good], p=case.p, steps=30)
        sizes = torch.where(good, distances(every.x, ends, case.p), math.inf).reshape(-1, restarts)
        found, places = sizes.min(1)
        better = found < smallest[active]
        chosen = ends.reshape(len(active), restarts, *case.x.shape[1:])[torch.arange(len(active)), places]
        nearest[active[better]], smallest[active[better]] = chosen[better], found[better]
        known = torch.isfinite(smallest)
        failed = torch.ones(count, dtype=torch.bool)
        failed[active] = ~better
        factors = torch.where(known & failed, 0.5 * (1.0 + factors), factors)
        ball = torch.where(known, factors * smallest, 2.0 * ball)
        active = active[(~known | (factors < 0.99))[active]]
        if len(active) == 0:
            break
    return nearest, smallest


@torch.no_grad()
def aims(case: Case, count: int) -> torch.Tensor:
    """Whose margin each of `count` starts follows, (n, count): of the nearest class (-1) and of runners-up in turn."""
    order = case.classifier.logits(case.x).argsort(1, descending=True)[:, 1:]
    ranks = torch.arange(count) // 2 % order.shape[1]
    return torch.where(torch.arange(count) % 2 == 0, -1, order[:, ranks])


def descended(goal: Goal, radii: torch.Tensor, targets: torch.Tensor, p: float, steps: int) -> torch.Tensor:
    """Of a descent from each row the point of the smallest margin; the first row of an input starts at the input.

    targets     (n,): whose margin to follow, -1 for the nearest class.
    """
    x, own, flat, radii = goal.x, goal.classes, goal.x.flatten(1), radii.to(goal.x)[:, None]
    if math.isinf(p):
        noise = 2.0 * torch.rand_like(flat) - 1.0
    else:
        noise = torch.randn_like(flat)
        noise = noise / torch.linalg.vector_norm(noise, p, dim=1, keepdim=True)
    same = torch.cat([torch.tensor([False]), (flat[1:] == flat[:-1]).all(1)])
    offset = noise * radii * same[:, None]
    kept = 10.0 ** -(1.0 + 1.5 * torch.rand(len(flat)))
    lowest, ends = torch.full((len(flat),), math.inf), offset.clone()
    for step in range(steps + 1):
        points = (flat + offset).reshape(x.shape).requires_grad_()
        logits = goal.classifier.logits(points)
        mine = logits.gather(1, own[:, None])[:, 0]
        margins = mine - logits.scatter(1, own[:, None], -math.inf).amax(1)
        aimed = mine - logits.gather(1, targets.clamp_min(0)[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(torch.where(targets < 0, margins, aimed).sum(), points)
        margins = margins.detach()
        ends = torch.where((margins < lowest)[:, None], offset, ends)
        lowest = torch.minimum(lowest, margins)
        rate = 0.01 + 0.25 * (1.0 + math.cos(math.pi * step / steps))
        offset = projected(offset - rate * radii * steepest(gradient.flatten(1), p, kept), radii[:, 0], p)
    return (flat + ends).reshape(x.shape)


# Candidates from each attack; every list is judged by the same forward passes, bisections and polishing.
ATTACKS: dict[str, Callable[[Case, int], list[torch.Tensor]]] = {
    "best": best,
    "fmn": fmn,
    "ddn": ddn,
    "pgd": pgd,
    "beyond": beyond,
    "between": between,
}


def runs(attack: str, p: float) -> bool:
    """DDN is for l2 alone."""
    return attack != "ddn" or p == 2.0


def judged(case: Case, candidates: Sequence[torch.Tensor]) -> list[float]:
    """The distance of the nearest candidate in another class, bisected and polished; infinite where there is none."""
    smallest = torch.full((len(case.x),), math.inf, dtype=torch.float64)
    for points in candidates:
        points = points.detach().to(case.x)
        good = case.goal.reached(points)
        if not bool(good.any()):
            continue
        goal = case.goal.rows(good)
        nearer = refined(goal, points[good], p=case.p, steps=60)
        still = goal.reached(nearer)
        nearer = torch.where(still.reshape(goal.column), nearer, points[good])
        smallest[good] = torch.minimum(smallest[good], distances(goal.x, nearer, case.p))
    return smallest.tolist()


def attacked(name: str, case: Case, seed: int) -> Piece:
    began = time.process_time()
    found = judged(case, ATTACKS[name](case, seed))
    share = (time.process_time() - began) / len(found)
    settings = {"effort": asdict(case.effort), "others": len(case.others)}
    return {"scores": found, "seconds": [share] * len(found), "gradients": None, "settings": settings}


# Scores


@dataclass(frozen=True)
class Scored:
    """Scores of a batch, with CPU seconds and gradients per input, and what else should be kept.

    CPU seconds of one thread are what the clock shows on an idle machine, and hold on a busy one.
    """

    scores: list[float]
    seconds: list[float]
    gradients: list[float]
    settings: dict[str, Any]
    more: dict[str, list[float]]


def _clever(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, **settings: Any) -> Scored:
    settings = {"radius": RADII[p], **settings}
    began = time.process_time()
    scores = cs.clever(classifier, x, p=p, seed=seed, workers=1, progress=False, **settings)
    share = (time.process_time() - began) / len(x)
    more = {name: [float(getattr(head, name)) for head in scores] for name in ("upper", "low")}
    work = [float(head.gradients) for head in scores]  # of all targets
    return Scored([float(value) for value in scores.values], [share] * len(x), work, settings, more)


def sharp(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    return _clever(classifier, x, p, seed, method="sharp")


def sharp_all(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    return _clever(classifier, x, p, seed, method="sharp", targets="all")


def sharp_box(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """Fewer ways are valid in the box, so that no score may be smaller."""
    return _clever(classifier, x, p, seed, method="sharp", region="box")


def sharp_near(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """In a ball that holds half of the inputs' boundaries; `more` has the radius, to which other scores are cut."""
    radius = float(np.median(_clever(classifier, x, p, seed, method="sharp").scores))
    found = _clever(classifier, x, p, seed, method="sharp", radius=radius)
    return replace(found, more={"radius": [radius] * len(x)})


def sharp_alone(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """Ascents across shells from random directions: no descent gives starts or an upper limit."""
    examples = prepare(classifier, x, targets="untargeted", seed=seed)
    began = time.process_time()
    found = searches(
        tuned(classifier, x[:2]), examples, ball=LpBall(p, RADII[p]), seed=seed, budget=Budget.parse(None),
        smallest_only=True, chunk_size=64, workers=1, effort=SearchEffort(from_crossings=False),
    )  # fmt: skip
    profiles = [search.profiles() for _position, search in found]
    share = (time.process_time() - began) / len(x)
    work = [float(sum(profile.gradients for profile in each)) for each in profiles]
    scores = [min(profile.distance for profile in each) for each in profiles]
    return Scored(scores, [share] * len(x), work, {"radius": RADII[p]}, {})


def sharp_25(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """25 times the work: the smallest score of 25 other seeds."""
    every = [_clever(classifier, x, p, 100 + other, method="sharp") for other in range(25)]
    scores = np.min([each.scores for each in every], axis=0).tolist()
    return replace(every[0], scores=scores, gradients=np.sum([each.gradients for each in every], axis=0).tolist())


def paper(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    return _clever(classifier, x, p, seed, blocks=40, block_size=128, tolerance=0)


def art(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """ART's untargeted score of one input after the other."""
    from art.estimators.classification import PyTorchClassifier
    from art.metrics import clever_u

    module = torch.nn.Sequential(Whole(classifier)).eval()
    with torch.no_grad():
        classes = classifier(x[:1]).shape[1]
    estimator = PyTorchClassifier(
        module, loss=torch.nn.CrossEntropyLoss(), input_shape=tuple(x.shape[1:]), nb_classes=classes
    )
    blocks, size, pool = options["art"]
    np.random.seed(seed)  # ART draws from it
    scores, seconds = [], []
    for image in x.numpy():
        began = time.process_time()
        value = clever_u(
            estimator, image, blocks, size, radius=RADII[p], norm=p if math.isinf(p) else int(p), pool_factor=pool,
            verbose=False,
        )  # fmt: skip
        scores.append(float(value))
        seconds.append(time.process_time() - began)
    settings = {"nb_batches": blocks, "batch_size": size, "pool_factor": pool, "radius": RADII[p]}
    return Scored(scores, seconds, [2.0 * (classes - 1) * size * pool] * len(x), settings, {})


def margin(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """A null baseline: the margin between the two largest logits."""
    began = time.process_time()
    with torch.no_grad():
        largest = classifier(x).double().topk(2, dim=1).values
    share = (time.process_time() - began) / len(x)
    return Scored((largest[:, 0] - largest[:, 1]).tolist(), [share] * len(x), [0.0] * len(x), {}, {})


def slope(
    classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int = 0, options: dict[str, Any] | None = None
) -> Scored:
    """A null baseline: the smallest margin / ||gradient of the margin||_q at the input over all other classes."""
    began = time.process_time()
    dual = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[p]
    points = x.detach().clone().requires_grad_()
    logits = classifier.logits(points)
    own = logits.argmax(1)
    mine = logits.gather(1, own[:, None])
    smallest = torch.full((len(x),), math.inf, dtype=torch.float64)
    for j in range(logits.shape[1]):
        margins = mine[:, 0] - logits[:, j]
        (gradients,) = torch.autograd.grad(margins.sum(), points, retain_graph=True)
        norms = torch.linalg.vector_norm(gradients.double().flatten(1), dual, dim=1)
        ratios = margins.detach().double() / norms.clamp_min(1e-300)
        smallest = torch.where(own == j, smallest, torch.minimum(smallest, ratios))
    share = (time.process_time() - began) / len(x)
    return Scored(smallest.tolist(), [share] * len(x), [logits.shape[1] - 1.0] * len(x), {}, {})


METHODS: dict[str, Callable[[cs.Classifier, torch.Tensor, float, int, dict[str, Any]], Scored]] = {
    "sharp": sharp,
    "sharp-all": sharp_all,
    "sharp-box": sharp_box,
    "sharp-near": sharp_near,
    "sharp-25": sharp_25,
    "sharp-alone": sharp_alone,
    "paper": paper,
    "art": art,
    "margin": margin,
    "slope": slope,
}
SEEDED = ("sharp",)
# Inputs where a method takes minutes for each: (method, network) -> inputs.
FEWER = {
    ("paper", "zoo:cifar-cnn"): 6, ("paper", "zoo:cifar-dd"): 6, ("paper", "zoo:cifar-brelu"): 6,
}  # fmt: skip
ART_NETWORKS = ("mlp-relu", "mlp-gelu-squared", "robust-mlp-l2", "mnist-net_256x4", "zoo:mnist-mlp")
NESTED_NETWORKS = (*L1_NETWORKS, "mnist-net_256x2", "mnist-net_256x6", "ffnnSIGMOID__Point_6x200", "mlp-silu")
# What takes long, or says the same everywhere: method -> networks.
ONLY_FOR = {
    "sharp-25": L1_NETWORKS, "sharp-alone": NESTED_NETWORKS, "sharp-near": NESTED_NETWORKS, "art": ART_NETWORKS,
}  # fmt: skip


# Pieces


@dataclass(frozen=True)
class Task:
    """One piece of work."""

    network: str
    norm: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.network}_{self.norm}_{self.method}_{self.seed}.json".replace(":", "-")


@lru_cache(maxsize=4)
def _loaded(name: str, folder: str, count: int) -> tuple[cs.Classifier, torch.Tensor, torch.Tensor]:
    return load(name, folder, count)


@lru_cache(maxsize=1)
def source() -> str:
    """A digest of the package's code, by which pieces of different versions are told apart."""
    digest = hashlib.sha256()
    root = Path(cs.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def compute(task: Task, folder: str, inputs: int, options: dict[str, Any], work: str) -> tuple[Task, float, str]:
    """Compute one piece and keep it; an error is reported, not raised, so that other pieces go on."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    caught: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            classifier, every, _labels = _loaded(task.network, folder, inputs + OTHERS)
            x, p = every[:inputs], NORMS[task.norm]
            if task.method.startswith("attack-"):
                case = make_case(classifier, x, every[inputs:], p, EFFORTS.get(task.network, LONG))
                piece = attacked(task.method.removeprefix("attack-"), case, task.seed)
            else:
                x = x[: FEWER.get((task.method, task.network), inputs)]
                piece = asdict(METHODS[task.method](classifier, x, p, task.seed, options))
            caught = sorted(
                {str(warning.message) for warning in seen if issubclass(warning.category, cs.CleverWarning)}
            )
    except Exception as error:
        return task, time.perf_counter() - began, f"{type(error).__name__}: {error}"
    piece = {
        **asdict(task), "inputs": len(x), **piece, "warnings": caught, "source": source(), "torch": torch.__version__,
        "wall_seconds": time.perf_counter() - began, "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    path = Path(work) / task.name
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(piece) + "\n")
    part.replace(path)
    return task, time.perf_counter() - began, ""


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """All pieces that were asked for, referees first."""
    found = []
    pairs = [
        (network, norm)
        for network in arguments.networks
        for norm in arguments.norms
        if norm != "1" or network in L1_NETWORKS
    ]
    if arguments.only in (None, "referees"):
        found += [
            Task(network, norm, f"attack-{attack}", 0)
            for network, norm in pairs
            for attack in arguments.attacks
            if runs(attack, NORMS[norm])
        ]
    if arguments.only in (None, "scores"):
        found += [
            Task(network, norm, method, seed)
            for network, norm in pairs
            for method in arguments.methods
            for seed in range(arguments.seeds if method in SEEDED else 1)
            if network in ONLY_FOR.get(method, (network,))
        ]
    return found


def run(arguments: argparse.Namespace) -> None:
    arguments.work.mkdir(parents=True, exist_ok=True)
    wanted = [task for task in tasks(arguments) if arguments.again or not (arguments.work / task.name).is_file()]
    options = {"art": tuple(arguments.art)}
    rest = (str(arguments.folder), arguments.inputs, options, str(arguments.work))
    print(f"{len(wanted)} pieces to compute", flush=True)

    def tell(task: Task, seconds: float, error: str) -> None:
        print(f"{task.network} l{task.norm} {task.method} {task.seed}: {seconds:.1f} s {error}", flush=True)

    if arguments.processes == 1:
        for task in wanted:
            tell(*compute(task, *rest))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        for done in as_completed([pool.submit(compute, task, *rest) for task in wanted]):
            tell(*done.result())


# Tables


def read(work: Path) -> dict[Task, Piece]:
    pieces = (json.loads(path.read_text()) for path in sorted(work.glob("*.json")))
    return {Task(piece["network"], piece["norm"], piece["method"], piece["seed"]): piece for piece in pieces}


def referee(pieces: dict[Task, Piece], network: str, norm: str) -> tuple[np.ndarray, dict[str, int]] | None:
    """The smallest distance of each input over all attacks that were run, and how often each attack found it."""
    found = {
        task.method.removeprefix("attack-"): piece["scores"]
        for task, piece in pieces.items()
        if (task.network, task.norm) == (network, norm) and task.method.startswith("attack-")
    }
    if not found:
        return None
    count = min(len(scores) for scores in found.values())
    sizes = np.array([scores[:count] for scores in found.values()])
    winners = [list(found)[i] for i in sizes.argmin(0)]
    return sizes.min(0), {name: winners.count(name) for name in found}


def correlation(scores: np.ndarray, sizes: np.ndarray) -> float:
    if len(scores) < 4 or np.ptp(scores) == 0.0 or np.ptp(sizes) == 0.0:
        return math.nan
    return float(spearmanr(scores, sizes).statistic)


def compared(pieces: Sequence[Piece], sizes: np.ndarray) -> dict[str, Any]:
    """One method on one network in one norm: its runs (one per seed) against the referee."""
    count = min([len(sizes), *(len(piece["scores"]) for piece in pieces)])
    scores = np.array([piece["scores"][:count] for piece in pieces], dtype=np.float64)
    usable = np.isfinite(sizes[:count]) & np.isfinite(scores).all(0)
    scores, sizes = scores[:, usable], sizes[:count][usable]
    ratios = scores / sizes
    ranks = [correlation(row, sizes) for row in scores]
    spread = scores.max(0) / np.maximum(scores.min(0), 1e-300)
    return {
        "inputs": int(usable.sum()),
        "missing": int(count - usable.sum()),
        "seeds": len(pieces),
        "spearman": float(np.mean(ranks)),
        "smallest_spearman": float(np.min(ranks)),
        "median_ratio": float(np.median(ratios)),
        "smallest_ratio": float(ratios.min()),
        "largest_ratio": float(ratios.max()),
        "above": float((ratios > 1.0 + ROUNDING).mean()),
        "above_3": float((ratios > 1.03).mean()),
        "ratios": ratios.tolist(),
        "scores": scores.tolist(),
        "referee": sizes.tolist(),
        "seed_spread": spread.tolist(),
        "seconds": float(np.mean([piece["seconds"] for piece in pieces])),
        "gradients": float(np.mean([piece["gradients"] for piece in pieces])),
        "settings": pieces[0]["settings"],
        "sources": sorted({piece["source"] for piece in pieces}),
        "warnings": sorted({text for piece in pieces for text in piece["warnings"]}),
    }


def assembled(pieces: dict[Task, Piece], networks: Sequence[str], norms: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for network in networks:
        for norm in norms:
            judge = referee(pieces, network, norm)
            if judge is None:
                continue
            sizes, winners = judge
            usable = sizes[np.isfinite(sizes)]
            low, high = np.quantile(usable, (0.25, 0.75))
            row: dict[str, Any] = {
                "network": network,
                "role": role(network),
                "robust": network in ROBUST,
                "norm": norm,
                "referee_median": float(np.median(usable)),
                "referee_spread": float((high - low) / np.median(usable)),
                "referee_failed": int(len(sizes) - len(usable)),
                "nearest_by": winners,
                "methods": {},
            }
            for method in METHODS:
                repeats = [
                    piece
                    for task, piece in sorted(pieces.items(), key=lambda item: item[0].seed)
                    if (task.network, task.norm, task.method) == (network, norm, method)
                ]
                if repeats:
                    row["methods"][method] = compared(repeats, sizes)
            one = pieces.get(Task(network, norm, "sharp", 0))
            others = {
                name: pieces.get(Task(network, norm, f"sharp-{name}", 0)) for name in ("all", "box", "near", "25")
            }
            if one:
                row |= {f"sharp_{name}": nested(name, one, other) for name, other in others.items() if other}
            if row["methods"]:
                rows.append(row)
    return rows


def nested(name: str, one: Piece, other: Piece) -> list[float]:
    """What a sharp run with another set of points, targets or seeds makes of each input's score, as a ratio.

    all     untargeted score / smallest over all targets.
    box     score in the box / in the ball.
    near    score in a smaller ball / what it should be, the smaller of score and radius.
    25      smallest of 25 scores / `score_low`.
    """
    score, found = (np.array(piece["scores"], dtype=np.float64) for piece in (one, other))
    if name == "all":
        return (score / found).tolist()
    if name == "box":
        return (found / score).tolist()
    if name == "near":
        return (found / np.minimum(score, other["more"]["radius"])).tolist()
    return (found / np.array(one["more"]["low"], dtype=np.float64)).tolist()


def criteria(rows: Sequence[dict[str, Any]], method: str = "sharp") -> list[dict[str, Any]]:
    """What the method is held to, each with its value and whether it holds."""
    rows = [row for row in rows if method in row["methods"]]
    if not rows:
        return []
    mine = [(row, row["methods"][method]) for row in rows]
    ratios = np.concatenate([np.ravel(found["ratios"]) for _, found in mine])
    by_network: dict[str, list[float]] = {}
    for row, found in mine:
        by_network.setdefault(row["network"], []).extend(np.ravel(found["ratios"]))
    shares = {name: float((np.array(values) > 1.0 + ROUNDING).mean()) for name, values in by_network.items()}
    worst = max(shares, key=lambda name: shares[name])
    short = [
        f"{row['network']} l{row['norm']} {found['median_ratio']:.2f}"
        for row, found in mine
        if found["median_ratio"] < (0.75 if row["robust"] else 0.85)
    ]
    spread = [(row, found) for row, found in mine if row["referee_spread"] >= 0.2]
    unordered = [
        f"{row['network']} l{row['norm']} {found['spearman']:.2f}" for row, found in spread if found["spearman"] < 0.95
    ]
    judged_rows = [(row, found) for row, found in mine if {"margin", "slope"} <= set(row["methods"])]
    beaten = [
        f"{row['network']} l{row['norm']}"
        for row, found in judged_rows
        if found["spearman"] < max(row["methods"][null]["spearman"] for null in ("margin", "slope"))
    ]
    seeds = np.concatenate([found["seed_spread"] for _, found in mine if found["seeds"] > 1] or [[math.nan]])
    equal, box, near, more = (
        np.concatenate([row[f"sharp_{name}"] for row in rows if f"sharp_{name}" in row] or [[math.nan]])
        for name in ("all", "box", "near", "25")
    )
    within = float((np.abs(equal - 1.0) <= 0.01).mean())
    above, far = float((ratios > 1.0 + ROUNDING).mean()), int((ratios > 1.03).sum())
    tail, most = float(np.quantile(seeds, 0.95)), float(seeds.max())

    def entry(text: str, value: str, holds: bool) -> dict[str, Any]:
        missing = "nan" in value
        return {"criterion": text, "value": "not measured" if missing else value, "holds": None if missing else holds}

    return [
        entry("above the referee: at most 1% of all rows", f"{above:.2%} of {len(ratios)}", above <= 0.01),
        entry("at most 5% on any network", f"{shares[worst]:.1%} ({worst})", shares[worst] <= 0.05),
        entry("none above by more than 3%", f"{far}, largest ratio {ratios.max():.3f}", far == 0),
        entry("median ratio at least .85 (.75 if robustly trained) everywhere", _listed(short, len(mine)), not short),
        entry(
            "Spearman at least .95 where the referee's IQR / median is at least .2",
            _listed(unordered, len(spread)),
            not unordered,
        ),
        entry(
            "Spearman at least that of both null baselines in 90% of cases",
            _listed(beaten, len(judged_rows)),
            len(beaten) <= 0.1 * len(judged_rows),
        ),
        entry("seeds: 95th percentile of largest / smallest at most 1.05", f"{tail:.3f}", tail <= 1.05),
        entry("seeds: largest / smallest at most 1.15", f"{most:.3f}", most <= 1.15),
        entry(
            'untargeted within 1% of the minimum over targets="all" for 99% of rows',
            f"{within:.1%} of {len(equal)}, ratios {np.min(equal):.3f} to {np.max(equal):.3f}",
            within >= 0.99,
        ),
        entry(
            "in the box no smaller than in the ball, within 1%",
            f"{(box >= 0.99).sum()} of {len(box)}, smallest ratio {np.min(box):.3f}",
            bool((box >= 0.99).all()),
        ),
        entry(
            "in a smaller ball the smaller of score and radius, within 1%",
            f"{(np.abs(near - 1.0) <= 0.01).sum()} of {len(near)}, ratios {np.min(near):.3f} to {np.max(near):.3f}",
            bool((np.abs(near - 1.0) <= 0.01).all()),
        ),
        entry(
            "`score_low` at most the smallest of 25 further searches in 90%",
            f"{(more >= 1.0).mean():.1%} of {len(more)}, smallest ratio {np.min(more):.3f}",
            bool((more >= 1.0).mean() >= 0.9),
        ),
    ]


WORDS = {True: "yes", False: "no", None: ""}


def _listed(failures: Sequence[str], cases: int) -> str:
    return f"all of {cases}" if not failures else f"not in {len(failures)} of {cases}: {', '.join(failures)}"


def _cell(row: dict[str, Any], method: str, name: str, form: str) -> str:
    found = row["methods"].get(method)
    return "" if found is None or math.isnan(found[name]) else format(found[name], form)


def markdown(result: dict[str, Any]) -> str:
    lines = [
        "<!-- written by: python -m benchmarks.agreement -->",
        f"Up to {result['inputs']} correctly classified test inputs of each network. The referee is the smallest "
        "distance that any attack found, without the input box; ratio is score / referee, above the share of scores "
        "larger than the referee. Networks marked * are held out: nothing was tuned on them.",
        "",
        "| what the sharp score is held to | found | holds |",
        "|---|---|---|",
        *(f"| {c['criterion']} | {c['value']} | {WORDS[c['holds']]} |" for c in result["criteria"]),
        "",
        "Rank correlation (Spearman) with the referee. IQR / median is that of the referee's distances: where it is "
        "small, there is little to rank.",
        "",
        "| network | norm | referee | IQR / median | sharp | paper | ART | logit margin | margin / slope |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    names = {id(row): f"{row['network']}{'*' if row['role'] == 'held_out' else ''}" for row in result["rows"]}
    for row in result["rows"]:
        ranks = " | ".join(_cell(row, m, "spearman", ".2f") for m in ("sharp", "paper", "art", "margin", "slope"))
        known = f"{names[id(row)]} | {row['norm']} | {row['referee_median']:.4g} | {row['referee_spread']:.2f}"
        lines.append(f"| {known} | {ranks} |")
    titles = {
        "sharp": "The sharp score", "sharp-alone": "Ascents across shells alone, without descents",
        "paper": "The paper's score", "art": "ART's score",
    }  # fmt: skip
    for method, title in titles.items():
        shown = [row for row in result["rows"] if method in row["methods"]]
        if not shown:
            continue
        settings = "; ".join(sorted({json.dumps(row["methods"][method]["settings"]) for row in shown}))
        lines += [
            "",
            f"{title} ({settings}); all seeds together.",
            "",
            "| network | norm | inputs x seeds | median ratio | largest | above | above by 3% | seeds: 95% | worst "
            "| untargeted / all | CPU seconds | gradients |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in shown:
            found = row["methods"][method]
            seeds = ["", ""]
            if found["seeds"] > 1:
                seeds = [f"{np.quantile(found['seed_spread'], 0.95):.3f}", f"{max(found['seed_spread']):.3f}"]
            equal = row.get("sharp_all") if method == "sharp" else None
            lines.append(
                f"| {names[id(row)]} | {row['norm']} | {found['inputs']} x {found['seeds']} "
                f"| {found['median_ratio']:.3f} | {found['largest_ratio']:.3f} | {found['above']:.1%} "
                f"| {found['above_3']:.1%} | {seeds[0]} | {seeds[1]} "
                f"| {f'{min(equal):.3f} to {max(equal):.3f}' if equal else ''} "
                f"| {found['seconds']:.2f} | {found['gradients']:,.0f} |"
            )
    lines += ["", "Attacks that found the nearest point, over all inputs: " + _winners(result["rows"]) + "."]
    if len(result["sources"]) > 1:
        lines += [
            "",
            f"Scores come from {len(result['sources'])} versions of the code: {', '.join(result['sources'])}.",
        ]
    return "\n".join(lines) + "\n"


def _winners(rows: Sequence[dict[str, Any]]) -> str:
    total: dict[str, int] = {}
    for row in rows:
        for name, count in row["nearest_by"].items():
            total[name] = total.get(name, 0) + count
    return ", ".join(f"{name} {count}" for name, count in sorted(total.items(), key=lambda item: -item[1]))


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Score against referee, one panel per method, one colour per norm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {"sharp": "sharp score", "paper": "the paper's score", "margin": "logit margin"}
    colours = {"1": "tab:green", "2": "tab:blue", "inf": "tab:orange"}
    panels = {name: title for name, title in panels.items() if any(name in row["methods"] for row in rows)}
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 4), constrained_layout=True, squeeze=False)
    for axis, (method, title) in zip(axes[0], panels.items(), strict=True):
        for norm, colour in colours.items():
            chosen = [row["methods"][method] for row in rows if row["norm"] == norm and method in row["methods"]]
            if chosen:
                sizes = np.concatenate([found["referee"] for found in chosen])
                scores = np.concatenate([found["scores"][0] for found in chosen])
                label = f"l{norm}".replace("inf", "∞")
                axis.loglog(sizes, scores, ".", color=colour, alpha=0.6, markersize=4, label=label)
        if method != "margin":
            ends = axis.get_xlim()
            axis.loglog(ends, ends, color="black", linewidth=0.8)
        axis.set(title=title, xlabel="smallest distance of any attack")
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _strict(value: Any) -> Any:
    """The same without NaN and infinities, which JSON does not know."""
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summarise(arguments: argparse.Namespace) -> None:
    rows = assembled(read(arguments.work), arguments.networks, arguments.norms)
    if not rows:
        print("there are no referees in --work yet")
        return
    result = {
        "inputs": arguments.inputs,
        "criteria": criteria(rows),
        "sources": sorted({text for row in rows for found in row["methods"].values() for text in found["sources"]}),
        "rows": rows,
    }
    text = markdown(result)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "_agreement_benchmark.md").write_text(text)
    (arguments.out / "_agreement_benchmark.json").write_text(json.dumps(_strict(result), indent=1) + "\n")
    plot(rows, arguments.out / "_static" / "agreement.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of benchmarks.trained_networks")
    parser.add_argument("--work", type=Path, default=Path("runs/agreement"), help="where pieces are kept")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--only", choices=("referees", "scores", "table"), help="compute or write one part")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--norms", nargs="+", choices=list(NORMS), default=["2", "inf", "1"])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--art", type=int, nargs=3, default=(40, 32, 10), metavar=("BLOCKS", "SIZE", "POOL"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="compute pieces that are there already")
    arguments = parser.parse_args()
    if arguments.only != "table":
        run(arguments)
    if arguments.only in (None, "table"):
        summarise(arguments)


if __name__ == "__main__":
    main()
