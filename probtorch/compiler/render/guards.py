"""What a guard tests, for every renderer: whether a number is still the one that Python saw."""

import math

from probtorch.compiler.lang.types import FLOATS

__all__ = ["holds"]


def holds(s, v, expected):
    """Write the test with the algebra `s`; returns it as a value of type i1.

    Parameters
    ----------
    s : Builder
    v : V
        The number.
    expected : bool, int or float
        What `bool()`, `int()`, `float()` or `item()` gave.
    """
    if v.ty == "i1":
        return v if expected else s.logical_not(v)
    if isinstance(expected, bool):
        # bool() of a number: whether it is nonzero (nan counts as true).
        zero = s.compare("eq", v, 0)
        return s.logical_not(zero) if expected else zero
    if isinstance(expected, float) and math.isnan(expected):
        return s.isnan(v)
    if v.ty in FLOATS and isinstance(expected, int):
        # int() of a float: the truncated value.
        return s.compare("eq", s.trunc(v), expected)
    ok = s.compare("eq", v, expected)
    if v.ty in FLOATS and expected == 0:
        # Python can tell 0.0 from -0.0.
        sign = s.compare("lt", s.copysign(1.0, v), 0)
        minus = math.copysign(1.0, expected) < 0
        ok = s.logical_and(ok, sign if minus else s.logical_not(sign))
    return ok
