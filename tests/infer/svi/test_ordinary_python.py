"""What Python holds around a model, changed between steps of SVI: compiled steps see it as eager
ones do.

Each case is made twice, once for compiled and once for eager steps, and returns the SVI, the
arguments of its steps and a change, which is made every few steps.
"""

import random
import types
import warnings

import numpy as np
import pandas as pd
import pytest

import probtorch as pt
from probtorch import nn
from probtorch.compiler.paths import CompileWarning
from probtorch.config import configure
from probtorch.core.rng import default_generator
from probtorch.distributions import MultivariateNormal, Normal
from probtorch.effects.handlers import condition, scale
from probtorch.infer import SVI, AutoNormal, Trace_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor

X = pt.arange(6.0)


def svi_of(model, guide=None, **kwargs):
    return SVI(model, guide or AutoNormal(model), Adam({"lr": 0.1}), Trace_ELBO(), seed=0, **kwargs)


def an_object_with_data():
    data = types.SimpleNamespace(y=2.0 * X)

    def model(data):
        b = pt.sample("b", Normal(0.0, 1.0))
        with pt.plate("n", 6):
            pt.sample("y", Normal(b * X, 1.0), obs=data.y)

    def change(turn):
        data.y = data.y + 10.0 * turn

    return svi_of(model), (data,), change


def a_network_among_the_arguments():
    pt.manual_seed(1)
    net = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.5))

    def model(x, net):
        b = pt.sample("b", Normal(0.0, 1.0))
        pt.sample("y", Normal(b * net(x[:, None]).sum(-1), 1.0).to_event(1), obs=2.0 * x)

    return svi_of(model), (X, net), lambda turn: net.train(turn % 2 == 1)


def a_likelihood_among_the_arguments():
    likelihood = types.SimpleNamespace(noise=1.0)
    likelihood.of = lambda mean: Normal(mean, likelihood.noise)

    def model(y, likelihood):
        b = pt.sample("b", Normal(0.0, 1.0))
        pt.sample("y", likelihood.of(b * X).to_event(1), obs=y)

    def change(turn):
        likelihood.noise *= 2.0

    return svi_of(model), (2.0 * X, likelihood), change


def a_model_under_a_handler():
    state = {"k": 1.0}

    def model(y):
        b = pt.sample("b", Normal(0.0, 1.0))
        c = pt.sample("c", Normal(0.0, 1.0))
        pt.sample("y", Normal(state["k"] * b * X + c, 1.0).to_event(1), obs=y)

    def change(turn):
        state["k"] += 1.0

    return svi_of(condition(model, data={"c": tensor(0.5)})), (2.0 * X,), change


def a_handler_that_is_changed():
    weight = scale(scale=1.0)

    def model(y):
        b = pt.sample("b", Normal(0.0, 1.0))
        with weight:
            pt.sample("y", Normal(b * X, 1.0).to_event(1), obs=y)

    def change(turn):
        weight.scale = weight.scale + 1.0

    return svi_of(model), (2.0 * X,), change


def a_hook_that_closes_over_a_number():
    pt.manual_seed(1)
    net, state = nn.Linear(1, 1).requires_grad_(False), {"k": 1.0}
    handle = net.register_forward_hook(lambda module, args, out: out * state["k"])

    def model(y):
        b = pt.sample("b", Normal(0.0, 1.0))
        pt.sample("y", Normal(b * net(X[:, None])[:, 0], 1.0).to_event(1), obs=y)

    def change(turn):
        state["k"] += 1.0
        if turn == 2:
            handle.remove()

    return svi_of(model), (2.0 * X,), change


def a_prior_kept_as_an_attribute():
    prior = Normal(tensor(0.0), tensor(1.0))

    def model(y):
        b = pt.sample("b", prior)
        pt.sample("y", Normal(b * X, 1.0).to_event(1), obs=y)

    def change(turn):
        prior.loc = prior.loc + 5.0

    return svi_of(model), (2.0 * X,), change


