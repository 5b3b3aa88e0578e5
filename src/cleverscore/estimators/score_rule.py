"""How measurements become a score: the norm, the radius and the tail fit; and margin / constant, capped."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cleverscore import tails
from cleverscore.tails.weibull import ESTIMATOR

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoreRule:
    """How maxima become scores: the norm, the radius and the estimator.

    cap     whether the radius bounds the score, as Algorithm 1 says.
    tail    a tail model of the user instead of the reverse Weibull law.
    """

    p: float
    radius: float
    method: str
    target_kind: str
    penalty: float
    cap: bool = True
    level: float = 0.95
    checkpoints: int = 1
    tail: tails.TailModel | None = None

    @property
    def estimator(self) -> str:
        """The name under which fitted tails are kept: they are the same wherever it is."""
        return f"{ESTIMATOR}, penalty {self.penalty:g}, level {self.level:g}, {self.checkpoints} looks"

    @property
    def limit(self) -> float:
        """The largest score there can be."""
        return self.radius if self.cap else math.inf


def capped_ratio(margins: Array | float, constants: Array | float, limit: float) -> Array:
    """min(margin / constant, limit); with a constant of 0 nothing in the ball changes the margin.

    >>> capped_ratio(np.array([1.0, 1.0, 0.0]), np.array([4.0, 0.0, 4.0]), 5.0)
    array([0.25, 5.  , 0.  ])
    """
    margins, constants = np.asarray(margins, np.float64), np.asarray(constants, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(constants > 0.0, margins / constants, np.inf)
    ratios = np.where(np.isnan(constants), np.nan, np.minimum(ratios, limit))
    scores: Array = np.where(margins <= 0.0, 0.0, ratios)
    return scores
