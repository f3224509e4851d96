"""The CUDA backend: the only file that imports CuPy, and only when it is needed.

`import cupy` succeeds on a machine without a GPU and every array call then fails, so the test for
being usable is `cupy.cuda.is_available()`. CuPy lacks some of NumPy's names; asked for one of them,
`_Named` raises an error that names it, instead of computing on the host unasked.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.backends.cublas import Cublas, CublasMatrices, load
from probtorch.errors import DeviceError

if TYPE_CHECKING:
    import cupy

__all__ = [
    "MissingOnDeviceError",
    "address",
    "bounds",
    "capture",
    "contiguous",
    "device_of",
    "facts",
    "launch",
    "library",
    "load_kernels",
    "multiplies",
    "multiply",
    "namespace",
    "nccl_communicator",
    "nccl_id",
    "nccl_sum",
    "on_device",
    "owns",
    "product_space",
    "room",
    "special",
    "stream",
    "stream_is_done",
    "synchronize",
    "to_device",
    "to_host",
    "unavailable_reason",
]


# Blocks on each multiprocessor that wait for each other: more make their barriers slower.
_MOST_TOGETHER = 4


class MissingOnDeviceError(DeviceError, AttributeError):
    """CuPy has no function of this name; `hasattr` sees False."""


def owns(array: object) -> bool:
    """Whether `array` is a CuPy array; never imports CuPy to find out."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def unavailable_reason(index: int | None) -> str | None:
    """Return why GPU number `index` (None: any) cannot be used, or None when it can."""
    if "cupy" not in sys.modules and importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    if not cupy.cuda.is_available():
        return "CuPy finds no CUDA device with a working driver"
    count = cupy.cuda.runtime.getDeviceCount()
    if index is not None and index >= count:
        return f"there are {count} CUDA devices, numbered from 0"
    return None


def facts() -> Iterator[tuple[str, str]]:
    """Yield what there is to know of CuPy and each GPU: a name and a text, by a small computation.

    To be asked where `unavailable_reason` has none.
    """
    import cupy

    toolkit = cupy.cuda.runtime.runtimeGetVersion()
    yield "CuPy", f"{cupy.__version__}, CUDA {toolkit // 1000}.{toolkit % 1000 // 10}"
    for i in range(cupy.cuda.runtime.getDeviceCount()):
        about = cupy.cuda.runtime.getDeviceProperties(i)
        name = about["name"].decode()
        try:
            with cupy.cuda.Device(i) as device:
                # A kernel that NVRTC compiles, so that a toolkit without headers is found out.
                right = int((cupy.arange(4) ** 2).sum()) == 14
                free, total = device.mem_info
            works = "usable" if right else "NOT USABLE: it computes wrongly"
            memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
            yield f"cuda:{i}", f"{works}: {name}, {about['major']}.{about['minor']}, {memory}"
        except Exception as error:  # of any layer below: said to people, not handled
            yield f"cuda:{i}", f"not usable: {name}: {type(error).__name__}: {error}"


def namespace() -> _Named:
    """Return CuPy's functions; one that it lacks is an error that names it.

    Notes
    -----
    Unlike NumPy, CuPy does not look whether a factorization failed, because looking waits for the
    GPU: `cholesky` of an indefinite matrix gives NaN or garbage, not an error.
    """
    import cupy

    return _namespaces(cupy)[0]


def special() -> _Named:
    """Return `cupyx.scipy.special`; a function it lacks is an error that names it.

    Notes
    -----
    Nothing is filled in. Student's t through the incomplete beta function, for one, loses half
    its digits when the degrees of freedom are many.
    """
    import cupy

    return _namespaces(cupy)[1]


def device_of(array: cupy.ndarray) -> str:
    """Return "cuda:N" for the device that holds `array`."""
    return f"cuda:{array.device.id}"


def to_host(array: cupy.ndarray) -> np.ndarray:
    """Copy `array` to the host; waits until the GPU has computed it."""
    import cupy

    return cupy.asnumpy(array)


