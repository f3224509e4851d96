"""Jobs on executors: what is sent, what dies, what is told."""

import multiprocessing
import os
import signal
import threading
import time
import warnings
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.control import Control
from probtorch.infer.remote import jobs as jobs_module
from probtorch.infer.remote import parcels, pools
from probtorch.infer.remote.jobs import Crew, Job
from probtorch.infer.remote.parcels import pack
from probtorch.infer.remote.pools import Pool
from tests.infer.remote.forked import forked_pool, quiet

pytestmark = quiet


class Sum(Job):
    """Add numbers, one a task."""

    def __init__(self, name, numbers):
        self.name, self.numbers, self.total, self.error = name, list(numbers), 0, None

    def argument(self):
        return self.numbers[0]

    def take(self, result):
        self.total += result
        del self.numbers[0]
        return not self.numbers

    def fail(self, error):
        self.error = error

    def where(self):
        return f" with {len(self.numbers)} numbers to go"


def scaled(shared, x):
    if x == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if x == "raise":
        raise ZeroDivisionError("by the test")
    if x == "warn":
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("doubtful", UserWarning, stacklevel=2)
        return 0
    time.sleep(0.01)
    return shared["scale"] * x


def done(executor, jobs, *, shared=None):
    with Crew(executor, scaled, pack(shared or {"scale": 2}, "numbers")) as crew:
        crew.run(jobs, Control())
    return crew


def test_jobs_of_several_tasks_come_back_from_threads_and_processes():
    for make in (lambda: ThreadPoolExecutor(2), forked_pool):
        jobs = [Sum(f"sum {i}", range(i, i + 3)) for i in range(5)]
        done(make, jobs)
        assert [job.total for job in jobs] == [2 * (3 * i + 3) for i in range(5)]


def test_job_that_kills_its_workers_is_named_and_the_others_are_done():
    jobs = [Sum("sum 0", [1, 2]), Sum("sum 1", [1, "die", 2]), Sum("sum 2", [3, 4, 5])]
    with forked_pool() as pool:
        done(pool, jobs)
    assert [job.total for job in jobs] == [6, 2, 24]
    assert jobs[0].error is None and jobs[2].error is None
    told = str(jobs[1].error)
    assert "sum 1 was given up" in told and "4 that did not with 2 numbers to go" in told
    assert "signal SIGKILL" in told and "last heard of from process" in told


def test_errors_of_a_job_keep_their_type_and_say_where_they_were_raised():
    jobs = [Sum("sum 0", ["raise"]), Sum("sum 1", [1])]
    done(forked_pool, jobs)
    assert isinstance(jobs[0].error, ZeroDivisionError) and jobs[1].total == 2
    assert "on process" in jobs[0].error.__notes__[0]


def test_warnings_of_workers_come_once():
    crew = done(forked_pool, [Sum("sum 0", ["warn", "warn", 1]), Sum("sum 1", ["warn"])])
    with pytest.warns(UserWarning, match=r"(?s)doubtful.*on process") as found:
        crew.warn(2)
    assert len(found) == 1


def test_arguments_that_cannot_be_sent_are_told_and_the_others_are_done():
    jobs = [Sum("sum 0", [1, 2]), Sum("sum 1", [threading.Lock()]), Sum("sum 2", [lambda: 1])]
    with forked_pool() as pool:
        done(pool, jobs)
    assert jobs[0].total == 6 and jobs[0].error is None
    for job in jobs[1:]:
        assert f"{job.name} cannot be sent" in str(job.error) and "pickle" in str(job.error)


def test_workers_that_retire_are_not_missed(monkeypatch):
    monkeypatch.setattr(pools, "ENDING", 0.0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as executor:
        pool = Pool(executor)
        for number in range(2):
            future = pool.submit(abs, -number)
            while not future.done():
                pool.watch()
                time.sleep(0.05)
            assert future.result() == number
        assert pool.renew() and pool.executor._max_tasks_per_child == 1
        pool.close()


class Ending:
    """A process whose exit status is known when it was asked for so many times."""

    def __init__(self, status, looks):
        self.status, self.looks = status, looks

    @property
    def exitcode(self):
        self.looks -= 1
        return None if self.looks > 0 else self.status


@pytest.mark.parametrize("looks", [(1, 1), (1, 4), (4, 1)], ids=str)
def test_a_worker_that_died_is_told_of_and_not_those_that_its_pool_ended(looks):
    with ThreadPoolExecutor(1) as threads:
        pool = Pool(threads)
        ended = zip((-signal.SIGTERM, 3), looks)
        pool._processes = {7 + i: Ending(*each) for i, each in enumerate(ended)}
        assert pool.ends() == "process 8 ended with exit status 3"
        pool._processes = {7: Ending(-signal.SIGTERM, 2)}
        assert pool.ends() == "process 7 ended with signal SIGTERM"


def test_large_models_are_sent_to_workers_that_have_not_got_them(monkeypatch):
    monkeypatch.setattr(jobs_module, "SMALL", 0)
    job = Sum("sum", [1, 2, 3, 4])
    sent = []
    original = jobs_module.task_of

    def counted(fn, shared, argument):
        sent.append(shared.data is not None)
        return original(fn, shared, argument)

    monkeypatch.setattr(jobs_module, "task_of", counted)
    done(lambda: ThreadPoolExecutor(1), [job], shared={"scale": 3, "data": bytes(1000)})
    assert job.total == 30
    assert sent == [False, True, False, False, False]


def test_executor_that_loses_all_tasks_is_told_of_once():
    class Loses(Executor):
        def submit(self, fn, *args):
            future = Future()
            future.set_exception(ConnectionError("no such cluster"))
            return future

    jobs = [Sum(f"sum {i}", [1]) for i in range(100)]
    done(Loses(), jobs)
    assert all("no such cluster" in str(job.error) for job in jobs)


def test_what_is_queued_is_cancelled_and_what_runs_is_kept():
    control, jobs = Control(), [Sum(f"sum {i}", [1] * 1000) for i in range(50)]
    with Crew(lambda: ThreadPoolExecutor(1), scaled, pack({"scale": 1}, "numbers")) as crew:
        threading.Timer(0.1, control.stop).start()
        crew.run(jobs, control)
    assert 1 <= sum(job.total for job in jobs) < 50
    assert all(job.error is None for job in jobs)


def test_executor_that_is_shut_down_is_refused():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(InferenceError, match=r"(?s)takes tasks.*shutdown.*with block"):
        done(pool, [Sum("sum", [1])])


def test_what_cannot_travel_is_refused():
    with pytest.raises(ArgumentError, match=r"(?s)a model that can be sent.*lock.*as arrays"):
        pack(threading.Lock(), "a model")


def test_without_cloudpickle_closures_say_what_to_install(monkeypatch):
    monkeypatch.setattr(parcels, "cloudpickle", None)
    with pytest.raises(ArgumentError, match=r"(?s)expected: a model.*probtorch\[parallel\]"):
        pack(lambda: None, "a model")
