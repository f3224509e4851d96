"""Arrays as blobs and views: what shares memory goes on sharing it.

A blob is a stretch of bytes, a view an array on one: where it begins, dtype, shape and strides.
`Arrays` collects the arrays of a tree. An array that overlaps no other gets a blob of its own, just
its elements, with the dims in the order they had in memory (a product may differ in its last bit
for a transposed matrix, and a resumed run must not). Arrays that overlap share a blob, the stretch
of memory that they cover together.

GPU arrays are copied to the host; of them only those stay one that are the same throughout.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from probtorch.backends.registry import to_host

__all__ = ["Arrays", "View", "is_dtype", "is_storable", "view_of"]

# ``[blob, offset, dtype, shape, strides]``, see `Arrays.layout`; in a file it may be anything.
View: TypeAlias = list[Any]

# Start of a shared blob in memory and in the file are the same modulo this, so that what was
# aligned is aligned.
ALIGNMENT = 64
MAX_DIMS = 64
# NumPy's names of what can be stored: numbers, text of a fixed length, dates. No objects, and no
# long doubles, whose bits depend on the machine.
_DTYPE = re.compile(
    r"\|b1|\|[iu]1|<[iu][248]|<f[248]|<c(8|16)|<U[1-9]\d{0,8}|\|S[1-9]\d{0,8}"
    r"|<[mM]8(\[\d*(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)
# Steps NumPy may take to find out whether two arrays have an element in common.
_WORK: Any = 10_000  # NumPy's types know two of its values only


def is_storable(dtype: np.dtype) -> bool:
    """Whether arrays of this dtype can be saved."""
    return is_dtype(dtype.newbyteorder("<").str)


def is_dtype(name: object) -> TypeGuard[str]:
    """Whether a text, or whatever it is, names such a dtype. NumPy parses what others it gets."""
    return isinstance(name, str) and _DTYPE.fullmatch(name) is not None


class Arrays:
    """Arrays to be saved, each told once."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._stretches: list[tuple[int, int]] = []
        self._known: dict[tuple[object, ...], int] = {}
        # What arrays may share only while it is in memory.
        self._kept: list[np.ndarray] = []

    def add(self, array: np.ndarray) -> int:
        """Take in an array, on whatever device; returns the number of its view."""
        key = (
            (array.ctypes.data if isinstance(array, np.ndarray) else ("device", array.data.ptr)),
            array.shape,
            array.strides,
            array.dtype.str,
        )
        if key not in self._known:
            self._known[key] = len(self._arrays)
            self._kept.append(array)
            host = np.asarray(to_host(array))
            host = host.astype(host.dtype.newbyteorder("<"), copy=False)
            self._arrays.append(host)
            self._stretches.append(_stretch(host))
        return self._known[key]

    def layout(self) -> tuple[list[View], list[int], Iterator[memoryview | bytes]]:
        """Return the views, the sizes of the blobs, and the blobs themselves, one by one.

        A view is ``[blob, offset, dtype, shape, strides]``, with None for the strides of an array
        in C order, and None for the blob of an array without elements.
        """
        views: list[View] = [[]] * len(self._arrays)
        sizes: list[int] = []
        makers: list[Callable[[], memoryview | bytes]] = []
        for members in self._groups():
            if len(members) == 1:
                array = self._arrays[members[0]]
                views[members[0]] = _view(_dense(array), len(sizes), 0)
                sizes.append(array.nbytes)
                makers.append(partial(_one, array))
                continue
            starts, stops = zip(*(self._stretches[i] for i in members))
            first, last = min(starts), max(stops)
            lead = first % ALIGNMENT
            for i in members:
                a = self._arrays[i]
                views[i] = _view(a, len(sizes), a.ctypes.data - first + lead)
            sizes.append(lead + last - first)
            makers.append(partial(_stretch_bytes, first, last, lead))
        for i, array in enumerate(self._arrays):
            if not views[i]:
                views[i] = _view(array, None, 0)
        return views, sizes, (make() for make in makers)

    def _groups(self) -> list[list[int]]:
        """Lists of numbers of arrays, in the order they came; those of a list share memory."""
        groups: list[list[int]] = []
        apart, sharing, last = [], [], -1
        for i, (array, (start, stop)) in enumerate(zip(self._arrays, self._stretches)):
            # Arrays that show an element several times (expanded ones) are written out on their
            # own, and those without elements not at all.
            if array.nbytes:
                (sharing if array.nbytes <= stop - start else apart).append(i)
        apart = [[i] for i in apart]
        for i in sorted(sharing, key=lambda i: self._stretches[i]):
            start, stop = self._stretches[i]
            if start < last:
                groups[-1].append(i)
            else:
                groups.append([i])
            last = max(last, stop)
        for group in groups:
            apart += [group] if self._entangled(group) else [[i] for i in group]
        return sorted(sorted(group) for group in apart)

    def _entangled(self, group: Sequence[int]) -> bool:
        """Whether arrays whose stretches overlap have bytes in common, or lie so close that it
        does not matter.
        """
        if len(group) == 1:
            return False
        arrays = [self._arrays[i] for i in group]
        starts, stops = zip(*(self._stretches[i] for i in group))
        if max(stops) - min(starts) <= sum(a.nbytes for a in arrays):
            return True
        return any(_share(a, b) for a, b in itertools.combinations(arrays, 2))


