"""Draws that take all their outcomes in turn, so that means of estimates are exact.

An estimator draws through `Draws` alone. `Exhaustive` stands in for it: every draw is a choice with
known probabilities, and the estimate is repeated until all combinations of choices were taken. For
a continuous draw the choices are the nodes of a quadrature rule. For uniforms they are the cells
between given breaks, represented by their middles, which is exact for estimates that are linear in
a uniform within a cell.
"""

import math

import numpy as np
from scipy import stats

from probtorch.distributions import Exponential, Gamma, Geometric, Normal, Poisson, Weibull
from probtorch.tensor import tensor

TINY = 1e-17


def double_exponential(count=81, reach=3.1):
    """Nodes and weights on (0, 1) of the tanh-sinh rule, which bears singular ends."""
    t = np.linspace(-reach, reach, count)
    a = 0.5 * math.pi * np.sinh(t)
    nodes = 1.0 / (1.0 + np.exp(-2.0 * a))
    weights = 0.5 * math.pi * np.cosh(t) / np.cosh(a) ** 2 / 2.0
    return nodes, weights / weights.sum()


def reference(q):
    """The SciPy distribution of a continuous or countable one, its parameters broadcast to B."""
    wide = lambda x: np.broadcast_to(x.detach().numpy(), tuple(q.batch_shape))
    if isinstance(q, Poisson):
        return stats.poisson(wide(q.rate))
    if isinstance(q, Geometric):
        return stats.geom(wide(q.probs), loc=-1)
    if isinstance(q, Exponential):
        return stats.expon(scale=1.0 / wide(q.rate))
    if isinstance(q, Gamma):
        return stats.gamma(wide(q.concentration), scale=1.0 / wide(q.rate))
    if isinstance(q, Weibull):
        return stats.weibull_min(wide(q.concentration), scale=wide(q.scale))
    if isinstance(q, Normal):
        return stats.norm(wide(q.loc), wide(q.scale))
    raise NotImplementedError(type(q).__name__)


def alternatives(q):
    """Values and probabilities of each element of q: shapes (K, *B, *E) and (K, *B)."""
    if q.has_enumerate_support:
        values = q.enumerate_support()
        return values.numpy(), q.log_prob_inside(values).exp().detach().numpy()
    known, batch = reference(q), tuple(q.batch_shape)
    if q.is_discrete:
        top = int(np.max(known.ppf(1.0 - 1e-16))) + 3
        values = np.arange(float(top)).reshape(-1, *(1,) * len(batch))
        return np.broadcast_to(values, (top, *batch)), known.pmf(values)
    nodes, weights = double_exponential()
    shape = (-1, *(1,) * len(batch))
    values = known.ppf(nodes.reshape(shape))
    return values, np.broadcast_to(weights.reshape(shape), values.shape)


class Exhaustive:
    """Stands in for `Draws`.

    Parameters
    ----------
    breaks : sequence of float
        Where an estimate jumps, or bends, in a uniform.
    order : int
        Gauss-Legendre nodes per cell: 1 for means of what is linear there, 2 for its square.
    """

    def __init__(self, breaks=(), order=1):
        inner = sorted({b for b in breaks if 0.0 < b < 1.0})
        edges = np.array([0.0, *inner, 1.0])
        roots, weights = np.polynomial.legendre.leggauss(order)
        middles, widths = (edges[1:] + edges[:-1]) / 2.0, np.diff(edges)
        self.cells = (
            (middles[:, None] + widths[:, None] * roots / 2.0).ravel(),
            (widths[:, None] * weights / 2.0).ravel(),
        )
        self.prefix, self.taken, self.weight = [], [], 1.0

    def everything(self, run):
        """Yield ``(probability, run(self))`` for all outcomes of the draws in it."""
        waiting = [[]]
        while waiting:
            self.prefix, self.taken, self.weight = waiting.pop(), [], 1.0
            result = run(self)
            yield self.weight, result
            path = [choice for choice, _ in self.taken]
            for i in range(len(self.prefix), len(path)):
                waiting += [[*path[:i], other] for other in range(1, self.taken[i][1])]

    def choose(self, probs):
        """Return the number of one of the alternatives that are possible."""
        possible = np.flatnonzero(probs > TINY)
        at = len(self.taken)
        choice = self.prefix[at] if at < len(self.prefix) else 0
        self.taken.append((choice, len(possible)))
        self.weight *= probs[possible[choice]]
        return possible[choice]

    def sample(self, q, n):
        values, probs = alternatives(q)
        batch = tuple(q.batch_shape)
        out = np.empty((n, *values.shape[1:]), values.dtype)
        for index in np.ndindex(n, *batch):
            k = self.choose(probs[(slice(None), *index[1:])])
            out[index] = values[(k, *index[1:])]
        return tensor(out)

    def uniform(self, shape, dtype):
        middles, widths = self.cells
        out = np.empty(shape)
        for index in np.ndindex(*shape):
            out[index] = middles[self.choose(widths)]
        return tensor(out)


class Fed:
    """Stands in for `Draws` where draws and uniforms are known beforehand, in order.

    Parameters
    ----------
    samples, uniforms : sequence of ndarray
    """

    def __init__(self, samples, uniforms):
        self.samples, self.uniforms = list(samples), list(uniforms)

    def sample(self, q, n):
        return tensor(self.samples.pop(0))

    def uniform(self, shape, dtype):
        found = self.uniforms.pop(0)
        assert found.shape == shape
        return tensor(found)
