"""Chains of any state, and tables of several categories."""

import itertools
import pickle

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.effects import factor, sample
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.infer import MCMC, NUTS
from probtorch.tensor import tensor
from probtorch.testing import assert_close

TABLE, START = np.array([[0.9, 0.1], [0.3, 0.7]]), np.array([0.4, 0.6])


def categories():
    table = tensor(TABLE)
    return dist.MarkovChain(
        dist.Categorical(tensor(START)), lambda _, s: dist.Categorical(table[s]), 6
    )


def walk(phi=0.9, steps=5):
    return dist.MarkovChain(
        dist.Normal(tensor(np.zeros(2)), 1.0), lambda t, x: dist.Normal(phi * x + t, 0.3), steps
    )


def by_steps(d, x):
    """The density, one step after the other."""
    lp = d.initial_state_prior.log_prob(x[..., 0])
    for t in range(1, x.shape[-1]):
        lp = lp + d.transition_fn(tensor(t - 1), x[..., t - 1]).log_prob(x[..., t])
    return lp


def test_a_chain_of_categories_is_the_discrete_markov_chain():
    d, same = categories(), dist.DiscreteMarkovChain(TABLE, START, 5)
    x = d.sample((3000,), Generator(0))
    assert x.shape == (3000, 6) and x.dtype.kind == "i" and not d.has_rsample
    assert_close(d.log_prob(x), same.log_prob(x))
    assert_close(d.log_prob(x.double()), same.log_prob(x))
    every = np.array(list(itertools.product(range(2), repeat=6)))
    assert_close(d.log_prob(tensor(every)).exp().sum(), 1.0)
    # A share of 3,000 draws: beyond 0.05 in 1e-7 of all seeds.
    last = START @ np.linalg.matrix_power(TABLE, 5)
    assert abs(x[:, -1].double().mean().item() - last[1]) < 0.05


def test_the_density_of_numbers_in_batches_is_that_of_steps():
    d = walk()
    assert d.batch_shape == (2,) and d.event_shape == (5,) and d.has_rsample
    x = d.sample((4, 3), Generator(1))
    assert x.shape == (4, 3, 2, 5)
    assert_close(d.log_prob(x), by_steps(d, x))
    wide = d.expand((3, 2))
    assert_close(wide.log_prob(x), d.log_prob(x))
    assert wide.sample((), Generator(2)).shape == (3, 2, 5)
    for copy in (unflatten(flatten(d)[1], flatten(d)[0]), d.to_event(1), d.mask(True)):
        assert_close(copy.log_prob(x).sum(), d.log_prob(x).sum())


def test_states_of_any_event_shape_follow_each_other():
    first = dist.MultivariateNormal(tensor(np.zeros(2)), tensor(np.eye(2)))
    turn = tensor(np.array([[0.8, -0.3], [0.3, 0.8]]))
    d = dist.MarkovChain(
        first, lambda _, x: dist.MultivariateNormal(x @ turn, tensor(0.1 * np.eye(2))), 3
    )
    x = d.sample((7,), Generator(3))
    assert d.event_shape == (3, 2) and x.shape == (7, 3, 2)
    lp = first.log_prob(x[:, 0])
    for t in (1, 2):
        lp = lp + d.transition_fn(tensor(t), x[:, t - 1]).log_prob(x[:, t])
    assert_close(d.log_prob(x), lp)


def test_slopes_and_compiled_densities_go_through_the_function():
    x = walk().sample((), Generator(4))
    phi = tensor(np.array(0.8), requires_grad=True)
    native = compile(lambda p: (lp := walk(p).log_prob(x).sum(), *grad(lp, [p])))
    for _ in range(3):
        value, slope = native(phi)
    assert native.reason is None
    assert_close(value.detach(), by_steps(walk(0.8), x).sum())
    h = 1e-6
    numeric = (walk(0.8 + h).log_prob(x) - walk(0.8 - h).log_prob(x)).sum().item() / (2 * h)
    assert_close(slope, numeric, rtol=1e-6)
    # Pathwise: the sum of states is a polynomial in phi.
    (path,) = grad(walk(phi).rsample((), Generator(5)).sum(), [phi])
    ends = [walk(0.8 + s).rsample((), Generator(5)).sum().item() for s in (h, -h)]
    assert_close(path, (ends[0] - ends[1]) / (2 * h), rtol=1e-6)


def test_a_chain_is_a_latent_site():
    def model(y):
        states = sample(
            "x", dist.MarkovChain(dist.Normal(0.0, 1.0), lambda _, s: dist.Normal(s, 0.5), 8)
        )
        sample("y", dist.Normal(states, 0.1).to_event(1), obs=y)

    y = tensor(np.linspace(0.0, 1.0, 8))
    mcmc = MCMC(NUTS(model), num_samples=200, warmup_steps=200, progress_bar=False, seed=0)
    mcmc.run(y)
    assert np.abs(mcmc.get_samples()["x"].numpy().mean(0) - y.numpy()).max() < 0.15


