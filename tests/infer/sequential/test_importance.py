"""`Importance` and `WeightedDraws`: evidence and means against closed forms and enumeration."""

import warnings

import numpy as np
import pytest
from scipy import stats
from scipy.special import betaln

import probtorch
from probtorch.core.rng import Generator
from probtorch.distributions import Bernoulli, Beta, Normal, Uniform
from probtorch.effects import deterministic, handlers, plate, sample
from probtorch.errors import ArgumentError, DomainError, InferenceError, ModelError
from probtorch.infer import Importance, ImportanceWarning, Predictive
from probtorch.infer.sequential.weights import (
    RESAMPLING,
    ancestors,
    effective_size,
    family_error,
    log_mean,
)

Y = probtorch.tensor([1.0, 1.0, 0.0, 1.0])
# Seeds are fixed; of a sound estimate one in 15,000 is further from the truth than this many
# standard errors.
SIGMAS = 4.0


def coin(y):
    p = sample("p", Beta(1.0, 1.0))
    with plate("toss", len(y)):
        sample("y", Bernoulli(p), obs=y)


def line(y, shift=0.0):
    a = sample("a", Normal(0.0, 1.0))
    b = sample("b", Normal(a, 2.0))
    deterministic("twice", 2.0 * b)
    sample("y", Normal(b + shift, 1.0), obs=y)


def trials(y):
    """Another number of sites in every run."""
    n = 0
    while sample(f"c{n}", Bernoulli(0.5)).item() == 1.0:
        n += 1
    sample("y", Normal(float(n), 1.0), obs=y)


def test_prior_weighted_by_the_data_is_the_posterior():
    found = Importance(coin, num_samples=4000, seed=0).run(Y)
    assert abs(found.log_evidence - betaln(4, 2)) < SIGMAS * found.log_evidence_error
    sd = stats.beta(4, 2).std() / np.sqrt(found.ess)
    assert abs(found.expectation("p") - 4 / 6) < SIGMAS * sd
    np.testing.assert_allclose(
        found.quantile("p", [0.25, 0.75]), stats.beta(4, 2).ppf([0.25, 0.75]), atol=0.03
    )
    assert found["p"].shape == (4000,) and found.pareto_k < 0.5
    assert found.get_ESS() == found.ess and found.get_log_normalizer() == found.log_evidence
    np.testing.assert_allclose(found.get_normalized_weights().sum(), 1.0)


def test_draws_are_resampled_by_their_weights():
    found = Importance(coin, num_samples=4000, seed=0).run(Y)
    draws = found.draws(2000, seed=1)
    assert draws["p"].shape == (1, 2000)
    assert abs(draws["p"].mean() - 4 / 6) < SIGMAS * stats.beta(4, 2).std() / np.sqrt(1200)
    assert draws.attrs["log_evidence"] == found.log_evidence
    assert abs(found.marginal("p").mean.item() - found.expectation("p")) < 1e-6


def flips(y=None):
    """A model of a fixed number of sites, and one whose sites change from run to run."""
    p = sample("p", Beta(1.0, 1.0))
    with plate("toss", 4):
        sample("y", Bernoulli(p), obs=y)


def some_flips(y=None):
    if sample("fair", Bernoulli(0.5)).item() == 1.0:
        p = probtorch.tensor(0.5)
    else:
        p = sample("p", Beta(1.0, 1.0))
    with plate("toss", 4):
        sample("y", Bernoulli(p), obs=y)


