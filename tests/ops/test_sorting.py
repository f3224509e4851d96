"""Sorting and order statistics: ties, nan, gradients, agreement with NumPy, errors."""

import math

import numpy as np
import pytest

from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.dtype import float32, float64, int64
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.ops.order_statistics import kthvalue, median, quantile, topk
from probtorch.ops.searching import bincount, bucketize, histc, searchsorted
from probtorch.ops.sorting import argsort, sort, unique
from probtorch.tensor import tensor
from probtorch.testing.compare import assert_close

RNG = np.random.default_rng(5)
X = RNG.standard_normal((3, 5, 4))


def leaf(x):
    return tensor(np.asarray(x, np.float64), requires_grad=True)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_agrees_with_numpy_along_every_dim(dim, descending):
    values, index = sort(tensor(X), dim, descending)
    expected = np.sort(X, dim)
    expected = np.flip(expected, dim) if descending else expected
    np.testing.assert_array_equal(values.numpy(), expected)
    np.testing.assert_array_equal(np.take_along_axis(X, index.numpy(), dim), expected)


@pytest.mark.parametrize(
    "descending, expected", [(False, [1, 3, 0, 2, 4]), (True, [4, 0, 2, 1, 3])]
)
def test_equal_elements_keep_their_order(descending, expected):
    assert argsort(tensor([2, 1, 2, 1, 3]), descending=descending).tolist() == expected


def test_nan_sorts_last_and_first_when_descending():
    x = tensor([math.nan, 1.0, math.inf])
    np.testing.assert_array_equal(sort(x)[0].numpy(), [1.0, math.inf, math.nan])
    np.testing.assert_array_equal(sort(x, descending=True)[0].numpy(), [math.nan, math.inf, 1.0])


def test_sort_sends_the_gradient_back_to_where_elements_came_from():
    x = leaf([3.0, 1.0, 2.0])
    weights = tensor(np.array([10.0, 20.0, 30.0]))
    assert grad((sort(x)[0] * weights).sum(), [x])[0].tolist() == [30.0, 10.0, 20.0]


def test_a_number_sorts_to_itself():
    for fn in (sort, lambda x: topk(x, 1), lambda x: kthvalue(x, 1), lambda x: median(x, 0)):
        values, index = fn(tensor(2.5))
        assert values.shape == index.shape == () and values.item() == 2.5 and index.item() == 0


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_topk_gives_the_extremes_in_order(largest, dim):
    values, index = topk(tensor(X), 2, dim, largest)
    ordered = np.flip(np.sort(X, dim), dim) if largest else np.sort(X, dim)
    np.testing.assert_array_equal(values.numpy(), np.take(ordered, [0, 1], dim))
    np.testing.assert_array_equal(np.take_along_axis(X, index.numpy(), dim), values.numpy())


@pytest.mark.parametrize("call", [lambda: topk(tensor(X), 6, 1), lambda: kthvalue(tensor(X), 0, 1)])
def test_k_out_of_range_is_refused(call):
    with pytest.raises(ArgumentError, match=r"expected: k from(.*\n)+.*got:(.*\n)+.*fix:"):
        call()


@pytest.mark.parametrize("keepdim", [False, True])
def test_kthvalue_counts_from_1(keepdim):
    values, index = kthvalue(tensor(X), 2, 1, keepdim)
    expected = np.sort(X, 1)[:, 1:2] if keepdim else np.sort(X, 1)[:, 1]
    np.testing.assert_array_equal(values.numpy(), expected)
    at = index.numpy() if keepdim else index.numpy()[:, None]
    found = np.take_along_axis(X, at, 1)
    np.testing.assert_array_equal(found if keepdim else found[:, 0], expected)


@pytest.mark.parametrize("dim", [0, 1])
def test_kthvalue_of_long_rows_is_that_of_sorted_ones(dim):
    x = np.random.default_rng(0).integers(0, 400, (1500, 1200)).astype(float)
    x[7] = math.nan  # which count as the greatest
    for k in (1, 600, 1200):
        expected = np.sort(x, dim).take(k - 1, dim)
        values, places = kthvalue(tensor(x), k, dim)
        np.testing.assert_array_equal(values.numpy(), expected)
        found = np.take_along_axis(x, np.expand_dims(places.numpy(), dim), dim).squeeze(dim)
        np.testing.assert_array_equal(found, expected)


