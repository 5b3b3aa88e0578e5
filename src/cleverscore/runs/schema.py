"""The SQLite tables of a run, their checksums, and the conversion of rows to measurements and fits and back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cleverscore.estimators.ascent.radial_profile import RadialProfile
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.scores.score import Tail, new_unchecked
from cleverscore.tails import FitOutcome, TailFit

Array = npt.NDArray[np.float64]

SCHEMA_VERSION = 4
# The checksum in `crc` is that of the columns before it. Block maxima have a checksum of their own, so that scores can
# be listed without reading the maxima.
ANY_CLASS = -1  # as a target: any class but the predicted one
EVERYTHING = 2**62  # more blocks than anybody draws
NOTHING: Array = np.empty(0)
TABLES = {
    "meta": "key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER",
    # The measurements of an input for all its targets: of some blocks, or all of them (`whole`). `norm` names a series.
    "parts": (
        "input INTEGER NOT NULL, norm TEXT NOT NULL, first_block INTEGER NOT NULL, whole INTEGER NOT NULL, "
        "metadata TEXT NOT NULL, crc INTEGER, maxima BLOB NOT NULL, blob_crc INTEGER, "
        "PRIMARY KEY (input, norm, first_block)"
    ),
    "attacks": (
        "input INTEGER NOT NULL, target INTEGER NOT NULL, attack TEXT NOT NULL, norm TEXT NOT NULL, "
        "found INTEGER NOT NULL, distortion REAL NOT NULL, l1 REAL NOT NULL, l2 REAL NOT NULL, linf REAL NOT NULL, "
        "seconds REAL NOT NULL, crc INTEGER, PRIMARY KEY (input, target, attack, norm)"
    ),
    "certificates": (
        "input INTEGER NOT NULL, target INTEGER NOT NULL, method TEXT NOT NULL, norm TEXT NOT NULL, "
        "radius REAL NOT NULL, seconds REAL NOT NULL, crc INTEGER, PRIMARY KEY (input, target, method, norm)"
    ),
    "pictures": (
        "input INTEGER PRIMARY KEY, height INTEGER NOT NULL, width INTEGER NOT NULL, channels INTEGER NOT NULL, "
        "pixels BLOB NOT NULL, crc INTEGER"
    ),
    # A small picture of the nearest adversarial input that any attack found; `found` is its class.
    "adversarials": (
        "input INTEGER NOT NULL, norm TEXT NOT NULL, distortion REAL NOT NULL, found INTEGER NOT NULL, "
        "height INTEGER NOT NULL, width INTEGER NOT NULL, channels INTEGER NOT NULL, pixels BLOB NOT NULL, "
        "crc INTEGER, PRIMARY KEY (input, norm)"
    ),
    # The fitted tails of an input's targets, and the key of the fit (`ScoreRule.tail_fit`). Rows may be deleted at any
    # time: what is missing is fitted again.
    "tails": (
        "input INTEGER NOT NULL, norm TEXT NOT NULL, estimator TEXT NOT NULL, fits TEXT NOT NULL, crc INTEGER, "
        "PRIMARY KEY (input, norm)"
    ),
    # One row per shard that was given to a worker; a row without seconds is of a shard that was not finished.
    "shards": "number INTEGER PRIMARY KEY, norm TEXT NOT NULL, content TEXT NOT NULL, seconds REAL, worker TEXT",
}
BOUNDS = {
    "attacks": "input, target, attack, norm, found, distortion, l1, l2, linf, seconds",
    "certificates": "input, target, method, norm, radius, seconds",
}
COLUMNS = {
    "meta": "key, value",
    "parts": "input, norm, first_block, whole, metadata",
    "pictures": "input, height, width, channels, pixels",
    "adversarials": "input, norm, distortion, found, height, width, channels, pixels",
    "tails": "input, norm, estimator, fits",
    **BOUNDS,
}


@dataclass(frozen=True)
class StoredBlocks:
    """Blocks `first`, `first` + 1, ... of an input for all its targets; with `whole`, all measurements of the input.

    norm    the name of the series, as in `Shard.norm`.
    """

    norm: str
    measurements: Measurements
    first: int = 0
    whole: bool = True


OUTCOMES = {outcome.value: outcome for outcome in FitOutcome}


def crc(row: Sequence[Any]) -> int:
    """The checksum of a row."""
    return zlib.crc32(repr(tuple(row)).encode())


def with_crc(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row with its checksum appended; its values must have the types in which SQLite will return them."""
    return (*row, crc(row))


