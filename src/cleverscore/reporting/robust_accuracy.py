"""Robust accuracy: the share of inputs that keep their correct class up to epsilon, by proof, score and attack."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from cleverscore.errors import InputError, SettingError
from cleverscore.norms import norm_name, numbers_by_norm
from cleverscore.scores.score import Score, Scores
from cleverscore.scores.text_table import table

Array = npt.NDArray[np.float64]

CERTIFIED, ESTIMATED, ATTACKED = KINDS = ("certified", "estimated", "attacked")
ATTACKS, CERTIFICATES = "attacks", "certificates"
LEVEL = 0.95
CURVE_POINTS = 121  # number of epsilons at which a curve is drawn


class Rows(Protocol):
    """Scores with certified radii and attacks: a `Bracket`, or the findings of one norm of a run."""

    @property
    def rows(self) -> Sequence[Score]:
        """The scores."""
        ...

    @property
    def lower(self) -> Array:
        """The certified radius for each score, NaN without a certificate."""
        ...

    @property
    def upper(self) -> Array:
        """The best attack's distortion for each score: infinite where all attacks failed, NaN where none was run."""
        ...


@dataclass(frozen=True)
class Share:
    """A share of inputs with its exact binomial interval; NaN if unknown."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, hits: int, count: int, level: float = LEVEL) -> Share:
        """The share hits / count with its interval at the confidence level `level` (Clopper & Pearson 1934).

        >>> str(Share.of(9, 10))
        '90% (55-100)'
        """
        if count == 0:
            return NOT_KNOWN
        tail = (1.0 - level) / 2.0
        low = 0.0 if hits == 0 else float(stats.beta.ppf(tail, hits, count - hits + 1))
        high = 1.0 if hits == count else float(stats.beta.ppf(1.0 - tail, hits + 1, count - hits))
        return cls(hits / count, low, high)

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "-"
        return f"{self.value:.0%} ({100.0 * self.low:.0f}-{100.0 * self.high:.0f})"


NOT_KNOWN = Share(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Line:
    """One of the three lines of robust accuracy against epsilon.

    kind        "certified", "estimated" or "attacked".
    source      where the distances come from: "certificates", "attacks", the method of the scores, or, without
                attacks, a text that names the method whose search met crossings (points of another class).
    distances   (inputs,), the largest epsilon up to which the class of each input is kept, by this line. NaN (no
                epsilon) if the input is misclassified, 0 without a score or certificate, infinite if no attack or
                search found another class.
    limit       the epsilon beyond which nothing is known: the radius if a score, a certificate or a search of the line
                ends there, else infinite.
    """

    kind: str
    source: str
    distances: Array
    limit: float

    @property
    def label(self) -> str:
        """The kind, with the source if it is neither "attacks" nor "certificates"."""
        return self.kind if self.source in (ATTACKS, CERTIFICATES) else f"{self.kind} ({self.source})"

    def hits(self, epsilon: float) -> int:
        """The number of inputs that keep their class up to `epsilon`; an attack at exactly this distance changes it."""
        kept = self.distances > epsilon if self.kind == ATTACKED else self.distances >= epsilon
        return int(kept.sum())

    def at(self, epsilon: float) -> Share:
        """The share of inputs that keep their class up to `epsilon`; NaN beyond the limit."""
        return NOT_KNOWN if epsilon > self.limit else Share.of(self.hits(epsilon), len(self.distances))


@dataclass(frozen=True)
class RobustAccuracy:
    """Robust accuracy of one model in one norm: certified <= estimated <= attacked, if scores agree with both bounds.

    A misclassified input is not robust at any epsilon, so all lines begin at the accuracy. Without labels, the
    predicted class is taken for the correct one. If a score or a certificate is capped at the radius, its line ends at
    the radius.

    p, radius   the norm, and the radius of the scores.
    inputs      number of inputs.
    accuracy    share of inputs that are classified correctly; NaN without labels.
    lines       the available lines, in the order certified, estimated, attacked.
    """

    p: float
    radius: float
    inputs: int
    accuracy: Share
    lines: tuple[Line, ...]

    def line(self, kind: str) -> Line | None:
        """The line of this kind, None if it is not available."""
        return next((line for line in self.lines if line.kind == kind), None)

    def at(self, epsilon: float) -> dict[str, Share]:
        """Robust accuracy at one epsilon, by kind of line."""
        return {line.kind: line.at(epsilon) for line in self.lines}

    def epsilons(self, points: int = CURVE_POINTS) -> Array:
        """A grid of epsilons for drawing, (points,): from 0 to a little beyond the largest known distance."""
        known = np.concatenate([line.distances for line in self.lines] or [np.zeros(1)])
        known = known[np.isfinite(known)]
        return np.linspace(0.0, max(1.04 * float(known.max(initial=0.0)), 1e-12), points)

    def curve(self, line: Line, epsilons: Array) -> tuple[Array, Array, Array]:
        """The shares of a line on a grid of epsilons, and both ends of their intervals; NaN beyond the limit."""
        shares = [line.at(float(epsilon)) for epsilon in epsilons]
        return tuple(np.array([getattr(share, name) for share in shares]) for name in ("value", "low", "high"))  # type: ignore[return-value]

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for JSON: accuracy, and the lines on a grid of epsilons with their intervals."""
        grid = self.epsilons(41)
        lines = {}
        for line in self.lines:
            columns = zip(("value", "low", "high"), self.curve(line, grid), strict=True)
            lines[line.kind] = {
                "source": line.source,
                "limit": line.limit if math.isfinite(line.limit) else None,
                **{name: [_known(x) for x in column] for name, column in columns},
            }
        return {
            "norm": norm_name(self.p),
            "radius": self.radius,
            "inputs": self.inputs,
            "accuracy": _known(self.accuracy.value),
            "misclassified": "count as 0",
            "epsilon": [float(f"{x:.6g}") for x in grid],
            "lines": lines,
        }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 6)


