"""Activation functions: PyTorch's, as compositions of ops, so that they differentiate and fuse.

Where one side of a choice would overflow, it is computed from an argument that is safe there, so
that no gradient meets infinity times zero.
"""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np

from probtorch.core.dispatch import unheard
from probtorch.core.in_place import assign
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.shape import normalize_dim
from probtorch.core.told import as_float, is_number
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ArgumentError, DomainError, ShapeError, users_stacklevel
from probtorch.ops import arithmetic, exponential_sums, exponentials, extremes, trigonometry
from probtorch.ops.activations import activated
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import ge, gt, le
from probtorch.ops.exponentials import expm1
from probtorch.ops.movement import movedim, reshape
from probtorch.ops.pieces import chunk
from probtorch.ops.sampling import rand_like
from probtorch.ops.scattering import one_hot
from probtorch.ops.special import ndtr
from probtorch.tensor import Tensor

__all__ = [
    "celu",
    "celu_",
    "elu",
    "elu_",
    "gelu",
    "glu",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "leaky_relu",
    "leaky_relu_",
    "log_softmax",
    "logsigmoid",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "relu_",
    "rrelu",
    "rrelu_",
    "selu",
    "selu_",
    "sigmoid",
    "silu",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "threshold_",
]

# The fixed point of mean 0 and variance 1 under SELU (Klambauer et al. 2017, eq. 14).
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def sigmoid(input: TensorLike) -> Tensor:
    """1 / (1 + exp(-x))."""
    return exponentials.sigmoid(input)


def tanh(input: TensorLike) -> Tensor:
    """Hyperbolic tangent."""
    return trigonometry.tanh(input)


def logsigmoid(input: TensorLike) -> Tensor:
    """log(sigmoid(x)), without its underflow."""
    return exponentials.log_sigmoid(input)


def _done(x: Tensor, y: Tensor, inplace: bool, name: str) -> Tensor:
    return assign(x, y, name) if inplace else y


def relu(input: TensorLike, inplace: bool = False) -> Tensor:
    """max(x, 0); derivative 0 at 0."""
    x = as_tensor(input, "relu")
    return _done(x, arithmetic.relu(x), inplace, "relu")


