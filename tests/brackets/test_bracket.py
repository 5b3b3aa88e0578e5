from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.brackets import run_bounds as measurements
from cleverscore.brackets.bracket import COLUMNS, bracket_from
from cleverscore.brackets.run_bounds import AttackRecord, CertificateRecord, bracketed, checked_attacks, target_or_any
from cleverscore.runs.store import Store
from cleverscore.scores.score import COLUMNS as SCORE_COLUMNS
from tests.helpers import affine_distance, cleverscore, rows

FEW = {"blocks": 12, "block_size": 8}
CLI_FEW = ["--preset", "paper", "--blocks", "12", "--block-size", "8"]
NORMS = (1.0, 2.0, math.inf)


def affine_images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def affine() -> cs.Classifier:
    torch.manual_seed(0)
    return cs.Classifier(nn.Linear(6, 4).double(), bounds=(-20.0, 20.0))


def nearest(classifier: cs.Classifier, x: torch.Tensor, predicted: int, p: float) -> float:
    return min(affine_distance(classifier, x, predicted, j, p) for j in range(4) if j != predicted)


@pytest.mark.parametrize("p", NORMS)
def test_affine_distance_certificate_score_and_attack_agree(p: float) -> None:
    classifier, x = affine(), affine_images()
    scores = cs.clever(classifier, x, p=p, radius=20.0, **FEW)
    found = cs.bracket(classifier, x, scores, attacks=["best"], certificate="crown")
    exact = [nearest(classifier, x[i], score.predicted, p) for i, score in enumerate(scores)]
    assert found.score == pytest.approx(exact, rel=1e-9)
    assert found.lower == pytest.approx(exact, rel=2e-3) and (found.lower <= np.array(exact) * (1 + 1e-9)).all()
    assert ((found.upper >= np.array(exact) * (1 - 1e-6)) & (found.upper <= 1.05 * np.array(exact))).all()
    assert found.consistent.all() and found.violation_rate == 0.0 and 0.0 <= found.median_gap < 0.05
    assert found.certified_share == 1.0 and found.signs == ()


@pytest.mark.parametrize("p", NORMS)
def test_targeted_rows_are_bounded_for_their_own_target(p: float) -> None:
    classifier, x = affine(), affine_images()
    scores = cs.clever(classifier, x, p=p, radius=20.0, targets="all", **FEW)
    found = cs.bracket(classifier, x, scores, attacks=["fmn"], certificate="crown")
    assert len(found) == 9 and found.rows == scores.rows
    for i, row in enumerate(found.rows):
        exact = affine_distance(classifier, x[row.input], row.predicted, row.target, p)
        # On the way to its target another class may win first, which a targeted attack has to pass.
        assert found.lower[i] == pytest.approx(exact, rel=2e-3) and exact * (1 - 1e-6) <= found.upper[i]
    assert found.consistent.all()


def record(input_id: int, target: int | None, name: str, p: float, size: float) -> AttackRecord:
    return AttackRecord(input_id, target, name, p, 0, size, 3.0 * size, size, 0.5 * size, 0.1)


@pytest.fixture
def scored() -> cs.Scores:
    return cs.clever(affine(), affine_images(), p=2, radius=20.0, ids=[4, 7, 9], **FEW)


def test_bounds_are_put_where_they_belong(scored: cs.Scores) -> None:
    one, two, three = scored.values
    above = [
        record(4, None, "cw", 2.0, 2.0 * one),
        record(4, None, "ddn", 2.0, 1.5 * one),
        record(7, None, "cw", 2.0, 0.5 * two),
        record(9, None, "cw", 2.0, math.inf),
        record(9, 2, "cw", 2.0, 0.01),  # of another question
    ]
    below = [
        CertificateRecord(4, None, "crown", 2.0, 0.5 * one, 0.1),
        CertificateRecord(9, None, "crown", 2.0, 2.0 * three, 0.1),
    ]
    found = bracket_from(scored, above, below)
    assert found.attack == ("ddn", "cw", None)
    assert found.upper.tolist() == [1.5 * one, 0.5 * two, math.inf]
    assert found.upper_l1.tolist() == [4.5 * one, 1.5 * two, math.inf]
    assert found.upper_linf.tolist() == [0.75 * one, 0.25 * two, math.inf]
    assert found.lower.tolist() == pytest.approx([0.5 * one, math.nan, 2.0 * three], nan_ok=True)
    assert found.violated.tolist() == [False, True, False] and found.loose.tolist() == [False, False, True]
    assert found.consistent.tolist() == [True, False, False]
    assert found.violation_rate == 0.5 and found.median_gap == pytest.approx((1 / 3 - 1) / 2)
    text = str(found)
    for words in ("1 of 2 rows (50%)", "no attack succeeded for 1", "! above (1)", "! below (1)"):
        assert words in text
    capped = cs.clever(affine(), affine_images(), p=2, radius=1e-3, ids=[4, 7, 9], **FEW)
    assert (
        capped[0].capped
        and bracket_from(capped, [], [CertificateRecord(4, None, "crown", 2.0, 0.01, 0.1)]).consistent[0]
    )
    crossed = bracket_from(scored, above, [CertificateRecord(7, None, "crown", 2.0, float(two), 0.1)])
    assert "! crossed (1)" in str(crossed)


