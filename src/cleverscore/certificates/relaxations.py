"""Activations bounded by two lines: slope_low * x + shift_low <= f(x) <= slope_high * x + shift_high on [low, high].

A convex function lies below its chord and above its tangent at the middle of the interval, the one with the least area
between tangent and function. For ReLU this is CROWN's rule (slope 1 where high > -low, else 0). S-shaped functions are
bounded by a chord where it does not cross the function, else by a tangent (Zhang, Weng, Chen, Hsieh & Daniel, NeurIPS
2018). All activations here are monotone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

HALVINGS = 60  # of an interval: enough for the last bit in double precision
FLAT = 1e-12  # intervals whose width, relative to their ends, is at most this are too narrow to divide by


class Lines(NamedTuple):
    """Slopes and shifts of two lines that bound a function from below and above; each is a tensor (n, *shape)."""

    slope_low: torch.Tensor
    shift_low: torch.Tensor
    slope_high: torch.Tensor
    shift_high: torch.Tensor


class Activation:
    """A monotone function, applied elementwise."""

    lipschitz = 1.0  # the largest slope anywhere

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The value f(x) of the activation."""
        raise NotImplementedError

    def lines(self, low: torch.Tensor, high: torch.Tensor) -> Lines:
        """The two lines that bound f on [low, high], elementwise."""
        raise NotImplementedError

    def slopes(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest and the largest slope of f on [low, high]."""
        raise NotImplementedError

    def open(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Mask of elements where a tighter interval would give tighter lines: all, unless f is piecewise linear."""
        return torch.ones_like(low, dtype=torch.bool)


def chord(
    f: Callable[[torch.Tensor], torch.Tensor], low: torch.Tensor, high: torch.Tensor, slope: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slope and shift of the line through (low, f(low)) and (high, f(high)).

    Where low and high are (almost) equal, it is the line through (low, f(low)) with the given slope.
    """
    width = high - low
    flat = width <= FLAT * (1.0 + low.abs() + high.abs())
    k = torch.where(flat, slope, (f(high) - f(low)) / torch.where(flat, torch.ones_like(width), width))
    return k, f(low) - k * low


class Convex(Activation):
    """A convex function with its derivative (any subgradient).

    lipschitz   the largest slope anywhere.
    breakpoint  where the two pieces of a piecewise linear function meet; None for other functions.
    room        how far torch's own function may lie below `function`: the lower line is this much lower.
    """

    def __init__(
        self,
        function: Callable[[torch.Tensor], torch.Tensor],
        derivative: Callable[[torch.Tensor], torch.Tensor],
        *,
        lipschitz: float = 1.0,
        breakpoint: float | None = None,
        room: float = 0.0,
    ) -> None:
        self.function, self.derivative, self.lipschitz = function, derivative, lipschitz
        self.breakpoint, self.room = breakpoint, room

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The value f(x) of the activation."""
        return self.function(x)

    def lines(self, low: torch.Tensor, high: torch.Tensor) -> Lines:
        """The lines that bound f on [low, high]: a tangent below, the chord above."""
        middle = 0.5 * (low + high)
        slope = self.derivative(middle)
        return Lines(
            slope,
            self.function(middle) - slope * middle - self.room,
            *chord(self.function, low, high, self.derivative(high)),
        )

    def slopes(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest slope, at low, and the largest, at high: the derivative of a convex function increases."""
        return self.derivative(low), self.derivative(high)

    def open(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Mask of elements where a tighter interval helps: all, or with a breakpoint the intervals that contain it."""
        return (
            super().open(low, high) if self.breakpoint is None else (low < self.breakpoint) & (high > self.breakpoint)
        )


def relu() -> Convex:
    """The activation max(x, 0)."""
    return Convex(lambda x: x.clamp_min(0.0), lambda x: (x > 0).to(x.dtype), breakpoint=0.0)


def leaky_relu(slope: float) -> Convex:
    """max(x, slope * x) for a slope from 0 to 1."""
    return Convex(
        lambda x: torch.where(x > 0, x, slope * x),
        lambda x: torch.where(x > 0, torch.ones_like(x), torch.full_like(x, slope)),
        breakpoint=0.0,
    )


def softplus(beta: float) -> Convex:
    """log(1 + exp(beta x)) / beta. Where beta x > 20, torch returns x itself; the lower line allows for this."""
    return Convex(
        lambda x: torch.logaddexp(beta * x, torch.zeros_like(x)) / beta,
        lambda x: torch.sigmoid(beta * x),
        room=math.exp(-20.0) / beta,
    )


def elu(alpha: float) -> Convex:
    """x, or alpha * (exp(x) - 1) below 0; convex for alpha from 0 to 1."""
    return Convex(
        lambda x: torch.where(x > 0, x, alpha * torch.expm1(x.clamp_max(0.0))),
        lambda x: torch.where(x > 0, torch.ones_like(x), alpha * torch.exp(x.clamp_max(0.0))),
    )


class Clamp(Activation):
    """min(max(x, floor), ceiling): bounded ReLU, hardtanh, ReLU6."""

    def __init__(self, floor: float, ceiling: float) -> None:
        self.floor, self.ceiling = floor, ceiling

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The value f(x) of the activation."""
        return x.clamp(self.floor, self.ceiling)

    def lines(self, low: torch.Tensor, high: torch.Tensor) -> Lines:
        """The lines that bound f on [low, high].

        For each of the two there are two candidates: a horizontal line, and a line through one end of f's graph. The
        candidate that is closer to f at the midpoint of the interval is used.
        """
        above = self._above(low, high, self.floor, self.ceiling)
        # The line below f comes from the line above -f(-x), which clamps x between -ceiling and -floor.
        slope, shift = self._above(-high, -low, -self.ceiling, -self.floor)
        return Lines(slope, -shift, *above)

    def _above(
        self, low: torch.Tensor, high: torch.Tensor, floor: float, ceiling: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Slope and shift of a line above f on [low, high], for the given floor and ceiling.

        It goes through (low, f(low)) and the corner where f reaches the ceiling (or the right end, if that comes
        first), or is flat at f(high).
        """
        at_low, at_high = low.clamp(floor, ceiling), high.clamp(floor, ceiling)
        end = torch.minimum(high, torch.full_like(high, ceiling)) if ceiling < float("inf") else high
        width = end - low
        rising = width > FLAT * (1.0 + low.abs() + high.abs())
        slope = torch.where(rising, (at_high - at_low) / torch.where(rising, width, torch.ones_like(width)), 0.0)
        shift = torch.where(rising, at_low - slope * low, at_high)
        flat = at_high < slope * 0.5 * (low + high) + shift
        return torch.where(flat, 0.0, slope), torch.where(flat, at_high, shift)

    def slopes(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest and the largest slope on [low, high]: f has slope 1 between floor and ceiling, else 0."""
        within = (low > self.floor) & (high < self.ceiling)
        touched = (high > self.floor) & (low < self.ceiling)
        return within.to(low.dtype), touched.to(low.dtype)

    def open(self, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        """Mask of intervals that contain the floor or the ceiling."""
        return ((low < self.floor) & (high > self.floor)) | ((low < self.ceiling) & (high > self.ceiling))


class Tanh(Activation):
    """amplitude * tanh(rate * x) + centre: tanh itself, and sigmoid(x) = tanh(x / 2) / 2 + 1 / 2."""

    def __init__(self, amplitude: float = 1.0, rate: float = 1.0, centre: float = 0.0) -> None:
        self.amplitude, self.rate, self.centre = amplitude, rate, centre
        self.lipschitz = amplitude * rate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The value f(x) of the activation."""
        return self.amplitude * torch.tanh(self.rate * x) + self.centre

    def lines(self, low: torch.Tensor, high: torch.Tensor) -> Lines:
        """The lines that bound f on [low, high]: those of tanh, scaled and shifted."""
        low, high = self.rate * low, self.rate * high
        upper = _above_tanh(low, high)
        slope, shift = _above_tanh(-high, -low)  # tanh is odd
        a, k, c = self.amplitude, self.rate, self.centre
        return Lines(a * k * slope, -a * shift + c, a * k * upper[0], a * upper[1] + c)

    def slopes(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest and the largest slope on [low, high]; the slope decreases with the distance from 0."""
        ends = [self.lipschitz / torch.cosh(self.rate * x.clamp(-300.0, 300.0)) ** 2 for x in (low, high)]
        around = (low <= 0) & (high >= 0)
        largest = torch.where(around, torch.full_like(low, self.lipschitz), torch.maximum(*ends))
        return torch.minimum(*ends), largest


def _slope(x: torch.Tensor) -> torch.Tensor:
    return 1.0 - torch.tanh(x) ** 2


def _above_tanh(low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Slope and shift of a line above tanh on [low, high]: the chord if it lies above, else a tangent right of 0."""
    line = chord(torch.tanh, low, high, _slope(high))
    use_chord = (high <= 0) | (line[0] <= _slope(high))
    # The tangent through (low, tanh(low)) touches tanh right of 0. Tangents at points further right lie above tanh at
    # low, so the upper end of the last interval is safe.
    left, right = torch.zeros_like(low), high.clamp_min(0.0)
    for _ in range(HALVINGS):
        place = 0.5 * (left + right)
        safe = torch.tanh(place) + _slope(place) * (low - place) >= torch.tanh(low)
        left, right = torch.where(safe, left, place), torch.where(safe, place, right)
    place = torch.where(low >= 0, 0.5 * (low + high), torch.maximum(right, 0.5 * (low + high)))
    slope = _slope(place)
    shift = torch.tanh(place) - slope * place
    return torch.where(use_chord, line[0], slope), torch.where(use_chord, line[1], shift)
