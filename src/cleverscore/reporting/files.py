"""Files that reports, exports and baselines are written to."""

from __future__ import annotations

from pathlib import Path

from cleverscore.errors import LoadError


def write_file(out: Path, content: bytes) -> None:
    """Write a file, in a folder that is made where there is none; a LoadError where that cannot be."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(content)
    except OSError as error:
        raise LoadError(f"{out} cannot be written: {error.strerror}") from error
