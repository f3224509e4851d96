"""Posteriors approximated by something with a density, or by particles, without a guide.

`gaussians` has the densities, `result` what a user asks of all of them; the algorithms are
`pathfinder`, `laplace`, `nested_laplace` (few points in place of
a grid: `central_composite`; inside of a density: `laplace_marginal`), `dadvi` and
`natural_gradient`. `svgd` moves particles
(`annealed` in cycles) and `stein_vi` guides, by `stein_kernels`; `network_laplace` is for the
weights of networks, with curvature from `network_curvature`.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_names

if TYPE_CHECKING:  # checkers know the names from here, Python from the table
    from probtorch.infer.approximations.central_composite import (
        INLACompositeResult as INLACompositeResult,
    )
    from probtorch.infer.approximations.dadvi import (
        DADVI as DADVI,
        DADVIResult as DADVIResult,
    )
    from probtorch.infer.approximations.laplace import (
        LaplaceApproximation as LaplaceApproximation,
        LaplaceResult as LaplaceResult,
    )
    from probtorch.infer.approximations.laplace_marginal import (
        LaplaceMarginal as LaplaceMarginal,
    )
    from probtorch.infer.approximations.natural_gradient import (
        NaturalGradientResult as NaturalGradientResult,
        NaturalGradientVI as NaturalGradientVI,
    )
    from probtorch.infer.approximations.nested_laplace import (
        INLA as INLA,
        INLAResult as INLAResult,
    )
    from probtorch.infer.approximations.network_laplace import (
        NetworkLaplace as NetworkLaplace,
    )
    from probtorch.infer.approximations.pathfinder import (
        Pathfinder as Pathfinder,
        PathfinderResult as PathfinderResult,
    )
    from probtorch.infer.approximations.result import (
        Approximation as Approximation,
    )
    from probtorch.infer.approximations.stein_kernels import (
        GraphicalKernel as GraphicalKernel,
        IMQKernel as IMQKernel,
        IMQSteinKernel as IMQSteinKernel,
        LinearKernel as LinearKernel,
        MixtureKernel as MixtureKernel,
        RandomFeatureKernel as RandomFeatureKernel,
        RBFKernel as RBFKernel,
        RBFSteinKernel as RBFSteinKernel,
        SteinKernel as SteinKernel,
    )
    from probtorch.infer.approximations.stein_vi import SteinVI as SteinVI
    from probtorch.infer.approximations.stein_result import SteinVIResult as SteinVIResult
    from probtorch.infer.approximations.annealed import (
        ASVGD as ASVGD,
    )
    from probtorch.infer.approximations.svgd import (
        SVGD as SVGD,
    )
else:
    _HOMES = {
        "central_composite": "INLACompositeResult",
        "dadvi": "DADVI DADVIResult",
        "laplace": "LaplaceApproximation LaplaceResult",
        "laplace_marginal": "LaplaceMarginal",
        "natural_gradient": "NaturalGradientResult NaturalGradientVI",
        "nested_laplace": "INLA INLAResult",
        "network_laplace": "NetworkLaplace",
        "pathfinder": "Pathfinder PathfinderResult",
        "result": "Approximation",
        "stein_kernels": (
            "GraphicalKernel IMQKernel IMQSteinKernel LinearKernel MixtureKernel "
            "RandomFeatureKernel RBFKernel RBFSteinKernel SteinKernel"
        ),
        "stein_result": "SteinVIResult",
        "stein_vi": "SteinVI",
        "annealed": "ASVGD",
        "svgd": "SVGD",
    }
    __all__, __getattr__, __dir__ = late_names(__name__, _HOMES)
