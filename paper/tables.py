"""Tables: cells with the paper's number and ours, written as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paper.networks import NETWORKS
from paper.results import Mean

PUBLISHED = Path(__file__).parent / "published"


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    column      what it is, in the table's own words.
    paper       the published number, None where there is none.
    ours        what was computed here, NaN where nothing could be.
    images      over how many images.
    sizes       blocks, iterations and the like.
    error       standard error of an average over images, NaN where it is none.
    """

    network: str
    column: str
    paper: float | None
    ours: float
    images: str
    sizes: str
    error: float = math.nan

    @classmethod
    def average(cls, network: str, column: str, paper: float | None, mean: Mean, sizes: str) -> Cell:
        """The cell of an average over images."""
        return cls(network, column, paper, mean.value, mean.images, sizes, mean.error)


@dataclass(frozen=True)
class Table:
    """Cells under a title; `digits` after the point, with `unit` behind the number.

    errors      whether standard errors stand beside the numbers.
    head        what the first column is called; where it is no network, `Cell.network` is what it says.
    """

    name: str
    title: str
    note: str
    cells: tuple[Cell, ...]
    digits: int = 3
    unit: str = ""
    errors: bool = False
    head: str = "network"

    @property
    def columns(self) -> list[str]:
        """Columns in the order of their first cells."""
        return list(dict.fromkeys(cell.column for cell in self.cells))

    def text(self, value: float | None) -> str:
        """A number as it is printed; small ones keep two significant digits."""
        if value is None or math.isnan(value):
            return "–"
        if math.isinf(value):
            return "∞"
        if value >= 1000.0 and value == round(value):
            return f"{value:,.0f}{self.unit}"
        digits = self.digits
        if self.digits and 0.0 < abs(value) < 10.0 ** (1 - digits):
            digits = 1 - math.floor(math.log10(abs(value)))
        return f"{value:.{digits}f}{self.unit}"

    def _ours(self, cell: Cell) -> str:
        error = "" if not self.errors or math.isnan(cell.error) else f" ± {cell.error:.2g}"
        return self.text(cell.ours) + error

    def _fewer(self, cell: Cell, usual: str) -> bool:
        """Whether a cell has to say over how many images it is: other than its line, or fewer than planned."""
        if self.errors:
            return "of" in cell.images and (not math.isnan(cell.ours) or "failed" in cell.images)
        return cell.images not in ("–", usual)

    def _lines(self) -> list[list[str]]:
        """A line for each network: ours, in brackets its images where they are others, the paper's in parentheses."""
        found = {(cell.network, cell.column): cell for cell in self.cells}
        lines = []
        for network in dict.fromkeys(cell.network for cell in self.cells):
            line = [NETWORKS[network].title if network in NETWORKS else network]
            usual, _ = Counter(cell.images for cell in self.cells if cell.network == network).most_common(1)[0]
            for column in self.columns:
                cell = found.get((network, column))
                published = "" if cell is None or cell.paper is None else f" ({self.text(cell.paper)})"
                fewer = "" if cell is None or not self._fewer(cell, usual) else f" [{cell.images}]"
                line.append("–" if cell is None else self._ours(cell) + fewer + published)
            lines.append(line)
        return lines

    def markdown(self) -> str:
        """Ours, and the paper's in parentheses."""
        header = [self.head, *self.columns]
        lines = [header, ["---"] + ["--:"] * len(self.columns), *self._lines()]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.title}.** {self.note}\n\n{body}\n"

    def latex(self) -> str:
        """The same as a tabular."""
        lines = [[self.head, *self.columns], *self._lines()]
        rows = [" & ".join(_escaped(cell) for cell in line) + r" \\" for line in lines]
        body = "\n".join([rows[0], r"\hline", *rows[1:]])
        columns = "l" + "r" * len(self.columns)
        inside = f"\\begin{{tabular}}{{{columns}}}\n\\hline\n{body}\n\\hline\n\\end{{tabular}}"
        return f"% {self.title}. {self.note}\n{inside}\n"

    def csv(self) -> str:
        """A line for each cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([self.head, "column", "paper", "ours", "standard_error", "images", "sizes"])
        for cell in self.cells:
            published = "" if cell.paper is None else cell.paper
            error = "" if math.isnan(cell.error) else f"{cell.error:.3g}"
            writer.writerow([cell.network, cell.column, published, f"{cell.ours:.6g}", error, cell.images, cell.sizes])
        return text.getvalue()

    def write(self, folder: Path) -> None:
        """All three forms."""
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in (("md", self.markdown()), ("csv", self.csv()), ("tex", self.latex())):
            (folder / f"{self.name}.{suffix}").write_text(text, encoding="utf-8")


def _escaped(text: str) -> str:
    for sign, instead in (("%", r"\%"), ("_", r"\_"), ("∞", r"$\infty$"), ("–", "--"), ("±", r"$\pm$")):
        text = text.replace(sign, instead)
    return text


@cache
def published(name: str) -> Mapping[tuple[str, str], float]:
    """The paper's numbers of a table, by network and column."""
    with (PUBLISHED / f"{name}.csv").open(newline="") as file:
        return {
            (row["network"], column): float(value)
            for row in csv.DictReader(file)
            for column, value in row.items()
            if column != "network"
        }
