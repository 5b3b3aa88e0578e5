"""Sharp: the method that searches for the largest decreases of the margin between neighbouring spheres."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cleverscore.estimators.ascent.profile_search import most_gradients, searches
from cleverscore.estimators.ascent.radial_profile import RadialProfile
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.estimator import Estimator, OnWork, Prepared, Wording
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling.affine import AffinePrepared
from cleverscore.estimators.sampling.sampler import Sampler
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.inputs.balls import LpBall
from cleverscore.inputs.targets import takes_smallest, target_kind
from cleverscore.models.structure import is_affine
from cleverscore.tails import FitOutcome

if TYPE_CHECKING:
    from cleverscore.estimators.settings import Settings
    from cleverscore.inputs.examples import Example
    from cleverscore.models.classifier import Classifier


@dataclass(frozen=True)
class Sharp(Estimator):
    """The method "sharp": it computes the radial profile of each target by a search (docs/sharp.md).

    Descents search for the nearest point of the target's class. Ascents search for the largest fall of the margin
    across each shell between two spheres around the input.
    """

    name = "sharp"
    unused = ("blocks", "block_size", "tolerance", "penalty")
    activity = "searching shells"
    per_target = True

    def max_work(self, settings: Settings, dim: int) -> int:
        """The largest number of gradients per target, for progress and cost."""
        return most_gradients(dim)

    def stops_early(self, settings: Settings) -> bool:
        """Whether the search may do less work than `max_work`: yes, because it ends when more starts change little."""
        return True

    def wording(self, settings: Settings) -> Wording:
        """The texts about the sharp method for tables and reports."""
        return Wording(
            work="ascent",
            all_well="every search settled",
            how_to_read=(
                (
                    "Search",
                    "The score is the distance at which the largest falls of the margin across shells around the "
                    "input, found by search, add up to the margin. No law is fitted and there is no sampling error, "
                    "hence no interval, no Q-Q plot and no test of a fit. A search can miss the largest fall; then "
                    "the score is too large. In a search that is not settled the starts disagree.",
                ),
            ),
        )

    def kind(self, classifier: Classifier, settings: Settings) -> type[Prepared]:
        """A class that searches, or a closed form for affine classifiers with region="ball"."""
        return _AffineProfiles if is_affine(classifier) and settings.region != "box" else _Searches


class _Searches(Sampler):
    """The prepared method "sharp"; it uses the same optimised network as sampling."""

    @property
    def splits(self) -> bool:
        """Whether the work can be split into blocks: no, because each stage of a search needs the one before."""
        return False

    def measure(
        self, examples: Sequence[Example], *, budget: Budget | None = None, on_work: OnWork | None = None
    ) -> Iterator[tuple[int, Measurements]]:
        """Search around all examples; yields (position in `examples`, measurements) of each."""
        moved = self.moved(examples)
        # The reduced ball may be a `ProjectedBall`, whose points have another law; the set is an l2 ball all the same.
        ball = LpBall(self.reduced.ball.p, self.reduced.ball.radius, self.reduced.ball.region)
        found = searches(
            self.reduced.classifier, moved, ball=ball, seed=self.settings.seed,
            budget=budget or Budget.parse(self.settings.budget),
            smallest_only=takes_smallest(target_kind(self.settings.targets)), chunk_size=self.chunk_size,
            workers=self.workers, on_points=on_work,
        )  # fmt: skip
        for i, search in found:
            yield i, Measurements.of_profiles(moved[i], search.profiles(), search.seconds, search.stopped)


class _AffineProfiles(AffinePrepared):
    def of_norms(self, example: Example, norms: Sequence[float], seconds: float) -> Measurements:
        """Measurements from gradient norms (targets,): one profile per target."""
        radius = self.estimator.ball_of(self.settings).radius
        profiles = tuple(
            _flat_profile(norm, margin, radius) for norm, margin in zip(norms, example.margins, strict=True)
        )
        return Measurements.of_profiles(example, profiles, seconds, (StopReason.EXACT,) * len(profiles))


def _flat_profile(norm: float, margin: float, radius: float) -> RadialProfile:
    """The radial profile of an affine classifier, from a gradient norm and margin: one shell from the input outwards.

    One shell is exact, because the gradient is the same everywhere.
    """
    upper = max(margin, 0.0) / norm if norm > 0.0 else math.inf
    distance = min(upper, radius)
    outcome = FitOutcome.CONSTANT if norm > 0.0 else FitOutcome.ZERO
    if not math.isfinite(norm):
        outcome = FitOutcome.NOT_FINITE
    return RadialProfile(distance, distance, upper, np.array([norm * distance]), (1.0,), 2, outcome.value)
