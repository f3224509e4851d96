"""What scalar formulas are written over: names for their annotations.

A formula takes an algebra `s` and values of it: arrays (`NumpyAlgebra`, `Lanes`, `Streams`),
Python's floats, or values of the kernel language (compiler/lang/builder.py), which are text. It
knows of a value that it can be calculated with and compared, beside numbers; of an algebra it asks
for the names below. `Scalars` is for formulas that are a straight line, `ExactScalars` for those
whose bits do not depend on the target, `Branching` for those with branches, loops and integrals,
`Drawing` for samplers. Intrinsics are in the table of scalar.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, Self, TypeAlias, TypeVar

__all__ = ["Branching", "Drawing", "ExactScalars", "Number", "Scalar", "Scalars"]


class Scalar(Protocol):
    """A value of an algebra, or many side by side."""

    def __add__(self, other: Self | float, /) -> Self: ...
    def __radd__(self, other: float, /) -> Self: ...
    def __sub__(self, other: Self | float, /) -> Self: ...
    def __rsub__(self, other: float, /) -> Self: ...
    def __mul__(self, other: Self | float, /) -> Self: ...
    def __rmul__(self, other: float, /) -> Self: ...
    def __truediv__(self, other: Self | float, /) -> Self: ...
    def __rtruediv__(self, other: float, /) -> Self: ...
    def __neg__(self) -> Self: ...
    def __lt__(self, other: Self | float, /) -> Self: ...
    def __le__(self, other: Self | float, /) -> Self: ...
    def __gt__(self, other: Self | float, /) -> Self: ...
    def __ge__(self, other: Self | float, /) -> Self: ...


Number = TypeVar("Number", bound=Scalar)
# What a value may be given as; and what a test gives, as which Python's types take `==`.
Operand: TypeAlias = Number | float
Truth: TypeAlias = Number | bool


class Scalars(Protocol[Number]):
    """The algebra of formulas that are a straight line."""

    def where(self, condition: Truth[Number], x: Operand[Number], y: Operand[Number], /) -> Number:
        """Choose elementwise."""

    def logical_and(self, x: Truth[Number], y: Truth[Number], /) -> Number: ...

    def logical_or(self, x: Truth[Number], y: Truth[Number], /) -> Number: ...

    def wide(self, x: Number, /) -> Number:
        """Return `x` in double precision."""

    def __getattr__(self, name: str) -> Callable[..., Number]:
        """Return an intrinsic."""


class ExactScalars(Scalars[Number], Protocol[Number]):
    """The algebra of functions whose bits do not depend on who computes them."""

    def split(self, x: Number, /) -> tuple[Number, Number]:
        """Return k and m in [sqrt(1/2), sqrt(2)) with x = 2**k m."""

    def power_of_two(self, n: Number, /) -> Number:
        """Return 2**n for whole n in the range of normal exponents."""

    def choose(
        self,
        condition: Truth[Number],
        yes: Callable[..., Number],
        no: Callable[..., Number],
        operands: Sequence[Operand[Number]],
        /,
    ) -> Number:
        """Return ``yes(s, *operands)`` or ``no(s, *operands)``."""


class Branching(Scalars[Number], Protocol[Number]):
    """The algebra of formulas with branches, loops and integrals."""

    def choose(
        self,
        condition: Truth[Number],
        yes: Callable[..., Number],
        no: Callable[..., Operand[Number]],
        operands: Sequence[Operand[Number]],
        /,
    ) -> Number:
        """Return ``yes(s, *operands)`` or ``no(s, *operands)``."""

    def fold(
        self,
        start: int,
        stop: int,
        step: Callable[..., Sequence[Number]],
        state: Sequence[Number],
        /,
    ) -> Sequence[Number]:
        """Return the state after ``state = step(s, k, *state)`` for k = start, ..., stop - 1."""

    def series(
        self,
        count: int,
        ratio: Callable[..., Number],
        parts: Callable[..., Iterable[Number]],
        starts: Sequence[float],
        operands: Sequence[Operand[Number]],
        /,
    ) -> Sequence[Number]:
        """Return `starts` and the sums of ``parts(term, k, *operands)``."""

    def quadrature(
        self,
        rule: tuple[tuple[float, ...], ...],
        integrand: Callable[..., Number],
        low: Operand[Number],
        width: Number,
        operands: Sequence[Operand[Number]],
        /,
    ) -> Number:
        """Integrate ``integrand(s, at, *operands)`` from `low` to `low` + `width`."""

    def panels(
        self,
        length: Number,
        cuts: Sequence[Operand[Number]],
        integral: Callable[..., Number],
        operands: Sequence[Operand[Number]],
        /,
    ) -> Number:
        """Add up ``integral(s, low, width, *operands)`` over the parts of [0, length]."""


class Drawing(ExactScalars[Number], Protocol[Number]):
    """The algebra of samplers by rejection; see rejection.py."""

    def uniforms(self, n: Operand[Number], /) -> tuple[Number, Number]:
        """Return the element's n-th pair of uniform numbers."""

    def counting(self, like: Number, /) -> Number:
        """Return the number of the first attempt."""

    def either(
        self,
        condition: Truth[Number],
        test: Callable[..., Number],
        operands: Sequence[Operand[Number]],
        /,
    ) -> Number:
        """Return where `condition` holds, or else ``test(s, *operands)``."""

    def until(
        self,
        step: Callable[..., tuple[Number, Sequence[Number]]],
        state: Sequence[Number],
        operands: Sequence[Operand[Number]],
        /,
    ) -> Sequence[Number]:
        """Repeat ``done, state = step(s, *state, *operands)`` for each element until it is done."""
