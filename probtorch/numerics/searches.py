"""Searches for the root of a system: damped Newton steps, or Powell's dogleg in a trust region.

Both are one loop. Each turn takes the slopes J where it stands, tries a step, and takes it if the
residuals became smaller; if not, the next one is shorter. What differs is the form of a short
step: a part of Newton's ``-J^-1 r``, or a path that begins along the steepest descent. Rows of a
batch search for themselves, until the last one is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from probtorch.autograd.closures import cut_off, stand_in
from probtorch.autograd.modes import enable_grad
from probtorch.numerics.implicit import Equations, inverse_of, jacobian
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import maximum, minimum, sqrt, where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.control import while_loop
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import any as some
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["METHODS", "JacobianSearch"]

# A step counts if it takes off this part of what the slopes promise (Armijo's rule).
LEAST_GAIN = 1e-4
# Residuals of so many roundings of what they were at the start may not become smaller.
ROUNDINGS = 64.0

# Position, residuals, slopes, length of steps, which rows are under way, which have arrived, and
# the number of turns.
State: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class TriedStep:
    """A step that a method tries.

    Attributes
    ----------
    change : Tensor, shape (..., n)
    promised : Tensor, shape (...)
        The sum of squares after it, if residuals were linear.
    taken : Tensor, shape (...)
        Its length, in the method's own measure.
    whole : Tensor of bool, shape (...)
        Whether it is Newton's whole step.
    """

    change: Tensor
    promised: Tensor
    taken: Tensor
    whole: Tensor


@dataclass(frozen=True)
class SearchMethod:
    """How to make a step, and how long the next one may be.

    Attributes
    ----------
    first : callable
        From position and slopes to the first length.
    step : callable
        From residuals, slopes and length to a `TriedStep`.
    next : callable
        From the length, the `TriedStep`, whether it was taken, and its gain as a part of what was
        promised, to the next length.
    """

    first: Callable[[Tensor, Tensor], Tensor]
    step: Callable[[Tensor, Tensor, Tensor], TriedStep]
    next: Callable[[Tensor, TriedStep, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class JacobianSearch:
    """A search with the slopes of all residuals in all unknowns.

    Attributes
    ----------
    start : Tensor, shape (..., n)
    method : SearchMethod
    rtol, atol : float
        A row has arrived when Newton's step is at most ``atol + rtol * abs(x)`` in each of its
        numbers; that step is still made, which squares the error.
    max_steps : int
    """

    start: Tensor
    method: SearchMethod
    rtol: float
    atol: float
    max_steps: int

    def __call__(self, equations: Equations) -> tuple[Tensor, Tensor]:
        """Return where it ended, and which rows have arrived."""
        start, method = self.start.detach(), self.method
        eps = float(np.finfo(start.array.dtype).eps)

        def look(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            with enable_grad(), cut_off(equations.closed_over):
                x = stand_in(x)
                residual = equations.f(x)
                slopes = jacobian(residual, x, single=False).detach()
            residual = residual.detach()
            finite = every(isfinite(residual), -1) & every(every(isfinite(slopes), -1), -1)
            return residual, slopes, finite

        def under_way(state: State) -> Tensor:
            return some(state[4]) & (state[6] < self.max_steps)

        def turn(state: State) -> State:
            x, r, slopes, length, going, arrived, count = state
            step = method.step(r, slopes, length)
            size, at = absolute(step.change), absolute(x)
            near = step.whole & every(size <= self.atol + self.rtol * at, -1)
            new = x + step.change
            r_new, slopes_new, finite = look(new)
            gain, promised = _squares(r) - _squares(r_new), _squares(r) - step.promised
            better = finite & (gain >= LEAST_GAIN * promised) & (gain > 0.0)
            # Where rounding is all there is left, no step makes residuals smaller.
            spent = ~better & (_squares(r) <= (ROUNDINGS * eps) ** 2 * at_start)
            lost = ~better & every(size <= eps * at, -1)
            taken = going & better
            quality = where(finite, gain, 0.0) / where(promised > 0.0, promised, 1.0)
            wide = unsqueeze(taken, -1)
            return (
                where(wide, new, x),
                where(wide, r_new, r),
                where(unsqueeze(wide, -1), slopes_new, slopes),
                where(going, method.next(length, step, better, quality), length),
                going & ~(near | spent | lost),
                arrived | (going & (near | spent)),
                count + 1,
            )

        r, slopes, finite = look(start)
        at_start = _squares(r)
        # A row without a number at the start does not begin.
        arrived = finite & (at_start == 0.0)
        count = start.new_zeros(()).to(np.dtype("int64"))
        state = (start, r, slopes, method.first(start, slopes), finite & ~arrived, arrived, count)
        x, *_, arrived, _ = while_loop(under_way, turn, state)
        return x, arrived


def _squares(r: Tensor) -> Tensor:
    return total(r * r, -1)


def _length(x: Tensor) -> Tensor:
    return sqrt(_squares(x))


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ unsqueeze(vector, -1))[..., 0]


def _nonzero(x: Tensor) -> Tensor:
    """`x`, and 1 where it is 0: what may be divided by."""
    return where(x != 0.0, x, 1.0)


def _newton(r: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's step, and whether there is one: the steepest descent takes its place."""
    step = -_product(inverse_of(slopes), r)
    known = every(isfinite(step), -1)
    return where(unsqueeze(known, -1), step, _descent(r, slopes)), known


