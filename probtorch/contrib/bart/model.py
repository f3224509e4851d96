"""`bart`: the statement of an unknown function in a model, a sum of trees."""

from __future__ import annotations

import math
import sys

import numpy as np

from probtorch.contrib.bart.ensembles import Ensemble, columns_of, cuts_of, sum_of_trees
from probtorch.contrib.bart.prior import TreePrior
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.effects.primitives import WRITTEN, deterministic, sample_from
from probtorch.effects.runtime import STATE
from probtorch.effects.site import as_value
from probtorch.errors import ArgumentError, DomainError, ModelError, ShapeError
from probtorch.ops.movement import reshape
from probtorch.tensor import Tensor

__all__ = ["TREES_OF", "bart", "ensemble_of"]

# What the site of the trees is called, after the function.
TREES_OF = "_trees"
# Standard deviations of the function between the middle and the ends of the guide: k of Chipman,
# George and McCulloch.
DEVIATIONS = 2.0
# More than so much is a mistake, more likely than a wish; depth d takes 3 * 2**d numbers per tree.
MOST_TREES, DEEPEST = 2000, 8


def bart(
    name: str,
    X: TensorLike,
    y_guide: TensorLike | None = None,
    *,
    trees: int = 50,
    alpha: float = 0.95,
    beta: float = 2.0,
    split_prior: TensorLike | None = None,
    scale: float | None = None,
    loc: float | None = None,
    outputs: int | None = None,
    max_depth: int = 4,
    max_cuts: int = 256,
) -> Tensor:
    """State an unknown function of covariates, a sum of regression trees; return its values.

    The prior is that of BART [chipman2010]_: many small trees, each of which adds little, so the
    function is smooth on the whole, with jumps and interactions where data ask for them. What is
    made of its values is the model's: a mean, logits, log rates.

    Parameters
    ----------
    name : str
        Of the deterministic site of the values. The trees are the site ``{name}_trees``.
    X : Tensor or array, shape (n, variables)
        Covariates, finite. Categories are columns of 0 and 1, or numbers in a sensible order.
    y_guide : Tensor or array, optional
        Outcomes, on the scale of the function, from which `loc` and `scale` are taken where they
        are not given: the middle of their range, and a quarter of it (k = 2 in the paper).
    trees : int
        Of each output.
    alpha, beta : float
        A node at depth d is split with probability ``alpha (1 + d)**-beta``; alpha in (0, 1), beta
        at least 0.
    split_prior : array, shape (variables,), optional
        How probable it is, up to a factor, that a split is on each variable; equal by default.
    scale : float, positive
        Standard deviation of the function at a point, 1 by default; a leaf has that by the root of
        the number of trees.
    loc : float
        Mean of the function, 0 by default.
    outputs : int, optional
        As many independent functions of the same covariates: of several logits, or of a mean and a
        log scale.
    max_depth : int
        Of the leaves furthest down, up to 8. By the default prior one tree in a thousand would go
        on below 4.
    max_cuts : int
        Places at most where a variable can be cut, at midpoints between values that occur.

    Returns
    -------
    Tensor, shape (n,) or (outputs, n)

    Raises
    ------
    ShapeError
        If X is no matrix, or the weights are not one per variable.
    DomainError
        If a covariate is nan or infinite, or a setting outside of its range.
    ModelError
        If the statement is inside of a plate.

    Notes
    -----
    Sample with ``MCMC(Gibbs(model))``: trees have no gradient. `Gibbs` moves them one by one,
    whatever the likelihood, and all other sites by `NUTS`. The `lp` of its draws is without the
    prior of the trees. Draws of the trees are ``{name}_trees``, of shape (outputs * trees,
    3 * 2**max_depth - 2): `Predictive` and `draws.predict` make the function of new covariates of
    them.

    References
    ----------
    [chipman2010]_; [linero2024]_ for likelihoods that are not normal.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.bart import bart
    >>> from probtorch.infer import MCMC, Gibbs
    >>> def model(X, y=None):
    ...     f = bart("f", X, trees=20)
    ...     sigma = probtorch.sample("sigma", dist.HalfNormal(1.0))
    ...     with probtorch.plate("row", len(X)):
    ...         probtorch.sample("y", dist.Normal(f, sigma), obs=y)
    >>> X = probtorch.linspace(-1.0, 1.0, 40)[:, None]
    >>> y = probtorch.where(X[:, 0] > 0.3, 1.0, -1.0) + 0.3 * probtorch.sin(40.0 * X[:, 0])
    >>> mcmc = MCMC(Gibbs(model), num_samples=1000, num_chains=1, seed=0, progress_bar=False)
    >>> draws = mcmc.run(X, y)
    >>> bool(abs(draws.posterior["f"].mean((0, 1)) - y.numpy()).max() < 0.5)
    True
    """
    if STATE.plates.shape or STATE.plates.waiting:
        raise ModelError(
            f"bart({name!r})",
            expected="a statement outside of plates: it has all rows at once",
            got="one inside of a plate",
            fix=f"write f = bart({name!r}, X) before the plate; outputs=k makes several functions",
        )
    many = 1 if outputs is None else outputs
    ensemble = ensemble_of(
        X, y_guide, trees=trees, alpha=alpha, beta=beta, split_prior=split_prior, scale=scale,
        loc=loc, outputs=many, max_depth=max_depth, max_cuts=max_cuts, subject=f"bart({name!r})",
    )  # fmt: skip
    prior = TreePrior(ensemble)
    frame = sys._getframe(WRITTEN)
    where_from = frame.f_code, frame.f_lasti
    drawn = sample_from(name + TREES_OF, prior, (), {}, None, None, None, where_from)
    fit: TensorBase | None = prior.known.get("fit")
    if fit is None:
        e = ensemble
        fit = sum_of_trees(as_tensor(drawn), wrap(e.columns), many, e.max_depth)
    if outputs is None:
        shape = fit.array.shape
        fit = reshape(fit, (*shape[:-2], shape[-1]))
    return deterministic(name, fit)


