"""Pooling layers: the functions of `functional.pooling` with their settings."""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.core.typed import SizeLike, TensorLike
from probtorch.nn import functional as F
from probtorch.nn.arguments import documented_by, shown
from probtorch.nn.module import Module
from probtorch.ops.windows import number_per_dim
from probtorch.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
]


class _MaxPool(Module):
    """Largest element of each window.

    Parameters
    ----------
    kernel_size, stride, padding, dilation : int or tuple of int
        `stride` is the kernel size if None; the border counts as minus infinity.
    return_indices : bool
        Return (values, flat positions in the input) instead.
    ceil_mode : bool
        Also take windows that reach beyond the right border.
    """

    def __init__(
        self,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike | str = 0,
        dilation: SizeLike = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: TensorLike) -> Tensor:
        return self.pool(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )

    def extra_repr(self) -> str:
        return shown(self, "kernel_size", "stride", "padding", "dilation", "ceil_mode")


@documented_by(_MaxPool)
class MaxPool1d(_MaxPool):
    """Largest element of each window of signals (N, C, L) or (C, L)."""

    pool = staticmethod(F.max_pool1d)


@documented_by(_MaxPool)
class MaxPool2d(_MaxPool):
    """Largest element of each window of images (N, C, H, W) or (C, H, W)."""

    pool = staticmethod(F.max_pool2d)


@documented_by(_MaxPool)
class MaxPool3d(_MaxPool):
    """Largest element of each window of volumes (N, C, D, H, W) or (C, D, H, W)."""

    pool = staticmethod(F.max_pool3d)


class AvgPool1d(Module):
    """Mean of each window of signals (N, C, L) or (C, L).

    Parameters
    ----------
    kernel_size, stride, padding : int
        `stride` is the kernel size if None; the border counts as 0.
    ceil_mode : bool
        Also take windows that reach beyond the right border.
    count_include_pad : bool
        Whether the border counts in the number of elements.
    """

    def __init__(
        self,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike | str = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        stride = kernel_size if stride is None else stride
        self.kernel_size = number_per_dim("AvgPool1d", "kernel_size", kernel_size, 1)
        self.stride = number_per_dim("AvgPool1d", "stride", stride, 1)
        self.padding = number_per_dim("AvgPool1d", "padding", padding, 1, least=0)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: TensorLike) -> Tensor:
        return F.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )

    def extra_repr(self) -> str:
        return shown(self, "kernel_size", "stride", "padding")


class _AvgPool(Module):
    """Mean of each window.

    Parameters
    ----------
    kernel_size, stride, padding : int or tuple of int
        `stride` is the kernel size if None; the border counts as 0.
    ceil_mode : bool
        Also take windows that reach beyond the right border.
    count_include_pad : bool
        Whether the border counts in the number of elements.
    divisor_override : int, optional
        Divide by this instead of the number of elements.
    """

    def __init__(
        self,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        padding: SizeLike | str = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: TensorLike) -> Tensor:
        return self.pool(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        return shown(self, "kernel_size", "stride", "padding")


@documented_by(_AvgPool)
class AvgPool2d(_AvgPool):
    """Mean of each window of images (N, C, H, W) or (C, H, W)."""

    pool = staticmethod(F.avg_pool2d)


@documented_by(_AvgPool)
class AvgPool3d(_AvgPool):
    """Mean of each window of volumes (N, C, D, H, W) or (C, D, H, W)."""

    pool = staticmethod(F.avg_pool3d)


class _LPPool(Module):
    """Norm of each window.

    Parameters
    ----------
    norm_type : float
        The power p of ``sum(x ** p) ** (1 / p)``.
    kernel_size, stride : int or tuple of int
        `stride` is the kernel size if None.
    ceil_mode : bool
        Also take windows that reach beyond the right border.
    """

    def __init__(
        self,
        norm_type: float,
        kernel_size: SizeLike,
        stride: SizeLike | None = None,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride, self.ceil_mode = stride, ceil_mode

    def forward(self, input: TensorLike) -> Tensor:
        return self.pool(input, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return shown(self, "norm_type", "kernel_size", "stride", "ceil_mode")


@documented_by(_LPPool)
class LPPool1d(_LPPool):
    """Norm of each window of signals (N, C, L) or (C, L)."""

    pool = staticmethod(F.lp_pool1d)


@documented_by(_LPPool)
class LPPool2d(_LPPool):
    """Norm of each window of images (N, C, H, W) or (C, H, W)."""

    pool = staticmethod(F.lp_pool2d)


@documented_by(_LPPool)
class LPPool3d(_LPPool):
    """Norm of each window of volumes (N, C, D, H, W) or (C, D, H, W)."""

    pool = staticmethod(F.lp_pool3d)


class _AdaptiveAvgPool(Module):
    """Means over a grid of windows that covers the input.

    Parameters
    ----------
    output_size : int, None or a tuple of them
        Sizes of the output, whatever those of the input; None keeps a size.
    """

    def __init__(self, output_size: SizeLike | Sequence[int | None] | None) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: TensorLike) -> Tensor:
        return self.pool(input, self.output_size)

    def extra_repr(self) -> str:
        return shown(self, "output_size")


@documented_by(_AdaptiveAvgPool)
class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means over a grid of windows that covers signals (N, C, L) or (C, L)."""

    pool = staticmethod(F.adaptive_avg_pool1d)


@documented_by(_AdaptiveAvgPool)
class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means over a grid of windows that covers images (N, C, H, W) or (C, H, W)."""

    pool = staticmethod(F.adaptive_avg_pool2d)


@documented_by(_AdaptiveAvgPool)
class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means over a grid of windows that covers volumes (N, C, D, H, W) or (C, D, H, W)."""

    pool = staticmethod(F.adaptive_avg_pool3d)


class _AdaptiveMaxPool(Module):
    """Largest elements over a grid of windows that covers the input.

    Parameters
    ----------
    output_size : int, None or a tuple of them
        Sizes of the output, whatever those of the input; None keeps a size.
    return_indices : bool
        Return (values, flat positions in the input) instead.
    """

    def __init__(
        self, output_size: SizeLike | Sequence[int | None] | None, return_indices: bool = False
    ) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: TensorLike) -> Tensor:
        return self.pool(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return shown(self, "output_size")


@documented_by(_AdaptiveMaxPool)
class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Largest elements over a grid of windows that covers signals (N, C, L) or (C, L)."""

    pool = staticmethod(F.adaptive_max_pool1d)


@documented_by(_AdaptiveMaxPool)
class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Largest elements over a grid of windows that covers images (N, C, H, W) or (C, H, W)."""

    pool = staticmethod(F.adaptive_max_pool2d)


@documented_by(_AdaptiveMaxPool)
class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Largest elements over a grid of windows that covers volumes (N, C, D, H, W)."""

    pool = staticmethod(F.adaptive_max_pool3d)
