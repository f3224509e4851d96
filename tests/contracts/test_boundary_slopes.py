"""At the edges of parameters and supports slopes are numbers, first and second ones.

0 times an infinite logarithm is what makes nan of them: an outcome that is impossible or certain, a
count of 0, a value on the bound of a support, a parameter that is 0 or infinite. Each distribution
is asked at all of its edges, in all combinations.
"""

import itertools
import math

import numpy as np
import pytest

import probtorch.distributions as dist
from probtorch import stack
from probtorch.autograd import grad
from probtorch.ops.arithmetic import where
from probtorch.tensor import tensor
from tests.distributions.cases import CASES

INF = math.inf
PROBS = (0.0, 0.5, 1.0)
ODDS = (0.0, 800.0, -800.0, INF, -INF)
SIGNED = (-1.0, 0.0, 1.0)


def three(make, **settings):
    """A distribution over three categories, from two weights or logits and a third one."""
    return lambda third: lambda p, q: make(stack([p, q, q.detach() * 0.0 + third], -1), **settings)


def logits(cls, **settings):
    return lambda values: cls(logits=values, **settings)


VERTICES = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
COUNTS = ((1.0, 0.0, 2.0), (0.0, 1.0, 2.0), (0.0, 0.0, 3.0))
MANY = ((100.0, 0.0, 200.0), (0.0, 1.0, 299.0), (0.0, 0.0, 300.0))
FACTOR = ((1.0, 0.0), (0.6, 0.8))
WEIGHTS = ((0.0, 1.0), (0.0, 0.5))
LOGITS = ((0.0, -800.0), (0.0, 800.0))

