"""LpBall: points uniform in B_p(x0, R) for any p >= 1, each block from a counter-based stream of its own.

The law. With g_i independent of density proportional to exp(-|t|^p) and Z standard exponential,
    x = x0 + R g / (|g_1|^p + ... + |g_d|^p + Z)^(1/p)
is uniform in the ball (Barthe, Guedon, Mendelson & Naor, Annals of Probability 33, 2005). p = inf is the cube.

The streams. Philox is a counter-based generator: its key is (seed, norm) and its counter (position, tile, block, input
id), so two blocks can never share a number, and a block's points depend on nothing else: not on chunk size, workers,
order or the other inputs. A tile is a fixed number of consecutive points, chosen from the dimension alone.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.errors import SettingError

INSIDE = ("ball", "clip")
TILE_NUMBERS = 2**18  # 1 MB of float32 a tile: stays in a core's cache while it is turned into points
TILE_POINTS = 256
# The general-p sampler needs a second stream (signs and Z) because gamma variates use a random number of words.
SECOND_STREAM = 2**63


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


def tile_points(dim: int) -> int:
    """Points in a tile: a power of two, from the dimension alone."""
    fitting = max(1, TILE_NUMBERS // dim)
    return min(TILE_POINTS, 1 << (fitting.bit_length() - 1))


@dataclass(frozen=True)
class LpBall:
    """The ball B_p(x0, radius) around each input, and the law of the points drawn from it.

    inside="ball"   uniform in the ball, also outside the input box (the paper's algorithm).
    inside="clip"   those points with every coordinate clipped to the box. Not uniform: mass gathers on the box's faces.

    >>> LpBall(2.0, 5.0).offsets(dim=3, count=4, seed=0, input_id=0, block=0, tile=0).shape
    torch.Size([4, 3])
    """

    p: float
    radius: float
    inside: str = "ball"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", parse_norm(self.p))
        object.__setattr__(self, "radius", float(self.radius))
        if not (self.radius > 0.0 and math.isfinite(self.radius)):
            raise SettingError(f"radius={self.radius:g}: the ball needs a positive, finite radius")
        if self.inside not in INSIDE:
            raise SettingError(f"inside={self.inside!r}: choose one of {', '.join(map(repr, INSIDE))}")

    @property
    def q(self) -> float:
        """The dual exponent, in which gradients are measured."""
        return dual_exponent(self.p)

    def _stream(self, seed: int, input_id: int, block: int, tile: int, position: int = 0) -> np.random.Generator:
        norm_key = struct.unpack("<Q", struct.pack("<d", self.p))[0]
        return np.random.Generator(np.random.Philox(key=[seed, norm_key], counter=[position, tile, block, input_id]))

    def offsets(self, *, dim: int, count: int, seed: int, input_id: int, block: int, tile: int) -> torch.Tensor:
        """Offsets (count, dim), float32, of the first `count` points of a tile, uniform in the ball around 0."""
        stream = self._stream(seed, input_id, block, tile)
        if math.isinf(self.p):
            return torch.from_numpy(stream.random((count, dim), dtype=np.float32)).mul_(2.0).sub_(1.0).mul_(self.radius)
        if self.p == 2.0:
            return _gaussian_ball(stream, count, dim).mul_(self.radius)
        if self.p == 1.0:
            return _laplace_ball(stream, count, dim).mul_(self.radius)
        second = self._stream(seed, input_id, block, tile, SECOND_STREAM)
        return torch.from_numpy(_general_ball(stream, second, count, dim, self.p)).mul_(self.radius)

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
    ) -> torch.Tensor:
        """Points (count, *x.shape) around one input `x`, on its device and in its precision."""
        offsets = self.offsets(dim=x.numel(), count=count, seed=seed, input_id=input_id, block=block, tile=tile)
        points = offsets.to(x.device, x.dtype, non_blocking=True).reshape(count, *x.shape).add_(x)
        if self.inside == "clip":
            if bounds is None:
                raise SettingError("inside='clip' needs the input box; give the classifier bounds=(low, high)")
            points = points.clamp_(*bounds)
        return points


@dataclass(frozen=True)
class ReleasedCodeBall(LpBall):
    """The law of the code that the paper's authors released, which is not the paper's.

    Whatever the norm, points are x0 + U g with g uniform in the unit l2 ball and U uniform in [0, radius] (3 in their
    code), clipped to the input box. Gradients are measured in the dual of the norm asked for.
    """

    inside: str = "clip"

    def offsets(self, *, dim: int, count: int, seed: int, input_id: int, block: int, tile: int) -> torch.Tensor:
        """Offsets (count, dim), float32, before clipping."""
        stream = self._stream(seed, input_id, block, tile)
        second = self._stream(seed, input_id, block, tile, SECOND_STREAM)
        lengths = torch.from_numpy(second.random((count, 1), dtype=np.float32)).mul_(self.radius)
        return _gaussian_ball(stream, count, dim).mul_(lengths)


def _gaussian_ball(stream: np.random.Generator, count: int, dim: int) -> torch.Tensor:
    """Uniform in the unit l2 ball: Gaussian direction by Box-Muller, scaled by (|g|^2 + 2 Z)^(-1/2)."""
    half = (dim + 1) // 2
    uniform = torch.from_numpy(stream.random((count, 2 * half + 1), dtype=np.float32))
    # 1 - u lies in (0, 1], so the logarithm is finite.
    length = uniform[:, :half].neg().add_(1.0).log_().mul_(-2.0).sqrt_()
    angle = uniform[:, half : 2 * half].mul(2.0 * math.pi)
    normal = torch.empty(count, 2 * half)
    torch.mul(length, angle.cos(), out=normal[:, :half])
    torch.mul(length, angle.sin_(), out=normal[:, half:])
    normal = normal[:, :dim]
    twice_z = uniform[:, -1:].neg().add_(1.0).log_().mul_(-2.0)
    squares = torch.linalg.vector_norm(normal, dim=1, keepdim=True).square_()
    scaled: torch.Tensor = normal * (squares + twice_z).rsqrt_()
    return scaled.contiguous()


def _laplace_ball(stream: np.random.Generator, count: int, dim: int) -> torch.Tensor:
    """Uniform in the unit l1 ball: Laplace variates, scaled by 1 / (|g|_1 + Z)."""
    uniform = torch.from_numpy(stream.random((count, dim + 1), dtype=np.float32))
    # One uniform gives magnitude and sign: s = 1 - 2u lies in (-1, 1], and -log|s| is exponential whatever the sign.
    # The smallest positive |s| replaces s = 0, which occurs once in 2^24 draws.
    signed = uniform[:, :dim].mul(-2.0).add_(1.0)
    magnitude = signed.abs().clamp_min_(2.0**-25).log_().neg_()
    z = uniform[:, dim:].neg().add_(1.0).log_().neg_()
    total = magnitude.sum(1, keepdim=True).add_(z)
    return torch.copysign(magnitude, signed).div_(total)


def _general_ball(
    stream: np.random.Generator, second: np.random.Generator, count: int, dim: int, p: float
) -> npt.NDArray[np.float32]:
    """Uniform in the unit lp ball: |g|^p is gamma distributed with shape 1/p."""
    powers = stream.standard_gamma(1.0 / p, (count, dim))
    rest = second.random((count, dim + 1))
    signs = np.where(rest[:, :dim] < 0.5, -1.0, 1.0)
    total = powers.sum(1, keepdims=True) - np.log1p(-rest[:, dim:])
    offsets: npt.NDArray[np.float32] = (signs * (powers / total) ** (1.0 / p)).astype(np.float32)
    return offsets
