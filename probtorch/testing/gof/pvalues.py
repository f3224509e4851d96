"""Tests of numbers against a density: each returns a p-value, small where they disagree.

A density turns sorted draws into gaps: times the density and the number of draws, each is nearly
exponential; in several dims the volume of the ball up to the nearest neighbour is. Exponential
numbers become uniform ones, uniform ones counts, and counts get Pearson's chi-squared test.

References
----------
P. J. Bickel, L. Breiman, "Sums of functions of nearest neighbor distances, moment bounds, limit
theorems and a goodness of fit test", Annals of Probability 11 (1983).
M. Williams, "How good are your fits? Unbinned multivariate goodness-of-fit tests in high energy
physics", Journal of Instrumentation 5 (2010).
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy import special, stats
from scipy.spatial import cKDTree

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.testing.compare import to_array

__all__ = [
    "InvalidTest",
    "auto_goodness_of_fit",
    "density_goodness_of_fit",
    "ends_pvalue",
    "exp_goodness_of_fit",
    "ks_pvalue",
    "location_pvalue",
    "multinomial_goodness_of_fit",
    "spread_pvalue",
    "unif01_goodness_of_fit",
    "vector_density_goodness_of_fit",
]

# Characters of the longest bar of a printed histogram.
WIDTH = 60
# Draws below which gaps, and bins, are too coarse for the laws that are used.
LEAST_GAPS, LEAST_BINS, LEAST_PER_DIM = 100, 7, 1000


class InvalidTest(ArgumentError):
    """A test of goodness of fit for which there are too few draws."""


def multinomial_goodness_of_fit(
    probs: TensorLike, counts: TensorLike, *, total_count: int | None = None, plot: bool = False
) -> float:
    """Return the p-value of Pearson's chi-squared test of counts.

    Parameters
    ----------
    probs : Tensor or array, shape (categories,)
        Probabilities.
    counts : Tensor or array, shape (categories,)
        How often each category came.
    total_count : int, optional
        Number of draws, where `counts` leaves out categories; else their sum.
    plot : bool
        Whether to print a histogram.

    Returns
    -------
    float

    Raises
    ------
    InvalidTest
        If a category with positive probability has a variance of 1 or less.
    ShapeError
        If the two are not vectors of one length.
    DomainError
        If a probability is outside [0, 1], or `total_count` below the sum of counts.

    Notes
    -----
    A category of probability 0 that came gives 0, where Pyro returns infinity.

    Examples
    --------
    >>> round(multinomial_goodness_of_fit([0.5, 0.3, 0.2], [503, 296, 201]), 3)
    0.963
    """
    p, c = _vector("multinomial_goodness_of_fit", probs), to_array(counts)
    _same_shape("multinomial_goodness_of_fit", "counts", p, c)
    drawn = float(c.sum())
    n = drawn if total_count is None else float(total_count)
    if n < drawn or not ((p >= 0.0) & (p <= 1.0 + 1e-8)).all():
        raise DomainError(
            "multinomial_goodness_of_fit",
            expected="probabilities in [0, 1] and at least as many draws as counted",
            got=f"probabilities from {p.min():g} to {p.max():g}, {drawn:g} of {n:g} counted",
            fix="normalise probs, or leave total_count out",
        )
    if plot:
        _print_histogram(p, c)
    if (p == 0.0).any():
        warnings.warn("a category has probability 0 in a test of goodness of fit", stacklevel=2)
        if c[p == 0.0].any():
            return 0.0
    certain = np.abs(p - 1.0) < 1e-8
    if certain.any():
        return float((c[certain] == n).all())
    possible = p > 0.0
    p, c = p[possible], c[possible]
    variance = n * p * (1.0 - p)
    if not (variance > 1.0).all():
        raise InvalidTest(
            "multinomial_goodness_of_fit",
            expected="counts whose variances are above 1",
            got=f"{np.min(variance):.3g} for a probability of {np.min(p):.3g} in {n:g} draws",
            fix="draw more, or put rare categories together",
        )
    if total_count is None:
        # All categories: their sum is fixed.
        chi2 = ((c - n * p) ** 2 / (n * p)).sum()
        return float(stats.chi2.sf(chi2, max(len(p) - 1, 1)))
    # Some of them: the exact covariance, of which what is left out is the last category.
    left = max(1.0 - p.sum(), 0.0)
    chi2 = ((c - n * p) ** 2 / (n * p)).sum()
    if left * n > 1e-6:
        return float(stats.chi2.sf(chi2 + (n - c.sum() - n * left) ** 2 / (n * left), len(p)))
    return float(stats.chi2.sf(chi2, max(len(p) - 1, 1))) if c.sum() == n else 0.0


def unif01_goodness_of_fit(samples: TensorLike, *, plot: bool = False) -> float:
    """Return the p-value of numbers as draws from Uniform(0, 1), by a test of binned counts.

    Parameters
    ----------
    samples : Tensor or array, shape (draws,)
    plot : bool
        Whether to print a histogram.

    Returns
    -------
    float

    Raises
    ------
    InvalidTest
        For fewer than about 275 draws.
    DomainError
        If a number is outside [0, 1].

    Examples
    --------
    >>> unif01_goodness_of_fit(np.random.default_rng(0).random(10_000)) > 0.001
    True
    """
    u = _vector("unif01_goodness_of_fit", samples)
    bins = round(len(u) ** (1 / 3))
    if bins < LEAST_BINS:
        raise _too_few("unif01_goodness_of_fit", len(u), 275)
    if not ((u >= 0.0) & (u <= 1.0)).all():
        raise DomainError(
            "unif01_goodness_of_fit",
            expected="numbers in [0, 1]",
            got=f"numbers from {u.min():g} to {u.max():g}",
            fix="pass them through their cdf first",
        )
    index = np.minimum((u * bins).astype(int), bins - 1)
    counts = np.bincount(index, minlength=bins)
    return multinomial_goodness_of_fit(np.full(bins, 1.0 / bins), counts, plot=plot)


def exp_goodness_of_fit(samples: TensorLike, plot: bool = False) -> float:
    """Return the p-value of numbers as draws from Exponential(1).

    Parameters
    ----------
    samples : Tensor or array, shape (draws,)
        Not negative.
    plot : bool
        Whether to print a histogram.

    Returns
    -------
    float

    Raises
    ------
    InvalidTest
        For fewer than about 275 draws.
    DomainError
        If a number is negative.
    """
    return unif01_goodness_of_fit(np.exp(-_vector("exp_goodness_of_fit", samples)), plot=plot)


def density_goodness_of_fit(samples: TensorLike, probs: TensorLike, plot: bool = False) -> float:
    """Return the p-value of numbers as draws from a density, known at these numbers only.

    Parameters
    ----------
    samples : Tensor or array, shape (draws,)
        From a continuous distribution.
    probs : Tensor or array, shape (draws,)
        Density at each.
    plot : bool
        Whether to print a histogram.

    Returns
    -------
    float

    Raises
    ------
    InvalidTest
        For fewer than about 275 draws.
    ShapeError
        If the two are not vectors of one length.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=10_000)
    >>> density = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    >>> [density_goodness_of_fit(k * x, density) > 0.001 for k in (1.0, 1.1)]
    [True, False]
    """
    x = _vector("density_goodness_of_fit", samples)
    p = to_array(probs)
    _same_shape("density_goodness_of_fit", "probs", x, p)
    if len(x) <= LEAST_GAPS:
        raise _too_few("density_goodness_of_fit", len(x), 275)
    order = np.argsort(x, kind="stable")
    # The sparsity 1 / density is linear between neighbours: its mean is that of the two ends.
    with np.errstate(divide="ignore"):
        sparsity = 1.0 / p[order]
    gaps = len(x) * np.diff(x[order]) * 2.0 / (sparsity[1:] + sparsity[:-1])
    return exp_goodness_of_fit(gaps, plot=plot)


def vector_density_goodness_of_fit(
    samples: TensorLike, probs: TensorLike, *, dim: int | None = None, plot: bool = False
) -> float:
    """Return the p-value of vectors as draws from a density, from distances between neighbours.

    Parameters
    ----------
    samples : Tensor or array, shape (draws, n)
    probs : Tensor or array, shape (draws,)
        Density at each; on a surface the density over its area.
    dim : int, optional
        Dims of the surface that the draws lie on; n if None.
    plot : bool
        Whether to print a histogram.

    Returns
    -------
    float

    Raises
    ------
    InvalidTest
        For up to 1000 draws per dim.
    ShapeError
        If `samples` is no matrix, or `probs` no vector of its length.

    Notes
    -----
    The density counts as constant within the distance to a neighbour, so that in more than three
    dims, and for densities with edges, small p-values may have that reason.
    """
    x, p = to_array(samples), to_array(probs)
    if x.ndim != 2:
        raise ShapeError(
            "vector_density_goodness_of_fit",
            expected="samples of shape (draws, n)",
            got=f"shape {x.shape}",
            fix="flatten the event dims: samples.reshape(len(samples), -1)",
        )
    _same_shape("vector_density_goodness_of_fit", "probs", x[:, 0], p)
    dim = x.shape[1] if dim is None else dim
    if len(x) <= LEAST_PER_DIM * dim:
        raise _too_few("vector_density_goodness_of_fit", len(x), LEAST_PER_DIM * dim + 1)
    radius = cKDTree(x).query(x, k=2)[0][:, 1]
    ball = math.pi ** (0.5 * dim) / math.gamma(0.5 * dim + 1.0)
    return exp_goodness_of_fit(len(x) * p * ball * radius**dim, plot=plot)


def auto_goodness_of_fit(
    samples: TensorLike, probs: TensorLike, *, dim: int | None = None, plot: bool = False
) -> float:
    """Return the p-value of draws from a density: of numbers, or of vectors of any shape.

    Parameters
    ----------
    samples : Tensor or array, shape (draws, ...)
    probs : Tensor or array, shape (draws,)
        Density at each.
    dim : int, optional
        Dims of the surface that the draws lie on; the size of an event if None.
    plot : bool
        Whether to print a histogram.

    Returns
    -------
    float
        1 for events without elements.

    Raises
    ------
    InvalidTest
        For too few draws.
    ShapeError
        If there are no draws, or `probs` has not their number.

    Examples
    --------
    >>> import probtorch
    >>> d = probtorch.distributions.Gamma(2.0, 1.0)
    >>> x = d.sample((10_000,), probtorch.Generator(0))
    >>> auto_goodness_of_fit(x, d.log_prob(x).exp()) > 0.001
    True
    """
    x = to_array(samples)
    if not x.ndim or not len(x):
        raise ShapeError(
            "auto_goodness_of_fit",
            expected="draws along the first dim",
            got=f"shape {x.shape}",
            fix="draw with d.sample((10_000,))",
        )
    _same_shape("auto_goodness_of_fit", "probs", np.empty(len(x)), to_array(probs))
    x = x.reshape(len(x), -1)
    if not x.shape[1]:
        return 1.0
    if x.shape[1] == 1:
        return density_goodness_of_fit(x[:, 0], probs, plot=plot)
    return vector_density_goodness_of_fit(x, probs, dim=dim, plot=plot)


# -------------------------------------------------------------------- of probabilities of draws


def ks_pvalue(u: np.ndarray) -> float:
    """Of uniform numbers, by the largest distance of their distribution function (Kolmogorov)."""
    n, u = len(u), np.sort(u)
    steps = np.arange(n + 1.0) / n
    distance = max(np.max(steps[1:] - u), np.max(u - steps[:-1]))
    return float(stats.kstwo.sf(distance, n))


def location_pvalue(u: np.ndarray) -> float:
    """Of uniform numbers, by the mean of their normal quantiles: whether they are shifted."""
    z = _normal_quantile(u)
    return float(min(1.0, 2.0 * stats.norm.sf(abs(z.mean()) * math.sqrt(len(z)))))


def spread_pvalue(u: np.ndarray) -> float:
    """Of uniform numbers, by the squares of their normal quantiles: whether they are scaled."""
    square = (_normal_quantile(u) ** 2).sum()
    law = stats.chi2(len(u))
    return float(min(1.0, 2.0 * min(law.cdf(square), law.sf(square))))


def ends_pvalue(below: np.ndarray, above: np.ndarray) -> float:
    """Of probabilities of a draw below, and above: whether a tail is missing, or too long."""
    n, found = len(below), []
    for x in (below, above):
        nothing_less = math.exp(n * math.log1p(-min(float(x.min()), 1.0 - 1e-16)))
        found += [nothing_less, 1.0 - nothing_less]
    return min(1.0, 4.0 * min(found))


def _normal_quantile(u: np.ndarray) -> np.ndarray:
    return special.ndtri(np.clip(u, 1e-300, 1.0 - 1e-16))


# ------------------------------------------------------------------------------------ helpers


def _vector(op: str, x: TensorLike) -> np.ndarray:
    out = np.asarray(to_array(x), float)
    if out.ndim != 1 or not len(out):
        raise ShapeError(
            op,
            expected="a vector with at least one number",
            got=f"shape {out.shape}",
            fix="pass one batch element at a time, flattened",
        )
    return out


def _same_shape(op: str, name: str, x: np.ndarray, y: np.ndarray) -> None:
    if x.shape != y.shape:
        raise ShapeError(
            op,
            expected=f"{name} of shape {x.shape}",
            got=f"shape {y.shape}",
            fix="pass one number per draw, of one batch element",
        )


def _too_few(op: str, got: int, wanted: int) -> InvalidTest:
    return InvalidTest(
        op,
        expected=f"at least {wanted} draws",
        got=f"{got}",
        fix="draw more; the test is not exact",
    )


def _print_histogram(probs: np.ndarray, counts: np.ndarray) -> None:
    print(f"{'Prob':>8} {'Count':>8}")
    top = max(float(counts.max()), 1.0)
    for p, c in sorted(zip(probs, counts, strict=True), reverse=True):
        print(f"{p:8.3f} {int(c):8d} {'-' * round(WIDTH * c / top)}")


explain_calls(globals())