def robust_accuracy(found: Rows | Scores, *, p: float | None = None, method: str | None = None) -> RobustAccuracy:
    """Robust accuracy against epsilon in one norm: by certificates, by scores and by attacks, as far as available.

    found   a bracket, scores, or the findings of one norm of a run. Scores give the estimated line; those of a search,
            such as sharp, also give the attacked line, from the points of another class that the search met.
    p       the norm; needed if `found` has several.
    method  the method of the estimated line; default: see `main_method`.

    Raises an InputError if there is no score in this norm or by this method.

    >>> import torch, cleverscore as cs
    >>> classifier = cs.Classifier(torch.nn.Linear(4, 3), bounds=(-9.0, 9.0))
    >>> images = torch.rand(8, 4)
    >>> found = robust_accuracy(cs.clever(classifier, images, method="sharp"))
    >>> found.at(0.0)["estimated"].value
    1.0
    """
    rows, lower, upper = _columns(found)
    norms = {row.p for row in rows}
    if p is None and len(norms) > 1:
        names = ", ".join(norm_name(each) for each in sorted(norms))
        raise InputError(f"the scores are in several norms ({names}), which have different units: name one with p=")
    chosen = next(iter(norms), math.nan) if p is None else p
    if not rows or chosen not in norms:
        raise InputError("there is no score in this norm, so there is no robust accuracy")
    methods = list(dict.fromkeys(row.method for row in rows if row.p == chosen))
    if method is not None and method not in methods:
        raise InputError(f"there is no score of the method {method}; there are {', '.join(methods)}")
    used = method or main_method([row for row in rows if row.p == chosen])
    places: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        if row.p == chosen and row.method == used:
            places.setdefault(row.input, []).append(place)
    return _lines(chosen, used, [[rows[k] for k in of] for of in places.values()],
                  [lower[of] for of in places.values()], [upper[of] for of in places.values()])  # fmt: skip


def main_method(scores: Sequence[Score]) -> str:
    """The first method that searches (such as sharp), since its scores are nearer to true distances; else the first."""
    searched = (score.method for score in scores if score.profile is not None)
    return next(searched, scores[0].method)


def _columns(found: Rows | Scores) -> tuple[list[Score], Array, Array]:
    if isinstance(found, Scores):
        nothing = np.full(len(found), math.nan)
        return list(found), nothing, nothing.copy()
    parts = [found, *getattr(found, "others", ())]  # a bracket of several methods holds a bracket for each
    lower, upper = (np.concatenate([np.asarray(getattr(part, name), np.float64) for part in parts])
                    for name in ("lower", "upper"))  # fmt: skip
    return [row for part in parts for row in part.rows], lower, upper


