"""Products with logarithms, entropy terms and log odds, exact at the edges of their domains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.dispatch import recorder
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, where
from probtorch.ops.comparisons import eq, gt, le, logical_and, logical_or, lt
from probtorch.ops.exponentials import expm1, log, log1p, sigmoid
from probtorch.ops.families import Binary, Unary, elementwise
from probtorch.ops.scalar import NumpyAlgebra
from probtorch.ops.special.declaration import quiet, tensor_like

if TYPE_CHECKING:
    from probtorch.ops.algebra import Number, Scalars


__all__ = [
    "entr",
    "expit",
    "log1mexp",
    "log1p_less",
    "log1p_square",
    "log_ratio",
    "logit",
    "safe_log",
    "xlog1py",
    "xlogy",
]

LN2 = math.log(2.0)


def _no_part(g: TensorBase, both: TensorBase) -> TensorBase:
    """Where both operands are at the edge, or nothing depends on the value: a slope of 0."""
    return logical_or(both, eq(g, 0.0))


def _xlogy_first(g: TensorBase, x: TensorBase, y: TensorBase) -> TensorBase:
    y = tensor_like(y, g)
    none = _no_part(g, logical_and(eq(x, 0.0), le(y, 0.0)))
    return where(none, 0.0, g * log(where(none, 1.0, y)))


def _xlogy_second(g: TensorBase, x: TensorBase, y: TensorBase) -> TensorBase:
    # 0 / 0 is 0: a count of 0, or an outcome without probability that nothing depends on.
    top = g * tensor_like(x, g)
    both = logical_and(eq(top, 0.0), eq(y, 0.0))
    return where(both, 0.0, top / where(both, 1.0, y))


xlogy: Binary = elementwise(
    "xlogy",
    formula=lambda s, x, y: s.where(x == 0.0, s.where(s.isnan(y), y, 0.0), x * s.log(y)),
    partials=(_xlogy_first, _xlogy_second),
    saves=("x y", "x y"),
    domain=("positive", "positive"),
    eager="special.xlogy",
    reference=lambda x, y: x * np.log(y),
    result="float",
    doc="x * log(y), and 0 where x is 0; both derivatives are 0 at (0, 0).",
)


def _xlog1py_first(g: TensorBase, x: TensorBase, y: TensorBase) -> TensorBase:
    y = tensor_like(y, g)
    none = _no_part(g, logical_and(eq(x, 0.0), le(y, -1.0)))
    return where(none, 0.0, g * log1p(where(none, 0.0, y)))


def _xlog1py_second(g: TensorBase, x: TensorBase, y: TensorBase) -> TensorBase:
    top = g * tensor_like(x, g)
    both = logical_and(eq(top, 0.0), eq(y, -1.0))
    return where(both, 0.0, top / (where(both, 0.0, y) + 1.0))


xlog1py: Binary = elementwise(
    "xlog1py",
    formula=lambda s, x, y: s.where(x == 0.0, s.where(s.isnan(y), y, 0.0), x * s.log1p(y)),
    partials=(_xlog1py_first, _xlog1py_second),
    saves=("x y", "x y"),
    domain=("positive", "positive"),
    eager="special.xlog1py",
    reference=lambda x, y: x * np.log1p(y),
    result="float",
    doc="x * log(1 + y), and 0 where x is 0; both derivatives are 0 at (0, -1).",
)
entr: Unary = elementwise(
    "entr",
    formula=lambda s, x: s.where(
        x > 0.0, -x * s.log(x), s.where(x == 0.0, 0.0, s.where(x < 0.0, -math.inf, x))
    ),
    partials=(lambda g, x: g * (-1.0 - log(x)),),
    saves=("x",),
    domain=("positive",),
    eager="special.entr",
    reference=lambda x: -x * np.log(x),
    result="float",
    doc="-x * log(x): 0 at 0 and -inf below.",
)


def _log1mexp(s: Scalars[Number], x: Number) -> Number:
    # Maechler (2012): both forms are exact to rounding on their side of log 2.
    return s.where(x < LN2, s.log(-s.expm1(-x)), s.log1p(-s.exp(-x)))


log1mexp: Unary = elementwise(
    "log1mexp",
    formula=_log1mexp,
    partials=(lambda g, x: g / expm1(x),),
    saves=("x",),
    domain=("positive",),
    eager=quiet(_log1mexp),
    reference=lambda x: np.log(1.0 - np.exp(-x)),
    result="float",
    doc="log(1 - exp(-x)) for x > 0; -inf at 0.",
)
# Beyond this a 1 is lost, even beside the number itself; its square is far from overflowing.
FAR = 1e17


def _log1p_square(s: Scalars[Number], x: Number) -> Number:
    # One logarithm for both cases.
    a = s.abs(x)
    far = a > FAR
    return s.log1p(s.where(far, a, a * a)) * s.where(far, 2.0, 1.0)


def _all_near(x: np.ndarray) -> bool:
    """Whether an array in memory of the host holds nothing beyond `FAR`, which is quickly seen."""
    return isinstance(x, np.ndarray) and x.size > 0 and np.abs(x).max() < FAR


def _common_log1p_square(s: NumpyAlgebra, x: np.ndarray) -> np.ndarray:
    """The formula on arrays: without its choices where no square is far from 1."""
    square = x * x
    if square.size and square.max() < FAR * FAR:
        return s.log1p(square)
    return _log1p_square(s, x)


def _log1p_square_slope(g: TensorBase, x: TensorBase) -> TensorBase:
    if recorder() is None and _all_near(x.array):
        return g * (x + x) / (x * x + 1.0)
    far = gt(absolute(x), FAR)
    return g * where(far, 2.0, x + x) / where(far, x, x * x + 1.0)


log1p_square: Unary = elementwise(
    "log1p_square",
    formula=_log1p_square,
    partials=(_log1p_square_slope,),
    saves=("x",),
    domain=("real",),
    eager=quiet(_common_log1p_square),
    reference=lambda x: np.log1p(x * x),
    result="float",
    doc="log(1 + x ** 2), also where x ** 2 overflows.",
)

# (atanh(v) - v) / v^3 as a series in v^2, exact to rounding up to v = 1/7; from x = 1/4 on the
# difference loses a digit.
_NEAR, _ATANH = 0.25, tuple(1.0 / (2 * i + 3) for i in range(9))


def _log1p_less(s: Scalars[Number], x: Number) -> Number:
    # log(1 + x) = 2 atanh(v) with v = x / (2 + x), and 2 v - x = -x v.
    near = s.abs(x) < _NEAR
    y = s.where(near, x, 0.0)
    v = y / (y + 2.0)
    z = v * v
    series = _ATANH[-1] * z + _ATANH[-2]
    for c in _ATANH[-3::-1]:
        series = series * z + c
    far = s.where(near, 1.0, x)
    return s.where(near, v * (2.0 * z * series - y), s.log1p(far) - far)


log1p_less: Unary = elementwise(
    "log1p_less",
    formula=_log1p_less,
    partials=(lambda g, x: -(g * (x / (x + 1.0))),),
    saves=("x",),
    domain=("positive",),
    eager=quiet(_log1p_less),
    reference=lambda x: np.log1p(x) - x,
    result="float",
    doc="log(1 + x) - x, without the cancellation near 0.",
)


def _log_ratio(s: Scalars[Number], x: Number, y: Number) -> Number:
    x, y = s.wide(x), s.wide(y)
    q = x / y
    # Of a quotient that overflows 2^1024 is taken out.
    far = q > 1.7e308
    found = s.log(s.where(far, (x * 2.0**-512) / (y * 2.0**512), q))
    # Near 1, where x - y and q - 1 are exact, what rounding q has lost, as a share of x. One log
    # and a division: log1p((x - y) / y) takes three times as long.
    near = s.abs(q - 1.0) < 0.5
    lost = s.where(near, ((x - y) - (q - 1.0) * y) / x, 0.0)
    return found + s.where(far, 1024.0 * LN2, lost)


def _common_log_ratio(s: NumpyAlgebra, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The formula on arrays: shorter where no quotient is near 0, or overflows."""
    x, y = s.wide(x), s.wide(y)
    excess = (x - y) / y
    if excess.size and -0.5 < excess.min() and excess.max() < 1.7e308:
        return s.log1p(excess)
    return _log_ratio(s, x, y)


