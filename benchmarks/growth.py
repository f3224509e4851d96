"""What grows with a series, an array or the number of calls: rows of the suite `scale`.

Each row is measured in this process, in processor time; first calls have the cache on disk.
"""

import time
from collections.abc import Callable

import numpy as np

import probtorch

__all__ = ["ROWS"]

Row = tuple[str, int, float]


def smoothed(y, a, steps):
    """Exponential smoothing, as a plain loop."""
    level = total = probtorch.tensor(0.0, dtype=probtorch.float64)
    for t in range(steps):
        level = a * level + (1.0 - a) * y[t]
        total = total - 0.5 * (y[t] - level) ** 2
    return total


def smoothed_by_scan(y, a):
    """The same by `scan`."""
    zero = probtorch.tensor(0.0, dtype=probtorch.float64)

    def step(state, now):
        level, total = state
        level = a * level + (1.0 - a) * now
        return (level, total - 0.5 * (now - level) ** 2), None

    return probtorch.scan(step, (zero, zero), y)[0][1]


def _loop(steps: int, calls: int, fn: Callable[..., object], what: str) -> Callable[[], Row]:
    def row() -> Row:
        rng = np.random.default_rng(0)
        y, a = probtorch.tensor(rng.normal(size=steps)), probtorch.tensor(0.3).double()
        compiled = probtorch.compile(fn)
        for _ in range(calls - 1):
            compiled(y, a)
        start = time.process_time()
        compiled(y, a)
        return f"{what} of {steps} steps, call {calls}", steps, time.process_time() - start

    return row


def _unrolled(steps: int, calls: int) -> Callable[[], Row]:
    return _loop(steps, calls, lambda y, a: smoothed(y, a, steps), "compiled for")


def _scanned(steps: int, calls: int) -> Callable[[], Row]:
    return _loop(steps, calls, smoothed_by_scan, "compiled scan")


def _repeated(what: str, fn: Callable[[], object], count: int) -> Callable[[], Row]:
    """A row of many calls: the best of five rounds."""

    def row() -> Row:
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for _ in range(count):
                fn()
            best = min(best, time.process_time() - start)
        return what, count, best

    return row


def _calls() -> Row:
    x = probtorch.zeros(8)
    compiled = probtorch.compile(lambda x: x + 1.0)
    for _ in range(70):
        compiled(x)
    return _repeated("calls of a compiled x + 1", lambda: compiled(x), 10_000)()


def _on_array(name: str, fn: Callable[..., object], size: int) -> Callable[[], Row]:
    def row() -> Row:
        x = probtorch.tensor(np.random.default_rng(0).normal(size=size))
        count = max(1, 1_000_000 // (10 * size))
        return _repeated(f"{name} of {size} numbers", lambda: fn(x), count)()

    return row


_SIZES = (100, 10_000, 1_000_000)
ROWS: list[Callable[[], Row]] = [
    _calls,
    *(_unrolled(steps, 1) for steps in (1_000, 3_000, 10_000)),
    *(_unrolled(10_000, calls) for calls in (2, 3, 4)),
    *(_scanned(steps, 1) for steps in (1_000, 10_000, 100_000)),
    *(_scanned(100_000, calls) for calls in (2, 3)),
    *(_on_array("topk(10)", lambda x: probtorch.topk(x, 10), n) for n in _SIZES),
    *(_on_array("sort", probtorch.sort, n) for n in _SIZES),
    *(_on_array("x[3]", lambda x: x[3], n) for n in _SIZES),
]
