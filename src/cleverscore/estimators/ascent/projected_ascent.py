"""The largest falls (decreases) of the margin across shells, and the radius at which they add up to the margin.

A shell is the space between two neighbouring spheres around the input x0. Shell k lies between the radii e_(k-1) r and
e_k r, with e_0 = 0 and e_K = 1. Let g be the margin.

Every shell k of every target has several directions u with ||u||_p <= 1. A step moves each direction along the gradient
of
    fall_k(r u) = g(x0 + e_(k-1) r u) - g(x0 + e_k r u)
and back into the unit ball. It also moves r towards the root: the r with sum_k max_u fall_k(r u) = g(x0). So a single
ascent finds the root, instead of one ascent for every trial radius. Only first derivatives are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cleverscore.estimators.ascent.margin_rows import MarginRows
from cleverscore.inputs.projections import onto_ball, steepest

MOMENTUM = 0.75
STEP_SIZES = (1.0, 0.02)  # lp lengths of a direction's first and last step, with cosine decay in between
# A step multiplies the radius by (margin / sum of the falls), limited to these factors, to the power `RADIUS_POWER`,
# which keeps the radius from changing faster than the directions improve.
RADIUS_FACTORS = (0.6, 1.5)
RADIUS_POWER = 0.5
# At the end, forward passes along one direction per shell bracket the root in `ROOT_STEPS` steps: first at radii that
# differ by these shares from those known, because the ascent ended near the root, then by bisection.
NEAR = (0.01, 0.04)
ROOT_STEPS = 11


@dataclass
class ShellAscent:
    """Projected ascent of the directions of T targets, K shells and S starts.

    targets, margins    (T,): target classes, and the margins at the input; the falls of the shells have to add up to
                        these.
    limits              (T,): the largest allowed radius: the distance of a known crossing, or the ball's radius.
    radii               (T,): the current estimate of the root.
    edges               (K,): the outer ends of the shells, as shares of the radius.
    directions, momentum    (T, K, S, d): the current directions, inside the unit ball, and the momentum of their steps.
    best, best_falls    (T, K, S, d) and (T, K, S): each start's direction with the largest fall so far, and this fall.
    nearest             (T,): distance of the nearest point without a positive margin that a step found, infinite if
                        none.
    """

    rows: MarginRows
    x: torch.Tensor
    p: float
    box: tuple[float, float] | None
    targets: torch.Tensor
    margins: torch.Tensor
    limits: torch.Tensor
    radii: torch.Tensor
    directions: torch.Tensor
    momentum: torch.Tensor
    best: torch.Tensor
    best_falls: torch.Tensor
    nearest: torch.Tensor
    edges: torch.Tensor

    @classmethod
    def begin(
        cls,
        rows: MarginRows,
        x: torch.Tensor,
        targets: torch.Tensor,
        margins: torch.Tensor,
        limits: torch.Tensor,
        starts: torch.Tensor,
        *,
        radii: torch.Tensor | None = None,
        p: float,
        edges: Sequence[float],
        box: tuple[float, float] | None = None,
    ) -> ShellAscent:
        """Begin ascents from the starts (T, S, d), the same in every shell; they are moved into the unit ball and the
        box.

        targets, margins, limits, edges     as in the class.
        radii   (T,): the first estimate of the root; default: the limits.
        """
        count, each, dim = starts.shape
        directions = starts[:, None].expand(count, len(edges), each, dim).clone()
        ascent = cls(
            rows, x, p, box, targets, margins, limits, limits if radii is None else radii, directions,
            torch.zeros_like(directions), directions,
            torch.full(directions.shape[:3], -math.inf, dtype=x.dtype, device=x.device),
            torch.full_like(limits, math.inf), torch.tensor(edges, dtype=x.dtype, device=x.device),
        )  # fmt: skip
        ascent.directions = ascent._inside(directions)
        ascent.best = ascent.directions.clone()
        return ascent

    def select(self, keep: torch.Tensor) -> None:
        """Continue with some of the targets only, given by their positions (m,)."""
        for name in ("targets", "margins", "limits", "radii", "directions", "momentum", "best", "best_falls",
                     "nearest"):  # fmt: skip
            setattr(self, name, getattr(self, name)[keep])

    @torch.no_grad()
    def climb(self, first: int, last: int, total: int) -> None:
        """Take the steps `first` to `last` - 1 of a schedule of `total` steps, counted from 0."""
        for step in range(first, last):
            falls, gradients = self._falls_and_gradients()
            better = falls > self.best_falls
            self.best_falls = torch.where(better, falls, self.best_falls)
            self.best = torch.where(better[..., None], self.directions, self.best)
            self._move_radii(falls.amax(2).sum(1))
            largest, smallest = STEP_SIZES
            size = smallest + (largest - smallest) * 0.5 * (1.0 + math.cos(math.pi * step / total))
            length = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
            self.momentum = MOMENTUM * self.momentum + gradients / torch.where(length > 0.0, length, 1.0)
            move = steepest(self.momentum.flatten(0, 2), self.p).view_as(self.directions)
            self.directions = self._inside(self.directions + size * move)

    def _move_radii(self, sums: torch.Tensor) -> None:
        """Move the radii towards the roots.

        sums    (T,): the sum of the largest falls of all shells, at the current radii.

        Where a radius becomes smaller, `best_falls` are scaled down, to be compared with falls at the new radius.
        """
        low, high = RADIUS_FACTORS
        factors = (self.margins / sums.clamp_min(1e-30)).clamp(low, high) ** RADIUS_POWER
        radii = torch.minimum(self.radii * factors, torch.minimum(self.limits, self.nearest))
        # Falls shrink with the radius, and faster than in proportion where the network is flat at the input: the square
        # is a guess.
        self.best_falls = self.best_falls * ((radii / self.radii).clamp_max(1.0) ** 2)[:, None, None]
        self.radii = radii

    @torch.no_grad()
    def roots(self, largest: float = math.inf) -> tuple[torch.Tensor, torch.Tensor]:
        """For each target, the radius at which the falls of the best directions of all shells add up to the margin, and
        the fall of each shell there: (T,), (T, K).

        Where they add up to less within the limit (`limits`, or `nearest` if that is smaller), the radius is this
        limit. The returned falls are those at the radius or at `largest`, whichever is smaller.
        """
        # The best direction of a shell is the one with the largest fall at the radius where the ascent ended.
        falls = torch.stack([self._falls(self.best), self._falls(self.directions)], 3).flatten(2)
        both = torch.stack([self.best, self.directions], 3).flatten(2, 3)
        chosen = falls.argmax(2)
        directions = both.gather(2, chosen[..., None, None].expand(*chosen.shape, 1, both.shape[-1]))
        low, high = torch.zeros_like(self.radii), torch.minimum(self.limits, self.nearest)
        middle, reached = torch.minimum(self.radii, high), falls.amax(2)
        for step in range(ROOT_STEPS):
            enough = reached.sum(1) >= self.margins
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
            if step < len(NEAR):  # the ascent ended near the root
                middle = torch.where(enough, (1.0 - NEAR[step]) * high, (1.0 + NEAR[step]) * low)
                middle = torch.where((middle > low) & (middle < high), middle, (low + high) / 2)
            else:
                middle = (low + high) / 2
            reached = self._falls(directions, middle)[..., 0]
        return high, self._falls(directions, high.clamp_max(largest))[..., 0]

    def _points(self, directions: torch.Tensor, radii: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The points where shells begin and end along each of their directions, (T * (2 K - 1) * S, *shape), and the
        targets of these points.

        For each target, the inner ends of shells 2 to K come first, then the outer ends of shells 1 to K. Shell 1
        begins at the input, which is left out.
        """
        ends = self._in_box(radii[:, None, None, None] * directions)
        edges = self.edges[:, None, None]
        pieces = torch.cat([edges[:-1] * ends[:, 1:], edges * ends], 1)
        points = (self.x.flatten() + pieces).view(-1, *self.x.shape)
        return points, self.targets[:, None, None].expand(pieces.shape[:3]).reshape(-1)

    def _in_box(self, offsets: torch.Tensor) -> torch.Tensor:
        """Offsets clipped so that the points stay in the box, if there is one."""
        if self.box is None:
            return offsets
        center = self.x.flatten()
        return (center + offsets).clamp(*self.box) - center

    def _falls(self, directions: torch.Tensor, radii: torch.Tensor | None = None) -> torch.Tensor:
        margins = self.rows.margins(*self._points(directions, self.radii if radii is None else radii))
        inner, outer = self._both_ends(margins.view(len(directions), -1, directions.shape[2]))
        return inner - outer

    def _both_ends(self, margins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The margins (T, 2 K - 1, S) at `_points`, split into those at inner and at outer ends of shells, (T, K, S)
        each; the input's own margin is added as that at the inner end of shell 1.
        """
        shells = len(self.edges)
        at_input = self.margins[:, None, None].expand(-1, 1, margins.shape[2])
        return torch.cat([at_input, margins[:, : shells - 1]], 1), margins[:, shells - 1 :]

    def _falls_and_gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        margins, gradients = self.rows.margins_and_gradients(*self._points(self.directions, self.radii))
        count, shells, each, dim = self.directions.shape
        inner, outer = self._both_ends(margins.view(count, -1, each))
        lengths = torch.linalg.vector_norm(self.directions[:, -1], self.p, dim=-1) * self.radii[:, None]
        crossed = torch.where(outer[:, -1] <= 0.0, lengths, math.inf).amin(1)
        self.nearest = torch.minimum(self.nearest, crossed)
        slopes = gradients.nan_to_num(0.0, 0.0, 0.0).reshape(count, -1, each, dim)
        edges = self.edges[:, None, None]
        uphill = -edges * slopes[:, shells - 1 :]
        uphill[:, 1:] += edges[:-1] * slopes[:, : shells - 1]
        return (inner - outer).nan_to_num(0.0), uphill

    def _inside(self, directions: torch.Tensor) -> torch.Tensor:
        """Directions (T, K, S, d) projected onto the unit ball, and clipped so that the line from the input to the
        current radius stays in the box, if there is one.
        """
        flat = directions.flatten(0, 2)
        flat = onto_ball(flat, torch.ones_like(flat[:, 0]), self.p)
        directions = flat.view_as(directions)
        if self.box is None:
            return directions
        lengths = self.radii.clamp_min(torch.finfo(self.radii.dtype).tiny)[:, None, None, None]
        return self._in_box(lengths * directions) / lengths
