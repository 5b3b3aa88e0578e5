"""Measurements of one input by an estimator: block maxima or radial profiles, their cost, and why measuring stopped."""

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
    """The measurements of one input in one norm, from which scores are computed.

    input_id    the input's row in its data set.
    label       its class, None if not known.
    predicted   the class that the classifier predicts.
    targets     the target classes; all entries below have one value per target, except `seconds`.
    margins     the margin at the input.
    maxima      an array of block maxima. With adaptive sampling, lengths differ between targets.
    block_sizes     points per block; 1 for targets that were eliminated before blocks were drawn.
    seconds     the time that the input took.
    stopped     why sampling or search stopped: a `StopReason`, or a text of your own estimator.
    profiles    the radial profile of a method that searches instead of drawing blocks; else ().
    slopes      the gradient norm at the input, if the maxima are those of curvatures (second-order scores); else ().
    counts      the number of maxima; to be given only if the maxima themselves were not read from disk.
    gradients   the number of gradients computed; default: one at each point of each block.
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
        """Per target, the number of points in all blocks."""
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
        """Measurements of `example`; its input id, label, predicted class, targets and margins are copied from it.

        `maxima`, `block_sizes` and `stopped` have one entry per target, and so do `profiles`, `slopes` and `gradients`
        if given.
        """
        return cls(
            input_id=example.input_id, label=example.label, predicted=example.predicted, targets=example.targets,
            margins=example.margins, maxima=tuple(maxima), block_sizes=block_sizes, seconds=seconds, stopped=stopped,
            profiles=profiles, slopes=slopes, gradients=gradients,
        )  # fmt: skip

    @classmethod
    def of_profiles(
        cls, example: Example, profiles: tuple[RadialProfile, ...], seconds: float, stopped: tuple[str, ...]
    ) -> Measurements:
        """Measurements of an example by a method without blocks: one radial profile per target."""
        nothing = tuple(np.empty(0) for _ in profiles)
        cost = tuple(profile.gradients for profile in profiles)
        return cls.of(example, nothing, (0,) * len(nothing), seconds, stopped, profiles=profiles, gradients=cost)
