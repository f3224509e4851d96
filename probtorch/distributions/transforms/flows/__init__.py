"""Normalizing flows: transforms with learned parameters.

`module` makes transforms into modules, alone, in a row (`iterated`) and with a context
(``conditional_*``). Then one file per kind: `autoregressive` (IAF, MAF), `coupling` (real NVP),
`spline`, `planar` (also Sylvester and radial), `linear` (Householder, batch normalisation). Names
and arguments are Pyro's.
"""

from probtorch.distributions.transforms.flows.autoregressive import (
    AffineAutoregressive,
    ConditionalAffineAutoregressive,
    affine_autoregressive,
    conditional_affine_autoregressive,
)
from probtorch.distributions.transforms.flows.coupling import (
    AffineCoupling,
    ConditionalAffineCoupling,
    affine_coupling,
    conditional_affine_coupling,
    permute,
)
from probtorch.distributions.transforms.flows.linear import (
    BatchNorm,
    ConditionalHouseholder,
    Householder,
    batchnorm,
    conditional_householder,
    householder,
)
from probtorch.distributions.transforms.flows.module import (
    ComposeTransformModule,
    ConditionalComposeTransformModule,
    ConditionalTransform,
    ConditionalTransformModule,
    TransformModule,
    iterated,
)
from probtorch.distributions.transforms.flows.planar import (
    ConditionalPlanar,
    ConditionalRadial,
    Planar,
    Radial,
    Sylvester,
    conditional_planar,
    conditional_radial,
    planar,
    radial,
    sylvester,
)
from probtorch.distributions.transforms.flows.spline import (
    ConditionalSpline,
    ConditionalSplineAutoregressive,
    Spline,
    SplineAutoregressive,
    SplineCoupling,
    conditional_spline,
    conditional_spline_autoregressive,
    spline,
    spline_autoregressive,
    spline_coupling,
)

__all__ = [
    "AffineAutoregressive",
    "AffineCoupling",
    "BatchNorm",
    "ComposeTransformModule",
    "ConditionalAffineAutoregressive",
    "ConditionalAffineCoupling",
    "ConditionalComposeTransformModule",
    "ConditionalHouseholder",
    "ConditionalPlanar",
    "ConditionalRadial",
    "ConditionalSpline",
    "ConditionalSplineAutoregressive",
    "ConditionalTransform",
    "ConditionalTransformModule",
    "Householder",
    "Planar",
    "Radial",
    "Spline",
    "SplineAutoregressive",
    "SplineCoupling",
    "Sylvester",
    "TransformModule",
    "affine_autoregressive",
    "affine_coupling",
    "batchnorm",
    "conditional_affine_autoregressive",
    "conditional_affine_coupling",
    "conditional_householder",
    "conditional_planar",
    "conditional_radial",
    "conditional_spline",
    "conditional_spline_autoregressive",
    "householder",
    "iterated",
    "permute",
    "planar",
    "radial",
    "spline",
    "spline_autoregressive",
    "spline_coupling",
    "sylvester",
]
