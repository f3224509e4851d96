"""Optimizers as NumPyro's scripts make them: a step size first, which may be a schedule."""

import copy

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import optim, sample, tensor
from probtorch.errors import ArgumentError, DTypeError, UnknownNameError
from probtorch.infer import SVI, AutoNormal, Trace_ELBO

START = np.array([1.0, -2.0, 0.5])
STEPS = 6


def slope(x):
    return np.sin(x) + 0.3 * x


def decay(i):
    return 0.1 / (1.0 + i)


def constant(i):
    return 0.1


def moved(optimizer):
    p = tensor(START, requires_grad=True)
    for _ in range(STEPS):
        p.grad = tensor(slope(p.detach().numpy()))
        optimizer({"p": p})
    return p.detach().numpy()


def sgd(size, mass=0.0):
    x, v = START, 0.0
    for i in range(STEPS):
        v = mass * v + slope(x)
        x = x - size(i) * v
    return x


def adam(size, b1=0.9, b2=0.999, eps=1e-8):
    x, m, v = START, 0.0, 0.0
    for i in range(STEPS):
        g = slope(x)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        x = x - size(i) * m / (1 - b1 ** (i + 1)) / (np.sqrt(v / (1 - b2 ** (i + 1))) + eps)
    return x


def rmsprop(size, gamma=0.9, momentum=0.0, eps=1e-8):
    x, v, m = START, 0.0, 0.0
    for i in range(STEPS):
        g = slope(x)
        v = gamma * v + (1 - gamma) * g**2
        m = momentum * m + size(i) * g / np.sqrt(v + eps)
        x = x - m
    return x


def between(eta, delta, t):
    x, v = START, None
    for i in range(1, STEPS + 1):
        g = slope(x)
        v = g**2 if v is None else (1 - t) * v + t * g**2
        x = x - eta * i ** (delta - 0.5) * g / (1 + np.sqrt(v))
    return x


CASES = {
    "sgd": (lambda: optim.SGD(0.1), sgd(constant)),
    "sgd of a schedule": (lambda: optim.SGD(step_size=decay), sgd(decay)),
    "momentum": (lambda: optim.Momentum(0.1, 0.9), sgd(constant, 0.9)),
    "momentum of a schedule": (lambda: optim.Momentum(decay, mass=0.9), sgd(decay, 0.9)),
    "adam": (lambda: optim.Adam(0.1), adam(constant)),
    "adam with moments": (lambda: optim.Adam(step_size=0.1, b1=0.8), adam(constant, 0.8)),
    "adam of a schedule": (lambda: optim.Adam(step_size=decay, b2=0.99), adam(decay, b2=0.99)),
    "adam of a schedule among options": (lambda: optim.Adam({"lr": decay}), adam(decay)),
    "rmsprop": (lambda: optim.RMSProp(0.1, eps=1e-3), rmsprop(constant, eps=1e-3)),
    "rmsprop of a schedule": (
        lambda: optim.RMSProp(step_size=decay, gamma=0.8),
        rmsprop(decay, gamma=0.8),
    ),
    "rmsprop with momentum": (
        lambda: optim.RMSPropMomentum(step_size=decay, momentum=0.7),
        rmsprop(decay, momentum=0.7),
    ),
    "adagrad and rmsprop": (
        lambda: optim.AdagradRMSProp({"eta": 0.5, "delta": 0.1, "t": 0.3}),
        between(0.5, 0.1, 0.3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_formula(name):
    make, expected = CASES[name]
    np.testing.assert_allclose(moved(make()), expected, rtol=0, atol=1e-13)


def test_one_parameter_at_a_time_has_the_same_steps():
    for foreach in (None, False):
        found = moved(optim.Adam({"lr": decay, "foreach": foreach}))
        np.testing.assert_allclose(found, adam(decay), rtol=0, atol=1e-13)


def test_a_schedule_goes_with_copies_and_state_goes_on():
    p = tensor(START, requires_grad=True)
    first = optim.SGD(step_size=decay)
    for step in range(STEPS):
        p.grad = tensor(slope(p.detach().numpy()))
        if step == 3:
            again = optim.SGD(step_size=decay)
            again.set_state(first.get_state())
            first = again
        first({"p": p})
    np.testing.assert_allclose(p.detach().numpy(), sgd(decay), rtol=0, atol=1e-13)
    (made,) = first.optim_objs.values()
    assert copy.deepcopy(made).schedule is decay


@pytest.mark.parametrize("compiled", [True, False])
def test_svi_follows_a_schedule_inside_its_compiled_step(compiled):
    def model(y):
        sample("y", dist.Normal(sample("b", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    # A schedule that ends: steps after the tenth move nothing.
    svi = SVI(
        model,
        AutoNormal(model),
        optim.Adam(step_size=lambda i: 0.1 * (i < 10)),
        Trace_ELBO(),
        seed=0,
    )
    places = []
    with probtorch.configure(jit=compiled):
        for _ in range(14):
            svi.step(tensor(2.0))
            places.append(float(next(iter(svi.get_params().values()))))
    assert len(set(places[:10])) == 10
    assert len(set(places[9:])) == 1


@pytest.mark.parametrize(
    "size", [np.float32(0.1), np.float64(0.1), np.array(0.1), tensor(0.1)], ids=repr
)
def test_step_sizes_may_be_numbers_of_numpy_and_tensors(size):
    np.testing.assert_allclose(moved(optim.Adam(size)), moved(optim.Adam(0.1)), rtol=1e-6)


def test_what_is_no_step_size_is_refused_with_what_to_write():
    for wrong in (
        lambda: optim.Adam(0.1, 0.9),
        lambda: optim.Adam(True),
        lambda: optim.Adam([tensor(START)], step_size=0.1),
        lambda: optim.Adam(0.1, lr=0.2),
    ):
        with pytest.raises(ArgumentError, match=r"Adam\(0.01\) for SVI"):
            wrong()
    with pytest.raises(DTypeError, match="wrap it in a list"):
        optim.Adam(tensor(0.1, requires_grad=True))
    with pytest.raises(ArgumentError, match="a function of the step"):
        optim.LBFGS(step_size=decay)
    with pytest.raises(ArgumentError, match="learning rate"):
        optim.Adam(-0.1)
    with pytest.raises(UnknownNameError, match=r"Adam\(module.parameters\(\), lr=0.01\)"):
        optim.Adam(0.1).step()
    with pytest.raises(AttributeError, match="stepp"):
        optim.Adam(0.1).stepp  # noqa: B018
