"""`TreeUpdate`: the trees of a sum, moved one after the other, for any likelihood.

For each tree all others are held, which leaves a function f of the rows, and a log likelihood that
is a function of what the tree adds to f. Leaves are proposed from normal distributions that stand
for their conditional ones (leaf_proposals.py): for a tree of another shape (a leaf is split, two
leaves are joined, or a split above two leaves is exchanged), and then, all of them, for the tree
that came out. What is proposed is taken by Metropolis's rule with the likelihood itself, so the
chain is exact whatever that is.

The normals depend on f and on which rows come to a leaf, not on what it was, so a proposal and its
reverse are made of the same numbers. Where the likelihood is normal they are no approximation: then
the ratio for the shape is that of the marginal likelihoods of Chipman, George and McCulloch (2010),
with leaves integrated out, but for a few proposals that are made wider for the sake of others.

References
----------
H. A. Chipman, E. I. George, R. E. McCulloch, "BART: Bayesian additive regression trees", Annals of
Applied Statistics 4 (2010). P. J. Green, "Reversible jump Markov chain Monte Carlo computation",
Biometrika 82 (1995).
"""

from __future__ import annotations

import numpy as np

from probtorch.contrib.bart.ensembles import PER_VARIABLE, Ensemble, leaves_of, variable_of
from probtorch.contrib.bart.leaf_proposals import At, Fits, LeafProposals, Slopes
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.infer.mcmc.gibbs.discrete_updates import SweepState
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import floor, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import log, log1p
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total

__all__ = ["GROW", "PRUNE", "TreeUpdate"]

# How often a leaf is split and two leaves are joined; else a split is exchanged. A tree that is one
# leaf can be split only.
GROW, PRUNE = 0.4, 0.4
# How often new values of leaves are a step away from the present ones. Where a normal is no good
# likeness, a chain that has got into the tail of a proposal would stay there for long.
WALK = 0.25


@record
class Tree:
    """One tree, and what comes to it.

    Parameters
    ----------
    codes, values : Tensor, shapes (splits,) and (nodes,)
        See ensembles.py.
    leaf : Tensor of int64, shape (rows,)
        Where each row comes to.
    row : Tensor, shape (rows,)
        The values of the sum.
    logdensity : Tensor, 0-d
    """

    codes: TensorBase
    values: TensorBase
    leaf: TensorBase
    row: TensorBase
    logdensity: TensorBase


@record
class SplitHere:
    """What may become of one node, a leaf or a split above two leaves.

    Parameters
    ----------
    node : Tensor, 0-d int64
    variable, cut : Tensor, 0-d int64
        A split drawn from the prior there.
    some : Tensor, 0-d bool
        Whether there is one.
    leaf_prior, split_prior, old_split_prior : Tensor, 0-d
        Log probabilities that the node is a leaf, and that it is split above two leaves by that
        split, or by the one it has; but for the probability of the split itself.
    """

    node: TensorBase
    variable: TensorBase
    cut: TensorBase
    some: TensorBase
    leaf_prior: TensorBase
    split_prior: TensorBase
    old_split_prior: TensorBase


