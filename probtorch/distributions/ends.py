"""Probabilities of going no further than a value, where the value lies beyond all others.

At an infinite value, or past the end of a support, a cdf is 0 or 1 whatever the parameters are, and
has no slope in them. Formulas give the value and nan for the slope, as 0 times infinity: they are
asked at a value inside instead, and what they say there is not used.
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

__all__ = ["log_of_level", "log_of_rest", "with_ends"]


def with_ends(
    level: Callable[[Tensor], Tensor],
    x: Tensor,
    support: Constraint,
    below: float,
    above: float,
    *,
    smooth: bool = False,
) -> Tensor:
    """Return ``level(x)``, but `below` and `above` without a slope where x is past an end.

    Parameters
    ----------
    level : callable
        A cdf, a survival or the logarithm of one.
    x : Tensor
    support : Constraint
        Of single numbers.
    below, above : float
        What `level` is at the ends.
    smooth : bool
        Whether there is no mass on the ends of the support: where `level` is -inf there, they are
        past it, too. A probability has a slope there, which is the density.
    """
    least, most = support.ends()
    closed = smooth and below == -math.inf, smooth and above == -math.inf
    if is_constant(x) and _within(x.array, least, most, closed):
        return level(x)
    short, far = x == -math.inf, x == math.inf
    if least is not None:
        short = short | (x <= least if closed[0] else x < least)
    if most is not None:
        far = far | (x >= most if closed[1] else x > most)
    past = short | far
    inside = level(where(past, support.interior(x), x))
    return where(short, below, where(far, above, inside))


def _within(
    x: np.ndarray,
    least: float | Tensor | None,
    most: float | Tensor | None,
    closed: tuple[bool, bool],
) -> bool:
    """Whether no element is past an end, seen without an operation where that is quickly done."""
    tests = (
        np.less_equal if closed[0] else np.less,
        np.greater_equal if closed[1] else np.greater,
    )
    for end, past in zip((least, most), tests, strict=True):
        bound = end.array if isinstance(end, TensorBase) else end
        if bound is not None and past(x, bound).any():
            return False
    return not np.isinf(x).any()


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
