"""Integrals and sums of the density of numbers, for `check`: its total, its cdf, its moments.

A support is mapped to the line by `biject_to`, and the line to one more on which every tail is
double-exponential: there the trapezoidal rule converges faster than any power of the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.tensor import Tensor, tensor
from probtorch.testing.compare import to_array

__all__ = ["Masses", "counted", "integrated", "log_density"]

POINTS, REACH = 6001, 30.0
# Share of the total at an end of the range from which on more may lie beyond it.
LOST = 1e-6
# Values of a count that are summed over at most, per batch element.
MOST = 200_000


@dataclass(frozen=True)
class Masses:
    """Probabilities of points or cells, sorted, for each batch element.

    Attributes
    ----------
    x : ndarray, shape (points, batch)
    mass : ndarray, shape (points, batch)
    whole : ndarray of bool, shape (batch,)
        Whether nothing that counts lies beyond the points.
    open_ends : (bool, bool)
        Whether there may be something below the first, above the last.
    """

    x: np.ndarray
    mass: np.ndarray
    whole: np.ndarray
    open_ends: tuple[bool, bool] = (True, True)

    @property
    def total(self) -> np.ndarray:
        """Sum of the masses."""
        return self.mass.sum(0)

    @property
    def error(self) -> float:
        """What the total changes by without every other point: of integrals, not of sums."""
        if self.open_ends == (False, False) or not self.total.size:
            return 0.0
        return float(np.abs(2.0 * self.mass[::2].sum(0) - self.total).max())

    def moment(self, power: int, center: np.ndarray | float = 0.0) -> np.ndarray:
        """Return E (x - center) ** power, nan where the ends of the range have a share in it."""
        with np.errstate(over="ignore", invalid="ignore"):
            terms = np.where(self.mass > 0.0, self.mass * (self.x - center) ** power, 0.0)
            low, high = self.open_ends
            ends = np.abs(np.concatenate([terms[: 3 * low], terms[len(terms) - 3 * high :]]))
            lost = ends.max(0, initial=0.0) > LOST * np.abs(terms).sum(0)
            return np.where(lost, math.nan, terms.sum(0))

    def tails(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities below and above draws, shape (draws, batch), of a continuous
        distribution.
        """
        below, above = np.empty(x.shape), np.empty(x.shape)
        half = 0.5 * self.mass
        up = np.cumsum(self.mass, 0) - half
        down = np.cumsum(self.mass[::-1], 0)[::-1] - half
        for i in range(x.shape[1]):
            below[:, i] = np.interp(x[:, i], self.x[:, i], up[:, i])
            above[:, i] = np.interp(x[:, i], self.x[:, i], down[:, i])
        return below, above

    def steps(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return P(X < x) and P(X = x) at draws of a discrete distribution."""
        before, at = np.empty(x.shape), np.empty(x.shape)
        for i in range(x.shape[1]):
            values, mass = self.x[:, i], self.mass[:, i]
            up = np.concatenate([[0.0], np.cumsum(mass)])
            k = np.minimum(np.searchsorted(values, x[:, i]), len(values) - 1)
            before[:, i] = up[k]
            at[:, i] = np.where(values[k] == x[:, i], mass[k], 0.0)
        return before, at


def log_density(d: Distribution, x: np.ndarray) -> np.ndarray:
    """Log density at arrays of shape (points, *batch, *event); -inf outside the support."""
    value = _as_draws(d, x)
    support = d.support
    inside = to_array(support.check(value))
    event = (1,) * support.event_dim
    safe = to_array(support.interior(value))
    kept = np.where(inside.reshape(inside.shape + event), x, safe)
    with np.errstate(all="ignore"):
        out = to_array(d.log_prob_inside(_as_draws(d, kept))).astype(float)
    return np.where(inside, out, -math.inf)


def _as_draws(d: Distribution, x: np.ndarray) -> Tensor:
    return tensor(np.asarray(x, np.float64 if d._dtype is None else d._dtype))


def integrated(d: Distribution, draws: np.ndarray) -> Masses:
    """Integrate the density of a continuous distribution of numbers.

    Parameters
    ----------
    d : Distribution
    draws : ndarray, shape (draws, batch)
        Which say where to look.
    """
    batch = tuple(d._batch_shape)
    wide = lambda x: x.reshape(len(x), *batch)
    flat = lambda x: np.broadcast_to(to_array(x), (len(x), *batch)).reshape(len(x), -1)
    if d.support is constraints.circular:
        angle = np.linspace(-math.pi, math.pi, POINTS)[:, None] + np.zeros((1, draws.shape[1]))
        mass = np.exp(log_density(d, wide(angle)).reshape(angle.shape)) * (angle[1] - angle[0])
        # One angle twice, at both ends.
        mass[[0, -1]] *= 0.5
        return Masses(angle, mass, np.full(draws.shape[1], True), (False, False))
    transform = biject_to(d.support)
    with np.errstate(all="ignore"):
        z = flat(transform.inv(tensor(wide(draws.astype(float)))))
    z = np.where(np.isfinite(z), z, np.nanmedian(np.where(np.isfinite(z), z, math.nan), 0))
    low, center, high = np.quantile(z, [0.25, 0.5, 0.75], axis=0)
    spread = np.where(high > low, high - low, 1.0)
    s = np.linspace(-REACH, REACH, POINTS)[:, None]
    at = tensor(wide(center + spread * np.sinh(s)))
    with np.errstate(all="ignore"):
        x, slope = (flat(v) for v in transform.call_and_ladj(at))
        logs = log_density(d, wide(x)).reshape(x.shape)
        mass = np.exp(logs + slope) * spread * np.cosh(s) * (s[1] - s[0])
    known = np.isfinite(x) & np.isfinite(mass)
    mass = np.where(known, mass, 0.0)
    # The outermost points that are numbers; what lies beyond them must not count.
    ends = [_first(mass, known & (mass > 0.0)), _first(mass[::-1], (known & (mass > 0.0))[::-1])]
    whole = np.maximum(*ends) < LOST * np.maximum(mass.sum(0), 1e-300)
    x = np.nan_to_num(x, nan=1e300, posinf=1e300, neginf=-1e300)
    order = np.argsort(x, axis=0, kind="stable")
    return Masses(np.take_along_axis(x, order, 0), np.take_along_axis(mass, order, 0), whole)


def _first(mass: np.ndarray, known: np.ndarray) -> np.ndarray:
    return np.take_along_axis(mass, known.argmax(0)[None], 0)[0]


def counted(d: Distribution, draws: np.ndarray) -> Masses:
    """Return the masses of a discrete distribution of numbers at all it can take, or at as many
    whole numbers as there may be draws.
    """
    batch = tuple(d._batch_shape)
    if d.has_enumerate_support:
        x = np.sort(to_array(d.enumerate_support()).reshape(-1, draws.shape[1]).astype(float), 0)
        closed, ends = True, (False, False)
    else:
        low, high = (
            np.broadcast_to(to_array(getattr(d.support, name, end)), batch).reshape(-1)
            for name, end in (("lower_bound", -math.inf), ("upper_bound", math.inf))
        )
        least, top = draws.min(0), draws.max(0)
        span = 4.0 * (top - least) + 50.0
        first = np.where(np.isfinite(low), low, least - span)
        last = np.where(np.isfinite(high), np.minimum(high, top + span), top + span)
        size = int(min((last - first).max() + 1.0, MOST))
        x = first + np.arange(float(size))[:, None]
        closed = bool((last == high).all() and (last - first < size).all())
        ends = (not np.isfinite(low).all(), not closed)
    with np.errstate(all="ignore"):
        mass = np.exp(log_density(d, x.reshape(len(x), *batch)).reshape(x.shape))
    # What is left shrinks like the last masses, times their number for a heavy tail.
    whole = np.full(draws.shape[1], closed) | (mass[-1] * len(x) < LOST)
    return Masses(x, mass, whole, ends)
