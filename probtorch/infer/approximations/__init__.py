"""Posteriors approximated by something with a density, or by particles, without a guide.

`gaussians` has the densities, `result` what a user asks of all of them; the algorithms are
`pathfinder`, `laplace`, `dadvi` and `natural_gradient`. `svgd` moves particles and `stein_vi`
guides, by `stein_kernels`; `network_laplace` is for the weights of networks, with curvature from
`network_curvature`.
"""

from probtorch.infer.approximations.dadvi import DADVI, DADVIResult
from probtorch.infer.approximations.laplace import LaplaceApproximation, LaplaceResult
from probtorch.infer.approximations.natural_gradient import (
    NaturalGradientResult,
    NaturalGradientVI,
)
from probtorch.infer.approximations.network_laplace import NetworkLaplace
from probtorch.infer.approximations.pathfinder import Pathfinder, PathfinderResult
from probtorch.infer.approximations.result import Approximation
from probtorch.infer.approximations.stein_kernels import (
    GraphicalKernel,
    IMQKernel,
    IMQSteinKernel,
    LinearKernel,
    MixtureKernel,
    RandomFeatureKernel,
    RBFKernel,
    RBFSteinKernel,
    SteinKernel,
)
from probtorch.infer.approximations.stein_vi import SteinVI, SteinVIResult
from probtorch.infer.approximations.svgd import SVGD

__all__ = [
    "Approximation",
    "DADVI",
    "DADVIResult",
    "GraphicalKernel",
    "IMQKernel",
    "IMQSteinKernel",
    "LaplaceApproximation",
    "LaplaceResult",
    "LinearKernel",
    "MixtureKernel",
    "NaturalGradientResult",
    "NaturalGradientVI",
    "NetworkLaplace",
    "Pathfinder",
    "PathfinderResult",
    "RBFKernel",
    "RBFSteinKernel",
    "RandomFeatureKernel",
    "SVGD",
    "SteinKernel",
    "SteinVI",
    "SteinVIResult",
]
