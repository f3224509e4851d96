"""Gaussian processes with data: regression, sparse, variational, and with latent points."""

from probtorch.contrib.gp.models.latent_variables import GPLVM
from probtorch.contrib.gp.models.model import GPModel
from probtorch.contrib.gp.models.regression import GPRegression
from probtorch.contrib.gp.models.sparse_regression import SparseGPRegression
from probtorch.contrib.gp.models.student_regression import TPRegression
from probtorch.contrib.gp.models.variational import VariationalGP, VariationalSparseGP

__all__ = [
    "GPLVM",
    "GPModel",
    "GPRegression",
    "SparseGPRegression",
    "TPRegression",
    "VariationalGP",
    "VariationalSparseGP",
]
