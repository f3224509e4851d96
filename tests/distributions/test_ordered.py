"""Draws in ascending order, against the laws of order statistics and the density of the draws."""

import itertools

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError
from probtorch.infer import MCMC, NUTS

DRAWS = 20_000


@pytest.mark.parametrize(
    "base",
    [
        dist.Normal(1.0, 2.0),
        dist.Exponential(0.5),
        dist.Gamma(2.0, 1.0),
        dist.Uniform(-1.0, 4.0),
        dist.Beta(2.0, 0.5),
        dist.Pareto(2.0, 3.0),
        dist.GeneralizedPareto(1.0, 2.0, -0.4),
        dist.GeneralizedPareto(1.0, 2.0, 0.3),
        dist.GeneralizedExtremeValue(1.0, 2.0, 0.4),
        dist.GeneralizedExtremeValue(1.0, 2.0, -0.4),
    ],
)
def test_draws_follow_the_laws_of_order_statistics(base):
    probtorch.manual_seed(0)
    drawn = dist.Ordered(base, 4).sample((DRAWS,)).numpy()
    assert (np.diff(drawn, axis=1) > 0.0).all()
    shares = base.cdf(probtorch.tensor(drawn)).numpy()
    for i in range(4):
        # The probabilities of the i-th of n draws are Beta(i, n + 1 - i); false alarms: 1e-4 each.
        assert stats.kstest(shares[:, i], stats.beta(i + 1, 4 - i).cdf).pvalue > 1e-4


def test_density_is_that_of_the_draws_times_the_number_of_their_orders():
    base = dist.Normal(0.5, 2.0)
    x = probtorch.tensor([-1.0, 0.25, 3.0])
    found = dist.Ordered(base, 3).log_prob(x).item()
    assert abs(found - (base.log_prob(x).sum().item() + np.log(6.0))) < 1e-5
    backwards = dist.Ordered(base, 3, validate_args=False).log_prob(x.flip(0))
    assert backwards.item() == -np.inf


def test_density_integrates_to_one():
    edges = np.linspace(-8.0, 8.0, 401)
    middles = (edges[1:] + edges[:-1]) / 2
    pairs = np.array(list(itertools.combinations(middles, 2)))
    density = dist.Ordered(dist.Normal(0.0, 1.0), 2).log_prob(probtorch.tensor(pairs)).exp()
    # Cells on the diagonal, half of which ascends, are left out: h / (2 sqrt(pi)) of the whole.
    step = edges[1] - edges[0]
    assert abs(density.sum().item() * step**2 + step / (2 * np.sqrt(np.pi)) - 1.0) < 1e-3


def test_batches_expansion_and_gradients():
    loc = probtorch.tensor([0.0, 10.0], requires_grad=True)
    d = dist.Ordered(dist.Normal(loc, 1.0), 3)
    assert (d.batch_shape, d.event_shape) == ((2,), (3,))
    drawn = d.rsample((5,))
    assert drawn.shape == (5, 2, 3)
    assert drawn[:, 1].min() > drawn[:, 0].max()
    drawn.sum().backward()
    assert loc.grad.tolist() == [15.0, 15.0]
    assert d.log_prob(drawn).shape == (5, 2)
    assert d.expand((4, 2)).sample().shape == (4, 2, 3)
    by_draw = [
        dist.Ordered(dist.Normal(float(m), 1.0), 3).log_prob(drawn[0, i])
        for i, m in enumerate([0, 10])
    ]
    assert np.allclose(
        d.log_prob(drawn)[0].detach().numpy(), [p.item() for p in by_draw], rtol=1e-5
    )


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_one_value_is_compared_with_each_of_a_batch(batch):
    base = dist.Normal(probtorch.tensor([0.0, 10.0, 20.0]), 1.0).expand(batch)
    d, x = dist.Ordered(base, 3), probtorch.tensor([1.0, 2.0, 3.0])
    found, wanted = d.log_prob(x), d.log_prob(x.expand(*batch, 3))
    assert found.shape == batch
    assert np.allclose(found.numpy(), wanted.numpy(), rtol=1e-6)


def test_a_compiled_density_is_the_eager_one():
    def density(loc, x):
        return dist.Ordered(dist.Normal(loc, 2.0), 3).log_prob(x)

    x = probtorch.tensor([[-1.0, 0.0, 2.0], [0.0, 0.5, 0.75]])
    loc = probtorch.tensor(0.3)
    assert np.allclose(
        probtorch.compile(density)(loc, x).numpy(), density(loc, x).numpy(), rtol=1e-6
    )


def test_ordered_locations_name_the_components_of_a_mixture():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-2.0, 1.0, 60), rng.normal(3.0, 0.5, 40)])

    def model(x):
        weights = probtorch.sample("weights", dist.Dirichlet(probtorch.ones(2)))
        loc = probtorch.sample("loc", dist.Ordered(dist.Normal(0.0, 5.0), 2))
        with probtorch.plate("rows", len(x)):
            parts = dist.Normal(loc, probtorch.tensor([1.0, 0.5]))
            mixture = dist.MixtureSameFamily(dist.Categorical(weights), parts)
            probtorch.sample("x", mixture, obs=x)

    mcmc = MCMC(NUTS(model), num_samples=300, num_warmup=300, num_chains=4, seed=0)
    draws = mcmc.run(x)
    means = draws["loc"].mean((0, 1))
    assert np.abs(means - [-2.0, 3.0]).max() < 0.4
    assert max(mcmc.diagnostics()["loc"]["r_hat"]) < 1.03


