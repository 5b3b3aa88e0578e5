"""Approximate gradient norms of all classes at once: random projections by forward-mode differentiation.

Let J be the Jacobian of the logits and g = grad(f_c - f_j) the gradient of a margin. A Jacobian-vector product J u
costs about one gradient and has an entry for every class: (J u)_c - (J u)_j is the projection <g, u>. For random u with
standard normal components its root mean square is ||g||_2; with standard Cauchy components the median of its absolute
value is ||g||_1 (stable laws; Indyk, 2006). So with about a hundred products, the norms of a thousand classes cost as
much as a hundred gradients, and have an error of about a tenth.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.models.classifier import Classifier
from cleverscore.randomness import philox

Array = npt.NDArray[np.float64]

SKETCHED_EXPONENTS = (1.0, 2.0)  # the q for which there is a stable law
STREAM = 0x736B6574  # in the Philox key of directions, where keys of points have the norm


def _direction(q: float, shape: Sequence[int], *, seed: int, input_id: int, point: int, number: int) -> Array:
    """Random direction number `number` at point number `point` of an input, of this shape."""
    stream = philox((seed, STREAM), (input_id, point, number, 0))
    values = stream.standard_normal(tuple(shape)) if q == 2.0 else stream.standard_cauchy(tuple(shape))
    return np.asarray(values, dtype=np.float64)


def sketched_norms(
    classifier: Classifier,
    points: torch.Tensor,
    *,
    predicted: int,
    targets: Sequence[int],
    q: float,
    directions: int,
    chunk_size: int,
    seed: int,
    input_id: int,
) -> Array | None:
    """About ||grad(f_c - f_j)||_q for each target j, one value for all points (n, *input_shape) together: (targets,).

    c is `predicted`. The value is the root mean square (q = 2) or the median (q = 1) over all points and over
    `directions` random directions at each. None for other q, or if the model has no forward-mode derivatives.
    """
    if q not in SKETCHED_EXPONENTS:
        return None
    projections = []
    pairs = [(point, number) for point in range(len(points)) for number in range(directions)]
    for start in range(0, len(pairs), chunk_size):
        part = pairs[start : start + chunk_size]
        x = points[[point for point, _ in part]]
        tangents = torch.stack(
            [
                torch.from_numpy(_direction(q, x.shape[1:], seed=seed, input_id=input_id, point=point, number=number))
                for point, number in part
            ]
        ).to(device=x.device, dtype=x.dtype)
        with warnings.catch_warnings():
            # torch compiles its forward-mode formulas with torch.jit.script, which it has deprecated itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                moved: torch.Tensor = torch.func.jvp(classifier.logits, (x,), (tangents,))[1].double()
            except (RuntimeError, NotImplementedError, ValueError):
                return None
        projections.append((moved[:, [predicted]] - moved[:, list(targets)]).abs().cpu())
    values = torch.cat(projections)
    found = values.square().mean(0).sqrt() if q == 2.0 else values.median(0).values
    return np.asarray(found.numpy(), dtype=np.float64)
