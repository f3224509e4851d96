"""Layers that undo pooling, and pooling over windows drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.core.making import as_tensor
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError
from probtorch.nn import functional as F
from probtorch.nn.arguments import documented_by, shown
from probtorch.nn.functional.unpooling import Ratios
from probtorch.nn.module import Module
from probtorch.ops.windows import number_per_dim
from probtorch.tensor import Tensor

__all__ = [
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


class _MaxUnpool(Module):
    """Elements put back where max pooling found them, among zeros.

    Parameters
    ----------
    kernel_size, stride, padding : int or tuple of int
        Of the pooling; `stride` is the kernel size if None.
    """

    dims: int

    def __init__(
        self, kernel_size: SizeLike, stride: SizeLike | None = None, padding: SizeLike = 0
    ) -> None:
        super().__init__()
        name, stride = type(self).__name__, kernel_size if stride is None else stride
        self.kernel_size = number_per_dim(name, "kernel_size", kernel_size, self.dims)
        self.stride = number_per_dim(name, "stride", stride, self.dims)
        self.padding = number_per_dim(name, "padding", padding, self.dims, least=0)

    def forward(
        self, input: TensorLike, indices: TensorLike, output_size: Sequence[int] | None = None
    ) -> Tensor:
        return self.unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return shown(self, "kernel_size", "stride", "padding")


@documented_by(_MaxUnpool)
class MaxUnpool1d(_MaxUnpool):
    """What `MaxPool1d` took from signals, put back; see `functional.max_unpool1d`."""

    dims = 1
    unpool = staticmethod(F.max_unpool1d)


@documented_by(_MaxUnpool)
class MaxUnpool2d(_MaxUnpool):
    """What `MaxPool2d` took from images, put back; see `functional.max_unpool2d`."""

    dims = 2
    unpool = staticmethod(F.max_unpool2d)


@documented_by(_MaxUnpool)
class MaxUnpool3d(_MaxUnpool):
    """What `MaxPool3d` took from volumes, put back; see `functional.max_unpool3d`."""

    dims = 3
    unpool = staticmethod(F.max_unpool3d)


class _FractionalMaxPool(Module):
    """Largest elements of windows drawn at random.

    Parameters
    ----------
    kernel_size : int or tuple of int
    output_size : int or tuple of int, optional
    output_ratio : float in (0, 1), or one per dim, optional
        The output's sizes as shares of the input's; give either this or `output_size`.
    return_indices : bool
        Return (values, flat positions in the input) instead.
    _random_samples : Tensor, shape (N, C, dims), optional
        Uniform draws that the places of the windows follow from; new ones at each call if None.
    """

    dims: int

    def __init__(
        self,
        kernel_size: SizeLike,
        output_size: SizeLike | None = None,
        output_ratio: Ratios | None = None,
        return_indices: bool = False,
        _random_samples: TensorLike | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if (output_size is None) == (output_ratio is None):
            raise ArgumentError(
                name,
                expected="either output_size or output_ratio",
                got="neither" if output_size is None else "both",
                fix="pass output_size=(...) or output_ratio=0.5",
            )
        self.kernel_size = number_per_dim(name, "kernel_size", kernel_size, self.dims)
        self.output_size, self.output_ratio = output_size, output_ratio
        self.return_indices = return_indices
        given = None if _random_samples is None else as_tensor(_random_samples, name)
        self.register_buffer("_random_samples", given)

    def forward(self, input: TensorLike) -> Tensor | tuple[Tensor, Tensor]:
        found = self.pool(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            _random_samples=self._random_samples,
        )
        return found if self.return_indices else found[0]

    def extra_repr(self) -> str:
        return shown(self, "kernel_size", "output_size", "output_ratio")


@documented_by(_FractionalMaxPool)
class FractionalMaxPool2d(_FractionalMaxPool):
    """Largest elements of windows of images (N, C, H, W) or (C, H, W) [graham2014]_."""

    dims = 2
    pool = staticmethod(F.fractional_max_pool2d_with_indices)


@documented_by(_FractionalMaxPool)
class FractionalMaxPool3d(_FractionalMaxPool):
    """Largest elements of windows of volumes (N, C, D, H, W) or (C, D, H, W) [graham2014]_."""

    dims = 3
    pool = staticmethod(F.fractional_max_pool3d_with_indices)
