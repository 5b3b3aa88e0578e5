"""The paper's claims, and whether they hold for the images computed so far: by one rule, `RULE`."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paper.medium.results import MediumResults
from paper.medium.tables import ATTACKS, by_blocks, paired, tests, values
from paper.networks import KINDS, LARGE, NETWORKS, SMALL
from paper.results import KIND_TITLES, NORM_KEYS
from paper.sizes import BLOCK_COUNTS, PAPER, RELEASED
from paper.tables import published
from paper.work import NORMS

HOLDS, NOT, UNKNOWN = "holds", "does not hold", "cannot be told at this size"
ERROR = 0.05
FEWEST = 5  # images of a comparison
FEW = 25.0  # percent: the paper's largest share of scores above an attack
NEARLY_ALL = 90.0  # percent: below the paper's smallest share of fits that pass
ENOUGH, CHANGE = 100, 0.1  # blocks, and the change of a score that is called small
FACTOR = 2.0  # within which averages over other images and networks are called near
RULE = (
    "The rule. Each claim is a list of comparisons, fixed beforehand. A comparison is the mean over images of a "
    "difference between two numbers of the same image, with Student's interval, or a share of images, with Wilson's; "
    "the intervals of a claim hold together with 95% (Bonferroni). It speaks for the claim where its whole interval is "
    "on the claimed side, against it where all of it is on the other side, and is open otherwise, or with fewer than "
    f"{FEWEST} images. A claim **holds** if all its comparisons speak for it, **does not hold** if one speaks against "
    "it, and otherwise **cannot be told at this size**. `tables/claims.csv` has every comparison, `tables/rows.csv` "
    "the numbers of every image."
)
LAW_TITLES = {RELEASED: "authors' points", PAPER: "uniform ball"}


@dataclass(frozen=True)
class Comparison:
    """A number with its interval, and the range in which the claim says that it lies."""

    name: str
    images: int
    estimate: float
    low: float
    high: float
    least: float = -math.inf
    most: float = math.inf

    @property
    def side(self) -> int:
        """1 for the claim, -1 against it, 0 open."""
        if self.images < FEWEST or math.isnan(self.estimate):
            return 0
        if self.least <= self.low and self.high <= self.most:
            return 1
        return -1 if self.high < self.least or self.low > self.most else 0


@dataclass(frozen=True)
class Claim:
    """A claim under one law of the points, with what was found."""

    text: str
    law: str
    comparisons: tuple[Comparison, ...]
    unit: str = ""

    @property
    def verdict(self) -> str:
        """By the rule."""
        sides = [each.side for each in self.comparisons]
        if -1 in sides:
            return NOT
        return HOLDS if sides and all(side == 1 for side in sides) else UNKNOWN

    @property
    def counts(self) -> str:
        """How many comparisons speak for it, against it, and are open."""
        sides = [each.side for each in self.comparisons]
        few = sum(each.images < FEWEST for each in self.comparisons)
        waiting = f" ({few} with fewer than {FEWEST} images)" if few else ""
        return f"{sides.count(1)} for, {sides.count(-1)} against, {sides.count(0)} open{waiting}"


def student(differences: Sequence[float], comparisons: int) -> tuple[float, float, float]:
    """Mean and Student's interval at level 1 - 0.05 / comparisons.

    >>> [round(value, 3) for value in student([1.0, 2.0, 3.0, 4.0], 1)]
    [2.5, 0.446, 4.554]
    """
    from scipy.stats import t

    if len(differences) < 2:
        return (differences[0] if differences else math.nan), -math.inf, math.inf
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    width = float(t.ppf(1.0 - ERROR / comparisons / 2.0, len(differences) - 1)) * error
    return mean, mean - width, mean + width


def wilson(passed: float, count: int, comparisons: int) -> tuple[float, float, float]:
    """A share in percent and Wilson's interval at level 1 - 0.05 / comparisons.

    >>> [round(value, 1) for value in wilson(9, 10, 1)]
    [90.0, 59.6, 98.2]
    """
    from scipy.stats import norm

    if not count:
        return math.nan, 0.0, 100.0
    z = float(norm.ppf(1.0 - ERROR / comparisons / 2.0))
    share = passed / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    width = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return 100.0 * share, 100.0 * (middle - width), 100.0 * (middle + width)


def differences(
    cases: Sequence[tuple[str, Sequence[float]]], *, least: float = -math.inf, most: float = math.inf
) -> tuple[Comparison, ...]:
    """Comparisons of means, which share the error."""
    return tuple(
        Comparison(name, len(found), *student(found, len(cases)), least=least, most=most) for name, found in cases
    )


def pooled(
    name: str,
    cases: Sequence[dict[int, list[bool]]],
    comparisons: int,
    *,
    least: float = -math.inf,
    most: float = math.inf,
) -> Comparison:
    """A share over the images of all networks; an image counts once, with the mean of its yes and no.

    While one network has fewer than five images, they are what the comparison rests on.
    """
    shares = [float(np.mean(answers)) for case in cases for answers in case.values()]
    fewest = min(len(case) for case in cases)
    images = len(shares) if fewest >= FEWEST else fewest
    return Comparison(name, images, *wilson(sum(shares), len(shares), comparisons), least=least, most=most)


def _defended(
    results: MediumResults, law: str, defences: Iterable[str], norms: Iterable[str]
) -> list[tuple[str, list[float]]]:
    """Untargeted scores of a defended network less those of the plain CNN, for images that both classify correctly."""
    cases = []
    for name, norm in itertools.product(defences, norms):
        plain = f"{name.split('-')[0]}-cnn"
        ours, theirs = (values(results, network, law, norm, "any") for network in (name, plain))
        cases.append(
            (
                f"{NETWORKS[name].title} less {NETWORKS[plain].title}, {NORM_KEYS[norm]}",
                [ours[i] - theirs[i] for i in sorted(set(ours) & set(theirs))],
            )
        )
    return cases


def defences(results: MediumResults, law: str) -> Claim:
    """Distillation and bounded ReLU."""
    cases = _defended(results, law, ("mnist-dd", "mnist-brelu", "cifar-dd"), NORMS)
    return Claim(
        "Distillation and bounded ReLU raise the untargeted score of the plain CNN (all but CIFAR-BReLU).",
        law, differences(cases, least=0.0),
    )  # fmt: skip


def exception(results: MediumResults, law: str) -> Claim:
    """CIFAR-BReLU."""
    cases = _defended(results, law, ("cifar-brelu",), NORMS)
    return Claim("CIFAR-BReLU lowers it.", law, differences(cases, most=0.0))


def nearest(results: MediumResults, network: str, norm: str, kind: str) -> dict[int, float]:
    """The distortion of the nearer of the paper's two attacks, for images that one of them moved."""
    found: dict[int, float] = {}
    for attack in ATTACKS:
        for i, value in values(results, network, attack, norm, kind).items():
            found[i] = min(value, found.get(i, math.inf))
    return {i: value for i, value in found.items() if math.isfinite(value)}


