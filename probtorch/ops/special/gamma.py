"""Gamma, beta and their logarithmic derivatives, also as differences that do not cancel.

What densities have of them beside their leading terms is in kernels.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module, device_of, to_device
from probtorch.core.casting import to_float
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.refusals import shown
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError
from probtorch.ops.families import Binary, Unary, elementwise
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum
from probtorch.ops.scalar import special_function
from probtorch.ops.special.counted import by_counts
from probtorch.ops.special.declaration import quiet, scipy_value, tensor_like
from probtorch.ops.stirling import digamma_step, lgamma_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from probtorch.ops.algebra import Number, Scalars


__all__ = [
    "betaln",
    "digamma",
    "digamma_difference",
    "gammaln",
    "lgamma",
    "lgamma_difference",
    "multigammaln",
    "polygamma",
    "psi",
    "zeta",
]

# Below it SciPy's function overflows on the way to its finite value; the factor is 2**60.
_TINY, _FACTOR = 1e-290, 2.0**60
_scipy_lgamma = special_function("gammaln")


def _lgamma(s: Scalars[Number], x: Number) -> Number:
    # lgamma(x) = -log(x) near 0, so a factor of the argument is a term of the value. At -inf the
    # value is inf, the limit of the poles; SciPy says -inf.
    tiny = s.abs(x) < _TINY
    safe = s.where(x == -math.inf, math.inf, s.where(tiny, x * _FACTOR, x))
    return s.lgamma(safe) + s.where(s.logical_and(tiny, x != 0.0), math.log(_FACTOR), 0.0)


def _eager_lgamma(x: np.ndarray) -> np.ndarray:
    out = _scipy_lgamma(x)
    if array_module(x).isfinite(out).all():
        return out
    return quiet(_lgamma)(x)


lgamma: Unary = elementwise(
    "lgamma",
    formula=_lgamma,
    partials=(lambda g, x: g * digamma(x),),
    saves=("x",),
    domain=("positive",),
    eager=by_counts(_eager_lgamma),
    reference=lambda x: scipy_value("loggamma", x + 0j).real,
    result="float",
    doc="Logarithm of the absolute value of the gamma function.",
)
gammaln = lgamma
digamma: Unary = elementwise(
    "digamma",
    formula=lambda s, x: s.digamma(x),
    partials=(lambda g, x: g * polygamma(1, x),),
    saves=("x",),
    domain=("positive",),
    eager="special.digamma",
    reference=lambda x: scipy_value("psi", x + 0j).real,
    result="float",
    doc="Derivative of lgamma.",
)
psi = digamma


def _zeta_reference(x: np.ndarray, q: np.ndarray) -> np.ndarray:
    # Two hundred terms, then Euler-Maclaurin: the first term left out is below 1e-12.
    k = 200.0 + q
    head = np.sum([(q + i) ** -x for i in range(200)], axis=0)
    return head + k ** (1.0 - x) / (x - 1.0) + 0.5 * k**-x + x / 12.0 * k ** (-x - 1.0)


_scipy_zeta = special_function("zeta")
# Of so many numbers on, trigamma is a series on arrays: SciPy's zeta takes 0.35 us a number.
_MANY = 64
# Bernoulli numbers B_2k: psi'(y) = 1/y + 1/(2 y^2) + sum B_2k / y^(2k + 1), DLMF 5.15.8. From
# y = 10 on the first one left out, B_16, is below 1e-15 of it.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_SHIFT = 10


def _trigamma(x: np.ndarray) -> np.ndarray:
    """Return zeta(2, x) of doubles above 0: the terms up to `_SHIFT` and the series from there."""
    y = x + _SHIFT
    inverse = 1.0 / y
    square = inverse * inverse
    total = np.full_like(y, _BERNOULLI[-1])
    for b in reversed(_BERNOULLI[:-1]):
        total *= square
        total += b
    total *= square * inverse
    total += 0.5 * square
    total += inverse
    term = np.empty_like(y)
    for k in range(_SHIFT - 1, -1, -1):  # the small ones first
        np.add(x, k, out=term)
        term *= term
        total += np.divide(1.0, term, out=term)
    return total


def _eager_zeta(x: np.ndarray | float, q: np.ndarray) -> np.ndarray:
    if type(q) is np.ndarray and q.size >= _MANY and q.dtype.char in "fd" and np.ndim(x) == 0:
        if float(x) == 2.0 and q.min() > 0.0:  # and no nan
            return _trigamma(q.astype(np.float64, copy=False)).astype(q.dtype, copy=False)
    return _scipy_zeta(x, q)


zeta: Binary = elementwise(
    "zeta",
    formula=lambda s, x, q: s.zeta(x, q),
    partials=(None, lambda g, x, q: g * (-x * zeta(x + 1.0, q))),
    saves=("", "x q"),
    domain=("above_one", "positive"),
    eager=_eager_zeta,
    reference=_zeta_reference,
    result="float",
    doc="Hurwitz zeta function, sum over k >= 0 of (k + q) ** -x; differentiable in q.",
    underivable={0: "detach() the exponent, or add up the terms n**-x"},
)


@takes_out
def polygamma(n: int, input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Derivative of order `n` of digamma.

    Parameters
    ----------
    n : int
        From 0 to 170.
    input : Tensor

    Raises
    ------
    ArgumentError
        If `n` is none of these.
    """
    # 171! is no double.
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or not 0 <= n <= 170:
        raise ArgumentError(
            "polygamma",
            expected="an integer order from 0 to 170",
            got=f"n = {shown(n) if isinstance(n, int) else repr(n)}",
            fix="the order comes first: polygamma(1, x) is trigamma",
        )
    input = to_float(as_tensor(input, "polygamma"))
    if n == 0:
        return digamma(input)
    # DLMF 5.15.1: psi^(n)(x) = (-1)^(n + 1) n! zeta(n + 1, x).
    return zeta(float(n + 1), input) * (-1.0) ** (n + 1) * float(math.factorial(n))


