"""What a model predicts for data it has not seen: leave-one-out, WAIC, weights of several models.

`loo` and `waic` estimate the expected log predictive density (elpd) from the log density of each
observation at each draw. They return an `Elpd`, observation by observation, which `compare` sets
beside those of other models; infer/critique/criticism.py mends what is unreliable in it, by matched
moments or by fits without the observation. scores.py has the other scores of a prediction.

ArviZ has most of this too, under other names in each of its generations, and goes through
observations one by one in Python; the tests hold these numbers to its.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
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
from probtorch.errors import ArgumentError, ShapeError

__all__ = [
    "Comparison",
    "Elpd",
    "Pointwise",
    "compare",
    "loo",
    "pointwise_of",
    "stacking_weights",
    "waic",
    "warn_of_ratios",
]

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
        The contribution of each observation.
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
        return float(self.pointwise.sum())

    @property
    def se(self) -> float:
        """Standard error of `elpd`, from the spread of the observations."""
        return _standard_error(self.pointwise)

    @property
    def p(self) -> float:
        """Effective number of parameters."""
        return float(self.p_pointwise.sum())

    @property
    def unreliable(self) -> np.ndarray:
        """Numbers, in C order, of the observations whose `pareto_k` is above `limit`."""
        if self.pareto_k is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.pareto_k.reshape(-1) > self.limit)

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
            f"{self.pointwise.size} observations of {self.var_name!r}"
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
    """

    var_name: str
    values: np.ndarray
    shape: tuple[int, ...]
    log_weights: np.ndarray
    reff: float

    @property
    def lpd(self) -> np.ndarray:
        """Log predictive density of each observation, itself among the data, (observations,)."""
        return special.logsumexp(self.values + self.log_weights[:, None], axis=0)

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
    return Pointwise(name, values, shape, log_weights, _efficiency(draws) if reff is None else reff)


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
    weights, k = data.without_each()
    pointwise = special.logsumexp(weights + data.values.T, axis=1)
    found = Elpd(
        "loo",
        pointwise.reshape(data.shape),
        (data.lpd - pointwise).reshape(data.shape),
        data.var_name,
        np.asarray(k).reshape(data.shape),
        pareto_k_limit(len(data.values)),
    )
    warn_of_ratios(
        found, "loo_moment_match(draws) or reloo(draws) of probtorch.infer mends them", stacklevel=3
    )
    return found


