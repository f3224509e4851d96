"""Linear, bilinear and embedding layers, distances, and layers that only move elements."""

import numpy as np
import pytest

import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.factories import ones, zeros
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(4)


def normal(*shape):
    return RNG.standard_normal(shape)


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 4, 3), (0, 3), (2, 0, 3)], ids=str)
def test_linear_is_a_matrix_product(shape):
    x, w, b = normal(*shape), normal(4, 3), normal(4)
    assert_close(F.linear(tensor(x), tensor(w), tensor(b)), x @ w.T + b, rtol=1e-12)
    assert_close(F.linear(tensor(x), tensor(w)), x @ w.T, rtol=1e-12)


def test_linear_takes_a_vector_as_weight():
    x, w = normal(5, 3), normal(3)
    assert_close(F.linear(tensor(x), tensor(w)), x @ w, rtol=1e-12)


def test_linear_names_the_sizes_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"\(\.\.\., 3\)"):
        nn.Linear(3, 4)(zeros(2, 4))
    with pytest.raises(ArgumentError, match="in_features: an integer"):
        nn.Linear(3.0, 4)


def test_rows_of_equal_inputs_are_equal():
    y = nn.Linear(5, 1)(ones(5, 5))
    assert y.shape == (5, 1)
    assert (y == y[0]).all()


def test_bilinear_is_a_form_per_output():
    a, b, w, bias = normal(2, 6, 3), normal(2, 6, 4), normal(5, 3, 4), normal(5)
    expected = np.einsum("nsi,kij,nsj->nsk", a, w, b) + bias
    assert_close(F.bilinear(*map(tensor, (a, b, w, bias))), expected, rtol=1e-11)
    with pytest.raises(ShapeError, match=r"\(\.\.\., 4\)"):
        F.bilinear(*map(tensor, (a, a, w)))


def test_identity_takes_any_arguments():
    x = ones(2)
    assert nn.Identity(54, unused=0.1)(x) is x


# --------------------------------------------------------------------------------------- embeddings


def test_embedding_looks_rows_up_and_adds_up_their_gradients():
    m = nn.Embedding(5, 3)
    index = tensor([[1, 1], [4, 0]])
    out = m(index)
    assert_close(out.detach(), m.weight.detach().numpy()[index.numpy()], rtol=0, atol=0)
    out.sum().backward()
    assert m.weight.grad.numpy()[:, 0].tolist() == [1.0, 2.0, 0.0, 0.0, 1.0]


def test_padding_row_starts_at_zero_and_gets_no_gradient():
    m = nn.Embedding(4, 2, padding_idx=-2)
    assert m.padding_idx == 2
    assert m.weight[2].tolist() == [0.0, 0.0]
    m(tensor([2, 3])).sum().backward()
    assert m.weight.grad.numpy()[:, 0].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_long_rows_are_shortened_when_they_are_looked_up():
    m = nn.Embedding(3, 2, max_norm=1.0, _weight=tensor([[3.0, 4.0], [0.3, 0.4], [30.0, 40.0]]))
    m(tensor([0, 1]))
    assert_close(m.weight.detach(), np.array([[0.6, 0.8], [0.3, 0.4], [30.0, 40.0]], np.float32))


def test_frequent_rows_get_the_mean_of_their_gradients():
    m = nn.Embedding(3, 1, scale_grad_by_freq=True)
    index = tensor([0, 0, 0, 2])
    (m(index)[:, 0] * tensor([1.0, 2.0, 6.0, 5.0])).sum().backward()
    assert_close(m.weight.grad, np.array([[3.0], [0.0], [5.0]], np.float32))
    assert_close(m(index).detach(), m.weight.detach().numpy()[[0, 0, 0, 2]], rtol=0, atol=0)


