"""Nests over rows of few numbers, and over dims without gaps: the right numbers, in vectors.

The oracle is NumPy, for processors with vectors of every width that this one has.
"""

import sys

import numpy as np
import pytest

import probtorch
from probtorch.compiler.native import host
from probtorch.core.dispatch import wrap
from tests.compiler.test_products import Fenced, operand
from tests.compiler.test_short_rows import ROWS, compiled, processor

__all__ = ["processor"]  # a fixture

TOLERANCE = {np.float64: 1e-13, np.float32: 2e-6}
SIZES = (8, 9, 12, 15, 16)


def is_turned(program):
    """Whether rows were turned, which narrow vectors do not do."""
    return "@turn_in_" in program.ir or host.target().vector_bits < 256


def reduced(given):
    (x,) = given
    best, at = x.max(-1)
    totals = x.sum(-1), x.prod(-1), x.amin(-1), (x * x).mean(-1)
    return (*totals, best, at, x - x.mean(-1, keepdim=True))


def in_numpy(x):
    totals = x.sum(-1), x.prod(-1), x.min(-1), (x * x).mean(-1)
    return (*totals, x.max(-1), x.argmax(-1), x - x.mean(-1, keepdims=True))


def check(got, expected, dtype):
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[dtype] * np.abs(b).max() * 10)


@pytest.mark.parametrize("size", SIZES)
def test_reductions_of_rows_are_those_of_numpy(processor, size):
    x = np.random.default_rng(size).standard_normal((ROWS, size))
    got, program = compiled(reduced, x)
    assert is_turned(program)
    check(got, in_numpy(x), np.float64)


@pytest.mark.parametrize("size", [8, 11])
def test_reductions_of_rows_in_single_precision(processor, size):
    x = np.random.default_rng(size).standard_normal((ROWS, size)).astype(np.float32)
    got, program = compiled(reduced, x)
    assert is_turned(program)
    check(got, in_numpy(x.astype(np.float64)), np.float32)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", SIZES)
def test_exponentials_in_rows_are_those_of_numpy(size, dtype):
    x = 3.0 * np.random.default_rng(size).standard_normal((ROWS, size)).astype(dtype)
    got, program = compiled(lambda given: (given[0].logsumexp(-1), given[0].softmax(-1)), x)
    assert is_turned(program)
    top, x = x.max(-1, keepdims=True), x.astype(np.float64)
    total = np.exp(x - top).sum(-1, keepdims=True)
    check(got, ((np.log(total) + top)[:, 0], np.exp(x - top) / total), dtype)


def test_rows_of_rows_and_rows_of_a_wider_table():
    x = np.random.default_rng(0).standard_normal((3, ROWS, 20))

    def fn(given):
        (x,) = given
        return x[..., 2:13].sum(-1), x[1, :, 5:14].exp().sum(-1), x[..., :8].amax(-1)

    got, program = compiled(fn, x)
    assert is_turned(program)
    check(
        got, (x[..., 2:13].sum(-1), np.exp(x[1, :, 5:14]).sum(-1), x[..., :8].max(-1)), np.float64
    )


def test_rows_beside_numbers_of_their_own_and_columns():
    rng = np.random.default_rng(1)
    x, y, of_row, of_column = (rng.standard_normal(s) for s in ((ROWS, 9), (ROWS, 9), ROWS, 9))

    def fn(given):
        x, y, of_row, of_column = given
        z = (x - of_column) * of_row[:, None] + y
        return z.square().sum(-1), (x.T.contiguous().T * of_row[:, None]).sum(-1), z

    z = (x - of_column) * of_row[:, None] + y
    got, program = compiled(fn, x, y, of_row, of_column)
    assert is_turned(program)
    check(got, ((z**2).sum(-1), (x * of_row[:, None]).sum(-1), z), np.float64)


def test_infinities_and_nan_stay_in_their_rows(processor):
    x = np.random.default_rng(0).standard_normal((ROWS, 11))
    x[10, 0], x[20, -1], x[-1, 0] = np.inf, np.nan, -np.inf
    (total, best, at), _ = compiled(lambda given: (given[0].sum(-1), *given[0].max(-1)), x)
    np.testing.assert_allclose(total, x.sum(-1), rtol=1e-12)
    assert np.flatnonzero(~np.isfinite(total)).tolist() == [10, 20, ROWS - 1]
    np.testing.assert_array_equal(best, x.max(-1))
    np.testing.assert_array_equal(at, x.argmax(-1))


