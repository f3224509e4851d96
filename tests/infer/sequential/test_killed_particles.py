"""Particles that are killed again and again, at any temperature, end as if they never had been."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probtorch.infer import Checkpoint
from probtorch.serialization import load
from tests.infer.sequential.killed_particles import run, run_gibbs

SCRIPT = Path(__file__).with_name("killed_particles.py")
ROOT = Path(__file__).parents[3]
# A run of Gibbs gets fewer checkpoints than this, and any lives so long at most after the last
# (seconds); the share of a run of SMC that kills are spread over.
MOST, LONGEST, SPREAD = 4, 0.03, 0.8


def served(kind, folder, particles):
    """A process that forks the run for every line that it gets."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), kind, str(folder), str(particles)], env=environment, **pipes
    )


def kill_one(server, checkpoints, seconds):
    """Let a run go on, and kill it so long after so many checkpoints."""
    server.stdin.write(b"\n")
    server.stdin.flush()
    child = int(server.stdout.readline())
    assert len(server.stdout.read(checkpoints)) == checkpoints, "the run failed"
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    server.stdout.readline()


def stand(folder):
    """Temperature of the newest checkpoint, how many particles have moved there, and its number."""
    files = Checkpoint(folder).files()
    states = [load(path) for path in files]
    if not states:
        return 0.0, 0, 0
    saved = states[0]["values"]["run"]
    moving = saved["moving"]
    moved = 0 if moving is None or moving["pieces"] is None else moving["pieces"]["moved"].sum()
    return saved["temperature"], int(moved), states[0]["step"]


@pytest.mark.parametrize(
    "kills, particles",
    [
        (6, 80),
        pytest.param(30, 1000, marks=pytest.mark.slow),
        pytest.param(200, 1000, marks=pytest.mark.slow),
    ],
)
def test_particles_killed_at_random_moments_end_as_if_they_never_were(kills, particles, tmp_path):
    rng, folder = random.Random(kills), tmp_path / "run"
    reached, half_way = [(0.0, 0, 0)], 0
    with served("SMC", folder, particles) as server:
        looks = int(server.stdout.readline())
        # Beside its files a run is killed in the midst of one now and then, which is lost: a share
        # of what it gets. None ends by itself; the server would.
        most = max(int(2.0 * SPREAD * looks / kills), 3)
        for _ in range(kills):
            kill_one(server, rng.randrange(most), rng.uniform(0.0, LONGEST))
            reached.append(stand(folder))
            half_way += reached[-1][1] > 0
        server.stdin.close()
    numbers = [number for *_, number in reached]
    temperatures = [t for t, *_ in reached]
    assert numbers == sorted(numbers) and temperatures == sorted(temperatures)
    further = len(set(numbers)) - 1
    print(
        f"{further} of {kills} got further, {half_way} in the midst of a temperature, at "
        f"{len(set(temperatures))} temperatures up to {max(temperatures):.3g}; {numbers[-1]} of "
        f"{looks} looks"
    )
    assert further > kills / 4 and half_way > kills / 8
    # From the first temperature to one of the last, and not to the end.
    assert 0.3 * looks < numbers[-1] < looks and len(set(temperatures)) > min(kills / 3, 7)
    parts, whole = run(folder, particles=particles), run(particles=particles)
    assert set(parts) == set(whole)
    for name, x in whole.items():
        assert parts[name].tobytes() == x.tobytes(), name
    assert not [path for path in folder.iterdir() if path.suffix in (".tmp", ".damaged")]


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_particle_gibbs_killed_at_random_moments_ends_as_if_it_never_was(kills, tmp_path):
    rng, folder = random.Random(kills), tmp_path / "run"
    sweeps, total = [0], 2 * (60 + 20)
    with served("ParticleGibbs", folder, 5) as server:
        assert int(server.stdout.readline()) > total
        for _ in range(kills):
            # Two checkpoints at least: one may be of what the run before has done.
            kill_one(server, 2 + rng.randrange(MOST), rng.uniform(0.0, LONGEST))
            sweeps.append(load(Checkpoint(folder).files()[0])["values"]["run"]["done"])
            if sweeps[-1] > 0.6 * total:
                break
        server.stdin.close()
    assert sweeps == sorted(set(sweeps)) and sweeps[-1] < total
    parts, whole = run_gibbs(folder), run_gibbs()
    assert set(parts) == set(whole)
    for name, x in whole.items():
        assert parts[name].tobytes() == x.tobytes(), name
    assert not [path for path in folder.iterdir() if path.suffix in (".tmp", ".damaged")]
