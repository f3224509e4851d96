"""Normalisation: subtract a mean, divide by a standard deviation, over one choice of dims or other.

All use the variance divided by n, plus `eps`; running variances are divided by n - 1, as in
PyTorch. Statistics that the gradient flows through are part of the tape.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.dispatch import around, mark_changed, unheard
from probtorch.core.dtype import finfo, float32, promote_types
from probtorch.core.in_place import is_plain
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.refusals import real_only
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Shape, SizeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.nn.functional.batch_statistics import batch_normalised
from probtorch.ops.arithmetic import rsqrt
from probtorch.ops.exponentials import pow
from probtorch.ops.movement import movedim, reshape
from probtorch.ops.padding import pad
from probtorch.ops.reduction import in_single, mean
from probtorch.ops.standardise import layer_norm_rows, standardise
from probtorch.ops.windows import number_per_dim, window_sum
from probtorch.tensor import Tensor

__all__ = [
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "rms_norm",
]


def _laid(op: str, name: str, given: TensorLike, shape: Shape) -> Tensor:
    """Return as `shape` what is given for each channel, or each of the last dims."""
    t = as_tensor(given, op)
    if t.array.size != math.prod(shape):
        raise ShapeError(
            op,
            expected=f"{name} with {math.prod(shape)} elements, those of {shape}",
            got=f"shape {t.array.shape}",
            fix="give one for each channel, or for each of normalized_shape",
        )
    return t if t.array.shape == shape else reshape(t, shape)


def _scaled(
    op: str, y: Tensor, weight: TensorLike | None, bias: TensorLike | None, shape: Shape
) -> Tensor:
    if weight is None and bias is None:
        # The tape reads y: who overwrites the result, as ReLU in place does, must not meet it.
        return y.clone()
    if weight is not None:
        y = y * _laid(op, "weight", weight, shape)
    return y if bias is None else y + _laid(op, "bias", bias, shape)


def _last_dims(op: str, x: Tensor, normalized_shape: SizeLike) -> tuple[Shape, Shape]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    n = len(shape)
    if not n or x.array.shape[-n:] != shape:
        raise ShapeError(
            op,
            expected=f"an input of shape (*, {', '.join(map(str, shape))})",
            got=str(x.array.shape),
            fix="normalized_shape is the shape of the last dims",
        )
    return tuple(range(-n, 0)), shape


@in_our_words
def layer_norm(
    input: TensorLike,
    normalized_shape: SizeLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardise over the last dims, then scale and shift elementwise.

    Parameters
    ----------
    input : Tensor, shape (..., *normalized_shape)
    normalized_shape : int or tuple of int
    weight, bias : Tensor, shape `normalized_shape`, optional
    eps : float
        Added to the variance.
    """
    x = as_tensor(input, "layer_norm")
    dims, shape = _last_dims("layer_norm", x, normalized_shape)
    if weight is not None and bias is not None and len(shape) == 1:
        w, b = (_laid("layer_norm", *t, shape) for t in (("weight", weight), ("bias", bias)))
        whole = layer_norm_rows(x, w, b, eps)
        if whole is not None:
            return whole
    return _scaled("layer_norm", standardise(x, dims, eps)[0], weight, bias, shape)


@in_our_words
def rms_norm(
    input: TensorLike,
    normalized_shape: SizeLike,
    weight: TensorLike | None = None,
    eps: float | None = None,
) -> Tensor:
    """Divide by the root mean square over the last dims; `eps` is the dtype's epsilon if None."""
    x = as_tensor(input, "rms_norm")
    dims, shape = _last_dims("rms_norm", x, normalized_shape)
    if eps is None:
        # Half precision is computed in single.
        eps = float(finfo(promote_types(x.array.dtype, float32)).eps)
    return _scaled("rms_norm", _by_root_mean_square(x, dims, eps), weight, None, shape)


@in_single
def _by_root_mean_square(x: Tensor, dims: Shape, eps: float) -> Tensor:
    return x * rsqrt(mean(x * x, dims, True) + eps)


