"""Linear algebra: errors that name the culprit, hard cases of the derivatives, PyTorch's shapes.

Values and derivatives of each op are swept in tests/contracts/test_every_op.py.
"""

import functools
import math

import numpy as np
import pytest
import scipy.linalg

from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.dtype import float32, float64
from probtorch.errors import ArgumentError, DomainError, NotDifferentiableError, ShapeError
from probtorch.ops.cholesky_factors import cholesky, cholesky_ex, cholesky_inverse, cholesky_solve
from probtorch.ops.determinants import det, logdet, slogdet
from probtorch.ops.linalg import (
    LinAlgError,
    inv,
    matrix_power,
    solve,
    solve_triangular,
    solve_triangular_vector,
    solve_vector,
    trace,
)
from probtorch.ops.norms import matrix_norm
from probtorch.ops.orthogonal import qr
from probtorch.ops.pseudoinverses import matrix_rank, pinv
from probtorch.ops.reflections import svd_old
from probtorch.ops.spectral import eigh, eigvalsh, svd, svdvals
from probtorch.tensor import tensor
from probtorch.testing.compare import assert_close
from tests.derivatives import gradcheck, gradgradcheck

RNG = np.random.default_rng(11)
GENERAL = RNG.standard_normal((2, 3, 3)) + 2.0 * np.eye(3)
POSITIVE = GENERAL @ np.swapaxes(GENERAL, -1, -2)


def leaf(x):
    return tensor(np.asarray(x, np.float64), requires_grad=True)


# ----------------------------------------------------------------------------------------- cholesky


def test_cholesky_gradient_is_symmetric_and_that_of_symmetric_changes():
    weights = RNG.standard_normal((3, 3))
    a = leaf(POSITIVE[0])
    (g,) = grad((cholesky(a) * tensor(weights)).sum(), [a])
    assert_close(g, g.mT)
    change = RNG.standard_normal((3, 3))
    change = change + change.T

    def loss(t):
        return (np.linalg.cholesky(POSITIVE[0] + t * change) * weights).sum()

    h = 1e-3
    slope = (loss(-2 * h) - 8 * loss(-h) + 8 * loss(h) - loss(2 * h)) / (12 * h)
    assert (g.numpy() * change).sum() == pytest.approx(slope, rel=1e-8)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_gradient_of_large_factors_is_taken_by_halves(batch):
    n, rng = 201, np.random.default_rng(4)
    a = rng.standard_normal((*batch, n, n)) / np.sqrt(n)
    a = a @ np.swapaxes(a, -1, -2) + np.eye(n)
    weights = rng.standard_normal(a.shape)
    x = tensor(a, requires_grad=True)
    (cholesky(x) * tensor(weights)).sum().backward()
    # Murray (2016): L^-T Phi(L^T G) L^-1, whose symmetric part is the gradient.
    factor = np.linalg.cholesky(a)
    inner = np.tril(np.swapaxes(factor, -1, -2) @ np.tril(weights))
    inner[..., range(n), range(n)] *= 0.5
    inverse = np.linalg.inv(factor)
    expected = np.swapaxes(inverse, -1, -2) @ inner @ inverse
    expected = 0.5 * (expected + np.swapaxes(expected, -1, -2))
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-9, atol=1e-11)


def test_cholesky_takes_the_symmetric_part_and_gives_either_triangle():
    skew = np.array([[0.0, 1.0, 2.0], [-1.0, 0.0, 3.0], [-2.0, -3.0, 0.0]])
    lower = cholesky(tensor(POSITIVE + skew))
    assert_close(lower, np.linalg.cholesky(POSITIVE))
    assert_close(cholesky(tensor(POSITIVE), upper=True), lower.mT)


def test_cholesky_failure_names_the_leading_minor_and_the_batch_index():
    bad = np.stack([np.eye(3), np.diag([1.0, -1.0, 1.0])])
    with pytest.raises(LinAlgError) as caught:
        cholesky(tensor(bad))
    message = str(caught.value)
    assert "expected: positive definite matrices" in message
    assert "batch index 1" in message and "leading minor of order 2" in message
    assert "fix:" in message
    for kind in (DomainError, ValueError, np.linalg.LinAlgError):
        assert isinstance(caught.value, kind)


def test_cholesky_of_nan_is_nan():
    factor = cholesky(tensor(np.stack([np.full((2, 2), np.nan), np.eye(2)])))
    assert np.isnan(factor[0, 0, 0].item())
    assert_close(factor[1], np.eye(2))