class TreeUpdate:
    """The `StructureUpdate` of an ensemble: one step for each tree; equal for equal ensembles.

    Parameters
    ----------
    ensemble : Ensemble
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        e = ensemble
        self.columns, self.cuts = wrap(e.columns), wrap(e.cuts)
        self.counts, self.weights = wrap(e.counts), wrap(e.weights)
        self.depths, self.probs = wrap(e.depths), wrap(e.split_probs)
        self.numbers = wrap(np.arange(e.nodes))
        self.parents = wrap(np.maximum(np.arange(e.nodes) - 1, 0) // 2)
        self.proposals = LeafProposals(e)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeUpdate) and self.ensemble.key == other.ensemble.key

    def __hash__(self) -> int:
        return hash(self.ensemble.key)

    def __call__(self, density: Density, key: Key, walk: SweepState, first: int) -> SweepState:
        """Move all trees; see `StructureUpdate`."""
        e = self.ensemble
        of_trees, of_fit = e.outputs * e.trees * e.width, e.outputs * e.rows
        begin, end = first + of_trees, first + of_trees + of_fit
        head, tail = walk.position[:begin], walk.position[end:]
        trees = reshape(walk.position[first:begin], (e.outputs * e.trees, e.width))
        fit = reshape(walk.position[begin:end], (e.outputs, e.rows))
        each = wrap(np.arange(e.outputs)[:, None])

        def advance(
            carry: tuple[TensorBase, TensorBase, TensorBase, SweepState],
        ) -> tuple[TensorBase, TensorBase, TensorBase, SweepState]:
            j, trees, fit, walk = carry
            output = j // e.trees

            def at(row: TensorBase) -> tuple[TensorBase, TensorBase]:
                """Log density and its slope along the sum of this output."""
                whole = row if e.outputs == 1 else where(each == output, row, fit)
                value, grad = density(cat([head, reshape(whole, (-1,)), tail]))
                slopes = reshape(grad[begin:end], (e.outputs, e.rows))
                return value, slopes[output]

            codes, values = trees[j, : e.splits], trees[j, e.splits :]
            # From here to where it is put back, a leaf is what it adds beyond its prior's mean.
            values = values - where(self._kinds(codes)[1], e.leaf_loc, 0.0)
            leaf = leaves_of(codes, values, self.columns)
            tree = Tree(codes, values, leaf, fit[output], walk.logdensity)
            rest = tree.row - values[leaf]
            slopes = self.proposals.slopes(rest, at)
            counter = walk.counter
            tree, fits, changed, taken = self.reshaped(tree, rest, slopes, at, key, counter)
            tree = self.refreshed(tree, rest, fits, at, key, counter + 9)
            counter = counter + (11 + 2 * e.nodes)
            values = tree.values + where(self._kinds(tree.codes)[1], e.leaf_loc, 0.0)
            trees = index_put(trees, (j,), cat([tree.codes, values]))
            fit = index_put(fit, (output,), tree.row)
            walk = SweepState(
                walk.position,
                tree.logdensity,
                counter,
                walk.taken + taken + 5,
                walk.accept + changed,
            )
            return j + 1, trees, fit, walk

        _, trees, fit, walk = while_loop(
            lambda carry: carry[0] < e.outputs * e.trees,
            advance,
            (wrap(np.array(0)), trees, fit, walk),
        )
        parts = [walk.position[:first], reshape(trees, (-1,)), reshape(fit, (-1,)), tail]
        share = walk.accept / (e.outputs * e.trees)
        return SweepState(cat(parts), walk.logdensity, walk.counter, walk.taken, share)

    # ---------------------------------------------------------------------------------- the shape

    def reshaped(
        self,
        tree: Tree,
        rest: TensorBase,
        slopes: Slopes,
        at: At,
        key: Key,
        counter: TensorBase,
    ) -> tuple[Tree, Fits, TensorBase, TensorBase]:
        """Propose another shape.

        Returns
        -------
        tree : Tree
        fits : Fits
            Of its leaves.
        changed : Tensor
            1 if the proposal was taken, else 0.
        evaluations : Tensor, 0-d int64
        """
        e, u = self.ensemble, uniform(key, counter + wrap(np.arange(7)))
        z = normals(key, counter + 7, 2)
        split, leaves, ends = self._kinds(tree.codes)
        can_grow = leaves & (self.depths < e.max_depth)
        stump = ~split[0]
        grows = stump | (u[0] < GROW)
        prunes = ~grows & (u[0] < GROW + PRUNE)
        mask = where(grows, can_grow, ends)
        ranks = cumsum(mask.long(), 0)
        node = total((ranks <= floor(u[1] * ranks[-1])).long())
        possible = ranks[-1] > 0
        node = where(possible, minimum(node, e.splits - 1), 0)
        place = self._place(tree.codes, node, u)
        was_split, is_split = ~grows, ~prunes

        # The rows that come to the node, and on which side of it they would be.
        left, right = 2 * node + 1, 2 * node + 2
        cut = self.cuts[place.variable, place.cut]
        inside = (tree.leaf == node) | (tree.leaf == left) | (tree.leaf == right)
        beyond = self.columns[place.variable] > cut
        leaf = where(inside, where(is_split, left + beyond.long(), node), tree.leaf)
        code = 1.0 + place.variable * float(PER_VARIABLE) + place.cut
        codes = where(self.numbers[: e.splits] == node, where(is_split, code, 0.0), tree.codes)
        old, evaluations = self.proposals.fitted(tree.leaf, leaves, rest, slopes, at)
        new, more = self.proposals.fitted(leaf, self._kinds(codes)[1], rest, slopes, at)

        n = self.numbers
        drawn = self.proposals.drawn(
            new, where(n == right, u[6], u[5]), where(n == right, z[1], z[0])
        )
        values = where(n == node, where(is_split, cut, drawn), tree.values)
        values = where((n == left) | (n == right), where(is_split, drawn, 0.0), values)
        row = where(inside, rest + drawn[leaf], tree.row)
        there, _ = at(row)

        def terms(fits: Fits, values: TensorBase, as_split: TensorBase) -> TensorBase:
            affected = where(as_split, (n == left) | (n == right), n == node)
            return total(where(affected, self.proposals.term(fits, values), 0.0))

        ratio = (
            there - tree.logdensity
            + terms(new, drawn, is_split) - terms(old, tree.values, was_split)
            + where(is_split, place.split_prior, place.leaf_prior)
            - where(was_split, place.old_split_prior, place.leaf_prior)
            + self._moves(can_grow, ends, node, stump, grows, prunes)
        )  # fmt: skip
        fine = possible & (prunes | place.some) & isfinite(there) & isfinite(ratio)
        taken = fine & (log(u[4]) < ratio)
        after = Tree(
            where(taken, codes, tree.codes),
            where(taken, values, tree.values),
            where(taken, leaf, tree.leaf),
            where(taken, row, tree.row),
            where(taken, there, tree.logdensity),
        )
        fits = Fits(where(taken, new.mean, old.mean), where(taken, new.precision, old.precision))
        return after, fits, where(taken, 1.0, 0.0), evaluations + more

    def _kinds(self, codes: TensorBase) -> tuple[TensorBase, TensorBase, TensorBase]:
        """Which nodes are splits, leaves, and splits above two leaves."""
        e = self.ensemble
        split = cat([codes > 0.5, wrap(np.zeros(e.nodes - e.splits, bool))])
        leaves = ((self.numbers == 0) | split[self.parents]) & ~split
        pairs = wrap(2 * np.arange(e.splits) + 1)
        ends = split[: e.splits] & leaves[pairs] & leaves[pairs + 1]
        return split, leaves, cat([ends, wrap(np.zeros(e.nodes - e.splits, bool))])

    def _place(self, codes: TensorBase, node: TensorBase, u: TensorBase) -> SplitHere:
        """What may become of a node; u[2] and u[3] choose the split."""
        e = self.ensemble
        each = wrap(np.arange(len(e.counts)))
        variables = variable_of(codes)
        cuts = (where(codes > 0.5, codes - 1.0, 0.0) - variables * float(PER_VARIABLE)).long()
        low, high, at = each * 0 - 1, self.counts, node
        for _ in range(e.max_depth):
            above = self.parents[at]
            bound = (each == variables[above]) & (at > 0)
            is_left = at == 2 * above + 1
            high = where(bound & is_left, minimum(high, cuts[above]), high)
            low = where(bound & ~is_left, maximum(low, cuts[above]), low)
            at = above
        room = high - low - 1
        weights = where(room > 0, self.weights, 0.0)
        ranks = cumsum(weights, 0)
        variable = total((ranks <= u[2] * ranks[-1]).long())
        some = (ranks[-1] > 0.0) & (variable < len(e.counts))
        variable = where(some, minimum(variable, len(e.counts) - 1), 0)
        left = maximum(room[variable], 1)
        cut = low[variable] + 1 + floor(u[3] * left).long()
        depth = self.depths[node]
        prob, next_prob = self.probs[depth], self.probs[depth + 1]
        several = total((weights > 0.0).long()) > 1

        def split_prior(variable: TensorBase, cut: TensorBase) -> TensorBase:
            to_left = several | (cut - low[variable] > 1)
            to_right = several | (high[variable] - cut > 1)
            leaf = log1p(-next_prob)
            both = where(to_left, leaf, 0.0) + where(to_right, leaf, 0.0)
            return log(maximum(prob, 1e-300)) + both

        return SplitHere(
            node,
            variable,
            minimum(maximum(cut, 0), e.cuts.shape[1] - 1),
            some,
            where(some, log1p(-prob), 0.0),
            split_prior(variable, cut),
            split_prior(variables[node], cuts[node]),
        )

    def _moves(
        self,
        can_grow: TensorBase,
        ends: TensorBase,
        node: TensorBase,
        stump: TensorBase,
        grows: TensorBase,
        prunes: TensorBase,
    ) -> TensorBase:
        """Log ratio of the chances to propose the way back and the way there, but for the split."""
        e = self.ensemble
        growing, ending = total(can_grow.long()), total(ends.long())
        above = self.parents[node]
        ending_then = ending + 1 - (ends[above] & (node > 0)).long()
        grow = log(PRUNE / ending_then) - log(where(stump, 1.0, GROW) / maximum(growing, 1))
        deep = self.depths[node] + 1 < e.max_depth
        growing_then = growing + 1 - where(deep, 2, 0)
        back = where(node == 0, 1.0, GROW) / maximum(growing_then, 1)
        prune = log(back) - log(PRUNE / maximum(ending, 1))
        return where(grows, grow, where(prunes, prune, 0.0))

    def refreshed(
        self, tree: Tree, rest: TensorBase, fits: Fits, at: At, key: Key, counter: TensorBase
    ) -> Tree:
        """Return the tree after a proposal of other values for all leaves."""
        e = self.ensemble
        _, leaves, _ = self._kinds(tree.codes)
        u = uniform(key, counter + wrap(np.arange(2 + e.nodes)))
        z = normals(key, counter + (2 + e.nodes), e.nodes)
        value = self.proposals.drawn(fits, u[2:], z)
        terms = self.proposals.term(fits, value) - self.proposals.term(fits, tree.values)
        # A step from where they are: the optimal scaling of a random walk, 2.4 by root of d.
        walks = u[1] < WALK
        near = tree.values + 2.4 * z / sqrt(total(leaves.long()) * fits.precision)
        fall = 0.5 * self.proposals.precision * (tree.values * tree.values - near * near)
        value, terms = where(walks, near, value), where(walks, fall, terms)
        row = rest + value[tree.leaf]
        there, _ = at(row)
        ratio = there - tree.logdensity + total(where(leaves, terms, 0.0))
        taken = isfinite(there) & isfinite(ratio) & (log(u[0]) < ratio)
        return Tree(
            tree.codes,
            where(taken & leaves, value, tree.values),
            tree.leaf,
            where(taken, row, tree.row),
            where(taken, there, tree.logdensity),
        )
