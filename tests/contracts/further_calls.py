"""Calls as in fitting_calls.py, of second names, forms in place, and functions that came later.

The laws of compiled and batched calls are swept over these in the slow tests alone: most are other
names of functions that the default tests sweep.
"""

import functools

import numpy as np

from tests.contracts import fitting_calls
from tests.contracts.fitting_arguments import KINDS, Data

__all__ = ["RECIPES", "draw_call"]


def of(name):
    """Return the recipe of a function, by a second name or in place."""
    return fitting_calls.RECIPES[name]


# Second names, and what they are.
SECOND = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "fix": "trunc",
    "ger": "outer",
    "greater": "gt",
    "greater_equal": "ge",
    "inverse": "linalg.inv",
    "less": "lt",
    "less_equal": "le",
    "matrix_power": "linalg.matrix_power",
    "moveaxis": "movedim",
    "multiply": "mul",
    "negative": "neg",
    "not_equal": "ne",
    "pinverse": "linalg.pinv",
    "row_stack": "vstack",
    "subtract": "sub",
    "swapdims": "transpose",
    "true_divide": "atan2",
    "unsafe_chunk": "chunk",
    "linalg.matrix_exp": "matrix_exp",
    **{
        name: f"functional.{name}"
        for name in """adaptive_avg_pool1d avg_pool1d bilinear celu celu_
        channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
        cosine_similarity group_norm hardshrink layer_norm pairwise_distance pixel_shuffle
        pixel_unshuffle prelu rms_norm selu selu_ threshold threshold_""".split()
    },
    "qr": "linalg.qr",
}

IN_PLACE = """
absolute_ acosh_ addcdiv_ addcmul_ arccos_ arccosh_ arcsin_ arcsinh_ arctan2_ arctan_ arctanh_
asinh_ atan2_ atanh_ bitwise_and_ bitwise_left_shift_ bitwise_not_ bitwise_or_
bitwise_right_shift_ bitwise_xor_ copysign_ cumprod_ cumsum_ deg2rad_ digamma_ divide_ eq_ erfinv_
fix_ floor_divide_ gcd_ ge_ greater_ greater_equal_ gt_ heaviside_ hypot_ i0_ index_fill_ lcm_
ldexp_ le_ lerp_ less_ less_equal_ lgamma_ logical_and_ logical_not_ logical_or_ logical_xor_ logit_
lt_ masked_fill_ masked_scatter_ multiply_ nan_to_num_ ne_ negative_ nextafter_ not_equal_ rad2deg_
renorm_ scatter_ scatter_add_ sgn_ sign_ sinc_ subtract_ tril_ triu_ true_divide_ xlogy_
"""
FUNCTIONS_IN_PLACE = """
abs_ acos_ asin_ atan_ ceil_ cos_ cosh_ erf_ erfc_ exp2_ exp_ expm1_ floor_ frac_ log10_ log1p_
acosh_ arccos_ arccosh_ arcsin_ arcsinh_ arctan_ arctanh_ asinh_ atanh_ deg2rad_ fix_ gcd_ i0_
lcm_ ldexp_ logit_ nan_to_num_ negative_ rad2deg_ sinc_ xlogy_ log2_ log_ neg_ reciprocal_ relu_
round_ rsqrt_ sigmoid_ sin_ sinh_ sqrt_ square_ tan_ tanh_ trunc_
"""


BESSEL = """
special.airy_ai special.bessel_j0 special.bessel_j1
special.bessel_y0 special.bessel_y1 special.modified_bessel_k0
special.modified_bessel_k1 special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1
special.spherical_bessel_j0 special.modified_bessel_i0 special.modified_bessel_i1
"""
POLYNOMIALS = """
special.chebyshev_polynomial_t special.chebyshev_polynomial_u
special.chebyshev_polynomial_v special.chebyshev_polynomial_w
special.hermite_polynomial_h special.hermite_polynomial_he
special.laguerre_polynomial_l special.legendre_polynomial_p
special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u
special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w
"""


def batches(d):
    """Return a matrix to which products of the batches behind it are added."""
    return d.data((2, 4), d.float_dtype())


def flat_places(d):
    high = max(d.x.array.size, 1) if d.x else 6
    return Data(d.rng.integers(-high if d.x else 0, high, 3))


def ranked(d):
    """Return a matrix of rank 3, whose largest singular values random projections find exactly."""
    a = d.rng.standard_normal((6, 3)) @ d.rng.standard_normal((3, 5))
    d.x = Data(a.astype("float64"))
    return d.x


