"""A budget of time for a whole command: as many inputs as it allows, each with all its scores and bounds.

An input is computed as it would be without a budget. So a short budget gives fewer inputs, not worse scores: a search
that is cut short reports scores that are too large. Inputs are computed in groups of growing size, and the time of a
group tells how many inputs the rest of the time allows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from cleverscore.inputs.examples import Example
from cleverscore.runs.add_bounds import Bounds, missing_bounds, run_bounds
from cleverscore.runs.signals import Stop
from cleverscore.runs.store import Store
from cleverscore.runs.study import Study
from cleverscore.scores.cost import Estimate

PROBE_SHARE = 0.05  # of the time, for probes of gradient masking
END_SHARE = 0.05  # of the time, for what follows the computation: reading the run and printing it
FIRST_SCORE_SHARE = 0.8  # of the time, for the scores of the first inputs; the rest is for their attacks
SAFETY = 0.9  # the share of the remaining time that a group of several inputs is expected to take
# An input may always take this many times the expected time, so that one that needs a little more is not cut short.
LEAST_ROOM = 1.5
AT_ONCE, ALONE = 1e-9, 1e9  # pretended seconds per input: all inputs of a group into one shard, or each into its own


@dataclass(frozen=True)
class TimeBudget:
    """A limit on the time of a command: the seconds that it may take, when it began, and the clock that says so."""

    seconds: float
    began: float
    now: Callable[[], float] = time.monotonic

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return math.isfinite(self.seconds)

    @property
    def probes(self) -> float:
        """The seconds that probes of gradient masking may take."""
        return PROBE_SHARE * self.seconds

    @property
    def left(self) -> float:
        """The seconds that are left for computation; the last ones are kept for printing the results."""
        return (1.0 - END_SHARE) * self.seconds - (self.now() - self.began)


def run_within(
    budget: TimeBudget,
    study: Study,
    store: Store,
    wanted: Bounds,
    run: Callable[..., dict[str, float]],
    stop: Stop,
    *,
    slots: int = 1,
    on_group: Callable[[float], None] | None = None,
) -> list[Example]:
    """Compute scores and bounds of as many inputs as the time allows, and of the first `slots` inputs in any case.

    wanted      the attacks and certificates of the run.
    run         computes scores: `Study.run` with a store.
    slots       number of inputs that are computed at the same time.
    on_group    called with the seconds that each group of inputs took.

    Returns the inputs that still lack a score or bound.
    """
    todo = incomplete(study, store, wanted)
    size = slots
    shares = dict.fromkeys(study.settings, FIRST_SCORE_SHARE * max(budget.left, 0.0) / len(study.settings))
    while todo and not stop.asked:
        group, todo = todo[:size], todo[size:]
        start = budget.now()
        costs = dict.fromkeys(study.settings, _shards(len(group), together=slots == 1))
        took = run(costs=costs, only=group, most_seconds=shares, stop=stop)
        run_bounds(study, store, wanted, only={example.input_id for example in group}, stop=stop)
        took_all = budget.now() - start
        if on_group is not None:
            on_group(took_all)
        each = took_all / len(group)
        size = min(inputs_within(budget.left, each), 2 * len(group))
        if size == 0:
            break
        room = max(budget.left / (size * max(each, AT_ONCE)), LEAST_ROOM)
        shares = {series: room * took.get(series, each) for series in study.settings}
    return incomplete(study, store, wanted)


def inputs_within(seconds: float, each: float) -> int:
    """How many inputs can be expected to fit into the seconds, if each takes `each` seconds.

    >>> inputs_within(10.0, 2.0), inputs_within(2.1, 2.0), inputs_within(1.9, 2.0)
    (4, 1, 0)
    """
    if seconds < each:
        return 0
    return max(1, int(SAFETY * seconds / max(each, AT_ONCE)))


def incomplete(study: Study, store: Store, wanted: Bounds) -> list[Example]:
    """The inputs that lack a score or bound."""
    unscored = {example.input_id for parts in study.missing(store).parts.values() for example, _ in parts}
    unbounded = set[int]().union(*missing_bounds(study, store, wanted).values())
    return [example for example in study.examples if example.input_id in unscored | unbounded]


def _shards(inputs: int, *, together: bool) -> Estimate:
    """A pretended cost, by which a group of inputs is put into one shard (`together`), or each into its own."""
    seconds = AT_ONCE if together else ALONE
    return Estimate(seconds * inputs, gradients=0, points=0, memory=0, chunk_size=1, workers=1, inputs=inputs)
