"""Pyro's module for estimators of the expected information gain: they are those of the package."""

from probtorch.contrib.oed.bounds import marginal_eig, marginal_likelihood_eig, posterior_eig
from probtorch.contrib.oed.laplace import laplace_eig
from probtorch.contrib.oed.nested import nmc_eig, vnmc_eig
from probtorch.contrib.oed.ratios import donsker_varadhan_eig, lfire_eig

__all__ = [
    "donsker_varadhan_eig",
    "laplace_eig",
    "lfire_eig",
    "marginal_eig",
    "marginal_likelihood_eig",
    "nmc_eig",
    "posterior_eig",
    "vnmc_eig",
]
