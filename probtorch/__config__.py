"""What probtorch runs on here: versions, BLAS, threads, the cache, the devices.

`show` gives the text that ``python -m probtorch`` prints and that a report of a bug should hold;
`parallel_info` the part about threads. Both only look: no setting changes, nothing is compiled, and
a package that is missing is said to be.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata

from threadpoolctl import threadpool_info

from probtorch.backends import cupy_
from probtorch.compiler.native import cache, host
from probtorch.compiler.native.threads import get_num_threads
from probtorch.config import settings

__all__ = ["parallel_info", "show"]

# What is computed with, and what is asked for only where it is used.
_REQUIRED = ("numpy", "scipy", "llvmlite", "arviz", "xarray", "opt_einsum")
_OPTIONAL = (
    "cupy-cuda12x cupy-cuda13x safetensors einops tensorboardX onnx onnxruntime pandas "
    "polars torch jax"
).split()
_THREAD_VARIABLES = (
    "PROBTORCH_NUM_THREADS OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS"
).split()
# Where NVIDIA's driver is, by operating system.
_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}
# CUDA's numbers for why `cuInit` fails, as its header lists them.
_CUDA_ERRORS = {
    2: "out of memory",
    3: "the driver is shutting down",
    34: "the library is a stub without a driver behind it",
    100: "no device that CUDA can use (CUDA_VISIBLE_DEVICES may hide it)",
    101: "invalid device (CUDA_VISIBLE_DEVICES may name one that is not there)",
    803: "the library does not fit the kernel module of the driver",
    804: "this device needs a newer driver",
    999: "unknown error (often a device that is gone, or one that needs a restart)",
}


def show() -> str:
    """Return a text that says what probtorch runs on.

    Returns
    -------
    str
        Sections with lines "name  value": versions, BLAS and threads, the compiler and its cache,
        the devices (whether a GPU can be used, and if not, why), settings.

    Examples
    --------
    >>> print(show())
    probtorch ...
    """
    sections = {
        f"probtorch {_version('probtorch')}": _versions(),
        "BLAS and threads": _threads(),
        "compiler": _compiler(),
        "devices": _devices(),
        "settings": _settings(),
    }
    return "\n\n".join(_section(title, dict(rows)) for title, rows in sections.items())


def parallel_info() -> str:
    """Return a text about threads: our own, those of the BLAS, the variables that set them."""
    return _section("BLAS and threads", dict(_threads()))


def _section(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join([title, *(f"  {name:<{width}}  {value}" for name, value in rows.items())])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "executable", sys.executable or "unknown"
    yield "system", f"{platform.system()} {platform.release()} {platform.machine()}"
    for name in _REQUIRED:
        yield name, _version(name)
    found = [f"{name} {v}" for name in _OPTIONAL if (v := _version(name)) != "not installed"]
    yield "also here", ", ".join(found) or "none of the optional packages"


def _threads() -> Iterator[tuple[str, str]]:
    # Both bring a BLAS of their own, which is loaded with these.
    for name in ("numpy", "scipy.linalg"):
        import_module(name)
    yield "loops of compiled programs", f"{get_num_threads()} threads"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "processors", f"{usable} usable of {os.cpu_count()}"
    for i, pool in enumerate(threadpool_info()):
        words = [pool["internal_api"], pool.get("version"), pool.get("architecture")]
        text = " ".join(str(w) for w in words if w)
        name = f"{pool['user_api']} {i}"
        yield name, f"{text}, {pool['num_threads']} threads, {pool['filepath']}"
    given = [f"{v}={os.environ[v]}" for v in _THREAD_VARIABLES if v in os.environ]
    yield "variables", ", ".join(given) or "none set"


def _compiler() -> Iterator[tuple[str, str]]:
    processor = host.target()
    yield "LLVM", ".".join(map(str, processor.llvm_version))
    fused = "with" if processor.has_fma else "without"
    yield "processor", f"{processor.cpu}, {processor.vector_bits}-bit vectors, {fused} FMA"
    yield "target", processor.triple
    folder = cache.directory()
    if folder is None:
        yield "cache", "off, or its directory was refused"
        return
    files = [entry for entry in os.scandir(folder) if entry.is_file()]
    size = sum(entry.stat().st_size for entry in files)
    yield "cache", f"{folder} ({len(files)} files, {size / 2**20:.1f} MB)"


def _devices() -> Iterator[tuple[str, str]]:
    yield "cpu", platform.processor() or platform.machine()
    reason = cupy_.unavailable_reason(None)
    driver, trouble = _driver()
    yield "NVIDIA driver", driver
    if reason is not None:
        missing = reason == "CuPy is not installed" and not trouble
        cure = "; pip install 'probtorch[cuda12]' (or cuda13)" if missing else ""
        yield "cuda", f"not usable: {'; '.join(t for t in (trouble, reason) if t)}{cure}"
        return
    yield from cupy_.facts()


def _driver() -> tuple[str, str]:
    """What CUDA's driver says of itself, and what is wrong with it ("" if nothing is)."""
    library = _DRIVERS.get(sys.platform)
    try:
        cuda = ctypes.CDLL(library) if library else None
    except OSError:
        cuda = None
    if cuda is None:
        return "not found", f"there is no NVIDIA driver ({library or 'none for this system'})"
    status = cuda.cuInit(0)
    if status:
        why = _CUDA_ERRORS.get(status, "see CUDA's list of errors")
        return "found, not working", f"the driver's cuInit fails with {status}: {why}"
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetCount(ctypes.byref(count))
    number = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return f"CUDA {number}, {count.value} devices", ""


def _settings() -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(settings):
        yield field.name, str(getattr(settings, field.name))
