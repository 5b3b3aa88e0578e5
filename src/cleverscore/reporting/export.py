"""Exports a run: CSV, JSON with settings and versions, Parquet, and a model card."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cleverscore.errors import MissingExtraError
from cleverscore.reporting.files import write_file
from cleverscore.reporting.findings import findings
from cleverscore.reporting.model_card import model_card
from cleverscore.reporting.run_summary import run_summary
from cleverscore.runs.results import StudyConfig, stored_bracket, stored_scores
from cleverscore.runs.store import Store
from cleverscore.scores.score import COLUMNS, Score, Scores


def write(store: Store, form: str, out: Path | None) -> None:
    """Write a run to `out`, or to stdout."""
    if form == "card":
        _put(model_card(findings(store, maxima=False)).encode(), out)
        return
    meta = {**store.meta, "summary": run_summary(findings(store, maxima=False))} if form == "json" else {}
    one_method = len(StudyConfig.stored(store).methods) == 1
    scores = stored_scores(store, maxima=False)
    if form in ("csv", "json") and one_method and not (store.above() or store.below()):
        text = _plain_csv(scores) if form == "csv" else _json(meta, map(_known, scores.rows))
        _put(text.encode(), out)
        return
    bracket = stored_bracket(store, scores)
    frame = (scores if bracket is None else bracket).to_frame()
    if form == "csv":
        content = frame.to_csv(index=False).encode()
    elif form == "json":
        # pandas writes NaN as null, which JSON has; Python's own writer would emit NaN, which it has not.
        content = _json(meta, json.loads(frame.to_json(orient="records", double_precision=15))).encode()
    else:
        buffer = io.BytesIO()
        try:
            frame.to_parquet(buffer, index=False)
        except ImportError as error:
            raise MissingExtraError.of("pyarrow", "report", "writing Parquet") from error
        content = buffer.getvalue()
    _put(content, out)


def _plain_csv(scores: Scores) -> str:
    """CSV text as pandas would write it, in a fraction of the time."""
    lines = (",".join(map(_cell, score.cells())) for score in scores.rows)
    return "\n".join([",".join(COLUMNS), *lines, ""])


def _cell(value: Any) -> str:
    """A value as a CSV cell; None and NaN (the only value that differs from itself) become empty cells."""
    if value is None or value != value:
        return ""
    return f'"{value}"' if isinstance(value, str) and "," in value else str(value)


def _json(meta: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str:
    """JSON with settings, versions and summary, then one line per row, because indenting rows is slow."""
    head = json.dumps(_finite(dict(meta)), indent=1).removesuffix("\n}")
    lines = ",\n".join(map(json.JSONEncoder(check_circular=False).encode, rows))
    return f'{head},\n "rows": [\n{lines}\n ]\n}}\n'


def _finite(value: Any) -> Any:
    """The same value with infinite numbers as text, which JSON lacks; the p of linf is one."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _known(score: Score) -> dict[str, Any]:
    """The columns of a row; NaN, which JSON lacks, becomes None."""
    return {name: value if value == value else None for name, value in zip(COLUMNS, score.cells(), strict=True)}


def _put(content: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        write_file(out, content)
