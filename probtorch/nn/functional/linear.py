"""Maps with weights (linear, bilinear, tables of embeddings), and distances between vectors."""

from __future__ import annotations

import math

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.casting import cast, to_float
from probtorch.core.dispatch import recorder, unheard
from probtorch.core.dtype import int64, promote
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.nn.arguments import whole
from probtorch.ops.arithmetic import maximum, where
from probtorch.ops.comparisons import lt, ne
from probtorch.ops.contraction import affine, einsum, matmul
from probtorch.ops.indexing import getitem
from probtorch.ops.movement import expand, permute, reshape, reversed_dims, unsqueeze
from probtorch.ops.norms import norm
from probtorch.ops.reduction import sum
from probtorch.ops.searching import bincount
from probtorch.tensor import Tensor

__all__ = [
    "bilinear",
    "channel_shuffle",
    "cosine_similarity",
    "embedding",
    "linear",
    "normalize",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
]


def linear(input: TensorLike, weight: TensorLike, bias: TensorLike | None = None) -> Tensor:
    """``x @ weight.T + bias``.

    Parameters
    ----------
    input : Tensor, shape (..., in)
    weight : Tensor, shape (out, in) or (in,)
    bias : Tensor, shape (out,) or (), optional

    Returns
    -------
    Tensor, shape (..., out), or (...) for a vector as weight

    Raises
    ------
    ShapeError
        If the last size of the input is not that of the weight.
    """
    if type(input) is tuple and any(isinstance(part, (TensorBase, tuple)) for part in input):
        raise DTypeError(
            "linear",
            expected="a tensor",
            got=f"a tuple of {len(input)}",
            fix="take the part that is meant: LSTM, GRU and attention return (output, state), "
            "which Sequential passes on whole",
        )
    x, w = as_tensor(input, "linear"), as_tensor(weight, "linear")
    b = None if bias is None else as_tensor(bias, "linear")
    shape, size = x.array.shape, w.array.shape
    if not size:
        raise ShapeError(
            "linear",
            expected="a weight of shape (out, in) or (in,)",
            got="a 0-d tensor",
            fix="multiply by a number instead",
        )
    if not shape or shape[-1] != size[-1]:
        raise ShapeError(
            "linear",
            expected=f"an input of shape (..., {size[-1]}), for a weight of shape {size}",
            got=str(shape),
            fix="in_features is the last size of the input: flatten it, or change the layer",
        )
    if len(size) == 1:
        y = matmul(x, w)
    elif b is not None and unheard() and _are_rows(x, w, b):
        # A recording takes the parts, which it fuses with what is around them.
        rows = x if len(shape) == 2 else reshape(x, (math.prod(shape[:-1]), shape[-1]))
        y = affine(rows, w, b)
        return y if len(shape) == 2 else reshape(y, (*shape[:-1], size[0]))
    elif len(shape) > 2:
        # One product of matrices instead of a batch of them.
        rows = reshape(x, (math.prod(shape[:-1]), shape[-1]))
        y = reshape(matmul(rows, reversed_dims(w)), (*shape[:-1], size[0]))
    else:
        y = matmul(x, reversed_dims(w))
    return y if b is None else y + b


