"""Null distributions of the Anderson-Darling and drift tests, read from what `python -m benchmarks.tables` wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from ._likelihood import Floats


@dataclass(frozen=True)
class NullLaws:
    """Quantiles of two test statistics for samples from a reverse Weibull law, by xi = 1 / shape and number of blocks.

    xi                  (n_xi,), ascending.
    blocks              (n_blocks,), ascending.
    probabilities       (n_probabilities,), descending.
    anderson_darling    (n_xi, n_blocks, n_probabilities): the value that the Anderson-Darling statistic exceeds with
                        each of the probabilities.
    drift               (n_xi, n_blocks): the value that the drift statistic exceeds with probability `drift_level`; NaN
                        for few blocks.
    """

    xi: Floats
    blocks: Floats
    probabilities: Floats
    anderson_darling: Floats
    drift: Floats
    drift_level: float

    def pvalue(self, statistic: Floats, shape: Floats, blocks: int) -> Floats:
        """P-values (rows,) of Anderson-Darling statistics (rows,) of fits with these shapes (rows,).

        log p is interpolated linearly in the statistic, and extrapolated beyond the table.
        """
        quantiles = self._at(self.anderson_darling, shape, blocks)
        logs = np.log(self.probabilities)
        place = np.clip(np.count_nonzero(quantiles < statistic[:, None], axis=1), 1, len(logs) - 1)
        rows = np.arange(len(statistic))
        q0, q1 = quantiles[rows, place - 1], quantiles[rows, place]
        slope = (logs[place] - logs[place - 1]) / np.maximum(q1 - q0, 1e-12)
        return np.asarray(np.exp(np.clip(logs[place] + slope * (statistic - q1), -700.0, 0.0)))

    def drift_limit(self, shape: Floats, blocks: int) -> Floats:
        """Critical values (rows,) of the drift test, for reverse Weibull laws with shape parameters `shape` (rows,).

        The drift statistic (`Stability.statistic`) of a sample of `blocks` maxima from such a law exceeds its critical
        value with probability `drift_level`. NaN for few blocks.
        """
        return self._at(self.drift[:, :, None], shape, blocks)[:, 0]

    def _at(self, table: Floats, shape: Floats, blocks: int) -> Floats:
        """Entries (rows, entries) of a table (n_xi, n_blocks, entries) for shapes (rows,) and a number of blocks.

        Interpolated linearly in xi and in 1 / blocks; beyond the table, the nearest entry.
        """
        left, share = _place(-1.0 / self.blocks, np.array([-1.0 / blocks]))
        line = table[:, left[0]] if share[0] == 0.0 else _mix(table[:, left[0]], table[:, left[0] + 1], share[0])
        left, share = _place(self.xi, 1.0 / shape)
        return _mix(line[left], line[left + 1], share[:, None])


def _mix(a: Floats, b: Floats, share: Floats | float) -> Floats:
    return np.asarray(a + share * (b - a))


def _place(grid: Floats, values: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Index of the grid point below each value, and the fraction of the way to the next point.

    Values outside the grid are moved to its nearest end.
    """
    values = np.clip(values, grid[0], grid[-1])
    left = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    return left, np.asarray((values - grid[left]) / (grid[left + 1] - grid[left]))


@lru_cache(maxsize=1)
def null_laws() -> NullLaws:
    """The null distributions, from the package's file tables.json, which is read only once."""
    found = json.loads((resources.files(__package__) / "tables.json").read_text())
    return NullLaws(
        xi=np.array(found["xi"]),
        blocks=np.array(found["blocks"], dtype=np.float64),
        probabilities=np.array(found["probabilities"]),
        anderson_darling=np.array(found["anderson_darling"]),
        drift=np.array(found["drift"], dtype=np.float64),
        drift_level=float(found["drift_level"]),
    )
