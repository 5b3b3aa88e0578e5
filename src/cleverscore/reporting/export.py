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
    """Write a run as csv, json, parquet or card (`form`) to the file `out`; to stdout if it is None."""
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
        # pandas writes NaN as null. Python's json module would write NaN, which is not valid JSON.
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
    """The rows of scores as CSV: the text that pandas would write, in a fraction of the time."""
    lines = (",".join(map(_cell, score.cells())) for score in scores.rows)
    return "\n".join([",".join(COLUMNS), *lines, ""])


def _cell(value: Any) -> str:
    """A value as a CSV cell; None and NaN (the only value that differs from itself) become empty cells."""
    if value is None or value != value:
        return ""
    return f'"{value}"' if isinstance(value, str) and "," in value else str(value)


def _json(meta: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str:
    """JSON with the entries of `meta`, indented, then "rows" with one line per row, because indenting rows is slow."""
    head = json.dumps(_finite(dict(meta)), indent=1).removesuffix("\n}")
    lines = ",\n".join(map(json.JSONEncoder(check_circular=False).encode, rows))
    return f'{head},\n "rows": [\n{lines}\n ]\n}}\n'


def _finite(value: Any) -> Any:
    """The value with infinite numbers (such as the p of linf) and NaN as text, because JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _known(score: Score) -> dict[str, Any]:
    """The columns of a score's row by name; NaN becomes None, because JSON has no NaN."""
    return {name: value if value == value else None for name, value in zip(COLUMNS, score.cells(), strict=True)}


def _put(content: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        write_file(out, content)
