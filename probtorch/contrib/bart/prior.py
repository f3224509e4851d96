"""`TreePrior`: the distribution of the trees of a sum, after Chipman, George and McCulloch.

A node at depth d is split with probability alpha (1 + d)**-beta, if some variable can still be cut
there and the greatest depth is not reached; on a variable drawn from the weights of those that can,
at one of the cuts that are left of it, each as likely. What a leaf adds is normal. Nothing of that
depends on how many rows come to a node: a leaf without rows has a value, too.

Read ensembles.py first. tree_update.py moves draws of it.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from probtorch.contrib.bart.ensembles import PER_VARIABLE, Ensemble, sum_of_trees
from probtorch.contrib.bart.tree_update import TreeUpdate
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import Shape
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Values
from probtorch.distributions.source import Source
from probtorch.effects.site import Site
from probtorch.infer.levels import Structure
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.tensor import Tensor

__all__ = ["TreePrior", "TreeStructure"]

LOG_2PI = float(np.log(2.0 * np.pi))


class _Trees(Constraint):
    """Rows of numbers that are trees."""

    is_discrete = True
    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        """Return true: what is no tree has density 0."""
        return wrap(np.ones(value.array.shape[:-2], bool))

    def __repr__(self) -> str:
        return "trees"


TREES = _Trees()


class TreeStructure(Structure):
    """The coordinates of trees: the trees, and the values of their sums at the rows of the data.

    With these beside them no density has to look at trees.

    Parameters
    ----------
    ensemble : Ensemble
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble, self.update = ensemble, TreeUpdate(ensemble)
        self._of_trees = ensemble.outputs * ensemble.trees * ensemble.width
        self.size = self._of_trees + ensemble.outputs * ensemble.rows
        self.start = np.zeros(self.size)
        self.start[ensemble.splits : self._of_trees : ensemble.width] = ensemble.leaf_loc
        self.start[self._of_trees :] = ensemble.loc

    def described(self) -> dict[str, object]:
        """Return what predictions from trees have to know."""
        e = self.ensemble
        return {
            "outputs": e.outputs,
            "max_depth": e.max_depth,
            "variables": len(e.counts),
        }

    def at(self, site: Site, q: TensorBase) -> TensorBase:
        """Return the trees, and leave the values of the sums with their distribution."""
        e = self.ensemble
        site.fn.known["fit"] = reshape(q[self._of_trees :], (e.outputs, e.rows))
        # As data: the density has no slope in them.
        trees = q[: self._of_trees].detach()
        return reshape(trees, (e.outputs * e.trees, e.width))

    def inv(self, value: TensorBase) -> TensorBase:
        """Return the coordinates of trees."""
        e = self.ensemble
        fit = sum_of_trees(value, wrap(e.columns), e.outputs, e.max_depth)
        return cat([reshape(value, (-1,)), reshape(fit, (-1,))])


