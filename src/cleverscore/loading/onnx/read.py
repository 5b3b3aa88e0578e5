"""Reads and checks ONNX files; external data may only come from the folder of the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cleverscore.errors import CleverError, LoadError, MissingExtraError
from cleverscore.loading.onnx.node import LARGEST_TENSOR, Node, Varying
from cleverscore.loading.onnx.operators import as_tensor

OLDEST, NEWEST = 7, 25  # opsets; written for and tested with 11 to 21
OLDEST_READ, CONVERTED_TO = 9, 11  # files below opset 9 are converted to 11 by onnx itself
STANDARD = ("", "ai.onnx")
FLOATS = {1: torch.float32, 10: torch.float16, 11: torch.float64}
# ONNX's numbers of element types, for Cast
TYPES = {
    **FLOATS, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    16: torch.bfloat16,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A node of the graph as it is in the file: attributes as Python values, inputs and outputs by name."""

    operator: str
    name: str
    opset: int
    attributes: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def node(self, values: Any, shapes: Any, *, batch: Any, written_for: int | None) -> Node:
        """This step with the known values and the shapes of its inputs, for a batch size `batch`.

        In the target shape of a Reshape, a leading `written_for`, the batch size that the file was written for, becomes
        `batch`.
        """
        if self.operator == "Reshape" and written_for is not None:
            values = (values[0], _unfixed(values[1], written_for), *values[2:])
        used = max((i + 1 for i, name in enumerate(self.outputs) if name), default=1)
        return Node(self.operator, self.name, self.opset, self.attributes, values, shapes, batch, used)


def _unfixed(target: Any, batch: int) -> Any:
    """The target shape of a Reshape; its first side, if it is `batch`, becomes the actual batch size (a `Varying`)."""
    if not isinstance(target, torch.Tensor) or target.ndim != 1 or not len(target) or int(target[0]) != batch:
        return target
    return Varying((0, *map(int, target[1:])), (1, *[0] * (len(target) - 1)), scalar=False)


@dataclass(frozen=True)
class Graph:
    """A graph with one input and one output.

    input_shape     the shape of one input, without a batch axis.
    dtype           the precision of the input.
    batch           the fixed batch size of the file, None if it accepts any.
    constants       the file's constant tensors by name.
    origin          text about the file's opset and the program that wrote it.
    """

    input_name: str
    input_shape: tuple[int, ...]
    dtype: torch.dtype
    batch: int | None
    output_name: str
    constants: dict[str, torch.Tensor]
    steps: tuple[Step, ...]
    origin: str


def read(path: Path) -> Graph:
    """The graph of an ONNX file; a LoadError for a file that is damaged, unsafe or not supported."""
    try:
        import onnx
    except ImportError:
        raise MissingExtraError.of("onnx", "onnx", "an ONNX file") from None
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise LoadError(f"'{path}' is not an ONNX file that can be read") from error
    if not model.graph.node or not model.graph.output:
        raise LoadError(f"'{path}' is not an ONNX file with a graph in it")
    opset = next((entry.version for entry in model.opset_import if entry.domain in STANDARD), 0)
    if not OLDEST <= opset <= NEWEST:
        raise LoadError(
            f"'{path}' uses ONNX opset {opset}; opsets {OLDEST} to {NEWEST} are read: export it with one of them"
        )
    try:
        _inside(path, model)
        onnx.load_external_data_for_model(model, str(path.parent))
        if model.functions:
            from onnx import inliner

            model = inliner.inline_local_functions(model)
        if opset < OLDEST_READ:
            from onnx import version_converter

            model = version_converter.convert_version(model, CONVERTED_TO)
            return _graph(path, model, CONVERTED_TO, written_in=opset)
        return _graph(path, model, opset)
    except CleverError:
        raise
    except Exception as error:
        raise LoadError(f"'{path}' is damaged: {' '.join(str(error).split())[:200]}") from error


def _tensors(model: Any) -> list[Any]:
    found = list(model.graph.initializer)
    for node in [*model.graph.node, *(n for function in model.functions for n in function.node)]:
        for attribute in node.attribute:
            found += [attribute.t, *attribute.tensors] if attribute.type in (4, 9) else []
            if attribute.type in (5, 10):
                raise LoadError(f"operator {node.op_type} (node '{node.name}') holds a graph of its own: not supported")
    return found