def a_data_frame():
    df = pd.DataFrame({"x": X.numpy(), "y": 2.0 * X.numpy()})

    def model():
        b = pt.sample("b", Normal(0.0, 1.0))
        y = tensor(df["y"].to_numpy())
        pt.sample("y", Normal(b * tensor(df["x"].to_numpy()), 1.0).to_event(1), obs=y)

    def change(turn):
        df.loc[turn, "y"] = 50.0

    return svi_of(model), (), change


def batches_by_a_generator_of_numpy():
    rng = np.random.RandomState(0)

    def model():
        b = pt.sample("b", Normal(0.0, 1.0))
        rows = tensor(rng.choice(6, 2))
        pt.sample("y", Normal(b * X[rows], 1.0).to_event(1), obs=2.0 * X[rows])

    return svi_of(model), (), lambda turn: None


def noise_by_pythons_random():
    own = random.Random(3)

    def model():
        b = pt.sample("b", Normal(0.0, 1.0))
        pt.sample("y", Normal(b * X, 1.0 + own.random()).to_event(1), obs=2.0 * X)

    return svi_of(model), (), lambda turn: None


def a_hook_on_a_parameter():
    state = {"factor": 0.0}

    def model():
        b = pt.sample("b", Normal(0.0, 1.0))
        pt.sample("y", Normal(b * X, 1.0).to_event(1), obs=2.0 * X)

    svi = svi_of(model)
    svi.step()
    handles = [p.register_hook(lambda g: g * state["factor"]) for p in svi.guide.parameters()]

    def change(turn):
        state["factor"] += 1.0
        if turn == 2:
            for handle in handles:
                handle.remove()

    return svi, (), change


def jitter_where_a_matrix_is_not_definite():
    k = pt.eye(3)

    def model(k):
        b = pt.sample("b", Normal(0.0, 1.0))
        try:
            factor = pt.linalg.cholesky(k)
        except pt.errors.ProbtorchError:
            factor = pt.linalg.cholesky(k + 5.0 * pt.eye(3))
        pt.sample("y", MultivariateNormal(b * X[:3], scale_tril=factor), obs=2.0 * X[:3])

    def change(turn):
        k.copy_(-pt.eye(3) if turn % 2 == 0 else 2.0 * pt.eye(3))

    return svi_of(model), (k,), change


CASES = [
    an_object_with_data,
    a_network_among_the_arguments,
    a_likelihood_among_the_arguments,
    a_model_under_a_handler,
    a_handler_that_is_changed,
    a_hook_that_closes_over_a_number,
    a_prior_kept_as_an_attribute,
    a_data_frame,
    batches_by_a_generator_of_numpy,
    noise_by_pythons_random,
    a_hook_on_a_parameter,
    jitter_where_a_matrix_is_not_definite,
]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_steps_see_what_changes_around_the_model(make):
    found = []
    for jit in (True, False):
        default_generator.manual_seed(5)
        with configure(jit=jit), warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileWarning)
            svi, args, change = make()
            losses = []
            for turn in range(5):
                losses += [svi.step(*args) for _ in range(3)]
                change(turn)
        found.append((losses, [p.tolist() for p in svi.guide.parameters()]))
    (losses, values), (expected, eager_values) = found
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for mine, eager in zip(values, eager_values, strict=True):
        np.testing.assert_allclose(mine, eager, rtol=1e-4, atol=1e-6)


def test_a_step_that_raised_an_error_of_the_users_is_not_made_again():
    # Made again it would have written twice, and passed: every fourth run of the model fails.
    found = []
    for jit in (True, False):
        runs = []

        def model(x, runs=runs):
            runs.append(len(runs))
            b = pt.sample("b", Normal(0.0, 1.0))
            if len(runs) % 4 == 0:
                raise KeyError("of the user")
            pt.sample("y", Normal(b, 1.0), obs=x)

        with configure(jit=jit), warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileWarning)
            svi, seen = svi_of(model), []
            for turn in range(10):
                try:
                    seen.append(round(svi.step(tensor(0.5 * turn)), 4))
                except KeyError as error:
                    seen.append(str(error))
                seen.append(len(runs))
        found.append(seen)
    assert found[0] == found[1] and found[0].count("'of the user'") > 1
