"""Quantiles by search, for distributions whose cdf has no inverse in closed form.

A root is bracketed by doubling and then found by Newton's method, with a bisection wherever a step
would leave the bracket; a count is found by bisection alone. The search runs without a tape, as one
loop in compiled code too. Derivatives come from the implicit function: at a fixed probability
dx = (dp - dF) / density, in the parameters as well. The derivative can be taken once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from probtorch.core.casting import cast
from probtorch.core.dispatch import set_grad_enabled
from probtorch.core.dtype import float64, promote_types
from probtorch.core.shape import broadcast_shapes
from probtorch.distributions.constraints import Boolean, Circular, Constraint
from probtorch.distributions.constraints.base import infinite_somewhere
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, where
from probtorch.ops.comparisons import isinf
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp, log, sigmoid
from probtorch.ops.movement import expand
from probtorch.ops.numeric import nextafter
from probtorch.ops.reduction import any as some
from probtorch.ops.trigonometry import cosh, sinh
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution

__all__ = ["bounds", "quantile"]

# Beyond it exp overflows; below its negative it is 0.
FARTHEST = 700.0
# Doublings reach it from 1; Newton with bisection needs ten steps, and a bisection alone all.
STEPS = 120
# A point, the bracket around it, how far it moved last, and the number of steps.
Bracket: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def quantile(d: Distribution, p: Tensor) -> Tensor:
    """Return the least x with ``d.cdf(x) >= p``, for a distribution of single numbers.

    Parameters
    ----------
    d : Distribution
        With a cdf, and a density if it is continuous.
    p : Tensor
        Probabilities; outside [0, 1] the result is nan.
    """
    shape = broadcast_shapes(p.array.shape, tuple(d._batch_shape), op="icdf")
    before = set_grad_enabled(False)
    try:
        # In double precision: a cdf of numbers is in double precision too.
        fixed = cast(expand(p.detach(), shape), float64)
        search = _whole if d.is_discrete else _real
        x = search(d, clamp(fixed, 0.0, 1.0)).detach()
        x = where((fixed >= 0.0) & (fixed <= 1.0), x, math.nan)
        out = p.array.dtype if d._dtype is None else promote_types(p.array.dtype, d._dtype)
        if d.is_discrete:
            return cast(x, out)
        inside = (fixed > 0.0) & (fixed < 1.0) & ~isinf(x)
        at = where(inside, x, d.support.interior(x))
        density = exp(d.log_prob_inside(at))
        steep = inside & (density > 1e-300)
        slope = where(steep, 1.0 / where(steep, density, 1.0), 0.0)
    finally:
        set_grad_enabled(before)
    f = d.cdf(at)
    # At the end of the floats, where densities and cdfs may be no numbers, nothing moves.
    moved = (p - p.detach()) - where(steep, f - f.detach(), 0.0)
    return cast(x + slope * moved, out)


def bounds(support: Constraint) -> tuple[float | Tensor | None, float | Tensor | None]:
    """Return both ends of a support; None for an end that is infinite everywhere."""
    if isinstance(support, Boolean):
        return 0.0, 1.0
    if isinstance(support, Circular):
        return -math.pi, math.pi
    return getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)


def _real(d: Distribution, p: Tensor) -> Tensor:
    low, high = bounds(d.support)
    centre, unit = _place(d)
    rows_differ = infinite_somewhere(low, high)

    def at(t: Tensor) -> tuple[Tensor, Tensor]:
        """Return the point of the support that t stands for, and its slope in t."""
        return between(t, low, high) if not rows_differ else at_rows(t)

    def at_rows(t: Tensor) -> tuple[Tensor, Tensor]:
        """The same where some rows have a bound and others have not."""
        left = t * 0.0 + (-math.inf if low is None else low)
        right = t * 0.0 + (math.inf if high is None else high)
        begins, ends = left > -math.inf, right < math.inf
        a = where(begins, left, where(ends, right - 1.0, 0.0))
        b = where(ends, right, a + 1.0)
        found = between(t, None, None)
        for here, (x, slope) in (
            (begins & ~ends, between(t, a, None)),
            (ends & ~begins, between(t, None, b)),
            (begins & ends, between(t, a, b)),
        ):
            found = where(here, x, found[0]), where(here, slope, found[1])
        return found

    def between(
        t: Tensor, low: float | Tensor | None, high: float | Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if low is None:
            if high is None:
                return centre + unit * sinh(t), unit * cosh(t)
            return high - unit * exp(-t), unit * exp(-t)
        if high is None:
            return low + unit * exp(t), unit * exp(t)
        s = sigmoid(t)
        # From the nearer end, so that neither is lost in rounding.
        x = where(t < 0.0, low + (high - low) * s, high - (high - low) * sigmoid(-t))
        return x, (high - low) * s * sigmoid(-t)

    def wider(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, b = state
        a = where(d.cdf(at(a)[0]) > p, maximum(a * 2.0, -FARTHEST), a)
        return a, where(d.cdf(at(b)[0]) < p, clamp(b * 2.0, 0.0, FARTHEST), b)

    def open_(state: tuple[Tensor, Tensor]) -> Tensor:
        a, b = state
        above = (d.cdf(at(a)[0]) > p) & (a > -FARTHEST)
        return some(above | ((d.cdf(at(b)[0]) < p) & (b < FARTHEST)))

    one = p * 0.0 + 1.0
    a, b = while_loop(open_, wider, (-one, one))
    # Nearer to an end than any number, or farther than all.
    nothing = (p <= 0.0) | (d.cdf(at(a)[0]) > p)
    beyond = (p >= 1.0) | (d.cdf(at(b)[0]) < p)

    def closer(state: Bracket) -> Bracket:
        t, a, b, last, n = state
        x, stretch = at(t)
        f = d.cdf(x)
        gap = f - p
        a, b = where(gap < 0.0, t, a), where(gap < 0.0, b, t)
        slope = exp(d.log_prob_inside(x)) * stretch
        # On log F, which in a tail is nearly straight.
        known = (slope > 0.0) & (f > 0.0) & (p > 0.0)
        step = t - where(known, f, 0.0) / where(known, slope, 1.0) * log(where(known, f / p, 1.0))
        new = where(known & (step > a) & (step < b), step, (a + b) * 0.5)
        # A cdf has roundings of its own: closer than those there is nothing to find, and steps of
        # Newton's method get no shorter.
        move = absolute(new - t)
        found = (absolute(gap) <= 4e-16 * p) | ((last < 1e-11) & (move > 0.9 * last))
        return where(found, t, new), a, b, where(found, 0.0, move), n + 1.0

    def apart(state: Bracket) -> Tensor:
        t, _, _, move, n = state
        return some(move > 4e-15 * maximum(absolute(t), 1.0)) & (n < STEPS)

    middle = (a + b) * 0.5
    count = some(p).to(dtype=p.array.dtype) * 0.0
    t, *_ = while_loop(apart, closer, (middle, a, b, one, count))
    x = at(t)[0]
    if high is not None:
        # Next to an end one float may have much of the mass, and no t stands for the one behind it.
        after = nextafter(x, x * 0.0 + math.inf)
        x = where((d.cdf(x) < p - 1e-9) & (after <= high), after, x)
    x = where(beyond, math.inf if high is None else high, x)
    return where(nothing, -math.inf if low is None else low, x)


def _place(d: Distribution) -> tuple[Tensor | float, Tensor | float]:
    """Return where a distribution is and how wide, as its parameters say; 0 and 1 if they do not.

    A search in these units finds quantiles of any scale, and takes as many steps for all.
    """
    loc, scale, rate = (getattr(d, name, None) for name in ("loc", "scale", "rate"))
    middle = loc.detach() if isinstance(loc, Tensor) else 0.0
    if isinstance(scale, Tensor):
        return middle, scale.detach()
    return middle, 1.0 / rate.detach() if isinstance(rate, Tensor) else 1.0


def _whole(d: Distribution, p: Tensor) -> Tensor:
    low, high = bounds(d.support)
    zero = p * 0.0
    # Always cdf(a) < p <= cdf(b).
    left = zero + (-math.inf if low is None else low)
    endless = isinf(left)
    a = where(endless, 0.0, left) - 1.0
    if low is None or infinite_somewhere(low):
        a = while_loop(
            lambda a: some(endless & (d.cdf(a) >= p) & (p > 0.0)),
            lambda a: where(endless & (d.cdf(a) >= p) & (p > 0.0), a * 2.0, a),
            a,
        )
    top = math.inf if high is None else high
    ends = (p >= 1.0) & (zero + top == math.inf)

    def wider(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, b = state
        short = (d.cdf(b) < p) & ~ends
        return where(short, b, a), where(short, _least(b + (b - a) * 2.0, top), b)

    def short(state: tuple[Tensor, Tensor]) -> Tensor:
        b = state[1]
        return some((d.cdf(b) < p) & ~ends & (b < top) & (b < 1e300))

    def halves(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, b = state
        middle = ((a + b) * 0.5).floor()
        below = d.cdf(middle) < p
        # Where the two are neighbours there is nothing left between them.
        apart = (middle > a) & (middle < b)
        return where(apart & below, middle, a), where(apart & ~below, middle, b)

    def apart(state: tuple[Tensor, Tensor]) -> Tensor:
        a, b = state
        middle = ((a + b) * 0.5).floor()
        return some((middle > a) & (middle < b))

    a, b = while_loop(short, wider, (a, a + 1.0))
    b = while_loop(apart, halves, (a, b))[1]
    return where(ends, math.inf, b)


def _least(x: Tensor, top: float | Tensor) -> Tensor:
    return where(x < top, x, top)
