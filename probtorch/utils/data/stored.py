"""`ArrayDataset`: arrays that need not fit into memory, as NumPy, Zarr and Dask keep them.

Nothing of Zarr, h5py or Dask is imported: an array is whatever has a shape, a dtype and rows by
slices and by sorted row numbers. parquet_.py has tables.
"""

from __future__ import annotations

import mmap
import operator
from collections.abc import Sequence
from typing import Protocol, SupportsIndex

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.tensor import Tensor
from probtorch.utils.data.dataset import StoredRows

__all__ = ["BLOCK_NUMBERS", "ArrayDataset", "checked_block", "sorted_rows"]

# Numbers in a block, unless told: a megabyte, which stays in the cache of a core while the
# compiled density goes through it (docs/internals/scale.md has the measurements).
BLOCK_NUMBERS = 2**17


class StoredArray(Protocol):
    """What an array on the disk has to have."""

    @property
    def shape(self) -> Shape:
        """Sizes of its dims, the rows first."""

    @property
    def dtype(self) -> object:
        """Of its numbers."""

    def __getitem__(self, rows: slice | np.ndarray, /) -> object:
        """Return some rows, as an array or what computes to one."""


class ArrayDataset(StoredRows):
    """Samples that are rows of arrays which may lie on the disk.

    Parameters
    ----------
    *arrays : array, each of shape (samples, ...)
        `numpy.memmap`, arrays of Zarr, h5py or Dask, and plain ones: anything with a shape, a dtype
        and rows by slices and by increasing row numbers.
    block_rows : int, optional
        Rows that are read at a time where all are needed; about a megabyte by default. Zarr and
        Dask like multiples of their chunks.

    Raises
    ------
    ShapeError
        If their first dims differ.
    DTypeError
        If one is not of numbers.

    Notes
    -----
    Samples are copies in memory. Rows of mapped files that were read in blocks are given back to
    the system, so that resident memory stays small.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from probtorch.utils.data import DataLoader
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/x.npy", np.arange(6.0))
    ...     data = ArrayDataset(np.load(f"{folder}/x.npy", mmap_mode="r"), block_rows=4)
    ...     [x.tolist() for (x,) in DataLoader(data, batch_size=4)]
    [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]
    """

    def __init__(self, *arrays: StoredArray, block_rows: SupportsIndex | None = None) -> None:
        for i, array in enumerate(arrays):
            if not (hasattr(array, "shape") and hasattr(array, "dtype")):
                raise DTypeError(
                    "ArrayDataset",
                    expected="arrays, each with a shape and a dtype",
                    got=f"{type(array).__name__} as argument {i}",
                    fix="wrap lists in numpy.asarray",
                )
            if np.dtype(array.dtype).kind not in "fiub":  # type: ignore[call-overload]  # theirs
                raise DTypeError(
                    "ArrayDataset",
                    expected="numbers",
                    got=f"{array.dtype} in argument {i}",
                    fix="number the categories, and split dates and texts into columns of numbers",
                )
        sizes = {tuple(a.shape[:1]) for a in arrays}
        if len(sizes) != 1 or sizes == {()}:
            raise ShapeError(
                "ArrayDataset: size mismatch between arrays",
                expected="at least one array, all with the same number of samples in dim 0",
                got=f"shapes {', '.join(str(tuple(a.shape)) for a in arrays) or '(none)'}",
                fix="check that no array was transposed or filtered alone",
            )
        self.arrays = arrays
        numbers = sum(int(np.prod(a.shape[1:])) for a in arrays)
        self.block_rows = checked_block("ArrayDataset", block_rows, numbers)

    def __len__(self) -> int:
        return int(self.arrays[0].shape[0])

    def take(self, indices: Sequence[int]) -> list[Tensor]:
        """Return the batch of these samples: read by slice where they are consecutive."""
        rows, back = sorted_rows(indices, len(self))
        found = []
        for array in self.arrays:
            part = _read(array, rows)
            found.append(wrap(part if back is None else part[back]))
        return found


def checked_block(name: str, given: SupportsIndex | None, numbers: int) -> int:
    """Return how many rows a block has, of so many numbers each."""
    if given is None:
        return max(1, BLOCK_NUMBERS // max(numbers, 1))
    rows = operator.index(given)
    if rows < 1:
        raise ArgumentError(
            f"{name}(block_rows=...)",
            expected="a positive number of rows",
            got=repr(given),
            fix="leave it out for blocks of about a megabyte",
        )
    return rows


def sorted_rows(indices: Sequence[int], size: int) -> tuple[slice | np.ndarray, np.ndarray | None]:
    """Return what to read, a slice or increasing row numbers, and where each sample is in it.

    Raises
    ------
    TensorIndexError
        If a number is out of range.
    """
    if isinstance(indices, range) and indices.step == 1 and indices.start >= 0:
        first, last = indices.start, indices.stop - 1
        rows = np.empty(0, np.int64)
    else:
        rows = np.asarray(indices, np.int64)
        rows = np.where(rows < 0, rows + size, rows)
        first, last = (int(np.min(rows)), int(np.max(rows))) if len(rows) else (0, -1)
    if first < 0 or last >= size:
        raise TensorIndexError(
            "rows of a dataset",
            expected=f"numbers below {size}",
            got=f"{first} to {last}",
            fix="check the sampler",
        )
    if last - first + 1 == len(indices) and (not len(rows) or bool(np.all(np.diff(rows) == 1))):
        return slice(first, last + 1), None
    unique, back = np.unique(rows, return_inverse=True)
    return unique, back


def _read(array: StoredArray, rows: slice | np.ndarray) -> np.ndarray:
    """Rows in memory, in the machine's own byte order."""
    if isinstance(rows, np.ndarray) and hasattr(array, "oindex"):
        part = array.oindex[rows]  # Zarr: along the first dim
    else:
        part = array[rows]
    if hasattr(part, "compute"):  # Dask
        part = part.compute()
    made = np.array(part)
    if isinstance(array, np.memmap) and isinstance(rows, slice):
        _give_back(array, rows)
    return made if made.dtype.isnative else made.astype(made.dtype.newbyteorder("="))


def _give_back(array: np.memmap, rows: slice) -> None:
    """Let the system have the memory of rows that were read, which it can read again."""
    mapped = getattr(array, "_mmap", None)
    if array.mode not in ("r", "r+") or not isinstance(mapped, mmap.mmap):
        return  # of a copy on write the file has not all
    if not array.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED") or not len(array):
        return
    # Where this array begins in the map: it may be a part of a larger one.
    begin = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    page, width = mmap.PAGESIZE, array.nbytes // len(array)
    start = (begin + rows.start * width) // page * page
    stop = min(begin + rows.stop * width, len(mapped))
    if stop > start:
        mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)


explain_calls(globals())
