"""The runtime's routines: native against eager, and the time to compile and load each module.

Best of several runs, in CPU time of this process, with BLAS on one thread; draws are compared with
NumPy's generators.

Run as ``python -m benchmarks.routines``; it takes a minute.
"""

import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import probtorch
from benchmarks.machine import describe
from probtorch import linalg
from probtorch.compiler.machine import engine
from probtorch.compiler.machine.eager_draws import native_sampler
from probtorch.compiler.native import host
from probtorch.compiler.render import runtime
from probtorch.core.dispatch import wrap
from probtorch.ops.rejection import draw
from probtorch.ops.special import betainc_grad, gammainc_grad_a

RNG = np.random.default_rng(0)
DRAWS = 100_000


def best(fn: Callable[..., object], *arguments: object, runs: int = 7) -> float:
    """Return the least CPU time of a call in seconds."""
    fn(*arguments)
    times = []
    for _ in range(runs):
        start = time.process_time()
        fn(*arguments)
        times.append(time.process_time() - start)
    return min(times)


def positive(*shape: int) -> np.ndarray:
    x = RNG.standard_normal(shape)
    return x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])


def operations() -> dict[str, tuple[Callable, tuple[np.ndarray, ...]]]:
    """Return functions of tensors, and their arguments."""
    small, large = positive(1000, 3, 3), positive(200, 20, 20)
    shapes = RNG.uniform(0.5, 20.0, (2, 2000))
    return {
        "sort 100 rows of 1000": (lambda x: probtorch.sort(x)[0], (RNG.random((100, 1000)),)),
        "quantile of 10 000": (lambda x: probtorch.quantile(x, 0.9), (RNG.random(10_000),)),
        "cholesky, 1000 of 3 x 3": (linalg.cholesky, (small,)),
        "cholesky, 200 of 20 x 20": (linalg.cholesky, (large,)),
        "solve, 200 of 20 x 20": (linalg.solve, (large, RNG.random((200, 20, 1)))),
        "eigh, 200 of 20 x 20": (lambda a: linalg.eigh(a)[1], (large,)),
        "products, 64 of 28 x 28": (lambda a, b: a @ b, tuple(RNG.random((2, 64, 28, 28)))),
        "gammainc_grad_a, 2000": (gammainc_grad_a, tuple(shapes)),
        "betainc_grad, 2000": (betainc_grad, (*shapes, RNG.uniform(0.1, 0.9, 2000))),
    }


def samplers() -> dict[str, tuple[tuple[float, ...], Callable[[], object]]]:
    """Return the parameters of each sampler, and NumPy's call for as many draws."""
    return {
        "gamma": ((2.0,), lambda: RNG.standard_gamma(2.0, DRAWS)),
        "poisson": ((50.0,), lambda: RNG.poisson(50.0, DRAWS)),
        "binomial": ((100.0, 0.3), lambda: RNG.binomial(100, 0.3, DRAWS)),
        "von_mises": ((2.0,), lambda: RNG.vonmises(0.0, 2.0, DRAWS)),
    }


def load(name: str) -> object:
    """Write and load a module that is in the cache, as its first use in a process does."""
    return engine.compile_module(runtime.module_text(name))


def main() -> None:
    """Print the tables."""
    print(describe(["numpy", "scipy", "llvmlite"]))
    print("\n| operation | native, us | eager, us |\n|---|---|---|")
    for name, (fn, arrays) in operations().items():
        tensors = [wrap(a) for a in arrays]
        native = probtorch.compile(fn)
        native(*tensors)
        times = best(native, *tensors), best(fn, *tensors)
        print(f"| {name} | {times[0] * 1e6:.0f} | {times[1] * 1e6:.0f} |")

    print("\n| draw | native, ns | arrays, ns | NumPy, ns |\n|---|---|---|---|")
    counters = np.arange(DRAWS)
    for name, (numbers, numpys) in samplers().items():
        columns = [np.full(DRAWS, x) for x in numbers]
        fast = best(native_sampler(name), 1, 2, counters, *columns)
        with probtorch.configure(jit=False):
            slow = best(draw, name, 1, 2, counters, *columns, runs=2)
        figures = [1e9 * t / DRAWS for t in (fast, slow, best(numpys))]
        print(f"| {name} | " + " | ".join(f"{f:.0f}" for f in figures) + " |")

    print("\n| module | lines | compile, ms | load, ms |\n|---|---|---|---|")
    for name in (
        "pt_argsort_double",
        "product s",
        "cholesky d",
        "eigh d",
        "pt_gammainc_grad_a_1",
        "draws gamma",
    ):
        text = runtime.module_text(name)
        engine.compile_module(text)
        compiled = best(host.emit_object, text, runs=3)
        loaded = best(load, name, runs=3)
        print(f"| {name} | {text.count(chr(10))} | {compiled * 1e3:.0f} | {loaded * 1e3:.1f} |")


if __name__ == "__main__":
    main()
