"""Maximisation over a ball from many starts, in float64: the reference for networks without an exact method.

Every start is moved by projected ascent, x <- P(x + step * direction), where P is the projection onto the ball and the
direction is that of the gradient (of its sign for p = inf). A step that does not increase the value is undone and
halved, one that does is lengthened, so values never decrease. The ascent finds local maxima to many digits, and the
global one unless no start lies in its basin. The result is a lower bound of the maximum.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cleverscore.errors import SettingError
from cleverscore.exact.result import Exact
from cleverscore.inputs.examples import Example, prepare
from cleverscore.inputs.projections import onto_ball
from cleverscore.inputs.targets import TargetsLike
from cleverscore.models.classifier import Classifier
from cleverscore.models.margin_gradients import dual_norms
from cleverscore.models.structure import layers_in_order
from cleverscore.norms import dual_exponent, parse_norm
from cleverscore.threads import one_thread

Objective = Callable[[torch.Tensor], torch.Tensor]

HOPS = (0.7, 0.5, 0.3, 0.2, 0.1)  # in radii: how far good ends are moved, at most, before ascents start again
LARGE = 4.0  # in radii: so far outside that the projection onto the l1 ball is sparse, as the best points are
LONGER, SHORTER = 1.3, 0.5  # factors of the step after a step that increased the value, and after one that did not
SMALLEST_STEP = 1e-9  # in radii: smaller steps change none of the digits that are compared


def in_double(classifier: Classifier) -> Classifier:
    """The same classifier in float64."""
    return classifier.with_module(copy.deepcopy(classifier.module).double(), dtype=torch.float64)


def one_example(classifier: Classifier, image: Any, targets: TargetsLike) -> Example:
    """An image without a batch axis as an example, in the precision of the classifier."""
    return prepare(classifier, torch.as_tensor(image)[None], targets=targets)[0]


def project(offsets: torch.Tensor, p: float, radius: float) -> torch.Tensor:
    """The point of the ball around 0 that is nearest to each row (n, d) of `offsets`, for p = 1, 2 and inf."""
    return onto_ball(offsets, offsets.new_full((len(offsets),), radius), p)


def directions(gradients: torch.Tensor, p: float) -> torch.Tensor:
    """Directions of ascent (n, d): the sign of each gradient for p = inf, else the gradient scaled to l2 length 1."""
    if math.isinf(p):
        return gradients.sign()
    unit: torch.Tensor = gradients / torch.linalg.vector_norm(gradients, 2.0, dim=1, keepdim=True).clamp_min(1e-300)
    return unit


@one_thread()  # these networks are so small that threads wait for each other longer than they work
def ascend(
    objective: Objective, offsets: torch.Tensor, *, p: float, radius: float, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Projected ascent from every row (n, d) of `offsets` in the ball around 0: final rows and their values (n,).

    `objective` maps rows (n, d) to values (n,).
    """
    offsets = project(offsets, p, radius)
    values, slopes = _differentiated(objective, offsets)
    step = torch.full_like(values, 0.5 * radius)
    for _ in range(steps):
        moved = project(offsets + step[:, None] * directions(slopes, p), p, radius)
        there, slopes_there = _differentiated(objective, moved)
        better = there > values
        offsets = torch.where(better[:, None], moved, offsets)
        slopes = torch.where(better[:, None], slopes_there, slopes)
        values = torch.where(better, there, values)
        step = (step * torch.where(better, LONGER, SHORTER)).clamp_max(2.0 * radius)
        if float(step.max()) < SMALLEST_STEP * radius:
            break
    return offsets, values


