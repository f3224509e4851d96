"""Orthogonal polynomials by their three-term recurrences (DLMF 18.9).

The degree is a number or a tensor, element by element; degrees below 0 give 0. Recurrences are
stable where the polynomials oscillate, which is where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from probtorch.core.casting import cast, to_float
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.refusals import shown
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import lt
from probtorch.ops.control import while_loop
from probtorch.ops.movement import broadcast_tensors
from probtorch.ops.reduction import any as any_of

__all__ = [
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
]

# Of degree k + 1, from k (a number or a tensor), x, and the polynomials of degree k and k - 1.
Step: TypeAlias = Callable[[float | TensorBase, TensorBase, TensorBase, TensorBase], TensorBase]
_LAST = 1e6
_UNROLLED = 32  # up to this degree a fixed recurrence is written out, and fuses


def _polynomial(
    op: str, x: TensorLike, n: TensorLike, first: tuple[float, float], step: Step
) -> TensorBase:
    """Return the polynomial of degree `n`, that of degree 1 being ``a x + b`` for (a, b)."""
    x = to_float(as_tensor(x, op))
    slope, constant = first
    if isinstance(n, (int, float)) and n <= _UNROLLED:
        if n < 1:
            return _same(x, 1.0 if n > -1 else 0.0)
        before, now = _same(x, 1.0), x * slope + constant
        for k in range(1, int(n)):
            before, now = now, step(float(k), x, now, before)
        return now
    if isinstance(n, (int, float)) and not n <= _LAST:
        raise ArgumentError(
            op,
            expected=f"a degree up to {_LAST:g}, as there is a step for each",
            got=shown(n) if isinstance(n, int) else repr(n),
            fix="for large degrees take the asymptotic form",
        )
    x, degree = broadcast_tensors(x, cast(as_tensor(n, op), int64))
    lowest = where(lt(degree, 0), 0.0, _same(x, 1.0))
    start = as_tensor(1), lowest, x * slope + constant

    def body(
        state: tuple[TensorBase, TensorBase, TensorBase],
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        k, before, now = state
        goes_on = lt(k, degree)
        then = step(cast(k, x.array.dtype), x, now, before)
        return k + 1, where(goes_on, now, before), where(goes_on, then, now)

    _, low, high = while_loop(lambda state: any_of(lt(state[0], degree)), body, start)
    return where(lt(degree, 1), low, high)


def _same(x: TensorBase, value: float) -> TensorBase:
    """Return a number in the shape of `x`, whatever is in it."""
    return cast(where(lt(x, 0.0), value, value), x.array.dtype)


def _chebyshev(
    k: float | TensorBase, x: TensorBase, now: TensorBase, before: TensorBase
) -> TensorBase:
    return 2.0 * x * now - before


def _shifted(x: TensorLike, op: str) -> TensorBase:
    return 2.0 * to_float(as_tensor(x, op)) - 1.0


@takes_out
def chebyshev_polynomial_t(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Chebyshev's polynomial of the first kind, ``cos(n acos x)``."""
    return _polynomial("chebyshev_polynomial_t", input, n, (1.0, 0.0), _chebyshev)


@takes_out
def chebyshev_polynomial_u(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Chebyshev's polynomial of the second kind, ``sin((n + 1) t) / sin(t), x = cos t``."""
    return _polynomial("chebyshev_polynomial_u", input, n, (2.0, 0.0), _chebyshev)


@takes_out
def chebyshev_polynomial_v(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Chebyshev's polynomial of the third kind, that of degree 1 being ``2 x - 1``."""
    return _polynomial("chebyshev_polynomial_v", input, n, (2.0, -1.0), _chebyshev)


@takes_out
def chebyshev_polynomial_w(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Chebyshev's polynomial of the fourth kind, that of degree 1 being ``2 x + 1``."""
    return _polynomial("chebyshev_polynomial_w", input, n, (2.0, 1.0), _chebyshev)


@takes_out
def shifted_chebyshev_polynomial_t(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Chebyshev's polynomial of the first kind at ``2 x - 1``, for x in [0, 1]."""
    return chebyshev_polynomial_t(_shifted(input, "shifted_chebyshev_polynomial_t"), n)


@takes_out
def shifted_chebyshev_polynomial_u(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Chebyshev's polynomial of the second kind at ``2 x - 1``, for x in [0, 1]."""
    return chebyshev_polynomial_u(_shifted(input, "shifted_chebyshev_polynomial_u"), n)


@takes_out
def shifted_chebyshev_polynomial_v(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Chebyshev's polynomial of the third kind at ``2 x - 1``, for x in [0, 1]."""
    return chebyshev_polynomial_v(_shifted(input, "shifted_chebyshev_polynomial_v"), n)


@takes_out
def shifted_chebyshev_polynomial_w(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Chebyshev's polynomial of the fourth kind at ``2 x - 1``, for x in [0, 1]."""
    return chebyshev_polynomial_w(_shifted(input, "shifted_chebyshev_polynomial_w"), n)


@takes_out
def hermite_polynomial_h(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Hermite's polynomial of physics, orthogonal with the weight ``exp(-x^2)``."""
    return _polynomial(
        "hermite_polynomial_h",
        input,
        n,
        (2.0, 0.0),
        lambda k, x, now, before: 2.0 * x * now - 2.0 * k * before,
    )


@takes_out
def hermite_polynomial_he(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Hermite's polynomial of probability, orthogonal under the standard normal."""
    return _polynomial(
        "hermite_polynomial_he",
        input,
        n,
        (1.0, 0.0),
        lambda k, x, now, before: x * now - k * before,
    )


@takes_out
def laguerre_polynomial_l(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Laguerre's polynomial, orthogonal under the standard exponential distribution."""
    return _polynomial(
        "laguerre_polynomial_l",
        input,
        n,
        (-1.0, 1.0),
        lambda k, x, now, before: ((2.0 * k + 1.0 - x) * now - k * before) / (k + 1.0),
    )


@takes_out
def legendre_polynomial_p(
    input: TensorLike, n: TensorLike, *, out: TensorBase | None = None
) -> TensorBase:
    """Return Legendre's polynomial, orthogonal on [-1, 1]."""
    return _polynomial(
        "legendre_polynomial_p",
        input,
        n,
        (1.0, 0.0),
        lambda k, x, now, before: ((2.0 * k + 1.0) * x * now - k * before) / (k + 1.0),
    )
