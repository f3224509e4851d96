"""`Pool`: an executor of the user's, with what its protocol leaves open.

A pool of processes of which one has died takes no more tasks, by the standard library's design:
another one like it takes its place for the rest of the run. A factory is asked for another one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.remote.workers import RemoteTask, TaskReport

__all__ = ["ExecutorLike", "Pool", "check_executor"]

# Seconds to wait for the exit status of a process that has ended, and for its pool to see it.
ENDING = 1.0

# An executor, or what makes one.
ExecutorLike: TypeAlias = Executor | Callable[[], Executor]


def check_executor(executor: object, caller: str) -> None:
    """Refuse what is neither an executor nor a function that makes one.

    Raises
    ------
    ArgumentError
    """
    if hasattr(executor, "submit") or hasattr(executor, "get_executor") or callable(executor):
        if not (isinstance(executor, type) and issubclass(executor, Executor)):
            return
    raise ArgumentError(
        f"{caller}(executor=...)",
        expected="a concurrent.futures.Executor, or a function that makes one",
        got=f"{executor!r:.60}",
        fix="for example executor=ProcessPoolExecutor(4), or client.get_executor() of Dask",
    )


class Pool:
    """The executor that a run sends its tasks to.

    Parameters
    ----------
    executor : Executor or callable
    """

    def __init__(self, executor: ExecutorLike) -> None:
        self._factory: Callable[[], Executor] | None = None
        self._own = False
        self._processes: dict[int, BaseProcess] = {}
        self._dead_since: float | None = None
        get_executor = getattr(executor, "get_executor", None)
        if get_executor is not None:  # a client of Dask's
            executor = get_executor()
        if not hasattr(executor, "submit"):
            assert callable(executor)
            self._factory, self._own = executor, True
            executor = executor()
        self.executor: Any = executor

    def submit(
        self, fn: Callable[[RemoteTask], TaskReport], task: RemoteTask
    ) -> Future[TaskReport]:
        """Send a task.

        Raises
        ------
        InferenceError
            If the executor takes none.
        """
        try:
            future = self.executor.submit(fn, task)
        except BrokenExecutor as error:  # before this run, or since its last task
            if not self.renew():
                raise self._refusal(error) from error
            future = self.executor.submit(fn, task)
        except RuntimeError as error:
            raise self._refusal(error) from error
        # Gone when the pool is broken, and then it matters how they ended.
        self._processes |= dict(getattr(self.executor, "_processes", None) or {})
        return future

    def _refusal(self, error: Exception) -> InferenceError:
        return InferenceError(
            "executor=...",
            expected="an executor that takes tasks",
            got=f"{type(error).__name__}: {error}",
            fix="call it inside the executor's with block; executor=lambda: "
            "ProcessPoolExecutor(4) is made, and made anew, when it is needed",
        )

    def renew(self) -> bool:
        """Take another executor in the place of a broken one; returns whether there is one."""
        made = self._another()
        if made is None:
            return False
        self.close()
        self.executor, self._own, self._processes = made, True, {}
        return True

    def _another(self) -> Executor | None:
        if self._factory is not None:
            return self._factory()
        old = self.executor
        if type(old) is not ProcessPoolExecutor:
            return None
        # What it was made with; these names have been the same since Python 3.11.
        named = {"_max_workers": "max_workers", "_mp_context": "mp_context"}
        named |= {"_initializer": "initializer", "_initargs": "initargs"}
        named |= {"_max_tasks_per_child": "max_tasks_per_child"}
        return ProcessPoolExecutor(
            **{given: getattr(old, kept) for kept, given in named.items() if hasattr(old, kept)}
        )

    def ends(self) -> str:
        """Return how processes of the pool have ended, in words, as far as that is known."""
        until = time.perf_counter() + ENDING
        codes: dict[int, int] = {}
        # The pool waits for them in a thread of its own, and only one of us hears of it at once.
        while time.perf_counter() < until:
            ends = {pid: p.exitcode for pid, p in self._processes.items()}
            codes = {pid: code for pid, code in ends.items() if code}
            if None not in ends.values() or set(codes.values()) - {-signal.SIGTERM}:
                break
            time.sleep(0.01)
        # A broken pool ends those that are left itself.
        codes = {pid: c for pid, c in codes.items() if c != -signal.SIGTERM} or codes
        return ", ".join(f"process {pid} ended with {_told(code)}" for pid, code in codes.items())

    def watch(self) -> None:
        """Have a pool of processes fail that does not see that one of them has died.

        A process that dies while it writes a result leaves half of it, and the pool waits for the
        other half; so do the other processes, for their turn to write. One that has done as many
        tasks as it may ends by itself, with status 0, and the pool lets it go.
        """
        held = dict(getattr(self.executor, "_processes", None) or {})
        dead = any(p.exitcode for p in held.values())
        now = time.perf_counter()
        if not dead:
            self._dead_since = None
        elif self._dead_since is None:
            self._dead_since = now
        elif now - self._dead_since > ENDING:
            self._dead_since = None
            for process in held.values():
                process.kill()
            results = getattr(self.executor, "_result_queue", None)
            if results is not None:  # the last one who might have written the other half
                results._writer.close()

    def close(self, *, wait: bool = True) -> None:
        """Shut the executor down, if it was made here."""
        if self._own:
            self.executor.shutdown(wait=wait, cancel_futures=True)


def _told(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
