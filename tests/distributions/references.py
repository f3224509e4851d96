"""References for distributions that SciPy lacks: all facts made of a density or of masses.

A log density written from its definition is integrated, and log masses are summed, for the cdf,
quantiles, moments and the entropy.
"""

import functools

import numpy as np
from scipy import special

__all__ = [
    "NODES",
    "WEIGHTS",
    "Density",
    "Masses",
    "Stated",
    "Through",
    "Vector",
    "between",
    "on_line",
    "on_positive",
    "on_unit",
    "through_sigmoid",
]

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


class Density:
    """A reference made of a log density over a batch, by quadrature in an unconstrained variable.

    Parameters
    ----------
    logpdf : callable
        From values, shape (..., batch), to log densities.
    place, back, slope : callable
        From the line to the support, back again, and the derivative.
    """

    def __init__(self, logpdf, place, back, slope, reach, batch):
        self.logpdf, self.place, self.back, self.slope = logpdf, place, back, slope
        self.edges = np.linspace(-reach, reach, 601)
        self.batch = batch

    @functools.cached_property
    def table(self):
        """Points, the masses that stand for them, and sums of those from both ends."""
        half = 0.5 * np.diff(self.edges)[:, None, None]
        t = self.edges[:-1, None, None] + half * (1.0 + NODES[:, None])
        t = np.broadcast_to(t, (*t.shape[:2], self.batch))
        mass = self._mass(t) * (half * WEIGHTS[:, None])
        total, zero = mass.sum(1), np.zeros((1, self.batch))
        below = np.concatenate([zero, total.cumsum(0)])
        return self.place(t), mass, below, np.concatenate([total[::-1].cumsum(0)[::-1], zero])

    def _mass(self, t):
        with np.errstate(all="ignore"):
            out = np.exp(self.logpdf(self.place(t))) * self.slope(t)
        return np.where(np.isfinite(out), out, 0.0)

    def _partial(self, x, upper):
        with np.errstate(all="ignore"):
            t = np.clip(self.back(np.asarray(x, float)), self.edges[0], self.edges[-1])
        t = np.broadcast_to(t, np.broadcast_shapes(t.shape, (self.batch,)))
        shape, t = t.shape, t.reshape(-1, self.batch)
        if len(t) > 1000:
            # For the test of draws straight lines between 600 points are enough.
            table = self.table[3 if upper else 2]
            columns = [np.interp(t[:, i], self.edges, table[:, i]) for i in range(self.batch)]
            return np.stack(columns, 1).reshape(shape)
        i = np.clip(np.searchsorted(self.edges, t, side="right") - 1, 0, 599)
        start = self.edges[i + 1] if upper else self.edges[i]
        half = 0.5 * (t - start)
        nodes = start + half * (1.0 + NODES[:, None, None])
        part = (self._mass(nodes) * WEIGHTS[:, None, None]).sum(0) * half
        sums = np.take_along_axis(self.table[3 if upper else 2], i + upper, 0)
        return (sums - part if upper else sums + part).reshape(shape)

    def cdf(self, x):
        return self._partial(x, 0)

    def sf(self, x):
        return self._partial(x, 1)

    def ppf(self, q):
        below, above = self.table[2:]
        columns = range(self.batch)
        if q < 0.5:
            return self.place(np.array([np.interp(q, below[:, i], self.edges) for i in columns]))
        up = self.edges[::-1]
        t = [np.interp(1.0 - q, above[::-1, i], up) for i in columns]
        return self.place(np.array(t))

    def _expected(self, values):
        return (values * self.table[1]).sum((0, 1))

    def mean(self):
        return self._expected(self.table[0])

    def var(self):
        return self._expected((self.table[0] - self.mean()) ** 2)

    def stats(self, letter):
        z = (self.table[0] - self.mean()) / np.sqrt(self.var())
        return self._expected(z**3) if letter == "s" else self._expected(z**4) - 3.0

    def entropy(self):
        with np.errstate(all="ignore"):
            logs = self.logpdf(self.table[0])
        return -self._expected(np.where(self.table[1] > 0.0, logs, 0.0))


def on_line(logpdf, batch=3):
    """A density on the line."""
    return Density(logpdf, np.sinh, np.arcsinh, np.cosh, 7.0, batch)


def on_positive(logpdf, batch=3):
    """A density on the positive half-line."""
    return Density(logpdf, np.exp, np.log, np.exp, 45.0, batch)


