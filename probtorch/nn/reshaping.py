"""Layers that move elements: borders, flattening, pixels and windows; and distances of vectors."""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.core.typed import SizeLike, TensorLike
from probtorch.nn import functional as F
from probtorch.nn.arguments import documented_by, shown
from probtorch.nn.module import Module
from probtorch.ops.movement import flatten, reshape
from probtorch.ops.windows import number_per_dim
from probtorch.tensor import Tensor

__all__ = [
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "CosineSimilarity",
    "Flatten",
    "Fold",
    "PairwiseDistance",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Unflatten",
    "Unfold",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class Flatten(Module):
    """Merge dims `start_dim` to `end_dim` into one; by default all but the batch."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: TensorLike) -> Tensor:
        return flatten(input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return shown(self, "start_dim", "end_dim")


class Unflatten(Module):
    """Split dim `dim` into several of sizes `unflattened_size`, one of which may be -1."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        shape = tuple(input.shape)
        dim = self.dim % len(shape)
        return reshape(input, (*shape[:dim], *self.unflattened_size, *shape[dim + 1 :]))

    def extra_repr(self) -> str:
        return shown(self, "dim", "unflattened_size")


class PixelShuffle(Module):
    """Move channels (..., C * r * r, H, W) into pixels (..., C, H * r, W * r)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: TensorLike) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return shown(self, "upscale_factor")


class PixelUnshuffle(Module):
    """Move pixels (..., C, H * r, W * r) into channels (..., C * r * r, H, W)."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: TensorLike) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return shown(self, "downscale_factor")


class ChannelShuffle(Module):
    """Deal channels (N, C, *) out to `groups` in turn, as cards are."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: TensorLike) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return shown(self, "groups")


class Unfold(Module):
    """Windows of images (N, C, H, W) as columns; see `functional.unfold`."""

    def __init__(
        self,
        kernel_size: SizeLike,
        dilation: SizeLike = 1,
        padding: SizeLike | str = 0,
        stride: SizeLike = 1,
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, input: TensorLike) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return shown(self, "kernel_size", "dilation", "padding", "stride")


class Fold(Module):
    """Columns of windows added up to images of `output_size`; see `functional.fold`."""

    def __init__(
        self,
        output_size: SizeLike,
        kernel_size: SizeLike,
        dilation: SizeLike = 1,
        padding: SizeLike | str = 0,
        stride: SizeLike = 1,
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def forward(self, input: TensorLike) -> Tensor:
        return F.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        return shown(self, "output_size", "kernel_size", "dilation", "padding", "stride")


# ------------------------------------------------------------------------------------------ borders


class _Pad(Module):
    """A border around the last dims.

    Parameters
    ----------
    padding : int or tuple of int
        Width of the border everywhere, or (left, right) for signals, (left, right, top, bottom)
        for images, and (..., front, back) for volumes.
    """

    dims: int
    mode = "constant"
    value: float | None = None

    def __init__(self, padding: SizeLike | str) -> None:
        super().__init__()
        self.padding = number_per_dim(
            type(self).__name__, "padding", padding, 2 * self.dims, least=-(1 << 62)
        )

    def forward(self, input: TensorLike) -> Tensor:
        return F.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return str(self.padding)


class _ConstantPad(_Pad):
    """A border of one value.

    Parameters
    ----------
    padding : int or tuple of int
        Width of the border everywhere, or (left, right) for signals, (left, right, top, bottom)
        for images, and (..., front, back) for volumes; negative widths cut off.
    value : float
    """

    def __init__(self, padding: SizeLike, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


@documented_by(_ConstantPad)
class ConstantPad1d(_ConstantPad):
    """A border of one value around signals."""

    dims = 1


@documented_by(_ConstantPad)
class ConstantPad2d(_ConstantPad):
    """A border of one value around images."""

    dims = 2


@documented_by(_ConstantPad)
class ConstantPad3d(_ConstantPad):
    """A border of one value around volumes."""

    dims = 3


@documented_by(_Pad)
class ZeroPad1d(_Pad):
    """A border of zeros around signals."""

    dims = 1


@documented_by(_Pad)
class ZeroPad2d(_Pad):
    """A border of zeros around images."""

    dims = 2


@documented_by(_Pad)
class ZeroPad3d(_Pad):
    """A border of zeros around volumes."""

    dims = 3


@documented_by(_Pad)
class ReflectionPad1d(_Pad):
    """Signals mirrored at their ends, which are not repeated."""

    dims, mode = 1, "reflect"


@documented_by(_Pad)
class ReflectionPad2d(_Pad):
    """Images mirrored at their edges, which are not repeated."""

    dims, mode = 2, "reflect"


@documented_by(_Pad)
class ReflectionPad3d(_Pad):
    """Volumes mirrored at their faces, which are not repeated."""

    dims, mode = 3, "reflect"


@documented_by(_Pad)
class ReplicationPad1d(_Pad):
    """Signals whose ends go on."""

    dims, mode = 1, "replicate"


@documented_by(_Pad)
class ReplicationPad2d(_Pad):
    """Images whose edges go on."""

    dims, mode = 2, "replicate"


@documented_by(_Pad)
class ReplicationPad3d(_Pad):
    """Volumes whose faces go on."""

    dims, mode = 3, "replicate"


@documented_by(_Pad)
class CircularPad1d(_Pad):
    """Signals that go on at the other end."""

    dims, mode = 1, "circular"


@documented_by(_Pad)
class CircularPad2d(_Pad):
    """Images that go on at the other edge."""

    dims, mode = 2, "circular"


@documented_by(_Pad)
class CircularPad3d(_Pad):
    """Volumes that go on at the other face."""

    dims, mode = 3, "circular"


# ---------------------------------------------------------------------------------------- distances


class CosineSimilarity(Module):
    """Cosine of the angle between vectors along `dim`; norms below `eps` count as `eps`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: TensorLike, x2: TensorLike) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)

    def extra_repr(self) -> str:
        return shown(self, "dim", "eps")


class PairwiseDistance(Module):
    """p-norm of ``x1 - x2 + eps`` along the last dim."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: TensorLike, x2: TensorLike) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)

    def extra_repr(self) -> str:
        return f"p={self.norm}, {shown(self, 'eps', 'keepdim')}"