def test_cholesky_ex_marks_failures_instead_of_raising():
    factor, failed = cholesky_ex(tensor(np.stack([np.eye(2), -np.eye(2)])))
    assert failed.tolist() == [False, True]
    assert_close(factor[0], np.eye(2))
    assert np.isnan(factor[1].numpy()).all()


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_solve_and_inverse_undo_the_matrix(upper):
    factor = cholesky(tensor(POSITIVE), upper=upper)
    b = RNG.standard_normal((2, 3, 4))
    assert_close(cholesky_solve(tensor(b), factor, upper), np.linalg.solve(POSITIVE, b), rtol=1e-10)
    assert_close(cholesky_inverse(factor, upper), np.linalg.inv(POSITIVE), rtol=1e-10)


# ------------------------------------------------------------------------------------------ solving


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (6,)], ids=str)
def test_solve_triangular_solves_on_either_side_by_both_roads(upper, left, unit, batch):
    a = RNG.standard_normal((*batch, 3, 3)) + 3.0 * np.eye(3)
    b = RNG.standard_normal((*batch, 3, 2) if left else (*batch, 2, 3))
    used = np.triu(a, 1 if unit else 0) if upper else np.tril(a, -1 if unit else 0)
    used = used + np.eye(3) if unit else used
    x = solve_triangular(tensor(a), tensor(b), upper=upper, left=left, unitriangular=unit).numpy()
    assert_close(used @ x if left else x @ used, b, rtol=1e-10)


def test_solve_triangular_with_a_zero_on_the_diagonal_is_infinite_not_an_error():
    x = solve_triangular(tensor([[0.0, 0.0], [0.0, 1.0]]), tensor([[1.0], [2.0]])).numpy()
    np.testing.assert_array_equal(x, [[math.inf], [math.nan]])


def test_vectors_are_solved_for_without_guessing_from_shapes():
    # Two matrices of size 2 and b of shape (2, 2): PyTorch's solve has to guess, these do not.
    a = GENERAL[:, :2, :2]
    b = RNG.standard_normal((2, 2))
    expected = np.stack([np.linalg.solve(m, v) for m, v in zip(a, b, strict=True)])
    assert_close(solve_vector(tensor(a), tensor(b)), expected)
    assert_close(solve(tensor(a), tensor(b)), expected)
    lower = np.stack(
        [scipy.linalg.solve_triangular(m, v, lower=True) for m, v in zip(a, b, strict=True)]
    )
    assert_close(solve_triangular_vector(tensor(a), tensor(b)), lower)
    many = solve_triangular_vector(tensor(a[0]), tensor(np.stack([b, b])))
    assert many.shape == (2, 2, 2)
    with pytest.raises(ShapeError, match="vectors in the last dim"):
        solve_vector(tensor(a), tensor(1.0))


def test_solve_on_the_right_is_the_transposed_problem():
    b = RNG.standard_normal((2, 4, 3))
    x = solve(tensor(GENERAL), tensor(b), left=False).numpy()
    assert_close(x @ GENERAL, b, rtol=1e-10)


@pytest.mark.parametrize("fn", [lambda a: solve(a, a), inv], ids=["solve", "inv"])
def test_a_singular_matrix_is_named_by_its_batch_index(fn):
    a = np.stack([np.eye(2), np.eye(2), np.ones((2, 2))])
    with pytest.raises(
        LinAlgError, match=r"expected: invertible(.*\n)+.*batch index 2(.*\n)+.*fix:"
    ):
        fn(tensor(a))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match="square matrices"):
        cholesky(tensor(np.ones((2, 3))))
    with pytest.raises(ShapeError, match="b with 3 rows"):
        solve_triangular(tensor(GENERAL), tensor(np.ones((2, 2))))


def test_integers_become_floats_and_dtypes_are_joined():
    assert inv(tensor([[2, 0], [0, 4]])).dtype == float32
    x = solve(tensor(GENERAL[0], dtype=float64), tensor(np.ones((3, 1)), dtype=float32))
    assert x.dtype == float64


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3)], ids=str)
def test_pinv_and_its_derivatives_hold_for_every_shape(shape):
    a = leaf(RNG.standard_normal(shape))
    assert_close(pinv(a), np.linalg.pinv(a.detach().numpy()), rtol=1e-9)
    assert gradcheck(pinv, (a,))
    assert gradgradcheck(pinv, (a,))


