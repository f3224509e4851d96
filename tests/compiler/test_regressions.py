"""Programs that once went wrong when compiled, each as small as it can be.

Found by random programs (test_random_programs.py) and by reading. The oracle is NumPy where it has
the operation, else eager execution.
"""

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import probtorch
from probtorch.compiler.compile import compile
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.op import REGISTRY
from probtorch.nn import functional
from probtorch.ops.arithmetic import fmod, remainder
from probtorch.ops.cholesky_factors import cholesky, cholesky_ex
from probtorch.ops.control import while_loop
from probtorch.ops.families import elementwise
from probtorch.ops.indexing import index_put
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.random_numbers import philox
from probtorch.ops.scalar import numpy_algebra
from probtorch.ops.scattering import one_hot
from probtorch.ops.special import lgamma_difference, zeta
from probtorch.tensor import tensor

RNG = np.random.default_rng(0)
EDGES = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.5, -2.5])


def native(fn, *arrays):
    """Result of the second, native call, as an array."""
    compiled = compile(fn)
    compiled(*map(wrap, arrays))
    out = compiled(*map(wrap, arrays))
    assert compiled.reason is None, compiled.reason
    return out.array


def assert_native(fn, expected, *arrays):
    got, expected = native(fn, *arrays), np.asarray(expected)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    if got.dtype.kind == "f":
        np.testing.assert_array_equal(
            np.signbit(got) & (got == 0), np.signbit(expected) & (got == 0)
        )


# ---------------------------------------------------------------------------------- scalar formulas


