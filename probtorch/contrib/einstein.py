"""NumPyro's name for particles that pull and push each other: what is here is in `infer`."""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside
from probtorch.infer.approximations.stein_kernels import (
    GraphicalKernel,
    IMQKernel,
    LinearKernel,
    MixtureKernel,
    RandomFeatureKernel,
    RBFKernel,
)
from probtorch.infer.approximations.stein_vi import SteinVI
from probtorch.infer.approximations.svgd import SVGD

__all__ = [
    "SVGD",
    "GraphicalKernel",
    "IMQKernel",
    "LinearKernel",
    "MixtureKernel",
    "RBFKernel",
    "RandomFeatureKernel",
    "SteinVI",
]

INSTEAD = {
    "ASVGD": "SVGD, or SteinVI",
    "MixtureGuidePredictive": "SteinVI(...).run(...).draws(), which Predictive takes",
    "ProbabilityProductKernel": "GraphicalKernel, or RBFKernel",
    "SteinLoss": "SteinVI has its loss itself",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
