"""What draws of trees are asked for: the function elsewhere, and which variables it goes by."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from probtorch.contrib.bart.ensembles import PER_VARIABLE, columns_of, sum_one_by_one
from probtorch.contrib.bart.model import TREES_OF
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.diagnostics.drawn import HasDraws, drawn
from probtorch.diagnostics.draws import Draws
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.infer.mapping import DrawMap
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import mean

__all__ = ["partial_dependence", "predict", "split_counts", "variable_importance"]

# Values of a variable at which its partial dependence is taken, unless told; rows times values that
# are gone through at a time.
GRID, MOST_ROWS = 20, 2**18
# What is made of the values of a function, of shape (outputs, rows).
Then: TypeAlias = Callable[[TensorBase], TensorBase]


@dataclass(frozen=True)
class _DrawnTrees:
    """The trees of one function in a result.

    Parameters
    ----------
    trees : ndarray, shape (chain, draw, outputs * trees, numbers)
    outputs, max_depth, variables : int
    """

    trees: np.ndarray
    outputs: int
    max_depth: int
    variables: int

    @property
    def splits(self) -> int:
        """How many nodes of a tree may be split."""
        return int(2**self.max_depth - 1)

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """Return values (chain, draw, outputs, ...) as the function has them."""
        return values[:, :, 0] if self.outputs == 1 else values


def _trees_in(draws: Draws | HasDraws, name: str, subject: str) -> _DrawnTrees:
    found = drawn(draws, subject)
    known = found.attrs.get("machinery_sites", {})
    site = name + TREES_OF
    if not isinstance(known, Mapping) or site not in known or site not in found.posterior:
        functions = [n.removesuffix(TREES_OF) for n in known if n.endswith(TREES_OF)]
        raise ModelError(
            f"{subject}: no trees of {name!r}",
            expected="draws of MCMC(Gibbs(model)), with the trees of the function among them",
            got=f"trees of {', '.join(map(repr, functions)) or 'no function'}",
            fix=f'write {subject}(draws, ..., name="f") with the name that bart has in the model',
        )
    return _DrawnTrees(found.posterior[site], **known[site])


def predict(draws: Draws | HasDraws, X: TensorLike, *, name: str = "f") -> np.ndarray:
    """Return draws of the function at other covariates.

    Parameters
    ----------
    draws : Draws, or what has some
        Of a model with `bart`; saved ones do as well.
    X : Tensor or array, shape (n, variables)
        Finite, the columns as in the model.
    name : str
        Of the function.

    Returns
    -------
    ndarray, shape (chain, draw, n), or (chain, draw, outputs, n) of several outputs
        Without noise: ``draws.predict(X)`` runs the whole model on new covariates.

    Raises
    ------
    ModelError
        If the draws have no trees of that name.
    ShapeError
        If X has not as many columns as the covariates of the model.
    """
    own = _trees_in(draws, name, "predict")
    columns = _columns(own, X, "predict")
    return own.shaped(_mapped(own, columns, lambda fit: fit))


def split_counts(draws: Draws | HasDraws, *, name: str = "f") -> np.ndarray:
    """Return how many splits are on each variable, in all trees of a function together.

    Parameters
    ----------
    draws, name
        As for `predict`.

    Returns
    -------
    ndarray of int, shape (chain, draw, variables), or (chain, draw, outputs, variables)
    """
    own = _trees_in(draws, name, "split_counts")
    codes = own.trees[..., : own.splits]
    chains, length = codes.shape[:2]
    codes = codes.reshape(chains, length, own.outputs, -1)
    variables = np.where(codes > 0.0, (codes - 1.0) // PER_VARIABLE, -1.0)
    counts = [(variables == v).sum(-1) for v in range(own.variables)]
    return own.shaped(np.stack(counts, -1))


def variable_importance(draws: Draws | HasDraws, *, name: str = "f") -> np.ndarray:
    """Return the share of splits that is on each variable, the mean over draws.

    Few trees (say 20) have to choose, and tell variables that matter from others better than many
    do [chipman2010]_.

    Parameters
    ----------
    draws, name
        As for `predict`.

    Returns
    -------
    ndarray, shape (variables,), or (outputs, variables)
        Draws without a split are left out; nan if there are no others.
    """
    counts = split_counts(draws, name=name)
    all_of_them = counts.sum(-1, keepdims=True)
    some = all_of_them > 0
    shares = np.where(some, counts / np.maximum(all_of_them, 1), 0.0).sum((0, 1))
    number = some.sum((0, 1))
    return np.where(number > 0, shares / np.maximum(number, 1), np.nan)


def partial_dependence(
    draws: Draws | HasDraws,
    X: TensorLike,
    variable: int,
    grid: ArrayLike | None = None,
    *,
    name: str = "f",
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the function over rows, with one variable set to each value of a grid.

    Parameters
    ----------
    draws, name
        As for `predict`.
    X : Tensor or array, shape (n, variables)
        The rows to average over: the data, or some hundred of them.
    variable : int
        Number of its column.
    grid : array, optional
        Values of the variable; 20 quantiles of its column by default.

    Returns
    -------
    grid : ndarray, shape (values,)
    means : ndarray, shape (chain, draw, values), or (chain, draw, outputs, values)
        One curve per draw.

    Raises
    ------
    ArgumentError
        If there is no such column, or the grid has no values.
    """
    own = _trees_in(draws, name, "partial_dependence")
    columns = _columns(own, X, "partial_dependence")
    whole = isinstance(variable, (int, np.integer)) and not isinstance(variable, bool)
    if not whole or not 0 <= variable < own.variables:
        raise ArgumentError(
            "partial_dependence(variable=...)",
            expected=f"the number of a column, from 0 to {own.variables - 1}",
            got=repr(variable),
            fix="columns are counted as in X[:, variable]",
        )
    if grid is None:
        grid = np.unique(np.quantile(columns[variable], np.linspace(0.0, 1.0, GRID)))
    values = np.atleast_1d(np.asarray(grid, np.float64))
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise ArgumentError(
            "partial_dependence(grid=...)",
            expected="finite values of the variable, at least one",
            got=f"{values!r:.60}",
            fix="leave it out for quantiles of the column",
        )
    rows = columns.shape[1]
    at_a_time = max(1, MOST_ROWS // rows)
    parts = []
    for first in range(0, len(values), at_a_time):
        some = values[first : first + at_a_time]
        tiled = np.tile(columns, (1, len(some)))
        tiled[variable] = np.repeat(some, rows)
        then = functools.partial(_means_by_value, outputs=own.outputs, values=len(some), rows=rows)
        parts.append(_mapped(own, tiled, then))
    return values, own.shaped(np.concatenate(parts, -1))


def _means_by_value(fit: TensorBase, outputs: int, values: int, rows: int) -> TensorBase:
    """The means over rows of a function at (outputs, values * rows)."""
    return mean(reshape(fit, (outputs, values, rows)), -1)


def _columns(own: _DrawnTrees, X: TensorLike, subject: str) -> np.ndarray:
    columns = columns_of(X, subject)
    if len(columns) != own.variables:
        raise ShapeError(
            f"{subject}: X",
            expected=f"{own.variables} columns, as the model has",
            got=f"shape {columns.T.shape}",
            fix="give the same variables in the same order",
        )
    return columns


def _mapped(own: _DrawnTrees, columns: np.ndarray, then: Then) -> np.ndarray:
    """What is made of the function at some covariates, for all draws."""
    at = wrap(columns)

    def one(inputs: dict[str, TensorBase]) -> dict[str, TensorBase]:
        fit = sum_one_by_one(inputs["trees"], at, own.outputs, own.max_depth)
        return {"found": then(fit)}

    return DrawMap(one)({"trees": np.asarray(own.trees, np.float64)}, 2)["found"]


explain_calls(globals())
