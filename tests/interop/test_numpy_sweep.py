"""NumPy's functions on tensors against NumPy itself: every argument, by name and by place.

Each call of `numpy_calls.py` is made on arrays and on tensors, and on tensors that require a
gradient, whose slope is compared with a finite difference. NumPy's result is ours in value, shape
and kind of dtype, and where it raises we raise. The three tables say where that is not so, and why;
each of their rows has to be met. The default run makes a share of the calls, the slow one all.
"""

import inspect
import warnings
from collections import Counter

import numpy as np
import pytest

import probtorch
from probtorch.array_functions import FUNCTIONS
from probtorch.autograd import grad
from probtorch.errors import ProbtorchError
from probtorch.tensor import Tensor, tensor
from tests.interop.numpy_calls import calls_of, function
from tests.interop.rows_of_lines import LINES
from tests.interop.rows_of_products import PRODUCTS
from tests.interop.rows_of_reductions import REDUCTIONS
from tests.interop.rows_of_shapes import SHAPES

ROWS = {**REDUCTIONS, **SHAPES, **PRODUCTS, **LINES}
# How many calls of each function the default run makes.
SHARE = 60


def has(**values):
    """Whether an option is one of the values, which are compared by what they print."""

    def holds(name, call):
        bound = _bound(call)
        return any(k in bound and repr(bound[k]) in map(repr, v) for k, v in values.items())

    return holds


def given(*tags):
    return lambda name, call: any(t in call.tags for t in tags)


def _bound(call):
    try:
        found = inspect.signature(call.fn).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return dict(call.kwargs)
    return {**found.arguments, **found.arguments.get("kwargs", {})}


def is_complex(name, call):
    return any(np.iscomplexobj(x) for x in [*call.data(), *map(_number, _bound(call).values())])


def _number(x):
    return x if isinstance(x, (complex, np.ndarray, np.generic)) else 0


def is_empty(name, call):
    return any(not x.size for x in call.data())


def is_flat(name, call):
    return any(not x.ndim for x in call.data())


def everywhere(name, call):
    return True


SUMS = "sum prod nansum cumsum cumprod trace linalg.trace"
MEANS = "mean nanmean var std cov corrcoef"
MADE = "full_like linspace logspace concatenate stack vstack hstack"
LIMITS = "max min amax amin argmax argmin ptp sort argsort median quantile percentile"

# Where NumPy has an answer and we say what to write instead.
REFUSED = [
    (f"{LIMITS} clip select", is_complex, "complex numbers have no order here"),
    (f"{SUMS} {MEANS} {MADE}", is_complex, "a real dtype has no place for imaginary parts"),
    ("median quantile percentile", is_empty, "no elements have no quantiles; NumPy warns"),
    ("linalg.norm linalg.vector_norm", is_empty, "no elements have no largest one"),
    ("gradient sinc i0 interp", is_complex, "not defined for complex numbers here"),
    ("tensordot", has(axes=[-1]), "a count of dims below 0 means nothing"),
    ("linalg.norm linalg.vector_norm", has(axis=[0.0]), "a double is no axis"),
    ("linalg.multi_dot", is_flat, "numbers are no matrices"),
    ("tile", has(reps=[-1]), "counts below 0 are refused of no elements too"),
]

# Where NumPy's own answer is given without a gradient and refused with one.
CUTS = [
    ("var std", given("where", "mean"), "with a mask write the mean of squares"),
    ("var std mean nanmean cov corrcoef", given("dtype"), "in integers or complex numbers"),
    ("var std", given("ddof", "correction"), "fewer elements than degrees of freedom"),
    ("var std", is_empty, "the same of none"),
    ("max min amax amin", given("where", "initial"), "a mask without a number to begin with"),
    ("quantile", given("method"), "methods between two elements that we lack"),
    ("reshape", given("copy"), "copy=False where it takes a copy"),
    ("pad", given("mode", "constant_values", "stat_length"), "modes that compute what they add"),
    ("pad", everywhere, "widths by axis"),
    ("cross linalg.cross", everywhere, "vectors of two elements"),
    ("linalg.pinv linalg.lstsq", given("rcond", "rtol"), "a rank below the full one has no slope"),
    ("clip einsum", given("dtype", "order"), "cast the arrays first"),
    ("einsum", everywhere, "lists of axes: write the letters"),
    ("interp", given("period"), "periods: take the remainder first"),
    ("interp", everywhere, "a line of one point"),
    ("gradient", is_flat, "a number has no neighbours"),
    ("convolve", has(mode=["v", 1]), "modes by letter"),
    ("trapezoid", everywhere, "sums of booleans are booleans"),
    ("polyval", is_empty, "no coefficients"),
]

# Where NumPy raises and we have an answer.
LENIENT = [
    ("average", is_empty, "a mean of nothing: nan, as 0 / 0 is"),
    ("cov", is_empty, "weights that add up to 0, here too"),
    ("median quantile percentile", is_empty, "axis=() of no elements cannot be reshaped there"),
    ("take_along_axis", everywhere, "places in a list are as good as in an array"),
    ("clip", everywhere, "booleans without limits are themselves"),
]


