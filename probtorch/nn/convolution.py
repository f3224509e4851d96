"""Convolutional layers over one to three spatial dims, forward and transposed."""

from __future__ import annotations

import math
from typing import Any

from probtorch.core.typed import DTypeLike, SizeLike, TensorLike
from probtorch.errors import ArgumentError
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.arguments import documented_by, whole
from probtorch.nn.module import Module
from probtorch.ops.convolution import same_padding
from probtorch.ops.windows import number_per_dim
from probtorch.tensor import Tensor

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Module):
    """What all convolutions share: settings, parameters, and how they print."""

    dims: int
    transposed = False

    def _build(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: SizeLike,
        stride: SizeLike,
        padding: SizeLike | str,
        dilation: SizeLike,
        groups: int,
        bias: bool,
        mode: str,
    ) -> None:
        name, n = type(self).__name__, self.dims
        whole(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                name,
                expected="in_channels and out_channels divisible by groups",
                got=f"in_channels={in_channels}, out_channels={out_channels}, groups={groups}",
                fix="groups=in_channels with a multiple of them as output is a depthwise layer",
            )
        if mode not in _PADDING_MODES:
            raise ArgumentError(
                name,
                expected=f"padding_mode among {', '.join(map(repr, _PADDING_MODES))}",
                got=repr(mode),
                fix="use 'zeros', the default",
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = number_per_dim(name, "kernel_size", kernel_size, n)
        self.stride = number_per_dim(name, "stride", stride, n)
        self.dilation = number_per_dim(name, "dilation", dilation, n)
        self.padding: Any = padding
        if not isinstance(padding, str):
            self.padding = number_per_dim(name, "padding", padding, n, least=0)
        elif padding not in ("same", "valid") or (
            padding == "same" and any(s != 1 for s in self.stride)
        ):
            raise ArgumentError(
                name,
                expected="padding: numbers, 'valid', or 'same' with stride 1",
                got=f"padding={padding!r}, stride={self.stride}",
                fix="padding='same' is not supported for strided convolutions: give a number",
            )
        self.padding_mode = mode
        pair = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        shape = (pair[0], pair[1] // groups, *self.kernel_size)
        self.parameter("weight", shape, init=init.fan_in())
        # The bias has the bounds of the weight, whose fan in is read from its shape.
        fan = shape[1] * math.prod(self.kernel_size)
        self.parameter("bias", (out_channels,) if bias else None, init=init.fan_in(fan))

    def extra_repr(self) -> str:
        n = self.dims
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        if self.padding != (0,) * n:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * n:
            text += f", dilation={self.dilation}"
        if self.transposed and self.output_padding != (0,) * n:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Forward(_Convolution):
    """A convolution: pads in its mode, then applies `convolve`.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, dilation : int or tuple of int
    padding : int, tuple of int, "valid" or "same"
    groups : int
        Blocks of channels that do not mix.
    bias : bool
    padding_mode : {"zeros", "reflect", "replicate", "circular"}
    device, dtype
        Of the parameters, which start uniform on ``(-1, 1) / sqrt(inputs of one output)``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: SizeLike,
        stride: SizeLike = 1,
        padding: SizeLike | str = 0,
        dilation: SizeLike = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self._build(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
        )

    def forward(self, input: TensorLike) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._border(), self.padding_mode)
            padding = 0
        return self.convolve(
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )

    def _border(self) -> list[int]:
        """Return the widths for `pad`: the last dim first."""
        if self.padding == "same":
            widths = same_padding(self.kernel_size, self.dilation)
        elif self.padding == "valid":
            widths = ((0, 0),) * self.dims
        else:
            widths = tuple((p, p) for p in self.padding)
        return [w for pair in reversed(widths) for w in pair]


class _Transposed(_Convolution):
    """A transposed convolution, which turns small inputs into large outputs.

    Parameters
    ----------
    in_channels, out_channels : int
    kernel_size, stride, padding, dilation : int or tuple of int
        Of the convolution that this is the transpose of: padding is cut off.
    output_padding : int or tuple of int
        Added to the size of the output on one side.
    groups : int
    bias : bool
    padding_mode : {"zeros"}
    device, dtype
        Of the parameters, which start uniform on ``(-1, 1) / sqrt(n)``, n being
        ``out_channels / groups`` times the size of the kernel.
    """

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: SizeLike,
        stride: SizeLike = 1,
        padding: SizeLike | str = 0,
        output_padding: SizeLike = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: SizeLike = 1,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        name = type(self).__name__
        if padding_mode != "zeros" or isinstance(padding, str):
            raise ArgumentError(
                name,
                expected="padding as a number, with padding_mode='zeros'",
                got=f"padding={padding!r}, padding_mode={padding_mode!r}",
                fix="only zeros can be undone: crop the output instead",
            )
        self._build(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, "zeros"
        )
        self.output_padding = number_per_dim(
            name, "output_padding", output_padding, self.dims, least=0
        )

    def forward(self, input: TensorLike, output_size: SizeLike | None = None) -> Tensor:
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        return self.convolve(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            extra,
            self.groups,
            self.dilation,
        )

    def _extra(self, input: Any, output_size: Any) -> tuple[int, ...]:
        """Return the output padding that gives `output_size`."""
        n = self.dims
        wanted = tuple(output_size)[-n:]
        least = tuple(
            (m - 1) * s - 2 * p + d * (k - 1) + 1
            for m, s, p, d, k in zip(
                input.shape[-n:], self.stride, self.padding, self.dilation, self.kernel_size
            )
        )
        extra = tuple(w - m for w, m in zip(wanted, least))
        if len(wanted) != n or any(not 0 <= e < s for e, s in zip(extra, self.stride)):
            most = tuple(m + s - 1 for m, s in zip(least, self.stride))
            raise ArgumentError(
                type(self).__name__,
                expected=f"output_size from {least} to {most}",
                got=str(tuple(output_size)),
                fix="other sizes do not convolve back to the input's",
            )
        return extra


@documented_by(_Forward)
class Conv1d(_Forward):
    """Convolution of signals: (N, C, L) or (C, L) to (N, O, L') or (O, L')."""

    dims = 1
    convolve = staticmethod(F.conv1d)


@documented_by(_Forward)
class Conv2d(_Forward):
    """Convolution of images: (N, C, H, W) or (C, H, W) to (N, O, H', W') or (O, H', W')."""

    dims = 2
    convolve = staticmethod(F.conv2d)


@documented_by(_Forward)
class Conv3d(_Forward):
    """Convolution of volumes: (N, C, D, H, W), or without N."""

    dims = 3
    convolve = staticmethod(F.conv3d)


@documented_by(_Transposed)
class ConvTranspose1d(_Transposed):
    """Transposed convolution of signals: (N, C, L) or (C, L)."""

    dims = 1
    convolve = staticmethod(F.conv_transpose1d)


@documented_by(_Transposed)
class ConvTranspose2d(_Transposed):
    """Transposed convolution of images: (N, C, H, W) or (C, H, W)."""

    dims = 2
    convolve = staticmethod(F.conv_transpose2d)


@documented_by(_Transposed)
class ConvTranspose3d(_Transposed):
    """Transposed convolution of volumes: (N, C, D, H, W), or without N."""

    dims = 3
    convolve = staticmethod(F.conv_transpose3d)
