"""Layers that are matrix products, and the identity.

The simplest layers: read them for the form of all others.
"""

from __future__ import annotations

import math
from typing import TypeVar

from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.arguments import shown, whole
from probtorch.nn.module import Module
from probtorch.tensor import Tensor

__all__ = ["Bilinear", "Identity", "Linear"]


R = TypeVar("R")


class Identity(Module):
    """Return the input; arguments of any kind are accepted and ignored."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def forward(self, input: R) -> R:
        return input


class Linear(Module):
    """``x @ weight.T + bias``.

    Shapes: ``x`` is ``(..., in_features)``, the result ``(..., out_features)``.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
        Whether to add a learned bias.
    device, dtype
        Of the parameters.

    Attributes
    ----------
    weight : Parameter, shape (out_features, in_features)
    bias : Parameter, shape (out_features,), or None
        Both start uniform on ``(-1, 1) / sqrt(in_features)``.

    Examples
    --------
    >>> import probtorch
    >>> Linear(2, 3)(probtorch.zeros(5, 2)).shape
    Size([5, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        whole("Linear", 0, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.parameter("weight", (out_features, in_features), init=init.fan_in())
        self.parameter("bias", (out_features,) if bias else None, init=init.fan_in(in_features))

    def forward(self, input: TensorLike) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{shown(self, 'in_features', 'out_features')}, bias={self.bias is not None}"


class Bilinear(Module):
    """``x1 @ weight[k] @ x2 + bias[k]`` for each output k.

    Shapes: ``x1`` is ``(..., in1_features)``, ``x2`` ``(..., in2_features)``, the result
    ``(..., out_features)``.

    Parameters
    ----------
    in1_features, in2_features, out_features : int
    bias : bool
    device, dtype
        Of the parameters, which start uniform on ``(-1, 1) / sqrt(in1_features)``.
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        whole(
            "Bilinear",
            in1_features=in1_features,
            in2_features=in2_features,
            out_features=out_features,
        )
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        bound = 1.0 / math.sqrt(in1_features)
        shape = (out_features, in1_features, in2_features)
        self.parameter("weight", shape, init=init.uniform(-bound, bound))
        self.parameter("bias", (out_features,) if bias else None, init=init.uniform(-bound, bound))

    def forward(self, input1: TensorLike, input2: TensorLike) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = shown(self, "in1_features", "in2_features", "out_features")
        return f"{sizes}, bias={self.bias is not None}"
