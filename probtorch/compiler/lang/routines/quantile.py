"""The normal quantile for the vector runtime; `ops/exact.py` has its tables.

Draws have another, `normal_of_uniform`, whose bits are those of arrays.

Algorithm AS 241 (Wichura 1988, Applied Statistics 37, 477-484), double precision: one of three
rational functions of degree 7, by the distance from the median. Here all lanes of a vector evaluate
the same one, with coefficients chosen lane by lane. Largest error met among 20 000 arguments in the
middle and both tails, against 100 digits: 4.6 ulp (SciPy's ndtri: 3.7).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.elementary import log, polynomial, split
from probtorch.compiler.lang.routines.formats import F64, Format
from probtorch.ops.exact import (
    FAR,
    FAR_SHIFT,
    MIDDLE,
    NEAR,
    NEAR_SHIFT,
    is_far,
    quantile_in_the_middle,
    quantile_in_the_tails,
)

if TYPE_CHECKING:
    from probtorch.compiler.lang.builder import Builder

__all__ = ["normal_of_uniform", "normal_quantile"]


def normal_quantile(w: Builder, f: Format, p: Value) -> Value:
    """Write the formula."""
    q = p - 0.5
    inside = 0.425 - abs(q)
    middle = inside >= 0.0
    far_side = w.where(p > 0.5, 1.0 - p, p)
    r = w.sqrt(-log(w, f, far_side))
    near = (r - FAR_SHIFT) < 0.0
    shift = w.where(near, NEAR_SHIFT, FAR_SHIFT)
    t = w.where(middle, w.fma(q, -q, 0.180625), r - shift)
    above, below = (
        polynomial(
            w,
            t,
            [
                w.where(middle, c, w.where(near, c_near, c_far))
                for c, c_near, c_far in zip(MIDDLE[i], NEAR[i], FAR[i], strict=True)
            ],
        )
        for i in range(2)
    )
    value = above / below
    result = w.where(middle, value * q, w.copysign(value, q))
    # The ends, and what is no probability.
    result = w.where(p == 0.0, -math.inf, w.where(p == 1.0, math.inf, result))
    result = w.where(p < 0.0, math.nan, result)
    return w.where(p > 1.0, math.nan, result)


class _Exact:
    """The algebra of ops/exact.py on a builder."""

    def __init__(self, w: Builder) -> None:
        self.w = w

    def __getattr__(self, name: str) -> Callable[..., Value]:
        found: Callable[..., Value] = getattr(self.w, name)
        return found

    def split(self, x: Value) -> tuple[Value, Value]:
        """Return k and m in [sqrt(1/2), sqrt(2)) with x = 2**k m, for positive normal x."""
        return split(self.w, F64, x)


def normal_of_uniform(w: Builder, u: Value) -> Value:
    """Write `ops.exact.normal_quantile` without a branch, for a builder without flags."""
    s = _Exact(w)
    return w.where(is_far(s, u), quantile_in_the_tails(s, u), quantile_in_the_middle(s, u))
