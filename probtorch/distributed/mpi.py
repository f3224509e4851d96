"""Ranks by MPI, through mpi4py, which is imported here alone.

Short sums are gathered everywhere and added in the order of ranks; long ones are reduced to rank 0
and sent from there: each way all ranks have the same bits. Only calls that do not block are used,
and asked until they are done or the time is up; who is missing then is found out by messages from
rank to rank. An error that nobody catches ends all ranks: the launcher is told to (`MPI_Abort`),
since others would wait in vain.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from probtorch.distributed.communicator import TIMEOUT, Communicator
from probtorch.errors import ArgumentError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MPICommunicator", "started_by_launcher"]

# Bytes up to which a sum is gathered: two messages less than by way of rank 0.
SHORT = 1 << 14
# A rank that waits longer than this lets others have the processor in between.
PATIENCE = 2e-3
_HERE = 30111  # the tag of messages that say who is waiting
# What launchers tell their processes: Open MPI, MPICH and Intel MPI.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")


def started_by_launcher() -> int:
    """Return how many processes `mpirun` says it has started, 1 without it."""
    for name in _SIZES:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 1


class MPICommunicator(Communicator):
    """One rank of ``mpirun -n 4 python model.py``.

    Parameters
    ----------
    timeout : float
        Seconds that any wait may take.

    Raises
    ------
    ArgumentError
        If mpi4py is not installed.
    """

    backend = "mpi"

    def __init__(self, timeout: float = TIMEOUT) -> None:
        if importlib.util.find_spec("mpi4py") is None:
            raise ArgumentError(
                "init_process_group(backend='mpi')",
                expected="mpi4py, by which ranks reach each other",
                got="an installation without it",
                fix="pip install probtorch[mpi], beside an MPI such as Open MPI",
            )
        from mpi4py import MPI  # initialises MPI

        self._mpi = MPI
        # A communicator of our own: messages of the user's do not meet ours.
        self._world: MPI.Intracomm = MPI.COMM_WORLD.Dup()
        super().__init__(self._world.Get_rank(), self._world.Get_size(), timeout)
        self._hook, sys.excepthook = sys.excepthook, self._uncaught

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum, the same bits on all ranks; see `Communicator`."""
        array = np.asarray(array, order="C")  # np.ascontiguousarray makes a scalar 1-d
        if array.nbytes * self.size <= SHORT:
            parts = np.empty((self.size, *array.shape), array.dtype)
            self._wait(self._world.Iallgather(array, parts))
            total = np.array(parts[0])
            for part in parts[1:]:
                total += part
            return total
        total = np.array(array)
        whole = total if self.rank == 0 else None
        self._wait(self._world.Ireduce(array, whole, self._mpi.SUM, 0))
        self._wait(self._world.Ibcast(total, 0))
        return total

    def broadcast(self, payload: bytes, src: int = 0) -> bytes:
        """Return the bytes of rank `src`."""
        length = np.array([len(payload)], np.int64)
        self._wait(self._world.Ibcast(length, src))
        room = np.empty(int(length[0]), np.uint8)
        if self.rank == src:
            room[:] = np.frombuffer(payload, np.uint8)
        self._wait(self._world.Ibcast(room, src))
        return room.tobytes()

    def gather(self, payload: bytes, dst: int = 0) -> list[bytes] | None:
        """Return the bytes of all ranks on rank `dst`."""
        lengths = np.zeros(self.size, np.int64)
        self._wait(self._world.Iallgather(np.array([len(payload)], np.int64), lengths))
        sent = np.frombuffer(payload, np.uint8)
        ends = np.cumsum(lengths)
        room = np.empty(int(ends[-1]), np.uint8) if self.rank == dst else None
        spec = None if room is None else [room, lengths, ends - lengths, self._mpi.BYTE]
        self._wait(self._world.Igatherv(sent, spec, dst))
        if room is None:
            return None
        return [room[end - n : end].tobytes() for n, end in zip(lengths, ends)]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._wait(self._world.Ibarrier())

    def close(self) -> None:
        """Give up nothing of MPI's own, which ends with the process."""
        if sys.excepthook == self._uncaught:
            sys.excepthook = self._hook

    def abort(self) -> None:
        """Let the launcher end all ranks."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._world.Abort(1)

    def _wait(self, request: MPI.Request) -> None:
        """Ask until it is done; an error, with the names of those that are missing, if late."""
        began, until = time.monotonic(), self.deadline()
        while not request.Test():
            now = time.monotonic()
            if now >= min(until, self.deadline()):
                raise self.lost(self._missing(), f"did not come within {self.timeout:.3g} s")
            if now - began > PATIENCE:
                time.sleep(1e-4)

    def _missing(self) -> str:
        """Who does not wait as this rank does: those that say nothing for a second."""
        word, here = np.zeros(1, np.int8), {self.rank}
        for other in range(self.size):
            if other != self.rank:
                self._world.Isend(word, other, _HERE)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            for other in set(range(self.size)) - here:
                if self._world.Iprobe(other, _HERE):
                    here.add(other)
            time.sleep(1e-2)
        missing = sorted(set(range(self.size)) - here)
        if not missing:
            return "another rank"
        return f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Print an error that nobody caught, with the rank's name, and end the run."""
        saved = self.last_checkpoint() or "none"
        print(
            f"rank {self.rank} of {self.size} failed and ends the run; last checkpoint: {saved}",
            file=sys.stderr,
            flush=True,
        )
        self._hook(kind, error, trace)
        if self.size > 1:
            self.abort()
