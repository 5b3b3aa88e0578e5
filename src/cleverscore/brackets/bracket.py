"""Bracket: a certified lower bound, the score, the best attack as an upper bound, and whether they agree."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.attacks.attack import AttackFunction
from cleverscore.brackets.agreement import above_attack, below_certificate, share_above_attack, share_certified
from cleverscore.brackets.masking import Sign, probed_signs, sign_above_attack
from cleverscore.brackets.records import AttackRecord, CertificateRecord
from cleverscore.brackets.run_bounds import (
    bracketed,
    checked_attacks,
    images_by_id,
    run_attacks,
    run_certificates,
    target_or_any,
)
from cleverscore.brackets.tables import bracket_summary, bracket_table, methods_text
from cleverscore.inputs.balls import LpBall
from cleverscore.models.classifier import Classifier, checked_classifier
from cleverscore.models.input_box import box_of
from cleverscore.scores.score import Score, Scores
from cleverscore.scores.tables import below_the_table

if TYPE_CHECKING:
    import pandas

Array = npt.NDArray[np.float64]

COLUMNS = ["attack", "upper", "upper_l1", "upper_l2", "upper_linf", "certified", "consistent"]
PROBED_INPUTS = 4  # for signs of masking, which are a property of the network: a few inputs show them


@dataclass(frozen=True)
class Bracket:
    """Certified lower bound, score and attacked upper bound of every bracketed row; arrays have one entry per row.

    scores              all scores, also of single targets.
    rows                the scores that have bounds: one per input and norm where it is the smallest over several
                        targets ("untargeted", "top:N"), else one per input, norm and target.
    lower               the certified radius, NaN without a certificate.
    upper               the smallest distortion that any attack found in the row's norm; infinite where all failed, NaN
                        where none was run. `attack` is the name of the attack that found it.
    upper_l1, upper_l2, upper_linf      the smallest distortion that any attack found in each of these norms.
    consistent          whether lower <= score <= upper, as far as they are known; False without a score.
    signs               signs of gradient masking.
    others              the brackets of further methods for the same inputs, such as sharp in addition to CLEVER.
    """

    scores: Scores = field(repr=False)
    rows: tuple[Score, ...] = field(repr=False)
    lower: Array
    upper: Array
    upper_l1: Array
    upper_l2: Array
    upper_linf: Array
    attack: tuple[str | None, ...]
    signs: tuple[Sign, ...] = ()
    others: tuple[Bracket, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def method(self) -> str:
        """The method of the scores; the scores of other methods are in `others`."""
        return self.rows[0].method

    @property
    def title(self) -> str:
        """The heading of the column of these scores in a table of several methods."""
        return self.rows[0].rule.title

    @property
    def score(self) -> Array:
        """The score of each row."""
        return np.array([row.value for row in self.rows])

    @property
    def violated(self) -> npt.NDArray[np.bool_]:
        """Whether each score lies above the distance of the best attack."""
        return above_attack(self.score, self.upper)

    @property
    def loose(self) -> npt.NDArray[np.bool_]:
        """Whether each score lies below the certified radius; False for a score that is capped at the radius."""
        capped = np.array([row.capped for row in self.rows], dtype=bool)
        return below_certificate(self.score, self.lower, capped)

    @property
    def consistent(self) -> npt.NDArray[np.bool_]:
        """Whether lower <= score <= upper for each row, as far as they are known; False without a score."""
        return ~self.violated & ~self.loose & ~np.isnan(self.score)

    @property
    def violation_rate(self) -> float:
        """Share of scores above the best attack, among rows where an attack succeeded; NaN if none did."""
        return share_above_attack(self.score, self.upper)

    @property
    def median_gap(self) -> float:
        """Median of (upper - score) / upper over rows where an attack succeeded; NaN if none did."""
        attacked = np.isfinite(self.upper) & (self.upper > 0.0) & ~np.isnan(self.score)
        upper = self.upper[attacked]
        return float(np.median((upper - self.score[attacked]) / upper)) if attacked.any() else math.nan

    @property
    def certified_share(self) -> float:
        """Share of certified radii above 0, among rows with a certificate; NaN if there is none."""
        return share_certified(self.lower)

    def of_norm(self, p: float) -> Bracket:
        """The bracket of the rows in norm p, also in `others`."""
        keep = np.array([row.p == p for row in self.rows], dtype=bool)
        arrays = {name: getattr(self, name)[keep] for name in ("lower", "upper", "upper_l1", "upper_l2", "upper_linf")}
        rows = tuple(row for row in self.rows if row.p == p)
        attack = tuple(name for name, kept in zip(self.attack, keep, strict=True) if kept)
        return replace(self, rows=rows, attack=attack, others=tuple(o.of_norm(p) for o in self.others), **arrays)

    def to_frame(self) -> pandas.DataFrame:
        """All scores, with the columns attack, upper, upper_l1, upper_l2, upper_linf, certified and consistent added.

        These columns are empty in rows without bounds, such as the single targets of an untargeted score. The rows of
        `others` follow.
        """
        import pandas

        frame = self.scores.to_frame()
        places = {(row.input, row.p, row.target, row.target_kind): i for i, row in enumerate(self.rows)}
        order = [places.get((row.input, row.p, row.target, row.target_kind)) for row in self.scores.rows]
        empty = [None, math.nan, math.nan, math.nan, math.nan, math.nan, None]
        values = list(
            zip(
                self.attack, self.upper, self.upper_l1, self.upper_l2, self.upper_linf, self.lower,
                self.consistent.tolist(), strict=True,
            )
        )  # fmt: skip
        bounds: pandas.DataFrame = pandas.DataFrame([empty if i is None else values[i] for i in order], columns=COLUMNS)
        joined: pandas.DataFrame = pandas.concat([frame, bounds], axis=1)
        if not self.others:
            return joined
        frames: pandas.DataFrame = pandas.concat([joined, *(o.to_frame() for o in self.others)], ignore_index=True)
        return frames

    def __str__(self) -> str:
        if self.others:
            return methods_text(self)
        words = [*below_the_table(self.rows, self.scores.rows), bracket_summary(self)]
        return "\n".join([bracket_table(self), "", *filter(None, words)])


def bracket(
    classifier: Classifier,
    images: Any,
    scores: Scores,
    *,
    attacks: Sequence[str | AttackFunction] = ("cw", "ddn"),
    certificate: str | None = "crown",
    region: str = "ball",
    seed: int = 0,
) -> Bracket:
    """Attack and certify the inputs that were scored: certified <= true distance <= attacked, the score in between.

    images          the inputs of `scores` (n, *input_shape), in the same order.
    attacks         "cw", "ddn", "fmn", "ead", "ifgsm", "descent", or "best" for the attack with the smallest distances,
                    each with an optional preset as in "ddn:quick"; or your own functions. Empty for none.
    certificate     "crown", or another method of `certify`; None for none.
    region          the region of the scores. With "box", "crown" with p = inf certifies only points within the
                    classifier's bounds; other certificates are for the whole ball, and so hold in the box as well.
                    Attacks stay within the bounds, if the classifier has any, for either region.
    seed            seed of the attacks.

    >>> classifier = Classifier(torch.nn.Linear(4, 3), bounds=(-9.0, 9.0))
    >>> from cleverscore import clever
    >>> images = torch.rand(2, 4)
    >>> bracket(classifier, images, clever(classifier, images, p="inf"), attacks=["fmn"]).consistent
    array([ True,  True])
    """
    checked_attacks(attacks)
    box_of(region, checked_classifier(classifier).bounds)
    x = classifier.inputs(images)
    by_id = images_by_id(classifier, x, scores)
    rows = bracketed(scores)
    above = chain.from_iterable(run_attacks(classifier, by_id, rows, attacks, seed=seed))
    below = (
        chain.from_iterable(run_certificates(classifier, by_id, rows, certificate, region=region))
        if certificate
        else ()
    )
    found = bracket_from(scores, list(above), list(below))
    return replace(found, signs=signs_of(classifier, by_id, found))


def bracket_from(
    scores: Scores,
    above: Sequence[AttackRecord],
    below: Sequence[CertificateRecord],
    others: Sequence[Scores] = (),
) -> Bracket:
    """The bracket of scores, from the records of attacks (`above`) and of certificates (`below`).

    others  scores of the same inputs by other methods; they get the same bounds.
    """
    rows = bracketed(scores)
    attacks: dict[tuple[int, int | None], list[AttackRecord]] = defaultdict(list)
    for record in above:
        attacks[record.input, record.target].append(record)
    proofs: dict[tuple[int, int | None, float], float] = defaultdict(lambda: math.nan)
    for proof in below:
        key = proof.input, proof.target, proof.p
        proofs[key] = float(np.nanmax([proofs[key], proof.radius]))
    of_row = [attacks[row.input, target_or_any(row)] for row in rows]

    def smallest(lengths: Iterable[float]) -> float:
        return min(lengths, default=math.nan)

    best = [
        min(records, key=lambda record: record.length(row.p), default=None)
        for row, records in zip(rows, of_row, strict=True)
    ]
    return Bracket(
        scores=scores,
        rows=rows,
        lower=np.array([proofs[row.input, target_or_any(row), row.p] for row in rows], dtype=np.float64),
        upper=np.array([smallest(r.length(row.p) for r in rs) for row, rs in zip(rows, of_row, strict=True)]),
        upper_l1=np.array([smallest(r.l1 for r in records) for records in of_row]),
        upper_l2=np.array([smallest(r.l2 for r in records) for records in of_row]),
        upper_linf=np.array([smallest(r.linf for r in records) for records in of_row]),
        attack=tuple(
            None if one is None or math.isinf(one.length(row.p)) else one.name
            for one, row in zip(best, rows, strict=True)
        ),
        others=tuple(bracket_from(other, above, below) for other in others if len(other)),
    )


def network_signs(
    classifier: Classifier,
    images: Mapping[int, torch.Tensor],
    *,
    p: float,
    radius: float,
    most_seconds: float = math.inf,
) -> tuple[Sign, ...]:
    """Signs of gradient masking in the ball around at most PROBED_INPUTS of the inputs, without scores.

    images          the inputs by id.
    most_seconds    after so many seconds no further input is probed.
    """
    few = list(images)[:: math.ceil(len(images) / PROBED_INPUTS)]
    x = torch.stack([images[i] for i in few])
    return probed_signs(classifier, x, LpBall(p, radius), ids=few, most_seconds=most_seconds)


def signs_of(
    classifier: Classifier,
    images: Mapping[int, torch.Tensor],
    found: Bracket,
    known: tuple[Sign, ...] | None = None,
) -> tuple[Sign, ...]:
    """Signs of gradient masking: those of the network, and for each norm and method that scores are above attacks.

    images  the inputs by id.
    known   the signs of the network, if they are already computed (`network_signs`).
    """
    first = found.rows[0]
    signs = network_signs(classifier, images, p=first.p, radius=first.radius) if known is None else known
    for p in dict.fromkeys(row.p for row in found.rows):
        for part in (found.of_norm(p), *(other.of_norm(p) for other in found.others)):
            signs += tuple(sign_above_attack([row.input for row in part.rows], part.score, part.upper))
    return signs
