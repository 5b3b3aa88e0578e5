"""A section for a model card: Markdown that says what was measured, how, and what it does not promise."""

from __future__ import annotations

import math
import re

import cleverscore
from cleverscore.reporting.findings import Findings, NormFindings
from cleverscore.scores.text_table import number
from cleverscore.tails.paired_tests import FEWEST


def model_card(found: Findings) -> str:
    """The robustness section of a model card (Hugging Face and others), from a run."""
    config = found.config
    selection = found.meta.get("selection")
    lines = [
        "## Robustness (CLEVER)",
        "",
        "CLEVER estimates how far an input must be moved before the model changes its class; larger is more robust.",
        "",
        "| norm | inputs | median score (95% interval) | smallest | certified above 0 | score above attack |",
        "|---|---|---|---|---|---|",
        *map(_line, found.norms),
        "",
        f"- Model {_code(config.model)} (fingerprint {_code(config.model_fingerprint or '-')}) on {_code(config.data)} "
        f"(fingerprint {_code(config.data_fingerprint or '-')}), {len(found.ids)} inputs, targets {config.targets}.",
        *([f"- Selected inputs: {selection}."] if selection else []),
        *(
            f"- {capped} of {len(norm.known)} l{norm.name} scores were cut at the radius {norm.radius:g}: they are at "
            "least that."
            for norm in found.norms
            if (capped := sum(head.capped for head in norm.known))
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


def _line(norm: NormFindings) -> str:
    median = norm.median
    values = [head.value for head in norm.known if not math.isnan(head.value)]
    least = ">= " if median.value >= norm.radius else ""
    cells = [
        f"l{norm.name}",
        str(len(values)),
        f"{least}{number(median.value, 3)} ({number(median.low, 3)} to {number(median.high, 3)})",
        number(min(values, default=math.nan), 3),
        _share(norm.certified_share),
        _share(norm.violation_rate),
    ]
    return f"| {' | '.join(cells)} |"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _code(text: str) -> str:
    """A name as code, whatever it holds: the fence is longer than any run of backticks inside."""
    plain = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    space = " " if "`" in plain else ""
    return f"{fence}{space}{plain}{space}{fence}"
