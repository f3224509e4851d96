"""One program in a fresh process: its first compiled call, and where processor time went, as JSON.

Called by `benchmarks.compile_time` as ``PROGRAM``.
"""

from benchmarks.machine import restrict_to_one_core

restrict_to_one_core()

import json  # noqa: E402 - after the thread settings
import sys  # noqa: E402
import time  # noqa: E402

import numpy as np  # noqa: E402

import probtorch  # noqa: E402
from benchmarks.density import probes  # noqa: E402
from benchmarks.peers import OURS, adapter  # noqa: E402
from benchmarks.problems import DENSITIES  # noqa: E402
from benchmarks.svi import batches  # noqa: E402
from probtorch.compiler import compiled_function, density  # noqa: E402
from probtorch.compiler.calls import replay  # noqa: E402
from probtorch.compiler.native import host  # noqa: E402
from probtorch.compiler.run import executor  # noqa: E402

OPS, SIZE, REDUCED = 1000, 100, 10


def eight_schools():
    """Return the density and its gradient at a point."""
    problem = DENSITIES["eight_schools"]
    value_and_grad, point = adapter(OURS).density(problem), probes(problem)[0]
    return lambda: value_and_grad(point)


def autoencoder():
    """Return a training step after the first one, which runs eagerly."""
    step = adapter(OURS).autoencoder(batches(3))
    step()
    return step


def thousand():
    """Return a function of 1000 operations in an order that repeats nowhere."""
    rng = np.random.default_rng(0)
    plain = [lambda a: a.sin(), lambda a: a.tanh(), lambda a: a * 0.9, lambda a: a + 0.1]
    plain += [lambda a: a.exp(), lambda a: -a, lambda a: a.log1p(), lambda a: a.abs().sqrt()]
    order = rng.integers(0, len(plain), OPS)
    x = probtorch.tensor(rng.random(SIZE))

    def fn(a):
        ops = 0
        for k in order:
            if ops % REDUCED == REDUCED - 1:
                a, ops = a - a.mean(), ops + 2
            else:
                a, ops = plain[k](a.abs() if k == 6 else a), ops + 1 + (k >= 6)
            if ops >= OPS:
                return a.sum()

    compiled = probtorch.compile(fn)
    return lambda: compiled(x)


def main():
    """Print the times of a first call."""
    call = {f.__name__: f for f in (eight_schools, autoencoder, thousand)}[sys.argv[1]]()
    spent, programs, compiled = {"recording": 0.0}, [], []

    def recording(record):
        def timed(*args, **kwargs):
            start = time.process_time()
            try:
                return record(*args, **kwargs)
            finally:
                spent["recording"] += time.process_time() - start

        return timed

    for module in (compiled_function, density, replay):
        module.record = recording(module.record)
    make, emit = executor.CpuProgram.__init__, host.emit_object

    def made(self, graph):
        ops, start = len(graph.nodes), time.process_time()
        make(self, graph)
        programs.append((ops, time.process_time() - start))

    def emitting(*args, **kwargs):
        compiled.append(args)
        return emit(*args, **kwargs)

    executor.CpuProgram.__init__, host.emit_object = made, emitting
    start = time.process_time()
    call()
    total = time.process_time() - start
    ((ops, seconds),) = programs
    facts = {
        **spent,
        "compiling": seconds,
        "total": total,
        "compiled": bool(compiled),
        "ops": ops,
    }
    if "llvmlite.binding" in sys.modules and not compiled:
        raise SystemExit("LLVM was loaded and nothing compiled")
    print(json.dumps(facts))


main()
