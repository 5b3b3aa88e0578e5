"""Is B more robust than A: the statistics, the words, the page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore.errors import InputError
from cleverscore.reporting.compare import compare
from cleverscore.reporting.comparison_text import details, remarks, verdict
from cleverscore.reporting.findings import findings
from cleverscore.reporting.html import page as page_module
from cleverscore.reporting.html.comparison_page import OTHER_COLORS
from cleverscore.runs.results import StudyConfig
from cleverscore.runs.store import Store
from cleverscore.runs.study import Study, fingerprint_model
from cleverscore.tails.paired_tests import difference
from tests.browser import Browser
from tests.helpers import cleverscore
from tests.stored_runs import add_bounds, made_run


def read(run: Path) -> object:
    with Store.open(run) as store:
        return findings(store)


def test_a_shift_is_told_and_its_direction_is_right() -> None:
    generator = np.random.default_rng(0)
    first = generator.uniform(0.2, 1.0, 80)
    up = difference(first, first * generator.normal(1.15, 0.1, 80))
    assert up.verdict == 1 and up.mean.low > 0.0 and up.above > up.below
    down = difference(first, first * generator.normal(0.85, 0.1, 80))
    assert down.verdict == -1 and down.mean.high < 0.0
    # The other way round everything changes its sign.
    back = difference(first * 0.9, first)
    there = difference(first, first * 0.9)
    assert back.mean.value == pytest.approx(-there.mean.value) and back.above == there.below


def test_false_alarms_are_rarer_than_the_level_says() -> None:
    generator = np.random.default_rng(1)
    alarms = 0
    trials = 400
    for _ in range(trials):
        noise = generator.standard_t(3, size=40)  # heavy tails, as differences of scores have
        alarms += difference(np.zeros(40), noise).verdict != 0
    # 5% would be 20 of 400; both tests must agree, so fewer. More than 30 has a probability of 1% at 5%.
    assert alarms <= 30


def test_what_is_promised_to_be_needed_is_enough() -> None:
    """With as many inputs as are asked for, four differences in five are told."""
    generator = np.random.default_rng(2)
    pilot = generator.normal(0.3, 1.0, 4000)
    needed = difference(np.zeros(4000), pilot).inputs_needed
    assert needed is not None and 60 < needed < 400
    told = [difference(np.zeros(needed), generator.normal(0.3, 1.0, needed)).verdict == 1 for _ in range(150)]
    assert np.mean(told) == pytest.approx(0.8, abs=0.1)
    none = difference(np.zeros(50), np.concatenate([np.full(25, 1.0), np.full(25, -1.0)]))
    assert none.verdict == 0 and none.inputs_needed is None


def test_more_blocks_help_only_against_sampling_noise() -> None:
    generator = np.random.default_rng(3)
    change = generator.normal(0.1, 0.5, 30)
    change += 0.1 - change.mean()
    sampling = difference(np.zeros(30), change, noise=np.full(30, change.var(ddof=1)))
    assert sampling.verdict == 0 and sampling.blocks_factor is not None and sampling.blocks_factor > 1.0
    # n (mean / reach)^2 is what the variance must come down to; reach is 1.960 + 0.842.
    assert sampling.blocks_factor == pytest.approx(change.var(ddof=1) / (30 * (0.1 / 2.8016) ** 2), rel=1e-3)
    assert difference(np.zeros(30), change, noise=np.full(30, 1e-4)).blocks_factor is None


def test_few_inputs_and_ties_tell_nothing() -> None:
    assert difference(np.zeros(5), np.ones(5)).verdict == 0  # the sign test of five inputs cannot reach 5%
    assert difference(np.ones(30), np.ones(30)).verdict == 0
    assert difference(np.ones(0), np.ones(0)).verdict == 0


def test_the_same_model_with_another_seed_cannot_be_told(tmp_path: Path) -> None:
    images, labels = cs.load_data("zoo:mnist")
    classifier = cs.load_model("zoo:mnist-mlp")
    for name, seed in (("a", 0), ("b", 1)):
        config = StudyConfig(
            "zoo:mnist-mlp", "zoo:mnist", targets="runner_up", blocks=20, block_size=4, seed=seed,
            model_fingerprint=fingerprint_model(classifier), data_fingerprint="mnist",
        )  # fmt: skip
        assert labels is not None
        study = Study(config, classifier, images[:20], labels[:20], range(20))
        with study.open_store(tmp_path / name) as store:
            study.run(store)
    done = cleverscore("compare", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 0 and "It cannot be told" in done.stdout and "the same model" in done.stdout
    # The statistics say so by themselves as well.
    (pairing,) = compare(read(tmp_path / "a"), read(tmp_path / "b"))
    assert pairing.difference.count == 20 and pairing.difference.verdict == 0
    assert np.abs(pairing.first - pairing.second).max() > 0.0


def trained(images: torch.Tensor, labels: torch.Tensor, *, step: float) -> torch.nn.Module:
    """A small network, trained on inputs moved by an l2 step of this length along the gradient of its loss."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 32), torch.nn.Softplus(), torch.nn.Linear(32, 10)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.nn.CrossEntropyLoss()
    for _ in range(60):
        moved = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(model(moved), labels), moved)
        length = gradient.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, 1, 1, 1)
        optimiser.zero_grad()
        loss(model((images + step * gradient / length).detach()), labels).backward()
        optimiser.step()
    return model.eval()


