"""Processes that fetch batches ahead of their use.

Each worker has two pipes of its own, one for tasks and one for results, and shares no lock with
anybody: so a worker that is killed, even while it writes, can neither corrupt nor block another,
and shows as the end of its pipe. A worker sends its results from a second thread and works on the
next batch meanwhile; the loader bounds how many tasks are under way.

A worker ends when it is told to, when the pipe of its tasks ends, or when its parent is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from probtorch.compiler.native.threads import set_num_threads
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, ProbtorchError
from probtorch.utils.data.fetching import MASK, Fetcher, seed_all

__all__ = [
    "Result",
    "Worker",
    "WorkerError",
    "WorkerInfo",
    "get_worker_info",
    "start",
    "stop",
]

# Seconds between looks at whether the parent still lives; its death normally ends a pipe at once.
PARENT_CHECK = 5.0
# Seconds a worker may take to end by itself before it is terminated, and then killed.
GRACE = 1.0


class WorkerError(ProbtorchError, RuntimeError):
    """A worker process died, took too long, or failed with an error that cannot be sent."""


class WorkerInfo(NamedTuple):
    """What a dataset can ask about the worker it runs in, see `get_worker_info`."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_info: WorkerInfo | None = None
_asked = False

InitFn: TypeAlias = Callable[[int], object] | None


def get_worker_info() -> WorkerInfo | None:
    """Return the id, number of workers, seed and dataset of this worker; None in the main process.

    Examples
    --------
    >>> get_worker_info() is None
    True
    """
    global _asked
    _asked = True
    return _info


# ------------------------------------------------------------------------------- inside the process


class Result(NamedTuple):
    """What a worker sends back for one task: `kind` is "batch", "end" of a stream, or "error"."""

    epoch: int
    number: int
    kind: str
    value: Tree


class _Task(NamedTuple):
    """A batch to fetch; with ``number=-1`` the beginning of an epoch, `key` being its seed."""

    epoch: int
    number: int
    key: Any


