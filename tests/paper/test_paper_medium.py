"""The paper's middle size in the smallest sizes: units, their order, their bytes, what is eliminated, and the page."""

from __future__ import annotations

import csv
import io
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore import tails
from cleverscore.inputs.examples import Example
from cleverscore.models.margin_gradients import margin_gradient_norms
from paper import command, sizes, untargeted
from paper.medium import attacks, claims, maxima, plan, run, store, tables
from paper.medium.claims import HOLDS, NOT, UNKNOWN, Claim, Comparison
from paper.medium.page import render
from paper.medium.plan import Unit, all_units, units_of
from paper.medium.results import Drawn, MediumResults
from paper.medium.store import Store, packed
from paper.networks import KINDS, NETWORKS, SMALL, classifier_of, correct_images_of
from paper.sizes import MEDIUM

NOTHING = Path("no-such-folder")
TINY = replace(
    MEDIUM["mnist-mlp"], images=6, blocks=12, block_size=4, preset="quick", cw=20, rate=0.3, ifgsm=10, many=1,
    many_size=4, group=3,
)  # fmt: skip
SIZES = {"mnist-mlp": TINY, "mnist-cnn": replace(TINY, many=0), "mnist-dd": replace(TINY, many=0)}
EARLY = ("accuracy", "maxima", "slope", "cw", "ifgsm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Units of three small networks: block maxima of all, and what the paper has beside them of the MLP."""
    out = tmp_path_factory.mktemp("medium")
    units = [unit for unit in all_units(SIZES) if unit.kind == "maxima" or (unit.kind in EARLY and "mlp" in unit.file)]
    assert len(list(run.run(units, NOTHING, out / "units", sizes=SIZES))) == len(units)
    return out


def results(out: Path, sizes: dict[str, sizes.Size] = SIZES) -> MediumResults:
    return MediumResults(Drawn(Store(out / "units")), sizes, tuple(sizes), False, out)


def test_the_plan_has_the_promised_sizes() -> None:
    promised = {
        "mlp": (100, 100, 1024, 9, 1000),
        "mnist": (50, 100, 128, 9, 500),
        "cifar": (30, 50, 64, 9, 300),
        "mobilenet_v1": (20, 50, 16, 5, 100),
        "imagenet": (10, 30, 16, 5, 100),
    }
    assert set(MEDIUM) == set(NETWORKS)
    for name, size in MEDIUM.items():
        wanted = promised["mlp" if name.endswith("mlp") else name if name in promised else NETWORKS[name].family]
        assert (size.images, size.blocks, size.block_size, size.searches, size.cw) == wanted
        quick = sizes.QUICK[name]
        assert size.images >= quick.images and size.blocks * size.block_size >= quick.blocks * quick.block_size
    assert all(MEDIUM[name].many >= 10 for name in SMALL)


def test_every_image_is_in_one_unit_of_each_question() -> None:
    units = all_units()
    assert len({unit.file for unit in units}) == len(units)
    for name, size in MEDIUM.items():
        for question in plan.questions(name):
            images = [i for unit in units_of(name, question, size) for i in range(unit.start, unit.stop)]
            assert images == list(range(1 if question == "accuracy" else size.images))


def test_first_images_of_all_networks_come_first_and_late_work_last() -> None:
    units = [unit for unit in all_units() if unit.kind != "accuracy"]
    late = [unit.kind in ("sharp", "best") for unit in units]
    assert late == sorted(late)
    early = [unit for unit in units if unit.kind == "maxima"]
    firsts = {name: next(i for i, unit in enumerate(early) if unit.network == name) for name in NETWORKS}
    second = next(i for i, unit in enumerate(early) if unit.start >= 2)
    assert max(firsts.values()) < second
    rest = [unit.network for unit in early[second:]]
    assert list(dict.fromkeys(rest)) == list(plan.ORDER) and len(Counter(rest)) == len(NETWORKS)


def _subject(margins: list[float]) -> Example:
    return Example(torch.zeros(2), 0, 0, 0, tuple(range(1, len(margins) + 1)), tuple(margins))


def test_elimination_keeps_the_smallest_score_and_all_kinds() -> None:
    """Nine targets with the same law of maxima and different margins: far ones end early, no smallest one ever does."""
    lost, blocks = 0, maxima.Blocks(200, 250, 8)
    for seed in range(6):
        sample = 2.0 - np.random.default_rng(seed).weibull(3.0, (9, 250))
        example = _subject([1.0, 1.02, 1.1, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0])

        def draw(targets: tuple[int, ...], at: range, sample: np.ndarray = sample) -> np.ndarray:
            return sample[[target - 1 for target in targets], at.start : at.stop]

        (found,) = maxima.adaptive_maxima(draw, example, (1, 8, 9), blocks, 50.0, 1)
        counts = [len(row) for row in found]
        assert counts[0] == counts[7] == counts[8] == 250  # the three kinds
        lost += sum(count < 200 for count in counts)
        for row, whole in zip(found, sample, strict=True):
            assert (row == whole[: len(row)]).all()
        for penalty in maxima.PENALTIES:
            scores = np.array(example.margins) / tails.fit(sample[:, :200], penalty=penalty).location
            kept = [i for i, count in enumerate(counts) if count >= 200]
            assert scores[kept].min() == scores.min()
    assert lost > 6  # of 36 that may end


def test_both_norms_are_those_of_two_calls() -> None:
    torch.manual_seed(0)
    classifier = cs.Classifier(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 4)))
    points = torch.randn(6, 5)
    found = maxima.both_norms(classifier, points, predicted=0, targets=(1, 3, 1, 3), q=2.0)
    for columns, q in ((found[:, :2], 2.0), (found[:, 2:], 1.0)):
        assert torch.equal(columns, margin_gradient_norms(classifier, points, predicted=0, targets=(1, 3), q=q))


