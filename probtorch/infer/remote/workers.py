"""What runs in a worker: `work` opens the parcel, calls the function, and reports.

A report comes back whatever happens inside, an error included: an exception of the future itself
means that the worker is gone. What holds where the run was asked for (settings, validation) holds
in the worker, too; its warnings travel with the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import signal
import socket
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from probtorch.compiler.native.threads import occupied
from probtorch.config import configure, settings
from probtorch.distributions.validation import validation_enabled, validation_in_force
from probtorch.errors import InferenceError
from probtorch.infer.remote.parcels import Parcel, unpack

__all__ = ["RemoteTask", "TaskFn", "TaskReport", "portable", "task_of", "this_worker", "work"]

# ``fn(shared, argument)``: what is shared, and the argument, are what the two ends agree on.
TaskFn: TypeAlias = Callable[[Any, Any], object]

# Eager code is not meant to run in two threads of a process at once.
_alone = threading.Lock()
_heard = threading.local()


@dataclass(frozen=True)
class RemoteTask:
    """A call of ``fn(shared, argument)``.

    Attributes
    ----------
    fn : callable
        At the top of a module of this library.
    shared : Parcel
        What all tasks of a run have in common.
    argument : object
    settings : dict
    checked : bool
        Whether distributions check their arguments.
    home : str
        The process that asked.
    """

    fn: TaskFn
    shared: Parcel
    argument: object
    settings: dict[str, bool]
    checked: bool
    home: str


@dataclass(frozen=True)
class TaskReport:
    """What came of a task.

    Attributes
    ----------
    worker : str
        Process and machine.
    result : object
    error : Exception or None
        What the function raised.
    missing : bool
        Whether the worker has not got the shared part.
    warnings : list of (type, str)
    """

    worker: str
    result: object = None
    error: Exception | None = None
    missing: bool = False
    warnings: list[tuple[type[Warning], str]] = field(default_factory=list)


def task_of(fn: TaskFn, shared: Parcel, argument: object) -> RemoteTask:
    """Return a task under what holds here."""
    held = {**dataclasses.asdict(settings), "progress": False}
    return RemoteTask(fn, shared, argument, held, validation_in_force(), this_worker())


def this_worker() -> str:
    """Return the name of this process."""
    return f"process {os.getpid()} of {socket.gethostname()}"


def work(task: RemoteTask) -> TaskReport:
    """Do a task, in whatever process this is."""
    worker = this_worker()
    at_home = worker == task.home
    with contextlib.ExitStack() as held:
        heard: list[tuple[type[Warning], str]] = []
        if not at_home:
            held.enter_context(configure(**task.settings))
            held.enter_context(_listening(heard))
            held.enter_context(_deaf_to_interrupts())
        held.enter_context(validation_enabled(task.checked))
        held.enter_context(occupied())
        if not task.settings["jit"]:
            held.enter_context(_alone)
        try:
            shared = unpack(task.shared)
        except KeyError:
            return TaskReport(worker, missing=True)
        except InferenceError as error:
            return TaskReport(worker, error=error)
        try:
            return TaskReport(worker, task.fn(shared, task.argument), warnings=heard)
        except Exception as error:
            return TaskReport(worker, error=portable(error, worker), warnings=heard)


def portable(error: BaseException, worker: str) -> Exception:
    """Return an error that can travel: itself, with a note where it was raised, or its text."""
    where = "".join(traceback.format_exception(error))
    try:
        found = pickle.loads(pickle.dumps(error))  # noqa: S301 - of our own making
        if not isinstance(found, Exception):
            raise TypeError(f"{type(error).__name__} does not come back from a pickle")
    except Exception:
        found = RuntimeError(f"{type(error).__name__}: {error}")
    found.add_note(f"on {worker}:\n{where}")
    return found


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Context manager: Ctrl-C, which a terminal sends to all processes, is left to who asked."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


@contextlib.contextmanager
def _listening(heard: list[tuple[type[Warning], str]]) -> Iterator[None]:
    """Context manager: warnings of this thread go to a list instead of to the worker's stderr.

    `warnings.catch_warnings` belongs to the process, and a worker may have several threads.
    """
    before = getattr(_heard, "list", None)
    if not getattr(warnings.showwarning, "_of_probtorch", False):
        warnings.showwarning = _routed(warnings.showwarning)
    _heard.list = heard
    try:
        yield
    finally:
        _heard.list = before


def _routed(shown: Callable[..., None]) -> Callable[..., None]:
    def show(message: Warning, category: type[Warning], *rest: object, **named: object) -> None:
        heard = getattr(_heard, "list", None)
        if heard is None:
            shown(message, category, *rest, **named)
        else:
            heard.append((category, str(message)))

    show._of_probtorch = True  # type: ignore[attr-defined]  # so that it is put there once
    return show
