"""Paths of L-BFGS uphill on a log density, many at a time, with a Gaussian at each of their points.

`LbfgsPaths` climbs from the rows of an array: each call of `advance` evaluates the density once per
path that still moves, and what NumPy does between two evaluations is shared by all of them. The
last few steps s and the changes y of the gradient along them make an estimate of the inverse
Hessian of minus the log density, `InverseHessian`: where the log density is quadratic and the steps
span the space it is the covariance. `best_of_paths` keeps of each path the point that a score
likes best, with its estimate.

The estimate is the compact form of [byrd1994]_ around a diagonal that follows the pairs by the rule
of [gilbert1989]_, as in Pathfinder [zhang2022]_. `path_starts.py` and `pathfinder.py` use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from probtorch.infer.control import Interrupt

__all__ = ["BestPoints", "InverseHessian", "LbfgsPaths", "best_of_paths", "updated_diagonal"]

# Pairs that an estimate is made of: 5 to 20 are customary [liu1989]; Pathfinder has 6.
HISTORY = 6
# Share of the rise promised by the slope that a step has to reach (Armijo's rule).
ARMIJO = 1e-4
# Rounding of a log density, relative: near the top no step can be told from it.
ROUNDING = 1e-13
# How much shorter a step may become at once, and how much it has to; and if there is no density.
SHORTEST, LONGEST, INFEASIBLE = 0.02, 0.5, 0.1
# Steps refused in a row after which a path ends.
REFUSALS = 15
# A step without curvature (the log density bends upwards there) is followed by one longer by this.
GROWTH = 4.0
# Steps without a rise, in a row, after which a path ends: in a narrow valley one means nothing (the
# earnings of posteriordb: starts are 40 nats higher than after one, for one evaluation more).
CALM_STEPS = 2
# No step is longer than this many times the way from the start, or the typical distance of two
# starting points.
LONGEST_JUMP = 10.0
# Curvature s'y below this share of |s| |y| is none.
LEAST_CURVATURE = 1e-9

Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class InverseHessian:
    """Estimates of inverse Hessians, positive definite, one per row.

    With D the root of the diagonal and ``U = [S / D; Y D]``, each is ``D (1 + U' M U) D``, where M
    is the matrix of [byrd1994]_ made of the products ``U U'``.

    Parameters
    ----------
    diagonal : ndarray, shape (rows, dim)
        The square of D.
    pairs : ndarray, shape (rows, 2, history, dim)
        S and Y: steps of the position, and how much minus the gradient of the log density changed
        along them.
    order : ndarray of int, shape (rows, history)
        Numbers of the pairs, counted from 1, in whatever places; 0 for a place without a pair,
        which holds zeros.
    """

    def __init__(self, diagonal: np.ndarray, pairs: np.ndarray, order: np.ndarray) -> None:
        self.diagonal, self.pairs, self.order = diagonal, pairs, order
        history = pairs.shape[2]
        self._root = np.sqrt(diagonal)
        root = self._root[:, None]
        self._scaled = np.concatenate([pairs[:, 0] / root, pairs[:, 1] * root], axis=1)
        self._gram = gram = self._scaled @ self._scaled.transpose(0, 2, 1)
        # R has s'y where the step is no younger than the change: upper triangular but for places.
        older = order[:, :, None] <= order[:, None, :]
        upper = np.where(older, gram[:, :history, history:], 0.0)
        inner = gram[:, history:, history:].copy()
        on_diagonal = _diagonals(upper)
        _diagonals(inner)[:] += on_diagonal
        # Without a pair: 1, which leaves the others alone.
        on_diagonal += order == 0
        inverse = np.linalg.inv(upper)
        turned = inverse.transpose(0, 2, 1)
        self._middle = middle = np.zeros_like(gram)
        np.matmul(turned @ inner, inverse, out=middle[:, :history, :history])
        np.negative(turned, out=middle[:, :history, history:])
        np.negative(inverse, out=middle[:, history:, :history])

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """Return the estimates times vectors, both of shape (rows, dim)."""
        scaled = self._root * vectors
        parts = self._middle @ (self._scaled @ scaled[:, :, None])
        return self._root * (scaled + (parts.transpose(0, 2, 1) @ self._scaled)[:, 0])

    def log_det(self) -> np.ndarray:
        """Return the natural log of the determinants, shape (rows,)."""
        product = self._middle @ self._gram
        _diagonals(product)[:] += 1.0
        return 2.0 * np.log(self._root).sum(-1) + np.linalg.slogdet(product)[1]

    def times_root(self, normals: np.ndarray) -> np.ndarray:
        """Return draws of mean zero with the estimates as covariances.

        Parameters
        ----------
        normals : ndarray, shape (rows, draws, dim)
            Standard normal numbers u.

        Returns
        -------
        ndarray, shape (rows, draws, dim)
            Draws x with x' H^-1 x = u'u.
        """
        root, directions, values = self.decomposition()
        inside = normals @ directions.transpose(0, 2, 1)
        return root[:, None] * (normals + inside * (np.sqrt(values)[:, None] - 1.0) @ directions)

    def decomposition(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the estimates as ``D (1 + V' (L - 1) V) D``.

        Returns
        -------
        D : ndarray, shape (rows, dim)
            Positive.
        V : ndarray, shape (rows, directions, dim)
            Orthonormal rows.
        L : ndarray, shape (rows, directions)
            Positive.
        """
        if not hasattr(self, "_directions"):
            # U' = Q R (thin), so that H = D (1 + Q R M R' Q') D.
            q, r = np.linalg.qr(self._scaled.transpose(0, 2, 1))
            small = r @ self._middle @ r.transpose(0, 2, 1)
            values, vectors = np.linalg.eigh(0.5 * (small + small.transpose(0, 2, 1)))
            self._directions = (q @ vectors).transpose(0, 2, 1)
            # What rounding leaves below zero is as good as nothing.
            self._values = np.maximum(1.0 + values, 1e-14)
        return self._root, self._directions, self._values

    def rows(self, chosen: np.ndarray) -> InverseHessian:
        """Return the estimates of some rows, in the order of `chosen`, decomposed or not."""
        some = object.__new__(InverseHessian)
        some.__dict__.update({name: array[chosen] for name, array in vars(self).items()})
        return some


def _diagonals(matrices: np.ndarray) -> np.ndarray:
    """The diagonals of contiguous matrices, shape (rows, n): a view."""
    rows, n, _ = matrices.shape
    return matrices.reshape(rows, n * n)[:, :: n + 1]


def updated_diagonal(diagonal: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return the diagonal of an inverse Hessian with one more pair taken in [gilbert1989]_.

    Parameters
    ----------
    diagonal, step, change : ndarray, shape (rows, dim)
        With positive ``step @ change`` in each row.
    """
    a = (change * change * diagonal).sum(-1, keepdims=True)
    b = (change * step).sum(-1, keepdims=True)
    scaled = step / diagonal
    c = (step * scaled).sum(-1, keepdims=True)
    return b / (a / diagonal + change * change - a / c * scaled * scaled)


class LbfgsPaths:
    """L-BFGS from the rows of an array, uphill.

    Parameters
    ----------
    evaluate : callable
        From points (rows, dim) to log densities (rows,) and gradients (rows, dim); a log density of
        -inf is a point to stay away from.
    starts : ndarray, shape (paths, dim)
    values, gradients : ndarray, shapes (paths,) and (paths, dim)
        There, finite.
    history : int
        Pairs that an estimate is made of.

    Attributes
    ----------
    paths : ndarray of int
        Numbers of the paths that still move; the other attributes have a row for each of them.
    position, value, gradient : ndarray
    hessian : InverseHessian
    log_det : ndarray, shape (rows,)
        Of the estimates.
    gain : ndarray, shape (rows,)
        How far the top is above the present point, in nats, if the estimate holds.
    rise : ndarray, shape (rows,)
        In nats, of the last step taken.
    moved, bent : ndarray of bool, shape (rows,)
        Whether the last call of `advance` took a step, and one with curvature, so that the estimate
        is that of the present point.
    """

    def __init__(
        self,
        evaluate: Evaluate,
        starts: np.ndarray,
        values: np.ndarray,
        gradients: np.ndarray,
        history: int = HISTORY,
    ) -> None:
        count, dim = starts.shape
        self.evaluate = evaluate
        self.paths = np.arange(count)
        self.position, self.value, self.gradient = starts.copy(), values.copy(), gradients.copy()
        self.moved, self.bent = np.ones(count, bool), np.ones(count, bool)
        self.rise = np.full(count, np.inf)
        self.hessian = InverseHessian(
            np.ones((count, dim)),
            np.zeros((count, 2, history, dim)),
            np.zeros((count, history), int),
        )
        self.log_det = np.zeros(count)
        self._origin = starts
        self._refusals = np.zeros(count, int)
        self._spread = np.sqrt(dim)
        self._direction = gradients.copy()
        self._slope = (gradients * gradients).sum(-1)
        self.gain = 0.5 * self._slope
        self._step = np.minimum(1.0, self._spread / np.sqrt(np.maximum(self._slope, 1e-300)))

    def advance(self) -> None:
        """Try one step on each path, with one evaluation each."""
        trial = self.position + self._step[:, None] * self._direction
        value, gradient = self.evaluate(trial)
        promised = self._step * self._slope
        noise = ROUNDING * np.abs(self.value)
        moved = (value >= self.value + ARMIJO * promised - noise) & np.isfinite(gradient).all(-1)
        self.moved, self.bent = moved, moved.copy()
        self._refusals = np.where(moved, 0, self._refusals + 1)
        with np.errstate(all="ignore"):
            # The top of the parabola through both values and the slope here.
            share = 0.5 * promised / (self.value + promised - value)
        share = np.where(np.isfinite(value), np.clip(share, SHORTEST, LONGEST), INFEASIBLE)
        self._step = np.where(moved, self._step, self._step * share)
        if moved.any():
            self._take(np.flatnonzero(moved), trial, value, gradient)

    def _take(
        self, rows: np.ndarray, trial: np.ndarray, value: np.ndarray, gradient: np.ndarray
    ) -> None:
        step, change = trial[rows] - self.position[rows], self.gradient[rows] - gradient[rows]
        diagonal, pairs, order = self.hessian.diagonal, self.hessian.pairs, self.hessian.order
        with np.errstate(all="ignore"):
            curvature = (step * change).sum(-1)
            norms = np.sqrt((step * step).sum(-1)) * np.sqrt((change * change).sum(-1))
            bent = curvature > LEAST_CURVATURE * norms
            updated = updated_diagonal(diagonal[rows], step, change)
            held = ((updated > 0.0) & np.isfinite(updated)).all(-1)
        # The curvature of a pole is soon beyond what numbers hold: there the path ends.
        self._refusals[rows[bent & ~held]] = REFUSALS
        bent &= held
        self.bent[rows] = bent
        self.rise[rows] = value[rows] - self.value[rows]
        self.position[rows], self.value[rows] = trial[rows], value[rows]
        self.gradient[rows] = gradient[rows]
        self._step[rows] = np.where(bent, 1.0, GROWTH * self._step[rows])
        known, step, change = rows[bent], step[bent], change[bent]
        if known.size:
            newest = order[known].max(-1)
            place = newest % order.shape[1]  # of the oldest pair, or of none
            pairs[known, 0, place], pairs[known, 1, place] = step, change
            order[known, place] = newest + 1
            diagonal[known] = updated[bent]
            self.hessian = InverseHessian(diagonal, pairs, order)
            self.log_det = self.hessian.log_det()
        self._direction = direction = self.hessian.apply(self.gradient)
        self._slope = (direction * self.gradient).sum(-1)
        self.gain = 0.5 * self._slope
        # Refused trials of other paths keep their (shorter) step: their direction is what it was.
        length = np.sqrt((direction * direction).sum(-1))
        way = np.sqrt(((self.position - self._origin) ** 2).sum(-1))
        longest = LONGEST_JUMP * np.maximum(way, self._spread)
        self._step = np.minimum(self._step, longest / np.maximum(length, 1e-300))

    def end(self, ended: np.ndarray) -> None:
        """End the paths where `ended`, shape (rows,), holds, and those that find no step."""
        stuck = (self._refusals >= REFUSALS) | ~(self._slope > 0.0) | ~np.isfinite(self.log_det)
        keep = np.flatnonzero(~(ended | stuck))
        if len(keep) == len(self.paths):
            return
        names = "paths position value gradient moved bent rise log_det gain"
        for name in (*names.split(), "_origin", "_refusals", "_direction", "_slope", "_step"):
            setattr(self, name, getattr(self, name)[keep])
        self.hessian = self.hessian.rows(keep)


@dataclass
class BestPoints:
    """The best point of each path.

    Attributes
    ----------
    position : ndarray, shape (paths, dim)
    value, score, log_det : ndarray, shape (paths,)
        Log density, score, and log determinant of the estimate there.
    top_score : ndarray, shape (paths,)
        The highest score on the path.
    gradient : ndarray, shape (paths, dim)
    hessian : InverseHessian
    """

    position: np.ndarray
    value: np.ndarray
    score: np.ndarray
    gradient: np.ndarray
    log_det: np.ndarray
    hessian: InverseHessian
    top_score: np.ndarray

    def rows(self, chosen: np.ndarray) -> BestPoints:
        """Return those of some paths."""
        names = "position", "value", "score", "gradient", "log_det", "top_score"
        some = {name: getattr(self, name)[chosen] for name in names}
        return BestPoints(**some, hessian=self.hessian.rows(chosen))

    def with_others(self, others: BestPoints) -> BestPoints:
        """Return them with others, of paths with as long a history, behind."""
        names = "position", "value", "score", "gradient", "log_det", "top_score"
        both = {n: np.concatenate([getattr(x, n) for x in (self, others)]) for n in names}
        hessian = InverseHessian(
            *(
                np.concatenate([getattr(x.hessian, n) for x in (self, others)])
                for n in ("diagonal", "pairs", "order")
            )
        )
        return BestPoints(**both, hessian=hessian)


def best_of_paths(
    paths: LbfgsPaths,
    score: Callable[[LbfgsPaths, np.ndarray], np.ndarray],
    *,
    max_gradients: int,
    tolerance: float,
    patience: float,
    reluctance: float = 0.0,
    interrupt: Interrupt | None = None,
) -> BestPoints:
    """Climb, and return of each path the point with the highest score, or an early one near it.

    Parameters
    ----------
    paths : LbfgsPaths
        At their starts.
    score : callable
        From the paths and the numbers of rows to their scores, in nats: of the rows that have taken
        a step with curvature.
    max_gradients : int
        Evaluations that a path may take.
    tolerance : float
        In nats: a path ends when, two steps in a row, it rose no more and by its estimate will not.
    patience : float
        In nats: a path ends when its log density, with half of the log determinant, is that much
        below the highest of it: the path climbs towards a pole, which has no volume.
    reluctance : float
        In nats: how much more than the score of the point that is kept a later one needs.
    interrupt : Interrupt, optional
        Asked before each step whether all paths are to end.
    """
    everything = np.arange(len(paths.paths))
    best = BestPoints(
        paths.position.copy(),
        paths.value.copy(),
        score(paths, everything),
        paths.gradient.copy(),
        paths.log_det.copy(),
        paths.hessian.rows(everything),
        np.empty(0),
    )
    best.top_score = best.score.copy()
    highest = paths.value + 0.5 * paths.log_det
    paths.end(np.zeros(len(everything), bool))
    calm = np.zeros(len(everything), int)
    for _ in range(max_gradients):
        if not len(paths.paths) or (interrupt is not None and interrupt.asked):
            break
        paths.advance()
        rows = np.flatnonzero(paths.bent)
        ended = np.zeros(len(paths.paths), bool)
        if rows.size:
            found = score(paths, rows)
            at = paths.paths[rows]
            better = found > best.score[at] + reluctance
            best.top_score[at] = np.maximum(best.top_score[at], found)
            _keep(best, paths, rows[better], found[better])
            still = np.maximum(paths.gain[rows], paths.rise[rows]) < tolerance
            calm[at] = np.where(still, calm[at] + 1, 0)
            ended[rows] = calm[at] >= CALM_STEPS
            evidence = paths.value + 0.5 * paths.log_det
            highest[paths.paths] = np.maximum(highest[paths.paths], evidence)
            ended |= evidence < highest[paths.paths] - patience
        paths.end(ended)
    kept = best.hessian
    best.hessian = InverseHessian(kept.diagonal, kept.pairs, kept.order)
    return best


def _keep(best: BestPoints, paths: LbfgsPaths, rows: np.ndarray, score: np.ndarray) -> None:
    at = paths.paths[rows]
    best.score[at] = score
    for name in ("position", "value", "gradient", "log_det"):
        getattr(best, name)[at] = getattr(paths, name)[rows]
    kept, new = best.hessian, paths.hessian
    kept.diagonal[at] = new.diagonal[rows]
    # Of the pairs those that have come since.
    row, place = np.nonzero(kept.order[at] != new.order[rows])
    kept.pairs[at[row], :, place] = new.pairs[rows[row], :, place]
    kept.order[at] = new.order[rows]
