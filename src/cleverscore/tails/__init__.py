"""The statistics of CLEVER, without torch: end-points of block maxima, their intervals and goodness of fit."""

from .convergence import Stability, stability
from .fitting import POOR_FIT, fit
from .goodness import anderson_darling, kolmogorov_smirnov
from .intervals import Intervals, interval
from .outcome import FitOutcome
from .own import Endpoints, TailModel, fit_own
from .weibull import PENALTY, TailFit, TailFits, law
from .weighted import block_weights, fit_weighted

__all__ = [
    "PENALTY",
    "POOR_FIT",
    "Endpoints",
    "FitOutcome",
    "Intervals",
    "Stability",
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
    "law",
    "stability",
]
