"""Integrals: closed forms and SciPy as oracles, gradients in parameters and bounds, models."""

import math
from math import inf

import numpy as np
import pytest
from scipy import integrate, special

import probtorch
import probtorch.distributions as dist
from probtorch.compiler.compile import compile
from probtorch.errors import ArgumentError, DomainError
from probtorch.func import grad, hessian, jacfwd, jacrev, value_and_grad, vmap
from probtorch.infer import Target
from probtorch.numerics import integral
from probtorch.tensor import tensor

F64 = probtorch.float64


def double(x):
    return tensor(x, dtype=F64)


CLOSED_FORMS = {
    "exp": (lambda x: x.exp(), 0.0, 1.0, math.e - 1.0),
    "backwards": (lambda x: x.exp(), 1.0, 0.0, 1.0 - math.e),
    "empty": (lambda x: x.exp(), 1.0, 1.0, 0.0),
    "pole of the slope": (lambda x: x.sqrt(), 0.0, 1.0, 2.0 / 3.0),
    "pole": (lambda x: x**-0.5, 0.0, 1.0, 2.0),
    "strong pole": (lambda x: x**-0.9, 0.0, 1.0, 10.0),
    "logarithm": (lambda x: x.log(), 0.0, 1.0, -1.0),
    "waves": (lambda x: (50.0 * x).cos(), 0.0, 1.0, math.sin(50.0) / 50.0),
    "odd": (lambda x: x * (-x * x).exp(), -inf, inf, 0.0),
    "normal": (lambda x: (-0.5 * x * x).exp(), -inf, inf, math.sqrt(2.0 * math.pi)),
    "narrow": (
        lambda x: (-0.5 * ((x - 3.0) / 0.1) ** 2).exp(),
        -inf,
        inf,
        0.1 * math.sqrt(2 * math.pi),
    ),
    "cauchy": (lambda x: 1.0 / (1.0 + x * x), -inf, inf, math.pi),
    "gamma": (lambda x: x**2.5 * (-x).exp(), 0.0, inf, special.gamma(3.5)),
    "gamma with a pole": (lambda x: x**-0.5 * (-x).exp(), 0.0, inf, math.sqrt(math.pi)),
    "tail": (lambda x: x**-2.0, 1.0, inf, 1.0),
    "heavy tail": (lambda x: x**-1.5, 1.0, inf, 2.0),
    "below": (lambda x: x.exp(), -inf, 1.0, math.e),
    "from infinity": (lambda x: (-x).exp(), inf, 0.0, -1.0),
    "line backwards": (lambda x: (-0.5 * x * x).exp(), inf, -inf, -math.sqrt(2.0 * math.pi)),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_integrals_with_a_closed_form(name):
    f, low, high, right = CLOSED_FORMS[name]
    ends = [x if math.isinf(x) else double(x) for x in (low, high)]
    value, error = integral(lambda x: f(x) * double(1.0), *ends, return_error=True)
    assert value.dtype == F64
    assert value.item() == pytest.approx(right, rel=1e-11, abs=1e-14)
    assert abs(value.item() - right) <= error.item() + 1e-11 * abs(right) + 1e-15
    # In single precision bounds and results are, but nodes are not.
    single = integral(f, low, high)
    assert single.dtype == probtorch.float32
    assert single.item() == pytest.approx(right, rel=2e-7, abs=1e-7)


def wave(x, theta):
    return (x * theta).sin() * x


ARGUMENTS = (1.3, 0.2, 2.0)


def fn(theta, low, high):
    return integral(wave, low, high, theta)


def by_scipy(theta, low, high):
    f = lambda x: np.sin(x * theta) * x
    return integrate.quad(f, low, high, epsabs=1e-12, epsrel=1e-10)[0]


def differences(i, h=1e-4):
    up, down = np.array(ARGUMENTS), np.array(ARGUMENTS)
    up[i] += h
    down[i] -= h
    return (by_scipy(*up) - by_scipy(*down)) / (2 * h)


@pytest.mark.parametrize("i", range(3), ids=["parameter", "low", "high"])
@pytest.mark.parametrize("mode", [jacrev, jacfwd])
def test_gradients_in_parameters_and_bounds(i, mode):
    arguments = [double(x) for x in ARGUMENTS]

    def one(x):
        return fn(*arguments[:i], x, *arguments[i + 1 :])

    assert mode(one)(arguments[i]).item() == pytest.approx(differences(i), rel=1e-6)


def test_second_derivatives_are_those_of_leibniz():
    theta, low, high = (double(x) for x in ARGUMENTS)
    found = [[x.item() for x in row] for row in hessian(fn, argnums=(0, 1, 2))(theta, low, high)]
    t, a, b = ARGUMENTS
    inner = integrate.quad(lambda x: -np.sin(x * t) * x**3, a, b, epsabs=1e-14)[0]
    at = [-np.cos(a * t) * a * a, np.cos(b * t) * b * b]
    slopes = [-(np.cos(a * t) * a * t + np.sin(a * t)), np.cos(b * t) * b * t + np.sin(b * t)]
    right = [[inner, *at], [at[0], slopes[0], 0.0], [at[1], 0.0, slopes[1]]]
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-9)