def _lines(
    p: float, method: str, rows: Sequence[Sequence[Score]], lower: Sequence[Array], upper: Sequence[Array]
) -> RobustAccuracy:
    """Robust accuracy from the rows of each input, with certified radii `lower` and attacks' distortions `upper`.

    An input has a row per target; the smallest distance over its rows is used.
    """
    radius = rows[0][0].radius
    right = np.array([of[0].correct is not False for of in rows])
    labelled = [of[0].correct for of in rows if of[0].correct is not None]
    accuracy = Share.of(sum(labelled), len(labelled)) if labelled else NOT_KNOWN

    def counted(values: Sequence[float], unknown: float) -> Array:
        return np.where(right, np.nan_to_num(np.array(values), nan=unknown, posinf=math.inf), math.nan)

    def limit(values: Array) -> float:
        return radius if (values >= radius).any() else math.inf

    lines = []
    certified = np.array([float(of.min()) for of in lower])
    if not np.isnan(certified).all():
        distances = counted(certified.tolist(), 0.0)
        lines.append(Line(CERTIFIED, CERTIFICATES, distances, limit(distances)))
    values = counted(
        [math.nan if any(math.isnan(s.value) for s in of) else min(s.value for s in of) for of in rows], 0.0
    )
    capped = any(score.capped for of in rows for score in of)
    lines.append(Line(ESTIMATED, method, values, radius if capped else math.inf))
    attacked = np.array([float(np.nanmin(of)) if not np.isnan(of).all() else math.nan for of in upper])
    if not np.isnan(attacked).all():
        lines.append(Line(ATTACKED, ATTACKS, counted(attacked.tolist(), math.inf), math.inf))
    else:
        met = np.array([min(score.upper for score in of) for of in rows])
        if not np.isnan(met).all():
            distances = counted(met.tolist(), math.inf)
            # The search is within the ball only, so beyond its radius nothing is known.
            lines.append(Line(ATTACKED, f"crossings that {method} met", distances, limit(distances)))
    return RobustAccuracy(p, radius, len(rows), accuracy, tuple(lines))


def parse_epsilons(values: Sequence[str]) -> dict[str, list[float]]:
    """Parse epsilons of the command line: 0.03 or 8/255 for every norm (""), inf=8/255 for one.

    >>> parse_epsilons(["0.5", "inf=8/255"])
    {'': [0.5], 'inf': [0.03137254901960784]}
    """
    found: dict[str, list[float]] = {}
    for value in values:
        for norm, epsilon in numbers_by_norm([value], "--at", examples=("0.03", "inf=8/255")).items():
            if not (math.isfinite(epsilon) and epsilon >= 0.0):
                raise SettingError(f"--at {value!r}: epsilon must be a number, at least 0")
            found.setdefault(norm, []).append(epsilon)
    return found


def check_norms(names: Iterable[str], known: Collection[str]) -> None:
    """Raise an error for norms that a run does not have; "" stands for all its norms."""
    for norm in names:
        if norm and norm not in known:
            raise InputError(f"the run has no scores in the norm {norm}; it has {', '.join(sorted(known))}")


def robust_accuracy_table(curves: Sequence[RobustAccuracy], epsilons: dict[str, list[float]]) -> str:
    """A table of robust accuracy as text, one line per norm and epsilon; headers name the methods used.

    curves      robust accuracy in each norm.
    epsilons    by norm, "" for all norms, as `parse_epsilons` gives them.
    """
    check_norms(epsilons, {norm_name(curve.p) for curve in curves})
    kinds = [kind for kind in KINDS if any(curve.line(kind) is not None for curve in curves)]
    labels = {
        kind: list(dict.fromkeys(line.label for curve in curves if (line := curve.line(kind)) is not None))
        for kind in kinds
    }
    rows, beyond = [], False
    for curve in curves:
        for epsilon in [*epsilons.get("", []), *epsilons.get(norm_name(curve.p), [])]:
            shares = curve.at(epsilon)
            beyond = beyond or any(math.isnan(share.value) for share in shares.values())
            rows.append([norm_name(curve.p), f"{epsilon:.4g}", *(str(shares.get(kind, NOT_KNOWN)) for kind in kinds)])
    headers = [", ".join(labels[kind]) for kind in kinds]
    inputs = max((curve.inputs for curve in curves), default=0)
    lines = [
        f"robust accuracy over {inputs} inputs, 95% interval over inputs; misclassified inputs count as 0",
        table(["norm", "epsilon", *headers], rows),
    ]
    if beyond:
        radii = ", ".join(f"{curve.radius:g} (l{norm_name(curve.p)})" for curve in curves)
        lines.append(f"- : beyond the radius {radii}, where scores and certificates end; score with a larger --radius")
    return "\n".join(lines)
