"""Forecast of the remaining time of a run: scores, attacks and certificates, each measured on the first inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from cleverscore.attacks.attack import attack
from cleverscore.brackets.run_bounds import checked_attacks, split_attack
from cleverscore.certificates.certify import certify
from cleverscore.estimators.budget import Budget
from cleverscore.inputs.targets import takes_smallest, target_kind
from cleverscore.norms import norm_name, parse_norm
from cleverscore.runs.add_bounds import Bounds
from cleverscore.runs.local_executor import InProcess
from cleverscore.runs.results import parse_targets
from cleverscore.runs.shards import ADAPTIVE_SHARE, Executor
from cleverscore.runs.signals import Stop
from cleverscore.runs.store import Store
from cleverscore.runs.study import Missing, Study
from cleverscore.scores.cost import Estimate, duration

PILOT_SECONDS = 20.0  # an input that may take longer is not waited for before the time of all is told
UNITS_PER_SECOND = 1000  # of progress
LONG_SECONDS = 600.0  # from here on, options that make a run shorter are named
FEW_ATTACKED = 4  # at once: what an input adds to a batch is less than what it takes alone
SHORT_SECONDS = 20.0  # an attack that takes longer is not tried again


@dataclass(frozen=True)
class Forecast:
    """Seconds by kind of work."""

    parts: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """The total in seconds."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        """The total and its parts as text.

        >>> str(Forecast({"CLEVER": 30.2, "sharp": 61.0}))
        '1 min 31 s (CLEVER 30 s, sharp 1 min 1 s)'
        """
        words = ", ".join(f"{name} {duration(seconds)}" for name, seconds in self.parts.items())
        return f"{duration(self.seconds)} ({words})"


@dataclass(frozen=True)
class Work:
    """The remaining work of a run, its forecast and its progress.

    forecast    the forecast of all work; empty if nothing is missing.
    words       the forecast as text.
    costs       the cost of the scores, by which they are divided into shards.
    each        seconds per input in each series (norm and method).
    """

    forecast: Forecast
    words: str
    costs: Mapping[str, Estimate]
    each: Mapping[str, float]
    units: int

    def units_of(self, series: str, inputs: float) -> int:
        """The progress, in `units`, that this many inputs of a series make."""
        return round(UNITS_PER_SECOND * self.each.get(series, 0.0) * inputs)


def plan_work(
    study: Study,
    store: Store,
    wanted: Bounds,
    missing: Missing,
    run: Callable[..., dict[str, float]],
    place: Executor,
    stop: Stop,
    *,
    chunk_size: int | None = None,
    workers: int | None = None,
) -> Work:
    """Forecast the missing work of a run from its first inputs and from short measurements.

    The time of fixed work follows from a short measurement. The time of adaptive work is only known from inputs: `run`
    computes and stores the first few, unless a single input may take long; then the forecast is an upper limit.
    """
    budget = Budget.parse(study.config.budget)
    if math.isfinite(budget.seconds):
        return _within(budget.seconds, study, store, wanted, missing)
    left = {series: parts for series, parts in missing.parts.items() if parts}
    early = {series for series in left if study.settings[series].estimator.stops_early(study.settings[series])}
    searched = {series for series in early if study.settings[series].estimator.per_target}
    adaptive = early - searched
    count = max(map(len, left.values()), default=0)
    pilots = pilot_inputs(count) if isinstance(place, InProcess) and study.config.budget is None else 0
    probed = replace(missing, parts={series: left[series] for series in left if series not in searched or not pilots})
    costs = study.costs(probed, chunk_size=chunk_size, workers=workers)
    each = {series: cost.seconds / cost.inputs for series, cost in costs.items()}
    tried = searched | {series for series in adaptive if each[series] * ADAPTIVE_SHARE < PILOT_SECONDS}
    at_most = bool(adaptive - tried)
    if pilots and tried and not stop.asked:
        few = [example for example in study.examples if any(example is e for e, _ in left[next(iter(tried))])][:pilots]
        rough = {series: _estimate(each.get(series, PILOT_SECONDS), len(few)) for series in sorted(tried)}
        took = run(costs=rough, only=few, stop=stop)
        missing = study.missing(store)
        each |= took
        for series in took:
            costs[series] = _estimate(took[series] / ADAPTIVE_SHARE, max(1, len(missing.parts[series])))
    else:
        at_most = bool(searched | adaptive)
    scores = score_seconds(study, missing, each)
    bounds = bound_seconds(study, store, wanted) if count and wanted and not stop.asked else {}
    forecast = Forecast({**scores, **bounds})
    words = f"{'at most' if at_most else 'about'} {forecast}" if forecast.parts else ""
    if study.config.budget and words:
        words += f"; the budget is {study.config.budget} gradients"
    units = round(UNITS_PER_SECOND * sum(scores.values()))
    return Work(forecast, words, costs, each, units)


def _within(seconds: float, study: Study, store: Store, wanted: Bounds, missing: Missing) -> Work:
    """The work of a run with a time budget: attacks and certificates are measured, scores get the remaining time."""
    began = time.perf_counter()
    count = sum(map(len, missing.parts.values()))
    bounds = bound_seconds(study, store, wanted) if count else {}
    study.reserved_seconds = sum(bounds.values()) + time.perf_counter() - began
    each = dict.fromkeys(missing.parts, seconds / max(1, count))
    costs = {
        series: _estimate(each[series] / ADAPTIVE_SHARE, len(parts)) for series, parts in missing.parts.items() if parts
    }
    words = f"scores within the budget of {study.config.budget}" + (f", and {Forecast(bounds)}" if bounds else "")
    forecast = Forecast({**score_seconds(study, missing, each), **bounds})
    return Work(forecast, words if count else "", costs, each, round(UNITS_PER_SECOND * seconds))


def _estimate(seconds: float, inputs: int) -> Estimate:
    """An estimate that has only the time per input."""
    return Estimate(seconds=seconds * inputs, gradients=0, points=0, memory=0, chunk_size=1, workers=1, inputs=inputs)


def pilot_inputs(inputs: int) -> int:
    """How many inputs are computed before the total time is forecast: fewer than a quarter of them."""
    return min(3, inputs // 4)


def score_seconds(study: Study, missing: Missing, each: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each method for the missing inputs, from the seconds per input in each series."""
    found: dict[str, float] = {}
    for series, parts in missing.parts.items():
        name = study.settings[series].rule.title
        if parts and series in each:
            found[name] = found.get(name, 0.0) + each[series] * sum(share for _, share in parts)
    return found


