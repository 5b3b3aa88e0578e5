"""The attack "descent", this package's own: many short descents to the boundary, from the input and from points found.

There are first descents from the input, towards any class and towards each of the likeliest ones, and then rounds of
descents from many distances and from around the nearest points found so far (`descent_starts`), until enough of them
met the nearest point. The nearest points are refined at last. Random numbers are shared by all inputs: what is found
for an input does not depend on the others, unless no descent finds anything for it; only then other inputs serve as
starts.
"""

from __future__ import annotations

import math

import torch

from cleverscore.attacks.criterion import ANY, Criterion
from cleverscore.attacks.far_starts import far_starts
from cleverscore.attacks.presets import Effort
from cleverscore.estimators.ascent.boundary_descent import FAR, NEAR, Schedule, descend
from cleverscore.estimators.ascent.descent_starts import ENOUGH, NEAREST, SAME, starts

SPARSE = 0.05  # share of coordinates that a jump moves for p = 1, where near points are sparse


@torch.no_grad()
def descent(
    criterion: Criterion,
    *,
    p: float,
    effort: Effort,
    seed: int,
    others: torch.Tensor,
    chunk_size: int,
    known: torch.Tensor | None = None,
) -> torch.Tensor:
    """The nearest adversarial inputs found (NEAREST, n, *shape), nearest first; the input itself where there is none.

    others      (m, *shape): inputs that may serve as starts where nothing else succeeds.
    chunk_size  points per forward pass.
    known       (n, *shape): adversarial inputs known already, the input itself where there is none.
    """
    search = _Search(criterion, p, chunk_size)
    if known is not None:
        search.keep(known[None])
    rivals = _rivals(criterion, effort.searches)
    search.descend(criterion.x.expand(len(rivals), *criterion.x.shape), effort.iterations, rivals)
    lost = (~torch.isfinite(search.sizes[0])).nonzero()[:, 0]
    if len(lost):
        found = criterion.x.clone()
        found[lost] = far_starts(criterion.rows(lost), others, p=p, seed=seed)
        search.keep(found[None])
    generator = torch.Generator().manual_seed(seed)
    for number in range(1, effort.rounds + 1):
        search.descend(search.starts(number, effort.starts, generator), effort.iterations)
        if not len(search.open):
            break
    search.open = torch.arange(len(criterion), device=criterion.x.device)
    search.descend(search.points, effort.refine, schedule=NEAR)
    return search.points


def _rivals(criterion: Criterion, count: int) -> torch.Tensor:
    """Classes to descend towards, (m, n): any, then the likeliest others; a targeted criterion names its own."""
    any_class = torch.full((1, len(criterion)), ANY, device=criterion.x.device)
    if criterion.targeted:
        return any_class
    logits = criterion.classifier.logits(criterion.x)
    ranked = logits.scatter(1, criterion.classes[:, None], -math.inf).argsort(1, descending=True)
    return torch.cat([any_class, ranked[:, : min(count, logits.shape[1] - 1)].T])


class _Search:
    """The nearest points found so far for each of n inputs: sizes (NEAREST, n), nearest first, and points.

    open    the places of inputs that are still searched for, (k,).
    met     the distance that each descent of a round came to, (m, n).
    """

    def __init__(self, criterion: Criterion, p: float, chunk_size: int) -> None:
        self.criterion, self.p, self.chunk_size = criterion, p, chunk_size
        x = criterion.x
        self.points = x.expand(NEAREST, *x.shape).clone()
        self.sizes = torch.full((NEAREST, len(x)), math.inf, dtype=x.dtype, device=x.device)
        self.open = torch.arange(len(x), device=x.device)
        self.met = self.sizes[:0]

    def keep(self, points: torch.Tensor, sizes: torch.Tensor | None = None) -> None:
        """Take points (m, k, *shape) of open inputs into the pool; a point at the input itself stands for none."""
        if sizes is None:
            sizes = torch.linalg.vector_norm((points - self.criterion.x[self.open]).flatten(2), self.p, dim=2)
            sizes = torch.where(sizes > 0.0, sizes, math.inf)
        sizes = torch.cat([self.sizes[:, self.open], sizes])
        points = torch.cat([self.points[:, self.open], points])
        order = sizes.argsort(dim=0, stable=True)[:NEAREST]
        self.sizes[:, self.open] = sizes.gather(0, order)
        self.points[:, self.open] = points[order, torch.arange(points.shape[1], device=points.device)]

    def descend(
        self, starts: torch.Tensor, steps: int, rivals: torch.Tensor | None = None, schedule: Schedule = FAR
    ) -> None:
        """Descend from starts (m, k, *shape) of open inputs, and keep what is near.

        With the schedule `FAR` and without rivals, inputs are closed that enough descents brought to the nearest point.
        """
        m, k = starts.shape[:2]
        every = self.criterion.rows(self.open.repeat(m))
        aims = None if rivals is None else rivals.reshape(-1)

        def margins_and_gradients(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            parts = [
                every.rows(rows).smooth_margins_and_gradients(points[rows], None if aims is None else aims[rows])
                for rows in (slice(i, i + self.chunk_size) for i in range(0, len(points), self.chunk_size))
            ]
            return torch.cat([margins for margins, _ in parts]), torch.cat([gradients for _, gradients in parts])

        low, high = (every.low, every.high) if every.boxed else (None, None)
        sizes, points = descend(
            margins_and_gradients,
            every.x,
            starts.flatten(0, 1),
            p=self.p,
            steps=steps,
            schedule=schedule,
            low=low,
            high=high,
        )
        sizes = sizes.view(m, k)
        self.keep(points.view(starts.shape), sizes)
        if rivals is None and schedule is FAR:
            found = torch.full((m, len(self.criterion)), math.inf, dtype=sizes.dtype, device=sizes.device)
            found[:, self.open] = sizes
            self.met = torch.cat([self.met, found])
            met = (self.met <= (1.0 + SAME) * self.sizes[0]) & torch.isfinite(self.met)
            enough = met.sum(0) >= ENOUGH * m
            self.open = self.open[~enough[self.open]]

    def starts(self, number: int, count: int, generator: torch.Generator) -> torch.Tensor:
        """Starts (count, k, *shape) of round `number`, for open inputs."""
        x = self.criterion.x[self.open]
        dim = x[0].numel()
        noise = torch.randn(count, dim, generator=generator)
        if math.isinf(self.p):
            noise = noise.sign() * torch.rand(count, dim, generator=generator)
        elif self.p == 1.0:
            noise *= torch.rand(count, dim, generator=generator) < SPARSE
        noise /= torch.linalg.vector_norm(noise, self.p, dim=1, keepdim=True).clamp_min(1e-12)
        sizes, points = self.sizes[:, self.open], self.points[:, self.open]
        scale = torch.where(torch.isfinite(sizes[0]), sizes[0], self._typical_size(x))
        drawn = starts(number, count)
        lengths = torch.tensor([start.length for start in drawn])
        offsets = (lengths[:, None] * noise).to(x).view(count, 1, *x.shape[1:]) * scale.reshape(self.criterion.column)
        # A point that is not there is the input itself.
        centers = torch.stack([x if start.around is None else points[start.around] for start in drawn])
        return self.criterion.rows(self.open).inside(centers + offsets)

    def _typical_size(self, x: torch.Tensor) -> torch.Tensor:
        """A length for inputs without any point: the mean of the others', or the input's own."""
        found = self.sizes[0][torch.isfinite(self.sizes[0])]
        own = torch.linalg.vector_norm(x.flatten(1), self.p, dim=1).clamp_min(1.0)
        return found.mean().expand_as(own) if len(found) else own
