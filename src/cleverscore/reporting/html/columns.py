"""Findings compressed for a page: thinned maxima, quantised scores per target, pictures within a size limit."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cleverscore import tails
from cleverscore.estimators.stop_reason import sentence_of
from cleverscore.reporting.findings import Findings, NormFindings
from cleverscore.reporting.html.adversarial_pictures import adversarial_pictures
from cleverscore.reporting.html.packing import pack, packed_size
from cleverscore.reporting.html.terms import TERMS
from cleverscore.reporting.robust_accuracy import ESTIMATED, RobustAccuracy
from cleverscore.runs.thumbnails import shrunk_picture
from cleverscore.scores.score import Score
from cleverscore.scores.tables import interval_heading

Arrays = dict[str, npt.NDArray[Any]]

LIMIT = 5_600_000  # characters of data: with markup, style and program the page stays below 6 MB
QUANTILE_VALUES = 600_000  # order statistics of block maxima in a page, of all inputs and norms together
LEAST_QUANTILES, MOST_QUANTILES = 24, 512  # per input: 24 suffice to show a law, 512 are more than the usual blocks
TARGET_VALUES = 250_000  # scores of single target classes in a page, of all inputs and norms together
FIRST_PREFIX = 16  # blocks: convergence is drawn at 16, 32, 64, ...
PREFIXES = 10  # at most so many numbers of blocks
MERGES = 5  # at most: end-points of 1, 2, 4, 8 and 16 merged blocks are drawn
CURVE_POINTS = 81  # epsilons at which robust accuracy is drawn
STEPS = 65535  # a fraction from 0 to 1 is stored as a whole number from 0 to this, in 16 bits
RATIO_OCTAVES = 4.0  # convergence is kept as a ratio to the final score, from 1/16 to 16
LEVELS = 255  # the score of a target class is stored as one of so many levels
ELIMINATED = 1 << 30  # marks the number of a target that was eliminated
# Sides in pixels and levels of brightness, tried in turn until all pictures fit.
PICTURE_SIZES = ((64, 256), (48, 256), (32, 256), (32, 32), (24, 32))
SAMPLED_PICTURES = 400  # from the compressed size of so many pictures, that of all is estimated


def packed(found: Findings, header: dict[str, Any], *, limit: int = LIMIT) -> str:
    """All data of a report's script, as one block of text (`pack`).

    header  further entries of the header.
    limit   the largest number of characters; pictures are made smaller or left out to stay below it.
    """
    arrays: Arrays = {
        "ids": np.array(found.ids, np.int32),
        "labels": np.array([-1 if label is None else label for label in found.labels], np.int32),
        "predicted": np.array(found.predicted, np.int32),
    }
    count = sum(len(norm.known) for norm in found.norms)
    quantiles = int(np.clip(QUANTILE_VALUES // max(1, count), LEAST_QUANTILES, MOST_QUANTILES))
    most_targets = max((len(row) for norm in found.norms for row in norm.targets), default=0)
    cells = max(1, len(found.ids) * len(found.norms))
    kept_targets = int(np.clip(TARGET_VALUES // cells, 1, max(1, most_targets)))
    outcomes = list(tails.FitOutcome)
    stopped = sorted({score.stopped for norm in found.norms for score in norm.known})
    attacks = sorted({name for norm in found.norms for name in norm.attacks if name})
    norms = []
    for place, norm in enumerate(found.norms):
        columns, details = _columns(norm, outcomes, stopped, attacks)
        columns["quantiles"] = _quantiles(norm.sampled, quantiles)
        columns["convergence"] = _convergence(norm.sampled)
        columns["stability"] = _stability(norm.sampled)
        columns["targets"], columns["target_scores"], scale = _target_scores(norm, kept_targets)
        arrays |= {f"{place}.{name}": column for name, column in columns.items()}
        norms.append(
            {
                "name": norm.name, "radius": norm.radius, "quantiles": quantiles, "kept_targets": kept_targets,
                "scale": scale, "attacked": bool(np.isfinite(norm.upper).any() or np.isinf(norm.upper).any()),
                "certified": bool((~np.isnan(norm.certified)).any()), "method": method_words(norm.method),
                "other": None if norm.other is None else method_words(norm.other), **details,
                "robust": curve_of(norm.robust_accuracy) if norm.known else None,
            }
        )  # fmt: skip
    header = {
        **header,
        "classes": found.class_names,
        "interval": interval_heading([score for norm in found.norms for score in norm.sampled.known]),
        "terms": TERMS,
        "norms": norms,
        "outcomes": [[outcome.value, outcome.advice, outcome.has_law] for outcome in outcomes],
        "stopped": [sentence_of(reason) for reason in stopped],
        "attacks": attacks,
        "pictures": None,
    }
    text = pack(header, arrays)
    pictures, shape = _pictures(found, limit - len(text))
    if shape is None:
        return text
    whole = pack({**header, "pictures": shape}, {**arrays, **pictures})
    # With fewer levels of brightness, the difference of two pictures would show their rounding.
    exact = shape["levels"] == 256
    attacked = adversarial_pictures(found, shape, limit - len(whole)) if exact and found.adversarials else {}
    return pack({**header, "pictures": shape}, {**arrays, **pictures, **attacked}) if attacked else whole


def method_words(method: str) -> str:
    """The name of a method for readers.

    >>> method_words("paper"), method_words("sharp")
    ('CLEVER', 'sharp')
    """
    return "CLEVER" if method == "paper" else method


def curve_of(curves: RobustAccuracy) -> dict[str, Any]:
    """Robust accuracy against epsilon for a page: a grid of epsilons, and on it the lines with their intervals.

    A line is [kind, label, shares, lower ends, upper ends].
    """
    grid = curves.epsilons(CURVE_POINTS)
    lines = []
    for line in curves.lines:
        columns = (_short(column) for column in curves.curve(line, grid))
        label = f"{line.kind} ({method_words(line.source)})" if line.kind == ESTIMATED else line.label
        lines.append([line.kind, label, *columns])
    return {"epsilon": _short(grid), "lines": lines, "inputs": curves.inputs}


def _columns(
    norm: NormFindings, outcomes: Sequence[tails.FitOutcome], stopped: Sequence[str], attacks: Sequence[str]
) -> tuple[Arrays, dict[str, Any]]:
    sampled = norm.sampled

    def numbers(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        return np.asarray(values, np.float32)

    def of_fit(name: str) -> npt.NDArray[np.float32]:
        fits = (None if score is None else score.fit for score in sampled.per_input)
        return numbers([math.nan if fit is None else float(getattr(fit, name)) for fit in fits])

    def interval(name: str) -> npt.NDArray[np.float32]:
        # The page shows these as an interval at a confidence level, which only fits have; searches have none.
        fitted = [score is not None and score.fit is not None for score in sampled.per_input]
        return numbers(np.where(fitted, sampled.column(name), math.nan))

    flags = norm.flags()
    bits = sum((marked.astype(np.int32) << bit for bit, marked in enumerate(flags.values())), np.int32(0))
    columns: Arrays = {
        "score": numbers(norm.column("value")),
        "low": interval("low"),
        "high": interval("high"),
        "margin": numbers(norm.column("margin")),
        "sampled": numbers(sampled.column("value")),
        "second": numbers(
            [math.nan if h is None else h.value for h in norm.by_method[norm.other]]
            if norm.other is not None
            else np.full(len(norm.per_input), math.nan)
        ),
        "ks": numbers(sampled.column("ks_pvalue")),
        "ad": of_fit("ad_pvalue"),
        "drift": of_fit("drift"),
        "location": numbers(sampled.column("lipschitz")),
        "scale": of_fit("scale"),
        "shape": of_fit("shape"),
        "smallest": numbers(
            [math.nan if h is None or not len(h.maxima) else float(h.maxima.min()) for h in sampled.per_input]
        ),
        "largest": of_fit("sample_max"),
        "target": np.array([-1 if score is None else score.target for score in norm.per_input], np.int32),
        "blocks": np.array([0 if score is None else len(score.maxima) for score in sampled.per_input], np.int32),
        "outcome": np.array([255 if h is None else outcomes.index(h.outcome) for h in norm.per_input], np.uint8),
        "fit": np.array([255 if h is None else outcomes.index(h.outcome) for h in sampled.per_input], np.uint8),
        "stopped": np.array([255 if h is None else stopped.index(h.stopped) for h in norm.per_input], np.uint8),
        "flags": np.asarray(bits, np.int32),
        "upper": numbers(norm.upper),
        "certified": numbers(norm.certified),
        "attack": np.array([255 if name is None else attacks.index(name) for name in norm.attacks], np.uint8),
    }
    profiles = [None if score is None else score.profile for score in norm.per_input]
    details: dict[str, Any] = {
        "flags": list(flags),
        "block_size": max((h.block_size for h in sampled.known), default=0),
    }
    if any(profiles):
        details["profiles"] = [
            None if profile is None else [_short(profile.radii), _short(profile.slopes)] for profile in profiles
        ]
    return columns, details


def _short(values: npt.NDArray[Any]) -> list[float | None]:
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def _quantiles(norm: NormFindings, kept: int) -> npt.NDArray[np.uint16]:
    """Evenly spaced order statistics of each input's block maxima (inputs, kept), for a plot of the fit.

    They are given as fractions of the maxima's range, from 0 to `STEPS`, and each is stored as its difference from the
    one before. A row is filled with zeros behind its last value.
    """
    table = np.zeros((len(norm.per_input), kept), np.uint16)
    for place, score in enumerate(norm.per_input):
        if score is None or not len(score.maxima) or not np.isfinite(score.maxima).all():
            continue
        ordered = np.sort(score.maxima)
        ordered = ordered[np.linspace(0, len(ordered) - 1, min(kept, len(ordered))).round().astype(int)]
        extent = ordered[-1] - ordered[0]
        steps = np.rint(STEPS * (ordered - ordered[0]) / extent) if extent > 0.0 else np.zeros(len(ordered))
        table[place, : len(ordered)] = np.diff(steps, prepend=0.0).astype(np.uint16)
    return table


def prefixes(blocks: int) -> list[int]:
    """Numbers of blocks at which convergence is drawn, without the full number.

    >>> prefixes(100)
    [16, 32, 64]
    """
    return [FIRST_PREFIX << k for k in range(PREFIXES) if FIRST_PREFIX << k < blocks]


def _convergence(norm: NormFindings) -> npt.NDArray[np.uint16]:
    """The scores from the first 16, 32, ... blocks of each input (inputs, PREFIXES).

    Each is stored as the code (`_codes`) of its ratio to the final score; 0: none.
    """
    table = np.zeros((len(norm.per_input), PREFIXES), np.uint16)
    groups: dict[int, list[tuple[int, Score]]] = defaultdict(list)
    for place, score in enumerate(norm.per_input):
        if score is not None and score.value > 0.0 and np.isfinite(score.maxima).all():
            for size in prefixes(len(score.maxima)):
                groups[size].append((place, score))
    for size, members in groups.items():
        penalty = members[0][1].rule.penalty
        ends = tails.law(np.stack([score.maxima[:size] for _, score in members]), penalty).location.tolist()
        scores = np.array([score.with_constant(end) for (_, score), end in zip(members, ends, strict=True)])
        column = prefixes(size + 1).index(size)
        table[[place for place, _ in members], column] = _codes(
            scores / np.array([score.value for _, score in members])
        )
    return table


def _codes(ratios: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Ratios from 1/16 to 16 as whole numbers from 1 to `STEPS`, on a logarithmic scale; NaN becomes 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.log2(ratios)
    codes = 1 + np.rint((STEPS - 1) * np.clip(octaves / (2 * RATIO_OCTAVES) + 0.5, 0.0, 1.0))
    return np.asarray(np.nan_to_num(codes), np.uint16)


def _stability(norm: NormFindings) -> npt.NDArray[np.uint16]:
    """The end-points of 1, 2, 4, ... merged blocks of each input (inputs, MERGES).

    Each is stored as the code (`_codes`) of its ratio to the largest sampled gradient norm; 0: none.
    """
    table = np.zeros((len(norm.per_input), MERGES), np.uint16)
    groups: dict[int, list[tuple[int, Score]]] = defaultdict(list)
    for place, score in enumerate(norm.per_input):
        if score is not None and score.outcome.has_law and len(score.maxima):
            groups[len(score.maxima)].append((place, score))
    for members in groups.values():
        found = tails.stability(np.stack([score.maxima for _, score in members]))
        if len(found.merged) > 1:
            largest = np.array([[score.maxima.max()] for _, score in members])
            places = [place for place, _ in members]
            table[places, : len(found.merged)] = _codes(found.location / largest)
    return table


def _target_scores(
    norm: NormFindings, kept: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], list[float] | None]:
    """The `kept` target classes of each input with the smallest scores, and these scores.

    Returns the classes (inputs, kept), marked with `ELIMINATED` if eliminated; the scores (inputs, kept) as levels from
    1 to 255 on a logarithmic scale, 0: none; and the scores at the first and last level, None if no score is positive.
    """
    shape = (len(norm.per_input), kept)
    classes, levels = np.zeros(shape, np.int32), np.zeros(shape, np.uint8)
    values = [score.value for row in norm.targets for score in row if score.value > 0.0 and math.isfinite(score.value)]
    if not values:
        return classes, levels, None
    low, high = math.log(min(values)), math.log(max(values))
    for place, row in enumerate(norm.targets):
        usable = [score for score in row if math.isfinite(score.value)]
        for i, score in enumerate(sorted(usable, key=lambda score: score.value)[:kept]):
            part = 0.0 if score.value <= 0.0 or high == low else (math.log(score.value) - low) / (high - low)
            classes[place, i] = score.target | (ELIMINATED if score.eliminated else 0)
            levels[place, i] = 1 + round((LEVELS - 1) * part)
    return classes, levels, [math.exp(low), math.exp(high)]


def _pictures(found: Findings, room: int) -> tuple[Arrays, dict[str, Any] | None]:
    """The pictures of the inputs, as large as `room` characters allow; if not all fit, those of the least robust.

    Returns two arrays and the pictures' shape, count and levels of brightness; ({}, None) without pictures. The arrays
    are "picture", (inputs,), the number of each input's picture (-1: none), and "pixels", all pictures one after the
    other.
    """
    have = [place for place, input_id in enumerate(found.ids) if input_id in found.pictures]
    if not have or room <= 0:
        return {}, None
    for side, levels in PICTURE_SIZES:
        few = have[:: max(1, len(have) // SAMPLED_PICTURES)]
        each = packed_size(_pixels(found, few, side, levels)) / len(few)
        if each * len(have) <= room:
            break
    else:
        ranks = np.nanmin([_rank(norm) for norm in found.norms], axis=0)
        have = sorted(sorted(have, key=lambda place: ranks[place])[: int(0.95 * room / each)])
    while have:
        content = _pixels(found, have, side, levels)
        if packed_size(content) <= room:
            break
        have = have[: int(0.9 * len(have))]
    if not have:
        return {}, None
    height, width, channels = shrunk_picture(found.pictures[found.ids[have[0]]], side).shape
    places = np.full(len(found.ids), -1, np.int32)
    places[have] = np.arange(len(have))
    shape = {"height": height, "width": width, "channels": channels, "count": len(have), "levels": levels}
    return {"picture": places, "pixels": np.frombuffer(content, np.uint8)}, shape


def _rank(norm: NormFindings) -> npt.NDArray[np.float64]:
    values = np.nan_to_num(norm.column("value"), nan=np.inf)
    return np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)


def _pixels(found: Findings, places: Sequence[int], side: int, levels: int) -> bytes:
    step = 256 // levels
    pictures = np.stack([shrunk_picture(found.pictures[found.ids[place]], side) for place in places])
    if step > 1:
        pictures = (np.minimum(pictures // step * step + step // 2, 255) * (pictures >= step)).astype(np.uint8)
    return pictures.tobytes()
