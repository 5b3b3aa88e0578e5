"""Accuracy, coverage and speed of `cleverscore.tails`, side by side with the two other ways of fitting CLEVER's law.

    python -m benchmarks.tails [--quick] [--networks] [--out docs/]

`--networks` adds the weighted likelihood on gradient norms of the two shipped networks (torch, 3 minutes more).
Writes `_tails_benchmark.json` and `_tails_benchmark.md`. The peers are written here from their descriptions: `art_fit`
calls scipy as the Adversarial Robustness Toolbox does, `released_fit` follows the procedure of the authors' program.
Times are CPU times of one process. Set OMP_NUM_THREADS=1 for one core.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy import optimize, stats

from cleverscore import tails

SHAPES = (1.0, 1.5, 2.5, 5.0, 10.0, 30.0)
BLOCKS = (50, 100, 250, 500)
LOOKS = (32, 64, 128, 256, 512)
PENALTIES = (0.0, 0.01, 0.03, 0.1, 0.3)
AUTHORS_PENALTY = 0.01  # in the authors' program
DIMENSIONS = (2, 8, 20, 50, 100, 784)
BLOCK_SIZE = 1024
WARNINGS = ("no_endpoint", "drifting", "poor")
END = 2.0  # samples are END - Weibull(shape), so that scores are 1 / END where the scale is 1


def draw(shape: float, rows: int, blocks: int, seed: int) -> np.ndarray:
    """Block maxima of a reverse Weibull law with end-point END and scale 1."""
    return END - np.random.default_rng([seed, blocks, int(100 * shape)]).weibull(shape, size=(rows, blocks))


# ---------------------------------------------------------------------------------------------------------- the peers


def art_fit(maxima: np.ndarray) -> float:
    """End-point from one Nelder-Mead run of scipy on the raw maxima, started at shape 1."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return -stats.weibull_min.fit(-maxima, 1.0, optimizer=optimize.fmin)[1]


def released_fit(maxima: np.ndarray) -> tuple[float, float, float]:
    """Location, scale and shape: seven penalised Nelder-Mead runs on rescaled maxima, the best K-S p-value wins."""
    top, extent = maxima.max(), np.ptp(maxima)
    reduced = (maxima - top) / extent

    def penalised(negative_log_likelihood: Callable[..., float], start: Any, args: tuple[Any, ...], disp: int) -> Any:
        def objective(theta: np.ndarray, *rest: Any) -> float:
            return negative_log_likelihood(theta, *rest) + AUTHORS_PENALTY * theta[2] ** 2

        return optimize.fmin(objective, start, args=args, disp=disp)

    best, found = -1.0, (np.nan, np.nan, np.nan)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for start in (0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0):
            try:
                shape, location, scale = stats.weibull_min.fit(-reduced, start, optimizer=penalised)
            except (stats.FitError, ValueError):
                continue
            location, scale = location * extent - top, scale * extent
            pvalue = stats.kstest(-maxima, "weibull_min", args=(shape, location, scale)).pvalue
            if pvalue > best:
                best, found = pvalue, (-location, scale, shape)
    return found


def penalised_value(maxima: np.ndarray, location: float, scale: float, shape: float) -> float:
    """Total log-likelihood minus the released code's penalty, for one sample."""
    with np.errstate(all="ignore"):
        plain = stats.weibull_max.logpdf(maxima, shape, location, scale).sum()
    return float(plain - AUTHORS_PENALTY * (scale / np.ptp(maxima)) ** 2)


def dense_optimum(maxima: np.ndarray, points: int = 220) -> np.ndarray:
    """Largest log-likelihood of each row on a dense grid of end-points, shape >= 1; shares no code with the package.

    In s = range / (location - min): l/n = log k - 1 + (k - s) mean(v) - log mean(exp(k v)) - log range, with
    v = log(1 - s u) / s and k = shape * s >= s; the corner is -log(mean(max - x)) - 1.
    """
    n = maxima.shape[1]
    top, extent = maxima.max(axis=1, keepdims=True), np.ptp(maxima, axis=1)
    u = (maxima - maxima.min(axis=1, keepdims=True)) / extent[:, None]
    best = -np.log((top - maxima).mean(axis=1)) - 1.0
    k = np.full(len(maxima), 5.0)
    for t in np.linspace(7.0, -np.log(n) - 9.0, points):
        s = 1.0 / (1.0 + np.exp(t))
        v = np.log1p(-s * u) / s
        mean = v.mean(axis=1)
        for _ in range(40 if t == 7.0 else 3):
            power = np.exp(k[:, None] * v)
            total = power.mean(axis=1)
            first = (power * v).mean(axis=1) / total
            second = (power * v * v).mean(axis=1) / total - first**2
            gradient = 1.0 + k * (mean - first)
            k = np.maximum(k * np.exp(gradient / (1.0 + k * k * second + np.abs(gradient))), s)
        value = np.log(k) - 1.0 + (k - s) * mean - np.log(np.exp(k[:, None] * v).mean(axis=1)) - np.log(extent)
        best = np.maximum(best, value)
    return n * best


