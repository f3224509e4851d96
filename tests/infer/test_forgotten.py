"""Runs that forgot their data or a prior say so; those that forgot nothing are left alone."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import factor, plate, sample
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributions import constraints
from probtorch.errors import InferenceError
from probtorch.infer import MCMC, NUTS, SVI, AutoDelta, AutoNormal, Target, Trace_ELBO
from probtorch.infer.plans.facts import look_at
from probtorch.optim import Adam

X = probtorch.linspace(0.0, 1.0, 15)
COLUMN = pd.Series(np.linspace(0.0, 1.0, 15), name="x")


def run(model, *args, num_samples=20, **kwargs):
    """Run without the warnings that short runs deserve."""
    settings = {"warmup_steps": 200, "seed": 0, "progress_bar": False} | kwargs
    mcmc = MCMC(NUTS(model), num_samples=num_samples, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(too short|diverg|maximum tree)")
        mcmc.run(*args)
    return mcmc


def line(x, y=None):
    b = sample("b", dist.Normal(0.0, 1.0))
    with plate("n", 15):
        sample("y", dist.Normal(b * x, 1.0), obs=y)


def forgot_obs(x, y):
    b = sample("b", dist.Normal(0.0, 1.0))
    with plate("n", 15):
        sample("y", dist.Normal(b * x, 1.0))


def funnel(scale):
    v = sample("v", dist.Normal(0.0, scale))
    sample("x", dist.Normal(0.0, probtorch.exp(v)))


# ------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize(
    ("model", "args", "got", "fix"),
    [
        (line, (X,), r"obs=None at 'y' \(.*test_forgotten.py:\d+\)", "pass the data to run()"),
        (line, (X, None), r"obs=None at 'y' \(.*test_forgotten.py:\d+\)", "pass the data"),
        (forgot_obs, (X, X), "arrays in x, y, which no sample", "sample('y', ..., obs=y)"),
        (forgot_obs, (COLUMN, COLUMN), "arrays in x, y, which no", "sample('y', ..., obs=y)"),
    ],
)
def test_run_without_its_data_says_so(model, args, got, fix):
    with pytest.warns(InferenceWarning, match="nothing in the model is observed") as caught:
        mcmc = run(model, *args)
    (warning,) = caught
    text = str(warning.message)
    assert re.search(rf"expected: .*with data.*\n  got: +{got}.*\n  fix: +", text), text
    assert fix in text and "Predictive(model, num_samples=1000)" in text
    assert warning.filename == __file__
    assert "Nothing is observed: these are draws of the prior." in str(mcmc.summary())


def conditioned(x):
    probtorch.handlers.condition(line, {"y": x})(x)


def with_factor(x):
    b = sample("b", dist.Normal(0.0, 1.0))
    factor("fit", -((b - x) ** 2).sum())


def half_observed(x, labels=None):
    with plate("n", 15):
        z = sample("z", dist.Normal(0.0, 1.0), obs=labels)
        sample("y", dist.Normal(z, 1.0), obs=x)


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (line, (X, X)),
        (conditioned, (X,)),
        (with_factor, (X,)),
        (half_observed, (X,)),
        (funnel, (1.0,)),
    ],
)
def test_runs_with_data_or_a_prior_on_purpose_are_left_alone(model, args):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "nothing in the model")
        warnings.filterwarnings("ignore", ".*diverg")
        mcmc = run(model, *args)
    assert ("draws of the prior" in str(mcmc.summary())) == (model is funnel)


def test_data_in_a_branch_that_the_first_run_does_not_take_are_data():
    def seen(y):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        if mu > 0.3:
            sample("y", dist.Normal(mu, 1.0).expand([15]).to_event(1), obs=y)

    def chosen(y, k):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        if k:
            sample("y", dist.Normal(mu, 1.0).expand([15]).to_event(1), obs=y)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the objective of seen jumps")
        warnings.filterwarnings("error", "nothing in the model is observed")
        result = run(seen, X)
        optimise(seen, X)
    assert "Nothing is observed" not in str(result.summary())
    assert "15 observed" in str(look_at(seen, (X,), {}))
    with pytest.warns(InferenceWarning, match="nothing in the model is observed"):
        run(chosen, X, False)


def test_left_out_and_none_are_told_apart_and_mean_the_same_site():
    made = [
        probtorch.handlers.trace(lambda: sample("x", dist.Normal(0.0, 1.0))).get_trace()["x"],
        probtorch.handlers.trace(lambda: sample("x", dist.Normal(0.0, 1.0), obs=None)).get_trace()[
            "x"
        ],
    ]
    assert [site.observed for site in made] == [False, False]
    assert [site.notes.get("no_data", False) for site in made] == [False, True]


# ----------------------------------------------------------------------------------------- priors


def improper():
    sample("a", dist.ImproperUniform(constraints.real))
    sample("b", dist.Normal(0.0, 1.0))


def improper_scale(y):
    sample("s", dist.ImproperUniform(constraints.positive))
    with plate("n", 15):
        sample("y", dist.Normal(sample("m", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def improper_vector(y):
    a = sample("a", dist.ImproperUniform(constraints.real, (), (3,)))
    with plate("n", 15):
        sample("y", dist.Normal(a[0], 1.0), obs=y)


def masked():
    sample("a", dist.Normal(0.0, 1.0).mask(False))


@pytest.mark.parametrize(
    ("model", "args", "name", "form"),
    [
        (improper, (), "a", "is the same"),
        (improper_scale, (X,), "s", "straight line on the unconstrained scale"),
        (improper_vector, (X,), "a", "is the same"),
        (masked, (), "a", "is the same"),
    ],
)
def test_posterior_that_is_no_distribution_is_refused(model, args, name, form):
    with pytest.raises(InferenceError) as info:
        run(model, *args)
    text = str(info.value)
    assert f"the posterior of '{name}' is no distribution" in text
    assert re.search(rf"expected: a prior that falls off.*\n  got: .*{form}.*however far", text)
    assert re.search(r"fix: +give it a proper prior.*\n  at: .*test_forgotten.py:\d+$", text)


def test_flat_direction_of_a_density_by_hand_is_refused():
    target = Target.from_density(lambda q: -(q["x"] ** 2), example={"x": 0.0, "y": 0.0})
    with pytest.raises(InferenceError, match="posterior of 'y' is no distribution"):
        run(target)


def flat_but_for_the_data(y):
    m = sample("m", dist.ImproperUniform(constraints.real))
    s = sample("s", dist.ImproperUniform(constraints.positive))
    with plate("n", 15):
        sample("y", dist.Normal(m, s), obs=y)


def far_laplace():
    # Its slope is the same for a thousand units around the start.
    sample("a", dist.Laplace(1000.0, 1.0))


def box():
    a = sample("a", dist.ImproperUniform(constraints.real))
    factor("box", probtorch.where(abs(a) < 3.0, 0.0, -probtorch.inf))


def step():
    a = sample("a", dist.Normal(0.0, 1.0))
    factor("step", probtorch.where(a < 0.5, 0.0, -1.0))


@pytest.mark.parametrize(
    ("model", "args"),
    [(flat_but_for_the_data, (X,)), (far_laplace, ()), (box, ()), (step, ())],
)
def test_proper_posteriors_with_straight_parts_are_sampled(model, args):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(diverg|too short|maximum tree)")
        found = run(model, *args).draws.posterior
    assert all(np.isfinite(x).all() for x in found.values())


# -------------------------------------------------------------------------------------------- SVI


def optimise(model, *args, guide=AutoNormal):
    svi = SVI(model, guide(model), Adam({"lr": 0.01}), Trace_ELBO(), seed=0)
    return svi.run(3, *args, progress_bar=False)


@pytest.mark.parametrize(
    ("model", "args", "got"),
    [
        (line, (X,), r"obs=None at 'y' \(.*test_forgotten.py:\d+\)"),
        (forgot_obs, (X, X), r"arrays in x, y, which no sample"),
        (forgot_obs, (COLUMN, COLUMN), r"arrays in x, y, which no sample"),
    ],
)
def test_guide_that_is_moved_to_the_prior_says_so_once(model, args, got):
    with pytest.warns(InferenceWarning, match="nothing in the model is observed") as caught:
        optimise(model, *args)
    (warning,) = caught
    text = str(warning.message)
    assert re.search(
        rf"moved to the prior\n  expected: .*with data.*\n  got: +{got}.*\n  fix:", text
    )
    assert warning.filename == __file__


def improper_seen(y):
    m = sample("m", dist.ImproperUniform(constraints.real))
    with plate("n", 15):
        sample("y", dist.Normal(m, 1.0), obs=y)


@pytest.mark.parametrize("model", [line, conditioned, with_factor, half_observed, improper_seen])
def test_optimisation_with_data_is_left_alone(model):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InferenceWarning)
        losses = optimise(model, *((X, X) if model is line else (X,))).losses
    assert [str(w.message) for w in caught if w.category is InferenceWarning] == []
    assert len(losses) == 3 and np.isfinite(losses).all()


@pytest.mark.parametrize("guide", [AutoNormal, AutoDelta])
def test_guide_of_no_distribution_is_refused(guide):
    with pytest.raises(InferenceError, match="posterior of 'a' is no distribution") as info:
        optimise(improper, guide=guide)
    assert "test_forgotten.py" in info.value.location