@pytest.mark.parametrize("model", [flips, some_flips])
def test_what_is_predicted_goes_to_arviz_beside_the_draws(model):
    """As for all other engines; what is given, or what the draws make of their model."""
    draws = Importance(model, num_samples=200, seed=0).run(Y).draws(50, seed=1)
    told = Predictive(model, draws, return_sites=["y"], seed=2)()
    prior = Predictive(model, num_samples=20, return_sites=[*draws, "y"], seed=2)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ and its dependencies announce their own plans
        data = draws.to_arviz(
            posterior_predictive=told, prior=prior, predictions=told, constant_data={"x": Y}
        )
    assert data["posterior_predictive"]["y"].shape == (1, 50, 4)
    assert data["predictions"]["y"].shape == (1, 50, 4)
    assert list(data["prior_predictive"].data_vars) == ["y"]
    assert list(data["prior"].data_vars) == list(draws)
    assert data["constant_data"]["x"].shape == (4,)
    whole = draws.extended(log_likelihood=True, posterior_predictive=True, prior=20, seed=2).groups
    runs = getattr(draws, "values", [[{"p": p} for p in draws["p"][0]]] if "p" in draws else ())
    p = np.array([[run.get("p", 0.5) for run in runs[0]]])
    expected = stats.bernoulli.logpmf(Y.numpy(), p[..., None])
    np.testing.assert_allclose(whole["log_likelihood"]["y"], expected, rtol=1e-5)
    again = whole["posterior_predictive"]["y"]
    # 200 zeros and ones, 4.5 standard errors.
    assert again.shape == (1, 50, 4) and abs(again.mean() - p.mean()) < 4.5 * 0.5 / np.sqrt(200)
    assert set(whole["prior_predictive"]) == {"y"} and set(whole["prior"]) >= set(draws)
    np.testing.assert_array_equal(whole["observed_data"]["y"], Y.numpy())


def test_guide_that_is_the_posterior_has_equal_weights():
    def guide(y):
        sample("p", Beta(4.0, 2.0))

    found = Importance(coin, guide, num_samples=100, seed=0).run(Y)
    np.testing.assert_allclose(found.log_ratios, betaln(4, 2), atol=1e-5)
    assert found.ess == pytest.approx(100)


def test_parameters_of_a_guide_are_those_that_are_given():
    def guide(y):
        first = probtorch.param("first", probtorch.tensor(1.0))
        sample("p", Beta(first, 2.0))

    found = Importance(coin, guide, 100, params={"first": probtorch.tensor(4.0)}, seed=0).run(Y)
    assert found.ess == pytest.approx(100)
    assert Importance(coin, guide, 100, seed=0).run(Y).ess < 90


def test_sites_that_the_guide_lacks_are_drawn_from_the_prior():
    def guide(y):
        sample("a", Normal(1.0, 1.5))

    found = Importance(line, guide, num_samples=4000, seed=2).run(probtorch.tensor(2.0))
    exact = stats.norm(0.0, np.sqrt(6.0)).logpdf(2.0)
    assert abs(found.log_evidence - exact) < SIGMAS * found.log_evidence_error
    assert abs(found.expectation("a") - 2.0 / 6.0) < SIGMAS / np.sqrt(found.ess)
    np.testing.assert_allclose(found["twice"], 2.0 * found["b"])


def test_sites_that_come_and_go_agree_with_enumeration():
    found = Importance(trials, num_samples=400, seed=1).run(probtorch.tensor(2.0))
    n = np.arange(60)
    joint = 0.5 ** (n + 1) * stats.norm.pdf(2.0, n)
    assert abs(found.log_evidence - np.log(joint.sum())) < SIGMAS * found.log_evidence_error
    mean = (n * joint).sum() / joint.sum()
    spread = np.sqrt((n**2 * joint).sum() / joint.sum() - mean**2)
    found_mean = found.expectation(lambda draw: len(draw) - 1)
    assert abs(found_mean - mean) < SIGMAS * spread / np.sqrt(found.ess)
    assert "c0" in found and "c1" not in found


def test_draws_that_cannot_have_made_the_data_have_no_weight():
    def model(y):
        a = sample("a", Normal(0.0, 1.0))
        sample("y", Uniform(a, a + 1.0), obs=y)

    found = Importance(model, num_samples=2000, seed=0).run(probtorch.tensor(1.0))
    exact = np.log(stats.norm.cdf(1.0) - stats.norm.cdf(0.0))
    assert abs(found.log_evidence - exact) < SIGMAS * found.log_evidence_error

    def bad(y):
        a = sample("a", Normal(0.0, 1.0))
        sample("y", Normal(0.0, a), obs=y)

    with pytest.raises(DomainError, match="scale"):
        Importance(bad, num_samples=50, seed=0).run(probtorch.tensor(1.0))


