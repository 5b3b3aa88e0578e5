"""Counter-based random numbers (Philox): each combination of key and counter has its own stream."""

from __future__ import annotations

import numpy as np


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> np.random.Generator:
    """The random generator for this key and counter (64-bit numbers); different ones give independent streams."""
    # Lists would do, but NumPy turns a list with a number of 2^63 or more into floats.
    words = (np.array(numbers, dtype=np.uint64) for numbers in (key, counter))
    return np.random.Generator(np.random.Philox(key=next(words), counter=next(words)))
