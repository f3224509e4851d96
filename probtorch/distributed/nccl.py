"""Sums of arrays on GPUs by NCCL, beside a communicator for everything else.

A rank has one GPU. Arrays that lie there are summed where they are; bytes, and arrays of the host,
go by the communicator beside it (MPI, pipes), which also carries NCCL's identity to all ranks when
it begins. NCCL adds in one order for all ranks, so their bits agree.
"""

from __future__ import annotations

import time

import numpy as np

from probtorch.backends import cupy_
from probtorch.backends.registry import is_available
from probtorch.distributed.communicator import Communicator
from probtorch.errors import DeviceError

__all__ = ["NCCLCommunicator"]


class NCCLCommunicator(Communicator):
    """One rank with a GPU of its own.

    Parameters
    ----------
    beside : Communicator
        Of the same ranks.

    Raises
    ------
    DeviceError
        If CuPy finds no GPU.
    """

    backend = "nccl"

    def __init__(self, beside: Communicator) -> None:
        if not is_available("cuda"):
            raise DeviceError(
                "init_process_group(backend='nccl')",
                expected="a CUDA device for each rank",
                got="none that can be used",
                fix="use backend='mpi', which sums arrays of the host",
            )
        super().__init__(beside.rank, beside.size, beside.timeout)
        self.beside = beside
        made = cupy_.nccl_id() if self.rank == 0 else None
        self._nccl = cupy_.nccl_communicator(self.size, beside.broadcast_object(made), self.rank)

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum, where the arrays are; see `Communicator`."""
        if isinstance(array, np.ndarray):
            return self.beside.all_reduce(array)
        total = cupy_.nccl_sum(self._nccl, array)
        # Kernels wait for each other on the device: the host has to see that they end.
        until = self.deadline()
        while not cupy_.stream_is_done():
            if time.monotonic() >= min(until, self.deadline()):
                self._nccl.abort()
                raise self.lost("another rank", f"did not come within {self.timeout:.3g} s")
            time.sleep(1e-5)
        return total

    def broadcast(self, payload: bytes, src: int = 0) -> bytes:
        """Return the bytes of rank `src`."""
        return self.beside.broadcast(payload, src)

    def gather(self, payload: bytes, dst: int = 0) -> list[bytes] | None:
        """Return the bytes of all ranks on rank `dst`."""
        return self.beside.gather(payload, dst)

    def close(self) -> None:
        """Leave both."""
        self._nccl.destroy()
        self.beside.close()

    def abort(self) -> None:
        """End all ranks at once."""
        self._nccl.abort()
        self.beside.abort()
