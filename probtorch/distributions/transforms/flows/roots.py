"""Inverses of increasing maps without a closed form: a bracketed root, differentiable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from probtorch.core.dispatch import set_grad_enabled
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp
from probtorch.ops.reduction import any as some
from probtorch.ops.trigonometry import tanh
from probtorch.tensor import Tensor

__all__ = ["bent_root", "increasing_root"]

# Bisection takes about 60 steps to rounding, Newton's method a handful; doublings of the bracket.
MAX_STEPS, MAX_DOUBLINGS = 100, 60

# Root, its bounds, how far it moved last, whether it still moves, and the number of steps; for the
# bracket its width, its ends, whether the root may be outside, and the number of steps; for a bend
# the root, its bounds, whether it still moves, and the number of steps.
State: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Bracket: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def increasing_root(f: Callable[[Tensor], tuple[Tensor, Tensor]], y: Tensor) -> Tensor:
    """Return the x with ``f(x) = y``, elementwise, for increasing maps.

    Parameters
    ----------
    f : callable
        From x to ``(value, log slope)``, both of the shape of `y`.
    y : Tensor

    Returns
    -------
    Tensor
        Beyond what `f` reaches, the far end of the bracket.

    Notes
    -----
    The root is found without gradients, by Newton's method kept inside a shrinking bracket. Two
    more steps of Newton's method, with gradients, then give it the derivatives of the true root, up
    to the third order.
    """
    before = set_grad_enabled(False)
    try:
        x = _root(f, y.detach())
    finally:
        set_grad_enabled(before)
    for _ in range(2):
        value, log_slope = f(x)
        x = x - (value - y) * exp(-log_slope)
    return x


def _root(f: Callable[[Tensor], tuple[Tensor, Tensor]], y: Tensor) -> Tensor:
    none = y.new_zeros(())
    one = none + 1.0
    # The steps that follow square the error twice.
    tolerance = float(np.finfo(y.array.dtype).eps) ** 0.5

    def outside(state: Bracket) -> Tensor:
        return state[3] * (state[4] < MAX_DOUBLINGS) > 0.5

    def widen(state: Bracket) -> Bracket:
        width, low, high, _, count = state
        below, above = f(low)[0] > y, f(high)[0] < y
        low, high = where(below, low - width, low), where(above, high + width, high)
        return width * 2.0, low, high, where(some(below | above), one, none), count + 1.0

    width = absolute(y) + 1.0
    _, low, high, *_ = while_loop(outside, widen, (width, y - width, y + width, one, none))

    def moving(state: State) -> Tensor:
        return state[4] * (state[5] < MAX_STEPS) > 0.5

    def step(state: State) -> State:
        x, low, high, last, _, count = state
        value, log_slope = f(x)
        excess = value - y
        low, high = where(excess > 0.0, low, x), where(excess > 0.0, x, high)
        change = excess * exp(-log_slope)
        newton, middle = x - change, 0.5 * (low + high)
        # Far from the root of a high power each step of Newton's method takes off a small part.
        good = (newton > low) & (newton < high) & (2.0 * absolute(change) < last)
        new = where(good, newton, middle)
        last = absolute(new - x)
        far = some(last > tolerance * (1.0 + absolute(new)))
        return new, low, high, last, where(far, one, none), count + 1.0

    return while_loop(moving, step, (0.5 * (low + high), low, high, high - low, one, none))[0]


def bent_root(s: Tensor, c: Tensor, b: Tensor) -> Tensor:
    """Return the a that solves ``a + c tanh(a + b) = s``, for c > -1; differentiable.

    It is found as that of `increasing_root`, from a bracket that is known.
    """
    a = _bent(*(t.detach() for t in (s, c, b)))
    for _ in range(2):
        bend = tanh(a + b)
        a = a - (a + c * bend - s) / (1.0 + c * (1.0 - bend * bend))
    return a


def _bent(s: Tensor, c: Tensor, b: Tensor) -> Tensor:
    # The three broadcast once, so that the state keeps its shape.
    s = s + (c + b) * 0.0
    reach = absolute(c) + s * 0.0
    tolerance = 4.0 * float(np.finfo(s.array.dtype).eps)
    none = s.new_zeros(())

    def moving(state: Bracket) -> Tensor:
        return state[3] * (state[4] < MAX_STEPS) > 0.5

    def step(state: Bracket) -> Bracket:
        a, low, high, _, count = state
        bend = tanh(a + b)
        excess = a + c * bend - s
        low, high = where(excess > 0.0, low, a), where(excess > 0.0, a, high)
        newton = a - excess / (1.0 + c * (1.0 - bend * bend))
        new = where((newton > low) & (newton < high), newton, 0.5 * (low + high))
        far = some(absolute(new - a) > tolerance * (1.0 + absolute(new)))
        return new, low, high, where(far, none + 1.0, none), count + 1.0

    return while_loop(moving, step, (s, s - reach, s + reach, none + 1.0, none))[0]
