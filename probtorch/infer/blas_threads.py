"""BLAS's own threads: shared out among chains, and kept out of small matrices.

A product of small matrices takes less time than threads need to meet, and those that have met wait
for the next one with a processor each, for tens of milliseconds: time that chains, or others on the
machine, then lack.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from contextlib import AbstractContextManager

from threadpoolctl import ThreadpoolController

__all__ = ["blas_shared_out", "without_blas_threads"]


# From so many rows on BLAS's threads gain more than they cost.
LARGE = 1000
# What native code calls; NumPy has a BLAS of its own.
_SCIPY = "scipy.linalg.cython_blas"


def _blas() -> ThreadpoolController:
    return _found(_SCIPY in sys.modules)


@functools.cache
def _found(scipy: bool) -> ThreadpoolController:
    """Every BLAS that is loaded, looked for anew once SciPy's is."""
    return ThreadpoolController().select(user_api="blas")


def blas_shared_out(count: int) -> AbstractContextManager[object]:
    """Give each of several chains its share of BLAS's threads, which else wait for each other."""
    if count == 1:
        return contextlib.nullcontext()
    return _blas().limit(limits=max((os.cpu_count() or 1) // count, 1))


def without_blas_threads(dim: int) -> AbstractContextManager[object]:
    """One thread for BLAS while matrices of `dim` rows and some hundred columns are decomposed.

    For a chain that runs alone: where several do, the thread that started them has shared BLAS's
    threads out, and this changes nothing. Nor where `dim` is large, and threads worth their while.
    """
    if dim >= LARGE or all(blas.num_threads == 1 for blas in _blas().lib_controllers):
        return contextlib.nullcontext()
    return _blas().limit(limits=1)
