"""Names that other libraries give to distributions of this one, as functions that make them.

NumPyro has a class for each way to give a parameter (`BernoulliLogits`), Pyro and PyMC others for
a second set of parameters (`GammaPoisson`, `Wald`). Here there is one class each. What is returned
is of that class; `isinstance` takes its name.
"""

from __future__ import annotations

from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.bernoulli import Bernoulli, Geometric
from probtorch.distributions.beta import Beta
from probtorch.distributions.blurred import ExGaussian
from probtorch.distributions.categorical import Categorical, Multinomial
from probtorch.distributions.counts import Binomial, NegativeBinomial
from probtorch.distributions.extremes import GeneralizedPareto
from probtorch.distributions.fields import Given, as_parameter
from probtorch.distributions.gamma import InverseGamma
from probtorch.distributions.lkj import LKJCholesky
from probtorch.distributions.ratios import InverseGaussian
from probtorch.distributions.shares import RelaxedBernoulli
from probtorch.distributions.stable import Stable
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.scalar import AffineTransform
from probtorch.distributions.uniform import ImproperUniform
from probtorch.ops.special import xlogy
from probtorch.tensor import Tensor

__all__ = [
    "PERT",
    "AffineBeta",
    "BernoulliLogits",
    "BernoulliProbs",
    "BetaProportion",
    "BinomialLogits",
    "BinomialProbs",
    "CategoricalLogits",
    "CategoricalProbs",
    "ExponentiallyModifiedGaussian",
    "Flat",
    "GammaPoisson",
    "GeometricLogits",
    "GeometricProbs",
    "HalfFlat",
    "LKJCorrCholesky",
    "Lomax",
    "MultinomialLogits",
    "MultinomialProbs",
    "NegativeBinomial2",
    "NegativeBinomialLogits",
    "NegativeBinomialProbs",
    "RelaxedBernoulliLogits",
    "ScaledInverseChi2",
    "StableWithLogProb",
    "Wald",
]


def BernoulliLogits(logits: Given, *, validate_args: bool | None = None) -> Bernoulli:
    """Return ``Bernoulli(logits=logits)``: NumPyro's name for it.

    Parameters
    ----------
    logits : Tensor or number
    validate_args : bool, optional
    """
    return Bernoulli(logits=logits, validate_args=validate_args)


def BernoulliProbs(probs: Given, *, validate_args: bool | None = None) -> Bernoulli:
    """Return ``Bernoulli(probs=probs)``: NumPyro's name for it.

    Parameters
    ----------
    probs : Tensor or number in [0, 1]
    validate_args : bool, optional
    """
    return Bernoulli(probs=probs, validate_args=validate_args)


def GeometricLogits(logits: Given, *, validate_args: bool | None = None) -> Geometric:
    """Return ``Geometric(logits=logits)``: NumPyro's name for it.

    Parameters
    ----------
    logits : Tensor or number
    validate_args : bool, optional
    """
    return Geometric(logits=logits, validate_args=validate_args)


def GeometricProbs(probs: Given, *, validate_args: bool | None = None) -> Geometric:
    """Return ``Geometric(probs=probs)``: NumPyro's name for it.

    Parameters
    ----------
    probs : Tensor or number in [0, 1]
    validate_args : bool, optional
    """
    return Geometric(probs=probs, validate_args=validate_args)


def CategoricalLogits(logits: Given, *, validate_args: bool | None = None) -> Categorical:
    """Return ``Categorical(logits=logits)``: NumPyro's name for it.

    Parameters
    ----------
    logits : Tensor, shape (..., categories)
    validate_args : bool, optional
    """
    return Categorical(logits=logits, validate_args=validate_args)


def CategoricalProbs(probs: Given, *, validate_args: bool | None = None) -> Categorical:
    """Return ``Categorical(probs=probs)``: NumPyro's name for it.

    Parameters
    ----------
    probs : Tensor, shape (..., categories)
    validate_args : bool, optional
    """
    return Categorical(probs=probs, validate_args=validate_args)


def BinomialLogits(
    logits: Given, total_count: Given = 1, *, validate_args: bool | None = None
) -> Binomial:
    """Return ``Binomial(logits=logits)``: NumPyro's name for it, and its order of arguments.

    Parameters
    ----------
    logits : Tensor or number
    total_count : Tensor or number
    validate_args : bool, optional
    """
    return Binomial(total_count=total_count, logits=logits, validate_args=validate_args)


def BinomialProbs(
    probs: Given, total_count: Given = 1, *, validate_args: bool | None = None
) -> Binomial:
    """Return ``Binomial(probs=probs)``: NumPyro's name for it, and its order of arguments.

    Parameters
    ----------
    probs : Tensor or number in [0, 1]
    total_count : Tensor or number
    validate_args : bool, optional
    """
    return Binomial(total_count=total_count, probs=probs, validate_args=validate_args)


