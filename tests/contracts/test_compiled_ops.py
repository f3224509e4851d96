"""Every op that can be compiled gives what it gives eagerly, however its operands lie in memory.

Elementwise ops run on views made inside the compiled function, where the compiler sees them as
layouts; ops with a lowering rule on their own samples, turned around and back. Float32, integers
and booleans are included where an op takes them, and values at the ends of each dtype. Results
agree to within the condition that tests/compiler/agreement.py measures.
"""

import warnings

import numpy as np
import pytest

import probtorch.infer
import probtorch.nn  # noqa: F401  these two register the last of the ops
from probtorch.autograd.tape import grad
from probtorch.compiler import lower  # noqa: F401  fills the table of rules
from probtorch.compiler.compile import compile
from probtorch.compiler.nests.lowering import RULES, rule_of
from probtorch.compiler.paths import CompileWarning
from probtorch.core.dispatch import wrap
from probtorch.core.op import REGISTRY
from probtorch.testing.domains import DOMAINS, draw
from probtorch.testing.sweep import cases, differentiable_inputs
from tests.compiler.agreement import differences, spread


def ours():
    """The ops of the package: users, and other tests in the same process, register more."""
    return [
        op
        for op in REGISTRY.values()
        if (op.run if op.public is None else op.public).__module__.startswith("probtorch.")
    ]


FORMULAS = {
    op.name: op
    for op in ours()
    if op.family == "elementwise" and op.formula is not None and op.public is not None
}
LOWERED = {
    op.name: op
    for op in ours()
    if op.name not in FORMULAS and (rule_of(op.name, op) or "decompose" in op.extra)
}
# SciPy's zeta gives nan or 0 at infinities and where its terms underflow, by no rule.
NO_RULE_AT_INFINITY = ("zeta",)
# Run elsewhere, on the native functions that they need, or in loops that write what nobody fills.
ELSEWHERE = {"native_density": "tests/infer", "room": "tests/autograd/test_scan.py"}

FLOATS = ("float64", "float32")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
# Elementwise ops that do not take all of them: random bits come in the widest, and booleans have
# no negative, as in NumPy and PyTorch.
INTEGERS_OF = {"bits_to_uniform": ("int64",), "neg": INTEGERS[:-1], "sub": INTEGERS[:-1]}
# Their public functions convert integers first.
FLOATS_ONLY = {op.name for op in LOWERED.values() if op.family in ("linalg", "sampling", "special")}
FLOATS_ONLY |= {"logsumexp", "logcumsumexp", "linear_recurrence", "sparse_product"}

VIEWS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.T,
    "strided": lambda x: x[::2, 1::3],
    "reversed": lambda x: x.flip((0, 1)),
    "every second backwards": lambda x: x[::-2, ::-1],
    "row over matrix": lambda x: x[1],
    "column over matrix": lambda x: x[:, 2:3],
    "expanded": lambda x: x[:1].expand(4, 6),
    "0-d": lambda x: x[1, 2],
    "size 1": lambda x: x[1:2, 2:3],
    "empty": lambda x: x[:0],
    "empty inside": lambda x: x[:, 3:3],
}


def arrays(tensors):
    return [np.asarray(t.array) for t in tensors]


def assert_compiled_is_eager(fn, *calls):
    """Compare `fn` with its compiled form on several lists of arrays; the first is met twice."""
    native = compile(fn)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error", CompileWarning)
        for inputs in (calls[0], *calls):
            got = arrays(native(*map(wrap, inputs)))
            expected = spread(lambda inputs=inputs: arrays(fn(*map(wrap, inputs))))
            wrong = differences(got, expected)
            assert not wrong, wrong
    assert native.reason is None


def takes(fn, inputs):
    """Whether eager execution takes these operands, with results of dtypes that are compiled."""
    try:
        with np.errstate(all="ignore"):
            out = fn(*map(wrap, inputs))
    except (TypeError, ValueError, RuntimeError, ArithmeticError):
        return False
    return all(t.array.dtype.name in (*FLOATS, *INTEGERS) for t in out)


