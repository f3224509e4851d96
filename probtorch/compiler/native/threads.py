"""How many threads large loops run on: `set_num_threads`, `get_num_threads`.

A compiled program shares its large loop nests out over a pool of native threads (its code is
`render/runtime/pool.py`; which nests, `render/parts.py` says). The number of threads is a number in
the pool's memory, no part of a program's code, and no result depends on it. Threads that are busy
anyway count: a sampler with four chains in four threads leaves three threads less for the loops of
each (`occupied`).

The pool is linked when the first program with a large nest is; until then numbers are only noted
here. This file imports nothing of the compiler's, so that it costs nothing to ask.
"""

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import warnings
from pathlib import Path

from probtorch.errors import ArgumentError

__all__ = ["attach", "get_num_threads", "occupied", "set_num_threads"]

_VARIABLES = ("PROBTORCH_NUM_THREADS", "OMP_NUM_THREADS")
# Where Linux (cgroup v2) says how much processor time a container has: "max 100000", or
# microseconds in each so many.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

# More than any machine has processors: beyond it is a slip of the fingers.
_MOST = 65536

_lock = threading.Lock()


class _State:
    """The number asked for, threads of ours that run programs, the pool's functions."""

    def __init__(self):
        self.count = None
        self.busy = 0
        self.pool = None


_state = _State()


def get_num_threads():
    """Return on how many threads the large loops of a compiled program run.

    That is the number given to `set_num_threads`; at first ``PROBTORCH_NUM_THREADS``, or
    ``OMP_NUM_THREADS``, or the number of processors that this process may use (by its affinity, and
    the quota of its container).
    """
    if _state.count is None:
        _state.count = _from_environment()
    return _state.count


def set_num_threads(num_threads):
    """Set on how many threads the large loops of compiled programs run, in the whole process.

    Results do not depend on it, bit for bit. Loops that take less than about 60 us always run on
    one thread. BLAS has threads and settings of its own (``OPENBLAS_NUM_THREADS``).

    Parameters
    ----------
    num_threads : int
        1 switches the pool off.

    Raises
    ------
    ArgumentError
        If it is no whole number of 1 or more.
    """
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise ArgumentError(
            "set_num_threads",
            expected="a whole number, 1 or more",
            got=repr(num_threads),
            fix="give 1 for no threads but the caller's",
        )
    with _lock:
        _state.count = num_threads
        _tell()


@contextlib.contextmanager
def occupied():
    """Context manager: inside, this thread is one of several of ours that run programs.

    With k such threads at work the loops of a program get ``get_num_threads() - k + 1`` threads.
    """
    _add(1)
    try:
        yield
    finally:
        _add(-1)


def attach(address):
    """Take over the pool that has just been linked; `address` gives a function's by its name."""
    functions = {
        name: ctypes.CFUNCTYPE(None, *types)(address(f"pt_pool_{name}"))
        for name, types in (("reset", ()), ("limit", (ctypes.c_int64,)), ("stop", ()))
    }
    with _lock:
        _state.pool = functions
        functions["reset"]()
        _tell()
    # A child has this memory and none of the threads. At the end of the process helpers must be
    # gone before the code that they run is.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _start_anew(functions["reset"]))
    atexit.register(functions["stop"])


def _from_environment():
    for name in _VARIABLES:
        # OpenMP allows a list, of which the first is for loops that are not inside others.
        text = os.environ.get(name, "").partition(",")[0].strip()
        if text.isdecimal() and 0 < int(text) <= _MOST:
            return int(text)
        if text and name == _VARIABLES[0]:  # the other one is not ours to judge
            warnings.warn(
                f"the environment variable {name} is not used\n"
                f"  expected: a whole number from 1 to {_MOST}\n"
                f"  got:      {os.environ[name]!r:.60}\n"
                f"  fix:      set {name}=4, say, or leave it out for one thread per processor",
                RuntimeWarning,
                stacklevel=3,
            )
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _quota())
    return os.cpu_count() or 1


def _quota():
    """How many processors a container may keep busy, rounded up."""
    try:
        allowed, period = map(int, _QUOTA.read_text().split())
    except (OSError, ValueError):
        return sys.maxsize
    return max(1, -(-allowed // period))


def _add(change):
    with _lock:
        _state.busy += change
        _tell()


def _tell():
    """Tell the pool how many threads a region may have."""
    if _state.pool is not None:
        _state.pool["limit"](max(1, get_num_threads() - max(0, _state.busy - 1)))


def _start_anew(reset):
    """In a forked child: no helpers, and of our threads only the one that forked."""
    global _lock
    _lock = threading.Lock()
    _state.busy = 0
    reset()
    _tell()
