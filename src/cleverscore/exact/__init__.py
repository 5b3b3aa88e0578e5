"""Exact minimum distortions and local Lipschitz constants of small networks, for comparison with estimates.

ReLU networks of some dozen units have both by mixed-integer programming (p = 1 and inf) or branch and bound over their
cells (p = 2). Smooth networks have a dense multi-start search, a reference without a proof.
"""

from __future__ import annotations

from cleverscore.exact.local_lipschitz import exact_local_lipschitz
from cleverscore.exact.min_distortion import exact_minimum_distortion
from cleverscore.exact.multistart import dense_multistart_distortion, dense_multistart_lipschitz
from cleverscore.exact.result import Exact

__all__ = [
    "Exact",
    "dense_multistart_distortion",
    "dense_multistart_lipschitz",
    "exact_local_lipschitz",
    "exact_minimum_distortion",
]
