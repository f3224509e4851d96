"""`profile`: what people use, with PyTorch's names."""

from __future__ import annotations

import enum
import gzip
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Self

from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError
from probtorch.profiler.averages import AverageEvent, AverageEvents, averaged, line_of
from probtorch.profiler.watching import ACTIVE, ProfilerEvent, Watcher

__all__ = ["ProfilerAction", "ProfilerActivity", "profile", "schedule"]

# A call of ours without operations in it is shown in a trace from so many nanoseconds on.
_SHOWN = 10_000


class ProfilerActivity(enum.Enum):
    """What can be watched: the CPU; of a GPU, how long it takes to start its work."""

    CPU = 0
    CUDA = 1


class ProfilerAction(enum.Enum):
    """What a profile does in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], ProfilerAction]:
    """Return a function from the number of a step to what a profile does in it.

    Parameters
    ----------
    wait, warmup, active : int
        Of each cycle so many steps are passed over, passed over once more, and watched.
    repeat : int
        How many cycles there are; 0 for as many as come.
    skip_first : int
        Steps before the first cycle.

    Raises
    ------
    ArgumentError
        If a number is negative, or none is active.

    Examples
    --------
    >>> plan = schedule(wait=1, warmup=0, active=2, repeat=1)
    >>> [plan(step).name for step in range(4)]
    ['NONE', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    numbers = (wait, warmup, repeat, skip_first)
    if min(numbers) < 0 or active < 1:
        raise ArgumentError(
            "schedule",
            expected="numbers of 0 or more, and at least one active step",
            got=f"wait={wait}, warmup={warmup}, active={active}, repeat={repeat}, "
            f"skip_first={skip_first}",
            fix="write schedule(wait=1, warmup=1, active=3)",
        )
    length = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        cycle, place = divmod(step - skip_first, length)
        if step < skip_first or (repeat and cycle >= repeat) or place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        last = place == length - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    return action


class profile:
    """Context manager: where the time of a block goes, by operation and by line.

    Parameters
    ----------
    activities : iterable of ProfilerActivity, optional
        Accepted for PyTorch's sake; operations are watched as Python starts them.
    schedule : callable, optional
        From the number of a step to a `ProfilerAction`; see `schedule`. Then `step` is to be called
        after each step.
    on_trace_ready : callable, optional
        Called with the profile when a cycle of the schedule is complete, or at the end.
    record_shapes : bool
        Note the shapes that operations are given, for ``key_averages(group_by_input_shape=True)``.
    profile_memory : bool
        Show how much new memory operations return.
    with_stack : bool
        Accepted for PyTorch's sake; the user's lines are always known.

    Notes
    -----
    It watches the thread that it is started in. Compiled functions run compiled and count as one
    event each. Watching takes about ten microseconds an operation, so operations on few numbers
    seem slower than they are. On a GPU an operation takes as long as it takes to start it.

    Examples
    --------
    >>> import probtorch
    >>> x = probtorch.ones(100, 100)
    >>> with profile() as prof:
    ...     y = (x @ x).exp().sum()
    >>> sorted(e.key for e in prof.key_averages())
    ['exp', 'matmul', 'sum']
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], object] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
    ) -> None:
        self._schedule, self._ready = schedule, on_trace_ready
        self._shapes, self._memory = record_shapes, profile_memory
        self._watcher = Watcher(record_shapes)
        self._action = ProfilerAction.NONE
        self._watching = False
        self._wall, self._since = 0, 0
        self.step_num = 0

    # ------------------------------------------------------------------------------- watching

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin.

        Raises
        ------
        ArgumentError
            If another profile is at work in this thread, or a profiler of another kind that holds
            Python's hook (cProfile on Python 3.11).
        """
        if ACTIVE.watcher is not None:
            raise ArgumentError(
                "profile",
                expected="one profile at a time in a thread",
                got="another one that is at work",
                fix="end the other one first, or use record_function for ranges within it",
            )
        if not callable(sys.getprofile() or len):
            raise ArgumentError(
                "profile",
                expected="a thread that no profiler of another kind watches",
                got=f"{type(sys.getprofile()).__name__} at work, which would hear no more",
                fix="run without cProfile",
            )
        self._act(self._planned())

    def stop(self) -> None:
        """End, and hand over what was watched."""
        complete = self._watching
        self._act(ProfilerAction.NONE)
        if complete and self._ready is not None:
            self._ready(self)

    def step(self) -> None:
        """Say that a step ended, and another begins."""
        complete = self._action is ProfilerAction.RECORD_AND_SAVE
        if complete:
            self._act(ProfilerAction.NONE)
            if self._ready is not None:
                self._ready(self)
        self.step_num += 1
        self._act(self._planned())

    def _planned(self) -> ProfilerAction:
        if self._schedule is None:
            return ProfilerAction.RECORD
        return self._schedule(self.step_num)

    def _act(self, action: ProfilerAction) -> None:
        self._action = action
        wanted = action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if wanted and not self._watching:
            self._watcher, self._wall = Watcher(self._shapes), 0
            ACTIVE.watcher = self._watcher
            self._since = time.perf_counter_ns()
            self._watching = True
            self._watcher.start()
        elif self._watching and not wanted:
            self._watcher.stop()
            self._watching = False
            ACTIVE.watcher = None
            self._wall += time.perf_counter_ns() - self._since

    # -------------------------------------------------------------------------------- results

    def events(self) -> list[ProfilerEvent]:
        """Return all events, in the order in which they began."""
        return sorted(self._watcher.events, key=lambda e: e.start)

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0
    ) -> AverageEvents:
        """Add up operations, calls of compiled functions, and ranges, by their names.

        Parameters
        ----------
        group_by_input_shape : bool
            Tell those apart that were given other shapes (with ``record_shapes=True``).
        group_by_stack_n : int
            With 1 or more, tell those apart that other lines of the user's asked for.
        """
        events = [e for e in self.events() if e.kind != "call"]

        def key(e: ProfilerEvent) -> tuple[object, ...]:
            shapes = e.shapes if group_by_input_shape else ()
            return e.name, shapes, line_of(e) if group_by_stack_n > 0 else ""

        keys = list(dict.fromkeys(map(key, events)))
        found = averaged(events, key)
        for average, (_, shapes, line) in zip(found, keys, strict=True):
            average.input_shapes = shapes  # type: ignore[assignment]
            average.stack = (str(line),) if line else ()
        return self._listed(found)

    def line_averages(self) -> AverageEvents:
        """Add up the time in probtorch by the user's line that asked for it.

        A row's count is that of calls of probtorch in this line; its own time leaves out what lines
        took that were called from there, as those of `forward` of a module are.
        """
        events = self.events()
        calls = [e for e in events if e.kind in ("call", "compiled")]
        found = averaged(
            (ProfilerEvent(e.name, e.kind, e.start, e.end, e.line, inner=0) for e in calls),
            lambda e: (line_of(e),),
        )
        by_line: dict[str, AverageEvent] = {a.key: a for a in found}
        for a in found:
            a.self_cpu_time_total = a.cpu_time_total
        # What was called within a call, from a line further in, is that line's own.
        open_: list[ProfilerEvent] = []
        for e in calls:
            while open_ and open_[-1].end <= e.start:
                open_.pop()
            if open_:
                by_line[line_of(open_[-1])].self_cpu_time_total -= e.duration / 1e3
            open_.append(e)
        for e in events:
            if e.kind == "op" and line_of(e) in by_line:
                by_line[line_of(e)].self_cpu_memory_usage += e.nbytes
        return self._listed(found)

    def _listed(self, found: Iterable[AverageEvent]) -> AverageEvents:
        running = time.perf_counter_ns() - self._since if self._watching else 0
        return AverageEvents(found, (self._wall + running) / 1e3, self._memory)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the events as a file for chrome://tracing, Perfetto, and others.

        Parameters
        ----------
        path : str or path-like
            One that ends in ``.gz`` is compressed.
        """
        pid, tid = os.getpid(), threading.get_ident()
        busy = {e.start for e in self._watcher.events if e.kind != "call"}
        rows: list[dict[str, object]] = [
            {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": "probtorch"}}
        ]
        for e in self.events():
            if e.kind == "call" and not e.inner and e.duration < _SHOWN and e.start not in busy:
                continue
            details: dict[str, object] = {"line": line_of(e)}
            if e.kind == "op":
                details |= {"bytes": e.nbytes, "shapes": [list(s) for s in e.shapes]}
            rows.append(
                {
                    "ph": "X",
                    "cat": {"op": "cpu_op", "range": "user_annotation"}.get(e.kind, e.kind),
                    "name": e.name,
                    "pid": pid,
                    "tid": tid,
                    "ts": e.start / 1e3,
                    "dur": e.duration / 1e3,
                    "args": details,
                }
            )
        text = json.dumps({"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": rows})
        data = text.encode()
        with open(path, "wb") as file:
            file.write(gzip.compress(data) if os.fspath(path).endswith(".gz") else data)


explain_calls(globals())