def test_pretrained_table_is_frozen_unless_asked():
    table = tensor([[1.0, 2.0], [3.0, 4.0]])
    assert not nn.Embedding.from_pretrained(table).weight.requires_grad
    m = nn.Embedding.from_pretrained(table, freeze=False, padding_idx=0)
    assert m.weight.requires_grad and m(tensor(1)).tolist() == [3.0, 4.0]
    with pytest.raises(ShapeError, match="a matrix"):
        nn.Embedding.from_pretrained(ones(3))


@pytest.mark.parametrize(
    ("index", "error", "match"),
    [
        ([3], TensorIndexError, r"in \[0, 2\]"),
        ([-1], TensorIndexError, r"in \[0, 2\]"),
        ([1.0], DTypeError, "integer row numbers"),
    ],
    ids=str,
)
def test_row_that_is_not_there_is_an_error(index, error, match):
    with pytest.raises(error, match=match):
        nn.Embedding(3, 2)(tensor(index))


def test_errors_of_embeddings():
    with pytest.raises(ArgumentError, match="sparse=False"):
        nn.Embedding(3, 2, sparse=True)
    with pytest.raises(ArgumentError, match="padding_idx in"):
        nn.Embedding(3, 2, padding_idx=3)
    with pytest.raises(ShapeError, match="_weight of shape"):
        nn.Embedding(3, 2, _weight=ones(2, 2))


# ---------------------------------------------------------------------------------------- distances


def test_distances_and_directions():
    a, b = normal(3, 4), normal(3, 4)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert_close(nn.CosineSimilarity()(tensor(a), tensor(b)), cosine, rtol=1e-12)
    assert_close(
        nn.PairwiseDistance(3.0)(tensor(a), tensor(b)),
        (np.abs(a - b + 1e-6) ** 3).sum(1) ** (1 / 3),
        rtol=1e-12,
    )
    assert_close(F.normalize(tensor(a)), a / np.linalg.norm(a, axis=1, keepdims=True), rtol=1e-12)
    assert F.normalize(zeros(1, 2)).tolist() == [[0.0, 0.0]]
    assert F.cosine_similarity(zeros(1, 2), ones(1, 2)).tolist() == [0.0]


# ----------------------------------------------------------------------------------------- movement


def test_flatten_and_unflatten_undo_each_other():
    x = tensor(normal(2, 3, 4))
    assert nn.Flatten()(x).shape == (2, 12)
    assert nn.Flatten(0, 1)(x).shape == (6, 4)
    assert_close(nn.Unflatten(1, (3, -1))(nn.Flatten()(x)), x, rtol=0, atol=0)


def test_pixel_shuffle_undoes_unshuffle_and_places_channels_row_by_row():
    x = tensor(normal(2, 3, 4, 6))
    assert_close(nn.PixelShuffle(2)(nn.PixelUnshuffle(2)(x)), x, rtol=0, atol=0)
    channels = tensor(np.arange(4.0).reshape(4, 1, 1))
    assert F.pixel_shuffle(channels, 2).tolist() == [[[0.0, 1.0], [2.0, 3.0]]]
    with pytest.raises(ShapeError, match="upscale_factor=2"):
        nn.PixelShuffle(2)(x)


def test_padding_layers_take_one_width_or_one_per_side():
    x = tensor(np.arange(1.0, 4.0).reshape(1, 3))
    assert nn.ReflectionPad1d(2)(x).tolist() == [[3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]]
    assert nn.ReplicationPad1d((1, 0))(x).tolist() == [[1.0, 1.0, 2.0, 3.0]]
    assert nn.CircularPad1d((1, 0))(x).tolist() == [[3.0, 1.0, 2.0, 3.0]]
    assert nn.ConstantPad1d((0, 1), 7.0)(x).tolist() == [[1.0, 2.0, 3.0, 7.0]]
    assert nn.ZeroPad2d((0, 0, 1, 0))(x).tolist() == [[0.0] * 3, [1.0, 2.0, 3.0]]
    with pytest.raises(ArgumentError, match="or 4 of them"):
        nn.ZeroPad2d((1, 2))