def _against_attacks(
    results: MediumResults, method: str, kinds: Sequence[str], norms: Iterable[str]
) -> list[tuple[str, list[float]]]:
    """A method's score less the nearer attack's distortion."""
    cases = []
    for name, norm, kind in itertools.product(NETWORKS, norms, kinds):
        if kind == "any" and name not in SMALL:
            continue
        scores, moved = values(results, name, method, norm, kind), nearest(results, name, norm, kind)
        title = KIND_TITLES.get(kind, "untargeted").lower()
        cases.append(
            (f"{NETWORKS[name].title} {title}, {NORM_KEYS[norm]}", [scores[i] - moved[i] for i in scores if i in moved])
        )
    return cases


def _below(norm: str) -> Callable[[MediumResults, str], Claim]:
    def below(results: MediumResults, law: str) -> Claim:
        cases = _against_attacks(results, law, ("any", *KINDS), (norm,))
        text = f"CLEVER is on average below the nearer of CW and I-FGSM in {NORM_KEYS[norm]}."
        return Claim(text, law, differences(cases, most=0.0))

    return below


def _few_above(norm: str) -> Callable[[MediumResults, str], Claim]:
    def few_above(results: MediumResults, law: str) -> Claim:
        cases: dict[str, dict[int, list[bool]]] = {name: {} for name in LARGE}
        for name, attack, kind in itertools.product(LARGE, ATTACKS, KINDS):
            for i, (score, moved) in paired(results, name, law, attack, norm, kind).items():
                cases[name].setdefault(i, []).append(score > moved)
        found = [pooled(f"all three networks, {NORM_KEYS[norm]}", list(cases.values()), 1, most=FEW)]
        text = f"On ImageNet fewer than {FEW:g}% of the images have a score above an attack in {NORM_KEYS[norm]}."
        return Claim(text, law, tuple(found), "%")

    return few_above


