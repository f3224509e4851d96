"""One entry per distribution and parameterisation: what the contract tests know about each.

An entry names the parameters that are drawn (through `biject_to` of their constraints), those that
are fixed, and a reference: a frozen SciPy distribution over the batch, or for vectors an object
with the same methods. Facts that change which law applies are properties of the entry (`coupled`,
`bounds`), not exceptions in a test.
"""

import itertools
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import integrate, special, stats

import probtorch.distributions as dist
from probtorch.distributions import biject_to, constraints
from probtorch.tensor import tensor

BATCH = 3


@dataclass
class Case:
    """What is known about one parameterisation of one distribution.

    Attributes
    ----------
    cls : type
    params : tuple of str
        Names of the parameters that are drawn, in this order.
    reference : callable
        From a namespace of arrays (batch first) to a reference distribution.
    fixed : dict
        Arguments that are not drawn.
    sizes : dict
        Event shapes of the parameters that have one.
    bounds : tuple of str
        Parameters that move the support: the score function has no mean of 0 in them.
    coupled : bool
        Whether a draw is its quantile function at a fixed probability, so that its derivative is
        known exactly.
    least : dict
        What is added to parameters: where moments that a law needs are finite.
    narrow : bool
        Whether the density in unconstrained space is too narrow for the grid of its integral; that
        it is normalised is then known from the reference alone.
    circular : bool
        Whether values are angles, so that only functions of them with period 2 pi have the
        pathwise gradient.
    costly : bool
        Whether its laws run at night, as a density or draw of it is a long sum.
    """

    cls: type
    params: tuple
    reference: Any
    fixed: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=dict)
    bounds: tuple = ()
    coupled: bool = True
    circular: bool = False
    least: dict = field(default_factory=dict)
    narrow: bool = False
    costly: bool = False

    @property
    def id(self):
        """Name in the test report: the class, and the alternative if there are several."""
        alternatives = self.cls._alternatives
        chosen = [n for n in alternatives if n in self.params or n in self.fixed]
        return "-".join([self.cls.__name__, *chosen])

    def arguments(self, seed=0, batch=(BATCH,)):
        """Return a namespace of tensors drawn inside their constraints."""
        rng, values = np.random.default_rng(seed), SimpleNamespace()
        for name in self.params:
            constraint = self.cls._fields[name].constraint
            if constraints.is_dependent(constraint):
                constraint = constraint.resolve(values)
            transform = biject_to(constraint)
            shape = transform.inverse_shape((*batch, *self.sizes.get(name, ())))
            drawn = transform(tensor(0.6 * rng.standard_normal(shape)))
            setattr(values, name, drawn + self.least.get(name, 0.0))
        for name, value in self.fixed.items():
            setattr(values, name, value)
        return values

    def make(self, seed=0, batch=(BATCH,), **options):
        """Return ``(distribution, reference)`` for parameters drawn from `seed`."""
        values = self.arguments(seed, batch)
        arrays = SimpleNamespace(**{k: _array(v) for k, v in vars(values).items()})
        return self.cls(**vars(values), **options), self.reference(arrays)

    @property
    def event_dim(self):
        """Number of event dims of the support."""
        return self.cls.support.event_dim

    @property
    def is_discrete(self):
        """Whether the support is discrete."""
        return self.cls.support.is_discrete


def _array(value):
    return value.numpy() if hasattr(value, "numpy") else value


def sigmoid(x):
    return special.expit(x)


class Rows:
    """A reference for vectors: one per batch element, and the marginals that are known."""

    def __init__(self, frozen, marginals=None):
        self.frozen = frozen
        self.marginals = marginals

    def logpdf(self, x):
        """Log density of x, shape (draws, batch, *event)."""
        columns = []
        for i, f in enumerate(self.frozen):
            log = f.logpdf if hasattr(f, "logpdf") else f.logpmf
            columns.append([log(v) for v in x[:, i]])
        return np.array(columns, dtype=float).T

    def entropy(self):
        """Entropies, shape (batch,)."""
        return np.array([f.entropy() for f in self.frozen])


class Simplex:
    """SciPy's Dirichlet wants columns that add up to exactly 1."""

    def __init__(self, concentration):
        self.c = concentration
        self.entropy = stats.dirichlet(concentration).entropy

    def logpdf(self, x):
        """Closed form."""
        c = self.c
        constant = special.gammaln(c.sum()) - special.gammaln(c).sum()
        return (special.xlogy(c - 1, x)).sum() + constant


def _log_quantile(level, reference):
    return np.log(reference.ppf(level))


