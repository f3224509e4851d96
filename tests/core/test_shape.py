"""Shapes: sizes, dims and broadcasting, with messages that show what does not fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import mutually_broadcastable_shapes

import probtorch
from probtorch.core.shape import Size, broadcast_shapes, normalize_dim, normalize_dims, parse_size
from probtorch.errors import DTypeError, ShapeError, TensorIndexError


@given(mutually_broadcastable_shapes(num_shapes=3, max_dims=4, max_side=3, min_side=0))
def test_broadcasting_agrees_with_numpy(shapes):
    assert broadcast_shapes(*shapes.input_shapes) == np.broadcast_shapes(*shapes.input_shapes)


def test_broadcast_error_shows_both_shapes_and_the_dim():
    with pytest.raises(ShapeError) as caught:
        probtorch.ones(2, 3) + probtorch.ones(2, 4)
    message = str(caught.value)
    assert message.startswith("add\n")
    assert "(2, 3) and (2, 4): dim -1 is 3 and 4" in message
    assert "fix:" in message
    assert f"at:       {__file__}:" in message
    assert message.count("\n") <= 12


def test_shape_error_is_what_torch_and_numpy_users_catch():
    for error in (RuntimeError, ValueError):
        with pytest.raises(error):
            probtorch.ones(3) * probtorch.ones(4)


@pytest.mark.parametrize("dim, expected", [(0, 0), (2, 2), (-1, 2), (-3, 0)])
def test_dim_counts_from_either_end(dim, expected):
    assert normalize_dim(dim, 3) == expected


def test_0d_tensor_has_dims_0_and_minus_1():
    assert normalize_dim(-1, 0) == 0
    assert probtorch.tensor(2.0).sum(-1).item() == 2.0
    with pytest.raises(TensorIndexError, match=r"expected: dim in \[-1, 0\]"):
        probtorch.tensor(2.0).sum(1)


def test_dims_are_sorted_and_distinct():
    assert normalize_dims((2, -3), 3) == (0, 2)
    assert normalize_dims(None, 2) == (0, 1)
    with pytest.raises(ShapeError, match="distinct dims"):
        normalize_dims((1, -1), 2)


@pytest.mark.parametrize("size", [(2, 3), ((2, 3),), ([2, 3],), (Size((2, 3)),)], ids=str)
def test_sizes_may_be_listed_or_given_as_one_tuple(size):
    assert parse_size(size) == (2, 3)


def test_size_is_a_tuple_that_counts_its_elements():
    size = probtorch.ones(2, 3).shape
    assert size == (2, 3)
    assert size.numel() == 6
    assert (size[:1] + (4,)) == (2, 4)
    assert repr(size) == "Size([2, 3])"


def test_one_size_may_be_a_tensor_or_array_without_dims():
    for n in (probtorch.tensor(3), np.array(3), np.int64(3)):
        assert probtorch.zeros(n).shape == (3,) and probtorch.zeros(n, 2).shape == (3, 2)
        assert (
            probtorch.zeros(6).reshape(n, -1).shape
            == probtorch.zeros(3).unsqueeze(1).repeat(1, 2).shape
        )
        assert probtorch.zeros(1).expand(n).shape == (3,)
    with pytest.raises(DTypeError, match="integers"):
        probtorch.zeros(probtorch.tensor(3.0))


def test_sizes_stay_sizes():
    size = probtorch.ones(2, 3).shape
    for same in (size * 2, 2 * size, size + (2, 3), (2, 3) + size):
        assert type(same) is Size and same == (2, 3, 2, 3)
    assert type(size[-1:]) is Size and size[:0].numel() == 1
    common = probtorch.broadcast_shapes(size, (1,), 3)
    assert type(common) is Size and common == (2, 3)
