"""Several models side by side: differences of their elpd, and weights that predict best together.

criteria.py has the estimates that are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.criteria import Elpd, loo, standard_error
from probtorch.diagnostics.drawn import HasDraws
from probtorch.diagnostics.draws import Draws
from probtorch.errors import ArgumentError, ShapeError

__all__ = ["Comparison", "compare", "stacking_weights"]


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
    if not isinstance(models, Mapping):
        raise ArgumentError(
            "compare",
            expected="a dict from names to draws",
            got=type(models).__name__,
            fix="pass {'name': draws, ...}",
        )
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
        np.array([np.nansum(best - found[n].pointwise) for n in order]),
        np.array([standard_error(best - found[n].pointwise) for n in order]),
        np.array([weights[n] for n in order]),
    )


def stacking_weights(pointwise: Sequence[ArrayLike | Elpd] | np.ndarray) -> np.ndarray:
    """Return the weights of the mixture of predictive distributions that predicts best.

    Parameters
    ----------
    pointwise : array_like, shape (models, observations), or sequence of Elpd
        Log predictive densities of each observation, itself left out: ``loo(draws)``; nan where
        the data have a gap.

    Returns
    -------
    ndarray, shape (models,)
        Not negative, of sum 1.

    Raises
    ------
    ArgumentError
        If it is a dict, or draws are among them.
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
    if isinstance(pointwise, Mapping) or any(isinstance(x, Draws) for x in pointwise):
        raise ArgumentError(
            "stacking_weights(pointwise)",
            expected="log predictive densities of each model, one after the other",
            got="a dict" if isinstance(pointwise, Mapping) else "draws",
            fix="write stacking_weights([loo(a), loo(b)]); compare({'a': a, 'b': b}) takes draws "
            "by name, and has these weights in its table",
        )
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
    gaps = np.isnan(log_density)
    if (gaps != gaps[0]).any():
        raise ShapeError(
            "stacking_weights",
            expected="the same observations for all models",
            got=f"gaps at {np.flatnonzero((gaps != gaps[0]).any(axis=0))[:5]} for some",
            fix="fit all models to the same data",
        )
    log_density = log_density[:, ~gaps[0]]
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


explain_calls(globals())
