"""Presets: named sets of methods, blocks, attacks and certificates for an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cleverscore.errors import SettingError


@dataclass(frozen=True)
class Preset:
    """The defaults of an evaluation.

    purpose         what the preset is for, in a few words.
    inputs          how many inputs of a data set are used, from its first; None for all.
    methods         methods of scoring; the first is the main one, whose scores gates and summaries use.
    blocks, block_size, tolerance   settings of sampled scores, as in `clever`.
    radius          "auto" for a radius that suits the norm, None for the method's default.
    region          "box": only points within the classifier's bounds count, if it has any; "ball": every point counts.
    attacks         names of attacks, each with the attack's own preset after a colon (docs/attacks.md).
    certificates    methods of certification; left out where the network has layers that they cannot bound.
    """

    name: str
    purpose: str
    inputs: int | None
    methods: tuple[str, ...]
    blocks: int
    block_size: int
    tolerance: float | None
    radius: float | str | None
    attacks: Sequence[Any]
    certificates: tuple[str, ...]
    region: str = "box"

    def region_for(self, bounds: tuple[float, float] | None) -> str:
        """The region of scores and certificates: that of the preset, or the ball for a classifier without bounds."""
        return "ball" if bounds is None else self.region

    def __str__(self) -> str:
        adaptive = "" if self.tolerance is None else f"at most, stopped at {self.tolerance:.0%}"
        parts = [
            "all inputs" if self.inputs is None else f"the first {self.inputs} inputs",
            f"method{'s' * (len(self.methods) > 1)} {' and '.join(self.methods)}",
            f"{self.blocks} blocks of {self.block_size} points {adaptive}".rstrip(),
            *(f"attack {name}" for name in self.attacks),
            *(f"certificate {name}" for name in self.certificates),
            "radius 5 in every norm" if self.radius is None else f"radius {self.radius}",
            "valid inputs only" if self.region == "box" else "the whole ball",
        ]
        return f"{self.name}: {', '.join(parts)}"


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "quick", "an answer in minutes", inputs=20, methods=("paper", "sharp"), blocks=40, block_size=16,
            tolerance=0.05, radius="auto", attacks=("best:quick",), certificates=(),
        ),
        Preset(
            "thorough", "numbers for a report", inputs=None, methods=("paper", "sharp"), blocks=500, block_size=1024,
            tolerance=0.05, radius="auto", attacks=("best:default",), certificates=("crown",),
        ),
        Preset(
            "paper", "the paper's score as it stands there, alone", inputs=None, methods=("paper",), blocks=500,
            block_size=1024, tolerance=None, radius=None, attacks=(), certificates=(), region="ball",
        ),
    )
}  # fmt: skip


def preset_of(name: str | Preset, **given: Any) -> Preset:
    """A preset by its name or as an object, with the given parts replaced; a part that is None is not replaced.

    >>> preset_of("quick", blocks=100, tolerance=None).blocks
    100
    """
    if not isinstance(name, Preset) and name not in PRESETS:
        raise SettingError(f"preset={name!r}: choose one of {', '.join(PRESETS)}")
    preset = name if isinstance(name, Preset) else PRESETS[name]
    return replace(preset, **{part: value for part, value in given.items() if value is not None})
