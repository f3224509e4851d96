"""Jobs on an executor: sent, taken back, retried where a worker died, given up by name.

A `Job` is done in one task or several, one after the other: a chain goes in stretches of seconds,
so that what it has done is here, and no worker is missed for long. `Crew.run` is the loop that
sends and takes back. Nothing is asked of the executor but `submit`, and of its futures but
`add_done_callback`, `result` and `cancel`.

Where several jobs were with a pool of processes when it broke, nobody knows whose fault it was:
they go on one at a time, until each has come back or was found to be the one.
"""

from __future__ import annotations

import abc
import pickle
import queue
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Future
from typing import Any, Protocol

from probtorch.errors import InferenceError
from probtorch.infer.remote.parcels import Parcel
from probtorch.infer.remote.pools import ExecutorLike, Pool
from probtorch.infer.remote.workers import TaskFn, TaskReport, task_of, work

__all__ = ["Crew", "Job", "Orders"]

# How often a job is sent again from the same place.
RETRIES = 3
# Tasks that are with the executor at a time: more would wait there, where Ctrl-C is slow to come.
IN_FLIGHT = 256
# Bytes of model and data that are sent with every task; more only to workers that ask for them.
SMALL = 2**20
# What picklers raise; a function's own errors come back in its report.
UNSENT = (pickle.PicklingError, TypeError, AttributeError)
# Seconds between two looks at the display, and for the other futures of a broken pool to fail.
POLL, FAILING = 0.05, 10.0


class Orders(Protocol):
    """By whom a crew is told to stop and to wait; the `Control` of a run of chains is one."""

    @property
    def stopped(self) -> bool:
        """Whether what is queued is to be dropped."""

    @property
    def paused(self) -> bool:
        """Whether nothing is to be sent."""


class Job(abc.ABC):
    """Something to be done by workers.

    Attributes
    ----------
    name : str
        For messages: "chain 2".
    """

    name: str

    @abc.abstractmethod
    def argument(self) -> object:
        """Return what the next task is given."""

    @abc.abstractmethod
    def take(self, result: Any) -> bool:
        """Take over what a task returned; returns whether the job is done."""

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """Be done, with an error."""

    def where(self) -> str:
        """Return how far it is, for messages; starts with a space if there is anything to say."""
        return ""


