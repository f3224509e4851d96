"""`ParquetDataset`: columns of Parquet files, read by row groups; the one door to pyarrow."""

from __future__ import annotations

import importlib.util
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsIndex

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError, DTypeError
from probtorch.tensor import Tensor
from probtorch.utils.data.dataset import StoredRows
from probtorch.utils.data.stored import checked_block, sorted_rows

if TYPE_CHECKING:
    import pyarrow.parquet

__all__ = ["ParquetDataset"]

# Row groups that are kept: the one that is read, and the one before.
KEPT = 2


class ParquetDataset(StoredRows):
    """Samples that are rows of Parquet files.

    Parameters
    ----------
    paths : path, or sequence of paths
        Files of one layout, one after the other.
    columns : sequence
        What a sample consists of: the name of a column for a number, a list of names for a vector.
    block_rows : int, optional
        Rows that are read at a time where all are needed; about a megabyte by default.

    Raises
    ------
    ArgumentError
        If pyarrow is not installed, or a column is not there.
    DTypeError
        If a column is not of numbers.

    Notes
    -----
    A row group is read whole and the last two are kept, so rows that are near each other are cheap
    and rows from everywhere are dear: load minibatches with a `BlockRandomSampler`. Missing values
    are nan.

    Examples
    --------
    ``ParquetDataset("visits.parquet", [["age", "dose"], "outcome"])`` has samples ``(x, y)`` with
    `x` of shape (2,).
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        columns: Sequence[str | Sequence[str]],
        *,
        block_rows: SupportsIndex | None = None,
    ) -> None:
        if importlib.util.find_spec("pyarrow") is None:
            raise ArgumentError(
                "ParquetDataset",
                expected="pyarrow, which reads the files",
                got="an installation without it",
                fix="pip install probtorch[parquet]",
            )
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        self.paths = [os.fspath(path) for path in given]
        self.columns = [c if isinstance(c, str) else list(c) for c in columns]
        self._names = [n for c in self.columns for n in ([c] if isinstance(c, str) else c)]
        self._open()
        schema = self._files[0].schema_arrow
        for name in self._names:
            if name not in schema.names:
                raise ArgumentError(
                    f"ParquetDataset: column {name!r}",
                    expected=f"one of {', '.join(schema.names)}",
                    got=repr(name),
                    fix="check the spelling",
                )
            kind = schema.field(name).type.to_pandas_dtype()
            if np.dtype(kind).kind not in "fiub":
                raise DTypeError(
                    f"ParquetDataset: column {name!r}",
                    expected="numbers",
                    got=str(schema.field(name).type),
                    fix="number the categories, and split dates and texts into columns of numbers",
                )
        self.block_rows = checked_block("ParquetDataset", block_rows, len(self._names))

    def _open(self) -> None:
        import pyarrow.parquet as parquet

        self._files: list[pyarrow.parquet.ParquetFile] = [
            parquet.ParquetFile(p) for p in self.paths
        ]
        self._groups: list[tuple[int, int]] = []
        ends = [0]
        for i, file in enumerate(self._files):
            for group in range(file.num_row_groups):
                self._groups.append((i, group))
                ends.append(ends[-1] + file.metadata.row_group(group).num_rows)
        self._ends = np.array(ends)
        self._kept: OrderedDict[int, list[np.ndarray]] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getstate__(self) -> dict[str, object]:
        # Files are opened anew in a worker.
        state = dict(self.__dict__)
        for name in ("_files", "_groups", "_ends", "_kept"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._open()

    def take(self, indices: Sequence[int]) -> list[Tensor]:
        """Return the batch of these samples."""
        rows, back = sorted_rows(indices, len(self))
        wanted = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        groups = np.searchsorted(self._ends, wanted, side="right") - 1
        parts = [
            [column[wanted[groups == g] - self._ends[g]] for column in self._group(int(g))]
            for g in np.unique(groups)
        ]
        found = []
        for i, column in enumerate(self._group(0) if not parts else parts[0]):
            joined = np.concatenate([p[i] for p in parts]) if parts else column[:0]
            found.append(wrap(joined if back is None else joined[back]))
        return found

    def _group(self, number: int) -> list[np.ndarray]:
        """The columns of a row group."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        file, group = self._groups[number]
        table = self._files[file].read_row_group(group, columns=list(dict.fromkeys(self._names)))
        read = {n: table.column(n).to_numpy() for n in table.column_names}
        made = [
            read[c].copy() if isinstance(c, str) else np.stack([read[n] for n in c], axis=1)
            for c in self.columns
        ]
        self._kept[number] = made
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return made


explain_calls(globals())
