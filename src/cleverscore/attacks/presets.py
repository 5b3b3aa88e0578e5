"""Presets of attacks: numbers of steps, restarts and refinements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How long an attack runs.

    iterations      number of gradient steps: for each constant (CW, EAD), for each epsilon (I-FGSM), for each descent
                    before the refinement (descent), else for each run.
    searches        for CW and EAD, steps of the search for the constant; for descent, the number of nearest other
                    classes to descend towards.
    learning_rate   for CW and EAD.
    variants        first step sizes of FMN, or DDN's factors by which the norm changes: one run for each, and the
                    nearest result is kept.
    rounds, starts  for descent: the largest number of rounds, and the number of descents in each group of a round.
    refine          number of gradient steps that move the results nearer to the inputs afterwards; 0 for none.
    first           for descent: a shorter effort that runs first. Its results are kept if they are nearer, so a longer
                    effort is never worse.
    """

    iterations: int
    searches: int = 9
    learning_rate: float = 0.01
    variants: tuple[float, ...] = ()
    rounds: int = 0
    starts: int = 0
    refine: int = 0
    first: Effort | None = None


# With descent, an input costs about iterations * (1 + searches) + rounds * 2 groups (`descent_gradients`) + 3 * refine
# gradients at most, and what `first` costs. The numbers were chosen by local optimality per second (docs/attacks.md).
_QUICK = Effort(20, searches=3, rounds=1, starts=6, refine=20)
_DEFAULT = Effort(40, searches=4, rounds=6, starts=12, refine=60, first=_QUICK)
_LONG = Effort(40, searches=9, rounds=16, starts=24, refine=200, first=_DEFAULT)
_DESCENTS = {"quick": _QUICK, "default": _DEFAULT, "long": _LONG}

# "paper": CW with the released code's constants and 1000 iterations, I-FGSM with 50 iterations, and the attacks that
# the paper does not run as their authors propose. "default" and "long" run DDN and FMN several times, and refine the
# results of all attacks.
PRESETS: dict[str, dict[str, Effort]] = {
    "quick": {
        "descent": _DESCENTS["quick"],
        "cw": Effort(100, 5),
        "ifgsm": Effort(10),
        "ead": Effort(100, 5),
        "ddn": Effort(50, variants=(0.05,)),
        "fmn": Effort(50, variants=(1.0,)),
    },
    "paper": {
        "descent": _DESCENTS["default"],
        "cw": Effort(1000),
        "ifgsm": Effort(50),
        "ead": Effort(1000),
        "ddn": Effort(100, variants=(0.05,)),
        "fmn": Effort(100, variants=(1.0,)),
    },
    "default": {
        "descent": _DESCENTS["default"],
        "cw": Effort(1000, refine=50),
        "ifgsm": Effort(50, refine=50),
        "ead": Effort(1000, refine=50),
        "ddn": Effort(200, variants=(0.02, 0.05, 0.1), refine=50),
        "fmn": Effort(200, variants=(0.3, 1.0, 3.0), refine=50),
    },
    "long": {
        "descent": _DESCENTS["long"],
        "cw": Effort(10_000, refine=200),
        "ifgsm": Effort(500, refine=200),
        "ead": Effort(10_000, refine=200),
        "ddn": Effort(1000, variants=(0.02, 0.05, 0.1), refine=200),
        "fmn": Effort(1000, variants=(0.3, 1.0, 3.0), refine=200),
    },
}

# A user's own function has its own parameters; a preset only sets the steps of the refinement.
OWN_EFFORT = {preset: Effort(1, refine={"default": 50, "long": 200}.get(preset, 0)) for preset in PRESETS}
