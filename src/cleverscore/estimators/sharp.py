"""Sharp: the method that searches for the largest decreases of the margin between spheres around the input."""

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
    """The method "sharp": radial profiles by descents to the boundary and ascents across shells (docs/sharp.md)."""

    name = "sharp"
    unused = ("blocks", "block_size", "tolerance", "penalty")
    activity = "searching shells"
    per_target = True

    def max_work(self, settings: Settings, dim: int) -> int:
        """The largest number of gradients per target, for progress and cost."""
        return most_gradients(dim)

    def stops_early(self, settings: Settings) -> bool:
        """Whether the search may do less work than `max_work`: always, since it ends when more starts change little."""
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
        """A search, or for an affine classifier without a box a closed form."""
        return _AffineProfiles if is_affine(classifier) and settings.region != "box" else _Searches


class _Searches(Sampler):
    """Prepared search: it uses the same optimised network as sampling."""

    @property
    def splits(self) -> bool:
        """Whether the work can be split into blocks: no, because the stages of a search build on each other."""
        return False

    def measure(
        self, examples: Sequence[Example], *, budget: Budget | None = None, on_work: OnWork | None = None
    ) -> Iterator[tuple[int, Measurements]]:
        """Search around all examples; yields (position, measurements) of each."""
        moved = self.moved(examples)
        # The projection of an l2 ball onto a subspace is an l2 ball.
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
        """Measurements from gradient norms: one profile per target, with one shell, since the slope is constant."""
        radius = self.estimator.ball_of(self.settings).radius
        profiles = tuple(
            _flat_profile(norm, margin, radius) for norm, margin in zip(norms, example.margins, strict=True)
        )
        return Measurements.of_profiles(example, profiles, seconds, (StopReason.EXACT,) * len(profiles))


def _flat_profile(norm: float, margin: float, radius: float) -> RadialProfile:
    """The radial profile of an affine classifier: one shell, since the slope of the margin is constant."""
    upper = max(margin, 0.0) / norm if norm > 0.0 else math.inf
    distance = min(upper, radius)
    outcome = FitOutcome.CONSTANT if norm > 0.0 else FitOutcome.ZERO
    if not math.isfinite(norm):
        outcome = FitOutcome.NOT_FINITE
    return RadialProfile(distance, distance, upper, np.array([norm * distance]), (1.0,), 2, outcome.value)
