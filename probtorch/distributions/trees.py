"""Random spanning trees of a complete graph, with weights on its edges.

The normaliser is a determinant (Kirchhoff 1847). Draws are exact: edges are taken or left one after
another, and the probability of each, given those before, is its weight times its effective
resistance in what is left of the graph (Kulkarni 1990). Read matchings.py for the other discrete
structures.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64, int64
from probtorch.core.told import read
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Parameter, param, setting
from probtorch.distributions.source import Source
from probtorch.distributions.vectors import half_log_det
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.cholesky_factors import cholesky, cholesky_solve
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp
from probtorch.ops.extremes import amax
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import expand, reshape, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import sum as total
from probtorch.ops.sorting import argsort
from probtorch.tensor import Tensor

__all__ = ["SpanningTree"]


@functools.cache
def _edges(vertices: int) -> np.ndarray:
    """All pairs (a, b) with a < b, shape (edges, 2): by b, then by a."""
    return np.array([(a, b) for b in range(vertices) for a in range(b)]).reshape(-1, 2)


@functools.cache
def _incidence(vertices: int) -> np.ndarray:
    """For each edge 1 at one end and -1 at the other, less the last vertex."""
    edges, eye = _edges(vertices), np.eye(vertices)
    return (eye[edges[:, 0]] - eye[edges[:, 1]])[:, :-1]


class TreeConstraint(Constraint):
    """Lists of the edges of a tree, as pairs of vertices in order."""

    event_dim = 2
    is_discrete = True

    def __init__(self, vertices: int) -> None:
        self.vertices = vertices

    def check(self, value: Tensor) -> Tensor:
        a, b = value[..., 0], value[..., 1]
        code = b * self.vertices + a
        inside = (a >= 0) & (a < b) & (b < self.vertices)
        ordered = every(code[..., 1:] > code[..., :-1], -1)
        # As many edges as a tree has: they are one if they join all vertices.
        places = value.new_tensor(np.arange(self.vertices))
        ends = cast(eq(unsqueeze(a, -1), places), float64) - cast(
            eq(unsqueeze(b, -1), places), float64
        )
        laplacian = (ends.mT @ ends)[..., :-1, :-1]
        joined = laplacian.det() > 0.5
        return every(inside, -1) & ordered & joined

    def interior(self, value: Tensor) -> float | Tensor:
        star = [(0, b) for b in range(1, self.vertices)]
        return wrap(np.array(star).astype(value.array.dtype))


class SpanningTree(Distribution):
    """Random tree that joins all of a number of vertices.

    A tree has a probability proportional to the exponential of the sum of the logits of its edges.

    Probability ``p(x) = prod(W[x[e, 0], x[e, 1]] for e in range(len(x))) /
    det(minor(diag(degrees(W)) - W))`` with ``W = symmetric(exp(edge_logits))``.

    Parameters
    ----------
    edge_logits : Tensor, shape (..., v (v - 1) / 2)
        Of the pairs of v vertices, in the order (0, 1), (0, 2), (1, 2), (0, 3), (1, 3), ...
    sampler_options : dict, optional
        For calls written for Pyro, and not used: draws are exact.

    Notes
    -----
    Values are whole numbers of shape (v - 1, 2): pairs of vertices, the smaller first, sorted as
    the logits are. A density costs O(v^3), a draw O(v^4).

    References
    ----------
    Kulkarni (1990), "Generating random combinatorial objects", sec. 4.
    """

    edge_logits: Parameter = param(constraints.real_vector)
    sampler_options: dict[str, object] | None = setting(default=None)
    has_enumerate_support = True
    _takes_integers = True

    def _sampler_options(self) -> None:
        return None

    @property
    def num_vertices(self) -> int:
        """Number of vertices."""
        return round(0.5 + math.sqrt(0.25 + 2.0 * self.edge_logits.array.shape[-1]))

    @constraints.dependent_property(event_dim=2, is_discrete=True)
    def support(self) -> Constraint:
        """Trees as sorted lists of edges."""
        return TreeConstraint(self.num_vertices)

    def _infer_event_shape(self) -> Shape:
        count, v = self.edge_logits.array.shape[-1], self.num_vertices
        if v < 2 or count != v * (v - 1) // 2:
            raise ShapeError(
                "SpanningTree",
                expected="edge_logits of shape (..., v (v - 1) / 2) for v vertices",
                got=f"shape {self.edge_logits.array.shape}",
                fix="give one logit for each pair of vertices: 1, 3, 6, 10, 15, ...",
            )
        return (v - 1, 2)

    def _weights(self) -> tuple[Tensor, Tensor]:
        """Return weights of at most 1, and the log of what they were divided by."""
        top = amax(self.edge_logits.detach(), -1, True)
        return exp(self.edge_logits - top), top[..., 0]

    def _laplacian(self, weights: Tensor) -> Tensor:
        ends = weights.new_tensor(_incidence(self.num_vertices))
        return ends.mT @ (unsqueeze(weights, -1) * ends)

    @property
    def log_partition_function(self) -> Tensor:
        """Log of the sum of exp(sum of logits) over all trees, shape ``batch_shape``."""
        weights, top = self._weights()
        factor = cholesky(self._laplacian(weights))
        return 2.0 * half_log_det(factor) + (self.num_vertices - 1) * top

    def _log_prob(self, x: Tensor) -> Tensor:
        a, b = x[..., 0], x[..., 1]
        place = cast(a + b * (b - 1) // 2, int64)
        chosen = eq(unsqueeze(place, -1), wrap(np.arange(self.edge_logits.array.shape[-1])))
        each = total(where(chosen, unsqueeze(self.edge_logits, -2), 0.0), (-2, -1))
        return each - self.log_partition_function

    @property
    def edge_mean(self) -> Tensor:
        """Probabilities that two vertices are joined by an edge, shape (..., v, v)."""
        v, (weights, _) = self.num_vertices, self._weights()
        ends = weights.new_tensor(_incidence(v))
        resistance = total(
            cholesky_solve(ends.mT, cholesky(self._laplacian(weights))).mT * ends, -1
        )
        pairs, edges = np.zeros((v, v), int), _edges(v)
        pairs[edges[:, 0], edges[:, 1]] = pairs[edges[:, 1], edges[:, 0]] = np.arange(len(edges))
        shares = index_select(weights * resistance, -1, wrap(pairs.ravel()))
        square = reshape(shares, (*shares.array.shape[:-1], v, v))
        return square * square.new_tensor(1.0 - np.eye(v))

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        v, batch = self.num_vertices, shape[:-2]
        weights, _ = self._weights()
        weights = cast(weights.detach(), float64)
        ends, count = _incidence(v), len(_edges(v))
        laplacian = self._laplacian(weights)
        eye = expand(weights.new_tensor(np.eye(v - 1)), laplacian.array.shape)
        inverse = expand(cholesky_solve(eye, cholesky(laplacian)), (*batch, v - 1, v - 1))
        level = rng.uniform((*batch, count))
        taken = []
        for k in range(count):
            end = weights.new_tensor(ends[k])
            reach = inverse @ end
            resistance = total(reach * end, -1)
            share = weights[..., k] * resistance
            yes = level[..., k] < share
            taken.append(yes)
            # A weight of infinity, or of 0, in the inverse of the Laplacian (Sherman, Morrison).
            rest = 1.0 - share
            dropped = weights[..., k] / where(rest > 0.0, rest, 1.0)
            size = where(yes, -1.0 / where(resistance > 0.0, resistance, 1.0), dropped)
            step = reshape(size, (*batch, 1, 1)) * unsqueeze(reach, -1) * unsqueeze(reach, -2)
            inverse = inverse + step
        order = argsort(cast(stack(taken, -1), int64), -1, True, stable=True)[..., : v - 1]
        edges = index_select(wrap(_edges(v)), 0, reshape(order, (-1,)))
        return reshape(edges, (*batch, v - 1, 2))

    def _enumerate_support(self) -> Tensor:
        v = self.num_vertices
        if v > 7:
            raise ArgumentError(
                "SpanningTree.enumerate_support",
                expected="at most 7 vertices, with 16807 trees",
                got=f"{v}",
                fix="log_partition_function sums over all trees without listing them",
            )
        return wrap(_all_trees(v))

    def _mode(self) -> Tensor:
        read("the mode of a tree", self.edge_logits)
        logits = to_host(self.edge_logits.array)
        flat = logits.reshape(-1, logits.shape[-1])
        best = [_heaviest(row, self.num_vertices) for row in flat]
        return wrap(np.array(best).reshape(*logits.shape[:-1], *self._event_shape))


@functools.cache
def _all_trees(v: int) -> np.ndarray:
    """All trees on v vertices, from their Pruefer codes, shape (v ** (v - 2), v - 1, 2)."""
    trees = []
    for code in itertools.product(range(v), repeat=v - 2):
        degree, edges = np.bincount(code, minlength=v) + 1 if v > 2 else np.ones(v, int), []
        for a in code:
            leaf = int(np.flatnonzero(degree == 1)[0])
            edges.append((min(leaf, a), max(leaf, a)))
            degree[[leaf, a]] -= 1
        a, b = map(int, np.flatnonzero(degree == 1))
        edges.append((a, b))
        trees.append(sorted(edges, key=lambda e: (e[1], e[0])))
    return np.array(sorted(trees))


def _heaviest(logits: np.ndarray, v: int) -> np.ndarray:
    """The tree of largest sum: edges from the largest on, unless they close a ring (Kruskal)."""
    edges, part, chosen = _edges(v), np.arange(v), []
    for k in np.argsort(-logits, kind="stable"):
        a, b = edges[k]
        if part[a] != part[b]:
            chosen.append(k)
            part[part == part[b]] = part[a]
    return edges[np.sort(chosen)]
