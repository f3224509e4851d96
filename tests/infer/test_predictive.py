"""`Predictive` and `log_likelihood`: laws, all draws at once against one by one, refusals."""

import numpy as np
import pytest
from scipy import stats

from probtorch.core.rng import Generator
from probtorch.diagnostics import Draws
from probtorch.distributions import Bernoulli, HalfNormal, Normal
from probtorch.effects import deterministic, handlers, param, plate, sample
from probtorch.errors import ArgumentError, InferenceError, ModelError, ShapeError
from probtorch.infer import MCMC, NUTS, Predictive, log_likelihood
from probtorch.tensor import tensor

RNG = np.random.default_rng(0)


def line(x, y=None):
    slope = sample("slope", Normal(0.0, 1.0))
    scale = sample("scale", HalfNormal(1.0))
    with plate("row", len(x)):
        mean = deterministic("mean", slope * x)
        return sample("y", Normal(mean, scale), obs=y)


X = np.array([1.0, 2.0, 4.0])


def line_samples(n=4000):
    return {"slope": RNG.normal(2.0, 0.3, size=n), "scale": np.full(n, 0.5)}


# ------------------------------------------------------------------------------ shapes and laws


def test_prior_predictive_has_every_site_with_the_draws_in_front():
    found = Predictive(line, num_samples=7)(X)
    assert {k: tuple(v.shape) for k, v in found.items()} == {
        "slope": (7,), "scale": (7,), "mean": (7, 3), "y": (7, 3),
    }  # fmt: skip


@pytest.mark.parametrize("parallel", [None, True, False])
def test_posterior_predictive_law_is_the_closed_form(parallel):
    n = 4000
    samples = {"slope": RNG.normal(2.0, 0.3, size=n), "scale": np.full(n, 0.5)}
    y = Predictive(line, samples, parallel=parallel, seed=1)(X)["y"].numpy()
    mean, variance = 2.0 * X, (0.3 * X) ** 2 + 0.25
    # 3 means and 3 variances, each within 5 standard errors: false alarm rate 4e-6.
    assert (np.abs(y.mean(0) - mean) < 5 * np.sqrt(variance / n)).all()
    assert (np.abs(y.var(0) - variance) < 5 * variance * np.sqrt(2 / n)).all()


def test_prior_predictive_law_is_the_closed_form():
    n = 20000

    def model():
        mu = sample("mu", Normal(1.0, 3.0))
        sample("y", Normal(mu, 4.0))

    y = Predictive(model, num_samples=n, seed=3)()["y"].numpy()
    # Normal(1, 5); Kolmogorov-Smirnov at 1e-6.
    assert stats.kstest(y, stats.norm(1, 5).cdf).pvalue > 1e-6


@pytest.mark.parametrize("parallel", [True, False])
def test_computed_values_belong_to_their_draws(parallel):
    samples = line_samples(50)
    found = Predictive(line, samples, parallel=parallel)(X)
    np.testing.assert_allclose(found["mean"], samples["slope"][:, None] * X, rtol=1e-14)
    assert found["mean"].dtype == np.float64


def test_chains_and_draws_stay_apart():
    samples = {k: v.reshape(4, 25) for k, v in line_samples(100).items()}
    for given in (samples, Draws(posterior=samples)):
        found = Predictive(line, given)(X)
        assert tuple(found["y"].shape) == (4, 25, 3)
        np.testing.assert_allclose(found["mean"], samples["slope"][..., None] * X)


def test_seed_makes_draws_repeatable_and_leaves_the_default_generator_alone():
    samples = line_samples(30)
    first = Predictive(line, samples, seed=5)(X)["y"].numpy()
    np.testing.assert_array_equal(first, Predictive(line, samples, seed=5)(X)["y"].numpy())
    other = Predictive(line, samples, seed=Generator(6))(X)["y"].numpy()
    assert not np.array_equal(first, other)


def test_new_data_may_have_another_size():
    assert Predictive(line, line_samples(10))(np.arange(8.0))["y"].shape == (10, 8)


def test_draws_of_all_chains_are_independent():
    y = Predictive(line, line_samples(2000), seed=2)(X)["y"].numpy()
    noise = y - y.mean(0)
    # The slope is shared by a row; successive draws share nothing: 5 standard errors.
    assert abs(np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]) < 5 / np.sqrt(2000)


def test_observed_sites_are_returned_when_asked_for():
    samples = line_samples(5)
    y = np.array([1.0, 2.0, 3.0])
    assert "y" not in Predictive(line, samples)(X, y)
    found = Predictive(line, samples, return_sites=["y", "_RETURN"])(X, y)
    np.testing.assert_array_equal(found["y"], np.tile(y, (5, 1)))
    np.testing.assert_array_equal(found["_RETURN"], found["y"])


