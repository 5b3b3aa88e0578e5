"""The point of a polyhedron nearest to the origin, by least squares in l2 and by linear programs in l1 and linf."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog, nnls

from cleverscore.errors import SettingError

Array = npt.NDArray[np.float64]

# Cells without a point that is this far (in radii) from all their faces are left out: solvers cannot tell them from
# empty ones.
DEPTH = 1e-6
EMPTY = 1e-9  # a least-squares residual up to this means that the constraints contradict each other


def nearest(matrix: Array, offset: Array, p: float) -> Array | None:
    """argmin ||d||_p subject to matrix @ d + offset >= 0; None if there is no such point.

    >>> nearest(np.array([[3.0, 4.0]]), np.array([-5.0]), 2.0)
    array([0.6, 0.8])
    """
    size = np.linalg.norm(matrix, axis=1)
    flat = size <= 1e-14 * max(1.0, float(np.abs(offset).max(initial=0.0)))
    if np.any(offset[flat] < -1e-12):
        return None
    matrix, offset = matrix[~flat] / size[~flat, None], offset[~flat] / size[~flat]
    if np.all(offset >= 0.0):
        return np.zeros(matrix.shape[1])
    if p == 2.0:
        return _least_squares(matrix, offset)
    if p == 1.0:
        return _linear_l1(matrix, offset)
    if math.isinf(p):
        return _linear_linf(matrix, offset)
    raise SettingError(f"p={p:g}: exact answers exist for p = 1, 2 and inf")


def _least_squares(matrix: Array, offset: Array) -> Array | None:
    """The l2 case, by Lawson & Hanson's least distance programming: from the residual of non-negative least squares."""
    stacked = np.vstack([matrix.T, -offset[None]])
    wanted = np.zeros(len(stacked))
    wanted[-1] = 1.0
    weights, residual = nnls(stacked, wanted)
    if residual <= EMPTY:
        return None
    rest = stacked @ weights - wanted
    point: Array = -rest[:-1] / rest[-1]
    return point


def _linear_l1(matrix: Array, offset: Array) -> Array | None:
    dim = matrix.shape[1]
    solved = linprog(np.ones(2 * dim), A_ub=np.hstack([-matrix, matrix]), b_ub=offset, bounds=(0.0, None))
    return None if solved.x is None or solved.status else solved.x[:dim] - solved.x[dim:]


def _linear_linf(matrix: Array, offset: Array) -> Array | None:
    """The linf case as a linear program: d = u - t with 0 <= u <= 2 t; minimise t."""
    dim = matrix.shape[1]
    cost = np.r_[np.zeros(dim), 1.0]
    rows = np.hstack([-matrix, matrix.sum(1, keepdims=True)])
    caps = np.hstack([np.eye(dim), np.full((dim, 1), -2.0)])
    solved = linprog(cost, A_ub=np.vstack([rows, caps]), b_ub=np.r_[offset, np.zeros(dim)], bounds=(0.0, None))
    return None if solved.x is None or solved.status else solved.x[:dim] - solved.x[dim]


def within(matrix: Array, offset: Array, p: float) -> Array | None:
    """A point d of the unit ball inside matrix @ d + offset >= 0, at least DEPTH away from every face.

    None if there is none. The unit ball is that of l_p.
    """
    size = np.linalg.norm(matrix, axis=1)
    if p == 2.0:
        point = nearest(matrix, offset - DEPTH * size, p)
        return point if point is not None and np.linalg.norm(point) <= 1.0 else None
    kept = size > 0.0
    rows, heights = matrix[kept] / size[kept, None], offset[kept] / size[kept] - DEPTH
    dim = matrix.shape[1]
    if np.any(offset[~kept] < 0.0):
        return None
    if np.all(heights >= 0.0):
        return np.zeros(dim)
    if math.isinf(p):
        solved = linprog(np.zeros(dim), A_ub=-rows, b_ub=heights, bounds=(-1.0, 1.0))
        return None if solved.x is None or solved.status else solved.x
    both = np.vstack([np.hstack([-rows, rows]), np.ones((1, 2 * dim))])
    solved = linprog(np.zeros(2 * dim), A_ub=both, b_ub=np.r_[heights, 1.0], bounds=(0.0, None))
    return None if solved.x is None or solved.status else solved.x[:dim] - solved.x[dim:]
