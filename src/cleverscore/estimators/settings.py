"""What defines a score, apart from the model and the inputs."""

from __future__ import annotations

from dataclasses import dataclass

from cleverscore import tails
from cleverscore.errors import SettingError
from cleverscore.estimators.ascent.profile_search import most_gradients
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.sampling.target_elimination import Stopping, TargetElimination, checkpoints
from cleverscore.estimators.score_rule import ScoreRule
from cleverscore.inputs.balls import LpBall, ReleasedCodeBall
from cleverscore.inputs.examples import Example
from cleverscore.inputs.targets import TargetsLike, takes_smallest, target_kind
from cleverscore.tails import TailModel
from cleverscore.tails.weibull import checked_penalty
from cleverscore.validation import is_number, is_whole

LARGEST_SEED = 2**64 - 1
SHARP = "sharp"


@dataclass(frozen=True)
class Method:
    """A way to estimate the local Lipschitz constant by sampling; `clever(..., method=)` takes one of your own.

    name        what result rows carry in their column `method`.
    ball        the law of the points: LpBall or a subclass with another `draw` or `points`.
    radius      of the ball, where the user gives none.
    penalty     the weight of (scale / range)^2 in the tail fit, where the user gives none.
    cap         whether the radius bounds the score, as Algorithm 1 says.
    tail        a tail model instead of the reverse Weibull law: (maxima, level) -> tails.Endpoints.

    >>> Method("plain likelihood", penalty=0.0).radius
    5.0
    """

    name: str
    ball: type[LpBall] = LpBall
    radius: float = 5.0
    penalty: float = tails.PENALTY
    cap: bool = True
    tail: TailModel | None = None


METHODS = {
    method.name: method
    for method in (
        Method("paper"),
        Method(SHARP),
        Method("released-code", ReleasedCodeBall, 3.0, cap=False),
    )
}


@dataclass(frozen=True)
class Settings:
    """What defines a score, apart from the model and the inputs; defaults are the paper's (section 5.1).

    region      "ball": the whole ball counts. "box": only moves that keep the input within the classifier's bounds do.
    tolerance   None draws all blocks for every target, as the paper does. A number makes sampling adaptive: it ends
                where a score's interval is within that share of the score, and untargeted scores race their targets.
                The sharp method has stages of its own and no use for a tolerance.
    budget      end after so many gradients in all ("2000000"), or so much time ("90s", "10m", "2h"), but not before 10
                blocks; adaptive as well.
    threshold   a score that only has to be told from; adaptive as well.
    penalty     the weight of (scale / range)^2 in the tail fit; default: the method's own, 0.01, as in the authors'
                program. It keeps end-points of Gumbel-like maxima finite; 0 is the plain likelihood.
    """

    p: float
    targets: TargetsLike = "untargeted"
    radius: float | None = None
    blocks: int = 500
    block_size: int = 1024
    seed: int = 0
    method: str | Method = "paper"
    region: str = "ball"
    level: float = 0.95
    tolerance: float | None = None
    budget: str | int | None = None
    threshold: float | None = None
    penalty: float | None = None

    def __post_init__(self) -> None:
        _check_method(self.method)
        if self.radius is None:
            object.__setattr__(self, "radius", self.way.radius)
        object.__setattr__(self, "p", self.ball.p)
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
        object.__setattr__(self, "penalty", checked_penalty(self.way.penalty if self.penalty is None else self.penalty))
        if self.adaptive:
            if self.way.tail is not None:
                raise SettingError(
                    f"method {self.way.name!r} has a tail model of its own, which sampling cannot be stopped by; leave "
                    "tolerance, budget and thresholds out"
                )
            Stopping(0.0 if self.tolerance is None else self.tolerance, race=True)
            Budget.parse(self.budget)

    def points(self, dim: int) -> int:
        """Work per input at most, in the units of progress: points that are sampled, or a target's gradients."""
        return most_gradients(dim) if self.sharp else self.blocks * self.block_size

    @property
    def activity(self) -> str:
        """What a progress bar says."""
        return "searching shells" if self.sharp else "sampling gradients"

    @property
    def way(self) -> Method:
        """The method, by whichever of its two forms it was given."""
        return METHODS[self.method] if isinstance(self.method, str) else self.method

    @property
    def sharp(self) -> bool:
        """Whether gradient norms are found by ascent instead of sampling."""
        return self.way.name == SHARP

    @property
    def adaptive(self) -> bool:
        """Whether sampling may end before all blocks are drawn."""
        return self.tolerance is not None or self.budget is not None or self.threshold is not None

    @property
    def ball(self) -> LpBall:
        """The ball that is sampled."""
        assert self.radius is not None  # set in __post_init__
        return self.way.ball(self.p, self.radius, self.region)

    @property
    def rule(self) -> ScoreRule:
        """How block maxima become scores."""
        assert self.radius is not None  # both are set in __post_init__
        assert self.penalty is not None
        return ScoreRule(
            p=self.p,
            radius=self.radius,
            method=self.way.name,
            target_kind=target_kind(self.targets),
            penalty=self.penalty,
            cap=self.way.cap,
            level=self.level,
            checkpoints=len(checkpoints(self.blocks)) if self.adaptive else 1,
            tail=self.way.tail,
        )

    def race(self, example: Example) -> TargetElimination:
        """The race of an input's targets."""
        rule = self.rule
        return TargetElimination(
            example.targets,
            example.margins,
            limit=rule.limit,
            penalty=rule.penalty,
            level=rule.level,
            blocks=self.blocks,
            block_size=self.block_size,
            stopping=Stopping(self.tolerance or 0.0, takes_smallest(rule.target_kind), self.threshold),
        )


def _check_method(method: str | Method) -> None:
    if isinstance(method, str):
        if method not in METHODS:
            raise SettingError(f"method={method!r}: choose one of {', '.join(METHODS)}, or give a cs.Method")
    elif not isinstance(method, Method):
        raise SettingError(f"method={method!r}: give a name ({', '.join(METHODS)}) or a cs.Method")
    elif method.name in METHODS and method != METHODS[method.name]:
        raise SettingError(f"the name of the method, {method.name!r}, is that of a built-in one; give it another")
