"""The summary of a run for programs: accuracy, medians of every method, attacks, certificates, robust accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cleverscore.reporting.findings import Findings, NormFindings
from cleverscore.tails.paired_tests import Interval


def run_summary(found: Findings, epsilons: Mapping[str, Sequence[float]] | None = None) -> dict[str, Any]:
    """The results of a run as a dictionary for JSON, with one entry per norm under "norms"; unknown numbers are None.

    epsilons    by norm, "" for every norm: distances at which robust accuracy is given in addition, under "at".

    Misclassified inputs have score 0, unless the run left them out.
    """
    config = found.config
    labelled = [label for label in found.labels if label is not None]
    return {
        "model": config.model,
        "model_fingerprint": config.model_fingerprint,
        "data": config.data,
        "data_fingerprint": config.data_fingerprint,
        "targets": config.targets,
        "inputs": len(found.ids),
        "labelled": len(labelled),
        "accuracy": _known(found.accuracy.value),
        "misclassified": found.excluded or "count as 0",
        "unfinished": found.unfinished,
        "norms": [_norm(norm, epsilons or {}) for norm in found.norms],
    }


def _norm(norm: NormFindings, epsilons: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    curves = norm.robust_accuracy if norm.known else None
    wanted = [*epsilons.get("", ()), *epsilons.get(norm.name, ())]
    at = [] if curves is None else [
        {"epsilon": epsilon, **{kind: _known(share.value) for kind, share in curves.at(epsilon).items()}}
        for epsilon in wanted
    ]  # fmt: skip
    return {
        "norm": norm.name,
        "radius": norm.radius,
        "method": norm.method,
        "median": _interval(norm.median),
        "methods": {name: _method(norm, name) for name in norm.by_method},
        "attack_median": _interval(norm.attack_median),
        "certified_median": _interval(norm.certified_median),
        "certified_above_0": _known(norm.certified_share),
        **({"at": at} if wanted else {}),
        "robust_accuracy": None if curves is None else curves.to_dict(),
    }


def _method(norm: NormFindings, name: str) -> dict[str, Any]:
    scores = [score for score in norm.by_method[name] if score is not None]
    values = np.array([score.counted for score in scores if not math.isnan(score.counted)])
    return {
        "inputs": len(values),
        "median": _interval(norm.median_of(name)),
        "mean": _known(float(values.mean()) if len(values) else math.nan),
        "smallest": _known(float(values.min(initial=math.inf))),
        "at_the_radius": sum(score.capped for score in scores),
        "without_score": len(scores) - len(values),
        "score_above_attack": _known(norm.violation_rate_of(name)),
    }


def _interval(found: Interval) -> dict[str, float | None]:
    return {"value": _known(found.value), "low": _known(found.low), "high": _known(found.high)}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
