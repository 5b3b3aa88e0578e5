"""Sharp scores in runs, tables, plots and on the command line; the search itself is tested in tests/estimators."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.estimators.ascent.profile_search import most_gradients
from cleverscore.estimators.ascent.radial_profile import RadialProfile
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.runs.schema import StoredBlocks, measurements_of, part_row
from cleverscore.scores.score import COLUMNS
from tests.helpers import cleverscore, rows


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices gain nothing from threads, and lose much where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(dim: int = 40, classes: int = 5) -> cs.Classifier:
    torch.manual_seed(0)
    return cs.Classifier(nn.Sequential(nn.Linear(dim, 64), nn.Tanh(), nn.Linear(64, classes)))


def images(count: int = 2, dim: int = 40) -> torch.Tensor:
    return torch.rand(count, dim, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def scores() -> cs.Scores:
    return cs.clever(network(), images(), p=2, method="sharp", labels=[0, 1])


def test_tables_have_the_bracket_of_every_row(scores: cs.Scores) -> None:
    frame = scores.to_frame()
    assert list(frame.columns) == COLUMNS
    assert set(frame.method) == {"sharp"} and set(frame.blocks) == {0} and frame.ks_pvalue.isna().all()
    assert (frame.score <= frame.crossing).all() and frame.score_high.tolist() == frame.score.tolist()
    assert scores.upper.tolist() == [score.upper for score in scores] and np.isfinite(scores.upper).all()
    text = str(scores)
    assert "at least" in text and "crossing" in text and "95%" not in text
    sampled = cs.clever(network(), images(1), blocks=12, block_size=8)
    assert np.isnan(sampled.upper).all() and sampled.to_frame().crossing.isna().all()


def test_plots_show_the_profile_and_refuse_a_tail(scores: cs.Scores) -> None:
    axes = cs.plots.profile(scores[0])
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "distance from the input" in axes.get_xlabel() and len(legend) == 3
    assert f"score {scores[0].value:.4g}" in legend and f"crossing met at {scores[0].upper:.4g}" in legend
    cs.plots.bars(scores.per_input)
    with pytest.raises(cs.CleverError, match=r"plots\.profile"):
        cs.plots.tail(scores[0])
    sampled = cs.clever(network(), images(1), blocks=12, block_size=8)
    with pytest.raises(cs.CleverError, match=r"plots\.tail"):
        cs.plots.profile(sampled[0])


def test_the_estimate_is_an_upper_bound_of_the_gradients(scores: cs.Scores) -> None:
    cost = cs.estimate(network(), images(), p=2, method="sharp")
    spent = sum(row.gradients for row in scores.rows if row.target_kind == "all")
    assert spent <= cost.gradients == 2 * 4 * most_gradients(40)


@pytest.mark.parametrize("upper", [2.5, math.inf])
def test_a_stored_profile_is_read_back_as_it_was(upper: float) -> None:
    profile = RadialProfile(2.0, 1.9, upper, np.array([0.1, 0.3, 1 / 3]), (0.5, 0.9, 1.0), 1234, "unsettled")
    measurements = Measurements(7, 1, 1, (3,), (1.5,), (np.empty(0),), (0,), 0.5, (StopReason.ALL_STARTS,), (profile,))
    row = part_row(StoredBlocks("2", measurements))
    text, blob = next(cell for cell in row if isinstance(cell, str) and cell.startswith("{")), row[-2]
    (again,) = measurements_of(7, text, blob).profiles
    assert again.falls.tolist() == profile.falls.tolist()
    for name in ("distance", "low", "upper", "edges", "gradients", "outcome"):
        assert getattr(again, name) == getattr(profile, name)


# --- command line --------------------------------------------------------------------------------------------------

COMMAND = [
    "score",
    "zoo:mnist-mlp",
    "zoo:mnist",
    "--method",
    "sharp",
    "--preset",
    "paper",
    "--norm",
    2,
    "--norm",
    "inf",
]


def test_a_run_is_kept_shown_exported_and_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [*COMMAND, "--targets", "runner_up", "--limit", 2, "--out", run]
    done = cleverscore(*command)
    assert done.returncode == 0, done.stderr
    assert "search" in done.stdout and "crossing" in done.stdout
    shown = cleverscore("show", run)
    assert shown.stdout == done.stdout and "method sharp" in shown.stderr and "blocks" not in shown.stderr
    table = rows(run)
    assert list(table.columns) == COLUMNS and len(table) == 4 and set(table.method) == {"sharp"}
    assert (table.score_low <= table.score).all() and (table.score <= table.crossing).all()
    assert (table.gradients < 512_000 / 20).all()
    parsed = json.loads(
        cleverscore("export", run, "--format", "json").stdout,
        parse_constant=lambda word: pytest.fail(f"{word} is not JSON"),
    )
    assert all(row["ks_pvalue"] is None for row in parsed["rows"])
    assert [row["crossing"] for row in parsed["rows"]] == pytest.approx(table.crossing.tolist())
    out = run / "rows.parquet"
    assert cleverscore("export", run, "--format", "parquet", "--out", out).returncode == 0
    assert pd.read_parquet(out).score.tolist() == pytest.approx(table.score.tolist())
    page = tmp_path / "report.html"
    assert cleverscore("report", run, "--out", page).returncode == 0
    words = page.read_text()  # tests/test_report.py opens it in a browser
    assert "every search settled" in words and "The score rests on a reverse Weibull law" not in words
    again = cleverscore(*command)
    assert again.returncode == 0 and "4 of 4 scores are there already" in again.stderr and again.stdout == done.stdout
    other = cleverscore("score", "zoo:mnist-mlp", "zoo:mnist", *command[5:])
    assert other.returncode == 2 and "method: 'sharp' then, 'paper' now" in other.stderr


def test_options_that_have_no_meaning_are_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--targets", "runner_up", "--limit", 1, "--blocks", 7, "--tolerance", 0.1]
    done = cleverscore(*COMMAND[:9], *options, "--out", run)
    assert done.returncode == 0, done.stderr
    assert "--blocks, --tolerance have no meaning for --method sharp" in done.stderr


def test_an_untargeted_part_with_other_chunks_agrees(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert cleverscore(*COMMAND[:9], "--index", "2,3", "--out", whole).returncode == 0
    options = ["--index", 3, "--chunk-size", 40, "--workers", 1]
    assert cleverscore(*COMMAND[:9], *options, "--out", part).returncode == 0
    a, b = rows(whole), rows(part)
    a = a[a.input == 3].reset_index(drop=True)
    untargeted = a.target_kind == "untargeted"
    assert b[untargeted].score.tolist() == pytest.approx(a[untargeted].score.tolist(), rel=5e-3)
    assert a.target.tolist() == b.target.tolist()
    assert StopReason.ELIMINATED in set(a.stopped) and StopReason.ELIMINATED not in set(a[untargeted].stopped)
