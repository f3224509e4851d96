"""Pathwise gradients of draws whose sampler has none: by the implicit function, or by transport.

A draw at a fixed level of its cdf moves by -dF / density when a parameter moves (Figurnov, Mohamed,
Mnih 2018). Here a draw without a gradient is given one: the value stays, the derivative is added.
It can be taken once.
"""

from __future__ import annotations

from probtorch.ops.arithmetic import where
from probtorch.tensor import Tensor

__all__ = ["at_level", "moving"]


def moving(x: Tensor) -> Tensor:
    """Return `x` less its own value: 0, with the derivative of `x`."""
    return x - x.detach()


def at_level(x: Tensor, level: Tensor, density: Tensor) -> Tensor:
    """Return `x` with the derivative that keeps its level.

    Parameters
    ----------
    x : Tensor
        Draws, without a gradient.
    level : Tensor
        The cdf at `x` as a function of the parameters.
    density : Tensor
        Its derivative in `x`; where it is 0 the draw does not move.
    """
    known = density.detach()
    some = known > 0.0
    return x - where(some, moving(level) / where(some, known, 1.0), 0.0)
