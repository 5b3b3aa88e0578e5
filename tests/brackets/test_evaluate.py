"""evaluate(): everything in one call, by presets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.brackets.presets import PRESETS, preset_of
from cleverscore.errors import SettingError
from cleverscore.inputs.radius import auto_radius


def made(**options: object) -> tuple[cs.Classifier, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 4))
    return cs.Classifier(
        model, bounds=(0.0, 2.0), class_names=["cat", "dog", "a very long name", "bird"], **options
    ), torch.rand(3, 6)


def test_quick_gives_a_bracket_of_everything() -> None:
    classifier, x = made()
    found = cs.evaluate(classifier, x, norms=[2, "inf"], certificates=["crown"])
    assert found.method == "paper" and [other.method for other in found.others] == ["sharp"] and len(found) == 6
    assert np.isfinite(found.lower).all() and (found.lower <= found.others[0].score * (1 + 1e-4)).all()
    assert {(row.p, row.radius) for row in found.rows} == {(2.0, 10.0), (float("inf"), 0.6)}
    header = str(found).splitlines()[0].split()
    assert header == ["input", "predicted", "target", "norm", "certified", "CLEVER", "sharp", "attack"]
    assert {"cat", "dog", "a very long.", "bird"} & set(str(found).replace("a very long.", "bird").split())
    assert set(found.to_frame().method) == {"paper", "sharp"}
    labels = cs.plots.robust_accuracy(found, p=2.0).get_legend_handles_labels()[1]
    assert labels[:3] == ["certified", "estimated (sharp)", "attacked"]


def test_misclassified_inputs_count_as_0_in_the_medians_below_the_table() -> None:
    classifier, x = made()
    few = {"blocks": 12, "block_size": 8}
    labels = classifier(x).argmax(1)
    right, wrong = (
        next(line for line in str(cs.evaluate(classifier, x, labels=y, **few)).splitlines() if "medians over" in line)
        for y in (labels, [int(labels[0]), *((labels[1:] + 1) % 4).tolist()])
    )
    assert "CLEVER 0," not in right and "sharp 0," not in right
    assert wrong.endswith("CLEVER 0, sharp 0, attack 0")


def test_any_part_of_a_preset_can_be_replaced() -> None:
    classifier, x = made()
    found = cs.evaluate(classifier, x, methods=["paper"], attacks=[], blocks=12, block_size=8, radius=1.5)
    assert not found.others and np.isnan(found.upper).all() and {row.radius for row in found.rows} == {1.5}
    assert {row.fit.blocks for row in found.rows} == {12}
    paper = PRESETS["paper"]
    assert (paper.blocks, paper.block_size, paper.radius, paper.tolerance) == (500, 1024, None, None)
    assert preset_of("quick", blocks=7).blocks == 7 and preset_of(paper) is not None


def test_scores_certificates_and_attacks_are_about_valid_inputs_where_there_are_bounds() -> None:
    classifier, x = made()
    classifier.module[0].weight.data.mul_(8.0)  # near decision boundaries
    x[:, :3] = 0.0  # at a bound, so that the regions differ
    few = {"blocks": 12, "block_size": 8, "attacks": [], "methods": ["sharp"], "certificates": ["crown"]}
    found, ball, paper = (
        cs.evaluate(classifier, x, norms=["inf"], **few, **options)
        for options in ({}, {"region": "ball"}, {"preset": "paper", "radius": "auto"})
    )
    alone = {"p": "inf", "radius": "auto"}
    assert found.score.tolist() == cs.clever(classifier, x, method="sharp", region="box", **alone).values.tolist()
    assert (
        ball.score.tolist() == paper.score.tolist() == cs.clever(classifier, x, method="sharp", **alone).values.tolist()
    )
    assert (found.score > 1.02 * ball.score).any() and (found.lower > 1.02 * ball.lower).any()
    free = cs.Classifier(classifier.module)
    assert cs.evaluate(free, x, norms=["inf"], **{**few, "radius": 0.6}).score == pytest.approx(ball.score, rel=1e-3)


@pytest.mark.parametrize("options", [{"preset": "fast"}, {"norms": "inf"}, {"radius": "large"}])
def test_what_does_not_exist_is_refused(options: dict) -> None:
    classifier, x = made()
    with pytest.raises(SettingError):
        cs.evaluate(classifier, x, **options)


def test_radius_auto_of_a_single_score() -> None:
    classifier, x = made()
    scores = cs.clever(classifier, x, p="inf", radius="auto", blocks=12, block_size=8)
    assert {score.radius for score in scores} == {2.0 * auto_radius("inf")}
