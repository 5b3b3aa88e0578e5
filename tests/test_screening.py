from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore import maxima
from cleverscore.gradients import margin_gradient_norms, pair_gradient_norms
from cleverscore.heads import Head
from cleverscore.run.local import Processes
from cleverscore.run.store import Store
from cleverscore.run.study import Study, StudyConfig, stored_scores
from cleverscore.screening import Features, Lesson, Observer, Screen
from cleverscore.zoo import networks, shipped

BLOCKS = {"blocks": 96, "block_size": 64}


def mnist(name: str = "mnist-mlp") -> cs.Classifier:
    return cs.Classifier(shipped.network(name), mean=0.5, std=1.0, bounds=(0.0, 1.0))


def image(index: int = 0) -> torch.Tensor:
    return torch.from_numpy(shipped.data("mnist")[0][index : index + 1])


def test_the_end_of_a_network_is_its_cheap_dense_layers() -> None:
    x = image()[0]
    assert Head.of(mnist("mnist-cnn"), x) == Head(0, (1024, 200, 200))
    # The first matrix of an MLP is most of it, so only the last layer counts.
    assert Head.of(mnist(), x) == Head(1, (1024,))
    convolutions = nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.Conv2d(4, 3, 24), nn.Flatten())
    assert Head.of(cs.Classifier(convolutions), x) == Head(0, ())


def test_a_network_that_cannot_be_watched_has_no_end() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.trace(shipped.network("mnist-cnn"), image())
    head = Head.of(cs.Classifier(scripted), image()[0])
    assert head.widths == ()
    logits, seen = head.watched(cs.Classifier(scripted), image())
    assert seen == [] and not logits.requires_grad


