"""Geweke's test agrees with right samplers and tells wrong ones."""

import functools

import numpy as np
import pytest
from scipy import stats

from probtorch import plate, sample
from probtorch.distributions import Beta, Binomial, LogNormal, Normal, Poisson
from probtorch.errors import ArgumentError
from probtorch.infer import HMC, NUTS, FullConditional, Gibbs, init_to_sample
from probtorch.testing import geweke
from probtorch.testing.joint import _compare
from tests.testing.broken_kernels import MISTAKES, broken
from tests.testing.calibrated_models import MODELS, X

# Chance of a false alarm of one test, were the seed not fixed.
NEVER = 1e-6
SHORT = {"warmup_steps": 100, "progress_bar": False, "level": NEVER}


def regression(x, y=None):
    a = sample("a", Normal(0.0, 1.0))
    b = sample("b", Normal(0.0, 2.0))
    s = sample("s", LogNormal(0.0, 0.5))
    with plate("row", len(x)):
        sample("y", Normal(a + b * x, s), obs=y)


def coin(tosses=6, y=None):
    p = sample("p", Beta(2.0, 2.0))
    sample("y", Binomial(tosses, p), obs=y)


@pytest.mark.parametrize("name", ["correlation", "mixture", "dependent support"])
def test_sampler_of_ours_leaves_the_posterior_as_it_is(name):
    model, args = MODELS[name]
    result = geweke(model, NUTS, 40, 15, args=args, **SHORT)
    assert result.agree, result


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kernel", [NUTS, lambda m: HMC(m, num_steps=5)], ids=["nuts", "hmc"])
def test_every_model_for_long(name, kernel):
    model, args = MODELS[name]
    result = geweke(model, kernel, 200, 200, args=args, **SHORT)
    assert result.agree, result


@pytest.mark.parametrize("mistake", MISTAKES)
def test_sampler_with_a_mistake_is_told(mistake):
    """p-values of the wrong ones are below 1e-9; the right one's chance is 1e-6.

    A force that does not fit the metric is no mistake to this test: see `MISTAKES`.
    """
    settings = {"step_size": 0.3, "adapt_step_size": False, "adapt_mass_matrix": False}
    result = geweke(regression, broken(mistake, **settings), 60, 40, args=(X[::4],), **SHORT)
    assert result.agree == (mistake in ("none", "force")), result
    if not result.agree:
        assert min(result.pvalues.values()) < 1e-9


def test_gibbs_leaves_the_posterior_of_counts_as_it_is_and_a_wrong_conditional_does_not():
    """Which of the counts without bound are as likely as the data say: 60 chains of 20 steps."""

    def counted(y=None):
        n = sample("n", Poisson(4.0))
        p = sample("p", Beta(2.0, 2.0))
        with plate("look", 3):
            sample("y", Binomial(n, p), obs=y)

    def prior(rng_key, gibbs_sites, hmc_sites):
        return {"n": Poisson(4.0).sample(generator=rng_key)}

    for update in ("metropolis", FullConditional(prior)):
        kernel = functools.partial(Gibbs, blocks={"n": update}, init_strategy=init_to_sample)
        result = geweke(counted, kernel, 60, 20, **SHORT)
        assert "n" in result.zscores
        assert result.agree == (update == "metropolis"), result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixture", "hidden Markov", "ordered and simplex"])
def test_gibbs_on_discrete_sites_for_long(name):
    model, args = MODELS[name]
    result = geweke(model, Gibbs, 200, 100, args=args, **SHORT)
    assert result.agree, result


def test_wrong_prior_is_told():
    def wider(x, y=None):
        a = sample("a", Normal(0.0, 2.0))
        b = sample("b", Normal(0.0, 2.0))
        s = sample("s", LogNormal(0.0, 0.5))
        with plate("row", len(x)):
            sample("y", Normal(a + b * x, s), obs=y)

    result = geweke(regression, NUTS, 100, 30, args=(X[::4],), simulator=wider, **SHORT)
    assert not result.verdicts["a"]
    assert result.zscores["a"][1] < -6.0


def test_scores_account_for_autocorrelation():
    """z-scores of chains with a long memory are t-distributed: KS of 300, a chance of 1e-5."""
    rng, rho = np.random.default_rng(0), 0.95
    found = []
    for _ in range(300):
        marginal = rng.normal(size=2000)
        chains = np.empty((30, 60))
        chains[:, 0] = rng.normal(size=30)
        for t in range(1, 60):
            chains[:, t] = rho * chains[:, t - 1] + np.sqrt(1 - rho**2) * rng.normal(size=30)
        found.append(_compare(marginal, chains)[0])
    for z in np.transpose(found):
        assert stats.kstest(z, stats.t(29).cdf).pvalue > 1e-5
    shifted = _compare(rng.normal(size=2000), chains + 1.5)
    assert shifted[1] < 1e-6


def test_result_has_what_was_drawn_and_prints_as_a_table():
    result = geweke(coin, NUTS, 12, 5, quantities={"odds": lambda v: v["p"] / v["y"]}, **SHORT)
    assert set(result.zscores) == {"p", "log_likelihood", "odds"}
    assert result.marginal["p"].shape == (1200,)
    assert result.successive["p"].shape == (12, 5)
    lines = repr(result).splitlines()
    assert lines[0] == "Geweke's joint test of coin with NUTS: 12 chains x 5 steps"
    assert (
        lines[-1]
        == "the simulators agree, as far as this can tell (chance of a false alarm: 1e-06)"
    )
    assert len(lines) == 6


def test_correlation_of_neighbouring_states_is_that_of_exact_draws_after_many_transitions():
    """It is n / (n + a + b) for n tosses and a Beta(a, b) prior; five standard errors are 0.25."""

    def memory(transitions):
        kernel = lambda m: HMC(m, step_size=0.3, num_steps=3, adapt_step_size=False)
        drawn = geweke(coin, kernel, 200, 3, transitions=transitions, **SHORT).successive["p"]
        return np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]

    assert abs(memory(50) - 0.6) < 0.25
    assert memory(1) > 0.85


def test_interrupted_test_keeps_its_steps(capsys):
    runs = []

    def impatient(y=None):
        runs.append(None)
        if len(runs) == 200:
            raise KeyboardInterrupt
        coin(6, y)

    result = geweke(impatient, NUTS, 10, 400, **SHORT)
    steps = result.successive["p"].shape[1]
    assert 2 <= steps < 400
    assert f"keeping {steps} steps" in capsys.readouterr().err


@pytest.mark.parametrize("settings", [{"num_chains": 3}, {"num_steps": 1}, {"transitions": 0}])
def test_setting_that_makes_no_sense_is_refused(settings):
    with pytest.raises(ArgumentError, match="an integer of at least"):
        geweke(coin, **settings)


def test_quantity_that_is_no_number_is_refused():
    with pytest.raises(ArgumentError, match="nan at some"):
        geweke(coin, NUTS, 10, 2, quantities={"bad": lambda v: v["p"] * np.nan}, **SHORT)