def warn_of_ratios(found: Elpd, fix: str, *, stacklevel: int) -> None:
    """Warn where importance ratios are too heavy for the draws."""
    bad = found.unreliable
    if found.pareto_k is None or not len(bad):
        return
    named = ", ".join(map(str, bad[:SHOWN])) + (", ..." if len(bad) > SHOWN else "")
    warnings.warn(
        f"{found.kind}: estimates of {len(bad)} of {found.pointwise.size} observations are "
        f"unreliable\n  expected: Pareto k at most {found.limit:.2f}\n"
        f"  got:      up to {np.max(found.pareto_k):.2f}, at {named}\n  fix:      {fix}",
        InferenceWarning,
        stacklevel=stacklevel,
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
    found = Elpd("waic", (data.lpd - p).reshape(data.shape), p.reshape(data.shape), data.var_name)
    bad = int((p > LARGE_VARIANCE).sum())
    if bad:
        warnings.warn(
            f"waic: unreliable for {bad} of {p.size} observations\n"
            f"  expected: a posterior variance of the log density of at most {LARGE_VARIANCE}\n"
            f"  got:      up to {p.max():.2f}\n"
            "  fix:      use loo, which says itself where it can be trusted",
            InferenceWarning,
            stacklevel=2,
        )
    return found


# ---------------------------------------------------------------------------------- several models


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Models side by side, the best first; prints as a table.

    Attributes
    ----------
    names : tuple of str
    elpd, se, p : ndarray, shape (models,)
    difference : ndarray, shape (models,)
        How much `elpd` is below that of the first.
    difference_se : ndarray, shape (models,)
        Its standard error, from the differences of single observations.
    weight : ndarray, shape (models,)
        Of each model in the mixture of their predictions that predicts best (`stacking_weights`).
    """

    names: tuple[str, ...]
    elpd: np.ndarray
    se: np.ndarray
    p: np.ndarray
    difference: np.ndarray
    difference_se: np.ndarray
    weight: np.ndarray

    def __repr__(self) -> str:
        width = max(5, *map(len, self.names))
        lines = [f"{'model':{width}}      elpd      se      p    diff  diff se  weight"]
        for i, name in enumerate(self.names):
            lines.append(
                f"{name:{width}}  {self.elpd[i]:8.2f}  {self.se[i]:6.2f}  {self.p[i]:5.2f}  "
                f"{self.difference[i]:6.2f}  {self.difference_se[i]:7.2f}  {self.weight[i]:6.3f}"
            )
        return "\n".join(lines)


def compare(
    models: Mapping[str, Elpd | Draws | HasDraws], var_name: str | None = None
) -> Comparison:
    """Set models of the same data side by side.

    Parameters
    ----------
    models : dict of str to Elpd or Draws
        What `loo`, `waic` or `loo_kfold` returned, or draws, to which `loo` is applied.
    var_name : str, optional
        Which observed site of the draws.

    Returns
    -------
    Comparison

    Raises
    ------
    ArgumentError
        If there is one model only, or criteria of different kinds.
    ShapeError
        If models have different observations.

    References
    ----------
    [vehtari2017]_; [yao2018]_ for the weights.

    Examples
    --------
    >>> def of(values):
    ...     return Elpd("loo", np.array(values), np.zeros(3), "y")
    >>> compare({"line": of([-1.0, -2.0, -1.0]), "constant": of([-3.0, -2.5, -2.0])}).names
    ('line', 'constant')
    """
    found = {n: x if isinstance(x, Elpd) else loo(x, var_name) for n, x in models.items()}
    if len(found) < 2 or len({x.kind for x in found.values()}) > 1:
        raise ArgumentError(
            "compare",
            expected="at least two models, by one criterion",
            got=", ".join(f"{n}: {x.kind}" for n, x in found.items()) or "none",
            fix="pass {'name': loo(draws), ...}",
        )
    weights = dict(zip(found, stacking_weights([x.pointwise for x in found.values()])))
    order = sorted(found, key=lambda name: -found[name].elpd)
    best = found[order[0]].pointwise
    return Comparison(
        tuple(order),
        np.array([found[n].elpd for n in order]),
        np.array([found[n].se for n in order]),
        np.array([found[n].p for n in order]),
        np.array([(best - found[n].pointwise).sum() for n in order]),
        np.array([_standard_error(best - found[n].pointwise) for n in order]),
        np.array([weights[n] for n in order]),
    )


def stacking_weights(pointwise: Sequence[ArrayLike | Elpd] | np.ndarray) -> np.ndarray:
    """Return the weights of the mixture of predictive distributions that predicts best.

    Parameters
    ----------
    pointwise : array_like, shape (models, observations), or sequence of Elpd
        Log predictive densities of each observation, itself left out: ``loo(draws)``.

    Returns
    -------
    ndarray, shape (models,)
        Not negative, of sum 1.

    Raises
    ------
    ShapeError
        If models have different observations.

    Notes
    -----
    The mean log density of a mixture is a concave function of its weights. A model that is best by
    little gets nearly all the weight where the others add nothing to it, and equal models share.

    References
    ----------
    [yao2018]_

    Examples
    --------
    >>> stacking_weights(np.log([[0.9, 0.1, 0.5], [0.1, 0.9, 0.5]])).round(3)
    array([0.5, 0.5])
    """
    each = [x.pointwise if isinstance(x, Elpd) else x for x in pointwise]
    rows = [np.asarray(x, np.float64) for x in each]
    shapes = {x.shape for x in rows}
    if len(shapes) != 1:
        raise ShapeError(
            "stacking_weights",
            expected="the same observations for all models",
            got=f"shapes {' and '.join(map(str, sorted(shapes)))}" if shapes else "no model",
            fix="fit all models to the same data",
        )
    log_density = np.stack([x.reshape(-1) for x in rows])
    density = np.exp(log_density - log_density.max(axis=0))
    count = len(rows)
    from scipy.optimize import minimize  # takes a quarter of a second, which few calls need

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = np.maximum(w @ density, np.finfo(float).tiny)
        return -float(np.log(mixed).mean()), -(density / mixed).mean(axis=1)

    found = minimize(
        loss,
        np.full(count, 1.0 / count),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0, "jac": np.ones_like},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    weights = np.clip(found.x, 0.0, 1.0)
    return weights / weights.sum()


def _standard_error(values: np.ndarray) -> float:
    return float(math.sqrt(values.size * values.var())) if values.size > 1 else math.nan


explain_calls(globals())