# ------------------------------------------------------------------------------------------------------- measurements


def likelihood(rows: int) -> dict[str, Any]:
    """How far the fit's log-likelihood falls short of the dense grid's, and whether a location is below the data."""
    shapes = (0.5, 0.7, 1.0, 1.2, 1.5, 2.0, 2.5, 3.5, 5.0, 7.0, 10.0, 14.0, 20.0, 30.0)
    each = max(1, round(rows / (len(shapes) * len(BLOCKS))))
    short, below, compared, drawn = -np.inf, 0, 0, 0
    for shape in shapes:
        for blocks in BLOCKS:
            x = draw(shape, each, blocks, seed=1)
            fits = tails.law(x, 0.0)
            plain = np.isin(fits.outcome.astype(str), ["ok", "shape_at_one"])
            drawn += each
            compared += int(plain.sum())
            below += int(np.count_nonzero(fits.location < x.max(axis=1)))
            if plain.any():
                short = max(short, float((dense_optimum(x[plain]) - fits.log_likelihood[plain]).max()))
    return {"samples": drawn, "compared": compared, "largest_shortfall": short, "locations_below_maximum": below}


def released(each: int) -> dict[str, Any]:
    """Difference to the released procedure, of the location relative to itself, and of a score's constant to ours."""
    differences, gains, below, wins, scored = [], [], 0, 0, 0.0
    for shape in (1.5, 2.5, 5.0, 10.0):
        for blocks in (100, 500):
            x = draw(shape, each, blocks, seed=2)
            fits = tails.fit(x)
            scored = max(scored, float(np.max(np.abs(_constants(x) / fits.location - 1.0))))
            for row, ours in zip(x, fits, strict=True):
                theirs = released_fit(row)
                value = penalised_value(row, ours.location, ours.scale, ours.shape)
                gain = value - penalised_value(row, *theirs)
                below += theirs[0] < row.max()
                gains.append(gain)
                if gain < 1e-5:  # they found the optimum, too
                    differences.append(abs(ours.location - theirs[0]) / ours.location)
                    wins += 1
    return {
        "samples": len(gains),
        "same_optimum": wins,
        "largest_objective_deficit": float(-min(gains)),
        "largest_objective_gain": float(max(gains)),
        "median_location_difference": float(np.median(differences)),
        "largest_location_difference": float(max(differences)),
        "largest_difference_of_clever": scored,
        "their_locations_below_maximum": int(below),
    }


def _constants(maxima: np.ndarray) -> np.ndarray:
    """The constants that method="paper" divides by, from maxima (rows, blocks)."""
    from cleverscore.estimators.measurements import Measurements
    from cleverscore.estimators.settings import Settings
    from cleverscore.scores.score import score_from

    measurements = [
        Measurements(i, None, 0, (1,), (1.0,), (row,), (BLOCK_SIZE,), 0.0, ("all blocks",))
        for i, row in enumerate(maxima)
    ]
    settings = Settings(p=2.0, targets=[[1]] * len(maxima))
    return np.array([score.lipschitz for score in score_from(measurements, settings.rule)])


def accuracy(rows: int, art_rows: int) -> list[dict[str, Any]]:
    """Root mean square error of the score, in percent of the true score."""
    table = []
    for shape in SHAPES:
        for blocks in BLOCKS:
            x = draw(shape, rows, blocks, seed=3)
            art = np.array([art_fit(row) for row in x[:art_rows]])
            estimates = {
                **{f"penalty_{penalty:g}": tails.law(x, penalty).location for penalty in PENALTIES},
                "sample_max": x.max(axis=1),
                "art": art,
            }
            line: dict[str, Any] = {"shape": shape, "blocks": blocks}
            line |= {name: 100.0 * _rms(END / values - 1.0) for name, values in estimates.items()}
            line["art_below_maximum"] = float(np.mean(art < x[:art_rows].max(axis=1)))
            table.append(line)
    return table


