"""Central composite designs for `INLA`: few points in place of a grid.

A grid takes so many cells in each direction; of five hyperparameters there would be tens of
thousands. A central composite design has the middle, two points on each axis, and the corners of a
cube, or so few of them that products of two coordinates can still be told apart: 15 points for
three, 27 for five, 81 for eight. All but the middle are on a sphere, and their weights make it
exact for the mass and the second moments of a normal. Axes are stretched on each side by how far
the density falls there, so that skewed ones are followed.

The design has the evidence, and what is needed to draw: hyperparameters are split Student t along
the stretched axes, with tails that are heavier than most; the field is its Laplace approximation at
each draw of them, whose mode is searched for from a quadratic surface through those of the design,
which such designs are made for. So the approximation has draws and a density, importance ratios
correct it and say how good it was, and funnels are followed to their ends: with surfaces for the
curvature, too, draws were cheaper and missed a fifth of the mass of a scale next to 0.

References
----------
G. E. P. Box, K. B. Wilson, "On the experimental attainment of optimum conditions", JRSS B 13
(1951). H. Rue, S. Martino, N. Chopin (2009), section 6.5, for the weights and the radius. G. E. P.
Box, J. S. Hunter, "The 2^(k-p) fractional factorial designs", Technometrics 3 (1961), for corners.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
from scipy import linalg, special, stats

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.errors import InferenceError
from probtorch.infer.approximations.gaussians import LOG_2PI
from probtorch.infer.approximations.result import Approximation
from probtorch.infer.sequential.weights import uniforms

if TYPE_CHECKING:
    from probtorch.infer.approximations.nested_laplace import FieldModes, Fields

__all__ = ["LARGEST", "Composed", "INLACompositeResult", "composed", "design"]

# Radius of the sphere, by the root of how many coordinates there are: 1.1 in the paper.
RADIUS = 1.1
# Which coordinates' product each further one of a corner is, so that products of two coordinates
# are no coordinate and no other such product (resolution V).
GENERATORS: dict[int, tuple[tuple[int, ...], ...]] = {
    5: ((0, 1, 2, 3),),
    6: ((0, 1, 2, 3, 4),),
    7: ((0, 1, 2, 3, 4, 5),),
    8: ((0, 1, 2, 3), (0, 1, 4, 5)),
}
LARGEST = 8
# Axes are stretched to this much at most and at least.
STRETCH = (0.3, 3.0)
# Degrees of freedom along the axes: a log scale towards 0 falls exponentially, not as a normal.
DF = 6.0
# The surface of the modes is followed to this many radii of the design and no further.
REACH = 1.3
# Numbers of curvatures that are made at a time.
AT_A_TIME = 4_000_000


def design(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of a design in standard coordinates, and their shares of a normal's mass.

    Parameters
    ----------
    size : int
        From 1 to `LARGEST`.

    Returns
    -------
    points : ndarray, shape (points, size)
        The middle, two on each axis, corners.
    shares : ndarray, shape (points,)
        They sum to 1, and second moments by them are those of a standard normal.
    """
    made = GENERATORS.get(size, ())
    free = np.array(list(itertools.product((-1.0, 1.0), repeat=size - len(made))))
    corners = np.column_stack([free, *(free[:, list(g)].prod(axis=1) for g in made)])
    axes = math.sqrt(size) * np.concatenate([np.eye(size), -np.eye(size)])
    outside = np.concatenate([axes, corners if size > 1 else corners[:0]])
    points = RADIUS * np.concatenate([np.zeros((1, size)), outside])
    shares = np.full(len(points), 1.0 / (RADIUS**2 * len(outside)))
    shares[0] = 1.0 - 1.0 / RADIUS**2
    return points, shares


