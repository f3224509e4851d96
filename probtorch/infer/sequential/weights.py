"""What a set of weighted particles says, and how to make equal weights of them.

Everything here is NumPy on log weights, natural logs with any additive constant. `log_mean` is an
estimate of an evidence with its error; `effective_size` says how many equal weights the weights are
worth; `ancestors` draws which particles live on.

References
----------
G. Kitagawa, "Monte Carlo filter and smoother for non-Gaussian nonlinear state space models",
Journal of Computational and Graphical Statistics 5 (1996), for systematic and stratified draws.
R. Douc, O. Cappe, E. Moulines, "Comparison of resampling schemes for particle filtering", ISPA
(2005). H. P. Chan, T. L. Lai, "A general theory of particle filters in hidden Markov models and
some applications", Annals of Statistics 41 (2013), for the error that the genealogy tells.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.arguments import choice_of
from probtorch.core.philox import bits_to_uniform, consecutive_bits
from probtorch.core.rng import Generator

__all__ = [
    "RESAMPLING",
    "ancestors",
    "checked_resampling",
    "effective_size",
    "family_error",
    "log_mean",
    "normalised",
    "uniforms",
]

RESAMPLING = ("systematic", "stratified", "multinomial", "residual")


def uniforms(generator: Generator, count: int) -> np.ndarray:
    """Return `count` float64 draws from (0, 1) of a generator."""
    first = generator.advance(count)
    words = consecutive_bits(generator.initial_seed(), generator.stream, first, count)
    return bits_to_uniform(words)


def normalised(log_weights: np.ndarray) -> np.ndarray:
    """Return weights that sum to 1, shape (n,); all of them 0 where no log weight is finite."""
    largest = log_weights.max()
    if not np.isfinite(largest):
        return np.zeros(log_weights.shape)
    weights = np.exp(log_weights - largest)
    return weights / weights.sum()


def effective_size(log_weights: np.ndarray) -> float:
    """Return ``1 / sum(w^2)`` of the normalised weights; 0 where there is no weight at all."""
    squares = float((normalised(log_weights) ** 2).sum())
    return 1.0 / squares if squares else 0.0


def log_mean(log_weights: np.ndarray) -> tuple[float, float]:
    """Return the log of the mean weight, and its standard error for independent weights.

    The error is that of the mean over the mean, to first order that of its log.
    """
    n, largest = log_weights.size, float(log_weights.max())
    if not math.isfinite(largest):
        return largest, math.nan
    weights = np.exp(log_weights - largest)
    mean = float(weights.mean())
    error = float(weights.std(ddof=1)) / (mean * math.sqrt(n)) if n > 1 else math.nan
    return largest + math.log(mean), error


def family_error(weights: np.ndarray, family: np.ndarray) -> float:
    """Return the standard error of a log evidence, from who descends from whom [chan2013]_.

    Parameters
    ----------
    weights : ndarray, shape (n,)
        Normalised, of the last particles.
    family : ndarray, shape (n,), int
        Which of the first n particles each one descends from.

    Notes
    -----
    The weights of a family are what became of one independent draw; their spread over the families
    is that of the evidence. Once a single family is left there is nothing to compare, and it is
    nan.
    """
    n = weights.size
    shares = np.bincount(family, weights, minlength=n)
    if np.count_nonzero(shares) < 2:
        return math.nan
    return float(np.sqrt(((shares - 1.0 / n) ** 2).sum() * n / (n - 1)))


def ancestors(
    weights: np.ndarray, count: int, generator: Generator, scheme: str = "systematic"
) -> np.ndarray:
    """Draw which particles go on, each so often in the mean as its weight says.

    Parameters
    ----------
    weights : ndarray, shape (n,)
        Normalised.
    count : int
        How many to draw.
    generator : Generator
    scheme : {"systematic", "stratified", "multinomial", "residual"}

    Returns
    -------
    ndarray, shape (count,), int
        In ascending order.
    """
    if scheme == "residual":
        whole = np.floor(count * weights * (1.0 + 1e-12)).astype(np.int64)
        kept = np.repeat(np.arange(weights.size), whole)[:count]
        rest = count - kept.size
        if not rest:
            return kept
        left = np.maximum(count * weights - whole, 0.0)
        drawn = _inverse(left / left.sum(), np.sort(uniforms(generator, rest)))
        return np.sort(np.concatenate([kept, drawn]))
    if scheme == "systematic":
        points = (np.arange(count) + uniforms(generator, 1)) / count
    elif scheme == "stratified":
        points = (np.arange(count) + uniforms(generator, count)) / count
    else:
        points = np.sort(uniforms(generator, count))
    return _inverse(weights, points)


def _inverse(weights: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Where points of (0, 1) fall among weights laid end to end; never on a weight of 0."""
    edges = np.cumsum(weights)
    found = np.searchsorted(edges, points * edges[-1], side="right")
    return np.minimum(found, np.flatnonzero(weights)[-1])


def checked_resampling(owner: str, scheme: str) -> str:
    """Return the name of a scheme, or refuse one that there is not."""
    return choice_of(owner, "resampling", scheme, RESAMPLING)