@pytest.mark.parametrize(("question", "method", "norm"), [("maxima-l2", "paper", "2"), ("maxima-linf", "paper", "inf"),
                                                         ("maxima-authors", "released-code", "2")])  # fmt: skip
def test_units_hold_the_maxima_that_scores_come_from(folder: Path, question: str, method: str, norm: str) -> None:
    found = results(folder)
    examples = correct_images_of("mnist-cnn", NOTHING, TINY.images)
    scores = cs.clever(
        classifier_of("mnist-cnn", NOTHING), examples.x, p=norm, method=method, targets="all", blocks=12, block_size=4,
        ids=examples.ids, workers=1, progress=False,
    )  # fmt: skip
    whole = {(row.input, row.target): row.maxima for row in scores.rows}
    samples = found.kept.samples("mnist-cnn", question, norm, SIZES["mnist-cnn"])
    assert {(each.input, each.target) for each in samples} == set(whole)
    for each in samples:
        np.testing.assert_allclose(each.maxima, whole[each.input, each.target][: len(each.maxima)], rtol=1e-5)
        assert each.maxima.dtype == np.float32
    assert Counter(kind for each in samples for kind in each.kinds) == dict.fromkeys(KINDS, TINY.images)


def test_first_images_have_500_blocks(folder: Path) -> None:
    found = results(folder)
    for unit, many in (("maxima-l2", 500), ("maxima-linf", 12)):
        counts = {
            (each.input, len(each.maxima))
            for each in found.kept.samples("mnist-mlp", unit, unit[7:].removeprefix("l"), TINY)
            if each.kinds
        }
        assert counts == {(0, many), *((i, 12) for i in range(1, 6))}
    (table,) = tables.penalties(found)
    assert [cell.images for cell in table.cells] == ["1"] * len(table.cells) and len(table.columns) == 3


def test_a_unit_computed_twice_has_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for unit in all_units(SIZES):
        if unit.network == "mnist-mlp" and unit.start == 0 and unit.kind in EARLY:
            run.finish(unit, NOTHING, tmp_path, SIZES[unit.network])
            assert (tmp_path / unit.file).read_bytes() == (folder / "units" / unit.file).read_bytes(), unit


def test_units_keep_the_shapes_of_their_arrays() -> None:
    arrays = {"one": np.array("text"), "two": np.ones((2, 3), np.float32)}
    assert packed(arrays) == packed(dict(reversed(arrays.items())))


