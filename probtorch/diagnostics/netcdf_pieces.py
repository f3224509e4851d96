"""Large arrays of a netCDF file, written piece by piece: `LargeArray`, `write_pieces`.

HDF5 writes what lies in one piece as it is. What has gaps between its rows, draws of a run that
goes on say, or has to be of another type in the file, would be copied as a whole first; and of what
is mapped from the disk all pages would count as memory of the process by the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from probtorch.diagnostics.stored import is_mapped, let_go

__all__ = ["LargeArray", "write_pieces"]

# Bytes from which on an array goes in pieces, and of a piece.
LEAST, PIECE = 2**24, 2**22


@dataclass(frozen=True)
class LargeArray:
    """An array of a group.

    Parameters
    ----------
    group, name : str
    dims : tuple of str
    values : ndarray
    dtype : dtype
        In the file.
    """

    group: str
    name: str
    dims: tuple[str, ...]
    values: np.ndarray
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.values.size * self.dtype.itemsize

    @property
    def needs_pieces(self) -> bool:
        """Whether it would be in memory once more as a whole, and is too large for that."""
        copied = self.dtype != self.values.dtype or not self.values.flags.c_contiguous
        large = self.values.ndim > 1 and self.nbytes > LEAST
        return large and (copied or is_mapped(self.values))

    def pieces(self) -> Iterator[tuple[int, slice]]:
        """Where pieces are, in the first two dims."""
        rows, columns, *rest = self.values.shape
        step = max(1, PIECE // (self.dtype.itemsize * math.prod(rest)))
        for i in range(rows):
            for start in range(0, columns, step):
                yield i, slice(start, start + step)


def write_pieces(path: str, arrays: Iterable[LargeArray]) -> None:
    """Add arrays to a netCDF file that has their groups.

    Raises
    ------
    OSError
        If there is no room.
    """
    h5netcdf = import_module("h5netcdf")
    with h5netcdf.File(path, "a") as file:
        for x in arrays:
            group = file[x.group]
            for dim, size in zip(x.dims, x.values.shape):
                if dim not in group.dimensions:
                    group.dimensions[dim] = size
            made = group.create_variable(x.name, x.dims, x.dtype)
            for piece in x.pieces():
                made[piece] = np.ascontiguousarray(x.values[piece], x.dtype)
                let_go([x.values])