def gaussian(rows: int, blocks: int = 500, block_size: int = 1024) -> list[dict[str, Any]]:
    """The same for maxima of Gaussian norms (mean 10, deviation 1), against the limit of many blocks."""
    rng = np.random.default_rng(4)
    # The maximum of a block is F^-1(U^(1/block_size)): exact, and far cheaper than drawing the block.
    many = 10.0 + stats.norm.ppf(rng.random(100_000) ** (1.0 / block_size))
    limit = float(tails.law(many, 0.0).location)
    x = 10.0 + stats.norm.ppf(rng.random((rows, blocks)) ** (1.0 / block_size))
    table = []
    for n in BLOCKS:
        line: dict[str, Any] = {"blocks": n, "limit": limit}
        for penalty in PENALTIES:
            line[f"penalty_{penalty:g}"] = 100.0 * _rms(limit / tails.law(x[:, :n], penalty).location - 1.0)
        line["sample_max"] = 100.0 * _rms(limit / x[:, :n].max(axis=1) - 1.0)
        table.append(line)
    return table


def judged(x: np.ndarray, end: float, block_size: int = BLOCK_SIZE) -> dict[str, Any]:
    """Outcomes of samples in percent, and how many of the 95% intervals hold the end-point."""
    fits = tails.fit(x, block_size=block_size)
    outcome = fits.outcome.astype(str)
    limits = tails.interval(x, fits, block_size=block_size)
    exact = tails.interval(x, tails.law(x), method="posterior")
    covers = (limits.low <= end) & (limits.high >= end)
    quiet = ~np.isin(outcome, WARNINGS)
    return {
        **{name: 100.0 * float(np.mean(outcome == name)) for name in WARNINGS},
        "warned": 100.0 * float(np.mean(~quiet)),
        "coverage_without_warning": 100.0 * float(covers[quiet].mean()) if quiet.any() else "-",
        "coverage_of_all": 100.0 * float(covers.mean()),
        "no_upper_limit": 100.0 * float(np.isinf(limits.high[quiet]).mean()) if quiet.any() else "-",
        "posterior": 100.0 * float(np.mean((exact.low <= end) & (exact.high >= end))),
    }


def coverage(rows: int) -> list[dict[str, Any]]:
    """Percentage of 95% intervals that hold the true end-point of an exact law."""
    table = []
    for shape in SHAPES:
        for blocks in BLOCKS:
            x = draw(shape, rows, blocks, seed=11)  # not a seed on which the intervals were calibrated
            line: dict[str, Any] = {"shape": shape, "blocks": blocks, **judged(x, END)}
            limits = tails.interval(x, tails.law(x), method="profile")
            line["profile"] = 100.0 * float(np.mean((limits.low <= END) & (limits.high >= END)))
            table.append(line)
    return table


def maxima_of(law: Any, rows: int, blocks: int, seed: int, block_size: int = BLOCK_SIZE) -> np.ndarray:
    """Maxima of blocks of norms with a law of scipy: F^-1(U^(1 / block_size)), exact, from one number each."""
    uniform = np.random.default_rng([seed, blocks]).random((rows, blocks))
    return law.isf(-np.expm1(np.log(uniform) / block_size))


def balls(rows: int) -> list[dict[str, Any]]:
    """The same for norms that are linear on a d-ball, 1 + u.x of a uniform point x, blocks of 1024."""
    table = []
    for dimension in DIMENSIONS:
        for blocks in (100, 500):
            half = 0.5 * (dimension + 1)
            x = maxima_of(stats.beta(half, half, scale=2.0), rows, blocks, seed=12 + dimension)
            table.append({"dimension": dimension, "blocks": blocks, **judged(x, 2.0)})
    return table


