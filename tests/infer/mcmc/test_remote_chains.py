"""Chains on executors: the draws of chains in threads, whatever happens to the workers."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import AIES, MCMC, NUTS
from probtorch.infer.control import TimeIsUp
from probtorch.infer.mcmc import chain, remote_chains
from probtorch.infer.mcmc.warm_up import guard
from tests.infer.remote.forked import forked_pool, quiet

pytestmark = quiet
Y = probtorch.tensor([0.3, -0.2, 1.1, 0.4, 0.0])


def schools(y):
    tau = probtorch.sample("tau", dist.HalfNormal(1.0))
    with probtorch.plate("school", len(y)):
        theta = probtorch.sample("theta", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(tau * theta, 1.0), obs=y)


def chains(num_samples=60, warmup_steps=80, kernel=None, **settings):
    named = {"num_chains": 3, "seed": 4, "progress_bar": False, **settings}
    mcmc = MCMC(kernel or NUTS(schools), num_samples, warmup_steps, **named)
    mcmc.diagnose = False
    return mcmc


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    # So that chains travel often.
    monkeypatch.setattr(remote_chains, "FIRST", 0.004)
    monkeypatch.setattr(remote_chains, "LONGEST", 0.004)
    monkeypatch.setattr(chain, "CALL_SECONDS", 0.001)


@pytest.fixture(scope="module")
def pool():
    with forked_pool() as made:
        yield made


def assert_same(a, b):
    np.testing.assert_array_equal(a.positions, b.positions)
    assert a.sample_stats.keys() == b.sample_stats.keys()
    for name, x in a.sample_stats.items():
        np.testing.assert_array_equal(x, b.sample_stats[name])


@pytest.mark.parametrize(
    "settings",
    [
        {"thinning": 7, "keep_warmup": True},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"kernel": AIES(schools), "warmup_steps": 20}, marks=pytest.mark.slow),
    ],
    ids=["thinned, with its warm-up", "nuts", "ensemble"],
)
def test_draws_in_processes_are_those_in_threads(settings, pool):
    settings = {"num_chains": 2, **settings}
    local, remote = chains(**settings), chains(**settings, executor=pool)
    expected, got = local.run(Y), remote.run(Y)
    assert_same(expected, got)
    assert not got.attrs["interrupted"]
    if settings.get("keep_warmup"):
        for name, x in expected.groups["warmup_posterior"].items():
            np.testing.assert_array_equal(x, got.groups["warmup_posterior"][name])
    assert got.attrs["executor"] == "ProcessPoolExecutor"
    # And so is what comes after them.
    assert_same(local.more(50), remote.more(50))


def test_draws_on_threads_of_an_executor_are_the_same():
    with ThreadPoolExecutor(2) as threads:
        assert_same(chains().run(Y), chains(executor=threads).run(Y))


def test_draws_from_elsewhere_are_here_before_it_is_told_how_far_their_chain_is(pool, monkeypatch):
    stand_at, told = chain.ChainRun._stand_at, []

    def noted(self, saved):
        told.append(self.draws.complete >= saved["iteration"] - self.num_warmup)
        stand_at(self, saved)

    monkeypatch.setattr(chain.ChainRun, "_stand_at", noted)
    chains(executor=pool).run(Y)
    assert told and all(told)


def test_chains_whose_warm_up_is_made_longer_are_the_same(pool, monkeypatch):
    monkeypatch.setattr(guard, "ACCEPTANCE_GAP", -1.0)
    expected = chains().run(Y)
    assert expected.attrs["extended_chains"] == [0, 1, 2]
    assert_same(expected, chains(executor=pool).run(Y))


def test_local_checkpoint_goes_on_elsewhere_and_draws_go_to_the_disk(tmp_path, pool):
    expected = chains(thinning=3).run(Y)
    begun = chains(thinning=3, executor=pool)
    handle = begun.run(
        Y, checkpoint=tmp_path / "c", checkpoint_every=0.01, store=tmp_path / "s", blocking=False
    )
    while not any(c.draws for c in handle.progress.chains) and not handle.finished:
        time.sleep(0.005)
    handle.pause()
    handle.resume()
    handle.abort()
    again = chains(thinning=3)
    assert_same(expected, again.run(Y, checkpoint=tmp_path / "c", store=tmp_path / "s"))


def test_worker_that_is_killed_changes_nothing():
    with forked_pool() as pool:
        mcmc = chains(num_samples=10_000, executor=pool)
        handle = mcmc.run(Y, blocking=False)
        while not handle.progress.chains[0].draws and not handle.finished:
            time.sleep(0.005)
        assert not handle.finished
        os.kill(next(iter(pool._processes)), signal.SIGKILL)
        got = handle.result()
    assert_same(chains(num_samples=10_000).run(Y), got)


class Deadly:
    """Ends the processes it travels to, as many as there are files in a folder."""

    def __init__(self, folder):
        self.folder, self.home = folder, os.getpid()

    def __reduce__(self):
        return _arrived, (self.folder, self.home)


def _arrived(folder, home):
    for file in folder.iterdir() if os.getpid() != home else ():
        with contextlib.suppress(FileNotFoundError):  # another process had it
            file.unlink()
            os._exit(3)
    return Deadly(folder)


def deadly_model(folder):
    deadly = Deadly(folder)

    def model():
        probtorch.sample("x", dist.Normal(0.0 if deadly else 1.0, 1.0))

    return model


def test_model_that_ends_its_workers_is_told_of_by_the_chain(tmp_path):
    model = deadly_model(tmp_path)
    (tmp_path / "once").touch()
    expected = chains(kernel=NUTS(model)).run()
    with forked_pool() as pool:
        assert_same(expected, chains(kernel=NUTS(model), executor=pool).run())
    for i in range(100):
        (tmp_path / str(i)).touch()
    told = r"(?s)chain \d was given up.*4 that did not at iteration 0 of 140.*exit status 3"
    with forked_pool() as pool, pytest.raises(InferenceError, match=told):
        chains(kernel=NUTS(model), executor=pool).run()


def test_what_a_model_raises_in_a_worker_is_raised_here(pool):
    home = os.getpid()

    def model():
        probtorch.sample("x", dist.Normal(0.0, 1.0))
        if os.getpid() != home:
            raise LookupError("far from home")

    with pytest.raises(LookupError, match="far from home") as raised:
        chains(kernel=NUTS(model), executor=pool).run()
    assert "in model" in raised.value.__notes__[0]


# After so short a warm-up the step is long for the tails: of half a million transitions, as many as
# a fast machine makes in the time, sixty in a row may be refused.
@pytest.mark.filterwarnings("ignore:chain . stands still")
def test_time_that_is_up_and_ctrl_c_keep_what_was_drawn(pool, monkeypatch, capfd):
    monkeypatch.setattr(remote_chains, "FIRST", 0.02)
    monkeypatch.setattr(remote_chains, "LONGEST", 0.02)
    for seconds in (2.0, 20.0, 100.0):  # on a machine that has no time for the warm-up, more
        with contextlib.suppress(TimeIsUp):
            draws = chains(num_samples=10**7, executor=pool).run(Y, max_seconds=seconds)
            break
    assert draws.attrs["interrupted"] and 0 < draws.num_draws < 10**7

    calls = []
    original = remote_chains.Progress.update

    def update(self):
        original(self)
        calls.append(sum(run.draws.complete for run in self.chains))
        if calls[-1]:
            monkeypatch.setattr(remote_chains.Progress, "update", original)
            raise KeyboardInterrupt

    monkeypatch.setattr(remote_chains.Progress, "update", update)
    draws = chains(num_samples=10**6, executor=pool).run(Y)
    assert draws.attrs["interrupted"] and draws.num_draws >= 1
    assert "interrupted: keeping what was drawn" in capfd.readouterr().err


def test_what_does_not_go_together_is_refused(pool):
    with pytest.raises(ArgumentError, match=r"(?s)hook_fn.*one of them"):
        chains(executor=pool, hook_fn=lambda *_: None)
    with pytest.raises(ArgumentError, match=r"(?s)executor=.*ProcessPoolExecutor"):
        chains(executor=4)


@pytest.mark.slow
def test_draws_on_a_cluster_of_dask_are_the_same():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        for executor in (client, client.get_executor()):
            got = chains(kernel=NUTS(by_value()), executor=executor).run(Y)
        assert_same(chains(kernel=NUTS(by_value())).run(Y), got)


@pytest.mark.slow
def test_draws_on_a_pool_of_mpi_are_the_same():
    pytest.importorskip("mpi4py")
    beside = Path(sys.executable).with_name("mpiexec")
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        pytest.skip("no mpiexec")
    script = Path(__file__).with_name("mpi_chains.py")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]),
        # Of Open MPI, which asks for them; others do not know them.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    command = [launcher, "-n", "3", sys.executable, "-m", "mpi4py.futures", str(script)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert "2 workers, the same: True" in found.stdout, found.stderr


def by_value():
    """The model as a closure: workers that were not forked do not know this module."""

    def model(y):
        tau = probtorch.sample("tau", dist.HalfNormal(1.0))
        with probtorch.plate("school", len(y)):
            theta = probtorch.sample("theta", dist.Normal(0.0, 1.0))
            probtorch.sample("y", dist.Normal(tau * theta, 1.0), obs=y)

    return model