def bound_seconds(study: Study, store: Store, wanted: Bounds) -> dict[str, float]:
    """Seconds of each missing attack and certificate, from the time of the first input and of each further one."""
    config, x = study.config, torch.stack([example.x for example in study.examples[:FEW_ATTACKED]])
    smallest = takes_smallest(target_kind(parse_targets(config.targets, 1)))
    count = len(study.examples) if smallest else sum(len(example.targets) for example in study.examples)
    attacked = {(record.name, record.p) for record in store.above()}
    proved = {(record.name, record.p) for record in store.below()}
    found: dict[str, float] = {}
    for norm in config.norms:
        p = parse_norm(norm)
        for name in map(str, checked_attacks(wanted.attacks)):
            if (name, p) not in attacked:
                short, preset = split_attack(name)
                attack(study.classifier, x[:1], short, p=p, preset="quick")  # pays for imports and kernels
                seconds = _growing(lambda n: attack(study.classifier, x[:n], short, p=p, preset=preset), len(x), count)  # noqa: B023
                found[f"{name} in l{norm_name(p)}"] = seconds
        for name in wanted.certificates:
            if (name, p) not in proved:
                limit = config.settings(norm).radius
                assert limit is not None  # set in Settings
                seconds = _growing(lambda n: certify(study.classifier, x[:n], p=p, method=name, limit=limit), 1, count)  # noqa: B023
                found[f"{name} in l{norm_name(p)}"] = seconds
    return found


def _growing(run: Callable[[int], object], most: int, count: int) -> float:
    """Forecast the seconds of `run(count)` from a measurement of `run(1)` and, if that is short, of `run(most)`."""
    first = _timed(run, 1)
    if first > SHORT_SECONDS or most == 1:
        return first * count
    return first + (count - 1) * max(_timed(run, most) - first, 0.0) / (most - 1)


def _timed(run: Callable[[int], object], inputs: int) -> float:
    began = time.perf_counter()
    run(inputs)
    return time.perf_counter() - began


def shorter_options(study: Study, preset: str) -> str:
    """Options that make a long run shorter, except those that are already used."""
    config, options = study.config, []
    if preset != "quick":
        options.append("--preset quick (20 inputs, small blocks)")
    if len(study.examples) > 20:
        options.append("--limit 20")
    if config.methods != ("sharp",):
        options.append("--method sharp alone")
    if config.targets == "untargeted":
        options.append("--targets top:3 (the likeliest classes)")
    if config.budget is None:
        options.append("--budget 10m")
    return "; ".join(options)
