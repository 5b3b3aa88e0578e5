"""attack(): adversarial inputs and their distortions (distances from the inputs), which are upper bounds on the minimum
distortion.

The user's classifier checks the class of every adversarial input again, and distortions are computed from the
adversarial inputs in double precision.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.attacks.criterion import Criterion, make_criterion
from cleverscore.attacks.descent import descent
from cleverscore.attacks.foolbox_adapter import load_foolbox, run
from cleverscore.attacks.presets import OWN_EFFORT, PRESETS, Effort
from cleverscore.attacks.refine import distances, nearest_of, refined
from cleverscore.errors import SettingError
from cleverscore.estimators.sampling.chunk_size import resolved_chunk_size
from cleverscore.estimators.settings import LARGEST_SEED
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import box_of
from cleverscore.models.optimize import CHECKED_INPUTS, tuned
from cleverscore.norms import parse_norm
from cleverscore.threads import checked_workers, pool
from cleverscore.validation import is_whole

Array = npt.NDArray[np.float64]

# The norms that each attack can minimise, its default norm first.
ATTACKS: dict[str, tuple[float, ...]] = {
    "descent": (2.0, math.inf, 1.0),  # this package's own attack, which takes any other p >= 1, too
    "cw": (2.0,),  # Carlini & Wagner 2017
    "ifgsm": (math.inf,),  # Kurakin et al. 2017, best of eight epsilons
    "ead": (1.0,),  # Chen et al. 2018
    "ddn": (2.0,),  # Rony et al. 2019
    "fmn": (math.inf, 2.0, 1.0),  # Pintor et al. 2021
}
FOOLBOX = frozenset(ATTACKS) - {"descent"}


class AttackFunction(Protocol):
    """Your own attack: a function that returns one candidate per input, (n, *shape), which is checked like those of
    other attacks.

    criterion   the inputs, their classes and their box; most attacks need `criterion.margins_and_gradients(points)`.
    p           the norm in which candidates should be near their inputs.
    seed        a seed for random numbers; torch's own generator has been seeded with it before the call.
    """

    def __call__(self, criterion: Criterion, *, p: float, seed: int) -> torch.Tensor:
        """One candidate per input, (n, *shape); the input itself where the attack found none."""
        ...


@dataclass(frozen=True)
class Attacked:
    """Results of one attack for n inputs.

    attack          the name of the attack.
    p               the norm that the attack, or the refinement of its results, minimised.
    adversarial     (n, *shape), adversarial inputs; the input itself where the attack failed.
    success         (n,), whether the class changed (to the target, if there was one), by a forward pass of the user's
                    classifier.
    found           (n,), the class of the adversarial input.
    l1, l2, linf    (n,), distortions in three norms, infinite where the attack failed.
    seconds         the time that the attack took.
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


@dataclass(frozen=True)
class Job:
    """The common arguments of attacks: the inputs, the norm, and how the work is divided into chunks and threads.

    criteria    one criterion; or two if inputs have a box but may leave it, one with and one without the box. Then an
                attack runs with each, and the nearer result is kept.
    """

    criteria: tuple[Criterion, ...]
    p: float
    seed: int
    chunk_size: int
    workers: int

    @property
    def criterion(self) -> Criterion:
        """The criterion that decides whether a result is adversarial."""
        return self.criteria[-1]


def make_job(
    classifier: Classifier,
    images: Any,
    *,
    p: float,
    targets: Any,
    region: str | None,
    seed: int,
    chunk_size: int | None,
    workers: int | None,
) -> Job:
    """Check model, inputs and settings, and make the job; the arguments are those of `attack`."""
    if not is_whole(seed) or not 0 <= seed <= LARGEST_SEED:
        raise SettingError(f"seed={seed}: give a whole number from 0 to 2**64 - 1")
    bounds = classifier.bounds
    box = box_of(region or ("ball" if bounds is None else "box"), bounds)
    first = make_criterion(classifier, images, targets=targets, box=bounds, seed=seed)
    free = replace(first, low=torch.full_like(first.low, -math.inf), high=torch.full_like(first.high, math.inf))
    criteria = (first,) if box is not None else (free,) if bounds is None else (first, free)
    workers = checked_workers(classifier.device, workers)
    chunk_size = resolved_chunk_size(classifier, first.x[0], chunk_size, workers=workers)
    return Job(criteria, p, seed, chunk_size, workers)