def test_each_step_is_the_distribution_that_draws_come_from():
    """The step's number, a matrix, a branch: also where sizes of steps and states are the same."""
    turn, eye = tensor(np.array([[0.8, -0.3], [0.3, 0.8]])), tensor(np.eye(2))
    moves = [
        lambda t, x: dist.MultivariateNormal(x + 10.0 * t, eye),
        lambda t, x: dist.MultivariateNormal(turn @ x, eye),
        lambda t, x: dist.MultivariateNormal(x if t == 0 else -x, eye),
    ]
    x = tensor(np.random.default_rng(0).normal(size=(3, 2)))
    first = dist.MultivariateNormal(tensor(np.zeros(2)), eye)
    for move in moves:
        d = dist.MarkovChain(first, move, 3)
        lp = first.log_prob(x[0]) + sum(move(t, x[t]).log_prob(x[t + 1]) for t in range(2))
        assert_close(d.log_prob(x), lp)


def test_a_series_meets_every_chain_of_a_batch():
    rho = tensor(np.array([0.1, 0.5, 0.9]))
    d = dist.MarkovChain(dist.Normal(0.0, 1.0), lambda _, x: dist.Normal(rho * x, 1.0), 4)
    x = tensor(np.array([0.5, -1.0, 2.0, 1.0]))
    one = [
        dist.MarkovChain(dist.Normal(0.0, 1.0), lambda _, x, r=r: dist.Normal(r * x, 1.0), 4)
        for r in (0.1, 0.5, 0.9)
    ]
    want = np.array([c.log_prob(x).item() for c in one])
    assert_close(d.log_prob(x), want)
    assert_close(d.log_prob(x.expand(3, 4)), want)
    assert_close(d.expand((2, 3)).log_prob(x), np.stack([want, want]))


def test_first_states_of_every_kind_have_densities():
    zeros = tensor(np.zeros(2))
    firsts = [
        dist.Normal(zeros, 1.0).to_event(1),
        dist.Normal(zeros, 1.0).expand((2,)).to_event(1),
        dist.MixtureSameFamily(
            dist.Categorical(tensor(START)), dist.Normal(tensor(np.zeros((2, 2))), 1.0).to_event(1)
        ),
    ]
    x = tensor(np.random.default_rng(1).normal(size=(5, 2)))
    for first in firsts:
        d = dist.MarkovChain(first, lambda _, x: dist.Normal(x, 1.0).to_event(1), 5)
        steps = dist.Normal(x[:-1], 1.0).log_prob(x[1:]).sum()
        assert_close(d.log_prob(x), first.log_prob(x[0]) + steps)
    masked = dist.MarkovChain(
        dist.Normal(0.0, 1.0).mask(False), lambda _, x: dist.Normal(x, 1.0), 2
    )
    assert_close(masked.log_prob([1.0, 2.0]), dist.Normal(1.0, 1.0).log_prob(tensor(2.0)))


@pytest.mark.parametrize(
    ("first", "move"),
    [
        (dist.Uniform(0.0, 1.0), lambda _, x: dist.Uniform(x - 1.0, x + 1.0)),
        (dist.Uniform(0.0, 1.0), lambda _, x: dist.Normal(x, 1.0)),
        (dist.HalfNormal(1.0), lambda _, x: dist.Normal(x, 1.0)),
        (dist.Categorical(tensor(START)), lambda _, x: dist.Categorical(tensor(np.ones(3) / 3))),
    ],
)
def test_steps_on_another_support_are_refused(first, move):
    with pytest.raises(ArgumentError, match=r"(?s)as the first state's.*one support"):
        dist.MarkovChain(first, move, 3)


def test_steps_on_one_support_are_taken():
    d = dist.MarkovChain(dist.Uniform(0.0, 2.0), lambda _, x: dist.Uniform(0.0, 2.0), 3)
    assert_close(d.log_prob([0.5, 1.5, 1.0]), -3.0 * np.log(2.0))
    with pytest.raises(DomainError):
        d.log_prob([0.5, 2.5, 1.0])


def test_wrong_parts_of_a_chain_are_named():
    first = dist.Normal(0.0, 1.0)
    with pytest.raises(ArgumentError, match=r"(?s)transition_fn.*event shape \(\).*Tensor"):
        dist.MarkovChain(first, lambda t, x: x, 3)
    with pytest.raises(ArgumentError, match="initial_state_prior"):
        dist.MarkovChain(0.0, lambda t, x: first, 3)
    with pytest.raises(ArgumentError, match="a function"):
        dist.MarkovChain(first, first, 3)
    with pytest.raises(ArgumentError, match=r"(?s)whole number.*num_steps=10"):
        dist.MarkovChain(first, lambda t, x: first, 0)


