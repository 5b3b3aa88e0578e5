"""Which units of work there are, and in which order they are computed.

A unit is a few images of one network under one question, some minutes on one core. The first images of every network
come first, so that every table has all its lines early; then one network after the other is completed, the cheap ones
first. What the paper does not have, the sharp score and the best attack, comes last.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from paper.networks import KINDS, LARGE, NETWORKS
from paper.sizes import MEDIUM, Size

# Cheap ones first: seconds per gradient times gradients.
ORDER = (
    "mnist-mlp",
    "mobilenet_v1",
    "mnist-cnn",
    "mnist-dd",
    "mnist-brelu",
    "resnet50",
    "cifar-mlp",
    "cifar-cnn",
    "cifar-dd",
    "cifar-brelu",
    "inception_v3",
)
NORMS = ("l2", "linf")
UNIFORM = tuple(f"maxima-{norm}" for norm in NORMS)  # points uniform in the ball of radius 5
AUTHORS = "maxima-authors"  # points as the authors' program draws them: one draw for both norms
SLOPES = tuple(f"slope-{norm}" for norm in NORMS)
FIRST_SMALL, FIRST_LARGE = 2, 1  # images of the first round
# Images in a unit of attacks: they run as one batch.
ATTACKED_TOGETHER = {"mnist-mlp": 20, "cifar-mlp": 20, "mnist": 10, "cifar": 5, "imagenet": 1}
# On ImageNet one sharp score takes from minutes to half an hour: only random targets have them there.
LATE_LARGE = ("sharp-l2-random", "best-l2-random", "best-linf-random")


@dataclass(frozen=True)
class Unit:
    """Images `start` to `stop` of a network under one question.

    question    "maxima-l2", "maxima-linf", "maxima-authors", "slope-l2", "slope-linf"; "cw-random" and the like for CW,
                I-FGSM, with "any" for untargeted ones; "sharp-l2-random", "best-linf-any"; "accuracy".
    """

    network: str
    question: str
    start: int
    stop: int

    @property
    def file(self) -> str:
        """Where it is kept, below the folder of units."""
        return f"{self.network}/{self.question}-{self.start:03d}-{self.stop:03d}.npz"

    @property
    def kind(self) -> str:
        """The question without its details: maxima, slope, cw, ifgsm, sharp, best or accuracy."""
        return self.question.split("-")[0]

    def __str__(self) -> str:
        images = f"images {self.start + 1} to {self.stop}" if self.stop > self.start + 1 else f"image {self.stop}"
        return f"{NETWORKS[self.network].title}: {self.question}, {images}"


def words(unit: Unit, size: Size) -> str:
    """The sizes that matter for a unit."""
    if unit.kind == "maxima":
        return f"{size.words('clever')}, {size.many} images with {size.words('many')}"
    return size.words(unit.kind) if unit.kind in ("slope", "cw", "ifgsm") else "default"


def questions(network: str) -> tuple[str, ...]:
    """All questions about a network, in the order in which they are asked of an image."""
    large = network in LARGE
    kinds = KINDS if large else ("any", *KINDS)
    attacks = tuple(f"{attack}-{kind}" for kind in kinds for attack in ("cw", "ifgsm"))
    late = tuple(f"{method}-{norm}-{kind}" for norm in NORMS for kind in kinds for method in ("sharp", "best"))
    if large:
        late = tuple(question for question in late if question in LATE_LARGE)
    return ("accuracy", UNIFORM[0], *attacks, UNIFORM[1], AUTHORS, *SLOPES, *late)


def units_of(network: str, question: str, size: Size) -> list[Unit]:
    """The units of one question, in the order of images."""
    if question == "accuracy":
        return [Unit(network, question, 0, 1)]
    family = NETWORKS[network].family
    cuts = [0]
    while cuts[-1] < size.images:
        start = cuts[-1]
        if question.startswith("maxima"):
            group = 1 if start < size.many else size.group
        elif question.startswith("slope"):
            group = size.group
        else:
            group = ATTACKED_TOGETHER.get(network, ATTACKED_TOGETHER[family])
        cuts.append(min(size.images, start + group))
    return [Unit(network, question, start, stop) for start, stop in itertools.pairwise(cuts)]


def all_units(sizes: Mapping[str, Size] = MEDIUM) -> list[Unit]:
    """Every unit, the most valuable ones first."""

    def place(unit: Unit) -> tuple[int, int, int, int, int]:
        first = FIRST_LARGE if unit.network in LARGE else FIRST_SMALL
        return (
            unit.kind in ("sharp", "best"),
            unit.start >= first,
            ORDER.index(unit.network),
            unit.start,
            questions(unit.network).index(unit.question),
        )

    found = [
        unit
        for network, size in sizes.items()
        for question in questions(network)
        for unit in units_of(network, question, size)
    ]
    return sorted(found, key=place)
