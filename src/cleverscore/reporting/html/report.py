"""The report: the results of a run as one HTML file that needs no internet, no model and no data."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import cleverscore
from cleverscore.errors import StoreError
from cleverscore.inputs.targets import takes_smallest
from cleverscore.reporting.files import write_file
from cleverscore.reporting.findings import Findings, NormFindings, findings
from cleverscore.reporting.html.columns import method_words, packed
from cleverscore.reporting.html.explanations import Remark, headline, remarks
from cleverscore.reporting.html.page import escape, fill
from cleverscore.reporting.html.terms import term
from cleverscore.runs.results import StudyConfig, describe_run
from cleverscore.runs.store import Store
from cleverscore.scores.tables import elimination_summary
from cleverscore.scores.text_table import number
from cleverscore.tails.paired_tests import Interval

PROGRAMS = ("common.js", "charts.js", "report.js")

HOW_TO_READ = (
    (
        "Score",
        "An estimate of the distance to the nearest input that the model classifies otherwise, in the units of the "
        "inputs and in the norm that is named. Larger is more robust. Scores in different norms are different "
        "questions and cannot be compared with each other.",
    ),
    (
        "Nearest class",
        "The class that the estimate says can be reached with the smallest change. The score is the smallest over all "
        "classes that were looked at.",
    ),
    (
        "Certificate, score, attack",
        "A certificate is a proof: no smaller change alters the class. An attack is a witness: a change of that size "
        "does. The score lies between the two where all is well. Where it does not, believe the proof and the witness.",
    ),
    (
        "What a score does not promise",
        "It is an estimate of a lower bound, not a proof. It cannot see through gradients that are masked: a model "
        "whose gradients vanish or lie gets a high score and is not robust. It says nothing "
        "beyond the radius of the ball.",
    ),
)


def report_page(store: Store, *, live: str | None = None) -> str:
    """The HTML of a run's report.

    live    for a page that is served while the run goes on: the state that it shows (`LiveReport.state`), by which the
            page detects new results. None for a page in a file.
    """
    found = findings(store)
    config = found.config
    title = f"{config.model}: robustness"
    return fill(
        "report.html",
        programs=PROGRAMS,
        live=live is not None,
        title=escape(title),
        model=escape(config.model),
        description=escape(describe_run(store)),
        live_mark=", live" if live is not None else "",
        headline="".join(map(_card, found.norms)),
        remarks=_remarks(remarks(found), found),
        how="".join(
            f"<div><h3>{escape(name)}</h3><p>{escape(words)}</p></div>"
            for name, words in (*HOW_TO_READ, *found.wording.how_to_read)
        ),
        made=_made(found),
        footer=footer(),
        data=packed(found, {"live": live}),
    )


def footer() -> str:
    """The footer of a page as markup: the program that wrote it, and the date."""
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return escape(
        f"Written by cleverscore {cleverscore.__version__} on {now}. This file is complete: it loads nothing from "
        "anywhere."
    )


def write_report(store: Store, out: Path) -> int:
    """Write the report of a run to the file `out`; returns its size in bytes. Raises a StoreError for an empty run."""
    if not store.done():
        raise StoreError(f"{store.folder} holds no finished input yet, so there is nothing to report")
    return write_page(report_page(store), out)


def write_page(page: str, out: Path) -> int:
    """Write the HTML `page` to the file `out`; returns its size in bytes."""
    content = page.encode()
    write_file(out, content)
    return len(content)


def _card(norm: NormFindings) -> str:
    labelled = [score.correct for score in norm.known if score.correct is not None]
    counted = norm.column("counted")
    counted = counted[~np.isnan(counted)]
    details = [
        ("inputs", str(len(counted))),
        ("accuracy", _share(sum(labelled) / len(labelled) if labelled else math.nan, "unknown")),
        ("smallest", number(min(counted.tolist(), default=math.nan), 3)),
        ("radius", f"{norm.radius:g}"),
        ("certified above 0", _share(norm.certified_share)),
        ("score above attack", _above_attack(norm)),
    ]
    items = "".join(f"<div><dt>{term(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in details)
    medians: list[tuple[str, Interval, bool]] = []
    if not math.isnan(norm.certified_median.value):
        medians.append(("certified", norm.certified_median, True))
    medians += [(method_words(method), norm.median_of(method), True) for method in norm.by_method]
    if not math.isnan(norm.attack_median.value):
        medians.append(("best attack", norm.attack_median, False))
    cells = "".join(_median(name, found, norm.radius if cut else math.inf) for name, found, cut in medians)
    return (
        f'<div class="card"><h3>l{escape(norm.name)} norm: medians over inputs</h3><dl class="medians">{cells}</dl>'
        f'<p class="note">{escape(headline(norm))}</p><dl class="values">{items}</dl></div>'
    )


def _above_attack(norm: NormFindings) -> str:
    """The share of scores above the best attack, as text; with several methods, the share of each."""
    shares = {method: norm.violation_rate_of(method) for method in norm.by_method}
    if len(shares) < 2 or all(map(math.isnan, shares.values())):
        return _share(norm.violation_rate_of(norm.method))
    return ", ".join(f"{method_words(method)} {_share(share, 'unknown')}" for method, share in shares.items())


def _median(name: str, found: Interval, radius: float) -> str:
    least = "≥ " if found.value >= radius else ""
    kinds = {"certified": "lower", "best attack": "upper"}
    return (
        f'<div class="{kinds.get(name, "estimate")}"><dt>{term(name)}</dt>'
        f'<dd class="big">{least}{number(found.value, 3)}</dd>'
        f'<dd class="interval">{number(found.low, 3)} to {number(found.high, 3)}</dd></div>'
    )


def _share(value: float, unknown: str = "not asked for") -> str:
    return unknown if math.isnan(value) else f"{value:.1%}"


def _remarks(notes: Iterable[Remark], found: Findings) -> str:
    parts = [f'<p class="remark">{escape(line)}</p>' for line in found.methods_remarks]
    for note in notes:
        places = {place: count for place, count in note.counts.items() if count}
        of = [f"{method_words(found.norms[place].method)}, " if found.norms[place].other else "" for place in places]
        where = ", ".join(
            f"{method}l{found.norms[place].name}: {count}"
            for method, (place, count) in zip(of, places.items(), strict=True)
        )
        buttons = "".join(
            f'<button type="button" class="needs-program" data-norm="{place}" data-flag="{escape(str(note.flag))}">'
            f"Show {count} in l{escape(found.norms[place].name)}</button>"
            for place, count in places.items()
        )
        title = escape(f"{note.title} ({where})" if where else note.title)
        parts.append(f'<details class="remark"><summary>{title}</summary><p>{escape(note.text)}</p>{buttons}</details>')
    well = escape(found.wording.all_well)
    return "".join(parts) or f'<p class="note">Nothing stood out: {well} and no score was cut.</p>'


def _made(found: Findings) -> str:
    config, meta = found.config, found.meta
    used = meta.get("used") or {}
    scores = [score for norm in found.norms for score in norm.known if takes_smallest(score.target_kind)]
    scores += [score for norm in found.norms for part in norm.targets for score in part]
    rows: list[tuple[str, Any]] = [
        ("model", config.model),
        ("model fingerprint", config.model_fingerprint or "-"),
        ("data", config.data),
        ("data fingerprint", config.data_fingerprint or "-"),
        ("inputs", "all" if config.inputs == "all" else ranges(config.inputs)),
        ("selection", meta.get("selection") or "none"),
        ("misclassified inputs", "left out" if config.skip_misclassified else "kept, scored for the predicted class"),
        ("norms", ", ".join(norm.name for norm in found.norms)),
        ("targets", config.targets),
        ("method", " and ".join(config.methods)),
        ("radius", found.radii),
        ("region", config.region),
        *found.wording.settings,
        ("seed", config.seed),
        ("budget", config.budget or "none"),
        *((name, _plain(used[name])) for name in ("bounds", "mean", "std", "outputs") if name in used),
        ("gradients", f"{sum(score.gradients for norm in found.norms for score in norm.known):,}"),
        *(("elimination", words) for words in [elimination_summary(scores).removeprefix("elimination: ")] if words),
        ("time", f"{sum(score.seconds for norm in found.norms for score in norm.known):,.0f} s of computing"),
        ("versions", ", ".join(f"{name} {version}" for name, version in (meta.get("versions") or {}).items())),
    ]
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in rows)
    command = meta.get("command") or repeat_command(config)
    return f'<dl class="made">{items}</dl><h3>To repeat it</h3><pre><code>{escape(str(command))}</code></pre>'


def ranges(rows: str) -> str:
    """A list of row numbers, with consecutive ones as ranges.

    >>> ranges("0,1,2,3,7,9,10")
    '0-3,7,9-10'
    """
    parts: list[list[int]] = []
    for row in map(int, rows.split(",")):
        if parts and row == parts[-1][1] + 1:
            parts[-1][1] = row
        else:
            parts.append([row, row])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, (list, tuple)) else str(value)


def repeat_command(config: StudyConfig) -> str:
    """The command line of a study, from its settings: without attacks, certificates and options such as --bounds."""
    default = StudyConfig(config.model, config.data)
    words = ["cleverscore", "score", config.model, config.data, "--preset", "paper"]  # a config has its defaults
    for norm in config.norms:
        words += ["--norm", norm]
    for name in (
        "targets",
        "radius",
        "blocks",
        "block_size",
        "seed",
        "method",
        "region",
        "tolerance",
        "budget",
        "penalty",
    ):
        value = getattr(config, name)
        if value != getattr(default, name):
            for each in str(value).split(",") if name in ("radius", "method") else [str(value)]:
                words += [f"--{name.replace('_', '-')}", each]
    if config.inputs != "all":
        words += ["--index", ranges(config.inputs)]
    if config.skip_misclassified:
        words.append("--skip-misclassified")
    return shlex.join(words)
