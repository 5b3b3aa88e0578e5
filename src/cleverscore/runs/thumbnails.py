"""Small pictures of inputs, kept in the run so that a report needs neither model nor data."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]

SIDE = 64  # pixels: enough to recognise a photograph, 4 KB of grey
CHANNELS = (1, 3, 4)  # grey, colours, colours with transparency (which is left out)


def thumbnail(x: npt.NDArray[Any], bounds: tuple[float, float] | None, *, side: int = SIDE) -> Picture | None:
    """An input as a picture (height, width, 1 or 3), at most `side` pixels on a side; None if it cannot be one.

    x           (height, width), (channels, height, width) or (height, width, channels).
    bounds      the values of black and white; default: the smallest and the largest value of the input.

    >>> thumbnail(np.linspace(0.0, 1.0, 64 * 2 * 64).reshape(1, 128, 64), (0.0, 1.0)).shape
    (64, 32, 1)
    >>> thumbnail(np.zeros(784), None) is None
    True
    """
    if x.ndim == 2:
        x = x[None]
    elif x.ndim == 3 and x.shape[0] not in CHANNELS and x.shape[2] in CHANNELS:
        x = np.moveaxis(x, 2, 0)
    if x.ndim != 3 or x.shape[0] not in CHANNELS or min(x.shape[1:]) < 2:
        return None
    x = x[:3].astype(np.float64)
    low, high = bounds if bounds is not None else (float(x.min()), float(x.max()))
    unit = np.clip((x - low) / (high - low), 0.0, 1.0) if high > low else np.full_like(x, 0.5)
    return np.moveaxis(np.rint(255.0 * _shrunk(unit, side)).astype(np.uint8), 0, 2)


def shrunk_picture(picture: Picture, side: int) -> Picture:
    """The picture, made smaller if it has more than `side` pixels on a side."""
    if max(picture.shape[:2]) <= side:
        return picture
    return np.moveaxis(np.rint(_shrunk(np.moveaxis(picture, 2, 0).astype(np.float64), side)).astype(np.uint8), 0, 2)


def _shrunk(x: npt.NDArray[np.float64], side: int) -> npt.NDArray[np.float64]:
    """Shrink (channels, height, width) to at most `side` pixels; each new pixel is the mean over a box of old ones."""
    factor = side / max(x.shape[1:])
    if factor >= 1.0:
        return x
    for axis in (1, 2):
        length = x.shape[axis]
        edges = np.linspace(0, length, max(1, round(length * factor)) + 1).astype(int)
        sums = np.add.reduceat(x, edges[:-1], axis=axis)
        shape = [1, 1, 1]
        shape[axis] = -1
        x = sums / np.diff(edges).reshape(shape)
    return x
