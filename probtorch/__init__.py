"""probtorch: probabilistic programming on its own autodiff core, compiled by recording.

The front door: names of PyTorch and Pyro at the top level, each from the module that owns it.
Tensors, their operations and derivatives are imported at once; what stands on them (distributions,
effects, inference, diagnostics, the compiler) is imported when first touched, so that ``import
probtorch`` stays quick.
"""

from importlib import import_module
from importlib.util import find_spec
from math import e, inf, nan, pi
from typing import TYPE_CHECKING

from probtorch import autograd, errors, func, linalg, random, special
from probtorch.autograd.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
    stop_gradient,
)
from probtorch.autograd.scan import scan
from probtorch.autograd.vmap import vmap
from probtorch.core.dtype import (
    as_dtype,
    default_dtype_as,
    finfo,
    float16,
    float32,
    float64,
    get_default_dtype,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    set_default_dtype,
    uint8,
)
from probtorch.core.dtype import bool_ as bool
from probtorch.core.dtype import float16 as half
from probtorch.core.dtype import float32 as float
from probtorch.core.dtype import float64 as double
from probtorch.core.dtype import int16 as short
from probtorch.core.dtype import int32 as int
from probtorch.core.dtype import int64 as long
from probtorch.core.rng import Generator, default_generator, manual_seed
from probtorch.core.shape import Size, broadcast_shapes
from probtorch.factories import (
    arange,
    as_tensor,
    diag,
    empty,
    empty_like,
    eye,
    full,
    full_like,
    linspace,
    logspace,
    meshgrid,
    ones,
    ones_like,
    tril_indices,
    triu_indices,
    zeros,
    zeros_like,
)
from probtorch.ops.contraction import (
    bmm,
    dot,
    einsum,
    inner,
    matmul,
    mm,
    mv,
    outer,
    tensordot,
    vdot,
)
from probtorch.ops.control import cond, while_loop
from probtorch.ops.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cbrt,
    ceil,
    clamp,
    clone,
    copysign,
    cos,
    cosh,
    eq,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    fmod,
    ge,
    gt,
    isfinite,
    isinf,
    isnan,
    le,
    log,
    log1p,
    log2,
    log10,
    log_sigmoid,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    neg,
    pow,
    reciprocal,
    relu,
    remainder,
    round,
    rsqrt,
    shift_left,
    shift_right,
    sigmoid,
    sign,
    signbit,
    sin,
    sinh,
    softplus,
    sqrt,
    square,
    sub,
    tan,
    tanh,
    trunc,
    where,
)
from probtorch.ops.elementwise import divide as div
from probtorch.ops.gathering import gather, index_select, masked_select, one_hot, scatter
from probtorch.ops.index_keys import nonzero
from probtorch.ops.indexing import index_put
from probtorch.ops.linalg import cholesky, cholesky_solve, inv, solve_triangular, trace
from probtorch.ops.movement import (
    broadcast_tensors,
    cat,
    chunk,
    diag_embed,
    diagonal,
    expand,
    flatten,
    flip,
    movedim,
    permute,
    repeat,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    tile,
    transpose,
    tril,
    triu,
    unbind,
    unsqueeze,
)
from probtorch.ops.norms import norm
from probtorch.ops.reduction import (
    all,
    allclose,
    amax,
    amin,
    any,
    argmax,
    argmin,
    cumsum,
    equal,
    isclose,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    prod,
    softmax,
    std,
    sum,
    var,
)
from probtorch.ops.sampling import (
    bernoulli,
    multinomial,
    normal,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
)
from probtorch.ops.scans import (
    cummax,
    cummin,
    cumprod,
    diff,
    logcumsumexp,
    trapezoid,
)
from probtorch.ops.sorting import (
    argsort,
    bincount,
    bucketize,
    histc,
    kthvalue,
    median,
    quantile,
    searchsorted,
    sort,
    topk,
    unique,
)
from probtorch.ops.special import (
    digamma,
    erf,
    erfc,
    erfinv,
    i0,
    lgamma,
    logit,
    polygamma,
    sinc,
    xlogy,
)
from probtorch.ops.spectral import det, logdet, slogdet
from probtorch.ops.variates import poisson
from probtorch.tensor import Tensor, from_dlpack, from_numpy, tensor

if TYPE_CHECKING:
    from probtorch import (
        compiler,
        diagnostics,
        distributions,
        effects,
        handlers,
        infer,
        ops,
        optim,
        serialization,
        testing,
        utils,
    )
    from probtorch.compiler.compile import compile
    from probtorch.config import configure, settings
    from probtorch.effects.markov import markov
    from probtorch.effects.modules import module, random_module
    from probtorch.effects.params import clear_param_store, get_param_store
    from probtorch.effects.plates import plate, subsample
    from probtorch.effects.primitives import deterministic, factor, param, sample
    from probtorch.effects.pyro_module import (
        PyroModule,
        PyroParam,
        PyroSample,
        pyro_method,
        to_pyro_module_,
    )
    from probtorch.serialization import load, save

# As in pyproject.toml; a test compares them.
__version__ = "0.1.0"

newaxis = None

_LAZY_PACKAGES = frozenset(
    "compiler config diagnostics distributed distributions effects estimators handlers infer nn "
    "ops optim ode serialization testing utils".split()
)
# Where the names live that would otherwise make every import slow.
_LAZY_NAMES = {
    "compile": "probtorch.compiler.compile",
    "configure": "probtorch.config",
    "get_num_threads": "probtorch.compiler.threads",
    "load": "probtorch.serialization",
    "save": "probtorch.serialization",
    "set_num_threads": "probtorch.compiler.threads",
    "settings": "probtorch.config",
    **dict.fromkeys(
        "clear_param_store deterministic factor get_param_store markov module param plate "
        "pyro_method PyroModule PyroParam PyroSample random_module sample subsample "
        "to_pyro_module_".split(),
        "probtorch.effects",
    ),
}


def __getattr__(name):
    if name in _LAZY_NAMES:
        found = getattr(import_module(_LAZY_NAMES[name]), name)
        globals()[name] = found
        return found
    if name in _LAZY_PACKAGES:
        try:
            return import_module(f"probtorch.{name}")
        except ModuleNotFoundError as missing:
            if missing.name != f"probtorch.{name}":
                raise
    raise AttributeError(f"module 'probtorch' has no attribute {name!r}")


def __dir__():
    built = {name for name in _LAZY_PACKAGES if find_spec(f"probtorch.{name}")}
    helpers = {"TYPE_CHECKING", "find_spec", "import_module"}
    return sorted({*globals(), *_LAZY_NAMES, *built} - helpers)