log_ratio: Binary = elementwise(
    "log_ratio",
    formula=_log_ratio,
    partials=(
        lambda g, x: g / tensor_like(x, g),
        lambda g, y: -(g / tensor_like(y, g)),
    ),
    saves=("x", "y"),
    domain=("positive", "positive"),
    eager=quiet(_common_log_ratio),
    reference=lambda x, y: np.log(x / y),
    result="float",
    doc="log(x / y), exact where the quotient is near 0, near 1, or overflows.",
)
_logit: Unary = elementwise(
    "logit",
    formula=lambda s, p: s.log(p) - s.log1p(-p),
    # Outside [0, 1] nan, as the value is.
    partials=(
        lambda g, p: where(logical_or(lt(p, 0.0), gt(p, 1.0)), math.nan, g / (p * (1.0 - p))),
    ),
    saves=("p",),
    domain=("probability",),
    eager="special.logit",
    reference=lambda p: np.log(p / (1.0 - p)),
    result="float",
    doc="Log odds, log(p / (1 - p)).",
)


@takes_out
def logit(
    input: TensorLike, eps: float | None = None, *, out: TensorBase | None = None
) -> TensorBase:
    """Log odds, log(p / (1 - p)); with `eps`, p is first limited to [eps, 1 - eps]."""
    return _logit(input if eps is None else clamp(input, eps, 1.0 - eps))


def safe_log(x: TensorLike) -> TensorBase:
    """Natural logarithm whose slope is 0, and not infinite, where `x` is 0."""
    x = as_tensor(x, "safe_log")
    positive = gt(x, 0.0)
    return where(positive, log(where(positive, x, 1.0)), log(x.detach()))


expit = sigmoid
