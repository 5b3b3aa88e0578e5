"""LpBall: points uniform in B_p(x0, R) for any p >= 1, each block from its own counter-based stream.

The law. Let g_1, ..., g_d be independent with density proportional to exp(-|t|^p), and Z standard exponential. Then
    x = x0 + R g / (|g_1|^p + ... + |g_d|^p + Z)^(1/p)
is uniform in the ball (Barthe, Guedon, Mendelson & Naor, Annals of Probability 33, 2005). For p = inf the ball is a
cube, and coordinates are drawn independently.

The streams. A tile is a number of consecutive points of a block, which depends on the dimension alone. Random numbers
come from Philox, a counter-based generator, with the key (seed, norm) and the counter (position, tile, block, input
id); `position` begins at 0, or at SECOND_STREAM for a second stream, and counts up as numbers are drawn. So two blocks
never share a random number, and the points of a block do not depend on chunk size, workers, order or other inputs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.errors import SettingError
from cleverscore.models.input_box import Box, Moves, box_of, check_region
from cleverscore.norms import dual_exponent, parse_norm
from cleverscore.randomness import philox

WORD = 2.0**-24
TILE_NUMBERS = 2**18  # of a tile at most: 1 MB of float32, which stays in a core's cache while it is turned into points
TILE_POINTS = 256
# The position at which a tile's second stream begins. For general p it gives the signs and Z, because the gamma
# variates from the first stream use a random amount of its numbers.
SECOND_STREAM = 2**63


def tile_points(dim: int) -> int:
    """The number of points in a tile: a power of two, at most 256, that depends on the dimension alone."""
    fitting = max(1, TILE_NUMBERS // dim)
    return min(TILE_POINTS, 1 << (fitting.bit_length() - 1))


Streams = Sequence[tuple[np.random.Generator, int]]  # (generator of a tile, number of points to draw from it)


class Draw(NamedTuple):
    """Offsets of points from the input, as base * scale + shift.

    base        (count, dim).
    scale       (count, 1), or () if it is the same for all points.
    shift       a number.
    """

    base: torch.Tensor
    scale: torch.Tensor
    shift: float = 0.0


@dataclass(frozen=True)
class LpBall:
    """The ball B_p(x0, radius) around each input x0, and the distribution of the points drawn from it.

    region="ball"   uniform in the ball, also outside the box of valid inputs (the paper's algorithm).
    region="box"    the same points with every coordinate clipped to the box. They are not uniform, because many lie on
                    the faces of the box. They stay in the ball, because the input lies in the box.

    >>> LpBall(2.0, 5.0).offsets(dim=3, count=4, seed=0, input_id=0, block=0, tile=0).shape
    torch.Size([4, 3])
    """

    p: float
    radius: float
    region: str = "ball"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", parse_norm(self.p))
        object.__setattr__(self, "radius", float(self.radius))
        if not (self.radius > 0.0 and math.isfinite(self.radius)):
            raise SettingError(f"radius={self.radius:g}: the ball needs a positive, finite radius")
        check_region(self.region)

    @property
    def q(self) -> float:
        """The dual exponent, in which gradients are measured."""
        return dual_exponent(self.p)

    def clips_to(self, bounds: Box | None) -> Box | None:
        """The box that points are clipped to, None for no clipping; `bounds` are the classifier's."""
        return box_of(self.region, bounds)

    def moves(self, x: torch.Tensor, bounds: Box | None) -> Moves | None:
        """Which gradient components count for an input `x`: those along which it can move within the box.

        None if all count, as for region="ball".
        """
        return Moves.of(x, box_of(self.region, bounds))

    def stream(self, seed: int, input_id: int, block: int, tile: int, position: int = 0) -> np.random.Generator:
        """The random generator of one tile of one block.

        A `draw` or `points` of your own must take all its random numbers from it, and those of one point after those of
        another. `position` is 0, or SECOND_STREAM for a second, independent generator of the tile.
        """
        norm_key = struct.unpack("<Q", struct.pack("<d", self.p))[0]
        return philox((seed, norm_key), (position, tile, block, input_id))

    def draw(self, *, dim: int, count: int, seed: int, input_id: int, block: int, tile: int) -> Draw:
        """The first `count` points of a tile of a block, as offsets from an input with `dim` components."""
        return self._drawn([(tile, count)], dim=dim, seed=seed, input_id=input_id, block=block)

    def _drawn(self, tiles: Sequence[tuple[int, int]], *, dim: int, seed: int, input_id: int, block: int) -> Draw:
        """The first points of several tiles, given as (tile, count), together: the same as with one `draw` per tile."""
        streams = [(self.stream(seed, input_id, block, tile), count) for tile, count in tiles]
        if math.isinf(self.p):
            return Draw(_words(streams, dim).float(), torch.tensor(2.0 * self.radius * WORD), -self.radius)
        if self.p == 2.0:
            normal, inverse = _gaussian(streams, dim)
            return Draw(normal, inverse.mul_(self.radius))
        if self.p == 1.0:
            laplace, inverse = _laplace(streams, dim)
            return Draw(laplace, inverse.mul_(self.radius))
        parts = [
            _general(stream, self.stream(seed, input_id, block, tile, SECOND_STREAM), count, dim, self.p)
            for (stream, count), (tile, _) in zip(streams, tiles, strict=True)
        ]
        return Draw(torch.from_numpy(np.concatenate(parts)), torch.tensor(self.radius))

    @property
    def spans_tiles(self) -> bool:
        """Whether `points` can draw several tiles in one call (`following`): not if a subclass has its own law."""
        return type(self).draw is LpBall.draw and type(self).points is LpBall.points

    def offsets(self, *, dim: int, count: int, seed: int, input_id: int, block: int, tile: int) -> torch.Tensor:
        """Offsets (count, dim), float32, of the first `count` points of a tile."""
        drawn = self.draw(dim=dim, count=count, seed=seed, input_id=input_id, block=block, tile=tile)
        return drawn.base * drawn.scale + drawn.shift

    def points(
        self,
        x: torch.Tensor,
        *,
        count: int,
        seed: int,
        input_id: int,
        block: int,
        tile: int,
        bounds: tuple[float, float] | None = None,
        out: torch.Tensor | None = None,
        following: bool = False,
    ) -> torch.Tensor:
        """The first `count` points of a tile of a block, around one input `x`: (count, *x.shape).

        They are on the device of `x`, in its precision, and written to `out` if given. With region="box" they are
        clipped to `bounds`. With `following`, `count` may be larger than a tile, and the points after it are those of
        the next tiles (only if `spans_tiles`).
        """
        if following:
            size = tile_points(x.numel())
            tiles = [(tile + k, min(size, count - done)) for k, done in enumerate(range(0, count, size))]
            drawn = self._drawn(tiles, dim=x.numel(), seed=seed, input_id=input_id, block=block)
        else:
            drawn = self.draw(dim=x.numel(), count=count, seed=seed, input_id=input_id, block=block, tile=tile)
        base, scale = (part.to(x.device, x.dtype, non_blocking=True) for part in (drawn.base, drawn.scale))
        # center + base * scale in one pass over memory.
        flat = None if out is None else out.view(count, -1)
        center = x.flatten() + drawn.shift if drawn.shift else x.flatten()
        points = torch.addcmul(center, base, scale, out=flat).reshape(count, *x.shape)
        box = self.clips_to(bounds)
        return points if box is None else points.clamp_(*box)


@dataclass(frozen=True)
class ReleasedCodeBall(LpBall):
    """The distribution of points in the code that the paper's authors released, which differs from the paper's.

    For every norm, points are x0 + U g with g uniform in the unit l2 ball and U uniform in [0, radius]; the radius is 3
    in their code. Gradients are measured in the dual of the requested norm. Points are clipped to the input box, if
    there is one, also with region="ball", as in their code; region="box" also leaves out gradient components along
    which the input cannot move.
    """

    def clips_to(self, bounds: Box | None) -> Box | None:
        """The classifier's bounds, for either region; None if it has none."""
        return box_of(self.region, bounds) or bounds

    def draw(self, *, dim: int, count: int, seed: int, input_id: int, block: int, tile: int) -> Draw:
        """The first `count` points of a tile of a block, as offsets from the input, before clipping."""
        normal, inverse = _gaussian([(self.stream(seed, input_id, block, tile), count)], dim)
        second = self.stream(seed, input_id, block, tile, SECOND_STREAM)
        lengths = torch.from_numpy(second.random((count, 1), dtype=np.float32)).mul_(self.radius)
        return Draw(normal, inverse.mul_(lengths))


def _words(streams: Streams, width: int) -> torch.Tensor:
    """Uniform whole numbers from 0 to 2^24 - 1, (points, width): as many values as float32 resolves in [0, 1).

    Taken directly from the generators' 64-bit words, which is twice as fast as NumPy's method for float32. Rows are
    filled one after the other, so the first points do not depend on how many are drawn.
    """
    words = torch.empty(sum(count for _, count in streams), width, dtype=torch.int32)
    for (stream, count), rows in zip(streams, torch.split(words, [count for _, count in streams]), strict=True):
        total = count * width
        raw = stream.bit_generator.random_raw((total + 1) // 2)
        torch.bitwise_and(torch.from_numpy(raw.view(np.int32))[:total].view(count, width), 0xFFFFFF, out=rows)
    return words


def _symmetric(words: torch.Tensor) -> torch.Tensor:
    """Turn 24-bit integers w, in place, into uniform numbers (2w + 1) / 2^24 - 1: in (-1, 1), symmetric, never 0."""
    numbers = words.view(torch.float32).copy_(words)
    return torch.add(torch.tensor(WORD - 1.0), numbers, alpha=2.0 * WORD, out=numbers)  # one pass; 2w / 2^24 is exact


def _exponential(words: torch.Tensor) -> torch.Tensor:
    """Standard exponential variates -log((w + 1) / 2^24) from 24-bit integers w; the argument of the log is never 0."""
    return words.float().add_(1.0).mul_(WORD).log_().neg_()


def _gaussian(streams: Streams, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal variates g (points, dim) of variance 1/2, and (|g|^2 + Z)^(-1/2) (points, 1), Z standard exponential.

    Their product is uniform in the unit l2 ball.
    """
    words = _words(streams, dim + 1)
    exponential = _exponential(words[:, dim:])
    normal = _symmetric(words).erfinv_()[:, :dim]  # the inverse of the normal distribution, up to a factor
    squares = torch.linalg.vector_norm(normal, dim=1, keepdim=True).square_()
    return normal, exponential.add_(squares).rsqrt_()


def _laplace(streams: Streams, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Laplace variates g (points, dim), and 1 / (|g|_1 + Z) (points, 1), Z standard exponential.

    Their product is uniform in the unit l1 ball.
    """
    words = _words(streams, dim + 1)
    exponential = _exponential(words[:, dim:])
    signed = _symmetric(words)[:, :dim]  # one number s gives the sign and, as -log|s|, an exponential magnitude
    magnitude = signed.abs().log_().neg_()
    total = exponential.add_(magnitude.sum(1, keepdim=True))
    return torch.copysign(magnitude, signed, out=magnitude), total.reciprocal_()


def _general(
    stream: np.random.Generator, second: np.random.Generator, count: int, dim: int, p: float
) -> npt.NDArray[np.float32]:
    """Points (count, dim), uniform in the unit lp ball; |g_i|^p is drawn from the gamma distribution of shape 1/p."""
    powers = stream.standard_gamma(1.0 / p, (count, dim))
    rest = second.random((count, dim + 1))
    signs = np.where(rest[:, :dim] < 0.5, -1.0, 1.0)
    total = powers.sum(1, keepdims=True) - np.log1p(-rest[:, dim:])
    offsets: npt.NDArray[np.float32] = (signs * (powers / total) ** (1.0 / p)).astype(np.float32)
    return offsets
