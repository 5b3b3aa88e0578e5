"""Block maxima of gradient norms: how blocks are drawn, spread over threads, merged and continued (Algorithm 1).

A request asks for some blocks of one input. It is divided into work items of about one chunk of points. A chunk is what
goes through the network in one pass. Worker threads, in each of which torch uses one intra-operation thread, take items
of all requests from one queue. The maximum of a block does not depend on which thread computed its points, since points
depend on (seed, input id, norm, block) alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.errors import SettingError
from cleverscore.inputs.balls import LpBall, tile_points
from cleverscore.models.classifier import Classifier
from cleverscore.models.margin_gradients import margin_gradient_norms
from cleverscore.threads import pool

Array = npt.NDArray[np.float64]
# A function that measures at points (n, *input_shape), once per target, what the maxima are of, as
# `margin_gradient_norms` does: (classifier, points, predicted=, targets=, q=, moves=) -> (n, targets).
Measure = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class BlockMaxima:
    """The largest gradient norm of each block for each target: all that a score needs of the sampled points.

    values      (targets, blocks); NaN or infinite where a gradient was NaN or infinite.
    targets     the classes of the rows.
    block_size  the number of points in a block.
    first       number of the first block: blocks first .. first + blocks - 1 have been drawn.
    seconds     compute time of all threads, divided by their number.
    """

    values: Array
    targets: tuple[int, ...]
    block_size: int
    first: int = 0
    seconds: float = 0.0

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return int(self.values.shape[1])


@dataclass(frozen=True)
class Request:
    """A request to draw blocks of points around one input and find their maxima.

    x           (*input_shape), the input.
    input_id    its row in its data set; random points depend on it.
    predicted, targets      the classes c and j of the margins f_c - f_j.
    ball        the distribution of the points.
    blocks      the numbers of the blocks.
    block_size  the number of points in a block.
    seed        of the random points.
    """

    x: torch.Tensor
    input_id: int
    predicted: int
    targets: tuple[int, ...]
    ball: LpBall
    blocks: range
    block_size: int
    seed: int


@dataclass(frozen=True)
class _Piece:
    """Points of one block: the first `count` of one tile, which has a random stream of its own (`inputs.balls`)."""

    block: int
    tile: int
    count: int


def _pieces(request: Request) -> Iterator[_Piece]:
    """All points of a request in order, tile by tile."""
    size = tile_points(request.x.numel())
    for block in request.blocks:
        for tile, start in enumerate(range(0, request.block_size, size)):
            yield _Piece(block, tile, min(size, request.block_size - start))


def _joined(item: Sequence[_Piece]) -> list[_Piece]:
    """The points of a work item in one piece per block, which begins in the block's first tile and spans the next."""
    first: dict[int, _Piece] = {}
    for piece in item:
        before = first.get(piece.block)
        first[piece.block] = piece if before is None else replace(before, count=before.count + piece.count)
    return list(first.values())


