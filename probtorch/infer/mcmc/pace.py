"""`Pace`: when a chain, or all of them, are to be saved again.

A kill loses what was drawn since the last file. So a file is due as soon as that is a few dozens of
draws or a second or two, whichever comes first, unless saving would take more than a share of the
processor's time: then it waits. What a save costs is measured each time; waiting for the disk is
not among it, since chains go on meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

__all__ = ["Pace"]

# Share of the processor's time that saving may take: of files, and of a chain's snapshots.
FILE_SHARE, SNAPSHOT_SHARE = 0.007, 0.003
# A kill loses at most the draws and the seconds between two snapshots of a chain, and those between
# two files: 50 draws or 2 s together.
SNAPSHOT_DRAWS, SNAPSHOT_SECONDS = 20, 0.5
FILE_DRAWS, FILE_SECONDS = 30, 1.5
# While journals are kept (journal.py), which take 0.6 %, files are for power cuts: so many times as
# many seconds, whatever the draws, and a part of the share.
LATER, LESS = 3.0, 0.4


class Pace:
    """When to save next.

    Parameters
    ----------
    every : float or None
        Seconds between saves; None saves by draws, seconds and what it costs.
    draws : int
    seconds : float
        What may be lost, if it is affordable.
    share : float
        Of the processor's time that saving may take.
    """

    def __init__(
        self,
        every: float | None,
        draws: int = FILE_DRAWS,
        seconds: float = FILE_SECONDS,
        share: float = FILE_SHARE,
    ) -> None:
        self._every, self._draws, self._seconds, self._share = every, draws, seconds, share
        self._saved, self._cost = time.perf_counter(), 0.0  # so that the first is not put off

    @classmethod
    def of_a_chain(cls, every: float | None) -> Pace:
        """Return the pace of a chain's snapshots, which files are made of."""
        return cls(every, SNAPSHOT_DRAWS, SNAPSHOT_SECONDS, SNAPSHOT_SHARE)

    def due(self, draws: int, *, beside: bool = False) -> bool:
        """Whether to save, so many draws after what was saved last.

        Parameters
        ----------
        draws : int
        beside : bool
            Whether journals hold the draws since.
        """
        elapsed = time.perf_counter() - self._saved
        if self._every is not None:
            return elapsed >= self._every
        if beside:
            return elapsed >= LATER * self._seconds and LESS * elapsed * self._share >= self._cost
        return (
            draws >= self._draws or elapsed >= self._seconds
        ) and elapsed * self._share >= self._cost

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Context manager around a save, which measures it."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._saved, self._cost = time.perf_counter(), time.thread_time() - began
