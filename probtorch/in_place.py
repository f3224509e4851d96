"""Functions that change their first operand: ``sqrt_(x)`` is ``x.sqrt_()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from probtorch.tensor import Tensor

__all__ = [
    "abs_",
    "acos_",
    "acosh_",
    "addmv_",
    "arccos_",
    "arccosh_",
    "arcsin_",
    "arcsinh_",
    "arctan_",
    "arctanh_",
    "as_strided_",
    "asin_",
    "asinh_",
    "atan_",
    "atanh_",
    "ceil_",
    "clamp_",
    "clamp_max_",
    "clamp_min_",
    "clip_",
    "cos_",
    "cosh_",
    "deg2rad_",
    "detach_",
    "erf_",
    "erfc_",
    "exp2_",
    "exp_",
    "expm1_",
    "fill_",
    "fix_",
    "floor_",
    "frac_",
    "gcd_",
    "i0_",
    "index_put_",
    "lcm_",
    "ldexp_",
    "log1p_",
    "log2_",
    "log10_",
    "log_",
    "logit_",
    "nan_to_num_",
    "neg_",
    "negative_",
    "rad2deg_",
    "reciprocal_",
    "relu_",
    "resize_as_",
    "round_",
    "rsqrt_",
    "sigmoid_",
    "sin_",
    "sinc_",
    "sinh_",
    "sqrt_",
    "square_",
    "tan_",
    "tanh_",
    "trunc_",
    "xlogy_",
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
acosh_ = _changing("acosh_")
addmv_ = _changing("addmv_")
arccos_ = _changing("arccos_")
arccosh_ = _changing("arccosh_")
arcsin_ = _changing("arcsin_")
arcsinh_ = _changing("arcsinh_")
arctan_ = _changing("arctan_")
arctanh_ = _changing("arctanh_")
as_strided_ = _changing("as_strided_")
asin_ = _changing("asin_")
asinh_ = _changing("asinh_")
atan_ = _changing("atan_")
atanh_ = _changing("atanh_")
ceil_ = _changing("ceil_")
clamp_ = _changing("clamp_")
clamp_max_ = _changing("clamp_max_")
clamp_min_ = _changing("clamp_min_")
clip_ = _changing("clip_")
cos_ = _changing("cos_")
cosh_ = _changing("cosh_")
deg2rad_ = _changing("deg2rad_")
detach_ = _changing("detach_")
erf_ = _changing("erf_")
erfc_ = _changing("erfc_")
exp2_ = _changing("exp2_")
exp_ = _changing("exp_")
expm1_ = _changing("expm1_")
fill_ = _changing("fill_")
fix_ = _changing("fix_")
floor_ = _changing("floor_")
frac_ = _changing("frac_")
gcd_ = _changing("gcd_")
i0_ = _changing("i0_")
index_put_ = _changing("index_put_")
lcm_ = _changing("lcm_")
ldexp_ = _changing("ldexp_")
log10_ = _changing("log10_")
log1p_ = _changing("log1p_")
log2_ = _changing("log2_")
log_ = _changing("log_")
logit_ = _changing("logit_")
nan_to_num_ = _changing("nan_to_num_")
neg_ = _changing("neg_")
negative_ = _changing("negative_")
rad2deg_ = _changing("rad2deg_")
reciprocal_ = _changing("reciprocal_")
relu_ = _changing("relu_")
resize_as_ = _changing("resize_as_")
round_ = _changing("round_")
rsqrt_ = _changing("rsqrt_")
sigmoid_ = _changing("sigmoid_")
sin_ = _changing("sin_")
sinc_ = _changing("sinc_")
sinh_ = _changing("sinh_")
sqrt_ = _changing("sqrt_")
square_ = _changing("square_")
tan_ = _changing("tan_")
tanh_ = _changing("tanh_")
trunc_ = _changing("trunc_")
xlogy_ = _changing("xlogy_")
zero_ = _changing("zero_")
