"""Mistakes in calls of inference, and what is said about them."""

import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics import loo, loo_pit
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    AutoNormal,
    FullConditional,
    Gibbs,
    HMCGibbs,
    NestedSampler,
    Pathfinder,
    Trace_ELBO,
    check,
    fit,
    infer_discrete,
    log_likelihood,
    loo_kfold,
    reloo,
)
from probtorch.optim import Adam

Y = probtorch.tensor([0.3, 1.9, 0.8])


def level(y):
    mu = probtorch.sample("mu", dist.Normal(0.0, 2.0))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)


def short(model, *args):
    mcmc = MCMC(NUTS(model), 50, warmup_steps=50, num_chains=2, seed=0, progress_bar=False)
    mcmc.diagnose = False
    return mcmc.run(*args)


@pytest.mark.parametrize(
    "call",
    [
        lambda: NUTS(3),
        lambda: Gibbs(3),
        lambda: NestedSampler(3, progress_bar=False).run(),
        lambda: Pathfinder(3).run(),
        lambda: check(3),
        lambda: infer_discrete(3),
        lambda: log_likelihood(3, {}),
    ],
)
def test_a_number_is_no_model(call):
    with pytest.raises(
        ArgumentError, match=r"\(model\)(.|\n)*got: +int 3(.|\n)*the function itself"
    ):
        call()


def test_criticism_without_densities_of_rows():
    def model(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 2.0))
        probtorch.factor("data", -0.5 * ((y - mu) ** 2).sum())

    draws = short(model, Y)
    for call in (loo, loo_pit, reloo):
        with pytest.raises(ArgumentError, match=r"none: factors have no rows(.|\n)*obs="):
            call(draws)


def test_parts_of_a_fold_are_counted():
    draws = short(level, Y)
    with pytest.raises(ArgumentError, match=r"k=\.\.\.\)(.|\n)*got: +2\.5"):
        loo_kfold(draws, 2.5)


def test_a_full_conditional_is_looked_at():
    with pytest.raises(ArgumentError, match=r"rng_key, gibbs_sites and hmc_sites(.|\n)*def draw"):
        FullConditional(lambda state: {"mu": 0.0})
    kernel = HMCGibbs(NUTS(level), lambda rng_key, gibbs_sites, hmc_sites: None, ["mu"])
    with pytest.raises(ModelError, match=r"got: +None(.|\n)*return \{'mu': value\}"):
        MCMC(kernel, 10, warmup_steps=10, progress_bar=False).run(Y)


@pytest.mark.parametrize("name", ["max_seconds", "timeout"])
def test_fit_names_its_time(name):
    with pytest.raises(ArgumentError, match=r"write fit\(model, y, seconds=60\)"):
        fit(level, Y, **{name: 60})


def test_particles_side_by_side_say_where_the_model_fails():
    x = probtorch.ones(3, 2)

    def line(y):
        slopes = probtorch.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with probtorch.plate("row", len(y)):
            probtorch.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)

    svi = SVI(line, AutoNormal(line), Adam({"lr": 0.01}), Trace_ELBO(5, vectorize_particles=True))
    with pytest.raises(InferenceError) as caught:
        svi.step(Y)
    said = str(caught.value)
    assert "matmul of " in said and "(x * b).sum(-1)" in said
    statement = line.__code__.co_firstlineno + 3
    assert caught.value.location == f"{__file__}:{statement}"


def test_the_pick_of_estimators_is_the_objectives():
    def guide(y):
        logits = probtorch.param("logits", probtorch.tensor(0.0))
        probtorch.sample("z", dist.Bernoulli(logits=logits), infer={"estimator": "auto"})

    def model(y):
        z = probtorch.sample("z", dist.Bernoulli(0.3))
        probtorch.sample("y", dist.Normal(z, 1.0), obs=y)

    with pytest.raises(ArgumentError, match=r'write Trace_ELBO\(estimator="auto"\)'):
        Trace_ELBO().loss(model, guide, probtorch.tensor(1.0))
