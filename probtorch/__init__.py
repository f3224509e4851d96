"""probtorch: probabilistic programming on its own autodiff core, compiled by recording.

The front door: names of PyTorch and Pyro at the top level, each from the module that owns it.
Tensors, their operations and derivatives are imported at once; what stands on them (distributions,
effects, inference, diagnostics, the compiler) is imported when first touched, so that ``import
probtorch`` stays quick.
"""

from math import e as e
from math import inf as inf
from math import nan as nan
from math import pi as pi
from typing import TYPE_CHECKING

from probtorch import (
    autograd as autograd,
    cuda as cuda,
    errors as errors,
    fft as fft,
    func as func,
    linalg as linalg,
    random as random,
    special as special,
)
from probtorch.absent import INSTEAD
from probtorch.config import VERSION as __version__
from probtorch.core.rooms import late_beside
from probtorch.core.device import (
    device as device,
)
from probtorch.autograd.modes import (
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    is_grad_enabled as is_grad_enabled,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
    stop_gradient as stop_gradient,
)
from probtorch.autograd.vmap import (
    vmap as vmap,
)
from probtorch.core.dtype import (
    as_dtype as as_dtype,
    complex64 as complex64,
    complex64 as cfloat,
    complex128 as complex128,
    complex128 as cdouble,
    default_dtype_as as default_dtype_as,
    dtype as dtype,
    finfo as finfo,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    get_default_dtype as get_default_dtype,
    iinfo as iinfo,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    promote_types as promote_types,
    set_default_dtype as set_default_dtype,
    uint8 as uint8,
)
from probtorch.core.dtype import (
    bool_ as _bool,
)
from probtorch.core.dtype import (
    float16 as _half,
)
from probtorch.core.dtype import (
    float32 as _float,
)
from probtorch.core.dtype import (
    float64 as _double,
)
from probtorch.core.dtype import (
    int16 as _short,
)
from probtorch.core.dtype import (
    int32 as _int,
)
from probtorch.core.dtype import (
    int64 as _long,
)
from probtorch.core.layout import (
    set_printoptions as set_printoptions,
)
from probtorch.core.rng import (
    Generator as Generator,
    default_generator as default_generator,
    manual_seed as manual_seed,
    set_rng_seed as set_rng_seed,
)
from probtorch.core.shape import Size as Size
from probtorch.core.validation import (
    enable_validation as enable_validation,
    validation_enabled as validation_enabled,
)
from probtorch.factories import (
    range_ as range,
    scalar_tensor as scalar_tensor,
    arange as arange,
    as_tensor as as_tensor,
    empty as empty,
    empty_like as empty_like,
    eye as eye,
    full as full,
    full_like as full_like,
    linspace as linspace,
    logspace as logspace,
    meshgrid as meshgrid,
    ones as ones,
    ones_like as ones_like,
    tril_indices as tril_indices,
    triu_indices as triu_indices,
    zeros as zeros,
    zeros_like as zeros_like,
)
from probtorch.ops import einops_ as _einops  # which einops then knows
from probtorch.ops.complex_numbers import (
    angle as angle,
    complex as complex,
    conj as conj,
    conj_physical as conj_physical,
    imag as imag,
    is_conj as is_conj,
    is_neg as is_neg,
    isreal as isreal,
    polar as polar,
    real as real,
    resolve_conj as resolve_conj,
    resolve_neg as resolve_neg,
    sgn as sgn,
    view_as_complex as view_as_complex,
    view_as_real as view_as_real,
)
from probtorch.ops.determinants import det as det, logdet as logdet, slogdet as slogdet
from probtorch.ops.orthogonal import qr as qr
from probtorch.ops.pseudoinverses import matrix_rank as matrix_rank, pinv as pinverse
from probtorch.ops.spectrograms import (
    istft as istft,
    stft as stft,
)
from probtorch.ops.numeric import (
    add as add,
    clamp_max as clamp_max,
    clamp_min as clamp_min,
    sub as sub,
    sub as subtract,
    bitwise_left_shift as bitwise_left_shift,
    bitwise_right_shift as bitwise_right_shift,
    deg2rad as deg2rad,
    float_power as float_power,
    fmax as fmax,
    fmin as fmin,
    frac as frac,
    frexp as frexp,
    gcd as gcd,
    heaviside as heaviside,
    isneginf as isneginf,
    isposinf as isposinf,
    lcm as lcm,
    ldexp as ldexp,
    logaddexp2 as logaddexp2,
    nan_to_num as nan_to_num,
    nextafter as nextafter,
    positive as positive,
    rad2deg as rad2deg,
    rsub as rsub,
    safe_where as safe_where,
)
from probtorch.ops.arithmetic import (
    abs as abs,
    abs as absolute,
    cbrt as cbrt,
    ceil as ceil,
    clamp as clamp,
    clamp as clip,
    clone as clone,
    copysign as copysign,
    divide as divide,
    divide as true_divide,
    floor as floor,
    floor_divide as floor_divide,
    fmod as fmod,
    maximum as maximum,
    minimum as minimum,
    mul as mul,
    mul as multiply,
    neg as neg,
    neg as negative,
    reciprocal as reciprocal,
    relu as relu,
    remainder as remainder,
    round as round,
    rsqrt as rsqrt,
    sign as sign,
    sqrt as sqrt,
    square as square,
    trunc as fix,
    trunc as trunc,
    where as where,
)
from probtorch.ops.comparisons import (
    bitwise_and as bitwise_and,
    bitwise_not as bitwise_not,
    bitwise_or as bitwise_or,
    bitwise_xor as bitwise_xor,
    eq as eq,
    ge as ge,
    ge as greater_equal,
    gt as greater,
    gt as gt,
    isfinite as isfinite,
    isinf as isinf,
    isnan as isnan,
    le as le,
    shift_left as shift_left,
    shift_right as shift_right,
    signbit as signbit,
    le as less_equal,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    lt as less,
    lt as lt,
    ne as ne,
    ne as not_equal,
)
from probtorch.ops.exponentials import (
    exp as exp,
    exp2 as exp2,
    expm1 as expm1,
    log as log,
    log10 as log10,
    log1p as log1p,
    log2 as log2,
    log_sigmoid as log_sigmoid,
    logaddexp as logaddexp,
    pow as pow,
    sigmoid as sigmoid,
    softplus as softplus,
)
from probtorch.ops.trigonometry import (
    acos as acos,
    acos as arccos,
    acosh as acosh,
    acosh as arccosh,
    asin as arcsin,
    asin as asin,
    asinh as arcsinh,
    asinh as asinh,
    atan as arctan,
    atan as atan,
    atan2 as arctan2,
    atan2 as atan2,
    atanh as arctanh,
    atanh as atanh,
    cos as cos,
    cosh as cosh,
    hypot as hypot,
    sin as sin,
    sinh as sinh,
    tan as tan,
    tanh as tanh,
)
from probtorch.ops.contraction import (
    bmm as bmm,
    dot as dot,
    einsum as einsum,
    outer as ger,
    inner as inner,
    matmul as matmul,
    mm as mm,
    mv as mv,
    outer as outer,
    tensordot as tensordot,
    vdot as vdot,
)
from probtorch.ops.control import (
    cond as cond,
    while_loop as while_loop,
)
from probtorch.ops.arithmetic import divide as _div
from probtorch.ops.fused import (
    addbmm as addbmm,
    addcdiv as addcdiv,
    addcmul as addcmul,
    addmm as addmm,
    addmv as addmv,
    addr as addr,
    baddbmm as baddbmm,
    lerp as lerp,
)
from probtorch.ops.gathering import (
    argwhere as argwhere,
    gather as gather,
    index_select as index_select,
    masked_select as masked_select,
    narrow as narrow,
    repeat_interleave as repeat_interleave,
    select as select,
    take as take,
    take_along_dim as take_along_dim,
    unravel_index as unravel_index,
)
from probtorch.in_place import (
    abs_ as abs_,
    acos_ as acos_,
    acosh_ as acosh_,
    addmv_ as addmv_,
    arccos_ as arccos_,
    arccosh_ as arccosh_,
    arcsin_ as arcsin_,
    arcsinh_ as arcsinh_,
    arctan_ as arctan_,
    arctanh_ as arctanh_,
    as_strided_ as as_strided_,
    asin_ as asin_,
    asinh_ as asinh_,
    atan_ as atan_,
    atanh_ as atanh_,
    ceil_ as ceil_,
    clamp_ as clamp_,
    clamp_max_ as clamp_max_,
    clamp_min_ as clamp_min_,
    clip_ as clip_,
    cos_ as cos_,
    cosh_ as cosh_,
    deg2rad_ as deg2rad_,
    detach_ as detach_,
    erf_ as erf_,
    erfc_ as erfc_,
    exp2_ as exp2_,
    exp_ as exp_,
    expm1_ as expm1_,
    fill_ as fill_,
    fix_ as fix_,
    floor_ as floor_,
    frac_ as frac_,
    gcd_ as gcd_,
    i0_ as i0_,
    index_put_ as index_put_,
    lcm_ as lcm_,
    ldexp_ as ldexp_,
    log10_ as log10_,
    log1p_ as log1p_,
    log2_ as log2_,
    log_ as log_,
    logit_ as logit_,
    nan_to_num_ as nan_to_num_,
    neg_ as neg_,
    negative_ as negative_,
    rad2deg_ as rad2deg_,
    reciprocal_ as reciprocal_,
    relu_ as relu_,
    resize_as_ as resize_as_,
    round_ as round_,
    rsqrt_ as rsqrt_,
    sigmoid_ as sigmoid_,
    sin_ as sin_,
    sinc_ as sinc_,
    sinh_ as sinh_,
    sqrt_ as sqrt_,
    square_ as square_,
    tan_ as tan_,
    tanh_ as tanh_,
    trunc_ as trunc_,
    xlogy_ as xlogy_,
    zero_ as zero_,
)
from probtorch.ops.index_keys import (
    nonzero_static as nonzero_static,
    nonzero as nonzero,
)
from probtorch.ops.indexing import (
    index_put as index_put,
)
from probtorch.ops.joining import (
    atleast_1d as atleast_1d,
    atleast_2d as atleast_2d,
    atleast_3d as atleast_3d,
    block_diag as block_diag,
    cartesian_prod as cartesian_prod,
    column_stack as column_stack,
    combinations as combinations,
    dsplit as dsplit,
    dstack as dstack,
    hsplit as hsplit,
    hstack as hstack,
    vstack as row_stack,
    tensor_split as tensor_split,
    vsplit as vsplit,
    vstack as vstack,
)
from probtorch.ops.linalg import (
    inv as inv,
    inv as inverse,
    matrix_power as matrix_power,
    solve_triangular as solve_triangular,
    trace as trace,
)
from probtorch.ops.cholesky_factors import (
    cholesky as cholesky,
    cholesky_inverse as cholesky_inverse,
    cholesky_solve as cholesky_solve,
)
from probtorch.ops.membership import (
    histogram as histogram,
    histogramdd as histogramdd,
    isin as isin,
    unique_consecutive as unique_consecutive,
)
from probtorch.ops.movement import (
    broadcast_tensors as broadcast_tensors,
    expand as expand,
    flatten as flatten,
    movedim as moveaxis,
    movedim as movedim,
    permute as permute,
    reshape as reshape,
    squeeze as squeeze,
    swapaxes as swapaxes,
    transpose as swapdims,
    transpose as transpose,
    unsqueeze as unsqueeze,
)
from probtorch.ops.pieces import (
    chunk as unsafe_chunk,
    split as unsafe_split,
    cat as cat,
    chunk as chunk,
    cat as concat,
    cat as concatenate,
    flip as flip,
    split as split,
    stack as stack,
    unbind as unbind,
)
from probtorch.ops.diagonals import (
    diag_embed as diag_embed,
    diagonal as diagonal,
    tril as tril,
    triu as triu,
)
from probtorch.ops.norms import (
    norm as norm,
)
from probtorch.ops.products import (
    cdist as cdist,
    chain_matmul as chain_matmul,
    cross as cross,
    kron as kron,
    matrix_exp as matrix_exp,
    pdist as pdist,
    vander as vander,
)
from probtorch.ops.exponential_sums import (
    log_softmax as log_softmax,
    logsumexp as logsumexp,
    softmax as softmax,
)
from probtorch.ops.closeness import (
    allclose as allclose,
    equal as equal,
    isclose as isclose,
)
from probtorch.ops.repeating import (
    repeat as repeat,
    roll as roll,
    tile as tile,
)
from probtorch.ops.reduction import (
    all as all,
    any as any,
    cumsum as cumsum,
    mean as mean,
    prod as prod,
    std as std,
    sum as sum,
    var as var,
)
from probtorch.ops.extremes import (
    amax as amax,
    amin as amin,
    argmax as argmax,
    argmin as argmin,
    max as max,
    min as min,
)
from probtorch.ops.reshaping import (
    diag as diag,
    diagflat as diagflat,
    narrow_copy as narrow_copy,
    split_with_sizes as split_with_sizes,
    split_with_sizes as unsafe_split_with_sizes,
    t as t,
    adjoint as adjoint,
    broadcast_to as broadcast_to,
    fliplr as fliplr,
    flipud as flipud,
    ravel as ravel,
    rot90 as rot90,
    unflatten as unflatten,
)
from probtorch.ops.sampling import (
    normal as normal,
    rand as rand,
    rand_like as rand_like,
    randn as randn,
    randn_like as randn_like,
)
from probtorch.ops.categories import bernoulli as bernoulli, multinomial as multinomial
from probtorch.ops.random_integers import (
    randint_like as randint_like,
    randint as randint,
    randperm as randperm,
)
from probtorch.ops.scans import (
    cummax as cummax,
    cummin as cummin,
    cumprod as cumprod,
    cumulative_trapezoid as cumulative_trapezoid,
    diff as diff,
    logcumsumexp as logcumsumexp,
    trapezoid as trapezoid,
    trapezoid as trapz,
)
from probtorch.ops.scattering import (
    diagonal_scatter as diagonal_scatter,
    index_add as index_add,
    index_copy as index_copy,
    index_fill as index_fill,
    masked_fill as masked_fill,
    masked_scatter as masked_scatter,
    one_hot as one_hot,
    put_flat as put,
    scatter as scatter,
    scatter_add as scatter_add,
    select_scatter as select_scatter,
    slice_scatter as slice_scatter,
)
from probtorch.ops.scattered_reductions import (
    index_reduce as index_reduce,
    scatter_reduce as scatter_reduce,
)
from probtorch.ops.sorting import argsort as argsort, sort as sort, unique as unique
from probtorch.ops.order_statistics import (
    kthvalue as kthvalue,
    median as median,
    quantile as quantile,
    topk as topk,
)
from probtorch.ops.searching import (
    bincount as bincount,
    bucketize as bucketize,
    histc as histc,
    searchsorted as searchsorted,
)
from probtorch.ops.special import (
    gammainc as igamma,
    gammaincc as igammac,
    multigammaln as mvlgamma,
    digamma as digamma,
    erf as erf,
    erfc as erfc,
    erfinv as erfinv,
    i0 as i0,
    lgamma as lgamma,
    logit as logit,
    polygamma as polygamma,
    sinc as sinc,
    xlogy as xlogy,
)
from probtorch.ops.statistics import (
    aminmax as aminmax,
    corrcoef as corrcoef,
    count_nonzero as count_nonzero,
    cov as cov,
    dist as dist,
    gradient as gradient,
    mode as mode,
    msort as msort,
    nanmean as nanmean,
    nanmedian as nanmedian,
    nanquantile as nanquantile,
    nansum as nansum,
    renorm as renorm,
    std_mean as std_mean,
    var_mean as var_mean,
)
from probtorch.ops.striding import (
    as_strided as as_strided,
    as_strided_scatter as as_strided_scatter,
)
from probtorch.ops.factorisations import (
    lu_pair as lu,
    lu_solve_old as lu_solve,
    lu_unpack as lu_unpack,
)
from probtorch.ops.reflections import (
    geqrf as geqrf,
    householder_product as orgqr,
    ormqr as ormqr,
    pca_lowrank as pca_lowrank,
    svd_lowrank as svd_lowrank,
    svd_old as svd,
    triangular_solve as triangular_solve,
)
from probtorch.ops.segments import (
    segment_reduce as segment_reduce,
)
from probtorch.ops.variates import (
    binomial as binomial,
    poisson as poisson,
)
from probtorch.queries import (
    broadcast_shapes as broadcast_shapes,
    can_cast as can_cast,
    is_complex as is_complex,
    is_floating_point as is_floating_point,
    is_nonzero as is_nonzero,
    is_same_size as is_same_size,
    is_signed as is_signed,
    is_tensor as is_tensor,
    numel as numel,
    result_type as result_type,
    typename as typename,
)
from probtorch.random import (
    get_rng_state as get_rng_state,
    initial_seed as initial_seed,
    seed as seed,
    set_rng_state as set_rng_state,
)
from probtorch.tapers import (
    bartlett_window as bartlett_window,
    blackman_window as blackman_window,
    hamming_window as hamming_window,
    hann_window as hann_window,
    kaiser_window as kaiser_window,
)
from probtorch.tensor import (
    Tensor as Tensor,
    from_dlpack as from_dlpack,
    from_numpy as from_numpy,
    tensor as tensor,
)