# From a name, which begins with that of the class, to: how it is made, the edges of each parameter,
# and the values.
EDGES = {
    "Normal": (dist.Normal, ((0.0,), (1.0, 1e-300)), (0.0,)),
    "LogNormal": (dist.LogNormal, ((0.0,), (1.0,)), (-1.0, 0.0, 1e-300, 1e300)),
    "HalfNormal": (dist.HalfNormal, ((1.0,),), SIGNED),
    "TruncatedNormal": (
        dist.TruncatedNormal,
        ((0.0,), (1.0,), (-1.0, -INF, 0.5), (1.0, INF)),
        (-1.0, 0.5, 1.0, 0.0, 2.0),
    ),
    "Cauchy": (dist.Cauchy, ((0.0,), (1.0,)), (0.0, 1e300)),
    "HalfCauchy": (dist.HalfCauchy, ((1.0,),), (0.0, -1.0, 1e300)),
    "StudentT": (dist.StudentT, ((1.0, 1e300, INF), (0.0,), (1.0,)), (0.0, 1.0)),
    "Laplace": (dist.Laplace, ((0.0,), (1.0,)), (0.0,)),
    "Logistic": (dist.Logistic, ((0.0,), (1.0,)), (0.0, 1e4, -1e4)),
    "Gumbel": (dist.Gumbel, ((0.0,), (1.0,)), (0.0, 1e4, -700.0)),
    "VonMises": (dist.VonMises, ((0.0,), (1.0, 1e-300, 1e300)), (0.0, math.pi, -math.pi)),
    "Uniform": (dist.Uniform, ((0.0,), (1.0,)), (0.0, 1.0, 2.0, 0.5)),
    "Exponential": (dist.Exponential, ((1.0,),), SIGNED),
    "Weibull": (dist.Weibull, ((1.0,), (0.5, 1.0, 2.0, 3.0)), SIGNED),
    "Pareto": (dist.Pareto, ((1.0,), (2.0,)), (1.0, 0.5, 1e300)),
    "Gamma": (dist.Gamma, ((0.5, 1.0, 2.0, 3.0), (1.0, 1e300)), SIGNED),
    "Chi2": (dist.Chi2, ((1.0, 2.0, 4.0, 6.0),), SIGNED),
    "InverseGamma": (dist.InverseGamma, ((1.0, 2.0), (1.0,)), SIGNED),
    "Beta": (dist.Beta, ((0.5, 1.0, 2.0, 3.0), (0.5, 1.0, 2.0)), (0.0, 1.0, -1.0, 2.0)),
    "Bernoulli": (dist.Bernoulli, (PROBS,), (0.0, 1.0)),
    "Bernoulli logits": (logits(dist.Bernoulli), (ODDS,), (0.0, 1.0)),
    "Geometric": (dist.Geometric, ((1.0, 0.5, 1e-300),), (0.0, 1.0, -1.0, 0.5)),
    "Geometric logits": (logits(dist.Geometric), (ODDS,), (0.0, 1.0)),
    "Binomial of 0": (lambda p: dist.Binomial(0, p), (PROBS,), (0.0,)),
    "Binomial": (lambda p: dist.Binomial(3, p), (PROBS,), (0.0, 1.0, 3.0, 4.0, -1.0)),
    "Binomial of 1000": (lambda p: dist.Binomial(1000, p), (PROBS,), (0.0, 1.0, 1000.0)),
    "Binomial logits": (logits(dist.Binomial, total_count=3), (ODDS,), (0.0, 1.0, 3.0)),
    "BetaBinomial": (
        lambda a, b: dist.BetaBinomial(a, b, 3), ((1.0, 1e-8), (1.0, 1e8)), (0.0, 1.0, 3.0, 4.0)
    ),
    "BetaBinomial of 0": (lambda a, b: dist.BetaBinomial(a, b, 0), ((1.0, 1e-8), (1.0,)), (0.0,)),
    "Poisson": (dist.Poisson, ((0.0, 1.0, 1e5, INF),), (0.0, 1.0, -1.0, 0.5)),
    "NegativeBinomial": (
        dist.NegativeBinomial, ((0.0, 1.0, 1e8), (0.0, 0.5, 1.0 - 1e-16)), (0.0, 1.0, 5.0, -1.0)
    ),
    "NegativeBinomial logits": (
        lambda r, x: dist.NegativeBinomial(r, logits=x), ((0.0, 1.0, 1e8), ODDS[:3]), (0.0, 1.0)
    ),
    "NegativeBinomial logits, infinite": (
        lambda r, x: dist.NegativeBinomial(r, logits=x), ((0.0, 1.0, 1e8), (INF, -INF)), (0.0, 1.0)
    ),
    "GammaPoisson": (
        dist.GammaPoisson, ((0.0, 1e-100, 1.0, 1e8), (0.0, 1e-150, 1.0, INF)), (0.0, 1.0, 5.0)
    ),
    "GammaPoisson of infinite concentration": (
        dist.GammaPoisson, ((INF,), (0.0, 1e-150, 1.0, 1e300)), (0.0, 1.0, 5.0)
    ),
    "GammaPoisson of many": (
        dist.GammaPoisson, ((0.0, 1.0, INF), (0.0, 1.0)), (1e9,)
    ),
    "NegativeBinomial2": (
        dist.NegativeBinomial2, ((0.0, 1.0, INF), (1.0, 1e-150, 1e300)), (0.0, 1.0, 5.0)
    ),
    "Categorical": (three(dist.Categorical)(1.0), WEIGHTS, (0.0, 1.0, 2.0)),
    "Categorical logits": (three(logits(dist.Categorical))(0.0), LOGITS, (0.0, 1.0, 2.0)),
    "OneHotCategorical": (three(dist.OneHotCategorical)(1.0), WEIGHTS, VERTICES),
    "Multinomial": (three(lambda p: dist.Multinomial(3, p))(1.0), WEIGHTS, COUNTS),
    "Multinomial of 300": (three(lambda p: dist.Multinomial(300, p))(1.0), WEIGHTS, MANY),
    "Multinomial logits": (
        three(logits(dist.Multinomial, total_count=300))(0.0), LOGITS, MANY
    ),
    "Dirichlet": (
        three(dist.Dirichlet)(1.0), ((1.0, 2.0), (1.0, 3.0)), (*VERTICES, (0.5, 0.5, 0.0))
    ),
    "LKJCholesky": (lambda c: dist.LKJCholesky(2, c), ((1.0, 1e-8, 1e8),), (FACTOR,)),
    "MultivariateNormal": (
        lambda a, b: dist.MultivariateNormal(stack([a, a]), scale_tril=b * tensor(np.eye(2))),
        ((0.0,), (1.0, 1e-150)), ((0.0, 0.0),),
    ),
}  # fmt: skip


def test_every_distribution_is_asked_at_its_edges():
    assert {c.cls.__name__ for c in CASES} - {name.split()[0] for name in EDGES} == set()


def slopes(out, leaves):
    """Yield first and second derivatives of a number."""
    first = grad(out, leaves, retain_graph=True, create_graph=True, materialize_grads=True)
    for g in first:
        yield g.detach().numpy()
        if g.requires_grad:
            for h in grad(g.sum(), leaves, retain_graph=True, materialize_grads=True):
                yield h.numpy()


@pytest.mark.parametrize("name", EDGES)
def test_slopes_at_the_edges_are_numbers(name):
    make, edges, values = EDGES[name]
    for given, value in itertools.product(itertools.product(*edges), values):
        leaves = [tensor(np.array(p)).requires_grad_() for p in given]
        x = tensor(np.array(value))
        d = make(*leaves)
        d._validate_args = False
        if not d.is_discrete:
            x.requires_grad_()
            leaves.append(x)
        lp = d.log_prob(x)
        where_ = (given, value, lp.item())
        assert not math.isnan(lp.item()), where_
        if math.isfinite(lp.item()):
            assert not any(np.isnan(g).any() for g in slopes(lp, leaves)), where_
        if lp.item() < INF:
            # Where nothing depends on the density, or it is 0 all around, slopes are 0.
            unused = where(tensor(False), lp, 0.0)
            assert not any(g.any() for g in slopes(unused, leaves)), where_
            if not d.support.check(x.detach()).numpy().all():
                assert not any(g.any() for g in slopes(lp, leaves)), where_