def _made(call, of):
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return call.made(of), None
    except Exception as error:
        return None, error


def _flat(found):
    if isinstance(found, (tuple, list)):
        return [x for item in found for x in _flat(item)]
    return [found]


def _difference(expected, found, call):
    """What two results do not have in common, or None."""
    expected, found = _flat(expected), _flat(found)
    if len(expected) != len(found):
        return f"{len(found)} results for {len(expected)}"
    single = [x for x in call.data() if x.dtype in (np.float32, np.complex64)]
    for a, b in zip(expected, found, strict=True):
        a, b = np.asarray(a), b.numpy(force=True) if isinstance(b, Tensor) else b
        if not isinstance(b, np.ndarray):
            return f"{type(b).__name__} in the place of a tensor"
        if a.shape != b.shape:
            return f"shape {b.shape} for {a.shape}"
        if a.size and a.dtype.kind != b.dtype.kind and {a.dtype.kind, b.dtype.kind} != {"i", "u"}:
            return f"{b.dtype} for {a.dtype}"
        doubles = [x for x in call.data() if x.dtype.kind in "fc" and x.ndim]
        if doubles and not single and a.size and a.dtype == np.float64 != b.dtype:
            return f"{b.dtype} for {a.dtype}"
        tol = 2e-5 if single or b.dtype.itemsize <= 4 or b.dtype == np.complex64 else 1e-10
        if not np.allclose(a, b, rtol=tol, atol=tol, equal_nan=True):
            return f"{b.ravel()[:4]} for {a.ravel()[:4]}"
    return None


def _slopes(call, found, leaves):
    """``(ours, finite difference)`` of a weighted sum of the results along a line, or None."""
    rng = np.random.default_rng(1)
    results = _flat(found)
    parts = [
        (i, rng.normal(size=x.shape))
        for i, x in enumerate(results)
        if x.numpy(force=True).dtype.kind in "fc"
    ]
    if not parts or any(not np.all(np.abs(results[i].numpy(force=True)) < 1e100) for i, _ in parts):
        return None

    def weighed(items, part_of):
        total = 0.0
        for i, w in parts:
            real, imag = part_of(items[i])
            total = total + (real * w).sum() + (0.0 if imag is None else (imag * (0.7 * w)).sum())
        return total

    def of_tensor(x):
        return (x.real, x.imag) if x.dtype.kind == "c" else (x, None)

    def of_array(x):
        x = np.asarray(x)
        return (x.real, x.imag) if x.dtype.kind == "c" else (x, None)

    total = weighed(results, of_tensor)
    towards = [rng.normal(size=x.shape) for x in leaves]
    if total.requires_grad:
        slopes = grad(total, leaves, materialize_grads=True, allow_unused=True)
        ours = sum((d * g.numpy()).sum() for d, g in zip(towards, slopes, strict=True))
    else:
        ours = 0.0

    def at(step):
        moves = iter(towards)
        moved, error = _made(call, lambda x: x + step * next(moves) if x.dtype.kind == "f" else x)
        return np.nan if error else weighed(_flat(moved), of_array)

    ahead, here, behind = at(1e-6), at(0.0), at(-1e-6)
    # On a bend there is no slope to compare with.
    bent = not abs(ahead + behind - 2.0 * here) < 2e-9 * max(1.0, abs(here))
    return None if bent else (ours, (ahead - behind) / 2e-6)


def _row(table, name, call):
    for i, (names, when, _) in enumerate(table):
        if name in names.split() and when(name, call):
            return i
    return None


def compared(name, calls):
    """``(faults, rows met)`` of calls on arrays, on tensors, and on tensors with a gradient."""
    faults, met = [], Counter()

    def excused(label, table, call, what):
        row = _row(table, name, call)
        if row is None:
            faults.append(f"{label}: {call}: {what}")
        met[label, row] += 1

    for call in calls:
        expected, raised = _made(call, np.copy)
        found, error = _made(call, tensor)
        if raised is not None:
            # In tensors of no dims the one axis is 0 or -1, as in PyTorch.
            flat = isinstance(raised, np.exceptions.AxisError) and is_flat(name, call)
            if error is None and not flat:
                excused("LENIENT", LENIENT, call, f"{raised} there, here {found}")
            continue
        if error is not None:
            if isinstance(error, ProbtorchError):
                excused("REFUSED", REFUSED, call, error)
            else:
                faults.append(f"crash: {call}: {error!r}")
            continue
        what = _difference(expected, found, call)
        if what is not None:
            faults.append(f"differs: {call}: {what}")
            continue
        kinds = {x.dtype.str[1:] for x in call.data()}
        if "f8" not in kinds or "f4" in kinds:
            continue
        leaves = []

        def leaf(x, leaves=leaves):
            out = tensor(x, requires_grad=x.dtype == np.float64)
            if out.requires_grad:
                leaves.append(out)
            return out

        found, error = _made(call, leaf)
        if error is not None:
            if isinstance(error, ProbtorchError):
                excused("CUTS", CUTS, call, error)
            else:
                faults.append(f"crash: {call}: {error!r}")
            continue
        what = _difference(expected, found, call)
        if what is not None:
            faults.append(f"differs with a gradient: {call}: {what}")
        elif _bound(call).get("dtype") is not np.float32:
            try:
                both = _slopes(call, found, leaves)
            except Exception as error:
                faults.append(f"slope: {call}: {error!r}")
                continue
            if both is not None and not np.isclose(*both, rtol=1e-4, atol=1e-4):
                faults.append(f"slope: {call}: {both[0]} for {both[1]}")
    return faults, met