@takes_out
def multigammaln(input: TensorLike, p: int, *, out: TensorBase | None = None) -> TensorBase:
    """Logarithm of the multivariate gamma function of dimension `p`.

    Parameters
    ----------
    input : Tensor
        Above (p - 1) / 2.
    p : int

    Returns
    -------
    Tensor of the shape of `input`
    """
    if isinstance(p, bool) or not isinstance(p, (int, np.integer)) or p < 1:
        raise ArgumentError(
            "multigammaln",
            expected="an integer dimension p >= 1",
            got=f"p = {p!r}",
            fix="pass the size of the matrices, as in multigammaln(a, 3)",
        )
    input = to_float(as_tensor(input, "multigammaln"))
    half = _like(np.arange(int(p)) * 0.5, input)
    return sum(lgamma(unsqueeze(input, -1) - half), -1) + 0.25 * p * (p - 1) * math.log(math.pi)


def _like(array: np.ndarray, x: TensorBase) -> TensorBase:
    """Return a NumPy array as a tensor in the dtype and on the device of `x`."""
    return as_tensor(to_device(np.asarray(array, x.array.dtype), device_of(x.array)))


# The steps' series hold where both arguments of the functions are positive, which is all that
# densities have. Below 0 there are reflections, which would only cancel where both are far below.
def _lgamma_difference(s: Scalars[Number], x: Number, y: Number) -> Number:
    x, y = s.wide(x), s.wide(y)
    low = s.minimum(x, x + y) < 0.0
    step = lgamma_step(s, s.where(low, 1.0, x), s.where(low, 1.0, y))
    return s.where(low, _lgamma(s, x + y) - _lgamma(s, x), step)


def _digamma_difference(s: Scalars[Number], x: Number, y: Number) -> Number:
    x, y = s.wide(x), s.wide(y)
    low = s.minimum(x, x + y) < 0.0
    step = digamma_step(s, s.where(low, 1.0, x), s.where(low, 1.0, y))
    return s.where(low, s.digamma(x + y) - s.digamma(x), step)


def _on_arrays(
    step: Callable[..., np.ndarray], anywhere: Callable[..., np.ndarray]
) -> Callable[..., np.ndarray]:
    """The eager form of a difference: nobody computes the other branch for positive numbers."""
    steps, others = quiet(lambda s, x, y: step(s, s.wide(x), s.wide(y))), quiet(anywhere)

    def run(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        positive = (x >= 0.0) & (x + y >= 0.0)
        return (steps if positive.all() else others)(x, y)

    return by_counts(run)


lgamma_difference: Binary = elementwise(
    "lgamma_difference",
    formula=_lgamma_difference,
    partials=(
        lambda g, x, y: g * digamma_difference(x, y),
        lambda g, x, y: g * digamma(tensor_like(x + y, g)),
    ),
    saves=("x y", "x y"),
    domain=("positive", "positive"),
    eager=_on_arrays(lgamma_step, _lgamma_difference),
    reference=lambda x, y: scipy_value("gammaln", x + y) - scipy_value("gammaln", x),
    result="float",
    doc="lgamma(x + y) - lgamma(x), without the cancellation of the difference for large x.",
)
digamma_difference: Binary = elementwise(
    "digamma_difference",
    formula=_digamma_difference,
    partials=(
        lambda g, x, y: g * (polygamma(1, tensor_like(x + y, g)) - polygamma(1, x)),
        lambda g, x, y: g * polygamma(1, tensor_like(x + y, g)),
    ),
    saves=("x y", "x y"),
    domain=("positive", "positive"),
    eager=_on_arrays(digamma_step, _digamma_difference),
    reference=lambda x, y: scipy_value("psi", x + y) - scipy_value("psi", x),
    result="float",
    doc="digamma(x + y) - digamma(x), without the cancellation of the difference for large x.",
)

betaln: Binary = elementwise(
    "betaln",
    formula=lambda s, a, b: s.betaln(a, b),
    partials=(
        lambda g, a, b: -(g * digamma_difference(a, b)),
        lambda g, a, b: -(g * digamma_difference(b, a)),
    ),
    saves=("a b", "a b"),
    domain=("positive", "positive"),
    eager="special.betaln",
    reference=lambda a, b: (
        scipy_value("gammaln", a) + scipy_value("gammaln", b) - scipy_value("gammaln", a + b)
    ),
    result="float",
    doc="Logarithm of the beta function, also for arguments of very different size.",
)