class Crew:
    """Workers for the jobs of one run; a context manager.

    Parameters
    ----------
    executor : Executor or callable
    fn : callable
        ``fn(shared, argument)``, at the top of a module.
    shared : Parcel
    """

    def __init__(self, executor: ExecutorLike, fn: TaskFn, shared: Parcel) -> None:
        self.fn, self.shared = fn, shared
        self._pool = Pool(executor)
        self._flying: dict[Future[TaskReport], Job] = {}
        self._landed: queue.SimpleQueue[Future[TaskReport]] = queue.SimpleQueue()
        self._suspects: deque[Job] = deque()
        self._deaths: Counter[Job] = Counter()
        self._workers: dict[Job, str] = {}
        self._needing: set[Job] = set()
        self._heard: dict[tuple[type[Warning], str], str] = {}
        self._worked = False  # whether any task ever came back

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close(wait=error[0] is None)

    def run(
        self, jobs: Iterable[Job], control: Orders, poll: Callable[[], None] = lambda: None
    ) -> None:
        """Do all jobs, or as much of them as `control` leaves time for.

        Called anew after an exception came out of it, with no jobs and a control that is stopped,
        it waits for the tasks that are under way, and has their jobs take what they return.

        Parameters
        ----------
        jobs : iterable of Job
        control : Control
        poll : callable
            Called several times a second.
        """
        waiting = deque(jobs)
        while waiting or self._suspects or self._flying:
            if control.stopped:
                waiting.clear()
                self._suspects.clear()
                for future in list(self._flying):
                    if future.cancel():
                        self._flying.pop(future, None)
            elif not control.paused:
                self._send(waiting)
            try:
                future = self._landed.get(timeout=POLL)
            except queue.Empty:
                self._pool.watch()
            else:
                self._take(future, waiting, control)
            poll()

    def _send(self, waiting: deque[Job]) -> None:
        if self._suspects:
            if not self._flying:
                self._submit(self._suspects[0])
            return
        while waiting and len(self._flying) < IN_FLIGHT:
            self._submit(waiting.popleft())

    def _submit(self, job: Job) -> None:
        size = len(self.shared.data or b"")
        whole = size <= SMALL or job in self._needing
        shared = self.shared if whole else self.shared.without_data()
        future = self._pool.submit(work, task_of(self.fn, shared, job.argument()))
        self._flying[future] = job
        future.add_done_callback(self._landed.put)

    def _take(self, future: Future[TaskReport], waiting: deque[Job], control: Orders) -> None:
        job = self._flying.pop(future, None)
        if job is None:
            return
        try:
            report = future.result()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # cancelled by others, say
            if not control.stopped:
                self._lost(job, error, waiting, control)
            return
        self._came_back(job, report, waiting)

    def _came_back(self, job: Job, report: TaskReport, waiting: deque[Job]) -> None:
        if report.missing:
            self._needing.add(job)
            if job not in self._suspects:
                waiting.appendleft(job)
            return
        self._needing.discard(job)
        self._worked = True
        self._cleared(job)
        self._workers[job] = report.worker
        for category, text in report.warnings:
            self._heard.setdefault((category, text), report.worker)
        if report.error is not None:
            job.fail(report.error)
        elif not job.take(report.result):
            waiting.append(job)

    def _cleared(self, job: Job) -> None:
        del self._deaths[job]
        if job in self._suspects:
            self._suspects.remove(job)

    # ---------------------------------------------------------------------------- workers that die

    def _lost(self, job: Job, error: BaseException, waiting: deque[Job], control: Orders) -> None:
        """A task did not come back."""
        if isinstance(error, UNSENT):
            self._cleared(job)
            job.fail(_not_sent(job, error))
            return
        group, seen = [job], ""
        if isinstance(error, BrokenExecutor):
            others = list(self._flying.items())
            self._flying.clear()
            for future, other in others:
                try:
                    self._came_back(other, future.result(timeout=FAILING), waiting)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException:
                    group.append(other)
            seen = self._pool.ends()
            if not self._pool.renew():
                for each in (*group, *self._suspects, *waiting):
                    each.fail(self._given_up(each, error, seen))
                waiting.clear()
                self._suspects.clear()
                return
        if len(group) > 1:
            self._suspects.extend(each for each in group if each not in self._suspects)
            return
        self._deaths[job] += 1
        if self._deaths[job] <= RETRIES:
            if job not in self._suspects:
                waiting.appendleft(job)
            return
        failure = self._given_up(job, error, seen)
        self._cleared(job)
        job.fail(failure)
        if not self._worked:  # it is the workers
            for each in (*self._suspects, *waiting):
                each.fail(failure)
            self._suspects.clear()
            waiting.clear()

    def _given_up(self, job: Job, error: BaseException, seen: str) -> InferenceError:
        last = self._workers.get(job)
        parts = [
            f"{self._deaths[job] or 1} that did not{job.where()}",
            f"the last one: {type(error).__name__}: {error}".strip(),
            seen,
            f"it was last heard of from {last}" if last else "it was not heard of before",
        ]
        return InferenceError(
            f"{job.name} was given up: its workers died",
            expected="a worker that comes to the end of its task",
            got="; ".join(part for part in parts if part),
            fix="see what workers write themselves; too little memory (fewer workers on a machine) "
            "and code of the model's that ends the process are what it mostly is",
        )

    def warn(self, stacklevel: int) -> None:
        """Pass on what workers warned of, each warning once."""
        for (category, text), worker in self._heard.items():
            warnings.warn(f"{text}\n  on {worker}", category, stacklevel=stacklevel + 1)
        self._heard.clear()


def _not_sent(job: Job, error: BaseException) -> InferenceError:
    return InferenceError(
        f"{job.name} cannot be sent",
        expected="data, and results, that pickle takes",
        got=f"{type(error).__name__}: {error}",
        fix="make what cannot travel (locks, open files, connections, generators, functions inside "
        "of functions) inside the model, or pass data as arrays",
    )
