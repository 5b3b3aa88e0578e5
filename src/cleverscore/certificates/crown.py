"""CROWN: lower bounds of linear functions of a layer's values over a ball around the input.

Every activation is bounded by two lines. The functions ("rows") are propagated back through the layers, last layer
first, until they are linear functions of the input, whose minimum over the ball is known (Zhang, Weng, Chen, Hsieh &
Daniel, "Efficient neural network robustness certification with general activation functions", NeurIPS 2018). The lines
need bounds on the inputs of the activations. These are found in the same way, layer by layer, but only where they
matter: a ReLU whose sign is fixed by its interval is linear already. Rows are propagated in chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from cleverscore.certificates.linear_forms import DENSE_SHARE, Rows, merged, one_hot
from cleverscore.certificates.linear_layers import Affine, Concat, Convolution, Dense, Scale, Sum
from cleverscore.certificates.max_pool import MaxPool, Planes
from cleverscore.certificates.relaxations import Activation, Lines
from cleverscore.certificates.tracing import Graph

CHUNK_NUMBERS = 2**21  # coefficients of one layer in a chunk of rows: 8 MB in single precision, for the cache
# Rounding: bounds are widened by this many units in the last place of the sum of all absolute terms.
ROUNDING = 64.0

Interval = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Region:
    """The sets over which outputs are bounded, one for each of n inputs: the ball B_p(x, radius) or, with a box, its
    part in the box. A box is for p = inf only.

    x (n, *input_shape) and radius (n,) are in double precision; q is the dual exponent of p; box is (low, high).
    """

    x: torch.Tensor
    radius: torch.Tensor
    q: float
    box: tuple[float, float] | None = None

    def interval(self) -> Interval:
        """The smallest and the largest value of every component in each region: two tensors (n, *input_shape)."""
        radius = self.radius.view(-1, *[1] * (self.x.ndim - 1))
        low, high = self.x - radius, self.x + radius
        if self.box is None:
            return low, high
        return low.clamp_min(self.box[0]), high.clamp_max(self.box[1])

    def lowest(self, rows: Rows, bias: torch.Tensor) -> torch.Tensor:
        """The minimum of row . x + bias over the region of the row's input, less a bound on rounding errors: (R,)."""
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
    """Bounds of the nodes of a graph around given inputs.

    exact   the graph in double precision, for the lines and the last backward pass.
    fast    the same graph, possibly in single precision, for the many rows of intermediate layers.
    dtype   the precision of `fast`.
    """

    def __init__(self, exact: Graph, fast: Graph, dtype: torch.dtype) -> None:
        self.exact, self.fast, self.dtype = exact, fast, dtype
        self.affine = exact.affine
        self.users: dict[int, list[int]] = {}  # of a node: the activations and poolings that it goes into
        for u, node in enumerate(exact.nodes):
            if isinstance(node.operation, Activation | MaxPool):
                self.users.setdefault(node.parents[0], []).append(u)
        self.widest = {v: _widest(exact, v) for v in self.users}
        self.stops = {v: _stop(exact, v) for v in self.users}
        self._norms: dict[tuple[int, float], torch.Tensor] = {}

    def margins(self, region: Region, objectives: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
        """Lower bounds (R,) of objectives (R, K) times the K logits, row i over the region of input owner[i]."""
        back = _Backward(self.exact, self.lines(region), len(self.exact.nodes) - 1, Rows(objectives, owner), 0.0)
        back.run()
        return region.lowest(back.rows, back.bias)

    def lines(self, region: Region) -> dict[int, Lines | Planes]:
        """Lines (planes for pooling) around each activation and pooling layer over the regions, by its position."""
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
                lines[v] = (
                    operation.lines(low, high) if isinstance(operation, Activation) else operation.planes(low, high)
                )
                quick[v] = type(lines[v])(*(part.to(self.dtype) for part in lines[v]))
                intervals.append((operation(low), operation(high)))
                continue
            if v in self.users and self.affine[v] and centres is not None:
                norm = self.norms(v, region.q) * region.radius[:, None]
                spread = norm.view(-1, *nodes[v].shape)
                intervals.append((centres[v] - spread, centres[v] + spread))
                continue
            interval = _interval(operation, given)
            if v in self.users:
                interval = self._refined(v, interval, intervals, quick, region)
            intervals.append(interval)
        return lines

    def prepare(self, q: float) -> None:
        """Compute the `norms` that `margins` needs; afterwards, several threads may call `margins`."""
        for v in self.users:
            if self.affine[v]:
                self.norms(v, q)

    def norms(self, v: int, q: float) -> torch.Tensor:
        """||gradient||_q of every neuron of node v, which must be affine in the input: (1, neurons); kept for later."""
        if (v, q) not in self._norms:
            shape = self.exact.nodes[v].shape
            count, device = math.prod(shape), self.exact.device
            none = Region(
                torch.zeros(1, *self.exact.nodes[0].shape, dtype=torch.float64, device=device),
                torch.ones(1, dtype=torch.float64, device=device),
                q,
            )
            _, neurons = _places(torch.ones(1, *shape, dtype=torch.bool, device=device))
            found = torch.empty(count, dtype=torch.float64, device=device)
            for part in torch.split(neurons, max(1, CHUNK_NUMBERS // self.widest.get(v, _widest(self.exact, v)))):
                owner = torch.zeros_like(part)
                u, rows, _ = _start(self.exact, v, part, owner, torch.ones_like(part, dtype=torch.float64))
                back = _Backward(self.exact, {}, u, rows, 0.0)
                back.run()
                found[part] = -none.lowest(back.rows, torch.zeros_like(back.bias))
            self._norms[v, q] = found[None]
        return self._norms[v, q]

    def _refined(
        self,
        v: int,
        interval: Interval,
        intervals: list[Interval],
        quick: dict[int, Lines | Planes],
        region: Region,
    ) -> Interval:
        """The interval of node v, made tighter by CROWN where the layers that use it are not linear on it.

        Rows are first propagated back to an earlier node (`stops`), if there is one, and bounded by its interval, which
        is cheap. Only rows of neurons that are still not linear after this are propagated back to the input.

        interval    bounds of node v so far.
        intervals   bounds of all nodes before v.
        quick       lines around the layers before v, in the precision of `fast`.
        """
        low, high = interval
        for stop in (self.stops[v], 0) if self.stops[v] else (0,):
            owner, neuron = _places(self._open(v, low, high))
            lows, highs = low.flatten(1), high.flatten(1)
            size = max(1, CHUNK_NUMBERS // (2 * self.widest[v]))
            for who, which in zip(torch.split(owner, size), torch.split(neuron, size), strict=True):
                if not len(who):
                    break
                signs = torch.ones(2 * len(who), dtype=self.dtype, device=low.device)
                signs[len(who) :] = -1.0
                u, rows, bias = _start(self.fast, v, torch.cat([which, which]), torch.cat([who, who]), signs)
                back = _Backward(self.fast, quick, u, rows, bias)
                back.run(until=stop)
                found = _lowest(intervals[stop], back) if stop else region.lowest(back.rows, back.bias)
                least, most = found.double()[: len(who)], -found.double()[len(who) :]
                lows[who, which] = torch.maximum(lows[who, which], least)
                highs[who, which] = torch.minimum(highs[who, which], most)
            low, high = lows.view_as(low), highs.view_as(high)
        return low, high

    def _open(self, v: int, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Mask (n, *shape) of neurons of node v whose tighter bounds would help the layers that use them.

        These are activations and poolings that follow v directly, or after another activation.
        """
        wanted = torch.zeros_like(low, dtype=torch.bool)
        for u in self.users[v]:
            operation = self.exact.nodes[u].operation
            assert isinstance(operation, Activation | MaxPool)
            wanted |= operation.open(low, high)
            if isinstance(operation, Activation) and u in self.users:
                wanted |= self._open(u, operation(low), operation(high))
        return wanted


class _Backward:
    """Rows that are propagated back to the input, node by node.

    waiting     by node, the rows over nodes that are still to be processed.
    at          the node that is processed next.
    bias        (R,), the constants that have been added up so far.
    """

    def __init__(
        self, graph: Graph, lines: dict[int, Lines | Planes], v: int, rows: Rows, bias: torch.Tensor | float
    ) -> None:
        self.graph, self.lines, self.at = graph, lines, v
        self.waiting = {v: rows}
        self.bias = rows.values.new_zeros(len(rows.values)) + bias

    @property
    def rows(self) -> Rows:
        """The rows (linear functions) over the node `at`."""
        return self.waiting[self.at]

    def step(self) -> None:
        """Propagate the rows over node `at` to its parents, and go on to the next node that has rows."""
        node, rows = self.graph.nodes[self.at], self.waiting.pop(self.at)
        parts, added = _back(node.operation, rows, node.shape, self.lines.get(self.at))
        self.bias = self.bias + added
        for parent, part in zip(node.parents, parts, strict=True):
            before = self.waiting.get(parent)
            self.waiting[parent] = part if before is None else merged(before, part, self.graph.nodes[parent].shape)
        self.at = max(self.waiting)

    def run(self, until: int = 0) -> None:
        """Propagate the rows back to node `until`, which must lie on all paths to the input (0: the input)."""
        while self.at > until:
            self.step()


def _lowest(interval: Interval, back: _Backward) -> torch.Tensor:
    """Lower bounds (R,) of rows over a node whose values lie in `interval`, less a bound on rounding errors."""
    rows = back.rows
    low, high = (end.to(rows.values.dtype) for end in interval)
    centre, half = 0.5 * (low + high), 0.5 * (high - low)
    unit = ROUNDING * torch.finfo(rows.values.dtype).eps
    spread = _dot(rows.values.abs(), rows, half + unit * (centre.abs() + half))
    return _dot(rows.values, rows, centre) + back.bias - spread - unit * back.bias.abs()


def _places(wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The input and the neuron (a flat index) of each true entry of a mask (n, *shape).

    Those of feature maps are ordered by position and then by channel, so that neighbouring rows share windows.
    """
    if wanted.ndim != 4:
        owner, neuron = wanted.flatten(1).nonzero().unbind(1)
        return owner, neuron
    owner, place, channel = wanted.flatten(2).transpose(1, 2).nonzero().unbind(1)
    return owner, channel * wanted[0, 0].numel() + place


def _back(
    operation: object, rows: Rows, shape: tuple[int, ...], lines: Lines | Planes | None
) -> tuple[list[Rows], torch.Tensor | float]:
    """Rows over each parent of a node of `shape`, from rows over the node, and the constants to add (R,)."""
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
    above = rows.values.clamp_min(0.0)
    below = rows.values - above
    added = _dot(below, rows, lines.shift_high)
    if bool(lines.shift_low.any()):  # the lower lines of ReLU have no shift
        added = added + _dot(above, rows, lines.shift_low)
    values = above.mul_(rows.local(lines.slope_low)).addcmul_(below, rows.local(lines.slope_high))
    return [replace(rows, values=values)], added


def _dot(values: torch.Tensor, rows: Rows, maps: torch.Tensor) -> torch.Tensor:
    """For each row, the sum of its coefficients times the entries of `maps` at the same positions: (R,)."""
    local = rows.local(maps)
    if len(local) == 1:
        return values.flatten(1) @ local.flatten()
    return torch.einsum("ri,ri->r", values.flatten(1), local.flatten(1))


def _start(
    graph: Graph, v: int, neurons: torch.Tensor, owner: torch.Tensor, signs: torch.Tensor
) -> tuple[int, Rows, torch.Tensor | float]:
    """Rows that select neurons (flat indices) of node v, times signs: a node, rows over this node, and their constants.

    The node is v itself, or for a dense layer the node before it; the rows are then those of the layer's matrix.
    """
    node = graph.nodes[v]
    operation = node.operation
    if isinstance(operation, Dense) and len(node.shape) == 1:
        rows = Rows(signs[:, None] * operation.weight[neurons], owner)
        return node.parents[0], rows, 0.0 if operation.offset is None else signs * operation.offset[neurons]
    return v, one_hot(neurons, owner, signs, node.shape), 0.0


def _interval(operation: object, given: list[Interval]) -> Interval:
    """Bounds of an affine layer, a sum or a concatenation from bounds on each of its inputs."""
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
    """The largest number of coefficients that a row over node v has while it is propagated back."""
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
            sides[parent] = (
                None if side is None or before is None else (max(before[0], side[0]), max(before[1], side[1]))
            )
    return most


def _stop(graph: Graph, v: int) -> int:
    """A node before v on all paths from the input to v, at which rows over v can be bounded by its interval.

    The last one such that, on the way to v, it is followed by an affine layer and then by an activation, and that has
    another activation before it; 0 if there is none.
    """
    waiting, bent = {v}, False
    while waiting != {0}:
        u = max(waiting)
        waiting.remove(u)
        waiting |= set(graph.nodes[u].parents)
        bend = isinstance(graph.nodes[u].operation, Activation | MaxPool)
        bent = bent or bend
        at = max(waiting)
        earlier = any(isinstance(node.operation, Activation | MaxPool) for node in graph.nodes[:at])
        if bent and not bend and len(waiting) == 1 and earlier:
            return at
    return 0
