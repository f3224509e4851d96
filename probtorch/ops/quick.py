"""What a sampler by rejection says of itself: its formula, and what most of its draws come to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Quick", "RejectionSampler"]

# Of an algebra and parameters.
_Formula: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Quick:
    """What most draws come to, without a branch: native code computes many at once.

    Attributes
    ----------
    formulas : tuple of callable
        ``formula(s, pairs, *parameters)`` of pairs of uniform numbers gives whether the draw is
        made by them, and the draw where it is: that of the whole formula, bit for bit. A second
        formula, with tests that few draws need, is for those that the first does not make.
    covers : callable
        ``covers(s, *parameters)`` gives for which parameters the formulas hold.
    blocks : tuple of int
        Which pairs of the element's these are.
    normal : bool
        Whether the last number is the normal number of that quantile.
    """

    formulas: tuple[_Formula, ...]
    covers: _Formula
    blocks: tuple[int, ...] = (0,)
    normal: bool = False


@dataclass(frozen=True)
class RejectionSampler:
    """A formula of parameters, how many there are, which it may be given, and what is quick."""

    formula: _Formula
    arity: int
    allows: _Formula
    quick: tuple[Quick, ...] = ()
