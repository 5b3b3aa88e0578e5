"""Exact minimum distortions and local Lipschitz constants of small networks, for comparison with estimates.

For ReLU networks of a few dozen units, both are found by mixed-integer programming (p = 1 and inf) or by branch and
bound over the phases of the units (p = 1, 2 and inf). For smooth networks there are searches with many starts,
`dense_multistart_distortion` and `dense_multistart_lipschitz`: references without a proof.
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
