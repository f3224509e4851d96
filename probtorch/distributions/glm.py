"""Generalised linear models as distributions of their outcomes: Stan's fused densities.

Each returns the distribution of all rows given covariates `x` and coefficients, in the numerically
exact parameterisation (log odds, log mean). In compiled code the linear predictor, the density and
the slopes of both are one nest over the rows, as if the density had been written out by hand: there
is no separate fused routine to fall out of step with it.

Names and orders of arguments are Stan's, less the outcome.
"""

from __future__ import annotations

from probtorch.core.signatures import explain_calls
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.counts import Binomial, NegativeBinomial, Poisson
from probtorch.distributions.fields import Given, as_parameter
from probtorch.distributions.normal import Normal
from probtorch.distributions.ordinal import OrderedLogistic
from probtorch.errors import ShapeError
from probtorch.ops.exponentials import exp, log
from probtorch.tensor import Tensor

__all__ = [
    "bernoulli_logit_glm",
    "binomial_logit_glm",
    "categorical_logit_glm",
    "neg_binomial_2_log_glm",
    "normal_id_glm",
    "ordered_logistic_glm",
    "poisson_log_glm",
]


def _predictor(owner: str, x: Given, alpha: Given, beta: Given) -> Tensor:
    """Return alpha + x beta."""
    rows, slopes = as_parameter(x, "x")[0], as_parameter(beta, "beta")[0]
    count = slopes.array.shape[0] if slopes.array.ndim else 0
    if rows.array.ndim != 2 or count != rows.array.shape[1]:
        raise ShapeError(
            owner,
            expected="x of shape (rows, covariates) and as many coefficients beta",
            got=f"x of shape {rows.array.shape} and beta of shape {slopes.array.shape}",
            fix="write one covariate as x[:, None], and alpha for the constant",
        )
    return as_parameter(alpha, "alpha")[0] + rows @ slopes


def bernoulli_logit_glm(
    x: Given, alpha: Given, beta: Given, *, validate_args: bool | None = None
) -> Bernoulli:
    """Return logistic regression: outcomes of 0 and 1 with log odds ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    validate_args : bool, optional
    """
    eta = _predictor("bernoulli_logit_glm", x, alpha, beta)
    return Bernoulli(logits=eta, validate_args=validate_args)


def binomial_logit_glm(
    total_count: Given, x: Given, alpha: Given, beta: Given, *, validate_args: bool | None = None
) -> Binomial:
    """Return binomial regression: successes in trials with log odds ``alpha + x @ beta``.

    Parameters
    ----------
    total_count : Tensor or number, shape () or (rows,)
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    validate_args : bool, optional
    """
    eta = _predictor("binomial_logit_glm", x, alpha, beta)
    return Binomial(total_count=total_count, logits=eta, validate_args=validate_args)


def categorical_logit_glm(
    x: Given, alpha: Given, beta: Given, *, validate_args: bool | None = None
) -> Categorical:
    """Return multinomial logistic regression: categories with logits ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor, shape (categories,)
    beta : Tensor, shape (covariates, categories)
    validate_args : bool, optional
    """
    eta = _predictor("categorical_logit_glm", x, alpha, beta)
    return Categorical(logits=eta, validate_args=validate_args)


def ordered_logistic_glm(
    x: Given, beta: Given, cutpoints: Given, *, validate_args: bool | None = None
) -> Categorical:
    """Return ordered logistic regression: categories that a logistic number around x beta is in.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    beta : Tensor, shape (covariates,)
    cutpoints : Tensor, shape (categories - 1,), increasing
    validate_args : bool, optional
    """
    eta = _predictor("ordered_logistic_glm", x, 0.0, beta)
    return OrderedLogistic(eta, cutpoints, validate_args=validate_args)


def poisson_log_glm(
    x: Given, alpha: Given, beta: Given, *, validate_args: bool | None = None
) -> Poisson:
    """Return Poisson regression: counts with log mean ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    validate_args : bool, optional
    """
    eta = _predictor("poisson_log_glm", x, alpha, beta)
    return Poisson(exp(eta), validate_args=validate_args)


def neg_binomial_2_log_glm(
    x: Given, alpha: Given, beta: Given, phi: Given, *, validate_args: bool | None = None
) -> NegativeBinomial:
    """Return negative binomial regression: counts with log mean ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    phi : Tensor or number, positive
        Concentration: the variance is ``mean + mean**2 / phi``.
    validate_args : bool, optional
    """
    eta = _predictor("neg_binomial_2_log_glm", x, alpha, beta)
    size = as_parameter(phi, "phi")[0]
    return NegativeBinomial(total_count=size, logits=eta - log(size), validate_args=validate_args)


def normal_id_glm(
    x: Given, alpha: Given, beta: Given, sigma: Given, *, validate_args: bool | None = None
) -> Normal:
    """Return linear regression: normal outcomes with mean ``alpha + x @ beta``.

    Parameters
    ----------
    x : Tensor, shape (rows, covariates)
    alpha : Tensor or number, shape () or (rows,)
    beta : Tensor, shape (covariates,)
    sigma : Tensor or number, positive
    validate_args : bool, optional
    """
    return Normal(_predictor("normal_id_glm", x, alpha, beta), sigma, validate_args=validate_args)


explain_calls(globals())
