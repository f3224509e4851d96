"""Plates over data that do not fit into memory: their rows a block at a time.

A log density is a sum over rows, so it can be computed in parts. A dataset on the disk
(`utils.data.StoredRows`) says how many rows a block has; whoever needs the density of all rows
lends the blocks one after the other, and the model's plate works on each in turn. Read
minibatches.py first; infer/parts.py is who lends them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.typed import Tree
from probtorch.distributed.shards import Shard
from probtorch.effects.minibatches import AllRows, Minibatch
from probtorch.errors import ModelError
from probtorch.tensor import Tensor
from probtorch.utils.data.loader import DataLoader

__all__ = ["RowBlocks"]


class RowBlocks(AllRows):
    """All rows of every plate; those of a dataset on the disk a block at a time.

    A dataset says by `block_rows` that it is not to be loaded whole. Whoever computes a density
    lends the blocks, one after the other; to all else, such as the run that finds the sites, the
    plate has the first.

    Attributes
    ----------
    plate : str or None
        The plate of such a dataset, if a run has met one.
    """

    def __init__(self, convert: Callable[[Tree], Tree] | None = None) -> None:
        super().__init__(convert)
        self.plate: str | None = None
        self._of: tuple[DataLoader, Shard | None] | None = None
        self._lent: Minibatch | None = None

    def minibatch(self, name: str, loader: DataLoader, shard: Shard | None) -> Minibatch:
        """Return the block that is lent, or the first."""
        if getattr(loader.dataset, "block_rows", None) is None:
            return super().minibatch(name, loader, shard)
        if self._of is not None and self._of[0] is not loader:
            raise ModelError(
                f"plate {name!r}: another dataset on the disk",
                expected="one plate of a model over a dataset on the disk, and one loader for it",
                got=f"plates {self.plate!r} and {name!r}, of two loaders",
                fix="make the loader once, outside of the model; load the smaller dataset into "
                "memory",
            )
        if self.plate not in (None, name):
            # A block would be lent to both: side by side one is mistaken for a plate of all rows,
            # and one inside the other meets only the pairs of rows of a block.
            raise ModelError(
                f"plate {name!r}: a second plate over one dataset on the disk",
                expected="one plate of a model over a dataset on the disk",
                got=f"plates {self.plate!r} and {name!r}, of one loader",
                fix=f"put the sites of plate {name!r} into plate {self.plate!r}; for all pairs of "
                "rows load the dataset into memory",
            )
        self.plate, self._of = name, (loader, shard)
        if self._lent is not None:
            return self._lent
        data, rows = self.load(next(self.blocks()))
        return Minibatch(data, wrap(np.arange(rows.start, rows.stop)), len(rows), shard)

    def blocks(self) -> Iterator[range]:
        """Yield the rows of one block after the other; of no rows an empty one."""
        assert self._of is not None  # a run has met the plate
        loader, shard = self._of
        start, stop = (0, len(loader.dataset)) if shard is None else (shard.start, shard.stop)
        step = loader.dataset.block_rows
        for first in range(start, stop, step) or (start,):
            yield range(first, min(first + step, stop))

    def load(self, rows: range) -> tuple[Tree, range]:
        """Return the data of some rows."""
        assert self._of is not None
        data = self._of[0].load(rows)
        return data if self.convert is None else self.convert(data), rows

    @contextlib.contextmanager
    def lending(self, data: Tree, rows: Tensor) -> Iterator[None]:
        """Context manager: the plate works on these data, whose rows have these numbers."""
        assert self._of is not None
        self._lent = Minibatch(data, rows, rows.array.shape[0], self._of[1])
        try:
            yield
        finally:
            self._lent = None