KINDS.update(
    {
        "sum": batches,
        "lefts": lambda d: d.data((3, 2, 5), odd=False),
        "rights": lambda d: d.data((3, 5, 4), odd=False),
        "sums": lambda d: d.data((3, 2, 4), d.float_dtype()),
        "left": lambda d: d.data((2, 5), odd=False),
        "right4": lambda d: d.data((5, 4), odd=False),
        "sum2": lambda d: d.data((2,), d.float_dtype()),
        "mat25": lambda d: d.data((2, 5), odd=False),
        "vec5": lambda d: d.data((5,), odd=False),
        "vec2": lambda d: d.data((2,), odd=False),
        "vec4": lambda d: d.data((4,), odd=False),
        "flat": flat_places,
        "three": lambda d: d.data((3,), d.dtype),
        "like": lambda d: d.data(d.shape, "float32"),
        "slabs": lambda d: d.data((3, 2), d.dtype),
        "table32": lambda d: d.data((3, 2)),
        "places3": lambda d: Data(d.rng.integers(0, 3, 3)),
        "reduce": lambda d: d.pick(["sum", "prod", "mean", "amax", "amin"]),
        "indexed": lambda d: d.pick(["prod", "mean", "amax", "amin"]),
        "chain": lambda d: [
            d.data(s, d.float_dtype(), odd=False) for s in [(2, 3), (3, 4), (4, 2)]
        ],
        "box": lambda d: d.data((2, 3, 6), d.pick(["float32", "float64"]), odd=False),
        "boxed": lambda d: d.data((2, 3), d.dtype, odd=False),
        "eyes": lambda d: d.data((4, 2, 2, 4)[:3], d.pick(["float32", "float64"]), odd=False),
        "pieces": lambda d: d.pick([[d.shape[0]] if d.shape else [1], [1, 1], [0, 2], [1, 2]]),
        "smaller": lambda d: tuple(1 if d.chance(0.4) else n for n in d.shape)[d.chance(0.2) :],
        "edgesf": lambda d: Data(
            d.rng.standard_normal(4).astype(d.pick(["float32", "float64"])).cumsum()
        ),
        "number32": lambda d: d.pick([1, 2.5, -1, True]),
        "grown": lambda d: d.data(d.pick([(5, 3), (7, 2), (3, 3), (2, 4), (2, 2, 2)])),
        "bits": lambda d: d.pick([b"\0\1\2\3\4\5\6\7", bytearray(8)]),
        "counts": lambda d: Data(d.rng.integers(0, 9, 3).astype("float32")),
        "chances": lambda d: Data(d.rng.random(3).astype("float32")),
        "points": lambda d: d.data(d.pick([(5, 2), (2, 3, 2), (4, 2)]), "float64", odd=False),
        "rising2": lambda d: [Data(d.rng.random(4).cumsum() - 1) for _ in range(2)],
        "parts6": lambda d: d.data(d.pick([(6,), (6, 2)]), d.float_dtype()),
        "parts26": lambda d: d.data(d.pick([(2, 6), (2, 6, 3)]), d.float_dtype()),
        "segment": lambda d: d.pick(["sum", "mean", "max", "min", "prod"]),
        "lengths6": lambda d: Data(np.array(d.pick([[2, 4], [0, 6], [1, 2, 3], [6]]))),
        "offsets6": lambda d: Data(np.array(d.pick([[0, 2, 6], [0, 0, 6], [0, 1, 3, 6]]))),
        "lengths26": lambda d: Data(np.array(d.pick([[[2, 4], [1, 5]], [[0, 6], [3, 3]]]))),
        "packed": lambda d: d.data((3, 3), d.pick(["float32", "float64"]), odd=False),
        "packed3": lambda d: d.data((3, 3), d.x.array.dtype, odd=False),
        "exchanges": lambda d: Data(np.array(d.pick([[1, 2, 3], [2, 3, 3], [3, 3, 3]]), "int32")),
        "wide0": lambda d: d.data((2, 3), d.x.array.dtype, odd=False),
        "taus": lambda d: d.data((*d.shape[:-2], 2), d.x.array.dtype, odd=False),
        "solid4": lambda d: d.data((*d.shape[:-2], 4, 4), d.x.array.dtype, odd=False),
        "ranked": ranked,
        "three_of_x": lambda d: d.data(tuple(min(n, 2) for n in d.shape), d.dtype),
        "degree": lambda d: int(d.rng.integers(-1, 12)),
        "degrees": lambda d: Data(np.asarray(d.rng.integers(-1, 8, d.shape), d.x.array.dtype)),
        "test": lambda d: d.data(d.pick([(), (3,), (2, 2)]), d.dtype),
        "rising": lambda d: Data(functools.reduce(lambda a, b: a + b, [d.rng.random(4)]).cumsum()),
    }
)

