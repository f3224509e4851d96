"""Ranks on one machine that talk through pipes: tests, laptops and single servers, without MPI.

Rank 0 is the hub. It reads what the others send in the order of their ranks, adds in that order,
and sends the sum back: so the bits are the same everywhere, and the same in every run. A message
begins with the number of the call, its kind and its length; ranks that reach different calls are an
error and not a mixture. A process that ends closes its pipe, which the others see at once. Pipes
are pairs of sockets, which are written as well as read with a limit of time: one that nobody reads
is full after some 100 kB.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from probtorch.distributed.communicator import TIMEOUT, Communicator, DistributedError

__all__ = ["PipeCommunicator"]

# Number of the call, kind, bytes that follow.
_HEAD = struct.Struct("<qqq")
_KINDS = {"all_reduce": 1, "broadcast": 2, "gather": 3}
_NAMES = {number: name for name, number in _KINDS.items()}
# Waits are in pieces of so many seconds, so that `hurry` counts while a rank waits.
_PIECE = 0.2


class PipeCommunicator(Communicator):
    """One rank of several processes of one machine; `spawn` makes them.

    Parameters
    ----------
    rank, size : int
    pipes : dict of int to socket
        To all other ranks on rank 0, to rank 0 on the others.
    timeout : float
    """

    backend = "pipes"

    def __init__(
        self, rank: int, size: int, pipes: Mapping[int, socket.socket], timeout: float = TIMEOUT
    ) -> None:
        super().__init__(rank, size, timeout)
        self._pipes = dict(pipes)
        for pipe in self._pipes.values():
            pipe.settimeout(_PIECE)
        self._calls = 0
        # Two threads of a rank must not interleave their messages.
        self._lock = threading.Lock()

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """Return the sum in the order of ranks; see `Communicator`."""
        array = np.asarray(array)
        with self._call("all_reduce") as call:
            if self.rank:
                call.send(0, array.tobytes())
                return np.frombuffer(call.receive(0), array.dtype).reshape(array.shape).copy()
            total = np.array(array)
            for other in range(1, self.size):
                part = call.receive(other)
                if len(part) != array.nbytes:
                    raise self._astray(other, f"{len(part)} bytes", f"{array.nbytes} bytes")
                total += np.frombuffer(part, array.dtype).reshape(array.shape)
            call.send_all(total.tobytes())
            return total

    def broadcast(self, payload: bytes, src: int = 0) -> bytes:
        """Return the bytes of rank `src`."""
        with self._call("broadcast") as call:
            if self.rank:
                # All send, so that the hub sees that all are here.
                call.send(0, payload if self.rank == src else b"")
                return call.receive(0)
            parts = [payload, *(call.receive(other) for other in range(1, self.size))]
            call.send_all(parts[src])
            return parts[src]

    def gather(self, payload: bytes, dst: int = 0) -> list[bytes] | None:
        """Return the bytes of all ranks on rank `dst`."""
        with self._call("gather") as call:
            if self.rank:
                call.send(0, payload)
                if self.rank != dst:
                    return None
                return [call.receive(0) for _ in range(self.size)]
            parts = [payload, *(call.receive(other) for other in range(1, self.size))]
            if dst == 0:
                return parts
            for part in parts:
                call.send(dst, part)
            return None

    def close(self) -> None:
        """Close the pipes, which the ranks at the other ends see at once."""
        for pipe in self._pipes.values():
            pipe.close()

    def _call(self, kind: str) -> _Call:
        return _Call(self, kind)

    def _astray(self, other: int, theirs: str, ours: str) -> DistributedError:
        return DistributedError(
            f"rank {self.rank} of {self.size}: rank {other} reached another call",
            expected=f"the same calls in the same order on all ranks; here it is {ours}",
            got=f"{theirs} on rank {other}",
            fix="let all ranks run the same program: no branch on get_rank() around inference, and "
            "no clock in it",
        )

    def _gone(self, other: int, error: Exception) -> DistributedError:
        return self.lost(f"rank {other}", "has ended", got=f"a closed pipe from rank {other}")


class _Call:
    """One call of a communicator: its number, its kind and when it has to be over."""

    def __init__(self, of: PipeCommunicator, kind: str) -> None:
        self.of, self.kind = of, kind

    def __enter__(self) -> _Call:
        self.of._lock.acquire()
        self.of._calls += 1
        self.number, self.until = self.of._calls, self.of.deadline()
        return self

    def __exit__(self, *exc: object) -> None:
        self.of._lock.release()

    def send(self, to: int, payload: bytes) -> None:
        """Send a message to one rank."""
        head = _HEAD.pack(self.number, _KINDS[self.kind], len(payload))
        # One piece where it is short: each costs a switch to the other process.
        for data in (head + payload,) if len(payload) <= 8192 else (head, payload):
            self._move(to, memoryview(data), self.of._pipes[to].send, "take what was sent")

    def send_all(self, payload: bytes) -> None:
        """Send a message from the hub to all others."""
        for other in range(1, self.of.size):
            self.send(other, payload)

    def receive(self, other: int) -> bytes:
        """Return the message that a rank sent for this call."""
        number, kind, length = _HEAD.unpack(self._next(other, _HEAD.size))
        if (number, _NAMES.get(kind)) != (self.number, self.kind):
            raise self.of._astray(
                other, f"call {number}, {_NAMES.get(kind, kind)}", f"{self.number}, {self.kind}"
            )
        return self._next(other, length)

    def _next(self, other: int, count: int) -> bytes:
        room = bytearray(count)
        self._move(other, memoryview(room), self.of._pipes[other].recv_into, "come")
        return bytes(room)

    def _move(
        self, other: int, data: memoryview, some: Callable[[memoryview], int], what: str
    ) -> None:
        """Move all bytes to or from a rank, as many at a time as `some` does."""
        while data:
            try:
                count = some(data)
                if not count:
                    raise EOFError("the pipe was closed")
            except TimeoutError:
                self.until = min(self.until, self.of.deadline())
                if time.monotonic() >= self.until:
                    late = f"did not {what} within {self.of.timeout:.3g} s"
                    raise self.of.lost(f"rank {other}", late) from None
            except (OSError, EOFError) as error:
                raise self.of._gone(other, error) from None
            else:
                data = data[count:]
                if data:  # a rank that takes long over many bytes is there
                    self.until = self.of.deadline()
