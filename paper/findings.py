"""Which of the paper's claims hold for what was computed here; every number comes from the results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paper import above, blocks, ks, radius, targeted, untargeted
from paper.networks import KINDS, LARGE, NETWORKS, SMALL
from paper.results import KIND_TITLES, LEVEL, NORM_KEYS, Results
from paper.sizes import BLOCK_COUNTS
from paper.tables import Cell, published
from paper.work import NORMS

HOLDS, MOSTLY, HALF = "holds", "holds for the most part", "holds in half of the cases"
HARDLY, NOT, UNKNOWN = "does not hold for the most part", "does not hold", "cannot be told"
FEW, NEARLY_ALL = 0.1, 95.0  # a share, percent
PAIRED = 2.0  # standard errors of a paired difference, within which two averages are called equal


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
        _points(results),
        _enough_blocks(results),
        _slope(results),
        _tests(results),
        _near_the_paper(results),
    ]


def _values(cells: Sequence[Cell]) -> dict[tuple[str, str], float]:
    return {(cell.network, cell.column): cell.ours for cell in cells}


def _share(good: int, count: int) -> str:
    """A verdict from how many of how many cases speak for the claim."""
    if not count:
        return UNKNOWN
    if good in (0, count):
        return HOLDS if good else NOT
    return HALF if 2 * good == count else MOSTLY if 2 * good > count else HARDLY


def _listed(words: Sequence[str]) -> str:
    return "; ".join(words) or "none"


def _compared(results: Results, defences: Sequence[str]) -> list[tuple[str, int]]:
    """Defences against the plain CNN on the images that both classify correctly, in words; 1 if higher, -1 if lower."""
    found = []
    for name in defences:
        plain = f"{name.split('-')[0]}-cnn"
        for norm in NORMS:
            ours, theirs = (results.scores(network, norm, "any") for network in (name, plain))
            both = sorted(set(ours) & set(theirs))
            if len(both) < 2:
                continue
            defended, usual = (np.array([rows[i]["score"] for i in both]) for rows in (ours, theirs))
            change = defended - usual
            side = int(np.sign(change.mean()))
            if abs(change.mean()) <= PAIRED * change.std(ddof=1) / math.sqrt(len(both)):
                side = 0
            words = {1: "higher", 0: "no clear difference", -1: "lower"}[side]
            found.append(
                (
                    f"{NETWORKS[name].title} {NORM_KEYS[norm]} {defended.mean():.3g} against {usual.mean():.3g}, "
                    f"{words} ({len(both)} images)",
                    side,
                )
            )
    return found


def _defences(results: Results) -> Finding:
    found = _compared(results, ["mnist-dd", "mnist-brelu", "cifar-dd"])
    raised = sum(side > 0 for _, side in found)
    return Finding(
        "Distillation and bounded ReLU raise the score (all but CIFAR-BReLU).",
        _share(raised, len(found)),
        f"Higher than the plain CNN's in {raised} of {len(found)} comparisons of untargeted averages over the same "
        f"images: {_listed([words for words, _ in found])}.",
    )


def _bounded_relu(results: Results) -> Finding:
    found = _compared(results, ["cifar-brelu"])
    return Finding(
        "CIFAR-BReLU is the exception: its score is lower than the plain CNN's.",
        _share(sum(side < 0 for _, side in found), len(found)),
        f"{_listed([words for words, _ in found])}.",
    )


def _below(results: Results) -> Finding:
    """Averages over images that at least one attack moved, against the nearer attack of each."""
    averages = {norm: [0, 0] for norm in NORMS}
    images = {norm: [0, 0] for norm in NORMS}
    higher = []
    for name, norm, kind in itertools.product(results.names, NORMS, ("any", *KINDS)):
        if kind == "any" and name not in SMALL:
            continue
        nearest: dict[int, float] = {}
        for attack in untargeted.ATTACKS:
            for i, value in results.distortions(name, attack, norm, kind).items():
                nearest[i] = min(value, nearest.get(i, math.inf))
        pairs = [
            (row["score"], nearest[i])
            for i, row in results.scores(name, norm, kind).items()
            if math.isfinite(nearest.get(i, math.inf))
        ]
        if not pairs:
            continue
        images[norm][0] += sum(score <= distortion for score, distortion in pairs)
        images[norm][1] += len(pairs)
        below = np.mean([score for score, _ in pairs]) < np.mean([distortion for _, distortion in pairs])
        averages[norm][0] += bool(below)
        averages[norm][1] += 1
        if not below:
            higher.append(f"{NETWORKS[name].title} {NORM_KEYS[norm]} {KIND_TITLES.get(kind, 'untargeted').lower()}")
    good, count = (sum(values) for values in zip(*averages.values(), strict=True))
    words = "; ".join(
        f"{NORM_KEYS[norm]} {averages[norm][0]} of {averages[norm][1]} averages, {images[norm][0]} of "
        f"{images[norm][1]} pairs of image and target"
        for norm in NORMS
    )
    return Finding(
        "CLEVER is below the attacks' distortion on average.",
        _share(good, count),
        "Below the nearer of CW and I-FGSM, untargeted and for given targets, over images that one of them moved: "
        f"{words}. Averages above: {_listed(higher)}.",
    )


def _imagenet(results: Results) -> Finding:
    names = [name for name in results.names if name in LARGE]
    words, shares = [], []
    for norm in NORMS:
        found = [
            above.counts(results, name, attack, norm, kind)
            for name, attack, kind in itertools.product(names, untargeted.ATTACKS, KINDS)
        ]
        higher, moved = sum(cell[0] for cell in found), sum(cell[1] for cell in found)
        paper = [value for (_, column), value in published("above").items() if column.endswith(f"_{NORM_KEYS[norm]}")]
        if moved:
            shares.append(higher / moved)
            words.append(
                f"{NORM_KEYS[norm]} {higher} of {moved} ({higher / moved:.0%}; the paper {np.mean(paper):.1f}% on "
                f"average, {max(paper):g}% at most)"
            )
    counts = [str(len(results.scores(name, "2", "random"))) for name in names]
    return Finding(
        "On ImageNet few images have a score above an attack.",
        _share(sum(share <= FEW for share in shares), len(shares)),
        f"Scores above the distortion of an attack that succeeded, over networks, attacks and kinds of targets: "
        f"{_listed(words)}. Images for each network: {', '.join(counts) or 'none'}.",
    )


def _points(results: Results) -> Finding:
    claim = "In linf the paper's scores come from points within radius 5."
    ours = _values(radius.cells(results))
    words, near = [], 0
    for name in dict.fromkeys(network for network, _ in ours):
        values = {title: ours.get((name, f"CLEVER linf, {title}"), math.nan) for title in radius.METHODS}
        if any(map(math.isnan, values.values())):
            continue
        paper = published("targeted")[name, f"{radius.KIND}_clever_linf"]
        near += min(values, key=lambda title: abs(math.log(values[title] / paper))) == next(iter(values))
        listed = ", ".join(f"{value:.2g} ({title})" for title, value in values.items())
        words.append(f"{NETWORKS[name].title} {listed}, the submission {paper:g}")
    if not words:
        return Finding(claim, UNKNOWN, "Not computed.")
    return Finding(
        claim,
        _share(near, len(words)),
        f"Nearest to the submission's averages for random targets is radius 5 for {near} of the {len(words)} networks "
        f"looked at: {_listed(words)}. In linf a ball of radius 5 reaches far outside of [0, 1]; where gradients out "
        "there are smaller than near images, the constant is too small for the image and the score too large.",
    )


def _enough_blocks(results: Results) -> Finding:
    claim = "50 to 100 blocks are enough (but for MNIST-BReLU)."
    changes: dict[int, dict[str, float]] = {count: {} for count in BLOCK_COUNTS[:-1]}
    sizes = []
    for name in results.names:
        for kind, title in KIND_TITLES.items():
            found = blocks.averages(results, name, kind)
            for count in changes if found else ():
                where = f"{NETWORKS[name].title}, {title.lower()} target"
                changes[count][where] = abs(found[count] / found[BLOCK_COUNTS[-1]] - 1.0)
            if found:
                sizes.append(results.sizes[name])
    if not sizes:
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
        f"blocks {sum(near)} of {len(near)} averages of the other networks change by less than a tenth. Each average "
        f"is over {_span([size.many for size in sizes])} images, from blocks of "
        f"{_span([size.many_size for size in sizes])} gradients, and the paper's blocks have 1024.",
    )


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _slope(results: Results) -> Finding:
    ours = _values(targeted.cells(results))
    counts, cut, scores = {}, 0, 0
    for norm in NORMS:
        key, good, count = NORM_KEYS[norm], 0, 0
        for name, kind in itertools.product(results.names, KINDS):
            title = KIND_TITLES[kind]
            slope = ours.get((name, f"{title} SLOPE {key}"), math.nan)
            attacks = [ours.get((name, f"{title} {attack} {key}"), math.nan) for attack in ("CW", "I-FGSM")]
            known = [value for value in attacks if not math.isnan(value)]
            if known and not math.isnan(slope):
                good += slope > min(known)
                count += 1
            rows = results.scores(name, norm, kind, question=targeted.slope(norm)).values()
            cut += sum(row["capped"] for row in rows)
            scores += len(rows)
        counts[key] = (good, count)
    words = ", ".join(f"{key} {a} of {b}" for key, (a, b) in counts.items())
    good, count = (sum(values) for values in zip(*counts.values(), strict=True))
    return Finding(
        "SLOPE is above the attacks, so it is no lower bound.",
        _share(good, count),
        f"Averages with SLOPE above the nearer attack: {words}. {cut} of {scores} values are cut at the radius, so "
        "that the averages would be larger still.",
    )


def _tests(results: Results) -> Finding:
    claim = "Nearly all fits pass the K-S test."
    shares = [cell.ours for cell in ks.cells(results) if not math.isnan(cell.ours)]
    if not shares:
        return Finding(claim, UNKNOWN, "Not computed.")
    many = [row["ks_pvalue"] for name in results.names for row in results.rows(name, blocks.QUESTION)]
    known = [value for value in many if not math.isnan(value)]
    passed = sum(value > LEVEL for value in known)
    large = f" Of {len(known)} fits to {BLOCK_COUNTS[-1]} maxima {passed} pass." if known else ""
    used = _span([results.sizes[name].blocks for name in results.names])
    return Finding(
        claim,
        HOLDS if np.mean(shares) >= NEARLY_ALL else NOT,
        f"On average {np.mean(shares):.1f}% pass, the smallest cell has {min(shares):.1f}%, with {used} maxima for "
        f"each fit, of which the test sees little.{large} That is weak evidence for the law: the test is used on the "
        "data that the law was fitted to, and passes most samples of other laws, too.",
    )


def _near_the_paper(results: Results) -> Finding:
    """Both laws of the points against the paper's untargeted averages."""
    ratios: dict[str, dict[tuple[str, str], float]] = {title: {} for title in untargeted.PRESETS.values()}
    for cell in untargeted.cells(results):
        title, _, key = cell.column.rpartition(" ")
        if title in ratios and cell.paper:
            ratios[title][cell.network, key] = cell.ours / cell.paper
    usual, released = ratios.values()
    near, near_released = ([r for r in found.values() if 0.5 <= r <= 2.0] for found in (usual, released))
    far = [f"{NETWORKS[name].title} {key} {r:.2g}" for (name, key), r in usual.items() if not 0.5 <= r <= 2.0]
    mnist = [r for (name, key), r in usual.items() if name.startswith("mnist") and key == "l2"]
    good = sum(0.5 <= r <= 2.0 for r in mnist)
    return Finding(
        "Untargeted CLEVER is near the paper's, though the networks were trained anew.",
        _share(len(near), len(usual)),
        f"Ours over the paper's is between a half and two for {len(near)} of {len(usual)} averages, and for {good} of "
        f"{len(mnist)} of MNIST in l2 ({', '.join(f'{r:.2f}' for r in mnist)}). Outside: {_listed(far)}. With points "
        f"drawn as the released code does, on fewer images, it is {len(near_released)} of {len(released)}.",
    )
