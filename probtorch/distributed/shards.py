"""Which rows a rank has: consecutive ones, as equally many as can be."""

from __future__ import annotations

from probtorch.core.tree import record
from probtorch.distributed.group import communicator

__all__ = ["Shard", "local_rows", "own_shard"]


@record
class Shard:
    """The part of a plate's rows that one rank has.

    Attributes
    ----------
    start, stop : int
    ranks : int
        How many parts there are. What is inside counts so many times: the mean over ranks of such
        log densities is that of all rows.
    """

    start: int
    stop: int
    ranks: int

    def __len__(self) -> int:
        return self.stop - self.start


def own_shard(size: int) -> Shard:
    """Return this rank's part of `size` rows; the first ranks have one more if need be."""
    ranks = communicator()
    each, more = divmod(size, ranks.size)
    start = ranks.rank * each + min(ranks.rank, more)
    return Shard(start, start + each + (ranks.rank < more), ranks.size)


def local_rows(size: int) -> slice:
    """Return the rows of this rank out of `size`, to load no others.

    They are those that ``plate(name, size, shard=True)`` works on.

    Examples
    --------
    >>> from probtorch.distributed import local_rows
    >>> local_rows(10)  # in a run of one process
    slice(0, 10, None)
    """
    shard = own_shard(size)
    return slice(shard.start, shard.stop)
