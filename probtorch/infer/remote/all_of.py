"""`all_of`: one call per item, here or on an executor; errors by item, ends keep what is done.

Ctrl-C ends it, and who holds the handle of a run in the background.

Read jobs.py first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from probtorch.infer.control import control_here, told_to_end
from probtorch.infer.remote.jobs import Crew, Job
from probtorch.infer.remote.parcels import pack
from probtorch.infer.remote.pools import ExecutorLike
from probtorch.infer.remote.workers import TaskFn

__all__ = ["Done", "all_of"]


@dataclass
class Done:
    """What came of all items, by their numbers.

    Attributes
    ----------
    results : dict
    failed : dict
    interrupted : bool
    """

    results: dict[int, Any] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)
    interrupted: bool = False


class _Orders:
    """Stops a crew; see `Orders`."""

    def __init__(self) -> None:
        self._stopped, self._control = threading.Event(), control_here()
        self.stop = self._stopped.set

    @property
    def stopped(self) -> bool:
        """Whether what is queued is to be dropped."""
        return self._stopped.is_set() or (self._control is not None and self._control.stopped)

    @property
    def paused(self) -> bool:
        """Whether nothing is to be sent."""
        return self._control is not None and self._control.paused


class _ItemJob(Job):
    """One call."""

    def __init__(
        self, number: int, name: str, item: object, done: Done, finished: Callable[[int], None]
    ) -> None:
        self.number, self.name, self.item = number, name, item
        self.done, self.finished = done, finished

    def argument(self) -> object:
        return self.item

    def take(self, result: Any) -> bool:
        self.done.results[self.number] = result
        self.finished(self.number)
        return True

    def fail(self, error: Exception) -> None:
        self.done.failed[self.number] = error
        self.finished(self.number)


def all_of(
    fn: TaskFn,
    shared: object,
    items: Sequence[object],
    *,
    executor: ExecutorLike | None,
    names: Sequence[str],
    what: str,
    finished: Callable[[int], None] = lambda number: None,
) -> Done:
    """Call ``fn(shared, item)`` for each item.

    Parameters
    ----------
    fn : callable
        At the top of a module.
    shared : object
        Packed once.
    items : sequence
    executor : Executor, callable or None
        None to call it here, one item after the other.
    names : sequence of str
        Of the items, for messages.
    what : str
        What `shared` is, for messages.
    finished : callable
        Told the number of each item when there is a result or an error.
    """
    done, orders = Done(), _Orders()
    if executor is None:
        try:
            for number, item in enumerate(items):
                if told_to_end():
                    done.interrupted = True
                    break
                try:
                    done.results[number] = fn(shared, item)
                except Exception as error:
                    if told_to_end():  # which may be why
                        done.interrupted = True
                        break
                    done.failed[number] = error
                finished(number)
        except KeyboardInterrupt:
            done.interrupted = True
        return done
    with Crew(executor, fn, pack(shared, what)) as crew:
        jobs = [
            _ItemJob(i, name, item, done, finished)
            for i, (name, item) in enumerate(zip(names, items))
        ]
        try:
            crew.run(jobs, orders)
            done.interrupted = orders.stopped
        except KeyboardInterrupt:
            done.interrupted = True
            orders.stop()
            crew.run([], orders)
        crew.warn(3)
    return done
