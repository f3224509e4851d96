"""`StoredRecord`: what one chain drew, on the disk, with no more than a block of it in memory."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.tree import map_tree
from probtorch.core.typed import Tree
from probtorch.infer.mcmc.recording import DrawRecord
from probtorch.infer.mcmc.running import BatchMoments

if TYPE_CHECKING:
    from probtorch.infer.mcmc.store import DrawStore

__all__ = ["StoredRecord"]

# Bytes of a block of positions that a chain collects before it writes them, and its rows at most.
BLOCK_BYTES, MOST_ROWS = 2**20, 4096


class StoredRecord:
    """What one chain drew, on the disk: as `DrawRecord`, with no more than a block in memory.

    Parameters
    ----------
    store : DrawStore
    number : int
        Of the chain.
    rows : int
        How many there will be.
    shape : tuple of int
        Of a position.
    info : type
    thinning : int

    Attributes
    ----------
    members : int
        Chains of the result that it is, more than one for an ensemble.
    size : int
        Numbers in a row.
    """

    def __init__(
        self,
        store: DrawStore,
        number: int,
        rows: int,
        shape: tuple[int, ...],
        info: type,
        thinning: int,
    ) -> None:
        self.store, self.number, self.rows, self.thinning = store, number, rows, thinning
        in_block = max(1, min(MOST_ROWS, BLOCK_BYTES // (8 * max(math.prod(shape), 1)), rows))
        self._block = DrawRecord(in_block * thinning, shape, info, thinning)
        self._room = in_block
        self.members, self.size = math.prod(shape[:-1]), math.prod(shape)
        self._moments = BatchMoments(self.size)
        self._earlier: BatchMoments | None = None
        self._lock = threading.Lock()
        # Rows on the disk, and all transitions: each is raised when what it counts is there.
        self._written = self._seen = 0

    def add(self, positions: np.ndarray, info: object) -> None:
        """Take in the next transitions, and write what makes a block."""
        while len(positions):
            count = min(self._room * self.thinning - self._block.seen, len(positions))
            self._block.add(positions[:count], map_tree(lambda x, n=count: x[:n], info))
            positions, info = positions[count:], map_tree(lambda x, n=count: x[n:], info)
            self._seen += count
            if self._block.complete == self._room:
                self.flush()

    def flush(self) -> None:
        """Write the rows that are complete."""
        rows = min(self._block.complete, self.rows - self._written)
        if rows:
            positions = self._block.positions[:rows]
            stats = {name: x[:rows] for name, x in self._block.stats.items()}
            by_member = positions.reshape(rows, self.members, -1)
            for j in range(self.members):
                of_member = {n: x.reshape(rows, self.members)[:, j] for n, x in stats.items()}
                chain = self.number * self.members + j
                self.store.write(chain, self._written, by_member[:, j], of_member)
            with self._lock:
                self._moments.add(positions.reshape(rows, -1))
                self._written += rows
        self._block.drop(self._block.complete)

    def append(self, saved: Tree) -> None:
        """Take in what a `DrawRecord` drew elsewhere: its `snapshot` from our last row on."""
        rows, at = saved["rows"], 0
        count = len(rows["position"])
        while at < count:
            here = self._block.complete
            part = slice(at, min(at + self._room - here, count))
            seen = (here + part.stop - at) * self.thinning
            of_part = {name: x[part] for name, x in rows.items()}
            self._block.restore({"seen": seen, "rows": of_part, "begun": {}})
            at = part.stop
            self._seen = self._written * self.thinning + seen
            if self._block.complete == self._room:
                self.flush()
        seen = self._block.complete * self.thinning + saved["seen"] % self.thinning
        none = {name: x[:0] for name, x in rows.items()}
        self._block.restore({"seen": seen, "rows": none, "begun": saved["begun"]})
        self._seen = self._written * self.thinning + seen

    def tail(self) -> Tree:
        """Return how many transitions there were, and the row that is being filled."""
        return {**self._block.tail(), "seen": self._seen}

    @property
    def empty(self) -> bool:
        """Whether nothing was drawn yet."""
        return not self._seen

    @property
    def complete(self) -> int:
        """Number of rows whose transitions are all there."""
        return min(self._seen // self.thinning, self.rows)

    @property
    def readable(self) -> int:
        """Number of rows on the disk."""
        return self._written

    def follows(self, before: StoredRecord) -> None:
        """Let moments be those of an earlier record of the chain, too."""
        self._earlier = before.moments()

    def moments(self) -> BatchMoments:
        """Return a copy of the moments of what is on the disk."""
        with self._lock:
            found = self._moments.copy()
        return found if self._earlier is None else self._earlier.followed_by(found)

    def snapshot(self) -> Tree:
        """Return what is not on the disk, and how much is."""
        self.flush()
        block, moments = self._block.snapshot(), self._moments.snapshot()
        return {"written": self._written, "block": block, "moments": moments}

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self._block.restore(saved["block"])
        with self._lock:
            self._moments.restore(saved["moments"])
            self._written = saved["written"]
        self._seen = saved["written"] * self.thinning + saved["block"]["seen"]