def relu6(input: TensorLike, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6)."""
    return hardtanh(input, 0.0, 6.0, inplace)


def leaky_relu(input: TensorLike, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """X where positive, else ``negative_slope * x``."""
    x = as_tensor(input, "leaky_relu")
    y = activated("leaky_relu", x, negative_slope=negative_slope)
    if y is None:
        y = where(gt(x, 0.0), x, x * negative_slope)
    return _done(x, y, inplace, "leaky_relu")


def prelu(input: TensorLike, weight: TensorLike) -> Tensor:
    """X where positive, else ``weight * x``.

    Parameters
    ----------
    input : Tensor, shape (N, C, ...)
    weight : Tensor, shape (1,) or (C,)
        Learned slopes: one, or one per channel (dim 1; dim 0 of a vector).
    """
    x, w = as_tensor(input, "prelu"), as_tensor(weight, "prelu")
    ndim, count = x.array.ndim, w.array.size
    channels = x.array.shape[min(1, ndim - 1)] if ndim else 1
    if count not in (1, channels):
        raise ShapeError(
            "prelu",
            expected=f"1 or {channels} slopes, for an input of shape {x.array.shape}",
            got=str(count),
            fix="num_parameters is the number of channels, dim 1 of the input",
        )
    w = reshape(w, (count, *[1] * max(ndim - 2, 0)) if ndim > 1 else (count,) if ndim else ())
    # A factor of 1, so that a slope that is nan stays with what it multiplies.
    return x * where(gt(x, 0.0), 1.0, w)


@in_our_words
def rrelu(
    input: TensorLike,
    lower: float = 1.0 / 8.0,
    upper: float = 1.0 / 3.0,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """X where positive, else x times a slope: random in training, else the mean of the range."""
    x = as_tensor(input, "rrelu")
    slope = rand_like(x) * (upper - lower) + lower if training else (lower + upper) / 2.0
    return _done(x, where(gt(x, 0.0), x, x * slope), inplace, "rrelu")


def _below(x: Tensor) -> Tensor:
    """Return x where it is not positive and 0 elsewhere, for the side that grows exponentially.

    0 itself and nan are on this side: 0 has the slope of the exponential, nan stays nan.
    """
    return where(gt(x, 0.0), 0.0, x)


def elu(input: TensorLike, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """X where positive, else ``alpha * (exp(x) - 1)``."""
    x = as_tensor(input, "elu")
    y = activated("elu", x, alpha=alpha)
    if y is None:
        y = where(gt(x, 0.0), x, expm1(_below(x)) * alpha)
    return _done(x, y, inplace, "elu")


def selu(input: TensorLike, inplace: bool = False) -> Tensor:
    """ELU with the scales that keep mean 0 and variance 1 from layer to layer."""
    x = as_tensor(input, "selu")
    y = activated("selu", x, alpha=SELU_ALPHA, scale=SELU_SCALE)
    return _done(x, elu(x, SELU_ALPHA) * SELU_SCALE if y is None else y, inplace, "selu")


def celu(input: TensorLike, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """X where positive, else ``alpha * (exp(x / alpha) - 1)``: smooth for any alpha."""
    x = as_tensor(input, "celu")
    y = activated("celu", x, alpha=alpha)
    if y is None:
        y = where(gt(x, 0.0), x, expm1(_below(x) / alpha) * alpha)
    return _done(x, y, inplace, "celu")


def gelu(input: TensorLike, approximate: str = "none") -> Tensor:
    """X times the standard normal distribution function of x.

    Parameters
    ----------
    input : Tensor
    approximate : {"none", "tanh"}
        "tanh" is the approximation ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``.
    """
    x = as_tensor(input, "gelu")
    if approximate == "none":
        return x * ndtr(x)
    if approximate != "tanh":
        raise ArgumentError(
            "gelu",
            expected="approximate: 'none' or 'tanh'",
            got=repr(approximate),
            fix="use 'none', the default",
        )
    inner = (x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)
    return x * 0.5 * (tanh(inner) + 1.0)


def silu(input: TensorLike, inplace: bool = False) -> Tensor:
    """X times sigmoid(x), also called swish."""
    x = as_tensor(input, "silu")
    return _done(x, x * sigmoid(x), inplace, "silu")


def mish(input: TensorLike, inplace: bool = False) -> Tensor:
    """X times tanh(softplus(x))."""
    x = as_tensor(input, "mish")
    return _done(x, x * tanh(exponentials.softplus(x)), inplace, "mish")


@in_our_words
def softplus(input: TensorLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta; x itself where ``beta * x > threshold``."""
    x = as_tensor(input, "softplus")
    if beta == 1.0 and x.is_floating_point():
        y = exponentials.softplus(x)
        if _rounds_to_x(x.array.dtype, threshold) or _none_above(x, threshold):
            return y
        return where(gt(x, float(threshold)), x, y)
    beta = as_float(beta)
    scaled = x * beta
    return where(gt(scaled, float(threshold)), x, exponentials.softplus(scaled) / beta)


def _none_above(x: Tensor, threshold: float) -> bool:
    """Whether the elements are seen to be at most `threshold`, and nobody listens who would have to
    hear of it.
    """
    return (
        unheard()
        and type(x.array) is np.ndarray
        and x.array.size > 0
        and bool(np.maximum.reduce(x.array, None) <= threshold)
    )


@functools.cache
def _rounds_to_x(dtype: DTypeLike | None, threshold: float) -> bool:
    """Whether above it softplus(x) is x, and its derivative 1, in this dtype anyway."""
    return threshold > -math.log(np.finfo(dtype).eps / 4.0)


