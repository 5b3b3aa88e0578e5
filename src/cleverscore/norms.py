"""Norms as numbers and as names."""

from __future__ import annotations

import math

from cleverscore.errors import SettingError


def parse_norm(p: float | str) -> float:
    """The exponent p as a float: 2, "2", "l2", "inf", math.inf; anything below 1 is no norm.

    >>> parse_norm("inf"), parse_norm(1.5)
    (inf, 1.5)
    """
    try:
        value = float(p.strip().lower().removeprefix("l")) if isinstance(p, str) else float(p)
    except (TypeError, ValueError):
        raise SettingError(f"p={p!r} is not a number; give a norm p >= 1 or 'inf'") from None
    if not value >= 1.0:
        raise SettingError(f"p={p} is below 1, where the triangle inequality fails; give a norm p >= 1 or 'inf'")
    return value


def norm_name(p: float) -> str:
    """How a norm is written in tables: "1", "2", "1.5", "inf"."""
    return "inf" if math.isinf(p) else f"{p:g}"


def dual_exponent(p: float) -> float:
    """q with 1/p + 1/q = 1.

    >>> dual_exponent(1.0), dual_exponent(2.0), dual_exponent(math.inf)
    (inf, 2.0, 1.0)
    """
    if math.isinf(p):
        return 1.0
    return math.inf if p == 1.0 else p / (p - 1.0)
