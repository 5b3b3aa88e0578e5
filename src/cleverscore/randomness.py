"""Counter-based random numbers: a stream of its own for everything that is drawn."""

from __future__ import annotations

import numpy as np


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> np.random.Generator:
    """A stream of its own for every key and counter, all 64-bit numbers."""
    # Lists would do, but NumPy turns a list with a number of 2^63 or more into floats.
    words = (np.array(numbers, dtype=np.uint64) for numbers in (key, counter))
    return np.random.Generator(np.random.Philox(key=next(words), counter=next(words)))
