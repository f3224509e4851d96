"""Factorisations of complex matrices: what they are, derivatives against differences, and refusals.

Solves, inverses and determinants, which are holomorphic, answer to the laws of
tests/contracts/test_complex_ops.py; factors with arbitrary angles are tried here, through functions
that do not depend on these.
"""

import numpy as np
import pytest

import probtorch
from probtorch import linalg, tensor
from probtorch.autograd.checking import gradcheck, gradgradcheck
from probtorch.autograd.tape import grad
from probtorch.errors import NotDifferentiableError
from probtorch.func import jvp, vmap
from probtorch.testing.compare import assert_close

RNG = np.random.default_rng(0)


def matrix(*shape):
    a = RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)
    return a + 1.5 * np.eye(*shape[-2:])


A, TALL, WIDE, BATCH = matrix(3, 3), matrix(4, 2), matrix(2, 4), matrix(2, 3, 3)


def hermitian(a):
    return a @ a.mH + 2.0 * probtorch.eye(a.shape[-2]).cdouble()


def weights(s):
    return probtorch.arange(1, s.shape[-1] + 1).double()


def of_vectors(v, s):
    return (v * s.unsqueeze(-2)) @ v.mH


def eigh_function(a):
    values, vectors = linalg.eigh(hermitian(a))
    return of_vectors(vectors, values.sin() + weights(values))


def svd_function(a):
    u, s, vh = linalg.svd(a, full_matrices=False)
    return (u * (s.sin() * weights(s)).unsqueeze(-2)) @ vh


def svd_parts(a):
    u, s, vh = linalg.svd(a, full_matrices=False)
    return of_vectors(u, weights(s)), of_vectors(vh.mH, weights(s) ** 2), s


def eig_function(a):
    values, vectors = linalg.eig(a)
    order = values.detach().abs().argsort()
    values, vectors = values[order], vectors[:, order]
    return of_vectors(vectors, weights(values)), values


FUNCTIONS = {
    "cholesky": (lambda a: linalg.cholesky(hermitian(a)), A),
    "cholesky upper": (lambda a: linalg.cholesky(hermitian(a), upper=True), A),
    "cholesky of many": (lambda a: linalg.cholesky(hermitian(a)), BATCH),
    "cholesky_solve": (lambda a: linalg.cholesky_solve(a, linalg.cholesky(hermitian(a))), A),
    "eigh": (eigh_function, A),
    "eigvalsh": (lambda a: linalg.eigvalsh(hermitian(a)), BATCH),
    "qr": (lambda a: tuple(linalg.qr(a)), A),
    "qr tall": (lambda a: tuple(linalg.qr(a)), TALL),
    "qr wide": (lambda a: tuple(linalg.qr(a)), WIDE),
    "svd": (svd_function, A),
    "svd tall": (svd_function, TALL),
    "svd wide": (svd_parts, WIDE),
    "svdvals": (linalg.svdvals, BATCH),
    "pinv tall": (linalg.pinv, TALL),
    "pinv wide": (linalg.pinv, WIDE),
    "eig": (eig_function, A),
    "eig of real": (eig_function, A.real),
    "slogdet": (lambda a: tuple(linalg.slogdet(a)), BATCH),
    "logdet": (linalg.logdet, A),
    "norms": (
        lambda a: tuple(linalg.matrix_norm(a, p) for p in ("fro", "nuc", 2, -2, 1, np.inf)),
        A,
    ),
    "matrix_exp": (linalg.matrix_exp, A),
    "matrix_power": (lambda a: linalg.matrix_power(a, -2), A),
}


# What is tried at every run; all of it when there is time.
OFTEN = ("cholesky", "eigh", "qr", "svd wide", "eig", "slogdet")
at_times = pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in FUNCTIONS]
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_agree_with_differences(name):
    fn, a = FUNCTIONS[name]
    a = tensor(a, requires_grad=True)
    assert gradcheck(fn, a, rtol=1e-5, atol=1e-7, fast_mode=True)


@at_times
def test_second_derivatives_agree_with_differences(name):
    fn, a = FUNCTIONS[name]
    a = tensor(a, requires_grad=True)
    assert gradgradcheck(fn, a, rtol=1e-4, atol=1e-5, fast_mode=True)


@at_times
def test_forward_mode_is_the_transpose_of_reverse_mode(name):
    fn, a = FUNCTIONS[name]
    a = tensor(a, requires_grad=True)
    direction = RNG.standard_normal(a.shape)
    if a.is_complex():
        direction = direction + 1j * RNG.standard_normal(a.shape)
    direction = tensor(direction)

    def several(a):
        out = fn(a)
        return out if isinstance(out, tuple) else (out,)

    outputs = several(a)
    gs = [tensor(RNG.standard_normal(o.shape)).to(o.dtype) for o in outputs]
    gs = [g * (1.0 + 0.5j) if g.is_complex() else g for g in gs]
    (pulled,) = grad(outputs, a, gs)
    _, pushed = jvp(several, (a.detach(),), (direction,))
    left = sum(complex((g.conj() * t).sum()).real for g, t in zip(gs, pushed))
    assert_close(left, complex((pulled.conj() * direction).sum()).real, rtol=1e-9, atol=1e-9)


