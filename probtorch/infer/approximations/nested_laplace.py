"""`INLA`: Laplace inside, numerical integration outside, for a field and few other numbers.

Sites are parted in two: the latent field x, which is Gaussian or near it given the rest, and the
rest theta, a few hyperparameters. Given theta the field is approximated by Laplace's method, at its
mode x*(theta); which gives the density of theta, too, up to the same error,

    log p(theta | y) = log p(x*, theta, y) + dim/2 log(2 pi) - log|H| / 2 + constant,

with H the curvature in x. That is evaluated on a grid, in coordinates in which its own peak is
round, as far as it is not negligible. So what is strongly non-Gaussian, scales and the funnels that
they make, is integrated as it is, and what is many is Gaussian where it may be.

Of more than four hyperparameters, or where it is asked for, a few points of a central composite
design take the place of the grid (central_composite.py).

In each cell of the grid the approximation is the cell's Laplace approximation, its mean moving with
theta by the slope of x*. That has a density, so that draws have importance ratios like those of all
approximations: they correct it, and say how good it was.

References
----------
H. Rue, S. Martino, N. Chopin, "Approximate Bayesian inference for latent Gaussian models by using
integrated nested Laplace approximations", JRSS B 71 (2009), section 3; the marginals of single
latents are not corrected as there, but by weights.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from scipy import linalg, optimize, special

from probtorch.core.arguments import count_of
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.approximations.central_composite import (
    LARGEST,
    INLACompositeResult,
    composed,
)
from probtorch.infer.approximations.gaussians import LOG_2PI
from probtorch.infer.approximations.result import Approximation, target_of
from probtorch.infer.approximations.second_order import Hessians
from probtorch.infer.control import Interrupt
from probtorch.infer.potential import Target
from probtorch.infer.sequential.weights import ancestors, uniforms
from probtorch.infer.starts.path_starts import Evaluations

__all__ = ["INLA", "FieldModes", "Fields", "INLAResult", "parted"]

# Newton's steps for a field end when no more is to be gained, in nats, or after so many; halvings
# of one that leads down.
AT_THE_TOP, MOST_STEPS, MOST_HALVINGS = 1e-10, 100, 40
# Hyperparameters are differenced over this share of a unit of unconstrained space, for slopes and
# for curvatures.
APART, APART_TWICE = 1e-5, 1e-2
# Starts that are tried for them, drawn uniformly between -2 and 2; the first is 0.
STARTS = 20
# Side of a cell, in standard deviations of the peak, by how many hyperparameters there are; and by
# how many nats below the top the grid ends.
SIDES, DEPTH = (0.5, 0.5, 0.75, 1.0), 9.0
INTEGRATIONS = ("auto", "grid", "ccd")


@dataclass(frozen=True)
class FieldModes:
    """The modes of the field at some hyperparameters, as rows.

    Attributes
    ----------
    theta, mode : ndarray, shapes (rows, few) and (rows, many)
    marginal : ndarray, shape (rows,)
        Log density of theta, the field integrated out by Laplace; -inf where there is no mode.
    root : ndarray, shape (rows, many, many)
        Lower Cholesky factors of the curvatures.
    slope : ndarray, shape (rows, many, few)
        Of the mode in theta.
    """

    theta: np.ndarray
    mode: np.ndarray
    marginal: np.ndarray
    root: np.ndarray
    slope: np.ndarray

    def rows(self, chosen: np.ndarray) -> FieldModes:
        return FieldModes(*(getattr(self, n)[chosen] for n in _NAMES))

    @staticmethod
    def together(parts: Sequence[FieldModes]) -> FieldModes:
        return FieldModes(*(np.concatenate([getattr(p, n) for p in parts]) for n in _NAMES))


_NAMES = ("theta", "mode", "marginal", "root", "slope")


class Fields:
    """Laplace's method for the field, at many hyperparameters at a time.

    Parameters
    ----------
    target : Target
    many, few : ndarray of int
        Coordinates of the field, and of the hyperparameters.
    """

    def __init__(self, target: Target, many: np.ndarray, few: np.ndarray) -> None:
        self.target, self.many, self.few = target, many, few
        self.evaluate, self.hessians = Evaluations(target), Hessians(target)
        self.last = np.zeros(many.size)  # a mode that was found: where the next search begins
        self.look: Callable[[], None] = lambda: None  # asked at each step; what it raises ends it

    def __reduce__(self) -> tuple[type[Fields], tuple[Target, np.ndarray, np.ndarray]]:
        """Copies and files have what it is made of; what is compiled is made again."""
        return Fields, (self.target, self.many, self.few)

    def __call__(self, theta: np.ndarray, start: np.ndarray | None = None) -> FieldModes:
        """Return the modes at rows of theta, searched for from rows of the field."""
        count = len(theta)
        points = np.empty((count, self.target.dim))
        points[:, self.few] = theta
        points[:, self.many] = self.last if start is None else start
        values, slopes = (np.array(x) for x in self.evaluate(points))
        values = np.where(np.isfinite(values), values, -np.inf)
        going = np.isfinite(values)
        whole = np.zeros((count, self.target.dim, self.target.dim))
        for _ in range(MOST_STEPS):
            self.look()
            rows = np.flatnonzero(going)
            if not rows.size:
                break
            whole[rows] = self.hessians(points[rows])
            for i in rows.tolist():
                curvature = -whole[i][np.ix_(self.many, self.many)]
                step = _newton(curvature, slopes[i, self.many])
                if step is None:
                    values[i], going[i] = -np.inf, False
                    continue
                gain = 0.5 * float(step @ slopes[i, self.many])
                if gain < AT_THE_TOP:
                    going[i] = False
                    continue
                self._move(points, values, slopes, going, i, step)
        values[going] = -np.inf  # no mode in so many steps
        return self._found(points, values, whole)

    def _move(
        self,
        points: np.ndarray,
        values: np.ndarray,
        slopes: np.ndarray,
        going: np.ndarray,
        i: int,
        step: np.ndarray,
    ) -> None:
        """Take a step, or as much of it as leads up."""
        for halving in range(MOST_HALVINGS):
            tried = points[i].copy()
            tried[self.many] += step * 0.5**halving
            value, slope = self.evaluate(tried[None])
            if np.isfinite(value[0]) and value[0] > values[i] - 1e-12 * abs(values[i]):
                points[i], values[i], slopes[i] = tried, value[0], slope[0]
                return
        going[i] = False  # rounding is all that is left

    def _found(self, points: np.ndarray, values: np.ndarray, whole: np.ndarray) -> FieldModes:
        count, size = len(points), self.many.size
        root = np.tile(np.eye(size), (count, 1, 1))
        slope = np.zeros((count, size, self.few.size))
        marginal = np.full(count, -np.inf)
        for i in np.flatnonzero(np.isfinite(values)):
            curvature = -whole[i][np.ix_(self.many, self.many)]
            try:
                root[i] = linalg.cholesky(curvature, lower=True)
            except (linalg.LinAlgError, ValueError):
                continue
            mixed = whole[i][np.ix_(self.many, self.few)]
            slope[i] = linalg.cho_solve((root[i], True), mixed)
            marginal[i] = values[i] + 0.5 * size * LOG_2PI - np.log(np.diag(root[i])).sum()
        return FieldModes(points[:, self.few], points[:, self.many], marginal, root, slope)


def _newton(curvature: np.ndarray, slope: np.ndarray) -> np.ndarray | None:
    """Newton's step up; where the density bends upwards, by magnitudes of the curvature."""
    if not (np.isfinite(curvature).all() and np.isfinite(slope).all()):
        return None
    try:
        solved: np.ndarray = linalg.cho_solve(linalg.cho_factor(curvature, lower=True), slope)
    except linalg.LinAlgError:
        sizes, vectors = linalg.eigh(curvature)
        sizes = np.maximum(np.abs(sizes), 1e-8 * max(np.abs(sizes).max(), 1e-300))
        solved = vectors @ ((vectors.T @ slope) / sizes)
    return solved


