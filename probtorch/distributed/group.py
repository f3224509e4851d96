"""The communicator in force, and PyTorch's names for what one asks of it.

A process without a group is rank 0 of 1, so a script runs as it is on a laptop. A group begins with
`init_process_group`, or, under ``mpirun``, where something is first asked that needs it: a sharded
plate, `all_reduce`, `get_rank`. `spawn` begins one in each process that it makes.
"""

from __future__ import annotations

import datetime
import os
import zlib
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from probtorch.backends.registry import is_available as device_is_available
from probtorch.core.dispatch import overwrite
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.distributed.communicator import TIMEOUT, Alone, Communicator, DistributedError
from probtorch.distributed.mpi import MPICommunicator, started_by_launcher
from probtorch.distributed.nccl import NCCLCommunicator
from probtorch.errors import ArgumentError

__all__ = [
    "ReduceOp",
    "all_gather_object",
    "all_reduce",
    "average",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "check_equal",
    "communicator",
    "destroy_process_group",
    "gather_object",
    "get_backend",
    "get_rank",
    "get_world_size",
    "hurry",
    "init_process_group",
    "is_available",
    "is_initialized",
    "is_main",
    "note_checkpoint",
]

# Bytes that are reduced at a time, as in PyTorch: large enough for the network, small beside what
# the gradients take themselves.
BUCKET = 25 * 2**20

_ALONE = Alone()
_current: Communicator | None = None


class ReduceOp:
    """How `all_reduce` puts the numbers of the ranks together.

    Attributes
    ----------
    SUM, AVG : str
    """

    SUM = "sum"
    AVG = "avg"


def init_process_group(
    backend: str | Communicator | None = None,
    timeout: float | datetime.timedelta | None = None,
) -> None:
    """Begin the group of processes ("ranks") that this one belongs to.

    Parameters
    ----------
    backend : str or Communicator, optional
        "mpi"; "nccl", for arrays on GPUs, beside MPI; "alone"; or a communicator of your own. By
        default "mpi" under ``mpirun``, "nccl" if there is a GPU too, else "alone".
    timeout : float or timedelta, optional
        Seconds that any wait for others may take; 300 by default.

    Raises
    ------
    ArgumentError
        If there is a group already, the backend is unknown, or mpi4py is missing.
    DeviceError
        If the backend is "nccl" and there is no GPU.
    """
    global _current
    if _current is not None:
        raise ArgumentError(
            "init_process_group",
            expected="a process without a group",
            got=f"the group of {_current.size} ranks by {_current.backend!r}",
            fix="call it once, or destroy_process_group() before",
        )
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    seconds = TIMEOUT if seconds is None else float(seconds)
    if isinstance(backend, Communicator):
        _current = backend
        return
    if backend is None:
        backend = "alone"
        if started_by_launcher() > 1:
            backend = "nccl" if device_is_available("cuda") else "mpi"
    makers: dict[str, Callable[[], Communicator]] = {
        "alone": Alone,
        "mpi": lambda: MPICommunicator(seconds),
        "nccl": lambda: NCCLCommunicator(MPICommunicator(seconds)),
    }
    if backend not in makers:
        raise ArgumentError(
            f"init_process_group(backend={backend!r})",
            expected=f"one of {', '.join(map(repr, makers))}, or a Communicator",
            got=repr(backend),
            fix="leave it out: under mpirun it is MPI",
        )
    _current = makers[backend]()


def destroy_process_group() -> None:
    """Leave the group; the process is rank 0 of 1 again."""
    global _current
    if _current is not None:
        _current.close()
    _current = None


def communicator() -> Communicator:
    """Return the communicator in force; under ``mpirun`` it is made now if there is none."""
    if _current is None:
        if started_by_launcher() == 1:
            return _ALONE
        init_process_group()
    assert _current is not None
    return _current


def is_available() -> bool:
    """Whether there is this package: PyTorch's question, always answered with True."""
    return True


def is_initialized() -> bool:
    """Whether this process has a group."""
    return _current is not None


def get_backend() -> str:
    """Return by what ranks talk: "alone", "pipes", "mpi" or "nccl"."""
    return communicator().backend


def get_rank() -> int:
    """Return the number of this process, from 0."""
    return communicator().rank


def get_world_size() -> int:
    """Return how many ranks there are; 1 without a group."""
    return communicator().size


def is_main() -> bool:
    """Whether this process is the one that shows progress and writes files: rank 0.

    It begins no group: under ``mpirun`` without one it asks the environment.
    """
    if _current is not None:
        return _current.rank == 0
    names = "OMPI_COMM_WORLD_RANK", "PMI_RANK"
    return all(os.environ.get(name, "0") == "0" for name in names)


# ------------------------------------------------------------------------------------- tensors


def all_reduce(tensor: TensorBase | np.ndarray, op: str = ReduceOp.SUM) -> None:
    """Replace a tensor by its sum over all ranks, in place; the same bits on each.

    Parameters
    ----------
    tensor : Tensor or ndarray
        Of the same shape and dtype on all ranks.
    op : ReduceOp
        SUM or AVG.

    Raises
    ------
    ArgumentError
        For another `op`.
    DistributedError
        If a rank has died or does not come.

    Notes
    -----
    Nothing is put on the tape: use it on what is detached, such as gradients.
    """
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ArgumentError(
            "all_reduce(op=...)",
            expected="ReduceOp.SUM or ReduceOp.AVG",
            got=repr(op),
            fix="gather the tensors with all_gather_object for other functions",
        )
    read("a sum over ranks")
    ranks = communicator()
    total = ranks.all_reduce(_array(tensor))
    _write(tensor, total / ranks.size if op == ReduceOp.AVG else total)


