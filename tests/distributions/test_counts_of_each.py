"""Multinomial counts with a number of draws for each batch element."""

import pickle

import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch import compile, vmap
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.errors import DomainError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

N = np.array([0, 3, 40])
P = np.array([[0.2, 0.3, 0.5], [0.1, 0.0, 0.9], [1e-5, 0.4, 0.59999]])
C = np.array([[1.0, 2.0, 3.0], [0.5, 0.5, 9.0], [2.0, 2.0, 2.0]])
KINDS = {
    "probs": (lambda n: dist.Multinomial(n, tensor(P)), stats.multinomial, P),
    "logits": (
        lambda n: dist.Multinomial(n, logits=tensor(np.log(P + 1e-300))),
        stats.multinomial,
        P,
    ),
    "dirichlet": (
        lambda n: dist.DirichletMultinomial(tensor(C), n),
        lambda n, c: stats.dirichlet_multinomial(c, n),
        C,
    ),
}
EACH = pytest.mark.parametrize("kind", KINDS)


@EACH
def test_counts_of_each_are_those_of_one_after_the_other(kind):
    make, reference, rows = KINDS[kind]
    d, frozen = make(tensor(N)), [reference(n, r) for n, r in zip(N, rows, strict=True)]
    assert d.batch_shape == (3,) and d.event_shape == (3,)
    x = d.sample((4000,), Generator(1))
    values = x.numpy()
    assert (values.sum(-1) == N).all() and d.support.check(x).numpy().all()
    some = values[:60].astype(int)
    exact = [[f.logpmf(v) for f, v in zip(frozen, row, strict=True)] for row in some]
    assert_close(d.log_prob(x[:60]), exact, rtol=1e-12, atol=1e-12)
    mean = np.array([f.mean() for f in frozen])
    assert_close(d.mean, mean, rtol=1e-12)
    # Nine means at 5.5 standard errors: 4e-7 of false alarms.
    spread = d.variance.numpy()
    assert (np.abs(values.mean(0) - mean) <= 5.5 * np.sqrt(spread / 4000) + 1e-12).all()
    covariances = [f.cov() for f in frozen]
    assert_close(spread, np.array([np.diag(v) for v in covariances]), rtol=1e-10, atol=1e-14)


@EACH
def test_a_distribution_with_counts_of_each_is_like_any_other(kind):
    make = KINDS[kind][0]
    d = make(tensor(N))
    x = d.sample((5,), Generator(0))
    expected = d.log_prob(x)
    kept = d.expand((2, 3))
    assert kept.sample((4,), Generator(0)).shape == (4, 2, 3, 3)
    assert_close(kept.log_prob(x[0]), expected[0].expand((2, 3)))
    assert_close(d.to_event(1).log_prob(x), expected.sum(-1))
    leaves, shape = flatten(d)
    for twin in (pickle.loads(pickle.dumps(d)), unflatten(shape, leaves)):
        assert type(twin) is type(d) and isinstance(
            twin, (dist.Multinomial, dist.DirichletMultinomial)
        )
        assert_close(twin.log_prob(x), expected)
    native = compile(lambda n, y: make(n).log_prob(y))
    assert_close(native(tensor(N), x), expected, rtol=1e-12, atol=1e-12)
    assert native.reason is None
    # Batch shapes broadcast: more totals than rows of probabilities.
    wide = make(tensor(np.array([[2], [5]])))
    assert wide.batch_shape == (2, 3)
    y = wide.sample((), Generator(2))
    assert (y.numpy().sum(-1) == [[2] * 3, [5] * 3]).all()
    assert_close(wide.log_prob(y)[1], make(5).log_prob(y[1]), rtol=1e-12)
    with pytest.raises(DomainError, match="outside the support"):
        d.log_prob(x[:, [1, 0, 2]])
    with pytest.raises(DomainError, match="total_count"):
        make(tensor([-1.0, 2.0, 3.0]))


def test_entropies_modes_and_divergences_are_those_of_each():
    d = dist.Multinomial(tensor(N), tensor(P))
    frozen = [stats.multinomial(n, p) for n, p in zip(N, P, strict=True)]
    assert_close(d.entropy(), [f.entropy() for f in frozen], rtol=1e-10, atol=1e-12)
    single = [dist.Multinomial(int(n), tensor(p)).mode.numpy() for n, p in zip(N, P, strict=True)]
    assert_close(d.mode, np.array(single))
    q = np.array([0.3, 0.3, 0.4])
    expected = N * special.rel_entr(P, q).sum(-1)
    assert_close(
        dist.kl_divergence(d, dist.Multinomial(tensor(N), tensor(q))), expected, rtol=1e-12
    )
    with pytest.raises(NotImplementedError, match="total_count"):
        dist.kl_divergence(d, dist.Multinomial(3, tensor(q)))


def test_counts_of_each_have_slopes_and_batches():
    p = tensor(P[2], requires_grad=True)
    n, x = tensor([2.0, 3.0]).double(), tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]).double()
    (got,) = grad(dist.Multinomial(n, p).log_prob(x).sum(), [p])
    assert_close(got, x.numpy().sum(0) / P[2] - 5.0 / P[2].sum(), rtol=1e-10)
    each = vmap(lambda n, x: dist.Multinomial(n, p.detach()).log_prob(x))(n, x)
    assert_close(each, dist.Multinomial(n, p.detach()).log_prob(x))
    listed = dist.Multinomial([2, 5], [0.5, 0.5])
    assert_close(listed.log_prob([[1.0, 1.0], [2.0, 3.0]]).exp(), [0.5, 0.3125], rtol=1e-5)


@EACH
def test_it_is_called_as_users_call_it(kind):
    d = KINDS[kind][0](tensor(N))
    name = "DirichletMultinomial" if kind == "dirichlet" else "Multinomial"
    assert repr(d).startswith(f"{name}(") and type(d).__name__ == name
    assert type(pickle.loads(pickle.dumps(d))) is type(d)
    with pytest.raises(DomainError, match=f"^{name}.log_prob"):
        d.log_prob(tensor(-np.ones((3, 3))))
