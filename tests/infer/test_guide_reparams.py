"""A model in the coordinates of a guide is the same model."""

import copy
import math
import pickle

import numpy as np
import pytest
from scipy import stats

from probtorch.core.rng import Generator
from probtorch.distributions.normal import HalfNormal, Normal
from probtorch.effects.handlers import condition, seed, trace
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.reparams import reparam
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import SVI
from probtorch.infer.guides import (
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoStructured,
    NeuTraReparam,
    StructuredReparam,
)
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.potential import Target
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import assert_close

Y = np.array([2.0, -1.0, 0.5])


def model():
    # The first site is in a plate, to which the vector of all sites does not belong.
    rows = plate("rows", 3)
    with rows:
        theta = sample("theta", Normal(0.0, 2.0))
    tau = sample("tau", HalfNormal(1.0))
    with rows:
        sample("y", Normal(theta, 0.5 + tau), obs=Y)


def fitted(kind, steps=5, **settings):
    guide = kind(model, **settings)
    SVI(model, guide, Adam({"lr": 0.05}), seed=0).run(steps, progress_bar=False)
    return guide


GUIDES = {
    "dense": (NeuTraReparam, AutoMultivariateNormal, {}),
    "low_rank": (NeuTraReparam, AutoLowRankMultivariateNormal, {"rank": 1}),
    "flow": (NeuTraReparam, AutoIAFNormal, {"hidden_dim": 6}),
    "structured": (StructuredReparam, AutoStructured, {}),
}


RARER = [
    pytest.param("low_rank", marks=pytest.mark.slow),
    pytest.param("flow", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name", ["dense", "structured", *RARER])
def test_the_density_is_that_of_the_model_with_the_jacobian_of_the_map(name):
    kind, guide, settings = GUIDES[name]
    guide = fitted(guide, **settings)
    changed = Target.from_model(kind(guide).reparam(model))
    plain = Target.from_model(model)
    q = np.random.default_rng(0).standard_normal(changed.dim)
    assert changed.dim == plain.dim

    def moved(q):
        """The point of the plain model that a point of the changed one stands for."""
        values = changed.constrain(tensor(q))
        return plain.unconstrain({n: values[n].numpy() for n in plain.slots})

    step = 1e-6
    jacobian = [(moved(q + e) - moved(q - e)) / (2 * step) for e in step * np.eye(len(q))]
    _, log_det = np.linalg.slogdet(np.array(jacobian))
    want = plain.logdensity(tensor(moved(q))).item() + log_det
    assert math.isclose(changed.logdensity(tensor(q)).item(), want, rel_tol=1e-6)
    # Compiled, as samplers run it.
    logp, _ = changed.value_and_grad(q)
    assert_close(logp, want, rtol=1e-6)


@pytest.mark.slow
def test_draws_in_new_coordinates_are_draws_of_the_model():
    neutra = NeuTraReparam(fitted(AutoMultivariateNormal, 300))
    kernel = NUTS(neutra.reparam(model), target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_samples=400, num_chains=2, seed=1)
    mcmc.progress_bar = False
    found = mcmc.run().posterior
    assert {"theta", "tau", "theta_shared_latent"} == set(found)
    latent = tensor(found["theta_shared_latent"].reshape(-1, 4))
    sent = neutra.transform_sample(latent)
    assert_close(sent["theta"], found["theta"].reshape(-1, 3), rtol=1e-10)
    assert_close(sent["tau"], found["tau"].reshape(-1), rtol=1e-10)
    # Exactly: theta is normal given tau, which a grid integrates out.
    tau = np.linspace(0.0, 6.0, 2001)[:, None]
    noise = (0.5 + tau) ** 2
    weight = np.exp(-0.5 * tau**2 + stats.norm(0.0, np.sqrt(4 + noise)).logpdf(Y).sum(1)[:, None])
    want = (weight * Y * 4 / (4 + noise)).sum(0) / weight.sum()
    # Standard errors are about 1 / sqrt(300): five of them.
    assert np.abs(found["theta"].reshape(-1, 3).mean(0) - want).max() < 0.3


def test_observed_and_unknown_sites_stay_as_they_are():
    def wider():
        model()
        sample("new", Normal(0.0, 1.0))

    neutra = NeuTraReparam(fitted(AutoDiagonalNormal))
    data = condition(wider, {"tau": tensor(1.0)})
    tr = trace(seed(reparam(data, config=lambda site: neutra), Generator(0))).get_trace()
    assert tr["tau"].observed and tr["new"].kind == "sample" and tr["y"].kind == "sample"
    assert tr["theta"].kind == "deterministic"


def test_a_run_that_was_broken_off_leaves_nothing_behind():
    neutra = NeuTraReparam(fitted(AutoDiagonalNormal))
    changed = neutra.reparam(model)
    first = trace(seed(changed, Generator(0))).get_trace()

    def stopped():
        with plate("rows", 3):
            sample("theta", Normal(0.0, 2.0))
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        seed(neutra.reparam(stopped), Generator(1))()
    again = trace(seed(changed, Generator(0))).get_trace()
    assert_close(again["tau"].value, first["tau"].value)


@pytest.mark.parametrize("name", ["dense", "structured"])
def test_they_are_copied_and_pickled(name):
    kind, guide, settings = GUIDES[name]
    made = kind(fitted(guide, **settings))
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        runs = [trace(seed(m.reparam(model), Generator(0))).get_trace() for m in (made, twin)]
        assert_close(runs[0]["theta"].value, runs[1]["theta"].value)


def test_other_guides_are_refused():
    with pytest.raises(ArgumentError, match="AutoContinuous"):
        NeuTraReparam(fitted(AutoNormal, 1))
    with pytest.raises(ArgumentError, match="AutoStructured"):
        StructuredReparam(fitted(AutoNormal, 1))
    with pytest.raises(ArgumentError, match="map of normal noise"):
        StructuredReparam(fitted(AutoStructured, 1, conditionals={"tau": "delta"}))
    with pytest.raises(InferenceError, match="met its model"):
        NeuTraReparam(AutoDiagonalNormal(model))
