"""Regression densities are those of their distributions at the linear predictor."""

import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.compiler.record.record import record
from probtorch.core.rng import Generator
from probtorch.errors import DomainError, ShapeError
from probtorch.tensor import tensor
from probtorch.testing import assert_close

R = np.random.default_rng(0)
X, ALPHA, BETA = R.normal(size=(7, 3)), 0.4, np.array([0.5, -0.2, 0.3])
ETA = ALPHA + X @ BETA
Y = np.array([0.0, 1.0, 1.0, 0.0, 2.0, 5.0, 3.0])
B = Y > 0.5
CUTS = np.array([-0.5, 0.3, 1.0])
MANY = R.normal(size=(3, 4))
EDGES = np.column_stack([np.full(7, -np.inf), CUTS - (X @ BETA)[:, None], np.full(7, np.inf)])
K = np.array([0.0, 1.0, 3.0, 2.0, 1.0, 0.0, 3.0])
ROWS = np.arange(7), K.astype(int)

CASES = {
    "bernoulli_logit_glm": ((X, ALPHA, BETA), B * 1.0, stats.bernoulli(special.expit(ETA)).logpmf),
    "binomial_logit_glm": ((9, X, ALPHA, BETA), Y, stats.binom(9, special.expit(ETA)).logpmf),
    "categorical_logit_glm": (
        (X, np.zeros(4), MANY),
        K,
        lambda k: special.log_softmax(X @ MANY, -1)[ROWS],
    ),
    "ordered_logistic_glm": (
        (X, BETA, CUTS),
        K,
        lambda k: np.log(np.diff(special.expit(EDGES), axis=1))[ROWS],
    ),
    "poisson_log_glm": ((X, ALPHA, BETA), Y, stats.poisson(np.exp(ETA)).logpmf),
    "neg_binomial_2_log_glm": (
        (X, ALPHA, BETA, 2.5),
        Y,
        stats.nbinom(2.5, 2.5 / (2.5 + np.exp(ETA))).logpmf,
    ),
    "normal_id_glm": ((X, ALPHA, BETA, 1.5), Y, stats.norm(ETA, 1.5).logpdf),
}


@pytest.mark.parametrize("name", CASES)
def test_the_density_is_that_of_the_predictor(name):
    given, y, log_density = CASES[name]
    d = getattr(dist, name)(*given)
    assert d.batch_shape == (7,)
    assert_close(d.log_prob(tensor(y)), log_density(y), rtol=1e-11)


CLASSES = {
    "bernoulli_logit_glm": "BernoulliLogitGLM",
    "binomial_logit_glm": "BinomialLogitGLM",
    "categorical_logit_glm": "CategoricalLogitGLM",
    "ordered_logistic_glm": "OrderedLogisticGLM",
    "poisson_log_glm": "PoissonLogGLM",
    "neg_binomial_2_log_glm": "NegBinomial2LogGLM",
    "normal_id_glm": "NormalIdGLM",
}


@pytest.mark.parametrize("name", CLASSES)
def test_the_class_keeps_its_coefficients_and_takes_a_batch_of_them(name):
    given, y, log_density = CASES[name]
    cls, y = getattr(dist, CLASSES[name]), tensor(y)
    d = cls(*given)
    assert d.batch_shape == (7,) and set(d.arg_constraints) == set(cls._fields)
    assert_close(d.log_prob(y), log_density(y.numpy()), rtol=1e-11)
    plain = d.outcome()
    for fact in ("mean", "variance"):
        assert_close(getattr(d, fact), getattr(plain, fact))
    assert_close(d.cdf(y), plain.cdf(y))
    assert (d.sample((3,), Generator(1)) == plain.sample((3,), Generator(1))).numpy().all()
    assert d.has_enumerate_support in (False, plain.has_enumerate_support)
    if d.has_enumerate_support:
        assert_close(d.entropy(), plain.entropy())
    at = list(cls._fields).index("beta")
    many = [tensor(np.asarray(a, float)) for a in given]
    wide = np.stack([np.asarray(given[at]), 2.0 * np.asarray(given[at])])
    many[at] = tensor(np.expand_dims(wide, 1))
    both = cls(*many)
    assert both.batch_shape == (2, 7)
    twice = [*given[:at], wide[1], *given[at + 1 :]]
    assert_close(both.log_prob(y), np.stack([d.log_prob(y), cls(*twice).log_prob(y)]))


BY_HAND = {
    "BernoulliLogitGLM": lambda x, a, b: dist.Bernoulli(logits=a + x @ b),
    "PoissonLogGLM": lambda x, a, b: dist.Poisson((a + x @ b).exp()),
    "CategoricalLogitGLM": lambda x, a, b: dist.Categorical(logits=a + x @ b),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_class_is_recorded_as_what_is_written_by_hand(name):
    rows, y = tensor(X), tensor(K)
    given = [tensor(np.zeros(4)), tensor(MANY)] if "Cat" in name else [tensor(0.4), tensor(BETA)]
    made = [getattr(dist, name), BY_HAND[name]]
    y = (y > 0.5).double() if "Bern" in name else y
    both = [record(lambda a, b, m=m: m(rows, a, b).log_prob(y).sum(), given)[0] for m in made]
    ops = [sorted(str(node.op.name) for node in rec.graph.nodes) for rec in both]
    assert ops[0] == ops[1]


def test_a_predictor_that_is_not_a_number_is_refused():
    with pytest.raises(DomainError, match="Bernoulli: parameter logits"):
        dist.BernoulliLogitGLM(X * np.nan, 0.0, BETA).log_prob(tensor(B * 1.0))
    with pytest.raises(DomainError, match="NegBinomial2LogGLM: parameter phi"):
        dist.NegBinomial2LogGLM(X, 0.0, BETA, -1.0)


def test_coefficients_have_the_slopes_of_the_predictor_in_compiled_code():
    def slope(alpha, beta):
        lp = dist.bernoulli_logit_glm(X, alpha, beta).log_prob(tensor(B * 1.0)).sum()
        return grad(lp, [alpha, beta])

    native = compile(slope)
    rest = B - special.expit(ETA)
    for run in (slope, native, native):
        leaves = (tensor(v, requires_grad=True) for v in (np.array(ALPHA), BETA))
        a, b = run(*leaves)
        assert_close(a, rest.sum())
        assert_close(b, X.T @ rest)
    assert native.reason is None


def test_a_predictor_of_other_sizes_is_refused():
    with pytest.raises(ShapeError, match="as many coefficients"):
        dist.poisson_log_glm(X, 0.0, BETA[:2])
