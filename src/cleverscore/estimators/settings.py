"""Settings: everything that defines a score, apart from the model and the inputs."""

from __future__ import annotations

from dataclasses import dataclass

from cleverscore.errors import SettingError
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.estimator import Estimator
from cleverscore.estimators.methods import find_method
from cleverscore.estimators.score_rule import ScoreRule
from cleverscore.inputs.targets import TargetsLike, target_kind
from cleverscore.norms import parse_norm
from cleverscore.tails.weibull import checked_penalty
from cleverscore.validation import is_number, is_whole

LARGEST_SEED = 2**64 - 1


@dataclass(frozen=True)
class Settings:
    """Everything that defines a score, apart from the model and the inputs; defaults are the paper's (section 5.1).

    p           the norm.
    targets     which classes an input is scored against, see `cleverscore.inputs.targets`.
    radius      the radius of the ball; default: the method's.
    blocks, block_size  number of blocks, and points in a block.
    seed        of the random points.
    method      an estimator, its name, or its address package.module:attribute.
    region      "ball": the whole ball counts. "box": only its points within the classifier's bounds count.
    level       the confidence level of intervals.
    tolerance   None draws all blocks for every target, as the paper does. A number makes sampling adaptive: it ends for
                a target when more blocks would hardly change the score by more than this share of it, and targets that
                cannot have the smallest score get no more blocks. 0 does only the latter. Methods without blocks ignore
                it.
    budget      end after this many gradients in total ("2000000"), or after this time ("90s", "10m", "2h"), but not
                before 10 blocks; makes sampling adaptive too.
    threshold   decide only whether the score exceeds this threshold; makes sampling adaptive too.
    penalty     the weight of the penalty (scale / range)^2 in the tail fit; default: the method's, 0.01, as in the
                authors' program. It keeps end-points of Gumbel-like maxima finite; 0 is the plain likelihood.
    """

    p: float
    targets: TargetsLike = "untargeted"
    radius: float | None = None
    blocks: int = 500
    block_size: int = 1024
    seed: int = 0
    method: str | Estimator = "paper"
    region: str = "ball"
    level: float = 0.95
    tolerance: float | None = None
    budget: str | int | None = None
    threshold: float | None = None
    penalty: float | None = None

    def __post_init__(self) -> None:
        estimator = self.estimator
        if self.radius is None:
            object.__setattr__(self, "radius", estimator.radius)
        object.__setattr__(self, "p", parse_norm(self.p))
        target_kind(self.targets)
        for name in ("blocks", "block_size"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise SettingError(f"{name}={value!r}: give a whole number, at least 1")
            object.__setattr__(self, name, int(value))
        if not is_whole(self.seed) or not 0 <= self.seed <= LARGEST_SEED:
            raise SettingError(f"seed={self.seed!r}: give a whole number from 0 to 2**64 - 1")
        if not is_number(self.level) or not 0.5 <= self.level < 1.0:
            raise SettingError(f"level={self.level!r}: the level of the intervals must lie between 0.5 and 1")
        penalty = estimator.penalty if self.penalty is None else self.penalty
        object.__setattr__(self, "penalty", checked_penalty(penalty))
        Budget.parse(self.budget)
        estimator.check(self)

    @property
    def estimator(self) -> Estimator:
        """The estimator that `method` says by its name, its address or itself."""
        return find_method(self.method)

    @property
    def rule(self) -> ScoreRule:
        """The rule by which scores are computed from measurements."""
        return self.estimator.rule(self)

    @property
    def adaptive(self) -> bool:
        """Whether sampling may end before all blocks are drawn."""
        return self.tolerance is not None or self.budget is not None or self.threshold is not None
