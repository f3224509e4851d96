"""Densities of single precision in double: where terms cancel, and no kernel does it better.

`in_double` calls a function, `doubled` is for a method that reads its parameters from the
distribution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.tensor_base import TensorBase
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution

__all__ = ["doubled", "in_double"]

_Of = TypeVar("_Of", bound="Distribution")


def in_double(fn: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Return ``fn(*operands)`` computed in double precision, in the dtype that they have."""
    if all(x.array.dtype.itemsize >= 8 for x in operands):
        return fn(*operands)
    dtype = dtypes.promote([x.array for x in operands])
    return cast(fn(*(cast(x, dtypes.float64) for x in operands)), dtype)


def doubled(density: Callable[[_Of, Tensor], Tensor]) -> Callable[[_Of, Tensor], Tensor]:
    """Compute a method of the value with value and parameters in double precision.

    What it returns has the dtype that they have.
    """

    @functools.wraps(density)
    def run(self: _Of, x: Tensor) -> Tensor:
        given = {n: v for n in self._fields if isinstance(v := self.__dict__.get(n), TensorBase)}
        if all(v.array.dtype.itemsize >= 8 for v in (x, *given.values())):
            return density(self, x)
        dtype = dtypes.promote([v.array for v in (x, *given.values())])
        wide = object.__new__(type(self))
        wide.__dict__.update(self.__dict__)
        wide.__dict__.update({n: cast(v, dtypes.float64) for n, v in given.items()})
        return cast(density(wide, cast(x, dtypes.float64)), dtype)

    return run
