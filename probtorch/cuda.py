"""GPUs: which there are, their memory, streams and events, by the names of ``torch.cuda``.

Without a usable GPU, questions are answered as PyTorch without CUDA does: `is_available` is False,
`device_count` 0, no memory is used; what needs a GPU is a `DeviceError` that says what is wrong.
Memory is that of CuPy's pool; work is put on CuPy's current stream.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import NamedTuple, TypeAlias

from probtorch.backends import cupy_
from probtorch.core.device import device as _device
from probtorch.core.rng import manual_seed as _manual_seed
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError, DeviceError

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "init",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_peak_memory_stats",
    "set_device",
    "stream",
    "synchronize",
]

DeviceOrIndex: TypeAlias = "int | str | None"


# ----------------------------------------------------------------------------- which GPUs there are


def is_available() -> bool:
    """Whether there is a GPU that can be used."""
    return cupy_.unavailable_reason(None) is None


def is_initialized() -> bool:
    """Whether a GPU can be used: CUDA starts by itself."""
    return is_available()


def init() -> None:
    """Do nothing where there is a GPU, and say why where there is none."""
    _cupy("init")


def device_count() -> int:
    """Return how many GPUs there are; 0 without CUDA."""
    return int(cupy_.library().cuda.runtime.getDeviceCount()) if is_available() else 0


def current_device() -> int:
    """Return the number of the current GPU."""
    return int(_cupy("current_device").cuda.Device().id)


class DeviceProperties(NamedTuple):
    """What a GPU is: its name, compute capability, bytes of memory and number of processors."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: DeviceOrIndex = None) -> DeviceProperties:
    """Return the `DeviceProperties` of a GPU, by default of the current one."""
    found = _cupy("get_device_properties", device).cuda.runtime.getDeviceProperties(_index(device))
    return DeviceProperties(
        found["name"].decode(),
        found["major"],
        found["minor"],
        found["totalGlobalMem"],
        found["multiProcessorCount"],
    )


def get_device_name(device: DeviceOrIndex = None) -> str:
    """Return the name of a GPU, by default of the current one."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceOrIndex = None) -> tuple[int, int]:
    """Return the compute capability of a GPU, (major, minor)."""
    found = get_device_properties(device)
    return found.major, found.minor


class device(AbstractContextManager["device"]):  # PyTorch's name
    """A block in which a GPU is the current one.

    Parameters
    ----------
    device : int, str or None
        Number or name; None changes nothing.
    """

    def __init__(self, device: DeviceOrIndex) -> None:
        self.idx = None if device is None else _number("device", device)
        self._inside: list[AbstractContextManager[object]] = []

    def __enter__(self) -> device:
        if self.idx is not None:
            inside = _cupy("device", self.idx).cuda.Device(self.idx)
            inside.__enter__()
            self._inside.append(inside)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._inside:
            self._inside.pop().__exit__(kind, error, trace)


def set_device(device: DeviceOrIndex) -> None:
    """Make a GPU the current one of this thread."""
    _cupy("set_device", device).cuda.Device(_index(device)).use()


def manual_seed(seed: int) -> None:
    """Seed the default generator, which draws on all devices; without a GPU do nothing."""
    if is_available():
        _manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """As `manual_seed`: draws do not depend on the device."""
    manual_seed(seed)


# ------------------------------------------------------------------------------------------- memory


_peaks: dict[tuple[int, str], int] = {}


def _pool(device: DeviceOrIndex, ask: Callable[[object], int], what: str) -> tuple[int, int]:
    """What the pool of a GPU says now, and the most that it was seen to say; zeros without CUDA."""
    if not is_available():
        return 0, 0
    index = _index(device)
    cupy = cupy_.library()
    with cupy.cuda.Device(index):
        now = int(ask(cupy.get_default_memory_pool()))
    peak = _peaks[index, what] = max(now, _peaks.get((index, what), 0))
    return now, peak


def memory_allocated(device: DeviceOrIndex = None) -> int:
    """Return how many bytes of a GPU arrays hold; 0 without CUDA."""
    return _pool(device, lambda pool: pool.used_bytes(), "used")[0]  # type: ignore[attr-defined]


def memory_reserved(device: DeviceOrIndex = None) -> int:
    """Return how many bytes of a GPU the pool keeps, for arrays or their successors."""
    return _pool(device, lambda pool: pool.total_bytes(), "total")[0]  # type: ignore[attr-defined]


def max_memory_allocated(device: DeviceOrIndex = None) -> int:
    """Return the most bytes that `memory_allocated` was seen to say: asking takes the samples."""
    return _pool(device, lambda pool: pool.used_bytes(), "used")[1]  # type: ignore[attr-defined]


def max_memory_reserved(device: DeviceOrIndex = None) -> int:
    """Return the most bytes that `memory_reserved` was seen to say: a pool only grows by itself."""
    return _pool(device, lambda pool: pool.total_bytes(), "total")[1]  # type: ignore[attr-defined]


def reset_peak_memory_stats(device: DeviceOrIndex = None) -> None:
    """Forget the most that was seen."""
    if is_available():
        for what in ("used", "total"):
            _peaks.pop((_index(device), what), None)


def memory_stats(device: DeviceOrIndex = None) -> dict[str, int]:
    """Return the four figures above by PyTorch's names; without CUDA an empty dict."""
    if not is_available():
        return {}
    return {
        "allocated_bytes.all.current": memory_allocated(device),
        "allocated_bytes.all.peak": max_memory_allocated(device),
        "reserved_bytes.all.current": memory_reserved(device),
        "reserved_bytes.all.peak": max_memory_reserved(device),
    }


