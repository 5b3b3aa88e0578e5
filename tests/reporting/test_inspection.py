"""What `inspect` says of operations that hide gradients or have no bounds, and of normalisation that does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.loading.sources import array_source
from cleverscore.reporting.inspection import (
    USUAL_NORMALISATIONS,
    describe,
    missing_normalisation,
    normalised_hint,
)


class Rounded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.round(x)


@pytest.mark.parametrize(
    ("hidden", "gradients", "certificates"),
    [
        (nn.ReLU(), "nothing in the way", "crown has bounds for every layer"),
        (nn.Mish(), "nothing in the way", "none by crown"),
        (Rounded(), "steps in the way (1 round)", "none by crown"),
    ],
)
def test_operations_that_hide_gradients_or_have_no_bounds_are_named(
    hidden: nn.Module, gradients: str, certificates: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), hidden, nn.Linear(8, 3))
    said = describe(cs.Classifier(model, input_shape=(4,), bounds=(0.0, 1.0)), None)
    assert gradients in said and certificates in said, said


def test_the_time_of_the_default_command_comes_first() -> None:
    classifier = cs.Classifier(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), input_shape=(4,))
    lines = [line.strip() for line in describe(classifier, None).splitlines()]
    times = [line for line in lines if line.startswith(("quick run", "one block", "full run"))]
    assert [line[:9] for line in times] == ["quick run", "one block", "full run "]
    assert "for 20 inputs in one norm" in times[0] and "--preset paper" in times[2]


class Normalised(nn.Module):
    """A linear classifier of images that were normalised before."""

    def __init__(self, channels: int, mean: str, std: str, *, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        # Weights with means of their own: a brightness that is not subtracted decides the class.
        weight = torch.randn(5, channels * 64, generator=generator) + torch.randn(5, 1, generator=generator)
        self.weight = nn.Parameter(weight)
        self.mean, self.std = (torch.tensor([float(v) for v in text.split(",")]).view(-1, 1, 1) for text in (mean, std))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weight.T

    def labels(self, pixels: np.ndarray) -> np.ndarray:
        return self((torch.from_numpy(pixels) - self.mean) / self.std).argmax(1).numpy()


def pixels(count: int, channels: int, *, seed: int = 0) -> np.ndarray:
    """Random images in [0, 1]."""
    generator = np.random.default_rng(seed)
    return generator.uniform(0.0, 1.0, (count, channels, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("channels", "mean", "std"),
    [(channels, mean, std) for channels, usual in USUAL_NORMALISATIONS.items() for mean, std in usual],
)
def test_a_forgotten_normalisation_is_found(channels: int, mean: str, std: str) -> None:
    model = Normalised(channels, mean, std)
    # Black and white, with the mean of the normalisation.
    images = (pixels(150, channels) < model.mean.numpy()).astype(np.float32)
    labels = model.labels(images)
    said = missing_normalisation(cs.Classifier(model, bounds=(0.0, 1.0)), images, labels)
    assert (
        said is not None and f"with --mean {mean} --std {std} accuracy on 100 inputs would be 100% instead of" in said
    )
    # Neither with the normalisation, nor where the data are not in [0, 1], nor by a chance agreement of few inputs.
    values = [[float(v) for v in text.split(",")] for text in (mean, std)]
    given = cs.Classifier(model, bounds=(0.0, 1.0), mean=values[0], std=values[1])
    assert missing_normalisation(given, images, labels) is None
    assert missing_normalisation(cs.Classifier(model, transform=lambda x: x), images, labels) is None
    assert missing_normalisation(cs.Classifier(model), 255.0 * images, labels) is None
    assert missing_normalisation(cs.Classifier(model), images[:5], labels[:5]) is None
    lines = describe(cs.Classifier(model, bounds=(0.0, 1.0)), array_source(images, labels)).splitlines()
    (line,) = [line for line in lines if line.strip().startswith("accuracy")]
    assert f"of 150 inputs; with --mean {mean} --std {std} accuracy on 75 inputs would be 100%" in line


def test_no_normalisation_is_proposed_where_none_is_missing() -> None:
    """Networks with other normalisations, or without any, whose labels are right, partly right, or random."""
    generator = np.random.default_rng(1)
    for seed in range(40):
        channels = (1, 3)[seed % 2]
        torch.manual_seed(seed)
        mean = ",".join(["0"] * channels)
        model: nn.Module = Normalised(channels, mean, mean.replace("0", "1"), seed=seed)
        if seed % 4 > 1:
            layers = nn.Conv2d(channels, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16), nn.ReLU(), nn.Linear(16, 5)
            model = nn.Sequential(*layers)
        images = pixels(100, channels, seed=seed)
        classifier = cs.Classifier(model, bounds=(0.0, 1.0))
        truth = classifier(images).argmax(1).numpy()
        for share in (0.0, 0.3, 0.7, 1.0):
            labels = np.where(generator.random(100) < share, truth, generator.integers(0, 5, 100))
            assert missing_normalisation(classifier, images, labels) is None, (seed, share)


def test_images_that_are_normalised_already_are_noticed() -> None:
    images = (pixels(20, 3) - 0.45) / 0.225
    classifier = cs.Classifier(Normalised(3, "0,0,0", "1,1,1"))

    def hint(classifier: cs.Classifier, x: np.ndarray) -> str | None:
        return normalised_hint(classifier, x, float(x.min()), float(x.max()))

    said = hint(classifier, images)
    assert said is not None and "inputs reach from -2 to 2.44" in said and "--bounds 0,1" in said and "--mean" in said
    source = array_source(images, None)
    assert said in describe(classifier, source) and "units" in describe(classifier, source)
    for other, x in (
        (classifier, pixels(20, 3)),  # pixels
        (classifier, 2.0 * pixels(20, 3) - 1.0),  # in [-1, 1], as some networks want them
        (classifier, 255.0 * pixels(20, 3)),
        (classifier, 100.0 * images),  # no image is normalised to such numbers
        (classifier, images.reshape(20, -1)),  # features
        (cs.Classifier(classifier.module, bounds=(-2.1, 2.7)), images),  # the user knows the units
        (cs.Classifier(classifier.module, mean=0.1), images),
    ):
        assert hint(other, x) is None
