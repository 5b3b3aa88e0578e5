"""The end of a network, watched while it runs: what its last dense layers see, and gradients through these alone.

Dense layers at the end of a convolutional network cost a few hundredths of it, but much of what makes its gradients
large or small is decided there. A forward pass tells it, without a gradient of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from cleverscore.classifier import Classifier

HEAD_SHARE = 0.1  # of the network's multiplications: dense layers that need no more are its end


class _Watch(TorchFunctionMode):
    """Keeps the inputs (n, features) of dense layers from number `first` on; the graph begins there.

    Modes belong to a thread, so several can watch the same network, which is not changed.
    """

    def __init__(self, first: int, on_layer: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.first = first
        self.on_layer = on_layer
        self.layers = 0
        self.inputs: list[torch.Tensor] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is functional.linear and args and args[0].ndim == 2:
            self.on_layer()
            if self.layers >= self.first:
                seen = args[0] if self.inputs else args[0].detach().requires_grad_(True)
                self.inputs.append(seen)
                args = (seen, *args[1:])
            self.layers += 1
        return function(*args, **(kwargs or {}))


class _Multiplications(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts floating-point operations. torch's own counter also puts hooks on all modules that there are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        cost = flop_registry.get(function._overloadpacket)
        if cost is not None:
            self.count += int(cost(*args, **(kwargs or {}), out_val=out))
        return out


@dataclass(frozen=True)
class Head:
    """The dense layers at the end of a network.

    first   number of the first of them among all dense layers.
    widths  how many features each sees; none where the network does not end in dense layers.
    """

    first: int
    widths: tuple[int, ...]

    @classmethod
    def of(cls, classifier: Classifier, x: torch.Tensor) -> Head:
        """The end of a network, found with the input `x`; empty where the network cannot be watched."""
        before: list[int] = []
        try:
            with (
                torch.no_grad(),
                _Multiplications() as done,
                _Watch(0, lambda: before.append(done.count)) as watch,
            ):
                classifier.logits(x[None])
            rest = [done.count - count for count in before]
            first = next((i for i, count in enumerate(rest) if count <= HEAD_SHARE * done.count), len(rest))
            found = cls(first, tuple(seen.shape[1] for seen in watch.inputs[first:]))
            found.watched(classifier, x[None])
        except Exception:  # compiled, scripted and other foreign networks: their logits have to do
            return cls(0, ())
        return found

    def watched(self, classifier: Classifier, points: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits of the points and what each layer saw, with a graph from the first of these layers on."""
        if not self.widths:
            with torch.no_grad():
                return classifier.logits(points), []
        with torch.enable_grad(), _Watch(self.first) as watch:
            logits = classifier.logits(points.detach())
        return logits, watch.inputs
