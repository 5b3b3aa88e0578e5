"""The chunk size: how many points go through the network in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cleverscore.errors import SettingError
from cleverscore.inputs.balls import tile_points
from cleverscore.models.classifier import Classifier
from cleverscore.validation import is_whole

# Small networks run fastest while the output of a layer stays in cache, so no tensor is to be larger than CACHED_TENSOR
# bytes. (Measured with the MNIST network on two cores with 32 MB of cache: 60% of the speed of plain matrix products
# with tensors of 6 to 11 MB, 53% with 22 MB.) Large networks are slow with fewer than FEW_POINTS, so for that many
# points a tensor may have LARGEST_TENSOR bytes. Above 32 MB glibc returns every freed tensor to the system, and the
# page faults cost more time than larger batches save.
CACHED_TENSOR = 8 * 2**20
LARGEST_TENSOR = 32 * 2**20
FEW_POINTS = 4
MEMORY_SHARE = 0.25  # of the free memory of an accelerator that a chunk may need
CPU_MEMORY = 2**30  # bytes that the chunks of all workers together may need
LARGEST_CHUNK = 1024
PROBED_POINTS = 2  # in the forward pass that measures the memory


@dataclass(frozen=True)
class Footprint:
    """Memory in bytes that one point needs in a forward pass with autograd: its largest tensor, and all together."""

    largest: int
    total: int


def footprint(classifier: Classifier, x: torch.Tensor) -> Footprint:
    """Measure the memory that autograd keeps for one point like `x`, without the weights."""
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
    """Points per forward pass for inputs like `x`, at least 1: within the free memory, and no tensor above 32 MB."""
    need = footprint(classifier, x)
    if classifier.device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(classifier.device)
        fitting = int(free * MEMORY_SHARE) // (2 * need.total)
    else:
        by_tensor = max(CACHED_TENSOR // need.largest, min(FEW_POINTS, LARGEST_TENSOR // need.largest))
        fitting = min(by_tensor, CPU_MEMORY // (2 * need.total * workers))
    # Whole tiles, or a power of two that divides a tile, so that no work item ends with a small chunk.
    tile = tile_points(x.numel())
    fitting = min(LARGEST_CHUNK, max(1, fitting))
    return fitting - fitting % tile if fitting >= tile else 1 << (fitting.bit_length() - 1)


def resolved_chunk_size(classifier: Classifier, x: torch.Tensor, chunk_size: int | None, *, workers: int) -> int:
    """The given chunk size, or the default for inputs like `x`; a SettingError if it is not a whole number from 1."""
    if chunk_size is None:
        return default_chunk_size(classifier, x, workers=workers)
    if not is_whole(chunk_size) or chunk_size < 1:
        raise SettingError(f"chunk_size={chunk_size!r}: give a whole number of points, at least 1")
    return int(chunk_size)
