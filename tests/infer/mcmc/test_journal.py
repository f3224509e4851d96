"""Journals: what chains drew since the last checkpoint is there after a kill, to the bit."""

import os
import random
import signal
import struct
import subprocess
import sys
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch.core.tree import record
from probtorch.infer import HMC, MCMC, NUTS, Checkpoint, ReplicaExchange, Target
from probtorch.infer.mcmc import chain, journal
from probtorch.infer.mcmc.journal import ChainJournal, caught_up
from probtorch.infer.mcmc.kernel import statistic
from probtorch.serialization import load
from tests.infer.mcmc.killed_chains import in_memory

SCRIPT = Path(__file__).with_name("killed_chains.py")
ROOT = Path(__file__).parents[3]


class Crash(Exception):
    """What breaks a run off."""


# ---------------------------------------------------------------------------------------- the files


@record
class Info:
    lp: object = statistic("lp")
    hidden: object = statistic()


def stand(iteration, extensions=(), metric=None):
    learner = {"pending": [], "seen": np.float64(2.5), "pair": (1, None)}
    return {
        "leaves": [np.zeros(3) if metric is None else metric, np.array(iteration)],
        "iteration": iteration,
        "extensions": list(extensions),
        "learner": learner,
        "draws": {"seen": 10},
        "warmup": None,
    }


def wrote(folder, counts, first=10, metric=None, extensions=()):
    """A journal with a record of so many draws for each count; draws are their numbers."""
    found, at = ChainJournal(folder, 0, Info, first, [], len(extensions)), first
    for count in counts:
        numbers = np.arange(at, at + count, dtype=float)
        info = Info(lp=-numbers, hidden=numbers)
        at += count
        found.add(True, numbers[:, None], info, float(count), at)
        found.write(stand(at, extensions, metric))
    found.end()
    return found


def read(folder, iteration=10, extensions=()):
    (found,), (drawn,) = caught_up(folder, [stand(iteration, extensions)])
    numbers = [s.positions[:, 0] for s in drawn]
    for s in drawn:
        np.testing.assert_array_equal(s.stats["lp"], -s.positions[:, 0])
        assert set(s.stats) == {"lp"} and (s.info(Info).hidden == 0.0).all()
    return found, np.concatenate([np.zeros(0), *numbers])


def test_records_are_read_as_they_were_written(tmp_path):
    metric = np.random.default_rng(0).normal(size=(50, 50))
    wrote(tmp_path, [3, 1, 4], metric=metric)
    found, numbers = read(tmp_path)
    np.testing.assert_array_equal(numbers, np.arange(10, 18))
    expected = stand(18, metric=metric)
    assert found["leaves"][0].tobytes() == metric.tobytes()
    assert found["leaves"][1] == 18 and found["leaves"][1].dtype == np.int64
    assert found["learner"] == expected["learner"]
    assert type(found["learner"]["seen"]) is np.float64 and found["learner"]["pair"] == (1, None)
    assert found["draws"] == {"seen": 10}  # of the checkpoint
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < 1.2 * metric.nbytes  # a metric that stays is written once


def test_what_follows_without_a_gap_counts_and_nothing_else(tmp_path):
    wrote(tmp_path, [5, 5])
    assert read(tmp_path, iteration=12)[1].tolist() == list(range(12, 20))
    assert read(tmp_path, iteration=20)[0]["iteration"] == 20
    assert read(tmp_path, iteration=9)[1].size == 0
    assert read(tmp_path, extensions=[30])[1].size == 0
    wrote(tmp_path, [6], first=17)  # of the process after
    assert read(tmp_path)[1].tolist() == list(range(10, 23))
    wrote(tmp_path, [6], first=24)
    assert read(tmp_path)[1].tolist() == list(range(10, 23))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "not ours", "header"])
def test_a_file_counts_up_to_what_does_not_fit(tmp_path, damage):
    wrote(tmp_path, [2, 2, 2])
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[:-5]
    elif damage == "flipped":
        data[-5] ^= 1
    elif damage == "empty":
        data = b""
    elif damage == "not ours":
        data = b"something else"
    else:  # whole, with a header that says nothing
        body = struct.pack("<I", 2) + b"[]"
        data = data + struct.pack("<QI", len(body), zlib.crc32(body)) + body
    path.write_bytes(data)
    expected = {"cut": 14, "flipped": 14, "header": 16}.get(damage, 10)
    assert read(tmp_path)[1].tolist() == list(range(10, expected))


def test_files_go_with_the_checkpoints_that_need_them(tmp_path):
    found = wrote(tmp_path, [5])
    assert len(list(tmp_path.iterdir())) == 1
    found.turn(before=14)
    assert len(list(tmp_path.iterdir())) == 1
    found.turn(before=15)
    assert not list(tmp_path.iterdir())


def test_cheap_draws_and_a_full_disk_keep_no_journal(tmp_path, monkeypatch):
    found = ChainJournal(tmp_path, 0, Info, 0, [], 0)
    some = np.zeros((100, 1)), Info(lp=np.zeros(100), hidden=np.zeros(100))
    assert not found.add(True, *some, 100 * journal.CHEAP / 3, 100)
    assert found.kept is False and found.since == 100
    for i in range(2, 40):  # they have become dear
        found.add(True, *some, 150 * journal.CHEAP, 100 * i)
    assert found.kept and 100 < found.since < 3900
    assert found.fitting() >= journal.DRAWS

    def no_room(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_room)
        found.write(stand(3900))
    found.add(True, *some, 1.0, 4000)
    assert found.kept is False
    found.turn(before=0)
    found.add(True, *some, 1.0, 4100)
    assert found.kept and found.since == 4000


