"""Leave-one-out where importance sampling fails: closed forms of conjugate models."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from probtorch.diagnostics import (
    Draws,
    InferenceWarning,
    diagnose,
    loo,
    loo_pit,
    loo_score,
    stacking_weights,
    waic,
)
from probtorch.distributions import HalfNormal, MultivariateNormal, Normal, Poisson
from probtorch.effects import handlers, plate, sample
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer import (
    MCMC,
    NUTS,
    Predictive,
    Target,
    check,
    loo_kfold,
    loo_moment_match,
    power_sensitivity,
    reloo,
)
from probtorch.infer.results import make_draws
from probtorch.tensor import tensor
from tests.infer.remote.forked import forked_pool, quiet

RNG = np.random.default_rng(1)
Y = np.array([0.3, -1.0, 0.8, 5.5, 0.1])


def rows(y):
    """Every row has a mean of its own: without its observation it is that of the prior."""
    with plate("row", len(y)):
        theta = sample("theta", Normal(0.0, 3.0))
        sample("y", Normal(theta, 1.0), obs=y)


def gaussian(target, count, seed=0):
    """Draws of a density that is known to be normal, from its values alone."""
    dim, rng = target.dim, np.random.default_rng(seed)
    value = lambda q: float(target.logdensity(tensor(q)))
    eye, zero = np.eye(dim), np.zeros(dim)
    base = value(zero)
    plus, minus = (np.array([value(s * e) for e in eye]) for s in (1.0, -1.0))
    gradient, hessian = (plus - minus) / 2, np.diag(plus + minus - 2 * base)
    for i in range(dim):
        for j in range(i):
            both = value(eye[i] + eye[j]) - plus[i] - plus[j] + base
            hessian[i, j] = hessian[j, i] = both
    covariance = np.linalg.inv(-hessian)
    q = rng.multivariate_normal(covariance @ gradient, covariance, size=(2, count // 2))
    return make_draws(target, q, {})


def exactly(model):
    return gaussian(Target.from_model(model), 4000)


ROWS = gaussian(Target.from_model(rows, tensor(Y)), 8000)
EXACT = stats.norm.logpdf(Y, 0.0, np.sqrt(10.0))


def line(x, y):
    beta = sample("beta", MultivariateNormal(tensor([0.0, 0.0]), 9.0 * tensor(np.eye(2))))
    with plate("row", len(y)):
        sample("y", Normal(beta[0] + beta[1] * x, 0.5), obs=y)


X = np.array([-1.0, -0.5, 0.0, 0.5, 2.0])
Z = np.array([-0.8, -0.7, 0.2, 0.4, -0.5])


def line_without(left_out):
    """Log densities of the rows left out, jointly normal with the others."""
    design = np.stack([np.ones(5), X], axis=1)
    covariance = 9.0 * design @ design.T + 0.25 * np.eye(5)
    kept = np.setdiff1d(np.arange(5), left_out)
    gain = covariance[np.ix_(left_out, kept)] @ np.linalg.inv(covariance[np.ix_(kept, kept)])
    mean = gain @ Z[kept]
    variance = np.diag(
        covariance[np.ix_(left_out, left_out)] - gain @ covariance[np.ix_(kept, left_out)]
    )
    return stats.norm.logpdf(Z[left_out], mean, np.sqrt(variance))


def test_moved_draws_give_the_closed_form():
    with pytest.warns(InferenceWarning, match="unreliable"):
        before = loo(ROWS)
    after = loo_moment_match(ROWS)
    assert len(before.unreliable) and not len(after.unreliable)
    # Half of 8000 draws moved to the prior, weighted by at most 2: five standard errors.
    np.testing.assert_allclose(after.pointwise, EXACT, atol=5 * 1.5 / np.sqrt(4000))
    assert np.abs(before.pointwise - EXACT).max() > 2 * np.abs(after.pointwise - EXACT).max()


def test_moved_draws_of_correlated_parameters_give_the_closed_form():
    draws = gaussian(Target.from_model(line, X, tensor(Z)), 8000)
    with pytest.warns(InferenceWarning):
        before = loo(draws)
    assert list(before.unreliable) == [4]
    after = loo_moment_match(draws, before)
    assert after.pareto_k[4] < 0.4
    np.testing.assert_allclose(after.pointwise[4], line_without(np.array([4]))[0], atol=0.06)
    np.testing.assert_array_equal(after.pointwise[:4], before.pointwise[:4])


def test_fits_without_an_observation_give_the_closed_form():
    with pytest.warns(InferenceWarning):
        before = loo(ROWS)
    after = reloo(ROWS, before, fit=exactly)
    bad = before.unreliable
    # 4000 independent draws, whose density varies as much as its mean: five standard errors.
    np.testing.assert_allclose(after.pointwise[bad], EXACT[bad], atol=5 / np.sqrt(4000) * 1.5)
    assert np.isneginf(after.pareto_k[bad]).all()


def test_an_observation_that_no_draw_comes_near_is_told_of():
    """24 standard deviations out: one draw in the tail is all of the mean."""
    y = np.append(np.linspace(-1.0, 1.0, 9), 24.0)

    def level(y):
        mu = sample("mu", Normal(0.0, 30.0))
        with plate("row", len(y)):
            sample("y", Normal(mu, 1.0), obs=y)

    draws = gaussian(Target.from_model(level, tensor(y)), 4000)
    with pytest.warns(InferenceWarning):
        before = loo(draws)
    assert list(before.unreliable) == [9]
    with pytest.warns(
        InferenceWarning, match=r"(?s)reloo: 1 of 1 .* at observations 9\n.*StudentT"
    ):
        reloo(draws, before, fit=exactly)
    with pytest.warns(InferenceWarning, match=r"(?s)loo_kfold: 1 of 10 .* at observations 9\n"):
        loo_kfold(draws, 10, fit=exactly)


def test_parts_that_are_left_out_are_those_of_the_closed_form():
    draws = gaussian(Target.from_model(line, X, tensor(Z)), 1000)
    folds = np.array([0, 0, 1, 1, 1])
    found = loo_kfold(draws, folds=folds, fit=exactly)
    exact = np.concatenate([line_without(np.flatnonzero(folds == part)) for part in (0, 1)])
    np.testing.assert_allclose(found.pointwise, exact, atol=0.25)
    assert found.kind == "kfold" and found.pareto_k is None
    assert found.p == pytest.approx(loo_kfold(draws, 5, fit=exactly).p, abs=5.0)


def test_by_itself_it_samples_by_nuts():
    mcmc = MCMC(NUTS(rows), 150, 100, num_chains=2, seed=0, progress_bar=False)
    draws = mcmc.run(tensor(Y[:2]))
    found = loo_kfold(draws, folds=[0, 1], seed=1)
    # A mean over 300 draws of a density that varies as much as its mean.
    np.testing.assert_allclose(found.pointwise, EXACT[:2], atol=0.5)


def test_an_engine_that_has_run_stands_for_its_draws():
    engine, result = SimpleNamespace(draws=ROWS), SimpleNamespace(draws=lambda: ROWS)
    for function in (loo_moment_match, waic, loo_pit, diagnose, power_sensitivity):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InferenceWarning)
            found = [repr(function(x)) for x in (ROWS, engine, result)]
        assert found[0] == found[1] == found[2]
    predicted = Predictive(rows, engine, return_sites=["y"])(tensor(Y))
    assert predicted["y"].shape == (2, 4000, 5)
    elpds = [loo_moment_match(ROWS), loo_moment_match(engine)]
    assert stacking_weights(elpds) == pytest.approx([0.5, 0.5])
    for wrong, fix in (({"theta": np.zeros((1, 9))}, "Draws"), (3.0, "what run")):
        with pytest.raises(ArgumentError, match=rf"(?s)loo\(draws\).*{fix}"):
            loo(wrong)


def test_draws_without_a_model_are_refused():
    bare = Draws({"x": np.zeros((1, 50))}, groups={"log_likelihood": {"y": np.zeros((1, 50, 2))}})
    for function in (loo_moment_match, reloo, loo_kfold):
        with pytest.raises(InferenceError, match=r"(?s)know their model.*mcmc\.draws"):
            function(bare)
    with pytest.raises(InferenceError, match=r"(?s)draws of the model.*ndarray"):
        reloo(ROWS, loo_moment_match(ROWS).replaced([0], [0.0], [2.0]), fit=lambda _: np.zeros(3))
    with pytest.raises(ArgumentError, match=r"(?s)2 to 5 parts of 5"):
        loo_kfold(ROWS, 6)
    with pytest.raises(ShapeError, match=r"(?s)one number per observation.*\(3,\)"):
        loo_kfold(ROWS, folds=[0, 1, 2])


@quiet
def test_refits_on_an_executor_are_those_here():
    def model(y):
        mu = sample("mu", Normal(0.0, 3.0))
        with plate("row", len(y)):
            sample("y", Normal(mu, 1.0), obs=y)

    mcmc = MCMC(NUTS(model), 300, 200, num_chains=2, seed=0, progress_bar=False)
    mcmc.diagnose = False
    draws = mcmc.run(tensor([0.0, 0.5, 1.0, 1.5]))
    expected = loo_kfold(draws, 2, seed=1)
    with forked_pool() as pool:
        got = loo_kfold(draws, 2, seed=1, executor=pool)
    np.testing.assert_array_equal(got.pointwise, expected.pointwise)


# ------------------------------------------------------------------------------- data with gaps

GAPPY = np.array([0.3, -1.0, 99.0, 0.8, 0.1])
SEEN = np.array([True, True, False, True, True])


def shared(y=None):
    mu = sample("mu", Normal(0.0, 3.0))
    with plate("row", 5), handlers.mask(mask=tensor(SEEN)):
        sample("y", Normal(mu, 1.0), obs=y)


def joined(y=None):
    mu = sample("mu", Normal(0.0, 3.0))
    with plate("row", 5):
        sample("y", Normal(mu, 1.0), obs=y, obs_mask=tensor(SEEN))


def wrapped(y=None):
    mu = sample("mu", Normal(0.0, 3.0))
    with plate("row", 5):
        sample("y", Normal(mu, 1.0).mask(tensor(SEEN)), obs=y)


def alone(y=None):
    mu = sample("mu", Normal(0.0, 3.0))
    with plate("row", 4):
        sample("y", Normal(mu, 1.0), obs=y)


@pytest.mark.parametrize(
    "model, placeholder", [(shared, 99.0), (shared, np.nan), (joined, 99.0), (wrapped, 99.0)]
)
def test_gaps_in_the_data_are_no_observations(model, placeholder):
    """What stands there is compared with nothing: all is as for the rows that there are."""
    name = "y_observed" if model is joined else "y"
    y = np.where(SEEN, GAPPY, placeholder)
    settings = {"num_samples": 500, "warmup_steps": 200, "num_chains": 2, "seed": 0}
    draws = MCMC(NUTS(model), progress_bar=False, **settings).run(tensor(y))
    whole = MCMC(NUTS(alone), progress_bar=False, **settings).run(tensor(GAPPY[SEEN]))
    np.testing.assert_array_equal(
        draws.groups["observed_data"][name], np.where(SEEN, GAPPY, np.nan)
    )
    for criterion in (loo, waic, loo_moment_match, reloo):
        found, expected = criterion(draws), criterion(whole)
        assert np.isnan(found.pointwise[2]) and found.count == 4
        np.testing.assert_allclose(found.pointwise[SEEN], expected.pointwise, atol=0.1)
        assert abs(found.se - expected.se) < 0.1 and abs(found.elpd - expected.elpd) < 0.3
        assert "4 observations" in repr(found)
    for score in (loo_pit, loo_score):
        found = score(draws)
        assert np.isnan(found[2])
        np.testing.assert_allclose(found[SEEN], score(whole), atol=0.15)
    parts = loo_kfold(draws, folds=[0, 1, 2, 0, 1])
    assert parts.count == 4 and np.isnan(parts.pointwise[2])
    weights = stacking_weights([loo(draws), waic(draws)])
    assert weights.sum() == pytest.approx(1.0)
    with pytest.raises(ShapeError, match="gaps at"):
        stacking_weights([loo(draws).pointwise, np.zeros(5)])
    report = check(model, tensor(y), draws=draws, parts=["prior", "predictions"])
    assert all(section.good for section in report.sections), report


def test_data_that_are_out_of_the_density_here_and_there_are_no_gaps():
    """A mask that follows a latent site."""

    def model(y):
        z = sample("z", Normal(0.0, 1.0))
        with plate("row", 3), handlers.mask(mask=z > tensor([-9.0, 0.0, 9.0])):
            sample("y", Normal(0.0, 1.0), obs=y)

    target = Target.from_model(model, tensor([1.0, 2.0, 3.0]))
    shown = target.data_at(np.array([[-1.0], [0.3], [1.0]]))["y"]
    np.testing.assert_array_equal(shown, [1.0, 2.0, np.nan])


def test_counts_and_vectors_have_gaps():
    def model(y, x):
        rate = sample("rate", HalfNormal(3.0))
        with plate("row", 3), handlers.mask(mask=tensor([True, False, True])):
            sample("y", Poisson(rate), obs=y)
            sample("x", Normal(tensor([0.0, 0.0]), rate).to_event(1), obs=x)

    x = np.arange(6.0).reshape(3, 2)
    target = Target.from_model(model, tensor([1, 7, 2]), tensor(x))
    draws = make_draws(target, 1.5 + 0.1 * np.random.default_rng(0).normal(size=(2, 100, 1)), {})
    data = draws.groups["observed_data"]
    np.testing.assert_array_equal(data["y"], [1.0, np.nan, 2.0])
    np.testing.assert_array_equal(data["x"], np.where([[True], [False], [True]], x, np.nan))
    assert loo(draws, "x").count == 2 == loo(draws, "y").count
