"""A run's rows for other programs: CSV, JSON with settings and versions, Parquet."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cleverscore.errors import LoadError, MissingExtraError
from cleverscore.run.store import Store
from cleverscore.run.study import stored_scores
from cleverscore.score import Scores

if TYPE_CHECKING:
    import pandas


def stored_table(store: Store) -> tuple[Scores, pandas.DataFrame]:
    """The scores of a run, and all its rows with every column that is known."""
    scores = stored_scores(store)
    return scores, scores.to_frame()


def write(store: Store, form: str, out: Path | None) -> None:
    """Write all rows to `out`, or to stdout."""
    _, frame = stored_table(store)
    if form == "csv":
        content = frame.to_csv(index=False).encode()
    elif form == "json":
        # pandas writes NaN as null, which JSON has; Python's own writer would emit NaN, which it has not.
        rows = json.loads(frame.to_json(orient="records", double_precision=15))
        content = (json.dumps({**store.meta, "rows": rows}, indent=1) + "\n").encode()
    else:
        buffer = io.BytesIO()
        try:
            frame.to_parquet(buffer, index=False)
        except ImportError as error:
            raise MissingExtraError.of("pyarrow", "report", "writing Parquet") from error
        content = buffer.getvalue()
    if out is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        out.write_bytes(content)
    except OSError as error:
        raise LoadError(f"{out} cannot be written: {error.strerror}") from error
