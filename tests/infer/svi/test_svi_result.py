"""`SVIResult`: draws, the verdict of their weights, and the way to ArviZ."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats

from probtorch.diagnostics import Draws, loo
from probtorch.distributions import Bernoulli, Normal, Poisson
from probtorch.effects import deterministic, param, plate, sample
from probtorch.infer import SVI, AutoNormal, GuideWarning, TraceEnum_ELBO
from probtorch.infer.vi.guide_quality import judge, quality_of
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.programs import DATA, normal_model, normal_posterior

F8 = np.dtype("f8")


def fixed(loc, scale):
    """A guide that stays where it is: its parameter moves by nothing that matters."""

    def guide(y):
        sample("mu", Normal(param("loc", tensor(loc, dtype=F8)), scale))

    return SVI(normal_model, guide, Adam({"lr": 1e-12}), seed=0).run(1, DATA, progress_bar=False)


def test_the_posterior_itself_passes_and_its_draws_are_the_posterior():
    mean, sd = normal_posterior()
    result = fixed(mean, 1.05 * sd)
    assert result.pareto_k < 0.5
    draws = result.draws()
    assert (draws.num_chains, draws.num_draws) == (1, 1000)
    # Five standard errors of the mean.
    assert abs(draws.posterior["mu"].mean() - mean) < 5.0 * 1.05 * sd / math.sqrt(1000.0)
    assert "within the limit" in str(result.summary())


def test_a_guide_that_is_off_and_too_narrow_is_flagged():
    mean, sd = normal_posterior()
    # Two standard deviations off as well: the largest weights are of the draws nearest to the mean.
    result = fixed(mean + 2.0 * sd, 0.25 * sd)
    with pytest.warns(GuideWarning, match="far from the posterior"):
        draws = result.draws()
    assert draws.attrs["pareto_k"] > 0.7
    assert "above the limit" in str(result.summary())


@pytest.mark.parametrize(
    ("guide", "advice"),
    [
        ("AutoNormal", "correlations (AutoMultivariateNormal)"),
        ("AutoMultivariateNormal", "no Gaussian (AutoIAFNormal)"),
        ("AutoIAFNormal", "a flow of more layers"),
        ("guide_by_hand", "use a richer guide"),
    ],
)
def test_no_guide_is_advised_to_be_itself(guide, advice):
    draws = Draws(
        {"x": np.zeros((1, 100))},
        attrs={"pareto_k": 2.0, "guide": guide, "sd_ratio": 1.0, "sd_ratio_of": ""},
    )
    with pytest.warns(GuideWarning) as caught:
        judge(draws)
    text = str(caught[0].message).partition("fix:")[2]
    assert advice in text and guide not in text


@pytest.mark.parametrize("scale", [0.3, 0.5])
def test_a_centred_guide_that_is_too_narrow_is_flagged(scale):
    """Its tail is hardly heavy enough for k, but its own weights say how wide it should be."""
    mean, sd = normal_posterior()
    result = fixed(mean, scale * sd)
    with pytest.warns(GuideWarning):
        draws = result.draws(seed=3)
    assert draws.attrs["sd_ratio_of"] == "mu"
    # The weights find part of what is missing: draws end where the guide does.
    assert 1.5 < draws.attrs["sd_ratio"] < 1.0 / scale


@pytest.mark.parametrize("scale", [0.9, 1.0, 1.3])
def test_a_centred_guide_of_about_the_right_width_is_not(scale):
    mean, sd = normal_posterior()
    draws = fixed(mean, scale * sd).draws()
    # The standard error of a weighted standard deviation from 1000 draws is below 4 %.
    assert abs(draws.attrs["sd_ratio"] * scale - 1.0) < 0.12
    assert "times as wide" not in str(fixed(mean, scale * sd).summary())


def test_the_number_that_is_too_narrow_is_named():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((2000, 2, 3))
    x = z * np.array([[1.0, 1.0, 1.0], [1.0, 0.5, 1.0]])
    ratio = 0.5 * (z[:, 1, 1] ** 2 - x[:, 1, 1] ** 2)
    found = quality_of(ratio, {"fixed": np.ones((2000, 2)), "x": x})
    assert found.widest == "x[1, 1]" and found.sd_ratio > 1.5


def test_draws_are_of_the_result_whatever_comes_after():
    svi = SVI(normal_model, AutoNormal(normal_model), Adam({"lr": 0.1}), seed=0)
    first = svi.run(5, DATA, progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuideWarning)
        before = first.draws(50, seed=1).posterior["mu"]
        svi.run(50, DATA, progress_bar=False)
        first._made.clear()
        np.testing.assert_array_equal(first.draws(50, seed=1).posterior["mu"], before)


def test_results_reach_arviz_as_one_chain():
    mean, sd = normal_posterior()
    tree = fixed(mean, 1.05 * sd).to_arviz()
    assert tree["posterior"]["mu"].shape == (1, 1000)


def test_subsampled_data_have_no_verdict():
    def model(y):
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("rows", 5, subsample_size=2) as rows:
            z = sample("z", Normal(mu, 1.0))
            sample("y", Normal(z, 1.0), obs=y[rows])

    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.1}), seed=0)
    draws = svi.run(3, tensor(DATA), progress_bar=False).draws(40)
    assert list(draws.posterior) == ["mu"] and math.isnan(draws.attrs["pareto_k"])


def test_discrete_latents_are_drawn_too():
    def model():
        a = sample("a", Bernoulli(0.3))
        deterministic("twice", 2.0 * a)

    def guide():
        sample("a", Bernoulli(logits=param("logit", tensor(math.log(3.0 / 7.0), dtype=F8))))

    result = SVI(model, guide, Adam({"lr": 1e-12}), seed=0).run(1, progress_bar=False)
    draws = result.draws()
    np.testing.assert_array_equal(draws.posterior["twice"], 2.0 * draws.posterior["a"])
    # Five standard errors of a share of 0.3.
    assert abs(draws.posterior["a"].mean() - 0.3) < 5.0 * math.sqrt(0.21 / 1000.0)


def test_the_summary_says_what_the_model_was_summed_over():
    def model():
        a = sample("a", Bernoulli(0.3))
        sample("y", Normal(sample("mu", Normal(a, 1.0)), 1.0), obs=tensor(0.5))

    def guide():
        sample("mu", Normal(param("loc", tensor(0.4, dtype=F8)), 0.75))

    svi = SVI(model, guide, Adam({"lr": 1e-12}), TraceEnum_ELBO(), seed=0)
    told = str(svi.run(1, progress_bar=False).summary())
    assert "Summed out: 'a' (2 values)" in told and "Pareto k" in told


@pytest.mark.filterwarnings("ignore")  # of a guide that is not trained
def test_guides_with_discrete_draws_go_to_densities_predictions_and_arviz():
    """Of a model that is no density on R^n: an infinite discrete site, which the guide draws."""

    def model(y, rate=3.0):
        bias = param("bias", tensor(0.5))
        count = sample("count", Poisson(rate))
        deterministic("mean", count + bias)
        with plate("row", len(y)):
            sample("y", Normal(count + bias, 2.0), obs=y)

    def guide(y, rate=3.0):
        sample("count", Poisson(param("mean of count", tensor(4.0))))

    y = tensor([4.0, 5.5, 3.5])
    svi = SVI(model, guide, Adam({"lr": 1e-12}), seed=0)
    result = svi.run(2, y, progress_bar=False)
    count = result.draws()["count"]
    expected = stats.norm.logpdf(y.numpy(), count[..., None] + 0.5, 2.0)
    np.testing.assert_allclose(result.log_likelihood()["y"], expected, rtol=1e-5)
    assert loo(result).pointwise.shape == (3,)
    groups = result.extended(posterior_predictive=True, prior=20, seed=0).groups
    np.testing.assert_array_equal(groups["observed_data"]["y"], y.numpy())
    assert groups["posterior_predictive"]["y"].shape == (1, 1000, 3)
    assert groups["prior_predictive"]["y"].shape == (1, 20, 3)
    assert result.draws().dims["y"] == ("row",)
    mean = result.draws().predict(y, rate=1.0, seed=0)["mean"]
    np.testing.assert_allclose(mean, count + 0.5)