def to_device(array: cupy.ndarray, index: int | None) -> cupy.ndarray:
    """Copy `array` to GPU `index` (None: where it is, else the current one)."""
    import cupy

    if owns(array) and (index is None or array.device.id == index):
        return array
    device = contextlib.nullcontext() if index is None else cupy.cuda.Device(index)
    with device:
        return cupy.asarray(array)


# ------------------------------------------------------------------------------ compiled programs


def on_device(device: str) -> cupy.cuda.Device:
    """Return a context in which CuPy uses `device`, "cuda:N"."""
    import cupy

    return cupy.cuda.Device(int(device.partition(":")[2] or 0))


def library() -> ModuleType:
    """Return CuPy, for what is CUDA's own: memory, streams, events. See `unavailable_reason`."""
    import cupy

    return cupy


def stream() -> cupy.cuda.Stream:
    """Return the current stream of the current device; the same one is the same object."""
    import cupy

    return cupy.cuda.get_current_stream()


def stream_is_done() -> bool:
    """Return whether the current stream has done all that it was given."""
    return bool(stream().done)


def nccl_id() -> object:
    """Return the identity of a new group of processes, which all of them have to know."""
    import cupy

    return cupy.cuda.nccl.get_unique_id()


def nccl_communicator(size: int, identity: object, rank: int) -> cupy.cuda.nccl.NcclCommunicator:
    """Return NCCL's communicator of this process; returns when all have called it."""
    import cupy

    return cupy.cuda.nccl.NcclCommunicator(size, identity, rank)


def nccl_sum(among: cupy.cuda.nccl.NcclCommunicator, array: cupy.ndarray) -> cupy.ndarray:
    """Return the sum of the arrays of all processes; the stream has yet to compute it."""
    import cupy

    nccl, shape = cupy.cuda.nccl, array.shape
    array = cupy.ascontiguousarray(array)  # at least 1-d
    kind = {
        "f2": nccl.NCCL_FLOAT16, "f4": nccl.NCCL_FLOAT32, "f8": nccl.NCCL_FLOAT64,
        "i4": nccl.NCCL_INT32, "i8": nccl.NCCL_INT64,
    }[array.dtype.str[1:]]  # fmt: skip
    total = cupy.empty_like(array)
    among.allReduce(array.data.ptr, total.data.ptr, array.size, kind, nccl.NCCL_SUM, stream().ptr)
    return total.reshape(shape)


def synchronize() -> None:
    """Wait for all that the current device has been given to do, on whatever stream."""
    import cupy

    cupy.cuda.Device().synchronize()


def load_kernels(source: str, names: list[str]) -> dict[str, cupy.RawKernel]:
    """Compile CUDA C for the current device; returns its kernels by name.

    Notes
    -----
    By NVRTC, without fast mathematics, but for `-ftz=true`, which CuPy adds behind all options:
    float32 below 1.2e-38 counts as 0. Products and sums may be contracted, as on the CPU. CuPy
    keeps what it compiled in its own cache on disk.
    """
    import cupy

    module = cupy.RawModule(code=source, backend="nvrtc", options=("--std=c++17",))
    return {name: module.get_function(name) for name in names}


def address(array: cupy.ndarray) -> int:
    """Return the address of an array's first element."""
    return array.data.ptr


def bounds(array: cupy.ndarray) -> tuple[int, int]:
    """Return the addresses of the first byte of an array, and behind the last."""
    if not array.flags.c_contiguous:
        import cupy

        return cupy.byte_bounds(array)
    start = array.data.ptr
    return start, start + array.nbytes


def contiguous(array: cupy.ndarray) -> cupy.ndarray:
    """Return the array with its elements in order, itself if they are."""
    import cupy

    return array if array.flags.c_contiguous else cupy.ascontiguousarray(array)


