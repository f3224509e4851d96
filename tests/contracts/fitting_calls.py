"""Calls that probtorch and PyTorch have in common, with arguments at random.

`RECIPES` maps the name of a function to what it is called with: kinds of arguments from `KINDS`,
`name=kind` for those passed by name, a question mark before a kind that is often left out, and
a bar between alternatives. A name without a room is looked up in both libraries, and as a method
of Tensor where both have one; `special.`, `linalg.`, `functional.` and `Tensor.` say the room.
`draw_call` makes the arguments, which are plain until `Call.arguments` hands them to one library.

Most arguments fit together, so that most calls are answered; one in twenty does not. Shapes have no
dims, no elements and sizes 1 among them; dtypes are all that both have; floats have nan, infinities
and zeros among them; half of what has dims is strided.
"""

import dataclasses

from tests.contracts.fitting_arguments import KINDS, Data, Draw, DType

UNARY = """
abs acos acosh asin asinh atan atan2 atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1
floor i0 isfinite isinf isnan lgamma log log10 log1p log2 logical_not neg reciprocal relu round
rsqrt sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc clone bitwise_not logit
special.digamma special.entr special.erf special.erfc special.erfcx special.erfinv special.exp2
special.expit special.expm1 special.gammaln special.i0 special.i0e special.i1 special.i1e
special.log1p special.log_ndtr special.logit special.ndtr special.ndtri special.psi
special.round special.sinc zeros_like ones_like functional.logsigmoid functional.mish
functional.relu functional.relu6 functional.selu functional.sigmoid functional.silu
functional.softsign functional.tanh functional.tanhshrink functional.hardsigmoid
functional.hardswish functional.gelu functional.elu functional.celu functional.hardshrink
functional.softshrink functional.hardtanh functional.leaky_relu functional.softplus
Tensor.absolute Tensor.bool Tensor.contiguous Tensor.cpu Tensor.detach Tensor.dim Tensor.double
Tensor.float Tensor.half Tensor.int Tensor.is_contiguous Tensor.is_floating_point Tensor.item
Tensor.long Tensor.negative Tensor.nelement Tensor.numel Tensor.size Tensor.stride Tensor.t
Tensor.tolist Tensor.element_size Tensor.abs_ Tensor.ceil_ Tensor.cos_ Tensor.exp_ Tensor.expm1_
Tensor.floor_ Tensor.log1p_ Tensor.log_ Tensor.neg_ Tensor.reciprocal_ Tensor.relu_
Tensor.round_ Tensor.rsqrt_ Tensor.sigmoid_ Tensor.sin_ Tensor.sqrt_ Tensor.square_ Tensor.tanh_
Tensor.trunc_ Tensor.zero_ nonzero trace Tensor.numpy Tensor.requires_grad_ Tensor.detach_
"""
BINARY = """
add sub mul div atan2 copysign eq ne lt le gt ge floor_divide fmod remainder logical_and
logical_or logical_xor logaddexp maximum minimum pow xlogy special.xlog1py special.xlogy
special.zeta special.gammainc special.gammaincc Tensor.arctan2 Tensor.greater Tensor.less
Tensor.multiply Tensor.subtract Tensor.divide Tensor.true_divide Tensor.add_ Tensor.sub_
Tensor.mul_ Tensor.div_ Tensor.fmod_ Tensor.remainder_ Tensor.pow_ Tensor.__add__ Tensor.__sub__
Tensor.__mul__ Tensor.__truediv__ Tensor.__floordiv__ Tensor.__mod__ Tensor.__pow__
Tensor.__eq__ Tensor.__lt__ equal allclose isclose
"""
REVERSED = """
Tensor.__radd__ Tensor.__rsub__ Tensor.__rtruediv__ Tensor.__rfloordiv__ Tensor.__rmod__
Tensor.__rpow__
"""

# What these answer is drawn, or whatever was in memory.
RANDOM = set(
    "multinomial bernoulli poisson rand_like randn_like empty_like rand randn empty randint "
    "randperm normal functional.dropout functional.alpha_dropout functional.dropout1d "
    "functional.dropout2d functional.dropout3d functional.feature_alpha_dropout "
    "functional.gumbel_softmax dropout alpha_dropout feature_alpha_dropout rrelu rrelu_ binomial "
    "randint_like empty_strided empty_permuted".split()
)

