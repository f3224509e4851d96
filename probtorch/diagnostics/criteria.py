"""What a model predicts for data it has not seen: leave-one-out, WAIC, weights of several models.

`loo` and `waic` estimate the expected log predictive density (elpd) from the log density of each
observation at each draw. They return an `Elpd`, observation by observation, which `compare`
(comparison.py) sets beside those of other models; infer/critique/ mends what is unreliable in it,
by matched moments or by fits without the observation. scores.py has the other scores of a
prediction.

ArviZ has most of this too, under other names in each of its generations, and goes through
observations one by one in Python; the tests hold these numbers to its.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.late import special
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.convergence import ess_mean
from probtorch.diagnostics.drawn import HasDraws, drawn
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.diagnostics.layout import chosen, flat_entries
from probtorch.diagnostics.psis import pareto_k_limit, psis
from probtorch.errors import ArgumentError, users_stacklevel

__all__ = ["Elpd", "Pointwise", "loo", "pointwise_of", "quiet_loo", "waic", "warn_of_ratios"]

# A posterior variance of the log density above this says that WAIC is unreliable [vehtari2017].
LARGE_VARIANCE = 0.4
# Observations that are named in a warning.
SHOWN = 5


@dataclass(frozen=True, eq=False, repr=False)
class Elpd:
    """Expected log pointwise predictive density, in nats; larger is better.

    Attributes
    ----------
    kind : str
        ``loo``, ``waic`` or ``kfold``.
    pointwise : ndarray, shape (*observations)
        The contribution of each observation; nan where the data have a gap, which is none.
    p_pointwise : ndarray, shape (*observations)
        Effective number of parameters, of each observation.
    pareto_k : ndarray, shape (*observations), or None
        Shape of the tail of the importance ratios of each observation; -inf where it was fitted
        without it. None for other criteria.
    limit : float
        Largest `pareto_k` that so many draws can bear.
    var_name : str
        The observed site.
    """

    kind: str
    pointwise: np.ndarray
    p_pointwise: np.ndarray
    var_name: str
    pareto_k: np.ndarray | None = None
    limit: float = 0.7

    @property
    def elpd(self) -> float:
        """The sum over observations."""
        return float(np.nansum(self.pointwise))

    @property
    def se(self) -> float:
        """Standard error of `elpd`, from the spread of the observations."""
        return standard_error(self.pointwise)

    @property
    def p(self) -> float:
        """Effective number of parameters."""
        return float(np.nansum(self.p_pointwise))

    @property
    def unreliable(self) -> np.ndarray:
        """Numbers, in C order, of the observations whose `pareto_k` is above `limit`."""
        if self.pareto_k is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.pareto_k.reshape(-1) > self.limit)

    @property
    def count(self) -> int:
        """Number of observations."""
        return int((~np.isnan(self.pointwise)).sum())

    def replaced(self, numbers: ArrayLike, elpd: ArrayLike, pareto_k: ArrayLike) -> Elpd:
        """Return a copy in which some observations have other values.

        Parameters
        ----------
        numbers : array_like of int, shape (n,)
            Which, in C order.
        elpd, pareto_k : array_like, shape (n,)
        """
        numbers = np.asarray(numbers, np.int64)
        pointwise, p = self.pointwise.copy(), self.p_pointwise.copy()
        k = np.full(pointwise.shape, np.nan) if self.pareto_k is None else self.pareto_k.copy()
        p.reshape(-1)[numbers] += pointwise.reshape(-1)[numbers] - np.asarray(elpd)
        pointwise.reshape(-1)[numbers] = elpd
        k.reshape(-1)[numbers] = pareto_k
        return dataclasses.replace(self, pointwise=pointwise, p_pointwise=p, pareto_k=k)

    def __repr__(self) -> str:
        text = (
            f"elpd_{self.kind} {self.elpd:.2f}, se {self.se:.2f}, p_{self.kind} {self.p:.2f}, "
            f"{self.count} observations of {self.var_name!r}"
        )
        if self.pareto_k is None:
            return text
        bad = len(self.unreliable)
        return f"{text}\n" + (
            f"all Pareto k at most {self.limit:.2f}: reliable"
            if not bad
            else f"{bad} with Pareto k above {self.limit:.2f}: unreliable there"
        )


@dataclass(frozen=True, eq=False)
class Pointwise:
    """The log density of each observation at each draw.

    Attributes
    ----------
    var_name : str
    values : ndarray, shape (draws, observations)
        Chain after chain.
    shape : tuple of int
        Of the observations.
    log_weights : ndarray, shape (draws,)
        Of the draws themselves; they sum to 1. Draws of a guide have weights of their own.
    reff : float
        Relative efficiency of the draws.
    gaps : ndarray of bool, shape (observations,)
        Where there is no observation: the data are nan, and have no density.
    """

    var_name: str
    values: np.ndarray
    shape: tuple[int, ...]
    log_weights: np.ndarray
    reff: float
    gaps: np.ndarray

    @property
    def lpd(self) -> np.ndarray:
        """Log predictive density of each observation, itself among the data, (observations,)."""
        return special.logsumexp(self.values + self.log_weights[:, None], axis=0)

    def of_each(self, values: np.ndarray) -> np.ndarray:
        """Return numbers of the observations in their shape, nan in gaps."""
        return np.where(self.gaps, np.nan, values).reshape(self.shape)

    def without_each(self) -> tuple[np.ndarray, np.ndarray]:
        """Return log weights (observations, draws) that leave out each observation, and their k."""
        return psis(self.log_weights - self.values.T, reff=self.reff)


def pointwise_of(
    draws: Draws | HasDraws, var_name: str | None, subject: str, reff: float | None = None
) -> Pointwise:
    """Return the log densities of one observed site.

    Raises
    ------
    ArgumentError
        If there are none, several without a name to choose by, or numbers that are not finite.
    """
    draws = drawn(draws, subject)
    found = draws.log_likelihood()
    if not found:
        raise ArgumentError(
            subject, expected="densities of single observations", got="none: factors have no rows, "
            "and data that share a discrete site cannot be told apart once it is summed out",
            fix="write data as sample statements with obs= in a plate; a discrete site that all "
            "share can be moved along, by Gibbs(model)",
        )  # fmt: skip
    if var_name is None and len(found) > 1:
        raise ArgumentError(
            subject, expected="the name of one observed site", got=f"{', '.join(found)}",
            fix=f"write var_name={next(iter(found))!r}; sites with the same rows may be added up "
            "with draws.with_group('log_likelihood', {'sum': ...})",
        )  # fmt: skip
    (name,) = chosen(next(iter(found)) if var_name is None else var_name, found, subject)
    values = np.asarray(found[name], np.float64)
    shape = values.shape[2:]
    count = values.shape[0] * values.shape[1]
    values = values.reshape(count, math.prod(shape))
    if np.isnan(values).any() or np.isposinf(values).any():
        raise ArgumentError(
            subject, expected="log densities below infinity", got=f"nan or inf at site {name!r}",
            fix="look at the density of the observations where draws are extreme",
        )  # fmt: skip
    weights = draws.sample_stats.get("log_weight")
    if weights is None:
        log_weights = np.full(count, -math.log(count))
    else:
        log_weights = np.asarray(weights, np.float64).reshape(count)
    reff = _efficiency(draws) if reff is None else reff
    gaps = _gaps(draws.groups.get("observed_data", {}).get(name), values, shape)
    return Pointwise(name, values, shape, log_weights, reff, gaps)


def _gaps(data: ArrayLike | None, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Where the data are nan, of a vector all of it, and no draw has a density of them."""
    y = np.asarray(0.0 if data is None else data)
    if y.dtype.kind not in "fc" or y.shape[: len(shape)] != shape or not y.size:
        return np.zeros(values.shape[1], bool)
    return np.isnan(y).reshape(values.shape[1], -1).all(axis=1) & (values == 0.0).all(axis=0)


