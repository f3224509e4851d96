"""Ranks as processes of this machine: what they exchange, and how they fail."""

import os
import signal
import sys
import time
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest

import probtorch
from probtorch.distributed import (
    Communicator,
    DistributedError,
    ReduceOp,
    all_gather_object,
    all_reduce,
    barrier,
    broadcast,
    broadcast_object_list,
    destroy_process_group,
    gather_object,
    get_backend,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    local_rows,
    mpi,
    spawn,
)
from probtorch.distributed.group import average, check_equal, communicator, note_checkpoint
from probtorch.errors import ArgumentError, DeviceError
from probtorch.infer import SVI
from probtorch.optim import SGD

# Sums of these depend on their order.
PARTS = np.random.default_rng(0).normal(size=(4, 1000)) * 10.0 ** np.arange(4)[:, None]


def test_process_without_a_group_is_the_only_rank():
    x = probtorch.tensor([1.0, 2.0])
    all_reduce(x)
    broadcast(x)
    barrier()
    found = [None]
    all_gather_object(found, "here")
    assert (get_rank(), get_world_size(), get_backend(), is_initialized()) == (0, 1, "alone", False)
    assert x.tolist() == [1.0, 2.0] and found == ["here"]


def exchange(rank):
    total = probtorch.tensor(PARTS[rank])
    all_reduce(total)
    mean = np.array([rank, 10 * rank])
    all_reduce(mean, ReduceOp.AVG)
    sent = probtorch.tensor([float(rank)])
    broadcast(sent, src=2)
    everywhere, at_one, objects = [None] * 4, [None] * 4, [rank, "x"]
    all_gather_object(everywhere, {"rank": rank})
    gather_object(rank, at_one, dst=1)
    broadcast_object_list(objects, src=3)
    parts = average([np.full(3, float(rank)), np.array(rank, np.float32), np.ones((2, 2))])
    scalar = communicator().all_reduce(np.array(float(rank)))
    assert isinstance(scalar, np.ndarray) and scalar.shape == () and scalar == 6.0
    check_equal({"total": total.numpy()}, "a test")
    barrier()
    return total.numpy(), mean, sent.item(), everywhere, at_one, objects, parts, local_rows(10)


def test_four_ranks_exchange_numbers_and_objects():
    found = spawn(exchange, nprocs=4, timeout=60)
    in_order = PARTS[0] + PARTS[1] + PARTS[2] + PARTS[3]
    for rank, (total, mean, sent, everywhere, at_one, objects, parts, _) in enumerate(found):
        assert total.tobytes() == in_order.tobytes()
        assert mean.tolist() == [1, 15]
        assert sent == 2.0
        assert everywhere == [{"rank": r} for r in range(4)]
        assert at_one == ([0, 1, 2, 3] if rank == 1 else [None] * 4)
        assert objects == [3, "x"]
        assert [x.tolist() for x in parts] == [[1.5] * 3, 1.5, [[1.0, 1.0], [1.0, 1.0]]]
        assert isinstance(parts[1], np.ndarray) and parts[1].dtype == np.float32
    rows = [x[-1] for x in found]
    assert rows == [slice(0, 3), slice(3, 6), slice(6, 8), slice(8, 10)]


def killed(rank, folder):
    note_checkpoint(lambda: folder)
    barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    barrier()


def test_killed_rank_ends_the_run_at_once_with_its_number_and_the_last_checkpoint():
    began = time.perf_counter()
    with pytest.raises(DistributedError, match="rank 1 of 3 failed") as caught:
        spawn(killed, ("runs/step-000000100.ckpt",), 3, timeout=100)
    assert time.perf_counter() - began < 30
    assert "killed by SIGKILL" in caught.value.got
    assert "last checkpoint: runs/step-000000100.ckpt" in caught.value.got


def raising(rank):
    if rank == 2:
        raise ValueError("no such file")
    barrier()


def test_error_of_a_rank_is_that_of_the_run(capfd):
    with pytest.raises(DistributedError, match="rank 2 of 3 failed") as caught:
        spawn(raising, nprocs=3, timeout=60)
    assert "ValueError: no such file" in caught.value.got
    assert "in raising" in capfd.readouterr().err


def stuck(rank):
    if rank == 1:
        time.sleep(60)
    try:
        barrier()
    except DistributedError as error:
        return str(error)


def stuck_for_one(rank):
    said = stuck(rank)
    os._exit(3 if "rank 1 did not come within 0.5 s" in said else 4)


def test_rank_that_does_not_come_is_named_when_the_time_is_up():
    with pytest.raises(DistributedError, match="rank 0 of 2 failed") as caught:
        spawn(stuck_for_one, nprocs=2, timeout=0.5)
    assert "exit code 3" in caught.value.got


