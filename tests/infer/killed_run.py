"""The run that test_killed_runs.py kills: SVI on minibatches with dropout, Adam and a schedule.

As a script, ``killed_run.py STEPS FOLDER RESULT`` makes the run, with checkpoints in FOLDER unless
that is "-", and writes what it found to RESULT. ``killed_run.py serve STEPS FOLDER`` forks a
process that does so for each line on its stdin, and writes a byte for every step: forking saves
the import. A number on the line says how many times the disk answers before it no longer does:
"f" is written then if it was to keep a file, "d" if a folder.
"""

import os
import stat
import sys
import time

import numpy as np

import probtorch
import probtorch.infer
from probtorch.distributions import Normal
from probtorch.effects import module, plate, sample
from probtorch.nn import Dropout, Linear, Sequential
from probtorch.optim import Adam, PyroLRScheduler
from probtorch.optim.lr_scheduler import StepLR
from probtorch.utils.data import DataLoader, TensorDataset

ROWS = 60
EVERY = 3


def run(steps, folder=None, after_step=lambda: None):
    """Return losses, parameters and the state of the default generator as arrays."""
    probtorch.manual_seed(4)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(ROWS, 3)).astype("f4")
    y = (np.sin(x[:, 0]) + 0.1 * rng.normal(size=ROWS)).astype("f4")
    data = TensorDataset(probtorch.tensor(x), probtorch.tensor(y))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    net = Sequential(Linear(3, 5), Dropout(0.2), Linear(5, 1))

    def model():
        f = module("net", net)
        noise = sample("noise", probtorch.distributions.HalfNormal(1.0))
        with plate("rows", loader) as (x, y):
            sample("y", Normal(f(x).squeeze(-1), noise), obs=y)

    schedule = {"optimizer": Adam, "optim_args": {"lr": 0.02}, "step_size": 5, "gamma": 0.97}
    optimizer = PyroLRScheduler(StepLR, schedule)
    svi = probtorch.infer.SVI(model, probtorch.infer.AutoNormal(model), optimizer)

    def callback(step, loss):
        optimizer.step()
        after_step()

    result = svi.run(
        steps,
        progress_bar=False,
        callback=callback,
        checkpoint=folder,
        checkpoint_every=None if folder is None else EVERY,
    )
    found = {name: value.numpy() for name, value in result.params.items()}
    state = np.array(probtorch.default_generator.get_state(), np.uint64)
    return {"losses": result.losses, "generator": state, **found}


def hang(answers):
    """Let the disk answer so many times, and then never: a process waits for it where it syncs."""
    sync, left = os.fsync, iter(range(answers))

    def fsync(descriptor):
        if next(left, None) is None:
            os.write(1, b"d" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else b"f")
            time.sleep(3600)
        sync(descriptor)

    os.fsync = fsync


def serve(steps, folder):
    """Fork a run for every line on stdin; its number on stdout, then a byte for each step."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            if line.strip():
                hang(int(line))
            run(steps, folder, lambda: os.write(1, b"."))
            os._exit(0)
        os.write(1, b"%d\n" % child)
        if os.WIFEXITED(os.waitpid(child, 0)[1]):
            sys.exit("the run ended by itself: an error above, or too few steps")
        os.write(1, b"\n")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), sys.argv[3])
    else:
        where = None if sys.argv[2] == "-" else sys.argv[2]
        np.savez(sys.argv[3], **run(int(sys.argv[1]), where))