def on_unit(logpdf, batch=3):
    """A density on the unit interval."""
    slope = lambda t: special.expit(t) * special.expit(-t)
    return Density(logpdf, special.expit, special.logit, slope, 36.0, batch)


def between(logpdf, low, high):
    """A density on an interval."""
    width = high - low
    place = lambda t: low + width * special.expit(t)
    back = lambda x: special.logit((x - low) / width)
    slope = lambda t: width * special.expit(t) * special.expit(-t)
    return Density(logpdf, place, back, slope, 36.0, len(low))


class Stated:
    """A reference some of whose facts are stated by name, where SciPy's are inexact or wrong."""

    def __init__(self, other, **facts):
        self.other = other
        for name, fact in facts.items():
            setattr(self, name, fact)

    def __getattr__(self, name):
        return getattr(self.other, name)


class Through:
    """The distribution of place(x), for x of a frozen one."""

    def __init__(self, frozen, place, back, log_slope):
        self.frozen, self.place, self.back, self.log_slope = frozen, place, back, log_slope

    def logpdf(self, y):
        return self.frozen.logpdf(self.back(y)) + self.log_slope(y)

    def cdf(self, y):
        with np.errstate(all="ignore"):
            return self.frozen.cdf(self.back(y))

    def sf(self, y):
        return self.frozen.sf(self.back(y))

    def ppf(self, q):
        return self.place(self.frozen.ppf(q))

    @functools.cached_property
    def table(self):
        """Points at many levels of the frozen one, and the masses that stand for them."""
        edges = np.linspace(-36, 36, 401)[:, None]
        half = 0.5 * np.diff(edges, axis=0)
        t = (edges[:-1] + half * (1 + NODES)).reshape(-1, 1)
        masses = (half * WEIGHTS).reshape(-1, 1) * special.expit(t) * special.expit(-t)
        inner = np.where(
            t < 0, self.frozen.ppf(special.expit(t)), self.frozen.isf(special.expit(-t))
        )
        return inner, self.place(inner), masses

    def _expected(self, values):
        return (values * self.table[2]).sum(0)

    def mean(self):
        return self._expected(self.table[1])

    def var(self):
        return self._expected((self.table[1] - self.mean()) ** 2)

    def stats(self, letter):
        z = (self.table[1] - self.mean()) / np.sqrt(self.var())
        return self._expected(z**3) if letter == "s" else self._expected(z**4) - 3.0

    def entropy(self):
        inner, y, _ = self.table
        # The slope at a point that has rounded to an end of the unit interval is that of the inner.
        inside = (y > 0.0) & (y < 1.0) if self.place is special.expit else np.isfinite(y)
        slope = self.log_slope(np.where(inside, y, 0.5))
        if self.place is special.expit:
            slope = np.logaddexp(0.0, inner) + np.logaddexp(0.0, -inner)
        return -self._expected(self.frozen.logpdf(inner) + slope)


def through_sigmoid(frozen):
    """The distribution of sigmoid(x)."""
    slope = lambda y: -np.log(y) - np.log1p(-y)
    return Through(frozen, special.expit, special.logit, slope)


class Masses:
    """A reference made of a log mass of the numbers from 0 to `top`."""

    def __init__(self, logpmf, top=400):
        self.logpmf = logpmf
        self.k = np.arange(top + 1.0)[:, None]
        with np.errstate(divide="ignore"):
            self.logs = logpmf(self.k)
        self.p = np.exp(self.logs)

    def cdf(self, x):
        k = np.clip(np.floor(x) + 1, 0, len(self.k)).astype(int)
        table = np.concatenate([np.zeros((1, self.p.shape[1])), self.p.cumsum(0)])
        return np.take_along_axis(table, k.reshape(-1, k.shape[-1]), 0).reshape(k.shape)

    def ppf(self, q):
        table = self.p.cumsum(0)
        return (table < q).sum(0).astype(float)

    def mean(self):
        return (self.k * self.p).sum(0)

    def var(self):
        return ((self.k - self.mean()) ** 2 * self.p).sum(0)

    def stats(self, letter):
        z = (self.k - self.mean()) / np.sqrt(self.var())
        return (z**3 * self.p).sum(0) if letter == "s" else (z**4 * self.p).sum(0) - 3.0

    def entropy(self):
        return special.entr(self.p).sum(0)


class Vector:
    """A log density of one vector or matrix, and its entropy where that is asked for."""

    def __init__(self, logpdf, entropy=None):
        self.logpdf = logpdf
        self.entropy = lambda: entropy
