"""A hypothesis strategy for random typed programs.

`programs` builds one step at a time and runs it eagerly on both sets of inputs, so every program is
well typed and knows its shapes; a step that eager execution refuses is not added. Each method of
`_Builder` chooses the operands and settings of one kind of step (`KINDS` has their weights); what
the step does is in programs.py.
"""

import numpy as np
from hypothesis import strategies as st

from probtorch.autograd.modes import no_grad
from probtorch.core.dispatch import wrap
from tests.compiler.programs import ACTIONS, FORMULAS, Program, Step

__all__ = ["programs"]

MAX_SIZE = 4000  # elements of any value that is not made for the product kernels
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
        places = [i for i, x in enumerate(self.values[0]) if accept(x.array)]
        if not places:
            return None
        if self.coin():
            places = places[-4:]
        return self.choose(places)

    def array(self, place):
        return self.values[0][place].array

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
        a, b = (x.array for x in made)
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
        n = draw(st.sampled_from([128, 129, 131, 190, 257, 1100]))
        k = draw(st.sampled_from([1, 2, 3, 5, 8] if n < 500 else [1, 2, 3]))
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
