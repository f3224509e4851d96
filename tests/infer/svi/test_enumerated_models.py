"""`TraceEnum_ELBO` with the other statements and distributions of a model: evidence by hand."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from probtorch.distributions import (
    Bernoulli,
    Categorical,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
)
from probtorch.effects import factor, handlers, plate, sample
from probtorch.factories import eye
from probtorch.infer import TraceEnum_ELBO, infer_discrete
from probtorch.ops.pieces import stack
from probtorch.tensor import tensor
from tests.backends import fake_cupy

F8 = np.dtype("f8")
Y = np.array([0.1, 0.9, 1.2, -0.4])
LABELS = np.array([0.0, 1.0, 1.0, 0.0])
SHARE = np.array([0.2, 0.3, 0.5])


def f8(x):
    return tensor(x, dtype=F8)


def evidence(model):
    return -TraceEnum_ELBO().loss(model, lambda: None)


def coins():
    with plate("rows", 4):
        z = sample("z", Bernoulli(0.3))
        sample("y", Normal(z, 1.0), obs=f8(Y))


def of_coin(y, values=(0.0, 1.0)):
    return logsumexp([math.log(0.3 if z else 0.7) + stats.norm.logpdf(y, z) for z in values])


def test_factors_count_for_each_value():
    def model():
        z = sample("z", Categorical(f8(SHARE)))
        factor("f", f8([0.1, -0.4, 2.0])[z])
        with plate("rows", 2):
            w = sample("w", Bernoulli(0.4))
            factor("g", w * z * f8(0.3))

    logs = np.log(SHARE) + [0.1, -0.4, 2.0] + 2 * np.log(0.6 + 0.4 * np.exp(0.3 * np.arange(3)))
    assert evidence(model) == pytest.approx(logsumexp(logs), rel=1e-13)


def test_labels_that_are_partly_known():
    known = np.array([True, False, True, False])

    def model():
        with plate("rows", 4):
            z = sample("z", Bernoulli(0.3), obs=LABELS, obs_mask=known)
            sample("y", Normal(z, 1.0), obs=f8(Y))

    exact = sum(of_coin(y, (x,) if k else (0.0, 1.0)) for y, x, k in zip(Y, LABELS, known))
    assert evidence(model) == pytest.approx(exact, rel=1e-13)


def test_conditioned_sites_are_not_summed():
    exact = sum(of_coin(y, (x,)) for y, x in zip(Y, LABELS))
    found = evidence(handlers.condition(coins, {"z": LABELS}))
    assert found == pytest.approx(exact, rel=1e-13)


def test_sites_under_another_name_are_summed():
    exact = sum(of_coin(y) for y in Y)
    assert evidence(handlers.scope(coins, prefix="inner")) == pytest.approx(exact, rel=1e-13)


def test_plates_side_by_side_with_dims_of_their_own():
    x, c = np.arange(6.0).reshape(3, 2) / 3, np.array([0.1, 0.2])

    def model():
        a, b = plate("a", 3, dim=-2), plate("b", 2, dim=-1)
        with a:
            u = sample("u", Bernoulli(0.3))
        with b:
            v = sample("v", Normal(0.0, 1.0), obs=f8(c))
        with a, b:
            sample("x", Normal(u + v, 1.0), obs=f8(x))

    exact = stats.norm.logpdf(c).sum()
    for row in x:
        exact += logsumexp(
            [math.log(0.3 if k else 0.7) + stats.norm.logpdf(row, k + c).sum() for k in (0, 1)]
        )
    assert evidence(model) == pytest.approx(exact, rel=1e-13)


def test_indicator_vectors_pick_rows_of_a_matrix():
    rows = np.arange(6.0).reshape(3, 2) / 5

    def model():
        with plate("data", 2):
            z = sample("z", OneHotCategorical(f8(SHARE)))
            sample("y", Normal(z @ f8(rows), 1.0).to_event(1), obs=f8(np.ones((2, 2))))

    exact = 2 * logsumexp(np.log(SHARE) + stats.norm.logpdf(1.0, rows).sum(1))
    assert evidence(model) == pytest.approx(exact, rel=1e-13)


def test_vectors_in_nested_plates():
    table = np.array([[0.2, 0.8], [0.5, 0.5]])

    def model():
        with plate("outer", 2):
            z = sample("z", Bernoulli(0.3))
            with plate("inner", 3):
                k = sample("k", Categorical(f8(table)[z.long()]))
                loc = stack([z + 0 * k, 1.0 * k + 0 * z], -1)
                sample("y", MultivariateNormal(loc, eye(2, dtype=F8)), obs=f8(np.zeros((3, 2, 2))))

    def inner(z):
        logs = [math.log(table[z][k]) - 0.5 * (z * z + k * k) for k in (0, 1)]
        return 3 * (logsumexp(logs) - math.log(2 * math.pi))

    exact = 2 * logsumexp([math.log((0.7, 0.3)[z]) + inner(z) for z in (0, 1)])
    assert evidence(model) == pytest.approx(exact, rel=1e-12)


def test_values_lie_on_the_device_of_the_parameters(monkeypatch):
    fake_cupy.install(monkeypatch)
    shares, locs, y = (f8(x).to(device="cuda") for x in ([0.2, 0.8], [0.0, 3.0], [0.3, 2.9]))

    def model():
        with plate("rows", 2):
            z = sample("z", Categorical(shares))
            sample("y", Normal(locs[z], 1.0), obs=y)
        return z

    logs = np.log([0.2, 0.8]) + stats.norm.logpdf([[0.3], [2.9]], [0.0, 3.0])
    assert evidence(model) == pytest.approx(logsumexp(logs, axis=1).sum(), rel=1e-13)
    marginal = TraceEnum_ELBO().compute_marginals(model, lambda: None)["z"].probs
    share = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    np.testing.assert_allclose(marginal.to(device="cpu").numpy(), share, rtol=1e-12)
    best = infer_discrete(model, temperature=0)()
    assert str(best.device).startswith("cuda") and best.to(device="cpu").tolist() == [0, 1]
