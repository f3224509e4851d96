"""Zero-inflated and hurdle distributions by the names of what they are made of.

The functions make the distributions of inflated.py, from the parameters of the other one.
"""

from __future__ import annotations

from probtorch.core.signatures import explain_calls
from probtorch.distributions.counts import Binomial, NegativeBinomial, Poisson
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.inflated import HurdleDistribution, ZeroInflatedDistribution
from probtorch.distributions.normal import LogNormal
from probtorch.distributions.spellings import NegativeBinomial2

__all__ = [
    "HurdleGamma",
    "HurdleLogNormal",
    "HurdleLogits",
    "HurdleNegativeBinomial2",
    "HurdlePoisson",
    "HurdleProbs",
    "ZeroInflatedBinomial",
    "ZeroInflatedLogits",
    "ZeroInflatedNegativeBinomial",
    "ZeroInflatedNegativeBinomial2",
    "ZeroInflatedPoisson",
    "ZeroInflatedProbs",
]


def ZeroInflatedProbs(
    base_dist: Distribution,
    gate: Given,
    *,
    validate_args: bool | None = None,
) -> ZeroInflatedDistribution:
    """Return ``ZeroInflatedDistribution(base_dist, gate=gate)``: NumPyro's name for it.

    Parameters
    ----------
    base_dist : Distribution
    gate : Tensor or number in [0, 1]
    validate_args : bool, optional
    """
    return ZeroInflatedDistribution(base_dist, gate=gate, validate_args=validate_args)


def HurdleProbs(
    base_dist: Distribution,
    gate: Given,
    *,
    validate_args: bool | None = None,
) -> HurdleDistribution:
    """Return ``HurdleDistribution(base_dist, gate=gate)``: NumPyro's name for it.

    Parameters
    ----------
    base_dist : Distribution
    gate : Tensor or number in [0, 1]
    validate_args : bool, optional
    """
    return HurdleDistribution(base_dist, gate=gate, validate_args=validate_args)


def ZeroInflatedLogits(
    base_dist: Distribution,
    gate_logits: Given,
    *,
    validate_args: bool | None = None,
) -> ZeroInflatedDistribution:
    """Return ``ZeroInflatedDistribution(base_dist, gate_logits=...)``: NumPyro's name for it.

    Parameters
    ----------
    base_dist : Distribution
    gate_logits : Tensor or number
    validate_args : bool, optional
    """
    return ZeroInflatedDistribution(base_dist, gate_logits=gate_logits, validate_args=validate_args)


def HurdleLogits(
    base_dist: Distribution,
    gate_logits: Given,
    *,
    validate_args: bool | None = None,
) -> HurdleDistribution:
    """Return ``HurdleDistribution(base_dist, gate_logits=gate_logits)``: NumPyro's name for it.

    Parameters
    ----------
    base_dist : Distribution
    gate_logits : Tensor or number
    validate_args : bool, optional
    """
    return HurdleDistribution(base_dist, gate_logits=gate_logits, validate_args=validate_args)


def ZeroInflatedPoisson(
    rate: Given,
    *,
    gate: Given | None = None,
    gate_logits: Given | None = None,
    validate_args: bool | None = None,
) -> ZeroInflatedDistribution:
    """Return a Poisson with extra zeros; Pyro's signature.

    Parameters
    ----------
    rate : Tensor or number, positive
    gate : Tensor or number in [0, 1], optional
    gate_logits : Tensor or number, optional
        Exactly one of the two is given.
    validate_args : bool, optional
    """
    return ZeroInflatedDistribution(
        Poisson(rate, validate_args=validate_args),
        gate=gate,
        gate_logits=gate_logits,
        validate_args=validate_args,
    )


def ZeroInflatedNegativeBinomial(
    total_count: Given,
    *,
    probs: Given | None = None,
    logits: Given | None = None,
    gate: Given | None = None,
    gate_logits: Given | None = None,
    validate_args: bool | None = None,
) -> ZeroInflatedDistribution:
    """Return a negative binomial with extra zeros; Pyro's signature.

    Parameters
    ----------
    total_count : Tensor or number, positive
    probs : Tensor or number in [0, 1], optional
    logits : Tensor or number, optional
        Exactly one of the two is given.
    gate : Tensor or number in [0, 1], optional
    gate_logits : Tensor or number, optional
        Exactly one of the two is given.
    validate_args : bool, optional
    """
    return ZeroInflatedDistribution(
        NegativeBinomial(
            total_count=total_count, probs=probs, logits=logits, validate_args=validate_args
        ),
        gate=gate,
        gate_logits=gate_logits,
        validate_args=validate_args,
    )


