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
    """What a model of another library, such as JAX or TensorFlow, must offer: two functions of numpy arrays.

    Both are called from several threads at once. The arrays that they get have the precision of the inputs.
    """

    def logits(self, x: Array) -> Array:
        """Logits (n, K) of inputs (n, *input_shape)."""
        ...

    def vjp(self, x: Array, cotangent: Array) -> Array:
        """The gradient of sum(cotangent * logits(x)) with respect to x: (n, *input_shape), for a cotangent (n, K)."""
        ...


class _Bridge(torch.autograd.Function):
    """The function x -> logits for autograd; the backward pass calls the model's `vjp`."""

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
    # A copy, because arrays of other libraries may be read-only, or be freed while torch still uses them.
    return torch.from_numpy(np.array(values)).to(like)


class ArrayModule(nn.Module):
    """An `ArrayModel` as a torch module."""

    def __init__(self, model: ArrayModel) -> None:
        super().__init__()
        self.model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> ArrayModule:
        return self  # a model of another library has no torch weights to freeze, and may not be copyable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, K)."""
        logits: torch.Tensor = _Bridge.apply(x, self.model)  # type: ignore[no-untyped-call]
        return logits
