"""Exact means where draws are continuous or countable, for several samples, and of second order."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate

from probtorch.autograd import grad
from probtorch.distributions import (
    Bernoulli,
    Categorical,
    Exponential,
    Gamma,
    Geometric,
    HalfNormal,
    Laplace,
    LogNormal,
    Normal,
    Poisson,
)
from probtorch.errors import NotDifferentiableError
from probtorch.estimators import (
    DiCE,
    DisARM,
    Enumerate,
    MeasureValued,
    Pathwise,
    ScoreFunction,
    SumAndSample,
    expectation,
    log_mean_exp_bound,
)
from probtorch.tensor import tensor
from tests.estimators.exhaustive import Exhaustive, double_exponential, reference
from tests.estimators.programs import PROGRAMS
from tests.estimators.test_exact import exact


def leaf(*values):
    return [tensor(np.array(v), requires_grad=True) for v in values]


def cost(z):
    return (0.9 * z + 0.2).sin() + 0.05 * z * z


# ------------------------------------------------------------------------------- weak derivatives

# The distribution from its parameters, the parameters, and the density by hand.
WEAK = {
    "Normal": (Normal, (0.3, 1.2)),
    "LogNormal": (lambda a, b: LogNormal(a, b), (-0.4, 0.5)),
    "HalfNormal": (HalfNormal, (1.3,)),
    "Laplace": (Laplace, (0.3, 0.8)),
    "Exponential": (Exponential, (1.4,)),
    "Gamma, its rate": (lambda b: Gamma(2.3, b), (1.7,)),
    "Poisson": (Poisson, (1.8,)),
    "Geometric": (Geometric, (0.6,)),
    "Geometric by logits": (lambda a: Geometric(logits=a), (0.5,)),
}


def expected_gradient(make, at):
    """Gradient of E[cost] as an integral, or sum, of cost times derivative of the density."""
    theta = leaf(*at)
    q = make(*theta)

    def slope(x, i):
        density = q.log_prob_inside(tensor(np.float64(x))).exp()
        return (density * cost(tensor(np.float64(x)))).detach(), grad(
            density * cost(tensor(np.float64(x))), theta, materialize_grads=True
        )[i].item()

    found = []
    for i in range(len(at)):
        part = lambda x, i=i: slope(x, i)[1]
        if q.is_discrete:
            found.append(math.fsum(part(float(k)) for k in range(200)))
            continue
        low = 0.0 if isinstance(q, (LogNormal, HalfNormal, Exponential, Gamma)) else -np.inf
        points = [low, 0.3, np.inf] if low == -np.inf else [0.0, 0.05, 0.5, 2.0, np.inf]
        found.append(
            sum(
                integrate.quad(part, a, b, epsabs=1e-13, limit=200)[0]
                for a, b in itertools.pairwise(points)
            )
        )
    return np.array(found)


class Nodes(Exhaustive):
    """Uniforms and continuous draws at quadrature nodes; the draw for the value alone at one."""

    def __init__(self, skip_first, signed):
        super().__init__()
        self.nodes = double_exponential(41, 2.9)
        self.skip_first, self.signed, self.count = skip_first, signed, 0
        roots, weights = np.polynomial.legendre.leggauss(16)
        self.smooth = (roots + 1.0) / 2.0, weights / 2.0
        self.halves = np.array([0.25, 0.75]), np.array([0.5, 0.5])

    def uniform(self, shape, dtype):
        # A sign comes before anything that the estimate is smooth in.
        nodes, weights = self.halves if self.signed else self.smooth
        self.signed = False
        return tensor(np.full(shape, nodes[self.choose(weights)]))

    def sample(self, q, n):
        self.count += 1
        if self.skip_first and self.count == 1:
            return tensor(np.full((n, *q.batch_shape), 0.7))
        if q.has_enumerate_support or q.is_discrete:
            return super().sample(q, n)
        nodes, weights = self.nodes
        u = nodes[self.choose(weights)]
        return tensor(reference(q).ppf(u).reshape(n, *q.batch_shape))


LONG = ("Laplace", "Exponential", "Gamma, its rate", "Geometric", "Geometric by logits")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in WEAK]
)
def test_the_mean_of_measure_valued_gradients_is_the_exact_one(name):
    make, at = WEAK[name]
    # Where the noise is not that of the value's own draw, that draw has no part in the gradient.
    own = name.split(",")[0].split()[0] in ("Exponential", "Gamma", "Poisson", "Geometric")
    signed = name in ("Normal", "LogNormal", "Laplace")

    def slope(i):
        theta = leaf(*at)
        parts = [t if j == i else t.detach() for j, t in enumerate(theta)]

        def run(draws):
            draws.count, draws.signed = 0, signed
            value = expectation(make(*parts), cost, estimator=MeasureValued(), draws=draws)
            return grad(value, [theta[i]])[0].item()

        return math.fsum(w * g for w, g in Nodes(not own, signed).everything(run))

    found = [slope(i) for i in range(len(at))]
    np.testing.assert_allclose(found, expected_gradient(make, at), rtol=0, atol=1e-9)


@pytest.mark.parametrize("estimator", [ScoreFunction(), DiCE()], ids=repr)
@pytest.mark.parametrize(
    "make, at", [WEAK["Poisson"], WEAK["Geometric"]], ids=["Poisson", "Geometric"]
)
def test_countable_supports_are_summed_to_the_exact_gradient(make, at, estimator):
    def run(draws):
        theta = leaf(*at)
        value = expectation(make(*theta), cost, estimator=estimator, draws=draws)
        return grad(value, theta)[0].item()

    found = math.fsum(w * g for w, g in Exhaustive().everything(run))
    assert abs(found - expected_gradient(make, at)[0]) < 1e-10


# ------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize("name", ["Normal", "LogNormal", "HalfNormal", "Exponential"])
def test_the_mean_of_pathwise_gradients_is_the_exact_one(name):
    # A draw is the quantile at a uniform; that of the library's draws has the same derivative
    # (tests/contracts/test_every_distribution.py).
    make, at = WEAK[name]
    nodes, weights = double_exponential(201, 3.0)

    class Quantiles:
        def rsample(self, q, n):
            return q.icdf(tensor(nodes)).unsqueeze(0)

    theta = leaf(*at)
    wide = [t.expand((len(nodes),)) for t in theta]
    value = expectation(make(*wide), cost, estimator=Pathwise(), draws=Quantiles())
    found = [g.item() for g in grad((value * tensor(weights)).sum(), theta)]
    np.testing.assert_allclose(found, expected_gradient(make, at), rtol=0, atol=1e-9)


# ----------------------------------------------------------------------------------- second order


@pytest.mark.parametrize(
    "estimator, samples",
    [
        (DiCE(), 1),
        (DiCE(0.4), 1),
        (DiCE("leave_one_out"), 2),
        (SumAndSample(1), 1),
        (Enumerate(), 1),
    ],
    ids=["DiCE", "DiCE, constant baseline", "DiCE, leave one out", "sum and sample", "enumerate"],
)
@pytest.mark.parametrize("name", ["bent logit", "cost of its own", "three categories", "two coins"])
def test_the_mean_hessian_is_the_exact_one(name, estimator, samples):
    program = next(p for p in PROGRAMS if p.name == name)

    def hessian(value, theta):
        (g,) = grad(value, [theta], create_graph=True)
        return np.stack([grad(g[i], [theta], retain_graph=True)[0].numpy() for i in range(len(g))])

    def run(draws):
        theta = program.leaf()
        value = expectation(
            program.q(theta),
            lambda z: program.f(z, theta),
            estimator=estimator,
            num_samples=samples,
            draws=draws,
        )
        return hessian(value, theta)

    found = sum(w * h for w, h in Exhaustive().everything(run))
    theta = program.leaf()
    np.testing.assert_allclose(found, hessian(program.exact(theta), theta), rtol=0, atol=1e-10)


@pytest.mark.parametrize("estimator", [ScoreFunction(), DisARM(), MeasureValued()], ids=repr)
def test_a_second_derivative_that_would_be_wrong_is_refused(estimator):
    (logit,) = leaf(0.4)
    value = expectation(Bernoulli(logits=logit), cost, estimator=estimator)
    (g,) = grad(value, [logit], create_graph=True)
    with pytest.raises(NotDifferentiableError, match="use DiCE"):
        grad(g, [logit])


# ------------------------------------------------------------------------------------------ VIMCO


@pytest.mark.parametrize("samples", [2, 3])
def test_the_mean_of_vimco_is_the_gradient_of_the_bound(samples):
    logits = np.array([0.2, -0.5, 0.9])
    joint = np.array([-1.0, -0.3, -2.2])

    def log_weight(q, z):
        return tensor(joint)[z] - q.log_prob(z)

    def run(draws):
        (theta,) = leaf(logits)
        q = Categorical(logits=theta)
        value = log_mean_exp_bound(q, lambda z: log_weight(q, z), num_samples=samples, draws=draws)
        return value.item(), grad(value, [theta])[0].numpy()

    value, slope = 0.0, 0.0
    for weight, (v, g) in Exhaustive().everything(run):
        value, slope = value + weight * v, slope + weight * g
    (theta,) = leaf(logits)
    logs = theta - theta.logsumexp(-1)
    bound = 0.0
    for codes in itertools.product(range(3), repeat=samples):
        mean = sum((tensor(joint)[k] - logs[k]).exp() for k in codes) / samples
        bound = bound + sum(logs[k] for k in codes).exp() * mean.log()
    assert abs(value - bound.item()) < 1e-12
    np.testing.assert_allclose(slope, grad(bound, [theta])[0].numpy(), rtol=0, atol=1e-12)


def test_exact_values_do_not_come_from_the_library_twice():
    # The reference of these proofs against arithmetic by hand.
    coin = PROGRAMS[0]
    p = 1.0 / (1.0 + math.exp(-0.3))
    f = [(z - 0.45) ** 2 * 3.0 + math.sin(1.3 * z) for z in (0.0, 1.0)]
    value, slope = exact(coin)
    assert value == pytest.approx((1 - p) * f[0] + p * f[1], rel=1e-14)
    assert slope[0] == pytest.approx(p * (1 - p) * (f[1] - f[0]), rel=1e-13)