@pytest.mark.parametrize(
    ("base", "size", "got"),
    [
        (dist.Poisson(1.0), 2, "Poisson with support"),
        (dist.Normal(0.0, 1.0).expand([3]).to_event(1), 2, "event shape (3,)"),
        (dist.Normal(0.0, 1.0), 0, "0"),
        (dist.Normal(0.0, 1.0), 2.7, "2.7"),
    ],
)
def test_what_has_no_such_order_is_refused(base, size, got):
    with pytest.raises(ArgumentError, match=r"(?s)expected:.*got:.*fix:") as caught:
        dist.Ordered(base, size)
    assert got in str(caught.value)


@pytest.mark.parametrize(
    "base",
    [dist.Uniform(1.0, probtorch.tensor(4.0)), dist.Beta(2.0, 3.0), dist.Pareto(2.0, 5.0)],
    ids=lambda d: type(d).__name__,
)
def test_nuts_samples_the_order_statistics_of_a_bounded_distribution(base):
    def model():
        probtorch.sample("x", dist.Ordered(base, 3))

    draws = MCMC(NUTS(model), 500, num_chains=2, seed=0, progress_bar=False).run()
    shares = base.cdf(probtorch.tensor(draws["x"])).numpy()
    assert (np.diff(draws["x"], axis=-1) > 0.0).all()
    # Means of Beta(i, 4 - i), with standard deviations below 0.23 and 200 effective draws at least.
    assert np.allclose(shares.mean((0, 1)), [0.25, 0.5, 0.75], atol=4.5 * 0.23 / np.sqrt(200))


def test_bounds_of_a_batch_are_those_of_its_vectors():
    high = probtorch.tensor([2.0, 10.0])
    d = dist.Ordered(dist.Uniform(0.0, high), 3)
    x = probtorch.tensor([[0.5, 1.0, 1.5], [1.0, 2.0, 3.0]])
    assert d.support.check(x).tolist() == [True, True]
    assert np.allclose(d.log_prob(x), np.log(6.0) - 3.0 * np.log([2.0, 10.0]))
    assert d.support.check(x.flip(0)).tolist() == [False, True]
    probtorch.manual_seed(0)
    assert (d.sample((50,)) < high[:, None]).all()
    free = dist.biject_to(d.support).inv(x)
    assert np.allclose(dist.biject_to(d.support)(free), x, rtol=1e-5)


def test_change_points_are_found():
    """Ordered uniform times of change between three rates of counts."""
    rng = np.random.default_rng(0)
    days = np.arange(90.0)
    y = rng.poisson(np.where(days < 30, 2.0, np.where(days < 65, 9.0, 4.0)))

    def model(y):
        change = probtorch.sample("change", dist.Ordered(dist.Uniform(0.0, 90.0), 2))
        with probtorch.plate("parts", 3):
            rate = probtorch.sample("rate", dist.Gamma(2.0, 0.4))
        before, after = (probtorch.tensor(days) - change[:, None]).mul(2.0).sigmoid()
        mean = rate[0] + (rate[1] - rate[0]) * before + (rate[2] - rate[1]) * after
        with probtorch.plate("days", 90):
            probtorch.sample("y", dist.Poisson(mean), obs=y)

    draws = MCMC(NUTS(model), 500, num_chains=2, seed=0, progress_bar=False).run(y)
    assert np.allclose(draws["change"].mean((0, 1)), [30.0, 65.0], atol=3.0)


@pytest.mark.parametrize("concentration", [-0.4, 0.0, 0.3])
@pytest.mark.parametrize("cls", [dist.GeneralizedPareto, dist.GeneralizedExtremeValue])
def test_ordered_numbers_within_a_reach_have_a_way_from_the_line(cls, concentration):
    """Its log determinant is that of the derivatives; each element of the batch has its bound."""
    loc = probtorch.tensor(np.array([0.5, -3.0]))
    d = dist.Ordered(cls(loc, 2.0, concentration), 3)
    way = dist.biject_to(d.support)
    free = probtorch.tensor(np.array([[0.3, -0.8, 0.2], [-1.0, 0.4, 0.1]]))
    x = way(free)
    assert d.support.check(x).numpy().all()
    assert np.allclose(way.inv(x).numpy(), free.numpy())
    found = way.log_abs_det_jacobian(free, x).numpy()
    for i in range(2):
        one = dist.biject_to(dist.Ordered(cls(loc[i], 2.0, concentration), 3).support)
        slopes = probtorch.func.jacrev(one)(free[i]).numpy()
        assert np.isclose(np.linalg.slogdet(slopes)[1], found[i])
    assert np.isfinite(d.log_prob(d.sample((5,))).numpy()).all()
    assert not d.support.check(x.flip(-1)).numpy().any()


def test_angles_have_no_order():
    with pytest.raises(ArgumentError, match="whose values are angles"):
        dist.Ordered(dist.VonMises(0.0, 1.0), 3)
