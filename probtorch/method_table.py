"""Which functions are methods of Tensor: one word each, with ``_`` where there is an in-place form.

An in-place form writes what the function returns into the tensor. Methods that are no functions
stand in tensor.py; tensor.pyi tells checkers of all, and a test compares.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType
from probtorch.ops import (
    arithmetic,
    categories,
    cholesky_factors,
    closeness,
    comparisons,
    complex_numbers,
    contraction,
    determinants,
    diagonals,
    exponential_sums,
    exponentials,
    extremes,
    factorisations,
    filling,
    fused,
    gathering,
    in_place_shapes,
    index_keys,
    indexing,
    joining,
    linalg,
    membership,
    movement,
    norms,
    numeric,
    order_statistics,
    orthogonal,
    pieces,
    products,
    pseudoinverses,
    reduction,
    reflections,
    repeating,
    reshaping,
    scans,
    scattered_reductions,
    scattering,
    searching,
    sorting,
    special,
    spectrograms,
    statistics,
    striding,
    trigonometry,
)

__all__ = ["ALIASES", "CONVERSIONS", "METHODS", "OTHER_NAMES", "conversion"]

METHODS: dict[ModuleType, str] = {
    arithmetic: (
        "abs_ cbrt ceil_ clamp_ copysign_ floor_ floor_divide_ fmod_ maximum minimum "
        "mul_ neg_ reciprocal_ relu_ remainder_ round_ rsqrt_ sign_ sqrt_ square_ trunc_"
    ),
    comparisons: (
        "bitwise_and_ bitwise_not_ bitwise_or_ bitwise_xor_ eq_ ge_ gt_ isfinite isinf isnan le_ "
        "logical_and_ logical_not_ logical_or_ logical_xor_ lt_ ne_ signbit"
    ),
    complex_numbers: (
        "angle conj conj_physical_ is_conj is_neg isreal resolve_conj resolve_neg sgn_"
    ),
    exponentials: (
        "exp2_ exp_ expm1_ log10_ log1p_ log2_ log_ log_sigmoid logaddexp pow_ sigmoid_ softplus"
    ),
    trigonometry: (
        "acos_ acosh_ hypot_ asin_ asinh_ atan2_ atan_ atanh_ cos_ cosh_ sin_ sinh_ tan_ tanh_"
    ),
    numeric: (
        "add_ bitwise_left_shift_ bitwise_right_shift_ clamp_max_ clamp_min_ deg2rad_ "
        "float_power fmax fmin frac_ frexp gcd_ heaviside_ isneginf isposinf lcm_ ldexp_ "
        "logaddexp2 nan_to_num_ nextafter_ positive rad2deg_ sub_"
    ),
    special: "digamma_ erf_ erfc_ erfinv_ i0_ lgamma_ logit_ sinc_ xlogy_",
    fused: "addbmm_ addcdiv_ addcmul_ addmm_ addmv_ addr_ baddbmm_ lerp_",
    reduction: "all any cumsum_ mean prod std sum sum_to var",
    extremes: "amax amin argmax argmin max min",
    closeness: "allclose equal isclose",
    exponential_sums: "log_softmax logsumexp softmax",
    statistics: (
        "aminmax corrcoef count_nonzero cov dist mode msort nanmean nanmedian nanquantile nansum "
        "renorm_"
    ),
    norms: "norm",
    movement: "expand flatten movedim permute reshape squeeze swapaxes transpose unsqueeze",
    pieces: "cat chunk flip split unbind",
    diagonals: "diag_embed diagonal tril_ triu_",
    repeating: "repeat roll tile",
    reshaping: (
        "adjoint broadcast_to diag diagflat fliplr flipud narrow_copy ravel rot90 split_with_sizes "
        "sum_to_size t unflatten"
    ),
    joining: "dsplit hsplit tensor_split vsplit",
    gathering: (
        "argwhere gather index_select masked_select narrow repeat_interleave select take "
        "take_along_dim"
    ),
    scattering: (
        "diagonal_scatter index_add_ index_copy_ index_fill_ masked_fill_ masked_scatter_ scatter_ "
        "scatter_add_ select_scatter slice_scatter"
    ),
    scattered_reductions: "index_reduce_ scatter_reduce_",
    striding: "as_strided as_strided_scatter storage_offset unfold",
    index_keys: "nonzero nonzero_static",
    membership: "histogram unique_consecutive",
    indexing: "index_put_",
    reflections: "geqrf ormqr triangular_solve",
    contraction: "bmm dot inner matmul mm mv outer tensordot vdot",
    products: "cross kron matrix_exp",
    linalg: "inv matrix_power trace",
    cholesky_factors: "cholesky cholesky_inverse cholesky_solve",
    spectrograms: "istft stft",
    determinants: "det logdet slogdet",
    orthogonal: "qr",
    pseudoinverses: "pinv",
    sorting: "argsort sort unique",
    order_statistics: "kthvalue median quantile topk",
    searching: "bincount histc",
    scans: "cummax cummin cumprod_ diff logcumsumexp",
    categories: "bernoulli multinomial",
}

# Methods whose function has another name.
OTHER_NAMES = {
    "div_": arithmetic.divide,
    "igamma_": special.gammainc,
    "igammac_": special.gammaincc,
    "mvlgamma_": special.multigammaln,
    "lu": factorisations.lu_pair,
    "lu_solve": factorisations.lu_solve_old,
    "orgqr": reflections.householder_product,
    "put_": scattering.put_flat,
    "svd": reflections.svd_old,
    **{name: getattr(filling, name) for name in filling.__all__},
    **{name: getattr(in_place_shapes, name) for name in in_place_shapes.__all__},
}

# Other names of methods; of those with an in-place form also of that.
ALIASES = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "clip": "clamp",
    "divide": "div",
    "fix": "trunc",
    "ger": "outer",
    "greater": "gt",
    "greater_equal": "ge",
    "inverse": "inv",
    "less": "lt",
    "less_equal": "le",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "pinverse": "pinv",
    "subtract": "sub",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "true_divide": "div",
    "unsafe_chunk": "chunk",
    "unsafe_split": "split",
    "unsafe_split_with_sizes": "split_with_sizes",
}

# Methods that convert to a dtype.
CONVERSIONS = {
    "float": dtypes.float32,
    "double": dtypes.float64,
    "cfloat": dtypes.complex64,
    "cdouble": dtypes.complex128,
    "half": dtypes.float16,
    "long": dtypes.int64,
    "int": dtypes.int32,
    "short": dtypes.int16,
    "char": dtypes.int8,
    "byte": dtypes.uint8,
    "bool": dtypes.bool_,
}


def conversion(name: str, dtype: DType) -> Callable[[TensorBase], TensorBase]:
    """Return the method that converts to a dtype."""

    def method(self: TensorBase) -> TensorBase:
        return cast(self, dtype)

    method.__name__, method.__qualname__, method.__module__ = (
        name,
        f"Tensor.{name}",
        "probtorch.tensor",
    )
    method.__doc__ = f"Return the tensor as {dtype.name}" + (
        ": what is not 0 is True." if dtype.kind == "b" else "."
    )
    return method
