"""Layers that resize signals, images and volumes: `functional.interpolate` with its settings."""

from __future__ import annotations

from probtorch.core.typed import SizeLike, TensorLike
from probtorch.nn import functional as F
from probtorch.nn.functional.interpolation import Factors
from probtorch.nn.module import Module
from probtorch.tensor import Tensor

__all__ = ["Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]


class Upsample(Module):
    """Resize the dims after the first two.

    Shapes: signals (N, C, L), images (N, C, H, W) or volumes (N, C, D, H, W).

    Parameters
    ----------
    size : int or tuple of int, optional
        Sizes of the output's spatial dims.
    scale_factor : float or tuple of float, optional
        By how much to multiply the sizes; give either this or `size`.
    mode : {"nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"}
    align_corners : bool, optional
        Whether the centres of the outermost elements coincide, instead of their outer edges.
    recompute_scale_factor : bool, optional
        Compute positions from the sizes, which are whole, instead of from `scale_factor`.
    """

    def __init__(
        self,
        size: SizeLike | None = None,
        scale_factor: Factors | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, input: TensorLike) -> Tensor:
        return F.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        if self.scale_factor is not None:
            return f"scale_factor={self.scale_factor!r}, mode={self.mode!r}"
        return f"size={self.size!r}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Resize images by repeating elements; give either `size` or `scale_factor`."""

    def __init__(self, size: SizeLike | None = None, scale_factor: Factors | None = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Resize images linearly, corners aligned; give either `size` or `scale_factor`."""

    def __init__(self, size: SizeLike | None = None, scale_factor: Factors | None = None) -> None:
        super().__init__(size, scale_factor, "bilinear", align_corners=True)
