"""Bayesian additive regression trees: a sum of trees as an unknown function in a model.

`model.py` has the statement, `prior.py` the distribution of trees, `ensembles.py` what they are as
arrays, `tree_update.py` and `leaf_proposals.py` how `Gibbs` moves them, `results.py` what draws of
them are asked for.
"""

from probtorch.contrib.bart.model import bart
from probtorch.contrib.bart.prior import TreePrior
from probtorch.contrib.bart.results import (
    partial_dependence,
    predict,
    split_counts,
    variable_importance,
)

__all__ = [
    "TreePrior",
    "bart",
    "partial_dependence",
    "predict",
    "split_counts",
    "variable_importance",
]
