"""The language of models once more, in NumPy and SciPy: what the text of a model means.

`NumpyModel` runs the text of a model with names of its own for `sample`, `plate`, `factor`,
handlers and distributions, at values given for the latent sites, and keeps the log density of each
site. It shares no line with the library, knows no tensors, and is slow. random_models.py compares
with it.
"""

import contextlib
import copy
import itertools
import math

import numpy as np
from scipy import special, stats

__all__ = ["NumpyModel"]


class Law:
    """A distribution: its log density, the rightmost dims of a value, its values if finite."""

    def __init__(self, log_prob, event_dim=0, values=None):
        self.log_prob, self.event_dim, self.values, self.where = log_prob, event_dim, values, True

    def to_event(self, n):
        """Sum over `n` more dims of a value."""
        dims = tuple(range(-n, 0))
        return Law(lambda x: self.log_prob(x).sum(dims), self.event_dim + n)

    def expand(self, shape):
        """Return the same: values say how many there are."""
        return self

    def mask(self, where):
        """Let only some elements count."""
        masked = copy.copy(self)
        masked.where = where
        return masked


def univariate(family, *order):
    """A distribution of SciPy whose arguments have these names, in our order."""

    def law(*args, **named):
        given = dict(zip(order, args, strict=False)) | named
        return Law(lambda x: family(x, **given))

    return law


def transformed(base, transforms):
    """What becomes of a law by maps from the real line: exp, and to rising numbers."""

    def log_prob(y):
        log_det = 0.0
        for transform in reversed(transforms):
            y, there = transform(y)
            log_det = log_det + there
        return base.log_prob(y) - log_det

    return Law(log_prob, base.event_dim)


def exp_undone(y):
    return np.log(y), np.log(y)


def rising_undone(y):
    x = np.concatenate([y[..., :1], np.log(np.diff(y, axis=-1))], -1)
    return x, x[..., 1:].sum(-1)


def affine(loc, scale):
    return lambda y: ((y - loc) / scale, np.log(np.abs(scale)) + 0.0 * y)


def multivariate_normal(loc, scale_tril):
    cov = scale_tril @ scale_tril.T
    zero = np.zeros(len(cov))

    def log_prob(x):
        found = stats.multivariate_normal.logpdf(x - loc, zero, cov)
        return np.reshape(found, np.shape(x - loc)[:-1])

    return Law(log_prob, 1)


def dirichlet(a):
    def log_prob(x):
        norm = special.gammaln(a.sum(-1)) - special.gammaln(a).sum(-1)
        return (special.xlogy(a - 1.0, x)).sum(-1) + norm

    return Law(log_prob, 1)


def lkj_cholesky(dim, concentration):
    """Of two numbers: their correlation is that of a beta variable, stretched to (-1, 1)."""
    assert dim == 2
    a = concentration

    def log_prob(x):
        return stats.beta.logpdf((x[..., 1, 0] + 1.0) / 2.0, a, a) - np.log(2.0)

    return Law(log_prob, 2)


def bernoulli(probs=None, logits=None):
    p = special.expit(logits) if probs is None else probs
    return Law(lambda x: stats.bernoulli.logpmf(x, p), values=(0.0, 1.0))


def binomial(total_count, probs):
    values = np.arange(total_count + 1.0)
    return Law(lambda x: stats.binom.logpmf(x, total_count, probs), values=values)


def categorical(probs=None, logits=None):
    p = special.softmax(logits, -1) if probs is None else probs
    law = Law(lambda x: np.log((of_each(x, p.shape[-1]) * p).sum(-1)))
    law.values, law.probs = np.arange(float(p.shape[-1])), p
    return law


def ordered_logistic(predictor, cutpoints):
    below = special.expit(cutpoints - np.asarray(predictor)[..., None])
    edge = np.zeros_like(below[..., :1])
    return categorical(np.diff(np.concatenate([edge, below, edge + 1.0], -1), axis=-1))


def mixture(weights, parts):
    def log_prob(x):
        terms = np.log(weights.probs) + parts.log_prob(np.asarray(x)[..., None])
        return special.logsumexp(terms, -1)

    return Law(log_prob)


def zero_inflated_poisson(rate, gate):
    def log_prob(x):
        found = np.log1p(-gate) + stats.poisson.logpmf(x, rate)
        return np.where(x == 0, np.logaddexp(np.log(gate), found), found)

    return Law(log_prob)


def of_each(x, count):
    """1 where the whole numbers are 0, 1, ... `count` - 1, along a new last dim."""
    return np.asarray(x)[..., None] == np.arange(count)


