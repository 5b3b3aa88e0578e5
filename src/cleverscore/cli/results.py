"""Commands on the results of runs: report, compare, gate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cleverscore.errors import InputError

if TYPE_CHECKING:
    from cleverscore.reporting.findings import Findings

GATE_FAILED = 1


EXCLUDE = click.option(
    "--exclude-misclassified", is_flag=True, help="Leave misclassified inputs out; else each counts as 0."
)


def note(text: str) -> None:
    """Print a line on stderr."""
    click.echo(text, err=True)


@click.command(short_help="Write RUN as one HTML page.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write.  [default: RUN/report.html]"
)
@click.option(
    "--serve", is_flag=True, help="Serve the report on this machine only, updated while the run goes on; Ctrl-C ends."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port for --serve.  [default: a free one]")
def report(run: Path, out: Path | None, serve: bool, port: int) -> None:
    """Write the report of RUN: one self-contained HTML file."""
    from cleverscore.reporting.html.report import write_report
    from cleverscore.runs.store import Store

    if serve:
        from cleverscore.reporting.html.live_server import serve_report

        Store.open(run).close()
        serve_report(run, port=port, announce=lambda address: note(f"live report: {address} (Ctrl-C ends)"))
        return
    target = out or run / "report.html"
    with Store.open(run) as store:
        size = write_report(store, target)
    click.echo(target)
    note(f"written: {target}, {size / 1e6:.1f} MB")


@click.command(short_help="Say whether run B is more robust than run A.")
@click.argument("runs", nargs=-1, required=True, metavar="A B [C...]", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the comparison as a page.")
@click.option(
    "--most",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="How many of the most changed inputs to list.",
)
@click.option(
    "--level",
    type=click.FloatRange(0.5, 0.9999),
    default=0.95,
    show_default=True,
    help="Confidence level of all verdicts together.",
)
@EXCLUDE
def compare(runs: tuple[Path, ...], out: Path | None, most: int, level: float, exclude_misclassified: bool) -> None:
    """Say whether B is more robust than A, on the inputs that both runs have; more runs are each compared with A."""
    from cleverscore.reporting.compare import compare as compare_findings
    from cleverscore.reporting.comparison_text import comparison_text
    from cleverscore.reporting.html.comparison_page import comparison_page
    from cleverscore.reporting.html.report import write_page

    if len(runs) < 2:
        raise InputError("compare needs at least two runs: cleverscore compare A B")
    named = [(str(run), _findings(run)) for run in runs]
    first = named[0][1]
    pairings = [
        compare_findings(first, other, level=level, tests=len(named) - 1, exclude_misclassified=exclude_misclassified)
        for _, other in named[1:]
    ]
    click.echo(comparison_text(named, pairings, most))
    if out is not None:
        write_page(comparison_page(named, pairings, most=max(most, 1)), out)
        note(f"written: {out}")


@click.command(short_help="Check RUN against thresholds; exit code 0 or 1.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--min-median", multiple=True, metavar="[NORM=]X", help="Fail if the median score is below X; repeatable."
)
@click.option("--min-score", multiple=True, metavar="[NORM=]X", help="Fail if any score is below X; repeatable.")
@click.option(
    "--max-violations",
    multiple=True,
    metavar="[NORM=]SHARE",
    help="Fail if a larger share of attacked inputs has a score above its attack; repeatable.",
)
@click.option(
    "--min-robust-accuracy",
    multiple=True,
    metavar="[NORM=]SHARE@EPS",
    help="Fail if robust accuracy at epsilon is below the share, as in 0.8@0.03 or inf=80%@8/255; repeatable.",
)
@click.option("--min-accuracy", metavar="SHARE", help="Fail if a smaller share of inputs is classified correctly.")
@click.option("--baseline", type=click.Path(path_type=Path), help="Fail if this other run is more robust than RUN.")
@click.option(
    "--max-drop",
    metavar="[median:]SHARE",
    help="With --baseline: fail only if the mean score of RUN, or its mean attack distance, is more than this share "
    "below that of the baseline, as in 10%; median:10% compares medians.",
)
@click.option("--strict", is_flag=True, help="Make UNDECIDED checks fail.")
@EXCLUDE
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the checks as JUnit XML.")
def gate(
    run: Path,
    min_median: tuple[str, ...],
    min_score: tuple[str, ...],
    max_violations: tuple[str, ...],
    min_robust_accuracy: tuple[str, ...],
    min_accuracy: str | None,
    baseline: Path | None,
    max_drop: str | None,
    strict: bool,
    exclude_misclassified: bool,
    junit: Path | None,
) -> None:
    """Check RUN against thresholds, for a release pipeline: exit code 0 if none fails, 1 if one does, 2 for bad input.

    A threshold is for every norm (0.3) or for one (inf=0.02). The result of a check is PASS, FAIL, or UNDECIDED if the
    inputs do not decide it; --strict makes UNDECIDED fail. Misclassified inputs count as 0. In a run of several methods
    the scores of sharp are judged if it is one of them, else those of the first method; no option changes that.
    """
    from cleverscore.reporting.gate import (
        Result,
        Thresholds,
        checks,
        outcome,
        parse_drop,
        parse_robust,
        parse_share,
        parse_thresholds,
        summary_line,
    )
    from cleverscore.reporting.junit import write_junit

    thresholds = Thresholds(
        parse_thresholds(min_median, "--min-median"),
        parse_thresholds(min_score, "--min-score"),
        parse_thresholds(max_violations, "--max-violations"),
        parse_robust(min_robust_accuracy, "--min-robust-accuracy"),
        None if min_accuracy is None else parse_share(min_accuracy, "--min-accuracy"),
        None if max_drop is None else parse_drop(max_drop if ":" in max_drop else f"mean:{max_drop}", "--max-drop"),
    )
    if not thresholds and baseline is None:
        raise InputError(
            "nothing to check: give --min-median, --min-score, --min-accuracy, --min-robust-accuracy, --max-violations "
            "or --baseline"
        )
    made = checks(
        _findings(run), thresholds, None if baseline is None else _findings(baseline),
        exclude_misclassified=exclude_misclassified,
    )  # fmt: skip
    if junit is not None:
        write_junit(made, str(run), junit, strict=strict)
    for check in made:
        note(f"{check.result.value}: {check.name}: {check.text}")
    click.echo(summary_line(made, str(run), strict=strict))
    if outcome(made, strict=strict) is Result.FAIL:
        sys.exit(GATE_FAILED)


def _findings(run: Path) -> Findings:
    from cleverscore.reporting.findings import findings
    from cleverscore.runs.store import Store

    with Store.open(run) as store:
        if not store.done():
            raise InputError(f"{run} holds no finished input yet")
        return findings(store)
