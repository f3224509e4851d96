"""Error functions, and the normal distribution function with its logarithm and inverse.

The slope of log_ndtr comes from erfcx, so that it is right where density and distribution function
both underflow.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, gt
from probtorch.ops.exponentials import exp
from probtorch.ops.families import Unary, elementwise
from probtorch.ops.native_rows import native_elements
from probtorch.ops.scalar import special_function
from probtorch.ops.special.declaration import scipy_value

if TYPE_CHECKING:
    from probtorch.core.tensor_base import TensorBase


__all__ = ["erf", "erfc", "erfcx", "erfinv", "log_ndtr", "ndtr", "ndtri"]

SQRT_PI = math.sqrt(math.pi)
SQRT_2PI = math.sqrt(2.0 * math.pi)
SQRT_HALF = math.sqrt(0.5)

_scipy_erf = special_function("erf")


def _eager_erf(x: np.ndarray) -> np.ndarray:
    native = native_elements("erf", x)
    return _scipy_erf(x) if native is None else native(x)


erf: Unary = elementwise(
    "erf",
    formula=lambda s, x: s.erf(x),
    partials=(lambda g, x: g * (exp(-x * x) * (2.0 / SQRT_PI)),),
    saves=("x",),
    domain=("real",),
    eager=_eager_erf,
    reference=lambda x: np.vectorize(math.erf, otypes=[float])(x),
    result="float",
    doc="Error function.",
)
erfc: Unary = elementwise(
    "erfc",
    formula=lambda s, x: s.erfc(x),
    partials=(lambda g, x: g * (exp(-x * x) * (-2.0 / SQRT_PI)),),
    saves=("x",),
    domain=("real",),
    eager="special.erfc",
    reference=lambda x: np.vectorize(math.erfc, otypes=[float])(x),
    result="float",
    doc="1 - erf(x), accurate in the right tail.",
)


def _erfcx_slope(g: TensorBase, y: TensorBase, x: TensorBase) -> TensorBase:
    # From its expansion (DLMF 7.12.1) where the two terms cancel.
    far = gt(x, 50.0)
    r = 1.0 / where(far, x, 1.0)
    z = r * r
    series = 1.0 - z * (1.5 - z * (3.75 - z * (13.125 - z * 59.0625)))
    usual = where(far, 0.0, x * y * 2.0) - 2.0 / SQRT_PI
    return g * where(far, z * series * (-1.0 / SQRT_PI), usual)


erfcx: Unary = elementwise(
    "erfcx",
    formula=lambda s, x: s.erfcx(x),
    partials=(_erfcx_slope,),
    saves=("out x",),
    domain=("real",),
    eager="special.erfcx",
    reference=lambda x: np.exp(x * x) * np.vectorize(math.erfc, otypes=[float])(x),
    result="float",
    doc="exp(x ** 2) * erfc(x), which neither underflows nor loses digits in the right tail.",
)
erfinv: Unary = elementwise(
    "erfinv",
    formula=lambda s, x: s.erfinv(x),
    partials=(lambda g, y: g * (exp(y * y) * (SQRT_PI / 2.0)),),
    saves=("out",),
    domain=("unit",),
    eager="special.erfinv",
    reference=lambda x: scipy_value("ndtri", 0.5 * (x + 1.0)) * SQRT_HALF,
    result="float",
    doc="Inverse of erf on (-1, 1).",
)
ndtr: Unary = elementwise(
    "ndtr",
    formula=lambda s, x: s.ndtr(x),
    partials=(lambda g, x: g * (exp(x * x * -0.5) * (1.0 / SQRT_2PI)),),
    saves=("x",),
    domain=("real",),
    eager="special.ndtr",
    reference=lambda x: 0.5 * np.vectorize(math.erfc, otypes=[float])(-x * SQRT_HALF),
    result="float",
    doc="Standard normal cumulative distribution function, accurate in the left tail.",
)


def _mills_slope(g: TensorBase, y: TensorBase, x: TensorBase) -> TensorBase:
    # For large x, y underflows to 0, and 0 * x is the limit also at x = inf.
    return -(g * y * (y + where(eq(y, 0.0), 0.0, x)))


# phi(x) / Phi(x) = sqrt(2 / pi) / erfcx(-x / sqrt(2)): grows like -x on the left, where both
# factors underflow.
normal_hazard: Unary = elementwise(
    "normal_hazard",
    formula=lambda s, x: math.sqrt(2.0 / math.pi) / s.erfcx(x * -SQRT_HALF),
    partials=(_mills_slope,),
    saves=("out x",),
    domain=("real",),
    reference=lambda x: np.exp(-0.5 * x * x - scipy_value("log_ndtr", x)) / SQRT_2PI,
    result="float",
    doc="Normal density over its cumulative distribution function, the derivative of log_ndtr.",
)
log_ndtr: Unary = elementwise(
    "log_ndtr",
    formula=lambda s, x: s.log_ndtr(x),
    partials=(lambda g, x: g * normal_hazard(x),),
    saves=("x",),
    domain=("real",),
    eager="special.log_ndtr",
    reference=lambda x: np.log(0.5 * np.vectorize(math.erfc, otypes=[float])(-x * SQRT_HALF)),
    result="float",
    doc="Logarithm of ndtr; it and its derivative are accurate in the far left tail.",
)
ndtri: Unary = elementwise(
    "ndtri",
    formula=lambda s, p: s.normal_quantile(p),
    partials=(lambda g, x: g * (exp(x * x * 0.5) * SQRT_2PI),),
    saves=("out",),
    domain=("probability",),
    eager="special.ndtri",
    reference=lambda p: -math.sqrt(2.0) * scipy_value("erfcinv", 2.0 * p),
    result="float",
    doc="Inverse of ndtr: the standard normal quantile of a probability.",
)
