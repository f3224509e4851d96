"""A density with a gradient that is cut is refused with the line that cut it.

One that is whole is left alone.
"""

import math

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import plate, sample, tensor
from probtorch.errors import InferenceError
from probtorch.infer import MCMC, NUTS, Target
from tests.infer.gradient_check.cut_models import CUTS, LINE, PLACES, here, regression
from tests.infer.gradient_check.pairs import PAIRS
from tests.infer.gradient_check.whole_models import WHOLE, XT, YT, X, Y


@pytest.mark.parametrize("name", CUTS)
def test_a_density_with_a_cut_is_refused_with_the_line(name):
    target = Target.from_model(regression(CUTS[name]), XT, YT)
    for _ in range(2):  # not only once
        with pytest.raises(InferenceError, match="'b'") as caught:
            target.value_and_grad([0.3, -0.2])
        assert LINE[0] in str(caught.value)
        assert "stop_gradient" in caught.value.fix


@pytest.mark.parametrize("model", PLACES, ids=lambda m: m.__name__)
def test_a_cut_is_refused_wherever_it_is(model):
    target = Target.from_model(model, XT, YT)
    with pytest.raises(InferenceError, match="'b'") as caught:
        target.value_and_grad(np.full(target.dim, 0.4))
    assert LINE[0] in str(caught.value)


@pytest.mark.parametrize("n", [20, 100_000])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_cut_is_found_in_flat_and_in_steep_densities(n, scale):
    x = np.linspace(-1.0, 1.0, n)

    def model():
        b = sample("b", dist.Normal(0.0, scale))
        LINE[0] = here()
        mean = float(b) * 1.5 * x
        sample("y", dist.Normal(mean, scale).to_event(1), obs=2.0 * scale * x)

    for q in (0.3, -2.0):
        with pytest.raises(InferenceError, match="'b'") as caught:
            Target.from_model(model).value_and_grad([q * scale])
        assert LINE[0] in str(caught.value)


def test_a_cut_in_single_precision_is_found_within_the_first_points():
    x = tensor(X).float()

    def model():
        w = sample("w", dist.Normal(tensor(np.zeros(4)), 1.0).to_event(1)).float()
        b = sample("b", dist.Normal(0.0, 1.0)).float()
        LINE[0] = here()
        mean = (x[:, None] * w).tanh().sum(-1) + float(b) * 2.0
        sample("y", dist.Normal(mean, 0.5).to_event(1), obs=tensor(Y).float())

    target = Target.from_model(model)

    def walk():
        for q in (0.3, -0.4, 1.2, 0.7, -1.1):
            target.value_and_grad(np.full(5, q))

    with pytest.raises(InferenceError, match="'b'") as caught:
        walk()
    assert LINE[0] in str(caught.value)


def test_nuts_refuses_a_cut_before_it_samples():
    mcmc = MCMC(
        NUTS(regression(CUTS["by_float_squared"])), num_samples=5, seed=0, progress_bar=False
    )
    with pytest.raises(InferenceError, match="'b'"):
        mcmc.run(XT, YT)


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.PrintWarning")
@pytest.mark.parametrize("name", WHOLE)
def test_a_density_without_a_cut_is_left_alone(name):
    target = Target.from_model(WHOLE[name])
    for q in (0.3, 0.0):
        value, gradient = target.value_and_grad(np.full(target.dim, q))
        assert math.isfinite(value)
        assert np.isfinite(gradient).all()


def test_the_checks_see_enough_models():
    assert len(CUTS) + len(PLACES) + 2 >= 30
    assert len(WHOLE) + len(PAIRS) >= 60


def shares(y):
    mean = sample("mean", dist.Beta(2.0, 2.0))
    size = sample("size", dist.Gamma(4.0, 0.5))
    with plate("group", 4):
        p = sample("p", dist.Beta(mean * size, (1.0 - mean) * size))
        sample("y", dist.Binomial(8, p), obs=y)


@pytest.mark.parametrize("logit, other", [(30.80190637405747, 5.2296661237), (7.3, 32.9526109357)])
def test_values_that_rounding_turns_into_steps_speak_of_no_cut(logit, other):
    # The logarithm of 1 - p takes few values where p is 1 but for some units of the last place.
    target = Target.from_model(shares, tensor([8.0, 8.0, 8.0, 8.0]))
    point = np.array([2.1603531680584225, 0.9767875, 4.775146423, 3.6672749646, logit, other])
    value, gradient = target.value_and_grad(point)
    assert math.isfinite(value)
    # Of the density of p and its Jacobian: (1 - p)^b p^a, at p = 1.
    size, mean = math.exp(0.9767875), 1.0 / (1.0 + math.exp(-2.1603531680584225))
    near_one = max(logit, other)
    place = 4 if near_one == logit else 5
    np.testing.assert_allclose(gradient[place], -(1.0 - mean) * size, rtol=1e-2)
