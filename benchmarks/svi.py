"""Variational inference: steps of a variational autoencoder per second, and the first one.

The model is the same everywhere: 64 binary pixels, 8 latent numbers, two hidden layers of 200
softplus units on either side, minibatches of 128, Adam, one draw per row. A step waits for its
loss. Every system has to reach the same loss, within what the draws leave open, before its speed
counts.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from benchmarks.nuts import ROOT
from benchmarks.peers import OURS, adapter
from benchmarks.report import duration, table
from benchmarks.timing import race

__all__ = [
    *("BATCH", "LATENT", "HIDDEN", "PIXELS", "RATE", "TORCH_COMPILE"),
    *("autoencoder", "batches", "run", "trained"),
]

PEERS = ("numpyro", "pyro", "jax", "torch")
# A second way of torch's adapter.
TORCH_COMPILE = "torch.compile"
PIXELS, HIDDEN, LATENT, BATCH, RATE = 64, 200, 8, 128, 1e-3
# Steps until the losses are compared, and how many at the end are averaged.
TRAINED, AVERAGED = 1500, 300
# What the systems' own starting weights make of it (up to 6 % were seen).
TOLERANCE = 0.1

METHOD = (
    "VAE {p}-{h}-{h}-{z}, batch {b}, Adam, float32. Step: best of {rounds} rounds of about 0.3 s, "
    "the systems taking turns, one thread, a new batch every time, each step waiting for its loss. "
    "First step: from the start of a fresh process, imports included (byte code cached, as after "
    "an installation), to the first loss; ours with an empty compiler cache, then, warm, with the "
    "code of the run before. Second step: the one that compiles, where the first does not. jax and "
    "torch are hand-written steps without a "
    "language around them, torch.compile is torch's whole step (loss, backward pass, Adam) under "
    "its compiler; these know the divergence in closed form. All reach the "
    "same loss to {tolerance:.0%} after {trained} steps."
)


def batches(count=40, seed=0):
    """Return float32 arrays (128, 64) of zeros and ones: mixtures of 10 smooth images."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 8), np.linspace(-1, 1, 8)), -1).reshape(-1, 2)
    centres = rng.uniform(-0.8, 0.8, (10, 2))
    images = np.exp(-((grid[None] - centres[:, None]) ** 2).sum(-1) / 0.2)
    weights = rng.dirichlet(np.full(10, 0.3), (count, BATCH))
    probs = np.clip(weights @ images * 1.5, 0.02, 0.98)
    return (rng.random(probs.shape) < probs).astype(np.float32)


def autoencoder(system, data):
    """Return a function that takes a training step on the next of `data` and returns its loss."""
    if system == TORCH_COMPILE:
        return adapter("torch").compiled_autoencoder(data)
    return adapter(system).autoencoder(data)


def trained(systems):
    """Train with each system, and compare the losses with the first one's.

    Returns
    -------
    steps : dict of callables
        By system, where the loss is what it should be.
    losses : dict of float
        Means of the last steps, in nats per batch.
    failures : list of str
    """
    data, steps, losses, failures = batches(), {}, {}, []
    for system in systems:
        try:
            step = autoencoder(system, data)
            loss = float(np.mean([step() for _ in range(TRAINED)][-AVERAGED:]))
        except Exception as error:
            failures.append(f"{system}: {type(error).__name__}: {error}")
            continue
        losses[system] = loss
        first, reference = next(iter(losses.items()))
        if abs(loss / reference - 1.0) > TOLERANCE:
            failures.append(f"{system}: loss {loss:.1f}, {first} {reference:.1f}")
        else:
            steps[system] = step
    return steps, losses, failures


def first_steps(system, folder):
    """Return seconds from process start to the first loss, and from there to the second."""
    environment = {**os.environ, "PROBTORCH_CACHE_DIR": str(folder / "code")}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    command = [sys.executable, "-m", "benchmarks.svi_child", system]
    start = time.perf_counter()
    child = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    lines = [line.split() for line in child.stdout.splitlines() if line.startswith("step ")]
    times = [float(clock) - start for _, _, clock, _ in lines]
    if child.returncode or len(times) != 2:
        raise RuntimeError(f"the process ended with {child.returncode}")
    return times[0], times[1] - times[0]


def run(names):
    """Measure the systems in `names`; returns (text, what went wrong)."""
    systems = [n for n in names if n == OURS or n in PEERS]
    if "torch" in systems:
        systems.insert(systems.index("torch") + 1, TORCH_COMPILE)
    steps, losses, failures = trained(systems)
    timings = race(steps, rounds=9, round_seconds=0.3)
    ours = timings.get(OURS)
    rows = []
    for system, timing in timings.items():
        with tempfile.TemporaryDirectory(prefix="probtorch-bench-") as name:
            folder = pathlib.Path(name)
            first_steps(system, folder)  # for the byte code
            for cache in ("code", "inductor"):
                shutil.rmtree(folder / cache, ignore_errors=True)
            cold = first_steps(system, folder)
            warm = first_steps(system, folder)
        rows.append(
            [
                system,
                duration(timing.best),
                f"{timing.spread:.2f}",
                f"{timing.best / ours.best:.2f}" if ours and system != OURS else "-",
                duration(cold[0]),
                duration(cold[1]),
                duration(warm[0]),
                duration(warm[1]),
                f"{losses[system] / BATCH:.2f}",
            ]
        )
    header = ["system", "step", "spread", "steps per second, ours / theirs"]
    header += ["first step", "second step", "first, warm", "second, warm", "loss per row (nats)"]
    method = METHOD.format(
        p=PIXELS,
        h=HIDDEN,
        z=LATENT,
        b=BATCH,
        rounds=9,
        tolerance=TOLERANCE,
        trained=TRAINED,
    )
    return f"{table(header, rows)}\n\n{method}", failures
