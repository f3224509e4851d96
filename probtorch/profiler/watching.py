"""Hearing of every operation as it begins and as it ends, and of the user's line that asked for it.

Operations are frames of Python: of `apply`, or of the doors of elementwise operations. A profile
hook (`sys.setprofile`) hears of frames, so nothing has to be built into the doors, and compiled
functions go on to run compiled, which they would not under an interpreter. It also hears of the
frames in which the user's code enters probtorch, and so of lines.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Literal, TypeAlias

from probtorch.core import dispatch
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import is_ours, is_users

__all__ = ["ProfilerEvent", "Watcher", "record_function"]

# What Python tells a profile hook.
_Told: TypeAlias = Literal["call", "return", "c_call", "c_return", "c_exception"]
# What a frame is to us, by the identity of its code.
_THEIRS, _USERS, _OURS, _OP = range(4)
# Frames of ours in which no work of the user's is done.
_HERE = frozenset(__file__.replace("watching", name) for name in ("watching", "session", "nvtx"))
_DOORS = {dispatch.apply.__code__, dispatch.applied.__code__} | {
    c
    for door in (dispatch.unary_door, dispatch.binary_door, dispatch.whole_door)
    for c in door.__code__.co_consts
    if isinstance(c, CodeType) and c.co_name == "call"
}


@dataclass(slots=True, eq=False)
class ProfilerEvent:
    """Something that took time.

    Attributes
    ----------
    name : str
        Of the operation, the function of probtorch, or the range.
    kind : str
        "op", "call" (the user's code calls a function of probtorch), "compiled" (and that is a
        compiled one), or "range" (`record_function`).
    start, end : int
        Nanoseconds, of `time.perf_counter_ns`.
    line : (str, int) or None
        File and line of the user's code that it was called from.
    shapes : tuple of tuple of int
        Of the tensors that an operation was given, if asked for.
    nbytes : int
        Of new memory that an operation returned.
    inner : int
        Nanoseconds that others took within it.
    """

    name: str
    kind: str
    start: int
    end: int = 0
    line: tuple[str, int] | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    nbytes: int = 0
    inner: int = 0
    frame: FrameType | None = field(default=None, repr=False)

    @property
    def duration(self) -> int:
        """Nanoseconds from its beginning to its end."""
        return self.end - self.start


class Watcher:
    """What is heard between `start` and `stop`, in one thread.

    Parameters
    ----------
    shapes : bool
        Whether to note the shapes of what operations are given.

    Attributes
    ----------
    events : list of ProfilerEvent
        In the order in which they ended.
    """

    def __init__(self, shapes: bool) -> None:
        self.events: list[ProfilerEvent] = []
        self._shapes = shapes
        self._open: list[ProfilerEvent] = []
        self._kinds: dict[int, int] = {}
        self._codes: list[CodeType] = []  # so that identities stay theirs

    def start(self) -> None:
        """Listen from now on; whoever listened before goes on to hear everything."""
        before = sys.getprofile()
        self._before = before if callable(before) else None
        sys.setprofile(self._heard)

    def stop(self) -> None:
        """Listen no more."""
        sys.setprofile(self._before)
        now = time.perf_counter_ns()
        while self._open:
            self._end(now)

    def begin(self, name: str, kind: str, frame: FrameType | None = None) -> ProfilerEvent:
        """Open an event, within those that are open."""
        line = self._open[-1].line if self._open else None
        event = ProfilerEvent(name, kind, time.perf_counter_ns(), 0, line, frame=frame)
        self._open.append(event)
        if kind != "op":
            self.marked(event)
        return event

    def marked(self, event: ProfilerEvent) -> None:
        """Hear of an event as it begins, with all that is known of it by then."""

    def ended(self, event: ProfilerEvent) -> None:
        """Hear of an event as it ends."""

    def end(self, event: ProfilerEvent) -> None:
        """Close an event, and those within it that somebody forgot."""
        now = time.perf_counter_ns()
        while any(e is event for e in self._open):
            self._end(now)

    def _end(self, now: int) -> None:
        event = self._open.pop()
        event.end, event.frame = now, None
        self.ended(event)
        if self._open:
            self._open[-1].inner += event.duration
        self.events.append(event)

    def _heard(self, frame: FrameType, what: _Told, value: object) -> None:
        if what == "call":
            kind = self._kinds.get(id(frame.f_code))
            if kind is None:
                kind = self._classified(frame.f_code)
            if kind >= _OURS and frame.f_back is not None:
                caller = self._kinds.get(id(frame.f_back.f_code))
                if caller is None:
                    caller = self._classified(frame.f_back.f_code)
                if caller < _OURS:
                    self._call(frame)
                if kind == _OP:
                    self._op(frame)
        elif what == "return" and self._open and self._open[-1].frame is frame:
            self._returned(value)
        if self._before is not None:
            self._before(frame, what, value)

    def _classified(self, code: CodeType) -> int:
        file = code.co_filename
        if code in _DOORS or code in dispatch.RENAMED:
            kind = _OP
        elif file in _HERE:
            kind = _THEIRS
        else:
            kind = _OURS if is_ours(file) else _USERS if is_users(file) else _THEIRS
        if file.startswith("<"):
            kind = _USERS if code.co_name == "<module>" or file.startswith("<stdin") else _THEIRS
        self._kinds[id(code)] = kind
        self._codes.append(code)
        return kind

    def _op(self, frame: FrameType) -> None:
        given = frame.f_locals
        event = self.begin(given["op"].name, "op", frame)
        if self._shapes:
            inputs = given.get("inputs", tuple(given.values())[:2])
            event.shapes = tuple(tuple(x.array.shape) for x in inputs if isinstance(x, TensorBase))
        self.marked(event)

    def _call(self, frame: FrameType) -> None:
        code = frame.f_code
        name = code.co_qualname.replace(".<locals>", "")
        kind = "call"
        if code.co_name == "__call__" and code.co_filename.endswith("compiled_function.py"):
            kind, name = "compiled", repr(frame.f_locals["self"])
        elif "self" in frame.f_locals and code.co_name in ("__call__", "forward"):
            name = f"{type(frame.f_locals['self']).__name__}.{code.co_name}"
        event = self.begin(name, kind, frame if code not in _DOORS else None)
        caller = frame.f_back
        while caller is not None and self._kinds.get(id(caller.f_code)) != _USERS:
            if id(caller.f_code) not in self._kinds:
                self._classified(caller.f_code)
                continue
            caller = caller.f_back
        if caller is not None:
            event.line = caller.f_code.co_filename, caller.f_lineno

    def _returned(self, value: object) -> None:
        now = time.perf_counter_ns()
        event = self._open[-1]
        if event.kind == "op":
            for x in value if type(value) is tuple else (value,):
                if isinstance(x, TensorBase) and x._base is None:
                    event.nbytes += x.array.nbytes
        self._end(now)
        # Of an operation that the user's code called itself: the call is no frame of its own.
        while self._open and self._open[-1].kind == "call" and self._open[-1].frame is None:
            self._end(now)


class _Active(threading.local):
    """The watcher at work in this thread."""

    watcher: Watcher | None = None

    def __environment__(self) -> list[object]:
        """Nothing in it is a function's own (see compiler/guards/entering.py)."""
        return []


ACTIVE = _Active()


class record_function(contextlib.ContextDecorator):
    """Context manager or decorator: give a range of the program a name in a profile.

    Without a profile at work it does nothing.

    Parameters
    ----------
    name : str
    args : str, optional
        Shown behind the name.

    Examples
    --------
    >>> import probtorch
    >>> with probtorch.profiler.profile() as prof:
    ...     with probtorch.profiler.record_function("forward pass"):
    ...         _ = probtorch.ones(3).exp()
    >>> "forward pass" in prof.key_averages().table()
    True
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name if args is None else f"{name}({args})"
        self._event: ProfilerEvent | None = None

    def _recreate_cm(self) -> record_function:
        return record_function(self.name)

    def __enter__(self) -> record_function:
        watcher = ACTIVE.watcher
        if watcher is not None:
            self._event = watcher.begin(self.name, "range")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._event is not None and ACTIVE.watcher is not None:
            ACTIVE.watcher.end(self._event)
        self._event = None
