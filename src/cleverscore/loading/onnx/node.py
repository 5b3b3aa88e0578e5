"""One ONNX node with what is known of its inputs, as the operators see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cleverscore.errors import LoadError

# Larger constants and intermediate results are not those of a classifier; a damaged file easily asks for terabytes.
LARGEST_TENSOR = 2**29


@dataclass(frozen=True)
class Varying:
    """Whole numbers computed from the batch size alone: each is a constant, or a multiple of the batch size.

    constants   (k,) the value where it does not depend on the batch.
    multiples   (k,) how many times the batch size it is; 0 where it is a constant.
    scalar      whether it has no axis.
    """

    constants: tuple[int, ...]
    multiples: tuple[int, ...]
    scalar: bool


FLOW = object()  # stands for an input that depends on the model's input


@dataclass(frozen=True)
class Node:
    """A node: operator, attributes, and for each input its value and shape.

    values      a tensor that is known beforehand, a `Varying`, or FLOW for data; None for an absent input.
    shapes      of each input, with a batch of two.
    batch       the batch size: a number, or what stands for it while the graph is written down.
    """

    operator: str
    name: str
    opset: int
    attributes: dict[str, Any]
    values: tuple[Any, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    batch: Any
    outputs: int

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def has(self, position: int) -> bool:
        """Whether an optional input is given."""
        return position < len(self.values) and self.values[position] is not None

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """The shape of an input, for a batch of two."""
        shape = self.shapes[position]
        if shape is None:
            raise self.error(f"input {position} has no known shape")
        return shape

    def rank(self, position: int = 0) -> int:
        """How many axes an input has."""
        return len(self.shape(position))

    def known(self, position: int) -> torch.Tensor:
        """An input that must be a constant."""
        value = self.values[position]
        if not isinstance(value, torch.Tensor):
            raise self.error(f"input {position} must be a constant")
        return value

    def ints(self, position: int) -> list[Any]:
        """Whole numbers given as an input; a multiple of the batch size is an expression in `batch`."""
        value = self.values[position]
        if isinstance(value, Varying):
            pairs = zip(value.constants, value.multiples, strict=True)
            return [c if m == 0 else self.batch if m == 1 else m * self.batch for c, m in pairs]
        return [int(number) for number in self.known(position).flatten().tolist()]

    def axes(self, position: int = 1) -> list[int] | None:
        """Axes, which older opsets give as an attribute and newer ones as an input; None if there are none."""
        if self.has(position):
            return self.ints(position)
        found = self.get("axes")
        return None if found is None else list(found)

    def number(self, position: int, name: str, default: float | None = None) -> float | None:
        """A scalar, which older opsets give as an attribute and newer ones as an input."""
        if self.has(position):
            return float(self.known(position))
        value = self.get(name, default)
        return None if value is None else float(value)

    def error(self, reason: str) -> LoadError:
        """What to raise where this node cannot be used."""
        return LoadError(f"operator {self.operator} (node '{self.name}') of the ONNX file: {reason}")

    def sized(self, shape: Sequence[Any]) -> list[Any]:
        """`shape`, refused where a tensor of it would be absurdly large."""
        count = 1
        for side in shape:
            count *= abs(side) if isinstance(side, int) else 1
        if count > LARGEST_TENSOR:
            raise self.error(f"it asks for a tensor of shape {tuple(shape)}, which is too large")
        return list(shape)
