"""The tables of the middle size: the paper's under both laws of points, and what today's tools say of the images."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cleverscore import tails
from paper import accuracy
from paper.medium.maxima import PENALTIES
from paper.medium.plan import AUTHORS
from paper.medium.results import RADIUS, REPLICATES, MediumResults, Sample, fitted
from paper.networks import KINDS, LARGE, SMALL
from paper.results import KIND_TITLES, LEVEL, NORM_KEYS, Mean, images_text
from paper.sizes import BLOCK_COUNTS, PAPER, RELEASED
from paper.tables import Cell, Table, published
from paper.work import NORMS as NORM_NAMES
from paper.work import Question, clever

ATTACKS = {"cw": "CW", "ifgsm": "I-FGSM"}
LAWS = {PAPER: "CLEVER, uniform ball", RELEASED: "CLEVER, authors' points"}
TODAY = {"best": "best attack", "sharp": "sharp"}
BRACKETS = (
    "Averages over images ± standard errors; in parentheses {published}. Brackets: over how many of the planned "
    "images, where not all, and how many of those an attack failed to move."
)
MLP = "mnist-mlp"  # which has 500 blocks of 1024


def values(results: MediumResults, network: str, method: str, norm: str, kind: str) -> dict[int, float]:
    """A number for each image: a distortion or a score, infinite where an attack failed.

    method      cw, ifgsm, best, sharp, slope, or the law of CLEVER's points ("paper", "released-code").
    norm, kind  "2" or "inf"; a kind of target or "any".
    """
    if method in ATTACKS:
        return results.distortions(network, method, norm, kind)
    if method in TODAY:
        rows = results.rows(network, Question(method, f"{NORM_KEYS[norm]}-{kind}"))
        return {row["input"]: row["distortion" if method == "best" else "score"] for row in rows}
    question = Question("slope", f"paper-l{norm}") if method == "slope" else clever(norm, method)
    if method == "slope" and kind == "any":
        return {}
    return {i: row["score"] for i, row in results.scores(network, norm, kind, question=question).items()}


def average(results: MediumResults, network: str, method: str, norm: str, kind: str) -> Mean:
    """The average over images, which knows how many were planned."""
    return results.planned(Mean.of(list(values(results, network, method, norm, kind).values())), network)


def _words(results: MediumResults, network: str, method: str) -> str:
    size = results.sizes[network]
    return "default" if method in TODAY else size.words(method if method in ATTACKS else "clever")


def _cells(results: MediumResults, network: str, kind: str, methods: dict[str, str], table: str) -> list[Cell]:
    """Averages of one network and kind of target; published ones where the paper has that column."""
    found, paper = [], published(table)
    for method, title in methods.items():
        for norm in NORM_NAMES:
            key = NORM_KEYS[norm]
            column = f"{'clever' if method in LAWS else method}_{key}"
            there = paper.get((network, column if kind == "any" else f"{kind}_{column}"))
            mean = average(results, network, method, norm, kind)
            found.append(Cell.average(network, f"{title} {key}", there, mean, _words(results, network, method)))
    return found


def untargeted(results: MediumResults) -> list[Table]:
    """CW, I-FGSM, CLEVER under both laws, the best attack and sharp scores without a target."""
    methods = {**ATTACKS, **LAWS, **TODAY}
    cells = [
        cell for name in results.names if name in SMALL for cell in _cells(results, name, "any", methods, "untargeted")
    ]
    note = BRACKETS.format(published="the paper's")
    return [
        Table(
            "untargeted", "Untargeted distortion and CLEVER",
            f"{note} CW minimises l2, its linf is that of the same examples; I-FGSM the other way round.",
            tuple(cells), errors=True,
        )
    ]  # fmt: skip


def targeted(results: MediumResults) -> list[Table]:
    """The same with SLOPE for each kind of target."""
    methods = {**ATTACKS, **LAWS, "slope": "SLOPE", **TODAY}
    found = []
    for kind in KINDS:
        cells = [cell for name in results.names for cell in _cells(results, name, kind, methods, "targeted")]
        note = BRACKETS.format(published="the numbers of the paper's anonymous submission, which has no SLOPE")
        found.append(
            Table(
                f"targeted-{kind.replace('_', '-')}",
                f"Targeted distortion, CLEVER and SLOPE: {KIND_TITLES[kind].lower()} target",
                f"{note} Scores from the uniform ball, and SLOPE, are cut at the radius, {RADIUS:g}.",
                tuple(cells), errors=True,
            )
        )  # fmt: skip
    return found


def share(passed: int, count: int) -> tuple[float, float]:
    """A share and its standard error, in percent; after Agresti and Coull the error of 100% is not 0."""
    if not count:
        return math.nan, math.nan
    middle = (passed + 2.0) / (count + 4.0)
    return 100.0 * passed / count, 100.0 * math.sqrt(middle * (1.0 - middle) / (count + 4.0))


def tests(results: MediumResults, network: str, method: str, norm: str, kind: str) -> dict[str, dict[int, bool]]:
    """Whether each image's fit passes the K-S and the Anderson-Darling test at 0.05."""
    rows = results.scores(network, norm, kind, question=clever(norm, method))
    key = network, method, norm, kind
    if key not in results.tested:
        passed: dict[str, dict[int, bool]] = {"K-S": {}, "A-D": {}}
        if rows:
            maxima = np.stack([row["maxima"] for row in rows.values()])
            _, pvalues = tails.anderson_darling(
                maxima, tails.fit(maxima, penalty=results.kept.penalty), replicates=REPLICATES
            )
            for (i, row), pvalue in zip(rows.items(), pvalues, strict=True):
                if not math.isnan(row["ks_pvalue"]):
                    passed["K-S"][i], passed["A-D"][i] = row["ks_pvalue"] > LEVEL, bool(pvalue > LEVEL)
        results.tested[key] = passed
    return results.tested[key]


