"""What grows with a series, an array or the number of calls: rows of the suite `scale`.

Each row is measured in this process, in processor time; first calls have the cache on disk.
"""

import time
from collections.abc import Callable

import numpy as np

import probtorch
from probtorch.infer import Target

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


def _eager(steps: int) -> Callable[[], Row]:
    """What a first call cannot be faster than: the loop is Python's."""

    def row() -> Row:
        y = probtorch.tensor(np.random.default_rng(0).normal(size=steps))
        a = probtorch.tensor(0.3).double()
        start = time.process_time()
        smoothed(y, a, steps)
        return f"eager for of {steps} steps", steps, time.process_time() - start

    return row


def _scanned(steps: int, calls: int) -> Callable[[], Row]:
    return _loop(steps, calls, smoothed_by_scan, "compiled scan")


def smoothed_series(y, a):
    """Exponential smoothing of each of several series: a loop in a loop."""
    total = probtorch.tensor(0.0, dtype=probtorch.float64)
    for series in range(y.shape[0]):
        level = probtorch.tensor(0.0, dtype=probtorch.float64)
        for t in range(y.shape[1]):
            level = a * level + (1.0 - a) * y[series, t]
            total = total - 0.5 * (y[series, t] - level) ** 2
    return total


def _nested(count: int) -> Callable[[], Row]:
    def row() -> Row:
        y = probtorch.tensor(np.random.default_rng(0).normal(size=(count, 100)))
        compiled, a = probtorch.compile(smoothed_series), probtorch.tensor(0.3).double()
        start = time.process_time()
        compiled(y, a)
        what = f"compiled for in for, {count} series of 100 steps, call 1"
        return what, 100 * count, time.process_time() - start

    return row


def chain(logits, seen, *, by_scan):
    """Log likelihood of a hidden Markov chain: logits of moves, log densities of what was seen."""
    move, state = logits.log_softmax(-1), seen[0]

    def step(state, now):
        return (state[:, None] + move).logsumexp(0) + now, None

    if by_scan:
        state, _ = probtorch.scan(step, state, seen[1:])
    else:
        for t in range(1, seen.shape[0]):
            state, _ = step(state, seen[t])
    return state.logsumexp(0)


def _chain(steps: int, by_scan: bool, states: int = 50) -> Callable[[], Row]:
    """A log density with its gradient, once it is compiled: the best of ten calls."""

    def row() -> Row:
        rng = np.random.default_rng(0)
        seen = probtorch.tensor(rng.normal(size=(steps, states)))
        q = rng.normal(size=states * states)

        def density(q):
            return chain(q.reshape(states, states), seen, by_scan=by_scan)

        target = Target.from_density(density, len(q))
        target.value_and_grad(q)
        best = float("inf")
        for _ in range(10):
            start = time.process_time()
            target.value_and_grad(q)
            best = min(best, time.process_time() - start)
        how = "scan" if by_scan else "for"
        return f"gradient of a chain of {states} states, {how} of {steps} steps", steps, best

    return row


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


def _eager_calls() -> Row:
    x = probtorch.zeros(8)
    return _repeated("eager x + 1", lambda: x + 1.0, 10_000)()


def _on_array(name: str, fn: Callable[..., object], size: int) -> Callable[[], Row]:
    def row() -> Row:
        x = probtorch.tensor(np.random.default_rng(0).normal(size=size))
        count = max(1, 1_000_000 // (10 * size))
        return _repeated(f"{name} of {size} numbers", lambda: fn(x), count)()

    return row


_SIZES = (100, 10_000, 1_000_000)
ROWS: list[Callable[[], Row]] = [
    _calls,
    _eager_calls,
    *(_unrolled(steps, 1) for steps in (1_000, 3_000, 10_000, 100_000)),
    *(_eager(steps) for steps in (10_000, 100_000)),
    *(_unrolled(10_000, calls) for calls in (2, 3, 4)),
    *(_nested(count) for count in (10, 30, 100)),
    *(_chain(steps, by_scan) for by_scan in (False, True) for steps in (300, 1_000, 3_000)),
    *(_scanned(steps, 1) for steps in (1_000, 10_000, 100_000)),
    *(_scanned(100_000, calls) for calls in (2, 3)),
    *(_on_array("topk(10)", lambda x: probtorch.topk(x, 10), n) for n in _SIZES),
    *(_on_array("sort", probtorch.sort, n) for n in _SIZES),
    *(_on_array("x[3]", lambda x: x[3], n) for n in _SIZES),
]
