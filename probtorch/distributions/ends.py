"""Probabilities of going no further than a value, where the value lies beyond all others.

At an infinite value, or past the end of a support, a cdf is 0 or 1 whatever the parameters are, and
has no slope in them. Formulas give the value and nan for the slope, as 0 times infinity: they are
asked at a value inside instead, and what they say there is not used. Nor is it of a nan, which
formulas by cases take for a value on one side of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_constant
from probtorch.distributions.constraints import Constraint
from probtorch.ops.arithmetic import where
from probtorch.ops.exponentials import log, log1p
from probtorch.tensor import Tensor

__all__ = ["log_of_level", "log_of_rest", "of_probability", "with_ends"]


def with_ends(
    level: Callable[[Tensor], Tensor],
    x: Tensor,
    support: Constraint,
    below: float,
    above: float,
    *,
    flat: tuple[bool, bool] = (False, False),
) -> Tensor:
    """Return ``level(x)``, but `below` and `above` without a slope where x is past an end.

    Where x is nan, so is the result.

    Parameters
    ----------
    level : callable
        A cdf, a survival or the logarithm of one.
    x : Tensor
    support : Constraint
        Of single numbers.
    below, above : float
        What `level` is at the ends.
    flat : tuple of two bools
        Whether an end itself is past the end, too.
    """
    least, most = support.ends()
    if is_constant(x) and _within(x.array, least, most, flat):
        return level(x)
    short, far = x == -math.inf, x == math.inf
    if least is not None:
        short = short | (x <= least if flat[0] else x < least)
    if most is not None:
        far = far | (x >= most if flat[1] else x > most)
    known = x == x
    inside = level(where(short | far | ~known, support.interior(x), x))
    return where(short, below, where(far, above, where(known, inside, math.nan)))


def _within(
    x: np.ndarray,
    least: float | Tensor | None,
    most: float | Tensor | None,
    flat: tuple[bool, bool],
) -> bool:
    """Whether no element is past an end or nan, without an operation where that is quickly seen."""
    tests = (
        np.less_equal if flat[0] else np.less,
        np.greater_equal if flat[1] else np.greater,
    )
    for end, past in zip((least, most), tests, strict=True):
        bound = end.array if isinstance(end, TensorBase) else end
        if bound is not None and past(x, bound).any():
            return False
    return bool(np.isfinite(x).all())


def of_probability(quantile: Callable[[Tensor], Tensor], p: Tensor) -> Tensor:
    """Return ``quantile(p)``, nan where p is no probability."""
    if is_constant(p) and ((p.array >= 0.0) & (p.array <= 1.0)).all():
        return quantile(p)
    known = (p >= 0.0) & (p <= 1.0)
    return where(known, quantile(where(known, p, 0.5)), math.nan)


def log_of_level(p: Tensor) -> Tensor:
    """Return log(p) of a probability: -inf without a slope at 0."""
    return _unless(p != 0.0, log, p, 1.0)


def log_of_rest(p: Tensor) -> Tensor:
    """Return log(1 - p) of a probability: -inf without a slope at 1."""
    return _unless(p != 1.0, lambda q: log1p(-q), p, 0.0)


def _unless(
    some: Tensor, logarithm: Callable[[Tensor], Tensor], p: Tensor, inside: float
) -> Tensor:
    if is_constant(some) and some.array.all():
        return logarithm(p)
    return where(some, logarithm(where(some, p, inside)), -math.inf)
