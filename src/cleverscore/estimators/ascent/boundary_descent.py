"""Descents of the margin to the nearest point beyond the decision boundary (a crossing), many descents at a time.

Each descent is one row of the tensors here. Its gradients are divided between two stages.

The first stage takes steps against the gradient inside a ball around the input, as in DDN (Rony et al., 2019) and FMN
(Pintor et al., 2021). The radius of the ball grows until the row crosses. From then on it shrinks after a point that
crosses and grows after any other point, but stays below the distance of the nearest crossing. This stage finds the near
part of the boundary. The second stage moves the nearest crossing to the point nearest to the input on the boundary
linearised there, as in FAB (Croce & Hein, 2020). It keeps the new point only if this is a nearer crossing. On an affine
classifier the result is exact.

A `Schedule` sets the step sizes of the first stage: `FAR` to find a crossing from any start, `NEAR` to move along the
boundary from a known crossing.

Where only the nearest of several rows is needed, most rows can be given up early: `descend_halving` continues only
those with the nearest crossings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cleverscore.estimators.ascent.half_space import nearest_in_half_space
from cleverscore.inputs.projections import onto_ball, steepest
from cleverscore.models.margin_gradients import dual_norms
from cleverscore.norms import dual_exponent

MarginsAndGradients = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

# A descent from the input itself begins in a ball whose radius is this share of the linear distance, margin /
# ||gradient||, at which a linear classifier would cross. Networks that are flat at the data have much steeper places
# near it, and steps in a larger ball would pass over them.
FIRST_SHARE = 0.02
# This radius then grows by a constant factor per step: it is twice the linear distance after this share of the first
# stage's steps.
GROWTH_STEPS = 0.5
# In l1 and linf, steps go along the gradient, and the point is then projected onto the ball. Steps in the steepest
# direction of the norm, which moves one coordinate in l1 and all equally in linf, stall before the nearest point (ReLU
# 256 x 2, linf: 0.7% too far on average, 0.2% with these steps). In the ball of radius 1, a step of size 1 has these l2
# lengths:
L1_STEP = 0.3  # times the l2 norm of the ball's farthest points, which is 1
LINF_STEP = 4.0  # times the l2 norm of the ball's corners: nearly all coordinates then reach the ball's sides
REFINING = 0.4  # share of the gradients for the second stage
BEYOND = 1e-4  # the second stage goes farther than the linearised boundary by this share, more than rounding errors


@dataclass(frozen=True)
class Schedule:
    """How the steps of a descent become smaller after the row first crosses.

    Each pair has the value up to this crossing and the value at the last step, with cosine decay in between.

    step_sizes      lengths of steps, as shares of the radius of the current ball.
    radius_changes  relative changes of this radius from step to step, once the row has crossed.
    """

    step_sizes: tuple[float, float]
    radius_changes: tuple[float, float]


@dataclass(frozen=True)
class Cut:
    """A point at which rows are given up: after the share `at` of the steps, only the share `share` of the remaining
    rows of each group continues, those with the nearest crossings.
    """

    at: float
    share: float


FAR = Schedule((1.0, 0.02), (0.4, 0.02))
NEAR = Schedule((0.3, 0.001), (0.05, 0.0005))


@torch.no_grad()
def descend(
    margins_and_gradients: MarginsAndGradients,
    x: torch.Tensor,
    starts: torch.Tensor,
    *,
    p: float,
    steps: int,
    schedule: Schedule = FAR,
    low: torch.Tensor | None = None,
    high: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row, the distance ||z - x||_p of the nearest crossing z that it found, and z: (n,) and (n, *shape).

    margins_and_gradients   a function from one point per row, (n, *shape), to margins (n,) and their gradients
                            (n, *shape). A point is a crossing where its margin is at most zero. The function is called
                            `steps` times, always with all rows.
    x, starts   (n, *shape): the inputs, and the starts of the descents. Rows are independent: repeat an input for
                several starts or targets.
    steps       number of gradients per row, both stages together.
    low, high   the box to stay in, broadcastable to x; None for no box.

    A row that found no crossing has infinite distance, and its input as the point.

    >>> x = torch.tensor([[3.0, 4.0]])
    >>> margin = lambda z: (z.sum(1) - 1.0, torch.ones_like(z))
    >>> distances, points = descend(margin, x, x, p=2.0, steps=20)
    >>> round(float(distances), 3), bool(points.sum() <= 1.0)
    (4.243, True)
    """
    return descend_halving(
        lambda _rows: margins_and_gradients, x, starts, p=p, steps=steps, schedule=schedule, low=low, high=high
    )


