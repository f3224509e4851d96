"""Distributions of outcomes that are listed, ordered, or follow one another."""

import itertools

import numpy as np
import pytest
from scipy import integrate, special, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

R = np.random.default_rng(2)


def radius(n):
    """Dvoretzky, Kiefer and Wolfowitz: exceeded once in 1e7 runs."""
    return np.sqrt(np.log(2 / 1e-7) / (2 * n))


def assert_shares(found, exact, n):
    """Compare shares with probabilities: each is 5.5 deviations off once in 3e7 runs."""
    assert (np.abs(found - exact) <= 5.5 * np.sqrt(exact * (1 - exact) / n) + 1e-12).all()


def same_when_compiled(make, x, *given):
    native = compile(lambda *p: make(*p).log_prob(x))
    for _ in range(2):
        assert_close(native(*given), make(*given).log_prob(x))
    assert native.reason is None
    d = make(*given)
    copy = unflatten(flatten(d)[1], flatten(d)[0])
    assert_close(copy.log_prob(x), d.log_prob(x))


POINTS = np.array([[-1.0, 0.5, 2.0, 2.5], [0.0, 1.0, 3.0, 4.0]])
VALUES = np.array([[0.0, 3.0, 1.0, 0.5], [2.0, 0.0, 0.0, 1.0]])


def test_a_density_of_straight_lines_is_that_of_its_points():
    d = dist.Interpolated(tensor(POINTS), tensor(VALUES))
    x = d.sample((5000,), Generator(1))
    area = np.trapezoid(VALUES, POINTS)
    for i in range(2):
        lines = lambda v: np.interp(v, POINTS[i], VALUES[i]) / area[i]  # noqa: B023
        ends = [POINTS[i].min(), POINTS[i].max()]
        assert_close(d.log_prob(x)[:9, i].exp(), lines(x.numpy()[:9, i]))
        part = lambda v: integrate.quad(lines, ends[0], v, points=POINTS[i][1:3])[0]  # noqa: B023
        assert_close(d.cdf(x)[:5, i], [part(v) for v in x.numpy()[:5, i]], rtol=1e-8)
        moment = (
            lambda k: integrate.quad(
                lambda v: v**k * lines(v),  # noqa: B023
                *ends,  # noqa: B023
                points=POINTS[i][1:3],  # noqa: B023
            )[0]
        )
        assert_close(d.mean[i], moment(1), rtol=1e-8)
        assert_close(d.variance[i], moment(2) - moment(1) ** 2, rtol=1e-7)
        levels = np.sort(d.cdf(x).numpy()[:, i])
        assert np.abs(levels - (np.arange(5000) + 0.5) / 5000).max() < radius(5000)
    assert_close(d.icdf(d.cdf(x[:50])), x[:50], rtol=1e-9, atol=1e-9)
    assert_close(d.mode, [0.5, 0.0])
    same_when_compiled(dist.Interpolated, x[:4], tensor(POINTS), tensor(VALUES))
    with pytest.raises(ShapeError, match="same length"):
        dist.Interpolated([0.0, 1.0], [1.0, 1.0, 1.0])
    with pytest.raises(DomainError, match="outside the support"):
        d.log_prob(5.0)


def test_a_list_of_outcomes_has_their_masses():
    outcomes, p = np.array([-1.5, 0.0, 7.0]), np.array([[0.2, 0.5, 0.3], [0.6, 0.0, 0.4]])
    d = dist.FiniteDiscrete(tensor(outcomes), probs=tensor(p))
    assert_close(d.log_prob(tensor(outcomes[:, None])).exp(), p.T)
    assert_close(d.enumerate_support(expand=False)[:, 0], outcomes)
    assert_close(d.entropy(), special.entr(p).sum(-1))
    assert_close(d.mean, p @ outcomes)
    assert_close(d.variance, p @ outcomes**2 - (p @ outcomes) ** 2)
    assert_close(d.mode, [0.0, -1.5])
    assert_close(
        d.cdf(tensor(np.array([[-2.0], [-1.5], [3.0], [7.0]]))[:, 0:1])[:, 0], [0.0, 0.2, 0.7, 1.0]
    )
    assert_close(d.icdf(tensor(np.array([[0.1], [0.65], [0.8]])))[:, 1], [-1.5, 7.0, 7.0])
    x = d.sample((4000,), Generator(2)).numpy()
    assert_shares((x[..., None] == outcomes).mean(0), p, 4000)
    logits = dist.FiniteDiscrete(tensor(outcomes), logits=tensor(np.log(p[0]) + 3.0))
    assert_close(logits.log_prob(tensor(outcomes)).exp(), p[0])
    at = tensor(outcomes[:2])
    same_when_compiled(lambda q: dist.FiniteDiscrete(outcomes, probs=q), at, tensor(p))
    with pytest.raises(DomainError, match="outside the support"):
        d.log_prob(1.0)


def test_orders_are_won_place_by_place():
    worth = np.array([[1.0, 2.0, 4.0], [3.0, 0.5, 1.0]])
    orders = np.array(list(itertools.permutations(range(3))))
    chosen = worth[:, orders]
    exact = (chosen / np.cumsum(chosen[..., ::-1], -1)[..., ::-1]).prod(-1)
    d = dist.PlackettLuce(tensor(worth))
    assert_close(d.log_prob(tensor(orders)[:, None]).exp(), exact.T)
    assert_close(
        dist.PlackettLuce(logits=tensor(np.log(worth))).log_prob(tensor(orders)[:, None]),
        np.log(exact.T),
    )
    x = d.sample((4000,), Generator(3)).numpy()
    found = (x[:, :, None] == orders).all(-1).mean(0)
    assert_shares(found, exact, 4000)
    assert (d.mode.numpy() == [[2, 1, 0], [0, 2, 1]]).all()
    same_when_compiled(dist.PlackettLuce, tensor(orders[1]), tensor(worth))
    with pytest.raises(DomainError, match="outside the support"):
        d.log_prob(tensor([0, 0, 1]))


