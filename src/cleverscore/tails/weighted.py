"""A fit that averages the likelihood over all possible blocks; it needs only the largest gradient norms."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from cleverscore.errors import SettingError
from cleverscore.validation import is_whole

from ._likelihood import Floats, Weights
from .weibull import PENALTY, TailFits, as_samples, checked_penalty, fit_rows, reshaped


def block_weights(samples: int, block_size: int, kept: int) -> Floats:
    """Probabilities w_j, j = 1..kept, that the j-th largest of `samples` norms is the maximum of a random block.

    w_j = C(samples - j, block_size - 1) / C(samples, block_size).

    >>> [round(float(w), 3) for w in block_weights(4, 2, 3)]    # of 6 pairs: 3, 2 and 1
    [0.5, 0.333, 0.167]
    """
    if not all(map(is_whole, (samples, block_size, kept))) or not (1 <= block_size <= samples and 1 <= kept <= samples):
        raise SettingError(
            f"samples = {samples!r}, block_size = {block_size!r} and kept = {kept!r} must be whole numbers from 1, the "
            "last two not above samples"
        )
    j = np.arange(1, kept, dtype=np.float64)
    ratio = np.maximum(samples - j - block_size + 1, 0.0) / (samples - j)
    return np.asarray(block_size / samples * np.concatenate([[1.0], np.cumprod(ratio)]))


def fit_weighted(top: ArrayLike, samples: int, block_size: int, penalty: float = PENALTY) -> TailFits:
    """Fit the law of block maxima by averaging its log-likelihood over all blocks that `samples` norms can form.

    Maximises sum_j w_j log f(x_(j)) + (1 - sum_j w_j) log F(x_(k)), less the penalty, for the law F with density f. The
    j-th largest norm x_(j) is a block maximum with probability w_j (`block_weights`). Blocks whose maximum lies below
    the k kept norms are censored: only the upper limit x_(k) of their maximum is known. The fit estimates the same
    end-point as `fit` on samples / block_size block maxima of the same norms, with less noise.

    top: (..., k), the k largest of `samples` independent norms, in any order. In the result, `blocks` is samples //
    block_size and `log_likelihood` is scaled to that many blocks.

    >>> norms = 3.0 - np.random.default_rng(0).beta(2.0, 2.0, size=100_000) ** 0.5
    >>> fits = fit_weighted(np.sort(norms)[-400:], samples=100_000, block_size=500)
    >>> bool(abs(fits.location - 3.0) < 0.05)
    True
    """
    x = as_samples(top)
    penalty = checked_penalty(penalty)
    kept = x.shape[-1]
    if not is_whole(samples) or not is_whole(block_size) or not 1 <= block_size <= samples:
        raise SettingError(f"block_size {block_size!r} must be a whole number between 1 and samples = {samples!r}")
    if kept > samples:
        raise SettingError(f"{kept} norms were kept but samples = {samples!r}; give the number of all norms drawn")
    rows = x.reshape(-1, kept)
    fits = fit_rows(rows, merged_weights(samples, block_size, kept), penalty, samples // block_size)
    return reshaped(fits, x.shape[:-1])


def merged_weights(samples: int, block_size: int, kept: int) -> Weights:
    """Weights of the `kept` largest of `samples` norms, largest first, in the likelihood averaged over all blocks."""
    each = block_weights(samples, block_size, kept)
    each = np.maximum(each, each[0] * 1e-300)  # a weight of 0 (norms too small for any block's maximum) gives 0 / 0
    mass = min(float(each.sum()), 1.0)
    hazard = each / mass
    hazard[-1] += (1.0 - mass) / mass
    blocks = samples / block_size
    # The penalty contains the range of block maxima, but the kept norms have another range. The ratio of the two ranges
    # is that of a Gumbel law: between its quantiles at the probabilities at which the ends of each are expected.
    last = -np.log(-np.log1p(-0.56 / max(blocks, 2.0)))
    of_blocks = last + np.log(np.log(max(blocks, 2.0) + 1.0))
    of_kept = last + np.log(-np.log(min(max(1.0 - mass, 1e-12), 0.99)))
    return Weights(each / mass, hazard, blocks * mass, float(max(of_kept, 0.1) / of_blocks) ** 2)
