"""Names that PyMC, Stan, TFP and Turing give to distributions of this room, as functions.

As in spellings.py; the arguments are those of the library named, in its order.
"""

from __future__ import annotations

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.counts import Binomial, Poisson
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.extremes import (
    ExtendedGeneralizedPareto,
    GeneralizedExtremeValue,
    GeneralizedPareto,
)
from probtorch.distributions.fields import Given, as_parameter
from probtorch.distributions.gamma import Chi2, InverseGamma
from probtorch.distributions.inflated import HurdleDistribution, ZeroInflatedDistribution
from probtorch.distributions.mixture import MixtureSameFamily
from probtorch.distributions.mixtures import GaussianCopula
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.particular_counts import Zipf
from probtorch.distributions.quantized import FoldedDistribution, QuantizedDistribution
from probtorch.distributions.skewed import AsymmetricLaplaceQuantile
from probtorch.distributions.spellings import ScaledInverseChi2
from probtorch.distributions.uniform import Delta
from probtorch.distributions.vectors import MultivariateStudentT
from probtorch.errors import ArgumentError
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.diagonals import diag_embed
from probtorch.ops.exponentials import exp

__all__ = [
    "BinomialLogit",
    "ChiSquared",
    "Copula",
    "Deterministic",
    "DiracDelta",
    "ExtGenPareto",
    "Folded",
    "GEV",
    "GenExtreme",
    "GenPareto",
    "Hurdle",
    "LogPoisson",
    "MultivariateNormalDiag",
    "MultivariateNormalFullCovariance",
    "MultivariateNormalTriL",
    "MvNormal",
    "MvStudentT",
    "NormalMixture",
    "Quantized",
    "ScaledInvChi2",
    "SkewDoubleExponential",
    "TorchDistribution",
    "ZeroInflated",
    "Zeta",
]


def BinomialLogit(n: Given, logitp: Given, *, validate_args: bool | None = None) -> Binomial:
    """Return ``Binomial(n, logits=logitp)``: Turing's name for it.

    Parameters
    ----------
    n : Tensor or number
    logitp : Tensor or number
    validate_args : bool, optional
    """
    return Binomial(total_count=n, logits=logitp, validate_args=validate_args)


def ChiSquared(nu: Given, *, validate_args: bool | None = None) -> Chi2:
    """Return ``Chi2(nu)``: PyMC's name for it.

    Parameters
    ----------
    nu : Tensor or number, positive
    validate_args : bool, optional
    """
    return Chi2(nu, validate_args=validate_args)


def Deterministic(loc: TensorLike, *, validate_args: bool | None = None) -> Delta:
    """Return ``Delta(loc)``: TFP's name for it.

    Parameters
    ----------
    loc : Tensor or number
    validate_args : bool, optional
    """
    return Delta(loc, validate_args=validate_args)


def DiracDelta(c: TensorLike, *, validate_args: bool | None = None) -> Delta:
    """Return ``Delta(c)``: PyMC's name for it.

    Parameters
    ----------
    c : Tensor or number
    validate_args : bool, optional
    """
    return Delta(c, validate_args=validate_args)


def GenExtreme(
    mu: Given, sigma: Given, xi: Given, *, validate_args: bool | None = None
) -> GeneralizedExtremeValue:
    """Return ``GeneralizedExtremeValue(mu, sigma, xi)``: PyMC's name for it.

    Parameters
    ----------
    mu : Tensor or number
    sigma : Tensor or number, positive
    xi : Tensor or number
        Positive for heavy tails.
    validate_args : bool, optional
    """
    return GeneralizedExtremeValue(mu, sigma, xi, validate_args=validate_args)


def ExtGenPareto(
    mu: Given, sigma: Given, xi: Given, kappa: Given = 1.0, *, validate_args: bool | None = None
) -> ExtendedGeneralizedPareto:
    """Return ``ExtendedGeneralizedPareto(mu, sigma, xi, kappa)``: the name of PyMC's extras for it.

    Parameters
    ----------
    mu : Tensor or number
    sigma : Tensor or number, positive
    xi : Tensor or number
        Positive for heavy tails.
    kappa : Tensor or number, positive
    validate_args : bool, optional
    """
    return ExtendedGeneralizedPareto(mu, sigma, xi, kappa, validate_args=validate_args)


def GenPareto(
    mu: Given, sigma: Given, xi: Given, *, validate_args: bool | None = None
) -> GeneralizedPareto:
    """Return ``GeneralizedPareto(mu, sigma, xi)``: PyMC's name for it.

    Parameters
    ----------
    mu : Tensor or number
    sigma : Tensor or number, positive
    xi : Tensor or number
        Positive for heavy tails.
    validate_args : bool, optional
    """
    return GeneralizedPareto(mu, sigma, xi, validate_args=validate_args)


def LogPoisson(log_rate: Given, *, validate_args: bool | None = None) -> Poisson:
    """Return ``Poisson(exp(log_rate))``: Turing's name for it.

    Parameters
    ----------
    log_rate : Tensor or number
    validate_args : bool, optional
    """
    rate = exp(as_parameter(log_rate, "log_rate")[0])
    return Poisson(rate, validate_args=validate_args)