# ---------------------------------------------------------------------------------- runs broken off


@pytest.fixture
def eager(monkeypatch):
    """A record after every call, of a transition each."""
    for name, value in {"CHEAP": 0.0, "PER_BYTE": 0.0, "DRAWS": 1, "SHARE": 1e9}.items():
        monkeypatch.setattr(journal, name, value)
    monkeypatch.setattr(chain, "CALL_SECONDS", 0.0)


def hills(q):
    return probtorch.logaddexp(-0.5 * (q * q).sum(), -90.0 - 0.5 * ((q - 40.0) ** 2).sum())


def target():
    sd = probtorch.tensor([1.0, 0.1, 3.0])
    return Target.from_density(lambda q: -0.5 * ((q / sd) ** 2).sum(), 3)


RUNS = {
    "NUTS": (lambda: NUTS(target()), None),
    "dense NUTS": (lambda: NUTS(target(), full_mass=True), None),
    "replicas": (lambda: ReplicaExchange(HMC(target(), num_steps=3)), None),
    # Chain 1 begins in a mode without weight, and is sent elsewhere when the warm-up is over.
    "moved": (lambda: NUTS(Target.from_density(hills, 2)), np.array([[0.5, 0.0], [40.0, 40.0]])),
}


def run(name, folder=None, crash=None, store=None):
    """Run, or break off as a kill does, after transition `crash` of a chain."""
    seen = []

    def hook(kernel, params, stage, i):
        if i in (40, 41):
            time.sleep(0.1)  # for the main thread to write a checkpoint
        if i == crash:
            seen.append(i)
            raise Crash

    make, starts = RUNS[name]
    mcmc = MCMC(
        make(), 80, 120, num_chains=2, thinning=3, keep_warmup=True, seed=3, hook_fn=hook,
        progress_bar=False,
    )  # fmt: skip
    mcmc.diagnose = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", probtorch.diagnostics.InferenceWarning)
        return mcmc.run(init_params=starts, checkpoint=folder, store=store)


def everything(draws):
    """All arrays of a result, as bytes by name."""
    groups = {"posterior": draws.posterior, "stats": draws.sample_stats, **draws.groups}
    return {(g, n): x.tobytes() for g, arrays in groups.items() for n, x in arrays.items()}


@pytest.mark.parametrize(
    "name", ["NUTS", "moved", *(pytest.param(n, marks=pytest.mark.slow) for n in list(RUNS)[1:3])]
)
def test_a_run_whose_last_checkpoint_is_old_goes_on_where_it_was(
    name, eager, tmp_path, monkeypatch
):
    expected, save, allowed = everything(run(name)), Checkpoint.try_to_save, [1, 0]

    def seldom(checkpoint, step, values=None):
        """One checkpoint of the first process, and none later: as if all had been killed."""
        if not allowed[0]:
            return False
        allowed[0] -= 1
        return save(checkpoint, step, values)

    monkeypatch.setattr(Checkpoint, "try_to_save", seldom)
    for crash in (60, 97, 119, 121, 160, 199):
        with pytest.raises(Crash):
            run(name, tmp_path, crash)
        (path,) = Checkpoint(tmp_path).files()
        base = load(path)["values"]["chains"]
        stands, _ = caught_up(tmp_path, base)
        if name != "moved" or crash < 120:  # what follows is drawn anew after each kill
            assert stands[0]["iteration"] == crash
    assert base[0]["iteration"] < 120
    monkeypatch.setattr(Checkpoint, "try_to_save", save)
    assert everything(run(name, tmp_path)) == expected
    assert not list(tmp_path.glob("*.journal"))


def test_draws_on_the_disk_are_caught_up_too(eager, tmp_path, monkeypatch):
    expected, save, written = everything(run("NUTS")), Checkpoint.try_to_save, []

    def once(checkpoint, step, values=None):
        written.append(step)
        return len(written) == 1 and save(checkpoint, step, values)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "try_to_save", once)
        with pytest.raises(Crash):
            run("NUTS", tmp_path, 170, store=tmp_path)
    (path,) = Checkpoint(tmp_path).files()
    (first, _), _ = caught_up(tmp_path, load(path)["values"]["chains"])
    assert first["iteration"] == 170
    draws = run("NUTS", tmp_path, store=tmp_path)
    assert everything(draws) == expected


# ------------------------------------------------------------------------------------- real kills


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_kill_loses_at_most_fifty_draws_of_a_chain(kills, tmp_path):
    """Draws take 2 ms; a record every 25 is what is paid for here."""
    length, rng, lost, reached = 150 * kills, random.Random(kills), [], 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), "journal", str(length), str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as server:
        for _ in range(kills):
            server.stdin.write(b"\n")
            server.stdin.flush()
            child = int(server.stdout.readline())
            made = rng.randrange(160, 240)  # of both chains; a checkpoint is there after 60
            assert server.stdout.read(made) == b"." * made, "the run failed"
            time.sleep(rng.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
            made += len(server.stdout.readline()) - 1
            base = load(Checkpoint(tmp_path).files()[0])["values"]["chains"]
            now = sum(c["iteration"] for c in caught_up(tmp_path, base)[0])
            lost.append(reached + made - now)
            reached = now
        server.stdin.close()
    assert max(lost) <= 2 * 50
    print(f"{kills} kills, at most {max(lost)} draws of both chains lost")
    whole = in_memory(length, None)
    assert everything(in_memory(length, tmp_path)) == everything(whole)