class Lkj:
    """Closed form of the LKJ density on Cholesky factors, normalised row by row."""

    def __init__(self, dim, eta):
        self.dim, self.eta = dim, eta

    def logpdf(self, x):
        """Log density of one factor."""
        d, eta = self.dim, self.eta
        k = np.arange(2, d + 1)
        kernel = ((d - k + 2 * eta - 2) * np.log(np.diag(x)[1:])).sum()
        # Row n has n free entries, a point of the unit ball, and L_nn^2 = 1 - r^2: the integral of
        # (1 - r^2)^(a - 1) over that ball is pi^(n/2) gamma(a) / gamma(a + n/2).
        constant = 0.0
        for n in range(1, d):
            a = eta + 0.5 * (d - 1 - n)
            constant += (
                0.5 * n * math.log(math.pi) + special.gammaln(a) - special.gammaln(a + 0.5 * n)
            )
        return kernel - constant

    def entropy(self):
        """By quadrature over the levels of the squared diagonal, which is beta, row by row."""
        value, d = 0.0, self.dim
        for n in range(1, d):
            a = self.eta + 0.5 * (d - 1 - n)
            square = stats.beta(a, 0.5 * n)
            mean = integrate.quad(_log_quantile, 0, 1, (square,), epsabs=1e-12)[0]
            volume = special.gammaln(a) - special.gammaln(a + 0.5 * n)
            value += 0.5 * n * math.log(math.pi) + volume - (a - 1) * mean
        return value


class Counts:
    """Log mass of an indicator vector."""

    def __init__(self, p):
        self.p = p

    def logpmf(self, x):
        """log of the chosen probability."""
        return special.xlogy(x, self.p).sum()

    def entropy(self):
        """Of the index."""
        return special.entr(self.p).sum()


class Categories:
    """SciPy has no categorical with a batch; this one is by the table."""

    def __init__(self, p):
        self.p = p / p.sum(-1, keepdims=True)

    def logpmf(self, x):
        """Table look-up, shape (draws, batch)."""
        return np.log(np.stack([self.p[i][x[:, i].astype(int)] for i in range(len(self.p))], 1))

    def cdf(self, x):
        """Cumulative table."""
        c = np.concatenate([np.zeros((len(self.p), 1)), self.p.cumsum(-1)], -1)
        k = np.clip(np.floor(x).astype(int) + 1, 0, self.p.shape[-1])
        return np.stack([c[i][k[..., i]] for i in range(len(self.p))], -1)

    def ppf(self, q):
        """Quantiles."""
        levels = np.broadcast_to(q, np.broadcast_shapes(np.shape(q), (len(self.p),)))
        return np.stack(
            [np.searchsorted(self.p[i].cumsum(), levels[..., i]) for i in range(len(self.p))], -1
        ).astype(float)

    def entropy(self):
        """Entropies."""
        return special.entr(self.p).sum(-1)


def _categories(weights):
    return Categories(weights)


def _one_hot(p):
    p = p / p.sum(-1, keepdims=True)
    marginals = lambda x: [(x[..., k], stats.bernoulli(p[:, k])) for k in range(p.shape[1])]
    return Rows([Counts(row) for row in p], marginals)


def _multinomial(n, p):
    p = p / p.sum(-1, keepdims=True)
    marginals = lambda x: [(x[..., k], stats.binom(n, p[:, k])) for k in range(p.shape[1])]
    return Rows([stats.multinomial(n, row) for row in p], marginals)


def _softmax(x):
    return special.softmax(x, -1)


def _dirichlet(c):
    rest = c.sum(-1, keepdims=True) - c
    marginals = lambda x: [(x[..., k], stats.beta(c[:, k], rest[:, k])) for k in range(c.shape[1])]
    return Rows([Simplex(row) for row in c], marginals)


def _mvn(loc, cov):
    sd = np.sqrt(np.diagonal(cov, 0, -2, -1))
    w = np.array([0.6, -1.1])
    mean = loc @ w
    spread = np.sqrt(np.einsum("i,bij,j->b", w, cov, w))

    def marginals(x):
        each = [(x[..., k], stats.norm(loc[:, k], sd[:, k])) for k in range(2)]
        return [*each, (x @ w, stats.norm(mean, spread))]

    return Rows([stats.multivariate_normal(m, c) for m, c in zip(loc, cov)], marginals)


def _lkj(dim, eta):
    # Each correlation is 2 b - 1 for b beta distributed (Lewandowski et al. 2009, sec. 3.2).
    shape = eta - 1 + dim / 2

    def marginals(x):
        r = x @ np.swapaxes(x, -1, -2)
        pairs = itertools.combinations(range(dim), 2)
        return [(r[..., i, j], stats.beta(shape, shape, -1, 2)) for i, j in pairs]

    return Rows([Lkj(dim, e) for e in eta], marginals)


