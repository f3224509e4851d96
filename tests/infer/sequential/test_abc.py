"""`ABC` and `ABCSMC`: exact posteriors where the summary is sufficient, discrete data, refusals."""

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import distributions as dist
from probtorch.effects import deterministic, plate, sample
from probtorch.errors import ArgumentError, InferenceError, ModelError, ShapeError
from probtorch.infer import ABC, ABCSMC, SimulationWarning

SIGMAS = 4.0
Y = 1.0 + 0.8 * np.linspace(-1.5, 1.5, 10)


def level(loc_scale=2.0):
    loc = sample("loc", dist.Normal(0.0, loc_scale))
    with plate("row", 10):
        sample("y", dist.Normal(loc, 1.0))


def mean(data):
    return data["y"].mean()


def coin():
    """Data that are a number computed from other sites."""
    p = sample("p", dist.Beta(1.0, 1.0))
    with plate("toss", 8):
        heads = sample("heads", dist.Bernoulli(p))
    deterministic("count", heads.sum(-1))


# The posterior of `loc` given the mean of the data, which is sufficient.
POSTERIOR = stats.norm(Y.mean() * 4.0 / 4.1, np.sqrt(1.0 / (10 + 0.25)))


@pytest.mark.parametrize("smc", [False, True])
def test_posterior_given_a_sufficient_summary(smc):
    if smc:
        found = ABCSMC(level, 200, summary=mean, epsilon=0.06, seed=0).run({"y": Y})
        assert found.attrs["epsilon"] == 0.06 and found.attrs["epsilons"][0] > 0.06
    else:
        found = ABC(level, 200, 4000, summary=mean, seed=0).run({"y": Y})
    draws = found["loc"][0]
    assert (
        draws.shape == (200,) and (found.sample_stats["distance"] <= found.attrs["epsilon"]).all()
    )
    # Resampled particles have common ancestors: half count.
    assert abs(draws.mean() - POSTERIOR.mean()) < SIGMAS * POSTERIOR.std() / np.sqrt(100)
    assert draws.std() == pytest.approx(POSTERIOR.std(), rel=0.25)


def test_exact_match_of_discrete_data_is_the_exact_posterior():
    found = ABC(coin, 2000, 4000, epsilon=0.1, seed=1).run({"count": 6.0})
    # Of 4000 uniform draws one in 9 gives the count, whatever it is.
    count = found["p"].size
    assert abs(count - 4000 / 9) < SIGMAS * np.sqrt(4000 * 8 / 81)
    assert set(found.posterior) == {"p"} and (found.sample_stats["distance"] == 0.0).all()
    assert stats.kstest(found["p"][0], stats.beta(7, 3).cdf).pvalue > 1e-3
    moved = ABCSMC(coin, 150, epsilon=0.1, seed=1).run({"count": 6.0})["p"][0]
    assert abs(moved.mean() - 0.7) < SIGMAS * stats.beta(7, 3).std() / np.sqrt(75)


def test_own_distance_and_a_simulator_that_is_no_tensor_program():
    rng = np.random.default_rng(0)

    def blackbox():
        loc = sample("loc", dist.Normal(0.0, 2.0))
        deterministic("y", probtorch.tensor(rng.normal(loc.item(), 1.0, 10)))

    def apart(simulated, real):
        return np.abs(simulated.mean(axis=1) - real.mean())

    found = ABC(blackbox, 60, 500, distance=apart, seed=2).run({"y": Y})
    assert abs(found["loc"].mean() - POSTERIOR.mean()) < SIGMAS * 0.5 / np.sqrt(60)


def test_draws_depend_on_the_seed_alone():
    one, same, other = (
        ABCSMC(level, 30, summary=mean, epsilon=0.5, seed=s).run({"y": Y})["loc"] for s in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_data_that_cannot_be_come_close_to_are_told_of():
    with pytest.warns(SimulationWarning, match="stopped before") as caught:
        ABCSMC(level, 20, epsilon=1e-6, min_acceptance=0.4, seed=0).run({"y": Y})
    assert caught[0].filename == __file__
    with pytest.raises(InferenceError, match="no simulation is close"):
        ABC(level, 10, epsilon=1e-9, seed=0).run({"y": Y})


def test_what_does_not_fit_is_refused():
    with pytest.raises(ModelError, match="no site 'z'"):
        ABC(level, 10).run({"z": Y})
    with pytest.raises(ShapeError, match="'y'"):
        ABC(level, 10).run({"y": Y[:3]})
    with pytest.raises(ArgumentError, match="observed"):
        ABC(level, 10).run(Y)
    with pytest.raises(ArgumentError, match="summary"):
        ABC(level, 10, summary="mean")
    with pytest.raises(ShapeError, match="distance"):
        ABC(level, 10, distance=lambda a, b: 0.0).run({"y": Y})

    def nothing():
        sample("y", dist.Normal(0.0, 1.0))

    with pytest.raises(ModelError, match="parameters"):
        ABC(nothing, 10).run({"y": 0.0})
