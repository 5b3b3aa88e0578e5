from __future__ import annotations

import dataclasses
import io
import json
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import cleverscore as cs
from cleverscore.reporting.html.report import repeat_command
from cleverscore.runs.results import StudyConfig
from cleverscore.runs.store import Store
from cleverscore.scores.score import COLUMNS, Scores
from tests import bad_models
from tests.helpers import FEW, ROOT, cleverscore, in_a_new_process, rows
from tests.reporting.test_inspection import Normalised, pixels


@pytest.fixture(scope="module")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    run = tmp_path_factory.mktemp("full") / "run"
    command = ["score", "zoo:mnist-mlp", "zoo:mnist", "--norm", 2, "--norm", "inf", "--limit", 8, *FEW]
    return run, cleverscore(*command, "--out", run)


def test_score_prints_a_table_and_keeps_it(full_run: tuple) -> None:
    run, done = full_run
    assert done.returncode == 0, done.stderr
    assert "median" in done.stdout and "kept in" in done.stderr
    assert cleverscore("show", run).stdout == done.stdout
    every = cleverscore("show", run, "--targets").stdout.splitlines()
    lines, words = every[2 : every.index("")], every[every.index("") :]
    # One line per input, norm and other class; what is said below is about inputs, as in the short table.
    assert len(lines) == 8 * 2 * 9 and all(line.endswith("all blocks") for line in lines)
    assert words == done.stdout.splitlines()[2 + 8 * 2 :]


def test_exports_agree_and_have_the_documented_columns(full_run: tuple) -> None:
    run, _ = full_run
    table = rows(run)
    assert list(table.columns) == COLUMNS
    assert len(table) == 8 * 2 * (9 + 1)
    text = cleverscore("export", run, "--format", "json").stdout
    parsed = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert [list(row) for row in parsed["rows"]] == [COLUMNS] * len(table)
    assert parsed["config"]["model"] == "zoo:mnist-mlp" and "torch" in parsed["versions"]
    assert [row["score"] for row in parsed["rows"]] == pytest.approx(table.score.tolist())
    out = run / "rows.parquet"
    assert cleverscore("export", run, "--format", "parquet", "--out", out).returncode == 0
    assert pd.read_parquet(out).score.tolist() == pytest.approx(table.score.tolist())


def test_index_gives_the_rows_of_the_full_run(full_run: tuple, tmp_path: Path) -> None:
    run, _ = full_run
    command = ["score", "zoo:mnist-mlp", "zoo:mnist", "--norm", 2, "--norm", "inf", *FEW]
    done = cleverscore(*command, "--index", "7,3-4", "--out", tmp_path / "part", "--chunk-size", 5)
    assert done.returncode == 0, done.stderr
    part, full = rows(tmp_path / "part"), rows(run)
    full = full[full.input.isin([3, 4, 7])].reset_index(drop=True)
    assert part.input.tolist() == full.input.tolist() and part.target.tolist() == full.target.tolist()
    assert part.score.tolist() == pytest.approx(full.score.tolist(), rel=1e-5)


def test_the_same_command_resumes_and_another_setting_is_refused(full_run: tuple) -> None:
    run, done = full_run
    command = ["score", "zoo:mnist-mlp", "zoo:mnist", "--norm", 2, "--norm", "inf", "--limit", 8, "--out", run, *FEW]
    again = cleverscore(*command)
    assert again.returncode == 0 and "16 of 16 scores are there already" in again.stderr
    assert again.stdout == done.stdout
    other = cleverscore(*command, "--seed", 1)
    assert other.returncode == 2
    assert "seed: 0 then, 1 now" in other.stderr and "--fresh" in other.stderr
    assert cleverscore("show", run).stdout == done.stdout


def test_fresh_starts_over(tmp_path: Path) -> None:
    command = ["score", "zoo:mnist-mlp", "zoo:mnist", "--limit", 1, "--out", tmp_path / "run", *FEW]
    first = cleverscore(*command)
    second = cleverscore(*command, "--seed", 1, "--fresh")
    assert second.returncode == 0 and second.stdout != first.stdout


