"""Compares actual changes of a margin around an input with the changes that its gradients predict.

The margin is f_c - f_j with the predicted class c and the runner-up j. It is probed at the input and at a few points of
the ball around it, in double precision where the model allows it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cleverscore.inputs.balls import LpBall
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier
from cleverscore.models.margin_gradients import dual_norms
from cleverscore.randomness import philox

POINTS = 16  # the input and 15 random points of its ball
DIRECTIONS = 4  # random ones at every point
DIRECTION_STREAM = 0x6D61736B696E6721  # a Philox key of its own
UNUSED_BLOCK = 2**40  # the number of a block of random points that no score uses
# A step, in widths of the input range, that rounding to 8 bits removes: with 1e-9 and 150,000 pixels, the chance that
# one of them is rounded differently is 4%.
TINY_STEP = {torch.float64: 1e-9, torch.float32: 1e-6}
# A gradient has vanished if ||gradient||_q times the radius is at most this share of the margin.
VANISHED = 1e-6
STEP_OF_MARGIN = 0.3  # length of a step along the gradient, as a share of the way to where it promises margin 0


@dataclass(frozen=True)
class UntransformedModel:
    """The model without its declared transform, in double precision if its logits are the same there.

    dtype   the precision of the model.
    before  the transform, which maps inputs to the points at which the model is probed.
    """

    classifier: Classifier
    dtype: torch.dtype
    before: Callable[[torch.Tensor], torch.Tensor]


def untransformed(classifier: Classifier, examples: Sequence[Example]) -> UntransformedModel:
    """The model without its declared transform; the first examples show whether it can run in double precision."""
    plain = copy.copy(classifier)
    plain.transform = plain.transform_backward = None
    few = classifier.transformed(torch.stack([example.x for example in examples[:4]])).detach()
    own = torch.float64 if few.dtype == torch.float64 else torch.float32
    try:
        double = plain.with_module(copy.deepcopy(plain.module).double(), dtype=torch.float64)
        with torch.no_grad():
            before, after = plain.logits(few), double.logits(few.double())
        same = after.dtype == torch.float64 and torch.allclose(before.double(), after, rtol=1e-3, atol=1e-3)
    except Exception:  # modules that cannot be copied, or that hold numbers of a fixed precision
        same = False
    if same:
        return UntransformedModel(double, torch.float64, classifier.transformed)
    return UntransformedModel(plain, own, classifier.transformed)


@dataclass(frozen=True)
class ProbeStats:
    """The results of probing one input.

    flat        share of points where tiny steps do not change the two logits of the margin at all; steps whose effect
                would be too small to be seen are left out.
    levels      number of distinct values that these logits have at the flat points.
    zero        share of points with a gradient that is zero or has vanished.
    along       median relative error of the change that the gradient predicts for a step along it, over all points
                where it has not vanished.
    across      the same for small steps in random directions.
    underflow   the margin at which softmax becomes exactly 0 and 1.
    """

    example: Example
    flat: float
    levels: int
    zero: float
    along: float
    across: float
    underflow: float

    @property
    def margin(self) -> float:
        """The margin at the input."""
        return self.example.margins[0]


def probe(model: UntransformedModel, example: Example, ball: LpBall, seed: int) -> ProbeStats:
    """Probe the model by steps along the gradient and small random steps, at the input and at points of its ball."""
    around = ball.points(example.x, count=POINTS - 1, seed=seed, input_id=example.input_id, block=UNUSED_BLOCK, tile=0)
    points = model.before(torch.cat([example.x[None], around])).detach().to(model.dtype)
    pair = [example.predicted, example.targets[0]]
    points.requires_grad_(True)
    with torch.enable_grad():
        logits = model.classifier.logits(points)[:, pair]
        margins = logits[:, 0] - logits[:, 1]
        gradient = torch.autograd.grad(margins.sum(), points, allow_unused=True)[0]
    logits, margins, points = logits.detach().double(), margins.detach().double(), points.detach()
    slope = (torch.zeros_like(points) if gradient is None else gradient).flatten(1).double()
    steepness = slope.norm(dim=1)
    noise = torch.finfo(model.dtype).eps * logits.abs().amax(1).clamp_min(1e-30)

    def moved(steps: torch.Tensor) -> torch.Tensor:
        """The two logits (m, n, 2) after m steps (m, n, d) from each of the n points."""
        many = (points.flatten(1).double() + steps).to(points.dtype)
        with torch.no_grad():
            found = [model.classifier.logits(part.reshape(points.shape))[:, pair] for part in many]
        return torch.stack(found).double()

    dim = slope.shape[1]
    stream = philox((seed, DIRECTION_STREAM), (0, 0, 0, example.input_id))
    normal = torch.from_numpy(stream.standard_normal((DIRECTIONS, POINTS, dim))).to(slope)
    width = _width(model.classifier, example.x)

    tiny = TINY_STEP[model.dtype] * width * normal[:2].sign()
    still = (moved(tiny) == logits).all(2)
    # Where the expected change is too small to be seen in this precision, no change does not mean a plateau.
    visible = ((tiny * slope).sum(2).abs() > 16.0 * noise) | (steepness == 0.0)
    flat = (still | ~visible).all(0) & (still & visible).any(0)

    directions = normal / normal.norm(dim=2, keepdim=True)
    promised = (directions * slope).sum(2)
    # As small as rounding allows, so that few breakpoints of piecewise linear activations lie between the two ends.
    small = torch.clamp(1e4 * noise * math.sqrt(dim) / steepness.clamp_min(1e-30), min=1e-6 * width)
    small = small.clamp_max(ball.radius)[:, None]
    change = (moved(small * directions) - moved(-small * directions)) @ torch.tensor([1.0, -1.0]).to(slope)
    found = change / (2.0 * small[:, 0])
    across = (found - promised).norm(dim=0) / torch.maximum(found.norm(dim=0), promised.norm(dim=0)).clamp_min(1e-300)

    uphill = slope / steepness.clamp_min(1e-300)[:, None]
    large = (STEP_OF_MARGIN * margins.abs() / steepness.clamp_min(1e-300)).clamp(1e-6 * width, ball.radius)[:, None]
    ends = moved(torch.stack([large * uphill, -large * uphill])) @ torch.tensor([1.0, -1.0]).to(slope)
    along = ((ends[0] - ends[1]) / (2.0 * large[:, 0] * steepness.clamp_min(1e-300)) - 1.0).abs()

    vanished = dual_norms(slope, ball.q) * ball.radius <= VANISHED * margins.abs()
    steep = ~vanished
    return ProbeStats(
        example=example,
        flat=float(flat.double().mean()),
        levels=len(set(logits[flat].flatten().tolist())),
        zero=float(vanished.double().mean()),
        along=float(along[steep].median()) if bool(steep.any()) else 0.0,
        across=float(across[steep].median()) if bool(steep.any()) else 0.0,
        underflow=-math.log(torch.finfo(example.x.dtype if example.x.dtype == torch.float64 else torch.float32).tiny),
    )


def _width(classifier: Classifier, x: torch.Tensor) -> float:
    """The width of the range of input values: of the bounds, or of the input x for a classifier without bounds."""
    if classifier.bounds is not None:
        return classifier.bounds[1] - classifier.bounds[0]
    return float(x.max() - x.min()) or 1.0
