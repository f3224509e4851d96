"""Our own products of matrices against BLAS: one by one, and in programs compiled with either.

Both run on one core and take turns; a figure is the best round, in processor time and on the clock.

Run as ``python -m benchmarks.products``; it takes two minutes on an idle core.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from unittest import mock

from benchmarks.machine import describe, restrict_to_one_core

restrict_to_one_core()
# The cache does not know which products were chosen.
os.environ["PROBTORCH_CACHE"] = "0"

import numpy as np  # noqa: E402 - after the thread settings

import probtorch  # noqa: E402
import probtorch.distributions as dist  # noqa: E402
from benchmarks.peers import OURS, adapter  # noqa: E402
from benchmarks.report import table  # noqa: E402
from benchmarks.svi import batches  # noqa: E402
from benchmarks.timing import race  # noqa: E402
from probtorch.compiler.machine import engine  # noqa: E402
from probtorch.compiler.render.runtime import products  # noqa: E402
from probtorch.infer import Target  # noqa: E402

RNG = np.random.default_rng(0)
CLOCKS = {"processor": time.process_time, "clock": time.perf_counter}

# m, k, n; whether each operand is turned. The first five are a training step's.
SHAPES = [
    ((128, 64, 200), (False, True)),
    ((128, 200, 200), (False, True)),
    ((128, 200, 200), (False, False)),
    ((200, 128, 200), (True, False)),
    ((128, 200, 8), (False, True)),
    ((64, 64, 64), (False, False)),
    ((128, 128, 128), (False, False)),
    ((256, 50, 50), (False, False)),
    ((256, 256, 256), (False, False)),
    ((512, 64, 64), (False, False)),
    ((400, 400, 400), (False, False)),
]


def single(shape: tuple[int, int, int], turned: tuple[bool, bool], p: str) -> dict[str, Callable]:
    """Return calls of a product in single ("s") or double ("d") precision, ours and by BLAS."""
    (m, k, n), (turned_a, turned_b) = shape, turned
    dtype = np.float32 if p == "s" else np.float64
    a = RNG.random((k, m) if turned_a else (m, k)).astype(dtype)
    b = RNG.random((n, k) if turned_b else (k, n)).astype(dtype)
    c = np.empty((m, n), dtype)
    pointers = [x.ctypes.data for x in (a, b, c)]
    lda, ldb = a.shape[1], b.shape[1]
    down_along = (1, lda) if turned_a else (lda, 1)

    def call(symbol: str, *numbers: int) -> Callable[[], None]:
        types = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * len(numbers)
        function = ctypes.CFUNCTYPE(None, *types)(engine.runtime_address(symbol))
        kept = a, b, c

        def run() -> None:
            assert kept
            function(*pointers, *numbers)

        return run

    flags = int(turned_a), int(turned_b)
    return {
        "ours": call(f"pt_product_{p}", m, n, k, *down_along, ldb, flags[1]),
        "BLAS": call(f"pt_gemm_{p}", m, n, k, lda, ldb, *flags, 0, 0, 1),
    }


def network(rows: int, hidden: int) -> Callable[[], object]:
    """Return a call of the density, with gradient, of a network with two hidden layers."""
    x, y = RNG.normal(size=(rows, 10)), RNG.normal(size=rows)
    sizes = [(10, hidden), (hidden, hidden), (hidden, 1)]

    def model(x: probtorch.Tensor, y: probtorch.Tensor) -> None:
        h = x
        for i, shape in enumerate(sizes):
            w = probtorch.sample(
                f"w{i}", dist.Normal(0.0, shape[0] ** -0.5).expand(shape).to_event(2)
            )
            h = h @ w if i == 2 else (h @ w).tanh()
        with probtorch.plate("row", rows):
            probtorch.sample("y", dist.Normal(h[:, 0], 0.5), obs=y)

    target = Target.from_model(model, x=probtorch.tensor(x), y=probtorch.tensor(y))
    points = RNG.normal(size=(8, target.dim)) * 0.1
    turn = iter(range(2**62))
    return lambda: target.value_and_grad(points[next(turn) % 8])


def double_autoencoder() -> Callable[[], object]:
    """Return the training step of the svi suite in double precision."""
    before = probtorch.get_default_dtype()
    probtorch.set_default_dtype(probtorch.float64)
    try:
        return adapter(OURS).autoencoder(batches().astype(np.float64))
    finally:
        probtorch.set_default_dtype(before)


PROGRAMS: dict[str, Callable[[], Callable[[], object]]] = {
    "SVI step, VAE 64-200-200-8, 128 rows, float32": lambda: adapter(OURS).autoencoder(batches()),
    "SVI step, VAE 64-200-200-8, 128 rows, float64": double_autoencoder,
    "density, network 10-50-50-1, 200 rows, float64": lambda: network(200, 50),
    "density, network 10-100-100-1, 1000 rows, float64": lambda: network(1000, 100),
}


@contextlib.contextmanager
def by_blas() -> Iterator[None]:
    """Compile what is compiled inside without our products."""
    with mock.patch.object(products, "is_suitable", return_value=False):
        yield


def both(program: Callable[[], Callable[[], object]]) -> dict[str, Callable[[], object]]:
    """Return a program compiled with our products and with BLAS alone."""
    contestants = {}
    for name, context in (("ours", contextlib.nullcontext()), ("BLAS", by_blas())):
        with context:
            contestants[name] = program()
            for _ in range(30):  # until nothing is recorded or verified any more
                contestants[name]()
    return contestants


def row(name: str, contestants: dict[str, Callable[[], object]], rounds: int) -> list[str]:
    """Return a row of the table."""
    cells = [name]
    for clock in CLOCKS.values():
        timings = race(contestants, rounds=rounds, round_seconds=0.02, clock=clock)
        ours, blas = (timings[system].best * 1e6 for system in ("ours", "BLAS"))
        cells += [f"{ours:.1f}", f"{blas:.1f}", f"{blas / ours:.2f}"]
    return cells


def main() -> None:
    """Print the tables."""
    print(describe(["numpy", "scipy", "llvmlite"]))
    probtorch.set_num_threads(1)
    header = [
        f"{what}, {clock}" for clock in CLOCKS for what in ("ours us", "BLAS us", "BLAS / ours")
    ]
    rows = []
    for p, (shape, turned) in ((p, s) for p in "sd" for s in SHAPES):
        m, k, n = shape
        words = [
            f"{m} x {k} x {n}",
            *(f"{x} turned" for x, t in zip("ab", turned, strict=True) if t),
        ]
        suited = products.is_suitable(m, n, k, p, turned[1])
        words.append({"s": "single", "d": "double"}[p] + ("" if suited else " (left to BLAS)"))
        rows.append(row(", ".join(words), single(shape, turned, p), rounds=30))
    print(f"\n{table(['product', *header], rows)}", flush=True)
    rows = [row(name, both(program), rounds=60) for name, program in PROGRAMS.items()]
    print(f"\n{table(['program', *header], rows)}")


if __name__ == "__main__":
    main()