@dataclass(frozen=True, eq=False)
class Composed:
    """A design on the hyperparameters of one posterior.

    Attributes
    ----------
    peak : ndarray, shape (few,)
    axes : ndarray, shape (few, few)
        One standard deviation at the peak each, in columns.
    stretch : ndarray, shape (2, few)
        By how much it is more or less behind the peak, and ahead of it.
    cells : FieldModes
        The field at the points of the design.
    z : ndarray, shape (points, few)
        The points in units of the axes.
    log_weights : ndarray, shape (points,)
        Logs of the points' shares of the posterior.
    evidence : float
        The log marginal likelihood by the design.
    """

    peak: np.ndarray
    axes: np.ndarray
    stretch: np.ndarray
    cells: FieldModes
    z: np.ndarray
    log_weights: np.ndarray
    evidence: float


def composed(
    subject: str,
    fields: Callable[[np.ndarray, np.ndarray], FieldModes],
    peak: FieldModes,
    axes: np.ndarray,
) -> Composed:
    """Lay a design around the peak of the hyperparameters.

    Parameters
    ----------
    subject : str
        For messages.
    fields : callable
        From rows of hyperparameters, and a field to begin at, to the modes there.
    peak : FieldModes
        Of one row.
    axes : ndarray, shape (few, few)

    Raises
    ------
    InferenceError
        If too many points of the design have no mode of the field.
    """
    size = len(axes)
    points, shares = design(size)
    stars = points[1 : 2 * size + 1]
    theta, top = peak.theta[0], float(peak.marginal[0])
    falls = top - fields(theta + stars @ axes.T, peak.mode[0]).marginal
    # A normal falls by half of the square of the radius.
    with np.errstate(divide="ignore"):
        sides = RADIUS * math.sqrt(size) / np.sqrt(2.0 * np.maximum(falls, 0.0))
    stretch = np.clip(sides, *STRETCH).reshape(2, size)[::-1]
    z = points * np.where(points < 0.0, stretch[0], stretch[1])
    found = fields(theta + z @ axes.T, peak.mode[0])
    good = np.isfinite(found.marginal)
    if good.sum() < 1 + 2 * size + size * (size - 1) // 2:
        raise InferenceError(
            subject,
            expected="a mode of the field at the points of the design",
            got=f"none at {int((~good).sum())} of {len(z)}",
            fix="the field has to be concave given the others; write scales of it non-centred, "
            "or take NUTS",
        )
    middle = stretch.mean(axis=0)
    volumes = np.where(points < 0.0, stretch[0], np.where(points > 0.0, stretch[1], middle))
    falling = 0.5 * (points**2).sum(axis=1)  # of a normal there, in nats
    with np.errstate(divide="ignore"):
        terms = np.log(shares) + falling + np.log(volumes).sum(axis=1) + found.marginal
    constant = 0.5 * size * LOG_2PI + float(np.linalg.slogdet(axes)[1])
    total = float(special.logsumexp(terms))
    return Composed(
        theta, axes, stretch, found.rows(np.flatnonzero(good)), z[good], terms[good] - total,
        total + constant,
    )  # fmt: skip


def _basis(z: np.ndarray) -> np.ndarray:
    """1, coordinates, squares and products of two, shape (rows, terms)."""
    pairs = itertools.combinations(range(z.shape[1]), 2)
    products = [z[:, i] * z[:, j] for i, j in pairs]
    return np.column_stack([np.ones(len(z)), z, z * z, *products])


