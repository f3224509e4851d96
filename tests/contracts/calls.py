"""Calls of every public function on tensors with odd arguments, for laws that sweep them.

`FUNCTIONS` maps a name to a function: ops, special functions, linear algebra, `nn.functional` and
methods of Tensor. `random_call` draws arguments for one from `POOLS`, by the name of the parameter:
wrong ranks and dtypes, no elements, 0-d, strided, integers, booleans, nan and infinities, things
that are no tensors. Only what a parameter's name does not tell is listed. `misfit_call` puts in the
place of one argument something of `MISFITS`.
"""

import inspect

import numpy as np

import probtorch
from probtorch import linalg, special
from probtorch.nn import functional
from probtorch.tensor import Tensor

SHAPES = [
    (),
    (0,),
    (1,),
    (3,),
    (2, 3),
    (3, 3),
    (2, 0),
    (0, 3),
    (2, 3, 3),
    (1, 4, 4, 4),
    (1, 2, 3, 3, 3),
]
DTYPES = ["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"]
_ROOMS = ("probtorch.ops.", "probtorch.nn.functional.", "probtorch.factories", "probtorch.tensor")
# They run what they are given, end the program, or are no operations.
_OTHERS = {
    "cond",
    "while_loop",
    "safe_where",
    "scan",
    "from_dlpack",
    "register_hook",
    "backward",
    "share_memory_",
    "apply_",
    "map_",
}


def _public(room, names):
    for name in names:
        fn = getattr(room, name, None)  # instances alone have some
        home = getattr(fn, "__module__", None) or ""
        if inspect.isfunction(fn) and home.startswith(_ROOMS) and name not in _OTHERS:
            yield name, fn


def _collect():
    out, seen = {}, set()
    for label, room in [("", probtorch), ("special.", special), ("linalg.", linalg)]:
        for name, fn in _public(room, getattr(room, "__all__", None) or dir(room)):
            out[label + name] = fn
    for name, fn in _public(functional, functional.__all__):
        out["functional." + name] = fn
    methods = (n for n in dir(Tensor) if not n.startswith("_"))
    for name, fn in _public(Tensor, methods):
        out["Tensor." + name] = fn
    for name in list(out):
        if out[name] in seen:
            del out[name]
        else:
            seen.add(out[name])
    return out


FUNCTIONS = _collect()


