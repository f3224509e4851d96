"""Random typed programs, the way to run them, and how closely two runs of one must agree.

A `Program` is a list of `Step`s over a growing list of values: two sets of inputs, then what each
step makes. The strategy `programs` builds one step at a time and runs it eagerly on both sets of
inputs, so every program is well typed and knows its shapes; a step that eager execution refuses is
not added. `Program.run` carries it out on tensors: recorded, compiled or eager.

How closely must compiled and eager agree? Rounding differs: sums are reassociated, products are
contracted, exp and its kin are our own. So each program measures its own condition: `spread` runs
it a few times with the operands and results of every op that rounds moved by about one unit in the
last place at random, in the backward pass too. Eight times what those runs differ by (and eight
units in the last place) is allowed. Integers, booleans and moved data must agree exactly, and so
must the places of nan and infinities, unless the perturbed runs disagree among themselves.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from probtorch.autograd.listener import Listener
from probtorch.autograd.modes import no_grad
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import apply, wrap
from probtorch.core.op import REGISTRY
from probtorch.ops import (
    contraction,
    elementwise,
    incomplete,
    indexing,
    linalg,
    movement,
    reduction,
    scans,
    sorting,
    special,
    spectral,
)
from probtorch.ops import variates as _variates  # noqa: F401  registers its ops
from probtorch.ops.control import cond, while_loop

__all__ = ["Program", "Step", "differences", "programs", "spread"]

FORMULAS = {
    op.name: op
    for op in REGISTRY.values()
    if op.family == "elementwise" and op.formula is not None and op.public is not None
}
MAX_SIZE = 4000  # elements of any value that is not made for the product kernels
FACTOR = 8.0  # see the module docstring
RUNS = 5


# ---------------------------------------------------------------------------------------- the steps


def _fit(x, domain):
    """Move float values into the domain of an op, smoothly and so that nan stays nan."""
    if x._data.dtype.kind != "f":
        return x
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
            _fit(x, d) if hasattr(x, "_data") else x for x, d in zip(operands, domain, strict=True)
        ]
    return FORMULAS[op].public(*operands)


def _index(i, size):
    """Turn any integers into valid indices, some of them negative."""
    return i.long() % (2 * size) - size


def _take(x, i, *, dim):
    return x[(slice(None),) * dim + (_index(i, x._data.shape[dim]),)]


def _gather(x, i, *, dim):
    return indexing.gather(x, dim, i.long() % x._data.shape[dim])


def _scatter(x, i, v, *, dim, accumulate):
    return indexing.scatter(x, dim, i.long() % x._data.shape[dim], v, accumulate=accumulate)


def _index_put(x, i, v, *, accumulate):
    return indexing.index_put(x, [_index(i, x._data.shape[0])], v, accumulate)


def _assign(x, v, *, key):
    """Write into a copy of `x`, in place."""
    x = x.clone()
    x[key] = v
    return x


def _overlap(x, *, step):
    """Shift `x` along itself: the value written is a view of what is written to."""
    x = x.clone()
    n = x._data.shape[0]
    y = indexing.index_put(x, [wrap(np.arange(1, n))], x[: n - 1])
    return y if step > 0 else movement.flip(y, 0)


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
    n = x._data.shape[0]

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
    counters = movement.reshape(wrap(np.arange(x._data.size)), x._data.shape) + x.long() * 0
    bits = FORMULAS["philox"].public(seed, 1, counters)
    return FORMULAS["bits_to_uniform"].public(bits)


def _sorted(x, *, dim, descending, part):
    """Values and indices in order; `part` takes the first few."""
    values, index = sorting.sort(x, dim, descending)
    return values[(slice(None),) * dim + (slice(0, part),)] if part else index


def _searched(x, v, *, right):
    """Search the sorted rows of `x`, or all of it if it is a vector."""
    return sorting.searchsorted(sorting.sort(x, -1)[0], v, right=right)


def _order_statistic(x, *, kind, dim, q):
    if kind == "median":
        return sorting.median(x, dim)[0]
    return sorting.quantile(x, q, dim)


def _running(x, *, kind, dim, part):
    out = getattr(scans, kind)(x, dim)
    return out[part] if kind in ("cummax", "cummin") else out


def _recurrence(x, y, *, dim):
    return scans.linear_recurrence(x.tanh(), y, dim)


def _matrix(x):
    """A square matrix that is far from singular, from the last dim of `x`."""
    n = x._data.shape[-1]
    x = elementwise.where(elementwise.isfinite(x), x, 0.5).tanh()
    return movement.unsqueeze(x, -1) * movement.unsqueeze(x, -2) * 0.5 + wrap(
        np.eye(n, dtype=x._data.dtype) * 2.0 + np.tri(n, k=-1, dtype=x._data.dtype) * 0.125
    )


def _factor(x, *, kind):
    a = _matrix(x)
    if kind == "cholesky":
        return linalg.cholesky(a)
    if kind in ("det", "inv"):
        return {"det": spectral.det, "inv": linalg.inv}[kind](a)
    if kind == "slogdet":
        return spectral.slogdet(a)[1]
    if kind == "qr":
        return spectral.qr(a)[1]
    if kind == "eigh":
        return spectral.eigh(a)[0]
    return spectral.svd(a)[1]


def _solve(x, y, *, kind):
    a = _matrix(x)
    y = movement.unsqueeze(y, -1)
    if kind == "solve":
        return linalg.solve(a, y)
    return linalg.solve_triangular(a, y, upper=kind == "upper")


def _special(x, y, *, kind):
    """Incomplete integrals at moderate arguments."""
    a, b = (elementwise.where(elementwise.isfinite(v), v, 0.5).tanh() + 1.5 for v in (x, y))
    if kind == "betainc":
        return special.betainc(a, b, a * 0.25)
    return getattr(special, kind)(a, b)


def _variate(x, *, name, seed):
    """A draw for each element, from counters that are computed."""
    counters = movement.reshape(wrap(np.arange(x._data.size)), x._data.shape)
    a = elementwise.where(elementwise.isfinite(x), x, 0.5).abs() % 50.0 + 0.25
    parameters = (a.double().round(), a.tanh()) if name == "binomial_draw" else (a,)
    return apply(REGISTRY[name], (*parameters, wrap(np.array(seed)), wrap(np.array(1)), counters))


ACTIONS = {
    "elementwise": _elementwise,
    "cast": lambda x, dtype: x.to(np.dtype(dtype)),
    # Conversion of what an integer cannot hold is undefined in C and NumPy, so it is fenced.
    "to_integer": lambda x, dtype: elementwise.where(
        x.abs() < 100.0, x, elementwise.sign(elementwise.where(elementwise.isnan(x), 0.0, x))
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
    "cat": lambda *xs, dim: movement.cat(xs, dim),
    "stack": lambda *xs, dim: movement.stack(xs, dim),
    "take": _take,
    "gather": _gather,
    "scatter": _scatter,
    "index_put": _index_put,
    "assign": _assign,
    "overlap": _overlap,
    "in_place": _accumulate_in_place,
    "sum": reduction.sum,
    "mean": reduction.mean,
    "prod": reduction.prod,
    "amax": reduction.amax,
    "amin": reduction.amin,
    "argmax": reduction.argmax,
    "argmin": reduction.argmin,
    "any": reduction.any,
    "all": reduction.all,
    "var": reduction.var,
    "norm": lambda x, p, dim: reduction.norm(x, p, dim),
    "logsumexp": reduction.logsumexp,
    "softmax": reduction.softmax,
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
        leaves = [x.detach().requires_grad_() if x._data.dtype.kind == "f" else x for x in tensors]
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


# ------------------------------------------------------------------------------------- agreement


# What these give is exact: no rounding takes part.
EXACT = frozenset(
    (
        "clone neg abs sign floor ceil trunc round copysign where maximum minimum relu clamp cast "
        "amax amin argmax argmin reshape permute expand slice unslice cat diagonal diag_embed take "
        "put slice_put philox bits_to_uniform argsort order_statistic searchsorted cummax_index "
        "cummin_index"
    ).split()
)


# Where these give 0, its sign depends on the order in which they look at their operands.
FREE_ZERO = frozenset(
    ("maximum", "minimum", "amax", "amin", "relu", "sum", "prod", "cumsum", "matmul")
)

# SciPy's float32 versions of these are a dozen units off; compiled, they are computed in float64.
SPECIAL = frozenset((*special.__all__, *incomplete.__all__))


class _Mover(Listener):
    """Hears of every op, as a recorder would, and moves the result of every op that rounds.

    The op is run again on operands that are moved by about one unit in the last place at random,
    and so is its result: in place, so that the tape sees the moved one. (Normal numbers: four moves
    by plus or minus one unit cancel too often.)
    """

    records_loops = False

    def __init__(self, seed):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def moved(self, array, units=1.0):
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            return array
        eps = np.finfo(array.dtype).eps * units
        noise = self.rng.standard_normal(array.shape)
        # At least half a unit, or a number stays what it was in all runs.
        noise = 1.0 + eps * np.copysign(np.abs(noise) + 0.5, noise)
        return np.asarray(array * noise.astype(array.dtype))

    def moved_matrix(self, array, units):
        """Move the elements by units of the largest in their matrix: all that LAPACK promises."""
        if array.ndim < 2 or not array.size:
            return self.moved(array, units)
        eps = np.finfo(array.dtype).eps * units
        size = np.abs(array).max((-2, -1), keepdims=True)
        return np.asarray(array + (eps * size * self.rng.standard_normal(array.shape))).astype(
            array.dtype
        )

    def record_matrices(self, op, inputs, attrs, outs):
        """Hear of a factorisation, solve or the like."""
        units = np.sqrt(max(inputs[0]._data.shape[-1], 1))
        operands = [self.moved_matrix(x._data, units) for x in inputs]
        try:
            new = op.run(*operands, **attrs)
        except np.linalg.LinAlgError:
            return
        for o, x in zip(outs, new if isinstance(new, tuple) else (new,), strict=True):
            o._data[...] = self.moved(np.asarray(x), units)

    def record(self, op, inputs, attrs, out):
        if "sampler" in op.extra:
            # Their bits are the same; moved parameters would jump to other draws.
            return
        if op.family == "linalg":
            self.record_matrices(op, inputs, attrs, out if isinstance(out, tuple) else (out,))
            return
        if out._data.dtype.kind != "f":
            return
        if op.name in FREE_ZERO:
            zero = out._data == 0.0
            out._data[zero] = np.copysign(0.0, self.rng.standard_normal(zero.sum()))
        if op.name in EXACT and not _narrows(op, inputs, out):
            return
        # The errors of equal terms add up: as if each had sqrt(n) times the random one.
        units = np.sqrt(_terms(op, inputs, attrs, out))
        if op.name in SPECIAL and out._data.dtype == np.float32:
            units = 32.0
        operands = [self.moved(getattr(x, "_data", x), units) for x in inputs]
        out._data[...] = self.moved(np.asarray(op.run(*operands, **attrs)))


def _narrows(op, inputs, out):
    """Whether a cast rounds."""
    return op.name == "cast" and not np.can_cast(inputs[0]._data.dtype, out._data.dtype)


def _terms(op, inputs, attrs, out):
    """How many numbers an op adds up or multiplies for each result."""
    if op.name == "matmul":
        return max(inputs[0]._data.shape[-1], 1)
    if op.name == "cumsum" or op.family == "scan":
        return max(inputs[0]._data.shape[attrs["dim"]], 1)
    if op.family == "reduction":
        return max(inputs[0]._data.size / max(out._data.size, 1), 1)
    return 1


def spread(run, runs=RUNS):
    """Return, for each result of ``run()``, the value and how far perturbed runs are from it.

    Parameters
    ----------
    run : callable
        Runs a program eagerly and returns arrays.
    runs : int
        Number of perturbed runs; more of them come nearer to the largest distance there is.

    Returns
    -------
    list of (ndarray, ndarray of float64, ndarray of bool)
        The unperturbed result, the largest distance, and where all runs agree on nan, infinities
        and, for integers and booleans, on the value.
    """
    base = run()
    gaps = [np.zeros(a.shape) for a in base]
    agree = [np.ones(a.shape, bool) for a in base]
    for k in range(runs):
        with _Mover(k):
            moved = run()
        for i, (a, b) in enumerate(zip(base, moved, strict=True)):
            if a.dtype.kind != "f":
                agree[i] &= a == b
                continue
            finite = np.isfinite(a) & np.isfinite(b)
            agree[i] &= finite | (np.isnan(a) & np.isnan(b)) | (a == b)
            gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
            gaps[i] = np.maximum(gaps[i], np.where(finite, gap, 0.0))
    return list(zip(base, gaps, agree, strict=True))


def differences(got, expected):
    """Return a list of sentences, one per result that differs more than its condition allows.

    Parameters
    ----------
    got : sequence of ndarray
    expected : list
        From `spread`.
    """
    found = []
    for i, (g, (e, gap, agree)) in enumerate(zip(got, expected, strict=True)):
        if g.shape != e.shape or g.dtype != e.dtype:
            found.append(f"result {i}: {g.dtype}{g.shape} instead of {e.dtype}{e.shape}")
            continue
        if e.dtype.kind != "f":
            wrong = agree & (g != e)
            allowed = np.zeros(e.shape)
        else:
            info = np.finfo(e.dtype)
            size = np.abs(e.astype(np.float64))
            allowed = FACTOR * (gap + float(info.eps) * size) + float(info.tiny)
            apart = np.abs(g.astype(np.float64) - e.astype(np.float64))
            finite = np.isfinite(e)
            same = (g == e) | (np.isnan(g) & np.isnan(e)) | (finite & (apart <= allowed))
            # Within rounding of overflow, finite and infinite are neighbours.
            edge = finite & (size + allowed >= float(info.max)) & ~np.isfinite(g)
            wrong = agree & ~same & ~edge
        if wrong.any():
            at = tuple(int(k) for k in np.argwhere(wrong)[0])
            found.append(
                f"result {i} ({e.dtype}{e.shape}): {int(wrong.sum())} of {e.size} differ, "
                f"first at {at}: got {g[at]!r}, expected {e[at]!r}, allowed {allowed[at]:.3g}"
            )
    return found


# ------------------------------------------------------------------------------------- the strategy

SPECIAL_VALUES = [np.inf, -np.inf, np.nan, -0.0, 0.0, 5e-324, -1e-310, 1e300, 1.0, -1.0]
SIZES = [0, 1, 2, 3, 5, 7]
FLOATS = ["float64", "float64", "float64", "float32"]
DTYPES = ["float64"] * 8 + ["float32"] * 3 + ["int64"] * 3 + ["bool"] * 2
DTYPES += ["int32", "int16", "int8", "uint8"]
# Left to tests/contracts: SciPy has no rule for zeta at infinities. The others come on small arrays
# alone (`special`), as their derivatives in the shape parameters are slow eagerly.
LEFT_OUT = ("zeta", "gammainc", "gammaincc", "betainc")


def _of_arity(n):
    return sorted(
        name
        for name, op in FORMULAS.items()
        if len(op.partials) == n and op.domain != ("integer",) and name not in LEFT_OUT
    )


UNARY, BINARY, TERNARY = _of_arity(1), _of_arity(2), _of_arity(3)
# Ops that keep shape and float dtype and do not grow, for branches and loops.
TAME = ["sin", "tanh", "sigmoid", "softplus", "atan", "neg", "abs", "erf"]


def _array(draw, rng, shape, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        low = 0 if dtype.kind == "u" else -6
        a = rng.integers(low, 7, shape).astype(dtype)
        if a.size and draw(st.integers(0, 9)) == 0:
            limits = [np.iinfo(dtype).min, np.iinfo(dtype).max]
            a.flat[rng.integers(a.size)] = draw(st.sampled_from(limits))
        return a
    a = (rng.standard_normal(shape) * 2.0).astype(dtype)
    if a.size and draw(st.integers(0, 5)) == 0:
        for value in draw(st.lists(st.sampled_from(SPECIAL_VALUES), min_size=1, max_size=3)):
            with np.errstate(over="ignore"):
                a.flat[rng.integers(a.size)] = dtype.type(value)
    return a


class _Builder:
    """Grows a program by steps that eager execution accepts for both sets of inputs."""

    def __init__(self, draw, inputs, captured):
        self.draw = draw
        self.inputs, self.captured = inputs, captured
        self.steps = []
        self.values = [[wrap(a.copy()) for a in (*arrays, *captured)] for arrays in inputs]

    def choose(self, options):
        return self.draw(st.sampled_from(options))

    def integer(self, low, high):
        return self.draw(st.integers(low, high))

    def coin(self):
        return self.draw(st.booleans())

    # Typed views of what is there.

    def pick(self, accept=lambda x: True):
        """Return the place of some value that `accept` likes, often a late one; None if none."""
        places = [i for i, x in enumerate(self.values[0]) if accept(x._data)]
        if not places:
            return None
        if self.coin():
            places = places[-4:]
        return self.choose(places)

    def array(self, place):
        return self.values[0][place]._data

    def dims(self, ndim, at_least=0):
        found = self.draw(st.lists(st.integers(0, max(ndim - 1, 0)), max_size=ndim, unique=True))
        return tuple(sorted(found)) if len(found) >= at_least else tuple(range(ndim))

    def add(self, action, *operands, **settings):
        """Append a step if eager execution takes it; returns its place or None."""
        step = Step(action, operands, settings)
        made = []
        try:
            with no_grad(), np.errstate(all="ignore"):
                for values in self.values:
                    made.append(ACTIONS[action](*(values[i] for i in operands), **settings))
        except (ValueError, TypeError, RuntimeError, IndexError, ArithmeticError, UserWarning):
            return None
        a, b = (x._data for x in made)
        if a.shape != b.shape or a.dtype != b.dtype or a.size > MAX_SIZE or a.dtype.kind in "cV":
            return None
        if a.dtype == np.float16:
            return None
        for values, x in zip(self.values, made, strict=True):
            values.append(x)
        self.steps.append(step)
        return len(self.values[0]) - 1

    # One method per kind of step.

    def unary(self):
        x = self.pick()
        return self.add("elementwise", x, op=self.choose(UNARY), fit=self.integer(0, 3) > 0)

    def number(self, kind):
        if kind == "f":
            return self.choose([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.7, -2.25, 1e-3, 2])
        return self.choose([0, 1, 2, 3, -1, 5])

    def binary(self):
        x = self.pick()
        op = self.choose(["add", "sub", "mul", "mul", "add", *BINARY])
        fit = self.integer(0, 3) > 0
        if self.integer(0, 3) == 0:
            number = self.number(self.array(x).dtype.kind)
            return self.add(
                "elementwise", x, op=op, numbers=((self.integer(0, 1), number),), fit=fit
            )
        y = self.fellow(x)
        return self.add("elementwise", *self.draw(st.permutations([x, y])), op=op, fit=fit)

    def fellow(self, x):
        """Return the place of a value that broadcasts with `x`."""
        shape = self.array(x).shape

        def fits(a):
            try:
                np.broadcast_shapes(a.shape, shape)
            except ValueError:
                return False
            return True

        return self.pick(fits)

    def ternary(self):
        op = self.choose(["where", "where", "where", *TERNARY])
        x = self.pick()
        y = self.fellow(x)
        z = self.fellow(x)
        if op == "where":
            c = self.add("elementwise", x, op="gt", numbers=((1, self.number("f")),))
            if c is None:
                return None
            if self.coin():
                return self.add(
                    "elementwise",
                    c,
                    y,
                    op=op,
                    numbers=((2, self.number(self.array(y).dtype.kind)),),
                )
            return self.add("elementwise", c, y, z, op=op)
        return self.add("elementwise", x, y, z, op=op, fit=True)

    def cast(self):
        x = self.pick()
        dtype = self.choose(DTYPES)
        if self.array(x).dtype.kind == "f" and np.dtype(dtype).kind in "iu":
            return self.add("to_integer", x, dtype=dtype if dtype != "uint8" else "int64")
        return self.add("cast", x, dtype=dtype)

    def reduce(self):
        action = self.choose(
            [
                "sum",
                "sum",
                "sum",
                "mean",
                "prod",
                "amax",
                "amin",
                "argmax",
                "argmin",
                "any",
                "all",
                "var",
                "norm",
                "logsumexp",
                "softmax",
            ]
        )
        x = self.pick(lambda a: a.ndim > 0)
        if x is None:
            return None
        ndim = self.array(x).ndim
        if action in ("argmax", "argmin"):
            dim = self.draw(st.one_of(st.none(), st.integers(0, ndim - 1)))
            return self.add(action, x, dim=dim, keepdim=self.coin())
        if action == "softmax":
            return self.add(action, x, dim=self.integer(0, ndim - 1))
        if action == "norm":
            p = self.choose([2, 1, np.inf, 3.0])
            return self.add(action, x, p=p, dim=self.dims(ndim))
        if action == "var":
            return self.add(
                action,
                x,
                dim=self.dims(ndim, 1),
                correction=self.integer(0, 1),
                keepdim=self.coin(),
            )
        return self.add(action, x, dim=self.dims(ndim), keepdim=self.coin())

    def move(self):
        kind = self.draw(
            st.sampled_from(
                [
                    "reshape",
                    "permute",
                    "expand",
                    "index",
                    "index",
                    "flip",
                    "diagonal",
                    "diag_embed",
                    "roll",
                    "repeat",
                    "tril",
                ]
            )
        )
        x = self.pick(lambda a: a.ndim > 0)
        if x is None:
            return None
        a = self.array(x)
        if kind == "reshape":
            return self.add("reshape", x, shape=self.factors(a.size, a.shape))
        if kind == "permute":
            return self.add("permute", x, dims=tuple(self.draw(st.permutations(range(a.ndim)))))
        if kind == "expand":
            grown = tuple(self.choose([1, 2, 3]) if n == 1 else n for n in a.shape)
            return self.add("expand", x, shape=(*self.choose([(), (), (2,), (1, 3)]), *grown))
        if kind == "index":
            return self.add("index", x, key=self.basic_key(a.shape))
        if kind == "flip":
            return self.add("flip", x, dims=self.dims(a.ndim, 1))
        if kind == "diagonal" and a.ndim > 1:
            one, two = self.draw(st.permutations(range(a.ndim)))[:2]
            return self.add("diagonal", x, offset=self.integer(-2, 2), a=one, b=two)
        if kind == "diag_embed":
            return self.add("diag_embed", x, offset=self.integer(-1, 1))
        if kind == "roll":
            return self.add("roll", x, shifts=self.integer(-3, 3), dims=self.integer(0, a.ndim - 1))
        if kind == "repeat":
            return self.add(
                "repeat", x, sizes=tuple(self.integer(0, 2) if i else 2 for i in range(a.ndim))
            )
        if a.ndim > 1:
            return self.add("tril", x, diagonal=self.integer(-1, 1))
        return None

    def factors(self, size, shape):
        """Return another shape of `size` elements."""
        if size == 0:
            return tuple(self.draw(st.permutations(shape)))
        out = []
        for p in (2, 3, 5, 7, 11, 13):
            while size % p == 0 and size > 1:
                size //= p
                out.append(p)
        out = (
            [*self.draw(st.permutations(out)), size]
            if size > 1
            else list(self.draw(st.permutations(out)))
        )
        while len(out) > 1 and (len(out) > 4 or self.coin()):
            b = out.pop()
            out[self.integer(0, len(out) - 1)] *= b
        if self.integer(0, 3) == 0:
            out.insert(self.integer(0, len(out)), 1)
        return tuple(out)

    def basic_key(self, shape):
        """Return ints, slices (steps of both signs), None and Ellipsis for a shape."""
        key = []
        for n in shape:
            kind = self.choose(["slice", "slice", "slice", "int", "full", "new"])
            if kind == "int" and n:
                key.append(self.integer(-n, n - 1))
            elif kind == "slice":
                start = self.draw(st.one_of(st.none(), st.integers(-n - 1, n + 1)))
                stop = self.draw(st.one_of(st.none(), st.integers(-n - 1, n + 1)))
                step = self.choose([None, None, 1, 2, -1, -2, 3])
                key.append(slice(start, stop, step))
            else:
                if kind == "new":
                    key.append(None)
                key.append(slice(None))
        if key and self.integer(0, 3) == 0:
            key = [*key[:-1], Ellipsis]
        return tuple(key)

    def join(self):
        x = self.pick(lambda a: a.ndim > 0)
        if x is None:
            return None
        a = self.array(x)
        dim = self.integer(0, a.ndim - 1)
        if self.coin():
            y = self.pick(lambda b: b.shape == a.shape)
            return self.add("stack", x, y, dim=self.integer(0, a.ndim))
        rest = a.shape[:dim] + a.shape[dim + 1 :]
        parts = [x] + [
            self.pick(lambda b: b.ndim == a.ndim and b.shape[:dim] + b.shape[dim + 1 :] == rest)
            for _ in range(self.integer(1, 2))
        ]
        return self.add("cat", *self.draw(st.permutations(parts)), dim=dim)

    def indices(self):
        return self.pick(lambda a: a.dtype.kind in "iu" and a.size <= 60)

    def storable(self, v, a):
        """Return `v`, made whole where `a` cannot hold its infinities: processors differ there."""
        if v is None or a.dtype.kind not in "iu" or self.array(v).dtype.kind != "f":
            return v
        return self.add("to_integer", v, dtype="int64")

    def lookup(self):
        x = self.pick(lambda a: a.ndim > 0 and 0 not in a.shape)
        i = self.indices()
        if x is None or i is None:
            return None
        a = self.array(x)
        kind = self.choose(
            [
                "take",
                "take",
                "gather",
                "scatter",
                "index_put",
                "assign",
                "assign",
                "overlap",
                "in_place",
            ]
        )
        dim = self.integer(0, a.ndim - 1)
        if kind == "take":
            return self.add("take", x, i, dim=dim)
        if kind == "gather":
            return self.add("gather", x, i, dim=dim)
        if kind == "scatter":
            v = self.storable(self.pick(lambda b: b.ndim in (0, a.ndim)), a)
            # Without accumulation, equal indices race in the gradient's meaning but not in order.
            return self.add("scatter", x, i, v, dim=dim, accumulate=self.coin())
        if kind == "index_put":
            v = self.storable(self.pick(lambda b: b.ndim <= a.ndim), a)
            return self.add("index_put", x, i, v, accumulate=self.coin())
        if kind == "assign":
            v = self.storable(self.pick(lambda b: b.size <= a.size), a)
            return self.add(
                "assign", x, v, key=tuple(k for k in self.basic_key(a.shape) if k is not None)
            )
        if kind == "overlap":
            return self.add("overlap", x, step=self.choose([1, -1]))
        y = self.storable(self.fellow(x), a)
        return self.add("in_place", x, y, method=self.choose(["add_", "mul_", "sub_", "copy_"]))

    def scan(self):
        x = self.pick(lambda a: a.ndim > 0)
        return (
            None
            if x is None
            else self.add("cumsum", x, dim=self.integer(0, self.array(x).ndim - 1))
        )

    def product(self):
        x = self.pick(lambda a: a.ndim > 0)
        if x is None:
            return None
        a = self.array(x)
        if self.coin():
            y = self.pick(lambda b: b.ndim > 0 and b.shape[-2 if b.ndim > 1 else 0] == a.shape[-1])
            return None if y is None else self.add("matmul", x, y)
        if a.ndim == 2:
            y = self.pick(lambda b: b.ndim == 2 and b.shape[0] == a.shape[0])
            return self.add(
                "einsum", x, y, equation=self.choose(["ij,ik->jk", "ij,ik->j", "ij,ik->kij"])
            )
        y = self.pick(lambda b: b.ndim > 1 and b.shape[-1] == a.shape[-1])
        if y is None:
            return None
        order = (*range(self.array(y).ndim - 2), self.array(y).ndim - 1, self.array(y).ndim - 2)
        turned = self.add("permute", y, dims=order)
        return None if turned is None else self.add("matmul", x, turned)

    def control(self):
        x = self.pick(lambda a: a.size > 0)
        y = self.pick(lambda a: a.dtype.kind == "f")
        if x is None or y is None:
            return None
        then, other = self.choose(TAME), self.choose(TAME)
        kind = self.choose(["branch", "branch", "loop", "fill_loop", "cond", "cond", "swap"])
        if kind == "branch":
            test = self.choose(["any", "sum", "parity"])
            if test == "parity" and self.array(x).dtype.kind == "f":
                test = "any"
            return self.add("branch", x, y, then=then, other=other, test=test)
        if kind == "cond":
            return self.add("cond", x, y, then=then, other=other)
        times = self.integer(0, 4)
        if kind == "loop":
            return self.add("loop", y, times=times, op=then)
        if kind == "swap":
            shape, dtype = self.array(y).shape, self.array(y).dtype
            z = self.pick(lambda a: a.shape == shape and a.dtype == dtype)
            return self.add("swap", y, z, times=times)
        if self.array(y).ndim and self.array(y).shape[0]:
            return self.add("fill_loop", y, times=times)
        return None

    def sampled(self):
        x = self.pick()
        return self.add("sampled", x, seed=self.integer(0, 3))

    def order(self):
        x = self.pick(lambda a: a.ndim > 0 and 0 not in a.shape)
        if x is None:
            return None
        a = self.array(x)
        dim = self.integer(0, a.ndim - 1)
        kind = self.choose(["sorted", "sorted", "searched", "order_statistic"])
        if kind == "sorted":
            part = self.integer(0, a.shape[dim])
            return self.add("sorted", x, dim=dim, descending=self.coin(), part=part)
        if kind == "searched":
            v = self.pick(lambda b: a.ndim == 1 or b.shape[:-1] == a.shape[:-1])
            return None if v is None else self.add("searched", x, v, right=self.coin())
        kind = self.choose(["median", "quantile"])
        return self.add("order_statistic", x, kind=kind, dim=dim, q=self.choose([0.0, 0.3, 0.5]))

    def running(self):
        x = self.pick(lambda a: a.ndim > 0 and a.size > 0)
        if x is None:
            return None
        dim = self.integer(0, self.array(x).ndim - 1)
        if self.integer(0, 3) == 0:
            shape, dtype = self.array(x).shape, self.array(x).dtype
            y = self.pick(lambda b: b.shape == shape and b.dtype == dtype)
            return self.add("recurrence", x, y, dim=dim)
        kind = self.choose(["cumprod", "logcumsumexp", "cummax", "cummin"])
        return self.add("running", x, kind=kind, dim=dim, part=self.integer(0, 1))

    def matrices(self):
        x = self.pick(
            lambda a: a.ndim > 0 and a.dtype.kind == "f" and a.size <= 60 and a.shape[-1] <= 7
        )
        if x is None:
            return None
        if self.coin():
            kinds = ["cholesky", "det", "inv", "slogdet", "qr", "eigh", "svd"]
            return self.add("factor", x, kind=self.choose(kinds))
        shape, dtype = self.array(x).shape, self.array(x).dtype
        y = self.pick(lambda b: b.shape == shape and b.dtype == dtype)
        return self.add("solve", x, y, kind=self.choose(["solve", "upper", "lower"]))

    def integrals(self):
        x = self.pick(lambda a: a.dtype.kind == "f" and a.size <= 20)
        if x is None:
            return None
        shape, dtype = self.array(x).shape, self.array(x).dtype
        y = self.pick(lambda b: b.shape == shape and b.dtype == dtype)
        kind = self.choose(["gammainc", "gammaincc", "betainc"])
        return self.add("special", x, y, kind=kind)

    def variate(self):
        x = self.pick(lambda a: a.dtype.kind == "f" and a.size <= 60)
        if x is None:
            return None
        names = ["standard_gamma", "standard_log_gamma", "poisson_draw", "binomial_draw"]
        name = self.choose([*names, "von_mises_draw"])
        return self.add("variate", x, name=name, seed=self.integer(0, 3))


KINDS = (
    "unary unary unary unary unary unary binary binary binary binary binary binary binary "
    "ternary ternary cast cast reduce reduce reduce reduce move move move move move join join "
    "lookup lookup lookup scan product product product control sampled order order running "
    "matrices integrals variate"
).split()


def _shapes(draw):
    """Return the shapes of the inputs: small, or of the sizes that the product kernels take."""
    kind = draw(st.sampled_from(["small"] * 6 + ["rows", "gemm"]))
    if kind == "rows":
        n = draw(st.sampled_from([128, 129, 131, 190, 257]))
        k = draw(st.sampled_from([1, 2, 3, 5, 8]))
        pool = [(n, k), (k, n), (k,), (n,), (n, 1)]
        return [pool[draw(st.integers(0, 1))], (k,), (n,), draw(st.sampled_from(pool))]
    if kind == "gemm":
        m, k, n = (draw(st.sampled_from([28, 29, 31, 37])) for _ in range(3))
        return [(m, k), (k, n), draw(st.sampled_from([(k,), (m,), (n, m), (m, n)]))]
    sizes = [draw(st.sampled_from(SIZES)) for _ in range(3)]
    count = draw(st.integers(1, 4))
    return [
        tuple(draw(st.sampled_from(sizes)) for _ in range(draw(st.integers(0, 3))))
        for _ in range(count)
    ]


@st.composite
def programs(draw, *, max_steps=30, first=None, nonempty=False):
    """Strategy: programs of up to `max_steps` steps.

    `first` is the dtype of the first input, if given; `nonempty` says that it has elements.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shapes = _shapes(draw)
    dtypes = [draw(st.sampled_from(DTYPES if i else FLOATS)) for i in range(len(shapes))]
    if any(np.prod(s) > 300 for s in shapes):
        dtypes = [draw(st.sampled_from(FLOATS))] * len(shapes)
    if first is not None:
        dtypes[0] = first
    if nonempty:
        shapes[0] = tuple(max(n, 1) for n in shapes[0])
    inputs = tuple(
        tuple(_array(draw, rng, s, d) for s, d in zip(shapes, dtypes, strict=True))
        for _ in range(2)
    )
    captured = tuple(
        _array(draw, rng, draw(st.sampled_from([*shapes, ()])), draw(st.sampled_from(DTYPES)))
        for _ in range(draw(st.integers(0, 2)))
    )
    build = _Builder(draw, inputs, captured)
    target = draw(st.integers(1, max_steps))
    for _ in range(2 * target):
        if len(build.steps) >= target:
            break
        getattr(build, draw(st.sampled_from(KINDS)))()
    used = {i for step in build.steps for i in step.operands}
    count = len(build.values[0])
    loose = [i for i in range(count) if i not in used and i >= count - len(build.steps)]
    outputs = loose[-6:] or [count - 1]
    if draw(st.integers(0, 3)) == 0:
        outputs = [*outputs, draw(st.integers(0, count - 1))]
    return Program(inputs, captured, tuple(build.steps), tuple(outputs))
