"""A budget of gradients or of time, divided among inputs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from cleverscore.errors import SettingError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
PILOT_BLOCKS = 2  # with a budget of time, so many blocks per input (or `least`) come first, to measure the time of one


@dataclass
class Charge:
    """How many gradients a `with` block of `Budget.charging` charges to the budget; the block may change the number."""

    gradients: int


class Budget:
    """A limit on gradients or seconds, and what of it is spent.

    `share` gives a group of inputs its part; what the group does not use is left for later inputs.

    >>> Budget.parse("10m").seconds, Budget.parse(5000).gradients
    (600.0, 5000.0)
    """

    def __init__(self, *, gradients: float = math.inf, seconds: float = math.inf) -> None:
        self.gradients = gradients
        self.seconds = seconds
        self.spent_gradients = 0
        self.spent_seconds = 0.0
        self._parent: Budget | None = None

    @classmethod
    def parse(cls, text: str | int | None) -> Budget:
        """A budget from text: None is no limit, a number is gradients, a number with s, m or h is a time."""
        if text is None:
            return cls()
        found = re.fullmatch(r"\s*([0-9_]*\.?[0-9]+)\s*([smh]?)\s*", str(text))
        if not found or float(found[1]) <= 0:
            raise SettingError(f"budget={text!r}: give a number of gradients (2000000) or a time (90s, 10m, 2h)")
        amount = float(found[1])
        return cls(seconds=amount * UNITS[found[2]]) if found[2] else cls(gradients=amount)

    @property
    def unlimited(self) -> bool:
        """Whether neither gradients nor time have a limit."""
        return math.isinf(self.gradients) and math.isinf(self.seconds)

    def share(self, inputs: int, of: int) -> Budget:
        """The part of the remaining budget for `inputs` of the `of` inputs that are still to be measured.

        What is charged to the part is charged to this budget, too.
        """
        part = Budget(
            gradients=(self.gradients - self.spent_gradients) * inputs / of,
            seconds=(self.seconds - self.spent_seconds) * inputs / of,
        )
        part._parent = self
        return part

    @contextmanager
    def charging(self, gradients: int = 0) -> Iterator[Charge]:
        """Charge the time of a `with` block and a number of gradients, at its end.

        The number is `gradients`, plus what the block adds to `Charge.gradients` of the object that it is given.
        """
        began = time.monotonic()
        charge = Charge(gradients)
        yield charge
        seconds = time.monotonic() - began
        for shared_budget in (self, self._parent):
            if shared_budget is not None:
                shared_budget.spent_gradients += charge.gradients
                shared_budget.spent_seconds += seconds

    def affords(self, gradients: int) -> bool:
        """Whether this many more gradients fit into the budget, at the speed measured so far."""
        if self.spent_gradients + gradients > self.gradients:
            return False
        per_gradient = self.spent_seconds / max(1, self.spent_gradients)
        return self.spent_seconds + gradients * per_gradient <= self.seconds

    def allowed_blocks(self, costs: Mapping[int, int], wanted: Mapping[int, int], *, least: int) -> int:
        """How many blocks each input may draw next, one number for all: as many as the budget allows.

        costs   by input, the number of gradients of one block.
        wanted  by input, the number of blocks to draw; not more than the largest of these are allowed.
        least   so many blocks are allowed in any case (unless fewer are wanted).
        """
        most = max(wanted.values())
        if self.unlimited:
            return most
        a_round = sum(costs.values())
        by_gradients = (self.gradients - self.spent_gradients) / a_round
        if math.isinf(self.seconds):
            by_time = math.inf
        elif self.spent_gradients == 0:
            by_time = PILOT_BLOCKS
        else:
            by_time = (self.seconds - self.spent_seconds) / (a_round * self.spent_seconds / self.spent_gradients)
        return int(min(most, max(least, 0, min(by_gradients, by_time))))