def _differentiated(objective: Objective, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = offsets.detach().requires_grad_(True)
    with torch.enable_grad():
        values = objective(offsets)
        (slopes,) = torch.autograd.grad(values.sum(), offsets)
    return values.detach(), slopes.detach()


def starts(
    dim: int, count: int, *, p: float, radius: float, seed: int, rows: torch.Tensor | None = None
) -> torch.Tensor:
    """Starts (count, dim) in the ball around 0: the centre, and random points inside the ball and on its surface.

    rows    the first layer's matrix (h, dim), if there is one: half of the points are then random combinations of its
            rows, on the surface, because a random direction in many dimensions hardly changes any of a few units.
    """
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(count, dim, dtype=torch.float64, generator=generator)
    if math.isinf(p):
        spread = torch.rand(count, dim, dtype=torch.float64, generator=generator) * 2.0 - 1.0
        spread[1::2] = spread[1::2].sign()  # every other one in a corner
    else:
        length = torch.rand(count, 1, dtype=torch.float64, generator=generator) ** (1.0 / min(dim, 4))
        length[1::2] = 1.0
        spread = spread / torch.linalg.vector_norm(spread, p, dim=1, keepdim=True) * length
    if rows is not None:
        rows = rows.double().cpu()
        seen = spread[2::2]
        mixed = torch.randn(len(seen), len(rows), dtype=torch.float64, generator=generator)
        # Rows of length 1, so that units with small weights get as many starts as others.
        combined = mixed @ (rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-300))
        spread[2::2] = project(LARGE * directions(combined, p), p, 1.0)
    spread[0] = 0.0
    return spread * radius


def first_rows(classifier: Classifier, x: torch.Tensor) -> torch.Tensor | None:
    """The matrix (h, d) of the first layer for inputs before preprocessing; None if this layer is not dense."""
    layers = layers_in_order(classifier.module)
    inner = [layer for layer in layers or () if not isinstance(layer, (nn.Flatten, nn.Identity))]
    if not inner or type(inner[0]) is not nn.Linear or inner[0].in_features != x.numel():
        return None
    slope, _ = classifier.preprocessing(x)
    return inner[0].weight.detach() * slope.flatten()