def ks(results: MediumResults) -> list[Table]:
    """Shares of fits that pass each test, a table for each norm."""
    found = []
    for norm in NORM_NAMES:
        key, cells = NORM_KEYS[norm], []
        for network in results.names:
            size = results.sizes[network]
            for kind in KINDS:
                for test, passed in tests(results, network, PAPER, norm, kind).items():
                    ours, error = share(sum(passed.values()), len(passed))
                    paper = published("ks")[network, f"{kind}_{key}"] if test == "K-S" else None
                    cells.append(
                        Cell(
                            network, f"{KIND_TITLES[kind]} {test}", paper, ours,
                            images_text(len(passed), size.images), size.words("clever"), error,
                        )
                    )  # fmt: skip
        found.append(
            Table(
                f"ks-{key}", f"Fits that pass the K-S and the Anderson-Darling test at {LEVEL}, {key}",
                "In percent of the images ± standard errors (Agresti and Coull's); in parentheses the paper's. Points "
                "uniform in the ball. The K-S test does not know that the law was fitted to the same maxima, and "
                f"passes samples of most laws; Anderson-Darling's p-values come from {REPLICATES} samples of the "
                "fitted law, each fitted again.",
                tuple(cells), digits=1, errors=True,
            )
        )  # fmt: skip
    return found


def above(results: MediumResults) -> list[Table]:
    """Shares of ImageNet images with a score above an attack, a table for each law."""
    found = []
    for law, title in LAWS.items():
        cells = []
        for network in (name for name in results.names if name in LARGE):
            size = results.sizes[network]
            for kind in KINDS:
                for attack, name in ATTACKS.items():
                    for norm in NORM_NAMES:
                        pairs = paired(results, network, law, attack, norm, kind)
                        ours, error = share(sum(score > moved for score, moved in pairs.values()), len(pairs))
                        key = NORM_KEYS[norm]
                        cells.append(
                            Cell(
                                network, f"{KIND_TITLES[kind]} {name} {key}",
                                published("above")[network, f"{kind}_{attack}_{key}"], ours,
                                images_text(len(pairs), size.images), size.words("clever"), error,
                            )
                        )  # fmt: skip
        short = "uniform" if law == PAPER else "authors"
        found.append(
            Table(
                f"above-{short}", f"ImageNet images with a score above the attack's distortion: {title}",
                "In percent of the images that the attack moved, ± standard errors; in parentheses the paper's. "
                "Brackets: how many of the planned images that is.",
                tuple(cells), digits=0, unit="%", errors=True,
            )
        )  # fmt: skip
    return found


def paired(
    results: MediumResults, network: str, first: str, second: str, norm: str, kind: str
) -> dict[int, tuple[float, float]]:
    """Numbers of two methods for the images that both have, failed attacks left out."""
    ours, theirs = (values(results, network, method, norm, kind) for method in (first, second))
    return {i: (ours[i], theirs[i]) for i in ours if math.isfinite(theirs.get(i, math.inf)) and math.isfinite(ours[i])}


