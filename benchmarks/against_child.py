"""The cases of the `against` suite, with the library of one checkout: answers one line for one.

Called by `benchmarks.against` as ``CHECKOUT``, or as ``CHECKOUT CASE`` for the seconds of a first
call. The cases are this checkout's, whatever the library. Commands are ``list``, ``make CASE`` and
``time``; answers are JSON, times are of the processor, per call.
"""

import sys
from pathlib import Path

CHECKOUT = sys.argv[1]
sys.path[0] = CHECKOUT

import probtorch  # noqa: E402 - the checkout's, not the one that this file is in

sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.machine import restrict_to_one_core  # noqa: E402

restrict_to_one_core()

import json  # noqa: E402 - after the thread settings
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402

import numpy as np  # noqa: E402

from benchmarks import eager, enumeration, loops, training  # noqa: E402
from benchmarks.density import probes  # noqa: E402
from benchmarks.distributions import CASES as DISTRIBUTIONS  # noqa: E402
from benchmarks.peers import OURS, adapter  # noqa: E402
from benchmarks.problems import DENSITIES, PROBLEMS  # noqa: E402
from benchmarks.svi import batches  # noqa: E402
from probtorch.infer import SVI, AutoNormal, TraceEnum_ELBO  # noqa: E402
from probtorch.optim import Adam  # noqa: E402

CHAINS, WARMUP, DRAWS, STEPS = 4, 1000, 1000, 10_000
# Seconds of a turn; calls ahead of the first, at most and at least, and seconds from which on they
# are no more than these: what is recorded (in the first) and verified (in the second) is counted by
# first calls, and by runs.
TURN, AHEAD, FEW, MOST = 0.1, 40, 3, 3.0

Call = Callable[[], object]


def density(name: str) -> Call:
    """Return a call of a compiled log density and its gradient."""
    value_and_grad, point = adapter(OURS).density(DENSITIES[name]), probes(DENSITIES[name])[0]
    return lambda: value_and_grad(point)


def loop(name: str, spelling: str) -> Call:
    """Return a call of a density over time."""
    value_and_grad, point = loops.value_and_grad(name, spelling), probes(DENSITIES[name])[0]
    return lambda: value_and_grad(point)


def trained(name: str, compiled: bool) -> Call:
    """Return a training step of a network."""
    probtorch.manual_seed(0)
    case = training.CASES[name](probtorch)
    step = probtorch.compile(case.step) if compiled else case.step
    data, count = case.batches(), iter(range(10**12))
    return lambda: step(*data[next(count) % len(data)])


def enumerated(compiled: bool) -> Call:
    """Return loss and gradients, or a step, of a chain of 100 steps that is summed out."""
    values = map(probtorch.tensor, enumeration.data(100))
    model = enumeration.chain(probtorch, probtorch.distributions, constraints(), *values)
    if not compiled:
        objective = TraceEnum_ELBO()
        return lambda: objective.loss_and_grads(model, enumeration.no_guide)
    return SVI(model, enumeration.no_guide, Adam({"lr": 0.01}), TraceEnum_ELBO(), seed=0).step


def constraints():
    """Return the constraints of the library."""
    return probtorch.distributions.constraints


def fitted(name: str) -> Call:
    """Return a whole run of SVI, from its first step on, with its checks."""
    model, data = adapter(OURS).model(PROBLEMS[name])

    def run():
        svi = SVI(model, AutoNormal(model), Adam({"lr": 0.01}), seed=0)
        svi.run(STEPS, **data, progress_bar=False)

    return run


def sampled(name: str) -> Call:
    """Return a whole run of NUTS."""
    run = adapter(OURS).sampler(PROBLEMS[name])
    return lambda: run(0, CHAINS, WARMUP, DRAWS)


def autoencoder(steps: int = 1) -> Call:
    """Return a step of the autoencoder, or a training of many from its beginning."""
    if steps == 1:
        return adapter(OURS).autoencoder(batches())

    def run():
        step = adapter(OURS).autoencoder(batches())
        for _ in range(steps):
            step()

    return run


def cases() -> dict[str, Callable[[], Call]]:
    """Return what makes each case."""
    found: dict[str, Callable[[], Call]] = {}
    for title, case in eager.CASES.items():
        found[f"eager: {title}"] = lambda case=case: case(adapter(OURS).tensor_library())
    for name in DENSITIES:
        found[f"density: {name}"] = lambda name=name: density(name)
    for name, case in DISTRIBUTIONS.items():
        for compiled in (True, False):
            form = "compiled" if compiled else "eager"
            found[f"distributions: {name}, {form}"] = lambda n=name, c=case, compiled=compiled: (
                adapter(OURS).log_density_of(n, c, compiled=compiled)
            )
    found |= {f"nuts: {name}, a run": lambda name=name: sampled(name) for name in PROBLEMS}
    found["svi: autoencoder, a step"] = autoencoder
    found["svi: autoencoder, 1000 steps"] = lambda: autoencoder(1000)
    for name in ("eight_schools", "logistic", "varying_intercepts"):
        found[f"svi: {name}, {STEPS} steps"] = lambda name=name: fitted(name)
    for name in training.CASES:
        found[f"training: {name}, eager"] = lambda name=name: trained(name, False)
        found[f"training: {name}, compiled"] = lambda name=name: trained(name, True)
    found["enumeration: 100 steps, eager"] = lambda: enumerated(False)
    found["enumeration: 100 steps, compiled"] = lambda: enumerated(True)
    for name, spellings in loops.SPELLINGS.items():
        for spelling in spellings:
            found[f"loops: {name}, {spelling}"] = lambda n=name, s=spelling: loop(n, s)
    return found


def seconds(call: Call, count: int) -> float:
    """Return the processor's time of a number of calls."""
    begin = time.process_time()
    for _ in range(count):
        call()
    return time.process_time() - begin


def first_call(name: str) -> float:
    """Return the seconds of a first call; of the autoencoder's second, the first one is eager."""
    call = cases()[name]()
    if name == "svi: autoencoder, a step":
        call()
    return seconds(call, 1)


def serve() -> None:
    """Answer commands until there are no more."""
    known, call, count = cases(), None, 1
    for line in sys.stdin:
        command, _, name = line.strip().partition(" ")
        answer: object
        try:
            if command == "list":
                answer = list(known)
            elif command == "make":
                probtorch.set_default_dtype(
                    probtorch.float64 if name.startswith("enumeration") else probtorch.float32
                )
                call = known[name]()
                spent = [seconds(call, 1)]
                while len(spent) < FEW or (len(spent) < AHEAD and sum(spent) < MOST):
                    spent.append(seconds(call, 1))
                took, count = min(spent), 1
                while took < 0.2 * TURN:
                    count *= 4
                    # One of two may have a call in it that is verified, of three one has none.
                    took = min(seconds(call, count) for _ in range(3))
                count = max(1, round(count * TURN / took))
                answer = count
            else:
                answer = seconds(call, count) / count
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".split("\n")[0]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    # What the library prints is no answer.
    if len(sys.argv) > 2:
        print(json.dumps(first_call(sys.argv[2])))
    else:
        serve()