@torch.no_grad()
def descend_halving(
    function_of_rows: Callable[[torch.Tensor], MarginsAndGradients],
    x: torch.Tensor,
    starts: torch.Tensor,
    *,
    p: float,
    steps: int,
    groups: torch.Tensor | None = None,
    cuts: Sequence[Cut] = (),
    schedule: Schedule = FAR,
    low: torch.Tensor | None = None,
    high: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `descend`, but each of the `cuts` gives up rows of every group whose crossings are farther (successive
    halving).

    function_of_rows    a function: takes the positions (m,) of the rows that continue, and returns the function
                        `margins_and_gradients` for these rows.
    groups              (n,): the number of each row's group; default: all rows are one group.
    cuts                when rows are given up, and how many, in the order of the steps.

    The result of a row that was given up is the nearest crossing that it had found by then.
    """
    rows = _Rows(function_of_rows, x, p, low, high)
    refining = min(max(int(REFINING * steps), 3), steps // 2)
    descent = _Descent.begin(rows, starts, steps - refining, schedule)
    groups = torch.zeros(len(x), dtype=torch.long, device=x.device) if groups is None else groups
    for cut in cuts:
        descent.run(round(cut.at * steps))
        descent.keep(_leaders(rows.nearest, groups[rows.rows], cut.share))
    descent.run(steps - refining)
    _refine(rows, refining)
    return rows.results()


def _leaders(distances: torch.Tensor, groups: torch.Tensor, share: float) -> torch.Tensor:
    """Positions of the rows that continue, in ascending order: of each group this share of its rows, rounded up, those
    with the smallest distances.

    distances, groups   (m,): the distance of each row's nearest crossing, and the number of its group.

    >>> _leaders(torch.tensor([3.0, 1.0, 2.0, 9.0]), torch.tensor([0, 0, 0, 1]), 0.5).tolist()
    [1, 2, 3]
    """
    order = distances.argsort(stable=True)
    order = order[groups[order].argsort(stable=True)]
    _numbers, sizes = torch.unique_consecutive(groups[order], return_counts=True)
    firsts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    ranks = torch.arange(len(order), device=order.device) - firsts
    return order[ranks < (share * sizes - 1e-6).ceil().repeat_interleave(sizes)].sort().values


class _Rows:
    """The m rows of a descent that continue, and the nearest crossing of each so far; points are flattened to (m, d).

    rows        (m,): the positions of these rows among all n rows.
    nearest     (m,): distances of the nearest crossings, infinite where none was found.
    points      (m, d): these crossings, the inputs where none was found.
    margins, gradients  (m,), (m, d): at `points`; zero where no crossing was found.
    """

    def __init__(
        self,
        function_of_rows: Callable[[torch.Tensor], MarginsAndGradients],
        x: torch.Tensor,
        p: float,
        low: torch.Tensor | None,
        high: torch.Tensor | None,
    ) -> None:
        self.function_of_rows, self.shape, self.p = function_of_rows, x.shape, p
        self.rows = torch.arange(len(x), device=x.device)
        self.function = function_of_rows(self.rows)
        self.x = x.flatten(1)
        self.low = None if low is None else low.to(x).expand_as(x).flatten(1)
        self.high = None if high is None else high.to(x).expand_as(x).flatten(1)
        self.nearest = torch.full_like(self.x[:, 0], math.inf)
        self.points = self.x.clone()
        self.margins = torch.zeros_like(self.nearest)  # at `points`
        self.gradients = torch.zeros_like(self.x)
        self._all_nearest, self._all_points = self.nearest, self.points

    def results(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The nearest crossings of all n rows, also of those given up: distances (n,) and points (n, *shape)."""
        self._all_nearest = self._all_nearest.index_copy(0, self.rows, self.nearest)
        self._all_points = self._all_points.index_copy(0, self.rows, self.points)
        return self._all_nearest, self._all_points.view(self.shape)

    def keep(self, places: torch.Tensor) -> None:
        """Give up all rows but those at these places (k,) among the m current ones."""
        self.results()  # stores the crossings of the rows that are given up
        self.rows = self.rows[places]
        self.function = self.function_of_rows(self.rows)
        self.x, self.nearest, self.points = self.x[places], self.nearest[places], self.points[places]
        self.margins, self.gradients = self.margins[places], self.gradients[places]
        if self.low is not None and self.high is not None:
            self.low, self.high = self.low[places], self.high[places]

    def inside(self, points: torch.Tensor) -> torch.Tensor:
        """Points (m, d) clipped to the box, if there is one."""
        return points if self.low is None or self.high is None else points.maximum(self.low).minimum(self.high)

    def free(self, gradients: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        """Gradients (m, d) at points (m, d), set to zero where a step against them would lead out of the box."""
        if self.low is None or self.high is None:
            return gradients
        stuck = ((points <= self.low) & (gradients > 0.0)) | ((points >= self.high) & (gradients < 0.0))
        return torch.where(stuck, 0.0, gradients)

    def evaluate(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Evaluate one point per row, (m, d), and remember those that are nearer crossings than their row has found
        before.

        Returns margins (m,), gradients (m, d), distances from the inputs (m,), and whether each point was such a
        crossing (m,).
        """
        margins, gradients = self.function(points.view(-1, *self.shape[1:]))
        margins, gradients = margins.to(points), gradients.flatten(1).to(points).nan_to_num(0.0, 0.0, 0.0)
        distances = dual_norms(points - self.x, self.p)
        nearer = (margins <= 0.0) & (distances < self.nearest)
        self.nearest = torch.where(nearer, distances, self.nearest)
        self.points = torch.where(nearer[:, None], points, self.points)
        self.margins = torch.where(nearer, margins, self.margins)
        self.gradients = torch.where(nearer[:, None], gradients, self.gradients)
        return margins, gradients, distances, nearer


@dataclass
class _Descent:
    """The first stage: descent in balls whose radius grows until the row crosses, and then stays near the distance of
    its nearest crossing.

    points, radii   (m, d) and (m,): the points of the next gradients, and the current radii of the balls.
    crossed_at      (m,): the step at which a row first crossed, infinite before.
    steps, step     the number of steps of this stage, and how many of them have been taken.
    """

    rows: _Rows
    points: torch.Tensor
    radii: torch.Tensor
    crossed_at: torch.Tensor
    steps: int
    schedule: Schedule
    step: int = 0

    @classmethod
    def begin(cls, rows: _Rows, starts: torch.Tensor, steps: int, schedule: Schedule) -> _Descent:
        points = rows.inside(starts.flatten(1).to(rows.x))
        radii = dual_norms(points - rows.x, rows.p)
        return cls(rows, points, radii, torch.full_like(radii, math.inf), steps, schedule)

    def keep(self, places: torch.Tensor) -> None:
        """Give up all rows but those at these places (k,) among the m current ones."""
        self.rows.keep(places)
        self.points, self.radii, self.crossed_at = self.points[places], self.radii[places], self.crossed_at[places]

    def run(self, until: int) -> None:
        """Take steps until `until` of them have been taken in total, or all steps of this stage if these are fewer."""
        growth = (2.0 / FIRST_SHARE) ** (1.0 / max(GROWTH_STEPS * self.steps, 1.0))
        rows, steps, schedule = self.rows, self.steps, self.schedule
        for step in range(self.step, min(until, steps)):
            points, radii = self.points, self.radii
            margins, gradients, distances, _nearer = rows.evaluate(points)
            if step == 0:
                steepness = dual_norms(gradients, dual_exponent(rows.p))
                linear = torch.where(steepness > 0.0, margins.clamp_min(0.0) / steepness, 0.0)
                radii = torch.where(radii > 0.0, radii, FIRST_SHARE * linear)
            crossing, crossed = margins <= 0.0, torch.isfinite(rows.nearest)
            self.crossed_at = torch.where(crossing, self.crossed_at.clamp_max(float(step)), self.crossed_at)
            done = torch.where(crossed, (step - self.crossed_at) / (steps - self.crossed_at), 0.0)
            decay = 0.5 * (1.0 + torch.cos(math.pi * done))
            sizes, change = (
                last + (first - last) * decay for first, last in (schedule.step_sizes, schedule.radius_changes)
            )
            outward = torch.minimum(radii * (1.0 + change), (1.0 - schedule.radius_changes[1] / 2) * rows.nearest)
            outward = torch.where(crossed, outward, radii * growth)
            self.radii = torch.where(crossing, torch.minimum(radii, distances) * (1.0 - change), outward)
            moved = points - (sizes * self.radii)[:, None] * _direction(rows.free(gradients, points), rows.p)
            # Points are clipped to the box before they are projected onto the ball: the projection moves coordinates
            # towards the input, and so not out of the box, except for rounding errors.
            self.points = rows.inside(rows.x + onto_ball(rows.inside(moved) - rows.x, self.radii, rows.p))
        self.step = max(self.step, min(until, steps))


def _direction(gradients: torch.Tensor, p: float) -> torch.Tensor:
    """The directions (m, d) to step against, from gradients (m, d); their length is that of a step of size 1 in the
    ball of radius 1.
    """
    if p == 1.0:
        return L1_STEP * steepest(gradients, 2.0)
    if math.isinf(p):
        return LINF_STEP * math.sqrt(gradients.shape[1]) * steepest(gradients, 2.0)
    return steepest(gradients, p)


def _refine(rows: _Rows, steps: int) -> None:
    """The second stage: move each row's nearest crossing towards the point that is nearest to the input on the boundary
    linearised at this crossing.

    A step that does not end at a nearer crossing is not taken, and the next one goes half as far; after each step that
    is taken, the next one goes twice as far, at most the whole way.
    """
    shares = torch.ones_like(rows.nearest)
    for _ in range(steps):
        nearest = nearest_in_half_space(
            rows.x, rows.points, rows.margins, rows.gradients, p=rows.p, low=rows.low, high=rows.high
        )
        nearest = rows.x + (1.0 + BEYOND) * (nearest - rows.x)
        _margins, _gradients, _distances, nearer = rows.evaluate(
            rows.inside(rows.points + shares[:, None] * (nearest - rows.points))
        )
        shares = torch.where(nearer, (2.0 * shares).clamp_max(1.0), 0.5 * shares)
