"""Matrix products and einsum against NumPy, by generated equations."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probtorch
from probtorch.autograd import grad
from probtorch.errors import ArgumentError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.derivatives import gradcheck

SIZES = dict(zip("abcde", (2, 3, 1, 4, 2), strict=True))


@st.composite
def equations(draw):
    """One to three operands with letters that may repeat, and any output."""
    letters = st.text("abcde", max_size=3)
    inputs = draw(st.lists(letters, min_size=1, max_size=3))
    used = sorted(set("".join(inputs)))
    output = draw(st.permutations(used)) if used else []
    output = "".join(output[: draw(st.integers(0, len(output)))])
    return ",".join(inputs) + "->" + output


@given(equations())
def test_einsum_agrees_with_numpy_and_so_does_its_gradient(equation):
    rng = np.random.default_rng(0)
    inputs, _ = equation.split("->")
    terms = inputs.split(",")
    arrays = [rng.standard_normal([SIZES[c] for c in term]) for term in terms]
    tensors = [probtorch.tensor(a, requires_grad=True) for a in arrays]
    out = probtorch.einsum(equation, *tensors)
    expected = np.einsum(equation, *arrays)
    assert_close(out, expected, rtol=1e-10, atol=1e-10)
    # The function is linear in each operand: its gradient is fixed by directional differences.
    g = rng.standard_normal(expected.shape)
    for k, gk in enumerate(grad(out, tensors, g)):
        t = rng.standard_normal(arrays[k].shape)
        moved = np.einsum(equation, *[t if j == k else a for j, a in enumerate(arrays)])
        assert np.sum(gk.numpy() * t) == pytest.approx(np.sum(g * moved), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
        ("...i,...i", [(4, 3), (3,)]),
        ("i...->...", [(2, 3, 4)]),
        ("ij,jk,kl", [(2, 3), (3, 4), (4, 2)]),
        ("ii", [(3, 3)]),
        ("ba", [(2, 3)]),
        ("ij,ij->", [(2, 3), (1, 3)]),
    ],
    ids=str,
)
def test_einsum_with_ellipsis_and_implicit_output(equation, shapes):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s) for s in shapes]
    got = probtorch.einsum(equation, *map(probtorch.from_numpy, arrays))
    assert_close(got, np.einsum(equation, *arrays), rtol=1e-10)
    gradcheck(
        lambda *xs: probtorch.einsum(equation, *xs),
        [probtorch.tensor(a, requires_grad=True) for a in arrays],
    )


@pytest.mark.parametrize(
    "a, b",
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((2, 0), (0, 3)),
        ((0, 2), (2, 3)),
    ],
    ids=str,
)
def test_matmul_has_numpys_shapes_and_right_gradients(a, b):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(a), rng.standard_normal(b)
    tx, ty = (probtorch.tensor(v, requires_grad=True) for v in (x, y))
    assert_close(tx @ ty, x @ y)
    assert_close(probtorch.matmul(tx, y), x @ y)
    gradcheck(probtorch.matmul, (tx, ty))


def test_dtypes_promote_in_products():
    x = probtorch.ones(2, 2)
    assert (x @ x.double()).dtype == np.float64
    assert (probtorch.tensor([[1, 2]]) @ probtorch.tensor([3, 4])).tolist() == [11]


def test_matmul_error_shows_the_inner_sizes_and_a_cure():
    with pytest.raises(ShapeError) as caught:
        probtorch.ones(3, 4) @ probtorch.ones(3, 4)
    message = str(caught.value)
    assert "(3, 4) @ (3, 4): inner sizes 4 and 3" in message
    assert "x @ y.T" in message
    with pytest.raises(ShapeError, match=r"use \* for scalars"):
        probtorch.ones(3) @ probtorch.tensor(2.0)
    with pytest.raises(ShapeError, match="batch dims"):
        probtorch.ones(2, 3, 3) @ probtorch.ones(4, 3, 3)


@pytest.mark.parametrize(
    "name, shapes", [("mm", (3, 2)), ("bmm", (2, 2)), ("mv", (3, 1)), ("dot", (2, 1))]
)
def test_products_of_fixed_dims_refuse_others(name, shapes):
    with pytest.raises(ShapeError, match=name) as caught:
        getattr(probtorch, name)(probtorch.ones((2,) * shapes[0]), probtorch.ones((2,) * shapes[1]))
    assert "use matmul" in str(caught.value)


def test_products_of_fixed_dims():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3)), rng.standard_normal((3, 4))
    t = probtorch.from_numpy
    assert_close(probtorch.mm(t(a), t(b)), a @ b)
    assert_close(probtorch.mv(t(a), t(b[:, 0])), a @ b[:, 0])
    assert_close(probtorch.dot(t(b[0]), t(b[1])), b[0] @ b[1])
    assert_close(probtorch.bmm(t(a[None]), t(b[None])), (a @ b)[None])
    assert_close(probtorch.outer(t(a[0]), t(b[0])), np.outer(a[0], b[0]))
    assert_close(probtorch.inner(t(a), t(b.T)), np.inner(a, b.T))


@pytest.mark.parametrize("dims", [0, 1, 2, ((0,), (1,)), ([-1, 0], [0, 1])], ids=str)
def test_tensordot_agrees_with_numpy(dims):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 2, 3)), rng.standard_normal((3, 3, 2))
    if dims == 2:
        y = rng.standard_normal((2, 3, 2))
    got = probtorch.tensordot(probtorch.from_numpy(x), probtorch.from_numpy(y), dims)
    assert_close(got, np.tensordot(x, y, dims))


@pytest.mark.parametrize(
    "equation, shapes", [("ij,jk", [(2, 3), (4, 5)]), ("ij", [(2,)]), ("i,j->k", [(2,), (3,)])]
)
def test_equation_that_does_not_fit_is_named(equation, shapes):
    with pytest.raises(ShapeError, match="einsum") as caught:
        probtorch.einsum(equation, *(probtorch.ones(s) for s in shapes))
    assert repr(equation) in str(caught.value)


def test_einsum_takes_lists_of_dims_instead_of_letters():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 5))
    x, y = probtorch.from_numpy(a), probtorch.from_numpy(b)
    assert_close(probtorch.einsum(x, [0, 1, 2], y, [0, 2, 3], [0, 1, 3]), a @ b)
    assert_close(probtorch.einsum(x, [..., 30, 7], y, [..., 7, 2]), np.swapaxes(a @ b, 1, 2))
    # What is named once stays, in the order of its number: 2 before 30, as in PyTorch.
    assert_close(probtorch.einsum(x, [0, 1, 1 + 1], [2, 0, 1]), np.moveaxis(a, 2, 0))
    assert_close(probtorch.einsum(x[:, :2, :2], [4, 9, 9]), np.einsum("ijj->i", a[:, :2, :2]))
    for wrong in ((x, [0, 1, 60]), (x, y, [0]), (x, "ijk")):
        with pytest.raises(ArgumentError, match="list of its dims"):
            probtorch.einsum(*wrong)
    with pytest.raises(ShapeError, match="einsum"):
        probtorch.einsum(x, [0, 1], y, [0, 2, 3])


def test_zero_times_infinity_is_nan_in_products_of_every_size():
    rng = np.random.default_rng(3)
    for n, k, m in itertools.product((1, 2, 3, 40), repeat=3):
        x, y = np.zeros((n, k)), rng.standard_normal((k, m))
        y[0, 0] = np.inf
        with np.errstate(invalid="ignore"):
            want = (x[:, :, None] * y).sum(1)
            assert_close(tensor(x) @ tensor(y), want)
            assert_close(tensor(y.T.copy()) @ tensor(x.T.copy()), want.T)
            bias = tensor(np.zeros(m))
            assert_close(probtorch.nn.functional.linear(tensor(x), tensor(y).T, bias), want)