def parted(
    owner: str, target: Target, latent: Sequence[str], most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates of a latent field, and the others.

    Parameters
    ----------
    owner : str
        Who asks, for messages.
    target : Target
    latent : sequence of str
        Names of the field's sites.
    most : int
        How many others there may be.

    Raises
    ------
    ArgumentError
        If a name is no site's, or too many others are left, or none.
    """
    unknown = [name for name in latent if name not in target.slots]
    places = [np.arange(s.start, s.stop) for n, s in target.slots.items() if n in latent]
    many = np.concatenate([*places, np.empty(0, np.int64)]).astype(np.int64)
    few = np.setdiff1d(np.arange(target.dim), many)
    if unknown or not many.size or not 1 <= few.size <= most:
        raise ArgumentError(
            f"{owner}(latent=...) on {target.name}",
            expected=f"names of sites, among {', '.join(target.slots)}, that leave one to "
            f"{most} numbers",
            got=f"{', '.join(map(repr, unknown))}, which {target.name} has not"
            if unknown
            else f"{list(latent)!r}, which leave {few.size}",
            fix="name the sites that are Gaussian given the others; with more of these take "
            "NUTS, or LaplaceApproximation for all",
        )
    return many, few


class INLA:
    """Integrated nested Laplace approximation, corrected by importance weights [rue2009]_.

    For latent Gaussian models: regressions with random effects, fields in time or space, counts
    around a latent level. Seconds where chains take minutes, and as exact as chains where
    `pareto_k` is low.

    Parameters
    ----------
    model : callable or Target
        A model without discrete sites that cannot be summed out, or a density.
    latent : str or sequence of str
        Names of the sites that are the field: Gaussian given the others, or near it. At most eight
        numbers are left, in unconstrained space: the hyperparameters.
    integration : "auto", "grid" or "ccd"
        Over the hyperparameters: on a grid of up to four, or by a central composite design, which
        takes 15 points for three, 27 for five, 81 for eight, and surfaces between them. "auto" is
        the grid for up to four, the design for more.
    max_points : int
        Cells that the grid may have.
    seed : int or Generator, optional
        Where starts of the search are drawn from, if 0 is none; the default generator if None.

    Raises
    ------
    ArgumentError
        If `integration` is another word. In a run, if `latent` names no site, or leaves none or too
        many numbers.

    Notes
    -----
    The field may have some hundred numbers: the memory of the result is their number squared, for
    each cell. Its mode is searched for by Newton's method, so its density should be concave given
    the hyperparameters, as those of generalised linear models are.

    References
    ----------
    [rue2009]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import INLA
    >>> def counts(y):
    ...     scale = probtorch.sample("scale", dist.HalfNormal(1.0))
    ...     level = probtorch.sample("level", dist.Normal(0.0, 2.0))
    ...     with probtorch.plate("group", len(y)):
    ...         effect = probtorch.sample("effect", dist.Normal(0.0, scale))
    ...         probtorch.sample("y", dist.Poisson((level + effect).exp()), obs=y)
    >>> y = probtorch.tensor([3.0, 1.0, 7.0, 4.0, 0.0, 2.0])
    >>> result = INLA(counts, latent=["level", "effect"], seed=0).run(y)
    >>> result.pareto_k < 0.7, result.draws(500)["effect"].shape
    (True, (1, 500, 6))
    """

    @explained("INLA")
    def __init__(
        self,
        model: Callable[..., object] | Target,
        latent: str | Sequence[str],
        *,
        integration: str = "auto",
        max_points: int = 5000,
        seed: int | Generator | None = None,
    ) -> None:
        self.model, self.seed = model, seed
        self.latent = (latent,) if isinstance(latent, str) else tuple(latent)
        if integration not in INTEGRATIONS:
            raise ArgumentError(
                "INLA(integration=...)",
                expected="one of " + ", ".join(map(repr, INTEGRATIONS)),
                got=f"{integration!r:.60}",
                fix="leave it out: a grid for up to four hyperparameters, a design for more",
            )
        self.integration = integration
        self.max_points = count_of("INLA", "max_points", max_points)

    def __repr__(self) -> str:
        what = getattr(self.model, "__name__", type(self.model).__name__)
        return f"INLA({what}, latent={list(self.latent)!r})"

    def run(
        self, *args: object, max_seconds: float | None = None, **kwargs: object
    ) -> INLAResult | INLACompositeResult:
        """Find the peak of the hyperparameters, and integrate over them.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        max_seconds : float, optional
            Give up after this time: half of a grid is no approximation.

        Returns
        -------
        INLAResult, or INLACompositeResult where it went by a design
            Its draws are resampled by importance weights unless told.

        Raises
        ------
        InferenceError
            If no hyperparameters with a mode of the field are found, or their density has no peak;
            or the time was up.
        KeyboardInterrupt
            On Ctrl-C.
        """
        with Interrupt("INLA.run", max_seconds) as interrupt:
            return self._found(target_of("INLA", self.model, args, kwargs), interrupt)

    def _found(self, target: Target, interrupt: Interrupt) -> INLAResult | INLACompositeResult:
        """The result for a target."""
        began = time.perf_counter()

        def look() -> None:
            if interrupt.asked:
                raise interrupt.without("all hyperparameters")

        most = len(SIDES) if self.integration == "grid" else LARGEST
        inner = Fields(target, *parted("INLA", target, self.latent, most))
        inner.look = look
        peak = self._peak(inner)
        axes = self._axes(inner, peak)
        if self.integration == "ccd" or inner.few.size > len(SIDES):
            design = composed(f"INLA of {target.name}", inner, peak, axes)
            inner.look = lambda: None  # draws that come later have all the time
            return INLACompositeResult(
                target, time.perf_counter() - began, True, {"cells": len(design.z)},
                composed=design, fields=inner, many=inner.many, few=inner.few,
            )  # fmt: skip
        side = SIDES[inner.few.size - 1]
        cells, numbers = self._grid(inner, peak, axes * side)
        log_weights = cells.marginal - special.logsumexp(cells.marginal)
        volume = float(np.linalg.slogdet(axes * side)[1])
        evidence = float(special.logsumexp(cells.marginal)) + volume
        return INLAResult(
            target, time.perf_counter() - began, True, {"cells": len(numbers)},
            peak=peak.theta[0], axes=axes * side, numbers=numbers, log_weights=log_weights,
            evidence=evidence, many=inner.many, few=inner.few, cells=cells,
        )  # fmt: skip

    def _peak(self, inner: Fields) -> FieldModes:
        """The hyperparameters of the highest density, with their field."""
        generator, size = generator_of(self.seed), inner.few.size
        start = np.zeros(size)
        for _ in range(STARTS):
            first = inner(start[None])
            if np.isfinite(first.marginal[0]):
                break
            start = 4.0 * uniforms(generator, size) - 2.0
        else:
            raise InferenceError(
                f"INLA of {inner.target.name}",
                expected="a mode of the field given the hyperparameters",
                got=f"none, at {STARTS} tries",
                fix="the field has to be concave given the others; write scales of it non-centred, "
                "or take NUTS",
            )
        inner.last = first.mode[0]

        def falls(theta: np.ndarray) -> tuple[float, np.ndarray]:
            steps = APART * np.eye(size)
            rows = np.concatenate([theta[None], theta + steps, theta - steps])
            found = inner(rows)
            if not np.isfinite(found.marginal).all():
                return math.inf, np.zeros(size)
            ahead, behind = found.marginal[1 : size + 1], found.marginal[size + 1 :]
            return -float(found.marginal[0]), -(ahead - behind) / (2.0 * APART)

        best = optimize.minimize(falls, start, jac=True, method="BFGS", options={"gtol": 1e-4})
        return inner(np.asarray(best.x)[None])

    def _axes(self, inner: Fields, peak: FieldModes) -> np.ndarray:
        """Columns that are one standard deviation of the peak each."""
        size, h = inner.few.size, APART_TWICE
        pairs = [(i, j) for i in range(size) for j in range(i, size)]
        rows = []
        for i, j in pairs:
            a, b = h * np.eye(size)[i], h * np.eye(size)[j]
            rows += [a + b, a - b, b - a, -a - b]
        found = inner(peak.theta + np.array(rows)).marginal.reshape(-1, 4)
        curvature = np.empty((size, size))
        # -1 where there is none: beyond an edge, or at a peak that is no number.
        found = np.where(np.isfinite(found).all(axis=1, keepdims=True), found, [1, -1, -1, 1])
        for (i, j), (both, one, other, none) in zip(pairs, found):
            curvature[i, j] = curvature[j, i] = -(both - one - other + none) / (4.0 * h * h)
        sizes, vectors = np.linalg.eigh(curvature)
        if not (sizes > 0.0).all():
            raise InferenceError(
                f"INLA of {inner.target.name}",
                expected="hyperparameters whose density has a peak",
                got=f"a curvature of {sizes.min():.3g} along one direction at {peak.theta[0]}",
                fix="give the hyperparameters priors that keep them from 0 and from infinity, or "
                "take NUTS",
            )
        return vectors / np.sqrt(sizes)

    def _grid(
        self, inner: Fields, peak: FieldModes, axes: np.ndarray
    ) -> tuple[FieldModes, dict[tuple[int, ...], int]]:
        """All cells around the peak that are not negligible, and their numbers by place."""
        size = inner.few.size
        kept, numbers = [peak], {(0,) * size: 0}
        tried, edge = {(0,) * size}, [(0,) * size]
        top = peak.marginal[0]
        while edge:
            near = itertools.product(edge, range(size), (-1, 1))
            asked = sorted({(*p[:i], p[i] + by, *p[i + 1 :]) for p, i, by in near} - tried)
            if not asked:
                break
            tried.update(asked)
            theta = peak.theta + np.array(asked, np.float64) @ axes.T
            found = inner(theta, np.broadcast_to(peak.mode, (len(asked), inner.many.size)))
            good = np.flatnonzero(found.marginal > top - DEPTH)
            edge = [asked[i] for i in good]
            for place in edge:
                numbers[place] = len(numbers)
            kept.append(found.rows(good))
            if len(numbers) > self.max_points:
                raise InferenceError(
                    f"INLA of {inner.target.name}",
                    expected=f"at most {self.max_points} cells",
                    got="more: the hyperparameters have wide tails",
                    fix="give them narrower priors, or write max_points=20000",
                )
        return FieldModes.together(kept), numbers


@dataclass(frozen=True, eq=False, repr=False)
class INLAResult(Approximation):
    """What `INLA` found.

    Attributes
    ----------
    peak : ndarray, shape (few,)
        Hyperparameters of the highest density, unconstrained.
    axes : ndarray, shape (few, few)
        Sides of a cell, in columns.
    numbers : dict of tuple to int
        Which cell is at a place, counted in sides from the peak.
    log_weights : ndarray, shape (cells,)
        Logs of the cells' shares.
    evidence : float
        The log marginal likelihood by the grid; `log_evidence` corrects it, with an error.
    many, few : ndarray of int
        Coordinates of the field, and of the hyperparameters.
    cells : object
        The field of each.
    """

    peak: np.ndarray = cast("np.ndarray", None)  # which the run gives, all of these
    axes: np.ndarray = cast("np.ndarray", None)
    numbers: Mapping[tuple[int, ...], int] = field(default_factory=dict)
    log_weights: np.ndarray = cast("np.ndarray", None)
    evidence: float = math.nan
    many: np.ndarray = cast("np.ndarray", None)
    few: np.ndarray = cast("np.ndarray", None)
    cells: FieldModes = cast("FieldModes", None)

    title = "the nested Laplace approximation"

    def sample(self, num_draws: int, generator: Generator) -> np.ndarray:
        """Return draws of the approximation; see `Approximation.sample`."""
        chosen = ancestors(np.exp(self.log_weights), num_draws, generator, "multinomial")
        # In random order: they come sorted.
        chosen = chosen[np.argsort(uniforms(generator, num_draws), kind="stable")]
        few, many = self.few.size, self.many.size
        within = uniforms(generator, num_draws * few).reshape(num_draws, few) - 0.5
        z = special.ndtri(uniforms(generator, num_draws * many)).reshape(num_draws, many)
        points = np.empty((num_draws, few + many))
        theta = self.cells.theta[chosen] + within @ self.axes.T
        points[:, self.few] = theta
        points[:, self.many] = self._means(chosen, theta)
        for i in np.unique(chosen):
            rows = np.flatnonzero(chosen == i)
            noise = linalg.solve_triangular(self.cells.root[i], z[rows].T, lower=True, trans="T")
            points[np.ix_(rows, self.many)] += noise.T
        return points

    def log_prob(self, points: np.ndarray) -> np.ndarray:
        """Return log densities; see `Approximation.log_prob`. It is -inf outside of the grid."""
        points = np.asarray(points, np.float64)
        theta = points[:, self.few]
        places = np.rint(np.linalg.solve(self.axes, (theta - self.peak).T).T).astype(np.int64)
        chosen = np.array([self.numbers.get(tuple(p), -1) for p in places.tolist()])
        found = np.full(len(points), -np.inf)
        volume = float(np.linalg.slogdet(self.axes)[1])
        for i in np.unique(chosen[chosen >= 0]):
            rows = np.flatnonzero(chosen == i)
            off = points[np.ix_(rows, self.many)] - self._means(chosen[rows], theta[rows])
            root = self.cells.root[i]
            squares = ((off @ root) ** 2).sum(axis=1)
            normal = np.log(np.diag(root)).sum() - 0.5 * (squares + self.many.size * LOG_2PI)
            found[rows] = self.log_weights[i] - volume + normal
        return found

    def _means(self, chosen: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """The mean of the field at hyperparameters, which are in these cells."""
        cells = self.cells
        moved = theta - cells.theta[chosen]
        means: np.ndarray = cells.mode[chosen] + np.einsum("nij,nj->ni", cells.slope[chosen], moved)
        return means


explain_calls(globals())