def part_row(part: StoredBlocks) -> tuple[Any, ...]:
    """Blocks as a row of the table `parts`, with both checksums."""
    item = part.measurements
    metadata: dict[str, Any] = {
        "label": item.label,
        "predicted": item.predicted,
        "targets": item.targets,
        "margins": item.margins,
        "block_sizes": item.block_sizes,
        "counts": item.counts,
        "seconds": item.seconds,
        "stopped": item.stopped,
    }
    if item.gradients != item.points:
        metadata["gradients"] = item.gradients
    if item.slopes:
        metadata["slopes"] = item.slopes
    if item.profiles:
        metadata["profiles"] = [
            (p.distance, p.low, p.upper, p.falls.tolist(), p.edges, p.gradients, p.outcome) for p in item.profiles
        ]
    blob = np.concatenate([np.empty(0), *item.maxima]).astype("<f8").tobytes()
    text = json.dumps(metadata)
    return *with_crc((item.input_id, part.norm, part.first, int(part.whole), text)), blob, zlib.crc32(blob)


def measurements_of(input_id: int, text: str, blob: bytes | None) -> Measurements:
    """The measurements of an input, from `metadata` (as `text`) and `maxima` (as `blob`) of a row of the table `parts`.

    Without a blob, the measurements have empty arrays of maxima.
    """
    metadata = json.loads(text)
    counts = tuple(metadata["counts"])
    if blob is None:
        maxima: tuple[Array, ...] = (NOTHING,) * len(counts)
    else:
        maxima = tuple(np.split(_floats(blob), np.cumsum(counts)[:-1]))
    return Measurements(
        input_id=input_id,
        label=metadata["label"],
        predicted=metadata["predicted"],
        targets=tuple(metadata["targets"]),
        margins=tuple(metadata["margins"]),
        maxima=maxima,
        block_sizes=tuple(metadata["block_sizes"]),
        seconds=metadata["seconds"],
        stopped=tuple(metadata["stopped"]),
        profiles=tuple(
            RadialProfile(distance, low, upper, np.array(falls), tuple(edges), gradients, outcome)
            for distance, low, upper, falls, edges, gradients, outcome in metadata.get("profiles", ())
        ),
        slopes=tuple(metadata.get("slopes", ())),
        counts=counts,
        gradients=tuple(metadata.get("gradients", ())),
    )


def merged(parts: Sequence[tuple[bool, Measurements]], wanted: int) -> Measurements:
    """The measurements of one input, from its stored parts: pairs (whole, measurements), in the order of their blocks.

    A whole part is returned as it is. Other parts are concatenated; with fewer than `wanted` blocks they are a valid,
    smaller sample, whose reason for stopping is `StopReason.UNFINISHED`.
    """
    whole, first = parts[0]
    if whole:
        return first
    counts = tuple(map(sum, zip(*(part.counts for _, part in parts), strict=True)))
    reason = StopReason.ALL_BLOCKS if counts[0] >= wanted else StopReason.UNFINISHED
    return replace(
        first,
        maxima=tuple(map(np.concatenate, zip(*(part.maxima for _, part in parts), strict=True))),
        seconds=sum(part.seconds for _, part in parts),
        stopped=(reason,) * len(counts),
        counts=counts,
        gradients=tuple(map(sum, zip(*(part.gradients for _, part in parts), strict=True))),
    )


def _floats(blob: bytes) -> Array:
    return np.frombuffer(blob, "<f8").astype(np.float64)


def numbers_of(tail: Tail) -> list[Any]:
    """A fitted tail as the list of values that is stored; `tail_of` is the inverse."""
    fit = tail.fit
    return [
        fit.location, fit.scale, fit.shape, fit.log_likelihood, fit.sample_max, fit.outcome.value, fit.penalty,
        fit.blocks, tail.end_low, tail.end_high, tail.ks_statistic, tail.ks_pvalue, fit.ad_statistic, fit.ad_pvalue,
        fit.drift,
    ]  # fmt: skip


def tail_of(numbers: Sequence[Any]) -> Tail:
    """A fitted tail from the list of values that `numbers_of` gave."""
    location, scale, shape, likelihood, largest, outcome, penalty, blocks, low, high, ks, ks_p, ad, ad_p, drift = (
        numbers
    )
    fit = new_unchecked(
        TailFit, location=location, scale=scale, shape=shape, log_likelihood=likelihood, sample_max=largest,
        outcome=OUTCOMES[outcome], penalty=penalty, blocks=blocks, ad_statistic=ad, ad_pvalue=ad_p, drift=drift,
    )  # fmt: skip
    return new_unchecked(Tail, fit=fit, end_low=low, end_high=high, ks_statistic=ks, ks_pvalue=ks_p)