def _are_rows(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether these are vectors in rows, and a weight and bias of the same floats."""
    dtype = x.array.dtype
    return (
        x.array.ndim > 1
        and dtype.kind == "f"
        and dtype.itemsize > 2
        and weight.array.dtype is dtype
        and bias.array.dtype is dtype
        and bias.array.shape == weight.array.shape[:1]
    )


def bilinear(
    input1: TensorLike, input2: TensorLike, weight: TensorLike, bias: TensorLike | None = None
) -> Tensor:
    """``x1 @ weight[k] @ x2 + bias[k]`` for every k.

    Parameters
    ----------
    input1 : Tensor, shape (..., in1)
    input2 : Tensor, shape (..., in2)
    weight : Tensor, shape (out, in1, in2)
    bias : Tensor, shape (out,), optional
    """
    a, b, w = (as_tensor(t, "bilinear") for t in (input1, input2, weight))
    if w.array.ndim != 3:
        raise ShapeError(
            "bilinear",
            expected="a weight of shape (out, in1, in2)",
            got=str(w.array.shape),
            fix="the weight is the third argument",
        )
    if (a.array.shape[-1:], b.array.shape[-1:]) != (w.array.shape[1:2], w.array.shape[2:3]):
        raise ShapeError(
            "bilinear",
            expected=f"inputs (..., {w.array.shape[1]}) and (..., {w.array.shape[2]})",
            got=f"{a.array.shape} and {b.array.shape}",
            fix="check in1_features and in2_features",
        )
    y = einsum("...i,kij,...j->...k", a, w, b)
    return y if bias is None else y + bias


def embedding(
    input: TensorLike,
    weight: TensorLike,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return rows of a table.

    Parameters
    ----------
    input : integer Tensor, any shape
        Row numbers.
    weight : Tensor, shape (rows, features)
    padding_idx : int, optional
        Row that gets no gradient.
    max_norm : float, optional
        Rows that are looked up and longer are scaled down to it, in place, before.
    norm_type : float
        Which norm that is.
    scale_grad_by_freq : bool
        Divide each row's gradient by how often the row was looked up.
    sparse : bool
        Not supported: gradients are dense.

    Returns
    -------
    Tensor, shape (*input.shape, features)

    Raises
    ------
    TensorIndexError
        If a number is negative or beyond the last row.
    DTypeError
        If the numbers are not integers.
    """
    index, w = as_tensor(input, "embedding"), as_tensor(weight, "embedding")
    if w.array.ndim != 2:
        raise ShapeError(
            "embedding",
            expected="a weight of shape (rows, features)",
            got=str(w.array.shape),
            fix="the table comes second",
        )
    rows = w.array.shape[0]
    _check_rows(index, rows, sparse)
    if padding_idx is not None:
        if not isinstance(padding_idx, (int, np.integer)) or not -rows <= padding_idx < rows:
            raise ArgumentError(
                "embedding",
                expected=f"padding_idx in [{-rows}, {rows - 1}]",
                got=str(padding_idx),
                fix="it is the number of a row of the table",
            )
        padding_idx %= rows
    if max_norm is not None:
        _shorten_rows(index, w, max_norm, norm_type)
    if recorder() is not None:
        # A replay checks bounds, but would count from the end: no row has the number `rows`.
        index = where(lt(index, 0), rows, index)
    out = getitem(w, index)
    if scale_grad_by_freq:
        often = getitem(bincount(reshape(index, -1), minlength=rows), index)
        fixed = out.detach()
        out = fixed + (out - fixed) / unsqueeze(cast(often, w.array.dtype), -1)
    if padding_idx is not None:
        out = where(unsqueeze(ne(index, padding_idx), -1), out, out.detach())
    return out


def _check_rows(index: Tensor, rows: int, sparse: bool) -> None:
    if index.array.dtype.kind not in "iu":
        raise DTypeError(
            "embedding",
            expected="integer row numbers",
            got=str(index.array.dtype),
            fix="convert them with .long()",
        )
    a = index.array
    if a.dtype is int64 and type(a) is np.ndarray and a.size:
        fine = a.view(np.uint64).max() < rows  # numbers below 0 are large ones as well
    else:
        fine = not a.size or 0 <= a.min() <= a.max() < rows
    if not fine:
        raise TensorIndexError(
            "embedding",
            expected=f"row numbers in [0, {rows - 1}]",
            got=f"{int(index.array.min())} to {int(index.array.max())}",
            fix="num_embeddings must exceed the largest number",
        )
    if sparse:
        raise ArgumentError(
            "embedding",
            expected="sparse=False",
            got="sparse=True",
            fix="gradients are dense: leave the argument out",
        )


@no_grad
def _shorten_rows(index: Tensor, w: Tensor, max_norm: float, norm_type: float) -> None:
    used = as_tensor(np.unique(index.cpu().numpy())).to(w.device)
    chosen = getitem(w, used)
    length = norm(chosen, norm_type, -1, True)
    # 1e-7 as in PyTorch, so that a row is not scaled again for its rounding.
    scale = where(length > max_norm, max_norm / (length + 1e-7), 1.0)
    w[used] = chosen * scale


# ---------------------------------------------------------------------------------------- distances


@in_our_words
@takes_out
def normalize(
    input: TensorLike,
    p: float = 2.0,
    dim: int = 1,
    eps: float = 1e-12,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Divide by the p-norm along `dim`, or by `eps` where that is larger."""
    x = as_tensor(input, "normalize")
    return x / maximum(norm(x, p, dim, True), eps)


@in_our_words
def cosine_similarity(x1: TensorLike, x2: TensorLike, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Cosine of the angle between vectors along `dim`; norms below `eps` count as `eps`."""
    a, b = as_tensor(x1, "cosine_similarity"), as_tensor(x2, "cosine_similarity")
    if "f" not in (a.array.dtype.kind, b.array.dtype.kind):
        a = to_float(a)
    # Integers beside floats are what these are.
    dtype = promote([a.array, b.array])
    shape = broadcast_shapes(a.array.shape, b.array.shape, op="cosine_similarity")
    a, b = expand(cast(a, dtype), shape), expand(cast(b, dtype), shape)
    lengths = maximum(norm(a, 2, dim, True), eps), maximum(norm(b, 2, dim, True), eps)
    return sum((a / lengths[0]) * (b / lengths[1]), dim)


@in_our_words
def pairwise_distance(
    x1: TensorLike, x2: TensorLike, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """p-norm of ``x1 - x2 + eps`` along the last dim."""
    a, b = as_tensor(x1, "pairwise_distance"), as_tensor(x2, "pairwise_distance")
    return norm(a - b + eps, p, -1, keepdim)


# ------------------------------------------------------------------------------------------- pixels


def _factor(op: str, name: str, value: int, channels: int, square: int) -> None:
    if value < 1 or channels % square:
        raise ShapeError(
            op,
            expected=f"sizes that {name}={value} divides",
            got=f"{channels}, not a multiple of {square}",
            fix=f"check {name}",
        )


def _image(name: str, input: TensorLike) -> Tensor:
    x = as_tensor(input, name)
    if x.array.ndim < 3:
        raise ShapeError(
            name,
            expected="an input (..., C, H, W)",
            got=f"shape {x.array.shape}",
            fix="unsqueeze the missing dims",
        )
    return x


@in_our_words
def pixel_shuffle(input: TensorLike, upscale_factor: int) -> Tensor:
    """Move channels (..., C * r * r, H, W) into pixels (..., C, H * r, W * r)."""
    x, r = _image("pixel_shuffle", input), upscale_factor
    *lead, c, h, w = x.array.shape
    _factor("pixel_shuffle", "upscale_factor", r, c, r * r)
    n = len(lead)
    x = reshape(x, (*lead, c // (r * r), r, r, h, w))
    x = permute(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshape(x, (*lead, c // (r * r), h * r, w * r))


@in_our_words
def pixel_unshuffle(input: TensorLike, downscale_factor: int) -> Tensor:
    """Move pixels (..., C, H * r, W * r) into channels (..., C * r * r, H, W)."""
    x, r = _image("pixel_unshuffle", input), downscale_factor
    *lead, c, h, w = x.array.shape
    _factor("pixel_unshuffle", "downscale_factor", r, h, r)
    _factor("pixel_unshuffle", "downscale_factor", r, w, r)
    n = len(lead)
    x = reshape(x, (*lead, c, h // r, r, w // r, r))
    x = permute(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshape(x, (*lead, c * r * r, h // r, w // r))


def channel_shuffle(input: TensorLike, groups: int) -> Tensor:
    """Deal channels (N, C, *) out to `groups` in turn, as cards are.

    Raises
    ------
    ShapeError
        If there is no dim of channels, or `groups` does not divide it.
    """
    x = as_tensor(input, "channel_shuffle")
    whole("channel_shuffle", groups=groups)
    if x.array.ndim < 3:
        raise ShapeError(
            "channel_shuffle",
            expected="an input (N, C, *) with at least 3 dims",
            got=f"shape {x.array.shape}",
            fix="unsqueeze the missing dims",
        )
    n, c, *rest = x.array.shape
    _factor("channel_shuffle", "groups", groups, c, groups)
    parted = reshape(x, (n, groups, c // groups, *rest))
    return reshape(permute(parted, (0, 2, 1, *range(3, parted.array.ndim))), x.array.shape)
