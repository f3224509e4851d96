"""A transform of its own for each piece of a tensor: `CatTransform` and `StackTransform`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.transforms.transform import Transform, sum_last
from probtorch.errors import ArgumentError
from probtorch.ops.pieces import cat, split, stack, unbind
from probtorch.tensor import Tensor

__all__ = ["CatTransform", "StackTransform"]


class _Pieces(Transform):
    """What transforms of pieces of one tensor share; `_apart` and `_together` cut and join."""

    transforms: list[Transform]
    dim: int

    def _apart(self, x: Tensor) -> Sequence[Tensor]:
        raise NotImplementedError(f"{type(self).__name__} does not say how to cut")

    def _together(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not say how to join")

    def _call(self, x: Tensor) -> Tensor:
        parts = self._apart(x)
        done = [t._call(p) for t, p in zip(self.transforms, parts, strict=True)]
        return self._together(done, self.dim)

    def _inverse(self, y: Tensor) -> Tensor:
        parts = self._apart(y)
        done = [t._inverse(p) for t, p in zip(self.transforms, parts, strict=True)]
        return self._together(done, self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        parts = zip(self.transforms, self._apart(x), self._apart(y), strict=True)
        inner = max(t.domain.event_dim for t in self.transforms)
        terms = [
            sum_last(t.log_abs_det_jacobian(a, b), inner - t.domain.event_dim) for t, a, b in parts
        ]
        # Counted from the end of the batch dims, which are all that a log-determinant has. Those of
        # pieces of one event are added.
        dim = self.dim - (x.array.ndim if self.dim >= 0 else 0) + inner
        return self._together(terms, dim) if dim < 0 else functools.reduce(operator.add, terms)


class CatTransform(_Pieces):
    """A transform of its own for each piece along `dim`; the transforms must keep shapes.

    Parameters
    ----------
    tseq : sequence of Transform
    dim : int
        Counted from the end if negative; the log-determinants of pieces of one event are added.
    lengths : sequence of int, optional
        Sizes of the pieces, 1 each if None.
    """

    _settings = ("transforms", "dim", "lengths")

    def __init__(
        self,
        tseq: Sequence[Transform],
        dim: int = 0,
        lengths: Sequence[int] | None = None,
        cache_size: int = 0,
    ) -> None:
        self.transforms = list(tseq)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        if len(self.lengths) != len(self.transforms):
            raise ArgumentError(
                "CatTransform",
                expected=f"one length for each of {len(self.transforms)} transforms",
                got=f"{len(self.lengths)} lengths",
                fix="give as many lengths as transforms",
            )
        self.dim = dim
        self.bijective = all(t.bijective for t in self.transforms)
        self.domain = constraints.cat([t.domain for t in self.transforms], dim, self.lengths)
        self.codomain = constraints.cat([t.codomain for t in self.transforms], dim, self.lengths)

    @property
    def length(self) -> int:
        """Size of the whole along `dim`."""
        return sum(self.lengths)

    def _apart(self, x: Tensor) -> Sequence[Tensor]:
        return split(x, self.lengths, self.dim)

    def _together(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        return cat(parts, dim)


class StackTransform(_Pieces):
    """A transform of its own for each slice along `dim`; the transforms must keep shapes.

    Parameters
    ----------
    tseq : sequence of Transform
    dim : int
        A batch dim.
    """

    _settings = ("transforms", "dim")

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        self.transforms = list(tseq)
        self.dim = dim
        self.bijective = all(t.bijective for t in self.transforms)
        self.domain = constraints.stack([t.domain for t in self.transforms], dim)
        self.codomain = constraints.stack([t.codomain for t in self.transforms], dim)

    def _apart(self, x: Tensor) -> Sequence[Tensor]:
        return unbind(x, self.dim)

    def _together(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        return stack(parts, dim)


explain_calls(globals())
