"""`Communicator`: how the processes of one run ("ranks") exchange numbers, and how they fail.

All ranks run the same program and reach the same calls in the same order. A communicator then does
four things: it sums arrays over all ranks, sends one rank's bytes to all, gathers bytes on one
rank, and lets nobody pass before all are there. Two laws hold for each of them:

- every rank gets the same bits, so that programs which go on from a sum stay together;
- no wait is without an end: a rank that died, or that does not come within `timeout` seconds, is a
  `DistributedError` on those that wait, which names it and the last checkpoint.

`Alone` is the communicator of one process. pipes.py, mpi.py and nccl.py have the others; group.py
has the one in force and PyTorch's names.
"""

from __future__ import annotations

import abc
import pickle
import time
from collections.abc import Callable

import numpy as np

from probtorch.errors import ProbtorchError

__all__ = ["Alone", "Communicator", "DistributedError"]

# Seconds that a rank waits for others: ten times what compiling a large model takes.
TIMEOUT = 300.0


class DistributedError(ProbtorchError, RuntimeError):
    """The ranks of a run cannot go on together: one died, is late, or has drifted apart."""


class Communicator(abc.ABC):
    """What the ranks of one run share.

    Parameters
    ----------
    rank, size : int
        Number of this process from 0, and how many there are.
    timeout : float
        Seconds that any wait may take.

    Attributes
    ----------
    backend : str
        "alone", "pipes", "mpi" or "nccl".
    last_checkpoint : callable
        Returns where the newest checkpoint of the run lies, as a text, or "".
    """

    backend = ""

    def __init__(self, rank: int, size: int, timeout: float = TIMEOUT) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.last_checkpoint: Callable[[], str] = lambda: ""
        self._hurry = float("inf")

    # ------------------------------------------------------------------------------- to be written

    @abc.abstractmethod
    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum over all ranks, the same bits on each.

        Parameters
        ----------
        array : ndarray
            Of the same shape and dtype on all ranks; stays as it is.

        Raises
        ------
        DistributedError
            If a rank does not come, or comes with something else.
        """

    @abc.abstractmethod
    def broadcast(self, payload: bytes, src: int = 0) -> bytes:
        """Return the bytes of rank `src`; those of other ranks do not count."""

    @abc.abstractmethod
    def gather(self, payload: bytes, dst: int = 0) -> list[bytes] | None:
        """Return the bytes of all ranks, in their order, on rank `dst`; None on the others."""

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.all_reduce(np.zeros(1))

    def close(self) -> None:
        """Leave: those that still wait for this rank are told so where that is possible."""
        self.hurry(0.0)

    def abort(self) -> None:
        """End all ranks at once, where the launcher can; `close` otherwise."""
        self.close()

    # ------------------------------------------------------------------------ made of these

    def all_gather_object(self, value: object) -> list[object]:
        """Return what every rank gave, in their order, on all of them; anything that pickles."""
        gathered = self.gather(pickle.dumps(value), 0)
        packed = b"" if gathered is None else pickle.dumps(gathered)
        # Both ends are this program: what comes back was pickled by a rank of this run.
        return [pickle.loads(x) for x in pickle.loads(self.broadcast(packed, 0))]  # noqa: S301

    def broadcast_object(self, value: object, src: int = 0) -> object:
        """Return what rank `src` gave; anything that pickles."""
        packed = pickle.dumps(value) if self.rank == src else b""
        return pickle.loads(self.broadcast(packed, src))  # noqa: S301  # from a rank of this run

    # ---------------------------------------------------------------------------------- waiting

    def hurry(self, seconds: float) -> None:
        """Let no wait take longer than so many seconds from now: this rank is about to end."""
        self._hurry = time.monotonic() + seconds

    def deadline(self) -> float:
        """Return when a wait that begins now has to end, by `time.monotonic`."""
        return min(time.monotonic() + self.timeout, self._hurry)

    # ------------------------------------------------------------------------------------- errors

    def lost(self, who: str, why: str, *, got: str = "") -> DistributedError:
        """Return the error for ranks that are gone or late.

        Parameters
        ----------
        who : str
            For example "rank 2".
        why : str
            What happened to it.
        got : str
            What this rank was doing.
        """
        self.hurry(0.0)  # whoever asks next need not wait to find out the same
        saved = self.last_checkpoint()
        again = f"; the last checkpoint is {saved}" if saved else "; there is no checkpoint"
        return DistributedError(
            f"rank {self.rank} of {self.size}: {who} {why}",
            expected=f"all {self.size} ranks until the end of the run",
            got=(got or f"{who} {why}") + again,
            fix="look at what that rank printed, then start all ranks again: a run with "
            "checkpoint=... goes on from there",
        )


class Alone(Communicator):
    """The communicator of a run of one process: sums have one term, and nobody is waited for."""

    backend = "alone"

    def __init__(self) -> None:
        super().__init__(0, 1)

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return a copy."""
        return np.array(array)

    def broadcast(self, payload: bytes, src: int = 0) -> bytes:
        """Return the bytes."""
        return payload

    def gather(self, payload: bytes, dst: int = 0) -> list[bytes] | None:
        """Return the bytes of the one rank."""
        return [payload]
