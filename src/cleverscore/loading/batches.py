"""Models that were saved with a fixed batch size."""

from __future__ import annotations

import torch
from torch import nn


class FixedBatch(nn.Module):
    """A model for exactly `size` inputs, made to accept any number: it runs on groups of that size, the last padded."""

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.model, self.size = model, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs (n, ...) of inputs (n, ...)."""
        missing = -len(x) % self.size
        filled = torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]) if missing else x
        return torch.cat([self.model(part) for part in torch.split(filled, self.size)])[: len(x)]