def test_without_out_a_run_directory_is_chosen(tmp_path: Path) -> None:
    done = cleverscore("score", "zoo:mnist-mlp", "zoo:mnist", "--limit", 1, *FEW, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("mnist-mlp-") and str(run.relative_to(tmp_path)) in done.stderr


def test_a_factory_with_weights_and_targets_is_scored(tmp_path: Path) -> None:
    model = bad_models.linear("4")
    with np.load(ROOT / "src/cleverscore/loading/zoo/data/mnist.npz") as stored:
        np.savez(tmp_path / "data.npz", x=stored["x"][:3], y=np.zeros(3, np.int64))
    model[1].weight.data.mul_(3)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    name = f"tests.bad_models:linear?classes=4&weights={tmp_path / 'w.safetensors'}"
    arguments = [
        "--targets",
        "runner_up",
        "--bounds",
        "0,1",
        "--mean",
        "0.1",
        "--std",
        "0.3",
        "--out",
        tmp_path / "run",
    ]
    done = cleverscore("score", name, tmp_path / "data.npz", *arguments, *FEW)
    assert done.returncode == 0, done.stderr
    assert "warning:" in done.stderr and "divided by 255" in done.stderr
    with pytest.warns(cs.CleverWarning, match="bytes"):
        images, _ = cs.load_data(str(tmp_path / "data.npz"))
    classifier = cs.Classifier(model, mean=0.1, std=0.3)
    expected = cs.clever(classifier, images, targets="runner_up", blocks=12, block_size=8)
    assert rows(tmp_path / "run").score.tolist() == pytest.approx(expected.values.tolist(), rel=1e-5)


def test_misclassified_inputs_keep_their_row_or_are_skipped(tmp_path: Path, mnist: tuple) -> None:
    images, labels = mnist
    wrong = labels[:4].copy()
    wrong[1] = (wrong[1] + 1) % 10
    np.savez(tmp_path / "data.npz", x=images[:4], y=wrong)
    command = ["score", "zoo:mnist-mlp", tmp_path / "data.npz", "--targets", "runner_up", *FEW]
    kept = cleverscore(*command, "--out", tmp_path / "kept")
    assert "misclassified" in kept.stdout
    assert rows(tmp_path / "kept").correct.tolist() == [True, False, True, True]
    cleverscore(*command, "--out", tmp_path / "skipped", "--skip-misclassified")
    assert rows(tmp_path / "skipped").input.tolist() == [0, 2, 3]


def test_inspect_sees_labels_that_are_off_by_one(tmp_path: Path, mnist: tuple) -> None:
    images, labels = mnist
    kept = labels < 9
    np.savez(tmp_path / "off.npz", x=images[kept], y=labels[kept] + 1)
    said = cleverscore("inspect", "zoo:mnist-mlp", tmp_path / "off.npz").stdout
    assert "with every label one lower: do labels and model count from the same number?" in said
    assert "one lower" not in cleverscore("inspect", "zoo:mnist-mlp", "zoo:mnist").stdout


def test_a_fit_that_the_test_rejects_is_not_called_ok() -> None:
    scores = cs.clever(cs.load_model("zoo:mnist-mlp"), cs.load_data("zoo:mnist")[0][:2], blocks=20, block_size=8)
    poor = [
        dataclasses.replace(score, fit=dataclasses.replace(score.fit, outcome=cs.FitOutcome.POOR)) for score in scores
    ]
    bad = Scores(scores.rows, tuple(poor))
    assert " poor" in str(bad) and "poor (2: input 0, 1): " in str(bad) and " poor" not in str(scores)


def test_the_penalty_is_an_option_and_is_written_everywhere(tmp_path: Path) -> None:
    few = ("--limit", "1", "--preset", "paper", "--blocks", "20", "--block-size", "8", "--targets", "runner_up")
    for given, used in (((), "0.01"), (("--penalty", "0.1"), "0.1")):
        run = tmp_path / f"run-{used}"
        cleverscore("score", "zoo:mnist-mlp", "zoo:mnist", *few, *given, "--out", run)
        assert pd.read_csv(io.StringIO(cleverscore("export", run).stdout)).penalty.tolist() == [float(used)]
        rows = json.loads(cleverscore("export", run, "--format", "json").stdout)["rows"]
        assert [row["penalty"] for row in rows] == [float(used)]
        assert f"penalty {used}, 20 blocks" in cleverscore("export", run, "--format", "card").stdout
        assert f"penalty {used}, 20 blocks" in cleverscore("show", run).stderr
        cleverscore("report", run, "--out", tmp_path / "page.html")
        assert f"<dt>penalty of the fit</dt><dd>{used}</dd>" in (tmp_path / "page.html").read_text()
    assert "0.01, as in the authors' program" in " ".join(cleverscore("score", "--help").stdout.split())


def test_a_radius_for_each_norm(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["score", "zoo:mnist-mlp", "zoo:mnist", "--norm", 2, "--norm", "inf", "--limit", 2, *FEW, "--out", run]
    assert cleverscore(*command, "--radius", 4, "--radius", "inf=0.01").returncode == 0
    table = pd.read_csv(io.StringIO(cleverscore("export", run).stdout), dtype={"norm": str})
    assert set(table[table.norm == "2"].radius) == {4.0} and set(table[table.norm == "inf"].radius) == {0.01}
    assert table[table.norm == "inf"].score.max() <= 0.01
    assert "radius 4 (l2), 0.01 (linf)" in cleverscore("show", run).stderr
    again = cleverscore(*command, "--radius", "inf=0.01", "--radius", 4)
    assert again.returncode == 0 and "4 of 4 scores are there already" in again.stderr
    other = cleverscore(*command, "--radius", 4)
    assert other.returncode == 2 and "radius: '2=4.0,inf=0.01' then, 4.0 now" in other.stderr
    wrong = cleverscore(*command, "--radius", "inf=much")
    assert wrong.returncode == 2 and "norm=number as in inf=0.3" in wrong.stderr
    with Store.open(run) as store:
        assert repeat_command(StudyConfig.stored(store)).count("--radius") == 2


def test_data_that_does_not_fit_the_model_is_told(tmp_path: Path, mnist: tuple) -> None:
    images, labels = mnist
    np.savez(tmp_path / "odd.npz", x=images[:6], y=(labels[:6] + 3) % 10)
    done = cleverscore("score", "zoo:mnist-mlp", tmp_path / "odd.npz", "--targets", "runner_up", *FEW, folder=tmp_path)
    assert "only 0 of 6 inputs are classified correctly" in done.stderr and done.returncode == 0
    assert "* 6 of 6 inputs are misclassified" in done.stdout
    said = cleverscore("inspect", "zoo:mnist-mlp", tmp_path / "odd.npz").stdout
    assert "6 inputs, values from 0 to 1, labels from" in said and "is preprocessing missing" in said
    np.savez(tmp_path / "ones.npz", x=images[:6], y=np.arange(5, 11))
    for command in ("inspect", "score"):
        told = cleverscore(command, "zoo:mnist-mlp", tmp_path / "ones.npz", folder=tmp_path)
        assert told.returncode == 2 and "subtract 1 if labels start at 1" in told.stderr
    np.savez(tmp_path / "last.npz", x=images[:6].transpose(0, 2, 3, 1))
    told = cleverscore("score", "zoo:mnist-mlp", tmp_path / "last.npz", folder=tmp_path)
    assert told.returncode == 2 and "x.transpose(0, 3, 1, 2)" in told.stderr


def expects_normalised() -> torch.nn.Module:
    return Normalised(1, "0.5", "0.5")


def test_normalisation_that_does_not_fit_is_told(tmp_path: Path) -> None:
    images = (pixels(20, 1) < 0.5).astype(np.float32)
    data = npz(tmp_path / "pixels.npz", x=images, y=expects_normalised().labels(images))
    common = ["--targets", "runner_up", "--preset", "paper", "--method", "sharp"]
    command = ["score", "tests.cli.test_cli:expects_normalised", data, "--bounds", "0,1", *common]
    done = cleverscore(*command, "--out", tmp_path / "raw")
    (warning,) = [line for line in done.stderr.splitlines() if "classified correctly" in line]
    assert "; with --mean 0.5 --std 0.5 accuracy on 20 inputs would be 100% instead of " in warning, warning
    assert "does the model expect normalised images?" in warning and "weights" not in warning
    right = cleverscore(*command, "--mean", "0.5", "--std", "0.5", "--out", tmp_path / "right")
    assert right.returncode == 0 and "classified correctly" not in right.stderr, right.stderr
    normalised = npz(tmp_path / "normalised.npz", x=2.5 * images[:1] - 0.4)
    done = cleverscore(*command[:2], normalised, *common, "--out", tmp_path / "free")
    assert done.returncode == 0 and "inputs reach from -0.4 to 2.1: if they are normalised images" in done.stderr


def test_inspect_says_what_was_understood() -> None:
    done = cleverscore("inspect", "zoo:mnist-cnn", "zoo:mnist")
    for words in ("312,202", "1 x 28 x 28", "0 to 1", "classes  10", "accuracy", "crown has bounds for every layer"):
        assert words in done.stdout, done.stderr


def npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


GOOD = np.full((2, 1, 28, 28), 0.5, np.float32)


@pytest.mark.parametrize(
    ("model", "data", "extra", "words"),
    [
        ("tests.bad_models:softmax", {"x": GOOD}, [], "probabilities"),
        ("zoo:mnist-mlp", {"x": GOOD * np.nan}, [], "input 0 holds NaN"),
        ("zoo:mnist-mlp", {"x": GOOD[:0]}, [], "empty"),
        ("zoo:mnist-mlp", {"x": GOOD + 1}, [], "outside the bounds"),
        ("zoo:mnist-mlp", {"y": np.zeros(2)}, [], "no array 'x'"),
        ("zoo:mnist-mlp", {"images": GOOD}, [], "np.savez(file, x=inputs, y=labels)"),
        ("zoo:mnist-mlp", {"x": GOOD, "y": np.zeros(3, int)}, [], "one whole number each"),
        ("zoo:mnist-mlp", {"x": GOOD, "y": np.full(2, 10)}, [], "classes 0 to 9"),
        ("tests.bad_models:linear", {"x": GOOD}, ["--targets", "0,1,2,3,4,5,6,7,8,9"], "is the predicted class"),
        ("zoo:mnist-mlp", {"x": GOOD}, ["--norm", "0.5"], "p >= 1"),
        ("zoo:mnist-mlp", {"x": GOOD}, ["--radius", "0"], "radius"),
        ("zoo:mnist-mlp", {"x": GOOD}, ["--radius", "-1"], "radius"),
        ("zoo:mnist-mlp", {"x": GOOD}, ["--preset", "paper", "--blocks", "0"], "blocks"),
        ("zoo:mnist-mlp", {"x": GOOD}, ["--index", "5"], "rows 0 to 1"),
        ("zoo:mnist-mlp", {"x": GOOD}, ["--index", "a"], "3,17,40-49"),
        ("zoo:mnist-mlp", {"x": GOOD}, ["--bounds", "a,b"], "list of numbers"),
        ("zoo:mnist-mlp", {"x": GOOD}, ["--method", "magic"], "choose one of"),
        ("tests.bad_models:three_channels", {"x": GOOD}, [], "cannot take inputs of shape (1, 28, 28)"),
        ("zoo:mnist-mlp", {"x": np.zeros((2, 3, 28, 28), np.float32)}, [], "the model takes (1, 28, 28)"),
        ("tests.bad_models:rank_three", {"x": GOOD}, [], "shape (2, 1, 10)"),
        ("tests.bad_models:failing", {"x": GOOD}, [], "no weights today"),
        ("tests.bad_models:number", {"x": GOOD}, [], "is a int"),
        ("tests.bad_models:absent", {"x": GOOD}, [], "has no 'absent'"),
        ("no_such_package:model", {"x": GOOD}, [], "cannot be imported"),
        ("zoo:resnet", {"x": GOOD}, [], "choose one of"),
        ("model.xyz", {"x": GOOD}, [], "'model.xyz' does not exist"),
        ("tests.bad_models:linear?weights=absent.safetensors", {"x": GOOD}, [], "do not exist"),
        ("zoo:mnist-mlp", None, [], "does not exist"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    model: str, data: dict | None, extra: list[str], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "absent.npz" if data is None else npz(tmp_path / "data.npz", **data)
    done = cleverscore("score", model, path, "--out", tmp_path / "run", *FEW, *extra)
    assert done.returncode == 2, done.stdout + done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    assert words in sentence and sentence.lower().startswith("error:"), done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert not (tmp_path / "run").exists()


def test_files_that_are_no_data_or_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"not a zip file at all")
    (tmp_path / "data.txt").write_text("1 2 3")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_bytes(b"junk" * 1000)
    for arguments, words in (
        (["score", "zoo:mnist-mlp", tmp_path / "bad.npz"], "not an npz file that can be read"),
        (["score", "zoo:mnist-mlp", tmp_path / "data.txt"], "give zoo:NAME"),
        (["show", tmp_path], "holds no run"),
        (["export", tmp_path / "absent"], "holds no run"),
        (["show", tmp_path / "broken"], "not a run that can be read"),
    ):
        done = cleverscore(*arguments)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_newer_store_is_refused(full_run: tuple, tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", {"config": {}}) as store:
        store._connection.execute("PRAGMA user_version = 99")
    done = cleverscore("show", tmp_path / "run")
    assert done.returncode == 2 and "newer cleverscore" in done.stderr


def test_help_and_version() -> None:
    assert "score" in in_a_new_process("--help").stdout
    assert cs.__version__ in cleverscore("--version").stdout
    unknown = in_a_new_process("unknown")
    assert unknown.returncode == 2
    assert unknown.stderr.splitlines()[0].startswith("error: No such command") and "--help" in unknown.stderr
    absent = in_a_new_process("show", "no/such/run")
    assert absent.returncode == 2 and absent.stderr.startswith("error: no/such/run holds no run")


def test_what_people_get_wrong_is_said_first(tmp_path: Path, mnist: tuple) -> None:
    images, labels = mnist
    np.savez(tmp_path / "bytes.npz", x=255.0 * images[:20], y=(labels[:20] + 3) % 10)
    name = "tests.bad_models:linear"
    done = cleverscore("score", name, tmp_path / "bytes.npz", "--targets", "runner_up", *FEW, folder=tmp_path)
    first = done.stderr.splitlines()[0]
    assert "look like pixels: give --bounds 0,255" in first, done.stderr
    assert "are the weights loaded" in done.stderr
    told = cleverscore("inspect", name, tmp_path / "bytes.npz")
    assert f"next  cleverscore score {name} {tmp_path / 'bytes.npz'} --bounds 0,255" in told.stdout, told.stderr
    assert "are the weights loaded" in told.stdout


def test_radius_auto_is_in_units_of_the_box_and_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["score", "zoo:mnist-mlp", "zoo:mnist", "--norm", 2, "--norm", "inf", "--limit", 1, *FEW, "--out", run]
    assert cleverscore(*command, "--radius", "auto", "--targets", "runner_up").returncode == 0
    table = pd.read_csv(io.StringIO(cleverscore("export", run).stdout), dtype={"norm": str})
    assert dict(zip(table.norm, table.radius, strict=True)) == {"2": 5.0, "inf": 0.3}
    assert "radius 5 (l2), 0.3 (linf)" in cleverscore("show", run).stderr


def test_the_default_preset_gives_three_columns_for_twenty_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((25, 6)))
    run = tmp_path / "run"
    done = cleverscore("score", "tests.bad_models:affine", tmp_path / "data.npz", "--bounds", "-20,20", "--out", run)
    assert done.returncode == 0, done.stderr
    header = done.stdout.splitlines()[0].split()
    assert header == ["input", "predicted", "target", "norm", "CLEVER", "sharp", "attack"]
    table = rows(run)
    scores = table[table.target_kind == "untargeted"]
    assert scores.groupby("method").input.nunique().to_dict() == {"paper": 20, "sharp": 20}
    assert set(table.radius) == {200.0}  # 5 times the width of the box
    assert "to do: about" in done.stderr and "--certify crown adds proved distances" in done.stderr
    few = ("score", "tests.bad_models:affine", tmp_path / "data.npz", "--limit", 1)
    assert "add --bounds 0,1" in cleverscore(*few, "--out", tmp_path / "free").stderr
    proved = cleverscore(*few, "--bounds", "-20,20", "--certify", "crown", "--out", tmp_path / "proved")
    assert "certified" in proved.stdout.splitlines()[0] and "nothing is certified" not in proved.stderr
    every = cleverscore("score", "tests.bad_models:affine", tmp_path / "data.npz", "--bounds", "-20,20", "--attack",
                        "none", "--method", "sharp", "--limit", "all", "--out", tmp_path / "all")  # fmt: skip
    assert every.returncode == 0 and "attack" not in every.stdout.splitlines()[0]
    assert rows(tmp_path / "all").input.nunique() == 25
    wrong = cleverscore("score", "tests.bad_models:affine", tmp_path / "data.npz", "--preset", "fast")
    assert wrong.returncode == 2 and "quick, thorough, paper" in wrong.stderr
