"""`log_density`: joint densities against closed forms, with gradients, eagerly and recorded."""

import math

import numpy as np
import pytest
from scipy import stats

from probtorch.compiler.record.record import record
from probtorch.distributions.normal import HalfNormal, Normal
from probtorch.effects.density import log_density
from probtorch.effects.handlers import scale
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.errors import ModelError
from probtorch.tensor import tensor

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools(y, sigma=SIGMA):
    mu = sample("mu", Normal(0.0, 5.0))
    tau = sample("tau", HalfNormal(5.0))
    with plate("school", 8):
        theta = sample("theta", Normal(mu, tau))
        sample("y", Normal(theta, sigma), obs=y)


THETA = np.linspace(-2.0, 9.0, 8)
WANT = (
    stats.norm(0, 5).logpdf(1.3)
    + stats.halfnorm(0, 5).logpdf(2.1)
    + stats.norm(1.3, 2.1).logpdf(THETA).sum()
    + stats.norm(THETA, SIGMA).logpdf(Y).sum()
)


def test_joint_density_of_eight_schools():
    got, tr = log_density(schools, (Y,), {"sigma": SIGMA}, {"mu": 1.3, "tau": 2.1, "theta": THETA})
    assert math.isclose(got.item(), WANT, rel_tol=1e-14)
    assert tr["theta"]["value"].numpy() is THETA


def test_joint_density_is_differentiable_in_the_values():
    mu = tensor(1.3, dtype="float64", requires_grad=True)
    got, _ = log_density(schools, (Y,), None, {"mu": mu, "tau": 2.1, "theta": THETA})
    got.backward()
    want = -1.3 / 25 + ((THETA - 1.3) / 2.1**2).sum()
    assert math.isclose(mu.grad.item(), want, rel_tol=1e-12)


def test_recorded_model_asks_nothing_of_its_values():
    def density(mu, tau, theta):
        return log_density(scale(schools, 2.0), (Y,), {}, {"mu": mu, "tau": tau, "theta": theta})[0]

    inputs = [tensor(x, dtype="float64") for x in (1.3, 2.1, THETA)]
    recorder, result = record(density, inputs)
    assert recorder.unsupported == []
    assert recorder.graph.guards == []
    assert math.isclose(result.item(), 2.0 * WANT, rel_tol=1e-14)


def test_missing_value_is_refused():
    with pytest.raises(ModelError) as error:
        log_density(schools, (Y,), {}, {"mu": 1.3, "theta": THETA})
    text = str(error.value)
    assert "no value for site 'tau'" in text and "'mu', 'theta'" in text and "condition" in text
    assert error.value.location == f"{__file__}:{schools.__code__.co_firstlineno + 2}"


def test_unknown_name_is_refused():
    with pytest.raises(ModelError, match=r"no site 'thea'[\s\S]*did you mean 'theta'"):
        log_density(schools, (Y,), {}, {"mu": 1.3, "tau": 2.1, "theta": THETA, "thea": 1.0})