def attack(
    classifier: Classifier,
    images: Any,
    name: str | AttackFunction = "cw",
    *,
    p: float | str | None = None,
    targets: Any = None,
    preset: str = "paper",
    region: str | None = None,
    iterations: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    chunk_size: int | None = None,
    workers: int | None = None,
) -> Attacked:
    """Attack a batch of inputs: for each input, find a near point that the model assigns to another class.

    images      (n, *input_shape), in the classifier's input units.
    name        "cw", "ifgsm", "ead", "ddn", "fmn" or "descent", or your own function (`AttackFunction`).
    p           the norm to minimise; default: the attack's own norm. An attack that does not support this norm
                minimises its own.
    targets     None (any other class), "runner_up", "least_likely", "random", or one class per input.
    preset      "paper", "quick" (a few seconds), "default" or "long"; the last two also refine results: they move them
                nearer to the inputs in norm p.
    region      "box" (inside the classifier's bounds, the default where it has them) or "ball" (anywhere). With "ball"
                and bounds, the attack runs inside the bounds as well, and the nearer result is kept.
    iterations, learning_rate   replace those of the preset (`learning_rate` is for "cw" and "ead"); the paper uses 2000
                iterations for CW on MNIST.
    chunk_size  inputs per batch; CW and EAD stop early when a whole batch makes no progress, as in their authors' code.
    workers     number of threads, for "descent" only; default: one per core.

    >>> classifier = Classifier(torch.nn.Linear(4, 3), bounds=(-4.0, 4.0))
    >>> attacked = attack(classifier, torch.rand(2, 4), "fmn", p="inf", preset="quick")
    >>> attacked.success, bool((attacked.linf <= attacked.l1).all())
    (array([ True,  True]), True)
    """
    effort = checked_effort(name, preset, iterations, learning_rate)
    norm = parse_norm(p) if p is not None else ATTACKS[name][0] if isinstance(name, str) else 2.0
    job = make_job(
        classifier, images, p=norm, targets=targets, region=region, seed=seed, chunk_size=chunk_size, workers=workers
    )
    return run_attack(job, name, effort)


def attack_name(attack: str | AttackFunction) -> str:
    """The name of an attack in results."""
    return attack if isinstance(attack, str) else getattr(attack, "__name__", type(attack).__name__)


def checked_effort(
    name: str | AttackFunction, preset: str, iterations: int | None = None, learning_rate: float | None = None
) -> Effort:
    """The effort of an attack with a preset, with `iterations` and `learning_rate` in place of the preset's if given.

    Raises an error if attack or preset is unknown, if a number is not allowed, or if foolbox is needed and missing.
    """
    if not callable(name) and name not in ATTACKS:
        raise SettingError(f"attack={name!r}: choose one of {', '.join(ATTACKS)}, or give a function")
    if preset not in PRESETS:
        raise SettingError(f"preset={preset!r}: choose one of {', '.join(PRESETS)}")
    if not isinstance(name, str):
        if iterations is not None or learning_rate is not None:
            raise SettingError("iterations and learning_rate are for attacks by name; give them to your own function")
        return OWN_EFFORT[preset]
    if name in FOOLBOX:
        load_foolbox()
    effort = PRESETS[preset][name]
    if iterations is not None:
        if not is_whole(iterations) or iterations < 1:
            raise SettingError(f"iterations={iterations}: give a whole number, at least 1")
        effort = replace(effort, iterations=int(iterations))
    if learning_rate is not None:
        if not 0.0 < learning_rate < math.inf:
            raise SettingError(f"learning_rate={learning_rate}: give a positive number")
        effort = replace(effort, learning_rate=float(learning_rate))
    return effort


