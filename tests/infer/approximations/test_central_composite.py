"""`INLA` by a central composite design: exact of normals, as the grid and as chains of others."""

import itertools

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.convergence import ess_mean
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import INLA, MCMC, NUTS, INLACompositeResult, INLAResult
from probtorch.infer.approximations.central_composite import LARGEST, design
from probtorch.infer.control import Interrupt

SIZES = range(1, LARGEST + 1)


@pytest.mark.parametrize("size", SIZES)
def test_a_design_has_the_mass_and_the_second_moments_of_a_normal(size):
    points, shares = design(size)
    assert len(points) == [3, 9, 15, 25, 27, 45, 79, 81][size - 1] == len({*map(tuple, points)})
    assert shares.sum() == pytest.approx(1.0) and (shares > 0.0).all()
    np.testing.assert_allclose((points * shares[:, None]).T @ points, np.eye(size), atol=1e-12)
    np.testing.assert_allclose(shares @ points, np.zeros(size), atol=1e-12)


@pytest.mark.parametrize("size", SIZES[1:])
def test_corners_tell_coordinates_and_products_of_two_apart(size):
    """Resolution V: main effects and interactions are columns at right angles to each other."""
    corners = design(size)[0][2 * size + 1 :] / 1.1
    products = [corners[:, i] * corners[:, j] for i, j in itertools.combinations(range(size), 2)]
    columns = np.column_stack([np.ones(len(corners)), corners, *products])
    if size > 2:
        np.testing.assert_allclose(columns.T @ columns, len(corners) * np.eye(columns.shape[1]))
    assert np.linalg.matrix_rank(columns) == min(columns.shape)


def normal_model(size):
    """All of it normal, and the evidence in closed form."""
    rng = np.random.default_rng(size)
    slopes, y = rng.normal(size=(4, size)), rng.normal(size=4)

    def model(y):
        theta = probtorch.sample("theta", dist.Normal(0.5, 1.5).expand([size]).to_event(1))
        x = probtorch.sample("x", dist.Normal(probtorch.tensor(slopes) @ theta, 0.7).to_event(1))
        probtorch.sample("y", dist.Normal(x, 0.4).to_event(1), obs=y)

    cov = 1.5**2 * slopes @ slopes.T + (0.49 + 0.16) * np.eye(4)
    evidence = stats.multivariate_normal(slopes @ np.full(size, 0.5), cov).logpdf(y)
    return model, probtorch.tensor(y), evidence


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_the_evidence_of_a_normal_is_exact(size):
    model, y, evidence = normal_model(size)
    result = INLA(model, latent="x", integration="ccd", seed=0).run(y)
    assert isinstance(result, INLACompositeResult)
    assert result.evidence == pytest.approx(evidence, abs=1e-4)
    np.testing.assert_allclose(result.composed.stretch, 1.0, rtol=1e-3)
    corrected, error = result.log_evidence(1000)
    assert abs(corrected - evidence) < 4.0 * error < 0.2
    assert result.pareto_k < 0.7


def test_axes_are_stretched_where_a_density_is_skewed():
    """A log-gamma falls faster ahead of its mode than behind it; the mass of all is 1."""

    def skewed():
        rates = probtorch.tensor([0.5, 1.0, 4.0])
        theta = probtorch.sample("theta", dist.Gamma(rates, rates).to_event(1))
        probtorch.sample("x", dist.Normal(theta.sum(), 1.0))

    result = INLA(skewed, latent="x", integration="ccd", seed=0).run()
    # Each axis is a coordinate, either way round.
    forward = result.composed.axes.sum(axis=0) > 0.0
    one, other = result.composed.stretch
    behind, ahead = np.where(forward, one, other), np.where(forward, other, one)
    assert (behind > 1.1).all() and (ahead < 0.9).all()
    assert abs(result.evidence) < 0.3
    value, error = result.log_evidence(4000)
    assert abs(value) < 4.0 * error < 0.2


def test_the_density_is_normalised_and_its_draws_are_of_it():
    model, y, _ = normal_model(3)

    def scaled(y):
        s = probtorch.sample("s", dist.HalfNormal(1.0).expand([3]).to_event(1))
        x = probtorch.sample("x", dist.Normal(0.0, s).to_event(1))
        probtorch.sample("y", dist.Normal(x, 0.5).to_event(1), obs=y)

    result = INLA(scaled, latent="x", integration="ccd", seed=0).run(y[:3])
    points, log_prob = result.sampled(4000, probtorch.Generator(0))
    np.testing.assert_allclose(result.log_prob(points), log_prob, atol=1e-5)
    np.testing.assert_array_equal(result.sample(50, probtorch.Generator(0)).shape, (50, 6))
    mean, cov = points.mean(axis=0), np.cov(points.T)
    # The mean of r / q over draws of q is the integral of r.
    other = stats.multivariate_normal(mean, 0.3 * cov)
    ratios = np.exp(other.logpdf(points) - log_prob)
    assert abs(ratios.mean() - 1.0) < 5.0 * ratios.std() / np.sqrt(len(ratios)) < 0.5
    assert model is not scaled


Y = np.array([3.0, 1.0, 4.0, 6.0, 9.0, 5.0, 12.0, 8.0, 7.0, 15.0])
T = np.linspace(-1.0, 1.0, len(Y))


