"""Convolutions, forward and transposed, over one to three spatial dims.

A convolution is one matrix product: the windows of the input are copied out as the columns of a
matrix (`ops/windows.py`), batch and places side by side, and the weight multiplies it. So both
gradients are single products too, whatever the batch, and derivatives of any order follow from the
ops involved. As in PyTorch this is the cross-correlation of signal processing: the kernel is not
flipped. A transposed convolution is the transpose of that map, read from right to left.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from probtorch.core.casting import cast
from probtorch.core.dtype import promote_types
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.contraction import matmul
from probtorch.ops.movement import permute, reshape, slice_
from probtorch.ops.padding import pad
from probtorch.ops.windows import drop_first, number_per_dim, overlap_add, window_counts, windows

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "same_padding",
]


def same_padding(sizes: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the widths (left, right) per dim that keep the size, the larger one on the right."""
    total = [d * (k - 1) for k, d in zip(sizes, dilation, strict=True)]
    return tuple((t // 2, t - t // 2) for t in total)


def _widths(
    op: str,
    padding: SizeLike | str,
    sizes: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, int], ...]:
    n = len(sizes)
    if padding == "valid":
        return ((0, 0),) * n
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ArgumentError(
                op,
                expected="stride 1 with padding='same'",
                got=f"stride={stride}",
                fix="give the padding as a number: padding='same' is not supported for strided "
                "convolutions",
            )
        return same_padding(sizes, dilation)
    if isinstance(padding, str):
        raise ArgumentError(
            op,
            expected="padding: 'valid', 'same', an integer or one per dim",
            got=repr(padding),
            fix="use 'same' to keep the size, 0 for no padding",
        )
    return tuple((p, p) for p in number_per_dim(op, "padding", padding, n, least=0))


def _operands(
    op: str,
    n: int,
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    groups: int,
    channel_dim: int,
) -> tuple[TensorBase, TensorBase, TensorBase | None, bool]:
    """Return input (batched), weight and bias in one dtype, and whether the input had a batch."""
    x, w = as_tensor(input, op), as_tensor(weight, op)
    b = None if bias is None else as_tensor(bias, op)
    dims = {1: "L", 2: "H, W", 3: "D, H, W"}[n]
    if x.array.ndim not in (n + 1, n + 2):
        raise ShapeError(
            op,
            expected=f"an input of shape (N, C, {dims}) or (C, {dims})",
            got=str(x.array.shape),
            fix="add a channel dim with unsqueeze, or flatten the dims before the channels",
        )
    if w.array.ndim != n + 2:
        raise ShapeError(
            op,
            expected=f"a weight with {n + 2} dims",
            got=str(w.array.shape),
            fix="its shape is (out, in / groups, *kernel), transposed (in, out / groups, *kernel)",
        )
    number_per_dim(op, "groups", groups, 1)
    batched = x.array.ndim == n + 2
    if not batched:
        x = reshape(x, (1, *x.array.shape))
    shape = w.array.shape
    channels = shape[1] * groups if channel_dim == 1 else shape[0]
    if x.array.shape[1] != channels or shape[0] % groups:
        raise ShapeError(
            op,
            expected=f"{channels} channels, for a weight of shape {shape} and groups={groups}",
            got=f"an input of shape {x.array.shape} with {x.array.shape[1]} channels",
            fix="channels are dim 1 of the input, after the batch; both channel counts must be "
            "divisible by groups",
        )
    out_channels = shape[0] if channel_dim == 1 else shape[1] * groups
    if b is not None and b.array.shape != (out_channels,):
        raise ShapeError(
            op,
            expected=f"a bias of shape ({out_channels},)",
            got=str(b.array.shape),
            fix="one number per output channel",
        )
    dtype = promote_types(x.array.dtype, w.array.dtype)
    return cast(x, dtype), cast(w, dtype), b, batched


def _finished(y: TensorBase, bias: TensorBase | None, n: int, batched: bool) -> TensorBase:
    """Add the bias and take off the batch dim that was put on."""
    if bias is not None:
        y = y + reshape(bias, (-1, *[1] * n))
    return y if batched else drop_first(y)


def _convolve(
    op: str,
    n: int,
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    stride: SizeLike,
    padding: SizeLike | str,
    dilation: SizeLike,
    groups: int,
) -> TensorBase:
    x, w, bias, batched = _operands(op, n, input, weight, bias, groups, 1)
    stride = number_per_dim(op, "stride", stride, n)
    dilation = number_per_dim(op, "dilation", dilation, n)
    (out_channels, per_group), sizes = w.array.shape[:2], w.array.shape[2:]
    widths = _widths(op, padding, sizes, stride, dilation)
    x = pad(x, [p for pair in reversed(widths) for p in pair])
    counts = window_counts(x.array.shape[2:], sizes, stride, dilation)
    if min(counts) < 1:
        raise ShapeError(
            op,
            expected=f"a padded input at least as large as the kernel of size {sizes}",
            got=f"{x.array.shape[2:]} with dilation {dilation}",
            fix="use a smaller kernel, or more padding",
        )
    batch, k = x.array.shape[0], math.prod(sizes)
    spatial = tuple(range(2, n + 2))
    x = permute(x, (1, 0, *spatial))
    columns = windows(x, sizes, stride, dilation)  # (*sizes, C, N, *counts)
    rows = permute(w, (0, *spatial, 1))  # (O, *sizes, C / groups)
    places = batch * math.prod(counts)
    if groups == 1:
        columns = reshape(columns, (k * per_group, places))
        y = matmul(reshape(rows, (out_channels, k * per_group)), columns)
    else:
        columns = permute(reshape(columns, (k, groups, per_group, places)), (1, 0, 2, 3))
        columns = reshape(columns, (groups, k * per_group, places))
        y = matmul(reshape(rows, (groups, out_channels // groups, k * per_group)), columns)
    y = permute(reshape(y, (out_channels, batch, *counts)), (1, 0, *spatial))
    return _finished(y, bias, n, batched)


def _convolve_transpose(
    op: str,
    n: int,
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    stride: SizeLike,
    padding: SizeLike,
    output_padding: SizeLike,
    groups: int,
    dilation: SizeLike,
) -> TensorBase:
    x, w, bias, batched = _operands(op, n, input, weight, bias, groups, 0)
    stride = number_per_dim(op, "stride", stride, n)
    dilation = number_per_dim(op, "dilation", dilation, n)
    padding = number_per_dim(op, "padding", padding, n, least=0)
    extra = number_per_dim(op, "output_padding", output_padding, n, least=0)
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation)):
        raise ArgumentError(
            op,
            expected="output_padding smaller than stride or dilation",
            got=f"output_padding={extra}, stride={stride}, dilation={dilation}",
            fix="output_padding only chooses among the sizes that a stride maps to one",
        )
    (in_channels, per_group), sizes = w.array.shape[:2], w.array.shape[2:]
    counts, batch = x.array.shape[2:], x.array.shape[0]
    spatial, k = tuple(range(2, n + 2)), math.prod(sizes)
    places = batch * math.prod(counts)
    x = reshape(permute(x, (1, 0, *spatial)), (groups, in_channels // groups, places))
    w = reshape(w, (groups, in_channels // groups, per_group, k))
    rows = reshape(permute(w, (0, 3, 2, 1)), (groups, k * per_group, in_channels // groups))
    columns = reshape(matmul(rows, x), (groups, k, per_group, places))
    columns = reshape(permute(columns, (1, 0, 2, 3)), (*sizes, groups * per_group, batch, *counts))
    whole = tuple(
        (c - 1) * s + d * (m - 1) + 1 for c, s, d, m in zip(counts, stride, dilation, sizes)
    )
    y = permute(overlap_add(columns, whole, sizes, stride, dilation), (1, 0, *spatial))
    out = tuple(m - 2 * p + e for m, p, e in zip(whole, padding, extra))
    if min(out) < 1:
        raise ShapeError(
            op,
            expected="padding that leaves an output",
            got=f"output sizes {out} for padding={padding}",
            fix="use less padding",
        )
    y = pad(y, [width for e in reversed(extra) for width in (0, e)])
    keep = ((0, 1, batch), (0, 1, groups * per_group))
    y = slice_(y, (*keep, *((p, 1, m) for p, m in zip(padding, out))))
    return _finished(y, bias, n, batched)


_CONVOLUTION = """Convolve a batch of {what} with a kernel (cross-correlation, as in PyTorch).

    Parameters
    ----------
    input : Tensor, shape (N, C, {dims}) or (C, {dims})
    weight : Tensor, shape (O, C / groups, {kernel})
    bias : Tensor, shape (O,), optional
    stride : int or tuple of int
    padding : int, tuple of int, "valid" or "same"
        Zeros on both sides; "same" keeps the size and needs stride 1.
    dilation : int or tuple of int
        Distance between the elements of the kernel.
    groups : int
        Blocks of channels that do not mix.

    Returns
    -------
    Tensor, shape (N, O, {out}) or (O, {out})
        ``out = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1`` for each dim.

    Raises
    ------
    ShapeError
        If the shapes do not go together.
    ArgumentError
        If a number has the wrong kind or count.
    """
_TRANSPOSED = """Apply the transpose of a convolution (of {what}), which goes from small to large.

    Parameters
    ----------
    input : Tensor, shape (N, C, {dims}) or (C, {dims})
    weight : Tensor, shape (C, O / groups, {kernel})
    bias : Tensor, shape (O,), optional
    stride, padding, dilation : int or tuple of int
        Of the convolution that this is the transpose of: padding is cut off here.
    output_padding : int or tuple of int
        Added to the size of the output on one side.
    groups : int

    Returns
    -------
    Tensor, shape (N, O, {out}) or (O, {out})
        ``out = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1``
        for each dim.

    Raises
    ------
    ShapeError
        If the shapes do not go together.
    ArgumentError
        If a number has the wrong kind or count.
    """
_WORDS = {
    1: {"what": "signals", "dims": "L", "kernel": "k", "out": "L'"},
    2: {"what": "images", "dims": "H, W", "kernel": "kh, kw", "out": "H', W'"},
    3: {"what": "volumes", "dims": "D, H, W", "kernel": "kd, kh, kw", "out": "D', H', W'"},
}


def _convolution(n: int) -> Callable[..., TensorBase]:
    op = f"conv{n}d"

    def call(
        input: TensorBase,
        weight: TensorBase,
        bias: TensorBase | None = None,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        groups: int = 1,
    ) -> TensorBase:
        return _convolve(op, n, input, weight, bias, stride, padding, dilation, groups)

    call.__name__ = call.__qualname__ = op
    call.__doc__ = _CONVOLUTION.format(**_WORDS[n])
    return call


def _transposed(n: int) -> Callable[..., TensorBase]:
    op = f"conv_transpose{n}d"

    def call(
        input: TensorBase,
        weight: TensorBase,
        bias: TensorBase | None = None,
        stride: int = 1,
        padding: int = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        dilation: int = 1,
    ) -> TensorBase:
        return _convolve_transpose(
            op, n, input, weight, bias, stride, padding, output_padding, groups, dilation
        )

    call.__name__ = call.__qualname__ = op
    call.__doc__ = _TRANSPOSED.format(**_WORDS[n])
    return call


conv1d, conv2d, conv3d = (_convolution(n) for n in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (_transposed(n) for n in (1, 2, 3))
