"""`show --index` says of one input what proof, scores and attack say, and whether it is robust at a distance."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cleverscore.reporting.findings import Findings, findings
from cleverscore.reporting.one_input import input_text
from cleverscore.runs.store import Store
from tests.helpers import cleverscore
from tests.stored_runs import add_bounds, made_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_bounds(made_run(tmp_path_factory.mktemp("one") / "run", sharp=1.0, norms=("2",)))


def verdict(found: Findings, input_id: int, epsilon: float) -> str:
    *_, last = input_text(found, input_id, {"2": [epsilon]}).splitlines()
    return last.split(": ", 1)[1]


def test_proof_and_attack_decide_and_the_estimate_where_they_do_not(run: Path) -> None:
    with Store.open(run) as store:
        found = findings(store, maxima=False)
    (norm,) = found.norms
    for input_id, score in enumerate(norm.per_input):
        assert score is not None
        certified, upper = norm.certified[input_id], norm.upper[input_id]
        if score.correct is False:
            assert verdict(found, input_id, 0.0) == "not robust: the input is misclassified as it is"
            continue
        assert verdict(found, input_id, 0.99 * certified).startswith("robust: it is proved")
        if math.isfinite(upper):
            assert verdict(found, input_id, 1.01 * upper).startswith("not robust: an attack changed the class to ")
        if upper > score.value:  # between proof and attack
            assert verdict(found, input_id, 0.99 * score.value).startswith("probably robust: sharp estimates")
            assert verdict(found, input_id, 1.01 * score.value).startswith("probably not robust: sharp estimates")
            assert f"proved up to {certified:.3g}"[:16] in verdict(found, input_id, 1.01 * score.value)
    assert any(np.isinf(norm.upper)) and any(np.isfinite(norm.upper))


def test_the_command_line_shows_one_input(run: Path) -> None:
    done = cleverscore("show", run, "--index", 3, "--index", 4, "--at", "0.1")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and [line for line in lines if line.startswith("input")] == [lines[0], lines[3]]
    assert lines[0].startswith("input 3: predicted ") and "certified" in lines[1] and "attack" in lines[1]
    assert "CLEVER" in lines[1] and "sharp" in lines[1] and lines[2].startswith("  at 0.1: ")
    assert "no attack succeeded" in lines[4]
    unknown = cleverscore("show", run, "--index", 99)
    assert unknown.returncode == 2 and "no score of input 99; it has inputs 0 to 11" in unknown.stderr
    assert cleverscore("show", run, "--index", 3, "--json").returncode == 2
    assert cleverscore("show", run, "--index", 3, "--at", "1=0.2").returncode == 2


def test_beyond_the_radius_nothing_is_known(tmp_path: Path) -> None:
    made_run(tmp_path, sharp=50.0, norms=("2",))  # every score is capped
    with Store.open(tmp_path) as store:
        found = findings(store, maxima=False)
    radius = found.norms[0].radius
    assert verdict(found, 1, 1.1 * radius).startswith("unknown: sharp estimates >=")
    assert verdict(found, 1, 0.9 * radius).startswith("probably robust: sharp estimates >=")
    assert verdict(found, 1, 0.9 * radius).endswith("nothing is proved, and no attack was run")
