"""Checks of distributions of vectors, for `check`: scores, weighted points, counts, means.

References
----------
C. Stein, "A bound for the error in the normal approximation to the distribution of a sum of
dependent random variables", 6th Berkeley Symposium (1972).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from probtorch.autograd import grad
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.distributions.transforms.transform import Transform
from probtorch.tensor import tensor
from probtorch.testing.compare import to_array
from probtorch.testing.gof.findings import FitFinding, mean_pvalue, stated_value
from probtorch.testing.gof.integrals import log_density
from probtorch.testing.gof.pvalues import multinomial_goodness_of_fit

__all__ = ["check_vectors"]

# Relative error of a sum of masses in single precision.
ROUNDED = 1e-3
# Pairs of coordinates of which Stein's identities are tested: all, up to so many dims.
ALL_PAIRS = 8


def check_vectors(d: Distribution, x: np.ndarray, rng: np.random.Generator) -> list[FitFinding]:
    """Return what draws `x` of a distribution of vectors say."""
    findings = _means(d, x)
    if d.is_discrete:
        return [*_of_points(d, x), *findings]
    return [*_by_scores(d, x, rng), *findings]


def _means(d: Distribution, x: np.ndarray) -> list[FitFinding]:
    n, findings = len(x), []
    mean, variance = stated_value(lambda: d.mean), stated_value(lambda: d.variance)
    flat = x.reshape(n, -1).astype(float)
    if variance is None or not np.isfinite(variance).all() or mean is None:
        return []
    mean, variance = mean.reshape(-1), variance.reshape(-1)
    findings.append(FitFinding("mean", None, mean_pvalue(flat, mean), "of draws"))
    square = (flat - mean) ** 2
    if (((square / np.maximum(square.mean(0), 1e-300)) ** 2).mean(0) < 50.0).all():
        findings.append(FitFinding("variance", None, mean_pvalue(square, variance), "of draws"))
    return findings


def _of_points(d: Distribution, x: np.ndarray) -> list[FitFinding]:
    """Pearson's test of the vectors that are common enough."""
    batch, event = tuple(d._batch_shape), tuple(d._event_shape)
    n, pvalues, totals = len(x), [], []
    columns = x.reshape(n, -1, *event)
    for i in range(columns.shape[1]):
        points, counts = np.unique(columns[:, i], axis=0, return_counts=True)
        grid = np.broadcast_to(points[:, None], (len(points), columns.shape[1], *event))
        logs = log_density(d, grid.reshape(len(points), *batch, *event))
        mass = np.exp(logs.reshape(len(points), -1)[:, i])
        totals.append(mass.sum())
        common = n * mass * (1.0 - np.minimum(mass, 1.0)) > 5.0
        if common.any():
            pvalues.append(
                multinomial_goodness_of_fit(
                    np.minimum(mass[common], 1.0), counts[common], total_count=n
                )
                if mass[common].sum() < 1.0 + 1e-6
                else 0.0
            )
    worst = float(max(totals))
    findings = [
        FitFinding("normalisation", worst < 1.0 + ROUNDED, None, f"points that came: {worst:.7g}")
    ]
    if pvalues:
        p = min(1.0, min(pvalues) * len(pvalues))
        return [*findings, FitFinding("draws: counts", None, p, "Pearson's test")]
    return [*findings, FitFinding("draws: counts", None, None, "not tested: no point is common")]


def _by_scores(d: Distribution, x: np.ndarray, rng: np.random.Generator) -> list[FitFinding]:
    """Stein's identities in unconstrained space, and the integral by importance sampling."""
    try:
        transform = biject_to(d.support)
        with np.errstate(all="ignore"):
            z = to_array(transform.inv(tensor(x.astype(float)))).astype(float)
    except NotImplementedError:
        return [
            FitFinding("draws: scores", None, None, "not tested: no bijection onto the support")
        ]
    if not np.isfinite(z).all():
        return [
            FitFinding("draws: scores", None, None, "not tested: draws on bounds of the support")
        ]
    rest = z.ndim - 1 - len(d._batch_shape)
    shape = z.shape[z.ndim - rest :]
    count = math.prod(shape)

    def logs(at: np.ndarray, slopes: bool) -> tuple[np.ndarray, np.ndarray]:
        leaf = tensor(at, requires_grad=slopes)
        y, slope = transform.call_and_ladj(leaf)
        value = d.log_prob_inside(y) + slope
        scores = to_array(grad(value.sum(), [leaf])[0]) if slopes else at
        return to_array(value).reshape(len(at), -1), scores.reshape(len(at), -1, count)

    importance = _by_importance(z.reshape(len(z), -1, count), z.shape, logs, rng)
    with np.errstate(all="ignore"):
        back = to_array(transform.inv(transform(tensor(1.7 * z))))
    if not np.allclose(back, 1.7 * z, rtol=1e-3, atol=1e-3):
        # As onto spheres and circles: the same draw has many places, of which one is known.
        return [importance.finding, *_by_weights(transform, x, importance)]
    _, scores = logs(z, True)
    flat = z.reshape(len(z), -1, count)
    batch = flat.shape[1]
    flat = (flat - flat.mean(0)) / np.maximum(flat.std(0), 1e-300)
    scores = scores * np.maximum(z.reshape(len(z), -1, count).std(0), 1e-300)
    pairs = [(i, j) for i in range(count) for j in range(count)]
    if count > ALL_PAIRS:
        pairs = [(i, j) for i, j in pairs if 0 <= j - i <= 1]
    terms = [scores[:, b, i] for b in range(batch) for i in range(count)]
    terms += [flat[:, b, j] * scores[:, b, i] + (i == j) for b in range(batch) for i, j in pairs]
    p = mean_pvalue(np.stack(terms, 1), 0.0)
    found = FitFinding("draws: scores", None, p, "Stein's identities, unconstrained")
    return [importance.finding, found]


