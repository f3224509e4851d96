"""Newton's steps against a direct solution, and optimizers that share a model's parameters."""

import numpy as np
import pytest

import probtorch
from probtorch.errors import ArgumentError, ShapeError
from probtorch.optim import (
    Adam,
    MixedMultiOptimizer,
    MultiOptimizer,
    Newton,
    PyroMultiOptimizer,
    TorchMultiOptimizer,
    newton_step,
)


def quadratics(dim, rows=4):
    rng = np.random.default_rng(dim)
    a = rng.normal(size=(rows, dim, dim))
    return a @ a.swapaxes(1, 2) + np.eye(dim), rng.normal(size=(rows, dim))


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_one_step_solves_quadratics(dim):
    matrices, b = quadratics(dim)
    x = probtorch.tensor(np.full(b.shape, 3.0), requires_grad=True)
    products = (probtorch.tensor(matrices) * x.unsqueeze(-1) * x.unsqueeze(-2)).sum()
    new, cov = newton_step(0.5 * products - (probtorch.tensor(b) * x).sum(), x)
    np.testing.assert_allclose(new.detach().array, np.linalg.solve(matrices, b[..., None])[..., 0])
    np.testing.assert_allclose(cov.detach().array, np.linalg.inv(matrices), rtol=1e-10)


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_a_trust_region_is_kept_to_and_goes_down_where_the_loss_bends_downwards(dim):
    start = np.random.default_rng(0).normal(size=(6, dim))

    def loss_of(x):
        return (x.cos() * 4.0 + 0.01 * x**2).sum()

    x = probtorch.tensor(start, requires_grad=True)
    before = loss_of(x)
    new, _ = newton_step(before, x, trust_radius=0.1)
    way = np.linalg.norm(new.detach().array - start, axis=-1)
    assert (way <= 0.1 + 1e-12).all() and (way > 1e-3).all()
    assert loss_of(new.detach()).item() < before.item()


def test_a_step_from_the_solution_has_the_derivatives_of_the_solution():
    """Of exp(x) + x = a the solution's slope is 1 / (exp(x) + 1), by the implicit function."""
    a = probtorch.tensor(np.array([3.0]), requires_grad=True)
    x = probtorch.tensor(np.array([0.5]), requires_grad=True)
    for _ in range(20):
        x = x.detach().requires_grad_()
        x, _ = newton_step((x.exp() + 0.5 * x**2 - a * x).sum(), x)
    x.sum().backward()
    np.testing.assert_allclose(a.grad.array, 1.0 / (np.exp(x.detach().array) + 1.0), rtol=1e-10)


def pair():
    starts = {"a": np.array([3.0]), "b": np.array([5.0])}
    return {name: probtorch.tensor(x, requires_grad=True) for name, x in starts.items()}


def coupled(params):
    return ((params["a"] - 1.0) ** 2 + (params["b"] * params["a"] - 6.0) ** 2).sum()


PARTS = {
    "newton, adam": lambda: [(["b"], Newton()), (["a"], Adam({"lr": 0.1}))],
    "adam, newton": lambda: [(["a"], Adam({"lr": 0.1})), (["b"], Newton())],
    "class": lambda: [(["b"], Newton()), (["a"], TorchMultiOptimizer(Adam, {"lr": 0.1}))],
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_differentiated_where_the_loss_was_computed_whatever_their_order(name):
    params = pair()
    MixedMultiOptimizer(PARTS[name]()).step(coupled(params), params)
    # Adam's first step is its rate; Newton's solves for b at the a of before.
    np.testing.assert_allclose(params["a"].detach().array, [2.9])
    np.testing.assert_allclose(params["b"].detach().array, [2.0])


def test_many_mixed_steps_find_the_minimum():
    params = pair()
    optimizer = MixedMultiOptimizer([(["a"], Adam({"lr": 0.1})), (["b"], Newton({"b": 1.0}))])
    for _ in range(400):
        optimizer.step(coupled(params), params)
    np.testing.assert_allclose(params["a"].item(), 1.0, rtol=0.0, atol=1e-2)
    np.testing.assert_allclose(params["b"].item(), 6.0, rtol=0.0, atol=5e-2)


def test_get_step_of_newton_is_differentiable_and_moves_nothing():
    params = pair()
    values = MixedMultiOptimizer([(["a", "b"], Newton())]).get_step(coupled(params), params)
    assert values["a"].requires_grad and params["a"].item() == 3.0


class InOne(MultiOptimizer):
    def step(self, loss, params):
        for p in params.values():
            p.data.array[...] = 0.0


def test_an_optimizer_of_ones_own_that_steps_in_one_is_taken():
    params = pair()
    MixedMultiOptimizer([(["a"], Newton()), (["b"], InOne())]).step(coupled(params), params)
    assert params["b"].item() == 0.0 and params["a"].item() != 3.0


@pytest.mark.parametrize(
    "make, word",
    [
        (lambda: MixedMultiOptimizer([(["a"], Newton()), (["a"], Newton())]), "'a' twice"),
        (lambda: MixedMultiOptimizer([("a", Newton())]), "pairs of names"),
        (lambda: MixedMultiOptimizer([(["a"], Newton())]).step(coupled(p := pair()), p), "a, b"),
        (lambda: PyroMultiOptimizer(Adam), "options alone"),
        (lambda: PyroMultiOptimizer(Adam({"lr": 0.1})).get_step(coupled(p := pair()), p), "step"),
        (lambda: newton_step(pair()["a"], pair()["a"]), "sum the losses"),
        (lambda: newton_step(coupled(p := pair()), p["a"], trust_radius=0.0), "positive number"),
    ],
)
def test_what_does_not_fit_is_told(make, word):
    with pytest.raises((ArgumentError, ShapeError, NotImplementedError), match=word):
        make()
