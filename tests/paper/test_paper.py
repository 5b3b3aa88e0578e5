"""The paper's tables and figures, in the smallest sizes: everything but the sizes is what `make paper` runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paper import above, blocks, command, findings, planes, readme, sizes, untargeted, work
from paper.__main__ import PRODUCTS
from paper.networks import KINDS, LARGE, NETWORKS, SMALL, correct_images_of, fingerprint, missing
from paper.radius import METHODS
from paper.results import Results
from paper.tables import Cell, Table, published
from paper.work import Kept, Question, Unit, clever, units_of

TINY = replace(
    sizes.QUICK["mnist-mlp"],
    images=3,
    blocks=12,
    block_size=4,
    cw=20,
    ifgsm=3,
    many=1,
    many_size=1,
    released=1,
    group=2,
)
NOTHING = Path("no-such-folder")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sizes.QUICK, "mnist-mlp", TINY)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All products for one network."""
    out = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sizes.QUICK, "mnist-mlp", TINY)
        assert run(out) == 0
    return out


def run(out: Path, *options: str) -> int:
    return command.main(PRODUCTS, None, ["--only", "mnist-mlp", "--data", str(NOTHING), "--out", str(out), *options])


def results(out: Path) -> Results:
    return Results(Kept(out / "units", NOTHING), sizes.QUICK, ("mnist-mlp",), False, out)


def test_everything_is_written(made: Path) -> None:
    tables = {path.name for path in (made / "tables").iterdir()}
    names = ("untargeted", *(f"targeted-{kind.replace('_', '-')}" for kind in KINDS), "ks", "above", "timing")
    assert {f"{name}.{form}" for name in names for form in ("md", "csv", "tex")} <= tables
    figures = {path.name for path in (made / "figures").iterdir()}
    for name in ("cone", "planes", "densities", "ks", "linf", "blocks"):
        assert {f"{name}.png", f"{name}.svg"} <= figures
    page = (made / "README.md").read_text()
    assert "MNIST-MLP" in page and "## Findings" in page and "Left out" in page
    assert "python -m paper.untargeted --quick --data DATA" in page and " ± " in page


def columns(table: Path) -> list[str]:
    """The header, and the columns of one network."""
    header, *lines = table.read_text().splitlines()
    return [header, *(line.split(",")[1] for line in lines if line.startswith("mnist-mlp,"))]


def test_what_is_shown_was_made_by_this_program(made: Path) -> None:
    """The tables that are shipped have the columns and the notes that the code writes."""
    for path in (made / "tables").glob("*.csv"):
        shipped = command.HERE / "made" / "tables" / path.name
        assert columns(path) == columns(shipped), path.name
        note = path.with_suffix(".md").read_text().split("\n")[0]
        if path.stem not in ("accuracy", "timing"):  # whose notes hold counts
            assert note == shipped.with_suffix(".md").read_text().split("\n")[0]


def test_the_page_is_written_from_what_is_there(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "run", lambda *_: pytest.fail("computed"))
    page = (made / "README.md").read_text()
    (made / "README.md").unlink()
    options = ["--data", str(NOTHING), "--out", str(made)]
    assert command.main([readme.PRODUCT], None, ["--only", "mnist-cnn", *options]) == 0
    assert "MNIST-CNN" in (made / "README.md").read_text()
    assert command.main([readme.PRODUCT], None, ["--only", "mnist-mlp", *options]) == 0
    assert (made / "README.md").read_text() == page


def test_a_table_alone_is_printed(made: Path, capsys: pytest.CaptureFixture) -> None:
    options = ["--only", "mnist-mlp", "--data", str(NOTHING), "--out", str(made)]
    assert command.main([untargeted.PRODUCT], None, options) == 0
    printed, said = capsys.readouterr()
    assert "| MNIST-MLP |" in printed and "untargeted.csv" in said


def test_a_table_says_what_was_computed(made: Path) -> None:
    found = results(made)
    cells = {cell.column: cell for cell in untargeted.cells(found)}
    scores = [row["score"] for row in found.scores("mnist-mlp", "2", "any").values()]
    assert len(scores) == 3 and cells["CLEVER l2"].ours == pytest.approx(np.mean(scores))
    assert cells["CLEVER l2"].paper == 0.819 and cells["CLEVER l2"].sizes == "12 x 4"
    # The smallest over nine targets, and never above any of them.
    rows = found.rows("mnist-mlp", clever("2"))
    assert len(rows) == 27
    for row in rows:
        assert found.scores("mnist-mlp", "2", "any")[row["input"]]["score"] <= row["score"]
    for kind in KINDS:
        assert set(found.scores("mnist-mlp", "2", kind)) == set(found.scores("mnist-mlp", "2", "any"))
    assert "0.819" in (made / "tables" / "untargeted.md").read_text()


