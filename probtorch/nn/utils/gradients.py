"""Gradients clipped, and all parameters as one vector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import as_float
from probtorch.errors import ArgumentError, DTypeError, InferenceError, ShapeError
from probtorch.factories import zeros
from probtorch.ops.arithmetic import clamp
from probtorch.ops.comparisons import isfinite
from probtorch.ops.movement import reshape
from probtorch.ops.norms import norm
from probtorch.ops.pieces import cat, stack
from probtorch.tensor import Tensor

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "vector_to_parameters",
]


# Several parameters, or one.
Parameters: TypeAlias = Tensor | Iterable[Tensor]


def _with_gradients(parameters: Parameters) -> list[Tensor]:
    if isinstance(parameters, TensorBase):
        parameters = [parameters]
    elif hasattr(parameters, "named_parameters"):
        raise DTypeError(
            "gradients to clip",
            expected="parameters, tensors or an iterable of them",
            got=f"a {type(parameters).__name__}",
            fix="pass its .parameters()",
        )
    return [p.grad for p in parameters if p.grad is not None]


@no_grad
def clip_grad_norm_(
    parameters: Parameters,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by one factor so that their joint norm is at most `max_norm`.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Their `.grad` is changed in place.
    max_norm : float
    norm_type : float
        Which p-norm, of all gradients as one vector; inf is allowed.
    error_if_nonfinite : bool
        Raise if the norm is nan or infinite, instead of spreading that.
    foreach : bool, optional
        Accepted for PyTorch's sake.

    Returns
    -------
    Tensor, 0-d
        The norm before.

    Raises
    ------
    InferenceError
        If asked for, and the norm is not finite.
    """
    grads = _with_gradients(parameters)
    total = _joint_norm("clip_grad_norm_", grads, norm_type, error_if_nonfinite)
    if grads:
        _scaled_to(grads, max_norm, total)
    return total


@no_grad
def get_total_norm(
    tensors: Parameters,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Return the norm of several tensors as one vector; arguments as for `clip_grad_norm_`."""
    given = [tensors] if isinstance(tensors, TensorBase) else list(tensors)
    return _joint_norm("get_total_norm", given, norm_type, error_if_nonfinite)


@no_grad
def clip_grads_with_norm_(
    parameters: Parameters, max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale all gradients so that a norm of `total_norm` becomes at most `max_norm`."""
    grads = _with_gradients(parameters)
    if grads:
        _scaled_to(grads, max_norm, total_norm)


def _joint_norm(op: str, tensors: list[Tensor], norm_type: float, check: bool) -> Tensor:
    if not tensors:
        return zeros(())
    total = norm(stack([norm(g, norm_type) for g in tensors]), norm_type)
    if check and not bool(isfinite(total)):  # a branch, which compiled code guards as one
        raise InferenceError(
            op,
            expected="gradients with a finite norm",
            got=f"a norm of {float(total)}",
            fix="look for the first parameter with a nan, or pass error_if_nonfinite=False",
        )
    return total


def _scaled_to(grads: list[Tensor], max_norm: float, total: Tensor) -> None:
    # 1e-6 as in PyTorch, against division by 0.
    factor = clamp(as_float(max_norm) / (total + 1e-6), max=1.0)
    for g in grads:
        g.mul_(factor)


@no_grad
def clip_grad_value_(
    parameters: Parameters, clip_value: float, foreach: bool | None = None
) -> None:
    """Limit each element of all gradients to [-clip_value, clip_value], in place."""
    most = as_float(clip_value)
    for g in _with_gradients(parameters):
        g.copy_(clamp(g, -most, most))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return all parameters as one vector; gradients flow back through it."""
    flat = [reshape(p, -1) for p in parameters]
    if not flat:
        raise ArgumentError(
            "parameters_to_vector", expected="at least one parameter", got="none", fix="check them"
        )
    return cat(flat)


@no_grad
def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy the pieces of a vector into the parameters, in order.

    Raises
    ------
    ShapeError
        If the vector has not as many elements as they have together.
    """
    parameters = list(parameters)
    count = sum(p.numel() for p in parameters)
    if tuple(vec.shape) != (count,):
        raise ShapeError(
            "vector_to_parameters",
            expected=f"a vector of {count} elements",
            got=str(vec.shape),
            fix="use parameters_to_vector on the same parameters",
        )
    at = 0
    for p in parameters:
        p.copy_(reshape(vec[at : at + p.numel()], p.shape))
        at += p.numel()


explain_calls(globals())