def test_factors_are_what_they_should_be():
    a = tensor(A)
    h = hermitian(a)
    factor = linalg.cholesky(h)
    assert_close(factor @ factor.mH, h, rtol=1e-12)
    assert_close(linalg.cholesky(h, upper=True), factor.mH, rtol=1e-12)
    assert_close(probtorch.linalg.cholesky_inverse(factor) @ h, np.eye(3), atol=1e-12)
    values, vectors = linalg.eigh(h)
    assert values.dtype == probtorch.float64
    assert_close(h @ vectors, vectors * values, rtol=1e-11, atol=1e-12)
    for x in (A, TALL, WIDE):
        q, r = linalg.qr(tensor(x))
        assert_close(q @ r, x, rtol=1e-11, atol=1e-12)
        assert_close(q.mH @ q, np.eye(q.shape[-1]), atol=1e-12)
        along = r.diagonal(0, -2, -1)
        assert (along.imag == 0).all() and (along.real > 0).all()
        u, s, vh = linalg.svd(tensor(x), False)
        assert_close((u * s) @ vh, x, rtol=1e-11, atol=1e-12)
        assert_close(linalg.pinv(tensor(x)), np.linalg.pinv(x), rtol=1e-10, atol=1e-11)
    sign, log_abs = linalg.slogdet(a)
    assert_close(sign * log_abs.exp(), np.linalg.det(A), rtol=1e-11)
    assert_close(linalg.logdet(a).exp(), np.linalg.det(A), rtol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_eigenvalues_of_general_matrices(dtype):
    a = tensor(BATCH if dtype.startswith("complex") else BATCH.real).to(getattr(probtorch, dtype))
    values, vectors = linalg.eig(a)
    single = dtype in ("float32", "complex64")
    assert values.dtype == vectors.dtype == (probtorch.cfloat if single else probtorch.cdouble)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if single else {"rtol": 1e-10, "atol": 1e-11}
    whole = a.to(values.dtype)
    assert_close(whole @ vectors, vectors * values.unsqueeze(-2), **tolerance)
    assert_close(vectors.abs().square().sum(-2), np.ones((2, 3)), **tolerance)
    assert_close(linalg.eigvals(a), values, **tolerance)
    assert_close(values.sum(-1), probtorch.linalg.trace(whole), **tolerance)


def test_eigenvalues_of_symmetric_and_rotating_matrices():
    # A turn by an angle has the eigenvalues exp(+-i angle); of their product nothing changes.
    angle = tensor(0.7, requires_grad=True)
    turn = probtorch.stack(
        [
            probtorch.stack([angle.cos(), -angle.sin()]),
            probtorch.stack([angle.sin(), angle.cos()]),
        ]
    )
    values = linalg.eigvals(turn)
    (g,) = grad(values.angle().abs().sum(), angle)
    assert_close(g, 2.0, rtol=1e-5)
    assert linalg.eigvals(tensor(np.diag([1.0, 2.0]))).imag.tolist() == [0.0, 0.0]
    assert linalg.eig(probtorch.zeros(0, 3, 3))[0].shape == (0, 3)


def test_vmap_takes_batches():
    batch = tensor(BATCH)
    for fn in (linalg.inv, linalg.eigvals, lambda a: linalg.cholesky(hermitian(a)), linalg.svdvals):
        batched = vmap(fn)(batch)
        for k in range(2):
            assert_close(batched[k], fn(batch[k]), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: linalg.eigh(hermitian(a))[1].real.sum(),
        lambda a: linalg.svd(a)[0].imag.sum(),
        lambda a: linalg.svd(a)[2].real.sum(),
        lambda a: linalg.eig(a)[1].real.sum(),
    ],
)
def test_what_depends_on_arbitrary_angles_has_no_gradient(fn):
    with pytest.raises(NotDifferentiableError, match=r"exp\(i angle\)"):
        fn(tensor(A, requires_grad=True)).backward()


def test_matrices_that_cannot_be_factorised():
    with pytest.raises(linalg.LinAlgError, match="leading minor of order 2"):
        linalg.cholesky(tensor(np.array([[1.0, 2j], [-2j, 1.0]])))
    with pytest.raises(linalg.LinAlgError, match="finite numbers"):
        linalg.eig(tensor([[np.nan, 1.0], [0.0, 1.0]]))