def MultinomialLogits(
    logits: Given, total_count: int = 1, *, validate_args: bool | None = None
) -> Multinomial:
    """Return ``Multinomial(logits=logits)``: NumPyro's name for it, and its order of arguments.

    Parameters
    ----------
    logits : Tensor, shape (..., categories)
    total_count : int
    validate_args : bool, optional
    """
    return Multinomial(total_count=total_count, logits=logits, validate_args=validate_args)


def MultinomialProbs(
    probs: Given, total_count: int = 1, *, validate_args: bool | None = None
) -> Multinomial:
    """Return ``Multinomial(probs=probs)``: NumPyro's name for it, and its order of arguments.

    Parameters
    ----------
    probs : Tensor, shape (..., categories)
    total_count : int
    validate_args : bool, optional
    """
    return Multinomial(total_count=total_count, probs=probs, validate_args=validate_args)


def NegativeBinomialLogits(
    total_count: Given, logits: Given, *, validate_args: bool | None = None
) -> NegativeBinomial:
    """Return ``NegativeBinomial(logits=logits)``: NumPyro's name for it.

    Parameters
    ----------
    total_count : Tensor or number
    logits : Tensor or number
    validate_args : bool, optional
    """
    return NegativeBinomial(total_count=total_count, logits=logits, validate_args=validate_args)


def NegativeBinomialProbs(
    total_count: Given, probs: Given, *, validate_args: bool | None = None
) -> NegativeBinomial:
    """Return ``NegativeBinomial(probs=probs)``: NumPyro's name for it.

    Parameters
    ----------
    total_count : Tensor or number
    probs : Tensor or number in [0, 1]
    validate_args : bool, optional
    """
    return NegativeBinomial(total_count=total_count, probs=probs, validate_args=validate_args)


def NegativeBinomial2(
    mean: Given, concentration: Given, *, validate_args: bool | None = None
) -> NegativeBinomial:
    """Return the negative binomial of a mean and a concentration: variance ``mean + mean**2 / c``.

    Parameters
    ----------
    mean : Tensor or number, positive
    concentration : Tensor or number, positive
    validate_args : bool, optional
    """
    return NegativeBinomial(
        total_count=concentration,
        logits=_log_ratio(mean, concentration),
        validate_args=validate_args,
    )


def GammaPoisson(
    concentration: Given, rate: Given = 1.0, *, validate_args: bool | None = None
) -> NegativeBinomial:
    """Return the negative binomial that is a Poisson whose rate is a gamma draw.

    Parameters
    ----------
    concentration : Tensor or number, positive
        Of the gamma.
    rate : Tensor or number, positive
        Of the gamma.
    validate_args : bool, optional
    """
    return NegativeBinomial(
        total_count=concentration, logits=_log_ratio(1.0, rate), validate_args=validate_args
    )


def BetaProportion(mean: Given, concentration: Given, *, validate_args: bool | None = None) -> Beta:
    """Return the beta distribution of a mean and a concentration, the sum of its exponents.

    Parameters
    ----------
    mean : Tensor or number in (0, 1)
    concentration : Tensor or number, positive
    validate_args : bool, optional
    """
    m, c = as_parameter(mean, "mean")[0], as_parameter(concentration, "concentration")[0]
    return Beta(m * c, (1.0 - m) * c, validate_args=validate_args)


def AffineBeta(
    concentration1: Given,
    concentration0: Given,
    loc: Given,
    scale: Given,
    *,
    validate_args: bool | None = None,
) -> TransformedDistribution:
    """Return the distribution of ``loc + scale * x`` for x beta.

    Parameters
    ----------
    concentration1, concentration0 : Tensor or number, positive
    loc : Tensor or number
    scale : Tensor or number, positive
    validate_args : bool, optional
    """
    beta = Beta(concentration1, concentration0, validate_args=validate_args)
    place = AffineTransform(as_parameter(loc, "loc")[0], as_parameter(scale, "scale")[0])
    return TransformedDistribution(beta, place)


def RelaxedBernoulliLogits(
    temperature: Given, logits: Given, *, validate_args: bool | None = None
) -> RelaxedBernoulli:
    """Return ``RelaxedBernoulli(temperature, logits=logits)``: NumPyro's name for it.

    Parameters
    ----------
    temperature : Tensor or number, positive
    logits : Tensor or number
    validate_args : bool, optional
    """
    return RelaxedBernoulli(temperature=temperature, logits=logits, validate_args=validate_args)