@dataclass(frozen=True, eq=False, repr=False)
class INLACompositeResult(Approximation):
    """What `INLA` found by a central composite design.

    Attributes
    ----------
    composed : object
        The design: its points, what they weigh, and the field at each.
    fields : callable
        Laplace's method for the field, at hyperparameters.
    many, few : ndarray of int
        Coordinates of the field, and of the hyperparameters.
    """

    composed: Composed = cast("Composed", None)  # which the run gives, all of these
    fields: Callable[[np.ndarray, np.ndarray], FieldModes] = cast("Fields", None)
    many: np.ndarray = cast("np.ndarray", None)
    few: np.ndarray = cast("np.ndarray", None)

    title = "the nested Laplace approximation"

    @property
    def peak(self) -> np.ndarray:
        """Hyperparameters of the highest density, unconstrained, shape (few,)."""
        return self.composed.peak

    @property
    def log_weights(self) -> np.ndarray:
        """Logs of the shares of the points of the design, shape (points,)."""
        return self.composed.log_weights

    @property
    def evidence(self) -> float:
        """The log marginal likelihood by the design; `log_evidence` corrects it, with an error."""
        return self.composed.evidence

    def sample(self, num_draws: int, generator: Generator) -> np.ndarray:
        """Return draws of the approximation; see `Approximation.sample`."""
        return self.sampled(num_draws, generator)[0]

    def sampled(self, num_draws: int, generator: Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return draws and their log densities; see `Approximation.sampled`."""
        few, many = self.few.size, self.many.size
        behind, ahead = self.composed.stretch
        u = uniforms(generator, num_draws * few).reshape(num_draws, few)
        # A side by its width, then half a t: one uniform number has both.
        share = behind / (behind + ahead)
        low = u < share
        sizes = np.where(low, 1.0 - u / share, (u - share) / (1.0 - share))
        z = np.where(low, -behind, ahead) * stats.t.ppf(0.5 + 0.5 * sizes, DF)
        noise = special.ndtri(uniforms(generator, num_draws * many)).reshape(num_draws, many)
        points, log_prob = np.empty((num_draws, few + many)), self._along(z)
        points[:, self.few] = self.peak + z @ self.composed.axes.T
        for rows, found in self._laplace(z):
            log_prob[rows] += _normal(found.root, noise[rows])
            for i, mode, root in zip(rows, found.mode, found.root):
                step = linalg.solve_triangular(root, noise[i], lower=True, trans="T")
                points[i, self.many] = mode + step
        return points, log_prob

    def log_prob(self, points: np.ndarray) -> np.ndarray:
        """Return log densities; see `Approximation.log_prob`."""
        points = np.asarray(points, np.float64)
        z = np.linalg.solve(self.composed.axes, (points[:, self.few] - self.peak).T).T
        log_prob = self._along(z)
        for rows, found in self._laplace(z):
            off = points[np.ix_(rows, self.many)] - found.mode
            log_prob[rows] += _normal(found.root, np.einsum("nij,ni->nj", found.root, off))
        return log_prob

    def _along(self, z: np.ndarray) -> np.ndarray:
        """Log densities of the hyperparameters."""
        behind, ahead = self.composed.stretch
        along = stats.t.logpdf(z / np.where(z < 0.0, behind, ahead), DF)
        volume = float(np.linalg.slogdet(self.composed.axes)[1])
        found: np.ndarray = (along + np.log(2.0 / (behind + ahead))).sum(axis=1) - volume
        return found

    def _laplace(self, z: np.ndarray) -> Iterator[tuple[np.ndarray, FieldModes]]:
        """The fields at hyperparameters, some rows at a time."""
        step = max(AT_A_TIME // self.target.dim**2, 1)
        for begin in range(0, len(z), step):
            rows = np.arange(begin, min(begin + step, len(z)))
            theta = self.peak + z[rows] @ self.composed.axes.T
            yield rows, self.fields(theta, _basis(self._within(z[rows])) @ self._surface)

    @cached_property
    def _surface(self) -> np.ndarray:
        """Coefficients of the modes of the field."""
        found: np.ndarray = np.linalg.lstsq(
            _basis(self.composed.z), self.composed.cells.mode, rcond=None
        )[0]
        return found

    def _within(self, z: np.ndarray) -> np.ndarray:
        """Points that are too far out, drawn in to where the surface is followed."""
        ends = REACH * RADIUS * math.sqrt(self.few.size) * self.composed.stretch
        far = np.abs(z) / np.where(z < 0.0, ends[0], ends[1])
        lengths = np.sqrt((far**2).sum(axis=1, keepdims=True))
        return z / np.maximum(lengths, 1.0)


def _normal(roots: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Log densities of normals, given factors of their precisions and whitened distances."""
    logs = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    found: np.ndarray = logs - 0.5 * ((noise**2).sum(axis=1) + noise.shape[1] * LOG_2PI)
    return found


explain_calls(globals())
