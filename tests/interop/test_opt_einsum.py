"""`opt_einsum.contract` on our tensors, with gradients; NumPy's forms that it asks for."""

import numpy as np
import opt_einsum
import pytest

import probtorch
from probtorch.errors import ArgumentError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing.compare import assert_close

CASES = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk,kl,lm->im", [(2, 3), (3, 4), (4, 5), (5, 2)]),
    ("ab,bc,cd,de,ef,fa->", [(2, 3), (3, 4), (4, 5), (5, 2), (2, 3), (3, 2)]),
    ("bij,bjk->bik", [(4, 2, 3), (4, 3, 2)]),
    ("ij,kj->ki", [(2, 3), (4, 3)]),
    ("iij->ij", [(3, 3, 2)]),
    ("ijk->kj", [(2, 3, 4)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
    ("i,j,k->kij", [(2,), (3,), (4,)]),
]


def operands(shapes):
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("equation, shapes", CASES)
def test_contract_is_the_sum_that_numpy_takes(equation, shapes):
    arrays = operands(shapes)
    found = opt_einsum.contract(equation, *map(tensor, arrays))
    assert type(found) is probtorch.Tensor
    assert_close(found, tensor(np.asarray(np.einsum(equation, *arrays))))


@pytest.mark.parametrize("equation, shapes", CASES[:3])
def test_gradients_are_those_of_our_einsum(equation, shapes):
    tensors = [tensor(a, requires_grad=True) for a in operands(shapes)]
    with_theirs = opt_einsum.contract(equation, *tensors).square().sum()
    with_ours = probtorch.einsum(equation, *tensors).square().sum()
    for g, h in zip(
        probtorch.autograd.grad(with_theirs, tensors), probtorch.autograd.grad(with_ours, tensors)
    ):
        assert_close(g, h)


def test_an_expression_with_a_constant_is_used_again():
    a, b, c = operands([(2, 3), (3, 4), (4, 5)])
    expression = opt_einsum.contract_expression(
        "ij,jk,kl->il", (2, 3), tensor(b), tensor(c), constants=[1, 2]
    )
    for scale in (1.0, 2.0):
        assert_close(expression(tensor(a * scale)), tensor(scale * a @ b @ c))


def test_contract_compiles():
    a, b = map(tensor, operands([(2, 3), (3, 4)]))
    compiled = probtorch.compile(lambda a, b: opt_einsum.contract("ij,jk->ki", a.exp(), b))
    for _ in range(3):
        assert_close(compiled(a, b), (a.exp() @ b).T)


def test_transpose_takes_all_dims_in_an_order():
    x = probtorch.arange(24).reshape(2, 3, 4)
    assert probtorch.transpose(x, (2, 0, 1)).tolist() == x.permute(2, 0, 1).tolist()
    assert x.transpose([1, 0, 2]).tolist() == x.transpose(0, 1).tolist()
    with pytest.raises(ArgumentError, match="two dims, or all of them as a tuple"):
        x.transpose(1)
    with pytest.raises(ShapeError, match="each of 3 dims once"):
        x.transpose((0, 1))


def test_tensordot_takes_axes():
    a, b = operands([(2, 3, 4), (4, 3, 5)])
    for axes in (1, ([1, 2], [1, 0])):
        found = probtorch.tensordot(tensor(a), tensor(b), axes=axes)
        assert_close(found, tensor(np.tensordot(a, b, axes=axes)))
