"""Computes shards on a Ray cluster: one actor per core or GPU, the model sent once per node.

Actors that die with their process or their node are replaced, and their shards computed again. A driver that died is
started again with the same command: stored results are kept, and only unfinished shards are repeated.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from cleverscore.errors import CleverError, MissingExtraError, SettingError
from cleverscore.runs.allocator import keep_freed_pages
from cleverscore.runs.shards import Finished, Shard, ShardQueue, WorkerContext

MOST_DEATHS = 5  # of actors over the same shard; a cluster loses nodes more often than a machine its processes
SECONDS_BETWEEN_CHECKS = 5.0
CONNECT_SECONDS = 10.0


class Ray:
    """The cluster at `address`, or one that is started on this machine for the run.

    workers     the largest number of actors; default: one per core of the cluster or, if actors use GPUs, as many as
                its GPUs allow, also on nodes that join later.
    num_gpus    GPUs per actor, such as 1 or 0.5; default: 1 if the cluster has GPUs, else 0.
    """

    def __init__(
        self, address: str | None = None, *, workers: int | None = None, num_gpus: float | None = None
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError.of("ray", "ray", "running on a Ray cluster") from error
        if workers is not None and workers < 1:
            raise SettingError(f"workers={workers}: give a whole number of actors, at least 1")
        self._ray = ray
        self._ours = not ray.is_initialized()
        if self._ours:
            _check_address(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                reason = str(error).strip().splitlines()[0]
                raise SettingError(f"no Ray cluster can be reached at {address or 'this machine'}: {reason}") from error
        self.num_gpus = num_gpus if num_gpus is not None else 1.0 if self._resources().get("GPU") else 0.0
        self._most = workers
        self.slots = self._room()
        self.repeated = 0  # shards that were computed again because their worker had died

    def _resources(self) -> dict[str, float]:
        found: dict[str, float] = self._ray.cluster_resources()  # type: ignore[no-untyped-call]
        return found

    def _room(self) -> int:
        """The number of actors for which the cluster has resources."""
        resources = self._resources()
        kind, each = ("GPU", self.num_gpus) if self.num_gpus else ("CPU", 1.0)
        room = int(resources.get(kind, 0.0) / each)
        return max(1, room if self._most is None else min(room, self._most))

    def _recall(
        self, queue: ShardQueue, running: dict[Any, tuple[Any, Shard]], pending: dict[Any, Any], idle: int
    ) -> None:
        """End actors that have not begun and have no place since a node was lost; put their shards back into the queue.

        running     the actor and the shard of each result that is awaited.
        pending     actors that may not have begun yet, each with the reference that is ready once it has.
        idle        number of actors without a shard.
        """
        if pending:
            ready, _ = self._ray.wait(list(pending.values()), num_returns=len(pending), timeout=0)
            for worker in [worker for worker, answer in pending.items() if answer in ready]:
                del pending[worker]
        for reference, (worker, shard) in list(running.items()):
            if len(running) + idle > self.slots and worker in pending:
                self._ray.kill(worker)
                del running[reference], pending[worker]
                queue.put_back(shard)

    def close(self) -> None:
        """Disconnect from the cluster; a cluster that was started for this run is shut down."""
        if self._ours:
            self._ray.shutdown()

    def run(self, context: WorkerContext, shards: Iterator[Shard]) -> Iterator[Finished]:
        """Compute the shards as actors become free."""
        ray = self._ray
        content = ray.put(context.packed(ray.cloudpickle.dumps))  # fetched once by each node, and kept there
        actor = ray.remote(num_cpus=0 if self.num_gpus else 1, num_gpus=self.num_gpus)(_Worker)
        device = "cuda" if self.num_gpus else None
        queue = ShardQueue(shards, MOST_DEATHS)
        idle: list[Any] = []
        running: dict[Any, tuple[Any, Shard]] = {}
        pending: dict[Any, Any] = {}  # actors that may still wait for a place, each with the answer that it is there
        checked = 0.0
        try:
            while True:
                if time.monotonic() - checked > SECONDS_BETWEEN_CHECKS:  # nodes come and go
                    checked, self.slots = time.monotonic(), self._room()
                    self._recall(queue, running, pending, len(idle))
                while len(running) < self.slots:
                    shard = queue.next()
                    if shard is None:
                        break
                    if not idle:
                        idle.append(actor.remote(content, device))
                        pending[idle[-1]] = idle[-1].ready.remote()
                    worker = idle.pop()
                    running[worker.compute.remote(shard)] = worker, shard
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1, timeout=SECONDS_BETWEEN_CHECKS)
                for reference in done:
                    worker, shard = running.pop(reference)
                    try:
                        parts, seconds, name = ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        raise (error.cause if isinstance(error.cause, CleverError) else error) from error
                    except ray.exceptions.RayError as error:  # the actor, its process or its node is gone
                        queue.repeat(shard, f"with: {str(error).strip().splitlines()[0]}")
                        self.repeated = queue.repeated
                        continue
                    idle.append(worker)
                    yield Finished(shard, parts, seconds, name)
        finally:
            for worker in [*idle, *(entry[0] for entry in running.values())]:
                ray.kill(worker)


def _check_address(address: str | None) -> None:
    """Raise an error if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not (host and port.isdecimal()) or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise SettingError(f"no Ray cluster can be reached at {address}: {error}") from error


class _Worker:
    """A Ray actor with the model, inputs and settings; it computes one shard at a time."""

    def __init__(self, content: bytes, device: str | None) -> None:
        import torch

        torch.set_num_threads(1)
        keep_freed_pages()
        self.context = WorkerContext.unpacked(content, threads=1, device=device)

    def ready(self) -> None:
        """Return as soon as the actor runs on a node."""

    def compute(self, shard: Shard) -> tuple[Any, float, str]:
        done = self.context.compute(shard)
        return done.parts, done.seconds, f"process {os.getpid()} on {socket.gethostname()}"