from probtorch.autograd.methods import (
    detach as detach,
)
from probtorch.layouts import (
    asarray as asarray,
    empty_permuted as empty_permuted,
    empty_strided as empty_strided,
    frombuffer as frombuffer,
)
from probtorch.core.memory_format import (
    channels_last as channels_last,
    channels_last_3d as channels_last_3d,
    contiguous_format as contiguous_format,
    memory_format as memory_format,
    preserve_format as preserve_format,
)

from probtorch.switches import (
    are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
    get_default_device as get_default_device,
    get_float32_matmul_precision as get_float32_matmul_precision,
    set_default_device as set_default_device,
    set_default_tensor_type as set_default_tensor_type,
    set_float32_matmul_precision as set_float32_matmul_precision,
    use_deterministic_algorithms as use_deterministic_algorithms,
)

if TYPE_CHECKING:
    from probtorch import (
        __config__ as __config__,
        amp as amp,
        array_api as array_api,
        compiler as compiler,
        config as config,
        contrib as contrib,
        numerics as numerics,
        ode as ode,
        nn as nn,
        estimators as estimators,
        diagnostics as diagnostics,
        distributed as distributed,
        distributions as distributions,
        effects as effects,
        handlers as handlers,
        infer as infer,
        ops as ops,
        onnx as onnx,
        optim as optim,
        profiler as profiler,
        serialization as serialization,
        testing as testing,
        utils as utils,
        viz as viz,
    )
    from probtorch.amp import (
        autocast as autocast,
    )
    from probtorch.compiler.native.threads import (
        get_num_threads as get_num_threads,
        set_num_threads as set_num_threads,
    )
    from probtorch.compiler.compile import (
        compile as compile,
    )
    from probtorch.compiler.paths import (
        CompileWarning as CompileWarning,
        PrintWarning as PrintWarning,
    )
    from probtorch.config import (
        configure as configure,
        settings as settings,
    )
    from probtorch.diagnostics.findings import InferenceWarning as InferenceWarning
    from probtorch.effects.handlers import (
        condition as condition,
        do as do,
        get_mask as get_mask,
    )
    from probtorch.effects.markov import (
        markov as markov,
    )
    from probtorch.effects.modules import (
        module as module,
        random_module as random_module,
    )
    from probtorch.effects.params import (
        clear_param_store as clear_param_store,
        get_param_store as get_param_store,
    )
    from probtorch.effects.plates import plate as plate, plate_stack as plate_stack
    from probtorch.effects.plate_rows import subsample as subsample
    from probtorch.effects.primitives import (
        deterministic as deterministic,
        factor as factor,
        param as param,
        sample as sample,
    )
    from probtorch.effects.pyro_module import (
        PyroModule as PyroModule,
        PyroModuleList as PyroModuleList,
        PyroParam as PyroParam,
        PyroSample as PyroSample,
        pyro_method as pyro_method,
        to_pyro_module_ as to_pyro_module_,
    )
    from probtorch.effects.scans import (
        scan as scan,
    )
    from probtorch.nn.functional import (
        adaptive_avg_pool1d as adaptive_avg_pool1d,
        alpha_dropout as alpha_dropout,
        avg_pool1d as avg_pool1d,
        bilinear as bilinear,
        celu as celu,
        celu_ as celu_,
        channel_shuffle as channel_shuffle,
        conv1d as conv1d,
        conv2d as conv2d,
        conv3d as conv3d,
        conv_transpose1d as conv_transpose1d,
        conv_transpose2d as conv_transpose2d,
        conv_transpose3d as conv_transpose3d,
        cosine_similarity as cosine_similarity,
        dropout as dropout,
        feature_alpha_dropout as feature_alpha_dropout,
        group_norm as group_norm,
        hardshrink as hardshrink,
        layer_norm as layer_norm,
        max_pool1d as max_pool1d,
        max_pool2d as max_pool2d,
        max_pool3d as max_pool3d,
        pairwise_distance as pairwise_distance,
        pixel_shuffle as pixel_shuffle,
        pixel_unshuffle as pixel_unshuffle,
        prelu as prelu,
        rms_norm as rms_norm,
        rrelu as rrelu,
        rrelu_ as rrelu_,
        selu as selu,
        selu_ as selu_,
        threshold as threshold,
        threshold_ as threshold_,
    )
    from probtorch.serialization import (
        load as load,
        save as save,
    )
    from probtorch.viz import (
        render_model as render_model,
    )

