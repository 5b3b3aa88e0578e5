"""End-points from a user's own tail model, returned in the form of the built-in fit."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from cleverscore.errors import SettingError

from ._likelihood import Floats
from .intervals import Intervals, interval
from .outcome import FitOutcome
from .weibull import TailFits, as_samples, law


class Endpoints(NamedTuple):
    """What your tail model returns: end-points that it estimates from samples of block maxima; arrays (samples,).

    location    the estimated end-points, finite.
    low, high   limits of the end-points at the given level; `high` may be infinite. None if the model has no interval.
    """

    location: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None


class TailModel(Protocol):
    """Your own tail model: a function from samples of block maxima to their end-points.

    maxima  (samples, blocks); samples that need no fit are left out, as `fit_own` says.
    level   the confidence level of the limits, such as 0.95.
    """

    def __call__(self, maxima: Floats, level: float, /) -> Endpoints:
        """End-points, one for each sample."""
        ...


def fit_own(maxima: ArrayLike, model: TailModel, *, level: float = 0.95) -> tuple[TailFits, Intervals]:
    """End-point and limits of each sample by `model`, which is a function (maxima, level) -> Endpoints.

    The model does not get samples whose maxima are constant, all zero, tied, too few, NaN or infinite: their outcome,
    end-point and limits are those of `fit` and `interval`. An end-point or limit below the largest value of its sample
    is replaced by that value.

    maxima: (..., blocks). Returns what `fit` and `interval` return. Rows of the model have the outcome `custom_model`,
    and NaN for scale, shape, log-likelihood and limits that the model did not give.

    >>> import numpy as np
    >>> maxima = 2.0 - np.random.default_rng(0).weibull(3.0, size=(4, 500))
    >>> fits, limits = fit_own(maxima, lambda rows, level: Endpoints(rows.max(1) + np.ptp(rows, axis=1) / 100))
    >>> str(fits[0].outcome), bool(np.isnan(limits.low).all())
    ('custom_model', True)
    """
    x = as_samples(maxima)
    fits = replace(law(x), penalty=np.nan)  # the model may have no penalty
    limits = interval(x, fits, level=level, method="posterior")
    mine = np.array([outcome.has_law for outcome in fits.outcome.ravel()], dtype=bool).reshape(fits.outcome.shape)
    if not mine.any():
        return fits, limits
    answer = model(x[mine], level)
    if not isinstance(answer, tuple) or not 1 <= len(answer) <= 3:
        raise SettingError(f"the tail model gave a {type(answer).__name__}; give tails.Endpoints(location, low, high)")
    found = Endpoints(*answer)
    count, top = int(mine.sum()), fits.sample_max[mine]
    location = _checked("location", found.location, count)
    if not np.isfinite(location).all():
        raise SettingError(f"the tail model gave the end-point {location[~np.isfinite(location)][0]}; give finite ones")
    for name, given in (("low", found.low), ("high", found.high)):
        values = np.full(count, np.nan) if given is None else np.maximum(_checked(name, given, count), top)
        getattr(limits, name)[mine] = values
    fits.location[mine] = np.maximum(location, top)
    for numbers in (fits.scale, fits.shape, fits.log_likelihood):
        numbers[mine] = np.nan
    fits.outcome[mine] = FitOutcome.CUSTOM_MODEL
    return fits, limits


def _checked(name: str, values: ArrayLike, count: int) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"the tail model gave {name} that are no numbers ({error}); give one for each sample"
        ) from None
    if array.shape != (count,):
        raise SettingError(f"the tail model gave {name} of shape {array.shape} for {count} samples; give one each")
    return array
