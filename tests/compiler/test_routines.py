"""Native routines, sorting to factorisations, against NumPy and SciPy on every layout and batch."""

import numpy as np
import pytest
import scipy.linalg

import probtorch
from probtorch import linalg
from probtorch.compiler.compile import compile
from probtorch.compiler.nests.loops import Call
from probtorch.core.dispatch import wrap
from probtorch.ops.scans import linear_recurrence

RNG = np.random.default_rng(4)
ODD = np.array([3.0, np.nan, -np.inf, 3.0, np.inf, 0.0, np.nan, -0.0, 3.0, -7.0] * 7)


def native(fn, *arrays):
    """Results of the second, native call, as arrays."""
    compiled = compile(fn)
    compiled(*map(wrap, arrays))
    out = compiled(*map(wrap, arrays))
    assert compiled.reason is None, compiled.reason
    return [np.asarray(x.array) for x in (out if isinstance(out, tuple) else (out,))]


def calls(fn, *arrays):
    """Symbols of the routines that a compiled function calls."""
    compiled = compile(fn)
    compiled(*map(wrap, arrays))
    block = compiled.paths[0].program.lowering.block
    return [s.attrs.get("symbol", s.name) for s in block.statements if isinstance(s, Call)]


# ----------------------------------------------------------------------------------------- sorting


@pytest.mark.parametrize("size", [1, 2, 11, 12, 13, 24, 25, 100, 1000])
def test_sorting_is_stable_and_puts_nan_last(size):
    x = RNG.permutation(np.resize(ODD, size))
    values, index = native(lambda x: probtorch.sort(x), x)
    np.testing.assert_array_equal(index, np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(values, np.sort(x))


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "int64", "int32", "int16", "int8", "uint8"]
)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_each_dim_is_sorted_in_either_direction(dim, dtype):
    x = RNG.standard_normal((5, 17, 4)) * 60.0
    x = (np.abs(x) if dtype == "uint8" else x).astype(dtype)
    (up,) = native(lambda x: probtorch.argsort(x.permute(2, 0, 1), dim), x)
    moved = x.transpose(2, 0, 1)
    np.testing.assert_array_equal(up, np.argsort(moved, dim, kind="stable"))
    (down,) = native(lambda x: probtorch.argsort(x, dim, True), x)
    wide = -x.astype(np.float64)
    np.testing.assert_array_equal(down, np.argsort(wide, dim, kind="stable"))


def test_order_statistics_are_numpys():
    x = RNG.standard_normal((4, 31))
    levels = [0.0, 0.2, 0.5, 0.77, 1.0]
    (got,) = native(lambda x: probtorch.quantile(x, levels, 1), x)
    np.testing.assert_allclose(got, np.quantile(x, levels, 1), rtol=1e-14)
    (got,) = native(lambda x: probtorch.median(x, 0)[0], x[:, :9].T.copy())
    np.testing.assert_array_equal(got, np.sort(x[:, :9].T, 0)[4])


@pytest.mark.parametrize("right", [False, True])
def test_searching_is_numpys_and_knows_nan(right):
    rows, values = np.sort(RNG.integers(0, 9, (3, 40)) * 1.0, 1), RNG.integers(-1, 10, (3, 8)) * 1.0
    side = "right" if right else "left"
    (got,) = native(lambda r, v: probtorch.searchsorted(r, v, right=right), rows, values)
    expected = [np.searchsorted(r, v, side) for r, v in zip(rows, values, strict=True)]
    np.testing.assert_array_equal(got, expected)
    row, wanted = np.sort(ODD), np.array([np.nan, np.inf, -np.inf, 0.0, 2.0])
    (got,) = native(lambda r, v: probtorch.searchsorted(r, v, right=right), row, wanted)
    np.testing.assert_array_equal(got, np.searchsorted(row, wanted, side))


def test_integers_and_floats_are_searched_by_value():
    row, values = np.array([1, 2**53, 2**53 + 1]), np.array([2.0**53, 0.5], np.float32)
    (got,) = native(lambda r, v: probtorch.searchsorted(r, v), row, values)
    np.testing.assert_array_equal(got, np.searchsorted(row, values))


# ------------------------------------------------------------------------------------------- scans


@pytest.mark.parametrize("dim", [0, 1])
def test_running_values_are_numpys(dim):
    x = RNG.standard_normal((6, 9))
    got = native(
        lambda x: (
            probtorch.cumprod(x, dim),
            probtorch.logcumsumexp(x, dim),
            probtorch.cummax(x, dim)[0],
            probtorch.cummin(x.T, 1 - dim)[0],
        ),
        x,
    )
    np.testing.assert_allclose(got[0], np.cumprod(x, dim), rtol=1e-14)
    np.testing.assert_allclose(got[1], np.log(np.cumsum(np.exp(x), dim)), rtol=1e-12)
    np.testing.assert_array_equal(got[2], np.maximum.accumulate(x, dim))
    np.testing.assert_array_equal(got[3], np.minimum.accumulate(x, dim).T)


