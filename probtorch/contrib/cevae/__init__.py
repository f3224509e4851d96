"""Effects of a treatment from observations, by a variational autoencoder of the confounder.

`CEVAE` estimates what a binary treatment does to an outcome where both depend on something that was
not observed, of which features are noisy signs. Names and weights are those of Pyro's room.

References
----------
Louizos et al. (2017), Causal effect inference with deep latent-variable models.
"""

from typing import TYPE_CHECKING

from probtorch.contrib.cevae.estimator import CEVAE, causal_effect_loss
from probtorch.contrib.cevae.models import CausalGuide, CausalModel
from probtorch.contrib.cevae.networks import (
    BernoulliNet,
    DiagNormalNet,
    DistributionNet,
    ExponentialNet,
    FullyConnected,
    LaplaceNet,
    NormalNet,
    PreWhitener,
    StudentTNet,
)
from probtorch.core.rooms import late_beside

__all__ = [
    "CEVAE",
    "BernoulliNet",
    "CausalGuide",
    "CausalModel",
    "DiagNormalNet",
    "DistributionNet",
    "ExponentialNet",
    "FullyConnected",
    "LaplaceNet",
    "NormalNet",
    "PreWhitener",
    "StudentTNet",
    "causal_effect_loss",
]

INSTEAD = {
    "Guide": "cevae.CausalGuide",
    "Model": "cevae.CausalModel",
    "TraceCausalEffect_ELBO": "SVI(model, guide, optim, cevae.causal_effect_loss)",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