def test_sign_relu_and_signbit_at_infinities():
    assert_native(lambda x: x.sign(), np.sign(EDGES), EDGES)
    assert_native(lambda x: x.relu().abs(), np.maximum(EDGES, 0.0), EDGES)
    assert_native(lambda x: x.signbit(), np.signbit(EDGES), EDGES)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_floor_divide_at_zero_and_infinity_is_numpys(dtype):
    x, y = (a.astype(dtype) for a in np.meshgrid(EDGES, EDGES))
    with np.errstate(all="ignore"):
        expected = np.floor_divide(x, y)
    assert_native(lambda x, y: x // y, expected, x, y)


def test_integer_quotients_at_the_smallest_integer_are_numpys():
    for dtype in ("int64", "int32", "int8"):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        x = np.array([low, low, low, high, high, -7, 7, 0], dtype)
        y = np.array([3, 1, 7, -3, 2, 2, -2, -5], dtype)
        assert_native(lambda x, y: x // y, x // y, x, y)
        assert_native(lambda x, y: x % y, x % y, x, y)
        with np.errstate(over="ignore"):
            assert_native(lambda x: x // -1, x // np.array(-1, dtype), x)


def test_powers_of_two_and_their_logarithms_are_exact():
    k = np.arange(-300.0, 300.0)
    assert_native(lambda x: x.exp2(), np.exp2(k), k)
    assert_native(lambda x: x.log2(), k, np.exp2(k))
    tens = np.arange(0.0, 15.0)
    assert_native(lambda x: x.log10(), tens, 10.0**tens)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_integer_powers_wrap_around_as_numpys(dtype):
    x = np.arange(12).astype(dtype)
    y = np.array([0, 1, 2, 3, 4, 5, 6, 7, 30, 0, 1, 2], dtype)
    with np.errstate(over="ignore"):
        assert_native(lambda x, y: x**y, x**y, x, y)
        assert_native(lambda x: x**3 + x**1 + x**0 + x**9, x**3 + x + 1 + x**9, x)


def test_a_negative_integer_exponent_raises_on_every_call():
    f = compile(lambda x, y: x**y)
    x = wrap(np.array([2, 3]))
    np.testing.assert_array_equal(f(x, wrap(np.array([3, 2]))).array, [8, 9])
    np.testing.assert_array_equal(f(x, wrap(np.array([0, 1]))).array, [1, 3])
    with pytest.raises(ValueError, match="negative"):
        f(x, wrap(np.array([1, -1])))


def test_shifts_beyond_the_width_leave_nothing():
    x = np.array([1, -1, 5, -8], np.int32)
    y = np.array([31, 32, 40, 33], np.int32)
    assert_native(lambda x, y: x << y, x << y, x, y)
    assert_native(lambda x, y: x >> y, x >> y, x, y)
    assert_native(lambda y: probtorch.shift_left(3, y), np.int32(3) << y, y)


def test_unsigned_bytes_wrap_around_and_compare_as_unsigned():
    x = np.arange(0, 256, 5).astype(np.uint8)
    y = x[::-1].copy()
    assert_native(lambda x, y: (x + y * 3 - 7) ^ (x >> 1), (x + y * 3 - 7) ^ (x >> 1), x, y)
    assert_native(lambda x, y: x < y, x < y, x, y)
    assert_native(lambda x: -x, -x, x)
    assert_native(lambda x: x.double() / 255.0, x / 255.0, x)
    assert_native(lambda x: x.amin(), np.uint8(0), x)
    assert_native(lambda x: x.sum(), np.int64(x.sum()), x)


def test_arithmetic_of_booleans_is_numpys():
    x, y = np.array([True, True, False, False]), np.array([True, True, True, True])
    assert_native(lambda x: x.square(), x.astype(np.int64), x)  # PyTorch's
    assert_native(lambda x, y: x // y, x // y, x, y)
    assert_native(lambda x, y: x << y, x << y, x, y)
    assert_native(lambda x, y: (x + y) * x, (x + y) * x, x, y)


def test_numbers_may_stand_anywhere_in_a_formula():
    x = np.array([0.5, 2.0, 3.0])
    for fn in (
        lambda x: lgamma_difference(x, 0.0),
        lambda x: lgamma_difference(2.0, x),
        lambda x: probtorch.where(x > 1.0, 2.0, -3.0),
        lambda x: probtorch.where(x > 1.0, 2, 3),
    ):
        np.testing.assert_allclose(native(fn, x), fn(wrap(x)).array, rtol=1e-13)
        assert native(fn, x).dtype == fn(wrap(x)).array.dtype


def test_random_bits_of_small_integers_are_those_of_large_ones():
    counters = np.array([0, 1, -1, 100], np.int8)
    wide = counters.astype(np.int64)
    expected = philox(wrap(wide), wrap(wide), wrap(wide)).array
    assert_native(lambda c: philox(c, c, c), expected, counters)


def test_zeta_does_not_overflow_where_its_terms_underflow():
    x = np.array([1e300, 700.0, 5.0])
    assert_native(lambda x: zeta(x, x)[:1], np.zeros(1), x)


# ----------------------------------------------------------------------------------- nothing at all


def test_sums_of_nothing_expanded_are_zero():
    inf = np.array([np.inf])
    assert_native(lambda x: x.expand(0).sum() + x.expand(2, 0).sum(), np.float64(0.0), inf)


def test_running_sums_of_nothing_write_nothing():
    assert_native(lambda x: x.cumsum(1) * 2.0, np.zeros((3, 0)), np.zeros((3, 0)))
    assert_native(lambda x: x.cumsum(0).sum(0), np.zeros(4), np.zeros((0, 4)))


def test_logsumexp_of_nothing_is_minus_infinity():
    x = np.zeros((0, 3))
    assert_native(lambda x: x.logsumexp(0), np.full(3, -np.inf), x)
    assert_native(lambda x: x.logsumexp(1), np.zeros(0), x)


def test_minus_zero_is_subtracted_and_not_dropped():
    x = np.array([-0.0, 0.0, 1.0])
    assert_native(lambda x: x - (-0.0), x - (-0.0), x)
    assert_native(lambda x: x - 0.0, x - 0.0, x)


# ----------------------------------------------------------------------------------------- products


@pytest.mark.parametrize("n", [127, 128, 129, 130, 131, 132, 191, 257])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_a_product_of_a_product_of_many_rows(n, k):
    x, b = RNG.standard_normal((n, k)), RNG.standard_normal(k)
    expected = x.T @ (x @ b)
    got = native(lambda x, b: x.T @ (x @ b), x, b)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    # The vector of the second product comes from a product too, without anything in between.
    z = RNG.standard_normal((2, n))
    got = native(lambda x, z: x.T @ (z.T @ z.sum(1)), x, z)
    np.testing.assert_allclose(got, x.T @ (z.T @ z.sum(1)), rtol=1e-11)


def test_an_outer_product_by_blas_of_a_column_and_a_transposed_column():
    x, y = RNG.standard_normal((150, 1)), RNG.standard_normal((151, 1))
    np.testing.assert_allclose(native(lambda x, y: x @ y.T, x, y), x @ y.T, rtol=1e-15)
    np.testing.assert_allclose(native(lambda x, y: (y @ x.T).T, x, y), x @ y.T, rtol=1e-15)


# --------------------------------------------------------------------------------- linear algebra


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3)], ids=str)
def test_factors_and_solutions_of_nothing(shape):
    a = np.zeros(shape)
    assert_native(lambda a: cholesky(a), np.zeros(shape), a)
    assert_native(lambda a: solve_triangular(a, a, upper=False), np.zeros(shape), a)


def test_a_matrix_that_is_not_positive_definite_raises_on_every_call():
    f = compile(lambda a: cholesky(a).sum())
    good = np.array([[2.0, 1.0], [1.0, 2.0]])
    for scale in (1.0, 4.0):
        expected = np.linalg.cholesky(good * scale).sum()
        np.testing.assert_allclose(f(wrap(good * scale)).array, expected, rtol=1e-15)
    for _ in range(2):
        with pytest.raises(np.linalg.LinAlgError):
            f(wrap(-good))


def test_the_forgiving_factorisation_says_which_matrices_failed():
    good = np.array([[2.0, 1.0], [1.0, 2.0]])
    f = compile(lambda a: cholesky_ex(a))
    for flags in ([False, True], [True, False], [False, False]):
        a = np.stack([-good if bad else good for bad in flags])
        factor, failed = f(wrap(a))
        np.testing.assert_array_equal(failed.array, flags)
        np.testing.assert_array_equal(np.isnan(factor.array).any((-2, -1)), flags)


# --------------------------------------------------------------------------- reductions and indices


@pytest.mark.parametrize("dims", [0, 1, (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", ["amax", "amin", "sum", "prod"])
def test_reductions_over_any_dims(name, dims):
    x = RNG.integers(-3, 4, (3, 4, 5)).astype(float)
    expected = getattr(np, name)(x, axis=dims)
    assert_native(lambda x: getattr(x, name)(dims) + 0.0, expected + 0.0, x)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int8", "uint8"])
@pytest.mark.parametrize("name", ["amax", "amin"])
def test_extremes_over_leading_dims(name, dtype):
    x = RNG.integers(0, 100, (7, 4, 20)).astype(dtype)
    if x.dtype.kind == "f":
        x[3, 1, 2], x[0, 2, 3], x[5, 0, 1] = np.nan, np.inf, -np.inf
        x[:, :, 4], x[:, :, 5] = -np.inf, np.inf
    else:
        x[:, :, 4], x[:, :, 5] = np.iinfo(dtype).min, np.iinfo(dtype).max
    for dims in (0, (0, 1)):
        assert_native(lambda x, d=dims: getattr(x, name)(d), getattr(np, name)(x, axis=dims), x)


@pytest.mark.parametrize("dim", [0, 1, 2, None])
def test_places_of_extremes_along_any_dim(dim):
    x = RNG.integers(-2, 3, (3, 4, 5)).astype(float)
    x[1, 2, 3] = np.nan
    assert_native(lambda x: x.argmax(dim), np.argmax(x, dim), x)
    assert_native(lambda x: x.argmin(dim), np.argmin(x, dim), x)


def test_values_written_at_indices_broadcast():
    x, i = np.zeros((3, 4)), np.array([2, 0])
    for value in (np.array(5.0), np.arange(4.0), np.ones((2, 1)), np.ones((1, 1, 4))):
        expected = x.copy()
        expected[i] = value.reshape(value.shape[-2:])
        assert_native(lambda x, i, v: index_put(x, [i], v), expected, x, i, value)


def test_a_value_may_have_more_dims_of_size_1_than_its_place():
    def fn(x, v):
        y = x * 1.0
        y[1:] = v
        return y

    assert_native(fn, np.array([0.0, 7.0, 7.0]), np.zeros(3), np.full((1, 1, 1), 7.0))


def test_one_hot_checks_its_categories_on_every_call():
    f = compile(lambda i: one_hot(i, 4))
    for i in ([0, 3], [2, 2]):
        np.testing.assert_array_equal(f(wrap(np.array(i))).array, np.eye(4, dtype=int)[i])
    with pytest.raises(IndexError):
        f(wrap(np.array([1, 4])))


# --------------------------------------------------------------------------------- loops and engine


def test_a_loop_that_is_not_entered_changes_nothing():
    def fn(x, n):
        y = x * 1.0

        def body(s):
            s[1][0] = 100.0
            return s[0] + 1, s[1]

        return while_loop(lambda s: s[0] < n, body, (as_tensor(0), y))[1]

    f = compile(fn)
    for n in (0, 0, 2, 0):
        expected = [100.0 if n else 1.0, 2.0]
        np.testing.assert_array_equal(
            f(wrap(np.array([1.0, 2.0])), wrap(np.array(n))).array, expected
        )


def test_the_first_thing_a_process_compiles_may_call_the_c_library():
    program = (
        "import numpy as np\n"
        "from probtorch.compiler.compile import compile\n"
        "from probtorch.core.dispatch import wrap\n"
        "f = compile(lambda x: x.sin())\n"
        "f(wrap(np.ones(3)))\n"
        "assert f.reason is None\n"
        "assert abs(float(f(wrap(np.ones(3)))[0]) - np.sin(1.0)) < 1e-15\n"
    )
    found = subprocess.run([sys.executable, "-c", program], timeout=120, check=False)
    assert found.returncode == 0


@pytest.mark.parametrize("eager", [None, "special.expm1"])
def test_a_function_with_an_op_of_the_user_is_compiled_at_its_first_call(eager, monkeypatch):
    """In a new thread, with a NumPy function that no op has asked for, and with one of SciPy's."""
    monkeypatch.delitem(vars(numpy_algebra), "expm1", raising=False)
    op = elementwise(
        "expm1_of_a_test",
        formula=lambda s, x: s.expm1(x),
        partials=(lambda g, y: g * (y + 1.0),),
        saves=("out",),
        domain=("real",),
        reference=np.expm1,
        eager=eager,
    )
    f = compile(lambda x: op(x))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(f, wrap(np.zeros(3))).result().tolist() == [0.0] * 3
    del REGISTRY["expm1_of_a_test"]
    assert len(f.paths) == 1


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_shifts_by_the_width_and_more_are_those_of_numpy(dtype):
    x = np.array([np.iinfo(dtype).max, np.iinfo(dtype).min, 100, 1], dtype)
    f = compile(lambda x, n: (x >> n, x << n))
    for n in (0, 1, 7, 8, 9, 31, 64, 100):
        shift = np.full(4, n, dtype)
        for _ in range(2):
            right, left = f(wrap(x), wrap(shift))
            np.testing.assert_array_equal(right.numpy(), np.right_shift(x, shift))
            np.testing.assert_array_equal(left.numpy(), np.left_shift(x, shift))


@pytest.mark.parametrize("op", [fmod, remainder], ids=["fmod", "remainder"])
def test_a_remainder_by_nan_is_nan_where_the_first_number_is_known_to_be_finite(op):
    numbers = wrap(np.array([True, False]))
    fn = compile(lambda b, x: op(b, x * math.nan))
    for _ in range(2):
        assert np.isnan(fn(numbers, wrap(np.array([1.5, -2.5]))).numpy()).all()


def test_the_power_of_a_half_is_the_square_root():
    x = wrap(np.array([-math.inf, -1.0, -0.0, 0.0, 2.0, math.inf]))
    fn = compile(lambda x: x**0.5)
    fn(x)
    got = fn(x).numpy()
    np.testing.assert_array_equal(got, [math.nan, math.nan, -0.0, 0.0, math.sqrt(2.0), math.inf])
    assert math.copysign(1.0, got[2]) == -1.0


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_a_running_total_begins_with_the_first_element_as_it_is(name):
    fn = compile(lambda x: getattr(x, name)(0))
    for _ in range(2):
        assert math.copysign(1.0, fn(wrap(np.array([-0.0])))[0].item()) == -1.0


@pytest.mark.parametrize("divisor", [0.0, 1e-310, -1e-46, 1e300])
def test_a_number_is_rounded_to_single_precision_before_a_formula_looks_at_it(divisor):
    x = np.array([3.0, -3.0, 0.0, math.inf, math.nan], np.float32)
    fn = compile(lambda x: x // divisor)
    with np.errstate(all="ignore"):
        expected = np.floor_divide(x, np.float32(divisor))
        for _ in range(2):
            np.testing.assert_array_equal(fn(wrap(x)).numpy(), expected)


def bound_of_equal_terms(additions):
    """The largest relative error of a float32 sum of equal terms, from additions in a row.

    The k-th of n rounds a total of k terms, by 2^-24 of it at most: (n + 1) / 2 in all. Four more
    are for adding lanes up (two, in the narrowest vectors), the result and a division.
    """
    return ((additions + 1) / 2 + 4) * 2.0**-24


@pytest.mark.parametrize(
    "shape",
    [(192,), (868,), (31, 28), (1600,), (20, 100), (4480,), (5000,), (300, 40), (7, 3000)]
    + [(2_000_000,)],
)
def test_sums_in_single_precision_lose_no_digits_with_their_length(shape):
    x = np.full(shape, 0.1, np.float32)
    exact = float(np.float32(0.1)) * x.size
    # Of 128 terms at a time, in four lanes at least; in one where a loop is not made of vectors.
    lanes, alone = bound_of_equal_terms(128 // 4), bound_of_equal_terms(128)
    calls = [
        (lambda x: x.sum(), exact, lanes),
        (lambda x: (x * 2.0).sum(), 2.0 * exact, lanes),
        (lambda x: x.sum(-1).sum(), exact, 2 * lanes),
        (lambda x: (x.exp() * 0.0 + x).mean(), exact / x.size, lanes),
        (lambda x: (x.lgamma() * 0.0 + x).sum(), exact, alone),
    ]
    for f, expected, bound in calls:
        fn = compile(f)
        for _ in range(2):
            np.testing.assert_allclose(fn(wrap(x)).numpy(), expected, rtol=bound)


@pytest.mark.parametrize("shape", [(129,), (192,), (200,), (1600,), (20, 100), (4480,), (5001,)])
def test_what_is_computed_beside_a_long_sum_is_whole(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    fn = compile(lambda x: (x * 2.0, x.sum(), (x * x).sum(-1)))
    for _ in range(2):
        doubled, total, squares = fn(wrap(x))
        np.testing.assert_array_equal(doubled.numpy(), x * np.float32(2.0))
        wide = x.astype(np.float64)
        bound = 128 * 6e-8 * np.abs(wide).sum()
        np.testing.assert_allclose(total.numpy(), wide.sum(), rtol=0, atol=bound)
        np.testing.assert_allclose(squares.numpy(), (wide**2).sum(-1), rtol=128 * 6e-8)


@pytest.mark.parametrize("n", [100, 128, 129, 192, 1000, 1025, 5000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_beside_products_of_rows_are_whole(n, dtype):
    """Nests around rows of matrices go by blocks of 64, and lost their long float32 sums."""
    rng = np.random.default_rng(n)
    x, w = rng.normal(size=(n, 5)).astype(dtype), rng.normal(size=5).astype(dtype)
    y, rows = x.sum(1), rng.integers(0, n, n)
    several = lambda r: r if isinstance(r, tuple) else (r,)
    calls = [
        lambda x, w, y: ((x @ w - y) ** 2).mean(),
        lambda x, w, y: (((x @ w - y) ** 2).sum(), x.mT @ (x @ w - y)),
        lambda x, w, y: ((x @ w).amax(), (x @ w).exp().sum(), (x @ w).sum()),
        lambda x, w, y: ((x @ w)[rows].tanh() * y).sum(),
    ]
    for f in calls:
        fn = compile(f, verify=False)
        fn(wrap(x), wrap(w), wrap(y))
        found = fn(wrap(x), wrap(w), wrap(y))
        with np.errstate(all="ignore"):
            expected = f(*(wrap(a.astype(np.float64)) for a in (x, w, y)))
        for a, b in zip(*map(several, (found, expected)), strict=True):
            rtol = 1e-4 if dtype == "float32" else 1e-10
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", ["cross_entropy", "log_softmax", "logsumexp"])
def test_a_logarithm_of_a_sum_near_1_keeps_its_digits_in_single_precision(name):
    # Compiled code lost all but two of them at a loss of 1e-5; alone, each is computed in double.
    def fn(x):
        if name == "cross_entropy":
            return functional.cross_entropy(x, tensor([0, 0, 0]), reduction="none")
        return functional.log_softmax(x, -1)[:, 0] if name == "log_softmax" else x.logsumexp(-1)

    x = np.random.default_rng(0).normal(size=(3, 20)) - np.array([[14.0], [16.0], [12.0]])
    x[:, 0] = [2.0, 3.0, 0.5] if name != "logsumexp" else 0.0
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    total = np.log1p(np.exp(wide[:, 1:] - wide[:, :1]).sum(-1))
    expected = {"cross_entropy": total, "log_softmax": -total, "logsumexp": total + wide[:, 0]}
    compiled = compile(fn, verify=False)
    for found in (fn(tensor(x)), compiled(tensor(x)), compiled(tensor(x))):
        np.testing.assert_allclose(found.numpy(), expected[name], rtol=2e-6)
