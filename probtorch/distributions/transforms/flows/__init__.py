"""Normalizing flows: transforms with learned parameters.

`module` makes transforms into modules, alone, in a row (`iterated`) and with a context
(``conditional_*``). Then one file per kind: `autoregressive` (IAF, MAF), `coupling` (real NVP),
`spline` and `spline_coupling`, `planar` (also radial), `sylvester`, `linear` (Householder, batch
normalisation), `mixing` (matrix exponential, 1 x 1 convolutions), `monotone` and `block`
(increasing networks and polynomials), `continuous` (differential equations), `warped` (fixed forms
with a context). Names and arguments are Pyro's.
"""

from probtorch.distributions.transforms.flows.autoregressive import (
    AffineAutoregressive,
    ConditionalAffineAutoregressive,
    affine_autoregressive,
    conditional_affine_autoregressive,
)
from probtorch.distributions.transforms.flows.block import (
    BlockAutoregressive,
    ConditionalBlockAutoregressive,
    block_autoregressive,
    conditional_block_autoregressive,
)
from probtorch.distributions.transforms.flows.continuous import (
    ConditionalContinuousFlow,
    ContinuousFlow,
    conditional_continuous_flow,
    continuous_flow,
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
    ConditionalBatchNorm,
    ConditionalHouseholder,
    Householder,
    batchnorm,
    conditional_batchnorm,
    conditional_householder,
    householder,
)
from probtorch.distributions.transforms.flows.mixing import (
    ConditionalGeneralizedChannelPermute,
    ConditionalMatrixExponential,
    GeneralizedChannelPermute,
    MatrixExponential,
    conditional_generalized_channel_permute,
    conditional_matrix_exponential,
    generalized_channel_permute,
    matrix_exponential,
)
from probtorch.distributions.transforms.flows.module import (
    ComposeTransformModule,
    ConditionalComposeTransformModule,
    ConditionalTransform,
    ConditionalTransformModule,
    TransformModule,
    iterated,
)
from probtorch.distributions.transforms.flows.monotone import (
    ConditionalNeuralAutoregressive,
    ConditionalPolynomial,
    NeuralAutoregressive,
    Polynomial,
    conditional_neural_autoregressive,
    conditional_polynomial,
    neural_autoregressive,
    polynomial,
)
from probtorch.distributions.transforms.flows.planar import (
    ConditionalPlanar,
    ConditionalRadial,
    Planar,
    Radial,
    conditional_planar,
    conditional_radial,
    planar,
    radial,
)
from probtorch.distributions.transforms.flows.spline import (
    ConditionalSpline,
    ConditionalSplineAutoregressive,
    Spline,
    SplineAutoregressive,
    conditional_spline,
    conditional_spline_autoregressive,
    spline,
    spline_autoregressive,
)
from probtorch.distributions.transforms.flows.spline_coupling import (
    ConditionalSplineCoupling,
    SplineCoupling,
    conditional_spline_coupling,
    spline_coupling,
)
from probtorch.distributions.transforms.flows.sylvester import (
    ConditionalSylvester,
    Sylvester,
    conditional_sylvester,
    sylvester,
)
from probtorch.distributions.transforms.flows.warped import (
    ConditionalDiscreteCosine,
    ConditionalSinhArcsinh,
    conditional_discrete_cosine,
    conditional_sinh_arcsinh,
)

__all__ = [
    "AffineAutoregressive",
    "AffineCoupling",
    "BatchNorm",
    "BlockAutoregressive",
    "ComposeTransformModule",
    "ConditionalAffineAutoregressive",
    "ConditionalAffineCoupling",
    "ConditionalBatchNorm",
    "ConditionalBlockAutoregressive",
    "ConditionalComposeTransformModule",
    "ConditionalContinuousFlow",
    "ConditionalDiscreteCosine",
    "ConditionalGeneralizedChannelPermute",
    "ConditionalHouseholder",
    "ConditionalMatrixExponential",
    "ConditionalNeuralAutoregressive",
    "ConditionalPlanar",
    "ConditionalPolynomial",
    "ConditionalRadial",
    "ConditionalSinhArcsinh",
    "ConditionalSpline",
    "ConditionalSplineAutoregressive",
    "ConditionalSplineCoupling",
    "ConditionalSylvester",
    "ConditionalTransform",
    "ConditionalTransformModule",
    "ContinuousFlow",
    "GeneralizedChannelPermute",
    "Householder",
    "MatrixExponential",
    "NeuralAutoregressive",
    "Planar",
    "Polynomial",
    "Radial",
    "Spline",
    "SplineAutoregressive",
    "SplineCoupling",
    "Sylvester",
    "TransformModule",
    "affine_autoregressive",
    "affine_coupling",
    "batchnorm",
    "block_autoregressive",
    "conditional_affine_autoregressive",
    "conditional_affine_coupling",
    "conditional_batchnorm",
    "conditional_block_autoregressive",
    "conditional_continuous_flow",
    "conditional_discrete_cosine",
    "conditional_generalized_channel_permute",
    "conditional_householder",
    "conditional_matrix_exponential",
    "conditional_neural_autoregressive",
    "conditional_planar",
    "conditional_polynomial",
    "conditional_radial",
    "conditional_sinh_arcsinh",
    "conditional_spline",
    "conditional_spline_autoregressive",
    "conditional_spline_coupling",
    "conditional_sylvester",
    "continuous_flow",
    "generalized_channel_permute",
    "householder",
    "iterated",
    "matrix_exponential",
    "neural_autoregressive",
    "permute",
    "planar",
    "polynomial",
    "radial",
    "spline",
    "spline_autoregressive",
    "spline_coupling",
    "sylvester",
]
