"""How long attacks run: the presets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How long an attack runs.

    iterations      of gradient steps (per constant or epsilon; per descent from the input).
    searches        of the constant, for CW and EAD; likeliest other classes to descend towards, for descent.
    learning_rate   of CW and EAD.
    variants        FMN's first step sizes or DDN's factors of the norm: a run for each, and the nearest result counts.
    rounds          for descent, (starts, steps) of each: descents from points near the best that were found.
    last            for descent, steps of the last one, from the nearest point.
    refine          steps of refinement afterwards.
    """

    iterations: int
    searches: int = 9
    learning_rate: float = 0.01
    variants: tuple[float, ...] = ()
    rounds: tuple[tuple[int, int], ...] = ()
    last: int = 60
    refine: int = 0


# An input costs iterations * (1 + searches) + the sum of starts * steps gradients: 200, 1460 and 8,640, at about half
# the time of a step of foolbox's DDN or FMN. Many short descents find nearer points than few long ones; of those at
# last, some end in longer ones. (Measured as local optimality at equal numbers of gradients: docs/attacks.md.)
_DESCENTS = {
    "quick": Effort(20, searches=4, rounds=((5, 20),)),
    "default": Effort(20, searches=9, rounds=((9, 20),) * 4 + ((3, 60),) * 3),
    "long": Effort(40, searches=19, rounds=((18, 20),) * 8 + ((9, 60),) * 8 + ((3, 200),) * 1),
}

# "paper": CW with the released code's constants and 1000 iterations, I-FGSM with 50; the others, which the paper does
# not run, as their authors propose. "default" and "long" spend their steps on several runs and refine the results.
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

# An attack of the user has its own parameters; only refinement is ours.
OWN_EFFORT = {preset: Effort(1, refine={"default": 50, "long": 200}.get(preset, 0)) for preset in PRESETS}
