"""The scores that `benchmarks.agreement` compares, each a function of classifier, inputs, p, seed and options."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import cleverscore as cs
from benchmarks.attacks import Whole
from cleverscore.estimators.ascent.profile_search import Effort, searches
from cleverscore.estimators.budget import Budget
from cleverscore.inputs.balls import LpBall
from cleverscore.inputs.examples import prepare
from cleverscore.models.optimize import tuned

RADII = {1.0: 50.0, 2.0: 5.0, math.inf: 5.0}  # l1 distances are larger than the default radius, which caps scores


@dataclass(frozen=True)
class Scored:
    """Scores of a batch, with CPU seconds and gradients per input, and what else should be kept.

    CPU seconds of one thread are what the clock shows on an idle machine, and hold on a busy one.
    """

    scores: list[float]
    seconds: list[float]
    gradients: list[float]
    settings: dict[str, Any]
    more: dict[str, list[float]]


def _clever(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, **settings: Any) -> Scored:
    settings = {"radius": RADII[p], **settings}
    began = time.process_time()
    scores = cs.clever(classifier, x, p=p, seed=seed, workers=1, progress=False, **settings)
    share = (time.process_time() - began) / len(x)
    more = {name: [float(getattr(head, name)) for head in scores] for name in ("upper", "low")}
    work = [float(head.gradients) for head in scores]  # of all targets
    return Scored([float(value) for value in scores.values], [share] * len(x), work, settings, more)


def sharp(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    return _clever(classifier, x, p, seed, method="sharp")


def sharp_all(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    return _clever(classifier, x, p, seed, method="sharp", targets="all")


def sharp_box(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """Fewer ways are valid in the box, so that no score may be smaller."""
    return _clever(classifier, x, p, seed, method="sharp", region="box")


def box_attack(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """The referee of scores in the box: the smallest distance of long attacks that stay in it, ours and foolbox's."""
    began = time.process_time()
    names = ("descent", "fmn", "ddn") if p == 2.0 else ("descent", "fmn")
    found = [
        cs.best_attack(classifier, x, chosen, p=p, preset="long", region="box", seed=other, workers=1).distortion
        for other, chosen in enumerate((names, "descent"))
    ]
    share = (time.process_time() - began) / len(x)
    sizes = [float(size) for size in np.min(found, axis=0)]
    return Scored(sizes, [share] * len(x), [0.0] * len(x), {"attacks": names}, {})


def sharp_near(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """In a ball that holds half of the inputs' boundaries; `more` has the radius, to which other scores are cut."""
    radius = float(np.median(_clever(classifier, x, p, seed, method="sharp").scores))
    found = _clever(classifier, x, p, seed, method="sharp", radius=radius)
    return replace(found, more={"radius": [radius] * len(x)})


def sharp_alone(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """Ascents across shells from random directions: no descent gives starts or an upper limit."""
    examples = prepare(classifier, x, targets="untargeted", seed=seed)
    began = time.process_time()
    found = searches(
        tuned(classifier, x[:2]), examples, ball=LpBall(p, RADII[p]), seed=seed, budget=Budget.parse(None),
        smallest_only=True, chunk_size=64, workers=1, effort=Effort(from_crossings=False),
    )  # fmt: skip
    profiles = [search.profiles() for _position, search in found]
    share = (time.process_time() - began) / len(x)
    work = [float(sum(profile.gradients for profile in each)) for each in profiles]
    scores = [min(profile.distance for profile in each) for each in profiles]
    return Scored(scores, [share] * len(x), work, {"radius": RADII[p]}, {})


def sharp_25(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """25 times the work: the smallest score of 25 other seeds."""
    every = [_clever(classifier, x, p, 100 + other, method="sharp") for other in range(25)]
    scores = np.min([each.scores for each in every], axis=0).tolist()
    return replace(every[0], scores=scores, gradients=np.sum([each.gradients for each in every], axis=0).tolist())


def paper(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    return _clever(classifier, x, p, seed, blocks=40, block_size=128, tolerance=0)


def art(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """ART's untargeted score of one input after the other."""
    from art.estimators.classification import PyTorchClassifier
    from art.metrics import clever_u

    module = torch.nn.Sequential(Whole(classifier)).eval()
    with torch.no_grad():
        classes = classifier(x[:1]).shape[1]
    estimator = PyTorchClassifier(
        module, loss=torch.nn.CrossEntropyLoss(), input_shape=tuple(x.shape[1:]), nb_classes=classes
    )
    blocks, size, pool = options["art"]
    np.random.seed(seed)  # ART draws from it
    scores, seconds = [], []
    for image in x.numpy():
        began = time.process_time()
        value = clever_u(
            estimator, image, blocks, size, radius=RADII[p], norm=p if math.isinf(p) else int(p), pool_factor=pool,
            verbose=False,
        )  # fmt: skip
        scores.append(float(value))
        seconds.append(time.process_time() - began)
    settings = {"nb_batches": blocks, "batch_size": size, "pool_factor": pool, "radius": RADII[p]}
    return Scored(scores, seconds, [2.0 * (classes - 1) * size * pool] * len(x), settings, {})


def margin(classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int, options: dict[str, Any]) -> Scored:
    """A null baseline: the margin between the two largest logits."""
    began = time.process_time()
    with torch.no_grad():
        largest = classifier(x).double().topk(2, dim=1).values
    share = (time.process_time() - began) / len(x)
    return Scored((largest[:, 0] - largest[:, 1]).tolist(), [share] * len(x), [0.0] * len(x), {}, {})


def slope(
    classifier: cs.Classifier, x: torch.Tensor, p: float, seed: int = 0, options: dict[str, Any] | None = None
) -> Scored:
    """A null baseline: the smallest margin / ||gradient of the margin||_q at the input over all other classes."""
    began = time.process_time()
    dual = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[p]
    points = x.detach().clone().requires_grad_()
    logits = classifier.logits(points)
    own = logits.argmax(1)
    mine = logits.gather(1, own[:, None])
    smallest = torch.full((len(x),), math.inf, dtype=torch.float64)
    for j in range(logits.shape[1]):
        margins = mine[:, 0] - logits[:, j]
        (gradients,) = torch.autograd.grad(margins.sum(), points, retain_graph=True)
        norms = torch.linalg.vector_norm(gradients.double().flatten(1), dual, dim=1)
        ratios = margins.detach().double() / norms.clamp_min(1e-300)
        smallest = torch.where(own == j, smallest, torch.minimum(smallest, ratios))
    share = (time.process_time() - began) / len(x)
    return Scored(smallest.tolist(), [share] * len(x), [logits.shape[1] - 1.0] * len(x), {}, {})


METHODS: dict[str, Callable[[cs.Classifier, torch.Tensor, float, int, dict[str, Any]], Scored]] = {
    "sharp": sharp,
    "sharp-all": sharp_all,
    "sharp-box": sharp_box,
    "box-attack": box_attack,
    "sharp-near": sharp_near,
    "sharp-25": sharp_25,
    "sharp-alone": sharp_alone,
    "paper": paper,
    "art": art,
    "margin": margin,
    "slope": slope,
}
