"""Referees: the nearest point of another class that any of several long attacks finds.

Scores are about the whole ball around an input, so these attacks may leave the input box. They are code of their own or
foolbox's, and not the package's, with which scores share their search for the boundary; the package's `best_attack` is
one of them.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

import cleverscore as cs
from benchmarks.score_methods import slope
from cleverscore.attacks.foolbox_adapter import load_foolbox

FAR = 3.0  # times the first-order distance: a guess where a quick attack moved no input
OTHERS = 64  # further inputs, towards which attacks start


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


def distances(x: torch.Tensor, y: torch.Tensor, p: float) -> torch.Tensor:
    """||y - x||_p of each row, in double: (n, *shape) -> (n,)."""
    return torch.linalg.vector_norm((y.double() - x.double()).flatten(1), p, dim=1)


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
    """The distance of the nearest candidate in another class, bisected and refined; infinite where there is none."""
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


def attacked(name: str, case: Case, seed: int) -> dict[str, Any]:
    began = time.process_time()
    found = judged(case, ATTACKS[name](case, seed))
    share = (time.process_time() - began) / len(found)
    settings = {"effort": asdict(case.effort), "others": len(case.others)}
    return {"scores": found, "seconds": [share] * len(found), "gradients": None, "settings": settings}
