"""Native code for rows in eager operations: exact to rounding, and in corners what NumPy gives."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

import probtorch
from probtorch.compiler.native import cache, elf, host
from probtorch.config import configure
from probtorch.nn.functional import layer_norm
from probtorch.ops.classes import class_log_probs
from probtorch.ops.native_rows import native_elements, native_rows
from probtorch.ops.orders import order
from probtorch.ops.standardise import standardise
from probtorch.tensor import tensor

pytestmark = pytest.mark.skipif(not elf.is_usable(), reason="NumPy serves on this machine")

SHAPES = [(1,), (7,), (3, 16), (2, 17), (4, 3, 33), (5, 300), (2, 9001), (120, 2), (2, 150, 7)]
# Of terms that are each exact to a unit or two in the last place, and their differences.
LIMITS = {np.float64: 4e-15, np.float32: 2e-6}
INF, NAN = np.inf, np.nan


def rows_of(shape, dtype, seed=0):
    return (3.0 * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def exact(x):
    """Shares, their logarithms and logsumexp over the last dim, in 80 bits."""
    x = x.astype(np.longdouble)
    top = x.max(-1, keepdims=True)
    e = np.exp(x - top)
    total = e.sum(-1, keepdims=True)
    return e / total, x - top - np.log(total), np.log(total) + top


def assert_within(got, want, dtype):
    limit = LIMITS[dtype] * max(np.abs(want).max(), 1e-30)
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= limit


def gradient(f, x, g):
    t = tensor(x).requires_grad_()
    f(t).backward(tensor(g))
    return t.grad.numpy()


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shares_and_logarithms_are_exact_to_rounding(shape, dtype):
    x, g = rows_of(shape, dtype), rows_of(shape, dtype, 1)
    assert native_rows("softmax", x, (x.ndim - 1,)) is not None
    shares, logs, total = exact(x)
    wide = g.astype(np.longdouble)
    assert_within(probtorch.softmax(tensor(x), -1).numpy(), shares, dtype)
    assert_within(probtorch.log_softmax(tensor(x), -1).numpy(), logs, dtype)
    assert_within(probtorch.logsumexp(tensor(x), -1, keepdim=True).numpy(), total, dtype)
    along = (shares * wide).sum(-1, keepdims=True)
    found = gradient(lambda t: probtorch.softmax(t, -1), x, g)
    assert np.abs(found - shares * (wide - along)).max() <= 10 * LIMITS[dtype]
    found = gradient(lambda t: probtorch.log_softmax(t, -1), x, g)
    want = wide - shares * wide.sum(-1, keepdims=True)
    assert np.abs(found - want).max() <= 10 * LIMITS[dtype] * np.abs(wide).max() * shape[-1] ** 0.5
    found = gradient(lambda t: probtorch.logsumexp(t, -1), x, g[..., 0])
    assert_within(found, shares * wide[..., :1], dtype)


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("shape", [(7,), (4, 3, 33), (2, 300), (300, 4), (3, 50, 2)], ids=str)
def test_a_class_of_each_row_has_its_logarithm_and_slope(shape, dtype):
    x, g = rows_of(shape, dtype), rows_of(shape[:-1], dtype, 1)
    index = np.random.default_rng(2).integers(0, shape[-1], shape[:-1])
    at_class, of_all = class_log_probs(tensor(x), tensor(index))
    logs = exact(x)[1]
    assert_within(of_all.numpy(), logs, dtype)
    picked = np.take_along_axis(of_all.numpy(), index[..., None], -1)[..., 0]
    np.testing.assert_array_equal(at_class.numpy(), picked)
    hot = np.arange(shape[-1]) == index[..., None]
    found = gradient(lambda t: class_log_probs(t, tensor(index))[0], x, g)
    assert_within(found, (hot - np.exp(logs)) * g[..., None], dtype)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_corners_of_a_row_are_the_same_among_many_as_alone(name):
    rows = [[0.0, INF], [INF, INF], [-INF, -INF], [-INF, 1.0], [NAN, 0.0], [800.0, -800.0]]
    many, of = np.array(rows * 30), getattr(probtorch, name)
    alone = np.stack([of(tensor(row), -1).numpy() for row in np.array(rows)] * 30)
    np.testing.assert_allclose(of(tensor(many), -1).numpy(), alone, rtol=1e-14)
    slopes = np.stack(
        [gradient(lambda t: of(t, -1).sum(), row, 1.0) for row in np.array(rows)] * 30
    )
    np.testing.assert_allclose(
        gradient(lambda t: of(t, -1).sum(), many, 1.0), slopes, rtol=1e-14, atol=1e-15
    )


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("dims", [(3,), (2, 3), (1, 2, 3)], ids=str)
def test_standardised_rows_are_exact_to_rounding(dims, dtype):
    x, g = rows_of((2, 3, 5, 17), dtype) + dtype(100.0), rows_of((2, 3, 5, 17), dtype, 1)
    wide, slope = x.astype(np.longdouble), g.astype(np.longdouble)
    mean = wide.mean(dims, keepdims=True)
    spread = ((wide - mean) ** 2).mean(dims, keepdims=True)
    y = (wide - mean) / np.sqrt(spread + 1e-3)
    found = [t.numpy() for t in standardise(tensor(x), dims, 1e-3)]
    assert_within(found[1], mean, dtype)
    assert_within(found[2], spread, dtype)
    # Where the mean is large its rounding to 53 bits counts, and for floats nothing does.
    assert np.abs(found[0] - y).max() <= (1e-13 if dtype is np.float64 else 5e-7)
    want = slope - slope.mean(dims, keepdims=True) - y * (slope * y).mean(dims, keepdims=True)
    want = want / np.sqrt(spread + 1e-3)
    got = gradient(lambda t: standardise(t, dims, 1e-3)[0], x, g)
    assert np.abs(got - want).max() <= (1e-12 if dtype is np.float64 else 2e-6)


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("shape", [(5,), (4, 3, 33), (600, 20)], ids=str)
def test_scaled_rows_and_their_slopes_are_exact_to_rounding(shape, dtype):
    arrays = [rows_of(s, dtype, k) for k, s in enumerate((shape, shape[-1:], shape[-1:], shape))]
    x, weight, bias, g = (a.astype(np.longdouble) for a in arrays)
    mean = x.mean(-1, keepdims=True)
    scale = np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-3)
    y, slope = (x - mean) / scale, g * weight
    along = (slope * y).mean(-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    want = (
        (slope - slope.mean(-1, keepdims=True) - y * along) / scale,
        (g * y).sum(rows),
        g.sum(rows),
    )
    leaves = [tensor(a).requires_grad_() for a in arrays[:3]]
    out = layer_norm(leaves[0], shape[-1:], *leaves[1:], eps=1e-3)
    assert out.grad_fn.name() == "LayerNormBackward0"
    assert_within(out.detach().numpy(), y * weight + bias, dtype)
    out.backward(tensor(arrays[3]))
    for leaf, slopes in zip(leaves, want, strict=True):
        assert_within(leaf.grad.numpy(), slopes, dtype)


def test_scaled_rows_are_the_same_bits_in_one_operation_and_in_parts():
    x, weight, bias = (tensor(rows_of(s, np.float64)) for s in ((6, 40), (40,), (40,)))
    parts = standardise(x, (1,), 1e-5)[0] * weight + bias
    np.testing.assert_array_equal(layer_norm(x, (40,), weight, bias).numpy(), parts.numpy())


def test_sums_along_a_long_row_lose_nothing():
    x = np.full((2, 1_000_003), 0.1)
    _, mean, spread = standardise(tensor(x), (1,), 0.0)
    assert np.abs(mean.numpy() - 0.1).max() <= 4 * np.finfo(float).eps * 0.1
    assert np.abs(spread.numpy()).max() < 1e-31
    x = np.full((1, 3_000_001), 0.1, np.float32)
    total = probtorch.logsumexp(tensor(x), -1).numpy()
    assert total[0] == np.float32(np.float64(x[0, 0]) + np.log(3_000_001.0))


CORNERS = [
    [1.0, NAN, 2.0],
    [INF, 1.0, 0.0],
    [INF, INF, 1.0],
    [-INF, -INF, -INF],
    [-INF, 1.0, 2.0],
    [INF, -INF, NAN],
    [1e308, -1e308, 0.0],
    [0.0, -0.0, 0.0],
    [-800.0, 0.0, -745.0],
]
FUNCTIONS = {
    "softmax": lambda t: probtorch.softmax(t, -1),
    "log_softmax": lambda t: probtorch.log_softmax(t, -1),
    "logsumexp": lambda t: probtorch.logsumexp(t, -1),
    "standardise": lambda t: standardise(t, (1,), 1e-5)[0],
    "standardise, eps 0": lambda t: standardise(t, (1,), 0.0)[0],
}


@pytest.mark.parametrize("width", [3, 20])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_corners_are_those_of_numpy(name, width):
    x = np.concatenate([np.array(CORNERS), np.zeros((len(CORNERS), width - 3))], 1)
    if width > 3:  # the corner in the middle of a row, which goes on with ordinary numbers
        x[3] = -INF
    f = FUNCTIONS[name]
    with np.errstate(all="raise"):
        native = f(tensor(x)).numpy()
        slopes = gradient(f, x, np.ones_like(native))
    with configure(jit=False):
        arrays = f(tensor(x)).numpy()
        others = gradient(f, x, np.ones_like(native))
    np.testing.assert_allclose(native, arrays, rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(slopes, others, rtol=1e-12, atol=1e-14)


ELEMENTS = {
    "sigmoid": lambda x, e: np.where(x >= 0, 1.0, e) / (1.0 + e),
    "softplus": lambda x, e: np.maximum(x, 0.0) + np.log1p(e),
    "log_sigmoid": lambda x, e: np.minimum(x, 0.0) - np.log1p(e),
}


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
def test_the_error_function_is_exact_to_rounding(dtype):
    rng = np.random.default_rng(0)
    ends = [0.0, -0.0, INF, -INF, NAN, 0.5, -0.5, 6.0, -30.0, 1e-30, 5e-324]
    x = np.concatenate([rng.standard_normal(301) * s for s in (1e-3, 1.0, 4.0)] + [ends])
    x = x.astype(dtype)
    f = native_elements("erf", x)
    assert f is not None
    found, want = f(x), np.array([math.erf(v) for v in x])  # of the C library
    assert found.dtype == dtype and np.isnan(found[np.isnan(x)]).all()
    known = ~np.isnan(x)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(found[known], want[known], rtol=2.0 * eps, atol=np.finfo(dtype).tiny)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(x[known]))
    np.testing.assert_array_equal(f(x[::-3]), found[::-3])
    np.testing.assert_array_equal(probtorch.erf(tensor(x)).numpy(), found)


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", ELEMENTS)
def test_formulas_of_elements_are_exact_to_rounding_wherever_they_lie(name, dtype):
    rng = np.random.default_rng(0)
    ends = [0.0, -0.0, INF, -INF, NAN, 745.0, -700.0, 80.0]
    parts = [rng.standard_normal(301) * s for s in (1e-3, 1.0, 10.0)]
    x = np.concatenate([*parts, np.zeros(1), ends]).astype(dtype)
    f = native_elements(name, x)
    with np.errstate(all="raise"):
        found = f(x)
    assert found.dtype == dtype
    wide = x.astype(np.longdouble)
    want = ELEMENTS[name](wide, np.exp(-np.abs(wide)))
    known = np.isfinite(want)
    np.testing.assert_array_equal(found[~known], want[~known].astype(dtype))
    rounded = 2.0 * np.finfo(dtype).eps * np.abs(want[known]) + np.finfo(dtype).tiny
    assert (np.abs(found[known] - want[known]) <= rounded).all()
    np.testing.assert_array_equal(f(x[1::3]), found[1::3])
    np.testing.assert_array_equal(f(x.reshape(-1, 4).T), found.reshape(-1, 4).T)
    np.testing.assert_array_equal(f(x[::-2]), found[::-2])
    apart = np.full(2 * len(x), NAN, dtype)
    f(x, out=apart[::2])
    np.testing.assert_array_equal(apart[::2], found)
    assert np.isnan(apart[1::2]).all()  # nothing is written between them
    np.testing.assert_array_equal(f(np.broadcast_to(x[0], 300)), np.full(300, found[0]))
    assert f(x[0]) == found[0] and f(x[:0]).shape == (0,)


def test_what_is_not_rows_is_left_to_numpy():
    x = np.ones((4, 6))
    assert native_rows("softmax", x, (1,)) is not None
    assert native_rows("standardise", x, (0, 1), several=True) is not None
    for other, dims in (
        (x, (0,)),
        (x.T, (1,)),
        (x[:, ::2], (1,)),
        (x[:0], (1,)),
        (x, ()),
        (x, (0, 1)),
        (x.astype(np.float16), (1,)),
        (x.astype(">f8"), (1,)),
        (x.astype(np.longdouble), (1,)),
    ):
        assert native_rows("softmax", other, dims) is None
    with configure(jit=False):
        assert native_rows("softmax", x, (1,)) is None


def test_a_class_that_is_none_reads_no_memory_of_others():
    native = native_rows("class_log_probs", np.ones((1, 3)), (1,))
    for index in (-1, 3, 2**62):
        assert np.isnan(native(np.ones((1, 3)), np.array([index]))[0]).all()


PROGRAM = """
import sys, probtorch
x = probtorch.tensor([[0.1, 0.7, -2.0]])
print(probtorch.softmax(x, -1).numpy().tobytes().hex())
print(*(name in sys.modules for name in ("llvmlite.binding", "probtorch.compiler.machine.engine")))
"""


def test_code_from_the_cache_is_linked_without_the_compiler_and_has_the_same_bits():
    x = tensor([[0.1, 0.7, -2.0]])
    here = probtorch.softmax(x, -1).numpy().tobytes().hex()
    # The first run may compile, where this process began while sources were still written.
    runs = [_run() for _ in range(2)]
    assert [bits for bits, _ in runs] == [here] * 2
    assert runs[1][1] == "False False"


@pytest.mark.parametrize("variable", ["PROBTORCH_CACHE", "PROBTORCH_JIT"])
def test_without_cache_or_compiler_numpy_serves(variable):
    bits, loaded = _run(**{variable: "0"})
    assert loaded == "False False"
    with configure(jit=False):
        x = probtorch.softmax(tensor([[0.1, 0.7, -2.0]]), -1)
    assert bits == x.numpy().tobytes().hex()


def _run(**environment):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return run.stdout.splitlines()


WIDTHS = """
import sys
from probtorch.compiler.native.host import write_for
if sys.argv[1:]:
    write_for(sys.argv[1])
