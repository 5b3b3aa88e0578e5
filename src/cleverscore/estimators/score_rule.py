"""ScoreRule: how scores are computed from measurements, and the formula min(margin / constant, limit)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from cleverscore import tails
from cleverscore.errors import StoreError
from cleverscore.tails.weibull import ESTIMATOR

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoreRule:
    """How scores are computed from measurements: the method's name, the norm, the radius and the tail fit.

    p               the norm.
    radius          the radius of the ball.
    method          the name of the method.
    target_kind     how the targets were chosen, as in the column `target_kind`.
    penalty         the weight of the penalty (scale / range)^2 in the tail fit.
    cap             whether scores are capped at the radius, as in Algorithm 1.
    level           the confidence level of intervals.
    checkpoints     how many times sampling checked whether it may stop; intervals allow for this.
    title           the heading of the method's column in a table of several methods; default: the name of the method.
    tail            a tail model of the user instead of the reverse Weibull law.
    """

    p: float
    radius: float
    method: str
    target_kind: str
    penalty: float
    cap: bool = True
    level: float = 0.95
    checkpoints: int = 1
    title: str = ""
    tail: tails.TailModel | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.method)

    @property
    def tail_fit(self) -> str:
        """A key for stored tail fits: rules with the same key give the same fits of the same measurements."""
        law = ESTIMATOR if self.tail is None else f"tail model {_name_of(self.tail)}"
        return f"{law}, penalty {self.penalty:g}, level {self.level:g}, {self.checkpoints} checkpoints"

    @property
    def limit(self) -> float:
        """The largest possible score: the radius, or infinity without a cap."""
        return self.radius if self.cap else math.inf

    def stored(self) -> dict[str, Any]:
        """The rule's fields by name, as a run stores them; a user's tail model is stored as its name."""
        return {**asdict(self), "tail": None if self.tail is None else _name_of(self.tail)}

    @classmethod
    def restored(cls, kept: Mapping[str, Any]) -> ScoreRule:
        """The rule from the fields that `stored` gave.

        A user's tail model cannot be restored from its name. Scores whose fits the run has stored do not need it; to
        fit others raises a StoreError.
        """
        name = kept.get("tail")
        return cls(**{**kept, "tail": None if name is None else partial(_not_there, name)})


def _name_of(tail: tails.TailModel) -> str:
    return str(tail.args[0] if isinstance(tail, partial) else getattr(tail, "__qualname__", type(tail).__qualname__))


def _not_there(name: str, maxima: Array, level: float) -> NoReturn:
    raise StoreError(
        f"some scores of this run still have to be fitted by its own tail model {name!r}, which is not here; resume "
        "the run in the program that has it"
    )


def capped_ratio(margins: Array | float, constants: Array | float, limit: float) -> Array:
    """min(margin / constant, limit), elementwise: a score from a margin and a Lipschitz constant.

    A margin of 0 or below gives 0, else a constant of 0 gives the limit, and a constant of NaN gives NaN.

    >>> capped_ratio(np.array([1.0, 1.0, 0.0]), np.array([4.0, 0.0, 4.0]), 5.0)
    array([0.25, 5.  , 0.  ])
    """
    margins, constants = np.asarray(margins, np.float64), np.asarray(constants, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(constants > 0.0, margins / constants, np.inf)
    ratios = np.where(np.isnan(constants), np.nan, np.minimum(ratios, limit))
    scores: Array = np.where(margins <= 0.0, 0.0, ratios)
    return scores
