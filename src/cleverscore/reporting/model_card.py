"""A model card: metadata for Hugging Face, then a section on what was measured and what that does not promise."""

from __future__ import annotations

import json
import math
import re

import numpy as np

import cleverscore
from cleverscore.reporting.findings import Findings, NormFindings
from cleverscore.reporting.robust_accuracy import KINDS
from cleverscore.scores.text_table import number
from cleverscore.tails.paired_tests import FEWEST


def model_card(found: Findings) -> str:
    """The robustness section of a model card for a run, preceded by the `model-index` metadata for Hugging Face."""
    config = found.config
    selection = found.meta.get("selection")
    lines = [
        *model_index(found),
        "## Robustness (CLEVER)",
        "",
        "CLEVER estimates how far an input must be moved before the model changes its class; larger is more robust.",
        "",
        "| norm | method | inputs | median score (95% interval) | smallest | median attack | certified above 0 | "
        "score above attack |",
        "|---|---|---|---|---|---|---|---|",
        *(_line(norm, method) for norm in found.norms for method in norm.by_method),
        "",
        *_robust_accuracy(found),
        f"- {_accuracy(found)}",
        f"- Model {_code(config.model)} (fingerprint {_code(config.model_fingerprint or '-')}) on {_code(config.data)} "
        f"(fingerprint {_code(config.data_fingerprint or '-')}), {len(found.ids)} inputs, targets {config.targets}.",
        *([f"- Selected inputs: {selection}."] if selection else []),
        *(
            f"- {capped} of {len(norm.known)} l{norm.name} scores were cut at the radius {norm.radius:g}: they are at "
            "least that."
            for norm in found.norms
            if (capped := sum(score.capped for score in norm.known))
        ),
        *(
            f"- Fewer than {FEWEST} inputs have no 95% interval: l{norm.name} shows the smallest and the largest score."
            for norm in found.norms
            if 0 < len(norm.known) < FEWEST
        ),
        *([f"- This run is {found.unfinished}."] if found.unfinished else []),
        f"- Method {' and '.join(found.wordings)}, radius {found.radii}, "
        f"{', '.join(words.work for words in found.wordings.values())}, seed {config.seed}; "
        f"cleverscore {cleverscore.__version__}.",
        "- A score is an estimate of a lower bound on the smallest adversarial perturbation, not a certificate, and it "
        "cannot see through masked gradients.",
        "- Weng et al., Evaluating the Robustness of Neural Networks: An Extreme Value Theory Approach, ICLR 2018.",
        "",
    ]
    return "\n".join(lines)


def model_index(found: Findings) -> list[str]:
    """The lines of the metadata: accuracy, median scores and median distances of attacks, as far as they are known.

    Names are written as JSON strings, which are valid YAML for any content.
    """
    config = found.config
    name = config.model.rstrip("/").rsplit("/", 1)[-1]
    task = "image-classification" if found.pictures else "other"
    metrics: list[tuple[str, str, float]] = []
    if not math.isnan(found.accuracy.value) and not found.excluded:
        metrics.append(("accuracy", f"Accuracy on the {len(found.ids)} inputs of the run", found.accuracy.value))
    for norm in found.norms:
        for method in norm.by_method:
            label = f"Median CLEVER score, l{norm.name}, method {method}"
            metrics.append(("clever_score", label, norm.median_of(method).value))
        metrics.append(
            ("adversarial_distance", f"Median distance of the best attack, l{norm.name}", norm.attack_median.value)
        )
    lines = [
        "---",
        "model-index:",
        f"- name: {json.dumps(name)}",
        "  results:",
        "  - task:",
        f"      type: {task}",
        "    dataset:",
        f"      name: {json.dumps(config.data)}",
        f"      type: {json.dumps(config.data)}",
        "    metrics:",
    ]
    for kind, label, value in metrics:
        if math.isfinite(value):
            lines += [f"    - type: {kind}", f"      name: {json.dumps(label)}", f"      value: {value:.6g}"]
    return [*lines, "---", ""]


def _accuracy(found: Findings) -> str:
    if found.excluded:
        return f"{found.excluded[:1].upper()}{found.excluded[1:]}: accuracy is not known."
    if math.isnan(found.accuracy.value):
        return "Labels are not known: the predicted class is taken for the right one."
    known = sum(label is not None for label in found.labels)
    return (
        f"Accuracy on these inputs: {found.accuracy.value:.1%} of {known}, which is no measure of the accuracy on the "
        "whole data set. Misclassified inputs count as 0."
    )


def _robust_accuracy(found: Findings) -> list[str]:
    """The lines of a table: in each norm, robust accuracy at half the median score and at the median score."""
    rows = []
    for norm in found.norms:
        middle = norm.median.value
        if not norm.known or not middle > 0.0:
            continue
        for epsilon in (float(f"{middle / 2:.2g}"), float(f"{middle:.2g}")):
            shares = norm.robust_accuracy.at(epsilon)
            cells = [str(shares[kind]) if kind in shares else "-" for kind in KINDS]
            rows.append(f"| l{norm.name} | {epsilon:g} | {' | '.join(cells)} |")
    if not rows:
        return []
    head = ["| norm | epsilon | robust accuracy: certified | estimated | attacked |", "|---|---|---|---|---|"]
    return [*head, *rows, ""]


def _line(norm: NormFindings, method: str) -> str:
    median = norm.median_of(method)
    values = norm.counted_of(method)
    values = values[~np.isnan(values)]
    least = ">= " if median.value >= norm.radius else ""
    cells = [
        f"l{norm.name}",
        method,
        str(len(values)),
        f"{least}{number(median.value, 3)} ({number(median.low, 3)} to {number(median.high, 3)})",
        number(min(values.tolist(), default=math.nan), 3),
        number(norm.attack_median.value, 3),
        _share(norm.certified_share),
        _share(norm.violation_rate_of(method)),
    ]
    return f"| {' | '.join(cells)} |"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _code(text: str) -> str:
    """A name as inline code; its delimiter is longer than any run of backticks in the name."""
    plain = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    space = " " if "`" in plain else ""
    return f"{fence}{space}{plain}{space}{fence}"