import numpy as np
from probtorch.ops.native_rows import native_rows
x = np.random.default_rng(0).standard_normal((5, 333))
print(*(native_rows(name, x, (1,))(x).tobytes().hex() for name in ("softmax", "log_softmax")))
"""


def test_bits_do_not_depend_on_the_width_of_vectors():
    if not host.target().has_fma:
        pytest.skip("without fused multiply-add the last place differs")
    found = [
        subprocess.run(
            [sys.executable, "-c", WIDTHS, *level], capture_output=True, text=True, check=True
        ).stdout
        for level in ([], ["x86-64-v3"])
    ]
    assert len(found[0]) > 5 * 333 * 8 * 2
    assert found[0] == found[1]


def test_the_cache_has_the_name_that_the_engine_gives():
    assert cache.directory() is not None
    assert cache.key_by("a") == cache.key_of("key a", 2, False)


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
def test_a_step_of_an_optimizer_is_arithmetic_rounded_one_by_one_wherever_numbers_lie(dtype):
    arrays = [rows_of((3, 50), dtype, k) for k in range(4)]
    arrays[2] = np.abs(arrays[2])
    numbers = [dtype(x) for x in (0.01, 1.5, 0.99, 0.1, 0.999, 0.001, 1e-8)]
    size, correction, kept, share, b2, share2, eps = numbers
    p, m, v, g = arrays
    m, v = m + (g - m) * share, v * b2 + g * share2 * g
    want = p * kept - m / (np.sqrt(v) * correction + eps) * size, m, v
    step = native_elements("adam_step", p)
    for found in (
        step(*arrays, *numbers),
        step(*(np.repeat(a, 3, axis=1)[:, ::3] for a in arrays), *numbers),
        step(*(np.asfortranarray(a) for a in arrays), *numbers),
    ):
        for got, exactly in zip(found, want, strict=True):
            np.testing.assert_array_equal(got, exactly)
    of_each = step(*arrays, np.full_like(p, size), *numbers[1:])
    np.testing.assert_array_equal(of_each[0], want[0])


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_running_sums_and_products_are_computed_in_double_precision_and_rounded_once(shape, dtype):
    x = rows_of(shape, dtype)
    wide, near_1 = x.astype(np.float64), 1.0 + x / dtype(9001)
    for name, given, want in (
        ("running_sum", x, wide.cumsum(-1)),
        ("running_sum_back", x, wide[..., ::-1].cumsum(-1)[..., ::-1]),
        ("running_product", near_1, near_1.astype(np.float64).cumprod(-1)),
    ):
        with np.errstate(all="raise"):
            found = native_elements(name, given)(given)
        np.testing.assert_array_equal(found, want.astype(dtype))


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("width", [1, 16, 37])
def test_rows_are_added_in_the_order_of_their_indices(width, dtype):
    index = np.array([3, 0, -1, 3, 3, 2, -5, 0])
    rows = rows_of((len(index), width), dtype)
    want = np.zeros((5, width), dtype)
    np.add.at(want, index, rows)
    native = native_elements("added_rows", rows)
    np.testing.assert_array_equal(native(index, rows, np.empty(5, dtype)), want)
    index[1], index[4] = 5, 2**62  # nothing is written where there is no row
    np.add.at(
        want := np.zeros((5, width), dtype), np.delete(index, [1, 4]), np.delete(rows, [1, 4], 0)
    )
    np.testing.assert_array_equal(native(index, rows, np.empty(5, dtype)), want)


@pytest.mark.parametrize("dtype", LIMITS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_the_first_few_of_a_row_are_those_of_its_order(largest, dtype):
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 100):
        rows = rng.integers(-3, 4, (300, n)).astype(dtype)
        rows[::3] = rng.standard_normal((100, n))
        rows[rng.random(rows.shape) < 0.1] = NAN
        rows[rng.random(rows.shape) < 0.1] = INF
        rows[1::7] = -INF
        for k in {1, min(n, 3), min(n, 16)}:
            places = order(rows, 1, largest)[:, :k]
            native = native_rows("largest" if largest else "smallest", rows, (1,))
            values, found = native(rows, np.empty(k, dtype))
            np.testing.assert_array_equal(found, places)
            np.testing.assert_array_equal(values, np.take_along_axis(rows, places, 1))