def all_views(op, chosen):
    """Return the function that applies `op` to some views of its operands."""

    def fn(*xs):
        out = []
        for name in chosen:
            view = VIEWS[name]
            views = [view(x) for x in xs]
            if "over matrix" in name:
                # Every operand in turn is the one that broadcasts.
                for i in range(len(xs)):
                    out.append(op.public(*(views[j] if j == i else xs[j] for j in range(len(xs)))))
            else:
                out.append(op.public(*views))
        return tuple(out)

    return fn


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_elementwise_op_on_every_layout(name):
    op = FORMULAS[name]
    rng = np.random.default_rng(len(name))
    calls = [[draw(d, rng, (4, 6)) for d in op.domain] for _ in range(2)]
    assert_compiled_is_eager(all_views(op, VIEWS), *calls)


SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 2.5, 3.5, 1e-310, -5e-324]
SPECIAL += [1e300, -1e300, 40.0, -40.0, 800.0, -800.0, 1e-8, np.pi, 1.0 - 2**-53, 2**53 + 2.0, -7.0]


def has_rule_at_infinity(name):
    return name not in NO_RULE_AT_INFINITY and not any(
        DOMAINS[d].kind == "integer" for d in FORMULAS[name].domain
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", list(filter(has_rule_at_infinity, sorted(FORMULAS))))
def test_elementwise_op_at_infinities_nan_zeros_and_extremes(name, dtype):
    op = FORMULAS[name]
    with np.errstate(over="ignore"):
        values = np.array(SPECIAL).astype(dtype)
    # All pairs, of which a third operand repeats the first.
    pairs = np.meshgrid(values, values, indexing="ij")
    inputs = [pairs[i % 2].copy() for i in range(len(op.domain))]
    inputs = [x > 0 if d == "boolean" else x for x, d in zip(inputs, op.domain, strict=True)]
    assert_compiled_is_eager(lambda *xs: (op.public(*xs),), inputs)


def integer_values(op, dtype, rng, extreme):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return [rng.integers(0, 2, (4, 6)).astype(bool) for _ in op.domain]
    low = 0 if dtype.kind == "u" else -6
    out = [rng.integers(low, 7, (4, 6)).astype(dtype) for _ in op.domain]
    if extreme:
        for x in out:
            x.flat[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max
            rng.shuffle(x.reshape(-1))
    return out


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_elementwise_op_on_integers(name):
    op = FORMULAS[name]
    rng = np.random.default_rng(len(name))
    one = all_views(op, ["contiguous", "reversed", "row over matrix"])
    inputs, takers = [], []
    for dtype in INTEGERS:
        extreme = name not in NO_RULE_AT_INFINITY
        tried = [integer_values(op, dtype, rng, flag) for flag in (extreme, False)]
        # Divisors and exponents must not be 0 or negative: then eager execution raises an error.
        tried.append([np.abs(x) + (x == 0).astype(dtype) for x in tried[1]])
        found = next((xs for xs in tried if takes(one, xs)), None)
        if found is not None:
            inputs += found
            takers.append(dtype)
    assert takers == list(INTEGERS_OF.get(name, INTEGERS))
    arity = len(op.domain)

    def fn(*xs):
        return tuple(y for k in range(0, len(xs), arity) for y in one(*xs[k : k + arity]))

    assert_compiled_is_eager(fn, inputs)


# ------------------------------------------------------------------------- ops with a lowering rule


TURNS = {
    "contiguous": (lambda a: a, lambda x: x),
    "reversed": (
        lambda a: np.flip(a),
        lambda x: x.flip(tuple(range(x.ndim))) if x.ndim else x,
    ),
    "transposed": (lambda a: np.array(a.T, order="C"), lambda x: x.T),
    "strided": (
        lambda a: np.repeat(a, 2, axis=-1) if a.ndim else a,
        lambda x: x[..., ::2] if x.ndim else x,
    ),
}


def as_dtype(arrays, dtype, scale):
    """Scale and convert the floating arrays among some; indices stay what they are."""
    return [(a * scale).astype(dtype) if a.dtype.kind == "f" else np.array(a) for a in arrays]


@pytest.mark.parametrize(
    "name, dtype",
    [
        pytest.param(name, dtype, marks=pytest.mark.slow if dtype in ("int8", "uint8") else ())
        for name in sorted(LOWERED.keys() - ELSEWHERE.keys())
        for dtype in (
            FLOATS if name in FLOATS_ONLY else (*FLOATS, "int64", "int8", "uint8", "bool")
        )
    ],
)
def test_structured_op_on_every_layout(name, dtype):
    op = LOWERED[name]
    inputs, runs = [], []
    for case in cases(op):
        arrays_of_case = as_dtype(case.arrays, dtype, 1 if name in FLOATS_ONLY else 3)
        for there, back in TURNS.values():
            runs.append((case, back, len(inputs), len(arrays_of_case)))
            inputs += [there(a) for a in arrays_of_case]
    assert runs

    def fn(*xs):
        out = []
        for case, back, at, count in runs:
            out += case.run([back(x) for x in xs[at : at + count]])
        return tuple(out)

    assert_compiled_is_eager(fn, inputs)


def gradients(case):
    """Return the function from a case's inputs to the gradients of a weighted sum."""

    def fn(*xs):
        wanted = set(differentiable_inputs(case.op, case.arrays))
        leaves = [x.detach().requires_grad_() if i in wanted else x for i, x in enumerate(xs)]
        total = 0.0
        for out in case.run(leaves):
            if out.requires_grad:
                weights = np.cos(np.arange(out.numel(), dtype=float)).reshape(out.shape)
                total = total + (out * wrap(weights.astype(out.array.dtype))).sum()
        return tuple(grad(total, [x for x in leaves if x.requires_grad], materialize_grads=True))

    return fn


def has_gradient(name):
    return any(differentiable_inputs(LOWERED[name], case.arrays) for case in cases(LOWERED[name]))


@pytest.mark.parametrize(
    "name", [n for n in sorted(LOWERED.keys() - ELSEWHERE.keys()) if has_gradient(n)]
)
def test_gradient_of_structured_op(name):
    for case in cases(LOWERED[name]):
        if differentiable_inputs(case.op, case.arrays):
            assert_compiled_is_eager(gradients(case), [np.array(a) for a in case.arrays])


def test_every_rule_is_of_an_op_that_is_tested_here_or_of_a_node_of_the_compiler():
    made_by_the_compiler = {"guard", "while", "cond", "accumulate"}
    declared = {"view", "reduce", "scan", "routine", "function"}
    assert RULES.keys() - LOWERED.keys() - made_by_the_compiler - declared <= ELSEWHERE.keys()


def test_rules_by_name_are_for_ops_that_are_no_routine_and_no_part_of_a_nest():
    """Nodes of the compiler, memory put together from pieces, integer indices, and six others."""
    assert set(RULES) == {
        *("view", "reduce", "scan", "routine", "function"),
        *("guard", "while", "cond", "accumulate", "native_density"),
        *("unslice", "diag_embed", "cat", "slice_put", "put", "untake", "take"),
        *("matmul", "sparse_product", "searchsorted", "demand", "to_device", "room"),
    }


def test_every_op_has_a_formula_a_rule_or_a_decomposition():
    missing = {op.name for op in ours()} - FORMULAS.keys() - LOWERED.keys()
    # What is lowered beside the formulas, and what only functions meet that stay eager.
    of_complex = {"eig", "fft_complex", "fft_hermitian", "fft_real", "imag", "real"}
    assert missing == {"cast", "view_as_complex", "view_as_real"} | of_complex
