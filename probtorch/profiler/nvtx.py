"""`emit_nvtx`: the operations of a program as ranges on the timeline of NVIDIA's profilers."""

from __future__ import annotations

import contextlib
from types import ModuleType

from probtorch.backends import cupy_
from probtorch.core.signatures import explain_calls
from probtorch.errors import DeviceError
from probtorch.profiler.watching import ACTIVE, ProfilerEvent, Watcher

__all__ = ["emit_nvtx"]


class _Marker(Watcher):
    """A watcher that marks what it hears of as it begins and ends."""

    def __init__(self, shapes: bool, marks: ModuleType) -> None:
        super().__init__(shapes)
        self._marks = marks

    def marked(self, event: ProfilerEvent) -> None:
        shapes = f", sizes = {[list(s) for s in event.shapes]}" if event.shapes else ""
        self._marks.RangePush(event.name + shapes)

    def ended(self, event: ProfilerEvent) -> None:
        self._marks.RangePop()


class emit_nvtx(contextlib.ContextDecorator):
    """Mark every operation for NVIDIA's profilers: ``nsys profile python script.py`` shows them.

    Parameters
    ----------
    enabled : bool
        Off, nothing is marked, and no GPU is needed.
    record_shapes : bool
        Say the shapes of operands, too.

    Raises
    ------
    DeviceError
        On entry, without a usable GPU.
    """

    def __init__(self, enabled: bool = True, record_shapes: bool = False) -> None:
        self.enabled, self.record_shapes = enabled, record_shapes
        self._marker: _Marker | None = None

    def __enter__(self) -> emit_nvtx:
        if not self.enabled:
            return self
        reason = cupy_.unavailable_reason(None)
        if reason is not None:
            raise DeviceError(
                "emit_nvtx",
                expected="a GPU, whose profiler is told",
                got=reason,
                fix="use profiler.profile, or emit_nvtx(enabled=False)",
            )
        self._before = ACTIVE.watcher
        self._marker = ACTIVE.watcher = _Marker(self.record_shapes, cupy_.library().cuda.nvtx)
        self._marker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._marker is not None:
            self._marker.stop()
            ACTIVE.watcher, self._marker = self._before, None


explain_calls(globals())