def test_median_is_the_lower_of_the_middle_two():
    assert median(tensor([4.0, 1.0, 3.0, 2.0])).item() == 2.0
    values, index = median(tensor([[4, 1, 3], [1, 2, 9]]), 1)
    assert values.tolist() == [3, 2] and index.tolist() == [2, 1]


def test_median_shares_the_gradient_among_equal_elements():
    x = leaf([2.0, 1.0, 2.0, 5.0, 2.0])
    third = 1.0 / 3.0
    assert_close(grad(median(x), [x])[0], np.array([third, 0.0, third, 0.0, third]))


def test_median_of_nan_is_nan_and_of_nothing_an_error():
    assert math.isnan(median(tensor([1.0, math.nan, 2.0])).item())
    values, _ = median(tensor([[1.0, math.nan], [1.0, 2.0]]), 1)
    np.testing.assert_array_equal(values.numpy(), [math.nan, 1.0])
    with pytest.raises(ShapeError, match="at least one element"):
        median(tensor([]))


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("dim", [None, 0, -1])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("q", [0.3, [0.0, 0.25, 1.0]], ids=str)
def test_quantile_agrees_with_numpy(interpolation, dim, keepdim, q):
    got = quantile(tensor(X), q, dim, keepdim, interpolation=interpolation)
    expected = np.quantile(X, q, dim, keepdims=keepdim, method=interpolation)
    assert_close(got, expected, rtol=1e-13)


def test_quantile_takes_levels_at_full_precision():
    x = np.arange(11.0)
    assert quantile(tensor(x), 0.1).item() == pytest.approx(1.0, abs=1e-14)
    assert quantile(tensor(x, dtype=float32), tensor([0.5])).tolist() == [5.0]


def test_quantile_differentiates_by_its_weights():
    x = leaf([3.0, 1.0, 2.0])
    assert_close(grad(quantile(x, 0.75), [x])[0], np.array([0.5, 0.0, 0.5]))


def test_quantile_with_infinities_and_nan():
    assert quantile(tensor([math.inf, math.inf, 1.0]), 0.75).item() == math.inf
    assert math.isnan(quantile(tensor([math.nan, 1.0]), 0.5).item())


@pytest.mark.parametrize(
    "arguments, error",
    [((1.5,), DomainError), ((-0.1,), DomainError), (([[0.5]],), DomainError)],
    ids=str,
)
def test_quantile_refuses_levels_that_are_none(arguments, error):
    with pytest.raises(error, match=r"expected: q in \[0, 1\](.*\n)+.*fix:"):
        quantile(tensor(X), *arguments)
    with pytest.raises(ArgumentError, match="interpolation"):
        quantile(tensor(X), 0.5, interpolation="cubic")
    with pytest.raises(ShapeError, match="at least one element"):
        quantile(tensor([]), 0.5)


def test_unique_gives_values_places_and_counts():
    x = tensor([[3, 1], [3, 2]])
    values, inverse, counts = unique(x, return_inverse=True, return_counts=True)
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == (
        [1, 2, 3],
        [[2, 0], [2, 1]],
        [1, 1, 2],
    )
    assert unique(tensor([[1, 2], [1, 2], [0, 5]]), dim=0).tolist() == [[0, 5], [1, 2]]


def test_bincount_counts_and_sums_weights_with_a_gradient():
    x = tensor([0, 2, 2, 1])
    assert bincount(x).tolist() == [1, 1, 2] and bincount(x).dtype == int64
    assert bincount(x, minlength=5).tolist() == [1, 1, 2, 0, 0]
    weights = leaf([1.0, 2.0, 3.0, 4.0])
    total = bincount(x, weights)
    assert total.tolist() == [1.0, 4.0, 5.0]
    cotangent = tensor(np.array([10.0, 20.0, 30.0]))
    assert grad((total * cotangent).sum(), [weights])[0].tolist() == [10.0, 30.0, 30.0, 20.0]
    with pytest.raises(DomainError, match="integers >= 0"):
        bincount(tensor([-1]))
    with pytest.raises(DTypeError, match="a vector of integers"):
        bincount(tensor([1.0]))


