"""What one chain drew, in memory: `DrawRecord`. What is on the disk instead is in store.py.

Rows are filled one after the other, by the thread of the chain; a row that is complete changes no
more, so that others may read it while the chain goes on: rows count once they are written.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from probtorch.core.typed import Tree
from probtorch.infer.mcmc.kernel import statistics
from probtorch.infer.mcmc.running import BatchMoments

__all__ = ["DrawBlock", "DrawRecord", "most_draws"]

# From the field of an info to its array.
Info: TypeAlias = Callable[[str], np.ndarray]
# Rows whose moments are added at a time.
JUDGED = 4096


class DrawBlock:
    """Memory for what several chains draw, as `Draws` want it: chains first.

    Parameters
    ----------
    chains, rows : int
    shape : tuple of int
        Of a position: (dim,) or (members, dim).
    info : type
        The kernel's class of infos.

    Attributes
    ----------
    positions : ndarray, shape (chains, rows, *shape)
    stats : dict of str to ndarray, each (chains, rows), or (chains, rows, members)
    """

    def __init__(self, chains: int, rows: int, shape: tuple[int, ...], info: type) -> None:
        self.positions = np.empty((chains, rows, *shape))
        self.stats = {
            s.name: np.zeros((chains, rows, *shape[:-1]), s.dtype)
            for s in statistics(info)
            if s.name is not None
        }


class DrawRecord:
    """Draws of one chain and their statistics.

    Parameters
    ----------
    iterations : int
        How many transitions there will be.
    shape : tuple of int
        Of a position: (dim,) or (members, dim).
    info : type
        The kernel's class of infos.
    thinning : int
        Each row stands for this many transitions and holds the last of them; statistics that are
        declared with ``combine`` are those of all.

    block : DrawBlock, optional
        Of which it is a part; memory of its own by default.
    number : int
        Of the chain in the block.

    Attributes
    ----------
    members : int
        Chains of the result that it is, more than one for an ensemble.
    size : int
        Numbers in a row.
    """

    def __init__(
        self,
        iterations: int,
        shape: tuple[int, ...],
        info: type,
        thinning: int = 1,
        block: DrawBlock | None = None,
        number: int = 0,
    ) -> None:
        self.thinning = thinning
        self.block = DrawBlock(1, iterations // thinning, shape, info) if block is None else block
        self.number = number
        self.positions = self.block.positions[number]
        self.stats = {name: x[number] for name, x in self.block.stats.items()}
        self._declared = {s.name: s for s in statistics(info) if s.name is not None}
        self._seen = self._judged = 0
        self.members, self.size = math.prod(shape[:-1]), math.prod(shape)
        self._moments: BatchMoments | None = None
        self._before: DrawRecord | None = None
        self._lock = threading.Lock()

    def add(self, positions: np.ndarray, info: object) -> None:
        """Store the next transitions."""
        begin, count = self._seen, len(positions)
        if self.thinning == 1:
            # New rows next to each other: a fifth of what it takes to find each by its number.
            at = slice(begin, begin + count)
            self.positions[at] = positions[: len(self.positions[at])]
            for name, s in self._declared.items():
                to = self.stats[name][at]
                values = getattr(info, s.field)[: len(to)]
                to[...] = values if s.combine is None else s.combine(to, values)
        else:
            rows = (begin + np.arange(count)) // self.thinning
            fits = rows < len(self.positions)
            rows = rows[fits]
            # Of repeated indices the last one stays.
            self.positions[rows] = positions[fits]
            for name, s in self._declared.items():
                values = getattr(info, s.field)[fits]
                if s.combine is None:
                    self.stats[name][rows] = values
                else:
                    s.combine.at(self.stats[name], rows, values)
        # Last: others read up to here, and copies of arrays let them in.
        self._seen = begin + count

    @classmethod
    def add_together(cls, records: Sequence[DrawRecord], positions: np.ndarray, info: Info) -> bool:
        """Store the next transitions of several chains, stacked; False where each has to do so.

        Parameters
        ----------
        records : sequence of DrawRecord
        positions : ndarray, shape (chains, transitions, *shape)
        info : callable
            From the field of an info to its array, (chains, transitions).
        """
        first, numbers = records[0], [record.number for record in records]
        begin, count = first._seen, positions.shape[1]
        apart = numbers != list(range(numbers[0], numbers[0] + len(numbers)))
        if apart or any(
            x.block is not first.block or x._seen != begin or x.thinning > 1 for x in records
        ):
            return False
        block, fits = first.block, min(count, max(len(first.positions) - begin, 0))
        at = slice(numbers[0], numbers[0] + len(numbers)), slice(begin, begin + fits)
        block.positions[at] = positions[:, :fits]
        for name, s in first._declared.items():
            values, to = info(s.field)[:, :fits], block.stats[name]
            to[at] = values if s.combine is None else s.combine(to[at], values)
        for record in records:
            record._seen = begin + count
        return True

    @property
    def seen(self) -> int:
        """Number of transitions."""
        return self._seen

    @property
    def empty(self) -> bool:
        """Whether nothing was stored yet."""
        return not self._seen

    @property
    def complete(self) -> int:
        """Number of rows whose transitions are all there."""
        return self._filled_by(self._seen)

    def _filled_by(self, seen: int) -> int:
        """How many rows so many transitions fill."""
        return min(seen // self.thinning, len(self.positions))

    @property
    def readable(self) -> int:
        """Number of rows that others may read."""
        return self.complete

    def flush(self) -> None:
        """Nothing waits to be written."""

    def follows(self, before: DrawRecord) -> None:
        """Let moments be those of an earlier record of the chain, too."""
        self._before = before

    def moments(self) -> BatchMoments:
        """Return a copy of the moments of what was drawn so far, brought up to date."""
        with self._lock:
            rows = self.complete
            if self._moments is None:
                before = self._before
                self._moments = BatchMoments(self.size) if before is None else before.moments()
                self._before = None
            while self._judged < rows:
                block = self.positions[self._judged : min(rows, self._judged + JUDGED)]
                self._moments.add(block.reshape(len(block), -1))
                self._judged += len(block)
            return self._moments.copy()

    def drop(self, rows: int) -> None:
        """Forget the first rows, all of which are complete."""
        for x in (self.positions, *self.stats.values()):
            begun = x[rows : rows + 1].copy()
            x[...] = 0
            x[: len(begun)] = begun
        self._seen -= rows * self.thinning

    def snapshot(self, first: int = 0) -> Tree:
        """Return what is there, as a tree for `probtorch.save`; of its rows those from `first` on.

        Complete rows are views: they change no more. The row that is being filled is a copy.
        """
        row = self.complete
        parts = {"position": self.positions, **self.stats}
        begun = row < len(self.positions) and self._seen % self.thinning
        return {
            "seen": self._seen,
            "rows": {name: x[first:row] for name, x in parts.items()},
            "begun": {name: x[row : row + 1].copy() for name, x in parts.items()} if begun else {},
        }

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned, of all rows or of those that are not here yet."""
        row = self._filled_by(saved["seen"])
        for name, x in {"position": self.positions, **self.stats}.items():
            rows = saved["rows"][name]
            x[row - len(rows) : row] = rows
            if saved["begun"]:
                x[row] = saved["begun"][name][0]
        self._seen = saved["seen"]

    append = restore

    def tail(self) -> Tree:
        """Return how many transitions there were, and the row that is being filled."""
        return self.snapshot(self.complete)


def most_draws(counts: dict[int, int]) -> tuple[list[int], int]:
    """Return which chains, and how many draws of each, keep the most; `counts` is by chain."""
    ordered = sorted(counts, key=lambda i: (-counts[i], i))
    best = max(range(len(ordered)), key=lambda k: (k + 1) * counts[ordered[k]])
    return sorted(ordered[: best + 1]), counts[ordered[best]]