RECIPES = {
    **dict.fromkeys(UNARY.split(), "x"),
    **dict.fromkeys(BINARY.split(), "x y"),
    **dict.fromkeys(REVERSED.split(), "x number"),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], "int yint | x y"),
    **dict.fromkeys(["Tensor.__and__", "Tensor.__or__", "Tensor.__xor__"], "int yint | x y"),
    **dict.fromkeys(["Tensor.__lshift__", "Tensor.__rshift__"], "int yint"),
    "div": "x y | x y rounding_mode=rounding",
    **dict.fromkeys(["all", "any", "amax", "amin"], "x | x dims keepdim=?flag"),
    **dict.fromkeys(["argmax", "argmin", "max", "min", "median"], "x | x dim ?flag | x src"),
    "median": "x | x dim ?flag",
    "argmax": "x | x dim ?flag",
    "argmin": "x | x dim ?flag",
    **dict.fromkeys(["sum", "mean"], "x dtype=?dtype | x dims ?flag dtype=?float"),
    "prod": "x | x dim ?flag",
    **dict.fromkeys(["var", "std"], "xf | xf dims correction=?correction keepdim=?flag"),
    **dict.fromkeys(["logsumexp", "special.logsumexp"], "xf dims ?flag"),
    **dict.fromkeys(["softmax", "log_softmax"], "xf dim | x dim"),
    **dict.fromkeys(["special.softmax", "special.log_softmax"], "xf dim"),
    **dict.fromkeys(["functional.softmax", "functional.log_softmax"], "xf dim dtype=?float"),
    "functional.softmin": "xf dim",
    "norm": "xf ?p | xf p dims ?flag",
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin"], "x dim"),
    "logcumsumexp": "xf dim",
    "diff": "x ?count ?dim",
    "trapezoid": "x ?yf dim=?dim | x dx=small dim=?dim",
    "quantile": "xf q dim=?dim keepdim=?flag interpolation=?interpolation",
    "histc": "xf bins=count min=number max=number | xf 4",
    "bincount": "indices ?weights minlength=?count | x",
    "unique": "x | x return_inverse=?flag return_counts=?flag dim=?dim",
    "clamp": "x number number | x min=number | x max=number | x yf yf | x y",
    "Tensor.clamp_": "x number number | x min=number",
    "Tensor.clip": "x number number | x max=number",
    "where": "bool y y | bool | x y y",
    "Tensor.where": "x mask y",
    "masked_select": "x mask",
    "gather": "x row index",
    "scatter": "x row index src | x row index number",
    "index_select": "x row positions",
    "index_put": "vecx posx values0",
    "kthvalue": "x 1 dim ?flag | x count ?dim",
    "sort": "x | x dim descending=?flag",
    "argsort": "x | x dim descending=?flag",
    "topk": "x 1 dim | x count largest=?flag | x 1 dim flag",
    "searchsorted": "edges values right=?flag",
    "bucketize": "values_first edges right=?flag",
    **dict.fromkeys(["dot", "vdot"], "vec vec"),
    "inner": "vec vec | mat mat2 | scalar vec",
    "outer": "vec anyvec",
    "mv": "mat rightvec",
    "mm": "mat right",
    "bmm": "batch batchright",
    "matmul": "mat right | vec vec | mat rightvec | batch anymat | vec anymat | mat anymat | x y",
    "linalg.matmul": "mat right | batch batchright",
    "tensordot": "mat right 1 | mat mat2 dims=2 | vec vec dims=0",
    "einsum": "*einsum",
    **dict.fromkeys(["tril", "triu", "diag"], "mat ?offset | x ?offset"),
    "diag_embed": "x ?offset",
    "diagonal": "mat ?offset | x offset dim dim",
    "linalg.diagonal": "mat offset=?offset",
    "flatten": "x | x dim dim",
    "flip": "x dims | x (0,)",
    "movedim": "x dim dim | mat (0,1) (1,0)",
    "permute": "x permuted",
    "reshape": "x reshaped",
    "Tensor.view": "x reshaped",
    "roll": "x shift | x shift dim",
    **dict.fromkeys(["split", "chunk"], "x parts ?row"),
    "chunk": "x count | x 2 dim | x 3",
    "squeeze": "x | x dims",
    **dict.fromkeys(["swapaxes", "transpose"], "x dim dim"),
    "unsqueeze": "x dim",
    "unbind": "x | x dim",
    "tile": "x tile | x reps",
    "Tensor.repeat": "x reps",
    "Tensor.expand": "x expanded | x one_sizes",
    **dict.fromkeys(["Tensor.expand_as", "Tensor.view_as", "Tensor.reshape_as"], "x src | x y"),
    "Tensor.type_as": "x y",
    "Tensor.type": "x dtype",
    "Tensor.to": "x dtype | x src",
    "Tensor.fill_": "x number | x y",
    "Tensor.copy_": "x y",
    "Tensor.new_full": "x sizes number",
    **dict.fromkeys(["Tensor.new_ones", "Tensor.new_zeros"], "x sizes"),
    "Tensor.new_tensor": "x list",
    "Tensor.size": "x | x dim",
    "Tensor.stride": "x | x dim",
    "cat": "tensors ?dim | same_tensors dim",
    "stack": "same_tensors ?dim | tensors",
    "meshgrid": "*vectors indexing=indexing",
    "broadcast_tensors": "*same_tensors | *tensors",
    "full_like": "x number",
    "tensor": "list dtype=?dtype",
    "as_tensor": "list dtype=?dtype",
    "arange": "5 | 1 5 2 | 0 1 .25 | 5 dtype=dtype | 2.5 | 5 1 -1 | number 3",
    "linspace": "0 1 5 | 0 1 5 dtype=dtype | number number count | -2 7 4 dtype=dtype",
    "logspace": "0 1 5 | 0 2 3 dtype=dtype",
    "eye": "3 | count count dtype=?dtype",
    **dict.fromkeys(["zeros", "ones"], "sizes dtype=?dtype"),
    "full": "sizes number dtype=?dtype",
    **dict.fromkeys(["tril_indices", "triu_indices"], "count count offset"),
    "broadcast_shapes": "sizes shapes | sizes sizes",
    "promote_types": "dtype dtype",
    "multinomial": "unit 1 | unit 2 flag",
    "bernoulli": "unit",
    "poisson": "positive",
    **dict.fromkeys(["rand_like", "randn_like"], "xf dtype=?float"),
    "empty_like": "x dtype=?dtype",
    **dict.fromkeys(["rand", "randn", "empty"], "sizes dtype=?float"),
    "randint": "0 5 sizes | 5 sizes",
    "randperm": "count",
    "normal": "xf ypos | 0.0 positive",
    "polygamma": "count xf",
    "special.polygamma": "count xf",
    "special.multigammaln": "positive count",
    **dict.fromkeys(["special.gammainc", "special.gammaincc"], "positive ypos | x y"),
    "special.entr": "x | positive",
    "special.ndtri": "unit | x",
    "erfinv": "unit | x",
    "logit": "unit ?small | x",
    **dict.fromkeys(["det", "logdet", "slogdet", "linalg.det", "linalg.slogdet"], "square | spd"),
    **dict.fromkeys(["cholesky", "linalg.cholesky"], "spd upper=?flag | square"),
    "linalg.cholesky_ex": "spd upper=?flag | square",
    "cholesky_solve": "solvee0 factor ?flag",
    "Tensor.cholesky_inverse": "triangle ?flag",
    "linalg.inv": "square | wide",
    "linalg.solve": "square solvee | square vec | square square",
    "linalg.solve_triangular": "triangle solvee upper=flag left=?flag unitriangular=?flag",
    "linalg.eigh": "spd",
    "linalg.eigvalsh": "spd",
    "linalg.qr": "square | tall | wide",
    "linalg.svd": "square full_matrices=flag | tall full_matrices=no",
    "Tensor.svd": "square | tall | wide | tall compute_uv=no",
    "Tensor.qr": "square | tall | wide",
    "svd": "square | tall | wide | tall compute_uv=no",
    "linalg.svdvals": "square | tall | wide",
    "linalg.pinv": "square | tall | wide",
    "linalg.matrix_norm": "square ?ord | wide ?ord | tall ord",
    "linalg.matrix_power": "square power",
    "Tensor.matrix_power": "square power",
    "linalg.matrix_rank": "square | tall | wide",
    "functional.celu": "x ?positive_number",
    "functional.elu": "x ?number",
    "functional.hardshrink": "x ?number",
    "functional.softshrink": "x ?positive_number",
    "functional.hardtanh": "x | x -2.0 .5",
    "functional.leaky_relu": "x ?number",
    "functional.softplus": "xf ?positive_number",
    "functional.threshold": "x number number",
    "functional.gelu": "xf | xf approximate=gelu",
    "functional.glu": "even ?dim",
    "functional.prelu": "xf onesize | img2 channels",
    "functional.rrelu": "xf",
    "functional.one_hot": "int64 6 | int64 | indices 6 | int 6",
    "functional.pad": "x pads | img2 (1,1,2,0) mode | img1 (1,2) mode | img3 (1,1,1,1,0,2) mode",
    "functional.embedding": "rows table | rows table padding_idx=1 | rows table max_norm=1.0",
    "functional.embedding_bag": "bags table mode=?bag_mode | bag table begins mode=?bag_mode "
    "padding_idx=1 | bag table begins mode='sum' per_sample_weights=weights "
    "| bag table ends include_last_offset=True | bag table begins scale_grad_by_freq=True",
    "functional.linear": "mat lw | mat lw two | batch lw two | vec lw",
    "functional.bilinear": "finite finite blw | finite finite blw two",
    "functional.layer_norm": "xf of_last | xf of_last affine affine | mat (3,)",
    "functional.rms_norm": "xf of_last | xf of_last affine",
    "functional.group_norm": "img1 group | img2 group channels channels",
    "functional.instance_norm": "img1 | img2 | img2 channels variances use_input_stats=flag",
    "functional.batch_norm": "img1 channels variances | img2 channels variances channels channels "
    "training=flag | logits channels variances channels channels training=flag",
    "functional.normalize": "mat ?pinf | x pinf dim",
    "functional.cosine_similarity": "mat yf ?dim | x y dim=dim",
    "functional.pairwise_distance": "mat yf ?pinf keepdim=?flag | vec vec",
    **{
        f"functional.conv{n}d": f"img{n} ker{n} ?two stride=?stride padding=?padding "
        f"dilation=?stride | img{n} gker{n} groups=2 | img{n} ker{n} padding='same'"
        for n in (1, 2, 3)
    },
    **{
        f"functional.conv_transpose{n}d": f"img{n} tker{n} ?two stride=?stride padding=?padding "
        f"dilation=?stride | img{n} tker{n} groups=2 stride=2 output_padding=1"
        for n in (1, 2, 3)
    },
    **{
        f"functional.max_pool{n}d": f"img{n} window ?stride padding=?padding dilation=?stride "
        "ceil_mode=?flag return_indices=?flag"
        for n in (1, 2, 3)
    },
    **{
        f"functional.avg_pool{n}d": f"img{n} window ?stride ?padding ceil_mode=?flag "
        "count_include_pad=?flag"
        for n in (1, 2, 3)
    },
    **{f"functional.adaptive_avg_pool{n}d": f"img{n} out1" for n in (1, 2, 3)},
    **{f"functional.adaptive_max_pool{n}d": f"img{n} out1 ?flag" for n in (1, 2, 3)},
    **{f"functional.lp_pool{n}d": f"img{n} pinf window stride=?stride" for n in (1, 2, 3)},
    **{f"functional.adaptive_max_pool{n}d_with_indices": f"img{n} out1" for n in (1, 2, 3)},
    **{f"functional.max_pool{n}d_with_indices": f"img{n} window ?stride" for n in (1, 2, 3)},
    **{
        f"functional.max_unpool{n}d": f"img{n} pooled 2 | img{n} pooled 3 stride=?stride padding=1"
        for n in (1, 2, 3)
    },
    **{
        f"functional.fractional_max_pool{n}d{end}": f"img{n} 2 2 _random_samples=draws{n} | "
        f"img{n} 2 output_ratio=.6 _random_samples=draws{n}"
        for n in (2, 3)
        for end in ("", "_with_indices")
    },
    **dict.fromkeys(
        [f"functional.{name}_" for name in ("relu", "selu", "rrelu", "elu", "celu", "leaky_relu")],
        "xf",
    ),
    "functional.hardtanh_": "xf | xf -2.0 .5",
    "functional.threshold_": "xf number number",
    "functional.channel_shuffle": "img1 2 | img2 4 | img2 3",
    "functional.local_response_norm": "img1 2 | img2 3 ?small | img3 5 ?small ?small",
    "functional.triplet_margin_with_distance_loss": "mat yf yf swap=?flag reduction=?reduction",
    "functional.feature_alpha_dropout": "img1 small training=flag",
    "functional.pdist": "solid ?pinf",
    "functional.fold": "folded (4,4) 2 stride=2 | folded (3,3) 2",
    "functional.unfold": "img2 2 stride=?stride padding=?padding dilation=?stride",
    "functional.pixel_shuffle": "img2 2 | img2 1 | x 2",
    "functional.pixel_unshuffle": "shuffled 2 | img2 2",
    "functional.interpolate": "img1 out1 | img1 out1 mode='linear' align_corners=?flag "
    "| img2 (3,7) mode='bicubic' align_corners=?flag | img2 scale_factor=1.5 mode='bilinear' "
    "| img3 scale_factor=2 | img3 out1 mode='trilinear' | img2 out1 mode='area' "
    "| img2 (5,2) mode='bilinear' antialias=True | img2 out1 mode='nearest-exact'",
    "functional.upsample": "img2 out1 | img2 scale_factor=2 mode='bilinear'",
    "functional.upsample_nearest": "img1 out1 | img3 scale_factor=2",
    "functional.upsample_bilinear": "img2 out1 | img2 scale_factor=2",
    "functional.grid_sample": "img2 places grid_mode border align_corners=flag "
    "| img3 places align_corners=flag",
    "functional.affine_grid": "theta (2,1,3,4) align_corners=?flag | theta3 (1,2,2,3,2)",
    "functional.scaled_dot_product_attention": "query key key | query query query is_causal=flag "
    "| query key key scale=small",
    "functional.cross_entropy": "logits classes reduction=?reduction label_smoothing=?small "
    "| logits classes four | logits classes ignore_index=1 | logits probs",
    "functional.nll_loss": "logits classes reduction=?reduction | logits classes four",
    "functional.multi_margin_loss": "few classes reduction=?reduction | few classes 2",
    "functional.multilabel_margin_loss": "few class_flags reduction=?reduction",
    "functional.multilabel_soft_margin_loss": "mat yunit reduction=?reduction",
    **dict.fromkeys(
        ["functional.mse_loss", "functional.l1_loss", "functional.smooth_l1_loss"],
        "x loss reduction=?reduction",
    ),
    "functional.smooth_l1_loss": "xf loss beta=?small | xf loss reduction=reduction",
    "functional.huber_loss": "xf loss delta=?small | xf loss reduction=reduction",
    "functional.soft_margin_loss": "xf signs reduction=?reduction",
    "functional.hinge_embedding_loss": "xf signs ?small reduction=?reduction",
    "functional.margin_ranking_loss": "xf yf signs ?small reduction=?reduction",
    "functional.cosine_embedding_loss": "mat yf rowsigns ?small reduction=?reduction",
    "functional.triplet_margin_loss": "mat yf yf p=?pinf swap=?flag reduction=?reduction",
    "functional.binary_cross_entropy": "unit yunit reduction=?reduction | xf yf",
    "functional.binary_cross_entropy_with_logits": "xf yunit reduction=?reduction | xf yf yf",
    "functional.ctc_loss": "logp labels (5,3) (3,1) reduction=?reduction zero_infinity=?flag "
    "| logp labels (5,1) (3,2) 0 reduction | logp joined (4,5) (1,3)",
    "functional.kl_div": "xf yunit reduction=?reduction | xf yf log_target=True",
    "functional.poisson_nll_loss": "xf ypos log_input=?flag full=?flag reduction=?reduction",
    "functional.gaussian_nll_loss": "mat yf ypos full=?flag reduction=?reduction",
    "functional.dropout": "xf small training=flag",
    "functional.alpha_dropout": "xf small training=flag",
    **{f"functional.dropout{n}d": f"img{n} small training=flag" for n in (1, 2, 3)},
    "functional.gumbel_softmax": "logits hard=?flag",
    "Tensor.__getitem__": "x item",
    "Tensor.__setitem__": "x item number | x item one",
    "Tensor.__matmul__": "mat right | vec vec | mat anymat",
    "Tensor.__neg__": "x",
    "Tensor.__invert__": "int | x",
    "Tensor.__len__": "x",
    "Tensor.__bool__": "x",
    "Tensor.__float__": "onesize",
    "Tensor.__int__": "onesize",
    "Tensor.__index__": "onesize",
    "Tensor.__contains__": "x number",
}


