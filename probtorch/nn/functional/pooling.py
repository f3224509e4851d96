"""Pooling under PyTorch's names; the work is done in `probtorch/ops/pooling.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, overload

from probtorch.core.misuse import in_our_words
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.ops import pooling
from probtorch.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
]

INPUT = {
    1: ("signals (N, C, L) or (C, L)", "int"),
    2: ("images (N, C, H, W) or (C, H, W)", "int or pair of int"),
    3: ("volumes (N, C, D, H, W) or (C, D, H, W)", "int or triple of int"),
}
_MAX = """Return the largest element of each window of {what}.

    Parameters
    ----------
    input : Tensor
    kernel_size, stride, padding, dilation : {number}
        `stride` is the kernel size if None; the border counts as minus infinity.
    ceil_mode : bool
        Also take windows that reach beyond the right border.
    return_indices : bool
        Return (values, flat positions in the input) instead.

    Notes
    -----
    Equal largest elements share the gradient; PyTorch gives it to the first.
    """
_AVERAGE = """Return the mean of each window of {what}.

    Parameters
    ----------
    input : Tensor
    kernel_size, stride, padding : {number}
        `stride` is the kernel size if None; the border counts as 0.
    ceil_mode : bool
        Also take windows that reach beyond the right border.
    count_include_pad : bool
        Whether the border counts in the number of elements.
    """
_OVERRIDE = """divisor_override : int, optional
        Divide by this instead of the number of elements.
    """


# A size per dim, one for all, or None to keep the size.
Sizes: TypeAlias = int | Sequence[int | None] | None


class _MaxPool(Protocol):
    @overload
    def __call__(
        self,
        input: TensorLike,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike = 0,
        dilation: SizeLike = 1,
        ceil_mode: bool = False,
        return_indices: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        input: TensorLike,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike = 0,
        dilation: SizeLike = 1,
        ceil_mode: bool = False,
        *,
        return_indices: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...


class _WithIndices(Protocol):
    def __call__(
        self,
        input: TensorLike,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike = 0,
        dilation: SizeLike = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> tuple[Tensor, Tensor]: ...


class _AdaptiveWithIndices(Protocol):
    def __call__(
        self, input: TensorLike, output_size: Sizes, return_indices: bool = False
    ) -> tuple[Tensor, Tensor]: ...


class _AvgPool(Protocol):
    def __call__(
        self,
        input: TensorLike,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike | str = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor: ...


class _LPPool(Protocol):
    def __call__(
        self,
        input: TensorLike,
        norm_type: float,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        ceil_mode: bool = False,
    ) -> Tensor: ...


class _AdaptiveAvgPool(Protocol):
    def __call__(self, input: TensorLike, output_size: Sizes) -> Tensor: ...


class _AdaptiveMaxPool(Protocol):
    @overload
    def __call__(
        self, input: TensorLike, output_size: Sizes, return_indices: Literal[False] = False
    ) -> Tensor: ...
    @overload
    def __call__(
        self, input: TensorLike, output_size: Sizes, *, return_indices: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...


def _max_pool(n: int) -> _MaxPool:
    name = f"max_pool{n}d"

    def call(
        input: TensorLike,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike = 0,
        dilation: SizeLike = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        return pooling.max_pool(
            name, n, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
        )

    return named(call, name, _MAX, n)


def named(call: Callable[..., object], name: str, doc: str, n: int) -> Any:
    """Give a function for `n` spatial dims its name and docstring."""
    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc.format(what=INPUT[n][0], number=INPUT[n][1], n=n)
    return call


def _avg_pool(n: int) -> _AvgPool:
    name = f"avg_pool{n}d"

    def call(
        input: TensorLike,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike | str = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        return pooling.avg_pool(
            name,
            n,
            input,
            kernel_size,
            stride,
            padding,
            ceil_mode,
            count_include_pad,
            divisor_override,
        )

    return named(call, name, _AVERAGE + _OVERRIDE, n)


def avg_pool1d(
    input: TensorLike,
    kernel_size: SizeLike,
    stride: SizeLike | None = None,
    padding: SizeLike | str = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window of signals (N, C, L) or (C, L); see `avg_pool2d`."""
    return pooling.avg_pool(
        "avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None
    )


def _lp_pool(n: int) -> _LPPool:
    name = f"lp_pool{n}d"

    def call(
        input: TensorLike,
        norm_type: float,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        ceil_mode: bool = False,
    ) -> Tensor:
        return pooling.lp_pool(name, n, input, norm_type, kernel_size, stride, ceil_mode)

    doc = "Return ``sum(x ** p) ** (1 / p)``, p = `norm_type`, over each window of {what}."
    return named(in_our_words(call), name, doc, n)


def _max_pool_with_indices(n: int) -> _WithIndices:
    name = f"max_pool{n}d_with_indices"

    def call(
        input: TensorLike,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike = 0,
        dilation: SizeLike = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> tuple[Tensor, Tensor]:
        return pooling.max_pool(
            f"max_pool{n}d", n, input, kernel_size, stride, padding, dilation, ceil_mode, True
        )

    doc = f"Return values and flat positions of `max_pool{n}d`, with the same arguments."
    return named(call, name, doc, n)


def _adaptive_max_pool_with_indices(n: int) -> _AdaptiveWithIndices:
    name = f"adaptive_max_pool{n}d_with_indices"

    def call(
        input: TensorLike, output_size: Sizes, return_indices: bool = False
    ) -> tuple[Tensor, Tensor]:
        return pooling.adaptive_max_pool(f"adaptive_max_pool{n}d", n, input, output_size, True)

    doc = f"Return values and flat positions of `adaptive_max_pool{n}d`, with the same arguments."
    return named(call, name, doc, n)


def _adaptive_avg_pool(n: int) -> _AdaptiveAvgPool:
    name = f"adaptive_avg_pool{n}d"

    def call(input: TensorLike, output_size: Sizes) -> Tensor:
        return pooling.adaptive_avg_pool(name, n, input, output_size)

    doc = "Return means of {what} over a grid of windows of `output_size` (None keeps a size)."
    return named(call, name, doc, n)


def _adaptive_max_pool(n: int) -> _AdaptiveMaxPool:
    name = f"adaptive_max_pool{n}d"

    def call(
        input: TensorLike, output_size: Sizes, return_indices: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        return pooling.adaptive_max_pool(name, n, input, output_size, return_indices)

    doc = "Return largest elements of {what} over a grid of windows of `output_size`."
    return named(call, name, doc, n)


max_pool1d, max_pool2d, max_pool3d = (_max_pool(n) for n in (1, 2, 3))
avg_pool2d, avg_pool3d = (_avg_pool(n) for n in (2, 3))
lp_pool1d, lp_pool2d, lp_pool3d = (_lp_pool(n) for n in (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (
    _adaptive_avg_pool(n) for n in (1, 2, 3)
)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (
    _adaptive_max_pool(n) for n in (1, 2, 3)
)
max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = (
    _max_pool_with_indices(n) for n in (1, 2, 3)
)
(
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d_with_indices,
) = (_adaptive_max_pool_with_indices(n) for n in (1, 2, 3))