def dense_multistart_lipschitz(
    classifier: Classifier,
    image: Any,
    *,
    p: float | str,
    radius: float,
    target: int,
    count: int = 256,
    steps: int = 60,
    seed: int = 0,
) -> Exact:
    """The largest ||grad(f_c - f_j)||_q in B_p(x0, radius) that `count` ascents find, for p = 1, 2 or inf.

    c is the predicted class of the image x0 and j is `target`. The network has to be twice differentiable. `high` is
    infinite: nothing is proved, though for networks of a few dozen inputs the value is reliable.

    image           one input, without a batch axis.
    count, steps    number of starts, and of steps of a first ascent.
    seed            seed of the starts.

    >>> smooth = Classifier(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Softplus(), torch.nn.Linear(8, 2)))
    >>> target = 1 - int(smooth(torch.zeros(1, 3)).argmax())
    >>> found = dense_multistart_lipschitz(smooth, torch.zeros(3), p=2, radius=1.0, target=target, count=8, steps=20)
    >>> found.value > 0.0
    True
    """
    p = checked_norm(p)
    began = time.perf_counter()
    classifier = in_double(classifier)
    example = one_example(classifier, image, [[target]])
    x, q = example.x, dual_exponent(p)

    def slope(offsets: torch.Tensor) -> torch.Tensor:
        logits = classifier.logits(x + offsets.view(-1, *x.shape))
        margins = logits[:, example.predicted] - logits[:, target]
        (gradients,) = torch.autograd.grad(margins.sum(), offsets, create_graph=True)
        return dual_norms(gradients, q) if q != 2.0 else gradients.square().sum(1).clamp_min(1e-300).sqrt()

    spread = starts(x.numel(), count, p=p, radius=radius, seed=seed, rows=first_rows(classifier, x)).to(x.device)
    ends, values = ascend(slope, spread, p=p, radius=radius, steps=steps)
    # Sharp softplus units make many small hills: ascents start again near the best ends; the best ones go on longer.
    for reach in HOPS:
        best = values.topk(max(1, count // 8)).indices
        again = ends[best].repeat(8, 1)[:count] + reach * spread[: 8 * len(best)]
        hopped, higher = ascend(slope, again, p=p, radius=radius, steps=steps)
        ends, values = torch.cat([ends[best], hopped]), torch.cat([values[best], higher])
    best = values.topk(min(8, count)).indices
    ends, values = ascend(slope, ends[best], p=p, radius=radius, steps=2 * steps)
    top = int(values.argmax())
    value = float(values[top])
    return Exact(value, value, math.inf, time.perf_counter() - began, target, x + ends[top].view(x.shape))


def dense_multistart_distortion(
    classifier: Classifier,
    image: Any,
    *,
    p: float | str,
    targets: TargetsLike = "untargeted",
    count: int = 32,
    steps: int = 40,
    seed: int = 0,
    accuracy: float = 1e-4,
) -> Exact:
    """The smallest ||delta||_p at which ascents of f_j - f_c reach 0, by bisection of the radius: an attack.

    c is the predicted class and j a target; p is 1, 2 or inf.

    image           one input, without a batch axis.
    targets         as in `exact_minimum_distortion`.
    count, steps    number of ascents at each radius, and the largest number of steps of each.
    seed            seed of the starts.
    accuracy        relative accuracy of the bisection.

    `low` is 0: nothing is proved. At `point` the target's logit is at least that of the predicted class, in float64. If
    no ascent reaches 0, `value` and `high` are infinite and `point` is the image.
    """
    p = checked_norm(p)
    began = time.perf_counter()
    classifier = in_double(classifier)
    example = one_example(classifier, image, targets)
    x = example.x
    best, point, winner = math.inf, x, example.targets[0]
    order = sorted(range(len(example.targets)), key=lambda t: example.margins[t])
    for target in (example.targets[t] for t in order):

        def lead(offsets: torch.Tensor, target: int = target) -> torch.Tensor:
            logits = classifier.logits(x + offsets.view(-1, *x.shape))
            return logits[:, target] - logits[:, example.predicted]

        offset = _shortest(
            lead, x, first_rows(classifier, x), p, best, count=count, steps=steps, seed=seed, accuracy=accuracy
        )
        if offset is not None:
            best, winner = float(torch.linalg.vector_norm(offset, p)), target
            point = x + offset.view(x.shape)
    return Exact(best, 0.0, best, time.perf_counter() - began, winner, point)


def _shortest(
    lead: Objective,
    x: torch.Tensor,
    rows: torch.Tensor | None,
    p: float,
    limit: float,
    *,
    count: int,
    steps: int,
    seed: int,
    accuracy: float,
) -> torch.Tensor | None:
    """The shortest offset (d,) from x that was found, below `limit`, at which `lead` reaches 0; None if there is none.

    lead    f_j - f_c as a function of offsets (n, d).
    rows    as in `starts`.
    """
    dim, device = x.numel(), x.device
    values, slopes = _differentiated(lead, torch.zeros(1, dim, dtype=torch.float64, device=device))
    if float(values[0]) >= 0.0:
        return torch.zeros(dim, dtype=torch.float64, device=device)
    unit = starts(dim, count, p=p, radius=1.0, seed=seed, rows=rows).to(device)
    low, high, found = 0.0, limit, None
    linear = -float(values[0]) / max(1e-9, float(dual_norms(slopes, dual_exponent(p))[0]))
    radius = limit if math.isfinite(limit) else linear
    ends = unit * radius
    for attempt in range(80):
        ends, values = ascend(lead, ends, p=p, radius=radius, steps=steps)
        top = int(values.argmax())
        if float(values[top]) >= 0.0:
            found = ends[top]
            high = float(torch.linalg.vector_norm(found, p))
        elif attempt == 0 and math.isfinite(limit):
            return None
        else:
            low = radius
            if math.isinf(high) and radius > 1e9:
                return None
        if math.isfinite(high) and high - low <= accuracy * high:
            break
        radius = 2.0 * radius if math.isinf(high) else 0.5 * (low + high)
        # The better half of the ends are starts in the next ball; the other starts are new.
        keep = values.topk(count // 2).indices
        ends = torch.cat([project(ends[keep], p, radius), unit[: count - len(keep)] * radius])
    return found


def checked_norm(p: float | str) -> float:
    """The norm as a number; an error unless it is 1, 2 or inf."""
    value = parse_norm(p)
    if value not in (1.0, 2.0, math.inf):
        raise SettingError(f"p={p}: truth is known for p = 1, 2 and inf")
    return value
