"""ONNX files as torch modules.

The graph is evaluated twice, for two batch sizes, with an input that has a shape but no values. Results that have
values nevertheless do not depend on the input: they are constants or multiples of the batch size. All other nodes
become a torch.fx graph of torch layers and functions, whose outputs are compared with onnxruntime's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from cleverscore.errors import CleverError, LoadError, MissingExtraError
from cleverscore.loading.batches import FixedBatch
from cleverscore.loading.onnx.layers import LAYERS, layer
from cleverscore.loading.onnx.node import FLOW, LARGEST_TENSOR, Varying
from cleverscore.loading.onnx.operators import OPERATORS
from cleverscore.loading.onnx.read import Graph, Step, read

BATCHES = (2, 3)  # sizes of the two evaluations, which tell a constant from a multiple
# The largest difference from onnxruntime's outputs that is accepted, as a share of the largest output. Two libraries
# differ by about 1e-5 on networks of ImageNet size.
AGREEMENT = {torch.float16: 2e-2, torch.float32: 1e-3, torch.float64: 1e-6}


@dataclass(frozen=True)
class Imported:
    """A network read from an ONNX file.

    module          the network; takes inputs (n, *input_shape) of any batch size n.
    input_shape     the shape of one input, without a batch axis.
    origin          text about the file's opset and the program that wrote it.
    """

    module: nn.Module
    input_shape: tuple[int, ...]
    origin: str


def load_onnx(path: Path) -> Imported:
    """Read and convert an ONNX file, and compare the result with onnxruntime; a LoadError if one of these fails."""
    graph = read(path)
    unknown = [step for step in graph.steps if step.operator not in OPERATORS and step.operator not in LAYERS]
    if unknown:
        one = unknown[0]
        raise LoadError(
            f"'{path}' uses the operator {one.operator} (node '{one.name}'), which is not supported; export the model "
            "with plain layers, or use it from Python as a torch module"
        )
    try:
        module = _converted(graph, BATCHES)
        _compare(path, graph, module)
    except Exception as error:
        # A graph that only works for the batch size it was written for is run in groups of that size.
        if graph.batch is None or (isinstance(error, CleverError) and not isinstance(error, LoadError)):
            raise
        fixed = replace(graph, batch=None)
        module = FixedBatch(_converted(fixed, (graph.batch, graph.batch)), graph.batch)
        _compare(path, graph, module)
    return Imported(module, graph.input_shape, graph.origin)


def _converted(graph: Graph, batches: tuple[int, int]) -> nn.Module:
    layers: dict[int, nn.Module] = {}
    first, second = (_Walk(graph, batch, layers).run() for batch in batches)
    known: dict[str, Any] = {}
    for name, value in first.items():
        if not value.is_meta:
            folded = _folded(value, second[name], batches)
            if folded is not None:
                known[name] = folded
    shapes = {name: tuple(value.shape) for name, value in first.items()}
    module = _Written(graph, known, shapes, layers)
    written = fx.GraphModule(module, _Tracer().trace(module))
    written.graph.eliminate_dead_code()
    written.recompile()
    written.delete_all_unused_submodules()
    return written.eval().requires_grad_(False)


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True


def _folded(first: torch.Tensor, second: torch.Tensor, batches: tuple[int, int]) -> Any:
    """The value of a node from its values for two batch sizes, if it does not depend on the input.

    A tensor if both values are equal, a `Varying` if they are multiples of the batch size, else None.
    """
    if first.shape == second.shape and (first is second or torch.equal(first, second)):
        return first
    if first.shape != second.shape or first.ndim > 1 or first.is_floating_point():
        return None
    constants, multiples = [], []
    for one, two in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True):
        grows = one != two
        if grows and one * batches[1] != two * batches[0]:
            return None
        constants.append(0 if grows else int(one))
        multiples.append(int(one) // batches[0] if grows else 0)
    return Varying(tuple(constants), tuple(multiples), first.ndim == 0)


def _outputs(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _shape_of(made: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The output of a layer for input x, as a tensor that has a shape but no values."""
    weights = {name: t.to("meta") for name, t in (*made.named_parameters(), *made.named_buffers())}
    output: torch.Tensor = torch.func.functional_call(made, weights, (x,))
    return output


