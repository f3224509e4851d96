"""Logarithms of probabilities that floats cannot hold, from the density alone.

A cdf formula of a tail beyond 1e-308 gives 0. There the logarithm of the tail is that of an
integral of the density, or of a sum of masses, from the value outwards: what falls off is found
first, and the rule of integration is laid over it. Slopes are those of the integral.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import finfo, float64
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_constant
from probtorch.core.tree import map_tree
from probtorch.distributions.constraints.base import infinite_somewhere
from probtorch.distributions.ends import log_of_level
from probtorch.distributions.quantiles import bounds
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import maximum, where
from probtorch.ops.comparisons import isfinite, isinf
from probtorch.ops.control import cond
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, log, logaddexp
from probtorch.ops.extremes import amax
from probtorch.ops.movement import expand, reshape
from probtorch.ops.reduction import any as some
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution

__all__ = ["log_of_tail"]

# The rule for integrals of what falls off as exp(-r): r = exp(t - exp(-t)), at equal steps of t
# (Takahasi and Mori 1974). The sum is exact to 1e-14 for such, and to 1e-12 for exp(-r / 4).
STEP = 0.125
POINTS = np.arange(-3.5, 4.25, STEP)
NODES = np.exp(POINTS - np.exp(-POINTS))
LOG_WEIGHTS = np.log(NODES * (1.0 + np.exp(-POINTS)) * STEP)
# Where the density is looked for to have fallen by a factor of e.
TRIED = 2.0 ** np.arange(-56, 12, 2)
# So many masses are summed one by one; what is beyond is an integral.
MASSES = 128


def log_of_tail(d: Distribution, p: Tensor, x: Tensor, above: bool) -> Tensor:
    """Return log(p) of a probability beyond `x`, from the density where p underflows.

    Parameters
    ----------
    d : Distribution
        Of single numbers.
    p : Tensor
        The probability of more than `x` (`above`), or of at most `x`.
    x : Tensor
        In the support.
    above : bool
    """
    lost = _lost(p)
    if is_constant(lost):
        return _with_tail(d, p, x, above) if lost.array.any() else log_of_level(p)
    shape = _shape(d, p, x)
    return cond(
        some(lost),
        lambda d, p, x: _with_tail(d, p, x, above),
        lambda d, p, x: log_of_level(expand(p, shape)),
        d,
        p,
        x,
    )


def _lost(p: Tensor) -> Tensor:
    """Where a probability has fewer digits than its dtype."""
    info = finfo(p.array.dtype)
    return p < float(info.tiny) / float(info.eps)


def _shape(d: Distribution, p: Tensor, x: Tensor) -> tuple[int, ...]:
    return broadcast_shapes(p.array.shape, x.array.shape, tuple(d._batch_shape), op="log_cdf")


def _with_tail(d: Distribution, p: Tensor, x: Tensor, above: bool) -> Tensor:
    shape, lost = _shape(d, p, x), _lost(p)
    wide = d if d._dtype is float64 else map_tree(_wide, d)
    # Elsewhere a tail may have no end that floats reach: nothing of it is used.
    at = where(lost, expand(cast(x, float64), shape), wide.support.interior(x))
    # Densities this far out overflow on the way to 0.
    with np.errstate(all="ignore"):
        tail = _log_sum(wide, at, above) if d.is_discrete else _log_integral(wide, at, above)
    return where(lost, cast(tail, p.array.dtype), log(where(lost, 1.0, p)))


def _wide(leaf: object) -> object:
    if isinstance(leaf, TensorBase) and leaf.array.dtype.kind in "fiu":
        return cast(leaf, float64)
    return leaf


def _log_integral(d: Distribution, x: Tensor, above: bool) -> Tensor:
    """Log of the integral of the density from `x` outwards."""
    low, high = bounds(d.support)
    start, end, sign = (low, high, 1.0) if above else (high, low, -1.0)
    loc = getattr(d, "loc", 0.0)
    # A row may have an end or none.
    middle = loc if start is None else _unless_infinite(start, loc)
    endless = x == x if end is None else isinf(x * 0.0 + end)
    # To an end exp(-r) of the way is left. From an end, or from the middle, a way of r = 0 grows as
    # exp(r): so tails that are powers fall off as exp(-r), too.
    outwards = where(endless, 1.0, -1.0)
    way = absolute(x - (middle if end is None else _unless_infinite(end, middle)))
    way = where(way > 0.0, way, 1.0)
    reach = way * (sign * outwards)
    origin = x - reach
    # No y is farther out than floats are.
    farthest = where(endless, 709.0 - maximum(log(way), 0.0).detach(), math.inf)

    def log_integrand(r: Tensor) -> Tensor:
        near = r < farthest
        y = origin + reach * exp(where(near, outwards * r, 0.0))
        known = near & (sign * (y - x) >= 0.0)
        known = known if end is None else known & (sign * (end - y) > 0.0)
        height = d.log_prob_inside(where(known, y, x)) + outwards * r
        return where(known & (height < math.inf), height, -math.inf)

    fixed, lead = x.detach() * 0.0, (-1,) + (1,) * x.array.ndim
    tried, nodes, weights = (reshape(x.new_tensor(v), lead) for v in (TRIED, NODES, LOG_WEIGHTS))
    fallen = log_integrand(tried + fixed).detach() < log_integrand(fixed).detach() - 1.0
    scale = amax(where(fallen, float(TRIED[0]), tried * 4.0), 0)
    found = _log_total(log_integrand(nodes * scale) + weights) + log(way) + log(scale)
    # Nothing is beyond an end, and nothing is known where even differences overflow.
    beyond = way < math.inf if end is None else where(endless, way < math.inf, x != end)
    return where(beyond, found, -math.inf)


def _unless_infinite(end: float | Tensor, other: float | Tensor) -> float | Tensor:
    """Return an end of a support, another number where it is infinite."""
    return where(isinf(end), other, end) if infinite_somewhere(end) else end


def _log_total(terms: Tensor) -> Tensor:
    """Log of the sum of exponentials along the first dim, -inf without a slope where all are 0."""
    nothing = amax(terms.detach(), 0) == -math.inf
    return where(nothing, -math.inf, logsumexp(where(nothing, 0.0, terms), 0))


def _log_sum(d: Distribution, x: Tensor, above: bool) -> Tensor:
    """Log of the sum of the masses beyond `x`, of which "at most x" includes that of x."""
    low, high = bounds(d.support)
    sign, end = (1.0, high) if above else (-1.0, low)
    first = x.floor() + 1.0 if above else x.floor()

    def log_mass(k: Tensor) -> Tensor:
        known = isfinite(k) if end is None else isfinite(k) & (sign * (end - k) >= 0.0)
        return where(known, d.log_prob_inside(where(known, k, x)), -math.inf)

    steps = reshape(x.new_tensor(np.arange(MASSES) * sign), (-1,) + (1,) * x.array.ndim)
    near = _log_total(log_mass(first + steps))
    # Then the formula of Euler and Maclaurin: an integral, half of the next mass, and a twelfth of
    # its slope. Where more than 1e-13 of all is left after so many masses, they fall off slowly,
    # and the next term is below 1e-6 of what is left.
    after = first + sign * MASSES
    rest, ahead = log_mass(after), log_mass(after + sign)
    going = (ahead > -math.inf) & (rest > near - 30.0)
    after = where(going, after, x)
    rest, ahead = where(going, rest, 0.0), where(going, ahead, 0.0)
    integral = where(going, _log_integral(d, after, above), 0.0)
    beyond = logaddexp(integral, rest + log(0.5 + (rest - ahead) / 12.0))
    return where(going, logaddexp(near, where(going, beyond, 0.0)), near)