def ZeroInflatedNegativeBinomial2(
    mean: Given,
    concentration: Given,
    *,
    gate: Given | None = None,
    gate_logits: Given | None = None,
    validate_args: bool | None = None,
) -> ZeroInflatedDistribution:
    """Return a negative binomial of a mean and a concentration with extra zeros.

    Parameters
    ----------
    mean : Tensor or number, positive
    concentration : Tensor or number, positive
    gate : Tensor or number in [0, 1], optional
    gate_logits : Tensor or number, optional
        Exactly one of the two is given.
    validate_args : bool, optional
    """
    return ZeroInflatedDistribution(
        NegativeBinomial2(mean, concentration, validate_args=validate_args),
        gate=gate,
        gate_logits=gate_logits,
        validate_args=validate_args,
    )


def ZeroInflatedBinomial(
    total_count: Given,
    *,
    probs: Given | None = None,
    logits: Given | None = None,
    gate: Given | None = None,
    gate_logits: Given | None = None,
    validate_args: bool | None = None,
) -> ZeroInflatedDistribution:
    """Return a binomial with extra zeros.

    Parameters
    ----------
    total_count : Tensor or number, whole
    probs : Tensor or number in [0, 1], optional
    logits : Tensor or number, optional
        Exactly one of the two is given.
    gate : Tensor or number in [0, 1], optional
    gate_logits : Tensor or number, optional
        Exactly one of the two is given.
    validate_args : bool, optional
    """
    return ZeroInflatedDistribution(
        Binomial(total_count=total_count, probs=probs, logits=logits, validate_args=validate_args),
        gate=gate,
        gate_logits=gate_logits,
        validate_args=validate_args,
    )


def HurdlePoisson(
    gate: Given,
    rate: Given = 1.0,
    *,
    validate_args: bool | None = None,
) -> HurdleDistribution:
    """Return 0 with probability `gate`, else a Poisson count above 0.

    Parameters
    ----------
    gate : Tensor or number in [0, 1]
    rate : Tensor or number, positive
    validate_args : bool, optional
    """
    return HurdleDistribution(
        Poisson(rate, validate_args=validate_args), gate=gate, validate_args=validate_args
    )


def HurdleNegativeBinomial2(
    gate: Given,
    mean: Given,
    concentration: Given,
    *,
    validate_args: bool | None = None,
) -> HurdleDistribution:
    """Return 0 with probability `gate`, else a negative binomial count above 0.

    Parameters
    ----------
    gate : Tensor or number in [0, 1]
    mean : Tensor or number, positive
    concentration : Tensor or number, positive
    validate_args : bool, optional
    """
    return HurdleDistribution(
        NegativeBinomial2(mean, concentration, validate_args=validate_args),
        gate=gate,
        validate_args=validate_args,
    )


def HurdleGamma(
    gate: Given,
    concentration: Given,
    rate: Given = 1.0,
    *,
    validate_args: bool | None = None,
) -> HurdleDistribution:
    """Return 0 with probability `gate`, else a gamma number.

    Parameters
    ----------
    gate : Tensor or number in [0, 1]
    concentration : Tensor or number, positive
    rate : Tensor or number, positive
    validate_args : bool, optional
    """
    return HurdleDistribution(
        Gamma(concentration, rate, validate_args=validate_args),
        gate=gate,
        validate_args=validate_args,
    )


def HurdleLogNormal(
    gate: Given,
    loc: Given = 0.0,
    scale: Given = 1.0,
    *,
    validate_args: bool | None = None,
) -> HurdleDistribution:
    """Return 0 with probability `gate`, else a log-normal number.

    Parameters
    ----------
    gate : Tensor or number in [0, 1]
    loc : Tensor or number
    scale : Tensor or number, positive
    validate_args : bool, optional
    """
    return HurdleDistribution(
        LogNormal(loc, scale, validate_args=validate_args), gate=gate, validate_args=validate_args
    )


explain_calls(globals())
