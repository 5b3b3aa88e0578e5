"""A classifier as a graph of layers that can be bounded: affine ones, sums, activations and maximum pooling.

The module is traced symbolically by torch.fx. It is also run with one and with two inputs: a number that differs
between the two runs, such as x.size(0) in x.view(x.size(0), -1), depends on the batch size. A layer that cannot be
bounded is reported by its path in the module.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from cleverscore.certificates.layer_registry import TRACED, Call, Operation, UnknownLayerError, operation_of
from cleverscore.certificates.linear_layers import Affine, Concat, Scale, Sum
from cleverscore.errors import CertificateError
from cleverscore.models.classifier import Classifier


@dataclass(frozen=True)
class Node:
    """A layer: its operation, the positions of its input nodes, the shape of its output, its path in the module.

    The shape is that for one input, without a batch axis.
    """

    operation: Operation | None  # None: the input
    parents: tuple[int, ...]
    shape: tuple[int, ...]
    path: str


@dataclass(frozen=True)
class Graph:
    """Nodes in the order of computation: 0 is the input, the last one the logits."""

    nodes: tuple[Node, ...]
    device: torch.device

    @property
    def affine(self) -> tuple[bool, ...]:
        """For each node, whether it is an affine function of the input."""
        found: list[bool] = []
        for node in self.nodes:
            linear = node.operation is None or isinstance(node.operation, Affine | Sum | Concat)
            found.append(linear and all(found[parent] for parent in node.parents))
        return tuple(found)

    def forward(self, x: torch.Tensor, start: int = 0) -> list[torch.Tensor]:
        """The values of node `start` and of all later nodes when node `start` has the value x (n, *shape).

        No later node may use a node before `start`.
        """
        values = {start: x}
        for v in range(start + 1, len(self.nodes)):
            node = self.nodes[v]
            given = [values[parent] for parent in node.parents]
            operation = node.operation
            if isinstance(operation, Sum | Concat):
                values[v] = operation(given)
            elif isinstance(operation, Affine):
                values[v] = operation.forward(given[0])
            else:
                assert operation is not None
                values[v] = operation(given[0])
        return list(values.values())


def trace(classifier: Classifier, shape: tuple[int, ...], dtype: torch.dtype) -> Graph:
    """The graph of a classifier for inputs of `shape` (without a batch axis), with weights and values in `dtype`.

    Raises a CertificateError for a model that cannot be traced, and for a layer that cannot be bounded.
    """
    try:
        module = copy.deepcopy(classifier.module).to(dtype)
        builder = _Builder(classifier, fx.symbolic_trace(module), shape, dtype)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CertificateError(
            f"the model {classifier.name} cannot be certified: its forward pass cannot be traced ({reason}); write it "
            "without control flow that depends on values, or use method='auto-lirpa'"
        ) from error
    return builder.build()


class _Builder:
    """Converts a traced module into the nodes of a graph."""

    def __init__(self, classifier: Classifier, traced: fx.GraphModule, shape: tuple[int, ...], dtype: torch.dtype):
        self.classifier, self.traced = classifier, traced
        self.like = torch.zeros((), dtype=dtype, device=classifier.device)
        self.nodes: list[Node] = [Node(None, (), shape, "input")]
        self.index: dict[fx.Node, int] = {}
        self.runs = [self._run(batch, shape) for batch in (1, 2)]

    def _run(self, batch: int, shape: tuple[int, ...]) -> dict[fx.Node, Any]:
        run = fx.Interpreter(self.traced, garbage_collect_values=False)
        with torch.no_grad():
            run.run(self.classifier.standardised(self.like.expand(batch, *shape)))
        return run.env

    def build(self) -> Graph:
        for node in self.traced.graph.nodes:
            if node.op == "placeholder":
                if not self.index:
                    self.index[node] = self._preprocessing()
            elif node.op == "output":
                if not isinstance(node.args[0], fx.Node) or node.args[0] not in self.index:
                    raise CertificateError(
                        f"the model {self.classifier.name} cannot be certified: it does not return one tensor of logits"
                    )
                last = self.index[node.args[0]]
                if len(self.nodes[last].shape) != 1:
                    raise CertificateError(f"the model {self.classifier.name} does not return logits (n, classes)")
                return Graph(tuple(self.nodes[: last + 1]), self.like.device)
            elif isinstance(self.runs[0][node], torch.Tensor) and any(n in self.index for n in node.all_input_nodes):
                self._add(node)
        raise CertificateError(f"the model {self.classifier.name} returns nothing")

    def _preprocessing(self) -> int:
        """Add (x - mean) / std as the first layer, if the classifier has it; the position of the module's input."""
        shape = self.nodes[0].shape
        classifier = self.classifier
        if classifier.mean is None and classifier.std is None:
            return 0
        slope, shift = classifier.preprocessing(torch.zeros(*shape, dtype=torch.float64, device=classifier.device))
        self.nodes.append(Node(Scale(slope.to(self.like), shift.to(self.like), shape), (0,), shape, "preprocessing"))
        return 1

    def _path(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return str(node.target)
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        inside = stack[-1][0] if stack else ""
        return f"{inside}.{node.name}" if inside else node.name

    def _value(self, node: fx.Node, batch: int) -> Any:
        """The value of a call that does not depend on the input, for a batch of the given size."""
        one, two = (run[node] for run in self.runs)
        return _extrapolated(one, two, batch)

    def _filled(self, node: fx.Node, x: Any, batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named arguments of a call, with `x` in place of each that depends on the input."""
        filled: Any = fx.node.map_arg(
            (node.args, node.kwargs), lambda n: x if n in self.index else self._value(n, batch)
        )
        return tuple(filled[0]), dict(filled[1])

    def _add(self, node: fx.Node) -> None:
        """Add a traced call as a node; a call without an operation (dropout) becomes another name of its argument."""
        layer = self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        name = type(layer).__name__ if layer is not None else getattr(node.target, "__name__", str(node.target))

        def function(x: torch.Tensor) -> torch.Tensor:
            """The call as a function of the only argument that depends on the input."""
            arguments, named = self._filled(node, x, len(x))
            if layer is not None:
                target: Any = layer
            elif node.op == "call_method":
                target, arguments = getattr(arguments[0], str(node.target)), arguments[1:]
            else:
                target = node.target
            return target(*arguments, **named)  # type: ignore[no-any-return]

        # An argument that appears twice (x + x) is one node to the tracer and two parents here.
        places: list[fx.Node] = []
        fx.node.map_arg((node.args, node.kwargs), lambda n: places.append(n) if n in self.index else None)
        sources = tuple(self.index[place] for place in places)
        arguments, named = self._filled(node, TRACED, 1)
        call = Call(
            name=name.rstrip("_"),
            layer=layer,
            function=function,
            arguments=arguments,
            named=named,
            shapes=tuple(self.nodes[source].shape for source in sources),
            shape=tuple(self.runs[1][node].shape[1:]),
            like=self.like,
            ends=all(user.op == "output" for user in node.users),
        )
        try:
            if [len(run[node]) for run in self.runs] != [1, 2]:
                raise UnknownLayerError("it mixes the inputs of a batch")
            operation = operation_of(call)
        except UnknownLayerError as reason:
            raise CertificateError(
                f"layer '{self._path(node)}' ({name}) of {self.classifier.name} cannot be certified: {reason}; replace "
                "it, or use method='auto-lirpa'"
            ) from None
        if operation is None:
            self.index[node] = sources[0]
            return
        self.nodes.append(Node(operation, sources, call.shape, self._path(node)))
        self.index[node] = len(self.nodes) - 1


def _extrapolated(one: Any, two: Any, batch: int) -> Any:
    """The value for `batch` inputs: whole numbers, also in a list or tuple, are extrapolated from one and two inputs.

    Any other value is that for one input.
    """
    if isinstance(one, int) and not isinstance(one, bool):
        return one + (two - one) * (batch - 1)
    if isinstance(one, tuple | list):
        parts = [_extrapolated(a, b, batch) for a, b in zip(one, two, strict=True)]
        return tuple(parts) if isinstance(one, tuple) else parts
    return one