def enough_blocks(results: MediumResults, law: str) -> Claim:
    """100 blocks against 500."""
    cases = []
    for name, kind in itertools.product((name for name in SMALL if name != "mnist-brelu"), KINDS):
        scores = by_blocks(results, name, kind)
        few, many = scores[ENOUGH], scores[BLOCK_COUNTS[-1]]
        cases.append(
            (f"{NETWORKS[name].title} {KIND_TITLES[kind].lower()}, l2", [few[i] / many[i] - 1.0 for i in sorted(many)])
        )
    return Claim(
        f"{ENOUGH} blocks give the score of {BLOCK_COUNTS[-1]} within {CHANGE:.0%} (but for MNIST-BReLU).",
        law, differences(cases, least=-CHANGE, most=CHANGE),
    )  # fmt: skip


def slope(results: MediumResults, law: str) -> Claim:
    """SLOPE against attacks."""
    cases = _against_attacks(results, "slope", KINDS, NORMS)
    return Claim("SLOPE is above the attacks on average, so it is no lower bound.", law, differences(cases, least=0.0))


def _passes(test: str, least: float, text: str) -> Callable[[MediumResults, str], Claim]:
    def passes(results: MediumResults, law: str) -> Claim:
        found = []
        for norm in NORMS:
            cases: list[dict[int, list[bool]]] = [{} for _ in results.names]
            for case, name in zip(cases, results.names, strict=True):
                for kind in KINDS:
                    for i, passed in tests(results, name, law, norm, kind)[test].items():
                        case.setdefault(i, []).append(passed)
            found.append(pooled(f"all networks, {NORM_KEYS[norm]}", cases, len(NORMS), least=least))
        return Claim(text, law, tuple(found), "%")

    return passes


def near(results: MediumResults, law: str) -> Claim:
    """Untargeted averages over the paper's."""
    cases = list(itertools.product(SMALL, NORMS))
    found = []
    for name, norm in cases:
        scores = list(values(results, name, law, norm, "any").values())
        paper = published("untargeted")[name, f"clever_{NORM_KEYS[norm]}"]
        mean, low, high = (value / paper for value in student(scores, len(cases)))
        found.append(
            Comparison(
                f"{NETWORKS[name].title}, {NORM_KEYS[norm]}", len(scores), mean, low, high,
                least=1.0 / FACTOR, most=FACTOR,
            )
        )  # fmt: skip
    text = "Untargeted averages are within a factor of two of the paper's, though the networks were trained anew."
    return Claim(text, law, tuple(found))


MAKERS: tuple[tuple[Callable[[MediumResults, str], Claim], tuple[str, ...]], ...] = (
    (defences, (RELEASED, PAPER)),
    (exception, (RELEASED, PAPER)),
    (_below("2"), (RELEASED, PAPER)),
    (_below("inf"), (RELEASED, PAPER)),
    (_few_above("2"), (RELEASED, PAPER)),
    (_few_above("inf"), (RELEASED, PAPER)),
    (enough_blocks, (PAPER,)),
    (slope, (PAPER,)),
    (_passes("K-S", NEARLY_ALL, f"At least {NEARLY_ALL:g}% of the fits pass the K-S test."), (PAPER,)),
    (
        _passes("A-D", NEARLY_ALL, f"At least {NEARLY_ALL:g}% pass Anderson-Darling's, which knows of the fit."),
        (PAPER,),
    ),
    (near, (RELEASED, PAPER)),
)


def claims(results: MediumResults) -> list[Claim]:
    """All claims, under each law that they are asked of."""
    return [maker(results, law) for maker, laws in MAKERS for law in laws]


def claims_csv(found: Sequence[Claim]) -> str:
    """Every comparison."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["claim", "points", "verdict", "comparison", "images", "estimate", "low", "high", "least", "most", "side"]
    )
    for claim in found:
        for each in claim.comparisons:
            numbers = [f"{value:.6g}" for value in (each.estimate, each.low, each.high, each.least, each.most)]
            row = [claim.text, LAW_TITLES[claim.law], claim.verdict, each.name, each.images, *numbers, each.side]
            writer.writerow(row)
    return text.getvalue()


def rows_csv(results: MediumResults) -> str:
    """Every image's numbers: network, image, kind of target, method, norm, value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["network", "image", "targets", "method", "norm", "value"])
    names = {PAPER: "clever-uniform", RELEASED: "clever-authors"}
    for name, kind in itertools.product(results.names, ("any", *KINDS)):
        if kind == "any" and name not in SMALL:
            continue
        for method, norm in itertools.product((*ATTACKS, PAPER, RELEASED, "slope", "best", "sharp"), NORMS):
            for i, value in sorted(values(results, name, method, norm, kind).items()):
                writer.writerow([name, i, kind, names.get(method, method), NORM_KEYS[norm], f"{value:.7g}"])
    return text.getvalue()
