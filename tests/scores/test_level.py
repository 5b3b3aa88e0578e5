"""The level of intervals stands wherever an interval does, and an estimate takes what a score takes."""

from __future__ import annotations

import inspect

import numpy as np
import torch

import cleverscore as cs


def curved() -> tuple[cs.Classifier, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    return cs.Classifier(model, bounds=(0.0, 1.0)), torch.rand(2, 6)


def test_tables_and_plots_name_the_level() -> None:
    classifier, images = curved()
    scores = cs.clever(classifier, images, level=0.9, blocks=40, block_size=16, progress=False)
    bracket = cs.bracket(classifier, images, scores, attacks=["ddn:quick"], certificate=None)
    for text in (str(scores), scores.every_target(), str(bracket)):
        assert "90% interval" in text and "95%" not in text
    for axes in (cs.plots.convergence(scores[0]), cs.plots.brackets(bracket)):
        legend = axes.get_legend()
        assert legend is not None
        words = " ".join(text.get_text() for text in legend.get_texts())
        assert "90% interval" in words and "95%" not in words
    wide = cs.clever(classifier, images, level=0.99, blocks=40, block_size=16, progress=False)
    assert (wide.high - wide.low >= scores.high - scores.low).all() and not np.allclose(wide.high, scores.high)


def test_an_estimate_takes_what_a_score_takes() -> None:
    classifier, images = curved()
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(cs.clever).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert cs.estimate(classifier, images, **defaults | {"blocks": 10, "block_size": 8}).gradients == 2 * 2 * 80
    options = {"radius": 0.5, "seed": 3, "tolerance": 0.05, "region": "box", "labels": [0, 1], "ids": [4, 7]}
    assert cs.estimate(classifier, images, blocks=10, block_size=8, **options).gradients == 2 * 2 * 80