def test_watching_changes_neither_logits_nor_the_network() -> None:
    classifier = mnist("mnist-cnn")
    before = copy.deepcopy(classifier.module.state_dict())
    x = image() + 0.1 * torch.randn(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    logits, seen = Head.of(classifier, x[0]).watched(classifier, x)
    assert torch.equal(logits, classifier.logits(x)) and [s.shape[1] for s in seen] == [1024, 200, 200]
    assert all(torch.equal(value, before[name]) for name, value in classifier.module.state_dict().items())
    assert not any(module._forward_pre_hooks for module in classifier.module.modules())


def test_gradients_at_pairs_are_those_of_all_targets() -> None:
    classifier = mnist()
    points = image() + torch.randn(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    every = margin_gradient_norms(classifier, points, predicted=7, targets=range(7), q=2.0)
    targets = torch.tensor([0, 3, 6, 6, 1, 2])
    pairs = pair_gradient_norms(classifier, points, predicted=7, targets=targets, q=2.0)
    assert pairs.numpy() == pytest.approx(every[torch.arange(6), targets].numpy(), rel=1e-5)


@pytest.mark.parametrize(("name", "p"), [("mnist-mlp", 2.0), ("mnist-mlp", math.inf), ("mnist-cnn", math.inf)])
def test_screened_maxima_are_below_the_full_ones_and_mostly_equal(name: str, p: float) -> None:
    classifier = mnist(name)
    settings: dict[str, Any] = {**BLOCKS, "p": p, "targets": [[3]], "progress": False}
    fixed = cs.clever(classifier, image(), **settings)[0]
    screened = cs.clever(classifier, image(), tolerance=0.01, **settings)[0]
    assert len(screened.maxima) == 96 and fixed.gradients == 96 * 64
    assert screened.maxima[:32] == pytest.approx(fixed.maxima[:32], rel=1e-4)
    ratio = screened.maxima[32:] / fixed.maxima[32:]
    assert (ratio <= 1.0001).all() and (ratio > 0.9999).mean() > 0.9
    assert 32 * 64 < screened.gradients < 0.8 * fixed.gradients
    assert screened.value == pytest.approx(fixed.value, rel=0.05)


def test_a_smaller_tolerance_looks_at_more_points() -> None:
    spent = [
        cs.clever(mnist(), image(), p=2, targets=[[3]], tolerance=tolerance, **BLOCKS)[0].gradients
        for tolerance in (0.05, 0.005)
    ]
    assert spent[0] < spent[1] < 96 * 64


def test_without_a_tolerance_and_in_small_blocks_all_gradients_are_computed() -> None:
    for settings in ({**BLOCKS, "tolerance": 0.0}, {"blocks": 64, "block_size": 16, "tolerance": 1e-3}):
        score = cs.clever(mnist(), image(), p=2, targets=[[3]], **settings)[0]
        assert score.gradients == settings["blocks"] * settings["block_size"]


def test_what_is_screened_depends_on_nothing_else(tmp_path: Path) -> None:
    """Other inputs beside it, threads and processes: the same maxima to the last bit."""
    x, y = shipped.data("mnist")
    settings: dict[str, Any] = {**BLOCKS, "p": 2, "tolerance": 1e-3, "targets": "runner_up"}
    together = cs.clever(mnist(), x[:3], workers=2, **settings)
    alone = cs.clever(mnist(), x[1:2], ids=[1], workers=1, **settings)[0]
    assert np.array_equal(alone.maxima, together[1].maxima) and alone.gradients == together[1].gradients
    config = StudyConfig("mlp", "mnist", ("2",), "runner_up", tolerance=1e-3, **BLOCKS)
    study = Study(config, mnist(), x[:3], y[:3], [0, 1, 2])
    with study.open_store(tmp_path / "run") as store:
        study.run(store, executor=Processes(2))
    with Store.open(tmp_path / "run") as store:
        for maxima in (True, False):
            kept = stored_scores(store, maxima=maxima)
            assert [score.gradients for score in kept] == [score.gradients for score in together]
            assert kept.values == pytest.approx(together.values, rel=1e-12)


@pytest.mark.parametrize("kept", [2**25, 2**18])
def test_what_is_screened_does_not_depend_on_chunks(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where a block is screened whole, nor where it is too large for that (2**18 bytes are 83 points)."""
    monkeypatch.setattr(maxima, "SCREENED_BYTES", kept)
    settings: dict[str, Any] = {"p": math.inf, "blocks": 32, "block_size": 256, "tolerance": 1e-3, "targets": [[3]]}
    first, *others = [cs.clever(mnist(), image(), chunk_size=size, **settings)[0] for size in (16, 100, 512)]
    assert first.gradients < 0.9 * 32 * 256
    for other in others:
        assert other.gradients == first.gradients and other.maxima == pytest.approx(first.maxima, rel=1e-6)


def test_of_large_blocks_few_are_computed_whole() -> None:
    settings: dict[str, Any] = {"p": 2, "blocks": 12, "block_size": 1024, "targets": [[3]], "tolerance": 1e-3}
    score = cs.clever(mnist(), image(), **settings)[0]
    assert 4 * 1024 < score.gradients < 8 * 1024


def test_lessons_go_on_where_a_budget_cuts_the_first_blocks() -> None:
    """With a budget of time the first two blocks are drawn alone, too few points to learn from."""
    settings: dict[str, Any] = {**BLOCKS, "p": 2, "targets": [[3, 5]], "tolerance": 1e-3}
    free = cs.clever(mnist(), image(), **settings)
    timed = cs.clever(mnist(), image(), budget="1h", **settings)
    assert [row.gradients for row in timed.rows] == [row.gradients for row in free.rows]
    assert timed[0].gradients < 0.8 * 2 * 96 * 64
    assert timed.values == pytest.approx(free.values, rel=1e-9)


def test_lessons_about_targets_that_left_are_set_aside() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1200, 5, generator=generator)
    norms = (0.3 * values[:, :2]).exp()
    own = torch.stack([values[:, 2:3], values[:, 3:4]], 1)
    early = Lesson(Features(values[:600], own[:600]), norms[:600], (3, 4))
    late = Lesson(Features(values[600:], own[600:, 1:]), norms[600:, 1:], (4,))
    observer = Observer.of(mnist(), image()[0], 7, Head(0, ()))
    both = Screen.learned([early, late], observer, (4,), 0.05)
    alone = Screen.learned([Lesson(Features(values, own[:, 1:]), norms[:, 1:], (4,))], observer, (4,), 0.05)
    assert both is not None and alone is not None and float(both.residual) < 0.01
    assert torch.equal(both.common, alone.common) and torch.equal(both.own, alone.own)


END = 3.41


class Kinked(nn.Module):
    """Its gradient is NaN where the first input is large: sqrt at zero, times zero."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self.end = end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = x[:, :1].clamp_min(self.end) - x[:, :1]
        return torch.cat([x.square().sum(1, keepdim=True) + 0.0 * inside.sqrt(), x[:, 1:2], x[:, 2:3]], 1)


def test_a_broken_gradient_that_is_expected_to_be_large_is_seen() -> None:
    x = torch.tensor([[2.0, 0.1, 0.0, 0.2]])
    settings: dict[str, Any] = {**BLOCKS, "p": 2, "radius": 1.5, "targets": [[1]], "seed": 6}
    with pytest.warns(cs.CleverWarning, match="NaN or infinite"):
        broken = cs.clever(cs.Classifier(Kinked(END)), x, **settings)[0]
    # No point of the first 32 blocks is out there, from which is learned.
    assert np.isfinite(broken.maxima[:32]).all() and not np.isfinite(broken.maxima[32:]).all()
    with pytest.warns(cs.CleverWarning, match="NaN or infinite"):
        screened = cs.clever(cs.Classifier(Kinked(END)), x, tolerance=1e-3, **settings)[0]
    assert math.isnan(screened.value) and screened.gradients < broken.gradients


class Noisy(nn.Module):
    """Gradients of which a forward pass tells next to nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = torch.cos(3e3 * x).sum(1, keepdim=True) / 3e3
        return torch.cat([x.sum(1, keepdim=True) + waves, -x.sum(1, keepdim=True)], 1)


def test_a_screen_that_spares_nothing_is_given_up() -> None:
    settings: dict[str, Any] = {"p": 2, "radius": 5.0, "blocks": 250, "block_size": 64}
    x = torch.full((1, 3), 1.0, dtype=torch.float64)
    fixed = cs.clever(cs.Classifier(Noisy()), x, **settings)[0]
    screened = cs.clever(cs.Classifier(Noisy()), x, tolerance=1e-6, **settings)[0]
    assert screened.gradients > 0.8 * fixed.gradients
    assert np.array_equal(screened.maxima[-100:], fixed.maxima[-100:])


def lesson(norms: torch.Tensor, values: torch.Tensor) -> Lesson:
    return Lesson(Features(values, torch.zeros(len(values), norms.shape[1], 0)), norms, (3,))


def test_what_a_screen_learns_from_has_to_be_sound() -> None:
    observer = Observer.of(mnist(), image()[0], 7, Head(0, ()))
    values = torch.randn(600, 5, generator=torch.Generator().manual_seed(0))
    norms = (0.3 * values[:, :1]).exp()
    screen = Screen.learned([lesson(norms, values)], observer, (3,), 0.05)
    assert screen is not None and float(screen.residual) < 0.01 and screen.deviations == 2.75
    assert Screen.learned([lesson(norms[:500], values[:500])], observer, (3,), 0.05) is None
    assert Screen.learned([lesson(torch.zeros(600, 1), values)], observer, (3,), 0.05) is None
    assert Screen.learned([lesson(norms, values.log())], observer, (3,), 0.05) is None


def test_a_convolutional_network_of_the_paper_is_screened_by_its_dense_layers() -> None:
    torch.manual_seed(0)
    classifier = cs.Classifier(networks.mnist_cnn().eval())
    head = Head.of(classifier, image()[0])
    features = Observer.of(classifier, image()[0], 0, head).features(
        classifier, image().repeat(3, 1, 1, 1), (1, 2), chunk_size=2
    )
    assert features.common.shape == (3, 10 + 55 + 128) and features.own.shape == (3, 2, 4)
