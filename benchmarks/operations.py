"""One operation at a time, many of them: what each costs beside PyTorch, on small and middle sizes.

A case is written once, in PyTorch's vocabulary, and timed forward, and where it has a gradient
forward and backward. Both libraries must give the same numbers, but for draws. The table has those
that are furthest from PyTorch; the geometric means are over all.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.peers import OURS, adapter
from benchmarks.report import duration, table
from benchmarks.timing import race

__all__ = ["cases", "run"]

SHAPES = (8,), (64, 100)
SHOWN = 40
METHOD = (
    "{cases} cases of an operation alone, float32, on 8 numbers or 64 x 100 (images as named); "
    "best of {rounds} rounds of about 0.01 s each, the libraries taking turns; one thread, its "
    "processor time. Geometric mean of the ratios {all}; of the {few} forward and backward "
    "{graded}. Above 1.5 are {many}, above 2 {more}; shown are the {shown} furthest."
)

Library = Any
Case = Callable[[Library, Any], Any]

ALONE = (
    "exp log sin tanh sqrt abs neg sigmoid square rsqrt reciprocal erf lgamma digamma log1p expm1 "
    "relu clone sum mean prod std var max min norm median cumsum_last cumprod_last logsumexp_last "
    "softmax_last log_softmax_last flatten"
).split()
WITHOUT_SLOPE = "floor round sign trunc isnan isfinite argmax argmin argsort count_nonzero".split()
PAIRS = "add sub mul div pow maximum minimum atan2 hypot logaddexp".split()
ACTIVATIONS = "gelu elu silu softplus leaky_relu hardtanh logsigmoid mish".split()
LOSSES = (
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
    "binary_cross_entropy_with_logits poisson_nll_loss"
).split()
OTHERS: dict[str, Case] = {
    "expand": lambda t, x: x.expand(3, *x.shape),
    "reshape": lambda t, x: x.reshape(-1, 2),
    "unsqueeze": lambda t, x: x.unsqueeze(0),
    "x[2]": lambda t, x: x[2],
    "x[1:3]": lambda t, x: x[1:3],
    "x[mask]": lambda t, x: x[x > 1.0],
    "where": lambda t, x: t.where(x > 1.0, x, -x),
    "clamp": lambda t, x: x.clamp(0.7, 1.2),
    "masked_fill": lambda t, x: x.masked_fill(x > 1, 0.0),
    "cat": lambda t, x: t.cat([x, x]),
    "stack": lambda t, x: t.stack([x, x]),
    "chunk": lambda t, x: t.chunk(x, 2)[1],
    "pad": lambda t, x: t.nn.functional.pad(x, (1, 1)),
    "x + 1": lambda t, x: x + 1,
    "2 * x": lambda t, x: 2 * x,
    "x ** 2": lambda t, x: x**2,
    "1 / x": lambda t, x: 1 / x,
    "x[index]": lambda t, x: x[t.tensor([0, 3, 3, 1])],
    "zeros_like": lambda t, x: t.zeros_like(x) + x,
    "lerp": lambda t, x: t.lerp(x, x * 2, 0.3),
    "nan_to_num": lambda t, x: t.nan_to_num(x),
    "topk": lambda t, x: t.topk(x, 3).values,
    "sort": lambda t, x: t.sort(x).values,
    "layer_norm": lambda t, x: t.nn.functional.layer_norm(x, x.shape[-1:]),
    "normalize": lambda t, x: t.nn.functional.normalize(x, dim=-1),
    "std_mean": lambda t, x: t.std_mean(x)[0],
}
ALONG_FIRST = "sum mean prod std var max logsumexp softmax".split()
MATRICES: dict[str, Case] = {
    "trace": lambda t, m: t.trace(m),
    "diagonal": lambda t, m: m.diagonal(),
    "m.T": lambda t, m: m.T,
    "m[:, 1]": lambda t, m: m[:, 1],
    "m[1, 2]": lambda t, m: m[1, 2],
    "m @ m.T": lambda t, m: m @ m.T,
    "mv": lambda t, m: t.mv(m, m[0]),
    "triu": lambda t, m: t.triu(m),
    "einsum": lambda t, m: t.einsum("ij,kj->ik", m, m),
    "linear": lambda t, m: t.nn.functional.linear(m, m),
    "cumsum(0)": lambda t, m: t.cumsum(m, 0),
    "sum(1, keepdim)": lambda t, m: m.sum(1, keepdim=True),
    "m - m.mean(0)": lambda t, m: m - m.mean(0),
}
IMAGES: dict[str, Case] = {
    "max_pool2d": lambda t, x: t.nn.functional.max_pool2d(x, 2),
    "avg_pool2d": lambda t, x: t.nn.functional.avg_pool2d(x, 2),
    "adaptive_avg_pool2d(3)": lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, 3),
    "adaptive_max_pool2d(3)": lambda t, x: t.nn.functional.adaptive_max_pool2d(x, 3),
    "adaptive_max_pool2d(5)": lambda t, x: t.nn.functional.adaptive_max_pool2d(x, 5),
    "batch_norm": lambda t, x: t.nn.functional.batch_norm(x, None, None, training=True),
    "group_norm": lambda t, x: t.nn.functional.group_norm(x, 1),
}
# With whole numbers below 8, or below the first size where it is less.
INDEXED: dict[str, Callable[[Library, Any, Any], Any]] = {
    "gather": lambda t, x, i: t.gather(x, 0, i),
    "scatter_add": lambda t, x, i: t.zeros(x.shape).scatter_add(0, i, x),
    "index_select": lambda t, x, i: t.index_select(x, 0, i.flatten()[:8]),
    "index_add": lambda t, x, i: t.zeros(x.shape).index_add(0, i.flatten()[: x.shape[0]], x),
}
CLASSIFIED = "cross_entropy nll_loss".split()
FILLS = "uniform_ normal_ exponential_ bernoulli_ zero_".split()
DRAWS: dict[str, Callable[[Library], Any]] = {
    "randn(8)": lambda t: t.randn(8),
    "rand(8)": lambda t: t.rand(8),
    "randint(8)": lambda t: t.randint(0, 10, (8,)),
    "zeros(8)": lambda t: t.zeros(8),
    "full(8)": lambda t: t.full((8,), 2.0),
    "arange(8)": lambda t: t.arange(8),
    "tensor of a list": lambda t: t.tensor([1.0, 2.0, 3.0]),
}


def _leaf(torch: Library, shape: tuple[int, ...], *, grad: bool, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).uniform(0.1, 0.9, shape)
    return torch.tensor(values, dtype=torch.float32, requires_grad=grad)


def _called(name: str) -> Case:
    last = name.endswith("_last")
    name = name.removesuffix("_last")

    def call(t: Library, x: Any) -> Any:
        fn = getattr(t, name, None) or getattr(x, name)
        if last:
            return fn(x, -1)
        return fn(x) if hasattr(t, name) else fn()

    return call


def _first_of(name: str) -> Case:
    def call(t: Library, x: Any) -> Any:
        out = getattr(t, name)(x, dim=0)
        return out[0] if isinstance(out, tuple) else out

    return call


def _loss(name: str) -> Case:
    def call(t: Library, x: Any) -> Any:
        return getattr(t.nn.functional, name)(x, x.detach() * 0.9)

    return call


def _operations() -> Iterator[tuple[str, Case, tuple[tuple[int, ...], ...], bool]]:
    """Yield name, function of a library and a tensor, shapes, and whether there is a gradient."""
    yield from ((n.removesuffix("_last"), _called(n), SHAPES, True) for n in ALONE)
    yield from ((n, _called(n), SHAPES, False) for n in WITHOUT_SLOPE)
    for n in PAIRS:
        yield n, lambda t, x, n=n: getattr(t, n)(x, x), SHAPES, True
    for n in ACTIVATIONS:
        yield n, lambda t, x, n=n: getattr(t.nn.functional, n)(x), SHAPES, True
    yield from ((n, _loss(n), SHAPES, True) for n in LOSSES)
    yield from ((n, fn, SHAPES, True) for n, fn in OTHERS.items())
    yield from ((f"{n}(0)", _first_of(n), ((4, 8), (64, 100)), True) for n in ALONG_FIRST)
    yield from ((n, fn, ((4, 8), (64, 100)), True) for n, fn in MATRICES.items())
    yield from ((n, fn, ((2, 3, 12, 12), (8, 16, 24, 24)), True) for n, fn in IMAGES.items())


def _step(torch: Library, fn: Case, shape: tuple[int, ...], grad: bool) -> Callable[[], Any]:
    x = _leaf(torch, shape, grad=grad)
    if not grad:
        return lambda: fn(torch, x)

    def step() -> Any:
        x.grad = None
        out = fn(torch, x)
        (out.sum() if out.ndim else out).backward()
        return x.grad

    return step


def cases() -> Iterator[tuple[str, bool, bool, Callable[[Library], Callable[[], Any]]]]:
    """Yield name, whether it goes backward, whether its numbers are drawn, and the maker."""
    for name, fn, shapes, differentiable in _operations():
        for shape in shapes:
            size = " x ".join(map(str, shape))
            for grad in (False, True) if differentiable else (False,):
                what = f"{name}, {size}" + (", forward and backward" if grad else "")
                yield what, grad, False, lambda t, a=(fn, shape, grad): _step(t, *a)
    for shape in SHAPES:
        size = " x ".join(map(str, shape))
        rng = np.random.default_rng(4)
        index, classes = rng.integers(0, 8, shape), rng.integers(0, shape[-1], shape[:1])
        named: list[tuple[str, np.ndarray, Any]] = [
            (name, index, fn) for name, fn in INDEXED.items()
        ]
        if len(shape) == 2:
            for n in CLASSIFIED:
                named.append((n, classes, lambda t, x, i, n=n: getattr(t.nn.functional, n)(x, i)))
        for name, numbers, fn in named:
            for grad in (False, True):
                what = f"{name}, {size}" + (", forward and backward" if grad else "")

                def make(t: Library, a: Any = (fn, numbers, shape, grad)) -> Callable[[], Any]:
                    i = t.tensor(a[1])
                    return _step(t, lambda t, x: a[0](t, x, i), a[2], a[3])

                yield what, grad, False, make
        for name in FILLS:
            what = f"{name}, {size}"
            yield what, False, True, lambda t, a=(name, shape): getattr(t.zeros(a[1]), a[0])
    for name, fn in DRAWS.items():
        yield name, False, True, lambda t, fn=fn: lambda: fn(t)


def run(names: list[str], rounds: int = 3) -> tuple[str, list[str]]:
    """Time the cases of ours and PyTorch; returns (text for people, what went wrong)."""
    problems, rows = [], []
    if OURS not in names or "torch" not in names:
        return "Not measured: this suite compares with PyTorch.", problems
    libraries = {name: adapter(name).tensor_library() for name in (OURS, "torch")}
    warnings.simplefilter("ignore")  # the process is the benchmark's own
    for what, grad, drawn, make in cases():
        try:
            steps = {name: make(library) for name, library in libraries.items()}
            values = [np.asarray(step().detach().numpy()) for step in steps.values()]
        except Exception as error:
            problems.append(f"{what}: {type(error).__name__}: {error}")
            continue
        if not drawn and not np.allclose(*values, rtol=1e-3, atol=1e-4, equal_nan=True):
            problems.append(f"{what}: other numbers than torch")
            continue
        best = race(steps, rounds=rounds, round_seconds=0.01, clock=time.process_time)
        ours, theirs = best[OURS].best, best["torch"].best
        rows.append((ours / theirs, what, grad, ours, theirs))
    rows.sort(reverse=True)
    graded = [row for row in rows if row[2]]
    text = METHOD.format(
        cases=len(rows),
        rounds=rounds,
        all=_geometric(rows),
        few=len(graded),
        graded=_geometric(graded),
        many=sum(row[0] > 1.5 for row in rows),
        more=sum(row[0] > 2.0 for row in rows),
        shown=SHOWN,
    )
    shown = [[r[1], duration(r[3]), duration(r[4]), f"{r[0]:.2f}"] for r in rows[:SHOWN]]
    header = ["operation", OURS, "torch", f"{OURS} / torch"]
    return f"{table(header, shown)}\n\n{text}", problems


def _geometric(rows: list[tuple[Any, ...]]) -> str:
    return f"{math.exp(sum(math.log(row[0]) for row in rows) / max(len(rows), 1)):.2f}"
