"""Norms: conversion between names and exponents, and the dual exponent."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cleverscore.errors import SettingError


def parse_norm(p: float | str) -> float:
    """The exponent p of a norm as a float, from a number or a text such as 2, "2", "l2" or "inf".

    Anything else, and numbers below 1, raise a SettingError.

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
    """The dual exponent q of p, with 1/p + 1/q = 1.

    >>> dual_exponent(1.0), dual_exponent(2.0), dual_exponent(math.inf)
    (inf, 2.0, 1.0)
    """
    if math.isinf(p):
        return 1.0
    return math.inf if p == 1.0 else p / (p - 1.0)


def numbers_by_norm(values: Sequence[str], what: str, *, examples: tuple[str, str]) -> dict[str, float]:
    """The numbers of a command-line option, by the name of the norm that they are for.

    Each value is a number for every norm, such as 0.3 or 8/255 (its key is ""), or a number for one norm, such as
    inf=0.02. `what` (the option) and `examples` (a value of each kind) are for the error message.

    >>> numbers_by_norm(["0.3", "linf=0.02", "l1=5/10"], "--min-score", examples=("0.3", "inf=0.02"))
    {'': 0.3, 'inf': 0.02, '1': 0.5}
    """
    found = {}
    for value in values:
        norm, equals, number = value.rpartition("=")
        try:
            whole, slash, parts = number.partition("/")
            found[norm_name(parse_norm(norm)) if equals else ""] = float(whole) / (float(parts) if slash else 1.0)
        except (ValueError, ZeroDivisionError):
            general, single = examples
            raise SettingError(
                f"{what} {value!r}: write a number such as {general}, or norm=number as in {single}"
            ) from None
    return found