def ExponentiallyModifiedGaussian(
    loc: Given, scale: Given, rate: Given, *, validate_args: bool | None = None
) -> ExGaussian:
    """Return ``ExGaussian(loc, scale, 1 / rate)``: TFP's name, and Stan's parameters.

    Parameters
    ----------
    loc : Tensor or number
    scale : Tensor or number, positive
    rate : Tensor or number, positive
        Inverse mean of the exponential part.
    validate_args : bool, optional
    """
    return ExGaussian(loc, scale, 1.0 / as_parameter(rate, "rate")[0], validate_args=validate_args)


def Wald(mu: Given, lam: Given, *, validate_args: bool | None = None) -> InverseGaussian:
    """Return ``InverseGaussian(mu, lam)``: PyMC's name for it.

    Parameters
    ----------
    mu : Tensor or number, positive
        Mean.
    lam : Tensor or number, positive
    validate_args : bool, optional
    """
    return InverseGaussian(mu, lam, validate_args=validate_args)


def ScaledInverseChi2(
    df: Given, scale: Given, *, validate_args: bool | None = None
) -> InverseGamma:
    """Return the inverse gamma of ``df * scale**2 / x`` for x chi-squared: a prior of variances.

    Parameters
    ----------
    df : Tensor or number, positive
    scale : Tensor or number, positive
    validate_args : bool, optional
    """
    half, s = as_parameter(df, "df")[0] * 0.5, as_parameter(scale, "scale")[0]
    return InverseGamma(half, half * s * s, validate_args=validate_args)


def PERT(
    low: Given,
    peak: Given,
    high: Given,
    temperature: Given = 4.0,
    *,
    validate_args: bool | None = None,
) -> TransformedDistribution:
    """Return the beta distribution on [low, high] that has its mode at `peak`: TFP's name.

    Parameters
    ----------
    low, peak, high : Tensor or number, increasing
    temperature : Tensor or number, positive
        Large for a sharp peak; the exponents sum to 2 plus this.
    validate_args : bool, optional
    """
    a, b, c, t = (as_parameter(v, "low")[0] for v in (low, peak, high, temperature))
    share = t * ((b - a) / (c - a))
    return AffineBeta(1.0 + share, 1.0 + t - share, a, c - a, validate_args=validate_args)


def LKJCorrCholesky(d: int, eta: Given, *, validate_args: bool | None = None) -> LKJCholesky:
    """Return ``LKJCholesky(d, eta)``: Pyro's old name for it.

    Parameters
    ----------
    d : int
    eta : Tensor or number, positive
    validate_args : bool, optional
    """
    return LKJCholesky(d, eta, validate_args=validate_args)


def StableWithLogProb(
    stability: Given,
    skew: Given,
    scale: Given = 1.0,
    loc: Given = 0.0,
    coords: str = "S0",
    *,
    validate_args: bool | None = None,
) -> Stable:
    """Return ``Stable(stability, skew, scale, loc, coords)``, which has a density: Pyro's name.

    Parameters
    ----------
    stability : Tensor or number in (0, 2]
    skew : Tensor or number in [-1, 1]
    scale : Tensor or number, positive
    loc : Tensor or number
    coords : "S0" or "S"
    validate_args : bool, optional
    """
    return Stable(stability, skew, scale, loc, coords, validate_args=validate_args)


def Lomax(
    concentration: Given, scale: Given = 1.0, loc: Given = 0.0, *, validate_args: bool | None = None
) -> GeneralizedPareto:
    """Return the Pareto distribution of type 2: what exceeds `loc`, with a tail of a power.

    The density is in proportion to ``(1 + (x - loc) / scale) ** (-concentration - 1)``.

    Parameters
    ----------
    concentration : Tensor or number, positive
        Stan's alpha: the tail falls as this power.
    scale : Tensor or number, positive
    loc : Tensor or number
        Lower bound.
    validate_args : bool, optional
    """
    a, s = as_parameter(concentration, "concentration")[0], as_parameter(scale, "scale")[0]
    return GeneralizedPareto(loc, s / a, 1.0 / a, validate_args=validate_args)


def Flat(*, validate_args: bool | None = None) -> ImproperUniform:
    """Return log density 0 on the whole line: PyMC's name for an improper uniform prior.

    Parameters
    ----------
    validate_args : bool, optional
    """
    return ImproperUniform(constraints.real, validate_args=validate_args)


def HalfFlat(*, validate_args: bool | None = None) -> ImproperUniform:
    """Return log density 0 on the positive half-line.

    Parameters
    ----------
    validate_args : bool, optional
    """
    return ImproperUniform(constraints.positive, validate_args=validate_args)


# ------------------------------------------------------------------------------ helpers


def _log_ratio(x: Given, y: Given) -> Tensor:
    # Not of the quotient, which overflows; and by xlogy, whose slope at 0 is 0 where none is asked.
    return xlogy(1.0, as_parameter(x, "mean")[0]) - xlogy(1.0, as_parameter(y, "rate")[0])


explain_calls(globals())