def test_handlers_around_count_and_traces_see_nothing():
    with handlers.trace() as seen, handlers.condition(data={"a": probtorch.tensor(0.5)}):
        found = Importance(line, num_samples=500, seed=0).run(probtorch.tensor(1.0))
    assert not list(seen) and "a" not in found
    exact = stats.norm.logpdf(0.5) + stats.norm(0.5, np.sqrt(5.0)).logpdf(1.0)
    assert abs(found.log_evidence - exact) < SIGMAS * found.log_evidence_error


def test_run_depends_on_the_seed_alone():
    one, same, other = (
        Importance(coin, num_samples=50, seed=s).run(Y) for s in (3, Generator(3), 4)
    )
    np.testing.assert_array_equal(one["p"], same["p"])
    assert (one["p"] != other["p"]).any()


def test_proposal_far_from_the_posterior_is_told_of():
    def guide(y, shift=0.0):
        a = sample("a", Normal(0.0, 1.0))
        sample("b", Normal(a - 3.0, 0.5))

    with pytest.warns(ImportanceWarning, match="far from the posterior") as caught:
        Importance(line, guide, num_samples=200, seed=0).run(probtorch.tensor(3.0))
    assert caught[0].filename == __file__


def test_impossible_data_and_bad_arguments_are_refused():
    def coin_with_two_heads(y):
        p = sample("p", Beta(1.0, 1.0))
        sample("y", Normal(p, 1.0), obs=y)
        probtorch.factor("never", probtorch.tensor(-np.inf))

    with pytest.raises(InferenceError, match="importance weights"):
        Importance(coin_with_two_heads, num_samples=30).run(Y[0])
    with pytest.raises(ArgumentError, match="num_samples"):
        Importance(coin, num_samples=0)
    with pytest.raises(ModelError, match="no site 'q'"):
        Importance(coin, num_samples=30, seed=0).run(Y)["q"]
    with pytest.raises(ArgumentError, match="quantile"):
        Importance(coin, num_samples=30, seed=0).run(Y).quantile("p", 5)

    def rows(y):
        with plate("toss", 4, subsample_size=2):
            sample("z", Normal(0.0, 1.0))

    with pytest.raises(InferenceError, match="'toss' draws a subsample"):
        Importance(rows, num_samples=30).run(Y)


# ------------------------------------------------------------------------------------- the weights


@pytest.mark.parametrize("scheme", RESAMPLING)
def test_resampling_draws_each_as_often_as_its_weight_says(scheme):
    weights = np.array([0.0, 0.45, 0.05, 0.3, 0.2, 0.0])
    rng = Generator(5)
    counts = np.zeros(6)
    for _ in range(500):
        found = ancestors(weights, 7, rng, scheme)
        assert found.shape == (7,) and (np.diff(found) >= 0).all()
        counts += np.bincount(found, minlength=6)
    # Multinomial counts spread most: 4 standard deviations of these bound all schemes.
    sd = np.sqrt(3500 * weights * (1 - weights))
    assert (np.abs(counts - 3500 * weights) <= SIGMAS * sd).all()


def test_effective_size_and_mean_weight_in_closed_form():
    assert effective_size(np.log([0.5, 0.5, 1e-300])) == pytest.approx(2.0)
    assert effective_size(np.full(3, -np.inf)) == 0.0
    value, error = log_mean(np.log([1.0, 3.0]) - 1000.0)
    assert value == pytest.approx(np.log(2.0) - 1000.0) and error == pytest.approx(0.5)


def test_families_of_one_each_have_the_error_of_independent_weights():
    log_weights = np.random.default_rng(0).normal(size=50)
    weights = np.exp(log_weights) / np.exp(log_weights).sum()
    assert family_error(weights, np.arange(50)) == pytest.approx(log_mean(log_weights)[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(family_error(weights, np.zeros(50, int)))