def not_read(rank, gathers):
    if rank == 0:
        time.sleep(60)
    ranks = communicator()
    try:
        if gathers:  # short ones, which nobody answers
            for _ in range(10_000):
                ranks.gather(b"x" * 1000)
        else:
            ranks.all_reduce(np.zeros(1_000_000))
    except DistributedError as error:
        os._exit(3 if "rank 0 did not take what was sent within 0.5 s" in str(error) else 4)


@pytest.mark.parametrize("gathers", [False, True])
def test_rank_that_does_not_read_is_named_when_the_time_is_up(gathers):
    began = time.perf_counter()
    with pytest.raises(DistributedError, match="rank 1 of 2 failed") as caught:
        spawn(not_read, (gathers,), nprocs=2, timeout=0.5)
    assert "exit code 3" in caught.value.got
    assert time.perf_counter() - began < 30


def diverging(rank):
    if rank == 1:
        return communicator().all_gather_object(1)
    barrier()


def test_ranks_that_reach_different_calls_are_told_of():
    with pytest.raises(DistributedError) as caught:
        spawn(diverging, nprocs=2, timeout=60)
    assert "rank 1 reached another call" in caught.value.got


def unpicklable(rank):
    return lambda: rank


def test_result_that_does_not_pickle_is_told_of():
    with pytest.raises(DistributedError) as caught:
        spawn(unpicklable, nprocs=2, timeout=60)
    assert "what rank 0 returned does not pickle" in caught.value.got


def drifting(rank):
    check_equal({"a": np.zeros(2), "b": np.full(2, float(rank == 1))}, "step 100")


def test_parameters_that_differ_are_named():
    with pytest.raises(DistributedError) as caught:
        spawn(drifting, nprocs=2, timeout=60)
    assert "step 100: the ranks have drifted apart" in caught.value.got


class Doubling(Communicator):
    """Two ranks that are always equal."""

    backend = "doubling"

    def all_reduce(self, array):
        return 2 * array

    def broadcast(self, payload, src=0):
        return payload

    def gather(self, payload, dst=0):
        return [payload] * 2


def test_group_may_be_made_of_a_communicator_of_ones_own():
    init_process_group(Doubling(0, 2))
    try:
        x = probtorch.ones(2)
        all_reduce(x)
        barrier()
        assert x.tolist() == [2.0, 2.0] and get_backend() == "doubling" and get_world_size() == 2
        with pytest.raises(ArgumentError, match="a process without a group"):
            init_process_group("alone")
        with pytest.raises(ArgumentError, match="a rank below 2"):
            broadcast(x, src=2)
    finally:
        destroy_process_group()
    assert get_world_size() == 1


class EqualRanks:
    """The calls of an MPI communicator that ours makes, on rank 0 of two ranks that are equal."""

    def Dup(self):
        return self

    def Get_rank(self):
        return 0

    def Get_size(self):
        return 2

    def Iallgather(self, sent, room):
        assert sent.flags.c_contiguous and room.size == 2 * sent.size
        room.reshape(2, -1)[:] = sent.reshape(-1)
        return self

    def Ireduce(self, sent, room, op, root):
        room[...] = 2 * sent
        return self

    def Ibcast(self, room, root):
        return self

    def Igatherv(self, sent, spec, root):
        spec[0].reshape(2, -1)[:] = sent
        return self

    Ibarrier = Dup

    def Test(self):
        return True


def quadratic():
    loc = probtorch.param("loc", probtorch.tensor(1.0))
    probtorch.factor("loss", -((loc - 3.0) ** 2))


@pytest.mark.parametrize("short", [0, mpi.SHORT])
def test_scalars_keep_their_shape_by_mpi(monkeypatch, short):
    package, module = ModuleType("mpi4py"), ModuleType("mpi4py.MPI")
    package.__spec__, package.MPI = ModuleSpec("mpi4py", None), module
    module.COMM_WORLD, module.SUM, module.BYTE = EqualRanks(), "sum", "byte"
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.setattr(mpi, "SHORT", short)
    init_process_group("mpi")
    try:
        total = communicator().all_reduce(np.array(1.5))
        assert isinstance(total, np.ndarray) and total.shape == () and total == 3.0
        rows = communicator().all_reduce(np.arange(6.0).reshape(2, 3).T)
        assert rows.tolist() == [[0, 6], [2, 8], [4, 10]]
        svi = SVI(quadratic, lambda: None, SGD({"lr": 0.25}), distributed=True)
        svi.step()
        assert svi.params["loc"].shape == () and svi.params["loc"].item() == 2.0
    finally:
        destroy_process_group()


def test_bad_arguments_are_refused():
    with pytest.raises(ArgumentError, match="one of 'alone', 'mpi', 'nccl'"):
        init_process_group("gloo")
    with pytest.raises(ArgumentError, match="SUM or"):
        all_reduce(probtorch.ones(2), op="max")
    with pytest.raises(ArgumentError, match="how many processes"):
        spawn(raising, nprocs=0)
    if not probtorch.cuda.is_available():
        with pytest.raises((DeviceError, ArgumentError)):
            init_process_group("nccl")
    assert not is_initialized()