CHILD = """
import sys
from pathlib import Path
from paper.medium import run
from tests.paper.test_paper_medium import NOTHING, SIZES, all_units
units = [unit for unit in all_units(SIZES) if unit.network == "mnist-dd" and unit.kind in ("slope", "maxima")]
for unit, _ in run.run(units, NOTHING, Path(sys.argv[1]), workers=int(sys.argv[2]), sizes=SIZES):
    print(unit.file, flush=True)
"""


def test_killing_it_loses_one_unit_for_each_worker_at_most(tmp_path: Path) -> None:
    workers = 2
    root = Path(__file__).parents[2]
    script = tmp_path / "child.py"
    script.write_text(f"if __name__ == '__main__':\n    {CHILD.strip().replace(chr(10), chr(10) + '    ')}\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    folder = tmp_path / "units"
    child = subprocess.Popen(
        [sys.executable, str(script), str(folder), str(workers)], env=env, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    said = [child.stdout.readline().strip() for _ in range(3)]
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    time.sleep(0.1)
    units = [unit for unit in all_units(SIZES) if unit.network == "mnist-dd" and unit.kind in ("slope", "maxima")]
    whole = [unit for unit in units if Store(folder).has(unit, SIZES["mnist-dd"], None)]
    assert set(said) <= {unit.file for unit in whole}  # what was finished is there
    assert len(list(folder.rglob("*.npz"))) == len(whole)  # and nothing is torn
    assert len(list(folder.rglob("*.part"))) <= workers
    before = {unit: (folder / unit.file).stat().st_mtime_ns for unit in whole}
    todo = [unit for unit in units if unit not in whole]
    assert len(list(run.run(todo, NOTHING, folder, sizes=SIZES))) == len(units) - len(whole)
    assert before == {unit: (folder / unit.file).stat().st_mtime_ns for unit in whole}


def test_torn_files_other_sizes_and_other_weights_are_computed_again(folder: Path, tmp_path: Path) -> None:
    unit = Unit("mnist-mlp", "slope-l2", 0, 3)
    kept = Store(tmp_path)
    (tmp_path / "mnist-mlp").mkdir()
    whole = (folder / "units" / unit.file).read_bytes()
    (tmp_path / unit.file).write_bytes(whole)
    assert kept.has(unit, TINY, None)
    assert not kept.has(unit, replace(TINY, blocks=13), None) and not kept.has(unit, TINY, "other")
    assert kept.has(unit, replace(TINY, cw=21), None)  # which has nothing to do with slopes
    (tmp_path / unit.file).write_bytes(whole[:-40])
    assert not kept.has(unit, TINY, None) and kept.load(unit) is None


class Attacked:
    def __init__(self, success: list[bool]) -> None:
        self.success = np.array(success)
        self.l2 = self.linf = np.where(self.success, 1.0, math.inf)


def test_an_attack_that_fails_is_tried_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def attack(_: object, x: np.ndarray, name: str, **options: object) -> Attacked:
        asked.append((len(x), options["iterations"], options["targets"]))
        return Attacked([[True, False, False], [False, True], [False]][len(asked) - 1])

    monkeypatch.setattr(cs, "attack", attack)
    examples = correct_images_of("mnist-cnn", NOTHING, 3)
    found = attacks.attacked(None, "mnist-cnn", "ifgsm-random", examples, slice(0, 3), TINY)  # type: ignore[arg-type]
    random = [kinds["random"] for kinds in examples.kinds]
    assert asked == [(3, 10, random), (2, 30, random[1:]), (1, 100, random[1:2])]
    assert found["tries"].tolist() == [1, 3, 2]
    assert np.isfinite(found["l2"]).tolist() == [True, False, True]
    assert found["iterations"].tolist() == [8 * 10, 8 * (10 + 30 + 100), 8 * 30]


def test_sharp_scores_and_the_best_attack_are_columns(tmp_path: Path) -> None:
    size = {"mnist-mlp": replace(TINY, images=1)}
    units = [Unit("mnist-mlp", f"{kind}-l2-any", 0, 1) for kind in ("sharp", "best")]
    list(run.run(units, NOTHING, tmp_path / "units", sizes=size))
    (table,) = tables.untargeted(results(tmp_path, size))
    cells = {cell.column: cell for cell in table.cells}
    sharp, best = cells["sharp l2"], cells["best attack l2"]
    assert 0.0 < sharp.ours <= 1.01 * best.ours and sharp.images == best.images == "1"


def written(folder: Path) -> dict[str, bytes]:
    """Everything but the units."""
    paths = [folder / "README.md", *(folder / "tables").iterdir(), *(folder / "figures").iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def test_the_page_comes_from_the_units_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "computed", lambda *_: pytest.fail("computed"))
    page = render(Store(folder / "units"), folder, {}, SIZES)
    made = written(folder)
    text = page.read_text()
    screen = text.split("## What was computed")[0]
    assert screen.count("\n| ") == 12 and "cannot be told at this size" in screen and "The rule." in screen
    assert " ± " in text and "A-D" in text
    names = ("untargeted", "penalties", "ks-l2", "ks-linf", "blocks", "iterations", "targeted-random", "rows", "claims")
    assert {f"{name}.csv" for name in names} <= {path.name for path in (folder / "tables").iterdir()}
    figures = {path.stem for path in (folder / "figures").iterdir()}
    assert {"cone", "planes", "densities", "linf", "ks", "blocks"} <= figures
    render(Store(folder / "units"), folder, {}, SIZES)
    assert made == written(folder)


def test_a_page_without_units_says_so(tmp_path: Path) -> None:
    text = render(Store(tmp_path / "units"), tmp_path, {}, SIZES).read_text()
    assert "0 of 108 units of work are there" in text and "holds**" not in text.split("The rule.")[0]
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"cone", "planes"}


def test_cells_say_how_many_images_they_rest_on(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "units").symlink_to(folder / "units")
    more = {name: replace(size, images=8) for name, size in SIZES.items()}
    (table,) = tables.untargeted(results(tmp_path, more))
    cells = {(cell.network, cell.column): cell for cell in table.cells}
    assert cells["mnist-cnn", "CLEVER, uniform ball l2"].images == "6 of 8"
    (table,) = tables.untargeted(results(folder))
    cell = next(cell for cell in table.cells if cell.column == "CLEVER, uniform ball l2")
    scores = list(tables.values(results(folder), cell.network, "paper", "2", "any").values())
    assert cell.images == "6" and cell.ours == pytest.approx(np.mean(scores))
    assert cell.error == pytest.approx(np.std(scores, ddof=1) / math.sqrt(6))


def test_comparisons_can_be_computed_from_the_exported_rows(folder: Path) -> None:
    found = results(folder)
    rows = list(csv.DictReader(io.StringIO(claims.rows_csv(found))))
    text = claims.claims_csv([claims.defences(found, law) for law in ("released-code", "paper")])
    said = {(row["points"], row["comparison"]): row for row in csv.DictReader(io.StringIO(text))}

    def scores(network: str) -> dict[str, float]:
        return {
            row["image"]: float(row["value"])
            for row in rows
            if (row["network"], row["targets"], row["method"], row["norm"]) == (network, "any", "clever-authors", "l2")
        }

    ours, theirs = scores("mnist-dd"), scores("mnist-cnn")
    both = [ours[i] - theirs[i] for i in ours if i in theirs]
    row = said["authors' points", "MNIST-DD less MNIST-CNN, l2"]
    assert len(both) == int(row["images"]) == 6
    assert float(row["estimate"]) == pytest.approx(np.mean(both), rel=1e-4)
    # Student's t with 5 degrees of freedom, two-sided at 0.05 / 6.
    width = 4.2193 * np.std(both, ddof=1) / math.sqrt(6)
    assert float(row["high"]) - float(row["estimate"]) == pytest.approx(width, rel=1e-3)


def test_the_rule() -> None:
    def claim(*intervals: tuple[float, float], images: int = 9) -> str:
        made = [Comparison("c", images, (low + high) / 2, low, high, least=0.0) for low, high in intervals]
        return Claim("text", "paper", tuple(made)).verdict

    assert claim((0.1, 0.2), (0.3, 0.4)) == HOLDS
    assert claim((0.1, 0.2), (-0.1, 0.4)) == UNKNOWN
    assert claim((0.1, 0.2), (-0.1, 0.4), (-0.3, -0.1)) == NOT
    assert claim((0.1, 0.2), images=4) == UNKNOWN and claim() == UNKNOWN
    some = Claim("text", "paper", (Comparison("a", 9, 0.1, 0.05, 0.2, least=0.0), Comparison("b", 2, 1.0, 0.9, 1.1)))
    assert some.counts == "1 for, 0 against, 1 open (1 with fewer than 5 images)"
    within = Comparison("c", 9, 0.0, -0.05, 0.05, least=-0.1, most=0.1)
    assert (within.side, replace(within, low=0.2, high=0.3).side, replace(within, high=0.3).side) == (1, -1, 0)


def test_shares_need_images_of_every_network() -> None:
    yes, no = [True, True], [True, False]
    made = claims.pooled("c", [dict.fromkeys(range(40), yes), dict.fromkeys(range(10), no)], 1, least=60.0)
    assert (made.images, made.estimate, made.side) == (50, 90.0, 1)
    made = claims.pooled("c", [dict.fromkeys(range(40), yes), dict.fromkeys(range(4), no)], 1, least=60.0)
    assert (made.images, made.side) == (4, 0)


def test_intervals_cover() -> None:
    """Of 2000 intervals at 95% between 93.5% and 96.5% cover: a false alarm in a thousand trials or fewer."""
    rng = np.random.default_rng(0)
    means = [claims.student(rng.normal(1.0, 2.0, 8).tolist(), 1) for _ in range(2000)]
    assert 0.935 < np.mean([low <= 1.0 <= high for _, low, high in means]) < 0.965
    wide = claims.student([1.0, 2.0, 4.0], 10)
    narrow = claims.student([1.0, 2.0, 4.0], 1)
    assert wide[1] < narrow[1] < narrow[2] < wide[2]
    share, low, high = claims.wilson(10, 10, 1)
    assert share == 100.0 and 70.0 < low < 75.0 and high == pytest.approx(100.0)


def test_the_command_continues_and_finds_nothing_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(MEDIUM, "mnist-mlp", TINY)
    monkeypatch.setattr(plan, "questions", lambda name: tuple(q for q in QUESTIONS[name] if q.split("-")[0] in EARLY))
    monkeypatch.setattr("paper.medium.command.render", lambda *_: Path("page"))
    options = ["--medium", "--only", "mnist-mlp", "--data", str(NOTHING), "--out", str(folder)]
    (folder / "units" / "mnist-mlp" / "slope-l2-000-003.npz").unlink()
    assert command.main((), None, options) == 0
    assert "[1/1," in capsys.readouterr().err
    monkeypatch.setattr(run, "computed", lambda *_: pytest.fail("computed again"))
    assert command.main((), None, options) == 0
    said = capsys.readouterr().err
    count = sum(len(units_of("mnist-mlp", q, TINY)) for q in plan.questions("mnist-mlp"))
    assert f"{count} of {count} units" in said and "[1/" not in said


QUESTIONS = {name: plan.questions(name) for name in NETWORKS}


def test_options_of_the_middle_size_need_it(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        command.arguments(None, ["--quick", "--render"])
    assert "--medium" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.arguments(None, ["--medium", "--ray-address", "local"])
    assert "--workers" in capsys.readouterr().err
    assert command.main([untargeted.PRODUCT], None, ["--medium"]) == 2


def test_what_is_kept_in_the_repository_is_usable_and_small() -> None:
    """Every unit is one of the plan, in its size and of the shipped weights, and all together stay below 40 MB."""
    known = {unit.file: unit for unit in all_units()}
    paths = sorted(store.UNITS.rglob("*.npz"))
    assert sum(path.stat().st_size for path in paths) < 40e6
    for path in paths:
        unit = known[path.relative_to(store.UNITS).as_posix()]
        assert Store().has(unit, MEDIUM[unit.network], None), unit