def test_the_frame_has_the_documented_columns(scored: cs.Scores) -> None:
    frame = bracket_from(scored, [record(4, None, "cw", 2.0, 9.0)], []).to_frame()
    assert list(frame.columns) == [*SCORE_COLUMNS, *COLUMNS] and len(frame) == len(scored.rows)
    head = frame[(frame.input == 4) & (frame.target_kind == "untargeted")].iloc[0]
    assert head.attack == "cw" and head.upper == 9.0 and head.upper_l1 == 27.0 and head.consistent is True
    assert frame[frame.target_kind == "all"].upper.isna().all()


def test_scores_of_several_norms_share_attacks_that_have_one_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier, x = affine(), affine_images(2)
    parts = [cs.clever(classifier, x, p=p, radius=20.0, **FEW) for p in (2.0, math.inf)]
    both = cs.Scores(parts[0].rows + parts[1].rows, parts[0].per_input + parts[1].per_input)
    runs = []
    real = measurements._attacked
    monkeypatch.setattr(measurements, "_attacked", lambda *a: runs.append((a[3], a[4])) or real(*a))
    found = cs.bracket(classifier, x, both, attacks=["ddn:quick", "fmn:quick"], certificate=None)
    assert runs == [("ddn:quick", 2.0), ("fmn:quick", 2.0), ("fmn:quick", math.inf)]
    assert [row.p for row in found.rows] == [2.0, 2.0, math.inf, math.inf] and found.consistent.all()
    assert np.isnan(found.lower).all() and math.isnan(found.certified_share)
    assert "certified above" not in str(found) and str(found).count("median gap") == 2


def test_a_norm_between_is_measured_in_itself() -> None:
    classifier, x = affine(), affine_images(2)
    scores = cs.clever(classifier, x, p=1.5, radius=20.0, **FEW)
    found = cs.bracket(classifier, x, scores, attacks=["ddn:quick"], certificate=None)
    assert ((found.upper_l2 < found.upper) & (found.upper < found.upper_l1)).all()
    assert (found.upper >= found.score * (1 - 1e-6)).all()


def test_a_masked_model_is_named_in_the_bracket() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 4).double()
    classifier = cs.Classifier(lambda x: linear(x * 1e6), bounds=(-20.0, 20.0))
    x = affine_images(2)
    scores = cs.clever(classifier, x, p=2, **FEW)
    found = cs.bracket(classifier, x, scores, attacks=["ddn:quick"], certificate=None)
    assert [sign.kind for sign in found.signs] == ["saturated"]


def test_mistakes_are_sentences(scored: cs.Scores) -> None:
    classifier, x = affine(), affine_images()
    for arguments, words in (
        ((classifier, x[:2], scored), "2 inputs and scores of 3"),
        ((classifier, -x.flip(0) * 3, scored), "was predicted"),
    ):
        with pytest.raises(cs.CleverError, match=words):
            cs.bracket(*arguments)
    for attacks, words in (
        (["magic"], "choose one of descent, cw"),
        (["cw:slow"], "with a preset"),
        ("cw", "list of names"),
    ):
        with pytest.raises(cs.CleverError, match=words):
            cs.bracket(classifier, x, scored, attacks=attacks)
    with pytest.raises(cs.CleverError, match="transform"):
        cs.bracket(cs.Classifier(classifier.module, transform=lambda x: x), x, scored, attacks=(), certificate="crown")
    assert checked_attacks(["best", "fmn"])[0] != "best"
    assert target_or_any(scored.rows[0]) is None and bracketed(scored) == scored.per_input