def _descent(r: Tensor, slopes: Tensor) -> Tensor:
    """The steepest descent of the sum of squares, as far as the slopes see it fall."""
    uphill = (unsqueeze(r, -2) @ slopes)[..., 0, :]
    reach = _squares(uphill) / _nonzero(_squares(_product(slopes, uphill)))
    return -uphill * unsqueeze(reach, -1)


# ----------------------------------------------------------------------------------- Newton, damped


def _first_part(x: Tensor, slopes: Tensor) -> Tensor:
    return x.new_ones(x.array.shape[:-1])


def _part_of_newton(r: Tensor, slopes: Tensor, part: Tensor) -> TriedStep:
    step, known = _newton(r, slopes)
    step = step * unsqueeze(part, -1)
    return TriedStep(step, _squares(r + _product(slopes, step)), part, known & (part >= 1.0))


def _next_part(part: Tensor, step: TriedStep, better: Tensor, quality: Tensor) -> Tensor:
    return where(better, minimum(part * 4.0, 1.0), part * 0.25)


# --------------------------------------------------------------------------------- Powell's dogleg


def _units(slopes: Tensor) -> Tensor:
    """MINPACK's measure of lengths, in which units of x do not matter: norms of columns."""
    return _nonzero(sqrt(total(slopes * slopes, -2)))


def _first_radius(x: Tensor, slopes: Tensor) -> Tensor:
    """MINPACK's: a hundred times the length of x, or 100."""
    return _nonzero(_length(x * _units(slopes))) * 100.0


def _dogleg(r: Tensor, slopes: Tensor, radius: Tensor) -> TriedStep:
    """Newton's step where it is within the radius; else as far towards it as that allows.

    The path goes along the steepest descent to the least that the slopes see there, and from there
    to the end of Newton's step (Powell 1970).
    """
    units = _units(slopes)
    slopes = slopes / unsqueeze(units, -2)
    newton, known = _newton(r, slopes)
    descent = _descent(r, slopes)
    newton_length, descent_length = _length(newton), _length(descent)
    first = descent * unsqueeze(minimum(radius / _nonzero(descent_length), 1.0), -1)
    # How far along the second leg: |descent + part * leg| = radius.
    leg = newton - descent
    a, b = _squares(leg), total(descent * leg, -1)
    c = maximum(radius * radius - _squares(descent), 0.0)
    part = minimum(c / _nonzero(b + sqrt(b * b + a * c)), 1.0)
    second = descent + leg * unsqueeze(part, -1)
    path = where(unsqueeze(descent_length >= radius, -1), first, second)
    inside = newton_length <= radius
    step = where(unsqueeze(inside, -1), newton, path)
    promised = _squares(r + _product(slopes, step))
    return TriedStep(step / units, promised, minimum(newton_length, radius), inside & known)


def _next_radius(radius: Tensor, step: TriedStep, better: Tensor, quality: Tensor) -> Tensor:
    longer = where(quality > 0.75, maximum(radius, 2.0 * step.taken), radius)
    return where(better & (quality > 0.25), longer, 0.5 * step.taken)


METHODS = {
    "newton": SearchMethod(_first_part, _part_of_newton, _next_part),
    "powell": SearchMethod(_first_radius, _dogleg, _next_radius),
}
