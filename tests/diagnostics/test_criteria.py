"""`loo`, `waic`, `compare` and the scores: a conjugate model's closed forms, ArviZ's numbers."""

import warnings

import numpy as np
import pytest
from scipy import stats

from probtorch.diagnostics import (
    Draws,
    InferenceWarning,
    compare,
    crps_empirical,
    energy_score_empirical,
    loo,
    loo_pit,
    loo_score,
    stacking_weights,
    waic,
)
from probtorch.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(4)
Y = RNG.normal(1.0, 1.0, 12)
N, PRIOR = len(Y), 3.0


def posterior_of(y):
    """Mean and sd of a normal mean given y, with noise of 1 and a prior of N(0, 3)."""
    precision = len(y) + PRIOR**-2
    return y.sum() / precision, precision**-0.5


def conjugate_draws(count=20000, y=Y):
    mean, sd = posterior_of(y)
    mu = RNG.normal(mean, sd, (4, count // 4, 1))
    return Draws(
        {"mu": mu[..., 0]},
        groups={
            "log_likelihood": {"y": stats.norm.logpdf(y, mu, 1.0)},
            "posterior_predictive": {"y": mu + RNG.normal(size=(4, count // 4, N))},
            "observed_data": {"y": y},
        },
    )


DRAWS = conjugate_draws()
WITHOUT = [posterior_of(np.delete(Y, i)) for i in range(N)]
EXACT = np.array([stats.norm.logpdf(y, m, np.hypot(1.0, s)) for y, (m, s) in zip(Y, WITHOUT)])


def test_leave_one_out_of_a_conjugate_model_is_the_closed_form():
    found = loo(DRAWS, reff=1.0)
    # The log of a mean of 20,000 weights whose spread is below 0.5: five standard errors.
    np.testing.assert_allclose(found.pointwise, EXACT, atol=5 * 0.5 / np.sqrt(20000))
    assert found.elpd == pytest.approx(EXACT.sum(), abs=0.05)
    assert (found.pareto_k < 0.5).all() and not len(found.unreliable)
    assert found.p == pytest.approx(1.0, abs=0.4)
    assert found.se == pytest.approx(np.sqrt(N) * EXACT.std(), rel=0.05)
    assert "reliable" in repr(found)


def test_waic_of_a_conjugate_model_is_the_closed_form():
    mean, sd = posterior_of(Y)
    lpd = stats.norm.logpdf(Y, mean, np.hypot(1.0, sd))
    # The variance of -(y - mu)^2 / 2 under a normal posterior.
    p = sd**2 * (Y - mean) ** 2 + sd**4 / 2
    found = waic(DRAWS)
    np.testing.assert_allclose(found.p_pointwise, p, rtol=0.1)
    assert found.elpd == pytest.approx((lpd - p).sum(), abs=0.02)


def test_numbers_are_arvizs(az):
    if int(az.__version__.split(".")[0]) >= 1:
        pytest.skip("az.waic and the names of az.loo are those of 0.2x")
    data = DRAWS.to_arviz()
    theirs, ours = az.loo(data, pointwise=True, reff=0.9), loo(DRAWS, reff=0.9)
    np.testing.assert_allclose(ours.pointwise, theirs.loo_i, rtol=1e-8)
    assert (ours.se, ours.p) == pytest.approx((theirs.se, theirs.p_loo), rel=1e-6)
    assert loo(DRAWS).elpd == pytest.approx(az.loo(data).elpd_loo, rel=1e-6)
    assert waic(DRAWS).elpd == pytest.approx(az.waic(data).elpd_waic, rel=1e-4)


def test_draws_of_a_guide_are_weighted():
    """Draws that are too wide, with the weights that mend it."""
    mean, sd = posterior_of(Y)
    mu = RNG.normal(mean, 2 * sd, (1, 20000))
    weight = stats.norm.logpdf(mu, mean, sd) - stats.norm.logpdf(mu, mean, 2 * sd)
    weight -= np.log(np.exp(weight).sum())
    log_likelihood = {"y": stats.norm.logpdf(Y, mu[..., None], 1.0)}
    draws = Draws({"mu": mu}, {"log_weight": weight}, groups={"log_likelihood": log_likelihood})
    np.testing.assert_allclose(loo(draws).pointwise, EXACT, atol=0.04)


def test_observation_that_nothing_predicts_is_warned_of():
    y = np.append(Y[:-1], 40.0)
    with pytest.warns(InferenceWarning, match=r"(?s)1 of 12.*at 11.*loo_moment_match"):
        found = loo(conjugate_draws(2000, y))
    np.testing.assert_array_equal(found.unreliable, [11])
    mended = found.replaced([11], [-5.0], [0.1])
    assert mended.pointwise[11] == -5.0 and not len(mended.unreliable)
    assert mended.p_pointwise[11] + mended.pointwise[11] == pytest.approx(
        found.p_pointwise[11] + found.pointwise[11]
    )


def test_waic_says_where_it_is_unreliable():
    with pytest.warns(InferenceWarning, match=r"(?s)waic.*[0-9]+ of 12.*use loo"):
        waic(conjugate_draws(2000, np.append(Y[:-1], 15.0)))


# ---------------------------------------------------------------------------------- several models


def test_stacking_weights_maximise_the_density_of_the_mixture():
    log_density = RNG.normal(-1.0, 0.6, (2, 40))
    grid = np.linspace(0.0, 1.0, 20001)[:, None]
    p = np.exp(log_density)
    best = grid[np.log(grid * p[0] + (1.0 - grid) * p[1]).mean(axis=1).argmax(), 0]
    np.testing.assert_allclose(stacking_weights(log_density), [best, 1.0 - best], atol=2e-4)
    # A model that is worse everywhere adds nothing.
    worse = np.vstack([log_density, log_density.min(axis=0) - 1.0])
    np.testing.assert_allclose(stacking_weights(worse), [best, 1.0 - best, 0.0], atol=1e-3)


def test_models_are_compared_observation_by_observation():
    good = loo(DRAWS)
    wrong = loo(DRAWS.with_group("log_likelihood", {"y": DRAWS.groups["log_likelihood"]["y"] - 1}))
    table = compare({"wrong": wrong, "good": good})
    assert table.names == ("good", "wrong")
    np.testing.assert_allclose(table.difference, [0.0, 12.0], atol=1e-8)
    np.testing.assert_allclose(table.difference_se, 0.0, atol=1e-6)
    np.testing.assert_allclose(table.weight, [1.0, 0.0], atol=1e-4)
    assert repr(table).splitlines()[1].startswith("good")


def test_what_cannot_be_compared_is_refused():
    found = loo(DRAWS)
    with pytest.raises(ArgumentError, match=r"(?s)two models.*a: loo, b: waic"):
        compare({"a": found, "b": waic(DRAWS)})
    with pytest.raises(ShapeError, match=r"(?s)the same observations.*same data"):
        stacking_weights([found.pointwise, found.pointwise[1:]])
    for given in ({"a": found, "b": found}, [DRAWS, DRAWS]):
        with pytest.raises(ArgumentError, match=r"(?s)one after the other.*compare\("):
            stacking_weights(given)
    two = DRAWS.with_group("log_likelihood", {"a": np.zeros((4, 5000)), "b": np.zeros((4, 5000))})
    with pytest.raises(ArgumentError, match=r"(?s)one observed site.*a, b.*var_name"):
        loo(two)
    with pytest.raises(ArgumentError, match=r"(?s)log_likelihood.*extended"):
        loo(Draws({"x": np.zeros((1, 50))}))


# ------------------------------------------------------------------------------------------- scores


def test_crps_of_a_normal_is_the_closed_form():
    x, y = RNG.normal(1.0, 2.0, (20000, 3)), np.array([-3.0, 1.0, 4.0])
    z = (y - 1.0) / 2.0
    exact = 2.0 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    # Each a mean of 20,000 distances whose spread is at most 2: five standard errors.
    np.testing.assert_allclose(crps_empirical(x, y), exact, atol=5 * 2 / np.sqrt(20000))
    few = x[:200]
    distances = np.abs(few[:, None] - few).mean(axis=(0, 1))
    np.testing.assert_allclose(crps_empirical(few, y), np.abs(few - y).mean(0) - distances / 2)
    one = energy_score_empirical(few[..., None], y[:, None])
    np.testing.assert_allclose(one, crps_empirical(few, y))


def test_energy_score_in_blocks_is_the_mean_of_all_distances(monkeypatch):
    x, y = RNG.normal(size=(30, 4, 2)), RNG.normal(size=(4, 2))
    apart = np.linalg.norm(x[:, None] - x, axis=-1).mean(axis=(0, 1))
    exact = np.linalg.norm(x - y, axis=-1).mean(axis=0) - apart / 2
    monkeypatch.setattr("probtorch.diagnostics.scores.BLOCK_ELEMENTS", 7 * x.size)
    np.testing.assert_allclose(energy_score_empirical(x, y), exact)


def test_probabilities_and_scores_without_each_observation_are_the_closed_form():
    exact = [stats.norm.cdf(y, m, np.hypot(1.0, s)) for y, (m, s) in zip(Y, WITHOUT)]
    # Weighted shares of 20,000 draws: five standard errors with a quarter of them effective.
    np.testing.assert_allclose(loo_pit(DRAWS), exact, atol=5 * 0.5 / np.sqrt(5000))
    scale = np.array([np.hypot(1.0, s) for _, s in WITHOUT])
    z = (Y - [m for m, _ in WITHOUT]) / scale
    near = scale * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z))
    apart = 2 * scale / np.sqrt(np.pi)
    np.testing.assert_allclose(loo_score(DRAWS), near - apart / 2, atol=0.06)
    scaled = near / apart + np.log(apart) / 2
    np.testing.assert_allclose(loo_score(DRAWS, kind="scrps"), scaled, atol=0.06)


def test_probabilities_of_counts_are_uniform_where_the_model_is_right():
    y = RNG.poisson(2.0, 400)
    draws = Draws(
        {"x": np.zeros((1, 1000))},
        groups={
            "log_likelihood": {"y": np.zeros((1, 1000, 400))},
            "posterior_predictive": {"y": RNG.poisson(2.0, (1, 1000, 400))},
            "observed_data": {"y": y},
        },
    )
    # Kolmogorov-Smirnov at 1e-6; without the share of ties it is far from it.
    assert stats.kstest(loo_pit(draws), "uniform").pvalue > 1e-6


def test_scores_say_what_is_missing():
    bare = Draws({"x": np.zeros((1, 50))}, groups={"log_likelihood": {"y": np.zeros((1, 50, 2))}})
    with pytest.raises(ArgumentError, match=r"(?s)'y' among.*observed_data.*with_group"):
        loo_pit(bare)
    with pytest.raises(ArgumentError, match=r"(?s)'crps' or 'scrps'.*'mse'"):
        loo_score(DRAWS, kind="mse")
    with pytest.raises(ShapeError, match=r"(?s)pred of shape.*draws first"):
        crps_empirical(np.zeros((3, 2)), np.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert crps_empirical([2.0], 5.0) == 3.0
