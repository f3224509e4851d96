"""The loader: what is in the batches, for any number of workers, interrupted or not.

Laws first; then what happens when workers fail, are killed, or lose their parent. Datasets are in
loader_data.py. Every test ends without children.
"""

import collections
import gc
import inspect
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch.errors import ArgumentError
from probtorch.utils import data
from probtorch.utils.data import (
    BucketBatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    WorkerError,
    get_worker_info,
)
from tests.utils.loader_data import (
    Large,
    Noisy,
    Sharded,
    Squares,
    Unsendable,
    Unsharded,
    WhoAmI,
    Wrong,
    first_of,
)

ROOT = Path(__file__).resolve().parents[2]
# A bound for tests that would hang if the loader did; never reached.
PATIENCE = 60


@pytest.fixture(autouse=True)
def _no_children_are_left():
    yield
    if multiprocessing.active_children():
        gc.collect()
    assert multiprocessing.active_children() == []


def plain(batch):
    """Batches as nested lists, to compare them exactly."""
    if isinstance(batch, probtorch.Tensor):
        return batch.tolist()
    return [plain(x) for x in batch] if isinstance(batch, (list, tuple)) else batch


def seeded(dataset, seed=7, **options):
    return DataLoader(dataset, generator=probtorch.Generator(seed), **options)


# --------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_every_sample_comes_once(num_workers):
    loader = seeded(Squares(23), batch_size=4, shuffle=True, num_workers=num_workers)
    batches = list(loader)
    assert [len(x) for x, _ in batches] == [4] * 5 + [3]
    assert len(loader) == 6
    assert collections.Counter(i for x, _ in batches for i in x.tolist()) == collections.Counter(
        range(23)
    )
    assert all((y == x * x).all() for x, y in batches)


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 1}, {"num_workers": 2, "persistent_workers": True},
     {"num_workers": 3, "prefetch_factor": 1}],
    ids=str,
)  # fmt: skip
def test_order_and_draws_do_not_depend_on_the_workers(options):
    alone = seeded(Noisy(23), batch_size=4, shuffle=True)
    helped = seeded(Noisy(23), batch_size=4, shuffle=True, **options)
    epochs = [plain(list(alone)) for _ in range(2)]
    assert [plain(list(helped)) for _ in range(2)] == epochs
    assert epochs[0] != epochs[1]
    draws = [d for _, *columns in epochs[0] + epochs[1] for d in columns[0]]
    assert len(set(draws)) == len(draws) == 46


def test_spawned_workers_make_the_same_batches():
    options = {"batch_size": 5, "shuffle": True}
    spawned = seeded(Noisy(12), num_workers=1, multiprocessing_context="spawn", **options)
    assert plain(list(spawned)) == plain(list(seeded(Noisy(12), **options)))


def test_default_generator_decides_without_another():
    found = []
    for _ in range(2):
        probtorch.manual_seed(3)
        found.append(plain(list(DataLoader(Noisy(10), 3, shuffle=True))))
    assert found[0] == found[1]