def array(rng, shape, dtype, odd=True):
    """Return random numbers of a dtype; `odd` floats have nan, infinities and zeros among them."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind != "f":
        return rng.integers(0 if dtype.kind == "u" else -2, 4, shape).astype(dtype)
    x = rng.standard_normal(shape).astype(dtype)
    if odd and rng.random() < 0.3:
        x[rng.random(shape) < 0.3] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0])
    return x


def strided(rng, x):
    """Return `x` or a view of the same elements that is not contiguous."""
    kind = rng.integers(4)
    if not x.ndim or kind < 2:
        return x
    if kind == 2:
        return np.repeat(x, 2, -1)[..., ::2]
    return np.ascontiguousarray(x.T).T


def odd_tensor(rng):
    """Return a tensor of any shape and dtype, seldom something that is no tensor."""
    if rng.random() < 0.06:
        return [2.5, 3, True, "text", None, [1.0, 2.0], [[1.0], [2.0, 3.0]], np.ones(3), {}][
            rng.integers(9)
        ]
    shape = SHAPES[rng.integers(len(SHAPES))]
    dtype = DTYPES[rng.integers(len(DTYPES))] if rng.random() < 0.5 else "float32"
    return probtorch.from_numpy(strided(rng, array(rng, shape, dtype)))


def index_tensor(rng):
    """Return a tensor of small integers."""
    shape = SHAPES[rng.integers(6)]
    return probtorch.from_numpy(rng.integers(-1, 4, shape))


def _one_of(*values):
    return lambda rng: values[rng.integers(len(values))]


def _tensors(rng):
    return [odd_tensor(rng) for _ in range(rng.integers(4))]


_DIM = _one_of(0, 0, -1, 1, -2, 2, 7)
_DIMS = _one_of(0, -1, (0,), (0, 1), (-1, -2), (0, 0), (5,), ())
_SIZE = _one_of(1, 2, 3, 0, -1, (2,), (2, 2), (1, 1, 1))
_NUMBER = _one_of(0.5, 1, 0, -1.0, float("nan"))
_FLAG = _one_of(True, False)
POOLS = {
    **dict.fromkeys("dim dim0 dim1 dim2 start_dim end_dim".split(), _DIM),
    **dict.fromkeys("dims axis source destination shifts".split(), _DIMS),
    **dict.fromkeys("size sizes shape kernel_size output_size stride repeats".split(), _SIZE),
    **dict.fromkeys("padding dilation output_padding pad normalized_shape".split(), _SIZE),
    **dict.fromkeys(
        "n m k steps chunks split_size num_samples num_groups groups upscale_factor diagonal row "
        "downscale_factor num_classes minlength bins offset correction ignore_index".split(),
        _one_of(1, 2, 0, 3, -1),
    ),
    **dict.fromkeys("alpha beta lambd threshold value eps margin delta tau".split(), _NUMBER),
    **dict.fromkeys(
        "negative_slope momentum label_smoothing dropout_p rtol atol dx".split(), _NUMBER
    ),
    **dict.fromkeys(
        "fill_value start end step base low high mean std min max min_val".split(), _NUMBER
    ),
    **dict.fromkeys("max_val lower upper norm_type q".split(), _NUMBER),
    **dict.fromkeys(
        "keepdim keepdims descending largest sorted training ceil_mode right inplace replacement "
        "return_indices return_inverse return_counts hard left unitriangular accumulate full "
        "log_input log_target swap unbiased is_causal count_include_pad bias_first".split(),
        _FLAG,
    ),
    **dict.fromkeys("tensors operands".split(), _tensors),
    "index": index_tensor,
    "indices": lambda rng: tuple(index_tensor(rng) for _ in range(rng.integers(3))),
    "equation": _one_of("ij,jk->ik", "i,i->", "ii", "...i->i", "ij->", "a,b", ""),
    "indices_or_sections": _one_of(1, 2, 3, 0, [1, 2], (1,), 0.5, [[1]]),
    "ord": _one_of("fro", "nuc", 2, 1, float("inf"), "x"),
    "reduction": _one_of("mean", "sum", "none", "x"),
    "mode": _one_of("constant", "reflect", "replicate", "x"),
    "interpolation": _one_of("linear", "lower", "x"),
    "indexing": _one_of("ij", "xy", "x"),
    "approximate": _one_of("none", "tanh", "x"),
    "dtype": _one_of(None, "float32", "int64", "bool", "x"),
    "rounding_mode": _one_of(None, "trunc", "floor", "x"),
}
# Left at their defaults: generators, devices, files, hooks.
_FIXED = {
    "generator",
    "device",
    "out",
    "requires_grad",
    "_stacklevel",
    "size_average",
    "reduce",
    "copy",
}


def random_call(name, rng):
    """Return the positional and named arguments of a random call of a function."""
    fn = FUNCTIONS[name]
    op = getattr(fn, "op", None)
    if op is not None:
        return [odd_tensor(rng) for _ in op.partials], {}
    args, options = [], {}
    for i, p in enumerate(inspect.signature(fn).parameters.values()):
        pool = POOLS.get(p.name, odd_tensor)
        if i == 0 and name.startswith("Tensor."):
            tensor = odd_tensor(rng)
            args.append(tensor if isinstance(tensor, Tensor) else probtorch.ones(2))
        elif p.kind is p.VAR_POSITIONAL:
            args += pool(rng) if pool is _tensors else [pool(rng) for _ in range(rng.integers(3))]
        elif p.kind is p.VAR_KEYWORD or p.name in _FIXED:
            continue
        elif p.default is p.empty:
            args.append(pool(rng))
        elif rng.random() < 0.3 and (p.name in POOLS or p.default is None):
            options[p.name] = pool(rng)
    return args, options


# A float for a whole number, numbers beyond every dtype, signs, flags, texts, nothing.
MISFITS = [3.0, 2.5, 10**400, -(10**400), 2**63, -1, True, "text", None, float("inf"), 1j]


def misfit_call(name, rng, misfit):
    """Return a random call as `random_call`, one of whose arguments is something else."""
    args, options = random_call(name, rng)
    fn = FUNCTIONS[name]
    if rng.random() < 0.8:
        # What is asked is how a call ends that would be answered but for one argument.
        plain = probtorch.from_numpy(array(rng, (3, 3), "float32", odd=False))
        floats = [isinstance(a, Tensor) and a.dtype.kind == "f" for a in args]
        args = [plain if f else a for f, a in zip(floats, args, strict=True)]
    places = list(range(int(name.startswith("Tensor.")), len(args)))
    named = [
        p.name
        for p in inspect.signature(fn).parameters.values()
        if p.default is not p.empty and p.name not in _FIXED and not hasattr(fn, "op")
    ]
    if not places and not named:
        return args, options
    i = rng.integers(len(places) + len(named))
    if i < len(places):
        args[places[i]] = misfit
    else:
        options = {named[i - len(places)]: misfit}
    return args, options
