"""The attack "descent" of this package: many short descents to the boundary, from the input and other starts.

The first descents start at the input, towards whichever class is nearest and towards each of a few classes that are
nearest by margin / ||gradient|| at the input. In l1, descents from moves of one to four coordinates follow (`corners`).
Then come rounds of groups of descents, from many distances and from around the nearest points found so far
(`descent_starts`), until enough groups have found the nearest point. Finally the nearest points are refined.

All inputs use the same random numbers, so the result of an input does not depend on the other inputs. The exception is
an input for which no descent succeeds: then other inputs serve as starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from cleverscore.attacks.criterion import ANY, Criterion
from cleverscore.attacks.far_starts import far_starts
from cleverscore.attacks.presets import Effort
from cleverscore.estimators.ascent.boundary_descent import FAR, NEAR, Cut, Schedule, descend_halving
from cleverscore.estimators.ascent.corners import sparse_moves
from cleverscore.estimators.ascent.descent_starts import (
    CUTS,
    ENOUGH,
    NEAREST,
    REFINING_CUTS,
    SAME,
    Group,
    groups,
    shortest_start,
    sparse,
)
from cleverscore.models.margin_gradients import dual_norms
from cleverscore.norms import dual_exponent

MOST_RIVALS = 32  # the distances of so many other classes, the likeliest ones, are estimated at the input
TINY = 1e-30


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
    """For each of n inputs, the nearest adversarial inputs found: (NEAREST, n, *shape), nearest first; the input itself
    where there is none.

    p           the norm of the distances.
    others      (m, *shape): inputs that serve as starts where no other start succeeds.
    chunk_size  points per forward pass.
    known       (n, *shape): adversarial inputs that are already known; the input itself where there is none.
    """
    search = _Search(criterion, p, chunk_size)
    if known is not None:
        search.keep(known[None])
    rivals = _rivals(criterion, effort.searches, p)
    search.descend(criterion.x.expand(len(rivals), *criterion.x.shape), effort.iterations, rivals)
    failed = (~torch.isfinite(search.sizes[0])).nonzero()[:, 0]
    if len(failed):
        found = criterion.x.clone()
        found[failed] = far_starts(criterion.rows(failed), others, p=p, seed=seed)
        search.keep(found[None])
        failed = (~torch.isfinite(search.sizes[0])).nonzero()[:, 0]
        if len(failed) and p != 2.0:  # where no descent in this norm reaches another class, one in l2 may
            found[failed] = descent(
                criterion.rows(failed), p=2.0, effort=effort, seed=seed, others=others, chunk_size=chunk_size
            )[0]
            search.keep(found[None])
    if p == 1.0:
        search.corners(effort)
    generator = torch.Generator().manual_seed(seed)
    for number in range(effort.rounds):
        if not len(search.open):
            break
        search.round(number, effort, generator)
    search.open = torch.arange(len(criterion), device=criterion.x.device)
    search.descend(search.points, effort.refine, schedule=NEAR)
    return search.points


def _rivals(criterion: Criterion, count: int, p: float) -> torch.Tensor:
    """Classes to descend towards, (m, n): first `ANY`, then the `count` nearest by margin / ||gradient|| at the input.

    Classes are not chosen by their logits alone, because a class with a small logit is near if the margin towards it is
    steep. For a targeted criterion there is `ANY` alone, which it ignores: its target is fixed.
    """
    any_class = torch.full((1, len(criterion)), ANY, device=criterion.x.device)
    if criterion.targeted:
        return any_class
    logits = criterion.classifier.logits(criterion.x)
    ranked = logits.scatter(1, criterion.classes[:, None], -math.inf).argsort(1, descending=True)
    likeliest = ranked[:, : min(MOST_RIVALS, logits.shape[1] - 1)].T
    distances = []
    for rivals in likeliest:
        margins, gradients = criterion.smooth_margins_and_gradients(criterion.x, rivals)
        distances.append(margins / dual_norms(gradients, dual_exponent(p)).clamp_min(TINY))
    order = torch.stack(distances).argsort(dim=0, stable=True)[:count]
    return torch.cat([any_class, likeliest.gather(0, order)])


class _Search:
    """The search around n inputs, with the nearest adversarial points that it found so far.

    points  (NEAREST, n, *shape): these points, nearest first; the input itself where there are fewer.
    sizes   (NEAREST, n): their distances from the inputs, infinite where there are fewer.
    open    (k,): the positions of inputs whose search goes on.
    met     (m, n): the smallest distance that each of the m far groups so far found, infinite where it found none.
    """

    def __init__(self, criterion: Criterion, p: float, chunk_size: int) -> None:
        self.criterion, self.p, self.chunk_size = criterion, p, chunk_size
        x = criterion.x
        self.points = x.expand(NEAREST, *x.shape).clone()
        self.sizes = torch.full((NEAREST, len(x)), math.inf, dtype=x.dtype, device=x.device)
        self.open = torch.arange(len(x), device=x.device)
        self.met = self.sizes[:0]

    def keep(self, points: torch.Tensor, sizes: torch.Tensor | None = None) -> None:
        """Add adversarial points (m, k, *shape) of the k open inputs, and keep the nearest.

        sizes   (m, k): the distances of these points, infinite for points to ignore; default: computed here, and points
                equal to the input are ignored.
        """
        if sizes is None:
            sizes = torch.linalg.vector_norm((points - self.criterion.x[self.open]).flatten(2), self.p, dim=2)
            sizes = torch.where(sizes > 0.0, sizes, math.inf)
        sizes = torch.cat([self.sizes[:, self.open], sizes])
        points = torch.cat([self.points[:, self.open], points])
        order = sizes.argsort(dim=0, stable=True)[:NEAREST]
        self.sizes[:, self.open] = sizes.gather(0, order)
        self.points[:, self.open] = points[order, torch.arange(points.shape[1], device=points.device)]

    def corners(self, effort: Effort) -> None:
        """For p = 1, descend from the moves of one to four coordinates with the smallest margins.

        Only inputs for which an adversarial point is known take part, since moves are about as long as its distance.
        """
        known = self.open[torch.isfinite(self.sizes[0, self.open])]
        everyone, self.open = self.open, known
        rows = self.criterion.rows(known)
        box = None
        moves = []
        for i in known.tolist():
            if self.criterion.boxed:
                box = float(self.criterion.low[i]), float(self.criterion.high[i])
            margins, gradients = partial(self._margins, i), partial(self._gradients, i)
            moves.append(
                sparse_moves(margins, gradients, self.criterion.x[i], float(self.sizes[0, i]), effort.starts, box)
            )
        if moves:
            starts = rows.x + torch.stack(moves, 1).view(-1, *rows.x.shape)
            same_kind = torch.zeros(len(starts), dtype=torch.long, device=starts.device)
            self.descend(starts, effort.iterations, schedule=NEAR, cuts=REFINING_CUTS, kinds=same_kind)
        self.open = everyone

    def _margins(self, i: int, points: torch.Tensor) -> torch.Tensor:
        """Margins (m,) of input `i` at points (m, *shape)."""
        return torch.cat([rows.margins(part) for rows, part in self._parts(i, points)])

    def _gradients(self, i: int, points: torch.Tensor) -> torch.Tensor:
        """Gradients (m, d) of the margins of input `i` at points (m, *shape)."""
        return torch.cat([rows.margins_and_gradients(part)[1].flatten(1) for rows, part in self._parts(i, points)])

    def _parts(self, i: int, points: torch.Tensor) -> list[tuple[Criterion, torch.Tensor]]:
        """Points (m, *shape) in chunks, each with the criterion of input `i` for as many rows."""
        parts = torch.split(points, self.chunk_size)
        return [(self.criterion.rows(torch.full((len(part),), i, device=part.device)), part) for part in parts]

    def round(self, number: int, effort: Effort, generator: torch.Generator) -> None:
        """Descend from the groups of starts of round `number`, counted from 0, for all open inputs.

        Adds what far groups found to `met`. After every round but the first, inputs whose nearest point was found by
        enough far groups are taken out of `open`.
        """
        shortest = shortest_start(self.criterion.x[0].numel())
        drawn = groups(number, effort.starts, wanted=ENOUGH, met=ENOUGH - 1, shortest=shortest)
        starts = torch.cat([self._starts(group, generator) for group in drawn])
        kinds = torch.tensor([place for place, group in enumerate(drawn) for _ in group.lengths])
        opened = self.open
        sizes = self.descend(starts, effort.iterations, cuts=CUTS, kinds=kinds.to(opened))
        far = [sizes[kinds == place].amin(0) for place, group in enumerate(drawn) if not group.jumps]
        found = torch.full((len(far), len(self.criterion)), math.inf, dtype=sizes.dtype, device=sizes.device)
        found[:, opened] = torch.stack(far)
        self.met = torch.cat([self.met, found])
        met = (self.met <= (1.0 + SAME) * self.sizes[0]) & torch.isfinite(self.met)
        if number:
            self.open = opened[met.sum(0)[opened] < ENOUGH]

    def descend(
        self,
        starts: torch.Tensor,
        steps: int,
        rivals: torch.Tensor | None = None,
        schedule: Schedule = FAR,
        cuts: Sequence[Cut] = (),
        kinds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Descend from m starts for each of the k open inputs, (m, k, *shape), and keep the nearest points.

        steps   number of gradients of a descent.
        rivals  (m, k): the class towards which each descent goes, or `ANY`; default: `ANY`.
        cuts    when most descents are given up; those of one input with starts of the same kind compete.
        kinds   (m,): the kind of each start, a number below m; needed with `cuts`.

        Returns the distances (m, k) of the points found, infinite where a descent found none.
        """
        m, k = starts.shape[:2]
        every = self.criterion.rows(self.open.repeat(m))
        aims = None if rivals is None else rivals.reshape(-1)

        def function_of_rows(rows: torch.Tensor) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
            chunks = torch.split(rows, self.chunk_size)

            def margins_and_gradients(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                parts = [
                    every.rows(chunk).smooth_margins_and_gradients(part, None if aims is None else aims[chunk])
                    for chunk, part in zip(chunks, torch.split(points, self.chunk_size), strict=True)
                ]
                return torch.cat([margins for margins, _ in parts]), torch.cat([gradients for _, gradients in parts])

            return margins_and_gradients

        low, high = (every.low, every.high) if every.boxed else (None, None)
        inputs = torch.arange(k, device=starts.device)
        competing = None if kinds is None else (m * inputs[None, :] + kinds[:, None]).reshape(-1)
        sizes, points = descend_halving(
            function_of_rows, every.x, starts.flatten(0, 1), p=self.p, steps=steps, groups=competing, cuts=cuts,
            schedule=schedule, low=low, high=high,
        )  # fmt: skip
        sizes = sizes.view(m, k)
        self.keep(points.view(starts.shape), sizes)
        return sizes

    def _starts(self, group: Group, generator: torch.Generator) -> torch.Tensor:
        """The m starts of a group for each of the k open inputs, (m, k, *shape)."""
        x = self.criterion.x[self.open]
        count, dim = len(group.lengths), x[0].numel()
        noise = torch.randn(count, dim, generator=generator)
        if math.isinf(self.p):
            noise = noise.sign() * torch.rand(count, dim, generator=generator)
        elif self.p == 1.0:
            noise = sparse(noise, group.number)
        noise /= torch.linalg.vector_norm(noise, self.p, dim=1, keepdim=True).clamp_min(1e-12)
        sizes, points = self.sizes[:, self.open], self.points[:, self.open]
        scale = torch.where(torch.isfinite(sizes[0]), sizes[0], self._typical_size(x))
        lengths = torch.tensor(group.lengths)
        offsets = (lengths[:, None] * noise).to(x).view(count, 1, *x.shape[1:]) * scale.reshape(self.criterion.column)
        # Where fewer points were found, `points` has the input itself, and the start lies around the input.
        centers = points[torch.arange(count) % NEAREST] if group.jumps else x.expand(count, *x.shape)
        return self.criterion.rows(self.open).inside(centers + offsets)

    def _typical_size(self, x: torch.Tensor) -> torch.Tensor:
        """A length (k,) for inputs x (k, *shape) without a known adversarial point: the mean distance found for others,
        or, if there is none, the norm of each input, but at least 1.
        """
        found = self.sizes[0][torch.isfinite(self.sizes[0])]
        own = torch.linalg.vector_norm(x.flatten(1), self.p, dim=1).clamp_min(1.0)
        return found.mean().expand_as(own) if len(found) else own
