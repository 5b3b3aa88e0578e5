"""How long attacks run: the presets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How long an attack runs.

    iterations      of gradient steps (per constant, epsilon or class).
    searches        of the constant, for CW and EAD; classes, for facets.
    learning_rate   of CW and EAD.
    """

    iterations: int
    searches: int = 9
    learning_rate: float = 0.01