def test_conditioned_and_parametrised_models_work():
    def model():
        w = param("predictive_test_w", tensor(1.0))
        x = sample("x", Normal(0.0, 1.0))
        deterministic("d", w * x)

    found = Predictive(
        handlers.condition(model, {"x": 2.0}), num_samples=3, params={"predictive_test_w": 5.0}
    )()
    np.testing.assert_array_equal(found["d"], [10.0, 10.0, 10.0])


def test_guide_gives_the_latent_draws():
    def guide(x, y=None):
        sample("slope", Normal(100.0, 0.001))
        sample("scale", HalfNormal(0.001))

    found = Predictive(line, guide=guide, num_samples=20)(X)
    np.testing.assert_allclose(found["mean"].numpy(), np.tile(100.0 * X, (20, 1)), rtol=1e-3)
    assert found["y"].shape == (20, 3) and "slope" not in found


def test_vectorised_trace_has_the_draws_left_of_all_plates():
    trace = Predictive(line, line_samples(6)).get_vectorized_trace(X)
    assert trace["y"].value.shape == (6, 3) and trace["slope"].value.shape == (6, 1)


# ------------------------------------------------------------------ models that bear no batches


def matrix_product(x):
    beta = sample("beta", Normal(0.0, 1.0).expand((3,)).to_event(1))
    with plate("row", x.shape[0]):
        sample("y", Normal(x @ beta, 0.1))


def sum_of_everything(x):
    with plate("row", 3):
        z = sample("z", Normal(0.0, 1.0))
    deterministic("total", z.sum())


def branch(x):
    z = sample("z", Normal(0.0, 1.0))
    deterministic("size", z if z > 0.0 else -z)


@pytest.mark.parametrize(
    "model, samples, site, expected",
    [
        (matrix_product, {"beta": RNG.normal(size=(3, 3))}, "y", None),
        (sum_of_everything, {"z": RNG.normal(size=(5, 3))}, "total", lambda s: s["z"].sum(1)),
        (branch, {"z": RNG.normal(size=9)}, "size", lambda s: np.abs(s["z"])),
    ],
    ids=["matrix product", "sum", "branch"],
)
def test_model_that_bears_no_batch_is_run_draw_by_draw(model, samples, site, expected):
    x = RNG.normal(size=(3, 3))
    found = Predictive(model, samples)(x)[site].numpy()
    if expected is not None:
        np.testing.assert_allclose(found, expected(samples), rtol=1e-14)
    else:
        # Noise of 0.1: 9 numbers within 6 standard deviations.
        assert np.abs(found - samples["beta"] @ x.T).max() < 0.6
    with pytest.raises(InferenceError, match=r"(?s)cannot be run for all draws.*one by one"):
        Predictive(model, samples, parallel=True)(x)


def test_model_that_crosses_draws_is_noticed_before_it_takes_memory():
    sizes = []

    def model():
        a, b = (sample(name, Normal(np.zeros(2), 1.0).to_event(1)) for name in "ab")
        crossed = a[..., None, :] + b
        sizes.append(crossed.numel())
        deterministic("c", crossed.sum())

    samples = {name: RNG.normal(size=(2000, 2)) for name in "ab"}
    found = Predictive(model, samples)()["c"].numpy()
    np.testing.assert_allclose(found, (samples["a"] + samples["b"]).sum(-1), rtol=1e-12)
    assert max(sizes) <= 3 * 3 * 2


def test_discrete_sites_are_predicted_too():
    def model(n):
        p = sample("p", HalfNormal(0.1))
        with plate("row", n):
            sample("k", Bernoulli(probs=p))

    found = Predictive(model, {"p": np.full(2000, 0.25)}, seed=0)(4)["k"].numpy()
    assert set(np.unique(found)) == {0, 1}
    # 8000 draws: 5 standard errors.
    assert abs(found.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 8000)


# ------------------------------------------------------------------------------ log likelihood


def test_log_likelihood_is_that_of_scipy():
    samples, y = line_samples(40), np.array([1.0, 2.0, 3.0])
    expected = stats.norm.logpdf(y, samples["slope"][:, None] * X, samples["scale"][:, None])
    found = log_likelihood(line, samples, X, y)
    assert list(found) == ["y"]
    np.testing.assert_allclose(found["y"], expected, rtol=1e-12)
    folded = {k: v.reshape(2, 20) for k, v in samples.items()}
    np.testing.assert_allclose(
        log_likelihood(line, folded, X, y=y)["y"], expected.reshape(2, 20, 3), rtol=1e-12
    )


