"""What users pass where a number is wanted."""

from __future__ import annotations

import math
from numbers import Real


def is_number(value: object) -> bool:
    """Whether it is a finite real number; True and False are none.

    >>> is_number(0.05), is_number("0.05"), is_number(True), is_number(math.nan)
    (True, False, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def is_whole(value: object) -> bool:
    """Whether it is a whole number, in whichever type.

    >>> is_whole(500), is_whole(500.0), is_whole(0.5), is_whole("500")
    (True, True, False, False)
    """
    return is_number(value) and int(value) == value  # type: ignore[call-overload]