def way_out(model: torch.nn.Module, images: torch.Tensor) -> float:
    """Median length of a step along the loss's gradient that changes the class."""
    x = images.clone().requires_grad_()
    outputs = model(x)
    predicted = outputs.argmax(1)
    (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(outputs, predicted), x)
    direction = gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    lengths = torch.linspace(0.0, 10.0, 201)
    with torch.no_grad():
        changed = torch.stack([model(images + length * direction).argmax(1) != predicted for length in lengths])
    return float(lengths[changed.float().argmax(0)].median())


def test_an_adversarially_trained_model_is_told_from_a_plain_one(tmp_path: Path, mnist: tuple) -> None:
    images, labels = torch.from_numpy(mnist[0]), torch.from_numpy(mnist[1])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # batches this small lose more than they gain by being shared out
    models = {"plain": trained(images, labels, step=0.0), "trained": trained(images, labels, step=1.5)}
    torch.set_num_threads(threads)
    assert way_out(models["trained"], images[:30]) > 1.2 * way_out(models["plain"], images[:30])
    for name, model in models.items():
        classifier = cs.Classifier(model, bounds=(0.0, 1.0))
        config = StudyConfig(
            name, "zoo:mnist", targets="runner_up", blocks=20, block_size=16,
            model_fingerprint=fingerprint_model(classifier), data_fingerprint="mnist",
        )  # fmt: skip
        study = Study(config, classifier, mnist[0][:30], mnist[1][:30], range(30))
        with study.open_store(tmp_path / name) as store:
            study.run(store)
    for order, words in (
        (("plain", "trained"), "B is more robust than A"),
        (("trained", "plain"), "A is more robust than B"),
    ):
        done = cleverscore("compare", *(tmp_path / name for name in order))
        assert words in done.stdout, done.stdout + done.stderr


