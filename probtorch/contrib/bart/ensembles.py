"""`Ensemble`: what a sum of trees is made of, and where trees live in arrays.

A tree is a row of numbers in heap order, the children of node i being 2i + 1 and 2i + 2. First come
the codes of the nodes that may be split, those above the greatest depth: 0 for a leaf, and for a
split ``1 + variable * 2**20 + number of the cut``. Then, for every node, the value: what a leaf
adds to the function, or where a node is cut. Rows with ``x[variable] <= cut`` go to the left. Nodes
that are not there are 0. So a tree knows its cuts and its share of the mean itself, and means
something for other data than those it was fitted to.
"""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cached_property

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.effects.site import as_value
from probtorch.errors import DomainError, ShapeError
from probtorch.ops.arithmetic import floor, minimum, where
from probtorch.ops.control import while_loop
from probtorch.ops.gathering import gather
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import expand, reshape
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total

__all__ = [
    "PER_VARIABLE",
    "Ensemble",
    "columns_of",
    "cuts_of",
    "leaves_of",
    "sum_of_trees",
    "sum_one_by_one",
    "variable_of",
]

# Codes of one variable; cuts of a variable are fewer than these.
PER_VARIABLE = 2**20


@dataclasses.dataclass(frozen=True, eq=False)
class Ensemble:
    """The settings of a sum of trees, and the data that it is a function of.

    Parameters
    ----------
    columns : ndarray, shape (variables, rows)
        Covariates.
    cuts : ndarray, shape (variables, most cuts)
        Where each may be cut, ascending; infinite behind its last cut.
    counts : ndarray of int, shape (variables,)
        How many cuts it has.
    weights : ndarray, shape (variables,)
        Probability of each to be split on, where all can be.
    trees, outputs, max_depth : int
    alpha, beta : float
        A node at depth d is split with probability ``alpha (1 + d)**-beta``.
    loc, leaf_scale : float
        Mean of the function; standard deviation of what a leaf adds.
    """

    columns: np.ndarray
    cuts: np.ndarray
    counts: np.ndarray
    weights: np.ndarray
    trees: int
    outputs: int
    max_depth: int
    alpha: float
    beta: float
    loc: float
    leaf_scale: float

    @property
    def splits(self) -> int:
        """How many nodes of a tree may be split."""
        return int(2**self.max_depth - 1)

    @property
    def nodes(self) -> int:
        """How many nodes a tree may have."""
        return int(2 ** (self.max_depth + 1) - 1)

    @property
    def width(self) -> int:
        """Numbers of a tree."""
        return self.splits + self.nodes

    @property
    def rows(self) -> int:
        """Rows of the covariates."""
        return int(self.columns.shape[1])

    @property
    def leaf_loc(self) -> float:
        """The mean of what a leaf adds: trees share the mean of the function, and so know it."""
        return self.loc / self.trees

    @cached_property
    def depths(self) -> np.ndarray:
        """The depth of each node."""
        return np.floor(np.log2(np.arange(1, self.nodes + 1))).astype(np.int64)

    @cached_property
    def split_probs(self) -> np.ndarray:
        """The probability that a node is split that can be, by depth; 0 from the greatest on."""
        depth = np.arange(self.max_depth + 2)
        probs = self.alpha * (1.0 + depth) ** -self.beta
        return np.where(depth < self.max_depth, probs, 0.0)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for ensembles that are alike in everything."""
        digest = hashlib.sha256()
        for array in (self.columns, self.cuts, self.counts, self.weights):
            digest.update(repr((array.shape, array.dtype)).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        rest = (self.trees, self.outputs, self.max_depth, self.alpha, self.beta)
        return (*rest, self.loc, self.leaf_scale, digest.digest())


def columns_of(x: TensorLike, subject: str) -> np.ndarray:
    """Return covariates (rows, variables) as contiguous columns (variables, rows), float64.

    Raises
    ------
    ShapeError
        If they are no matrix.
    DomainError
        If a number is nan or infinite.
    """
    array = np.asarray(as_value(x, "X").array)
    if array.ndim != 2 or not array.size:
        raise ShapeError(
            subject,
            expected="X of shape (rows, variables), with at least one of each",
            got=f"shape {array.shape}",
            fix="put variables into columns; a single one is X[:, None]",
        )
    array = np.ascontiguousarray(array.T, np.float64)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        variable, row = (int(i) for i in bad[0])
        raise DomainError(
            subject,
            expected="finite covariates",
            got=f"{array[variable, row]} in row {row}, column {variable}"
            + (f", and {len(bad) - 1} more" if len(bad) > 1 else ""),
            fix="fill gaps in, and add a column that says where they were: trees can split on it",
        )
    return array


def cuts_of(columns: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each variable may be cut, and in how many places.

    They are midpoints between neighbouring values that occur; of more than `most` so many, evenly
    spaced in rank.
    """
    found = []
    for column in columns:
        seen = np.unique(column)
        low, high = seen[:-1], seen[1:]
        middle = low + (high - low) / 2.0
        # Of neighbours without a number in between the lower one.
        middle = np.where(middle < high, middle, low)
        if len(middle) > most:
            middle = middle[np.linspace(0, len(middle) - 1, most).round().astype(int)]
        found.append(middle)
    counts = np.array([len(cuts) for cuts in found], np.int64)
    cuts = np.full((len(found), max(int(counts.max()), 1)), np.inf)
    for row, own in zip(cuts, found, strict=True):
        row[: len(own)] = own
    return cuts, counts