def view_of(blobs: list[np.ndarray], view: View) -> np.ndarray:
    """Return the array that a view of a file describes.

    Parameters
    ----------
    blobs : list of ndarray, uint8
    view : list
        As `Arrays.layout` made it; anything, if the file is hostile.

    Raises
    ------
    ValueError, TypeError
        If it is no such view, or shows bytes outside of its blob or one byte twice.
    """
    blob, offset, name, shape, strides = view
    if not is_dtype(name):
        raise ValueError(f"a dtype {name!r:.40}")
    dtype = np.dtype(name)
    counts = [*shape, *(strides or ()), offset]
    if not all(type(n) is int for n in counts) or min([0, offset, *shape]) < 0:
        raise ValueError(f"a shape {shape!r:.40} with strides {strides!r:.40}")
    if len(shape) > MAX_DIMS or (strides is not None and len(strides) != len(shape)):
        raise ValueError(f"{len(shape)} dims")
    if blob is None:
        if math.prod(shape):
            raise ValueError(f"elements of shape {shape!r:.40} that are nowhere")
        return np.empty(tuple(shape), dtype)
    if type(blob) is not int or not 0 <= blob < len(blobs):
        raise ValueError(f"a blob {blob!r:.40}")
    if math.prod(shape) * dtype.itemsize > blobs[blob].size or not math.prod(shape):
        raise ValueError(f"shape {shape!r:.40} in {blobs[blob].size} bytes")
    # NumPy checks that offset and strides stay within the buffer.
    found = np.ndarray(
        tuple(shape), dtype, blobs[blob], offset, None if strides is None else tuple(strides)
    )
    if found.nbytes > _extent(found):
        raise ValueError(f"strides {strides!r:.40} that show elements twice")
    if not found.flags.aligned:
        raise ValueError(f"elements at offset {offset} that are not aligned")
    return found


def _view(array: np.ndarray, blob: int | None, offset: int) -> View:
    strides = None if array.flags.c_contiguous else list(array.strides)
    return [blob, offset, array.dtype.str, list(array.shape), strides]


def _stretch(array: np.ndarray) -> tuple[int, int]:
    """Addresses of the first byte of an array and of the one after its last."""
    address = array.ctypes.data
    reach = [(n - 1) * s for n, s in zip(array.shape, array.strides)]
    return (
        address + sum(r for r in reach if r < 0),
        address + sum(r for r in reach if r > 0) + array.itemsize,
    )


def _extent(array: np.ndarray) -> int:
    start, stop = _stretch(array)
    return stop - start


def _share(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return np.shares_memory(a, b, max_work=_WORK)
    except np.exceptions.TooHardError:
        return True


def _dense(array: np.ndarray) -> np.ndarray:
    """`array` itself if it has no gaps, else an uninitialised one with its dims in that order."""
    if array.flags.c_contiguous:
        return array
    if _extent(array) == array.nbytes and min(array.strides) >= 0:
        return array
    return np.empty_like(array, order="K", subok=False)


def _one(array: np.ndarray) -> memoryview:
    dense = _dense(array)
    if dense is not array:
        dense[...] = array
    return _memory(dense.ctypes.data, dense.nbytes, dense)


def _stretch_bytes(first: int, last: int, lead: int) -> bytes:
    return bytes(lead) + bytes(_memory(first, last - first, None))


def _memory(address: int, size: int, owner: np.ndarray | None) -> memoryview:
    """Bytes at an address as a buffer."""
    buffer = (ctypes.c_ubyte * size).from_address(address)
    setattr(buffer, "owner", owner)  # noqa: B010  # keeps the memory alive as long as the buffer
    return memoryview(buffer).cast("B")