# ------------------------------------------------------------------------------ several categories


def test_a_joint_table_names_its_own_weights_and_counts_as_numpy_does():
    with pytest.raises(DomainError, match=r"(?s)^JointCategorical: .*log_probs\.exp\(\)"):
        dist.JointCategorical([[-0.1, 0.2], [0.3, 0.4]])
    assert dist.JointCategorical([[0.1, 0.2], [0.3, 0.4]], np.int64(2)).event_shape == (2,)
    with pytest.raises(ShapeError, match="num_variables=True"):
        dist.JointCategorical([[0.1, 0.2], [0.3, 0.4]], True)


def test_a_joint_table_is_its_entries():
    weights = np.random.default_rng(0).random((2, 3, 2, 4))
    d = dist.JointCategorical(tensor(weights), 3)
    share = weights / weights.sum((1, 2, 3), keepdims=True)
    assert d.batch_shape == (2,) and d.event_shape == (3,)
    assert_close(d.probs, share)
    for x in itertools.product(range(3), range(2), range(4)):
        assert_close(d.log_prob(np.array(x)), np.log(share[(slice(None), *x)]))
    assert_close(d.entropy(), -(share * np.log(share)).sum((1, 2, 3)))
    values = d.enumerate_support()
    assert values.shape == (24, 2, 3)
    assert_close(d.log_prob(values).exp().sum(0), np.ones(2))
    best = [np.unravel_index(np.argmax(s), s.shape) for s in share]
    assert (d.mode.numpy() == np.array(best)).all()
    x = d.sample((20_000,), Generator(0)).numpy()
    found = np.zeros_like(share)
    for i in range(2):
        np.add.at(found[i], tuple(x[:, i].T), 1 / 20_000)
    # 48 shares at 6 standard errors: a false alarm in 1e-7 of all seeds.
    assert (np.abs(found - share) < 6 * np.sqrt(share / 20_000)).all()
    copy = pickle.loads(pickle.dumps(d))
    assert_close(copy.log_prob(tensor(x)), d.log_prob(tensor(x)))


def test_joint_tables_refuse_what_is_none():
    with pytest.raises(DomainError):
        dist.JointCategorical([[0.5, -0.5]])
    with pytest.raises(ShapeError, match="num_variables"):
        dist.JointCategorical([0.5, 0.5], 2)
    with pytest.raises(DomainError):
        dist.JointCategorical([[0.5, 0.5]]).log_prob([0, 2])


# ------------------------------------------------------------------------------ copulas of counts


def test_the_way_to_write_a_copula_of_counts_has_the_probabilities_of_boxes():
    marginal = dist.Poisson(tensor(np.array([1.5, 4.0])))
    correlation = np.array([[1.0, 0.6], [0.6, 1.0]])
    with pytest.raises(ArgumentError, match=r"(?s)Uniform.*factor"):
        dist.GaussianCopula(marginal, tensor(correlation))
    # The mean over u of what the message states is the probability: by Gauss's rule.
    at, w = (0.5 * v for v in np.polynomial.legendre.leggauss(60))
    u = tensor(np.stack(np.meshgrid(at + 0.5, at + 0.5, indexing="ij"), -1))
    flat = dist.GaussianCopula(dist.Uniform(tensor(np.zeros(2)), 1.0), tensor(correlation))
    total = 0.0
    for x in itertools.product(range(12), range(18)):
        x = tensor(np.array(x, float))
        level = dist.Poisson(marginal.rate, validate_args=False).cdf(x - 1.0)
        level = level + u * marginal.log_prob(x).exp()
        mass = (flat.log_prob(level) + marginal.log_prob(x).sum()).exp().numpy()
        total += (mass * w[:, None] * w).sum()
    assert abs(total - 1.0) < 1e-3


def test_counts_with_a_copula_are_sampled():
    rate, correlation = tensor(np.array([1.5, 4.0])), tensor(np.array([[1.0, 0.6], [0.6, 1.0]]))
    marginal, x = dist.Poisson(rate), tensor(np.array([2.0, 5.0]))

    def model():
        u = sample("u", dist.Uniform(0.0, 1.0).expand((2,)).to_event(1))
        level = marginal.cdf(x - 1.0) + u * marginal.log_prob(x).exp()
        copula = dist.GaussianCopula(dist.Uniform(0.0, 1.0).expand((2,)), correlation)
        factor("x", copula.log_prob(level) + marginal.log_prob(x).sum())

    mcmc = MCMC(NUTS(model), num_samples=400, warmup_steps=200, progress_bar=False, seed=0)
    mcmc.run()
    assert mcmc.get_samples()["u"].shape == (400, 2)