def test_a_recurrence_does_not_look_at_its_first_factor():
    a, b = RNG.standard_normal((3, 5)), RNG.standard_normal((3, 5))
    a[:, 0] = np.nan
    (got,) = native(lambda a, b: linear_recurrence(a, b, 1), a, b)
    expected = b.copy()
    for j in range(1, 5):
        expected[:, j] += a[:, j] * expected[:, j - 1]
    np.testing.assert_allclose(got, expected, rtol=1e-14)


# ------------------------------------------------------------------------------------------ linalg


def general(*shape):
    return RNG.standard_normal(shape) + 3.0 * np.eye(*shape[-2:])


def positive(*shape):
    x = RNG.standard_normal(shape)
    return x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3)])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 12, 70])
def test_factors_of_every_size_and_batch(n, batch, dtype):
    a, tol = positive(*batch, n, n).astype(dtype), 1e-11 if dtype == "float64" else 2e-3
    lower, inverse, log_abs, values, q, r, s = native(
        lambda a: (
            linalg.cholesky(a),
            linalg.inv(a.mT),
            linalg.slogdet(a)[1],
            linalg.eigh(a)[0],
            *linalg.qr(a),
            linalg.svd(a)[1],
        ),
        a,
    )
    wide = a.astype(np.float64)
    np.testing.assert_allclose(lower, np.linalg.cholesky(wide), rtol=tol, atol=tol)
    np.testing.assert_allclose(inverse @ wide, np.broadcast_to(np.eye(n), a.shape), atol=10 * tol)
    np.testing.assert_allclose(log_abs, np.linalg.slogdet(wide)[1], rtol=tol, atol=tol)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(wide), rtol=10 * tol)
    np.testing.assert_allclose(s, values[..., ::-1], rtol=10 * tol)
    # In double: NumPy's products of floats set flags of errors that are none on some processors.
    np.testing.assert_allclose(q.astype(float) @ r, a, rtol=tol, atol=tol * n)
    assert (np.diagonal(r, 0, -2, -1) >= 0).all() and (np.tril(r, -1) == 0).all()


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
@pytest.mark.parametrize("n", [1, 3, 4, 6, 40])
def test_triangular_solves_read_one_triangle_and_broadcast(n, upper, unitriangular):
    a, b = general(n, n), RNG.standard_normal((4, 2, n, 3))
    mine = np.triu(a, int(unitriangular)) if upper else np.tril(a, -int(unitriangular))
    if unitriangular:
        mine = mine + np.eye(n)
        a[np.arange(n), np.arange(n)] = np.nan
    a[~(np.triu(np.ones((n, n), bool)) if upper else np.tril(np.ones((n, n), bool)))] = np.nan

    def fn(a, b):
        one = linalg.solve_triangular(a, b, upper=upper, unitriangular=unitriangular)
        stacked = a.expand(4, 1, n, n)
        return one, linalg.solve_triangular(stacked, b, upper=upper, unitriangular=unitriangular)

    expected = np.linalg.inv(mine) @ b
    scale = np.abs(expected).max()
    for got in native(fn, a, b):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11 * scale)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_solves_and_determinants(batch):
    a, b = general(*batch, 6, 6), RNG.standard_normal((3, 6, 2))
    x, d = native(lambda a, b: (linalg.solve(a, b), linalg.det(a)), a, b)
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-11)
    by_lu = np.vectorize(scipy.linalg.det, signature="(n,n)->()")(a)
    np.testing.assert_allclose(d, by_lu, rtol=1e-12)


def test_tall_wide_and_deficient_matrices():
    tall = RNG.standard_normal((2, 7, 3))
    u, s, vh = native(lambda a: linalg.svd(a, full_matrices=False), tall)
    np.testing.assert_allclose((u * s[..., None, :]) @ vh, tall, atol=1e-13)
    np.testing.assert_allclose(np.swapaxes(u, -1, -2) @ u, [np.eye(3)] * 2, atol=1e-13)
    low = tall[0] @ RNG.standard_normal((3, 5))
    (inverse,) = native(lambda a: linalg.pinv(a), low)
    np.testing.assert_allclose(inverse, np.linalg.pinv(low), atol=1e-12)
    (sign, log_abs, d) = native(lambda a: (*linalg.slogdet(a), linalg.det(a)), np.ones((3, 3)))
    assert sign == 0.0 and log_abs == -np.inf and d == 0.0