class _Quoted(Exception):
    """Shows the traceback of a worker as the cause of its error."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _main(
    fetcher: Fetcher,
    tasks: Connection,
    results: Connection,
    at: ctypes.c_longlong,
    others: Sequence[Connection],
    worker_id: int,
    count: int,
    init_fn: InitFn,
) -> None:
    """Body of a worker process."""
    # Ctrl-C reaches the whole process group; the loader decides when workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in others:
        end.close()
    # Workers are what fills the processors; one that wants more says so in worker_init_fn.
    set_num_threads(1)
    outbox: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    threading.Thread(target=_send_all, args=(outbox, results), daemon=True).start()
    worker = _Inside(fetcher, worker_id, count, init_fn)
    for task in _received(tasks):
        at.value = task.number
        for result in worker.answers(task):
            outbox.put(_packed(result))


def _received(tasks: Connection) -> Iterator[_Task]:
    """Yield tasks until told to stop or left alone."""
    parent = os.getppid()
    with contextlib.suppress(EOFError, OSError):
        while True:
            if connection.wait([tasks], timeout=PARENT_CHECK):
                task = tasks.recv()
                if task is None:
                    return
                yield _Task(*task)
            elif os.getppid() != parent:
                return


def _send_all(outbox: queue.SimpleQueue[memoryview], results: Connection) -> None:
    with contextlib.suppress(OSError):
        while True:
            results.send_bytes(outbox.get())


def _packed(result: Result) -> memoryview:
    try:
        return ForkingPickler.dumps(tuple(result), protocol=5)
    except Exception as error:
        if result.kind == "batch":
            found = f"{type(error).__name__}: {error}"
            error = WorkerError(
                "a batch cannot be sent from its DataLoader worker",
                expected="samples that pickle can send: arrays, tensors, numbers, text, containers",
                got=found,
                fix="turn the sample into such values in the dataset or in collate_fn, or load "
                "with num_workers=0",
            )
        return ForkingPickler.dumps(
            tuple(result._replace(kind="error", value=_described(error))), protocol=5
        )


def _described(error: BaseException) -> tuple[bytes | None, str, str]:
    """Return ``(pickled error or None, its description, traceback)``, always sendable."""
    text = "".join(traceback.format_exception(error))
    summary = f"{type(error).__name__}: {error}"
    packed = None
    # A StopIteration raised in the main process would look like the end of the epoch.
    if not isinstance(error, StopIteration):
        with contextlib.suppress(Exception):
            once = bytes(ForkingPickler.dumps(error))
            ForkingPickler.loads(once)
            packed = once
    return packed, summary, text


class _Inside:
    """State of a worker: the epoch it is in, and where its stream is."""

    def __init__(self, fetcher: Fetcher, worker_id: int, count: int, init_fn: InitFn) -> None:
        self.fetcher, self.id, self.count, self.init_fn = fetcher, worker_id, count, init_fn
        self.seed = 0
        self.iterator: Iterator[object] | None = None
        self.failure: Exception | None = None
        self.begun = self.ended = False

    def answers(self, task: _Task) -> Iterator[Result]:
        """Yield the result of a task; the beginning of an epoch has none."""
        if task.number < 0:
            self._begin(task.key)
            return
        try:
            if self.failure is not None:
                raise self.failure
            yield Result(task.epoch, task.number, *self._get(task))
        except Exception as error:
            yield Result(task.epoch, task.number, "error", _described(error))

    def _begin(self, seed: int) -> None:
        global _info, _asked
        self.seed, self.ended, self.failure, self.iterator = seed, False, None, None
        _info = WorkerInfo(self.id, self.count, (seed + self.id) & MASK, self.fetcher.dataset)
        # Numbers from 2^40 on are no batches.
        seed_all(seed, (1 << 40) + self.id)
        try:
            if not self.begun and self.init_fn is not None:
                self.init_fn(self.id)
            self.begun, _asked = True, False
            self.iterator = self.fetcher.begin()
        except Exception as error:
            self.failure = error

    def _get(self, task: _Task) -> tuple[str, object]:
        if self.ended:
            return "end", True
        seed_all(self.seed, task.number)
        try:
            return "batch", self.fetcher.get(task.key, self.iterator)
        except StopIteration:
            self.ended = True
            # Whether the stream asked which part of the data is this worker's.
            return "end", _asked


# --------------------------------------------------------------------------- seen from the main one


class Worker:
    """One worker process with the two pipes to it, seen from the main process."""

    def __init__(
        self,
        context: BaseContext,
        fetcher: Fetcher,
        worker_id: int,
        count: int,
        init_fn: InitFn,
        others: Sequence[Worker],
    ) -> None:
        self.id, self.epoch = worker_id, 0
        self.method = context.get_start_method()
        self.waiting: dict[int, object] = {}  # number -> key of the tasks without a result yet
        theirs, self.tasks = context.Pipe(duplex=False)
        self.results, back = context.Pipe(duplex=False)
        # The number of the batch it is at, in memory that outlives it.
        self.at = context.RawValue("q", -1)
        # A forked child inherits our ends of all pipes so far and must close them, else a pipe
        # would not end with its owner. Others do not inherit.
        ends = []
        if self.method == "fork":
            ends = [end for w in others for end in (w.tasks, w.results)]
            ends += [self.tasks, self.results]
        self.process = context.Process(  # type: ignore[attr-defined]  # of every kind
            target=_main,
            args=(fetcher, theirs, back, self.at, ends, worker_id, count, init_fn),
            name=f"probtorch-loader-{worker_id}",
            daemon=True,
        )
        try:
            with warnings.catch_warnings():
                if not _other_threads():
                    # From 3.12 on Python counts threads of native code, too. Ours sleep and are
                    # made anew in the child (`compiler/native/threads.py`); OpenBLAS does likewise.
                    warnings.filterwarnings(
                        "ignore", r"(?s).*multi-threaded, use of fork\(\)", DeprecationWarning
                    )
                self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise WorkerError(
                f"DataLoader worker {worker_id} cannot be started by {self.method}",
                expected="a dataset, collate_fn and worker_init_fn that pickle can send",
                got=f"{type(error).__name__}: {error}",
                fix="define them at the top level of a module, not inside a function, or pass "
                "multiprocessing_context='fork'",
            ) from error
        finally:
            theirs.close()
            back.close()

    def begin(self, epoch: int, seed: int) -> None:
        """Tell the worker that an epoch begins."""
        self.epoch = epoch
        self.waiting.clear()
        self._tell(_Task(epoch, -1, seed))

    def ask(self, number: int, key: object) -> None:
        """Send a task."""
        self.waiting[number] = key
        self._tell(_Task(self.epoch, number, key))

    def _tell(self, task: _Task) -> None:
        try:
            self.tasks.send(tuple(task))
        except OSError:
            raise self.died() from None

    def receive(self) -> Result | None:
        """Return the next result, or None if it belongs to an epoch given up."""
        try:
            packed = self.results.recv_bytes()
        except (EOFError, OSError):
            raise self.died() from None
        result = Result(*ForkingPickler.loads(packed))
        if result.epoch != self.epoch:
            return None
        key = self.waiting.pop(result.number)
        if result.kind == "error":
            raise self._failed(result, key)
        return result

    def _failed(self, result: Result, key: object) -> BaseException:
        """Return the error that happened in the worker, its traceback as the cause."""
        packed, summary, text = result.value
        if packed is None:
            error: BaseException = WorkerError(
                f"DataLoader worker {self.id} failed",
                expected=f"batch {result.number}, of {_shown(key)}",
                got=summary,
                fix="see the worker's traceback above",
            )
        else:
            error = ForkingPickler.loads(packed)
            error.add_note(
                f"Raised in DataLoader worker {self.id}, batch {result.number}, of {_shown(key)}."
            )
        error.__cause__ = _Quoted(text)
        return error

    def died(self) -> WorkerError:
        """Return the error that says how the process ended and over what."""
        self.process.join(GRACE)
        code = self.process.exitcode
        if code is None:
            how = "closed its pipes and goes on running"
        elif code < 0:
            how = f"was killed by signal {_signal_name(-code)}"
        else:
            how = f"exited with status {code}"
        number = self.at.value
        if number in self.waiting:
            work = f"batch {number}, of {_shown(self.waiting[number])}, under way"
        else:
            work = "no batch under way"
        if self.method != "fork" and number < 0 and code == 1:
            return WorkerError(
                f"DataLoader worker {self.id} (pid {self.process.pid}) could not begin",
                expected="a program whose main module can be imported again, with all that the "
                "dataset, collate_fn and worker_init_fn consist of",
                got=f"{how}; its traceback is on stderr",
                fix="start the loop below `if __name__ == '__main__':`, define classes in a "
                "module rather than in a notebook, or pass multiprocessing_context='fork'",
            )
        return WorkerError(
            f"DataLoader worker {self.id} (pid {self.process.pid}) {how}",
            expected="a worker that lives until the loader ends it",
            got=f"exit code {code}, with {work}",
            fix="SIGKILL usually means out of memory: use fewer workers or smaller batches. "
            "SIGSEGV: load the batch with num_workers=0 to see where",
        )

    def late(self, seconds: float) -> WorkerError:
        """Return the error for a result that did not come in time."""
        number, key = next(iter(self.waiting.items()))
        return WorkerError(
            f"DataLoader timed out after {seconds} seconds",
            expected=f"batch {number}, of {_shown(key)}",
            got=f"nothing yet from worker {self.id} (pid {self.process.pid}), which is alive",
            fix="raise timeout, or load the batch with num_workers=0 to see what takes so long",
        )


def stop(workers: list[Worker], owner: int) -> None:
    """End worker processes: ask, then terminate, then kill."""
    if os.getpid() != owner:
        return  # a forked child inherited the list; the workers are not its own
    for w in workers:
        with contextlib.suppress(OSError, ValueError):
            # A worker that is stuck may have left its pipe full: better not wait for it.
            os.set_blocking(w.tasks.fileno(), False)
            w.tasks.send(None)
    for end in (None, "terminate", "kill"):
        deadline = time.monotonic() + GRACE
        for w in workers:
            if end is not None and w.process.is_alive():
                getattr(w.process, end)()
        for w in workers:
            w.process.join(max(0.0, deadline - time.monotonic()))
    for w in workers:
        w.tasks.close()
        w.results.close()
    workers.clear()


def start(
    workers: list[Worker],
    context: str | BaseContext | None,
    fetcher: Fetcher,
    count: int,
    init_fn: InitFn,
) -> None:
    """Append `count` new workers to `workers`."""
    chosen = start_method(context, fetcher.dataset, fetcher.collate, init_fn)
    for i in range(count):
        try:
            worker = Worker(chosen, fetcher, i, count, init_fn, workers)
        except WorkerError:
            if context is not None or chosen.get_start_method() != "forkserver":
                raise
            # Nothing is lost but the caution: what cannot be sent can still be inherited.
            chosen = multiprocessing.get_context("fork")
            worker = Worker(chosen, fetcher, i, count, init_fn, workers)
        workers.append(worker)


def start_method(context: str | BaseContext | None, *sent: object) -> BaseContext:
    """Return the multiprocessing context for a name, a context or None.

    None is what was set by `multiprocessing.set_start_method`, or the platform's own, but on Linux:
    "fork" there, whatever Python's version, since it takes any dataset and needs no guard in a
    script. A lock that another thread of Python holds would stay locked in the child; so where such
    threads run it is "forkserver", if the main module and what is `sent` can be found again.
    """
    if context is not None and not isinstance(context, str):
        return context
    names = multiprocessing.get_all_start_methods()
    if context is not None and context not in names:
        raise ArgumentError(
            "multiprocessing_context",
            expected=f"one of {', '.join(names)}",
            got=repr(context),
            fix="leave it out for the platform's own",
        )
    usual = multiprocessing.get_start_method(allow_none=True) in (None, names[0])
    if context is None and usual and sys.platform == "linux":
        context = "forkserver" if _other_threads() and _found_again(sent) else "fork"
    return multiprocessing.get_context(context)


def _other_threads() -> bool:
    """Whether threads of Python run beside this one."""
    return threading.active_count() > 1


def _found_again(sent: Iterable[object]) -> bool:
    """Whether another process that imports the main module has what is sent, so far as it shows."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return True
    file = getattr(main, "__file__", None)
    if file is None:  # a notebook, a prompt, a text: nothing to import
        types_ = (x if hasattr(x, "__qualname__") else type(x) for x in sent)
        return all(getattr(t, "__module__", None) != "__main__" for t in types_)
    # A script without a guard would run anew in each worker.
    with contextlib.suppress(OSError):
        return "__main__" in Path(file).read_text(encoding="utf-8", errors="replace")
    return False


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return str(number)


def _shown(key: object) -> str:
    text = repr(key)
    what = "indices" if isinstance(key, (list, tuple)) else "index"
    return f"{what} {text if len(text) <= 80 else text[:77] + '...'}"
