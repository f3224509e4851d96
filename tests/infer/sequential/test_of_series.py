"""What filters return is asked as any other result: densities, replications, ArviZ, files."""

import pickle

import numpy as np
import pytest
from scipy import stats

from probtorch import distributions as dist
from probtorch.diagnostics import Draws, loo
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import EnsembleKalmanFilter, ParticleFilter

Y = np.array([0.3, 1.1, np.nan, 2.0, 1.4])


def onwards(x, t):
    return dist.Normal(x, 1.0)


def seen(x, t):
    return dist.Normal(x, 0.5 + 0.1 * t)


FILTERS = {
    "particles": lambda: ParticleFilter(dist.Normal(0.0, 1.0), onwards, seen, 800, seed=0),
    "members": lambda: EnsembleKalmanFilter(dist.Normal(0.0, 1.0), onwards, seen, 300, seed=0),
}
every = pytest.mark.parametrize("name", FILTERS)
NOISE = 0.5 + 0.1 * np.arange(5)


def kalman():
    """Means given the data up to each time and given all of them, by the joint normal law."""
    cov = np.minimum.outer(np.arange(1, 6), np.arange(1, 6)).astype(float)

    def given(there):
        gain = cov[:, there] @ np.linalg.inv(cov[np.ix_(there, there)] + np.diag(NOISE[there] ** 2))
        return gain @ Y[there]

    there = np.flatnonzero(~np.isnan(Y))
    return np.array([given(there[there <= t])[t] for t in range(5)]), given(there)


@every
def test_draws_of_the_states_are_named_and_have_their_means(name):
    found = FILTERS[name]().run(Y)
    draws = found.draws()
    assert draws.dims["states"] == ("time",) and found.draws() is draws
    filtered, smoothed = kalman()
    expected = smoothed if name == "particles" else filtered
    # 200 draws or more, standard deviations below 1: five standard errors.
    np.testing.assert_allclose(draws["states"][0].mean(axis=0), expected, atol=0.35)
    if name == "members":
        np.testing.assert_array_equal(draws["states"][0].T, found.members)
        assert set(found.draws(40)["states"][0, :, 0]) <= set(found.members[0])
    assert found.draws(40).num_draws == 40 == found.get_samples()["states"][:40].shape[0]
    table = found.summary()
    assert len(table.rows) == 5
    assert table.notes[-1] in str(table)


@every
@pytest.mark.filterwarnings("ignore::probtorch.diagnostics.InferenceWarning")  # of five rows
def test_densities_of_the_data_are_those_at_the_draws_and_nil_where_data_are_missing(name):
    found = FILTERS[name]().run(Y)
    states = found.draws()["states"]
    expected = np.nan_to_num(stats.norm.logpdf(Y, states, NOISE), nan=0.0)
    np.testing.assert_allclose(found.log_likelihood()["observations"], expected, rtol=1e-10)
    known = Draws({"states": states}, groups={"log_likelihood": {"y": expected}})
    assert loo(found).elpd == pytest.approx(loo(known).elpd)


@every
def test_observations_are_drawn_again_from_the_states(name):
    found = FILTERS[name]().run(Y)
    again = found.predict(seed=1)["observations"]
    states = found.draws()["states"]
    assert again.shape == states.shape
    z = (again - states) / NOISE
    assert abs(z.mean()) < 6.0 / np.sqrt(z.size)
    assert abs((z**2).mean() - 1.0) < 6.0 * np.sqrt(2.0 / z.size)
    np.testing.assert_array_equal(found.replications(1)["observations"], again)
    with pytest.raises(ArgumentError, match=r"(?s)predict.*a seed alone.*1 argument"):
        found.predict(Y)


@every
def test_arviz_and_files_get_states_data_densities_and_replications(name, tmp_path):
    found = FILTERS[name]().run(Y)
    data = found.to_arviz(posterior_predictive=True, seed=1)
    for group in ("posterior_predictive", "log_likelihood"):
        assert data[group]["observations"].dims == ("chain", "draw", "time")
    np.testing.assert_array_equal(data["observed_data"]["observations"], Y)
    again = found.predict(seed=1)["observations"]
    np.testing.assert_array_equal(data["posterior_predictive"]["observations"], again)
    found.save(tmp_path / "states.npz")
    kept = Draws.load(tmp_path / "states.npz")
    np.testing.assert_array_equal(kept["states"], found.draws()["states"])


def test_vectors_with_a_part_missing_have_draws_and_no_densities():
    y = np.array([[0.1, np.nan], [0.4, 0.3]])

    def pair(x, t):
        return dist.Normal(x, 1.0).to_event(1)

    first = dist.Normal(np.zeros(2), 1.0).to_event(1)
    draws = EnsembleKalmanFilter(first, pair, pair, 50, seed=0).run(y).draws()
    assert draws["states"].shape == (1, 50, 2, 2) and "log_likelihood" not in draws.groups
    whole = EnsembleKalmanFilter(first, pair, pair, 50, seed=0).run(np.nan_to_num(y))
    expected = stats.norm.logpdf(np.nan_to_num(y), whole.draws()["states"]).sum(-1)
    np.testing.assert_allclose(whole.log_likelihood()["observations"], expected, rtol=1e-10)
    assert whole.predict(seed=0)["observations"].shape == (1, 50, 2, 2)


def test_states_of_a_pickle_have_their_draws_and_say_what_they_lack():
    found = FILTERS["members"]().run(Y)
    kept = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(kept.draws()["states"], found.draws()["states"])
    with pytest.raises(InferenceError, match=r"(?s)know how they are observed.*run the filter"):
        kept.predict()