def _efficiency(draws: Draws) -> float:
    """Effective draws per draw, as the mean over parameters."""
    if draws.num_chains == 1 or not draws.posterior:
        return 1.0
    sizes = [np.ravel(ess_mean(x)) for x in map(flat_entries, draws.posterior.values())]
    found = float(np.nanmean(np.concatenate(sizes))) / (draws.num_chains * draws.num_draws)
    return found if math.isfinite(found) and found > 0.0 else 1.0


def loo(draws: Draws | HasDraws, var_name: str | None = None, *, reff: float | None = None) -> Elpd:
    """Estimate the log predictive density of each observation given all others.

    Parameters
    ----------
    draws : Draws, or what has some
        With a group ``log_likelihood``, or draws that know their model.
    var_name : str, optional
        Which observed site, where there are several.
    reff : float, optional
        Relative efficiency of the draws; found from them by default.

    Returns
    -------
    Elpd
        ``pareto_k`` says for which observations the estimate can be trusted.

    Raises
    ------
    ArgumentError
        If there are no log densities, or several sites and no name.

    Warns
    -----
    InferenceWarning
        If `pareto_k` is too large for some observations.

    Notes
    -----
    Importance sampling from the posterior of all data, with smoothed weights (`psis`). Draws of a
    guide (``log_weight`` among their statistics) are weighted for the posterior first.

    References
    ----------
    [vehtari2017]_

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> mu, y = rng.normal(0.0, 0.3, (4, 500, 1)), np.array([-1.0, 0.2, 0.9])
    >>> log_density = -0.5 * (y - mu) ** 2 - 0.5 * np.log(2 * np.pi)
    >>> draws = Draws({"mu": mu}, groups={"log_likelihood": {"y": log_density}})
    >>> found = loo(draws)
    >>> found.pointwise.shape, bool((found.pareto_k < 0.7).all())
    ((3,), True)
    """
    data = pointwise_of(draws, var_name, "loo", reff)
    found = quiet_loo(data)
    warn_of_ratios(found, "loo_moment_match(draws) or reloo(draws) of probtorch.infer mends them")
    return found


