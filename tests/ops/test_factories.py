"""Factories: dtypes, shapes and memory follow PyTorch, values follow NumPy."""

import numpy as np
import pytest

from probtorch.autograd import grad
from probtorch.core.dtype import default_dtype_as, float32, float64, int32, int64
from probtorch.core.rng import manual_seed
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    logspace,
    meshgrid,
    ones,
    ones_like,
    tril_indices,
    triu_indices,
    zeros,
    zeros_like,
)
from probtorch.ops.reshaping import diag
from probtorch.tensor import tensor


@pytest.mark.parametrize("make, value", [(zeros, 0.0), (ones, 1.0)])
@pytest.mark.parametrize("size", [(), (3,), (2, 0, 4)], ids=str)
def test_filled_tensors_take_sizes_as_arguments_or_as_a_tuple(make, value, size):
    for x in (make(*size), make(size)):
        assert x.shape == size and x.dtype == float32
        assert (x.numpy() == value).all()


def test_default_dtype_is_respected():
    with default_dtype_as(float64):
        made = [zeros(2), ones(2), empty(2), full((2,), 1.5), eye(2), linspace(0, 1, 3)]
    assert {x.dtype for x in made} == {np.dtype(float64)}


@pytest.mark.parametrize(
    "value, dtype", [(True, np.bool_), (3, int64), (2.5, float32), (np.float64(1.0), float64)]
)
def test_full_takes_its_dtype_from_the_kind_of_number(value, dtype):
    x = full((2, 3), value)
    assert x.dtype == dtype and (x.numpy() == value).all()


def test_like_keeps_dtype_and_shape_unless_told():
    x = tensor([[1, 2, 3]], dtype=int32)
    for make, value in ((zeros_like, 0), (ones_like, 1)):
        assert make(x).dtype == int32 and make(x).shape == (1, 3)
        assert (make(x).numpy() == value).all()
    assert ones_like(x, dtype=float64).dtype == float64
    assert empty_like(x).shape == (1, 3) and empty_like(x).dtype == int32
    assert full_like(x, 7).tolist() == [[7, 7, 7]]


def test_requires_grad_makes_a_leaf():
    x = ones(3, requires_grad=True)
    assert x.requires_grad and x.is_leaf
    assert grad((x * x).sum(), [x])[0].tolist() == [2.0, 2.0, 2.0]


def test_a_negative_size_is_refused():
    with pytest.raises(ShapeError, match=r"expected: sizes >= 0\n.*got:.*\(2, -1\)(\n.*)*fix:"):
        zeros(2, -1)


@pytest.mark.parametrize(
    "arguments, dtype",
    [
        ((5,), int64),
        ((1, 6, 2), int64),
        ((0.0, 1.0, 0.1), float32),
        ((3, 0, -1), int64),
        ((2.5,), float32),
    ],
    ids=str,
)
def test_arange_agrees_with_numpy(arguments, dtype):
    x = arange(*arguments)
    assert x.dtype == dtype
    np.testing.assert_allclose(x.numpy(), np.arange(*arguments), rtol=1e-6)


def test_arange_accumulates_no_rounding():
    x = arange(0.0, 1000.0, 0.1, dtype=float64).numpy()
    np.testing.assert_array_equal(x, 0.1 * np.arange(10_000))


@pytest.mark.parametrize("arguments", [(0, 5, -1), (5, 0), (0, 5, 0)], ids=str)
def test_arange_refuses_a_step_that_leads_away(arguments):
    with pytest.raises(
        ArgumentError, match=r"expected: a step that leads(.*\n)*.*got:(.*\n)*.*fix:"
    ):
        arange(*arguments)


def test_linspace_and_logspace_include_both_ends():
    np.testing.assert_allclose(linspace(-1, 1, 5).numpy(), [-1, -0.5, 0, 0.5, 1])
    np.testing.assert_allclose(logspace(0, 3, 4, base=2.0).numpy(), [1, 2, 4, 8])
    assert linspace(0, 1, 0).shape == (0,)
    with pytest.raises(ArgumentError, match="steps >= 0"):
        linspace(0, 1, -1)


def test_eye_and_index_helpers_agree_with_numpy():
    np.testing.assert_array_equal(eye(2, 3).numpy(), np.eye(2, 3))
    for ours, theirs in ((tril_indices, np.tril_indices), (triu_indices, np.triu_indices)):
        np.testing.assert_array_equal(ours(3, 4, 1).numpy(), np.stack(theirs(3, 1, 4)))


@pytest.mark.parametrize("offset", [-1, 0, 2])
def test_diag_builds_and_reads_a_diagonal_and_differentiates(offset):
    v = tensor([1.0, 2.0, 3.0], requires_grad=True)
    m = diag(v, offset)
    np.testing.assert_array_equal(m.detach().numpy(), np.diag([1.0, 2.0, 3.0], offset))
    np.testing.assert_array_equal(diag(m, offset).detach().numpy(), [1.0, 2.0, 3.0])
    assert grad((m * m).sum(), [v])[0].tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(ShapeError, match="a vector or a matrix"):
        diag(zeros(2, 2, 2))


@pytest.mark.parametrize("indexing", ["ij", "xy"])
def test_meshgrid_agrees_with_numpy(indexing):
    vectors = [np.arange(2.0), np.arange(3.0), np.arange(4.0)]
    ours = meshgrid(*[tensor(v) for v in vectors], indexing=indexing)
    for x, y in zip(ours, np.meshgrid(*vectors, indexing=indexing), strict=True):
        np.testing.assert_array_equal(x.numpy(), y)
    with pytest.raises(ArgumentError, match='"ij" or "xy"'):
        meshgrid(*ours, indexing="yx")


def test_as_tensor_shares_memory_where_it_can():
    x, a = zeros(3), np.zeros(3)
    assert as_tensor(x) is x
    as_tensor(a)[0] = 5.0
    assert a[0] == 5.0
    assert as_tensor(a, dtype=float32).dtype == float32


@pytest.mark.parametrize(
    "data, dtype",
    [
        (1.5, float32),
        ([1, 2], int64),
        ([[1.0], [2.0]], float32),
        (np.ones(2), float64),
        (True, np.bool_),
    ],
    ids=str,
)
def test_as_tensor_gives_numbers_the_default_dtype_and_keeps_that_of_arrays(data, dtype):
    x = as_tensor(data)
    assert x.dtype == dtype
    np.testing.assert_array_equal(x.numpy(), np.asarray(data))


@pytest.mark.parametrize("fill", ["uniform_", "normal_", "exponential_", "bernoulli_", "cauchy_"])
def test_fills_take_a_tensor_without_dims(fill):
    manual_seed(1)
    one = getattr(zeros(()), fill)()
    manual_seed(1)
    assert one.shape == () and one.item() == getattr(zeros(1), fill)().item()
