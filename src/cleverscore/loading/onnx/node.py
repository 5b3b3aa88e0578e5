"""One ONNX node with the known values and the shapes of its inputs: what layers and operators are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cleverscore.errors import LoadError

# Numbers in a tensor. No classifier has larger constants or intermediate results; a damaged file may ask for terabytes.
LARGEST_TENSOR = 2**29


@dataclass(frozen=True)
class Varying:
    """k whole numbers, each of which is a constant or a multiple of the batch size.

    constants   (k,) the constants; 0 for the other numbers.
    multiples   (k,) the factor of the batch size; 0 for constants.
    scalar      whether the value is a single number without an axis.
    """

    constants: tuple[int, ...]
    multiples: tuple[int, ...]
    scalar: bool


FLOW = object()  # stands for an input that depends on the model's input


@dataclass(frozen=True)
class Node:
    """A node: operator, attributes, and for each input its value and shape.

    operator    the operator's name, such as "Conv".
    opset       the version of ONNX's operators that the file uses.
    values      per input: a known tensor, a `Varying`, FLOW if it depends on the model's input, None if it is absent.
    shapes      the shape of each input, for a batch of two; None if it is absent.
    batch       the batch size: a number, or its symbol while the graph is traced.
    outputs     the number of outputs, up to the last one that is used.
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
        """An attribute of the node."""
        return self.attributes.get(name, default)

    def has(self, position: int) -> bool:
        """Whether an optional input is present."""
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
        """The value of an input that must be a constant; an error otherwise."""
        value = self.values[position]
        if not isinstance(value, torch.Tensor):
            raise self.error(f"input {position} must be a constant")
        return value

    def ints(self, position: int) -> list[Any]:
        """Whole numbers from an input; multiples of the batch size become expressions in `batch`."""
        value = self.values[position]
        if isinstance(value, Varying):
            pairs = zip(value.constants, value.multiples, strict=True)
            return [c if m == 0 else self.batch if m == 1 else m * self.batch for c, m in pairs]
        return [int(number) for number in self.known(position).flatten().tolist()]

    def axes(self, position: int = 1) -> list[int] | None:
        """The axes of the node: an attribute in older opsets, an input in newer ones; None if none are given."""
        if self.has(position):
            return self.ints(position)
        found = self.get("axes")
        return None if found is None else list(found)

    def number(self, position: int, name: str, default: float | None = None) -> float | None:
        """A number of the node: the attribute `name` in older opsets, an input in newer ones; else the default."""
        if self.has(position):
            return float(self.known(position))
        value = self.get(name, default)
        return None if value is None else float(value)

    def error(self, reason: str) -> LoadError:
        """The error for a node that cannot be converted."""
        return LoadError(f"operator {self.operator} (node '{self.name}') of the ONNX file: {reason}")

    def sized(self, shape: Sequence[Any]) -> list[Any]:
        """`shape`; an error if a tensor of this shape would be absurdly large."""
        count = 1
        for side in shape:
            count *= abs(side) if isinstance(side, int) else 1
        if count > LARGEST_TENSOR:
            raise self.error(f"it asks for a tensor of shape {tuple(shape)}, which is too large")
        return list(shape)
