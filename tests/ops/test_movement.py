"""Movement ops against NumPy, with the mistakes they name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probtorch
from probtorch.errors import ArgumentError, ShapeError, TensorIndexError
from probtorch.testing import assert_close

X = np.arange(24.0).reshape(2, 3, 4)
T = probtorch.from_numpy(X)


@given(st.permutations([0, 1, 2]), st.lists(st.booleans(), min_size=3, max_size=3))
def test_permute_agrees_with_numpy(dims, negative):
    dims = [d - 3 if n else d for d, n in zip(dims, negative, strict=True)]
    assert_close(T.permute(*dims), X.transpose(dims))
    assert_close(probtorch.permute(T, tuple(dims)), X.transpose(dims))


@given(st.permutations([2, 3, 4]), st.integers(0, 3))
def test_reshape_finds_the_missing_size(sizes, at):
    if at < 3:
        sizes = [-1 if i == at else s for i, s in enumerate(sizes)]
    assert_close(T.permute(2, 0, 1).reshape(sizes), X.transpose(2, 0, 1).reshape(sizes))


@given(
    st.lists(st.integers(-5, 5), min_size=3, max_size=3),
    st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
)
def test_roll_agrees_with_numpy(shifts, dims):
    shifts = shifts[: len(dims)]
    assert_close(probtorch.roll(T, shifts, dims), np.roll(X, shifts, dims))
    assert_close(probtorch.roll(T, shifts[0]), np.roll(X, shifts[0]))
    assert_close(probtorch.roll(T, shifts[0], dims[0]), np.roll(X, shifts[0], dims[0]))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_tile_agrees_with_numpy(counts):
    assert_close(probtorch.tile(T, tuple(counts)), np.tile(X, counts))


@given(st.integers(-3, 3), st.permutations([0, 1, 2]))
def test_diagonals_and_triangles_agree_with_numpy(offset, dims):
    a, b, _ = dims
    assert_close(probtorch.diagonal(T, offset, a, b), np.diagonal(X, offset, a, b))
    assert_close(probtorch.tril(T, offset), np.tril(X, offset))
    assert_close(probtorch.triu(T, offset), np.triu(X, offset))
    assert_close(probtorch.diag_embed(T[0, 0], offset), np.diag(X[0, 0], offset))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_split_and_chunk_cover_everything(size):
    pieces = probtorch.split(T, size, -1)
    assert_close(probtorch.cat(pieces, -1), X)
    assert all(p.shape[-1] == size for p in pieces[:-1])
    assert_close(probtorch.cat(probtorch.chunk(T, size, 2), 2), X)
    assert [p.shape[1] for p in probtorch.split(T, [1, 2], 1)] == [1, 2]
    with pytest.raises(ShapeError, match="negative"):
        probtorch.split(T, [-1, 4], 1)


def test_dims_come_and_go():
    assert probtorch.unsqueeze(T, -1).shape == (2, 3, 4, 1)
    assert probtorch.squeeze(probtorch.zeros(1, 2, 1)).shape == (2,)
    assert probtorch.squeeze(probtorch.zeros(1, 2, 1), 0).shape == (2, 1)
    assert probtorch.squeeze(probtorch.zeros(1, 2, 1), 1).shape == (1, 2, 1)
    assert probtorch.flatten(T, 1).shape == (2, 12)
    assert probtorch.flatten(probtorch.tensor(1.0)).shape == (1,)
    assert probtorch.movedim(T, 0, -1).shape == (3, 4, 2)
    assert_close(probtorch.movedim(T, (0, 1), (2, 0)), np.moveaxis(X, (0, 1), (2, 0)))
    assert_close(T.swapaxes(0, 2), X.swapaxes(0, 2))


def test_stack_adds_a_dim():
    pieces = T.unbind(1)
    assert len(pieces) == 3
    assert_close(probtorch.stack(pieces, 1), X)
    assert_close(probtorch.stack(pieces, -1), np.moveaxis(X, 1, -1))


def test_expand_repeats_without_copying():
    row = probtorch.tensor([[1.0, 2.0]])
    assert_close(row.expand(3, -1), [[1.0, 2.0]] * 3)
    assert row.expand(2, 3, 2).shape == (2, 3, 2)
    a, b = probtorch.broadcast_tensors(probtorch.zeros(3, 1), probtorch.zeros(2))
    assert a.shape == b.shape == (3, 2)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: T.reshape(5, -1), ShapeError, "product is 24"),
        (lambda: T.reshape(-1, -1), ShapeError, "at most one -1"),
        (lambda: T.reshape(5), ShapeError, "24 elements"),
        (lambda: T.permute(0, 1), ShapeError, "each of 3 dims once"),
        (lambda: T.permute(0, 1, 1), ShapeError, "each of 3 dims once"),
        (lambda: T.expand(2, 3, 5), ShapeError, r"\(2, 3, 4\) broadcasts to"),
        (lambda: T.expand(4), ShapeError, "broadcasts to"),
        (lambda: T.unsqueeze(5), TensorIndexError, r"dim in \[-4, 3\]"),
        (lambda: T.split([1, 1], 1), ShapeError, "add up to 3"),
        (lambda: T.repeat(2), ShapeError, "at least 3 counts"),
        (lambda: probtorch.cat([]), ArgumentError, "at least one tensor"),
        (lambda: probtorch.cat([T, T[:, :2]]), ShapeError, "for tensor 1"),
        (lambda: probtorch.cat([probtorch.tensor(1.0)]), ShapeError, "use stack"),
        (lambda: probtorch.stack([T, T[0]]), ShapeError, "for tensor 1"),
    ],
    ids=range(14),
)
def test_mistake_is_named(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "fix:" in str(caught.value)
