"""Gaussian processes, by Pyro's names: kernels, likelihoods, models, and what trains them.

A kernel is a module; a model is a kernel with data, whose `model` and `guide` every algorithm takes
and whose call predicts. Parameters may have priors, and then guides: see parameterized.py. Where
only the joint normal of values is wanted, inside a model of one's own,
`distributions.GaussianProcess` takes the same kernels.
"""

from probtorch.contrib.gp import kernels, likelihoods, models, parameterized, util
from probtorch.contrib.gp.parameterized import Parameterized

__all__ = ["Parameterized", "kernels", "likelihoods", "models", "parameterized", "util"]