def softsign(input: TensorLike) -> Tensor:
    """X / (1 + abs(x))."""
    x = as_tensor(input, "softsign")
    return x / (arithmetic.abs(x) + 1.0)


def tanhshrink(input: TensorLike) -> Tensor:
    """X - tanh(x)."""
    x = as_tensor(input, "tanhshrink")
    return x - tanh(x)


@in_our_words
def hardtanh(
    input: TensorLike, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """X limited to [min_val, max_val]."""
    x = as_tensor(input, "hardtanh")
    if x.array.dtype.kind in "iu" and min_val % 1 == max_val % 1 == 0:
        min_val, max_val = int(min_val), int(max_val)
    y = activated("hardtanh", x, low=min_val, high=max_val)
    return _done(x, _between(x, min_val, max_val) if y is None else y, inplace, "hardtanh")


def _between(x: Tensor, low: float, high: float) -> Tensor:
    """Return x limited to [low, high]; unlike that of `clamp`, its gradient is 0 at the bounds."""
    return where(le(x, low), low, where(ge(x, high), high, x))


def hardsigmoid(input: TensorLike, inplace: bool = False) -> Tensor:
    """``x / 6 + 1 / 2`` limited to [0, 1]."""
    x = as_tensor(input, "hardsigmoid")
    y = activated("hardsigmoid", x)
    return _done(x, _between(x + 3.0, 0.0, 6.0) / 6.0 if y is None else y, inplace, "hardsigmoid")


def hardswish(input: TensorLike, inplace: bool = False) -> Tensor:
    """X times hardsigmoid(x)."""
    x = as_tensor(input, "hardswish")
    y = activated("hardswish", x)
    return _done(x, x * _between(x + 3.0, 0.0, 6.0) / 6.0 if y is None else y, inplace, "hardswish")


def hardshrink(input: TensorLike, lambd: float = 0.5) -> Tensor:
    """X where its size exceeds `lambd`, else 0."""
    x = as_tensor(input, "hardshrink")
    y = activated("hardshrink", x, width=lambd)
    return where(le(arithmetic.abs(x), lambd), 0.0, x) if y is None else y


def softshrink(input: TensorLike, lambd: float = 0.5) -> Tensor:
    """X moved towards 0 by `lambd`, 0 within that distance."""
    x = as_tensor(input, "softshrink")
    y = activated("softshrink", x, width=lambd)
    if y is not None:
        return y
    moved = where(gt(x, 0.0), x - lambd, x + lambd)
    return where(le(arithmetic.abs(x), lambd), 0.0, moved)


def threshold(
    input: TensorLike, threshold: float, value: TensorLike, inplace: bool = False
) -> Tensor:
    """X where it exceeds `threshold`, else `value`."""
    x = as_tensor(input, "threshold")
    return _done(x, where(le(x, threshold), value, x), inplace, "threshold")


def glu(input: TensorLike, dim: int = -1) -> Tensor:
    """Halve `dim` into a and b; return ``a * sigmoid(b)``."""
    x = as_tensor(input, "glu")
    if x.array.ndim == 0 or x.array.shape[normalize_dim(dim, x.array.ndim, "glu")] % 2:
        raise ShapeError(
            "glu",
            expected="an even size along dim",
            got=f"shape {x.array.shape}, dim {dim}",
            fix="the layer before it needs twice the features",
        )
    a, b = chunk(x, 2, dim)
    return a * sigmoid(b)


# ----------------------------------------------------------------------------------------- in place


def relu_(input: Tensor) -> Tensor:
    """`relu`, written into its input; returns it."""
    return relu(input, True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`leaky_relu`, written into its input; returns it."""
    return leaky_relu(input, negative_slope, True)


@in_our_words
def rrelu_(
    input: Tensor, lower: float = 1.0 / 8.0, upper: float = 1.0 / 3.0, training: bool = False
) -> Tensor:
    """`rrelu`, written into its input; returns it."""
    return rrelu(input, lower, upper, training, True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """`elu`, written into its input; returns it."""
    return elu(input, alpha, True)


def selu_(input: Tensor) -> Tensor:
    """`selu`, written into its input; returns it."""
    return selu(input, True)


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """`celu`, written into its input; returns it."""
    return celu(input, alpha, True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """`hardtanh`, written into its input; returns it."""
    return hardtanh(input, min_val, max_val, True)


def threshold_(input: Tensor, threshold: float, value: TensorLike) -> Tensor:
    """`threshold`, written into its input; returns it."""
    # The argument has the name of the function.
    x = as_tensor(input, "threshold_")
    return assign(x, where(le(x, threshold), value, x), "threshold_")


# ------------------------------------------------------------------------------------------ softmax


def _implicit(name: str, x: Tensor, dim: int | None) -> int:
    """Return `dim`, or the dim that PyTorch assumes, with a warning, if there is none."""
    if dim is not None:
        return dim
    warnings.warn(
        f"{name}: the dim is chosen from the shape, which is rarely what is meant; pass dim=",
        stacklevel=users_stacklevel(),
    )
    return 0 if x.array.ndim in (0, 1, 3) else 1


def _converted(x: Tensor, dtype: DTypeLike | None) -> Tensor:
    return x if dtype is None else x.to(dtype)


def softmax(
    input: TensorLike, dim: int | None = None, _stacklevel: int = 3, dtype: DTypeLike | None = None
) -> Tensor:
    """Exponentials divided by their sum along `dim`; cast to `dtype` first if given."""
    x = _converted(as_tensor(input, "softmax"), dtype)
    return exponential_sums.softmax(x, _implicit("softmax", x, dim))


def softmin(
    input: TensorLike, dim: int | None = None, _stacklevel: int = 3, dtype: DTypeLike | None = None
) -> Tensor:
    """Softmax of -x."""
    x = _converted(as_tensor(input, "softmin"), dtype)
    return exponential_sums.softmax(-x, _implicit("softmin", x, dim))


@in_our_words
def log_softmax(
    input: TensorLike, dim: int | None = None, _stacklevel: int = 3, dtype: DTypeLike | None = None
) -> Tensor:
    """Logarithm of the softmax along `dim`, without its overflow."""
    x = _converted(as_tensor(input, "log_softmax"), dtype)
    return exponential_sums.log_softmax(x, _implicit("log_softmax", x, dim))


@in_our_words
def gumbel_softmax(
    logits: TensorLike, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """Draw from the relaxed one-hot categorical distribution.

    Parameters
    ----------
    logits : Tensor, shape (..., categories)
    tau : float
        Temperature: towards 0 the draws become one-hot.
    hard : bool
        Return one-hot draws, with the gradient of the relaxed ones (straight through).
    eps : float
        Accepted for PyTorch's sake; our uniform draws never are 0 or 1.
    dim : int
    """
    logits = as_tensor(logits, "gumbel_softmax")
    if (isinstance(tau, (int, float)) or is_number(tau)) and not tau > 0.0:
        raise DomainError(
            "gumbel_softmax",
            expected="tau > 0",
            got=repr(tau),
            fix="with hard=True draws are one-hot at any temperature",
        )
    if not logits.array.ndim:
        return reshape(gumbel_softmax(reshape(logits, (1,)), tau, hard, eps, dim), ())
    gumbels = -exponentials.log(-exponentials.log(rand_like(logits)))
    soft = exponential_sums.softmax((logits + gumbels) / tau, dim)
    if not hard:
        return soft
    best = one_hot(extremes.argmax(soft, dim), soft.array.shape[dim])
    chosen = movedim(best, -1, dim).to(soft.dtype)
    return chosen - soft.detach() + soft
