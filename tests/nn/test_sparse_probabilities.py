"""Sparse probabilities: against root finding, the papers' Jacobians, and each other's limits."""

import numpy as np
import pytest
from scipy.optimize import brentq

import probtorch
from probtorch import tensor
from probtorch.func import hessian, jacfwd, jacrev, vmap
from probtorch.nn.functional import entmax15, softmax, sparsemax
from probtorch.testing import assert_close

ALPHAS = {sparsemax: 2.0, entmax15: 1.5}
BOTH = pytest.mark.parametrize("fn", ALPHAS, ids=lambda f: f.__name__)
RNG = np.random.default_rng(0)


def by_root(x, alpha):
    """The threshold at which powers sum to 1, by bisection; rows are the last dim."""
    rows = (alpha - 1.0) * np.asarray(x, float).reshape(-1, np.shape(x)[-1])
    power = 1.0 / (alpha - 1.0)

    def of(row, t):
        return np.maximum(row - t, 0.0) ** power

    found = [
        of(row, brentq(lambda t, row=row: of(row, t).sum() - 1.0, row.max() - 1.001, row.max()))
        for row in rows
    ]
    return np.reshape(found, np.shape(x))


@BOTH
@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 40), (1,), (4, 1)], ids=str)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_probabilities_are_those_of_the_threshold(fn, shape, scale):
    x = scale * RNG.normal(size=shape)
    p = fn(tensor(x))
    np.testing.assert_allclose(p.numpy(), by_root(x, ALPHAS[fn]), rtol=1e-9, atol=1e-11)
    assert_close(p.sum(-1), probtorch.ones(shape[:-1], dtype=probtorch.float64))


@BOTH
@pytest.mark.parametrize("dim", [0, 1, -2])
def test_they_sum_to_one_along_a_dim(fn, dim):
    x = tensor(RNG.normal(size=(3, 4, 2)))
    assert_close(fn(x, dim), fn(x.movedim(dim, -1)).movedim(-1, dim))


@BOTH
def test_slopes_are_the_papers_jacobian(fn):
    """diag(s) - s s' / sum(s), where s is p ** (2 - alpha) for what is not 0."""
    x = tensor(RNG.normal(size=9))
    p = fn(x).numpy()
    s = np.where(p > 0.0, p ** (2.0 - ALPHAS[fn]), 0.0)
    assert 1 < (p > 0.0).sum() < 9
    expected = np.diag(s) - np.outer(s, s) / s.sum()
    for jacobian in (jacrev, jacfwd):
        np.testing.assert_allclose(jacobian(fn)(x).numpy(), expected, rtol=1e-9, atol=1e-12)


@BOTH
def test_second_slopes_are_those_of_differences(fn):
    x, g = RNG.normal(size=6), RNG.normal(size=6)
    found = hessian(lambda x: (fn(x) * tensor(g)).sum())(tensor(x)).numpy()
    h = 1e-5
    slopes = jacrev(lambda x: (fn(x) * tensor(g)).sum())
    each = [(slopes(tensor(x + h * e)) - slopes(tensor(x - h * e))).numpy() for e in np.eye(6)]
    np.testing.assert_allclose(found, np.array(each) / (2.0 * h), rtol=1e-5, atol=1e-7)


@BOTH
def test_compiled_and_batched_are_the_same(fn):
    x = tensor(RNG.normal(size=(4, 6)))

    @probtorch.compile
    def slope(x):
        y = x.detach().requires_grad_()
        return probtorch.autograd.grad((fn(y) ** 2).sum(), [y])[0]

    expected = jacrev(lambda y: (fn(y) ** 2).sum())(x)
    for _ in range(3):
        assert_close(slope(x), expected)
    assert slope.reason is None
    assert_close(vmap(fn)(x), fn(x))
    assert_close(vmap(lambda row: fn(row, 0), 1, 1)(x), fn(x, 0))


@BOTH
def test_ties_share_and_a_leader_takes_all(fn):
    assert_close(fn(tensor([3.0, 3.0, 3.0, 3.0])), tensor([0.25] * 4))
    lead = 1.0 / (ALPHAS[fn] - 1.0)
    assert fn(tensor([5.0, 5.0 - lead, 0.0])).tolist() == [1.0, 0.0, 0.0]
    assert fn(tensor([5.0, 5.01 - lead, 0.0]))[1] > 0.0


@BOTH
def test_scores_may_be_infinite_huge_or_of_any_type(fn):
    x = tensor([[2.0, 1.8, -np.inf], [1e30, -1e30, 0.0]])
    p = fn(x)
    assert_close(p[0, :2], fn(tensor([2.0, 1.8])))
    assert p[0, 2] == 0.0
    assert p[1].tolist() == [1.0, 0.0, 0.0]
    bad = tensor([[np.nan, 1.0, 0.0], [np.inf, 1.0, 0.0], [-np.inf] * 3])
    assert fn(bad).isnan().all() and softmax(bad, -1).isnan().all()
    assert fn(tensor([1, 3])).dtype == probtorch.float32
    half = fn(tensor([1.0, 0.8, -1.0]).half())
    assert half.dtype == probtorch.float16
    assert_close(half.float(), fn(tensor([1.0, 0.8, -1.0])), rtol=0.0, atol=1e-3)


@BOTH
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()], ids=str)
def test_empty_shapes_and_numbers(fn, shape):
    p = fn(probtorch.zeros(shape))
    assert p.shape == shape and (p == 1.0).all()


def test_entmax_lies_between():
    x = tensor(RNG.normal(size=(50, 8)))
    zeros = [(fn(x) == 0.0).sum().item() for fn in (entmax15, sparsemax)]
    assert 0 < zeros[0] < zeros[1]
    entropy = [
        -(p * (p + 1e-300).log()).sum(-1) for p in (softmax(x, -1), entmax15(x), sparsemax(x))
    ]
    assert (entropy[0] > entropy[1]).all() and (entropy[1] >= entropy[2] - 1e-12).all()
