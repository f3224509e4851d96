"""LU factors, reflections, windows on memory, segments, mantissas: against NumPy and by identities.

Values and gradients for random arguments are compared with PyTorch's in the contracts.
"""

import numpy as np
import pytest

import probtorch as torch
from probtorch import linalg
from probtorch.errors import ArgumentError, ShapeError, TensorIndexError
from probtorch.ops.linalg import LinAlgError
from probtorch.testing import assert_close, gradcheck


def matrices(*shape):
    return torch.tensor(np.random.default_rng(0).standard_normal(shape))


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 2), (2, 4), (0, 0), (3, 0), (0, 2, 2)], ids=str)
def test_lu_factors_multiply_to_the_matrix(shape):
    a = matrices(*shape)
    p, low, up = linalg.lu(a)
    assert_close(p @ low @ up, a)
    assert_close(low, low.tril())
    assert_close(up, up.triu())
    unpacked = torch.lu_unpack(*linalg.lu_factor(a))
    for x, y in zip(unpacked, (p, low, up), strict=True):
        assert_close(x, y)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_lu_solve_solves(left, adjoint):
    a, b = matrices(2, 3, 3), matrices(3, 2)
    b = b if left else b.mT
    x = linalg.lu_solve(*linalg.lu_factor(a), b, left=left, adjoint=adjoint)
    whole = a.mT if adjoint else a
    assert_close(whole @ x if left else x @ whole, b.expand(x.shape))


def test_singular_matrices_are_told_not_raised():
    a = torch.tensor([[[1.0, 2.0], [2.0, 4.0]], [[1.0, 0.0], [0.0, 2.0]]])
    inverse, info = linalg.inv_ex(a)
    assert info.tolist() == [2, 0] and inverse[0].isnan().all()
    assert inverse[1].tolist() == [[1.0, 0.0], [0.0, 0.5]]
    with pytest.raises(LinAlgError, match="pivot 2 is 0"):
        linalg.inv_ex(a, check_errors=True)
    result, _ = linalg.solve_ex(a[1], torch.ones(2))
    assert result.tolist() == [1.0, 0.5]


def test_lu_compiles_with_its_gradient():
    def loss(a):
        packed, _ = linalg.lu_factor(a)
        return (packed * packed).sum()

    a = matrices(2, 3, 3)
    slope = torch.func.grad(loss)
    compiled = torch.compile(slope)
    for _ in range(2):
        assert_close(compiled(a), slope(a))


def test_reflections_make_the_same_q():
    a = matrices(4, 3)
    packed, tau = torch.geqrf(a)
    q = linalg.householder_product(packed, tau)
    r = packed[:3].triu()
    assert_close(q @ r, a)
    assert_close(torch.ormqr(packed, tau, a, transpose=True)[:3], r)
    assert gradcheck(lambda v: linalg.householder_product(v, tau), packed.requires_grad_())


def test_low_rank_is_found_by_random_projections():
    a = matrices(9, 3) @ matrices(3, 7)
    u, s, v = torch.svd_lowrank(a, 4)
    assert_close(u @ torch.diag(s) @ v.mT, a, atol=1e-10)
    _, found, _ = torch.pca_lowrank(a, 3)
    expected = np.linalg.svd(a.numpy() - a.numpy().mean(0))[1][:3]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_windows_overlap_and_add_up_their_gradients():
    x = torch.arange(6.0, requires_grad=True)
    windows = x.unfold(0, 3, 1)
    np.testing.assert_array_equal(
        windows.detach().numpy(), np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3)
    )
    windows.sum().backward()
    assert x.grad.tolist() == [1.0, 2.0, 3.0, 3.0, 2.0, 1.0]
    with pytest.raises(ArgumentError, match="read-only"):
        torch.arange(6.0).unfold(0, 3, 1).zero_()


def test_windows_compile_and_batch():
    rows = torch.arange(14.0).reshape(2, 7)
    means = torch.compile(lambda x: x.unfold(1, 3, 2).mean(-1))
    for _ in range(2):
        assert_close(means(rows), rows.unfold(1, 3, 2).mean(-1))
    assert_close(torch.vmap(lambda r: r.unfold(0, 3, 2))(rows), rows.unfold(1, 3, 2))


def test_strided_views_share_memory_with_their_tensor():
    x = torch.zeros(2, 3)
    x.t().as_strided((2,), (1,), 3).fill_(5.0)
    assert x.tolist() == [[0.0, 0.0, 0.0], [5.0, 5.0, 0.0]] and x[1].storage_offset() == 3
    leaf = torch.zeros(4, requires_grad=True)
    y = leaf * 1.0
    y.as_strided((2,), (2,))[0] = 3.0
    (y * y).sum().backward()
    assert leaf.grad.tolist() == [0.0] * 4
    with pytest.raises(TensorIndexError, match="elements 0 to 2"):
        x[0].as_strided((4,), (1,))
    with pytest.raises(ShapeError, match="without gaps"):
        x[:, 0].as_strided((1,), (1,))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_mantissas_and_exponents_are_exact(dtype):
    info = np.finfo(dtype)
    numbers = np.array([0.0, 1.0, -3.0, info.max, info.tiny, 0.1, 8.0, np.inf, np.nan])
    numbers = np.concatenate([numbers, [info.smallest_subnormal]]).astype(dtype)
    mantissa, exponent = torch.frexp(torch.tensor(numbers))
    expected = np.frexp(numbers)
    np.testing.assert_array_equal(mantissa.numpy(), expected[0])
    np.testing.assert_array_equal(exponent.numpy()[:7], expected[1][:7])
    assert exponent.dtype == torch.int32 and mantissa.dtype == dtype


@pytest.mark.parametrize(
    ("reduce", "fn"),
    [("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min), ("prod", np.prod)],
)
def test_segments_are_reduced_one_by_one(reduce, fn):
    x = matrices(6, 2)
    found = torch.segment_reduce(x, reduce, lengths=torch.tensor([2, 1, 3]))
    parts = np.split(x.numpy(), [2, 3])
    np.testing.assert_allclose(found.numpy(), [fn(p, 0) for p in parts])
    offsets = torch.tensor([0, 2, 3, 6])
    assert_close(torch.segment_reduce(x, reduce, offsets=offsets), found)
    assert gradcheck(
        lambda x: torch.segment_reduce(x, reduce, offsets=offsets), x.clone().requires_grad_()
    )
    with pytest.raises(ShapeError, match="add up to 6"):
        torch.segment_reduce(x, reduce, lengths=torch.tensor([2, 1]))


def test_boxes_hold_what_numpy_counts():
    x = matrices(50, 2)
    hist, edges = torch.histogramdd(x, [3, 4], density=True)
    expected, borders = np.histogramdd(x.numpy(), [3, 4], density=True)
    np.testing.assert_allclose(hist.numpy(), expected)
    for a, b in zip(edges, borders, strict=True):
        np.testing.assert_allclose(a.numpy(), b)
