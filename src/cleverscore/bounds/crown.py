"""CROWN: lower bounds of linear functions of a layer over a ball, by replacing activations with lines, last to first.

Zhang, Weng, Chen, Hsieh & Daniel, "Efficient neural network robustness certification with general activation
functions" (NeurIPS 2018). The bounds that the lines need are found in the same way, layer by layer, but only where it
matters: a ReLU whose sign an interval settles is linear already. Rows go through the network in chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from cleverscore.bounds.affine import Affine, Concat, Convolution, Dense, Scale, Sum
from cleverscore.bounds.graph import Graph
from cleverscore.bounds.pooling import MaxPool, Planes
from cleverscore.bounds.relaxations import Activation, Lines
from cleverscore.bounds.rows import DENSE_SHARE, Rows, merged, one_hot

CHUNK_NUMBERS = 2**21  # coefficients of one layer at once: 8 MB of single precision stays near the cores
# Rounding: bounds are widened by this many units in the last place of the sum of all absolute terms.
ROUNDING = 64.0

Interval = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Region:
    """Where inputs may be: B_p(x, radius), and inside the box (low, high) if p = inf and a box is given.

    x (n, *input_shape) and radius (n,) in double precision; q is dual to p.
    """

    x: torch.Tensor
    radius: torch.Tensor
    q: float
    box: tuple[float, float] | None = None

    def interval(self) -> Interval:
        """The smallest box around the region."""
        radius = self.radius.view(-1, *[1] * (self.x.ndim - 1))
        low, high = self.x - radius, self.x + radius
        if self.box is None:
            return low, high
        return low.clamp_min(self.box[0]), high.clamp_max(self.box[1])

    def lowest(self, rows: Rows, bias: torch.Tensor) -> torch.Tensor:
        """min of rows . x + bias over the region, less what rounding can hide: (R,)."""
        values, dtype = rows.values, rows.values.dtype
        radius = self.radius.to(dtype)[rows.owner]
        centre = self.x
        if self.box is not None:
            low, high = self.interval()
            centre, half = 0.5 * (low + high), 0.5 * (high - low)
            spread = (values.abs() * rows.local(half.to(dtype))).flatten(1).sum(1)
        elif self.q == 1.0:
            spread = radius * values.abs().flatten(1).sum(1)
        else:
            spread = radius * torch.linalg.vector_norm(values.flatten(1), self.q, dim=1)
        products = (values * rows.local(centre.to(dtype))).flatten(1)
        size = products.abs().sum(1) + spread + bias.abs()
        return products.sum(1) + bias - spread - ROUNDING * torch.finfo(dtype).eps * size


class Bounder:
    """Bounds on a graph around given inputs.

    exact   the graph in double precision, for the lines and the last pass.
    fast    the same graph for the many rows in between; may be single precision.
    """

    def __init__(self, exact: Graph, fast: Graph, dtype: torch.dtype) -> None:
        self.exact, self.fast, self.dtype = exact, fast, dtype
        self.affine = exact.affine
        self.users: dict[int, list[Activation | MaxPool]] = {}
        for node in exact.nodes:
            if isinstance(node.operation, Activation | MaxPool):
                self.users.setdefault(node.parents[0], []).append(node.operation)
        self.widest = {v: _widest(exact, v) for v in self.users}
        self._norms: dict[tuple[int, float], torch.Tensor] = {}

    def margins(
        self, region: Region, objectives: torch.Tensor, owner: torch.Tensor
    ) -> torch.Tensor:
        """Lower bounds (R,) of objectives (R, K) times the logits of the inputs `owner` (R,) over their regions."""
        lines = self.lines(region)
        return self._lowest(self.exact, lines, region, len(self.exact.nodes) - 1, Rows(objectives, owner), 0.0)

    def lines(self, region: Region) -> dict[int, Lines | Planes]:
        """Lines around every activation and pooling, from bounds on what goes in."""
        nodes = self.exact.nodes
        intervals: list[Interval] = [region.interval()]
        centres = self.exact.forward(region.x) if region.box is None else None
        lines: dict[int, Lines | Planes] = {}
        quick: dict[int, Lines | Planes] = {}
        for v in range(1, len(nodes) - 1):
            operation = nodes[v].operation
            given = [intervals[parent] for parent in nodes[v].parents]
            if isinstance(operation, Activation | MaxPool):
                low, high = given[0]
                lines[v] = operation.lines(low, high) if isinstance(operation, Activation) else operation.planes(low, high)
                quick[v] = type(lines[v])(*(part.to(self.dtype) for part in lines[v]))
                intervals.append((operation(low), operation(high)))
                continue
            if v in self.users and self.affine[v] and centres is not None:
                norm = self.norms(v, region.q, region.x.device) * region.radius[:, None]
                spread = norm.view(-1, *nodes[v].shape)
                intervals.append((centres[v] - spread, centres[v] + spread))
                continue
            interval = _interval(operation, given)
            if v in self.users:
                interval = self._refined(v, interval, quick, region)
            intervals.append(interval)
        return lines

    def norms(self, v: int, q: float, device: torch.device) -> torch.Tensor:
        """||row||_q of every neuron of a node that is affine in the input, as a row (1, neurons)."""
        if (v, q) not in self._norms:
            shape = self.exact.nodes[v].shape
            count = math.prod(shape)
            none = Region(torch.zeros(1, *self.exact.nodes[0].shape, dtype=torch.float64, device=device),
                          torch.ones(1, dtype=torch.float64, device=device), q)
            neurons = torch.arange(count, device=device)
            if len(shape) == 3:
                neurons = neurons.view(shape[0], -1).T.reshape(-1)
            found = torch.empty(count, dtype=torch.float64, device=device)
            for part in torch.split(neurons, max(1, CHUNK_NUMBERS // self.widest.get(v, _widest(self.exact, v)))):
                owner = torch.zeros_like(part)
                rows, _ = _start(self.exact, v, part, owner, torch.ones(len(part), dtype=torch.float64, device=device))
                bias = torch.zeros(len(part), dtype=torch.float64, device=device)
                found[part] = -self._lowest(self.exact, {}, none, *rows, bias)
            self._norms[v, q] = found[None]
        return self._norms[v, q]

    def _refined(self, v: int, interval: Interval, quick: dict[int, Lines | Planes], region: Region) -> Interval:
        """An interval made tighter by CROWN where its users are not linear on it."""
        low, high = interval
        wanted = torch.zeros_like(low, dtype=torch.bool)
        for user in self.users[v]:
            wanted |= user.open(low, high)
        shape = self.exact.nodes[v].shape
        # Rows of one place next to each other share what is looked up for that place.
        if len(shape) == 3:
            place = wanted.flatten(2).transpose(1, 2).nonzero()
            owner, neuron = place[:, 0], place[:, 2] * (shape[1] * shape[2]) + place[:, 1]
        else:
            owner, neuron = wanted.flatten(1).nonzero().unbind(1)
        lows, highs = low.flatten(1).clone(), high.flatten(1).clone()
        size = max(1, CHUNK_NUMBERS // (2 * self.widest[v]))
        for who, which in zip(torch.split(owner, size), torch.split(neuron, size), strict=True):
            if not len(who):
                break
            signs = torch.ones(2 * len(who), dtype=self.dtype, device=low.device)
            signs[len(who) :] = -1.0
            twice, both = torch.cat([who, who]), torch.cat([which, which])
            start, bias = _start(self.fast, v, both, twice, signs)
            found = self._lowest(self.fast, quick, region, *start, bias).double()
            lows[who, which] = torch.maximum(lows[who, which], found[: len(who)])
            highs[who, which] = torch.minimum(highs[who, which], -found[len(who) :])
        return lows.view_as(low), highs.view_as(high)

    def _lowest(
        self, graph: Graph, lines: dict[int, Lines | Planes], region: Region, v: int, rows: Rows,
        bias: torch.Tensor | float,
    ) -> torch.Tensor:  # fmt: skip
        """Lower bounds of rows over node v plus bias, by going back to the input."""
        waiting = {v: rows}
        for u in range(v, 0, -1):
            rows_here = waiting.pop(u, None)
            if rows_here is None:
                continue
            node = graph.nodes[u]
            parts, added = _back(node.operation, rows_here, node.shape, lines.get(u))
            bias = bias + added
            for parent, part in zip(node.parents, parts, strict=True):
                before = waiting.get(parent)
                shape = graph.nodes[parent].shape
                waiting[parent] = part if before is None else merged(before, part, shape)
        last = waiting[0]
        return region.lowest(last, last.values.new_zeros(len(last.values)) + bias)


def _back(
    operation: object, rows: Rows, shape: tuple[int, ...], lines: Lines | Planes | None
) -> tuple[list[Rows], torch.Tensor | float]:
    """Rows over the parents of a node, and what its constants add."""
    if isinstance(operation, Affine):
        return [operation.backward(rows, shape)], operation.added(rows)
    if isinstance(operation, Sum):
        return operation.backward(rows), 0.0
    if isinstance(operation, Concat):
        return operation.backward(rows, shape), 0.0
    if isinstance(operation, MaxPool):
        assert isinstance(lines, Planes)
        part, added = operation.backward(rows, lines)
        return [part], added
    assert isinstance(lines, Lines)
    positive = rows.values > 0
    slope = torch.where(positive, rows.local(lines.slope_low), rows.local(lines.slope_high))
    shift = torch.where(positive, rows.local(lines.shift_low), rows.local(lines.shift_high))
    return [replace(rows, values=rows.values * slope)], (rows.values * shift).flatten(1).sum(1)


def _start(
    graph: Graph, v: int, neurons: torch.Tensor, owner: torch.Tensor, signs: torch.Tensor
) -> tuple[tuple[int, Rows], torch.Tensor | float]:
    """Rows that pick neurons of node v; for a matrix its own rows, which is one product less."""
    node = graph.nodes[v]
    operation = node.operation
    if isinstance(operation, Dense) and len(node.shape) == 1:
        rows = Rows(signs[:, None] * operation.weight[neurons], owner)
        return (node.parents[0], rows), 0.0 if operation.offset is None else signs * operation.offset[neurons]
    return (v, one_hot(neurons, owner, signs, node.shape)), 0.0


def _interval(operation: object, given: list[Interval]) -> Interval:
    """Bounds of an affine layer from bounds on what goes in."""
    if isinstance(operation, Affine):
        low, high = given[0]
        centre, spread = operation.forward(0.5 * (low + high)), operation.magnitude(0.5 * (high - low))
        return centre - spread, centre + spread
    if isinstance(operation, Sum):
        swapped = [pair if sign > 0 else pair[::-1] for sign, pair in zip(operation.signs, given, strict=True)]
        return operation([pair[0] for pair in swapped]), operation([pair[1] for pair in swapped])
    assert isinstance(operation, Concat)
    return operation([low for low, _ in given]), operation([high for _, high in given])


def _widest(graph: Graph, v: int) -> int:
    """The most numbers that one row over node v has on its way back."""
    sides: dict[int, tuple[int, int] | None] = {v: (1, 1) if len(graph.nodes[v].shape) == 3 else None}
    most = 1
    for u in range(v, -1, -1):
        if u not in sides:
            continue
        node, side = graph.nodes[u], sides[u]
        shape = node.shape
        if side is not None and side[0] * side[1] > DENSE_SHARE * shape[1] * shape[2]:
            side = None
        most = max(most, math.prod(shape) if side is None else shape[0] * side[0] * side[1])
        operation = node.operation
        if side is not None and isinstance(operation, Convolution | MaxPool):
            (high, wide), (s, t), (h, w) = operation.reach, operation.stride, side
            side = ((h - 1) * s + high, (w - 1) * t + wide)
        elif not isinstance(operation, Activation | Scale | Sum | Concat):
            side = None
        for parent in node.parents:
            before = sides.get(parent, (0, 0))
            sides[parent] = None if side is None or before is None else (max(before[0], side[0]), max(before[1], side[1]))
    return most