# Those of the rooms of ops that are made of other functions.
RECIPES |= {
    **dict.fromkeys(
        "deg2rad rad2deg frac sgn positive isneginf isposinf isreal nan_to_num ravel adjoint "
        "fliplr flipud msort count_nonzero nansum nanmean nanmedian is_floating_point is_nonzero "
        "numel is_signed is_complex atleast_1d atleast_2d atleast_3d argwhere".split(),
        "x",
    ),
    **dict.fromkeys("fmax fmin logaddexp2 float_power ldexp".split(), "x y"),
    **dict.fromkeys("hypot nextafter heaviside".split(), "x src"),
    **dict.fromkeys("gcd lcm bitwise_left_shift bitwise_right_shift".split(), "int yint"),
    "rsub": "x y",
    **dict.fromkeys("result_type is_same_size".split(), "x y"),
    **dict.fromkeys("hstack vstack dstack column_stack".split(), "same_tensors"),
    "block_diag": "*vectors",
    "cartesian_prod": "*vectors",
    "combinations": "vec r=?count with_replacement=?flag",
    "tensor_split": "x count dim=?dim",
    **dict.fromkeys("hsplit vsplit dsplit".split(), "x count"),
    "broadcast_to": "x expanded",
    "rot90": "x k=?offset",
    "unflatten": "x dim reshaped",
    "narrow": "x dim count count",
    "select": "x dim offset",
    "take": "x rows",
    "take_along_dim": "x index dim=?dim",
    "repeat_interleave": "x count dim=?dim",
    "masked_fill": "x mask number",
    "masked_scatter": "x mask src",
    "scatter_add": "x dim index src",
    "index_fill": "x dim positions number",
    **dict.fromkeys(["aminmax"], "x dim=?dim keepdim=?flag"),
    "mode": "x ?dim ?flag",
    "nanquantile": "xf q dim=?dim keepdim=?flag interpolation=?interpolation",
    **dict.fromkeys(["std_mean", "var_mean"], "xf | xf dims correction=?correction keepdim=?flag"),
    "cov": "x correction=?correction",
    "corrcoef": "xf",
    "dist": "xf src ?p",
    "renorm": "xf p dim positive_number",
    "lerp": "xf src positive_number | xf src src",
    "addcmul": "x src src value=?count",
    "addcdiv": "xf src src value=?number",
    "cross": "x src dim=?dim",
    "kron": "x y",
    "cdist": "mat src p=?pinf",
    "pdist": "solid p=?pinf",
    "vander": "vec N=?count increasing=?flag",
    "matrix_exp": "square",
    "trapz": "x ?yf dim=?dim | x dx=small dim=?dim",
    "cumulative_trapezoid": "x ?yf dim=?dim | x dx=small dim=?dim",
    "linalg.cond": "square",
    "linalg.vecdot": "x src dim=?dim",
    "linalg.vector_norm": "xf ?p",
    "linalg.norm": "xf | square ord",
    "linalg.vander": "x N=?two_or_more",
    "linalg.cross": "x src dim=?dim",
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A function's name, the arguments, and whether it is called as a method."""

    name: str
    args: tuple
    options: dict

    def __repr__(self):
        inside = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.options.items()]
        return f"{self.name}({', '.join(inside)})"

    def leaves(self):
        """Return the tensors among the arguments, in order."""
        out = []

        def visit(a):
            if isinstance(a, Data):
                out.append(a)
            elif isinstance(a, (list, tuple)):
                for v in a:
                    visit(v)

        visit([*self.args, *self.options.values()])
        return out

    def arguments(self, room):
        """Return the arguments as objects of a library, and the list of tensors among them."""
        tensors = []

        def make(a):
            if isinstance(a, Data):
                tensors.append(a.tensor(room))
                return tensors[-1]
            if isinstance(a, DType):
                return getattr(room, a.name)
            if isinstance(a, (list, tuple)):
                return type(a)(make(v) for v in a)
            return a

        return [make(a) for a in self.args], {k: make(v) for k, v in self.options.items()}, tensors


def _constant(text):
    try:
        return eval(text, {"__builtins__": {}})
    except (NameError, SyntaxError):
        return None


def draw_call(name, seed, recipe=None):
    """Return a random call of one of the functions of `RECIPES`, or by another recipe."""
    d = Draw([seed, *name.encode()])
    tokens = d.pick((recipe or RECIPES[name]).split(" | ")).split()
    args, options = [], {}
    for token in tokens:
        key, _, kind = token.rpartition("=")
        if kind.startswith("?"):
            kind = kind[1:]
            if d.chance(0.5):
                if key:
                    continue
                break
        spread = kind.startswith("*")
        kind = kind.lstrip("*")
        value = KINDS[kind](d) if kind in KINDS else _constant(kind)
        if key:
            options[key] = value
        elif spread:
            args += value
        else:
            args.append(value)
    return Call(name, tuple(args), options)