def test_integrals_of_many_parameters_at_once():
    rate = double([0.5, 1.0, 40.0]).requires_grad_()
    areas = integral(lambda x: (-rate * x).exp(), 0.0, inf)
    areas.sum().backward()
    np.testing.assert_allclose(areas.detach().numpy(), 1.0 / rate.detach().numpy(), rtol=1e-10)
    np.testing.assert_allclose(rate.grad.numpy(), -(rate.detach().numpy() ** -2), rtol=1e-8)
    # Bounds with dims, and a function with more.
    high = double([[1.0], [2.0]])
    found = integral(lambda x: x.expand(2, 1) * rate.detach(), 0.0, high)
    np.testing.assert_allclose(
        found.numpy(), 0.5 * high.numpy() ** 2 * rate.detach().numpy(), rtol=1e-12
    )


def test_vmap_takes_the_nodes_of_each_slice():
    thetas = double([1.0, 2.0, 30.0])
    low, high = double(0.2), double(2.0)
    mapped = vmap(lambda t: fn(t, low, high))(thetas)
    np.testing.assert_allclose(
        mapped.numpy(), [by_scipy(t, 0.2, 2.0) for t in thetas.tolist()], rtol=1e-10
    )
    slopes = vmap(grad(lambda t: fn(t, low, high)))(thetas)
    one_by_one = [grad(lambda t: fn(t, low, high))(t).item() for t in thetas]
    np.testing.assert_allclose(slopes.numpy(), one_by_one, rtol=1e-10)


def test_compiled_integrals_give_the_eager_numbers():
    compiled = compile(value_and_grad(fn, argnums=(0, 1, 2)))
    for theta in (1.3, 1.3, 25.0, 0.01):
        arguments = [double(x) for x in (theta, 0.2, 2.0)]
        value, slopes = compiled(*arguments)
        right, right_slopes = value_and_grad(fn, argnums=(0, 1, 2))(*arguments)
        np.testing.assert_allclose(value.numpy(), right.numpy(), rtol=1e-12)
        for a, b in zip(slopes, right_slopes, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10)
    assert compiled.reason is None
    assert len(compiled.paths) == 1
    hopeless = compile(lambda p: integral(lambda x: x**p, 0.0, 1.0))
    assert np.isnan(hopeless(double(-1.5)).item())


def test_a_density_known_but_for_its_integral_is_compiled():
    y = np.random.default_rng(0).normal(size=20) * 0.7

    def model():
        rate = probtorch.sample("rate", dist.LogNormal(0.0, 1.0))
        size = integral(lambda x: (-rate * x**4).exp(), -inf, inf)
        probtorch.factor("y", -rate * tensor(y**4).sum() - len(y) * size.log())

    target = Target.from_model(model)
    for u in (-3.0, 0.2, 5.0):
        value, slope = target.value_and_grad(np.array([u]))
        area = 2.0 * special.gamma(1.25) * np.exp(-0.25 * u)
        prior = -0.5 * u * u - 0.5 * np.log(2.0 * np.pi)
        right = prior - np.exp(u) * (y**4).sum() - 20.0 * np.log(area)
        assert value == pytest.approx(right, rel=1e-9)
        assert slope[0] == pytest.approx(-u - np.exp(u) * (y**4).sum() + 5.0, rel=1e-8)
    assert target.density.reason is None


def test_what_is_wrong_is_said():
    with pytest.raises(DomainError, match=r"settles within 8 halvings(.|\n)*diverge"):
        integral(lambda x: 1.0 / x, 0.0, 1.0)
    with pytest.raises(DomainError, match=r"between jumps"):
        integral(lambda x: (x > 0.3).double(), 0.0, 1.0)
    with pytest.raises(DomainError, match=r"finite values(.|\n)*not at x = "):
        integral(lambda x: (x - 0.5).log(), 0.0, 1.0)
    with pytest.raises(DomainError, match=r"an interval(.|\n)*from inf to inf"):
        integral(lambda x: x, inf, inf)
    with pytest.raises(ArgumentError, match="rtol above 0"):
        integral(lambda x: x, 0.0, 1.0, rtol=-1.0)
    with pytest.raises(ArgumentError, match="real numbers"):
        integral(lambda x: x * 1j, 0.0, 1.0)
    with pytest.raises(DomainError, match="finite"):
        integral(lambda x: (-x).exp(), 0.0, double(inf))
    theta = double(1.0).requires_grad_()
    with pytest.raises(ArgumentError, match="draws random numbers"):
        integral(lambda x: x * theta * probtorch.rand(()).double(), 0.0, 1.0)