def test_a_chain_moves_by_its_table():
    table = np.array([[0.9, 0.1, 0.0], [0.3, 0.3, 0.4], [0.0, 0.5, 0.5]])
    start = np.array([0.2, 0.3, 0.5])
    paths = np.array(list(itertools.product(range(3), repeat=3)))
    exact = start[paths[:, 0]] * table[paths[:, 0], paths[:, 1]] * table[paths[:, 1], paths[:, 2]]
    d = dist.DiscreteMarkovChain(tensor(table), tensor(start), steps=2)
    assert_close(d.log_prob(tensor(paths)).exp(), exact)
    x = d.sample((4000,), Generator(4)).numpy()
    assert_shares((x[:, None] == paths).all(-1).mean(0), exact, 4000)
    both = dist.DiscreteMarkovChain(tensor(np.stack([table, table])), tensor(start), 2)
    assert both.expand((4, 2)).sample((5,)).shape == (5, 4, 2, 3)
    assert_close(both.log_prob(tensor(paths)[:, None]).exp(), np.stack([exact, exact], 1))
    make = lambda p, s: dist.DiscreteMarkovChain(p, s, 2)
    same_when_compiled(make, tensor(paths[:5]), tensor(table), tensor(start))
    with pytest.raises(ShapeError, match="as there are 2 initial_probs"):
        dist.DiscreteMarkovChain(tensor(table), [0.5, 0.5], 2)


def test_shares_may_be_exactly_0_or_1():
    d, beta = dist.ZeroOneInflatedBeta(2.0, 3.0, 0.3, 0.25), stats.beta(2, 3)
    x = np.array([0.0, 0.1, 0.6, 1.0])
    inside = 0.7 * beta.pdf(x[1:3])
    assert_close(d.log_prob(tensor(x)).exp(), [0.3 * 0.75, *inside, 0.3 * 0.25])
    assert_close(d.cdf(tensor(x)), [0.225, *(0.225 + 0.7 * beta.cdf(x[1:3])), 1.0])
    assert_close(d.icdf(d.cdf(tensor(x[:3]))), x[:3])
    mean = 0.075 + 0.7 * beta.mean()
    assert_close(d.mean, mean, rtol=1e-6)
    square = 0.075 + 0.7 * (beta.var() + beta.mean() ** 2)
    assert_close(d.variance, square - mean**2, rtol=1e-6)
    draws = d.sample((4000,), Generator(5)).numpy()
    shares = np.array([(draws == 0).mean(), (draws == 1).mean(), (draws <= 0.4).mean()])
    assert_shares(shares, np.array([0.225, 0.075, 0.225 + 0.7 * beta.cdf(0.4)]), 4000)
    make = lambda *p: dist.ZeroOneInflatedBeta(*p)
    same_when_compiled(make, tensor(x), *(tensor(v).double() for v in (2.0, 3.0, 0.3, 0.25)))


def test_ordered_categories_are_counted_and_stopped_at():
    cuts = np.array([-1.0, 0.2, 1.5])
    p = np.diff(np.concatenate([[0.0], special.expit(cuts - 0.3), [1.0]]))
    counts = np.array([2.0, 0.0, 1.0, 2.0])
    d = dist.OrderedMultinomial(0.3, cuts, 5)
    assert_close(d.log_prob(tensor(counts)), stats.multinomial(5, p).logpmf(counts))
    stop = special.expit(cuts - 0.3)
    exact = np.append(stop, 1.0) * np.cumprod(np.append(1.0, 1.0 - stop))
    assert_close(dist.StoppingRatioLogistic(cuts, 0.3).probs, exact)


def test_walks_of_vectors_have_the_density_of_their_steps():
    scale, mu = np.array([[1.0, 0.0], [0.5, 0.8]]), np.array([0.1, -0.2])
    first = dist.MultivariateNormal(np.zeros(2), scale_tril=scale)
    path = R.normal(size=(4, 2))
    cov = scale @ scale.T
    start = stats.multivariate_normal(np.zeros(2), cov).logpdf(path[0])
    steps = np.diff(path, axis=0)
    walk = dist.MvGaussianRandomWalk(mu, scale, first, 3)
    expected = start + stats.multivariate_normal(mu, cov).logpdf(steps).sum()
    assert_close(walk.log_prob(tensor(path)), expected)
    heavy = dist.MvStudentTRandomWalk(5.0, mu, scale, first, 3)
    expected = start + stats.multivariate_t(mu, cov, 5.0).logpdf(steps).sum()
    assert_close(heavy.log_prob(tensor(path)), expected)
    assert heavy.sample((2,), Generator(1)).shape == (2, 4, 2)


def test_a_stick_without_breaks_is_refused():
    with pytest.raises(ArgumentError, match="number of breaks"):
        dist.StickBreakingWeights(1.0, 0)
    with pytest.raises(ArgumentError, match="from 1 on"):
        dist.Bates(0)