def _by_weights(transform: Transform, x: np.ndarray, importance: Weighting) -> list[FitFinding]:
    """Means of values and of their products: of draws, and of weighted points."""
    if importance.finding.ok is None and importance.finding.pvalue is None:
        return []
    weights, found = importance.weights, []
    points = to_array(transform(tensor(importance.points)))
    batch = weights.shape[1]
    for b in range(batch):
        ours, theirs = (_products(v.reshape(len(v), batch, -1)[:, b]) for v in (x, points))
        w = weights[:, b : b + 1] / weights[:, b].sum()
        mean = (w * theirs).sum(0)
        error = np.sqrt(ours.var(0) / len(ours) + (w * w * (theirs - mean) ** 2).sum(0))
        z = np.abs(ours.mean(0) - mean) / np.maximum(error, 1e-9)
        found.append(min(1.0, 2.0 * float(stats.norm.sf(z).min()) * len(z)))
    p = min(1.0, min(found) * batch)
    return [FitFinding("draws: moments", None, p, "against weighted points of the density")]


def _products(x: np.ndarray) -> np.ndarray:
    """Sines and cosines of values, their products with each other, for each row."""
    waves = np.concatenate([np.sin(x), np.cos(x)], 1)[:, : 2 * ALL_PAIRS]
    pairs = np.triu_indices(waves.shape[1])
    return np.concatenate([waves, waves[:, pairs[0]] * waves[:, pairs[1]]], 1)


@dataclass(frozen=True)
class Weighting:
    """Points with weights that stand for the density, and what their sum says of it."""

    finding: FitFinding
    points: np.ndarray
    weights: np.ndarray


def _by_importance(
    z: np.ndarray,
    shape: tuple[int, ...],
    logs: Callable[[np.ndarray, bool], tuple[np.ndarray, np.ndarray]],
    rng: np.random.Generator,
) -> Weighting:
    """The integral of the density, by draws of Student's t with 5 degrees of freedom."""
    n, batch, count = z.shape
    at, log_q = np.empty(z.shape), np.empty((n, batch))
    for b in range(batch):
        scatter = np.cov(z[:, b], rowvar=False).reshape(count, count)
        law = stats.multivariate_t(
            z[:, b].mean(0), scatter + 1e-12 * np.eye(count) * np.trace(scatter), 5, seed=rng
        )
        at[:, b] = law.rvs(n).reshape(n, count)
        log_q[:, b] = law.logpdf(at[:, b])
    try:
        with np.errstate(all="ignore"):
            weights = np.exp(logs(at.reshape(shape), False)[0] - log_q)
    except np.linalg.LinAlgError:
        # Far out a matrix has no factor after rounding.
        detail = "not tested: the density fails far out"
        return Weighting(FitFinding("normalisation", None, None, detail), at, log_q)
    weights = np.where(np.isfinite(weights), weights, 0.0)
    effective = weights.sum(0) ** 2 / np.maximum((weights**2).sum(0), 1e-300)
    if (effective < 0.05 * n).any():
        detail = "not tested: importance sampling fails"
        return Weighting(FitFinding("normalisation", None, None, detail), at, weights)
    total = weights.mean(0)
    detail = f"the total is {total[np.argmax(np.abs(total - 1.0))]:.3g} by importance sampling"
    found = FitFinding("normalisation", None, mean_pvalue(weights, 1.0), detail)
    return Weighting(found, at.reshape(shape), weights)
