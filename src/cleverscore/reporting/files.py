"""Files that reports, exports and baselines are written to."""

from __future__ import annotations

from pathlib import Path

from cleverscore.errors import LoadError


def write_file(out: Path, content: bytes) -> None:
    """Write a file, and make its folder if there is none. Raises a LoadError if it cannot be written."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(content)
    except OSError as error:
        raise LoadError(f"{out} cannot be written: {error.strerror}") from error
