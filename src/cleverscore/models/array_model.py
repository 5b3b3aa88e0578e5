"""Models outside torch: logits and vector-Jacobian products on numpy arrays."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.autograd.function import once_differentiable

Array = npt.NDArray[Any]


@runtime_checkable
class ArrayModel(Protocol):
    """A model of another library, such as JAX or TensorFlow, on numpy arrays.

    `logits` and `vjp` are called from several threads at once; arrays have the precision of the inputs.
    """

    def logits(self, x: Array) -> Array:
        """Logits (n, K) of inputs (n, *input_shape)."""
        ...

    def vjp(self, x: Array, cotangent: Array) -> Array:
        """The gradient of sum(cotangent * logits(x)) for x: (n, *input_shape), from cotangents (n, K)."""
        ...


class _Bridge(torch.autograd.Function):
    """The function x -> logits for autograd; its gradient is the model's `vjp`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, model: ArrayModel) -> torch.Tensor:
        ctx.model = model
        ctx.save_for_backward(x)
        return _tensor(model.logits(_array(x)), x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return _tensor(ctx.model.vjp(_array(x), _array(cotangent)), x), None


def _array(tensor: torch.Tensor) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array


def _tensor(values: Any, like: torch.Tensor) -> torch.Tensor:
    # A copy: arrays of other libraries may be read-only or freed while torch still uses them.
    return torch.from_numpy(np.array(values)).to(like)


class ArrayModule(nn.Module):
    """An `ArrayModel` as a torch module."""

    def __init__(self, model: ArrayModel) -> None:
        super().__init__()
        self.model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> ArrayModule:
        return self  # there are no torch weights to freeze, and other libraries' functions cannot be copied

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, K)."""
        logits: torch.Tensor = _Bridge.apply(x, self.model)  # type: ignore[no-untyped-call]
        return logits