def broadcast(tensor: TensorBase | np.ndarray, src: int = 0) -> None:
    """Replace a tensor by that of rank `src`, in place.

    Parameters
    ----------
    tensor : Tensor or ndarray
        Of the same shape and dtype on all ranks.
    src : int
    """
    read("the tensor of another rank")
    ranks, array = communicator(), _array(tensor)
    host = np.ascontiguousarray(array.get() if hasattr(array, "get") else array)
    sent = ranks.broadcast(host.tobytes(), _rank(src, ranks))
    _write(tensor, np.frombuffer(sent, host.dtype).reshape(host.shape))


def barrier() -> None:
    """Return when all ranks have called it."""
    communicator().barrier()


def all_gather_object(object_list: list[object], obj: object) -> None:
    """Fill a list, one place per rank, with what every rank gave: anything that pickles."""
    object_list[:] = communicator().all_gather_object(obj)


def gather_object(
    obj: object, object_gather_list: list[object] | None = None, dst: int = 0
) -> None:
    """Fill the list of rank `dst` with what every rank gave; other ranks need none."""
    found = communicator().all_gather_object(obj)
    if get_rank() == dst and object_gather_list is not None:
        object_gather_list[:] = found


def broadcast_object_list(object_list: list[object], src: int = 0) -> None:
    """Replace the objects of a list by those of rank `src`."""
    ranks = communicator()
    found = ranks.broadcast_object(list(object_list), _rank(src, ranks))
    assert isinstance(found, list)
    object_list[:] = found


# ---------------------------------------------------------------------------------- many arrays


def average(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the means of arrays over all ranks, reduced in buckets of up to 25 MB.

    Parameters
    ----------
    arrays : list of ndarray
        As many, of the same shapes and dtypes, on all ranks.
    """
    ranks = communicator()
    if ranks.size == 1:
        return list(arrays)
    made: list[np.ndarray | None] = [None] * len(arrays)
    for places in _buckets(arrays):
        xp = np if isinstance(arrays[places[0]], np.ndarray) else None
        if xp is None or len(places) == 1:  # on a GPU, each for itself: no copy is made
            for i in places:
                mean = (ranks.all_reduce(arrays[i]) / ranks.size).astype(arrays[i].dtype)
                made[i] = mean if xp is None else xp.asarray(mean)  # a quotient of 0-d is a number
            continue
        total = ranks.all_reduce(np.concatenate([arrays[i].reshape(-1) for i in places]))
        total /= ranks.size
        at = 0
        for i in places:
            made[i] = total[at : at + arrays[i].size].reshape(arrays[i].shape)
            at += arrays[i].size
    return [x for x in made if x is not None]


def _buckets(arrays: list[np.ndarray]) -> Iterable[list[int]]:
    """Places of arrays that are reduced together: of one dtype, up to so many bytes."""
    open_: dict[str, tuple[list[int], int]] = {}
    for i, array in enumerate(arrays):
        places, size = open_.get(array.dtype.str, ([], 0))
        if places and size + array.nbytes > BUCKET:
            yield places
            places, size = [], 0
        open_[array.dtype.str] = [*places, i], size + array.nbytes
    for places, _ in open_.values():
        yield places


def check_equal(arrays: Mapping[str, np.ndarray], what: str) -> None:
    """See that named arrays have the same bits on all ranks, by checksums.

    Raises
    ------
    DistributedError
        If one does not; it names the first, and the ranks that differ from rank 0.
    """
    ranks = communicator()
    if ranks.size == 1:
        return
    sums = {n: zlib.crc32(np.ascontiguousarray(x).tobytes()) for n, x in arrays.items()}
    found = ranks.all_gather_object(sums)
    first = found[0]
    assert isinstance(first, dict)
    for name in first:
        other = [
            r for r, x in enumerate(found) if isinstance(x, dict) and x.get(name) != first[name]
        ]
        if other:
            raise DistributedError(
                f"{what}: the ranks have drifted apart",
                expected=f"the same bits of {name!r} on all {ranks.size} ranks",
                got=f"others on rank{'s' * (len(other) > 1)} {', '.join(map(str, other))}",
                fix="let nothing that ranks have of their own (a clock, a generator with its own "
                "seed, another checkpoint) change parameters or positions",
            )


def hurry(seconds: float = 2.0) -> None:
    """Let this process wait for no other longer than so many seconds from now: it is to end."""
    if _current is not None:
        _current.hurry(seconds)


def note_checkpoint(newest: Callable[[], str]) -> None:
    """Tell where the newest checkpoint of the run lies, for the errors of ranks that are lost."""
    if _current is not None:
        _current.last_checkpoint = newest


def _rank(src: int, ranks: Communicator) -> int:
    if not 0 <= src < ranks.size:
        raise ArgumentError(
            "broadcast(src=...)",
            expected=f"a rank below {ranks.size}",
            got=str(src),
            fix="ranks count from 0",
        )
    return src


def _array(tensor: TensorBase | np.ndarray) -> np.ndarray:
    return tensor.array if isinstance(tensor, TensorBase) else tensor


def _write(tensor: TensorBase | np.ndarray, array: np.ndarray) -> None:
    if isinstance(tensor, TensorBase):
        overwrite(tensor, array.astype(tensor.array.dtype, copy=False))
    else:
        tensor[...] = array
