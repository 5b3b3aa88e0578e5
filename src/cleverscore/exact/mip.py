"""The mixed-integer program of a ReLU network on the unit ball: one binary variable per unit of unknown phase.

A unit with input z, l <= z <= u, output y and phase a (1 active, 0 inactive) has the constraints
    y >= z,  y >= 0,  y <= z - l (1 - a),  y <= u a.
A product h = a g of a phase and a number g, m <= g <= M, has the constraints
    m a <= h <= M a,  g - M (1 - a) <= h <= g - m (1 - a).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds as Limits
from scipy.optimize import LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array

from cleverscore.exact.relu_network import Array, Bounds, Network, Phases


@dataclass
class Program:
    """A mixed-integer program, to which variables and constraints are added one by one.

    low, high       limits of each variable.
    whole           1 for each variable that is a whole number, else 0.
    rows            positions and coefficients of the variables in each constraint.
    floors, caps    limits of each constraint.
    """

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    rows: list[tuple[npt.NDArray[np.intp], Array]] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    caps: list[float] = field(default_factory=list)

    def variable(self, low: float, high: float, *, whole: bool = False) -> int:
        """Add a variable; returns its position."""
        self.low.append(low)
        self.high.append(high)
        self.whole.append(int(whole))
        return len(self.low) - 1

    def require(self, positions: npt.ArrayLike, values: npt.ArrayLike, floor: float, cap: float) -> None:
        """Require floor <= sum of values * (variables at positions) <= cap."""
        self.rows.append((np.asarray(positions, np.intp), np.asarray(values, np.float64)))
        self.floors.append(floor)
        self.caps.append(cap)

    def solve(self, cost: Array, *, seconds: float, gap: float) -> OptimizeResult:
        """Minimise cost @ variables within `seconds`, to the relative accuracy `gap`; returns scipy's result."""
        counts = [len(positions) for positions, _ in self.rows]
        matrix = csr_array(
            (
                np.concatenate([values for _, values in self.rows]),
                np.concatenate([positions for positions, _ in self.rows]),
                np.r_[0, np.cumsum(counts)],
            ),
            shape=(len(self.rows), len(self.low)),
        )
        return milp(
            cost,
            integrality=np.array(self.whole),
            bounds=Limits(np.array(self.low), np.array(self.high)),
            constraints=LinearConstraint(matrix, np.array(self.floors), np.array(self.caps)),
            options={"time_limit": max(0.01, seconds), "mip_rel_gap": gap},
        )


@dataclass
class Encoding:
    """Positions of a network's inputs, unit outputs and phases among the variables of a program.

    inputs      the positions of the inputs; for p = 1, of their positive parts and then of their negative parts.
    outputs     per hidden layer and unit, the position of its output; -1 where it is 0.
    phases      per hidden layer and unit, the position of its phase; -1 where the bounds fix it.
    fixed       the phases that the bounds fix, 0 for other units.
    """

    program: Program
    inputs: npt.NDArray[np.intp]
    outputs: list[npt.NDArray[np.intp]]
    phases: list[npt.NDArray[np.intp]]
    fixed: Phases

    def point(self, solution: Array, dim: int) -> Array:
        """The input d (dim,) of a solution."""
        values: Array = solution[self.inputs]
        return values if len(values) == dim else values[:dim] - values[dim:]

    def pattern(self, solution: Array) -> Phases:
        """The phases of all units in a solution."""
        return tuple(
            np.where(places >= 0, np.where(solution[places] > 0.5, 1, -1), fixed).astype(np.int8)
            for places, fixed in zip(self.phases, self.fixed, strict=True)
        )

    def forbid(self, pattern: Phases) -> None:
        """Add a constraint to the program that excludes one pattern of phases."""
        places = np.concatenate([p[p >= 0] for p in self.phases])
        on = np.concatenate([f[p >= 0] for p, f in zip(self.phases, pattern, strict=True)]) > 0
        self.program.require(places, np.where(on, -1.0, 1.0), 1.0 - int(on.sum()), math.inf)