LAWS = {
    "Normal": univariate(stats.norm.logpdf, "loc", "scale"),
    "Laplace": univariate(stats.laplace.logpdf, "loc", "scale"),
    "Logistic": univariate(stats.logistic.logpdf, "loc", "scale"),
    "Cauchy": univariate(stats.cauchy.logpdf, "loc", "scale"),
    "Gumbel": univariate(stats.gumbel_r.logpdf, "loc", "scale"),
    "StudentT": univariate(stats.t.logpdf, "df", "loc", "scale"),
    "SkewNormal": lambda loc, scale, alpha: Law(
        lambda x: stats.skewnorm.logpdf(x, alpha, loc, scale)
    ),
    "VonMises": lambda loc, k: Law(lambda x: stats.vonmises.logpdf(x, k, loc)),
    "LogNormal": lambda m, s: Law(lambda x: stats.lognorm.logpdf(x, s, scale=np.exp(m))),
    "HalfNormal": univariate(stats.halfnorm.logpdf, "scale"),
    "HalfCauchy": univariate(stats.halfcauchy.logpdf, "scale"),
    "Rayleigh": univariate(stats.rayleigh.logpdf, "scale"),
    "Exponential": lambda rate: Law(lambda x: stats.expon.logpdf(x, scale=1.0 / rate)),
    "Gamma": lambda a, rate: Law(lambda x: stats.gamma.logpdf(x, a, scale=1.0 / rate)),
    "InverseGamma": lambda a, rate: Law(lambda x: stats.invgamma.logpdf(x, a, scale=rate)),
    "Weibull": lambda scale, k: Law(lambda x: stats.weibull_min.logpdf(x, k, scale=scale)),
    "Pareto": lambda scale, a: Law(lambda x: stats.pareto.logpdf(x, a, scale=scale)),
    "Beta": univariate(stats.beta.logpdf, "a", "b"),
    "Uniform": lambda low, high: Law(lambda x: stats.uniform.logpdf(x, low, high - low)),
    "TruncatedNormal": lambda loc, scale, low, high: Law(
        lambda x: stats.truncnorm.logpdf(x, (low - loc) / scale, (high - loc) / scale, loc, scale)
    ),
    "MultivariateNormal": multivariate_normal,
    "Dirichlet": dirichlet,
    "LKJCholesky": lkj_cholesky,
    "TransformedDistribution": transformed,
    "ExpTransform": lambda: exp_undone,
    "OrderedTransform": lambda: rising_undone,
    "AffineTransform": affine,
    "Poisson": univariate(stats.poisson.logpmf, "mu"),
    "Bernoulli": bernoulli,
    "Binomial": binomial,
    # Failures ahead of the first success, and ahead of so many of them.
    "Geometric": lambda probs: Law(lambda x: stats.geom.logpmf(x + 1.0, probs)),
    "NegativeBinomial": lambda n, probs: Law(lambda x: stats.nbinom.logpmf(x, n, 1.0 - probs)),
    "BetaBinomial": lambda a, b, n: Law(lambda x: stats.betabinom.logpmf(x, n, a, b)),
    "Categorical": categorical,
    "OrderedLogistic": ordered_logistic,
    "MixtureSameFamily": mixture,
    "ZeroInflatedPoisson": zero_inflated_poisson,
}

FUNCTIONS = {
    "take": lambda x, i: x[i], "index": np.asarray,
    "const": lambda x: np.asarray(x, np.float64),
    "truth": lambda x: np.asarray(x, bool),
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "sin": np.sin, "log1p": np.log1p,
    "sigmoid": special.expit, "softplus": lambda x: np.logaddexp(x, 0.0),
    "where": np.where, "maximum": np.maximum, "sqrt": np.sqrt,
    "softmax": lambda x, dim: special.softmax(x, dim),
    "pick": lambda x, i: (x * of_each(i, x.shape[-1])).sum(-1),
    "pick_row": lambda x, i: (x * of_each(i, x.shape[-2])[..., None]).sum(-2),
    "markov": lambda x: x, "positive": None,
    "LocScaleReparam": lambda *args, **named: None, "TransformReparam": lambda: None,
}  # fmt: skip


class Plate:
    """Rows: a dim that is given or the rightmost free one, which is kept; or a loop."""

    def __init__(self, world, name, size, dim=None, subsample=None):
        self.rows = np.arange(size) if subsample is None else subsample
        self.world, self.size, self.dim = world, len(self.rows), dim
        self.scale = size / self.size

    def __enter__(self):
        taken = {p.dim for p in self.world.plates}
        if self.dim is None:
            self.dim = next(-i for i in itertools.count(1) if -i not in taken)
        self.world.plates.append(self)
        return self.rows

    def __exit__(self, *exc):
        self.world.plates.remove(self)

    def __iter__(self):
        return iter(range(self.size))


class Handler:
    """What acts on a site on its way out: a kind and what it was given."""

    def __init__(self, world, kind, fn=None, *given, **named):
        self.world, self.kind, self.fn = world, kind, fn
        (self.given,) = (*given, *named.values())

    def __enter__(self):
        self.world.handlers.append(self)

    def __exit__(self, *exc):
        self.world.handlers.remove(self)

    def __call__(self, *args):
        with self:
            return self.fn(*args)