def ensemble_of(
    X: TensorLike,
    y_guide: TensorLike | None = None,
    *,
    trees: int,
    alpha: float,
    beta: float,
    split_prior: TensorLike | None,
    scale: float | None,
    loc: float | None,
    outputs: int,
    max_depth: int,
    max_cuts: int,
    subject: str,
) -> Ensemble:
    """Return the `Ensemble` of the settings of `bart`, checked."""
    columns = columns_of(X, subject)
    for setting, value, least, most in (
        ("trees", trees, 1, MOST_TREES),
        ("outputs", outputs, 1, MOST_TREES),
        ("max_depth", max_depth, 1, DEEPEST),
        ("max_cuts", max_cuts, 1, 2**20 - 1),
    ):
        number = _number(value)
        if not (least <= number <= most and number == int(number)):
            raise ArgumentError(
                f"{subject}: {setting}",
                expected=f"a whole number from {least} to {most}",
                got=repr(value),
                fix="leave it out for the default",
            )
    low, high = _guide(y_guide, subject)
    half = (high - low) / 2.0
    if loc is None:
        loc = low + half
    if scale is None:
        scale = 1.0 if y_guide is None or half == 0.0 else half / DEVIATIONS
    for setting, number, fine in (
        ("alpha", alpha, 0.0 < _number(alpha) < 1.0),
        ("beta", beta, 0.0 <= _number(beta) < math.inf),
        ("scale", scale, 0.0 < _number(scale) < math.inf),
        ("loc", loc, math.isfinite(_number(loc))),
    ):
        if not fine:
            wanted = {"alpha": "a number in (0, 1)", "beta": "a finite number of at least 0"}
            wanted |= {"scale": "a positive number", "loc": "a finite number"}
            raise DomainError(
                f"{subject}: {setting}",
                expected=wanted[setting],
                got=repr(number),
                fix="it is a number that is known, no site; put a site beside: "
                f"mu + tau * bart(..., {setting}=...)"
                if setting in ("scale", "loc")
                else "leave it out for the default",
            )
    cuts, counts = cuts_of(columns, int(max_cuts))
    return Ensemble(
        columns, cuts, counts, _weights(split_prior, len(columns), subject), int(trees),
        int(outputs), int(max_depth), float(alpha), float(beta), float(loc),
        float(scale) / math.sqrt(trees),
    )  # fmt: skip


def _number(value: object) -> float:
    """A Python or NumPy number; nan of anything else, so that no comparison holds."""
    known = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return float(value) if known else math.nan  # type: ignore[arg-type]  # of these types


def _guide(y_guide: TensorLike | None, subject: str) -> tuple[float, float]:
    if y_guide is None:
        return 0.0, 0.0
    values = np.asarray(as_value(y_guide, "y_guide").array, np.float64)
    if not values.size or not np.isfinite(values).all():
        raise DomainError(
            f"{subject}: y_guide",
            expected="finite outcomes, at least one",
            got="none" if not values.size else "nan or infinite ones",
            fix="leave out those that are missing, or give loc and scale",
        )
    return float(values.min()), float(values.max())


def _weights(split_prior: TensorLike | None, variables: int, subject: str) -> np.ndarray:
    if split_prior is None:
        return np.full(variables, 1.0 / variables)
    weights = np.asarray(as_value(split_prior, "split_prior").array, np.float64)
    if weights.shape != (variables,):
        raise ShapeError(
            f"{subject}: split_prior",
            expected=f"one weight for each of {variables} variables",
            got=f"shape {weights.shape}",
            fix="give weights of any scale, 0 for variables that no split may be on",
        )
    if not (np.isfinite(weights).all() and (weights >= 0.0).all() and weights.any()):
        raise DomainError(
            f"{subject}: split_prior",
            expected="weights of at least 0, and some above",
            got=f"{weights!r:.60}",
            fix="give weights of any scale, 0 for variables that no split may be on",
        )
    return weights / weights.sum()


explain_calls(globals())
