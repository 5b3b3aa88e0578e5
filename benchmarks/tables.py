"""Tables that `cleverscore.tails` looks things up in: laws of its two tests under an exact reverse Weibull law.

    python -m benchmarks.tables [--samples 4000]

Writes `src/cleverscore/tails/tables.json`: for each shape and number of blocks the quantiles of the Anderson-Darling
statistic, and the value that the statistic of drift exceeds with probability 2%, both after fitting with the default
penalty. Prints the shapes that Gaussian norms seem to have, which stand in `tails/convergence.py`, and how well its
formula describes norms that are linear on a ball. About five minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy import stats

import cleverscore
from cleverscore import tails
from cleverscore.tails.convergence import GAUSSIAN_SIZES, slow_shape
from cleverscore.tails.goodness import squared_distance

XI = (
    0.0,
    0.02,
    0.04,
    0.07,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.55,
    0.65,
    0.75,
    0.82,
    0.88,
    0.92,
    0.95,
    0.98,
    1.0,
)  # 1 / shape; 0: Gumbel
BLOCKS = (10, 20, 49, 50, 99, 100, 199, 200, 399, 400, 1000)  # `merges` changes at 50, 100, 200, 400
PROBABILITIES = (0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.025, 0.01, 0.005, 0.0025)
DRIFT_LEVEL = 0.02
QUANTILES = 20_000


def sample(xi: float, rows: int, blocks: int) -> np.ndarray:
    """Maxima whose law has the shape 1 / xi."""
    exponential = np.random.default_rng([21, blocks, round(1000 * xi)]).standard_exponential((rows, blocks))
    return -np.log(exponential) if xi == 0.0 else -(exponential**xi)


def null_laws(samples: int) -> dict[str, object]:
    """Quantiles of both statistics under the null."""
    darling, drift = [], []
    for xi in XI:
        ad_line, drift_line = [], []
        for blocks in BLOCKS:
            x = sample(xi, samples, blocks)
            fits = tails.law(x)
            lawful = np.array([outcome.has_law for outcome in fits.outcome])
            squared = squared_distance(x[lawful], fits.location[lawful], fits.scale[lawful], fits.shape[lawful])
            ad_line.append([round(float(q), 4) for q in np.quantile(squared, 1.0 - np.array(PROBABILITIES))])
            found = tails.stability(x).statistic
            drift_line.append(None if np.isnan(found).all() else round(float(np.nanquantile(found, 0.98)), 4))
        darling.append(ad_line)
        drift.append(drift_line)
        print(f"xi {xi:g}: A^2 at 5%, 100 blocks {ad_line[5][5]}, 400 blocks {ad_line[9][5]}; drift {drift_line[9]}")
    return {
        "samples": samples,
        "xi": XI,
        "blocks": BLOCKS,
        "probabilities": PROBABILITIES,
        "anderson_darling": darling,
        "drift_level": DRIFT_LEVEL,
        "drift": drift,
    }


def apparent(block_size: int, dimension: float | None) -> float:
    """Shape fitted to the exact law of maxima of norms that are Gaussian, or linear on a ball of that dimension."""
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    above = -np.expm1(np.log(shares) / block_size)
    half = None if dimension is None else 0.5 * (dimension + 1.0)
    maxima = stats.norm.isf(above) if half is None else stats.beta.isf(above, half, half)
    return float(tails.law(maxima, 0.0).shape)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=4000, help="samples for each shape and number of blocks")
    options = parser.parse_args()
    print("Gaussian norms:", ", ".join(f"{apparent(size, None):.2f} ({size})" for size in GAUSSIAN_SIZES))
    for size in (16, 64, 256, 1024, 4096):
        for dimension in (2, 8, 20, 50, 100, 784):
            shape = apparent(size, dimension)
            limit = float(slow_shape(np.array([shape]), size)[0])
            print(
                f"blocks of {size}, {dimension}-ball: looks like {shape:.2f}; limit {(dimension + 1) / 2}, {limit:.4g}"
            )
    folder = Path(cleverscore.__file__).parent / "tails"
    (folder / "tables.json").write_text(json.dumps(null_laws(options.samples)) + "\n")


if __name__ == "__main__":
    main()