class _Walk:
    """One evaluation of the graph, with an input that has a shape but no values; makes the layers on its way."""

    def __init__(self, graph: Graph, batch: int, layers: dict[int, nn.Module]) -> None:
        self.graph, self.batch, self.layers = graph, batch, layers

    def run(self) -> dict[str, torch.Tensor]:
        """Evaluate the graph; returns all its values by name. Those that depend on the input have no values."""
        graph = self.graph
        values: dict[str, Any] = dict(graph.constants)
        values[graph.input_name] = torch.empty(self.batch, *graph.input_shape, dtype=graph.dtype, device="meta")
        with torch.no_grad():
            for position, step in enumerate(graph.steps):
                outputs = self._step(position, step, values)
                for name, value in zip(step.outputs, outputs, strict=False):
                    if name:
                        values[name] = value
        return values

    def _step(self, position: int, step: Step, values: dict[str, Any]) -> tuple[Any, ...]:
        inputs: list[Any] = [values[name] if name else None for name in step.inputs]
        node = step.node(
            tuple(FLOW if value is not None and value.is_meta else value for value in inputs),
            tuple(None if value is None else tuple(value.shape) for value in inputs),
            batch=self.batch,
            written_for=self.graph.batch,
        )
        if step.operator in ("Shape", "Size"):
            sides = torch.tensor(inputs[0].shape, dtype=torch.long)
            if step.operator == "Size":
                return (sides.prod(),)
            return (sides[node.get("start", 0) : node.get("end", len(sides))],)
        flows = any(value is FLOW for value in node.values)
        try:
            if flows and position not in self.layers:
                made = layer(node)
                if made is not None:
                    self.layers[position] = made
            if flows:
                inputs = [None if value is None else value.to("meta") for value in inputs]
            if flows and position in self.layers:
                outputs = (_shape_of(self.layers[position], inputs[0]),)
            elif step.operator in OPERATORS:
                outputs = _outputs(OPERATORS[step.operator](node, *inputs))
            else:
                raise node.error("in this form it is not supported")
        except CleverError:
            raise
        except Exception as error:
            raise node.error(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
        for value in outputs:
            if value.numel() > LARGEST_TENSOR:
                raise node.error(f"its result of shape {tuple(value.shape)} is too large")
        return outputs


class _Written(nn.Module):
    """The part of the graph that depends on the input, as a module that torch.fx traces.

    known       values that do not depend on the input, by name.
    shapes      shapes of all values for a batch of two, by name.
    layers      the layers, by the position of their node.
    """

    def __init__(
        self,
        graph: Graph,
        known: dict[str, Any],
        shapes: dict[str, tuple[int, ...]],
        layers: dict[int, nn.Module],
    ) -> None:
        super().__init__()
        self.steps = graph
        self.known, self.shapes = known, shapes
        self.places = {}
        for position, made in layers.items():
            self.places[position] = name = f"{graph.steps[position].operator.lower()}_{position}"
            self.add_module(name, made)
        self.buffer_of: dict[str, str] = {}
        for position, step in enumerate(graph.steps):
            if position not in self.places and step.outputs[0] not in known:
                for name in step.inputs:
                    if isinstance(known.get(name), torch.Tensor) and name not in self.buffer_of:
                        self.buffer_of[name] = f"constant_{len(self.buffer_of)}"
                        self.register_buffer(self.buffer_of[name], known[name])

    def _constant(self, name: str) -> Any:
        if name in self.buffer_of:
            return getattr(self, self.buffer_of[name])
        return self.known[name] if name else None

    def forward(self, x: Any) -> Any:
        """Outputs of inputs (n, *input_shape)."""
        graph = self.steps
        flow: dict[str, Any] = {graph.input_name: x}
        size = x.shape[0]
        for position, step in enumerate(graph.steps):
            if step.outputs[0] in self.known:
                continue
            if position in self.places:
                flow[step.outputs[0]] = getattr(self, self.places[position])(flow[step.inputs[0]])
                continue
            node = step.node(
                tuple(None if not name else FLOW if name in flow else self.known[name] for name in step.inputs),
                tuple(self.shapes.get(name) if name else None for name in step.inputs),
                batch=size,
                written_for=graph.batch,
            )
            inputs = [flow[name] if name in flow else self._constant(name) for name in step.inputs]
            outputs = _outputs(OPERATORS[step.operator](node, *inputs))
            flow.update({name: value for name, value in zip(step.outputs, outputs, strict=False) if name})
        output = flow.get(graph.output_name)
        if output is None:
            raise LoadError("the ONNX graph's output does not depend on its input")
        rank = len(self.shapes[graph.output_name])
        return torch.flatten(output, 1) if rank > 2 and set(self.shapes[graph.output_name][2:]) == {1} else output


def _compare(path: Path, graph: Graph, module: nn.Module) -> None:
    """Raise a LoadError unless the outputs for random inputs agree with onnxruntime's."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError.of("onnxruntime", "onnx", "checking an ONNX file") from None
    size = graph.batch or BATCHES[0]
    x = torch.rand(size, *graph.input_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x.to(graph.dtype)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        expected = torch.from_numpy(session.run([graph.output_name], {graph.input_name: x.numpy()})[0])
    except Exception as error:
        raise LoadError(f"onnxruntime cannot run '{path}': {' '.join(str(error).split())[:300]}") from error
    with torch.no_grad():
        # With other inputs added to the batch, the first outputs must stay the same: inputs of a batch do not mix.
        found = module(x)
        both = module(torch.cat([x, x.flip(0)]))[: len(x)]
    expected = expected.reshape(found.shape) if expected.numel() == found.numel() else expected
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    limit = AGREEMENT.get(graph.dtype, 1e-3) * scale + 1e-6
    for values in (found, both):
        if values.shape != expected.shape:
            raise LoadError(f"'{path}' gives shape {tuple(expected.shape)} and the import {tuple(values.shape)}")
        gap = float((values - expected).abs().max())
        if not gap <= limit:
            raise LoadError(
                f"'{path}' was not understood: outputs differ from onnxruntime's by {gap:.3g} of {scale:.3g}"
            )
