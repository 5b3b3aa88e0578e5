"""The statistics half of CLEVER: end-points of block maxima, with intervals and goodness of fit; no torch."""

from .goodness import anderson_darling, kolmogorov_smirnov
from .intervals import Intervals, interval
from .outcome import FitOutcome
from .own import Endpoints, TailModel, fit_own
from .weibull import PAPER_PENALTY, RELEASED_CODE_PENALTY, TailFit, TailFits, fit
from .weighted import block_weights, fit_weighted

__all__ = [
    "PAPER_PENALTY",
    "RELEASED_CODE_PENALTY",
    "Endpoints",
    "FitOutcome",
    "Intervals",
    "TailFit",
    "TailFits",
    "TailModel",
    "anderson_darling",
    "block_weights",
    "fit",
    "fit_own",
    "fit_weighted",
    "interval",
    "kolmogorov_smirnov",
]
