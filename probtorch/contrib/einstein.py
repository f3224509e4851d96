"""NumPyro's name for particles that pull and push each other: what is here is in `infer`."""

from typing import TYPE_CHECKING

from probtorch.core.absent import no_such_name
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

    def __getattr__(name):
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        raise no_such_name(__name__, INSTEAD, name, __all__)
