"""Proposals of `IndependentMH`: from draws, from guides, and as they are stated."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.convergence import ess_mean
from probtorch.diagnostics.findings import ConvergenceWarning
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    AutoIAFNormal,
    AutoNormal,
    IndependentMH,
    LaplaceApproximation,
    Pathfinder,
    Target,
    Trace_ELBO,
    init_to_value,
)
from probtorch.infer.autoguide import AutoMultivariateNormal
from probtorch.optim import Adam
from tests.infer.mcmc.test_other_kernels import ARGUMENTS, COVARIANCE, MEAN, line


def guide_run():
    guide = AutoMultivariateNormal(line)
    svi = SVI(line, guide, Adam({"lr": 0.01}), Trace_ELBO(num_particles=20), seed=0)
    return svi.run(1500, *ARGUMENTS, progress_bar=False)


def some_draws():
    mcmc = MCMC(NUTS(line), 500, 300, num_chains=2, seed=1, progress_bar=False)
    return mcmc.run(*ARGUMENTS)


PROPOSALS = {
    "laplace": lambda: "laplace",
    "draws": some_draws,
    "a guide": guide_run,
    "an approximation": lambda: LaplaceApproximation(line, seed=0).run(*ARGUMENTS),
    "pathfinder": lambda: Pathfinder(line, seed=0).run(*ARGUMENTS),
}


@pytest.mark.parametrize("name", PROPOSALS)
def test_proposals_close_to_a_normal_posterior_are_accepted_almost_always(name):
    """The posterior is normal: a normal with its moments is the posterior, and no draw is lost."""
    kernel = IndependentMH(line, proposal=PROPOSALS[name](), df=None)
    mcmc = MCMC(kernel, 4000, 10, num_chains=2, seed=1, progress_bar=False)
    draws = mcmc.run(*ARGUMENTS)
    accepted = draws.sample_stats["acceptance_rate"].mean()
    assert accepted > (0.9 if name != "laplace" else 0.999)
    x = np.stack([draws[n].reshape(-1) for n in "ab"], axis=1)
    score = (x.mean(axis=0) - MEAN) / np.sqrt(np.diag(COVARIANCE) / len(x))
    assert np.abs(score).max() < 5.5  # a tenth of the draws may be repeated
    assert np.ptp(draws.sample_stats["log_weight"]) < (1e-4 if name == "laplace" else 2.5)


def test_a_proposal_that_is_stated_is_used():
    kernel = IndependentMH(line, loc={"a": 1.0, "b": 0.5}, covariance=[0.5, 0.25], df=3)
    mcmc = MCMC(kernel, 10, 5, num_chains=1, seed=1, progress_bar=False)
    mcmc.diagnose = False
    mcmc.run(*ARGUMENTS)
    used = mcmc.last_state[0].kernel.gaussian
    np.testing.assert_array_equal(used.loc.array, [1.0, 0.5])
    np.testing.assert_allclose(used.metric.inverse_mass(), [0.5, 0.25])


def test_draws_of_another_model_are_refused():
    def other():
        probtorch.sample("z", dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    draws = MCMC(NUTS(other), 50, 50, num_chains=1, seed=0, progress_bar=False)
    draws.diagnose = False
    mcmc = MCMC(IndependentMH(line, proposal=draws.run()), 10, 5, num_chains=1, seed=1)
    with pytest.raises(ShapeError, match="of 2 unconstrained coordinates"):
        mcmc.run(*ARGUMENTS)


# ----------------------------------------------------------------------------- stated distributions


def fitted(guide):
    svi = SVI(line, guide(line), Adam({"lr": 0.01}), Trace_ELBO(num_particles=20), seed=0)
    return svi.run(600, *ARGUMENTS, progress_bar=False)


def exact():
    return dist.MultivariateNormal(probtorch.tensor(MEAN), probtorch.tensor(COVARIANCE))


# By name: the proposal, and the least share that is accepted.
STATED = {
    "the posterior": (exact, 0.9999),
    "laplace": (lambda: LaplaceApproximation(line, seed=0).run(*ARGUMENTS).distribution(), 0.9999),
    "pathfinder": (lambda: Pathfinder(line, seed=0).run(*ARGUMENTS).distribution(), 0.85),
    "a guide": (lambda: fitted(AutoMultivariateNormal).distribution(), 0.85),
    "a guide of independent sites": (lambda: fitted(AutoNormal).distribution(), 0.5),
    "a flow": (lambda: fitted(AutoIAFNormal).distribution(), 0.7),
    "sites": (lambda: {"a": dist.Normal(1.0, 0.6), "b": dist.StudentT(5.0, 0.5, 0.5)}, 0.1),
}


@pytest.mark.parametrize("name", STATED)
def test_stated_distributions_are_the_proposals_and_the_posterior_stays(name):
    make, least = STATED[name]
    mcmc = MCMC(IndependentMH(line, proposal=make()), 6000, 10, num_chains=2, seed=1,
                progress_bar=False)  # fmt: skip
    mcmc.diagnose = False
    draws = mcmc.run(*ARGUMENTS)
    assert mcmc.target.density.reason is None
    assert draws.sample_stats["acceptance_rate"].mean() > least
    for i, site in enumerate("ab"):
        z = (draws[site] - MEAN[i]) / math.sqrt(COVARIANCE[i, i])
        assert abs(z.mean()) < 5.0 / math.sqrt(ess_mean(z))
        assert abs((z**2).mean() - 1.0) < 5.0 * math.sqrt(2.0 / ess_mean(z**2))


def test_a_guide_is_as_it_was_when_its_result_was_made():
    """The distribution of a result keeps its parameters, whatever steps come after."""
    result = fitted(AutoMultivariateNormal)
    first = result.distribution()
    result.svi.run(200, *ARGUMENTS, progress_bar=False)
    again = result.distribution()
    np.testing.assert_array_equal(first.loc.array, again.loc.array)
    points = result.draws(500).positions[0]
    log_prob = stats.multivariate_normal(first.loc.array, first.covariance_matrix.array).logpdf
    np.testing.assert_allclose(first.log_prob(probtorch.tensor(points)).numpy(), log_prob(points))


def conjugate(y):
    rate = probtorch.sample("rate", dist.Gamma(2.0, 1.0))
    p = probtorch.sample("p", dist.Beta(2.0, 3.0))
    probtorch.sample("heads", dist.Binomial(10, p), obs=probtorch.tensor(7.0))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Poisson(rate), obs=y)


def test_distributions_of_sites_are_on_the_models_scale():
    """Posteriors in closed form, whose draws are all accepted; log-determinants cancel."""
    y = probtorch.tensor([3.0, 1.0, 2.0, 4.0])
    posterior = {"rate": dist.Gamma(12.0, 5.0), "p": dist.Beta(9.0, 6.0)}
    kernel = IndependentMH(conjugate, proposal=posterior)
    mcmc = MCMC(kernel, 4000, 5, num_chains=2, seed=2, progress_bar=False)
    draws = mcmc.run(y)
    assert draws.sample_stats["acceptance_rate"].min() > 1.0 - 1e-9
    assert stats.kstest(draws["rate"].ravel(), stats.gamma(12.0, scale=0.2).cdf).pvalue > 1e-4
    assert stats.kstest(draws["p"].ravel(), stats.beta(9.0, 6.0).cdf).pvalue > 1e-4
    # Priors as proposals: what is likely is accepted.
    kernel = IndependentMH(conjugate, proposal={"rate": dist.Gamma(2.0, 1.0), "p": dist.Beta(2, 3)})
    draws = MCMC(kernel, 20_000, 5, num_chains=2, seed=2, progress_bar=False).run(y)
    assert 0.1 < draws.sample_stats["acceptance_rate"].mean() < 0.9
    error = math.sqrt(12.0 / 25.0 / ess_mean(draws["rate"]))
    assert abs(draws["rate"].mean() - 2.4) < 5.0 * error


def test_supports_that_depend_on_other_sites_reject_what_is_outside():
    """The triangle y < x < 1, evenly: a third and two thirds are the means."""

    def triangle():
        x = probtorch.sample("x", dist.Uniform(0.0, 1.0))
        probtorch.factor("wide", probtorch.log(x))
        probtorch.sample("y", dist.Uniform(0.0, x))

    square = {"x": dist.Uniform(0.0, 1.0), "y": dist.Beta(1.0, 1.5)}
    mcmc = MCMC(IndependentMH(triangle, proposal=square), 20_000, 5, num_chains=2, seed=3,
                progress_bar=False)  # fmt: skip
    draws = mcmc.run()
    assert 0.3 < draws.sample_stats["acceptance_rate"].mean() < 0.8
    assert (draws["y"] < draws["x"]).all()
    for site, mean in (("x", 2 / 3), ("y", 1 / 3)):
        assert abs(draws[site].mean() - mean) < 5.0 * math.sqrt(1 / 18 / ess_mean(draws[site]))


def test_a_mixture_is_accepted_where_a_normal_of_its_moments_is_not():
    """Two modes of shares 0.3 and 0.7, far apart."""

    def hills(q):
        left, right = (math.log(w) - 0.5 * (q[0] - m) ** 2 for w, m in ((0.3, -6.0), (0.7, 6.0)))
        return probtorch.logaddexp(left, right)

    target = Target.from_density(hills, 1)
    normals = dist.Normal(probtorch.tensor([[-6.0], [6.0]]), 1.2).to_event(1)
    mixture = dist.MixtureSameFamily(dist.Categorical(probtorch.ones(2)), normals)
    kernel = IndependentMH(target, proposal=mixture)
    draws = MCMC(kernel, 8000, 5, num_chains=2, seed=3, progress_bar=False).run()
    assert draws.sample_stats["acceptance_rate"].mean() > 0.6
    share = (draws["x"][..., 0] > 0.0).astype(float)
    assert abs(share.mean() - 0.7) < 5.0 * math.sqrt(0.21 / ess_mean(share))


def test_chains_of_stated_proposals_go_on_bit_for_bit(tmp_path):
    proposal = {"rate": dist.Gamma(3.0, 1.5), "p": dist.Beta(2.0, 2.0)}
    y = probtorch.tensor([3.0, 1.0])

    def chains(count, proposal=proposal, **settings):
        kernel = IndependentMH(conjugate, proposal=proposal)
        mcmc = MCMC(kernel, count, 5, num_chains=2, seed=4, progress_bar=False, **settings)
        mcmc.diagnose = False
        return mcmc

    whole = chains(60).run(y).positions
    np.testing.assert_array_equal(chains(60, num_threads=1).run(y).positions, whole)
    first, later = chains(40), chains(20)
    first.run(y)
    later.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(later.run(y).positions, whole[:, 40:])
    for _ in range(2):
        np.testing.assert_array_equal(chains(60).run(y, checkpoint=tmp_path).positions, whole)
    other = proposal | {"p": dist.Beta(2.0, 2.5)}
    with pytest.raises(ArgumentError, match=r"proposal=.*saved was"):
        chains(60, other).run(y, checkpoint=tmp_path)


def local(n=3):
    with probtorch.plate("row", n):
        probtorch.sample("z", dist.Normal(0.0, 1.0))


def coins():
    fair = probtorch.sample("fair", dist.Bernoulli(0.5))
    probtorch.sample("x", dist.Normal(1.0 * fair, 1.0))


@pytest.mark.parametrize(
    ("model", "proposal", "error", "words"),
    [
        (line, dist.Normal(0.0, 1.0), ShapeError, r"an event of shape \(2,\)"),
        (line, dist.Normal(0.0, 1.0).expand([2]), ShapeError, r"batch shape \(2,\)"),
        (line, {"a": dist.Normal(0.0, 1.0)}, InferenceError, "none of 'b'"),
        (local, {"z": dist.Normal(0.0, 1.0)}, ShapeError, r"site 'z' of shape \(3,\)"),
        (local, {"u": dist.Normal(0.0, 1.0), "z": dist.Normal(0.0, 1.0)}, InferenceError, "'u'"),
        (local, {"z": dist.Poisson(1.0).expand([3])}, InferenceError, "a discrete one of 'z'"),
        (coins, {"x": dist.Normal(0.0, 1.0)}, InferenceError, "summed out"),
    ],
)
def test_distributions_that_do_not_fit_are_refused(model, proposal, error, words):
    mcmc = MCMC(IndependentMH(model, proposal=proposal), 10, 5, num_chains=1, progress_bar=False)
    with pytest.raises(error, match=words):
        mcmc.run(*(ARGUMENTS if model is line else ()))


def test_what_has_no_distribution_says_what_to_do():
    def by_hand(x, y):
        probtorch.sample("a", dist.Normal(probtorch.param("m", 0.0), 1.0))
        probtorch.sample("b", dist.Normal(0.0, 1.0))

    result = SVI(line, by_hand, Adam({"lr": 0.01}), seed=0).run(5, *ARGUMENTS, progress_bar=False)
    with pytest.raises(InferenceError, match="state a distribution for each site"):
        result.distribution()
    for wrong in ("prior", {"a": 1.0}, 3.0, {}):
        with pytest.raises(ArgumentError, match="a Distribution or a dict of them"):
            IndependentMH(line, proposal=wrong)
    with pytest.raises(ArgumentError, match="loc and covariance without a proposal"):
        IndependentMH(line, proposal=exact(), loc=[0.0, 0.0], covariance=[1.0, 1.0])


def test_values_of_sites_may_have_fewer_coordinates_than_numbers():
    def model():
        probtorch.sample("w", dist.Dirichlet(probtorch.tensor([1.0, 2.0, 3.0])))

    kernel = IndependentMH(model, proposal={"w": dist.Dirichlet(probtorch.ones(3))})
    mcmc = MCMC(kernel, num_samples=4000, num_chains=1, seed=0, progress_bar=False)
    found = mcmc.run().posterior["w"].mean((0, 1))
    # Standard errors of 0.006 at an effective number of 1000.
    np.testing.assert_allclose(found, [1 / 6, 2 / 6, 3 / 6], atol=0.03)


@pytest.mark.parametrize("site", [True, False])
def test_a_start_that_is_never_proposed_is_no_error(site):
    """The density of the proposals is 0 there, however they check their values."""

    def model():
        probtorch.sample("z", dist.Normal(0.0, 1.0))

    law = dist.Uniform(5.0, 6.0, validate_args=True)
    law = {"z": law} if site else law.expand((1,)).to_event(1)
    mcmc = MCMC(
        IndependentMH(model, proposal=law, init_strategy=init_to_value(values={"z": 0.5})),
        num_samples=20, num_chains=1, seed=0, progress_bar=False,
    )  # fmt: skip
    mcmc.diagnose = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stands still, and says so
        draws = mcmc.run()
    assert (draws.posterior["z"] == 0.5).all()
    assert (draws.sample_stats["acceptance_rate"] == 0.0).all()


def test_a_mode_as_narrow_as_a_needle_has_proposals_and_chains_that_stay_away_are_told():
    # The covariance of its curvature spans nine powers of ten: rounding is as large as the least.
    def funnel():
        v = probtorch.sample("v", dist.Normal(0.0, 3.0))
        probtorch.sample("x", dist.Normal(0.0, (v / 2.0).exp()).expand([4]).to_event(1))

    mcmc = MCMC(IndependentMH(funnel), 200, 20, num_chains=2, seed=0, progress_bar=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        draws = mcmc.run()
    assert "chains 0, 1 never moved" in str(told[-1].message)
    assert issubclass(told[-1].category, ConvergenceWarning)
    assert np.isfinite(np.asarray(draws["v"])).all()