FURTHER = {
    **{name: of(base) for name, base in SECOND.items()},
    **{f"Tensor.{n}": of(SECOND.get(n[:-1], n[:-1])) for n in IN_PLACE.split()},
    **{n: of(SECOND.get(n[:-1], n[:-1])) for n in FUNCTIONS_IN_PLACE.split()},
    "index_put_": of("index_put"),
    "addmv_": "sum2 mat25 vec5 beta=?number alpha=?number",
    **dict.fromkeys(["clamp_min_", "clamp_max_"], "x number"),
    **dict.fromkeys(
        "angle conj conj_physical real is_conj is_neg resolve_conj resolve_neg".split(), "x"
    ),
    **dict.fromkeys(["detach_", "Tensor.conj_physical_"], "x"),
    "clamp_": "x number number | x min=number",
    "clip_": "x number number | x max=number",
    "fill_": "x number",
    "zero_": "x",
    **dict.fromkeys(
        ["clamp_min", "clamp_max", "Tensor.clamp_min_", "Tensor.clamp_max_"], "x number"
    ),
    "chain_matmul": "*chain",
    **dict.fromkeys(["addbmm", "Tensor.addbmm_"], "sum lefts rights beta=?number alpha=?number"),
    **dict.fromkeys(["baddbmm", "Tensor.baddbmm_"], "sums lefts rights beta=?number alpha=?number"),
    **dict.fromkeys(["addmm", "Tensor.addmm_"], "sum left right4 beta=?number alpha=?number"),
    **dict.fromkeys(["addmv", "Tensor.addmv_"], "sum2 mat25 vec5 beta=?number alpha=?number"),
    **dict.fromkeys(["addr", "Tensor.addr_"], "sum vec2 vec4 beta=?number alpha=?number"),
    **dict.fromkeys(["index_add", "Tensor.index_add_"], "table32 0 places3 slabs alpha=?number"),
    **dict.fromkeys(["index_copy", "Tensor.index_copy_"], "table32 0 places3 slabs"),
    **dict.fromkeys(
        ["index_reduce", "Tensor.index_reduce_"],
        "table32 0 places3 slabs indexed include_self=?flag",
    ),
    **dict.fromkeys(
        ["scatter_reduce", "Tensor.scatter_reduce_"], "x dim index src reduce include_self=?flag"
    ),
    **dict.fromkeys(["put", "Tensor.put_"], "x flat three accumulate=?flag"),
    "Tensor.index_put_": of("index_put"),
    **dict.fromkeys(["Tensor.polygamma", "Tensor.polygamma_"], "positive count"),
    "slice_scatter": "table32 slabs | table32 slabs 0 0 3",
    "select_scatter": "table32 three 1 offset",
    "diagonal_scatter": "table32 vec2",
    "unravel_index": "flat (2,3) | int64 (2,4)",
    "unique_consecutive": "x | x return_inverse=?flag return_counts=?flag dim=?dim",
    "isin": "x test | x test invert=flag",
    "gradient": "grown | grown spacing=number32",
    "histogram": "xf 4 range=(-1.,2.) density=?flag | xf rising",
    "can_cast": "dtype dtype",
    "is_tensor": "x | number",
    "linalg.multi_dot": "chain",
    "linalg.tensorinv": "eyes 1 | eyes",
    "linalg.tensorsolve": "box boxed",
    "linalg.lstsq": "tall tall",
    "cholesky_inverse": "triangle ?flag",
    **dict.fromkeys(["bartlett_window", "blackman_window", "hann_window"], "count ?flag"),
    "hamming_window": "count ?flag ?small",
    "kaiser_window": "count ?flag ?number",
    # Those that came later.
    "t": "x",
    "detach": "x",
    **dict.fromkeys(["igamma", "igammac"], "positive ypos"),
    **dict.fromkeys(["Tensor.igamma_", "Tensor.igammac_"], "positive ypos"),
    **dict.fromkeys(["mvlgamma", "Tensor.mvlgamma_"], "positive count"),
    "diagflat": "x ?offset",
    "narrow_copy": "x dim count count",
    "nonzero_static": "x size=count fill_value=?offset",
    **dict.fromkeys(["split_with_sizes", "unsafe_split_with_sizes"], "x pieces ?dim"),
    "unsafe_split": "x count ?dim",
    "Tensor.sum_to_size": "x smaller",
    "range": "1 5 2 | 0 1 .25 | 5 1 -1 | number 3 | 0 3 dtype=?dtype",
    "scalar_tensor": "number dtype=?dtype",
    "asarray": "list dtype=?dtype | x dtype=?dtype",
    "frombuffer": "bits dtype=dtype | bits dtype=dtype count=count offset=?count",
    **dict.fromkeys(["empty_strided", "empty_permuted"], "(2,3) (1,0)"),
    "randint_like": "x 5 | x 1 5",
    "binomial": "counts chances",
    **dict.fromkeys(["dropout", "alpha_dropout"], "xf small flag"),
    "feature_alpha_dropout": "img1 small flag",
    **dict.fromkeys(["rrelu", "rrelu_"], "xf"),
    **{f"max_pool{n}d": f"img{n} window ?stride ?padding" for n in (1, 2, 3)},
    "Tensor.fill_diagonal_": "grown number ?flag | x number",
    **dict.fromkeys(["Tensor.short", "Tensor.char", "Tensor.byte"], "x"),
    **dict.fromkeys(["Tensor.ndimension", "Tensor.get_device"], "x"),
    "Tensor.__reversed__": "x",
    **dict.fromkeys(["Tensor.__iand__", "Tensor.__ior__", "Tensor.__ixor__"], "int yint | x y"),
    **dict.fromkeys(["Tensor.__ilshift__", "Tensor.__irshift__"], "int yint"),
    "Tensor.__ifloordiv__": "x y",
}
FURTHER |= {
    "as_strided": "x (2,2) (1,1) | x (3,2) (2,1) ?count | x sizes sizes",
    "as_strided_scatter": "table32 vec2 (2,) (3,) | table32 mat25 (2,5) (3,0)",
    "Tensor.unfold": "x dim count two_or_more | x dim 2 1 | x dim 1 2",
    "Tensor.storage_offset": "x",
    **dict.fromkeys(BESSEL.split(), "xf | positive"),
    **dict.fromkeys(POLYNOMIALS.split(), "xf degree | unit degree | xf degrees"),
    "frexp": "x",
    **dict.fromkeys(["Tensor.swapaxes_", "Tensor.transpose_", "Tensor.swapdims_"], "x dim dim"),
    "Tensor.t_": "x",
    "Tensor.squeeze_": "x | x dim",
    "Tensor.unsqueeze_": "x dim",
    "as_strided_": "x (2,2) (1,1) | x (3,2) (2,1)",
    "resize_as_": "x three_of_x",
    "Tensor.resize_": "table32 (2,2) | table32 (1,3)",
    "Tensor.set_": "x src",
    "histogramdd": "points 3 | points (2,4) range=(-1.,1.,0.,2.) density=?flag | points rising2",
    "segment_reduce": "parts6 segment lengths=lengths6 initial=?number "
    "| parts6 segment offsets=offsets6 | parts26 segment lengths=lengths26 axis=1 initial=?number",
    "linalg.lu": "square | tall | wide",
    "lu": "square | tall",
    "linalg.lu_factor": "square | tall | wide",
    "linalg.lu_factor_ex": "square | tall | wide",
    "linalg.lu_solve": "packed exchanges solvee0 left=True adjoint=?flag "
    "| packed exchanges wide0 left=False adjoint=?flag",
    "lu_solve": "solvee0 packed3 exchanges",
    "lu_unpack": "packed exchanges ?flag ?flag",
    "linalg.inv_ex": "square",
    "linalg.solve_ex": "square solvee | square solvee left=flag | square square left=flag",
    "linalg.householder_product": "tall taus",
    "orgqr": "tall taus",
    "ormqr": "tall taus solid4 ?flag ?flag",
    "geqrf": "tall | square | wide",
    "triangular_solve": "solvee0 factor ?flag ?flag ?flag",
    "svd_lowrank": "ranked 3",
    "pca_lowrank": "ranked 3 center=False",
}
RECIPES = fitting_calls.RECIPES | FURTHER


def draw_call(name, seed):
    """Return a random call of one of the functions of `RECIPES`."""
    return fitting_calls.draw_call(name, seed, FURTHER.get(name))
