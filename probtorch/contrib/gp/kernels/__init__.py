"""Kernels of Gaussian processes: modules with parameters, called with one or two sets of points."""

from probtorch.contrib.gp.kernels.dot_product import (
    Constant,
    DotProduct,
    Linear,
    Polynomial,
    WhiteNoise,
)
from probtorch.contrib.gp.kernels.isotropic import (
    RBF,
    Exponential,
    Isotropy,
    Matern32,
    Matern52,
    RationalQuadratic,
)
from probtorch.contrib.gp.kernels.kernel import (
    Combination,
    Exponent,
    Kernel,
    Power,
    Product,
    Sum,
    VerticalScaling,
    Warping,
)
from probtorch.contrib.gp.kernels.periodic import Cosine, Periodic
from probtorch.contrib.gp.kernels.processes import Brownian, Coregionalize, Multitask

__all__ = [
    "RBF",
    "Brownian",
    "Combination",
    "Constant",
    "Coregionalize",
    "Cosine",
    "DotProduct",
    "Exponent",
    "Exponential",
    "Isotropy",
    "Kernel",
    "Linear",
    "Matern32",
    "Matern52",
    "Multitask",
    "Periodic",
    "Polynomial",
    "Power",
    "Product",
    "RationalQuadratic",
    "Sum",
    "VerticalScaling",
    "Warping",
    "WhiteNoise",
]
