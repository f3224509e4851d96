"""Dropout layers: active in training, the identity in evaluation."""

from __future__ import annotations

from probtorch.core.typed import TensorLike
from probtorch.nn import functional as F
from probtorch.nn.arguments import fraction
from probtorch.nn.module import Module
from probtorch.tensor import Tensor

__all__ = [
    "AlphaDropout",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "FeatureAlphaDropout",
]


class _Dropout(Module):
    """Base: the probability `p` that something is dropped, and whether the input is overwritten."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        fraction(type(self).__name__, "p", p)
        self.p, self.inplace = p, inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Set each element to 0 with probability `p`, in training; scale the others by 1 / (1 - p).

    Random: draws come from the default generator.
    """

    def forward(self, input: TensorLike) -> Tensor:
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """Dropout of whole channels of (N, C, L) or (C, L)."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """Dropout of whole channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """Dropout of whole channels of (N, C, D, H, W), or without N."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout for networks of SELU units: it keeps mean 0 and variance 1."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels of (N, C, *)."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.feature_alpha_dropout(input, self.p, self.training, self.inplace)
