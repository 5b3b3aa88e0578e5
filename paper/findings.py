"""Which of the paper's claims hold for what was computed here; every number comes from the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paper import above, blocks, ks, radius, targeted, untargeted
from paper.networks import NETWORKS, SMALL
from paper.results import KIND_TITLES, NORM_KEYS, Results
from paper.sizes import BLOCK_COUNTS
from paper.tables import Cell, published
from paper.work import NORMS

HOLDS, NOT, PARTLY, UNKNOWN = "holds", "does not hold", "holds in part", "cannot be told"


@dataclass(frozen=True)
class Finding:
    """A claim, whether it holds here, and the figures that say so."""

    claim: str
    verdict: str
    figures: str

    def markdown(self) -> str:
        """One item of a list."""
        return f"- **{self.claim}** {self.verdict.capitalize()}. {self.figures}"


def findings(results: Results) -> list[Finding]:
    """All of them."""
    return [
        _defences(results),
        _bounded_relu(results),
        _below(results),
        _imagenet(results),
        _small_radius(results),
        _enough_blocks(results),
        _slope(results),
        _tests(results),
        _near_the_paper(results),
    ]


def _values(cells: Sequence[Cell]) -> dict[tuple[str, str], float]:
    return {(cell.network, cell.column): cell.ours for cell in cells}


def _share(good: int, count: int) -> str:
    return UNKNOWN if not count else HOLDS if good == count else NOT if not good else PARTLY


def _names(networks: Sequence[str]) -> str:
    return ", ".join(NETWORKS[name].title for name in networks) or "none"


def _defended(results: Results, defences: Sequence[str]) -> tuple[list[str], int]:
    """Defences with a higher CLEVER score than the plain CNN, in words, and how many of how many comparisons."""
    ours = _values(untargeted.cells(results))
    words, raised = [], 0
    for name in defences:
        family = name.split("-")[0]
        for norm in NORMS:
            column = f"CLEVER {NORM_KEYS[norm]}"
            defended, plain = ours.get((name, column)), ours.get((f"{family}-cnn", column))
            if defended is not None and plain is not None:
                raised += defended > plain
                words.append(f"{NETWORKS[name].title} {NORM_KEYS[norm]} {defended:.3g} against {plain:.3g}")
    return words, raised


def _defences(results: Results) -> Finding:
    words, raised = _defended(results, ["mnist-dd", "mnist-brelu", "cifar-dd"])
    return Finding(
        "Distillation and bounded ReLU raise the score (all but CIFAR-BReLU).",
        _share(raised, len(words)),
        f"Higher than the plain CNN's in {raised} of {len(words)} comparisons of untargeted averages: "
        f"{'; '.join(words)}.",
    )


def _bounded_relu(results: Results) -> Finding:
    words, raised = _defended(results, ["cifar-brelu"])
    return Finding(
        "CIFAR-BReLU is the exception: its score is lower than the plain CNN's.",
        _share(len(words) - raised, len(words)),
        f"{'; '.join(words)}." if words else "Not computed.",
    )


def _below(results: Results) -> Finding:
    counted = {norm: [0, 0] for norm in NORMS}
    averages, higher = 0, []
    ours = _values(untargeted.cells(results))
    for name in (name for name in results.names if name in SMALL):
        for norm in NORMS:
            key = NORM_KEYS[norm]
            columns = [ours.get((name, f"{title} {key}"), math.nan) for title in ("CW", "I-FGSM")]
            score = ours.get((name, f"CLEVER {key}"), math.nan)
            averages += 1
            if not score < min(columns):
                higher.append(f"{NETWORKS[name].title} {key}")
            nearest: dict[int, float] = {}
            for attack in untargeted.ATTACKS:
                for i, value in results.distortions(name, attack, norm, "any").items():
                    nearest[i] = min(value, nearest.get(i, math.inf))
            for i, row in results.scores(name, norm, "any").items():
                counted[norm][0] += row["score"] > nearest.get(i, math.inf)
                counted[norm][1] += 1
    words = ", ".join(f"{NORM_KEYS[norm]} {bad} of {count}" for norm, (bad, count) in counted.items())
    return Finding(
        "CLEVER is below the attacks' distortion on average.",
        _share(averages - len(higher), averages),
        f"True for {averages - len(higher)} of {averages} untargeted averages (not: {', '.join(higher) or 'none'}). "
        f"Single images of the eight small networks with a score above the nearer of both attacks: {words}.",
    )


def _imagenet(results: Results) -> Finding:
    cells = above.cells(results)
    shares = [cell for cell in cells if not math.isnan(cell.ours)]
    some = [f"{NETWORKS[cell.network].title} {cell.column} {cell.ours:.0f}%" for cell in shares if cell.ours > 0]
    counts = {cell.network: int(cell.images) for cell in cells}
    images, networks = sum(counts.values()), len(counts)
    return Finding(
        "On ImageNet few images have a score above an attack.",
        UNKNOWN if not shares else HOLDS if len(some) <= 0.1 * len(shares) else NOT,
        f"{len(shares) - len(some)} of {len(shares)} cells are 0%, over {images} images of {networks} "
        f"networks; above 0: {', '.join(some) or 'none'}.",
    )


def _small_radius(results: Results) -> Finding:
    claim = "In linf the paper's scores are those of its radius, 5."
    ours = _values(radius.cells(results))
    words, near = [], 0
    for name in dict.fromkeys(network for network, _ in ours):
        large, small = (ours.get((name, f"CLEVER linf, radius {size:g}"), math.nan) for size in radius.RADII)
        if math.isnan(large + small):
            continue
        paper = published("targeted")[name, "random_clever_linf"]
        near += abs(math.log(large / paper)) < abs(math.log(small / paper))
        words.append(f"{NETWORKS[name].title} {large:.3g} with radius 5, {small:.3g} with 0.1, the paper {paper:g}")
    if not words:
        return Finding(claim, UNKNOWN, "Not computed.")
    return Finding(
        claim,
        _share(near, len(words)),
        f"{'; '.join(words)} (random targets). A ball of radius 5 in linf lies far outside of [0, 1]: its points are "
        "noise, on which these networks' gradients are small, so the constant comes out too small and the score too "
        "large. The released program samples within 0.1. This is also why scores above attacks appear in linf.",
    )


def _enough_blocks(results: Results) -> Finding:
    claim = "50 to 100 blocks are enough (but for MNIST-BReLU)."
    changes: dict[int, dict[str, float]] = {count: {} for count in BLOCK_COUNTS[:-1]}
    for name in (name for name in results.names if name in SMALL):
        for kind, title in KIND_TITLES.items():
            found = blocks.averages(results, name, kind)
            for count in changes if found else ():
                where = f"{NETWORKS[name].title}, {title.lower()} target"
                changes[count][where] = abs(found[count] / found[BLOCK_COUNTS[-1]] - 1.0)
    if not changes[BLOCK_COUNTS[0]]:
        return Finding(claim, UNKNOWN, "Not computed.")
    medians = {count: float(np.median(list(values.values()))) for count, values in changes.items()}
    words = "; ".join(
        f"{count} blocks: median {medians[count]:.1%}, largest {max(values.values()):.1%} "
        f"({max(values, key=values.__getitem__)})"
        for count, values in changes.items()
    )
    near = [change < 0.1 for where, change in changes[100].items() if not where.startswith("MNIST-BReLU")]
    return Finding(
        claim,
        _share(sum(near), len(near)),
        f"Change of the average l2 score against 500 blocks, over networks and kinds of targets: {words}. With 100 "
        f"blocks {sum(near)} of {len(near)} averages of the other networks change by less than a tenth.",
    )


def _slope(results: Results) -> Finding:
    ours = _values(targeted.cells(results))
    counts = {}
    for norm in NORMS:
        key, good, count = NORM_KEYS[norm], 0, 0
        for name in results.names:
            for kind in ("Least likely", "Random", "Top-2"):
                slope = ours.get((name, f"{kind} SLOPE {key}"), math.nan)
                attacks = [ours.get((name, f"{kind} {title} {key}"), math.nan) for title in ("CW", "I-FGSM")]
                known = [value for value in attacks if not math.isnan(value)]
                if known and not math.isnan(slope):
                    good += slope > min(known)
                    count += 1
        counts[key] = (good, count)
    good, count = counts["linf"]
    words = ", ".join(f"{key} {a} of {b}" for key, (a, b) in counts.items())
    return Finding(
        "SLOPE is above the attacks, so it is no lower bound.",
        UNKNOWN if not count else HOLDS if good > count / 2 else NOT,
        f"Averages with SLOPE above the nearer attack: {words}.",
    )


def _tests(results: Results) -> Finding:
    shares = [cell.ours for cell in ks.cells(results) if not math.isnan(cell.ours)]
    if not shares:
        return Finding("Nearly all fits pass the K-S test.", UNKNOWN, "")
    return Finding(
        "Nearly all fits pass the K-S test.",
        HOLDS if np.mean(shares) >= 95.0 else NOT,
        f"On average {np.mean(shares):.1f}% pass, the smallest cell has {min(shares):.1f}%. That is weak evidence for "
        "the law: the test is used on the data that the law was fitted to, and passes most samples of other laws, too.",
    )


def _near_the_paper(results: Results) -> Finding:
    ratios = {
        cell.network: cell.ours / cell.paper
        for cell in untargeted.cells(results)
        if cell.column == "CLEVER l2" and cell.network.startswith("mnist") and cell.paper
    }
    near = [name for name, ratio in ratios.items() if 0.5 <= ratio <= 2.0]
    words = ", ".join(f"{NETWORKS[name].title} {ratio:.2f}" for name, ratio in ratios.items())
    far = [name for name in ratios if name not in near]
    return Finding(
        "Untargeted l2 CLEVER of the MNIST networks is within a factor of two of the paper's.",
        _share(len(near), len(ratios)),
        f"Ours over the paper's: {words}. Outside: {_names(far)}.",
    )
