"""Chains that are killed again and again, in warm-up and after, end as if they never had been."""

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from probtorch.diagnostics import Draws
from probtorch.errors import FileError
from probtorch.infer import Checkpoint
from probtorch.serialization import load
from tests.infer.mcmc.killed_chains import LIFE, run

SCRIPT = Path(__file__).with_name("killed_chains.py")
ROOT = Path(__file__).parents[3]
# Draws of a chain, before thinning, for every kill. A run gets fewer checkpoints than this, and
# lives so long at most after the last of them (seconds).
DRAWS, MOST, LONGEST = 30, 3, 0.05
# Seconds that a run may take to its next checkpoint, on whatever machine.
PATIENCE = 120.0


def started(*args, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    return subprocess.Popen(command, env=environment, **options)


def stand(folder):
    """Transitions of both chains in the newest checkpoint, and whether both are past warm-up."""
    chains = []
    for path in Checkpoint(folder).files():
        # Of a run that is alive the older one may be gone by now; none that is there is unreadable.
        with contextlib.suppress(FileNotFoundError):
            chains = chains or load(path)["values"]["chains"]
            load(path)
    past = bool(chains) and not any(c["warming_up"] for c in chains)
    return sum(chain["iteration"] for chain in chains), past


def written(server, count):
    """Wait for so many bytes of the server, which writes none when a run has ended by itself."""
    for _ in range(count):
        ready, _, _ = select.select([server.stdout], [], [], PATIENCE)
        assert ready, f"no sign of the run in {PATIENCE:g} s"
        assert server.stdout.read(1), "the run failed"


def got_further(server, folder, reached):
    """Wait for a checkpoint with more transitions."""
    end = time.monotonic() + PATIENCE
    while stand(folder)[0] <= reached:
        assert server.poll() is None, "the run failed"
        assert time.monotonic() < end, f"no further than {reached} in {PATIENCE:g} s"
        time.sleep(LONGEST)


class NothingYet(Exception):
    """There are no draws yet."""


def drawn(folder):
    """Copies of the draws that a reader finds, of which there may be none."""
    try:
        return Draws.load(folder)["x"].copy()
    except FileError as error:
        if error.got in ("none yet", "a folder without"):
            raise NothingYet from error
        raise


@pytest.mark.parametrize("long_warmup", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_chains_killed_at_random_moments_end_as_if_they_never_were(kills, long_warmup, tmp_path):
    """Two lives get through a short warm-up; a long one ends after the last kill."""
    length, rng = (DRAWS if long_warmup else kills * DRAWS), random.Random(kills)
    warmup = kills * LIFE + DRAWS if long_warmup else None
    run_of = [length, tmp_path, *([warmup] if long_warmup else [])]
    reached, warm, seen = [0], [], []
    with started(
        "serve", *run_of, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as server:
        # How far a run gets before it is killed is up to the machine: it is killed on until both
        # have been, chains that warm up and chains that are past it.
        while len(warm) < kills or not (long_warmup or any(warm)):
            server.stdin.write(b"\n")
            server.stdin.flush()
            child = int(server.stdout.readline())
            try:
                # The first one writes a file, and no run gets so far as to end its warm-up.
                written(server, rng.randrange(MOST) if warm else MOST)
                if len(warm) >= kills:
                    got_further(server, tmp_path, reached[-1])
                time.sleep(rng.uniform(0.0, LONGEST))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            server.stdout.readline()
            iterations, past = stand(tmp_path)
            reached.append(iterations)
            warm.append(past)
            with contextlib.suppress(NothingYet):
                seen.append(drawn(tmp_path))
        server.stdin.close()
    assert reached == sorted(reached)
    print(f"{len(set(reached)) - 1} of {len(warm)} got further, {sum(warm)} after warm-up")
    assert len(set(reached)) > kills / 4 and sum(warm) < len(warm)
    assert started("run", *run_of).wait() == 0
    whole, parts = run(length, warmup=warmup), Draws.load(tmp_path)
    assert parts["x"].shape == (2, length // 5, 4)
    assert parts["x"].tobytes() == whole["x"].tobytes()
    for name, values in whole.sample_stats.items():
        assert parts.sample_stats[name].tobytes() == values.tobytes(), name
    for draws in seen:  # of the chains that have some, in their order
        firsts = iter(whole["x"][:, : draws.shape[1]])
        assert all(any(np.array_equal(one, first) for first in firsts) for one in draws)
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".tmp", ".damaged")]
