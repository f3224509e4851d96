"""Products of short rows in nests in blocks: the right numbers, and nothing of other rows.

The oracle is NumPy, for processors with vectors of every width that this one has.
"""

import platform
import sys

import numpy as np
import pytest

from probtorch.compiler.native import host
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from tests.compiler.test_products import Fenced, operand

# Two blocks of 64 rows, and rest of each kind: of some rows together, of four, of one.
ROWS = 2 * 64 + 29
X86 = platform.machine().lower() in ("x86_64", "amd64")
TOLERANCE = {np.float64: 1e-13, np.float32: 1e-5}


@pytest.fixture(params=["here", *host.LEVELS] if X86 else ["here"])
def processor(request):
    """Code is for vectors of some width."""
    before = host._level
    if request.param != "here":
        host.write_for(request.param)
        if not host.target().runs_here:
            host.write_for(before)
            pytest.skip("this machine has no such vectors")
    yield request.param
    host.write_for(before)


def fitted(b, x, y):
    """Predictions, and the gradient of half the squared residuals."""
    at = x @ b
    return at, x.T @ (at - y)


def compiled(fn, *given):
    """Results of a compiled function on arrays, and the program."""
    program = NativeProgram(fn, tuple(map(wrap, given)))
    resident = program.resident(tuple(map(wrap, given)))
    resident.run()
    return resident.outputs, program.program


def check_sizes(dtype, sizes):
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((ROWS, d)).astype(dtype) for d in sizes]
    bs = [rng.standard_normal(d).astype(dtype) for d in sizes]
    y = rng.standard_normal(ROWS).astype(dtype)

    def fn(given):
        y, *rest = given
        pairs = zip(rest[: len(sizes)], rest[len(sizes) :], strict=True)
        return tuple(out for x, b in pairs for out in fitted(b, x, y))

    got, program = compiled(fn, y, *xs, *bs)
    assert "shufflevector" in program.ir
    expected = [out for x, b in zip(xs, bs, strict=True) for out in fitted(b, x, y)]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[dtype] * np.abs(b).max() * 10)


def test_products_of_short_rows_are_those_of_numpy(processor):
    check_sizes(np.float64, (2, 7, 10, 16))


def test_products_of_short_rows_in_single_precision():
    check_sizes(np.float32, (3, 8, 20))


@pytest.mark.skipif(sys.platform != "linux", reason="pages are fenced as Linux does it")
@pytest.mark.parametrize("d", [3, 5, 11])
@pytest.mark.parametrize("at_end", [False, True], ids=["first", "last"])
def test_nothing_is_read_between_rows_or_beyond_them(d, at_end):
    rng = np.random.default_rng(d)
    fence = Fenced()
    x, _ = operand(fence, rng, (ROWS, d), np.float64, at_end)
    b, y = rng.standard_normal(d), rng.standard_normal(ROWS)
    design = wrap(x)
    got, _ = compiled(lambda given: fitted(given[0], design, given[1]), b, y)
    for out, expected in zip(got, fitted(b, x, y), strict=True):
        np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


def test_infinities_and_nan_stay_in_their_rows():
    rng = np.random.default_rng(0)
    for d in (3, 5, 11):
        x, b, y = rng.standard_normal((ROWS, d)), rng.standard_normal(d), np.zeros(ROWS)
        x[10, 0], x[20, -1], x[-1, 0] = np.inf, np.nan, -np.inf
        (at, _), _ = compiled(lambda given: fitted(*given), b, x, y)
        np.testing.assert_allclose(at, x @ b, rtol=1e-12)
        assert np.flatnonzero(~np.isfinite(at)).tolist() == [10, 20, ROWS - 1]


@pytest.mark.parametrize("d", [3, 8])
def test_a_sum_of_negative_zeros_is_zero(d):
    (at, total), _ = compiled(lambda given: fitted(*given), -np.zeros(d), np.ones((ROWS, d)), 0.0)
    assert not np.signbit(at).any() and not np.signbit(total).any()


@pytest.mark.parametrize("d", [2, 9, 32])
def test_matrices_by_columns_are_read_once(d):
    rng = np.random.default_rng(d)
    columns, b, y = rng.standard_normal((d, ROWS)), rng.standard_normal(d), np.ones(ROWS)
    columns[0, 10], columns[-1, -1] = np.inf, np.nan
    got, program = compiled(lambda given: fitted(given[0], given[1].T, given[2]), b, columns, y)
    with np.errstate(invalid="ignore"):
        expected = fitted(b, columns.T, y)
    for out, known in zip(got, expected, strict=True):
        np.testing.assert_allclose(out, known, rtol=1e-12)
    assert "matmul sub matmul" in str(program.explain())


def test_scales_of_every_kind():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((ROWS, 3)), rng.standard_normal((ROWS, 2))

    def fn(given):
        x, y = given
        return x.T @ y[:, 0], x.T @ y[0, 0].expand(ROWS), x.T @ x[:, 1].exp()

    got, program = compiled(fn, x, y)
    assert "shufflevector" in program.ir
    expected = x.T @ y[:, 0], x.sum(0) * y[0, 0], x.T @ np.exp(x[:, 1])
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_rows_of_two_matrices():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, ROWS, 5))
    got, program = compiled(lambda given: (given[0][:, None] @ given[1][:, :, None],), x, y)
    assert "shufflevector" in program.ir
    np.testing.assert_allclose(got[0].ravel(), (x * y).sum(1), rtol=1e-12)


@pytest.mark.parametrize("keepdim", [False, True])
def test_sums_of_products_over_rows_are_products_of_matrices(keepdim):
    rng = np.random.default_rng(0)
    x, b, g = rng.standard_normal((ROWS, 9)), rng.standard_normal(9), rng.standard_normal(ROWS)

    def fn(given):
        x, b, g = given
        rows, columns = (x * b).sum(-1, keepdim=keepdim), (g[:, None] * x).sum(0, keepdim=keepdim)
        return rows, columns, (b[:, None] * x.T).sum(0), (b * x.exp()).sum(1)

    got, program = compiled(fn, x, b, g)
    expected = x @ b, x.T @ g, x @ b, np.exp(x) @ b
    for out, known in zip(got, expected, strict=True):
        np.testing.assert_allclose(out.reshape(known.shape), known, rtol=1e-12, atol=1e-12)
    assert got[0].shape == ((ROWS, 1) if keepdim else (ROWS,))
    assert got[1].shape == ((1, 9) if keepdim else (9,))
    # What is computed is no matrix in memory.
    assert [node.name for node in program.graph.nodes].count("matmul") == 3


def test_sums_of_negative_zeros_stay_zero_as_products():
    got, _ = compiled(
        lambda given: ((given[0] * given[1]).sum(-1),), np.ones((ROWS, 3)), -np.zeros(3)
    )
    assert not np.signbit(got[0]).any()
