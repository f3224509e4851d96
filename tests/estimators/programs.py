"""Small programs: a distribution computed from parameters, a cost, and their exact expectation.

The exact expectation is a sum over all outcomes with probabilities written out here, without any
distribution of the library.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from probtorch.distributions import Bernoulli, Binomial, Categorical, OneHotCategorical
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.exponentials import sigmoid
from probtorch.ops.pieces import stack
from probtorch.tensor import tensor


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes
    ----------
    name : str
    theta : tuple of float
        Where the gradient is taken.
    q : callable
        From theta, shape (..., len(theta)), to a distribution with batch shape (..., elements), or
        (...) if `elements` is 0.
    f : callable
        From a value and theta to a cost; elements last (before the categories of a one-hot).
    probs : callable
        From theta to the probabilities, shape (elements or 1, values).
    values : tuple
        What an element can be.
    elements : int
        0 for a distribution without batch dims.
    rows : bool
        Whether the cost is one per element.
    """

    name: str
    theta: tuple
    q: Callable[[Any], Any]
    f: Callable[[Any, Any], Any]
    probs: Callable[[Any], Any]
    values: tuple = (0.0, 1.0)
    elements: int = 0
    rows: bool = False

    def leaf(self, rows=()):
        """Theta as a leaf, repeated over `rows`."""
        theta = np.array(self.theta)
        return tensor(np.broadcast_to(theta, (*rows, *theta.shape)).copy(), requires_grad=True)

    def exact(self, theta):
        """E_q[f], summed over rows: differentiable in theta."""
        probs, found = self.probs(theta), 0.0
        count = max(self.elements, 1)
        for codes in itertools.product(range(len(self.values)), repeat=count):
            weight = 1.0
            for j, code in enumerate(codes):
                weight = weight * probs[j, code]
            z = np.array([self.values[c] for c in codes])
            cost = self.f(tensor(z if self.elements else z[0]), theta)
            found = found + weight * (cost.sum() if self.rows else cost)
        return found


def two(p):
    """Probabilities of 0 and 1, from those of 1, shape (elements,)."""
    return stack([1.0 - p, p], -1)


def single(z, theta):
    return (z - 0.45) ** 2 * 3.0 + (1.3 * z).sin()


def both(z, theta):
    """Every element matters to every other."""
    weights = tensor(np.array([1.0, -0.7, 0.4])[: z.shape[-1]])
    return ((z * weights).sum(-1) * 1.7 + 0.3).sin() + z.prod(-1)


def each(z, theta):
    weights = tensor(np.array([1.0, -0.7, 0.4])[: z.shape[-1]])
    return (z * weights + 0.3).sin()


def told(z, theta):
    """The cost depends on the parameters as well."""
    return (z - theta[..., 0]) ** 2 * theta[..., -1]


def number(z, theta):
    """Of a category's number."""
    return (z.double() * 1.9 + 0.4).cos() * 2.0


def numbers(z, theta):
    return (z.double().sum(-1) * 1.1 + 0.2).cos() + z.double().prod(-1)


def vector(z, theta):
    weights = tensor(np.array([0.4, -1.2, 0.9, 2.0])[: z.shape[-1]])
    return ((z * weights).sum(-1) * 1.3).sin()


def vectors(z, theta):
    return vector(z, theta).sum(-1) + vector(z, theta).prod(-1)


EYE = {k: tuple(np.eye(k)) for k in (2, 3, 4)}


def logits_of(theta, elements):
    """Log odds of several elements that depend on two shared parameters."""
    steps = tensor(np.arange(1.0, elements + 1.0))
    return theta[..., 0:1] * steps - theta[..., 1:2] * steps * steps * 0.5


def bernoulli(name, theta, f, logits, elements=0, **options):
    return Program(
        name,
        theta,
        lambda t: Bernoulli(logits=logits(t)),
        f,
        lambda t: two(sigmoid(logits(t)).reshape(-1)),
        elements=elements,
        **options,
    )


def categorical(name, theta, f, logits, k, elements=0, **options):
    return Program(
        name,
        theta,
        lambda t: Categorical(logits=logits(t)),
        f,
        lambda t: softmax(logits(t), -1).reshape(-1, k),
        values=tuple(range(k)),
        elements=elements,
        **options,
    )


def one_hot(name, theta, f, logits, k, elements=0, **options):
    return Program(
        name,
        theta,
        lambda t: OneHotCategorical(logits=logits(t)),
        f,
        lambda t: softmax(logits(t), -1).reshape(-1, k),
        values=EYE[k],
        elements=elements,
        **options,
    )