def test_loading_leaves_the_streams_of_the_script_alone():
    probtorch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    expected = np.random.rand(), random.random()
    np.random.seed(1)
    random.seed(1)
    list(seeded(Noisy(10), batch_size=2))
    assert (np.random.rand(), random.random()) == expected
    state = probtorch.default_generator.get_state()
    list(seeded(Noisy(10), batch_size=2, shuffle=True))
    assert probtorch.default_generator.get_state() == state


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stream_is_dealt_to_the_workers(num_workers):
    loader = seeded(Sharded(11), batch_size=2, num_workers=num_workers)
    seen = [i for x, _ in loader for i in x.tolist()]
    assert sorted(seen) == list(range(11))
    assert len(loader) == 6
    assert plain(list(loader)) != plain(list(loader))  # new draws in each epoch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_last_batch_can_be_left_out(num_workers):
    options = {"batch_size": 4, "drop_last": True, "num_workers": num_workers}
    assert [len(x) for x, _ in DataLoader(Squares(11), **options)] == [4, 4]
    streamed = [len(x) for x, _ in DataLoader(Sharded(11), **options)]
    assert streamed == [4, 4]
    assert len(DataLoader(Squares(11), **options)) == len(DataLoader(Sharded(11), **options)) == 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_come_as_they_are_without_a_batch_size(num_workers):
    loader = DataLoader(Large(3), batch_size=None, num_workers=num_workers)
    assert [x[0].item() for x in loader] == [0.0, 1.0, 2.0]
    assert len(loader) == 3
    stream = DataLoader(Unsharded(), batch_size=None, num_workers=num_workers)
    assert list(stream) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_own_collate_function_is_used(num_workers):
    loader = DataLoader(Squares(5), 2, collate_fn=first_of, num_workers=num_workers)
    assert list(loader) == [(0, 0), (2, 4), (4, 16)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_empty_dataset_has_no_batches(num_workers):
    assert list(DataLoader(Squares(0), 4, shuffle=True, num_workers=num_workers)) == []
    assert len(DataLoader(Squares(0), 4)) == 0


def test_samplers_decide_the_order():
    assert plain(next(iter(DataLoader(Squares(9), 3, sampler=[8, 0, 4]))))[0] == [8, 0, 4]
    batches = [[0, 5], [1]]
    assert [plain(x) for x, _ in DataLoader(Squares(9), batch_sampler=batches)] == batches
    lengths = [3, 1, 2, 1]
    bucketed = BucketBatchSampler(lengths, 2, shuffle=False)
    assert [plain(x) for x, _ in DataLoader(Squares(4), batch_sampler=bucketed)] == [[1, 3], [2, 0]]


def test_batches_of_tensors_are_those_of_single_samples():
    class Plain(TensorDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)

    tensors = probtorch.randn(20, 3), probtorch.arange(20)
    fast, slow = TensorDataset(*tensors), Plain(*tensors)
    for a, b in [(fast, slow), (Subset(fast, range(3, 17)), Subset(slow, range(3, 17)))]:
        one = seeded(a, batch_size=6, shuffle=True)
        other = seeded(b, batch_size=6, shuffle=True)
        assert one._fetcher.draws_nothing
        assert not other._fetcher.draws_nothing
        assert plain(list(one)) == plain(list(other))


def test_range_dataset_of_the_tutorial():
    class RangeDataset(Dataset):
        def __init__(self, start, end, step=1):
            self.start, self.end, self.step = start, end, step

        def __len__(self):
            return (self.end - self.start) // self.step

        def __getitem__(self, index):
            return self.start + index * self.step

    loader = DataLoader(
        RangeDataset(0, 10), batch_size=4, shuffle=True, num_workers=2, drop_last=True
    )
    batches = list(loader)
    assert [b.shape for b in batches] == [(4,), (4,)]
    seen = [i for b in batches for i in b.tolist()]
    assert len(set(seen)) == 8
    assert set(seen) <= set(range(10))


def test_wrong_length_method_is_reported_with_the_class():
    class RangeDataset(Dataset):
        def __len__(self, length):
            return length

    for shuffle in (False, True):
        loader = DataLoader(RangeDataset(), shuffle=shuffle)
        with pytest.raises(TypeError, match=r"len\(\) of RangeDataset"):
            len(loader)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'length'"):
            next(iter(loader))


# ------------------------------------------------------------------------------------------ workers


def test_workers_know_who_they_are():
    assert get_worker_info() is None
    loader = seeded(WhoAmI(8), num_workers=2, collate_fn=first_of)
    ids, counts, seeds, own, pids = zip(*loader)
    assert ids == (0, 1) * 4
    assert set(counts) == {2}
    assert len(set(seeds)) == 2
    assert all(own)
    assert os.getpid() not in pids


def test_workers_are_kept_if_persistent():
    kept = DataLoader(WhoAmI(4), num_workers=2, persistent_workers=True, collate_fn=first_of)
    fresh = DataLoader(WhoAmI(4), num_workers=2, collate_fn=first_of)
    for loader, same in ((kept, True), (fresh, False)):
        pids = [{pid for *_, pid in loader} for _ in range(2)]
        assert (pids[0] == pids[1]) is same


def test_worker_init_function_runs_once_in_each_worker(tmp_path):
    def note(worker_id):
        with open(tmp_path / f"{worker_id}.{os.getpid()}", "x"):
            pass

    loader = DataLoader(
        Squares(8), num_workers=2, worker_init_fn=note, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    for _ in range(2):
        assert len(list(loader)) == 8
    assert sorted(p.name.split(".")[0] for p in tmp_path.iterdir()) == ["0", "1"]


def test_epoch_given_up_does_not_leak_into_the_next():
    for persistent in (False, True):
        loader = seeded(
            Noisy(40), batch_size=2, shuffle=True, num_workers=2, persistent_workers=persistent
        )
        reference = seeded(Noisy(40), batch_size=2, shuffle=True)
        for loader_epoch in (iter(loader), iter(reference)):
            next(loader_epoch)
        assert plain(list(loader)) == plain(list(reference))


def test_older_iterator_of_shared_workers_is_refused():
    loader = DataLoader(Squares(8), num_workers=1, persistent_workers=True)
    old = iter(loader)
    next(old)
    new = iter(loader)
    with pytest.raises(ArgumentError, match="the iterator of the latest epoch"):
        next(old)
    assert len(list(new)) == 8


def test_batches_may_come_as_they_get_ready():
    loader = DataLoader(Squares(20), 3, num_workers=3, in_order=False)
    assert sorted(i for x, _ in loader for i in x.tolist()) == list(range(20))
    with pytest.raises(ArgumentError, match="in_order=True"):
        loader.state_dict()


def test_stream_read_by_every_worker_is_warned_about():
    loader = DataLoader(Unsharded(), 2, num_workers=2)
    with pytest.warns(UserWarning, match="each of the 2 workers read all of Unsharded"):
        seen = [i for x in loader for i in x.tolist()]
    assert sorted(seen) == sorted([0, 1, 2, 3, 4] * 2)


def test_batches_larger_than_a_pipe_are_loaded_ahead():
    loader = DataLoader(Large(6), 2, num_workers=2, timeout=PATIENCE)
    assert [x[:, 0].tolist() for x in loader] == [[0, 1], [2, 3], [4, 5]]


# ------------------------------------------------------------------------------------------- resume


RESUMABLE = {
    "in order": lambda g: {"dataset": Noisy(23)},
    "shuffled": lambda g: {"dataset": Noisy(23), "shuffle": True, "generator": g},
    "sampler's generator": lambda g: {
        "dataset": Noisy(23),
        "sampler": RandomSampler(range(23), generator=g),
    },
    "weighted": lambda g: {
        "dataset": Noisy(23),
        "sampler": WeightedRandomSampler(np.ones(23), 23, generator=g),
        "generator": probtorch.Generator(99),
    },
    "tensors": lambda g: {
        "dataset": TensorDataset(probtorch.arange(23)),
        "shuffle": True,
        "generator": g,
    },
    "stream": lambda g: {"dataset": Sharded(23), "generator": g},
}


@pytest.mark.parametrize(
    "name, workers",
    # Whether a worker began or goes on is all the same to most; the rest are for the nightly run.
    [
        pytest.param(
            n, w, marks=[] if w == (2, 2) or (n, w) == ("stream", (0, 2)) else [pytest.mark.slow]
        )
        for n in RESUMABLE
        for w in ((0, 0), (2, 2), (0, 2))
    ],
    ids=str,
)
def test_resumed_epoch_goes_on_exactly(name, workers):
    if name == "stream" and workers[0] != workers[1]:
        workers = (workers[1], workers[1])

    def make(seed, num_workers):
        options = RESUMABLE[name](probtorch.Generator(seed))
        return DataLoader(batch_size=3, num_workers=num_workers, **options)

    probtorch.manual_seed(4)
    whole = make(1, workers[0])
    expected = [plain(list(whole)) for _ in range(3)]
    end = probtorch.default_generator.get_state()
    for done in (1, 8):
        probtorch.manual_seed(4)
        first = make(1, workers[0])
        assert plain(list(first)) == expected[0]
        epoch = iter(first)
        begun = [plain(next(epoch)) for _ in range(done)]
        saved = json.loads(json.dumps(first.state_dict()))
        process = probtorch.default_generator.get_state()
        del epoch

        probtorch.manual_seed(1234)
        second = make(77, workers[1])
        second.load_state_dict(saved)
        assert second.state_dict() == saved
        probtorch.default_generator.set_state(process)
        assert begun + plain(list(second)) == expected[1]
        assert plain(list(second)) == expected[2]
        assert probtorch.default_generator.get_state() == end


def test_state_between_epochs_begins_the_next():
    first = seeded(Noisy(10), batch_size=3, shuffle=True)
    list(first)
    saved = first.state_dict()
    assert saved["start"] is None
    second = seeded(Noisy(10), seed=8, batch_size=3, shuffle=True)
    second.load_state_dict(saved)
    assert plain(list(second)) == plain(list(first))


def test_state_of_another_kind_of_loader_is_refused():
    one = DataLoader(Squares(4), sampler=RandomSampler(range(4), generator=probtorch.Generator(1)))
    two = DataLoader(Squares(4))
    with pytest.raises(ArgumentError, match="states of 1 generators"):
        two.load_state_dict(one.state_dict())


def test_own_sampler_that_draws_when_it_is_first_asked_is_resumed_too():
    class Late(Sampler):
        def __len__(self):
            return 12

        def __iter__(self):
            yield from probtorch.randperm(12).tolist()

    probtorch.manual_seed(9)
    expected = plain(list(DataLoader(Noisy(12), 3, sampler=Late())))
    probtorch.manual_seed(9)
    loader = DataLoader(Noisy(12), 3, sampler=Late())
    epoch = iter(loader)
    begun = [plain(next(epoch)) for _ in range(2)]
    probtorch.manual_seed(10)
    resumed = DataLoader(Noisy(12), 3, sampler=Late())
    resumed.load_state_dict(loader.state_dict())
    assert begun + plain(list(resumed)) == expected


# ------------------------------------------------------------------------------------------- errors


def until_it_fails(loader):
    seen = []
    for x in loader:
        seen.append(x)
    return seen


@pytest.mark.parametrize("num_workers", [0, 2])
def test_error_in_a_dataset_is_raised_as_it_is(num_workers):
    loader = DataLoader(Wrong(9, "key"), num_workers=num_workers)
    with pytest.raises(KeyError, match="no such picture") as caught:
        until_it_fails(loader)
    if num_workers:
        assert "_key_error" in str(caught.value.__cause__)
        assert "Traceback" in str(caught.value.__cause__)
        note = "Raised in DataLoader worker 1, batch 5, of indices [5]."
        assert caught.value.__notes__ == [note]


def test_error_that_cannot_be_sent_is_described():
    with pytest.raises(WorkerError, match="Secretive: half and half") as caught:
        until_it_fails(DataLoader(Wrong(9, "secretive"), 2, num_workers=2))
    assert "_secretive" in str(caught.value.__cause__)
    assert "batch 2, of indices [4, 5]" in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_stop_iteration_in_a_dataset_does_not_end_the_epoch(num_workers):
    with pytest.raises(ArgumentError, match="Wrong: StopIteration while fetching"):
        until_it_fails(DataLoader(Wrong(9, "stop"), 2, num_workers=num_workers))


def test_sample_that_cannot_be_sent_is_reported():
    with pytest.raises(WorkerError, match="samples that pickle can send") as caught:
        list(DataLoader(Unsendable(3), batch_size=None, num_workers=1))
    assert "lambda" in str(caught.value)
    assert "worker 0" in str(caught.value.__notes__)


def test_error_in_the_init_function_is_raised():
    def broken(worker_id):
        raise OSError(f"no file for worker {worker_id}")

    loader = DataLoader(
        Squares(3), num_workers=1, worker_init_fn=broken, multiprocessing_context="fork"
    )
    with pytest.raises(OSError, match="no file for worker 0"):
        list(loader)


def test_loader_works_again_after_an_error():
    dataset = Wrong(9, "key")
    loader = DataLoader(dataset, num_workers=2, persistent_workers=True)
    with pytest.raises(KeyError):
        until_it_fails(loader)
    dataset.count = 5
    assert plain(until_it_fails(loader)) == [[0], [1], [2], [3], [4]]


def test_dataset_that_cannot_be_spawned_is_reported():
    class Local(Dataset):
        def __len__(self):
            return 1

    with pytest.raises(WorkerError, match="cannot be started by spawn"):
        iter(DataLoader(Local(), num_workers=1, multiprocessing_context="spawn"))


@pytest.fixture
def another_thread():
    """A thread of Python beside this one."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


def how_started(loader):
    batches = iter(loader)
    next(batches)
    return [type(child).__name__ for child in multiprocessing.active_children()]


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the platform's own")


@LINUX
def test_workers_are_forked_where_no_threads_run():
    assert how_started(DataLoader(Squares(3), num_workers=1)) == ["ForkProcess"]


@LINUX
@pytest.mark.usefixtures("another_thread")
def test_workers_are_not_forked_where_threads_run():
    assert how_started(DataLoader(Squares(3), num_workers=1)) == ["ForkServerProcess"]


@LINUX
@pytest.mark.usefixtures("another_thread")
# Python's own word on it, from 3.12 on.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_dataset_that_cannot_be_sent_is_inherited():
    class Local(Squares):
        pass

    assert how_started(DataLoader(Local(3), num_workers=2)) == ["ForkProcess"] * 2


UNGUARDED = """
import threading
from probtorch.utils.data import DataLoader, Dataset
class Mine(Dataset):
    def __len__(self): return 3
    def __getitem__(self, i): return i
def run():
    options = {{"multiprocessing_context": {method!r}}} if {method!r} else {{}}
    print([x.tolist() for x in DataLoader(Mine(), num_workers=1, **options)])
threading.Thread(target=run).start()
"""


@LINUX
@pytest.mark.parametrize("how", ["file", "text"])
def test_a_script_without_a_guard_may_load_in_a_thread(tmp_path, how):
    script, text = tmp_path / "script.py", UNGUARDED.format(method=None)
    script.write_text(text)
    args = [script] if how == "file" else ["-c", text]
    found = subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert found.stdout == "[[0], [1], [2]]\n"


def test_a_script_that_cannot_be_run_again_is_told_what_to_write(tmp_path):
    script = tmp_path / "script.py"
    # In a thread of the worker's it would fail too late now and then.
    text = UNGUARDED.replace("threading.Thread(target=run).start()", "run()")
    script.write_text(text.format(method="spawn"))
    found = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "could not begin" in found.stderr
    assert "below `if __name__ == '__main__':`" in found.stderr


@pytest.mark.parametrize("how, text", [("kill", "killed by signal SIGKILL"),
                                       ("exit", "exited with status 3")])  # fmt: skip
def test_dead_worker_is_reported_with_its_last_batch(how, text):
    loader = DataLoader(Wrong(40, how), 2, num_workers=2, timeout=PATIENCE)
    with pytest.raises(WorkerError, match=text) as caught:
        until_it_fails(loader)
    assert "DataLoader worker 0" in str(caught.value)
    assert "batch 2, of indices [4, 5], under way" in str(caught.value)


@pytest.mark.parametrize("dataset", [Squares(200), Large(200)], ids=["small", "in mid-write"])
def test_worker_killed_from_outside_is_reported(dataset):
    loader = DataLoader(dataset, num_workers=3, timeout=PATIENCE, prefetch_factor=1)
    batches = iter(loader)
    next(batches)
    victim = multiprocessing.active_children()[0]
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=f"pid {victim.pid}. was killed by signal SIGKILL"):
        until_it_fails(batches)
    with pytest.raises(ArgumentError, match="a new one after an error"):
        next(batches)


def test_persistent_worker_killed_between_epochs_is_reported():
    loader = DataLoader(Squares(4), num_workers=1, persistent_workers=True, timeout=PATIENCE)
    list(loader)
    (victim,) = multiprocessing.active_children()
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    with pytest.raises(WorkerError, match="SIGKILL"):
        list(loader)
    assert len(list(loader)) == 4


def test_batch_that_takes_too_long_is_reported():
    loader = DataLoader(Wrong(9, "hang"), num_workers=2, timeout=2.0)
    with pytest.raises(WorkerError, match=r"timed out after 2.0 seconds") as caught:
        until_it_fails(loader)
    assert "batch 5" in str(caught.value)
    assert "worker 1" in str(caught.value)


# --------------------------------------------------------------------------------------- no orphans


SCRIPT = """
import multiprocessing, os, signal, sys, time
# A job in the background begins with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from probtorch.utils.data import DataLoader
from tests.utils.loader_data import Large

loader = DataLoader(Large(1000), num_workers=2, persistent_workers=True)
batches = iter(loader)
next(batches)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
for batch in batches:
    time.sleep(0.05)
"""


def lives(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_no_worker_outlives_the_script(number):
    segments = set(os.listdir("/dev/shm")) if Path("/dev/shm").exists() else set()
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    pids = [int(word) for word in script.stdout.readline().split()]
    assert len(pids) == 2
    if number == signal.SIGINT:
        os.killpg(script.pid, number)  # as a terminal does it
    else:
        script.kill()
    _, errors = script.communicate(timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(lives, pids))
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    if segments:
        assert set(os.listdir("/dev/shm")) <= segments


# ------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    "options, text",
    [
        ({"num_workers": -1}, "non-negative"),
        ({"timeout": -1}, "non-negative"),
        ({"prefetch_factor": 2}, "only be specified in multiprocessing"),
        ({"multiprocessing_context": "fork"}, "only be specified in multiprocessing"),
        ({"persistent_workers": True}, "needs num_workers > 0"),
        ({"num_workers": 1, "prefetch_factor": 0}, "should be positive"),
        ({"num_workers": 1, "multiprocessing_context": "threads"}, "one of"),
        ({"sampler": [0], "shuffle": True}, "mutually exclusive with shuffle"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "mutually exclusive with batch_size"),
        ({"batch_sampler": [[0]], "drop_last": True}, "mutually exclusive with batch_size"),
        ({"batch_size": None, "drop_last": True}, "disables auto-batching"),
        ({"batch_size": 0}, "positive integer"),
        ({"batch_size": 2.0}, "positive integer"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other_are_refused(options, text):
    with pytest.raises(ArgumentError, match=text):
        DataLoader(Squares(3), **options)


def test_stream_takes_no_order():
    for options in ({"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}):
        with pytest.raises(ArgumentError, match="no order can be chosen"):
            DataLoader(Sharded(3), **options)


def test_signatures_are_those_of_torch():
    theirs = pytest.importorskip("torch.utils.data")
    for name in (
        "DataLoader RandomSampler SequentialSampler SubsetRandomSampler WeightedRandomSampler "
        "BatchSampler TensorDataset Subset ConcatDataset ChainDataset"
    ).split():
        mine = inspect.signature(getattr(data, name)).parameters.values()
        expected = inspect.signature(getattr(theirs, name)).parameters.values()
        assert [(p.name, p.default, p.kind) for p in mine] == [
            (p.name, p.default, p.kind) for p in expected
        ]