def MultivariateNormalDiag(
    loc: Given, scale_diag: Given, *, validate_args: bool | None = None
) -> MultivariateNormal:
    """Return ``MultivariateNormal(loc, scale_tril=diag_embed(scale_diag))``: TFP's name for it.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
    scale_diag : Tensor, shape (..., n), positive
        Standard deviations.
    validate_args : bool, optional
    """
    tril = diag_embed(as_parameter(scale_diag, "scale_diag")[0])
    return MultivariateNormal(loc, scale_tril=tril, validate_args=validate_args)


def MultivariateNormalFullCovariance(
    loc: Given, covariance_matrix: Given, *, validate_args: bool | None = None
) -> MultivariateNormal:
    """Return ``MultivariateNormal(loc, covariance_matrix)``: TFP's name for it.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
    covariance_matrix : Tensor, shape (..., n, n), positive definite
    validate_args : bool, optional
    """
    return MultivariateNormal(loc, covariance_matrix, validate_args=validate_args)


def MultivariateNormalTriL(
    loc: Given, scale_tril: Given, *, validate_args: bool | None = None
) -> MultivariateNormal:
    """Return ``MultivariateNormal(loc, scale_tril=scale_tril)``: TFP's name for it.

    Parameters
    ----------
    loc : Tensor, shape (..., n)
    scale_tril : Tensor, shape (..., n, n), lower-triangular with positive diagonal
    validate_args : bool, optional
    """
    return MultivariateNormal(loc, scale_tril=scale_tril, validate_args=validate_args)


def MvNormal(
    mu: Given,
    cov: Given | None = None,
    *,
    tau: Given | None = None,
    chol: Given | None = None,
    validate_args: bool | None = None,
) -> MultivariateNormal:
    """Return a `MultivariateNormal`: PyMC's name for it, and its arguments.

    Parameters
    ----------
    mu : Tensor, shape (..., n)
    cov, tau, chol : Tensor, shape (..., n, n), optional
        Covariance, precision or Cholesky factor of the covariance; exactly one is given.
    validate_args : bool, optional
    """
    return MultivariateNormal(
        mu, cov, precision_matrix=tau, scale_tril=chol, validate_args=validate_args
    )


def MvStudentT(
    nu: Given,
    mu: Given,
    scale: Given | None = None,
    *,
    chol: Given | None = None,
    validate_args: bool | None = None,
) -> MultivariateStudentT:
    """Return a `MultivariateStudentT`: PyMC's name for it, and its arguments.

    Parameters
    ----------
    nu : Tensor or number, positive
    mu : Tensor, shape (..., n)
    scale : Tensor, shape (..., n, n), positive definite, optional
    chol : Tensor, shape (..., n, n), optional
        Its Cholesky factor; exactly one of the two is given.
    validate_args : bool, optional
    """
    if (scale is None) == (chol is None):
        raise ArgumentError(
            "MvStudentT",
            expected="exactly one of scale, chol",
            got="none of them" if scale is None else "scale and chol",
            fix="write MvStudentT(nu, mu, scale)",
        )
    if chol is None:
        assert scale is not None  # one of the two is given
        chol = cholesky(as_parameter(scale, "scale")[0])
    return MultivariateStudentT(nu, mu, chol, validate_args=validate_args)


def NormalMixture(
    w: Given, mu: Given, sigma: Given, *, validate_args: bool | None = None
) -> MixtureSameFamily:
    """Return ``MixtureSameFamily(Categorical(w), Normal(mu, sigma))``: PyMC's name for it.

    Parameters
    ----------
    w : Tensor, shape (..., components), nonnegative
        Weights.
    mu : Tensor, shape (..., components)
    sigma : Tensor, shape (..., components), positive
    validate_args : bool, optional
    """
    parts = Normal(mu, sigma, validate_args=validate_args)
    weights = Categorical(w, validate_args=validate_args)
    return MixtureSameFamily(weights, parts, validate_args=validate_args)


def SkewDoubleExponential(
    mu: Given, sigma: Given, tau: Given, *, validate_args: bool | None = None
) -> AsymmetricLaplaceQuantile:
    """Return ``AsymmetricLaplaceQuantile(mu, sigma / 2, tau)``: Stan's name for it.

    Parameters
    ----------
    mu : Tensor or number
    sigma : Tensor or number, positive
    tau : Tensor or number in (0, 1)
        Probability of a draw below `mu`.
    validate_args : bool, optional
    """
    scale = as_parameter(sigma, "sigma")[0] * 0.5
    return AsymmetricLaplaceQuantile(mu, scale, tau, validate_args=validate_args)


def Zeta(s: Given, *, validate_args: bool | None = None) -> Zipf:
    """Return ``Zipf(s)``: another name of it.

    Parameters
    ----------
    s : Tensor or number, above 1
    validate_args : bool, optional
    """
    return Zipf(s, validate_args=validate_args)


def ScaledInvChi2(nu: Given, sigma: Given, *, validate_args: bool | None = None) -> InverseGamma:
    """Return ``ScaledInverseChi2(nu, sigma)``: Stan's name for it, in short.

    Parameters
    ----------
    nu : Tensor or number, positive
    sigma : Tensor or number, positive
    validate_args : bool, optional
    """
    return ScaledInverseChi2(nu, sigma, validate_args=validate_args)


# What needs no other arguments: short names, and Pyro's for the base of users' distributions.
Folded = FoldedDistribution
GEV = GeneralizedExtremeValue
Hurdle = HurdleDistribution
Quantized = QuantizedDistribution
TorchDistribution = Distribution
ZeroInflated = ZeroInflatedDistribution
Copula = GaussianCopula

explain_calls(globals())