def leaves_of(codes: TensorBase, values: TensorBase, columns: TensorBase) -> TensorBase:
    """Return the number of the leaf of one tree that each row comes to.

    Parameters
    ----------
    codes : Tensor, shape (splits,)
    values : Tensor, shape (nodes,)
    columns : Tensor, shape (variables, rows)

    Returns
    -------
    Tensor of int64, shape (rows,)

    Notes
    -----
    One pass over the rows for each split that there is, which is faster than a descent for each
    row: trees are small, and the passes are vectorised.
    """
    ranks = cumsum((codes > 0.5).long(), 0)
    count, last = ranks[-1], codes.array.shape[0] - 1
    variables = variable_of(codes)

    def sent_on(carry: tuple[TensorBase, TensorBase]) -> tuple[TensorBase, TensorBase]:
        i, leaf = carry
        node = minimum(total((ranks <= i).long()), last)
        right = columns[variables[node]] > values[node]
        return i + 1, where(leaf == node, 2 * node + 1 + right.long(), leaf)

    start = wrap(np.zeros(columns.array.shape[1], np.int64))
    _, leaf = while_loop(lambda carry: carry[0] < count, sent_on, (wrap(np.array(0)), start))
    return leaf


def sum_one_by_one(trees: TensorBase, columns: TensorBase, outputs: int, depth: int) -> TensorBase:
    """Return what `sum_of_trees` does, for one draw of trees, tree after tree: in compiled code."""
    splits, per_output = 2**depth - 1, trees.array.shape[0] // outputs
    start = wrap(np.zeros((outputs, columns.array.shape[1])))

    def added(carry: tuple[TensorBase, TensorBase]) -> tuple[TensorBase, TensorBase]:
        j, fit = carry
        codes, values = trees[j, :splits], trees[j, splits:]
        own, output = values[leaves_of(codes, values, columns)], j // per_output
        return j + 1, index_put(fit, (output,), fit[output] + own)

    count = trees.array.shape[0]
    return while_loop(lambda carry: carry[0] < count, added, (wrap(np.array(0)), start))[1]


def variable_of(codes: TensorBase) -> TensorBase:
    """Return the variables of splits, as int64; 0 for leaves."""
    return floor(where(codes > 0.5, codes - 1.0, 0.0) / PER_VARIABLE).long()


def sum_of_trees(trees: TensorBase, columns: TensorBase, outputs: int, depth: int) -> TensorBase:
    """Return sums of trees at rows of covariates.

    Parameters
    ----------
    trees : Tensor, shape (..., outputs * trees, width)
    columns : Tensor, shape (variables, rows)
    outputs, depth : int

    Returns
    -------
    Tensor, shape (..., outputs, rows)
    """
    splits = 2**depth - 1
    codes, values = trees[..., :splits], trees[..., splits:]
    *lead, count, _ = trees.array.shape
    rows = columns.array.shape[1]
    flat, each = reshape(columns, (-1,)), wrap(np.arange(rows))
    at = expand(wrap(np.zeros((), np.int64)), (*lead, count, rows))
    for _ in range(depth):
        # A leaf may be a node below the splits already: then any code does.
        code = where(at < splits, gather(codes, -1, where(at < splits, at, 0)), 0.0)
        right = flat[variable_of(code) * rows + each] > gather(values, -1, at)
        at = where(code > 0.5, 2 * at + 1 + right.long(), at)
    found = reshape(gather(values, -1, at), (*lead, outputs, count // outputs, rows))
    return total(found, -2)
