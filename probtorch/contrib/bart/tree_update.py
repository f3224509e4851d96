"""`TreeUpdate`: the trees of a sum, moved one after the other, for any likelihood.

For each tree all others are held, which leaves a function f of the rows, and a log likelihood that
is a function of what the tree adds to f. What its leaves may be is found by linear regression of
the slope of that under a normal distribution of the leaf, by the quadrature of two points: slopes,
summed over the rows of a leaf, one deviation below its mean and one above. First the distribution
is the prior of a leaf; what comes out is the next one, until it stays (`Fits`). From these normals
leaves are proposed: for a tree of another shape (a leaf is split, two leaves are joined, or a split
above two leaves is exchanged), and then, all of them, for the tree that came out. What is proposed
is taken by Metropolis's rule with the likelihood itself, so the chain is exact whatever that is.

The normals depend on f and on which rows come to a leaf, not on what it was, so a proposal and its
reverse are made of the same numbers. Where the likelihood is normal they are no approximation: then
the ratio for the shape is that of the marginal likelihoods of Chipman, George and McCulloch (2010),
with leaves integrated out, but for a few proposals that are made wider for the sake of others
(`WIDE`). Proposals of leaves from approximations of their conditional distributions follow Linero
(2024); regression of a slope in place of its slope at the top bears likelihoods that are not
concave.

References
----------
H. A. Chipman, E. I. George, R. E. McCulloch, "BART: Bayesian additive regression trees", Annals of
Applied Statistics 4 (2010). A. R. Linero, "Generalized Bayesian additive regression trees models:
beyond conditional conjugacy", JASA (2024). P. J. Green, "Reversible jump Markov chain Monte Carlo
computation", Biometrika 82 (1995).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from probtorch.contrib.bart.ensembles import PER_VARIABLE, Ensemble, leaves_of, variable_of
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.infer.mcmc.gibbs.discrete_updates import SweepState
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import abs, clamp, floor, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp, log, log1p
from probtorch.ops.extremes import amax
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat, stack
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.scattering import index_add

# From the values of the sum that a tree is in, one per row, to the log density and its slopes.
At: TypeAlias = Callable[[TensorBase], tuple[TensorBase, TensorBase]]

__all__ = ["GROW", "PRUNE", "TreeUpdate"]

# How often a leaf is split and two leaves are joined; else a split is exchanged. A tree that is one
# leaf can be split only.
GROW, PRUNE = 0.4, 0.4
# How often new values of leaves are a step away from the present ones. Where a normal is no good
# likeness, a chain that has got into the tail of a proposal would stay there for long.
WALK = 0.25
# A leaf is proposed from its normal, made three times as wide in this share of the cases, and from
# its prior in that: then no leaf that has come about some other way is hard to leave.
WIDE, ANYWHERE = 0.05, 0.02
# Regressions for a leaf after the first, at most, and the change, in deviations of the mean and in
# parts of the precision, at which they end.
ROUNDS, SETTLED = 6, 0.1


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
class Slopes:
    """Slopes of the log likelihood in the sum without a tree, by row.

    Parameters
    ----------
    low, high : Tensor, shape (rows,)
        One deviation of the prior of a leaf below it, and above.
    bend : Tensor, 0-d
        How far the slopes between are off the lines through these, in all rows together, times that
        deviation: in nats.
    """

    low: TensorBase
    high: TensorBase
    bend: TensorBase


@record
class Fits:
    """Normal distributions that stand for the conditional ones of leaves.

    Parameters
    ----------
    mean, precision : Tensor, shape (nodes,) or ()
    """

    mean: TensorBase
    precision: TensorBase


@record
class Place:
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
        self.precision = e.leaf_scale**-2

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
            leaf = leaves_of(codes, values, self.columns)
            tree = Tree(codes, values, leaf, fit[output], walk.logdensity)
            rest = tree.row - values[leaf]
            # The prior of a leaf knows nothing of the tree: its slopes serve all shapes.
            low, middle, high = (at(rest + k * e.leaf_scale)[1] for k in (-1.0, 0.0, 1.0))
            bend = total(abs(middle - 0.5 * (low + high))) * e.leaf_scale
            # Where they lie on lines there is nothing to be found by further regressions.
            slopes = Slopes(low, high, where(isfinite(bend), bend, np.inf))
            counter = walk.counter
            tree, fits, changed, taken = self.reshaped(tree, rest, slopes, at, key, counter)
            tree = self.refreshed(tree, rest, fits, at, key, counter + 9)
            counter = counter + (11 + 2 * e.nodes)
            trees = index_put(trees, (j,), cat([tree.codes, tree.values]))
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
        old, evaluations = self._fitted(tree.leaf, rest, slopes, at)
        new, more = self._fitted(leaf, rest, slopes, at)

        n = self.numbers
        drawn = self._drawn(new, where(n == right, u[6], u[5]), where(n == right, z[1], z[0]))
        code = 1.0 + place.variable * float(PER_VARIABLE) + place.cut
        codes = where(n[: e.splits] == node, where(is_split, code, 0.0), tree.codes)
        values = where(n == node, where(is_split, cut, drawn), tree.values)
        values = where((n == left) | (n == right), where(is_split, drawn, 0.0), values)
        row = where(inside, rest + drawn[leaf], tree.row)
        there, _ = at(row)

        def terms(fits: Fits, values: TensorBase, as_split: TensorBase) -> TensorBase:
            affected = where(as_split, (n == left) | (n == right), n == node)
            return total(where(affected, self._term(fits, values), 0.0))

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

    def _place(self, codes: TensorBase, node: TensorBase, u: TensorBase) -> Place:
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

        return Place(
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

    # --------------------------------------------------------------------------------- the leaves

    def _fitted(
        self, leaf: TensorBase, rest: TensorBase, slopes: Slopes, at: At
    ) -> tuple[Fits, TensorBase]:
        """Return the fits of all leaves, and how many evaluations that took.

        Parameters
        ----------
        leaf : Tensor of int64, shape (rows,)
        rest : Tensor, shape (rows,)
            The sum without the tree.
        slopes : Slopes
        at : callable
        """
        e = self.ensemble

        def regressed(low: TensorBase, high: TensorBase, mean: Any, spread: Any) -> Fits:
            pair = stack([low, high], 1)
            pair = where(isfinite(pair), pair, 0.0)
            sums = index_add(wrap(np.zeros((e.nodes, 2))), 0, leaf, pair)
            slope, weight = 0.5 * (sums[:, 0] + sums[:, 1]), (sums[:, 0] - sums[:, 1]) / spread
            precision = maximum(0.5 * weight, 0.0) + self.precision
            return Fits(mean + (slope - self.precision * mean) / precision, precision)

        def unsettled(carry: tuple[TensorBase, TensorBase, Fits]) -> TensorBase:
            i, moved, _ = carry
            return (i < ROUNDS) & (moved > SETTLED)

        def again(
            carry: tuple[TensorBase, TensorBase, Fits],
        ) -> tuple[TensorBase, TensorBase, Fits]:
            i, _, fits = carry
            spread = 1.0 / sqrt(fits.precision)
            found = regressed(
                at(rest + (fits.mean - spread)[leaf])[1],
                at(rest + (fits.mean + spread)[leaf])[1],
                fits.mean,
                spread,
            )
            # Not further than the prior would go, whatever the slopes say.
            bound = 6.0 * e.leaf_scale
            found = Fits(clamp(found.mean, -bound, bound), found.precision)
            moved = abs(found.mean - fits.mean) / spread
            wider = abs(found.precision / fits.precision - 1.0)
            return i + 1, amax(maximum(moved, wider)), found

        first = regressed(slopes.low, slopes.high, 0.0, e.leaf_scale)
        start = (wrap(np.array(0)), slopes.bend, first)
        rounds, _, fits = while_loop(unsettled, again, start)
        return fits, 2 * rounds

    def _drawn(self, fits: Fits, u: TensorBase, z: TensorBase) -> TensorBase:
        """Draw leaves of uniform and normal numbers."""
        spread = where(u < WIDE, 3.0, 1.0) / sqrt(fits.precision)
        return where(u < ANYWHERE, z * self.ensemble.leaf_scale, fits.mean + z * spread)

    def _term(self, fits: Fits, value: TensorBase) -> TensorBase:
        """Log of the prior density of leaves by that with which they are proposed."""
        own = 0.5 * fits.precision * (value - fits.mean) * (value - fits.mean)
        root, prior = sqrt(fits.precision / self.precision), -0.5 * self.precision * value * value
        narrow = (1.0 - WIDE) * root * exp(-own)
        wide = ((WIDE - ANYWHERE) / 3.0) * root * exp(-own / 9.0)
        return prior - log(narrow + wide + ANYWHERE * exp(prior))

    def refreshed(
        self, tree: Tree, rest: TensorBase, fits: Fits, at: At, key: Key, counter: TensorBase
    ) -> Tree:
        """Return the tree after a proposal of other values for all leaves."""
        e = self.ensemble
        _, leaves, _ = self._kinds(tree.codes)
        u = uniform(key, counter + wrap(np.arange(2 + e.nodes)))
        z = normals(key, counter + (2 + e.nodes), e.nodes)
        value = self._drawn(fits, u[2:], z)
        terms = self._term(fits, value) - self._term(fits, tree.values)
        # A step from where they are: the optimal scaling of a random walk, 2.4 by root of d.
        walks = u[1] < WALK
        near = tree.values + 2.4 * z / sqrt(total(leaves.long()) * fits.precision)
        fall = 0.5 * self.precision * (tree.values * tree.values - near * near)
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