def of_three_sizes(shape, imaginary=0.0):
    """A matrix with the singular values 3, 0.7 and 0.4."""
    rng = np.random.default_rng(3)
    u, _, vh = np.linalg.svd(
        rng.standard_normal(shape) + imaginary * rng.standard_normal(shape), full_matrices=False
    )
    return u * [3.0, 0.7, 0.4] @ vh


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (3, 3), (2, 5, 3)], ids=str)
def test_pinv_without_much_of_a_matrix_has_its_derivatives(shape):
    x = of_three_sizes(shape)
    for rtol in (0.2, 0.1, 2.0):  # two of the three, all, none
        assert gradcheck(functools.partial(pinv, rtol=rtol), (leaf(x),))
    assert gradcheck(functools.partial(pinv, atol=0.5), (leaf(x),))
    assert gradgradcheck(lambda a: pinv(a, rtol=0.2), (leaf(x),))

    def slope(a):
        return grad(pinv(a, rtol=0.2).sum(), [a])[0]

    assert_close(compile(slope)(leaf(x)), slope(leaf(x)).numpy(), rtol=1e-9)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4)], ids=str)
def test_pinv_without_much_of_a_complex_matrix_has_its_slope(shape):
    x, direction = of_three_sizes(shape, 1j), of_three_sizes(shape, 1j) * (1.0 + 2.0j)
    a = tensor(x, requires_grad=True)
    (slope,) = grad(pinv(a, rtol=0.2).real.sum(), [a])
    ahead, back = (np.linalg.pinv(x + h * direction, 0.2).real.sum() for h in (1e-6, -1e-6))
    found = (slope.numpy().conj() * direction).real.sum()
    assert math.isclose(found, (ahead - back) / 2e-6, rel_tol=1e-6)


# ------------------------------------------------------------------------------------- determinants


def test_det_of_a_singular_matrix_has_the_adjugate_as_gradient():
    a = leaf(np.ones((2, 2)))
    (g,) = grad(det(a), [a])
    assert_close(g, np.array([[1.0, -1.0], [-1.0, 1.0]]))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_det_has_exact_first_and_second_derivatives_at_every_rank(rank):
    base = GENERAL[0][:, :rank] @ GENERAL[1][:rank]
    a = leaf(base)
    (g,) = grad(det(a), [a], create_graph=True)
    minors = np.array(
        [[(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(base, i, 0), j, 1)) for j in range(3)]
         for i in range(3)]
    )  # fmt: skip
    assert_close(g, minors, rtol=1e-9, atol=1e-12)
    # d^2 det / da_00 da_11 = a_22, and d^2 det / da_00 da_12 = -a_21.
    (h,) = grad(g[0, 0], [a], create_graph=True)
    assert h[1, 1].item() == pytest.approx(base[2, 2], abs=1e-12)
    assert h[1, 2].item() == pytest.approx(-base[2, 1], abs=1e-12)
    with pytest.raises(NotDifferentiableError, match="at most two derivatives"):
        grad(h[1, 1], [a])


def test_slogdet_and_logdet_follow_the_sign():
    sign, log_abs = slogdet(tensor(np.diag([2.0, -3.0])))
    assert (sign.item(), log_abs.item()) == (-1.0, pytest.approx(math.log(6.0)))
    assert math.isnan(logdet(tensor(np.diag([2.0, -3.0]))).item())
    assert logdet(tensor(np.zeros((2, 2)))).item() == -math.inf
    a = leaf(POSITIVE)
    (g,) = grad(logdet(a).sum(), [a])
    assert_close(g, np.swapaxes(np.linalg.inv(POSITIVE), -1, -2), rtol=1e-10)


def test_slogdet_of_one_singular_matrix_spares_the_others():
    a = leaf(np.stack([np.ones((2, 2)), 2.0 * np.eye(2)]))
    (g,) = grad(slogdet(a)[1][1], [a])
    assert_close(g[1], 0.5 * np.eye(2))


# ----------------------------------------------------------------------------------- decompositions


def test_repeated_eigenvalues_leave_invariant_losses_differentiable():
    a = leaf(np.diag([1.0, 1.0, 2.0]))
    values, vectors = eigh(a)
    # exp of the matrix through its eigenvalues: it does not depend on the basis of equal ones.
    weights = RNG.standard_normal((3, 3))
    weights = weights + weights.T
    loss = ((vectors * values.exp()) @ vectors.mT * tensor(weights)).sum()
    (g,) = grad(loss, [a])
    assert np.isfinite(g.numpy()).all()
    (trace_gradient,) = grad(eigvalsh(a).exp().sum(), [a])
    assert_close(trace_gradient, scipy.linalg.expm(np.diag([1.0, 1.0, 2.0])), rtol=1e-12)


def test_eigh_rebuilds_the_matrix_with_ascending_values():
    values, vectors = eigh(tensor(POSITIVE))
    assert (np.diff(values.numpy(), axis=-1) >= 0).all()
    assert_close((vectors * values.unsqueeze(-2)) @ vectors.mT, POSITIVE, rtol=1e-10)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (2, 3, 3)], ids=str)