def memory_summary(device: DeviceOrIndex = None) -> str:
    """Return `memory_stats` as lines of text."""
    rows = memory_stats(device)
    if not rows:
        return "no GPU in use"
    return "\n".join(f"{name:32s} {value / 2**20:12.1f} MiB" for name, value in rows.items())


def mem_get_info(device: DeviceOrIndex = None) -> tuple[int, int]:
    """Return (free, total) bytes of a GPU, whoever uses it."""
    free, total = _cupy("mem_get_info", device).cuda.Device(_index(device)).mem_info
    return int(free), int(total)


def empty_cache() -> None:
    """Give back the memory that the pool keeps for arrays to come; without CUDA do nothing."""
    if is_available():
        cupy_.library().get_default_memory_pool().free_all_blocks()


# ------------------------------------------------------------------------------- streams and events


def synchronize(device: DeviceOrIndex = None) -> None:
    """Wait until a GPU has done all that it was given."""
    _cupy("synchronize", device).cuda.Device(_index(device)).synchronize()


class Stream:
    """A queue of work of a GPU; what is in different ones may run at the same time.

    Parameters
    ----------
    device : int or str, optional
        Left out, the current GPU.
    """

    def __init__(self, device: DeviceOrIndex = None) -> None:
        cupy = _cupy("Stream", device)
        with cupy.cuda.Device(_index(device)):
            self._stream = cupy.cuda.Stream(non_blocking=True)

    @classmethod
    def _of(cls, found: object) -> Stream:
        made = object.__new__(cls)
        made._stream = found
        return made

    def synchronize(self) -> None:
        """Wait until all work in the stream is done."""
        self._stream.synchronize()

    def query(self) -> bool:
        """Whether all work in the stream is done."""
        return bool(self._stream.done)

    def record_event(self, event: Event | None = None) -> Event:
        """Put an event into the stream; returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what is put into the stream from now on wait for an event."""
        self._stream.wait_event(event._event)

    def wait_stream(self, other: Stream) -> None:
        """Let what is put into the stream from now on wait for what is in another by now."""
        self.wait_event(other.record_event())


class Event:
    """A mark in a stream, to wait for or to take the time between two.

    Parameters
    ----------
    enable_timing : bool
        Whether `elapsed_time` may be asked.
    """

    def __init__(self, enable_timing: bool = False) -> None:
        self._event = _cupy("Event").cuda.Event(disable_timing=not enable_timing)

    def record(self, stream: Stream | None = None) -> None:
        """Put the mark behind what is in a stream by now, by default the current one."""
        self._event.record((current_stream() if stream is None else stream)._stream)

    def synchronize(self) -> None:
        """Wait until the mark is reached."""
        self._event.synchronize()

    def query(self) -> bool:
        """Whether the mark is reached."""
        return bool(self._event.done)

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this mark to another."""
        return float(_cupy("elapsed_time").cuda.get_elapsed_time(self._event, end._event))


def current_stream(device: DeviceOrIndex = None) -> Stream:
    """Return the stream that work is put into now."""
    cupy = _cupy("current_stream", device)
    with cupy.cuda.Device(_index(device)):
        return Stream._of(cupy_.stream())


def default_stream(device: DeviceOrIndex = None) -> Stream:
    """Return the stream that work is put into unless another is chosen."""
    return Stream._of(_cupy("default_stream", device).cuda.Stream.null)


class stream(AbstractContextManager["stream"]):  # PyTorch's name
    """A block in which work is put into a stream; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> stream:
        if self.stream is not None:
            self.stream._stream.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            self.stream._stream.__exit__(kind, error, trace)


def _number(op: str, device: int | str) -> int:
    """Return the number of a GPU, which need not be there."""
    named = _device(device)
    if named.type != "cuda":
        raise ArgumentError(
            f"cuda.{op}", expected="a GPU", got=repr(str(named)), fix='name one, as "cuda:0"'
        )
    return 0 if named.index is None else named.index


def _index(device: DeviceOrIndex) -> int:
    return current_device() if device is None else _number("device", device)


def _cupy(op: str, device: DeviceOrIndex = None) -> ModuleType:
    """Return CuPy, or say why there is no such GPU."""
    reason = cupy_.unavailable_reason(None if device is None else _number(op, device))
    if reason is not None:
        raise DeviceError(
            f"cuda.{op}",
            expected="a GPU that can be used",
            got=reason,
            fix="ask cuda.is_available() first; python -m probtorch says more",
        )
    return cupy_.library()


explain_calls(globals())