def leading(vectors):
    """The first element of each column that is more than 0.37 of the largest."""
    columns = np.moveaxis(vectors, -1, -2).reshape(-1, vectors.shape[-2])
    return [next(x for x in v if abs(x) > 0.37 * abs(v).max()) for v in columns]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_vectors_have_one_sign_in_eager_and_native_code(n, dtype):
    a = RNG.standard_normal((300, n, n)).astype(dtype)
    a[::3] = np.round(a[::3])  # with ties between elements: (1, -1) has two largest ones
    a = a + np.swapaxes(a, -1, -2) + np.diag(np.arange(n) * 20.0).astype(dtype)
    find = lambda a: (linalg.eigh(a)[1], *linalg.svd(a)[::2])
    eager, tol = [x.array for x in find(wrap(a))], 1e-9 if dtype == "float64" else 1e-3
    for one, other in zip(native(find, a), eager, strict=True):
        np.testing.assert_allclose(one, other, atol=tol)
    assert min(leading(eager[0])) > 0.0
    assert min(leading(np.swapaxes(eager[2], -1, -2))) > 0.0


def outcome(fn, a):
    """The result, or the kind and text of the error."""
    try:
        return fn(wrap(a)).array
    except np.linalg.LinAlgError as error:
        return type(error), str(error)


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize(
    "fn, spoil",
    [
        (lambda a: linalg.cholesky(a), lambda a: -a),
        (lambda a: linalg.inv(a), lambda a: a * 0.0),
        (lambda a: linalg.solve(a, a), lambda a: a * 0.0),
        (lambda a: linalg.eigh(a)[0], lambda a: a * np.nan),
    ],
    ids=["cholesky", "inv", "solve", "eigh"],
)
def test_what_fails_eagerly_fails_compiled_with_the_same_error(fn, spoil, n):
    compiled = compile(fn)
    good = positive(4, n, n)
    bad = good.copy()
    bad[2] = spoil(good[2])
    for _ in range(2):
        compiled(wrap(good))
    with np.errstate(all="ignore"):
        expected, got = outcome(fn, bad), outcome(compiled, bad)
    np.testing.assert_equal(got, expected)
    np.testing.assert_allclose(compiled(wrap(good)).array, fn(wrap(good)).array, atol=1e-12)
    assert compiled.reason is None


@pytest.mark.parametrize("n", [2, 6])
def test_factors_that_may_fail_are_nan_where_they_do(n):
    a = positive(3, n, n)
    a[1, 0, 0] = -1.0
    factor, failed = native(lambda a: linalg.cholesky_ex(a), a)
    assert failed.tolist() == [False, True, False]
    assert np.isnan(factor[1]).all()
    np.testing.assert_allclose(factor[[0, 2]], np.linalg.cholesky(a[[0, 2]]), rtol=1e-12)


def test_small_matrices_need_no_call():
    a = positive(6, 3, 3)
    assert calls(lambda a: linalg.solve_triangular(linalg.cholesky(a), a, upper=False), a) == []
    assert calls(lambda a: linalg.cholesky(a), positive(6, 9, 9)) == ["pt_cholesky_d"]


@pytest.mark.parametrize(
    "fn, left, right",
    [
        (lambda a, b: a @ b, (3, 40, 20), (3, 20, 30)),
        (lambda a, b: a @ b, (40, 20), (5, 20, 30)),
        (lambda a, b: a @ b, (2, 1, 40, 20), (3, 20, 30)),
        (lambda a, b: a.mT @ b, (3, 20, 40), (3, 20, 30)),
        (lambda a, b: a @ b.mT, (3, 40, 20), (3, 30, 20)),
        (lambda a, b: a[1:] @ b[:, ::2], (3, 40, 20), (2, 40, 30)),
        (lambda a, b: a.permute(1, 0, 2) @ b, (40, 3, 20), (3, 20, 30)),
        (lambda a, b: a[:1].expand(4, 40, 20) @ b, (3, 40, 20), (4, 20, 30)),
    ],
)
def test_many_large_products_go_to_blas_however_they_lie(fn, left, right):
    a, b = RNG.standard_normal(left), RNG.standard_normal(right)
    assert calls(fn, a, b) == ["pt_gemm_d"]
    (got,) = native(fn, a, b)
    np.testing.assert_allclose(got, fn(wrap(a), wrap(b)).array, rtol=1e-11, atol=1e-12)


def test_many_matrices_by_one_are_one_large_product():
    a, b = RNG.standard_normal((2, 3, 40, 20)), RNG.standard_normal((20, 30))
    assert calls(lambda a, b: a @ b, a, b) == ["gemm"]
    (got,) = native(lambda a, b: a @ b, a, b)
    np.testing.assert_allclose(got, a @ b, rtol=1e-11, atol=1e-12)
