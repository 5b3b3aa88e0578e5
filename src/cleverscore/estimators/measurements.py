"""What an estimator measured for one input: block maxima or radial profiles, what they cost, and why it stopped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cleverscore.estimators.ascent.radial_profile import RadialProfile

if TYPE_CHECKING:
    from cleverscore.inputs.examples import Example

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measurements:
    """All that was measured for one input and one norm; scores are derived from it.

    maxima      one array of block maxima per target; under adaptive sampling they differ in length, and targets that
                got a few points only have blocks of one point.
    stopped     per target, why no more blocks were drawn.
    profiles    per target, what a search across shells found; then there are no blocks.
    slopes      per target, the gradient norm at the input, where the maxima are of curvatures (second-order scores).
    counts      per target, how many maxima there are; given where the maxima themselves were left on disk.
    gradients   per target, how many were computed for the maxima; default: one at each point of each block.
    """

    input_id: int
    label: int | None
    predicted: int
    targets: tuple[int, ...]
    margins: tuple[float, ...]
    maxima: tuple[Array, ...]
    block_sizes: tuple[int, ...]
    seconds: float
    stopped: tuple[str, ...]
    profiles: tuple[RadialProfile, ...] = ()
    slopes: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.counts:
            object.__setattr__(self, "counts", tuple(len(row) for row in self.maxima))
        if not self.gradients:
            object.__setattr__(self, "gradients", self.points)

    @property
    def points(self) -> tuple[int, ...]:
        """Per target, at how many points of the ball its maxima are."""
        return tuple(count * size for count, size in zip(self.counts, self.block_sizes, strict=True))

    @classmethod
    def of(
        cls,
        example: Example,
        maxima: Iterable[Array],
        block_sizes: tuple[int, ...],
        seconds: float,
        stopped: tuple[str, ...],
        *,
        profiles: tuple[RadialProfile, ...] = (),
        slopes: tuple[float, ...] = (),
        gradients: tuple[int, ...] = (),
    ) -> Measurements:
        """What was measured for an example, one entry per target."""
        return cls(
            input_id=example.input_id, label=example.label, predicted=example.predicted, targets=example.targets,
            margins=example.margins, maxima=tuple(maxima), block_sizes=block_sizes, seconds=seconds, stopped=stopped,
            profiles=profiles, slopes=slopes, gradients=gradients,
        )  # fmt: skip

    @classmethod
    def of_profiles(
        cls, example: Example, profiles: tuple[RadialProfile, ...], seconds: float, stopped: tuple[str, ...]
    ) -> Measurements:
        """What was measured for an example without blocks: one radial profile per target."""
        nothing = tuple(np.empty(0) for _ in profiles)
        cost = tuple(profile.gradients for profile in profiles)
        return cls.of(example, nothing, (0,) * len(nothing), seconds, stopped, profiles=profiles, gradients=cost)
