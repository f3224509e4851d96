"""One core for everybody, and what to say about the machine.

`restrict_to_one_core` must run before NumPy or a peer is imported: BLAS and XLA read these
settings once.
"""

import os
import platform
import resource
from importlib import metadata
from pathlib import Path

__all__ = ["cpu_model", "describe", "restrict_to_one_core", "version"]

THREAD_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}

_STATUS = Path("/proc/self/status")


def restrict_to_one_core():
    """Set one thread in every library and pin this process, and its children, to one core."""
    os.environ.update(THREAD_SETTINGS)
    if hasattr(os, "sched_setaffinity"):
        # The last core: the first one tends to serve interrupts.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def cpu_model():
    """Return the processor's name, with AVX-512 or AVX2 where the kernel reports it."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    fields = {}
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags", "").split()
    vectors = next((name for name in ("avx512f", "avx2") if name in flags), "no AVX2")
    return f"{fields.get('model name', platform.machine())} ({vectors})"


def peak_resident():
    """The highest resident size so far, MB; that of `getrusage` begins with the parent's."""
    if _STATUS.exists():
        (line,) = (x for x in _STATUS.read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def version(distribution):
    """Return the installed version of `distribution`, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def describe(distributions):
    """Return one line on the machine and one on the versions."""
    found = {name: version(name) for name in ("numpy", "scipy", "llvmlite", *distributions)}
    versions = ", ".join(f"{name} {text}" for name, text in found.items() if text)
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{cpu_model()}, one core; {system}\n{versions}"
