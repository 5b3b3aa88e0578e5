"""Counter-based random numbers (Philox): each combination of key and counter has its own stream."""

from __future__ import annotations

import numpy as np


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> np.random.Generator:
    """A random generator that starts at this key and counter, which consist of 64-bit numbers.

    The first number of the counter counts up as random numbers are drawn. Generators that differ in any other number of
    the counter, or in the key, have independent streams.
    """
    # Arrays, because NumPy turns a list with a number of 2^63 or more into floats.
    words = (np.array(numbers, dtype=np.uint64) for numbers in (key, counter))
    return np.random.Generator(np.random.Philox(key=next(words), counter=next(words)))