@pytest.mark.skipif(sys.platform != "linux", reason="pages are fenced as Linux does it")
@pytest.mark.parametrize("size", [8, 9, 15])
@pytest.mark.parametrize("at_end", [False, True], ids=["first", "last"])
def test_nothing_is_read_beyond_rows(size, at_end):
    rng, fence = np.random.default_rng(size), Fenced()
    x, _ = operand(fence, rng, (ROWS, size), np.float64, at_end)
    table = wrap(x)
    got, program = compiled(lambda given: ((table * given[0]).logsumexp(-1),), np.float64(1.0))
    assert is_turned(program)
    check(got, (np.log(np.exp(x).sum(-1)),), np.float64)


@pytest.mark.parametrize("size", [8, 13])
def test_rows_that_are_changed_in_place(size):
    x = np.random.default_rng(size).standard_normal((ROWS, size))
    t = probtorch.from_numpy(x.copy())

    @probtorch.compile
    def center():
        t.sub_(t.mean(-1, keepdim=True)).mul_(2.0)

    expected = x
    for _ in range(6):
        center()
        expected = (expected - expected.mean(-1, keepdims=True)) * 2.0
    check([t.numpy()], [expected], np.float64)


def test_gradients_of_overlapping_rows():
    x = np.random.default_rng(0).standard_normal(ROWS + 8)
    t = probtorch.tensor(x, requires_grad=True)

    @probtorch.compile
    def slope():
        rows = probtorch.stack([t[i : i + ROWS] for i in range(9)], -1)
        return probtorch.autograd.grad(rows.logsumexp(-1).sum(), [t])[0]

    windows = np.lib.stride_tricks.sliding_window_view(x, 9)
    shares, expected = np.exp(windows) / np.exp(windows).sum(-1, keepdims=True), np.zeros(len(x))
    for i in range(9):
        expected[i : i + ROWS] += shares[:, i]
    for _ in range(4):
        check([slope().numpy()], [expected], np.float64)


def loops(program):
    """How many loops a program's nests have."""
    return program.ir.count(" = phi i64 ")


@pytest.mark.parametrize("shape", [(ROWS, 3), (ROWS, 12), (5, 7, 11), (3, 300)], ids=str)
def test_dims_without_gaps_are_one_loop(shape):
    x = np.random.default_rng(0).standard_normal(shape)

    def fn(given):
        (x,) = given
        return x.exp(), (x * x).sum(), (2.0 * x).amax()

    got, program = compiled(fn, x)
    _, flat = compiled(fn, x.ravel())
    assert loops(program) == loops(flat)
    check(got, (np.exp(x), (x * x).sum(), 2.0 * x.max()), np.float64)


def test_dims_with_gaps_are_loops_of_their_own():
    rng = np.random.default_rng(0)
    x, row, column = rng.standard_normal((150, 7)), rng.standard_normal(7), rng.standard_normal(150)

    def fn(given):
        x, row, column = given
        parts = x + row, x * column[:, None], x[:, 1:].exp(), x.T * 2.0, x.sum(0), x.sum(1)
        return (*parts, (x[1:] * 2.0).sum(), x.argmax(), x[:, ::2].argmin())

    got, _ = compiled(fn, x, row, column)
    expected = x + row, x * column[:, None], np.exp(x[:, 1:]), x.T * 2.0, x.sum(0), x.sum(1)
    more = (x[1:] * 2.0).sum(), x.argmax(), x[:, ::2].argmin()
    check(got, (*expected, *map(np.asarray, more)), np.float64)


def test_long_sums_over_dims_without_gaps_are_accurate_in_single_precision():
    x = np.full((60_000, 11), 0.1, np.float32)
    got, _ = compiled(lambda given: ((given[0] * 1.0).sum(),), x)
    np.testing.assert_allclose(got[0], x.astype(np.float64).sum(), rtol=2e-7)