def shown(faults):
    return f"{len(faults)} faults:\n" + "\n".join(f"{f:.300}" for f in faults[:20])


@pytest.mark.parametrize("name", ROWS)
def test_a_share_of_the_calls_gives_what_numpy_gives(name):
    calls = list(calls_of(name, ROWS[name]))
    # A step that divides no count of options.
    step = max(1, len(calls) // SHARE) | 1
    faults, _ = compared(name, calls[::step])
    assert not faults, shown(faults)


@pytest.mark.slow
def test_every_call_gives_what_numpy_gives_and_every_exception_is_needed():
    faults, met = [], Counter()
    for name in ROWS:
        wrong, rows = compared(name, calls_of(name, ROWS[name]))
        faults += wrong
        met += rows
    assert not faults, shown(faults)
    for label, table in (("REFUSED", REFUSED), ("CUTS", CUTS), ("LENIENT", LENIENT)):
        unused = [row for i, row in enumerate(table) if not met[label, i]]
        assert not unused, f"{label} has rows that nothing needs: {unused}"


def test_every_function_that_is_ours_is_called():
    missing = {function(name) for name in ROWS}.symmetric_difference(FUNCTIONS)
    assert {f.__name__ for f in missing} == set()


def test_every_argument_of_numpys_is_one_of_ours_in_its_place():
    wrong = []
    for fn, entry in FUNCTIONS.items():
        try:
            theirs = list(inspect.signature(fn).parameters.values())
            own = list(inspect.signature(entry).parameters.values())
        except ValueError:
            continue
        free = {p.kind for p in own}
        places = [p for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        for i, p in enumerate(theirs):
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.VAR_POSITIONAL not in free:
                if i >= len(places) or (places[i].name != p.name and i):
                    wrong.append(f"{fn.__name__}: {p.name} by place {i}")
            named = p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
            if named and p.VAR_KEYWORD not in free and p.name not in {q.name for q in own}:
                wrong.append(f"{fn.__name__}: {p.name}=")
    assert wrong == []


@pytest.mark.parametrize("fn", [np.sum, np.max, np.cumsum, np.argmax, np.median, np.round])
def test_out_is_written_to_or_refused(fn):
    x = np.array([[1.5, -2.25], [3.0, 0.5]])
    expected = fn(x)
    place = np.zeros_like(expected)
    assert fn(tensor(x), out=place) is place
    np.testing.assert_array_equal(place, expected)
    other = tensor(np.zeros_like(expected))
    assert fn(tensor(x), out=other) is other
    np.testing.assert_array_equal(other.numpy(), expected)
    with pytest.raises(ProbtorchError, match="out"):
        fn(tensor(x), out=np.zeros((7, 7)))
    if expected.dtype.kind == "f":
        with pytest.raises(ProbtorchError, match="gradient"):
            fn(tensor(x, requires_grad=True), out=place)


def test_compiled_calls_are_the_eager_ones():
    mask = np.array([True, False, True, True])
    at = np.array([0, 2])

    def f(a, v):
        parts = [
            np.sum(a, axis=np.int64(0), where=mask),
            np.mean(a, axis=1, where=mask),
            np.max(a, axis=0, initial=0.5),
            np.insert(a, 1, v, axis=0),
            np.insert(v, at, [1.0, 2.0]),
            np.delete(v, at),
            np.roll(a, (1, 2), axis=(0, 1)),
            np.reshape(a, (-1,), order="F"),
            np.average(a, axis=1, weights=v),
            np.quantile(a, [[0.2, 0.4]], axis=(0, 1)),
            np.linalg.norm(a, 1),
            np.linspace(v, 2.0, 3, axis=-1),
            np.pad(v, 2, mode="symmetric"),
            np.cross(a[:3, :3], v[:3]),
            np.diff(v, prepend=0.0, append=v[:2]),
        ]
        return sum((p * p).sum() for p in parts)

    rng = np.random.default_rng(3)
    a, v = rng.random((4, 4)) + 0.3, rng.random(4) + 0.2
    compiled = probtorch.compile(f)
    for scale in (1.0, 1.3, 0.7):
        leaves = [tensor(scale * x, requires_grad=True) for x in (a, v)]
        again = [tensor(scale * x, requires_grad=True) for x in (a, v)]
        expected, found = f(*leaves), compiled(*again)
        np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-12)
        for g, h in zip(grad(expected, leaves), grad(found, again), strict=True):
            np.testing.assert_allclose(h.numpy(), g.numpy(), rtol=1e-9, atol=1e-12)
