"""A run that is killed again and again ends as one that never was."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from probtorch.serialization import load

SCRIPT = Path(__file__).with_name("killed_run.py")
ROOT = Path(__file__).parents[2]
# Steps that a run gets before it is killed; how long it lives after the last (seconds: a step takes
# some milliseconds). Every second one is killed where it waits for the disk instead: within one of
# its first syncs, of the new file or of the folder.
MOST_STEPS, LONGEST, SYNCS = 14, 0.015, 6


def started(*args, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    return subprocess.Popen(command, env=environment, **options)


def check_files(folder):
    """Every checkpoint in the folder is whole; returns the steps that the newest has done."""
    newest = 0
    for path in folder.glob("*.ckpt"):
        state = load(path)
        assert len(state["values"]["losses"]) == state["step"] == int(path.name[5:14])
        newest = max(newest, state["step"])
    assert not list(folder.glob("*.damaged"))
    return newest


@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_a_run_killed_at_random_moments_ends_as_one_that_never_was(kills, tmp_path):
    steps, rng, folder = kills * MOST_STEPS + 20, random.Random(kills), tmp_path / "run"
    whole = started(steps, "-", tmp_path / "whole.npz")
    reached, writing = [0], 0
    with started("serve", steps, folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        for kill in range(kills):
            waits = kill % 2 == 1
            server.stdin.write(b"%d\n" % rng.randrange(SYNCS) if waits else b"\n")
            server.stdin.flush()
            child = int(server.stdout.readline())
            if waits:
                while (told := server.stdout.read(1)) == b".":
                    pass
                assert told in (b"f", b"d"), "the run failed"
                writing += told == b"f"
            else:
                wanted = rng.randrange(MOST_STEPS)
                assert len(server.stdout.read(wanted)) == wanted, "the run failed"
                time.sleep(rng.uniform(0.0, LONGEST))
            os.kill(child, signal.SIGKILL)
            server.stdout.readline()
            reached.append(check_files(folder))
        server.stdin.close()
    assert reached == sorted(reached)
    assert len(set(reached)) > kills / 4
    print(f"{kills} kills, {writing} while a checkpoint was written, {len(set(reached))} resumed")
    assert writing > kills / 8, "too few were killed while they wrote a file"
    assert started(steps, folder, tmp_path / "parts.npz").wait() == 0
    assert whole.wait() == 0
    with np.load(tmp_path / "whole.npz") as a, np.load(tmp_path / "parts.npz") as b:
        assert set(a) == set(b)
        assert len(a["losses"]) == len(set(a["losses"].tolist())) == steps
        assert any("weight" in name for name in a), "the net is not among the parameters"
        for name in a:
            same = a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes()
            assert same, name
    assert check_files(folder) == steps
    assert not list(folder.glob("*.tmp"))
