"""A hidden Markov chain summed out: loss and gradients, eager and compiled, against Pyro.

Five states, normal emissions, transition matrix and means as parameters, nothing in the guide. The
losses are checked to agree before anything is timed. Times are processor time of one core, best of
5 rounds (of 20 for the compiled step).

Run as ``python -m benchmarks.enumeration [steps]``; Pyro is timed if it is installed.
"""

import sys
import time
import warnings

import numpy as np

import probtorch
import probtorch.distributions as dist
from benchmarks import machine
from probtorch.infer import SVI, TraceEnum_ELBO
from probtorch.optim import Adam

STATES = 5


def data(steps):
    """Return a transition matrix, means and data."""
    rng = np.random.default_rng(0)
    move = rng.dirichlet(np.ones(STATES), STATES)
    return move, 2.0 * rng.normal(size=STATES), rng.normal(size=steps)


def chain(library, distributions, constraints, move, locs, y):
    """Return the model, in the vocabulary that both libraries share."""

    def model():
        p = library.param("move", move, constraint=constraints.simplex)
        loc = library.param("locs", locs)
        x = 0
        for t in library.markov(range(len(y))):
            x = library.sample(
                f"x_{t}", distributions.Categorical(p[x]), infer={"enumerate": "parallel"}
            )
            library.sample(f"y_{t}", distributions.Normal(loc[x], 1.0), obs=y[t])

    return model


def no_guide():
    """Draw nothing."""


def best(fn, rounds=5):
    """Return the shortest processor time of a call, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        fn()
        times.append(time.process_time() - start)
    return min(times)


def ours(steps):
    """Return the loss, and times eager, compiled and for compiling."""
    model = chain(probtorch, dist, dist.constraints, *map(probtorch.tensor, data(steps)))
    objective = TraceEnum_ELBO()
    loss = objective.loss_and_grads(model, no_guide)
    eager = best(lambda: objective.loss_and_grads(model, no_guide))
    svi = SVI(model, no_guide, Adam({"lr": 0.01}), TraceEnum_ELBO(), seed=0)
    start = time.process_time()
    for _ in range(3):
        svi.step()
    compiling = time.process_time() - start
    return loss, eager, best(svi.step, 20), compiling


def pyros(steps):
    """Return Pyro's loss and time, or None where it is not installed."""
    try:
        import pyro
        import pyro.distributions
        import torch
        from pyro.infer import TraceEnum_ELBO as Objective
    except ImportError:
        return None
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    pyro.enable_validation(False)
    model = chain(
        pyro,
        pyro.distributions,
        pyro.distributions.constraints,
        *map(torch.tensor, data(steps)),
    )
    objective = Objective(max_plate_nesting=0)
    loss = objective.loss_and_grads(model, no_guide)
    return loss, best(lambda: objective.loss_and_grads(model, no_guide))


def main() -> None:
    """Print the times."""
    machine.restrict_to_one_core()
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    probtorch.set_default_dtype(probtorch.float64)
    loss, eager, compiled, compiling = ours(steps)
    print(f"{steps} steps of {STATES} states")
    print(
        f"eager {1e3 * eager:.1f} ms, compiled {1e3 * compiled:.3f} ms, compiling {compiling:.1f} s"
    )
    theirs = pyros(steps)
    if theirs is not None:
        assert abs(theirs[0] - loss) < 1e-9 * abs(loss), (theirs[0], loss)
        print(f"Pyro {1e3 * theirs[1]:.1f} ms")
    print(machine.describe(["probtorch", "torch", "pyro-ppl"]))


if __name__ == "__main__":
    main()