def room(kernel: cupy.RawKernel, threads: int) -> int:
    """Return how many blocks of a kernel the current device should hold at once."""
    import cupy

    held = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.kernel.ptr, threads, 0)
    count = cupy.cuda.Device().attributes["MultiProcessorCount"]
    return count * max(1, min(held, _MOST_TOGETHER))


def launch(
    kernel: cupy.RawKernel, blocks: int, threads: int, words: list[int], *, together: bool = False
) -> None:
    """Start a kernel on the current stream; its arguments are 64 bits each.

    Blocks that are started `together` may wait for each other: CUDA makes sure that all of them run
    at the same time.
    """
    arguments = tuple(np.uint64(w) for w in words)
    if together:
        kernel.kernel((blocks,), (threads,), arguments, enable_cooperative_groups=True)
    else:
        kernel((blocks,), (threads,), arguments)


def capture(start: Callable[[], None]) -> cupy.cuda.Graph:
    """Return the CUDA graph of what ``start()`` would run; it has a method `launch`.

    Raises
    ------
    DeviceError
        If CUDA refuses.
    """
    import cupy

    # Capturing needs a stream of its own: on the default one it is not allowed.
    try:
        with cupy.cuda.Stream(non_blocking=True) as apart:
            apart.begin_capture()
            try:
                start()
            finally:
                graph = apart.end_capture()
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise DeviceError(
            "a CUDA graph",
            expected="a driver that captures kernels",
            got=str(error),
            fix="update the driver; until then kernels are started one by one",
        ) from error
    return graph


@functools.cache
def _cublas(index: int) -> Cublas | None:
    import cupy

    try:
        import cupy.cublas  # loads the library, unless it is missing

        with cupy.cuda.Device(index):
            return Cublas(load(cupy.cuda.runtime.runtimeGetVersion() // 1000))
    except (ImportError, OSError, DeviceError):
        return None


def multiplies(sizes: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether `multiply` has a product of these sizes on the current device."""
    import cupy

    return Cublas.takes(sizes, dtype) and _cublas(cupy.cuda.Device().id) is not None


def multiply(
    dtype: np.dtype,
    sizes: tuple[int, int, int, int],
    left: CublasMatrices,
    right: CublasMatrices,
    out: int,
    space: cupy.ndarray,
) -> None:
    """Put matrix products into memory, on the current stream, which may be captured.

    Parameters are those of `Cublas.multiply`; `space` is an array.
    """
    import cupy

    blas = _cublas(cupy.cuda.Device().id)
    assert blas is not None
    blas.multiply(dtype, sizes, left, right, out, stream().ptr, (address(space), space.nbytes))


def product_space() -> cupy.ndarray:
    """Return working space for `multiply`, as large as NVIDIA advises for the current device."""
    import cupy

    modern = int(cupy.cuda.Device().compute_capability) >= 90
    return cupy.empty((32 if modern else 4) << 20, np.uint8)


class _Named:
    """A CuPy module in which a missing name is an error with a cure."""

    def __init__(self, module: ModuleType, label: str) -> None:
        self._module = module
        self._label = label

    def __getattr__(self, name: str) -> Any:
        # Reached only when the instance dict has no such name, so this runs once per name.
        try:
            value = getattr(self._module, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            raise MissingOnDeviceError(
                f"{self._label}.{name}",
                expected="a function that CuPy provides",
                got="one that exists for NumPy arrays only",
                fix='compute it on the host: tensor.to("cpu")',
            ) from None
        if isinstance(value, ModuleType):
            value = _Named(value, f"{self._label}.{name}")
        self.__dict__[name] = value
        return value

    def __repr__(self) -> str:
        return f"<{self._label}, seen through probtorch>"


@functools.lru_cache(maxsize=1)
def _namespaces(cupy: ModuleType) -> tuple[_Named, _Named]:
    import cupyx.scipy.special

    return _Named(cupy, "cupy"), _Named(cupyx.scipy.special, "cupyx.scipy.special")
