"""Seasons, convolutions, powers and blocks, against loops and NumPy."""

import math

import numpy as np
import pytest
import scipy.linalg

import probtorch
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops import tensor_utils
from probtorch.testing import assert_close


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(3, 7, 2))


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("size", [0, 1, 5, 11])
def test_one_period_is_repeated(x, dim, size):
    found = tensor_utils.periodic_repeat(x, size, dim).numpy()
    np.testing.assert_array_equal(found, np.take(x, np.arange(size) % x.shape[dim], axis=dim))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("period", [1, 2, 3, 7, 9])
def test_periodic_sums_add_what_is_a_period_before(x, dim, period):
    wanted = np.moveaxis(x.copy(), dim, 0)
    for t in range(period, len(wanted)):
        wanted[t] += wanted[t - period]
    found = tensor_utils.periodic_cumsum(x, period, dim)
    assert_close(found, np.moveaxis(wanted, 0, dim), rtol=1e-12, atol=1e-12)


def test_periodic_features_span_the_seasons_that_are_longer_than_the_shortest():
    f = tensor_utils.periodic_features(24, dtype=probtorch.float64)
    assert f.shape == (24, 22)
    # Orthogonal over whole periods, with squared length n / 2.
    assert_close(f.T @ f, 12.0 * probtorch.eye(22, dtype=probtorch.float64), atol=1e-10)
    f = tensor_utils.periodic_features(20, 365.25, 7)
    assert f.shape == (20, 2 * 53 - 2) and f.dtype == probtorch.float32
    t = np.arange(20)
    assert_close(f[:, 0], np.cos(2 * np.pi * t / 365.25).astype(np.float32))
    with pytest.raises(ArgumentError, match="min_period"):
        tensor_utils.periodic_features(20, 10, 1)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("m", "n"), [(5, 3), (3, 5), (4, 4), (6, 1)])
def test_convolutions_are_those_of_numpy(x, mode, m, n):
    signal, kernel = x[:2, :m, 0], x[2, :n, 1]
    wanted = [np.convolve(row, kernel, mode) for row in signal]
    assert_close(tensor_utils.convolve(signal, kernel, mode), np.stack(wanted), atol=1e-12)
    with pytest.raises(ArgumentError, match="a mode of full"):
        tensor_utils.convolve(signal, kernel, "half")


def test_lengths_that_are_fast_have_small_factors():
    fast = sorted(2**a * 3**b * 5**c for a in range(9) for b in range(6) for c in range(4))
    wanted = [next(n for n in fast if n >= size) for size in range(1, 200)]
    assert [tensor_utils.next_fast_len(size) for size in range(1, 200)] == wanted


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9])
def test_powers_of_matrices(x, n):
    m = x[:, :2]
    found = tensor_utils.repeated_matmul(m, n)
    wanted = [np.linalg.matrix_power(m, k) for k in range(1, n + 1)]
    assert_close(found, np.stack(wanted), rtol=1e-10, atol=1e-12)
    with pytest.raises(ShapeError, match="square"):
        tensor_utils.repeated_matmul(x, n)


def test_blocks_are_put_on_a_diagonal_and_taken_from_it(x):
    whole = tensor_utils.block_diag_embed(np.stack([x, x * np.inf]))
    assert whole.shape == (2, 21, 6)
    np.testing.assert_array_equal(whole[0].numpy(), scipy.linalg.block_diag(*x))
    np.testing.assert_array_equal(tensor_utils.block_diagonal(whole, 7)[0].numpy(), x)
    with pytest.raises(ShapeError, match="whole blocks"):
        tensor_utils.block_diagonal(whole, 4)


def test_vectors_are_normalised_and_zero_becomes_a_direction():
    v = probtorch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    found = tensor_utils.safe_normalize(v)
    assert_close(found, np.array([[0.6, 0.8], [1.0, 0.0]], np.float32))
    found.sum().backward()
    assert v.grad.isfinite().all()
    unknown = tensor_utils.safe_normalize(probtorch.tensor([[math.nan, 1.0], [0.0, 2.0]]))
    assert unknown.isnan().tolist() == [[True, True], [False, False]]