def _outer(tril):
    return tril @ np.swapaxes(tril, -1, -2)


class Circle:
    """SciPy's von Mises, whose cdf counts from loc - pi; ours draws from [-pi, pi)."""

    def __init__(self, loc, kappa):
        self.line = stats.vonmises(kappa, loc)
        self.logpdf, self.ppf, self.entropy = self.line.logpdf, self.line.ppf, self.line.entropy

    def cdf(self, x):
        """Probability of an angle from -pi to x."""
        return self.line.cdf(x) - self.line.cdf(-math.pi)


CASES = [
    Case(dist.Normal, ("loc", "scale"), lambda p: stats.norm(p.loc, p.scale)),
    Case(dist.LogNormal, ("loc", "scale"), lambda p: stats.lognorm(p.scale, scale=np.exp(p.loc))),
    Case(dist.HalfNormal, ("scale",), lambda p: stats.halfnorm(scale=p.scale)),
    Case(
        dist.TruncatedNormal,
        ("loc", "scale", "low", "high"),
        lambda p: stats.truncnorm(
            (p.low - p.loc) / p.scale, (p.high - p.loc) / p.scale, p.loc, p.scale
        ),
        bounds=("low", "high"),
    ),
    Case(dist.Cauchy, ("loc", "scale"), lambda p: stats.cauchy(p.loc, p.scale)),
    Case(dist.HalfCauchy, ("scale",), lambda p: stats.halfcauchy(scale=p.scale)),
    Case(
        dist.StudentT,
        ("df", "loc", "scale"),
        lambda p: stats.t(p.df, p.loc, p.scale),
        coupled=False,
    ),
    Case(dist.Laplace, ("loc", "scale"), lambda p: stats.laplace(p.loc, p.scale)),
    Case(dist.Logistic, ("loc", "scale"), lambda p: stats.logistic(p.loc, p.scale)),
    Case(dist.Gumbel, ("loc", "scale"), lambda p: stats.gumbel_r(p.loc, p.scale)),
    Case(
        dist.VonMises,
        ("loc", "concentration"),
        lambda p: Circle(p.loc, p.concentration),
        coupled=False,
        circular=True,
    ),
    Case(
        dist.Uniform,
        ("low", "high"),
        lambda p: stats.uniform(p.low, p.high - p.low),
        bounds=("low", "high"),
    ),
    Case(dist.Exponential, ("rate",), lambda p: stats.expon(scale=1 / p.rate)),
    Case(
        dist.Weibull,
        ("scale", "concentration"),
        lambda p: stats.weibull_min(p.concentration, scale=p.scale),
    ),
    Case(
        dist.Pareto,
        ("scale", "alpha"),
        lambda p: stats.pareto(p.alpha, scale=p.scale),
        bounds=("scale",),
    ),
    Case(
        dist.Gamma,
        ("concentration", "rate"),
        lambda p: stats.gamma(p.concentration, scale=1 / p.rate),
    ),
    Case(dist.Chi2, ("df",), lambda p: stats.chi2(p.df)),
    Case(
        dist.InverseGamma,
        ("concentration", "rate"),
        lambda p: stats.invgamma(p.concentration, scale=p.rate),
    ),
    Case(
        dist.Beta,
        ("concentration1", "concentration0"),
        lambda p: stats.beta(p.concentration1, p.concentration0),
        coupled=False,
    ),
    Case(dist.Bernoulli, ("probs",), lambda p: stats.bernoulli(p.probs)),
    Case(dist.Bernoulli, ("logits",), lambda p: stats.bernoulli(sigmoid(p.logits))),
    Case(dist.Geometric, ("probs",), lambda p: stats.geom(p.probs, -1)),
    Case(dist.Geometric, ("logits",), lambda p: stats.geom(sigmoid(p.logits), -1)),
    Case(dist.Binomial, ("probs",), lambda p: stats.binom(7, p.probs), {"total_count": 7}),
    Case(
        dist.Binomial, ("logits",), lambda p: stats.binom(7, sigmoid(p.logits)), {"total_count": 7}
    ),
    Case(
        dist.BetaBinomial,
        ("concentration1", "concentration0"),
        lambda p: stats.betabinom(7, p.concentration1, p.concentration0),
        {"total_count": 7},
    ),
    Case(dist.Poisson, ("rate",), lambda p: stats.poisson(p.rate)),
    Case(
        dist.NegativeBinomial,
        ("total_count", "probs"),
        lambda p: stats.nbinom(p.total_count, 1 - p.probs),
    ),
    Case(
        dist.NegativeBinomial,
        ("total_count", "logits"),
        lambda p: stats.nbinom(p.total_count, sigmoid(-p.logits)),
    ),
    Case(dist.Categorical, ("probs",), lambda p: _categories(p.probs), sizes={"probs": (4,)}),
    Case(
        dist.Categorical,
        ("logits",),
        lambda p: _categories(_softmax(p.logits)),
        sizes={"logits": (4,)},
    ),
    Case(dist.OneHotCategorical, ("probs",), lambda p: _one_hot(p.probs), sizes={"probs": (4,)}),
    Case(
        dist.OneHotCategorical,
        ("logits",),
        lambda p: _one_hot(_softmax(p.logits)),
        sizes={"logits": (4,)},
    ),
    Case(
        dist.Multinomial,
        ("probs",),
        lambda p: _multinomial(5, p.probs),
        {"total_count": 5},
        {"probs": (3,)},
    ),
    Case(
        dist.Multinomial,
        ("logits",),
        lambda p: _multinomial(5, _softmax(p.logits)),
        {"total_count": 5},
        {"logits": (3,)},
    ),
    Case(
        dist.Dirichlet,
        ("concentration",),
        lambda p: _dirichlet(p.concentration),
        sizes={"concentration": (3,)},
    ),
    Case(dist.LKJCholesky, ("concentration",), lambda p: _lkj(3, p.concentration), {"dim": 3}),
]