def test_qr_is_unique_and_differentiates_for_every_shape(shape):
    a = leaf(RNG.standard_normal(shape))
    q, r = qr(a)
    k = min(shape[-2:])
    assert_close((q @ r), a.detach(), rtol=1e-10)
    assert_close(q.mT @ q, np.broadcast_to(np.eye(k), (*shape[:-2], k, k)), atol=1e-12)
    assert (np.diagonal(r.detach().numpy(), 0, -2, -1) > 0).all()
    assert gradcheck(lambda x: qr(x)[0], (a,)) and gradcheck(lambda x: qr(x)[1], (a,))


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (2, 3, 3)], ids=str)
def test_svd_rebuilds_the_matrix_and_invariant_losses_differentiate_twice(shape):
    a = leaf(RNG.standard_normal(shape))
    u, s, vh = svd(a, full_matrices=False)
    assert_close((u * s.unsqueeze(-2)) @ vh, a.detach(), rtol=1e-10)

    def polar(x):
        left, _, right = svd(x, full_matrices=False)
        return left @ right

    assert gradcheck(polar, (a,))
    assert gradgradcheck(svdvals, (a,))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128], ids=lambda d: d.__name__)
@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 5, 2), (3, 0), (0, 3), (3, 3)], ids=str)
def test_the_full_svd_completes_both_bases(shape, dtype):
    x = RNG.standard_normal(shape).astype(dtype)
    if dtype is np.complex128:
        x = x + 1j * RNG.standard_normal(shape)
    if shape == (4, 2):
        x[:, 1] = x[:, 0]  # of rank 1: what belongs to the singular value 0 is arbitrary, too
    u, s, vh = svd(tensor(x))
    rows, columns, k = *shape[-2:], min(shape[-2:])
    assert (u.shape, s.shape, vh.shape) == (
        (*shape[:-2], rows, rows),
        (*shape[:-2], k),
        (*shape[:-2], columns, columns),
    )
    atol = 1e-5 if dtype is np.float32 else 1e-12
    for basis in (u, vh):
        assert_close(
            basis.mH @ basis, np.broadcast_to(np.eye(basis.shape[-1]), basis.shape), atol=atol
        )
    assert_close((u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], x, atol=10 * atol)


def test_what_completes_a_basis_has_no_gradient():
    a = leaf(RNG.standard_normal((4, 2)))

    def projector(x):
        u = svd(x)[0][:, :2]
        return u @ u.mT

    assert gradcheck(projector, (a,))
    (slope,) = grad(svd(a)[0][:, 2:].sum() + 0.0 * a.sum(), a)
    assert_close(slope, np.zeros((4, 2)), atol=0)


def test_the_older_form_of_svd_has_v_and_not_its_transpose():
    a = tensor(RNG.standard_normal((4, 2)))
    u, s, v = svd_old(a)
    thin = svd(a, full_matrices=False)
    assert u.shape == (4, 2)
    assert_close((u * s) @ v.mT, a, rtol=1e-10)
    assert_close(v, thin.Vh.mT, rtol=0, atol=0)
    assert_close(a.svd(some=False).U.abs(), svd(a).U.abs(), rtol=1e-10)
    u, s, v = a.svd(compute_uv=False)
    assert_close(s, thin.S, rtol=1e-12)
    assert u.shape == (4, 4) and v.shape == (2, 2) and not u.any() and not v.any()


# ------------------------------------------------------------------------------------- compositions


@pytest.mark.parametrize("ord", ["fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf], ids=str)
def test_matrix_norms_agree_with_numpy(ord):
    assert_close(
        matrix_norm(tensor(GENERAL), ord), np.linalg.norm(GENERAL, ord, (-2, -1)), rtol=1e-12
    )
    with pytest.raises(ArgumentError, match="one of"):
        matrix_norm(tensor(GENERAL), 7)


@pytest.mark.parametrize("n", [-2, 0, 1, 5])
def test_matrix_power_agrees_with_numpy(n):
    assert_close(matrix_power(tensor(GENERAL), n), np.linalg.matrix_power(GENERAL, n), rtol=1e-9)


def test_trace_and_rank_are_batched():
    assert_close(trace(tensor(GENERAL)), np.trace(GENERAL, axis1=-2, axis2=-1))
    assert matrix_rank(tensor(np.stack([np.eye(3), np.ones((3, 3))]))).tolist() == [3, 1]


def test_methods_of_tensor_are_the_functions():
    a = tensor(POSITIVE[0])
    assert_close(a.cholesky(), np.linalg.cholesky(POSITIVE[0]))
    assert_close(a.inv(), np.linalg.inv(POSITIVE[0]), rtol=1e-10)
    assert a.logdet().item() == pytest.approx(np.linalg.slogdet(POSITIVE[0])[1])
