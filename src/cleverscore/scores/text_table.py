"""Plain text tables."""

from __future__ import annotations

import math
from collections.abc import Sequence


def number(value: float | None, digits: int = 4) -> str:
    """A number for a table cell: four significant digits, a dash for None and NaN.

    >>> number(0.123456), number(float("nan")), number(5.0), number(None)
    ('0.1235', '-', '5.000', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if -4 <= magnitude < 6:
        return f"{value:.{max(0, digits - 1 - magnitude)}f}"
    return f"{value:.{digits - 1}e}"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text: columns aligned to the right, headers underlined; one sequence of cells per row."""
    widths = [
        max(len(headers[i]), *(len(row[i]) for row in rows)) if rows else len(headers[i]) for i in range(len(headers))
    ]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, rows)])
