"""Programs over tensors as data: lists of steps that can be run eagerly, recorded or compiled.

A `Program` is a list of `Step`s over a growing list of values: two sets of inputs, then what each
step makes. `Program.run` carries it out on tensors. `ACTIONS` is what a step can do; a new action
needs a method in program_strategy.py too, which makes random programs. agreement.py says how
closely two runs of one must agree.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probtorch.autograd.tape import grad
from probtorch.core.dispatch import apply, wrap
from probtorch.core.op import REGISTRY
from probtorch.core.tensor_base import TensorBase
from probtorch.ops import (
    arithmetic,
    cholesky_factors,
    comparisons,
    contraction,
    determinants,
    exponential_sums,
    extremes,
    gathering,
    indexing,
    linalg,
    movement,
    norms,
    order_statistics,
    orthogonal,
    pieces,
    reduction,
    scans,
    scattering,
    searching,
    sorting,
    special,
    spectral,
)
from probtorch.ops import variates as _variates  # noqa: F401  registers its ops
from probtorch.ops.control import cond, while_loop

__all__ = ["ACTIONS", "FORMULAS", "Program", "Step"]


def _refuses(op):
    """Whether an operand, such as the order of a Bessel function, may not require grad."""
    return any(op.partials[i] is None for i, *_ in op.rules)


# Programs have gradients in all that they compute with.
FORMULAS = {
    op.name: op
    for op in REGISTRY.values()
    if op.family == "elementwise" and op.formula is not None and op.public is not None
    if not _refuses(op)
}


def _fit(x, domain):
    """Move float values into the domain of an op, smoothly and so that nan stays nan."""
    if x.array.dtype.kind != "f":
        if domain != "probability":
            return x
        x = x.double()  # 0 and 1 are none
    if domain == "positive":
        return x.abs() + 0.25
    if domain == "negative":
        return -(x.abs() + 0.25)
    if domain == "above_one":
        return x.abs() + 1.25
    if domain == "unit":
        return x.tanh() * 0.875
    if domain == "probability":
        return x.sigmoid() * 0.875 + 0.0625
    return x


def _elementwise(*xs, op, numbers=(), fit=False):
    """Apply the op `op`; `numbers` are (position, Python number) among the operands."""
    operands = list(xs)
    for at, number in numbers:
        operands.insert(at, number)
    if fit:
        domain = FORMULAS[op].domain
        operands = [
            _fit(x, d) if isinstance(x, TensorBase) else x
            for x, d in zip(operands, domain, strict=True)
        ]
    return FORMULAS[op].public(*operands)


def _index(i, size):
    """Turn any integers into valid indices, some of them negative."""
    return i.long() % (2 * size) - size


def _take(x, i, *, dim):
    return x[(slice(None),) * dim + (_index(i, x.array.shape[dim]),)]


def _gather(x, i, *, dim):
    return gathering.gather(x, dim, i.long() % x.array.shape[dim])


def _scatter(x, i, v, *, dim, accumulate):
    return scattering.scatter(x, dim, i.long() % x.array.shape[dim], v, accumulate=accumulate)


def _index_put(x, i, v, *, accumulate):
    return indexing.index_put(x, [_index(i, x.array.shape[0])], v, accumulate)


def _assign(x, v, *, key):
    """Write into a copy of `x`, in place."""
    x = x.clone()
    x[key] = v
    return x


def _overlap(x, *, step):
    """Shift `x` along itself: the value written is a view of what is written to."""
    x = x.clone()
    n = x.array.shape[0]
    y = indexing.index_put(x, [wrap(np.arange(1, n))], x[: n - 1])
    return y if step > 0 else pieces.flip(y, 0)


def _accumulate_in_place(x, y, *, method):
    x = x.clone()
    getattr(x, method)(y)
    return x


def _branch(x, y, *, then, other, test):
    """Take a Python branch on a computed value."""
    if test == "any":
        taken = bool((x > 0).any())
    elif test == "sum":
        taken = float(x.sum()) > 1.0
    else:
        taken = int(x.long().sum()) % 2 == 0
    return _elementwise(y, op=then if taken else other)


def _loop(x, *, times, op):
    """Apply a unary op several times in a `while_loop`, counting in a carried integer."""

    def body(state):
        i, y = state
        return i + 1, _elementwise(y, op=op) * 0.5 + y * 0.25

    count, y = while_loop(lambda state: state[0] < times, body, (wrap(np.array(0)), x))
    return y + count


def _fill_loop(x, *, times):
    """Fill an array in place, element by element, in a `while_loop`."""
    n = x.array.shape[0]

    def body(state):
        i, y = state
        y[i % n] = y[(i + 1) % n] * 0.5 + 1.0
        return i + 1, y

    return while_loop(lambda state: state[0] < times, body, (wrap(np.array(0)), x.clone()))[1]


def _cond(p, x, *, then, other):
    return cond(
        (p > 0).any(), lambda a: _elementwise(a, op=then), lambda a: _elementwise(a, op=other), x
    )


def _swap(x, y, *, times):
    """Exchange two carried values in a `while_loop`."""
    return while_loop(
        lambda s: s[0] < times, lambda s: (s[0] + 1, s[2], s[1] * 0.5), (wrap(np.array(0)), x, y)
    )[1]


def _sampled(x, *, seed):
    """A uniform number for each element, from counters that are computed."""
    counters = movement.reshape(wrap(np.arange(x.array.size)), x.array.shape) + x.long() * 0
    bits = FORMULAS["philox"].public(seed, 1, counters)
    return FORMULAS["bits_to_uniform"].public(bits)


def _sorted(x, *, dim, descending, part):
    """Values and indices in order; `part` takes the first few."""
    values, index = sorting.sort(x, dim, descending)
    return values[(slice(None),) * dim + (slice(0, part),)] if part else index


def _searched(x, v, *, right):
    """Search the sorted rows of `x`, or all of it if it is a vector."""
    return searching.searchsorted(sorting.sort(x, -1)[0], v, right=right)


def _order_statistic(x, *, kind, dim, q):
    if kind == "median":
        return order_statistics.median(x, dim)[0]
    return order_statistics.quantile(x, q, dim)


def _running(x, *, kind, dim, part):
    out = getattr(scans, kind)(x, dim)
    return out[part] if kind in ("cummax", "cummin") else out


def _recurrence(x, y, *, dim):
    return scans.linear_recurrence(x.tanh(), y, dim)


def _matrix(x):
    """A square matrix that is far from singular, from the last dim of `x`."""
    n = x.array.shape[-1]
    x = arithmetic.where(comparisons.isfinite(x), x, 0.5).tanh()
    return movement.unsqueeze(x, -1) * movement.unsqueeze(x, -2) * 0.5 + wrap(
        np.eye(n, dtype=x.array.dtype) * 2.0 + np.tri(n, k=-1, dtype=x.array.dtype) * 0.125
    )


def _factor(x, *, kind):
    a = _matrix(x)
    if kind == "cholesky":
        return cholesky_factors.cholesky(a)
    if kind in ("det", "inv"):
        return {"det": determinants.det, "inv": linalg.inv}[kind](a)
    if kind == "slogdet":
        return determinants.slogdet(a)[1]
    if kind == "qr":
        return orthogonal.qr(a)[1]
    if kind == "eigh":
        return spectral.eigh(a)[0]
    return spectral.svd(a, False)[1]


def _solve(x, y, *, kind):
    a = _matrix(x)
    y = movement.unsqueeze(y, -1)
    if kind == "solve":
        return linalg.solve(a, y)
    return linalg.solve_triangular(a, y, upper=kind == "upper")


def _special(x, y, *, kind):
    """Incomplete integrals at moderate arguments."""
    a, b = (arithmetic.where(comparisons.isfinite(v), v, 0.5).tanh() + 1.5 for v in (x, y))
    if kind == "betainc":
        return special.betainc(a, b, a * 0.25)
    return getattr(special, kind)(a, b)


def _variate(x, *, name, seed):
    """A draw for each element, from counters that are computed."""
    counters = movement.reshape(wrap(np.arange(x.array.size)), x.array.shape)
    a = arithmetic.where(comparisons.isfinite(x), x, 0.5).abs() % 50.0 + 0.25
    parameters = (a.double().round(), a.tanh()) if name == "binomial_draw" else (a,)
    return apply(REGISTRY[name], (*parameters, wrap(np.array(seed)), wrap(np.array(1)), counters))


def _moderate(x):
    """Values whose products of hundreds stay within range, zeros and what is no number kept."""
    size = x.abs()
    large = arithmetic.where(arithmetic.where(x.isinf(), 1.0, size) > 4.0, x.sign() * 4.0, x)
    return arithmetic.where(size < 0.25, x * 0.0, large)


ACTIONS = {
    "elementwise": _elementwise,
    "cast": lambda x, dtype: x.to(np.dtype(dtype)),
    # Conversion of what an integer cannot hold is undefined in C and NumPy, so it is fenced.
    "to_integer": lambda x, dtype: arithmetic.where(
        x.abs() < 100.0, x, arithmetic.sign(arithmetic.where(comparisons.isnan(x), 0.0, x))
    ).to(np.dtype(dtype)),
    "detach": lambda x: x.detach(),
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, dims: x.permute(dims),
    "expand": lambda x, shape: x.expand(shape),
    "index": lambda x, key: x[key],
    "flip": lambda x, dims: x.flip(dims),
    "diagonal": lambda x, offset, a, b: x.diagonal(offset, a, b),
    "diag_embed": lambda x, offset: x.diag_embed(offset),
    "roll": lambda x, shifts, dims: x.roll(shifts, dims),
    "repeat": lambda x, sizes: x.repeat(sizes),
    "tril": lambda x, diagonal: x.tril(diagonal),
    "cat": lambda *xs, dim: pieces.cat(xs, dim),
    "stack": lambda *xs, dim: pieces.stack(xs, dim),
    "take": _take,
    "gather": _gather,
    "scatter": _scatter,
    "index_put": _index_put,
    "assign": _assign,
    "overlap": _overlap,
    "in_place": _accumulate_in_place,
    "sum": reduction.sum,
    "mean": reduction.mean,
    # What under- or overflows on the way depends on the order of factors, so these are fenced.
    "prod": lambda x, **settings: reduction.prod(
        _moderate(x) if x.is_floating_point() else x, **settings
    ),
    "amax": extremes.amax,
    "amin": extremes.amin,
    "argmax": extremes.argmax,
    "argmin": extremes.argmin,
    "any": reduction.any,
    "all": reduction.all,
    "var": reduction.var,
    "norm": lambda x, p, dim: norms.norm(x, p, dim),
    "logsumexp": exponential_sums.logsumexp,
    "softmax": exponential_sums.softmax,
    "cumsum": lambda x, dim: x.cumsum(dim),
    "matmul": contraction.matmul,
    "einsum": lambda *xs, equation: contraction.einsum(equation, *xs),
    "branch": _branch,
    "loop": _loop,
    "fill_loop": _fill_loop,
    "swap": _swap,
    "cond": _cond,
    "sampled": _sampled,
    "sorted": _sorted,
    "searched": _searched,
    "order_statistic": _order_statistic,
    "running": _running,
    "recurrence": _recurrence,
    "factor": _factor,
    "solve": _solve,
    "special": _special,
    "variate": _variate,
}


@dataclass(frozen=True)
class Step:
    """One line of a program: an action, the places of its operands, and its settings."""

    action: str
    operands: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def __repr__(self):
        settings = "".join(f", {k}={v!r}" for k, v in self.settings.items())
        settings = f", dict({settings[2:]})" if settings else ""
        return f"Step({self.action!r}, {self.operands!r}{settings})"


@dataclass(frozen=True)
class Program:
    """Steps over inputs and captured tensors.

    Attributes
    ----------
    inputs : tuple of tuples of ndarray
        Two sets of arguments of equal shapes and dtypes.
    captured : tuple of ndarray
        Values that the program finds outside its arguments.
    steps : tuple of Step
    outputs : tuple of int
        Places of the results among inputs, captured and computed values.
    """

    inputs: tuple[tuple[np.ndarray, ...], ...]
    captured: tuple[np.ndarray, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def run(self, tensors, captured):
        """Return the results for tensors."""
        values = [*tensors, *captured]
        for step in self.steps:
            values.append(
                ACTIONS[step.action](*(values[i] for i in step.operands), **step.settings)
            )
        return tuple(values[i] for i in self.outputs)

    def with_gradients(self, tensors, captured):
        """Return the results and the gradients of their sum with respect to the floating inputs."""
        leaves = [x.detach().requires_grad_() if x.array.dtype.kind == "f" else x for x in tensors]
        out = self.run(leaves, captured)
        total = None
        for x in out:
            if x.requires_grad:
                part = x.double().sum()
                total = part if total is None else total + part
        wanted = [x for x in leaves if x.requires_grad]
        if total is None or not wanted:
            return tuple(x.detach() for x in out)
        grads = grad(total, wanted, materialize_grads=True)
        return (*(x.detach() for x in out), *grads)

    def _repr_pretty_(self, printer, cycle):
        printer.text(repr(self))  # not field by field, as hypothesis would

    def __repr__(self):
        def shown(x):
            if x.size > 40:
                return f"<{x.dtype.name} of shape {x.shape}>"
            return f"np.array({x.tolist()!r}, {x.dtype.name!r})"

        def arrays(xs):
            return ", ".join(map(shown, xs))

        lines = [f"inputs=(({arrays(self.inputs[0])}),", f"        ({arrays(self.inputs[1])})),"]
        lines += [f"captured=({arrays(self.captured)}),", "steps=("]
        lines += [f"    {s!r}," for s in self.steps]
        return "Program(\n" + "\n".join(lines) + f"\n), outputs={self.outputs})"