def three_scales(y):
    a = probtorch.sample("a", dist.HalfNormal(1.0))
    b = probtorch.sample("b", dist.HalfNormal(1.0))
    c = probtorch.sample("c", dist.HalfNormal(0.5))
    level = probtorch.sample("level", dist.Normal(1.0, 1.0))
    slope = probtorch.sample("slope", dist.Normal(0.0, a))
    bend = probtorch.sample("bend", dist.Normal(0.0, b))
    t = probtorch.tensor(T)
    with probtorch.plate("row", len(Y)):
        extra = probtorch.sample("extra", dist.Normal(0.0, c))
        rate = (level + slope * t + bend * t * t + extra).exp()
        probtorch.sample("y", dist.Poisson(rate), obs=y)


def test_fifteen_points_agree_with_the_grid():
    """Evidences within their errors, means of scales within a tenth of their spreads."""
    y, latent = probtorch.tensor(Y), ["level", "slope", "bend", "extra"]
    few = INLA(three_scales, latent, integration="ccd", seed=0).run(y)
    grid = INLA(three_scales, latent, seed=0).run(y)
    assert isinstance(grid, INLAResult)
    assert few.attrs["cells"] == 15 and grid.attrs["cells"] > 300
    (one, error), (other, second) = few.log_evidence(3000), grid.log_evidence(4000)
    assert abs(one - other) < 4.0 * np.hypot(error, second) < 0.4
    assert few.evidence == pytest.approx(grid.evidence, abs=0.5)
    draws, others = few.draws(1500), grid.draws(4000)
    for name in ("a", "b", "c", "level", "slope", "bend"):
        spread = others[name].std()
        assert abs(draws[name].mean() - others[name].mean()) < 0.15 * spread, name
        assert abs(draws[name].std() / spread - 1.0) < 0.15, name


def five_numbers(y):
    loc = probtorch.sample("loc", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = probtorch.sample("scale", dist.LogNormal(-0.5, 0.5).expand([2]).to_event(1))
    noise = probtorch.sample("noise", dist.LogNormal(-1.0, 0.5))
    x = probtorch.sample("x", dist.Normal(loc, scale).expand([4, 2]).to_event(2))
    probtorch.sample("y", dist.Normal(x, noise).expand([3, 4, 2]).to_event(3), obs=y)


def test_five_hyperparameters_agree_with_chains():
    rng = np.random.default_rng(1)
    truth = np.array([0.5, -1.0]) + np.array([0.7, 0.4]) * rng.normal(size=(4, 2))
    y = probtorch.tensor(truth + 0.4 * rng.normal(size=(3, 4, 2)))
    result = INLA(five_numbers, latent="x", seed=0).run(y)
    assert isinstance(result, INLACompositeResult) and result.attrs["cells"] == 27
    assert result.pareto_k < 0.7
    draws = result.draws(2000)
    mcmc = MCMC(NUTS(five_numbers, target_accept_prob=0.9), 2000, 500, num_chains=4, seed=1,
                progress_bar=False)  # fmt: skip
    mcmc.diagnose = False
    chains = mcmc.run(y)
    for name in ("loc", "scale", "noise"):
        one, other = draws[name][0], chains[name]
        for i in np.ndindex(one.shape[1:]):
            a, b = one[:, *i], other[:, :, *i]
            error = np.hypot(a.std() / np.sqrt(500), b.std() / np.sqrt(ess_mean(b)))
            assert abs(a.mean() - b.mean()) < 5.0 * error, (name, i)
            assert abs(a.std() / b.std() - 1.0) < 0.2, (name, i)


def test_what_cannot_be_integrated_is_refused():
    with pytest.raises(ArgumentError, match="one of 'auto', 'grid', 'ccd'"):
        INLA(five_numbers, latent="x", integration="eb")
    y = probtorch.tensor(np.zeros((3, 4, 2)))
    with pytest.raises(ArgumentError, match="leave one to 4 numbers"):
        INLA(five_numbers, latent="x", integration="grid").run(y)

    def many():
        theta = probtorch.sample("theta", dist.Normal(0.0, 1.0).expand([9]).to_event(1))
        probtorch.sample("x", dist.Normal(theta.sum(), 1.0))

    with pytest.raises(ArgumentError, match="leave one to 8 numbers"):
        INLA(many, latent="x").run()

    def narrow():
        # A field with a mode next to the peak alone.
        theta = probtorch.sample("theta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        x = probtorch.sample("x", dist.Normal(0.0, 1.0))
        bent = (theta**2).sum() > 0.3
        probtorch.factor("bent", probtorch.where(bent, 1.0, 0.0) * x**2)

    with pytest.raises(InferenceError, match="at the points of the design"):
        INLA(narrow, latent="x", integration="ccd", seed=0).run()


@pytest.mark.parametrize("integration", ["grid", "ccd"])
def test_time_that_is_up_ends_the_search_and_not_draws_after_it(integration, monkeypatch):
    y = probtorch.tensor(Y)
    inla = INLA(three_scales, ["level", "slope", "bend", "extra"], integration=integration, seed=0)
    with pytest.raises(InferenceError, match=r"INLA.run[\s\S]*time for all hyperparameters"):
        inla.run(y, max_seconds=1e-6)
    if integration == "ccd":
        result = inla.run(y, max_seconds=600.0)
        monkeypatch.setattr(Interrupt, "asked", property(lambda _: True))
        assert result.draws(50).num_draws == 50
