"""SVI of a model that jumps where Python turns another way says so; steady forms are left alone."""

import warnings

import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import sample, tensor
from probtorch.config import configure
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.infer import SVI, AutoDelta, AutoNormal
from probtorch.optim import Adam
from tests.infer.gradient_check.whole_models import XT, YT

TABLE = tensor([0.0, 1.0, 4.0, 9.0, 16.0, 25.0])


def by_rows(b):
    return sum(tensor(1.0) for _ in range(4 + int(b * 3.0)))


def from_a_table(b):
    return TABLE[(b.abs() * 2.0).long().clamp(0, 5).item()]


def interpolated(b):
    b = b.abs().clamp(0.0, 4.9)
    i = int(b)
    return TABLE[i] * (i + 1 - b) + TABLE[i + 1] * (b - i)


def printed(b):
    assert f"{int(b)}" and bool(b > 0.0) in (True, False)
    return b


JUMPS = {
    "int": int,
    "branch": lambda b: 1.0 if b > 0.0 else 0.0,
    "range": by_rows,
    "table": from_a_table,
}
STEADY = {
    "positive part": lambda b: b if b > 0.0 else 0.0 * b,
    "interpolation": interpolated,
    "only looked at": printed,
    "detached": lambda b: b * (1.0 if b.detach().abs() >= 0.0 else 0.0),
    "where the signs meet": lambda b: b**2 if b > 0.0 else -(b**2),
}


def model_of(use):
    def model(x, y):
        b = sample("b", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(x * use(b), 1.0).to_event(1), obs=y)

    return model


def warned(model, guide, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SVI(model, guide, Adam({"lr": 0.02}), seed=0, **options).step(XT, YT)
    return [str(w.message) for w in caught if issubclass(w.category, InferenceWarning)]


@pytest.mark.parametrize("guide", [AutoNormal, AutoDelta])
@pytest.mark.parametrize("name", JUMPS)
def test_a_jump_is_warned_about_with_its_line(name, guide):
    model = model_of(JUMPS[name])
    (message,) = warned(model, guide(model))
    assert "jumps where site 'b'" in message
    assert "test_jumps.py" in message


@pytest.mark.parametrize("name", STEADY)
def test_a_steady_turn_is_left_alone(name):
    model = model_of(STEADY[name])
    assert warned(model, AutoNormal(model)) == []


def test_a_site_that_is_scored_may_turn_as_it_likes():
    def model(x, y):
        z = sample("z", dist.Bernoulli(0.3))
        b = sample("b", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(x * (b + 2.0 if z else b), 1.0).to_event(1), obs=y)

    def guide(x, y):
        sample("z", dist.Bernoulli(probtorch.param("p", tensor(0.5))))
        sample("b", dist.Normal(probtorch.param("loc", tensor(0.1)), 1.0))

    assert warned(model, guide) == []


def test_the_check_can_be_switched_off():
    model = model_of(int)
    with configure(check_gradients=False):
        assert warned(model, AutoNormal(model)) == []
