"""The reverse Weibull log-likelihood with its scale profiled out, and its derivatives, for many samples at once.

A sample x has the largest value max and the range max - min. It is represented by w = (max - x) / range in [0, 1], an
end-point by t = log((location - max) / range). Then z = (location - x) / range = w + exp(t) is positive for every t, so
no end-point falls below the sample. The shape is c; beta is the log of the scale, in units of the range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_SHAPE = 1e12  # keeps shape * log(z) finite; a shape above 1000 is reported as "no end-point" anyway
MAX_LOG_SHAPE = float(np.log(MAX_SHAPE))


@dataclass(frozen=True)
class Weights:
    """The weight of each value x_i of a sample in the log-likelihood of the law F(x) = exp(-(z / b)^c), b = exp(beta).

    An observed block maximum x_i adds the log of the density, log f(x_i), which has the terms log c - c log b + (c - 1)
    log z_i and -(z_i / b)^c. A censored one, of which only the upper limit x_i is known, adds log F(x_i) =
    -(z_i / b)^c.

    density     (n,), the weight of x_i as an observed maximum; sums to one.
    hazard      (n,), the weight of (z_i / b)^c: that of x_i as an observed and as a censored maximum together.
    """

    density: Floats
    hazard: Floats
    blocks: float  # how many block maxima the likelihood stands for
    penalty_factor: float = 1.0  # (range of the sample / range of those block maxima)^2

    @classmethod
    def equal(cls, n: int) -> Weights:
        """Weights of a plain sample of n block maxima."""
        each = np.full(n, 1.0 / n)
        return cls(each, each, float(n))

    def per_block(self, penalty: float) -> float:
        """The factor of exp(2 beta) that is subtracted from the log-likelihood per block."""
        return penalty * self.penalty_factor / self.blocks


@dataclass(frozen=True)
class Terms:
    """The penalised log-likelihood per block at (t, c), with the best scale there; arrays with one entry per row.

    value                       the penalised log-likelihood per block.
    log_scale                   beta, the log of the best scale.
    d_c, d_cc, d_t, d_ct, d_tt  first and second derivatives of `value`.
    log_scale_c, log_scale_t    derivatives of `log_scale`.
    """

    value: Floats
    log_scale: Floats
    d_c: Floats
    d_cc: Floats
    d_t: Floats
    d_ct: Floats
    d_tt: Floats
    log_scale_c: Floats
    log_scale_t: Floats


def solve_log_scale(log_sum: Floats, c: Floats, per_block: float) -> tuple[Floats, Floats]:
    """The beta that maximises -c beta - exp(log_sum - c beta) - `per_block` exp(2 beta), and q = exp(log_sum - c beta).

    log_sum is log sum_i hazard_i z_i^c, (rows,). Solves q = 1 + 2 per_block exp(2 beta) / c. The log of the left side
    minus the log of the right side is concave and decreasing in beta; Newton's method starts at beta = log_sum / c,
    which is right of the root, and converges to the root monotonically.
    """
    beta = log_sum / c
    if per_block == 0.0:
        return beta, np.ones_like(beta)
    moving = np.ones(beta.shape, dtype=bool)
    for _ in range(60):
        excess = 2.0 * per_block * np.exp(np.minimum(2.0 * beta, 700.0)) / c
        q = 1.0 + excess
        step = (log_sum - c * beta - np.log(q)) / (c + 2.0 * excess / q)
        moving &= np.abs(step) > 1e-13 * (1.0 + np.abs(beta))
        if not moving.any():
            break
        beta = np.where(moving, beta + step, beta)
    return beta, 1.0 + 2.0 * per_block * np.exp(np.minimum(2.0 * beta, 700.0)) / c


def terms(w: Floats, weights: Weights, t: Floats, c: Floats, penalty: float, *, along_t: bool = True) -> Terms:
    """Evaluate l/n = log c + (c-1) mean(log z) - c beta - q - (penalty/n) exp(2 beta), in units of the range.

    w is (rows, n), t and c are (rows,). beta and q are those of `solve_log_scale`; without a penalty q = 1 and c beta =
    log mean(z^c). Means are weighted by `weights`. Derivatives are those of the objective with the scale at its best
    value (envelope theorem for the first, implicit function theorem for the second). Without `along_t`, derivatives
    along t and those of the log scale are left at 0.
    """
    tau = np.exp(t)
    z = w + tau[:, None]
    top = np.log1p(tau)
    ell = np.log(z)
    ell -= top[:, None]  # log z relative to its largest value: <= 0, so the powers below cannot overflow
    power = np.exp(c[:, None] * ell)
    power *= weights.hazard
    total = power.sum(axis=1)
    weighted = power * ell
    e1 = weighted.sum(axis=1) / total
    var = np.maximum(np.einsum("ij,ij->i", weighted, ell) / total - e1 * e1, 0.0)
    mean_log = np.einsum("ij,j->i", ell, weights.density) + top

    beta, q = solve_log_scale(c * top + np.log(total), c, weights.per_block(penalty))
    extra = q - 1.0
    e_log = e1 + top
    value = np.log(c) + (c - 1.0) * mean_log - c * beta - q - 0.5 * c * extra
    d_c = 1.0 / c + mean_log + beta * extra - q * e_log

    beta_s = 1.0 / (c + 2.0 * extra / q)  # derivatives of beta and q along log_sum (_s), and along c at fixed log_sum
    beta_c = (extra / (c * q) - beta) * beta_s
    q_s = 2.0 * extra * beta_s
    q_c = 2.0 * extra * beta_c - extra / c
    total_q = q_c + e_log * q_s
    d_cc = -1.0 / (c * c) + (beta_c + e_log * beta_s) * extra + (beta - e_log) * total_q - q * var
    if not along_t:
        nothing = np.zeros_like(value)
        return Terms(value, beta, d_c, d_cc, nothing, nothing, nothing, nothing, nothing)

    slope = tau[:, None] / z  # d log z / d t, in (0, 1]
    g = power * slope
    h1 = g.sum(axis=1) / total
    h2 = np.einsum("ij,ij->i", g, slope) / total
    cross = np.einsum("ij,ij->i", g, ell) / total - e1 * h1
    m1 = np.einsum("ij,j->i", slope, weights.density)
    m2 = np.einsum("ij,ij,j->i", slope, slope, weights.density)
    along = c * h1  # d log_sum / d t
    d_t = (c - 1.0) * m1 - q * along
    d_ct = m1 + beta_s * along * extra + (beta - e_log) * q_s * along - q * (h1 + c * cross)
    d_tt = (c - 1.0) * (m1 - m2) - q_s * along * along - q * c * (h1 - h2 + c * (h2 - h1 * h1))
    return Terms(value, beta, d_c, d_cc, d_t, d_ct, d_tt, beta_c + e_log * beta_s, beta_s * along)


def newton_log_shape(now: Terms, c: Floats) -> Floats:
    """Safeguarded Newton step in log c, shorter than one, towards the best shape at fixed t."""
    gradient = c * now.d_c
    return np.asarray(gradient / np.maximum(np.maximum(-c * c * now.d_cc, 0.0) + np.abs(gradient), 1e-300))


def corner(w: Floats, weights: Weights, penalty: float) -> tuple[Floats, Floats]:
    """Objective per block and log scale, (rows,) each, at c = 1 and location = sample maximum.

    This is the best point of the edge c = 1.
    """
    log_sum = np.log(np.einsum("ij,j->i", w, weights.hazard))
    beta, q = solve_log_scale(log_sum, np.ones_like(log_sum), weights.per_block(penalty))
    return -beta - q - 0.5 * (q - 1.0), beta


def gumbel(w: Floats, weights: Weights) -> Floats:
    """Largest log-likelihood per block of a Gumbel law, the limit as the end-point goes to infinity: (rows,).

    In units of the range: l = log k + k mean(v) - log mean(exp(k v)) - 1, with v = w - 1 = (min - x) / range and k =
    range / (scale of the Gumbel law). The best k is unique.
    """
    v = w - 1.0
    mean = np.einsum("ij,j->i", v, weights.density)
    spread = np.sqrt(np.maximum(np.einsum("ij,ij,j->i", v, v, weights.density) - mean * mean, 1e-300))
    k = np.clip(1.2825498301618641 / spread, 1.0, MAX_SHAPE)  # pi / sqrt(6) / (standard deviation): by moments
    value = np.full_like(k, -np.inf)
    moving = np.ones(len(k), dtype=bool)
    for _ in range(60):
        power = np.exp(k[:, None] * v) * weights.hazard
        total = power.sum(axis=1)
        weighted = power * v
        e1 = weighted.sum(axis=1) / total
        variance = np.maximum(np.einsum("ij,ij->i", weighted, v) / total - e1 * e1, 0.0)
        gradient = 1.0 + k * (mean - e1)
        value = np.log(k) + k * mean - np.log(total) - 1.0
        step = gradient / (1.0 + k * k * variance + np.abs(gradient))
        moving &= np.abs(step) > 1e-6  # a row stops by itself, so that its result does not depend on other rows
        if not moving.any():
            break
        k = np.where(moving, np.minimum(k * np.exp(step), MAX_SHAPE), k)
    return np.asarray(value)
