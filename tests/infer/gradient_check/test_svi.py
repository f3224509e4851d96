"""SVI with a gradient that is cut, in the model or in the guide, is refused with the line.

What is whole is left alone, and checked all the same.
"""

import math

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import sample, tensor
from probtorch.autograd.escapes import Watch
from probtorch.config import configure
from probtorch.effects import param
from probtorch.errors import InferenceError
from probtorch.infer import SVI, AutoNormal
from probtorch.infer.vi import svi_check
from probtorch.optim import Adam
from tests.infer.gradient_check.cut_models import CUTS, LINE, here, regression
from tests.infer.gradient_check.pairs import PAIRS, pair_of_normalised
from tests.infer.gradient_check.whole_models import XT, YT


@pytest.mark.parametrize("name", CUTS)
def test_svi_with_a_cut_is_refused_with_the_line(name):
    model = regression(CUTS[name])
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.02}), seed=0)
    for _ in range(2):
        with pytest.raises(InferenceError, match="'b'") as caught:
            svi.step(XT, YT)
        assert LINE[0] in str(caught.value)
    assert svi.num_steps == 0


def test_a_cut_in_a_guide_is_refused():
    def model(y):
        b = sample("b", dist.Normal(0.0, 1.0))
        c = sample("c", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(b + c, 0.5).expand([20]).to_event(1), obs=y)

    def guide(y):
        loc = param("loc", tensor(0.1))
        b = sample("b", dist.Normal(loc, 1.0))
        LINE[0] = here()
        sample("c", dist.Normal(b.item() * 2.0, 1.0))

    with pytest.raises(InferenceError, match="'b'") as caught:
        SVI(model, guide, Adam({"lr": 0.1}), seed=0).step(YT)
    assert LINE[0] in str(caught.value)


def test_a_parameter_read_as_a_number_is_refused():
    def guide(y):
        loc = param("loc", tensor(0.1))
        LINE[0] = here()
        sample("b", dist.Normal(float(loc) * 1.0, param("scale", tensor(0.5))))

    def model(y):
        b = sample("b", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(b, 0.5).expand([20]).to_event(1), obs=y)

    with pytest.raises(InferenceError, match="'loc'") as caught:
        SVI(model, guide, Adam({"lr": 0.1}), seed=0).step(YT)
    assert LINE[0] in str(caught.value)


def only(use):
    """A guide in which a parameter reaches the objective through ``use(loc)`` alone."""

    def guide(y):
        loc = param("loc", tensor(0.1))
        sample("b", dist.Normal(use(loc), 0.5))

    return guide


def with_others(use):
    """The same among parameters that weigh far more."""

    def guide(y):
        loc = param("loc", tensor(0.1))
        sample("b", dist.Normal(use(loc) + 1e4 * param("other", tensor(0.2)), 0.5))

    return guide


@pytest.mark.parametrize("made", [only, with_others])
@pytest.mark.parametrize("name", ["by_float_squared", "by_math", "by_numpy_exp", "by_text"])
def test_a_parameter_that_is_cut_off_is_refused(made, name):
    def model(y):
        b = sample("b", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(b, 0.5).expand([20]).to_event(1), obs=y)

    with pytest.raises(InferenceError, match="'loc'") as caught:
        SVI(model, made(CUTS[name]), Adam({"lr": 0.1}), seed=0).step(YT)
    assert LINE[0] in str(caught.value)


@pytest.mark.parametrize("name", PAIRS)
def test_svi_without_a_cut_is_left_alone(name):
    pair, objective = PAIRS[name]
    model, guide = pair()
    svi = SVI(model, guide, Adam({"lr": 0.01}), objective, seed=1)
    assert math.isfinite(svi.step(XT, YT))


@pytest.mark.parametrize("name", ["gamma guide", "dirichlet guide", "particles", "enumeration"])
def test_estimators_get_a_verdict(name, monkeypatch):
    """Not only because there is none: a wrong slope is seen where the right one is left alone."""
    found = []
    quotient = svi_check.quotient

    def doubled(at, value, slope, watch):
        wrong = 1.5 * slope + 0.1
        found.append(quotient(at, value, wrong, watch) not in (None, wrong))
        return None

    monkeypatch.setattr(svi_check, "quotient", doubled)
    pair, objective = PAIRS[name]
    SVI(*pair(), Adam({"lr": 0.01}), objective, seed=1).step(XT, YT)
    assert found
    assert all(found)


def test_the_check_leaves_generators_buffers_and_parameters_alone():
    def steps(check):
        probtorch.manual_seed(3)
        model, guide = pair_of_normalised()
        svi = SVI(model, guide, Adam({"lr": 0.01}), seed=1)
        with configure(check_gradients=check):
            losses = [svi.step(XT, YT) for _ in range(3)]
        return losses, [b.array.copy() for b in svi.params.buffers.values()]

    (ours, buffers), (plain, others) = steps(True), steps(False)
    assert ours == plain
    assert all(np.array_equal(a, b) for a, b in zip(buffers, others, strict=True))


def test_a_gradient_that_is_right_takes_one_more_value():
    def ahead(h):
        asked.append(h)
        return math.sin(1.0 + h)

    asked, right = [], math.cos(1.0)
    assert svi_check.quotient(ahead, math.sin(1.0), right, Watch()) == right
    assert len(asked) == 1
    found = svi_check.quotient(ahead, math.sin(1.0), 0.99 * right, Watch())
    assert math.isclose(found, right, rel_tol=1e-6)


def test_at_a_kink_a_slope_of_neither_side_has_no_verdict():
    for slope, found in ((3.0, 3.0), (1.0, None), (1.5, None)):
        got = svi_check.quotient(lambda h: 3.0 * h if h > 0 else h, 0.0, slope, Watch())
        assert got == found
