"""Functions that change their first operand: ``sqrt_(x)`` is ``x.sqrt_()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from probtorch.tensor import Tensor

__all__ = [
    "abs_",
    "acos_",
    "asin_",
    "atan_",
    "ceil_",
    "clamp_",
    "clip_",
    "cos_",
    "cosh_",
    "erf_",
    "erfc_",
    "exp2_",
    "exp_",
    "expm1_",
    "fill_",
    "floor_",
    "frac_",
    "log10_",
    "log1p_",
    "log2_",
    "log_",
    "neg_",
    "reciprocal_",
    "relu_",
    "round_",
    "rsqrt_",
    "sigmoid_",
    "sin_",
    "sinh_",
    "sqrt_",
    "square_",
    "tan_",
    "tanh_",
    "trunc_",
    "zero_",
]

Changing: TypeAlias = Callable[..., Tensor]


def _changing(name: str) -> Changing:
    def call(input: Tensor, *args: object, **kwargs: object) -> Tensor:
        changed: Tensor = getattr(input, name)(*args, **kwargs)
        return changed

    call.__name__ = call.__qualname__ = name
    call.__module__ = __name__
    call.__doc__ = f"Change a tensor in place, and return it: ``input.{name}(...)``."
    return call


abs_ = _changing("abs_")
acos_ = _changing("acos_")
asin_ = _changing("asin_")
atan_ = _changing("atan_")
ceil_ = _changing("ceil_")
clamp_ = _changing("clamp_")
clip_ = _changing("clip_")
cos_ = _changing("cos_")
cosh_ = _changing("cosh_")
erf_ = _changing("erf_")
erfc_ = _changing("erfc_")
exp2_ = _changing("exp2_")
exp_ = _changing("exp_")
expm1_ = _changing("expm1_")
fill_ = _changing("fill_")
floor_ = _changing("floor_")
frac_ = _changing("frac_")
log10_ = _changing("log10_")
log1p_ = _changing("log1p_")
log2_ = _changing("log2_")
log_ = _changing("log_")
neg_ = _changing("neg_")
reciprocal_ = _changing("reciprocal_")
relu_ = _changing("relu_")
round_ = _changing("round_")
rsqrt_ = _changing("rsqrt_")
sigmoid_ = _changing("sigmoid_")
sin_ = _changing("sin_")
sinh_ = _changing("sinh_")
sqrt_ = _changing("sqrt_")
square_ = _changing("square_")
tan_ = _changing("tan_")
tanh_ = _changing("tanh_")
trunc_ = _changing("trunc_")
zero_ = _changing("zero_")
