"""Computes shards on the local machine: by threads of this process, or by processes of one thread each.

A process that dies, killed by the system or crashed in a library, is replaced and its shard computed again.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from cleverscore.errors import CleverError, SettingError
from cleverscore.runs.allocator import keep_freed_pages
from cleverscore.runs.shards import Finished, Shard, ShardQueue, WorkerContext

MOST_DEATHS = 3  # of workers over the same shard
SECONDS_BETWEEN_CHECKS = 1.0


class InProcess:
    """Computes one shard after the other, each with all threads of this process."""

    slots = 1

    def run(self, context: WorkerContext, shards: Iterator[Shard]) -> Iterator[Finished]:
        """Compute the shards in order."""
        for shard in shards:
            yield context.compute(shard)


class Processes:
    """Computes shards in parallel, in separate processes of one thread each."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise SettingError(f"processes={count}: give a whole number, at least 1")
        self.slots = count

    def run(self, context: WorkerContext, shards: Iterator[Shard]) -> Iterator[Finished]:
        """Compute the shards as processes become free."""
        content = context.packed()
        queue = ShardQueue(shards, MOST_DEATHS)
        workers: list[_Worker] = []
        try:
            while True:
                busy = sum(worker.shard is not None for worker in workers)
                for worker in [*workers, *(None for _ in range(self.slots - len(workers)))]:
                    if worker is not None and worker.shard is not None:
                        continue
                    shard = queue.next()
                    if shard is None:
                        break
                    if worker is None:
                        worker = _Worker(content)
                        workers.append(worker)
                    worker.begin(shard)
                    busy += 1
                if not busy:
                    return
                for source in wait([worker.connection for worker in workers if worker.shard is not None]):
                    worker = next(worker for worker in workers if worker.connection is source)
                    shard = worker.shard
                    assert shard is not None  # only busy workers are waited for
                    result = worker.result()
                    if isinstance(result, Finished):
                        yield result
                        continue
                    workers.remove(worker)
                    if isinstance(result, BaseException):
                        raise result
                    queue.repeat(
                        shard,
                        f"with exit code {result}: too little memory for {self.slots} processes, or a crash in a "
                        "library; try fewer --processes or a smaller --chunk-size",
                    )
        finally:
            for worker in workers:
                worker.end()


class _Worker:
    """A process that computes one shard at a time."""

    def __init__(self, content: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
        with _signals_held():
            self.process.start()
        theirs.close()
        self.shard: Shard | None = None
        with suppress(OSError):  # a process that died at once is noticed when its result is waited for
            self.connection.send_bytes(content)

    def begin(self, shard: Shard) -> None:
        self.shard = shard
        with suppress(OSError):
            self.connection.send_bytes(pickle.dumps(shard))

    def result(self) -> Finished | BaseException | int | None:
        """Wait for the answer: the finished shard, the exception it raised, or the exit code if the process died."""
        try:
            parts, seconds, error = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            self.process.join()
            return self.process.exitcode
        shard, self.shard = self.shard, None
        assert shard is not None  # nothing is sent unasked
        if error is not None:
            return error if isinstance(error, BaseException) else RuntimeError(error)
        return Finished(shard, parts, seconds, f"process {self.process.pid}")

    def end(self) -> None:
        self.connection.close()
        if self.shard is not None:
            self.process.kill()
        self.process.join()


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block SIGINT and SIGTERM while a child process starts; it inherits the block, so Ctrl-C leaves no traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, parent: int) -> None:
    """Compute the shards received through the connection until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_pages()
    try:
        context = WorkerContext.unpacked(connection.recv_bytes(), threads=1)
        while True:
            shard = pickle.loads(connection.recv_bytes())
            try:
                done = context.compute(shard)
                answer = pickle.dumps((done.parts, done.seconds, None))
            except CleverError as error:
                answer = pickle.dumps((None, 0.0, error))
            except Exception:
                answer = pickle.dumps((None, 0.0, f"in a worker process:\n{traceback.format_exc()}"))
            connection.send_bytes(answer)
    except (EOFError, OSError):
        return


def _die_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_CHECKS)
    os._exit(1)