def wrong_laws(rows: int) -> list[dict[str, Any]]:
    """What is said of maxima that have no end-point, outliers or clusters; where intervals begin."""
    rng = np.random.default_rng(13)
    table = []
    for blocks in (100, 500):
        near = 1.0 + 0.01 * rng.standard_normal((2, rows, blocks))
        outliers = near[0].copy()
        outliers[:, ::100] = 2.0 + 0.01 * rng.standard_normal((rows, blocks // 100))
        samples = {
            "Gaussian norms": 10.0 + maxima_of(stats.norm, rows, blocks, 14),
            "exponential norms": maxima_of(stats.expon, rows, blocks, 15),
            "Pareto norms, index 3": maxima_of(stats.pareto(3.0), rows, blocks, 16),
            "near 1, one in 100 near 2": outliers,
            "two clusters, near 1 and near 2": near[1] + (rng.random((rows, blocks)) < 0.5),
        }
        for name, x in samples.items():
            fits = tails.fit(x)
            outcome = fits.outcome.astype(str)
            low = tails.interval(x, fits).low
            made = (low == fits.location) & (fits.location > fits.sample_max)
            table.append(
                {
                    "law": name,
                    "blocks": blocks,
                    **{kind: 100.0 * float(np.mean(outcome == kind)) for kind in WARNINGS},
                    "named": 100.0 * float(np.mean(np.isin(outcome, WARNINGS))),
                    "intervals_from_the_location": int(made.sum()),
                    "location_over_maximum": float(np.median(fits.location / fits.sample_max)),
                }
            )
    return table


def sequential(rows: int) -> list[dict[str, Any]]:
    """Coverage when sampling stops at the first look whose interval is narrow, for the worst of many tolerances."""
    table = []
    for shape in SHAPES:
        x = draw(shape, rows, LOOKS[-1], seed=6)
        fits = [tails.law(x[:, :n]) for n in LOOKS]
        line: dict[str, Any] = {"shape": shape}
        for name, checkpoints in (("uncorrected", 1), ("looks", len(LOOKS))):
            limits = [
                tails.interval(x[:, :n], f, method="posterior", checkpoints=checkpoints)
                for n, f in zip(LOOKS, fits, strict=True)
            ]
            width = np.array([i.high - i.low for i in limits])
            covers = np.array([(i.low <= END) & (i.high >= END) for i in limits])
            line[name] = 100.0 * min(_stopped(width, covers, q) for q in np.linspace(0.05, 0.95, 19))
        table.append(line)
    return table


def _stopped(width: np.ndarray, covers: np.ndarray, quantile: float) -> float:
    tolerance = np.quantile(width[np.isfinite(width)], quantile)
    narrow = width <= tolerance
    look = np.where(narrow.any(axis=0), narrow.argmax(axis=0), len(width) - 1)
    return float(covers[look, np.arange(width.shape[1])].mean())


def goodness(rows: int, blocks: int = 500) -> list[dict[str, Any]]:
    """Percentage of samples that pass at 5%, under the null and for two laws that are not reverse Weibull."""
    rng = np.random.default_rng(7)
    mixture = rng.standard_normal((rows, blocks)) + 2.3 * (rng.random((rows, blocks)) < 0.5)
    samples = {
        "reverse Weibull, shape 3": draw(3.0, rows, blocks, seed=7),
        "reverse Weibull, shape 10": draw(10.0, rows, blocks, seed=7),
        "normal": rng.standard_normal((rows, blocks)),
        "mixture of two normals, 2.3 apart": mixture,
    }
    table = []
    for name, x in samples.items():
        fits = tails.fit(x)
        naive = tails.kolmogorov_smirnov(x, fits)[1]
        bootstrap = tails.anderson_darling(x, fits, replicates=199)[1]
        passes = {"naive_ks": naive, "anderson_darling": fits.ad_pvalue, "bootstrapped": bootstrap}
        table.append({"law": name} | {key: 100.0 * float(np.mean(p > 0.05)) for key, p in passes.items()})
    return table


def speed(rows: int, peer_rows: int, blocks: int = 500) -> list[dict[str, Any]]:
    """CPU seconds per fit, in turns within one run."""
    table = []
    for shape in (1.5, 2.5, 10.0):
        x = draw(shape, rows, blocks, seed=8)
        tails.fit(x[:10])
        ours = _cpu(lambda x=x: tails.law(x, 0.0)) / rows
        penalised = _cpu(lambda x=x: tails.law(x)) / rows
        judged = _cpu(lambda x=x: tails.fit(x)) / rows
        both = _cpu(lambda x=x: tails.interval(x, tails.fit(x))) / rows
        single = _cpu(lambda x=x: [tails.law(row) for row in x[:20]]) / 20
        art = _cpu(lambda x=x: [art_fit(row) for row in x[:peer_rows]]) / peer_rows
        theirs = _cpu(lambda x=x: [released_fit(row) for row in x[: max(2, peer_rows // 3)]]) / max(2, peer_rows // 3)
        table.append(
            {
                "shape": shape,
                "fit_us": 1e6 * ours,
                "penalised_us": 1e6 * penalised,
                "judged_us": 1e6 * judged,
                "fit_and_interval_us": 1e6 * both,
                "one_by_one_us": 1e6 * single,
                "art_us": 1e6 * art,
                "released_us": 1e6 * theirs,
                "times_art": art / ours,
                "times_released": theirs / penalised,
            }
        )
    return table


def weighted(rows: int, blocks: int = 100, block_size: int = 1024) -> list[dict[str, Any]]:
    """Spread of the score (percent) from block maxima and from the largest norms of the same gradients."""
    rng = np.random.default_rng(9)
    samples = blocks * block_size
    laws: dict[str, Callable[[], np.ndarray]] = {
        "Gaussian norms": lambda: 10.0 + rng.standard_normal(samples, dtype=np.float32),
        "norms linear on an 8-ball": lambda: 10.0 + 6.3 * (rng.beta(4.5, 4.5, size=samples).astype(np.float32) - 0.5),
    }
    kept = (blocks, 4 * blocks)
    table = []
    for name, norms in laws.items():
        maxima, top = np.empty((rows, blocks)), np.empty((rows, kept[-1]))
        for i in range(rows):
            values = norms()
            maxima[i] = values.reshape(blocks, block_size).max(axis=1)
            top[i] = np.sort(np.partition(values, samples - kept[-1])[-kept[-1] :])[::-1]
        table += [{"law": name} | line for line in compare_weighted(maxima, top, samples, block_size, kept)]
    return table


def compare_weighted(
    maxima: np.ndarray, top: np.ndarray, samples: int, block_size: int, kept: Iterable[int]
) -> list[dict[str, Any]]:
    """Relative standard deviation of 1 / location over rows, for both penalties."""
    table = []
    for penalty in (0.0, tails.PENALTY):
        line: dict[str, Any] = {"penalty": penalty, "block_maxima": _spread(tails.law(maxima, penalty).location)}
        for k in kept:
            fits = tails.fit_weighted(top[:, :k], samples, block_size, penalty)
            line[f"kept_{k}"] = _spread(fits.location)
        table.append(line)
    return table


def networks(pool: int, images: int = 3, shuffles: int = 8) -> list[dict[str, Any]]:
    """Spread of the score on the shipped networks at equal gradients.

    Draws `pool` gradient norms per image in the l2 ball of radius 5, then splits them again and again.
    """
    rng = np.random.default_rng(10)
    table = []
    for name, share in (("mnist-mlp", 1.0), ("mnist-cnn", 0.25)):
        norms = [_gradient_norms(name, image, int(pool * share)) for image in range(images)]
        for blocks, block_size in ((32, 256), (64, 128), (128, 64)):
            samples = blocks * block_size
            for penalty in (0.0, tails.PENALTY):
                spreads: dict[str, list[float]] = {"block_maxima": [], "weighted": []}
                for values in norms:
                    rows = len(values) // samples
                    parts = [rng.permutation(values)[: rows * samples] for _ in range(shuffles)]
                    part = np.concatenate(parts).reshape(rows * shuffles, samples)
                    maxima = part.reshape(-1, blocks, block_size).max(axis=2)
                    top = np.sort(part, axis=1)[:, ::-1][:, : 8 * blocks]
                    weighed = tails.fit_weighted(top, samples, block_size, penalty)
                    spreads["block_maxima"].append(_spread(tails.law(maxima, penalty).location))
                    spreads["weighted"].append(_spread(weighed.location))
                line: dict[str, Any] = {"network": name, "blocks": blocks, "block_size": block_size, "penalty": penalty}
                line |= {key: _rms(np.array(value)) for key, value in spreads.items()}
                line["ratio"] = line["weighted"] / line["block_maxima"]
                table.append(line)
    return table


def _gradient_norms(name: str, image: int, count: int) -> np.ndarray:
    import torch

    from cleverscore.loading.zoo import shipped

    generator = torch.Generator().manual_seed(image)
    network = shipped.network(name).requires_grad_(False)
    center = torch.tensor(shipped.data("mnist")[0][image]).reshape(1, 1, 28, 28) - 0.5
    first, second = network(center)[0].argsort(descending=True)[:2].tolist()
    found = []
    chunk = 64
    for _ in range(-(-count // chunk)):
        offset = torch.randn(chunk, 784, generator=generator)
        radius = 5.0 * torch.rand(chunk, 1, generator=generator) ** (1.0 / 784)
        points = center + (offset / offset.norm(dim=1, keepdim=True) * radius).reshape(chunk, 1, 28, 28)
        points.requires_grad_(True)
        logits = network(points)
        (gradient,) = torch.autograd.grad((logits[:, first] - logits[:, second]).sum(), points)
        found.append(gradient.flatten(1).norm(dim=1).numpy())
    return np.concatenate(found)[:count].astype(np.float64)


def _spread(location: np.ndarray) -> float:
    return 100.0 * float(np.std(1.0 / location) / np.mean(1.0 / location))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


# -------------------------------------------------------------------------------------------------------------- output


def run(quick: bool, with_networks: bool) -> dict[str, Any]:
    """Every measurement; `quick` takes half a minute and has larger random errors."""
    few = 10 if quick else 1
    extra = {"networks": networks(160_000 // few)} if with_networks else {}
    return extra | {
        "quick": quick,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__},
        "speed": speed(2000 // few, 24 // few + 4),
        "likelihood": likelihood(10_000 // few),
        "released": released(1 if quick else 5),
        "coverage": coverage(2000 // few),
        "balls": balls(400 // few),
        "wrong_laws": wrong_laws(400 // few),
        "sequential": sequential(2000 // few),
        "goodness": goodness(200 // few),
        "accuracy": accuracy(1000 // few, 4 if quick else 40),
        "gaussian": gaussian(500 // few),
        "weighted": weighted(400 // few),
    }


def markdown(results: dict[str, Any]) -> str:
    """Return the results as a page of tables."""
    parts = ["<!-- written by python -m benchmarks.tails; do not edit -->"]
    if results["quick"]:
        parts.append("Quick run: few samples, large random errors.")
    for name in (
        "coverage",
        "balls",
        "wrong_laws",
        "sequential",
        "speed",
        "accuracy",
        "gaussian",
        "weighted",
        "networks",
        "goodness",
    ):
        if name in results:
            parts += [f"### {_TITLES[name]}", _table(results[name])]
    parts += [f"### {_TITLES['likelihood']}", _table([results["likelihood"]])]
    parts += [f"### {_TITLES['released']}", _table([results["released"]])]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    parts.append(f"One core; {versions}.")
    return "\n\n".join(parts) + "\n"


_TITLES = {
    "speed": "CPU time per fit of 500 maxima (microseconds), and how many times ours the peers need",
    "coverage": "Exact reverse Weibull laws: warnings, and coverage of 95% intervals (percent)",
    "balls": "The same for norms that are linear on a ball, blocks of 1024",
    "wrong_laws": "Maxima without an end-point, with outliers or clusters: outcomes (percent), where intervals begin",
    "sequential": "Coverage when sampling stops at 32, 64, ..., 512 blocks, worst tolerance (percent)",
    "accuracy": "Error of the score on reverse Weibull samples (root mean square, percent)",
    "gaussian": "The same on maxima of 1024 Gaussian norms, against the limit of many blocks",
    "weighted": "Spread of the score at equal gradients: block maxima, and the largest norms (percent)",
    "networks": "The same on two trained networks, eight norms kept per block (percent)",
    "goodness": "Samples of 500 that pass a test at 5% (percent)",
    "likelihood": "Log-likelihood against a dense grid",
    "released": "Penalised fit against the released procedure (difference of the location relative to it)",
}


def _table(lines: list[dict[str, Any]]) -> str:
    names = list(lines[0])
    rows = [[_cell(line.get(name, "")) for name in names] for line in lines]
    head = "| " + " | ".join(name.replace("_", " ") for name in names) + " |"
    return "\n".join([head, "|" + "---|" * len(names), *("| " + " | ".join(row) + " |" for row in rows)])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tails", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="half a minute instead of several, with larger random errors"
    )
    parser.add_argument("--networks", action="store_true", help="also the weighted likelihood on the shipped networks")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder for the JSON and Markdown files")
    options = parser.parse_args()
    start = time.perf_counter()
    results = run(options.quick, options.networks)
    page = markdown(results)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "_tails_benchmark.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "_tails_benchmark.md").write_text(page)
    print(page)
    print(f"{time.perf_counter() - start:.0f} seconds; written to {options.out / '_tails_benchmark.md'}")


if __name__ == "__main__":
    main()
