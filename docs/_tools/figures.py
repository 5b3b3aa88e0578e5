"""Figures of docs/peers.md and docs/statistics.md, from the tables of benchmarks; `make reference` puts them in.

A region of the page stands between `<!-- figures: NAME -->` and `<!-- end -->`, and NAME is a function below.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parents[1]
REGION = re.compile(r"(<!-- figures: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.S)

Rows = list[dict[str, str]]


def tables(page: str) -> list[Rows]:
    r"""All tables of a Markdown text, each as rows by column name.

    >>> tables("| a | b |\n|---|---|\n| 1 | 2 |\n")
    [[{'a': '1', 'b': '2'}]]
    """
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", page, re.M):
        head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        found.append([dict(zip(head, line, strict=True)) for line in lines])
    return found


def table_with(benchmark: str, *columns: str) -> Rows:
    """The first table of a benchmark's page that has these columns."""
    text = (DOCS / f"_{benchmark}_benchmark.md").read_text()
    return next(rows for rows in tables(text) if all(name in rows[0] for name in columns))


def speed() -> str:
    """Time per point of ART over ours, in the l2 norm."""
    rows = [row for row in table_with("speed", "ART / ours", "norm") if row["norm"] == "2"]
    lines = [f"| {row['network']} | {row['targets']} | {row['ART / ours']} |" for row in rows]
    return "\n".join(["| network | targets | ART / ours |", "|---|---|---|", *lines]) + "\n"


def answer() -> str:
    """Seconds to an untargeted answer: ours by search and by sampling, and ART's."""
    rows = table_with("answer", "method", "times faster than ART")
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        found.setdefault(row["network"], {})[row["method"].split(",")[0]] = row
    lines = [
        f"| {network} | {by['sharp']['seconds']} | {by['paper']['seconds']} | {by['ART']['seconds']} "
        f"| {float(by['sharp']['times faster than ART']):.0f} |"
        for network, by in found.items()
    ]
    head = "| network | sharp | paper, 500 x 128 | ART, 500 x 1024 | ART / sharp |"
    return "\n".join([head, "|---|---|---|---|---|", *lines]) + "\n"


def large_answers() -> str:
    """Seconds of sharp scores of large networks."""
    texts = [
        f"{float(row['seconds']):.0f} s per picture on {row['network']} ({row['inputs']} "
        f"picture{'s' if row['inputs'] != '1' else ''}, score / quick attack {row['median']})"
        for row in table_with("answer", "smallest ratio")
    ]
    return f"Against the runner-up class, `sharp` took {' and '.join(texts)}.\n"


def fits() -> str:
    """How long a tail fit takes."""
    rows = table_with("tails", "fit us", "times art", "times released")

    def span(name: str) -> str:
        values = [float(row[name]) for row in rows]
        return f"{min(values):.0f} to {max(values):.0f}"

    return (
        f"The tail fit of 500 maxima takes {span('fit us')} microseconds here when many are fitted at once; scipy as "
        f"ART calls it\ntakes {span('times art')} times as long, the authors' procedure {span('times released')} times "
        "([tables](_tails_benchmark.md)).\n"
    )


def accuracy() -> str:
    """Error of the fit on samples of known laws."""
    rows = [row for row in table_with("tails", "penalty 0.01", "art", "sample max") if row["blocks"] == "500"]
    names = ("penalty 0.01", "art", "sample max")
    lines = [f"| {row['shape']} | {' | '.join(f'{float(row[name]):.3g}' for name in names)} |" for row in rows]
    head = "| shape | ours (penalty 0.01) | ART's call of scipy | sample max |"
    return "\n".join([head, "|---|---|---|---|", *lines]) + "\n"


def released() -> str:
    """The penalised fit beside that of the authors' program."""
    row = table_with("tails", "same optimum", "largest location difference")[0]
    return (
        f"On {row['samples']} samples the two end-points differ by at most "
        f"{float(row['largest location difference']):.1g} of their size ([tables](_tails_benchmark.md)).\n"
    )


def balls() -> str:
    """Where an interval that takes the law for granted fails, and what is said instead."""
    rows = table_with("tails", "dimension", "warned", "posterior")
    names = ("dimension", "blocks", "posterior", "warned", "coverage without warning", "no upper limit")
    head = (
        "dimension",
        "blocks",
        "law taken for granted",
        "warned",
        "covered without warning",
        "of these, no upper limit",
    )
    lines = [f"| {' | '.join(f'{float(row[name]):.3g}' for name in names)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---|---|---|---|---|---|", *lines]) + "\n"


def exact_laws() -> str:
    """The same on samples of exact laws."""
    rows = [row for row in table_with("tails", "shape", "warned", "posterior") if row["blocks"] in ("100", "500")]
    names = ("shape", "blocks", "posterior", "warned", "coverage without warning", "no upper limit")
    head = ("shape", "blocks", "law taken for granted", "warned", "covered without warning", "of these, no upper limit")
    lines = [f"| {' | '.join(f'{float(row[name]):.3g}' for name in names)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---|---|---|---|---|---|", *lines]) + "\n"


def wrong_laws() -> str:
    """What is said of maxima whose law has no end-point, or is none."""
    rows = [row for row in table_with("tails", "law", "named") if row["blocks"] == "500"]
    names = ("no endpoint", "poor", "drifting", "named")
    lines = [f"| {row['law']} | {' | '.join(f'{float(row[name]):.3g}' for name in names)} |" for row in rows]
    head = "| maxima, 500 blocks | `no_endpoint` | `poor` | `drifting` | any of them |"
    return "\n".join([head, "|---|---|---|---|---|", *lines]) + "\n"


MAKERS: dict[str, Callable[[], str]] = {
    make.__name__: make
    for make in (speed, answer, large_answers, fits, accuracy, released, balls, exact_laws, wrong_laws)
}


def filled(page: str) -> str:
    """The page with all its figures as the benchmarks have them now."""
    return REGION.sub(lambda region: region[1] + MAKERS[region["name"]]() + region[3], page)


def peers_page() -> str:
    """docs/peers.md as it should be."""
    return filled((DOCS / "peers.md").read_text())


def statistics_page() -> str:
    """docs/statistics.md as it should be."""
    return filled((DOCS / "statistics.md").read_text())
