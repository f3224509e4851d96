"""Epochs of a loader: their batches made here, or by workers ahead of their use."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from typing import TYPE_CHECKING, Self

from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.utils.data.fetching import Fetcher, streams_of
from probtorch.utils.data.worker import Result, Worker, start, stop

if TYPE_CHECKING:
    from probtorch.utils.data.loader import DataLoader

__all__ = ["Ahead", "WorkerCrew", "Epoch", "batches_here"]


class Epoch:
    """Where an epoch stands."""

    def __init__(
        self, start: list[list[int]], seed: int, keys: Iterator[Sequence[int]], done: int
    ) -> None:
        self.start = start  # states of the generators before the epoch drew from them
        self.seed = seed
        self.keys = keys
        self.done = done  # batches handed out
        self.rows: Sequence[int] | None = None  # numbers of the samples in the last one
        self.over = False


def batches_here(fetcher: Fetcher, epoch: Epoch) -> Iterator[Tree]:
    """Yield the batches of an epoch, made in this process."""
    quiet = fetcher.draws_nothing
    iterator, number = None, 0 if fetcher.stream else epoch.done
    if fetcher.stream:
        with streams_of(epoch.seed, 1 << 40):
            iterator = fetcher.begin()
    for key in epoch.keys:
        try:
            if quiet:
                batch = fetcher.get(key, iterator)
            else:
                with streams_of(epoch.seed, number):
                    batch = fetcher.get(key, iterator)
        except StopIteration:
            break
        number += 1
        if number > epoch.done:
            epoch.done = number
            epoch.rows = None if fetcher.stream else key
            yield batch
    epoch.over = True


class WorkerCrew:
    """The worker processes of a loader."""

    def __init__(self, loader: DataLoader) -> None:
        self.workers: list[Worker] = []
        self.epoch = 0
        self.close = weakref.finalize(self, stop, self.workers, os.getpid())
        try:
            start(
                self.workers,
                loader.multiprocessing_context,
                loader._fetcher,
                loader.num_workers,
                loader.worker_init_fn,
            )
        except BaseException:
            self.close()
            raise


class Ahead:
    """Iterator over the batches of an epoch, made by workers ahead of their use."""

    def __init__(self, loader: DataLoader, crew: WorkerCrew, epoch: Epoch) -> None:
        self.crew, self.epoch, self.fetcher = crew, epoch, loader._fetcher
        self.timeout, self.in_order = loader.timeout, loader.in_order
        self.persistent, self.warned = loader.persistent_workers, loader.worker_init_fn is not None
        self.keys = enumerate(epoch.keys, 0 if self.fetcher.stream else epoch.done)
        self.skip = epoch.done if self.fetcher.stream else 0
        self.asked: dict[int, Worker] = {}  # number of a batch under way -> its worker, in order
        self.rows: dict[
            int, Sequence[int] | None
        ] = {}  # number of a batch under way -> its samples
        crew.epoch += 1
        self.round = crew.epoch
        self.rota = list(crew.workers)
        self.turn = 0
        try:
            for w in crew.workers:
                w.begin(crew.epoch, epoch.seed)
            for _ in range((loader.prefetch_factor or 2) * len(crew.workers)):
                self._ask_next()
        except BaseException:
            crew.close()
            raise

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self.asked)

    def _ask_next(self) -> None:
        """Give the next batch to the worker whose turn it is."""
        if not self.rota:
            return
        number, key = next(self.keys, (None, None))
        if number is not None:
            if self.in_order:
                worker = self.rota[self.turn % len(self.rota)]
                self.turn += 1
            else:
                worker = min(self.rota, key=lambda w: len(w.waiting))
            self.asked[number] = worker
            self.rows[number] = None if self.fetcher.stream else key
            worker.ask(number, key)

    def __next__(self) -> Tree:
        if self.round != self.crew.epoch or (self.asked and not self.crew.workers):
            raise ArgumentError(
                "DataLoader iterator",
                expected="the iterator of the latest epoch",
                got="an older one, whose workers were taken over or ended",
                fix="use one iterator at a time with persistent_workers, and a new one after an "
                "error",
            )
        try:
            while self.asked:
                result = self._receive()
                rows = self.rows.pop(result.number)
                self._ask_next()
                if result.kind == "end":
                    continue
                if self.skip:
                    self.skip -= 1
                    continue
                self.epoch.done += 1
                self.epoch.rows = rows
                return result.value
        except BaseException:
            self.crew.close()
            raise
        self.epoch.over = True
        if not self.persistent:
            self.crew.close()
        raise StopIteration

    def _receive(self) -> Result:
        """Return the next result: that of the oldest task, or any if order does not matter."""
        deadline = time.monotonic() + self.timeout if self.timeout else None
        oldest = self.asked[next(iter(self.asked))]
        wanted = (
            [oldest] if self.in_order else list({id(w): w for w in self.asked.values()}.values())
        )
        sentinels = {w.process.sentinel: w for w in self.crew.workers}
        pipes = {w.results: w for w in wanted}
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = connection.wait([*pipes, *sentinels], left)
            if not ready:
                raise oldest.late(self.timeout)
            # Results first: what a worker sent before it died still counts.
            found = next((pipes[x] for x in ready if x in pipes), None)
            if found is None:
                raise sentinels[ready[0]].died()
            result = found.receive()
            if result is not None:
                del self.asked[result.number]
                if result.kind == "end":
                    self._retire(found, result.value)
                return result

    def _retire(self, worker: Worker, asked: bool) -> None:
        """Take a worker whose stream has ended off the rota."""
        if worker in self.rota:
            place = self.rota.index(worker)
            # Keep whose turn it is.
            self.turn = self.turn % len(self.rota)
            self.rota.remove(worker)
            self.turn -= place < self.turn
        if not asked and not self.warned and len(self.crew.workers) > 1:
            self.warned = True
            warnings.warn(
                f"each of the {len(self.crew.workers)} workers read all of "
                f"{type(self.fetcher.dataset).__name__}, so every sample came that often; let its "
                "__iter__ yield the part that get_worker_info() says is the worker's",
                stacklevel=4,
            )
