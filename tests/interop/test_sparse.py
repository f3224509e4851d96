"""Sparse matrices of SciPy times tensors: the product of the dense ones, with its gradient."""

import numpy as np
import pytest
from scipy import sparse

import probtorch
import probtorch.distributions as dist
from probtorch import compile, plate, sample
from probtorch.autograd import grad, gradcheck
from probtorch.errors import AutogradError, DTypeError, ShapeError
from probtorch.func import vmap
from probtorch.infer import Target
from probtorch.tensor import Tensor, tensor

RNG = np.random.default_rng(3)
DENSE = RNG.standard_normal((7, 5)) * (RNG.random((7, 5)) < 0.4)
DENSE[2] = 0.0
FORMATS = ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"]


def matrices():
    for name in FORMATS:
        yield getattr(sparse, f"{name}_array")(DENSE)
        yield getattr(sparse, f"{name}_matrix")(DENSE)


@pytest.mark.parametrize("matrix", list(matrices()), ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("taped", [False, True])
def test_a_sparse_matrix_of_any_format_multiplies_tensors_from_both_sides(matrix, taped):
    b = tensor(RNG.standard_normal(5), requires_grad=taped)
    many = tensor(RNG.standard_normal((2, 5, 3)), requires_grad=taped)
    c = tensor(RNG.standard_normal(7), requires_grad=taped)
    rows = tensor(RNG.standard_normal((2, 3, 7)), requires_grad=taped)
    for found, expected in (
        (matrix @ b, DENSE @ b.detach().numpy()),
        (matrix @ many[0], DENSE @ many[0].detach().numpy()),
        (probtorch.matmul(matrix, many), DENSE @ many.detach().numpy()),
        (c @ matrix, c.detach().numpy() @ DENSE),
        (rows @ matrix, rows.detach().numpy() @ DENSE),
    ):
        assert isinstance(found, Tensor) and found.requires_grad == taped
        np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12, atol=1e-14)


def test_the_gradient_is_that_of_the_dense_matrix():
    matrix = sparse.csr_array(DENSE)
    b = tensor(RNG.standard_normal((5, 2)), requires_grad=True)
    assert gradcheck(lambda x: (matrix @ x).sin(), (b,))
    c = tensor(RNG.standard_normal(7), requires_grad=True)
    assert gradcheck(lambda x: (x @ matrix).exp(), (c,))


def test_batches_under_vmap():
    matrix = sparse.csr_array(DENSE)
    many = tensor(RNG.standard_normal((4, 5)))
    found = vmap(lambda b: matrix @ b)(many)
    np.testing.assert_allclose(found.numpy(), many.numpy() @ DENSE.T, rtol=1e-12, atol=1e-14)


def test_single_precision_stays_so():
    matrix = sparse.csr_array(DENSE.astype(np.float32))
    assert (matrix @ probtorch.ones(5)).dtype == probtorch.float32
    counts = sparse.csr_array((DENSE != 0).astype(int))
    np.testing.assert_array_equal(
        (counts @ probtorch.arange(5)).numpy(), (DENSE != 0) @ np.arange(5)
    )


def test_compiled_products_follow_a_matrix_that_changes():
    matrix = sparse.csr_array(DENSE)

    @compile
    def slope(b):
        return grad(((matrix @ b) ** 2).sum(), b)[0]

    for turn in range(6):
        if turn == 3:
            matrix.data *= -0.5
        b = tensor(RNG.standard_normal(5), requires_grad=True)
        dense = matrix.toarray()
        expected = 2.0 * dense.T @ (dense @ b.detach().numpy())
        np.testing.assert_allclose(slope(b).numpy(), expected, rtol=1e-12)
    assert "compiled path" in slope.explain()


def test_a_density_with_a_sparse_design_is_that_of_the_dense_one():
    y = RNG.standard_normal(7)

    def regression(design):
        b = sample("b", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
        with plate("rows", 7):
            sample("y", dist.Normal(design @ b, 0.5), obs=y)

    q = RNG.standard_normal(5)
    dense = Target.from_model(regression, DENSE).value_and_grad(q)
    for matrix in (sparse.csr_matrix(DENSE), sparse.coo_array(DENSE)):
        found = Target.from_model(regression, matrix).value_and_grad(q)
        assert found[0] == pytest.approx(dense[0], rel=1e-12)
        np.testing.assert_allclose(found[1], dense[1], rtol=1e-10)


def test_what_scipy_keeps_to_itself_says_what_to_write():
    b = tensor(RNG.standard_normal(5), requires_grad=True)
    found = sparse.csr_array(DENSE).dot(b)
    np.testing.assert_allclose(found.detach().numpy(), DENSE @ b.detach().numpy(), rtol=1e-12)
    for call in (
        lambda: sparse.coo_array(DENSE).dot(b),
        lambda: sparse.csr_array(DENSE).multiply(b),
    ):
        with pytest.raises(AutogradError, match="X @ b, which keeps the gradient"):
            call()
    with pytest.raises(DTypeError, match=r"X @ b; X\.toarray"):
        tensor([1.0]) * sparse.csr_matrix(DENSE)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match=r"7, 5\) @ \(4,\)"):
        sparse.csr_array(DENSE) @ probtorch.ones(4)
    with pytest.raises(ShapeError, match="sparse matrix"):
        probtorch.ones(5) @ sparse.csr_array(DENSE)
