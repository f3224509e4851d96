"""Runs that fit a budget, runs that go on, and what a result says of its warm-up."""

import time
import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics.checks import smallest_ess
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import HMC, MCMC, NUTS, Target
from probtorch.infer.mcmc.budget import Budget

SCALES = np.array([1.0, 0.1, 3.0])


def target():
    return Target.from_density(lambda q: -0.5 * ((q / probtorch.tensor(SCALES)) ** 2).sum(), 3)


def sampler(num_samples=100, kernel=NUTS, **options):
    options = {"num_chains": 2, "seed": 1, "progress_bar": False, **options}
    return MCMC(kernel(target()), num_samples, **options)


def quiet(run, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InferenceWarning)
        return run(*args, **kwargs)


@pytest.mark.parametrize("kernel", [NUTS, HMC])
@pytest.mark.parametrize("thinning", [1, 3])
def test_more_draws_are_those_of_one_longer_run(kernel, thinning):
    mcmc = sampler(60, kernel, thinning=thinning)
    quiet(mcmc.run)
    quiet(mcmc.more, 30)
    draws = quiet(mcmc.more, 60)
    longer = quiet(sampler(150, kernel, thinning=thinning).run)
    assert draws is mcmc.draws
    np.testing.assert_array_equal(draws.positions, longer.positions)
    for name, values in longer.sample_stats.items():
        np.testing.assert_array_equal(draws.sample_stats[name], values)
    np.testing.assert_array_equal(draws["x"], longer["x"])
    assert mcmc.get_samples()["x"].shape[0] == 2 * 150 // thinning


def test_warmup_is_kept_when_more_is_drawn():
    mcmc = sampler(20, keep_warmup=True, warmup_steps=30)
    quiet(mcmc.run)
    draws = quiet(mcmc.more, 20)
    assert draws.num_draws == 40
    assert draws.groups["warmup_posterior"]["x"].shape == (2, 30, 3)


def test_a_run_until_enough_effective_draws_has_them_and_not_many_more():
    mcmc = sampler(50)
    draws = mcmc.run(until_ess=900)
    assert smallest_ess(draws) >= 900
    assert 300 < draws.num_draws < 1500
    again = sampler(50).run(until_ess=900)
    np.testing.assert_array_equal(draws.positions, again.positions)


def test_enough_is_enough():
    draws = quiet(sampler(50).run, until_ess=1.0)
    assert draws.num_draws == 50


def test_a_run_ends_when_its_time_is_up_and_keeps_what_it_drew():
    mcmc = sampler(10**7, num_chains=1)
    began = time.perf_counter()
    draws = quiet(mcmc.run, max_seconds=1.5)
    assert time.perf_counter() - began < 60.0
    assert 0 < draws.num_draws < 10**7
    assert draws.attrs["interrupted"]
    # It can go on.
    more = quiet(mcmc.more, 10)
    assert more.num_draws == draws.num_draws + 10
    assert not more.attrs["interrupted"]


def test_a_run_whose_time_is_up_between_two_parts_says_so(monkeypatch):
    left = iter([None, 0.0])  # at the start, and when more was found to be missing
    monkeypatch.setattr(Budget, "seconds_left", lambda self: next(left))
    draws = quiet(sampler(50).run, until_ess=900, max_seconds=60.0)
    assert draws.num_draws == 50 and draws.attrs["interrupted"]


def test_time_that_is_too_short_for_any_draw_is_an_error():
    with pytest.raises(InferenceError, match="max_seconds") as error:
        sampler(10, warmup_steps=10**7).run(max_seconds=0.2)
    assert "fewer warmup_steps" in str(error.value)


@pytest.mark.parametrize("wrong", [{"until_ess": 0}, {"until_ess": "all"}, {"max_seconds": -1.0}])
def test_a_budget_that_is_none_is_refused(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        sampler().run(**wrong)


def test_going_on_without_a_run_is_refused():
    with pytest.raises(InferenceError, match="call run"):
        sampler().more(10)


def test_unknown_extra_fields_are_refused_before_the_run():
    with pytest.raises(ArgumentError, match="did you mean 'diverging'"):
        sampler(10**9).run(extra_fields=("divergin",))
    mcmc = sampler(20)
    quiet(mcmc.run, extra_fields=("potential_energy", "accept_prob"))
    assert set(mcmc.get_extra_fields()) == {"potential_energy", "accept_prob"}


def test_400_warmup_draws_are_the_default_and_their_gradients_are_counted():
    mcmc = sampler(20, keep_warmup=True)
    draws = quiet(mcmc.run)
    assert draws.attrs["tuning_steps"] == mcmc.num_warmup == 400
    steps = draws.groups["warmup_sample_stats"]["n_steps"].sum()
    # Those of the starts beside them.
    assert 0 < draws.attrs["warmup_gradients"] - steps < 400


def test_what_was_adapted_can_be_given_to_the_next_run():
    mcmc = sampler(300)
    mcmc.run()
    first = mcmc.adapted[0]
    np.testing.assert_allclose(first.variance["x"], SCALES**2, rtol=0.3)
    kernel = NUTS(
        target(), step_size=first.step_size, adapt_step_size=False,
        inverse_mass_matrix=first.variance, adapt_mass_matrix=False,
    )  # fmt: skip
    again = MCMC(kernel, 500, warmup_steps=0, num_chains=2, seed=2, progress_bar=False)
    draws = quiet(again.run)
    assert abs(draws.sample_stats["acceptance_rate"].mean() - 0.8) < 0.15
    assert again.adapted[0].step_size == first.step_size


def test_divergent_draws_come_with_their_coordinates():
    def funnel():
        v = probtorch.sample("v", dist.Normal(0.0, 3.0))
        with probtorch.plate("i", 9):
            probtorch.sample("x", dist.Normal(0.0, (v / 2.0).exp()))

    kernel = NUTS(funnel, target_accept_prob=0.4)
    mcmc = MCMC(kernel, 500, num_chains=2, seed=0, progress_bar=False)
    draws = quiet(mcmc.run)
    found = draws.divergences()
    count = int(draws.sample_stats["diverging"].sum())
    assert count > 0
    assert found["v"].shape == (count,) and found["x"].shape == (count, 9)
    chain, draw = found["chain"][0], found["draw"][0]
    assert draws.sample_stats["diverging"][chain, draw]
    assert found["v"][0] == draws["v"][chain, draw]
    assert "v" in draws and "w" not in draws and list(draws) == ["v", "x"]
    with pytest.raises(ArgumentError, match="'w'"):
        draws["w"]