def test_histc_counts_what_lies_inside():
    x = tensor([0.0, 0.1, 0.5, 1.0, 7.0])
    assert histc(x, bins=2, min=0, max=1).tolist() == [2.0, 2.0]
    assert histc(x, bins=7).tolist() == [3.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    with pytest.raises(ArgumentError, match="finite min"):
        histc(tensor([math.nan, 1.0]))


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_agrees_with_numpy_for_vectors_and_batches(right):
    rows = np.sort(RNG.integers(0, 6, (4, 7)), -1)
    values = RNG.integers(-1, 7, (4, 5))
    side = "right" if right else "left"
    expected = np.stack([np.searchsorted(r, v, side) for r, v in zip(rows, values, strict=True)])
    np.testing.assert_array_equal(
        searchsorted(tensor(rows), tensor(values), right=right).numpy(), expected
    )
    one = searchsorted(tensor(rows[0]), tensor(values), right=right).numpy()
    np.testing.assert_array_equal(one, np.searchsorted(rows[0], values, side))
    np.testing.assert_array_equal(
        bucketize(tensor(values), tensor(rows[0]), right=right).numpy(), one
    )
    with pytest.raises(ShapeError, match="leading dims"):
        searchsorted(tensor(rows), tensor(values[:2]))


def test_methods_of_tensor_are_the_functions():
    x = tensor([3.0, 1.0, 2.0], dtype=float64)
    assert x.sort()[0].tolist() == [1.0, 2.0, 3.0] and x.argsort().tolist() == [1, 2, 0]
    assert x.topk(1)[0].tolist() == [3.0] and x.median().item() == 2.0
    assert x.quantile(0.5).item() == 2.0


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_takes_nan_for_the_largest_number_in_every_row(right):
    rows = np.array([[1.0, 2.0, np.nan, np.nan], [0.0, 1.0, 2.0, 3.0], [np.nan] * 4])
    values = np.array([[1.0, 2.0, np.nan, 9.0]] * 3)
    side = "right" if right else "left"
    expected = np.stack([np.searchsorted(r, v, side) for r, v in zip(rows, values, strict=True)])
    native = compile(lambda r, v: searchsorted(r, v, right=right))
    for fn in (lambda r, v: searchsorted(r, v, right=right), native, native):
        np.testing.assert_array_equal(fn(tensor(rows), tensor(values)).numpy(), expected)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "dim"), [((900,), 0), ((4, 300), 1), ((300, 4), 0)], ids=str)
def test_shorter_ways_to_an_order_find_the_stable_one(shape, dim, largest):
    rng = np.random.default_rng(8)
    different, few = rng.standard_normal(shape), rng.integers(-2, 3, shape) * 1.0
    unordered, zeros = different.copy(), np.where(rng.random(shape) < 0.6, 0.0, different)
    unordered[rng.random(shape) < 0.02] = np.nan
    zeros[rng.random(shape) < 0.3] = -0.0
    for x in (different, few, unordered, zeros, few.astype(int), different.astype(np.float32)):
        rows = np.moveaxis(x, dim, -1)
        if largest:  # equal elements keep their order, so both ways round are turned
            order = rows.shape[-1] - 1 - np.flip(np.argsort(np.flip(rows, -1), -1, "stable"), -1)
        else:
            order = np.argsort(rows, -1, "stable")
        order = np.moveaxis(order, -1, dim)
        assert (argsort(tensor(x), dim, descending=largest).array == order).all()
        for k in (1, 7, 40):
            values, index = topk(tensor(x), k, dim, largest=largest)
            wanted = np.take(order, range(k), dim)
            assert (index.array == wanted).all()
            assert np.array_equal(
                values.array, np.take_along_axis(x, wanted, dim), equal_nan=x.dtype.kind == "f"
            )