def penalties(results: MediumResults) -> list[Table]:
    """Scores of MNIST-MLP from 500 blocks of 1024 under three penalties."""
    if MLP not in results.names:
        return []
    size, most = results.sizes[MLP], BLOCK_COUNTS[-1]
    cells = []
    for title, unit, norm, radius in (
        ("uniform ball, l2", "maxima-l2", "2", RADIUS),
        ("authors' points, l2", AUTHORS, "2", math.inf),
        ("authors' points, linf", AUTHORS, "inf", math.inf),
    ):
        samples = [each for each in results.kept.samples(MLP, unit, norm, size) if len(each.maxima) >= most]
        for penalty in PENALTIES:
            rows = fitted(samples, most, radius, penalty)
            for kind, name in {"any": "Untargeted", **KIND_TITLES}.items():
                scores: dict[int, float] = {}
                for row in rows:
                    if kind == "any" or kind in row["kinds"]:
                        scores[row["input"]] = min(row["score"], scores.get(row["input"], math.inf))
                mean = Mean.of(list(scores.values()))
                planned = Mean(mean.value, mean.used, size.many, mean.error)
                cells.append(
                    Cell.average(f"{name}, {title}", f"penalty {penalty:g}", None, planned, size.words("many"))
                )
    return [
        Table(
            "penalties", f"CLEVER of MNIST-MLP with three penalties, {size.words('many')}",
            "Averages over images ± standard errors, from the same maxima. 0 is plain maximum likelihood, 0.01 the "
            "authors' program. Brackets: over how many of the planned images, where not all.",
            tuple(sorted(cells, key=lambda cell: [c.network for c in cells].index(cell.network))), errors=True,
            head="score",
        )
    ]  # fmt: skip


def effort(results: MediumResults) -> list[Table]:
    """How many iterations the paper's attacks took until each image was moved, and where they failed."""
    cells = []
    for network in results.names:
        size = results.sizes[network]
        for kind in ("any", *KINDS):
            for attack, title in ATTACKS.items():
                rows = results.rows(network, Question(attack, kind))
                if not rows:
                    continue
                moved = [float(row["iterations"]) for row in rows if math.isfinite(row["l2"])]
                mean = Mean.of(moved)
                planned = Mean(mean.value, mean.used, size.images, mean.error, failed=len(rows) - len(moved))
                name = KIND_TITLES.get(kind, "Untargeted")
                cells.append(Cell.average(network, f"{name} {title}", None, planned, size.words(attack)))
    return [
        Table(
            "iterations", "Iterations that moved the images",
            "Constants or epsilons times steps of the try that succeeded, averages ± standard errors: an attack that "
            "fails is tried again with more steps, and CW with a higher rate, up to three times. Brackets: how many of "
            "the planned images it moved, where not all, and how many no try did.",
            tuple(cells), digits=0, errors=True,
        )
    ]  # fmt: skip


def by_blocks(results: MediumResults, network: str, kind: str) -> dict[int, dict[int, float]]:
    """l2 scores by number of blocks and image, from the images with 500 blocks in the uniform ball."""
    if network not in results.names:
        return {count: {} for count in BLOCK_COUNTS}
    size, most = results.sizes[network], BLOCK_COUNTS[-1]
    samples: list[Sample] = [
        each
        for each in results.kept.samples(network, "maxima-l2", "2", size)
        if len(each.maxima) >= most and kind in each.kinds
    ]
    return {
        count: {row["input"]: row["score"] for row in fitted(samples, count, RADIUS, results.kept.penalty)}
        for count in BLOCK_COUNTS
    }


def blocks(results: MediumResults) -> list[Table]:
    """Scores from the first 50, 100, 250 and all 500 blocks."""
    cells = []
    for network in (name for name in results.names if name in SMALL):
        size = results.sizes[network]
        for kind in KINDS:
            for count, scores in by_blocks(results, network, kind).items():
                mean = Mean.of(list(scores.values()))
                planned = Mean(mean.value, mean.used, size.many, mean.error)
                column = f"{KIND_TITLES[kind]}, {count}"
                cells.append(Cell.average(network, column, None, planned, size.words("many")))
    return [
        Table(
            "blocks", "CLEVER in l2 by the number of blocks",
            "Averages over images ± standard errors, from the first blocks of the same samples of 500, uniform ball. "
            "Brackets: over how many of the planned images, where not all.",
            tuple(cells), errors=True,
        )
    ]  # fmt: skip


def tables(results: MediumResults) -> list[Table]:
    """All of them, without those that have no cells."""
    makers = (accuracy.tables, untargeted, targeted, penalties, ks, above, blocks, effort)
    made = [_with_numbers(table) for maker in makers for table in maker(results)]
    return [table for table in made if table.cells]


def _with_numbers(table: Table) -> Table:
    """The lines that hold a number, or an attack that failed."""
    lines = {cell.network for cell in table.cells if not math.isnan(cell.ours) or "failed" in cell.images}
    return replace(table, cells=tuple(cell for cell in table.cells if cell.network in lines))
