"""Adding up events by name, shapes or line, and showing the sums as a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from probtorch.errors import ArgumentError
from probtorch.profiler.watching import ProfilerEvent

__all__ = ["AverageEvent", "AverageEvents", "averaged"]

_SORTS = (
    "cpu_time",
    "cpu_time_total",
    "self_cpu_time_total",
    "cpu_memory_usage",
    "self_cpu_memory_usage",
    "count",
)
_HEADS = ("Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "# of Calls")


@dataclass
class AverageEvent:
    """Events of one kind, added up; times in microseconds, memory in bytes.

    Attributes
    ----------
    key : str
        What they have in common: the name, or file and line.
    count : int
    cpu_time_total, self_cpu_time_total : float
        All of the time, and that which was not spent in other events within.
    self_cpu_memory_usage : int
        Of new memory that operations returned.
    input_shapes : tuple
    stack : tuple of str
        The user's line, where events are told apart by it.
    """

    key: str
    count: int = 0
    cpu_time_total: float = 0.0
    self_cpu_time_total: float = 0.0
    self_cpu_memory_usage: int = 0
    input_shapes: tuple[tuple[int, ...], ...] = ()
    stack: tuple[str, ...] = ()

    @property
    def cpu_time(self) -> float:
        """The mean of the time of one event."""
        return self.cpu_time_total / max(1, self.count)

    @property
    def cpu_memory_usage(self) -> int:
        """As `self_cpu_memory_usage`: operations hold no others."""
        return self.self_cpu_memory_usage


class AverageEvents:
    """A list of `AverageEvent`, and the table of them.

    Parameters
    ----------
    events : list of AverageEvent
    total : float
        Microseconds that all of what was watched took.
    memory : bool
        Whether the table has a column for memory.
    """

    def __init__(self, events: Iterable[AverageEvent], total: float, memory: bool) -> None:
        self._events = sorted(events, key=lambda e: -e.self_cpu_time_total)
        self._total, self._memory = total, memory

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[AverageEvent]:
        return iter(self._events)

    def __getitem__(self, i: int) -> AverageEvent:
        return self._events[i]

    def __repr__(self) -> str:
        return self.table()

    def total_average(self) -> AverageEvent:
        """All of them added up."""
        total = AverageEvent("Total")
        for e in self._events:
            total.count += e.count
            total.cpu_time_total += e.self_cpu_time_total
            total.self_cpu_time_total += e.self_cpu_time_total
            total.self_cpu_memory_usage += e.self_cpu_memory_usage
        return total

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        header: str | None = None,
    ) -> str:
        """Return a text with a row per event.

        Parameters
        ----------
        sort_by : str, optional
            An attribute of `AverageEvent`, largest first; by default "self_cpu_time_total".
        row_limit : int
            How many rows are shown; -1 for all.
        max_src_column_width, max_name_column_width : int
            Longer lines and names are cut.
        header : str, optional
            A line above the table.

        Raises
        ------
        ArgumentError
            For an attribute that there is none of.
        """
        sort_by = sort_by or "self_cpu_time_total"
        if sort_by not in _SORTS:
            raise ArgumentError(
                "table(sort_by=...)",
                expected=f"one of {', '.join(_SORTS)}",
                got=repr(sort_by),
                fix="on a CPU, write sort_by='cpu_time_total'",
            )
        events = sorted(self._events, key=lambda e: -getattr(e, sort_by))
        shown = events if row_limit < 0 else events[:row_limit]
        heads = ["Name", *_HEADS, *(["Self CPU Mem"] if self._memory else [])]
        with_shapes = any(e.input_shapes for e in shown)
        with_lines = any(e.stack for e in shown)
        heads += ["Input Shapes"] * with_shapes + ["Source Location"] * with_lines
        rows = [heads]
        for e in shown:
            row = [
                _cut(e.key, max_name_column_width),
                _share(e.self_cpu_time_total, self._total),
                _time(e.self_cpu_time_total),
                _share(e.cpu_time_total, self._total),
                _time(e.cpu_time_total),
                _time(e.cpu_time),
                str(e.count),
            ]
            row += [_size(e.self_cpu_memory_usage)] * self._memory
            row += [str([list(s) for s in e.input_shapes])] * with_shapes
            row += [_cut(", ".join(e.stack), max_src_column_width)] * with_lines
            rows.append(row)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rule = "  ".join("-" * w for w in widths)
        texts = ["  ".join(x.rjust(w) for x, w in zip(row, widths, strict=True)) for row in rows]
        above = [] if header is None else [header]
        total = f"Self CPU time total: {_time(self._total)}"
        return "\n".join([*above, rule, texts[0], rule, *texts[1:], rule, total])


def averaged(
    events: Iterable[ProfilerEvent], key: Callable[[ProfilerEvent], tuple[object, ...]]
) -> list[AverageEvent]:
    """Add up events that have the same key."""
    found: dict[tuple[object, ...], AverageEvent] = {}
    for e in events:
        k = key(e)
        if k not in found:
            found[k] = AverageEvent(str(k[0]))
        a = found[k]
        a.count += 1
        a.cpu_time_total += e.duration / 1e3
        a.self_cpu_time_total += (e.duration - e.inner) / 1e3
        a.self_cpu_memory_usage += e.nbytes
    return list(found.values())


def line_of(event: ProfilerEvent) -> str:
    """The user's line, with the path as seen from here if that is shorter."""
    if event.line is None:
        return "outside of the user's code"
    file, number = event.line
    try:
        file = min(file, os.path.relpath(file), key=len)
    except ValueError:  # another drive
        pass
    return f"{file}:{number}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"...{text[3 - width :]}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "0.00%"


def _time(us: float) -> str:
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if us >= scale:
            return f"{us / scale:.3f}{unit}"
    return f"{us:.3f}us"


def _size(nbytes: float) -> str:
    for unit in ("b", "Kb", "Mb"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "b" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} Gb"