def test_made_models_are_told_apart(tmp_path: Path) -> None:
    a = made_run(tmp_path / "a", inputs=40, model="a", noise_seed=1)
    b = made_run(tmp_path / "b", inputs=40, model="b", noise_seed=2, factor=1.3)
    c = made_run(tmp_path / "c", inputs=40, model="c", noise_seed=3, factor=0.7)
    done = cleverscore("compare", a, b, c, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    for words in ("B is more robust than A in the l2 norm", "A is more robust than C in the linf norm"):
        assert words in done.stdout
    assert "in norm 2 6 inputs count as 0 for A and 6 for B" in done.stdout  # every seventh is misclassified
    (pairing, _) = compare(read(a), read(b))
    assert not pairing.first[::7].any() and pairing.first[1:7].all()
    without = cleverscore("compare", a, b, "--exclude-misclassified").stdout
    assert "6 inputs were left out of A and B" in without and "count as 0" not in without
    (pairing, _) = compare(read(a), read(b), exclude_misclassified=True)
    assert not any(i % 7 == 0 for i in pairing.ids)
    most = pairing.changed_most(3)
    gaps = np.abs(pairing.second - pairing.first)
    assert gaps[most].tolist() == sorted(gaps.tolist(), reverse=True)[:3]
    assert f"#{pairing.ids[most[0]]} (" in done.stdout


def test_attacks_and_certificates_speak_too(tmp_path: Path) -> None:
    a = add_bounds(made_run(tmp_path / "a", inputs=40, model="a", norms=("2",), noise_seed=1))
    b = add_bounds(made_run(tmp_path / "b", inputs=40, model="b", norms=("2",), noise_seed=2, factor=1.3))
    (pairing,) = compare(read(a), read(b))
    assert pairing.verdicts == {"score (paper)": 1, "best attack": 1, "certificate": 1} and pairing.verdict == 1
    assert pairing.change.value == pytest.approx(0.3, abs=0.1) and pairing.change.low > 0.0
    assert verdict(pairing).startswith("B is more robust than A in the l2 norm: B's mean score (paper) is 3")
    assert verdict(pairing).count(".") < 6 and remarks(pairing) == []  # one sentence
    lines = details(pairing)
    assert [line.split(":")[0] for line in lines[:3]] == ["score (paper)", "best attack", "certificate"]
    assert lines[3].startswith("robust accuracy at epsilon") and "attacked" in lines[3]
    # Attacks that say the opposite of the scores: neither is called more robust.
    against = replace(pairing.further[0], difference=replace(pairing.further[0].difference, verdict=-1))
    contradicted = replace(pairing, further=(against, *pairing.further[1:]))
    assert contradicted.verdict == 0 and "gradients may be masked" in remarks(contradicted)[0]
    assert "the score (paper) and the certificate speak for B, the best attack for A" in verdict(contradicted)
    # Scores that cannot tell, and attacks that can.
    silent = replace(pairing, difference=replace(pairing.difference, verdict=0), further=pairing.further[:1])
    assert silent.verdict == 1 and remarks(silent) == ["The score (paper) alone would not tell."]
    assert "B's mean distance of the best attack is " in verdict(silent)


def test_noise_alone_between_different_models_cannot_be_told(tmp_path: Path) -> None:
    a = made_run(tmp_path / "a", inputs=40, model="a", noise_seed=1)
    b = made_run(tmp_path / "b", inputs=40, model="b", noise_seed=2)
    for pairing in compare(read(a), read(b)):
        words = verdict(pairing)
        assert pairing.verdict == 0 and words.startswith("It cannot be told whether B is more robust than A")
        assert "B's mean score (paper) is " in words and "interval" in words
        (advice,) = remarks(pairing)
        assert "would be told by about" in advice or "would not be told" in advice


def test_inputs_of_one_run_only_are_counted(tmp_path: Path) -> None:
    first, second = (
        made_run(tmp_path / name, model=f"made:{name}", inputs=count) for name, count in (("a", 9), ("b", 7))
    )
    assert "note: 2 inputs are in one of A and B only, norm 2" in cleverscore("compare", first, second).stdout
    with Store.open(second, write=True) as store, store._connection:
        store._connection.execute("DELETE FROM parts WHERE norm = 'inf'")
    done = cleverscore("compare", first, second)
    assert done.returncode == 2 and "unfinished: 7 of 14 scores" in done.stderr


def test_runs_that_measure_different_things_are_refused(tmp_path: Path) -> None:
    a = made_run(tmp_path / "a")
    for name, options, words in (
        ("b", {"targets": "runner_up"}, f"{a} has targets untargeted and {tmp_path / 'b'} has targets runner_up"),
        ("c", {"norms": ("1",)}, f"no norm in common ({a} has l2, linf; {tmp_path / 'c'} has l1)"),
    ):
        other = made_run(tmp_path / name, **options)
        done = cleverscore("compare", a, other)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    assert cleverscore("compare", a).returncode == 2


def test_other_data_are_named(tmp_path: Path) -> None:
    a = made_run(tmp_path / "a", data="digits.npz")
    for name, data, words in (
        ("b", "letters.npz", f"{a} is of the data digits.npz and {tmp_path / 'b'} of letters.npz"),
        ("c", "digits.npz", "both are of the data digits.npz, whose content changed between them"),
    ):
        other = made_run(tmp_path / name, data=data)
        with Store.open(other, write=True) as store:
            store.remember("config", {**store.meta["config"], "data_fingerprint": "other"})
        done = cleverscore("compare", a, other)
        assert done.returncode == 2 and words in done.stderr and "fingerprint" not in done.stderr, done.stderr


def test_equal_scores_are_called_equal(tmp_path: Path) -> None:
    a = made_run(tmp_path / "a", model="a", norms=("2",))
    b = made_run(tmp_path / "b", model="b", norms=("2",))
    done = cleverscore("compare", a, b, "--out", tmp_path / "page.html")
    words = "A and B have equal scores (paper) on all 12 inputs in the l2 norm."
    assert f"{words}\n- score (paper): equal on all 12 inputs, mean" in done.stdout
    assert "cannot be told" not in done.stdout and "changed most" not in done.stdout
    page = (tmp_path / "page.html").read_text()
    assert "<strong>A and B have equal CLEVER scores on all 12 inputs in the l2 norm.</strong>" in page
    assert f"{words}\n- They are the same model.\n" in cleverscore("compare", a, a).stdout


def test_inputs_that_did_not_change_are_not_listed(tmp_path: Path) -> None:
    a = read(made_run(tmp_path / "a", model="a", norms=("2",), noise_seed=1))
    b = read(made_run(tmp_path / "b", model="b", norms=("2",), noise_seed=2))
    (pairing,) = compare(a, b)
    # Inputs 0 and 7 are misclassified by both models, so their scores are 0 in both.
    assert sorted(pairing.changed_most(12)) == [i for i in range(12) if i % 7]


def test_runs_with_other_bounds_compare_no_attacks(tmp_path: Path) -> None:
    a = add_bounds(made_run(tmp_path / "a", inputs=40, model="a", norms=("2",), noise_seed=1, used={"bounds": None}))
    b = add_bounds(made_run(tmp_path / "b", inputs=40, model="b", norms=("2",), noise_seed=2, factor=1.3))
    done = cleverscore("compare", a, b).stdout
    assert "note: A has no input bounds, B has input bounds 0 to 1, so attacks are not compared" in done
    assert "best attack" not in done and "attacked" not in done and "certificate" in done
    boxed = [replace(found, config=replace(found.config, region="box")) for found in (read(a), read(b))]
    with pytest.raises(InputError, match="scores in the region box depend on them"):
        compare(*boxed)
    assert compare(boxed[1], boxed[1])[0].both_attacked


def test_the_page_of_a_comparison(tmp_path: Path) -> None:
    a = add_bounds(made_run(tmp_path / "a", inputs=30, model="<b>a</b>", noise_seed=1))
    b = add_bounds(made_run(tmp_path / "b", inputs=30, model="b", noise_seed=2, factor=1.3))
    page = tmp_path / "page.html"
    assert cleverscore("compare", a, b, "--out", page).returncode == 0
    with Browser(tmp_path / "profile") as browser:
        browser.open(page.as_uri())
        assert browser.run("document.querySelectorAll('#pairs svg[role=img]').length") == 4
        # The verdict comes first, as one sentence; robust accuracy is in the list below it.
        words = browser.run("document.querySelector('.card .verdict').textContent")
        assert words.startswith("B is more robust than A in the l2 norm: B's mean CLEVER score is ")
        assert words.count(" is ") == 2 and words.endswith("%).")
        listed = browser.run(
            "[...document.querySelectorAll('.card:first-child .verdict + ul li')].map(e => e.textContent)"
        )
        assert len(listed) == 1 and listed[0].startswith("Robust accuracy at epsilon")
        rows = browser.run(
            "[...document.querySelectorAll('.card .measures tbody tr')].map(r => r.cells[0].textContent)"
        )
        assert rows == ["CLEVER", "best attack", "certified"] * 2
        # The curves of both runs lie over each other: three lines each.
        assert browser.run("document.querySelectorAll('.robust svg[role=img] path').length") == 12
        # A colour for each model, a style for each kind of line; the keys and the scatter plots say the same.
        each = "e => [e.getAttribute('stroke'), e.getAttribute('stroke-dasharray')]"
        drawn = [tuple(one) for one in browser.run(f"[...document.querySelectorAll('.robust > svg path')].map({each})")]
        keys = [tuple(one) for one in browser.run(f"[...document.querySelectorAll('.robust .key line')].map({each})")]
        assert sorted(map(str, drawn)) == sorted(map(str, keys)) and len(set(drawn)) == 6
        assert {color for color, _ in drawn} == {"var(--model-0)", "var(--model-1)"}
        assert len({dash for _, dash in drawn}) == 3
        points = "[...new Set([...document.querySelectorAll('.pair svg circle')].map(e => e.getAttribute('fill')))]"
        assert browser.run(points) == ["var(--model-1)"]
        marks = "[...document.querySelectorAll('header .model')].map(e => [e.textContent, e.className])"
        assert browser.run(marks) == [["A", "model model-0"], ["B", "model model-1"]]
        assert browser.run("document.querySelectorAll('#pairs tbody tr').length") == 10
        assert browser.run("document.querySelectorAll('canvas').length") == 10
        assert browser.run("document.querySelectorAll('header b').length") == 0
        assert "B is more robust than A" in browser.run("document.body.innerText")
        assert browser.troubles() == [] and browser.requests() == [page.as_uri()]


def test_a_comparison_fits_a_narrow_window(tmp_path: Path) -> None:
    a = add_bounds(made_run(tmp_path / "a", inputs=30, model="package.module:" + "factory" * 9, noise_seed=1))
    b = add_bounds(made_run(tmp_path / "b", inputs=30, model="b", noise_seed=2, factor=1.3))
    page = tmp_path / "page.html"
    assert cleverscore("compare", a, b, "--out", page).returncode == 0
    with Browser(tmp_path / "profile") as browser:
        for width in (390, 800, 1440):
            browser.open(page.as_uri(), width=width)
            assert browser.run("document.documentElement.scrollWidth") <= width
            assert cut_tables(browser) == []
            # The measures are read in full, without scrolling.
            cells = "[...document.querySelectorAll('.measures td')].map(e => e.getBoundingClientRect().right)"
            assert max(browser.run(cells)) <= width


def cut_tables(browser: Browser) -> list[str]:
    """Tables of which a part can be neither seen nor scrolled to: wider than all that contains them lets them be."""
    return browser.run(
        """[...document.querySelectorAll('table')].filter(table => {
            for (let box = table.parentElement; box !== document.body; box = box.parentElement) {
                const room = getComputedStyle(box).overflowX;
                if (room === 'auto' || room === 'scroll') return box.getBoundingClientRect().right > innerWidth;
            }
            return table.getBoundingClientRect().right > innerWidth;
        }).map(table => table.textContent.slice(0, 60))"""
    )


def test_the_colors_of_models_can_be_told_apart_with_any_colour_vision() -> None:
    """A's colour and that of each other run, as seen with the three kinds of dichromacy (Machado et al., 2009)."""
    style = (Path(page_module.__file__).parent / "page.css").read_text()
    starts = [style.index(":root {"), style.index(':root[data-theme="dark"] {')]
    for start in starts:
        colors = dict(re.findall(r"--(model-\d|paper): (#\w{6});", style[start : style.index("}", start)]))
        first = colors["model-0"]
        assert len(colors) == 2 + OTHER_COLORS and all(color in style for color in colors.values())
        for name, color in colors.items():
            if name not in ("model-0", "paper"):
                for vision in VISIONS.values():
                    assert np.linalg.norm(lab(first, vision) - lab(color, vision)) > 30.0, (name, vision)


VISIONS = {
    "all colours": np.eye(3),
    "no red": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "no green": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "no blue": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
}


def lab(color: str, vision: np.ndarray) -> np.ndarray:
    """A colour in CIELAB, where the just noticeable difference is about 2.3."""
    parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = vision @ np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(linear, 0.0, 1.0) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
