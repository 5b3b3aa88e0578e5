"""Checks of numbers that users pass, and the import of modules that they name."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from numbers import Real
from pathlib import Path
from types import ModuleType


def is_number(value: object) -> bool:
    """Whether a value is a finite real number; True and False do not count as numbers.

    >>> is_number(0.05), is_number("0.05"), is_number(True), is_number(math.nan)
    (True, False, False, False)
    """
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, of any real numeric type; True and False do not count as numbers.

    >>> is_whole(500), is_whole(500.0), is_whole(0.5), is_whole("500")
    (True, True, False, False)
    """
    return is_number(value) and int(value) == value  # type: ignore[call-overload]


def import_module_of_user(name: str) -> ModuleType:
    """Import a module by its name, also from the current folder, which is put on Python's import path."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return import_module(name)