def blocks_together(chunk_size: int, block_size: int) -> int:
    """The number of blocks in one work item: the smallest number that fills a chunk.

    >>> blocks_together(256, 1024), blocks_together(256, 100)
    (1, 3)
    """
    return max(1, -(-chunk_size // block_size))


def _items(request: Request, chunk_size: int) -> Iterator[list[_Piece]]:
    """The work items of a request: lists of pieces with about one chunk of points each."""
    # An item ends when it fills a chunk, and before each block whose number is a multiple of `together`, whatever the
    # first block of the request is. So a point goes through the network with the same other points in every request
    # that begins at such a block, and its gradient is the same to the last bit.
    together = blocks_together(chunk_size, request.block_size)
    item: list[_Piece] = []
    points = 0
    for piece in _pieces(request):
        if item and (points >= chunk_size or (piece.tile == 0 and piece.block % together == 0)):
            yield item
            item, points = [], 0
        item.append(piece)
        points += piece.count
    if item:
        yield item


def _flow(requests: Sequence[Request], chunk_size: int) -> Iterator[tuple[int, list[_Piece], bool]]:
    """The work items of all requests in order: (position of the request, item, whether it is the request's last)."""
    for position, request in enumerate(requests):
        waiting: list[_Piece] | None = None
        for item in _items(request, chunk_size):
            if waiting is not None:
                yield position, waiting, False
            waiting = item
        if waiting is not None:
            yield position, waiting, True


@dataclass(frozen=True)
class _Found:
    """Result of one work item: by the number of the block, the largest value for each target (targets,); and its time.

    An item may hold a part of a block only; the maximum is then that of the part.
    """

    largest: dict[int, Array]
    seconds: float


def _compute(classifier: Classifier, request: Request, item: list[_Piece], chunk_size: int, measure: Measure) -> _Found:
    """Draw the points of a work item and find, for each of its blocks and each target, the largest value."""
    began = time.perf_counter()
    draw, blocks = request.ball.points, _joined(item)
    if request.ball.spans_tiles:
        draw, item = partial(draw, following=True), blocks
    sizes = [piece.count for piece in item]
    points = torch.empty(sum(sizes), *request.x.shape, device=request.x.device, dtype=request.x.dtype)
    for piece, place in zip(item, torch.split(points, sizes), strict=True):
        drawn = draw(
            request.x,
            count=piece.count,
            seed=request.seed,
            input_id=request.input_id,
            block=piece.block,
            tile=piece.tile,
            bounds=classifier.bounds,
            out=place,
        )
        if drawn.data_ptr() != place.data_ptr():  # a ball of the user need not write to `out`
            if drawn.shape != place.shape:
                law, wanted = type(request.ball).__name__, tuple(place.shape)
                raise SettingError(f"{law}.points gave shape {tuple(drawn.shape)}; {wanted} is wanted")
            place.copy_(drawn)
    moves = request.ball.moves(request.x, classifier.bounds)
    norms = torch.cat(
        [
            measure(
                classifier, part, predicted=request.predicted, targets=request.targets, q=request.ball.q, moves=moves
            )
            for part in torch.split(points, chunk_size)
        ]
    )
    parts = torch.split(norms, [piece.count for piece in blocks])
    # amax keeps NaN, so a gradient that is NaN is never hidden by the others.
    largest = {piece.block: part.amax(0).double().cpu().numpy() for piece, part in zip(blocks, parts, strict=True)}
    return _Found(largest, time.perf_counter() - began)


class _Pending:
    """A request whose work items are being computed, with the maxima of those that are done."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.values = np.full((len(request.targets), len(request.blocks)), -np.inf)
        self.seconds = 0.0
        self.open = 0
        self.all_submitted = False

    def add(self, found: _Found, workers: int) -> None:
        """Merge the maxima of one work item into those of the request."""
        for block, values in found.largest.items():
            column = block - self.request.blocks.start
            self.values[:, column] = np.maximum(self.values[:, column], values)
        self.seconds += found.seconds / workers
        self.open -= 1

    def maxima(self) -> BlockMaxima:
        """The maxima of all work items that are done."""
        request = self.request
        return BlockMaxima(self.values, request.targets, request.block_size, request.blocks.start, self.seconds)


def sample(
    classifier: Classifier,
    requests: Sequence[Request],
    *,
    chunk_size: int,
    workers: int,
    on_points: Callable[[int], None] | None = None,
    measure: Measure = margin_gradient_norms,
) -> Iterator[tuple[int, BlockMaxima]]:
    """Draw the blocks of all requests; yields (position in `requests`, maxima) of each when done, in no fixed order.

    chunk_size  points per forward pass.
    workers     number of threads.
    on_points   is called with the number of points of each finished work item, for progress.
    measure     computes the values whose block maxima are kept; default: gradient norms.
    """
    pending = [_Pending(request) for request in requests]
    flow = _flow(requests, chunk_size)
    with pool(workers) as executor:
        running: dict[Future[_Found], tuple[int, list[_Piece]]] = {}
        done: SimpleQueue[Future[_Found]] = SimpleQueue()  # takes half the time of `concurrent.futures.wait`
        while True:
            while len(running) < 2 * workers and (upcoming := next(flow, None)) is not None:
                position, item, last = upcoming
                pending[position].open += 1
                pending[position].all_submitted = last
                future = executor.submit(_compute, classifier, requests[position], item, chunk_size, measure)
                running[future] = position, item
                future.add_done_callback(done.put)
            if not running:
                return
            future = done.get()
            position, item = running.pop(future)
            state = pending[position]
            state.add(future.result(), workers)
            if on_points is not None:
                on_points(sum(piece.count for piece in item))
            if state.all_submitted and state.open == 0:
                yield position, state.maxima()
