"""The chunk size: how many points go through the network in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cleverscore.errors import SettingError
from cleverscore.inputs.balls import tile_points
from cleverscore.models.classifier import Classifier
from cleverscore.validation import is_whole

# Layers of small networks run fastest while a layer's output stays in cache (measured on two cores with 32 MB: 60% of
# the limit at 6 to 11 MB, 53% at 22 MB on the MNIST network). Large networks want a few points at least. Above 32 MB
# glibc hands every tensor back to the system when it is freed, and page faults cost more than larger batches gain.
CACHED_TENSOR = 8 * 2**20
LARGEST_TENSOR = 32 * 2**20
FEW_POINTS = 4
MEMORY_SHARE = 0.25  # of what is free on an accelerator
CPU_MEMORY = 2**30  # for all workers together
LARGEST_CHUNK = 1024
PROBED_POINTS = 2


@dataclass(frozen=True)
class Footprint:
    """Memory in bytes that one point needs in a forward pass with autograd."""

    largest: int
    total: int


def footprint(classifier: Classifier, x: torch.Tensor) -> Footprint:
    """Measure the memory that autograd keeps for one point, without the weights."""
    weights = {t.untyped_storage().data_ptr() for t in (*classifier.module.parameters(), *classifier.module.buffers())}
    sizes: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    points = x[None].expand(PROBED_POINTS, *x.shape).clone().requires_grad_(True)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = classifier.logits(points)
    least = points.nbytes + logits.nbytes
    return Footprint(
        largest=max([least, *sizes.values()]) // PROBED_POINTS, total=(least + sum(sizes.values())) // PROBED_POINTS
    )


def default_chunk_size(classifier: Classifier, x: torch.Tensor, *, workers: int) -> int:
    """Points per forward pass for inputs like `x`: no tensor above 32 MB, and within the available memory."""
    need = footprint(classifier, x)
    if classifier.device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(classifier.device)
        fitting = int(free * MEMORY_SHARE) // (2 * need.total)
    else:
        by_tensor = max(CACHED_TENSOR // need.largest, min(FEW_POINTS, LARGEST_TENSOR // need.largest))
        fitting = min(by_tensor, CPU_MEMORY // (2 * need.total * workers))
    # Whole tiles or even parts of one, so that no item of work ends in a small rest.
    tile = tile_points(x.numel())
    fitting = min(LARGEST_CHUNK, max(1, fitting))
    return fitting - fitting % tile if fitting >= tile else 1 << (fitting.bit_length() - 1)


def resolved_chunk_size(classifier: Classifier, x: torch.Tensor, chunk_size: int | None, *, workers: int) -> int:
    """The chunk size that a user gave, checked, or the default one."""
    if chunk_size is None:
        return default_chunk_size(classifier, x, workers=workers)
    if not is_whole(chunk_size) or chunk_size < 1:
        raise SettingError(f"chunk_size={chunk_size!r}: give a whole number of points, at least 1")
    return int(chunk_size)