if hasattr(dist, "MultivariateNormal"):
    CASES += [
        Case(
            dist.MultivariateNormal,
            ("loc", "covariance_matrix"),
            lambda p: _mvn(p.loc, p.covariance_matrix),
            sizes={"loc": (2,), "covariance_matrix": (2, 2)},
        ),
        Case(
            dist.MultivariateNormal,
            ("loc", "precision_matrix"),
            lambda p: _mvn(p.loc, np.linalg.inv(p.precision_matrix)),
            sizes={"loc": (2,), "precision_matrix": (2, 2)},
        ),
        Case(
            dist.MultivariateNormal,
            ("loc", "scale_tril"),
            lambda p: _mvn(p.loc, _outer(p.scale_tril)),
            sizes={"loc": (2,), "scale_tril": (2, 2)},
        ),
    ]

# Distributions made of other distributions or of a support; or whose parameters are whole;
# their laws are in test_wrappers.py, test_rarer.py, test_series.py and test_ordered.py.
STRUCTURAL = {
    "DeterminantalPointProcess",
    "KroneckerNormal",
    "Wiener",
    "DiscreteMarkovChain",
    "JointCategorical",
    "MarkovChain",
    "FiniteDiscrete",
    "Interpolated",
    "PlackettLuce",
    "ZeroOneInflatedBeta",
    "BernoulliLogitGLM",
    "BinomialLogitGLM",
    "CategoricalLogitGLM",
    "Horseshoe",
    "HyperGeometric",
    "NegBinomial2LogGLM",
    "NormalIdGLM",
    "OrderedLogisticGLM",
    "PoissonLogGLM",
    "PowerSpherical",
    "Skellam",
    "SphericalUniform",
    "VonMisesFisher",
    "CAR",
    "ExponentialFamily",
    "ExtendedBetaBinomial",
    "ExtendedBinomial",
    "ICAR",
    "LogNormalNegativeBinomial",
    "NanMaskedMultivariateNormal",
    "NanMaskedNormal",
    "Unit",
    "GaussianCopula",
    "MaskedMixture",
    "MixtureGeneral",
    "AR",
    "DiscreteHMM",
    "EulerMaruyama",
    "GammaGaussianHMM",
    "GaussianHMM",
    "GaussianMRF",
    "GaussianStateSpace",
    "HiddenMarkovModel",
    "IndependentHMM",
    "LinearHMM",
    "RandomWalk",
    "MatrixNormal",
    "Stable",
    "Empirical",
    "Rejector",
    "PolyaGamma",
    "TruncatedPolyaGamma",
    "ProjectedNormal",
    "SineBivariateVonMises",
    "SineSkewed",
    "VonMises3D",
    "CoalescentTimes",
    "CoalescentTimesWithRate",
    "OneOneMatching",
    "OneTwoMatching",
    "SpanningTree",
    "OneHotCategoricalStraightThrough",
    "RelaxedBernoulliStraightThrough",
    "RelaxedOneHotCategoricalStraightThrough",
    "Censored",
    "FoldedDistribution",
    "Ordered",
    "HurdleDistribution",
    "IntervalCensoredDistribution",
    "LeftCensoredDistribution",
    "QuantizedDistribution",
    "RightCensoredDistribution",
    "TruncatedDistribution",
    "ZeroInflatedDistribution",
    "Delta",
    "DiscreteUniform",
    "ImproperUniform",
    "Independent",
    "MaskedDistribution",
    "MixtureSameFamily",
    "TransformedDistribution",
}