class Site:
    def __init__(self, name, law, value, kind="sample"):
        self.name, self.law, self.value, self.kind = name, law, value, kind
        self.where, self.scale = np.asarray(True if law is None else law.where), 1.0


KINDS = ("condition", "do", "scope", "mask", "scale", "block", "reparam")


class NumpyModel:
    """A model by its text, at given values.

    Parameters
    ----------
    text : str
        Defines ``model(data)``.
    around : sequence of (str, object)
        Handlers around it, outermost first: a kind and what it is given.

    Attributes
    ----------
    terms, rows, computed : dict of str to ndarray
        Log densities of sites, with masks and scales; those of the elements of data, without
        scales; values of deterministic sites. Of the latest run.
    latent : list of str
        Sites whose values were asked for.
    params : list of str
    finite : dict of str to (shape, values)
        Those of them that have finitely many values.
    """

    def __init__(self, text, around=()):
        names = LAWS | FUNCTIONS | {k: self.of_kind(k) for k in KINDS}
        names |= {"sample": self.sample, "factor": self.factor, "param": self.param}
        names |= {"deterministic": self.deterministic, "plate": self.plate}
        exec(compile(text, "model_in_numpy.py", "exec"), names)  # noqa: S102 - ours
        self.model, self.around = names["model"], around

    def of_kind(self, kind):
        return lambda *args, **named: Handler(self, kind, *args, **named)

    def plate(self, name, size, dim=None, subsample=None):
        return Plate(self, name, size, dim, subsample)

    def run(self, data, values):
        """Run at values of the latent sites, constrained; return the log joint density."""
        self.values, self.terms, self.rows, self.computed = values, {}, {}, {}
        self.latent, self.finite, self.plates, self.handlers = [], {}, [], []
        self.params = []
        with contextlib.ExitStack() as stack:
            for kind, given in self.around:
                stack.enter_context(Handler(self, kind, None, given))
            self.model(data)
        return sum(self.terms.values())

    def log_joint(self, data, values):
        """Return the log joint density with finite sites summed out, assignment by assignment."""
        self.run(data, values)
        sites = dict(self.finite)
        places = [(name, i) for name, (shape, _) in sites.items() for i in np.ndindex(shape)]
        found = []
        for choice in itertools.product(*(sites[name][1] for name, _ in places)):
            given = {name: np.zeros(shape) for name, (shape, _) in sites.items()}
            for (name, i), value in zip(places, choice, strict=True):
                given[name][i] = value
            found.append(self.run(data, values | given))
        return special.logsumexp(found)

    # ----------------------------------------------------------------------------------- statements

    def sample(self, name, law, obs=None, infer=None):
        return self.perform(Site(name, law, obs), list(self.handlers))

    def factor(self, name, value):
        self.perform(Site(name, None, value, "factor"), list(self.handlers))

    def deterministic(self, name, value):
        return self.perform(Site(name, None, value, "deterministic"), list(self.handlers))

    def param(self, name, init, constraint=None):
        self.params.append(name)
        for handler in self.handlers:
            if handler.kind == "lift" and name in handler.given:
                return self.sample(name, LAWS[handler.given[name][0]](*handler.given[name][1:]))
        return self.values.get(name, np.asarray(init, np.float64))

    def perform(self, site, handlers):
        while handlers:
            handler = handlers.pop()
            kind, given = handler.kind, handler.given
            if kind == "scope":
                site.name = f"{given}/{site.name}"
            elif kind == "block" and site.name in given:
                return site.value
            elif kind == "condition" and site.name in given:
                site.value = given[site.name]
            elif kind == "do" and site.name in given:
                self.perform(copy.copy(site), handlers)
                return given[site.name]
            elif kind == "mask":
                site.where = site.where & np.asarray(given)
            elif kind == "scale":
                site.scale = site.scale * given
        return self.count(site)

    def count(self, site):
        """Keep a site: its value and its log density."""
        shape = self.shape()
        if site.kind == "deterministic":
            self.computed[site.name] = np.asarray(site.value)
            return site.value
        if site.kind == "factor":
            term = np.asarray(site.value)
        else:
            observed = site.value is not None
            if not observed:
                site.value = self.value(site, shape)
            term = np.asarray(site.law.log_prob(np.asarray(site.value, np.float64)))
        term = np.where(site.where, np.broadcast_to(term, shape), 0.0)
        site.scale = site.scale * math.prod(p.scale for p in self.plates)
        self.terms[site.name] = (site.scale * term).sum()
        if site.kind == "sample" and observed:
            self.rows[site.name] = term
        return site.value

    def shape(self):
        leftmost = max((-p.dim for p in self.plates), default=0)
        sizes = {p.dim: p.size for p in self.plates}
        return tuple(sizes.get(-i, 1) for i in range(leftmost, 0, -1))

    def value(self, site, shape):
        self.latent.append(site.name)
        if site.law.values is not None:
            self.finite[site.name] = (shape, site.law.values)
            return self.values.get(site.name, np.zeros(shape))
        return self.values[site.name]
