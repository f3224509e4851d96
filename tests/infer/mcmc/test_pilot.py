"""A short run tells weak data, where sites are to be non-centred, from strong data."""

import numpy as np
import pytest

from probtorch.distributions.heavy_tailed import StudentT
from probtorch.distributions.normal import HalfNormal, Normal
from probtorch.effects.handlers import trace
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.reparams import LocScaleReparam, reparam
from probtorch.errors import ArgumentError
from probtorch.infer import HMC, MCMC, NUTS, Target, choose_reparam
from probtorch.tensor import tensor

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(y, errors):
    mu = sample("mu", Normal(0.0, 5.0))
    tau = sample("tau", HalfNormal(5.0))
    with plate("school", len(y)):
        theta = sample("theta", Normal(mu, tau))
        sample("y", Normal(theta, errors), obs=y)


@pytest.mark.parametrize("errors, form", [(ERRORS, "non-centred"), (ERRORS / 100, "centred")])
def test_weak_data_ask_for_the_non_centred_form_and_strong_data_for_the_centred_one(errors, form):
    chosen = choose_reparam(schools, EFFECTS, errors)
    assert chosen.forms == {"theta": form}
    # tau is about 4 where the data are weak: 16 / (16 + 156) and less; about 10 where they are not.
    low, high = (0.0, 0.2) if form == "non-centred" else (0.99, 1.0)
    assert low < chosen.shares["theta"] < high
    names = list(trace(reparam(schools, config=chosen)).get_trace(EFFECTS, errors))
    assert ("theta_decentered" in names) == (form == "non-centred")


def test_a_sampler_says_what_it_chose(capfd):
    kernel = NUTS(schools, reparam="auto", target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_samples=200, num_chains=2, seed=1)
    draws = mcmc.run(EFFECTS, ERRORS)
    assert draws.attrs["reparam"] == {"theta": "non-centred"} == mcmc.forms.forms
    assert {"theta", "theta_decentered", "mu", "tau"} == set(draws.posterior)
    assert "theta: non-centred (" in capfd.readouterr().err
    assert not np.any(draws.sample_stats["diverging"])
    # The mean of mu is 4.4 (posteriordb), with a standard deviation of 3.3.
    assert abs(draws.posterior["mu"].mean() - 4.4) < 1.0


@pytest.mark.slow
def test_each_site_is_judged_alone():
    def model(few, many):
        tau = sample("tau", HalfNormal(1.0))
        with plate("group", 4):
            weak = sample("weak", StudentT(5.0, 0.0, tau))
            sample("few", Normal(weak, 5.0), obs=few)
        spread = sample("spread", HalfNormal(1.0))
        strong = sample("strong", Normal(np.zeros(4), spread).to_event(1))
        sample("many", Normal(strong, 0.01).to_event(1), obs=many)
        sample("alone", Normal(0.0, 1.0))

    rng = np.random.default_rng(0)
    chosen = choose_reparam(model, rng.standard_normal(4), rng.standard_normal(4))
    assert chosen.forms == {"weak": "non-centred", "strong": "centred"}
    assert str(chosen).count("\n") == 1 and "weak: non-centred" in str(chosen)


def test_models_without_hierarchical_sites_need_no_run():
    def flat():
        x = sample("x", Normal(0.0, 1.0))
        sample("y", Normal(x, 1.0), obs=tensor(0.3))

    chosen = choose_reparam(flat)
    assert chosen.forms == {} and "no site" in str(chosen)


@pytest.mark.slow
def test_a_kernel_takes_reparameterisations_by_name():
    kernel = HMC(schools, num_steps=5, reparam={"theta": LocScaleReparam(0.0)})
    mcmc = MCMC(kernel, num_samples=20, seed=0, progress_bar=False)
    mcmc.diagnose = False
    draws = mcmc.run(EFFECTS, ERRORS)
    assert "theta_decentered" in draws.posterior and "LocScaleReparam" in draws.attrs["reparam"]


@pytest.mark.parametrize(
    "kernel, expected",
    [
        (NUTS(schools, reparam="best"), '"auto"'),
        (NUTS(potential_fn=lambda q: 0.5 * q * q, reparam="auto"), "a model with sample"),
        (NUTS(Target.from_density(lambda q: -0.5 * q @ q, 2), reparam="auto"), "a Target"),
    ],
)
def test_what_has_no_sites_is_refused(kernel, expected):
    with pytest.raises(ArgumentError, match=expected):
        MCMC(kernel, num_samples=10, progress_bar=False).run(EFFECTS, ERRORS)