def encode(network: Network, known: Bounds) -> Encoding:
    """A program with the inputs, which lie in the unit ball, and all hidden units; the caller adds the output layer.

    `known` are bounds of the network's units.
    """
    program = Program()
    if math.isinf(network.p):
        inputs = np.array([program.variable(-1.0, 1.0) for _ in range(network.dim)], np.intp)
        places, matrix = inputs, network.weights[0]
    else:
        inputs = np.array([program.variable(0.0, 1.0) for _ in range(2 * network.dim)], np.intp)
        program.require(inputs, np.ones(len(inputs)), 0.0, 1.0)
        places, matrix = inputs, np.hstack([network.weights[0], -network.weights[0]])
    outputs, phases = [], []
    for k, fixed in enumerate(known.phases):
        units = np.full(len(fixed), -1, np.intp)
        binary = np.full(len(fixed), -1, np.intp)
        for u in range(len(fixed)):
            low, high, bias = float(known.low[k][u]), float(known.high[k][u]), float(network.biases[k][u])
            row = matrix[u]
            if fixed[u] > 0:
                units[u] = program.variable(max(low, 0.0), high)
                program.require(np.r_[places, units[u]], np.r_[row, -1.0], -bias, -bias)
            elif fixed[u] < 0:
                program.require(places, row, -math.inf, -bias)
            else:
                units[u], binary[u] = program.variable(0.0, high), program.variable(0.0, 1.0, whole=True)
                program.require(np.r_[places, units[u]], np.r_[row, -1.0], -math.inf, -bias)
                program.require(np.r_[places, units[u], binary[u]], np.r_[-row, 1.0, -low], -math.inf, bias - low)
                program.require([units[u], binary[u]], [1.0, -high], -math.inf, 0.0)
        kept = units >= 0
        places, matrix = units[kept], network.weights[k + 1][:, kept]
        outputs.append(units)
        phases.append(binary)
    return Encoding(program, inputs, outputs, phases, known.phases)


def slope_terms(network: Network, encoding: Encoding) -> tuple[npt.NDArray[np.intp], Array, Array, Array]:
    """Add variables h to the program, one per unit of the first layer, such that the margin's gradient is W_1^T h.

    From the output, where h is 1, backward: g_k = W_(k+1)^T h_(k+1), and h_k is g_k for active units and 0 for inactive
    ones. Returns four arrays (units,) about h of the first layer: positions of the variables (-1 where h is constant),
    the constants, lower bounds and upper bounds.
    """
    program = encoding.program
    places = np.full(1, -1, np.intp)
    constant = low = high = np.ones(1)
    for k in reversed(range(network.depth)):
        weight = network.weights[k + 1]
        positive, negative = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
        below, above = low @ positive + high @ negative, high @ positive + low @ negative
        moving = places >= 0
        steady = np.where(moving, 0.0, constant) @ weight
        units = np.full(weight.shape[1], -1, np.intp)
        fixed, binary = encoding.fixed[k], encoding.phases[k]
        constant = np.where(fixed > 0, steady, 0.0)
        low = np.where(fixed > 0, below, np.where(fixed < 0, 0.0, np.minimum(below, 0.0)))
        high = np.where(fixed > 0, above, np.where(fixed < 0, 0.0, np.maximum(above, 0.0)))
        for u in range(len(units)):
            if fixed[u] < 0 or (fixed[u] > 0 and not moving.any()):
                continue
            units[u] = program.variable(low[u], high[u])
            terms, row, m, M = places[moving], weight[moving, u], float(below[u]), float(above[u])
            if fixed[u] > 0:
                program.require(np.r_[terms, units[u]], np.r_[row, -1.0], -steady[u], -steady[u])
                continue
            a = binary[u]
            program.require([units[u], a], [1.0, -M], -math.inf, 0.0)
            program.require([units[u], a], [1.0, -m], 0.0, math.inf)
            program.require(np.r_[terms, units[u], a], np.r_[-row, 1.0, -m], -math.inf, steady[u] - m)
            program.require(np.r_[terms, units[u], a], np.r_[-row, 1.0, -M], steady[u] - M, math.inf)
        places = units
    return places, constant, low, high