def quiet_loo(data: Pointwise) -> Elpd:
    """Return what `loo` does, without its warning: for those who mend what is unreliable."""
    weights, k = data.without_each()
    pointwise = special.logsumexp(weights + data.values.T, axis=1)
    return Elpd(
        "loo",
        data.of_each(pointwise),
        data.of_each(data.lpd - pointwise),
        data.var_name,
        data.of_each(np.asarray(k)),
        pareto_k_limit(len(data.values)),
    )


def warn_of_ratios(found: Elpd, fix: str) -> None:
    """Warn where importance ratios are too heavy for the draws."""
    bad = found.unreliable
    if found.pareto_k is None or not len(bad):
        return
    named = ", ".join(map(str, bad[:SHOWN])) + (", ..." if len(bad) > SHOWN else "")
    warnings.warn(
        f"{found.kind}: estimates of {len(bad)} of {found.count} observations are "
        f"unreliable\n  expected: Pareto k at most {found.limit:.2f}\n"
        f"  got:      up to {np.nanmax(found.pareto_k):.2f}, at {named}\n  fix:      {fix}",
        InferenceWarning,
        stacklevel=users_stacklevel(),
    )


def waic(draws: Draws | HasDraws, var_name: str | None = None) -> Elpd:
    """Return the widely applicable information criterion, as an expected log density.

    Parameters
    ----------
    draws : Draws, or what has some
        With a group ``log_likelihood``, or draws that know their model.
    var_name : str, optional
        Which observed site, where there are several.

    Returns
    -------
    Elpd
        In nats; -2 times it is on the scale of the deviance.

    Warns
    -----
    InferenceWarning
        If the log density of an observation varies by more than 0.4: use `loo`, which can be
        trusted further and says how far.

    References
    ----------
    [watanabe2010]_; [vehtari2017]_ for the limit.

    Examples
    --------
    >>> log_density = np.log(np.array([[[0.2, 0.5], [0.3, 0.4]]]))
    >>> draws = Draws({"mu": np.zeros((1, 2))}, groups={"log_likelihood": {"y": log_density}})
    >>> round(waic(draws).elpd, 3)
    -2.292
    """
    data = pointwise_of(draws, var_name, "waic")
    weights = np.exp(data.log_weights)[:, None]
    mean = (weights * data.values).sum(axis=0)
    # As of independent draws of equal weight, n / (n - 1).
    p = (weights * (data.values - mean) ** 2).sum(axis=0) / (1.0 - (weights**2).sum())
    found = Elpd("waic", data.of_each(data.lpd - p), data.of_each(p), data.var_name)
    bad = int((p > LARGE_VARIANCE).sum())
    if bad:
        warnings.warn(
            f"waic: unreliable for {bad} of {found.count} observations\n"
            f"  expected: a posterior variance of the log density of at most {LARGE_VARIANCE}\n"
            f"  got:      up to {p.max():.2f}\n"
            "  fix:      use loo, which says itself where it can be trusted",
            InferenceWarning,
            stacklevel=2,
        )
    return found


# ------------------------------------------------------------------------------------------ helpers


def standard_error(values: np.ndarray) -> float:
    """Of the sum of what there is of these numbers."""
    values = values[~np.isnan(values)]
    return float(math.sqrt(values.size * values.var())) if values.size > 1 else math.nan


explain_calls(globals())
