"""A folder of checkpoints or draws has one writer at a time, and may be moved."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch.distributions import Beta, Binomial, Normal, Poisson
from probtorch.effects import sample
from probtorch.errors import ArgumentError, FileError
from probtorch.infer import (
    ABCSMC,
    AIS,
    MCMC,
    NUTS,
    SMC,
    SVI,
    AutoNormal,
    Checkpoint,
    NestedSampler,
    ParticleGibbs,
    RandomWalk,
    Target,
)
from probtorch.optim import Adam
from probtorch.serialization import claims
from probtorch.serialization.claims import FolderClaim

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="folders are not locked there")


@contextlib.contextmanager
def writer(folder):
    """Another process that writes to a folder, and its number."""
    script = (
        "import sys, time\n"
        "from probtorch.infer import Checkpoint\n"
        f"run = Checkpoint({os.fspath(folder)!r})\n"
        "run.restore()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


def coin(y=None):
    p = sample("p", Beta(1.0, 1.0))
    sample("y", Binomial(10, p), obs=y)


def count(y=None):
    n = sample("n", Poisson(3.0))
    sample("y", Normal(1.0 * n, 1.0), obs=y)


def svi(folder):
    optimizer = Adam({"lr": 0.05})
    fit = SVI(coin, AutoNormal(coin), optimizer, seed=0)
    return fit.run(20, probtorch.tensor(7.0), progress_bar=False, checkpoint=folder)


def mcmc(folder, **options):
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 2)
    run = MCMC(NUTS(target), 30, 50, seed=1, progress_bar=False)
    run.diagnose = False
    return run.run(checkpoint=folder, **options)


def smc(folder):
    return SMC(NUTS(coin), num_particles=50, seed=0, progress_bar=False).run(
        probtorch.tensor(7.0), checkpoint=folder
    )


def ais(folder):
    return AIS(RandomWalk(coin), num_particles=50, seed=0, progress_bar=False).run(
        probtorch.tensor(7.0), checkpoint=folder
    )


def nested(folder):
    sampler = NestedSampler(coin, num_live_points=50, seed=0, progress_bar=False)
    return sampler.run(probtorch.tensor(7.0), checkpoint=folder)


def abc(folder):
    sampler = ABCSMC(coin, num_particles=50, epsilon=1.0, seed=0, progress_bar=False)
    return sampler.run({"y": 7.0}, checkpoint=folder)


def gibbs(folder):
    sampler = ParticleGibbs(count, num_samples=5, num_particles=5, seed=0, progress_bar=False)
    return sampler.run(probtorch.tensor(2.0), checkpoint=folder)


ENGINES = [svi, mcmc, smc, ais, nested, abc, gibbs]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda f: f.__name__)
def test_a_folder_another_process_writes_to_is_refused_until_that_is_dead(engine, tmp_path):
    with writer(tmp_path) as pid, pytest.raises(FileError, match=f"process {pid} on "):
        engine(tmp_path)
    # Killed, it has left its file, which says nothing any more.
    assert (tmp_path / ".lock").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", probtorch.diagnostics.InferenceWarning)
        engine(tmp_path)
        assert not (tmp_path / ".lock").exists()
        engine(tmp_path)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda f: f.__name__)
def test_a_run_that_is_refused_leaves_the_folder_to_others(engine, tmp_path):
    Checkpoint(tmp_path).save(3, {"of": "another kind of run"})
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"another|states of"):
            engine(tmp_path)
    claim = FolderClaim(tmp_path, "somebody", "checkpoints")
    claim.take()
    assert re.fullmatch(rf"process {os.getpid()} on .*\n", (tmp_path / ".lock").read_text())
    claim.drop()


def test_one_process_has_one_run_in_a_folder(tmp_path):
    slow = Target.from_density(lambda q: -0.5 * (q * q).sum(), 2)
    run = MCMC(NUTS(slow), 10**7, 50, seed=1, progress_bar=False)
    run.diagnose = False
    handle = run.run(checkpoint=tmp_path / "run", store=tmp_path / "draws", blocking=False)
    try:
        with pytest.raises(FileError, match="another run in this process"):
            mcmc(tmp_path / "run")
        with pytest.raises(FileError, match="another run in this process"):
            mcmc(None, store=tmp_path / "draws")
        with pytest.raises(probtorch.errors.InferenceError, match="a run in the background"):
            run.more(10)
    finally:
        while not handle.progress.chains[0].draws:
            time.sleep(0.01)
        handle.abort()
    with pytest.raises(ArgumentError, match=r"num_samples=30 \(saved was 10000000\)"):
        mcmc(tmp_path / "run")


def test_checkpoints_of_ones_own_loop_exclude_other_processes_until_they_are_released(tmp_path):
    run = Checkpoint(tmp_path)
    run.save(1)
    other = f"from probtorch.infer import Checkpoint; Checkpoint({str(tmp_path)!r}).save(2)"

    def elsewhere():
        return subprocess.run(
            [sys.executable, "-c", other], cwd=ROOT, check=False, capture_output=True, text=True
        )

    refused = elsewhere()
    assert refused.returncode == 1 and f"process {os.getpid()} on " in refused.stderr
    Checkpoint(tmp_path).restore()  # this process may
    run.release()
    assert elsewhere().returncode == 0
    assert run.restore().step == 2


def test_a_forked_child_does_not_hold_on_to_the_folder_of_its_parent(tmp_path):
    claim = FolderClaim(tmp_path, "parent", "checkpoints")
    claim.take()
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(tells, b".")
            time.sleep(60.0)
        finally:
            os._exit(0)
    try:
        assert os.read(told, 1) == b"."
        claims._held[claim.folder].path = os.devnull + "/none"  # as if it died: nothing is deleted
        claim.drop()
        again = FolderClaim(tmp_path, "another", "checkpoints")
        again.take()
        again.drop()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_where_the_file_system_knows_no_locks_nobody_is_refused(tmp_path, monkeypatch):
    import fcntl

    def unknown(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unknown)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) == 0
    mcmc(tmp_path)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) > 0


def draws_of(seed=2, length=40, **options):
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 2)
    crash = options.pop("crash", None)

    def hook(kernel, params, stage, i):
        if i == crash:
            raise RuntimeError("broken off")

    run = MCMC(
        NUTS(target), length, 60, seed=seed, progress_bar=False,
        hook_fn=None if crash is None else hook,
    )  # fmt: skip
    run.diagnose = False
    return run.run(**options)


def test_a_store_and_its_checkpoints_go_on_where_they_were_moved_to(tmp_path, monkeypatch):
    monkeypatch.setattr("probtorch.infer.mcmc.stored_record.MOST_ROWS", 4)
    whole = draws_of()
    old, new = tmp_path / "old", tmp_path / "new"
    with pytest.raises(RuntimeError, match="broken off"):
        draws_of(crash=25, store=old / "draws", checkpoint=old / "run", checkpoint_every=1e-9)
    shutil.move(old, new)
    again = draws_of(store=new / "draws", checkpoint=new / "run")
    assert np.array_equal(again["x"], whole["x"])
    assert np.array_equal(probtorch.diagnostics.Draws.load(new / "draws")["x"], whole["x"])
    assert not old.exists()


def test_draws_of_an_earlier_release_which_named_their_folder_go_on(tmp_path):
    where = {"store": tmp_path / "draws", "checkpoint": tmp_path / "run"}
    first = draws_of(**where)
    manifest = tmp_path / "draws" / "draws.json"
    was = json.loads(manifest.read_text())
    del was["id"]
    was["settings"]["store"] = "/where/it/was"
    manifest.write_text(json.dumps(was))
    folder = Checkpoint(where["checkpoint"])
    step, values = folder.restore()
    values["settings"]["store"] = "/where/it/was"
    del values["store"]
    folder.save(step, values)
    folder.release()
    assert np.array_equal(draws_of(**where)["x"], first["x"])


def test_a_checkpoint_knows_its_draws_from_those_of_a_run_with_the_same_settings(tmp_path):
    draws_of(store=tmp_path / "a", checkpoint=tmp_path / "run")
    draws_of(store=tmp_path / "b", checkpoint=tmp_path / "other")
    with pytest.raises(ArgumentError, match="draws of another run"):
        draws_of(store=tmp_path / "b", checkpoint=tmp_path / "run")


def test_settings_of_particles_are_refused_with_both_values(tmp_path):
    smc(tmp_path)
    with pytest.raises(ArgumentError, match=r"num_particles=60 \(saved was 50\)"):
        SMC(NUTS(coin), num_particles=60, seed=0, progress_bar=False).run(
            probtorch.tensor(7.0), checkpoint=tmp_path
        )
    with pytest.raises(ArgumentError, match=r"another data \(args\[0\]\)$|data \(args\[0\]\)"):
        SMC(NUTS(coin), num_particles=50, seed=0, progress_bar=False).run(
            probtorch.tensor(8.0), checkpoint=tmp_path
        )
