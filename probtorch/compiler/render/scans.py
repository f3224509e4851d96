"""What runs along one dim inside a loop nest: running sums, products, extremes, recurrences.

A scan is a function of the nest, its item and the result's type. It makes its state and returns
the step: from the position and the elements there to the element of the result. The state of single
precision is kept in double precision, as eager execution does: a million rounded sums lose 1 %.
"""

import math

from probtorch.compiler.lang.types import ir_type
from probtorch.core.op import REGISTRY

__all__ = ["SCANS"]


def _wider(ty):
    return "double" if ty == "float" else ty


def _running(combine, start):
    """Return a scan whose state is what it gives: ``state = combine(nest, state, x)``.

    The first element is given as it is: a sum from 0 would lose the sign of -0.
    """

    def scan(nest, item, ty):
        state = nest.variable(_wider(ty), start)

        def step(k, x):
            x = nest.convert(x, _wider(ty))
            state.value = new = nest.where(k <= 0, x, combine(nest, state.value, x))
            return nest.convert(new, ty)

        return step

    return scan


def _recurrence(nest, item, ty):
    """Scan of a y + b, from b; the first factor is not looked at."""
    state = nest.variable(_wider(ty), 0)

    def step(k, a, b):
        a, b = nest.convert(a, _wider(ty)), nest.convert(b, _wider(ty))
        state.value = new = nest.where(k <= 0, b, a * state.value + b)
        return nest.convert(new, ty)

    return step


def _running_extreme(kind):
    """Index of the largest or smallest so far: the last of equal ones, nan before all others."""

    def scan(nest, item, ty):
        of = ir_type(item.operands[0].buffer.dtype)
        best, place = nest.variable(of, nest.start_of(kind, of)), nest.variable("i64", 0)

        def step(k, x):
            old = best.value
            reached = x >= old if kind == "amax" else x <= old
            taken = nest.logical_or(reached, nest.isnan(x))
            best.value = nest.where(taken, x, old)
            place.value = new = nest.where(taken, k, place.value)
            return new

        return step

    return scan


def _logaddexp(s, total, x):
    formula = REGISTRY["logaddexp"].formula
    assert formula is not None
    return formula(s, total, x)


SCANS = {
    "cumsum": _running(lambda s, total, x: s.binary("add", total, x, ""), 0),
    "cumprod": _running(lambda s, total, x: s.binary("mul", total, x, ""), 1),
    "logcumsumexp": _running(_logaddexp, -math.inf),
    "linear_recurrence": _recurrence,
    "cummax_index": _running_extreme("amax"),
    "cummin_index": _running_extreme("amin"),
}
