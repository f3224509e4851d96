"""What the points that nested sampling has left behind say: prior volumes, evidence, its error.

The i-th point left behind was the least likely of n_i points that were uniform in what was left of
the prior, so it leaves a share of that behind it which is distributed as the largest of n_i uniform
numbers: its log has the mean ``-1 / n_i``. From these volumes come the weights of the points. How
far the evidence may be off is told by drawing the shares again and again.

References
----------
J. Skilling, "Nested sampling for general Bayesian computation", Bayesian Analysis 1 (2006), secs.
3 and 6. E. Higson, W. Handley, M. Hobson, A. Lasenby, "Sampling errors in nested sampling parameter
estimation", Bayesian Analysis 13 (2018), and "Dynamic nested sampling", Statistics and Computing 29
(2019), for numbers of points that change.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.rng import Generator
from probtorch.infer.sequential.weights import uniforms

__all__ = ["evidence_error", "information", "log_sum", "log_widths", "mean_log_volumes"]

# Draws of all shares: the error is known to 5 %.
SIMULATIONS = 200


def log_sum(x: np.ndarray) -> float:
    """Return the log of the sum of exponentials; -inf of nothing."""
    largest = float(x.max(initial=-math.inf))
    if not math.isfinite(largest):
        return largest
    return largest + math.log(float(np.exp(x - largest).sum()))


def mean_log_volumes(counts: np.ndarray) -> np.ndarray:
    """Return the expected log of the prior volume above each point left behind.

    Parameters
    ----------
    counts : ndarray, shape (points,)
        How many points there were when each was left behind, itself included.

    Returns
    -------
    ndarray, shape (points,), descending
    """
    return -np.cumsum(1.0 / counts)


def log_widths(log_volumes: np.ndarray) -> np.ndarray:
    """Return the log of the volume that each point stands for, by the trapezoidal rule.

    Parameters
    ----------
    log_volumes : ndarray, shape (points,)
        Descending. Before the first the volume is 1, after the last 0.
    """
    before = np.concatenate([[0.0], log_volumes[:-1]])
    after = np.concatenate([log_volumes[1:], [-math.inf]])
    return before + np.log1p(-np.exp(after - before)) - math.log(2.0)


def evidence_error(log_likelihood: np.ndarray, counts: np.ndarray, generator: Generator) -> float:
    """Return the standard error of the log evidence, over simulated volumes [higson2018]_.

    Parameters
    ----------
    log_likelihood, counts : ndarray, shape (points,)
        Of the points in the order in which they were left behind.
    generator : Generator
    """
    found = np.empty(SIMULATIONS)
    for i in range(SIMULATIONS):
        shares = np.log(uniforms(generator, len(counts))) / counts
        found[i] = log_sum(log_likelihood + log_widths(np.cumsum(shares)))
    return float(found.std(ddof=1))


def information(log_likelihood: np.ndarray, log_weights: np.ndarray, log_evidence: float) -> float:
    """Return the Kullback-Leibler divergence of the posterior from the prior, in nats.

    Parameters
    ----------
    log_likelihood, log_weights : ndarray, shape (points,)
        The latter normalised.
    log_evidence : float
    """
    weights = np.exp(log_weights)
    counted = weights > 0.0
    return float((weights[counted] * (log_likelihood[counted] - log_evidence)).sum())