@in_our_words
def group_norm(
    input: TensorLike,
    num_groups: int,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Standardise each group of channels of each sample.

    Parameters
    ----------
    input : Tensor, shape (N, C, ...)
    num_groups : int
        Divides C.
    weight, bias : Tensor, shape (C,), optional
    """
    x = as_tensor(input, "group_norm")
    real_only("group_norm", x)
    shape = x.array.shape
    if len(shape) < 2 or num_groups < 1 or shape[1] % num_groups:
        raise ShapeError(
            "group_norm",
            expected=f"an input (N, C, *) with C divisible by num_groups={num_groups}",
            got=str(shape),
            fix="check num_groups",
        )
    apart = reshape(x, (shape[0], num_groups, math.prod(shape[1:]) // num_groups))
    y = reshape(standardise(apart, (2,), eps)[0], shape)
    return _scaled("group_norm", y, weight, bias, (1, shape[1], *[1] * (len(shape) - 2)))


def _update(running: TensorLike, value: Tensor, momentum: float) -> None:
    if not isinstance(running, TensorBase):
        raise DTypeError(
            "batch_norm",
            expected="running_mean and running_var: tensors, which are changed in place",
            got=f"{type(running).__name__} {running!r:.40}",
            fix="pass zeros(C) and ones(C), or None",
        )
    tensor: Tensor = running
    a, b = tensor.array, value.array
    if is_plain(tensor) and a.dtype == b.dtype and a.size == b.size:  # the same, on arrays
        a[...] = a * (1.0 - momentum) + b.reshape(a.shape) * momentum
        mark_changed(tensor)
        return
    tensor.copy_(tensor * (1.0 - momentum) + reshape(value, tensor.array.shape) * momentum)


def batch_norm(
    input: TensorLike,
    running_mean: TensorLike | None,
    running_var: TensorLike | None,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Standardise each channel over the batch (in training) or by running statistics.

    Parameters
    ----------
    input : Tensor, shape (N, C, ...)
    running_mean, running_var : Tensor, shape (C,), or None
        In training they move, in place, towards those of the batch.
    weight, bias : Tensor, shape (C,), optional
    training : bool
    momentum : float
        Share of the batch in the new running statistics.
    eps : float
        Added to the variance.

    Raises
    ------
    ShapeError
        If there is one value per channel only, which has no variance.
    """
    x = as_tensor(input, "batch_norm")
    real_only("batch_norm", x, running_mean, running_var, weight, bias)
    shape = x.array.shape
    if len(shape) < 2:
        raise ShapeError(
            "batch_norm", expected="an input (N, C, *)", got=str(shape), fix="add a batch dim"
        )
    across = (1, shape[1], *[1] * (len(shape) - 2))
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError(
                "batch_norm",
                expected="running_mean and running_var outside training",
                got="None",
                fix="pass them, or training=True",
            )
        y = x - _laid("batch_norm", "running_mean", running_mean, across)
        running_var = _laid("batch_norm", "running_var", running_var, across)
        return _scaled("batch_norm", y * rsqrt(running_var + eps), weight, bias, across)
    dims = (0, *range(2, len(shape)))
    count = math.prod(shape[d] for d in dims)
    if count < 2:
        raise ShapeError(
            "batch_norm",
            expected="more than 1 value per channel when training",
            got=f"input size {shape}",
            fix="use a larger batch, or eval()",
        )
    whole = None
    if weight is not None and bias is not None:
        channels = (shape[1],)
        w, b = (_laid("batch_norm", *t, channels) for t in (("weight", weight), ("bias", bias)))
        whole = batch_normalised(x, w, b, eps)
    elif weight is None and bias is None and unheard():
        one, zero = (around(make(shape[1], x.array.dtype)) for make in (np.ones, np.zeros))
        whole = batch_normalised(x, one, zero, eps)
    y, centre, spread = standardise(x, dims, eps) if whole is None else whole
    with no_grad():
        if running_mean is not None:
            _update(running_mean, centre.detach(), momentum)
        if running_var is not None:
            _update(running_var, spread.detach() * (count / (count - 1)), momentum)
    return y if whole is not None else _scaled("batch_norm", y, weight, bias, across)


def instance_norm(
    input: TensorLike,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Standardise each channel of each sample over its other dims; arguments as `batch_norm`.

    With `use_input_stats` off the running statistics are used; on, they move towards the means over
    the batch.
    """
    x = as_tensor(input, "instance_norm")
    real_only("instance_norm", x)
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    shape = x.array.shape
    count = math.prod(shape[2:])
    if len(shape) < 3 or count < 2:
        raise ShapeError(
            "instance_norm",
            expected="an input (N, C, *) with more than 1 spatial element when training",
            got=f"input size {shape}",
            fix="use a larger image, or layer_norm",
        )
    y, centre, spread = standardise(x, tuple(range(2, len(shape))), eps)
    with no_grad():
        if running_mean is not None:
            _update(running_mean, mean(centre.detach(), (0,)), momentum)
        if running_var is not None:
            spread = mean(spread.detach(), (0,)) * (count / (count - 1))
            _update(running_var, spread, momentum)
    return _scaled("instance_norm", y, weight, bias, (1, shape[1], *[1] * (len(shape) - 2)))


def local_response_norm(
    input: TensorLike, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Divide by ``(k + alpha * mean of squares) ** beta`` over neighbouring channels.

    Parameters
    ----------
    input : Tensor, shape (N, C, *)
    size : int
        How many channels, around each one, the mean is taken over; zeros lie beyond the ends.
    alpha, beta, k : float

    Raises
    ------
    ShapeError
        If the input has fewer than 3 dims.
    """
    x = as_tensor(input, "local_response_norm")
    real_only("local_response_norm", x)
    (size,) = number_per_dim("local_response_norm", "size", size, 1)
    if x.array.ndim < 3:
        raise ShapeError(
            "local_response_norm",
            expected="an input (N, C, *) with at least 3 dims",
            got=f"shape {x.array.shape}",
            fix="unsqueeze the missing dims",
        )
    last = movedim(x * x, 1, -1)
    squares = pad(last, (size // 2, (size - 1) // 2))
    means = movedim(window_sum(squares, (size,), (1,), (1,)), -1, 1) / float(size)
    return x / pow(means * alpha + k, beta)