def first(t):
    return t[..., 0]


def table(rows, k):
    """Logits of several elements over k categories, of rows * k parameters."""
    return lambda t: t.reshape(*t.shape[:-1], rows, k)


def choose(n, p):
    return stack([(1 - p) ** n * 1.0, *_binomial_terms(n, p)], -1).reshape(1, -1)


def _binomial_terms(n, p):
    coefficient = 1.0
    for k in range(1, n + 1):
        coefficient = coefficient * (n - k + 1) / k
        yield coefficient * p**k * (1 - p) ** (n - k)


PROGRAMS = [
    bernoulli("coin", (0.3,), single, first),
    bernoulli("rare coin", (-2.0,), single, first),
    bernoulli("likely coin", (1.5,), single, first),
    bernoulli("fair coin", (0.0,), single, first),
    bernoulli("bent logit", (0.7,), single, lambda t: (t[..., 0] ** 2).sin()),
    bernoulli("cost of its own", (0.4, 1.3), told, first),
    Program("probability", (0.35,), lambda t: Bernoulli(t[..., 0]), single, lambda t: two(t)),
    bernoulli("two coins", (0.3, -0.9), both, lambda t: t, 2),
    bernoulli("two coins of shared parameters", (0.8, 0.3), both, lambda t: logits_of(t, 2), 2),
    bernoulli("three coins", (0.3, -0.9, 1.1), both, lambda t: t, 3),
    bernoulli("three coins of shared parameters", (0.8, 0.3), both, lambda t: logits_of(t, 3), 3),
    bernoulli("two rows of coins", (0.3, -0.9), each, lambda t: t, 2, rows=True),
    bernoulli("shared rows of coins", (0.8, 0.3), each, lambda t: logits_of(t, 3), 3, rows=True),
    Program(
        "two probabilities",
        (0.2, 0.7),
        lambda t: Bernoulli(t),
        both,
        lambda t: two(t),
        elements=2,
    ),
    Program(
        "coins as one event",
        (0.3, -0.9),
        lambda t: Bernoulli(logits=t).to_event(1),
        both,
        lambda t: two(sigmoid(t)),
        elements=2,
    ),
    categorical("three categories", (0.2, -0.5, 0.9), number, lambda t: t, 3),
    categorical("four categories", (0.2, -0.5, 0.9, -1.4), number, lambda t: t, 4),
    categorical("five categories", (0.2, -0.5, 0.9, -1.4, 0.0), number, lambda t: t, 5),
    categorical("two categories", (0.2, -0.5), number, lambda t: t, 2),
    categorical("cost of its own category", (0.2, -0.5, 0.9), told, lambda t: t, 3),
    categorical(
        "bent logits",
        (0.6,),
        number,
        lambda t: stack([t[..., 0], t[..., 0] ** 2, -t[..., 0]], -1),
        3,
    ),
    Program(
        "weights",
        (0.5, 1.0, 2.0),
        lambda t: Categorical(t),
        number,
        lambda t: (t / t.sum()).reshape(1, 3),
        values=(0, 1, 2),
    ),
    categorical("two categoricals", (0.2, -0.5, 0.9, 0.3, 0.0, -0.8), numbers, table(2, 3), 3, 2),
    categorical(
        "rows of categoricals",
        (0.2, -0.5, 0.9, 0.3, 0.0, -0.8),
        number,
        table(2, 3),
        3,
        2,
        rows=True,
    ),
    categorical("binary pairs", (0.2, -0.5, 0.9, 0.3), numbers, table(2, 2), 2, 2),
    one_hot("one-hot", (0.2, -0.5, 0.9), vector, lambda t: t, 3),
    one_hot("one-hot of four", (0.2, -0.5, 0.9, -0.3), vector, lambda t: t, 4),
    one_hot("one-hot of two", (0.2, -0.5), vector, lambda t: t, 2),
    one_hot("two one-hots", (0.2, -0.5, 0.9, 0.3), vectors, table(2, 2), 2, 2),
    one_hot("rows of one-hots", (0.2, -0.5, 0.9, 0.3), vector, table(2, 2), 2, 2, rows=True),
    Program(
        "binomial",
        (0.35,),
        lambda t: Binomial(3.0, t[..., 0]),
        number,
        lambda t: choose(3, t[..., 0]),
        values=(0.0, 1.0, 2.0, 3.0),
    ),
    Program(
        "binomial logits",
        (0.4,),
        lambda t: Binomial(2.0, logits=t[..., 0]),
        number,
        lambda t: choose(2, sigmoid(t[..., 0])),
        values=(0.0, 1.0, 2.0),
    ),
]
