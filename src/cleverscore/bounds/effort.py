"""How long attacks run: the presets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How long an attack runs.

    iterations      of gradient steps (per constant, epsilon or class).
    searches        of the constant, for CW and EAD; classes, for facets.
    learning_rate   of CW and EAD.
    variants        FMN's first step sizes or DDN's factors of the norm: a run for each, and the nearest result counts.
    polish          steps of polishing afterwards.
    """

    iterations: int
    searches: int = 9
    learning_rate: float = 0.01
    variants: tuple[float, ...] = ()
    polish: int = 0


# "paper": CW with the released code's constants and 1000 iterations, I-FGSM with 50; the others, which the paper does
# not run, as their authors propose. "strong" spends its steps on several shorter runs, which find nearer points than
# one long run does, and polishes.
PRESETS: dict[str, dict[str, Effort]] = {
    "quick": {
        "cw": Effort(100, 5),
        "ifgsm": Effort(10),
        "ead": Effort(100, 5),
        "ddn": Effort(50, variants=(0.05,)),
        "fmn": Effort(50, variants=(1.0,)),
        "facets": Effort(20, 2),
    },
    "paper": {
        "cw": Effort(1000),
        "ifgsm": Effort(50),
        "ead": Effort(1000),
        "ddn": Effort(100, variants=(0.05,)),
        "fmn": Effort(100, variants=(1.0,)),
        "facets": Effort(30, 4),
    },
    "strong": {
        "cw": Effort(1000, polish=50),
        "ifgsm": Effort(50, polish=50),
        "ead": Effort(1000, polish=50),
        "ddn": Effort(200, variants=(0.02, 0.05, 0.1), polish=50),
        "fmn": Effort(200, variants=(0.3, 1.0, 3.0), polish=50),
        "facets": Effort(30, 4, polish=50),
    },
}

# An attack of the user has its own parameters; only polishing is ours.
OWN_EFFORT = {preset: Effort(1, polish=50 if preset == "strong" else 0) for preset in PRESETS}
