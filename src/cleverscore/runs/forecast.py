"""Forecast of the time of a run: scores, attacks and certificates, each measured on the first inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cleverscore.runs.add_bounds import Bounds, missing_bounds, run_bounds
from cleverscore.runs.local_executor import InProcess
from cleverscore.runs.shards import ADAPTIVE_SHARE, Executor
from cleverscore.runs.signals import Stop
from cleverscore.runs.store import Store
from cleverscore.runs.study import Missing, Study
from cleverscore.scores.cost import PROBE_SECONDS, Estimate, duration
from cleverscore.threads import checked_workers, default_workers

PILOT_SECONDS = 20.0  # inputs that may take longer each are not computed before the forecast is printed
SHORT_PROBE_SECONDS = 0.1  # length of the measurement that says whether an input may take longer than that
MOST_PILOTS = 4  # inputs that are computed before the forecast; with more threads than this, one per thread
UNITS_PER_SECOND = 1000  # units of the progress bar per forecast second
LONG_SECONDS = 600.0  # with a longer forecast, options that make the run shorter are printed
OTHER = "loading, checks and fits"


@dataclass(frozen=True)
class Forecast:
    """The forecast seconds of the whole command, including those already spent on the inputs from which the forecast
    was made.

    parts   seconds by kind of work: a method ("CLEVER"), an attack or certificate in one norm ("descent:quick in l2"),
            and the rest ("loading, checks and fits").
    """

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
    """The work of a command on a run: its forecast, and what its progress bar counts. A series is a norm and a method.

    forecast    the forecast of all work of the command; empty if nothing, or only bounds of one input, is missing.
    words       a sentence with the forecast and the time spent so far.
    costs       for each series, the cost of its missing scores, by which they are divided into shards.
    each        for each series, the seconds per input.
    units       the units of progress that all missing scores make together.
    """

    forecast: Forecast
    words: str
    costs: Mapping[str, Estimate]
    each: Mapping[str, float]
    units: int

    def units_of(self, series: str, inputs: float) -> int:
        """The units of progress that so many inputs of a series make."""
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
    began: float | None = None,
) -> Work:
    """Forecast the work of a command from the first inputs of its run and from short measurements.

    Where the amount of work is fixed, its time follows from a short measurement. A method that may stop early is timed
    on the first inputs: `run` computes and stores their scores. Where a single input may take long, or `place` is not
    this process, no scores are computed here, and the forecast for such a method is an upper limit. The first inputs
    are also attacked and certified, and the records stored.

    wanted      the attacks and certificates of the run.
    missing     what the run lacks (`Study.missing`).
    run         computes scores: `Study.run` with a store.
    place       where the scores will be computed.
    began       the time (`time.monotonic`) at which the command began; default: now.
    """
    began = time.monotonic() if began is None else began
    parts = {series: inputs for series, inputs in missing.parts.items() if inputs}
    unbounded = missing_bounds(study, store, wanted)
    if not parts and len(set[int]().union(*unbounded.values())) <= 1:  # nothing, or no more than would be measured
        return Work(Forecast({}), "", {}, {}, 0)
    early = {series for series in parts if study.settings[series].estimator.stops_early(study.settings[series])}
    searched = {series for series in early if study.settings[series].estimator.per_target}
    count = max(map(len, parts.values()), default=0)
    threads = checked_workers(study.classifier.device, workers)
    pilots = pilot_inputs(count, threads)
    if not isinstance(place, InProcess) or study.config.budget is not None:
        pilots = 0
    probed = replace(missing, parts={series: parts[series] for series in parts if series not in searched or not pilots})
    fixed = probed.parts.keys() - early
    costs = study.costs(
        probed, chunk_size=chunk_size, workers=workers,
        probe_seconds=PROBE_SECONDS if fixed or not pilots else SHORT_PROBE_SECONDS,
    )  # fmt: skip
    each = {series: cost.seconds / cost.inputs for series, cost in costs.items()}
    tried = searched | {series for series in early - searched if each[series] * ADAPTIVE_SHARE < PILOT_SECONDS}
    at_most = bool(early - tried)
    fits = 0.0
    if pilots and tried and not stop.asked:
        few = [example for example in study.examples if any(example is e for e, _ in parts[next(iter(tried))])][:pilots]
        rough = {series: _estimate(each.get(series, PILOT_SECONDS), len(few)) for series in sorted(tried)}
        start = time.monotonic()
        took = run(costs=rough, only=few, stop=stop)
        fits = max(0.0, time.monotonic() - start - len(few) * sum(took.values())) / len(few)
        missing = study.missing(store)
        for series, seconds in took.items():
            each[series] = _each(seconds * len(few), len(few), threads, series in searched)
            costs[series] = _estimate(each[series] / ADAPTIVE_SHARE, max(1, len(missing.parts[series])))
        ids = {example.input_id for example in few}
    else:
        at_most = bool(early)
        ids = set(sorted(set[int]().union(*unbounded.values()))[:1])
    bounds = bound_seconds(study, store, wanted, unbounded, ids, stop)
    spent = time.monotonic() - began
    left = score_seconds(study, missing, each)
    still = {name: seconds * len(unbounded[name] - ids) for name, seconds in bounds.items()}
    whole = score_seconds(study, replace(missing, parts=parts), each)
    whole |= {name: seconds * len(unbounded[name]) for name, seconds in bounds.items()}
    # The seconds spent so far are known; only those of the remaining work are forecast.
    total = spent + sum(left.values()) + sum(still.values()) + fits * max(0, count - pilots)
    forecast = Forecast({**whole, OTHER: max(0.0, total - sum(whole.values()))})
    words = f"{'at most' if at_most else 'about'} {forecast}, of which {duration(spent)} are over"
    if study.config.budget:
        words += f"; the budget is {study.config.budget} gradients"
    return Work(forecast, words, costs, each, round(UNITS_PER_SECOND * sum(left.values())))


def _estimate(seconds: float, inputs: int) -> Estimate:
    """An estimate of which only the time and the number of inputs are filled in; `seconds` are per input."""
    return Estimate(seconds=seconds * inputs, gradients=0, points=0, memory=0, chunk_size=1, workers=1, inputs=inputs)


def pilot_inputs(inputs: int, threads: int = 1) -> int:
    """How many of the inputs are computed before the total time is forecast: a quarter of them at most.

    If that is at least the number of threads, it is a multiple of it, so that a method that measures one input in each
    thread is timed with all threads busy.

    >>> pilot_inputs(20, 2), pilot_inputs(14, 2), pilot_inputs(3, 2), pilot_inputs(100, 8)
    (4, 2, 0, 8)
    """
    most = min(max(MOST_PILOTS, threads), inputs // 4)
    return most - most % threads if most >= threads else most


def _each(seconds: float, inputs: int, threads: int, in_parallel: bool) -> float:
    """The seconds per input to expect with many inputs, if a few `inputs` took `seconds`.

    in_parallel     each of the inputs was measured by one thread; threads that were idle for want of inputs are counted
                    as if they had measured one.

    >>> _each(6.0, 3, 2, True), _each(6.0, 3, 2, False), _each(2.0, 1, 2, True)
    (1.5, 2.0, 2.0)
    """
    if not in_parallel or inputs == 1:  # all threads measure a single input together
        return seconds / inputs
    return seconds / (math.ceil(inputs / threads) * threads)


def score_seconds(study: Study, missing: Missing, each: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the missing scores by the method's title; `each`: seconds per input in each series."""
    found: dict[str, float] = {}
    for series, parts in missing.parts.items():
        name = study.settings[series].rule.title
        if parts and series in each:
            found[name] = found.get(name, 0.0) + each[series] * sum(share for _, share in parts)
    return found


def bound_seconds(
    study: Study, store: Store, wanted: Bounds, unbounded: Mapping[str, set[int]], ids: set[int], stop: Stop
) -> dict[str, float]:
    """Compute and store the bounds that the inputs `ids` lack; returns the seconds per input of each.

    unbounded   for each attack and certificate, the inputs that lack it (`missing_bounds`).

    The keys of the result are those of `unbounded`, without bounds that none of these inputs lacks and without those
    that were not computed because `stop` asked to stop.
    """
    took = run_bounds(study, store, wanted, only=ids, stop=stop)
    threads = default_workers(study.classifier.device)
    found = {}
    for name, seconds in took.items():
        inputs = len(unbounded[name] & ids)
        found[name] = _each(seconds, inputs, threads, name.startswith("descent") and inputs > 1)
    return found


def shorter_options(study: Study, preset: str) -> str:
    """Options that would make a run shorter, as one text; those that it uses already are left out."""
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
        options.append("--budget 10m (as many inputs as that allows)")
    return "; ".join(options)
