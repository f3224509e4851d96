"""Bayesian additive regression trees: a sum of trees as an unknown function in a model."""

from probtorch.contrib.bart.model import bart
from probtorch.contrib.bart.prior import TreePrior

__all__ = ["TreePrior", "bart"]