def test_log_likelihood_ignores_the_scale_and_keeps_the_mask():
    def model(y):
        x = sample("x", Normal(0.0, 1.0))
        with handlers.scale(scale=10.0), handlers.mask(mask=tensor([True, False])), plate("r", 2):
            sample("y", Normal(x, 1.0), obs=y)

    found = log_likelihood(model, {"x": np.zeros(3)}, np.array([1.0, np.nan]))["y"]
    np.testing.assert_allclose(found, np.tile([stats.norm.logpdf(1), 0.0], (3, 1)))


def test_log_likelihood_of_a_model_with_branches_is_right():
    def model(y):
        z = sample("z", Normal(0.0, 1.0))
        sample("y", Normal(z if z > 0.0 else -z, 1.0), obs=y)

    z = RNG.normal(size=50)
    found = log_likelihood(model, {"z": z}, 0.5)["y"]
    np.testing.assert_allclose(found, stats.norm.logpdf(0.5, np.abs(z)), rtol=1e-12)


def test_log_likelihood_needs_every_latent_site():
    with pytest.raises(ModelError, match=r"(?s)no samples for site 'scale'.*expected.*got.*fix"):
        log_likelihood(line, {"slope": np.zeros(3)}, X, np.zeros(3))


GAPPY, THERE = tensor([4.0, 5.0, 0.0, 6.0]), tensor([True, True, False, True])


def gappy(y=None, rows=4):
    mu = sample("mu", Normal(0.0, 10.0))
    with plate("row", rows):
        sample("y", Normal(mu, 0.5), obs=y, obs_mask=None if y is None else THERE)


@pytest.mark.parametrize("rows", [4, 7])
def test_data_with_gaps_are_not_returned_as_predictions(rows):
    """Draws of `y` joined with its data are no draws of data that are left out."""
    mcmc = MCMC(NUTS(gappy), 300, 200, num_chains=2, seed=0, progress_bar=False)
    draws = mcmc.run(GAPPY)
    assert draws["y"][..., 0].std() < 1e-6 and draws["y"][..., 2].std() > 0.3
    for samples in (draws, mcmc.get_samples()):
        for sites in ((), ["y"]):
            found = Predictive(gappy, samples, return_sites=sites, seed=1)(rows=rows)
            assert list(found) == ["y"]
            y = found["y"].numpy().reshape(-1, rows)
            # Of the posterior of mu 0.29 and of the noise 0.5: five standard errors.
            np.testing.assert_allclose(y.std(0), np.hypot(0.5, 0.5 / np.sqrt(3)), rtol=0.2)
        # With the data, it is what the model makes of them.
        found = Predictive(gappy, samples, return_sites=["y"], seed=1)(GAPPY)["y"].numpy()
        np.testing.assert_allclose(found, samples["y"])


def test_sites_that_are_named_like_gaps_keep_their_samples():
    def model():
        sample("y", Normal(0.0, 1.0))
        sample("y_unobserved", Normal(0.0, 1.0))
        sample("z", Normal(0.0, 1.0))

    samples = {"y": np.arange(3.0), "y_unobserved": np.ones(3)}
    found = Predictive(model, samples, return_sites=["y", "y_unobserved"], seed=0)()
    np.testing.assert_array_equal(found["y"].numpy(), samples["y"])
    np.testing.assert_array_equal(found["y_unobserved"].numpy(), samples["y_unobserved"])


# ------------------------------------------------------------------------------ refusals


def test_unknown_sample_is_refused_with_the_closest_name():
    with pytest.raises(ModelError, match=r"(?s)no site 'slop'.*did you mean 'slope'"):
        Predictive(line, {"slop": np.zeros(3), "scale": np.ones(3)})(X)


def test_unknown_return_site_is_refused_with_the_closest_name():
    with pytest.raises(ModelError, match=r"(?s)no site 'meen'.*did you mean 'mean'"):
        Predictive(line, line_samples(3), return_sites=["meen"])(X)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, "expected: posterior_samples, or num_samples"),
        (
            {"posterior_samples": {"slope": np.zeros(3)}, "guide": line},
            "posterior_samples or guide",
        ),
    ],
)
def test_unclear_number_of_draws_is_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        Predictive(line, **arguments)


def test_number_of_draws_that_contradicts_the_samples_is_refused():
    with pytest.raises(ArgumentError, match="num_samples=3, as many as there are"):
        Predictive(line, line_samples(3), num_samples=5)(X)


@pytest.mark.parametrize(
    "samples, words",
    [
        ({"slope": np.zeros((3, 2, 2)), "scale": np.ones(3)}, "the same leading dims"),
        ({"slope": np.float64(1.0)}, r"expected: shape \(num_samples"),
        ({"slope": np.zeros(0)}, "at least one draw"),
    ],
)
def test_samples_of_wrong_shape_are_refused(samples, words):
    with pytest.raises(ShapeError, match=words):
        Predictive(line, samples)(X)
