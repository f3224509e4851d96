"""Parameters that one pass over their memory updates together: large ones alone, small ones in a
buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import NamedTuple

import numpy as np

from probtorch.backends.registry import array_module, device_of
from probtorch.core.typed import DType

__all__ = ["BLOCK", "ParameterBatch", "layout"]

# Bytes per array and call: the few arrays and temporaries of a formula stay in a second-level cache
# of 512 KiB. Adam costs 2.7 ns per float32 element then, and 4.0 at twice the size, where in
# addition malloc begins to ask the system for each temporary.
BLOCK = 65536
# Copying a parameter into the buffer and back costs about 3 ns per element (seven copies for
# Adam), calling a formula of fifteen array functions about 10 us: larger ones go on their own.
SMALL = 4096


class ParameterBatch(NamedTuple):
    """Parameters that are moved together: one large one, or small ones through a buffer."""

    module: ModuleType  # numpy or cupy
    members: list[int]  # positions among the parameters of the step
    columns: list[list[np.ndarray]]  # arrays of the parameters, then of each slot
    work: (
        list[np.ndarray] | None
    )  # flat buffers, one per column; None: work on the one array itself
    views: list[list[np.ndarray]]  # per column, the parts of its buffer in the shapes of the arrays


def layout(columns: list[list[np.ndarray]]) -> list[ParameterBatch] | None:
    """Return the batches for arrays of parameters and slots, or None if they need the loop form."""
    arrays = columns[0]
    if not all(a.flags.writeable for column in columns for a in column if type(a) is np.ndarray):
        return None  # the loop form says it with the library's own error
    if any(
        s.dtype is not a.dtype or s.shape != a.shape
        for column in columns[1:]
        for s, a in zip(column, arrays)
    ):
        return None
    if _overlap(arrays):
        return None
    batches, groups = [], {}
    for i, a in enumerate(arrays):
        if a.size > SMALL and all(column[i].flags.c_contiguous for column in columns):
            own = [[column[i]] for column in columns]
            batches.append(ParameterBatch(array_module(a), [i], own, None, []))
        else:
            groups.setdefault((device_of(a), a.dtype), []).append(i)
    for (_, dtype), members in groups.items():
        for some in _cut(members, [a.nbytes for a in arrays]):
            batches.append(_gathered(some, [[c[i] for i in some] for c in columns], dtype))
    return batches


def _cut(members: Iterable[int], sizes: Sequence[int]) -> list[list[int]]:
    """Cut a list of positions into runs of at most `BLOCK` bytes (a larger array on its own)."""
    runs, total = [[]], 0
    for i in members:
        if runs[-1] and total + sizes[i] > BLOCK:
            runs.append([])
            total = 0
        runs[-1].append(i)
        total += sizes[i]
    return runs


def _gathered(members: list[int], columns: list[list[np.ndarray]], dtype: DType) -> ParameterBatch:
    xp = array_module(columns[0][0])
    sizes = [a.size for a in columns[0]]
    ends = np.cumsum(sizes).tolist()
    work = [xp.empty(ends[-1], dtype) for _ in columns]
    views = [
        [buffer[end - size : end].reshape(a.shape) for a, size, end in zip(columns[0], sizes, ends)]
        for buffer in work
    ]
    return ParameterBatch(xp, members, columns, work, views)


def _overlap(arrays: Iterable[np.ndarray]) -> bool:
    """Whether two of the arrays share memory: then updates must come one after the other."""
    bounds = sorted(_bounds(a) for a in arrays if a.size)
    return any(later[0] < earlier[1] for earlier, later in pairwise(bounds))


def _bounds(a: np.ndarray) -> tuple[int, int]:
    if type(a) is np.ndarray:
        return np.lib.array_utils.byte_bounds(a)
    start: int = a.data.ptr  # type: ignore[attr-defined]  # CuPy's
    return start, start + a.nbytes
