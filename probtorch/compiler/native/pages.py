"""Memory that compiling has taken and nobody needs after it: `give_back`, `sparing`.

A process that has compiled holds 50 MB of LLVM's code, read from its library, and free heap of
about 20 MB. A run that is to keep its memory small gives both back. What is needed again is read
again, from the system's cache of files, in some milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

__all__ = ["give_back", "sparing", "took"]

LIBRARY = "libllvmlite.so"
MADV_DONTNEED = 4

_taken = False  # since `give_back`
_sparing = 0


@contextlib.contextmanager
def sparing(wanted: bool = True) -> Iterator[None]:
    """Context manager: what compiles in the block gives back its memory each time, if wanted."""
    global _sparing
    _sparing += wanted
    try:
        yield
    finally:
        _sparing -= wanted


def took() -> None:
    """Note that something was compiled."""
    global _taken
    _taken = True
    if _sparing:
        give_back()


def give_back() -> None:
    """Let go of pages of LLVM's code and of free heap, if anything was compiled; on Linux alone."""
    global _taken
    if sys.platform != "linux" or not _taken:
        return
    _taken = False
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(0)
    try:
        with open("/proc/self/maps") as maps:
            lines = [line.split() for line in maps if line.rstrip().endswith(LIBRARY)]
    except OSError:
        return
    for addresses, mode, *_ in lines:
        # Code is the same in the file; of other pages some have addresses that were filled in.
        if mode == "r-xp":
            begin, end = (int(x, 16) for x in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_DONTNEED)
