"""Method: estimators that sample gradient norms in a ball, for a law to be fitted to block maxima (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cleverscore import tails
from cleverscore.errors import SettingError
from cleverscore.estimators.estimator import Estimator, Prepared, Wording
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling.affine import AffinePrepared
from cleverscore.estimators.sampling.sampler import Sampler
from cleverscore.estimators.sampling.target_elimination import Stopping, checkpoints
from cleverscore.estimators.score_rule import ScoreRule
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.inputs.balls import LpBall
from cleverscore.models.structure import is_affine
from cleverscore.tails import TailModel

if TYPE_CHECKING:
    from cleverscore.estimators.settings import Settings
    from cleverscore.inputs.examples import Example
    from cleverscore.models.classifier import Classifier


@dataclass(frozen=True)
class Method(Estimator):
    """A method that estimates the Lipschitz constant in the ball by sampling; pass your own as `clever(..., method=)`.

    name        the value of the column `method` in result rows.
    ball        the distribution of the points: LpBall or a subclass with another `draw` or `points`.
    radius      default radius of the ball.
    penalty     default weight of the penalty (scale / range)^2 in the tail fit.
    cap         whether scores are capped at the radius, as in Algorithm 1.
    tail        a tail model instead of the reverse Weibull law: (maxima, level) -> tails.Endpoints.
    title       the heading of its column in a table of several methods; default: its name.

    >>> Method("plain likelihood", penalty=0.0).radius
    5.0
    """

    name: str
    ball: type[LpBall] = LpBall
    radius: float = 5.0
    penalty: float = tails.PENALTY
    cap: bool = True
    tail: TailModel | None = None
    title: str = ""

    activity = "sampling gradients"

    def ball_of(self, settings: Settings) -> LpBall:
        """The ball in which points are sampled, for these settings."""
        assert settings.radius is not None  # set in Settings
        return self.ball(settings.p, settings.radius, settings.region)

    def check(self, settings: Settings) -> None:
        """Raise a SettingError for an invalid ball, and for early stopping with a tail model of the user."""
        super().check(settings)
        if settings.adaptive:
            if self.tail is not None:
                raise SettingError(
                    f"method {self.name!r} has a tail model of its own, which sampling cannot be stopped by; leave "
                    "tolerance, budget and thresholds out"
                )
            Stopping(0.0 if settings.tolerance is None else settings.tolerance, smallest=True)

    def rule(self, settings: Settings) -> ScoreRule:
        """The rule by which scores are computed; intervals allow for the checkpoints at which sampling may stop."""
        count = len(checkpoints(settings.blocks)) if settings.adaptive else 1
        return replace(super().rule(settings), checkpoints=count)

    def wording(self, settings: Settings) -> Wording:
        """The texts about this method for tables and reports."""
        drawn = f"{settings.blocks} blocks of {settings.block_size} points"
        ends = [] if settings.tolerance is None else [f"tolerance {settings.tolerance:g}"]
        ends += [] if settings.budget is None else [f"budget {settings.budget}"]
        work = f"at most {drawn} ({', '.join(ends)})" if ends else drawn
        tolerance = "none: all blocks for all targets" if settings.tolerance is None else f"{settings.tolerance:g}"
        return Wording(
            work=f"penalty {settings.penalty:g}, {work}",
            all_well="every fit ended well",
            settings=(
                ("blocks", f"{settings.blocks} of {settings.block_size} points"),
                ("tolerance", tolerance),
                ("penalty of the fit", f"{settings.penalty:g}"),
            ),
            how_to_read=(
                (
                    "Interval",
                    f"The statistical error of the estimate from sampling, at {100 * settings.level:g}%, widened for "
                    "norms whose largest value is approached slowly. It is not a guarantee that the true distance lies "
                    "inside. At most a number: the samples show no largest gradient, and only the largest one that "
                    "was met bounds the score, from above.",
                ),
                (
                    "Fit, K-S p and A-D p",
                    "The score rests on a reverse Weibull law fitted to the largest gradient norms of many blocks of "
                    "samples. In the Q-Q plot a good fit follows the line. K-S p is the paper's test, which nearly "
                    "every fit passes; A-D p knows that the law was fitted, and a fit that it rejects is marked. In "
                    "the stability plot the end-point of a law that is reached stays where it is when blocks are "
                    "merged. The penalty, which is a number of the run, keeps end-points finite: where the maxima "
                    "show none, the score rests on it.",
                ),
            ),
        )

    def kind(self, classifier: Classifier, settings: Settings) -> type[Prepared]:
        """`Sampler`, or for an affine classifier a class that needs two points only."""
        return _AffineSampler if is_affine(classifier) else Sampler


class _AffineSampler(AffinePrepared):
    def of_norms(self, example: Example, norms: Sequence[float], seconds: float) -> Measurements:
        """Measurements from gradient norms (targets,): for each target two blocks of one point, with equal maxima."""
        count = len(norms)
        return Measurements.of(
            example, [np.full(2, norm) for norm in norms], (1,) * count, seconds, (StopReason.EXACT,) * count
        )