from probtorch.typed_tensors import (
    BoolTensor as BoolTensor,
    ByteTensor as ByteTensor,
    CharTensor as CharTensor,
    DoubleTensor as DoubleTensor,
    FloatTensor as FloatTensor,
    HalfTensor as HalfTensor,
    IntTensor as IntTensor,
    LongTensor as LongTensor,
    ShortTensor as ShortTensor,
)


newaxis = None

# PyTorch's second names.
bool = _bool
half = _half
float = _float
double = _double
short = _short
int = _int
long = _long
div = _div

if not TYPE_CHECKING:  # checkers know the names from above, and tell of others
    _ROOMS = (
        "__config__ amp array_api compiler config contrib diagnostics distributed distributions "
        "effects estimators handlers infer logger nn numerics onnx ops optim ode poutine profiler "
        "serialization testing util utils viz".split()
    )
    # Where the names live that would otherwise make every import slow.
    _HOMES = {
        **dict.fromkeys(_ROOMS, ""),
        "probtorch.amp": "autocast",
        "probtorch.compiler.compile": "compile",
        "probtorch.compiler.native.threads": "get_num_threads set_num_threads",
        "probtorch.compiler.paths": "CompileWarning PrintWarning",
        "probtorch.config": "configure settings",
        "probtorch.diagnostics.findings": "InferenceWarning",
        "probtorch.effects": (
            "clear_param_store deterministic factor get_param_store markov module param plate "
            "plate_stack pyro_method PyroModule PyroModuleList PyroParam PyroSample random_module "
            "sample scan subsample to_pyro_module_"
        ),
        "probtorch.effects.handlers": "condition do get_mask",
        "probtorch.nn.functional": (
            "adaptive_avg_pool1d alpha_dropout avg_pool1d bilinear celu "
            "celu_ channel_shuffle conv1d conv2d conv3d conv_transpose1d conv_transpose2d "
            "conv_transpose3d cosine_similarity dropout feature_alpha_dropout group_norm "
            "hardshrink layer_norm max_pool1d max_pool2d max_pool3d pairwise_distance "
            "pixel_shuffle pixel_unshuffle prelu rms_norm rrelu rrelu_ selu selu_ threshold "
            "threshold_"
        ),
        "probtorch.serialization": "load save",
        "probtorch.viz": "render_model",
    }
    __getattr__, __dir__ = late_beside(
        __name__,
        _HOMES,
        INSTEAD,
        ("distributions", "infer", "optim", "nn", "utils.data", "diagnostics"),
    )