class TreePrior(Distribution):
    """Distribution of the trees of a `bart` [chipman2010]_; draws are of shape (trees, numbers).

    Parameters
    ----------
    ensemble : Ensemble

    Attributes
    ----------
    known : dict
        Where a sampler has the values of the sums at the data, they are ``known["fit"]``, of shape
        (outputs, rows). The prior is then in the hands of the update that moves trees, and the log
        density is 0.
    """

    __tree_fields__ = ()
    __static_fields__ = ("ensemble", "_batch_shape", "_event_shape", "_expanded", "_validate_args")
    support = TREES

    def __init__(self, ensemble: Ensemble, *, validate_args: bool | None = None) -> None:
        self.ensemble = ensemble
        self.known: dict[str, TensorBase] = {}
        shape = (ensemble.outputs * ensemble.trees, ensemble.width)
        self._set_shapes((), shape, dtype=np.dtype(float64), validate_args=validate_args)

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(*values.values())

    def _tree_names(self) -> tuple[str, ...]:
        return ("ensemble",)

    def structure(self) -> TreeStructure:
        """Return the coordinates of trees, for samplers."""
        return TreeStructure(self.ensemble)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        e, lead = self.ensemble, shape[:-1]
        uniforms = rng.uniform((*lead, e.splits, 3))
        normals = rng.normal((*lead, e.nodes))
        read("trees of a bart", uniforms)
        count = int(np.prod(lead))
        found = _grown(
            e,
            np.asarray(uniforms.array, np.float64).reshape(count, e.splits, 3),
            np.asarray(normals.array, np.float64).reshape(count, e.nodes),
        )
        return wrap(found.reshape(shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        if "fit" in self.known:
            return wrap(np.zeros(()))
        read("trees of a bart", value)
        trees = np.asarray(value.array, np.float64)
        each = _log_densities(self.ensemble, trees.reshape(-1, trees.shape[-1]))
        return wrap(each.reshape(trees.shape[:-1]).sum(-1))


def _room(e: Ensemble, codes: np.ndarray, node: int) -> tuple[np.ndarray, np.ndarray]:
    """What is left of the cuts at a node of trees (count, splits): the numbers strictly between two
    arrays (count, variables).
    """
    low = np.full((len(codes), len(e.counts)), -1, np.int64)
    high = np.broadcast_to(e.counts, low.shape).copy()
    rows = np.arange(len(codes))
    while node > 0:
        node, left = (node - 1) // 2, node % 2 == 1
        variable, cut = np.divmod(codes[:, node].astype(np.int64) - 1, PER_VARIABLE)
        bound = high if left else low
        tighter = np.minimum if left else np.maximum
        bound[rows, variable] = tighter(bound[rows, variable], cut)
    return low, high


def _grown(e: Ensemble, uniforms: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Trees (count, width) of uniform numbers (count, splits, 3) and normal ones (count, nodes)."""
    codes = np.zeros((len(uniforms), e.splits))
    values = np.zeros((len(uniforms), e.nodes))
    here = np.zeros((len(uniforms), e.nodes), bool)
    here[:, 0] = True
    for node in range(e.splits):
        split = here[:, node] & (uniforms[:, node, 0] < e.split_probs[e.depths[node]])
        chosen = np.flatnonzero(split)
        low, high = _room(e, codes[chosen], node)
        left = high - low - 1
        weights = np.cumsum(np.where(left > 0, e.weights, 0.0), axis=1)
        some = weights[:, -1] > 0.0
        chosen, low, left, weights = chosen[some], low[some], left[some], weights[some]
        variable = (weights <= uniforms[chosen, node, 1:2] * weights[:, -1:]).sum(1)
        at = np.arange(len(chosen)), variable
        cut = low[at] + 1 + np.floor(uniforms[chosen, node, 2] * left[at]).astype(np.int64)
        codes[chosen, node] = 1 + variable * PER_VARIABLE + cut
        values[chosen, node] = e.cuts[variable, cut]
        here[chosen, 2 * node + 1] = here[chosen, 2 * node + 2] = True
    leaves = here.copy()
    leaves[:, : e.splits] &= codes == 0
    added = e.leaf_loc + e.leaf_scale * normals
    return np.concatenate([codes, np.where(leaves, added, values)], axis=1)


def _log_densities(e: Ensemble, trees: np.ndarray) -> np.ndarray:
    """The log densities of trees (count, width), -inf of what is no tree of the ensemble."""
    codes, values = trees[:, : e.splits], trees[:, e.splits :]
    known = (codes >= 0.0) & (codes <= len(e.counts) * PER_VARIABLE) & (codes == np.floor(codes))
    codes = np.where(known, codes, 0.0)
    here = np.zeros((len(trees), e.nodes), bool)
    here[:, 0] = True
    found = np.where(known.all(axis=1), 0.0, -np.inf)
    for node in range(e.nodes):
        split = here[:, node] & (codes[:, node] > 0.5 if node < e.splits else False)
        leaf = here[:, node] & ~split
        at = (values[:, node] - e.leaf_loc) / e.leaf_scale
        found[leaf] -= (0.5 * at * at + np.log(e.leaf_scale) + 0.5 * LOG_2PI)[leaf]
        if node >= e.splits:
            continue
        low, high = _room(e, np.where(here[:, : e.splits], codes, 1.0), node)
        left = high - low - 1
        weights = np.where(left > 0, e.weights, 0.0)
        prob = np.where(weights.sum(1) > 0.0, e.split_probs[e.depths[node]], 0.0)
        found[leaf] += np.log1p(-prob[leaf])
        variable, cut = np.divmod(codes[split, node].astype(np.int64) - 1, PER_VARIABLE)
        inside = (low[split, variable] < cut) & (cut < high[split, variable])
        cut = np.minimum(cut, e.cuts.shape[1] - 1)
        inside &= values[split, node] == e.cuts[variable, cut]
        chance = prob[split] * weights[split, variable] / left[split, variable].clip(1)
        chance /= weights[split].sum(1).clip(1e-300)
        with np.errstate(divide="ignore"):
            found[split] += np.log(np.where(inside, chance, 0.0))
        here[split, 2 * node + 1] = here[split, 2 * node + 2] = True
    return found


explain_calls(globals())
