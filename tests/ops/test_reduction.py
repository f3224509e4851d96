"""Reductions: dims, dtypes and empty inputs, against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import probtorch
from probtorch.autograd import grad
from probtorch.core.dispatch import wrap
from probtorch.errors import DTypeError, ShapeError, TensorIndexError
from probtorch.ops.accumulate import add_up
from probtorch.ops.extremes import amax
from probtorch.testing import assert_close


@st.composite
def arrays_and_dims(draw):
    shape = draw(array_shapes(min_dims=0, max_dims=4, max_side=4))
    x = draw(arrays(np.float64, shape, elements=st.integers(-4, 4).map(float)))
    dims = draw(
        st.none() | st.lists(st.integers(0, max(len(shape) - 1, 0)), unique=True, min_size=1)
    )
    if dims is not None:
        dims = tuple(d - len(shape) if draw(st.booleans()) else d for d in dims)
    return x, dims if len(shape) else None


@given(arrays_and_dims(), st.booleans())
def test_dims_mean_what_they_mean_in_numpy(case, keep):
    x, dims = case
    t = probtorch.from_numpy(x)
    for ours, theirs in [
        (probtorch.sum, np.sum),
        (probtorch.amax, np.max),
        (probtorch.amin, np.min),
        (probtorch.mean, np.mean),
        (probtorch.prod, np.prod),
    ]:
        expected = theirs(x, axis=dims, keepdims=keep)
        assert_close(ours(t, dims, keep), expected)
        assert_close(ours(t, axis=dims, keepdims=keep), expected)
    assert_close(probtorch.any(t, dims, keep), np.any(x, axis=dims, keepdims=keep))
    assert_close(probtorch.all(t, dims, keep), np.all(x, axis=dims, keepdims=keep))


@pytest.mark.parametrize("correction", [0, 1])
def test_var_and_std_divide_by_n_minus_the_correction(correction):
    x = np.random.default_rng(0).standard_normal((3, 5))
    t = probtorch.from_numpy(x)
    assert_close(t.var(1, correction), np.var(x, axis=1, ddof=correction))
    assert_close(t.std(None, correction), np.std(x, ddof=correction))
    assert_close(t.var(0, unbiased=correction == 1), np.var(x, axis=0, ddof=correction))


def test_integers_and_booleans_sum_to_int64():
    assert probtorch.tensor([True, True]).sum().dtype == np.int64
    assert probtorch.tensor([100, 100], dtype=probtorch.int8).sum().item() == 200
    assert probtorch.tensor([100, 100], dtype=probtorch.int8).prod().item() == 10000
    assert probtorch.tensor([1, 2]).sum(dtype=probtorch.float64).dtype == np.float64


def test_mean_of_integers_and_booleans_is_that_of_their_exact_sum():
    """``(a > b).mean()`` is what everybody asks of draws; PyTorch refuses it."""
    flags = probtorch.tensor([True, False, True, True])
    assert flags.mean().item() == 0.75 and flags.mean().dtype == np.float32
    assert flags.reshape(2, 2).mean(0, keepdim=True).tolist() == [[1.0, 0.5]]
    big = probtorch.tensor([2**53 + 1, 2**53 - 1])  # a float64 cannot hold the first
    assert big.mean(dtype=probtorch.float64).item() == 2**53
    assert probtorch.tensor([1, 2]).mean().item() == 1.5
    assert probtorch.tensor([1, 2]).mean(dtype=probtorch.float64).dtype == np.float64
    assert np.isnan(probtorch.zeros(0, dtype=probtorch.int64).mean().item())
    assert probtorch.compile(lambda x: (x > 0.0).mean())(probtorch.tensor([1.0, -1.0])) == 0.5
    with pytest.raises(DTypeError, match=r"(?s)mean.*dtype as a floating dtype.*int64.*fix:"):
        flags.mean(dtype=probtorch.int64)


def test_empty_inputs():
    empty = probtorch.zeros(0, 3)
    assert empty.sum(0).tolist() == [0.0, 0.0, 0.0]
    assert empty.prod(0).tolist() == [1.0, 1.0, 1.0]
    assert not empty.any() and empty.all()
    assert np.isnan(empty.mean(0).numpy()).all()
    assert empty.amax(1).shape == (0,)
    with pytest.raises(ShapeError, match="at least one element"):
        empty.amax(0)
    with pytest.raises(ShapeError, match="argmax"):
        empty.argmax()


def test_max_with_a_dim_gives_values_and_indices():
    x = probtorch.tensor([[1.0, 5.0], [7.0, 2.0]])
    values, indices = x.max(1)
    assert values.tolist() == [5.0, 7.0] and indices.tolist() == [1, 0]
    values, indices = probtorch.min(x, 0, keepdim=True)
    assert values.tolist() == [[1.0, 2.0]] and indices.tolist() == [[0, 1]]
    assert x.max().item() == 7.0
    assert probtorch.max(x, probtorch.tensor(3.0)).tolist() == [[3.0, 5.0], [7.0, 3.0]]


def test_dim_out_of_range_names_the_op():
    with pytest.raises(TensorIndexError, match=r"sum\n  expected: dim in \[-2, 1\]"):
        probtorch.ones(2, 3).sum(2)


def test_cumsum_flattens_without_a_dim():
    x = np.arange(6).reshape(2, 3)
    assert_close(probtorch.from_numpy(x).cumsum(), np.cumsum(x))
    assert_close(probtorch.from_numpy(x).cumsum(-1), np.cumsum(x, -1))


def test_softmax_sums_to_one_and_log_softmax_is_its_logarithm():
    x = probtorch.from_numpy(np.random.default_rng(0).standard_normal((3, 4)) * 100)
    assert_close(probtorch.softmax(x, 0).sum(0), np.ones(4))
    assert_close(probtorch.exp(probtorch.log_softmax(x)), probtorch.softmax(x))


def test_closeness_is_numpys():
    x = np.array([1.0, 1.0 + 1e-9, np.inf, -np.inf, np.nan, 2.0, np.inf])
    y = np.array([1.0, 1.0, np.inf, np.inf, np.nan, 2.1, 1.0])
    a, b = probtorch.from_numpy(x), probtorch.from_numpy(y)
    for equal_nan in (False, True):
        got = probtorch.isclose(a, b, equal_nan=equal_nan)
        assert_close(got, np.isclose(x, y, equal_nan=equal_nan))
    assert probtorch.allclose(a[:3], b[:3]) and not probtorch.allclose(a, b)
    assert probtorch.equal(a[:1], b[:1]) and not probtorch.equal(a[:1], b[:2])
    assert probtorch.isclose(probtorch.tensor([5]), probtorch.tensor([5])).tolist() == [True]


def test_logsumexp_of_nothing_is_minus_infinity():
    assert probtorch.logsumexp(probtorch.zeros(0, 2), 0).tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize("p", [0, 1, 2, 3.5, np.inf, -np.inf])
def test_norm_agrees_with_numpy(p):
    x = np.array([[1.0, -2.0], [3.0, 0.5]])
    assert_close(probtorch.norm(probtorch.from_numpy(x), p, 1), np.linalg.norm(x, p, axis=1))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 33])
def test_gradient_of_prod_for_every_length(n):
    x = np.random.default_rng(n).uniform(0.5, 1.5, (2, n))
    t = probtorch.tensor(x, requires_grad=True)
    (g,) = grad(t.prod(1).sum(), t)
    assert_close(g, np.prod(x, axis=1, keepdims=True) / x)


@pytest.mark.parametrize("columns", [2, 3, 7, 8])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_reductions_of_many_short_rows_have_the_bits_of_numpy(columns, dtype):
    numbers = np.random.default_rng(columns).normal(size=(2000, columns)) * 10.0
    numbers[3, 1] = np.nan if dtype.startswith("float") else 0.0
    x = numbers.astype(dtype)
    for dims, keepdim in (((1,), False), ((1,), True), ((0,), False)):
        wide = {} if dtype.startswith("float") else {"dtype": x.dtype}
        if dims == (1,):
            expected = x.sum(axis=1, keepdims=keepdim, **wide)
            np.testing.assert_array_equal(add_up(x, dims, keepdim), expected)
        got = amax(wrap(x), dims[0], keepdim).numpy()
        np.testing.assert_array_equal(got, x.max(axis=dims, keepdims=keepdim))
