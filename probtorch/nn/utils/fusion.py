"""Batch normalisation in evaluation folded into the layer before it."""

from __future__ import annotations

import copy
from typing import TypeVar

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError
from probtorch.factories import zeros_like
from probtorch.nn.module import Module
from probtorch.nn.parameter import Parameter
from probtorch.ops.arithmetic import rsqrt
from probtorch.ops.movement import reshape
from probtorch.tensor import Tensor

__all__ = [
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
]

Layer = TypeVar("Layer", bound=Module)


@no_grad
def _fused(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    channels: int,
) -> tuple[Parameter, Parameter]:
    """Return weight and bias of both; `channels` is the dim of the output channels."""
    scale = rsqrt(var + eps)
    scale = scale if bn_weight is None else scale * bn_weight
    shift = (zeros_like(mean) if bias is None else bias) - mean
    shift = shift * scale if bn_bias is None else shift * scale + bn_bias
    shape = [-1 if d == channels else 1 for d in range(weight.array.ndim)]
    dtype = weight.dtype
    return (
        Parameter((weight * reshape(scale, shape)).to(dtype), weight.requires_grad),
        Parameter(shift.to(dtype), True if bias is None else bias.requires_grad),
    )


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Return weight and bias of a convolution followed by batch normalisation in evaluation.

    Parameters
    ----------
    conv_w, conv_b : Tensor
        Of the convolution; no bias is None.
    bn_rm, bn_rv : Tensor, shape (O,)
        Running mean and variance.
    bn_eps : float
    bn_w, bn_b : Tensor, shape (O,), or None
        Of the normalisation.
    transpose : bool
        Whether the convolution is a transposed one, with output channels in dim 1.

    Returns
    -------
    weight, bias : Parameter
    """
    channels = 1 if transpose else 0
    return _fused(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, channels)


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """Return weight and bias of a linear layer followed by batch normalisation in evaluation."""
    return _fused(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 0)


def _folded(op: str, layer: Layer, bn: Module, channels: int) -> Layer:
    if layer.training or bn.training or getattr(bn, "running_mean", None) is None:
        raise ArgumentError(
            op,
            expected="two modules in evaluation, and running statistics",
            got=f"{type(layer).__name__} and {type(bn).__name__}, "
            f"training={layer.training or bn.training}",
            fix="call eval() first: in training the statistics are those of each batch",
        )
    out = copy.deepcopy(layer)
    statistics = (bn.running_mean, bn.running_var, bn.eps)
    out.weight, out.bias = _fused(out.weight, out.bias, *statistics, bn.weight, bn.bias, channels)
    return out


def fuse_conv_bn_eval(conv: Layer, bn: Module, transpose: bool = False) -> Layer:
    """Return one convolution that computes what a convolution and batch normalisation do.

    Parameters
    ----------
    conv : Module
        A convolution in evaluation mode.
    bn : Module
        A batch normalisation in evaluation mode, with running statistics.
    transpose : bool
        Whether the convolution is a transposed one.

    Raises
    ------
    ArgumentError
        If one of them is in training mode, or there are no running statistics.
    """
    return _folded("fuse_conv_bn_eval", conv, bn, 1 if transpose else 0)


def fuse_linear_bn_eval(linear: Layer, bn: Module) -> Layer:
    """Return one linear layer that computes what it and a batch normalisation do; as above.

    Raises
    ------
    ArgumentError
        If one of them is in training mode, or there are no running statistics.
    """
    return _folded("fuse_linear_bn_eval", linear, bn, 0)


explain_calls(globals())
