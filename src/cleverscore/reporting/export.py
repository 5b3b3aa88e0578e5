"""A run for other programs: CSV, JSON with settings and versions, Parquet; and a section for a model card."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cleverscore.errors import LoadError, MissingExtraError
from cleverscore.norms import norm_name
from cleverscore.reporting.stored import stored_table
from cleverscore.runs.results import StudyConfig, stored_scores
from cleverscore.runs.store import Store
from cleverscore.scores.score import COLUMNS, Score, Scores


def write(store: Store, form: str, out: Path | None) -> None:
    """Write a run to `out`, or to stdout."""
    if form == "card":
        from cleverscore.reporting.findings import findings
        from cleverscore.reporting.model_card import model_card

        _put(model_card(findings(store)).encode(), out)
        return
    one_method = len(StudyConfig.stored(store).methods) == 1
    if form in ("csv", "json") and one_method and not (store.above() or store.below()):
        scores = stored_scores(store, maxima=False)
        text = _plain_csv(scores) if form == "csv" else _json(store.meta, map(_known, scores.rows))
        _put(text.encode(), out)
        return
    _, frame = stored_table(store, maxima=False)
    if form == "csv":
        content = frame.to_csv(index=False).encode()
    elif form == "json":
        # pandas writes NaN as null, which JSON has; Python's own writer would emit NaN, which it has not.
        content = _json(store.meta, json.loads(frame.to_json(orient="records", double_precision=15))).encode()
    else:
        buffer = io.BytesIO()
        try:
            frame.to_parquet(buffer, index=False)
        except ImportError as error:
            raise MissingExtraError.of("pyarrow", "report", "writing Parquet") from error
        content = buffer.getvalue()
    _put(content, out)


def _plain_csv(scores: Scores) -> str:
    """What pandas would write, in a tenth of the time: most of what is left is the digits of a million numbers."""
    names = {p: norm_name(p) for p in {score.p for score in scores.rows}}
    lines = [",".join(COLUMNS)]
    for s in scores.rows:
        fit, lipschitz = s.fit, repr(s.lipschitz)
        location = lipschitz if fit.location == s.lipschitz else repr(fit.location)
        label, correct = ("", "") if s.label is None else (s.label, s.correct)
        lines.append(
            f"{s.input},{label},{s.predicted},{correct},{s.target},{s.target_kind},{s.method},{names[s.p]},{s.radius!r},"
            f"{s.margin!r},{s.value!r},{s.low!r},{s.high!r},{s.upper!r},{s.capped},{lipschitz},{location},{fit.scale!r},"
            f"{fit.shape!r},{fit.sample_max!r},{fit.penalty!r},{fit.drift!r},{s.ks_statistic!r},{s.ks_pvalue!r},"
            f"{fit.ad_statistic!r},{fit.ad_pvalue!r},{fit.outcome.value},{fit.blocks},{s.block_size},{s.gradients},{s.seconds!r},{_quoted(s.stopped)}"
        )
    # A number that there is not is an empty cell; neighbours share a comma, so one pass sees only every second.
    return "\n".join([*lines, ""]).replace(",nan,", ",,").replace(",nan,", ",,")


def _json(meta: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str:
    """Settings and versions to be read, then a line for each row; Python's writer is slow where it has to indent."""
    head = json.dumps(_finite(dict(meta)), indent=1).removesuffix("\n}")
    lines = ",\n".join(map(json.JSONEncoder(check_circular=False).encode, rows))
    return f'{head},\n "rows": [\n{lines}\n ]\n}}\n'


def _finite(value: Any) -> Any:
    """The same with words for numbers that JSON has not: the norm of linf is infinite."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _known(score: Score) -> dict[str, Any]:
    """The columns of a row, None for a number that there is not: NaN alone differs from itself."""
    return {name: value if value == value else None for name, value in zip(COLUMNS, score.cells(), strict=True)}


def _quoted(text: str) -> str:
    return f'"{text}"' if "," in text else text


def _put(content: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        out.write_bytes(content)
    except OSError as error:
        raise LoadError(f"{out} cannot be written: {error.strerror}") from error