def run_attack(job: Job, name: str | AttackFunction, effort: Effort) -> Attacked:
    """Attack the inputs of a job (once per criterion), and check the results with the user's own classifier."""
    began = time.perf_counter()
    own = job.p if not isinstance(name, str) or name == "descent" or job.p in ATTACKS[name] else ATTACKS[name][0]
    criterion = job.criterion
    # The attack itself may use a faster network that computes the same function.
    faster = tuned(criterion.classifier, criterion.x[:CHECKED_INPUTS])
    found: torch.Tensor | None = None
    for each in job.criteria:
        working = replace(each, classifier=faster)
        if name == "descent":
            runs = _descended(job, working, effort, known=found)
        else:
            chunks = [slice(i, i + job.chunk_size) for i in range(0, len(each), job.chunk_size)]
            runs = torch.cat([_candidates(job, working.rows(rows), name, own, effort) for rows in chunks], 1)
        if found is not None:
            runs = torch.cat([found[None], runs])
        found = nearest_of(criterion, runs, p=job.p, chunk_size=job.chunk_size)
    adversarial = criterion.x if found is None else found
    success, classes = (each.cpu().numpy() for each in criterion.reached(adversarial, chunk_size=job.chunk_size))
    l1, l2, linf = (
        np.where(success, distances(criterion.x, adversarial, norm).cpu().numpy(), math.inf)
        for norm in (1.0, 2.0, math.inf)
    )
    return Attacked(
        attack=attack_name(name),
        p=job.p if effort.refine else own,
        adversarial=adversarial,
        success=success,
        found=classes,
        l1=l1,
        l2=l2,
        linf=linf,
        seconds=time.perf_counter() - began,
    )


def _descended(job: Job, criterion: Criterion, effort: Effort, *, known: torch.Tensor | None) -> torch.Tensor:
    """Candidates (m, n, *shape) of the attack "descent", the m nearest found, which runs on several threads.

    known   (n, *shape): adversarial inputs that are already known; the input itself where there is none.
    """
    if effort.first is not None:
        known = _descended(job, criterion, effort.first, known=known)[0]
    rows = max(1 + effort.searches, effort.starts)
    together = max(1, job.chunk_size // rows)
    together = min(together, math.ceil(len(criterion) / job.workers))
    parts = [slice(i, i + together) for i in range(0, len(criterion), together)]

    def part(rows: slice) -> torch.Tensor:
        return descent(
            criterion.rows(rows),
            p=job.p,
            effort=effort,
            seed=job.seed,
            others=criterion.x,
            chunk_size=job.chunk_size,
            known=None if known is None else known[rows],
        )

    if job.workers == 1 or len(parts) == 1:
        return torch.cat([part(rows) for rows in parts], 1)
    with pool(job.workers) as executor:
        return torch.cat(list(executor.map(part, parts)), 1)


def _candidates(job: Job, criterion: Criterion, name: str | AttackFunction, own: float, effort: Effort) -> torch.Tensor:
    """Candidates (m, n, *shape) of an attack for one chunk of n inputs: the points it found, and also these points
    refined in the job's norm if the effort asks for refinement (then m is 2, else 1).

    own     the norm in which an attack given by name runs; a function gets the job's norm.
    """
    if isinstance(name, str):
        points = run(criterion, name, p=own, effort=effort, seed=job.seed)
    else:
        points = _own_candidates(name, criterion, p=job.p, seed=job.seed)
    if not effort.refine:
        return points[None]
    nearer = points.clone()
    good, _found = criterion.reached(points, chunk_size=job.chunk_size)
    if bool(good.any()):
        nearer[good] = refined(criterion.rows(good), points[good], p=job.p, steps=effort.refine)
    return torch.stack([points, nearer])


def _own_candidates(function: AttackFunction, criterion: Criterion, *, p: float, seed: int) -> torch.Tensor:
    """Candidates (n, *shape) of a user's attack, clipped to the box."""
    x = criterion.x
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        points = function(criterion, p=p, seed=seed)
    if not isinstance(points, torch.Tensor) or points.shape != x.shape:
        given = tuple(points.shape) if isinstance(points, torch.Tensor) else type(points).__name__
        raise SettingError(f"attack {attack_name(function)} gave {given}; a tensor {tuple(x.shape)} is wanted")
    return criterion.inside(points.detach().to(x))