def _inside(path: Path, model: Any) -> None:
    """Raise a LoadError unless external data is a plain file inside the model's folder, of the declared length."""
    folder = path.parent.resolve()
    for tensor in _tensors(model):
        count = 1
        for side in tensor.dims:
            count *= max(0, side)
        if count > LARGEST_TENSOR:
            raise LoadError(f"'{path}': the tensor '{tensor.name}' of shape {tuple(tensor.dims)} is too large")
        if tensor.data_location != 1:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        place = entries.get("location", "")
        file = (folder / place).resolve()
        if not place or Path(place).is_absolute() or folder not in file.parents:
            raise LoadError(f"'{path}' keeps the tensor '{tensor.name}' in '{place}', outside its own folder: refused")
        if not file.is_file():
            raise LoadError(f"'{path}' keeps its weights in '{place}', which does not exist beside it")
        end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        if end > file.stat().st_size:
            raise LoadError(f"'{path}' keeps its weights in '{place}', which is cut short")


def _graph(path: Path, model: Any, opset: int, *, written_in: int | None = None) -> Graph:
    from onnx import numpy_helper

    graph = model.graph
    constants = {tensor.name: as_tensor(numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    free = [value for value in graph.input if value.name not in constants]
    if len(free) != 1:
        names = ", ".join(value.name for value in free) or "none"
        raise LoadError(f"'{path}' has {len(free)} inputs ({names}); a classifier has one")
    kind = free[0].type.tensor_type
    if kind.elem_type not in FLOATS:
        raise LoadError(
            f"'{path}' takes whole numbers; gradients need float inputs: export the part after the conversion"
        )
    sides = [side.dim_value if side.HasField("dim_value") else None for side in kind.shape.dim]
    if len(sides) < 2 or any(not side or side < 1 for side in sides[1:]):
        shown = [side.dim_param or side.dim_value or "?" for side in kind.shape.dim]
        raise LoadError(f"'{path}' takes inputs of shape {shown}; every axis but the batch must be fixed: export it so")
    steps = []
    for number, node in enumerate(graph.node):
        if node.domain not in STANDARD:
            raise LoadError(
                f"'{path}' uses the operator {node.domain}.{node.op_type} (node '{node.name}'), not supported"
            )
        name = node.name or f"{node.op_type}_{number}"
        attributes = {a.name: _attribute(a) for a in node.attribute}
        if node.op_type == "Constant":
            constants[node.output[0]] = _constant(attributes, name)
        else:
            steps.append(Step(node.op_type, name, opset, attributes, tuple(node.input), tuple(node.output)))
    batch = sides[0] if sides[0] and sides[0] > 0 else None
    producer = f"{model.producer_name or 'unknown producer'} {model.producer_version}"
    origin = f"ONNX opset {written_in or opset}, {producer}".strip()
    return Graph(
        input_name=free[0].name,
        input_shape=tuple(int(side) for side in sides[1:] if side),
        dtype=FLOATS[kind.elem_type],
        batch=batch,
        output_name=_output(path, graph),
        constants=constants,
        steps=tuple(steps),
        origin=origin,
    )


def _output(path: Path, graph: Any) -> str:
    """The name of the output with the logits: the first that contains "logit", else the first output of floats."""
    names = [str(value.name) for value in graph.output if value.type.tensor_type.elem_type in FLOATS]
    if not names:
        raise LoadError(f"'{path}' has no output of floats")
    return next((name for name in names if "logit" in name.lower()), names[0])


def _attribute(attribute: Any) -> Any:
    import onnx
    from onnx import numpy_helper

    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return as_tensor(numpy_helper.to_array(value))
    if attribute.name == "to":
        if value not in TYPES:
            raise LoadError(f"an ONNX Cast to type {value} is not supported")
        return TYPES[value]
    return list(value) if attribute.type in (6, 7, 8) else value


def _constant(attributes: dict[str, Any], name: str) -> torch.Tensor:
    for kind, dtype in (("value_float", torch.float32), ("value_int", torch.long), ("value_floats", torch.float32),
                        ("value_ints", torch.long)):  # fmt: skip
        if kind in attributes:
            return torch.tensor(attributes[kind], dtype=dtype)
    if isinstance(attributes.get("value"), torch.Tensor):
        value: torch.Tensor = attributes["value"]
        return value
    raise LoadError(f"the ONNX constant '{name}' holds no numbers")