@pytest.fixture(scope="module")
def attacked_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[object]]:
    """A run of the affine model, l1, l2 and linf, with an attack and a certificate."""
    folder = tmp_path_factory.mktemp("bracket")
    np.savez(folder / "data.npz", x=affine_images().numpy())
    command: list[object] = ["score", "tests.bad_models:affine", folder / "data.npz", "--bounds", "-20,20", *CLI_FEW]
    command += ["--norm", 1, "--norm", 2, "--norm", "inf", "--radius", 20, "--out", folder / "run"]
    return folder / "run", command


def test_the_command_line_brackets_an_affine_model(attacked_run: tuple) -> None:
    run, command = attacked_run
    plain = cleverscore(*command)
    assert plain.returncode == 0, plain.stderr
    assert list(rows(run).columns) == SCORE_COLUMNS
    done = cleverscore(*command, "--attack", "best", "--certify", "crown")  # added to the run that is there
    assert done.returncode == 0, done.stderr
    assert "9 of 9 scores are there already" in done.stderr and "median gap" in done.stdout
    assert cleverscore("show", run).stdout == done.stdout
    table = rows(run)
    assert list(table.columns) == [*SCORE_COLUMNS, *COLUMNS]
    untargeted = table[table.target_kind == "untargeted"]
    classifier, x = affine(), affine_images()
    assert len(untargeted) == 9 and untargeted.consistent.astype(str).eq("True").all()
    for row in untargeted.itertuples():
        exact = nearest(classifier, x[row.input], row.predicted, float(row.norm))
        assert row.certified == pytest.approx(exact, rel=2e-3) and row.score == pytest.approx(exact)
        assert exact * (1 - 1e-6) <= row.upper <= 1.05 * exact
    parsed = json.loads(cleverscore("export", run, "--format", "json").stdout)["rows"]
    uppers = [math.nan if row["upper"] is None else row["upper"] for row in parsed]
    assert uppers == pytest.approx(table.upper.tolist(), nan_ok=True)
    out = run / "rows.parquet"
    assert cleverscore("export", run, "--format", "parquet", "--out", out).returncode == 0
    assert pd.read_parquet(out).upper.tolist() == pytest.approx(table.upper.tolist(), nan_ok=True)


def test_bounds_are_not_computed_twice(attacked_run: tuple) -> None:
    run, command = attacked_run
    cleverscore(*command, "--attack", "fmn:quick", "--certify", "crown")
    with Store.open(run, write=True) as store:
        before = len(store.above())
        store._connection.execute("DELETE FROM attacks WHERE attack = 'fmn:quick' AND norm = '2' AND input = 1")
        store._connection.commit()
    again = cleverscore(*command, "--attack", "fmn:quick")
    assert "fmn:quick, l2: 3 of 3" in again.stderr and again.stderr.count(" of 3\n") == 1
    with Store.open(run) as store:
        assert len(store.above()) == before
    last = cleverscore(*command, "--attack", "fmn:quick", "--certify", "crown")
    assert last.returncode == 0 and " of 3\n" not in last.stderr


def test_every_batch_is_kept_when_a_later_one_fails(
    tmp_path: Path, attacked_run: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, command = attacked_run
    command = [*command[:-1], tmp_path / "run", "--attack", "fmn:quick"]
    real, calls = measurements._attacked, []

    def interrupted(*arguments: object) -> list[AttackRecord]:
        calls.append(arguments)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(measurements, "ATTACKED_TOGETHER", 1)
        patch.setattr(measurements, "_attacked", interrupted)
        assert cleverscore(*command).returncode == 130
    with Store.open(tmp_path / "run") as store:
        assert len(store.above()) == 2
    resumed = cleverscore(*command)
    assert resumed.returncode == 0
    with Store.open(tmp_path / "run") as store:
        assert len(store.above()) == 9


def test_masking_is_said_on_stderr_after_the_table(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=affine_images().numpy())
    command = ["score", "tests.bad_models:rounding", tmp_path / "data.npz", *CLI_FEW, "--out", tmp_path / "run"]
    done = cleverscore(*command)
    assert done.returncode == 0 and "warning: quantised: 3 inputs (0, 1, 2)" in done.stderr
    assert "quantised" not in done.stdout


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--attack", "magic"], "choose one of descent, cw"),
        (["--attack", "cw:magic"], "paper"),
        (["--certify", "magic"], "crown"),
    ],
)
def test_wrong_bounds_are_refused_before_anything_is_computed(extra: list[str], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=affine_images().numpy())
    command = ["score", "tests.bad_models:affine", tmp_path / "data.npz", *CLI_FEW, "--out", tmp_path / "run"]
    done: subprocess.CompletedProcess[str] = cleverscore(*command, *extra)
    assert done.returncode == 2 and words in done.stderr and not (tmp_path / "run").exists()