def test_all_blocks_give_the_score_itself(made: Path) -> None:
    found = results(made)
    for kind in KINDS:
        rows = found.scores("mnist-mlp", "2", kind, question=blocks.QUESTION).values()
        assert blocks.averages(found, "mnist-mlp", kind)[500] == pytest.approx(np.mean([row["score"] for row in rows]))


def test_a_second_call_computes_nothing(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(work, "run", lambda *_: pytest.fail("computed again"))
    before = (made / "tables" / "untargeted.csv").read_bytes(), (made / "figures" / "blocks.png").read_bytes()
    assert run(made) == 0
    assert before == ((made / "tables" / "untargeted.csv").read_bytes(), (made / "figures" / "blocks.png").read_bytes())
    said = capsys.readouterr().err
    assert "units of work are there already" in said and "[1/" not in said


def test_an_interrupted_run_goes_on(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    whole = work.run

    def breaking(unit: Unit, data: Path) -> work.Rows:
        if len(computed) == 4:
            computed.append("stopped")
            raise KeyboardInterrupt
        computed.append(unit.file)
        return whole(unit, data)

    monkeypatch.setattr(work, "run", breaking)
    assert command.main([untargeted.PRODUCT], None, ["--only", "mnist-mlp", "--out", str(tmp_path)]) == 130
    assert not (tmp_path / "tables").exists()
    assert command.main([untargeted.PRODUCT], None, ["--only", "mnist-mlp", "--out", str(tmp_path)]) == 0
    units = [file for file in computed if file != "stopped"]
    assert len(units) == len(set(units)), "a finished unit was computed again"
    assert (tmp_path / "tables" / "untargeted.csv").read_text() == (made / "tables" / "untargeted.csv").read_text()


def test_a_torn_file_or_other_weights_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path, NOTHING)
    unit = units_of("mnist-mlp", clever("2"), TINY)[0]
    kept.save(unit, [{"input": 0}], 1.0)
    assert kept.rows(unit) == [{"input": 0}]
    assert kept.answers("mnist-mlp", clever("2"), TINY) == []  # its second unit is missing
    (tmp_path / unit.file).write_text('{"weights"')
    assert kept.rows(unit) is None
    kept.save(unit, [], 1.0)
    monkeypatch.setattr(work, "fingerprint", lambda *_: "other")
    assert kept.rows(unit) is None


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert command.main(PRODUCTS, None, ["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "cs.toronto.edu" in said and "resnet50.onnx" in said and "--available" in said
    assert said.count("cs.toronto.edu") == 1 and "CIFAR-MLP, CIFAR-CNN, CIFAR-DD, CIFAR-BReLU: " in said
    assert not missing("mnist-cnn", tmp_path) and len(missing("resnet50", tmp_path)) == 2
    for name in LARGE:
        (tmp_path / f"{name}.onnx").touch()
    (text,) = missing("resnet50", tmp_path)
    assert "no pictures" in text


def test_sizes_of_the_paper_and_what_they_cost(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    for size in sizes.FULL.values():
        assert (size.images, size.blocks, size.block_size, size.preset) == (100, 500, 1024, "paper")
    assert sizes.FULL["mnist-cnn"].cw == 2000 and sizes.FULL["resnet50"].rate == 0.001
    assert run(tmp_path, "--full", "--estimate") == 0
    assert "together about" in capsys.readouterr().err
    for name in SMALL:
        assert sizes.QUICK[name].images >= 20 or name == "mnist-mlp"
    assert all(sizes.QUICK[name].images >= 3 for name in LARGE)


def test_images_are_correctly_classified_and_have_three_targets() -> None:
    found = correct_images_of("mnist-mlp", NOTHING, 5)
    for label, kinds in zip(found.labels, found.kinds, strict=True):
        assert set(kinds) == set(KINDS) and label not in kinds.values()
        assert kinds["random"] not in (kinds["runner_up"], kinds["least_likely"])


def test_published_numbers_are_complete() -> None:
    assert len(published("untargeted")) == 8 * 6
    assert len(published("ks")) == 11 * 6
    assert len(published("above")) == 3 * 12
    assert len(published("targeted")) == 11 * 18
    assert {network for network, _ in published("seconds")} == set(LARGE)
    assert {network for network, _ in published("ks")} == set(NETWORKS)


def test_tables_in_three_forms() -> None:
    cells = (Cell("mnist-mlp", "A l2", 0.5, 0.25, "3", "12 x 4"), Cell("mnist-cnn", "A l2", None, math.nan, "0", "-"))
    table = Table("t", "Title", "Note 5%.", cells, digits=3)
    assert "| MNIST-MLP | 0.250 (0.500) |" in table.markdown() and "| MNIST-CNN | – |" in table.markdown()
    assert "mnist-mlp,A l2,0.5,0.25,,3,12 x 4" in table.csv()
    assert r"MNIST-MLP & 0.250 (0.500) \\" in table.latex() and "tabular" in table.latex()
    assert table.text(0.0012) == "0.0012" and table.text(math.inf) == "∞"


@pytest.mark.parametrize("radius", planes.RADII)
def test_regions_of_the_plane_have_their_exact_shares(radius: float) -> None:
    values, shares = planes.distribution(radius)
    assert shares.sum() == pytest.approx(1.0, abs=1e-12) and len(values) == 7
    drawn = planes.sampled(radius, 200_000)
    for value, share in zip(values, shares, strict=True):
        found = float((np.abs(drawn - value) < 1e-9).mean())
        assert abs(found - share) < 5.0 * math.sqrt(share * (1.0 - share) / len(drawn)) + 1e-9


def test_a_disc_cut_in_half() -> None:
    half = planes.clipped(np.array([[-9.0, -9.0], [9.0, -9.0], [9.0, 9.0], [-9.0, 9.0]]), np.array([1.0, 0.0]), 0.0)
    assert planes.disc_area(half, 2.0) == pytest.approx(2.0 * math.pi)


def test_a_question_may_name_its_radius() -> None:
    one = replace(TINY, images=1, group=1)
    units = {title: units_of("mnist-mlp", clever("inf", method), one)[0] for title, method in METHODS.items()}
    radii = {title: {row["radius"] for row in work.run(unit, NOTHING)} for title, unit in units.items()}
    assert radii == {"radius 5": {5.0}, "radius 0.1": {0.1}, "released code": {3.0}}


def test_an_attack_that_failed_bounds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Results(Kept(NOTHING, NOTHING), sizes.QUICK, LARGE, False, NOTHING)
    scores = {1: {"score": 2.0}, 2: {"score": 2.0}, 3: {"score": 0.5}}
    monkeypatch.setattr(Results, "scores", lambda *_, **__: scores)
    monkeypatch.setattr(Results, "distortions", lambda *_: {1: 1.0, 2: math.inf, 3: 1.0})
    assert above.counts(found, "resnet50", "cw", "2", "random") == (1, 2, 3)
    cell = above.cells(found)[0]
    assert (cell.ours, cell.images) == (50.0, "2 of 3")
    assert "linf 18 of 36 (50%; the paper 0.0% on average" in findings._imagenet(found).figures
    monkeypatch.setattr(Results, "distortions", lambda *_: {1: math.inf})
    assert math.isnan(above.cells(found)[0].ours)


def test_cells_over_fewer_images_say_so() -> None:
    cells = tuple(Cell("mnist-mlp", f"{i}", None, 1.0, images, "-") for i, images in enumerate(("20", "3 of 20", "20")))
    assert "| 1.000 | 1.000 [3 of 20] | 1.000 |" in Table("t", "Title", "Note.", cells).markdown()


def test_other_pictures_are_other_results(tmp_path: Path) -> None:
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "resnet50.onnx").write_bytes(b"weights")
    (tmp_path / "imagenet" / "007_cock.png").write_bytes(b"picture")
    before = fingerprint("resnet50", tmp_path)
    fingerprint.cache_clear()
    assert fingerprint("resnet50", tmp_path) == before
    (tmp_path / "imagenet" / "008_hen.png").write_bytes(b"picture")
    fingerprint.cache_clear()
    assert fingerprint("resnet50", tmp_path) != before


def test_an_accuracy_is_computed_once_its_images_are_there(tmp_path: Path) -> None:
    kept, unit = Kept(tmp_path / "units", tmp_path), units_of("mnist-mlp", Question("accuracy"), TINY)[0]
    rows = [{"accuracy": math.nan, "images": 0, "parameters": 1}]
    kept.save(unit, rows, 1.0)
    assert kept.rows(unit) is not None
    (tmp_path / "mnist").mkdir()
    assert kept.rows(unit) is None


def test_verdicts() -> None:
    words = [findings._share(good, 4) for good in range(5)]
    assert words == [findings.NOT, findings.HARDLY, findings.HALF, findings.MOSTLY, findings.HOLDS]
    assert findings._share(0, 0) == findings.UNKNOWN


def test_questions_have_names_of_their_own() -> None:
    questions = {question for product in PRODUCTS for question in product.needs}
    assert len({question.name for question in questions}) == len(questions)
    assert Question("cw", "any").name == "cw-any"
