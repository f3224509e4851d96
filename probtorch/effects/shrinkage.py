"""Priors of regressions that are statements about the whole: `R2D2M2CP`.

What is known of a regression is rarely known of its coefficients: rather how much of the response
it explains, which predictors matter, and which way they act [aguilar2023]_.
"""

from __future__ import annotations

from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions.beta import Beta, Dirichlet
from probtorch.distributions.fields import Given, as_parameter
from probtorch.distributions.normal import Normal
from probtorch.effects.primitives import deterministic, sample
from probtorch.errors import ArgumentError, DomainError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import ndtri
from probtorch.tensor import Tensor

__all__ = ["R2D2M2CP"]


def R2D2M2CP(
    name: str,
    output_sigma: TensorLike,
    input_sigma: TensorLike,
    *,
    r2: TensorLike,
    variables_importance: TensorLike | None = None,
    variance_explained: TensorLike | None = None,
    importance_concentration: TensorLike | None = None,
    r2_std: TensorLike | None = None,
    positive_probs: TensorLike = 0.5,
    positive_probs_std: TensorLike | None = None,
    centered: bool = False,
) -> tuple[Tensor, Tensor]:
    """Draw the coefficients of a linear regression that explains a share of the variance.

    Use it inside a model in place of independent priors: more predictors do not make the prior
    predictive distribution wider.

    Parameters
    ----------
    name : str
        Of the coefficients; other sites are ``name_r2``, ``name_importance``, ``name_positive`` and
        ``name_raw``.
    output_sigma : Tensor or number, positive
        Standard deviation of the response.
    input_sigma : Tensor, shape (n,), positive
        Standard deviations of the predictors.
    r2 : Tensor or number in (0, 1)
        The share of the variance of the response that is explained.
    variables_importance : Tensor, shape (n,), positive, optional
        Concentrations of the Dirichlet distribution of the parts that predictors have in it.
    variance_explained : Tensor, shape (n,), optional
        These parts themselves, of sum 1. Without both they are equal.
    importance_concentration : Tensor or number, positive, optional
        Sum of the concentrations: with it the parts are random, around what is given.
    r2_std : Tensor or number, positive, optional
        Standard deviation of `r2`, which is then the mean of a beta distribution.
    positive_probs : Tensor or number in (0, 1)
        Probability that a coefficient is positive.
    positive_probs_std : Tensor or number, positive, optional
        Its standard deviation; then it is the mean of a beta distribution.
    centered : bool
        Whether the coefficients are the site themselves; otherwise they are made of ``name_raw``.

    Returns
    -------
    residual_sigma : Tensor
        Standard deviation of what is not explained, ``sqrt(1 - r2) * output_sigma``.
    coefficients : Tensor, shape (n,)

    Raises
    ------
    ArgumentError
        If both `variables_importance` and `variance_explained` are given.
    DomainError
        If a standard deviation is larger than a beta distribution of that mean can have.

    Notes
    -----
    The signature is that of PyMC's extras, less `dims`. A coefficient b of part p has
    ``mean(b ** 2) = p * r2 * output_sigma ** 2 / input_sigma ** 2``.

    References
    ----------
    [aguilar2023]_

    Examples
    --------
    >>> def model(x, y):
    ...     sigma, b = R2D2M2CP("b", y.std(), x.std(0), r2=0.5, r2_std=0.2)
    ...     with plate("row", len(y)):
    ...         sample("y", Normal(x @ b, sigma), obs=y)
    """
    scale = as_tensor(output_sigma, "output_sigma")
    inputs = as_tensor(input_sigma, "input_sigma")
    share = _around(f"{name}_r2", "r2", r2, r2_std)
    parts = _parts(
        name, inputs.array.shape[-1], variables_importance, variance_explained,
        importance_concentration,
    )  # fmt: skip
    positive = _around(f"{name}_positive", "positive_probs", positive_probs, positive_probs_std)
    # With k the normal quantile of its probability of being positive, b has mean k s and standard
    # deviation s.
    k = ndtri(positive)
    explained = parts * unsqueeze(share * scale * scale, -1)
    spread = sqrt(explained / (1.0 + k * k)) / inputs
    if centered:
        coefficients = sample(name, Normal(k * spread, spread).to_event(1))
    else:
        raw = sample(f"{name}_raw", Normal(spread * 0.0, 1.0).to_event(1))
        coefficients = deterministic(name, (raw + k) * spread)
    return sqrt(1.0 - share) * scale, coefficients


def _around(site: str, name: str, mean: Given, std: Given | None) -> Tensor:
    """Return a share, or draw one of that mean from a beta distribution."""
    m = as_parameter(mean, name)[0]
    if std is None:
        return m
    s = as_parameter(std, f"{name}_std")[0]
    size = m * (1.0 - m) / (s * s) - 1.0
    if not bool((size > 0.0).all()):
        raise DomainError(
            "R2D2M2CP",
            expected=f"{name}_std below sqrt({name} * (1 - {name}))",
            got=f"{name}={m.numpy(force=True)}, {name}_std={s.numpy(force=True)}",
            fix="a beta distribution cannot spread that far; give a smaller one",
        )
    shares = Beta(m * size, (1.0 - m) * size)
    return sample(site, shares.to_event(len(shares.batch_shape)) if shares.batch_shape else shares)


def _parts(
    name: str,
    n: int,
    importance: TensorLike | None,
    explained: TensorLike | None,
    concentration: TensorLike | None,
) -> Tensor:
    """Return the parts of the predictors, or draw them."""
    if importance is not None and explained is not None:
        raise ArgumentError(
            "R2D2M2CP",
            expected="one of variables_importance and variance_explained, or neither",
            got="both",
            fix="give variance_explained with importance_concentration for parts around a guess",
        )
    size = None
    if concentration is not None:
        size = as_parameter(concentration, "importance_concentration")[0]
    if importance is not None:
        weights = as_parameter(importance, "variables_importance")[0]
        if size is not None:
            weights = weights * (size / total(weights, -1, True))
        return sample(f"{name}_importance", Dirichlet(weights))
    if explained is not None:
        parts = as_parameter(explained, "variance_explained")[0]
    else:
        parts = as_parameter([1.0 / n] * n, "variance_explained")[0]
    if size is None:
        return parts
    return sample(f"{name}_importance", Dirichlet(parts * size))


explain_calls(globals())
