"""Losses of regression and classification, under PyTorch's names and signatures.

Each computes one number per element (or per sample) and reduces it at the end: `reduction` is
"mean", "sum" or "none". The old `size_average` and `reduce` are understood, with a warning. Losses
between vectors and margin losses are in `margin_loss.py`.
"""

from __future__ import annotations

import math
import warnings

from probtorch.core.casting import cast, to_float
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.refusals import real_only
from probtorch.core.shape import broadcast_shapes
from probtorch.core.told import is_number
from probtorch.core.typed import TensorLike
from probtorch.errors import DomainError, ShapeError, users_stacklevel
from probtorch.nn.arguments import reduction_of
from probtorch.ops import reduction as ops
from probtorch.ops.activations import activated
from probtorch.ops.arithmetic import abs, where
from probtorch.ops.comparisons import gt, lt
from probtorch.ops.exponentials import cut_log, exp, log, softplus
from probtorch.ops.movement import broadcast_tensors, expand, unsqueeze
from probtorch.ops.special import xlogy
from probtorch.tensor import Tensor

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "gaussian_nll_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "poisson_nll_loss",
    "reduced",
    "same_shape",
    "smooth_l1_loss",
    "warn_of_probabilities",
]


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Return the mean or the sum of `loss`, or itself."""
    if reduction == "mean":
        return ops.mean(loss)
    return ops.sum(loss) if reduction == "sum" else loss


def _pair(name: str, input: TensorLike, target: TensorLike) -> tuple[Tensor, Tensor]:
    """Return both as tensors; other shapes broadcast, with PyTorch's warning."""
    x, t = as_tensor(input, name), as_tensor(target, name)
    if x.array.shape != t.array.shape:
        warnings.warn(
            f"{name}: using a target size ({t.shape}) that is different to the input size "
            f"({x.shape}): the broadcast difference is rarely what is meant; make the sizes equal",
            stacklevel=users_stacklevel(),
        )
        shape = broadcast_shapes(x.array.shape, t.array.shape, op=name)
        x, t = expand(x, shape), expand(t, shape)
    return x, t


def same_shape(name: str, x: Tensor, t: Tensor) -> None:
    """Refuse a target of another shape than the input."""
    if x.array.shape != t.array.shape:
        raise ShapeError(
            name,
            expected=f"a target of the input's shape {x.array.shape}",
            got=str(t.array.shape),
            fix="reshape or unsqueeze the target",
        )


# --------------------------------------------------------------------------------------- regression


# What makes probabilities, and the function whose result they are mistaken for.
_PROBABILITIES = frozenset(("softmax", "sigmoid"))


def warn_of_probabilities(name: str, x: Tensor, fix: str) -> None:
    """Warn where a loss that takes logits, or logs, is given what softmax or sigmoid has made."""
    node = x.grad_fn
    if node is not None and node.op.name in _PROBABILITIES:
        warnings.warn(
            f"{name}: the input is the result of {node.op.name}, which are probabilities; {fix}",
            stacklevel=users_stacklevel(),
        )


def _weighted(loss: Tensor, weight: TensorLike | None, reduction: str) -> Tensor:
    """Reduce with elementwise weights; the mean divides by their sum."""
    if weight is None:
        return reduced(loss, reduction)
    w = as_tensor(weight, "loss")
    loss = loss * w
    if reduction == "mean":
        return ops.sum(loss) / ops.sum(broadcast_tensors(w, loss)[0])
    return reduced(loss, reduction)


def mse_loss(
    input: TensorLike,
    target: TensorLike,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: TensorLike | None = None,
) -> Tensor:
    """Squared differences.

    Parameters
    ----------
    input, target : Tensor, of one shape
        Other shapes broadcast, with a warning.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    reduction : {"mean", "sum", "none"}
    weight : Tensor, optional
        One weight per element; the mean divides by their sum.
    """
    reduction = reduction_of("mse_loss", reduction, size_average, reduce)
    x, t = _pair("mse_loss", input, target)
    real_only("mse_loss", x, t)
    d = x - t
    return _weighted(d * d, weight, reduction)


def l1_loss(
    input: TensorLike,
    target: TensorLike,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: TensorLike | None = None,
) -> Tensor:
    """Absolute differences; arguments as for `mse_loss`."""
    reduction = reduction_of("l1_loss", reduction, size_average, reduce)
    x, t = _pair("l1_loss", input, target)
    return _weighted(abs(x - t), weight, reduction)


@in_our_words
def smooth_l1_loss(
    input: TensorLike,
    target: TensorLike,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Half squares divided by `beta` below it, absolute differences less ``beta / 2`` above."""
    reduction = reduction_of("smooth_l1_loss", reduction, size_average, reduce)
    _positive("smooth_l1_loss", "beta", beta, or_zero=True)
    x, t = _pair("smooth_l1_loss", input, target)
    real_only("smooth_l1_loss", x, t)
    if beta > 0.0 and (loss := activated("smooth_l1", x - t, beta=beta)) is not None:
        return reduced(loss, reduction)
    d = abs(x - t)
    if beta == 0.0:
        return reduced(d, reduction)
    near = lt(d, beta)
    # Squared where it is used only, as slopes of what is left out must not be nan; and with its
    # sign, as abs has no curvature at 0.
    small = where(near, x - t, 0.0)
    return reduced(where(near, small * small * (0.5 / beta), d - 0.5 * beta), reduction)


@in_our_words
def huber_loss(
    input: TensorLike,
    target: TensorLike,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: TensorLike | None = None,
) -> Tensor:
    """Half squares below `delta`, ``delta * (abs(d) - delta / 2)`` above."""
    reduction = reduction_of("huber_loss", reduction)
    _positive("huber_loss", "delta", delta)
    x, t = _pair("huber_loss", input, target)
    real_only("huber_loss", x, t)
    whole = activated("huber", x - t, delta=delta)
    if whole is not None:
        return _weighted(whole, weight, reduction)
    d = abs(x - t)
    near = lt(d, delta)
    small = where(near, x - t, 0.0)
    loss = where(near, small * small * 0.5, (d - 0.5 * delta) * delta)
    return _weighted(loss, weight, reduction)


def _positive(name: str, argument: str, value: float, or_zero: bool = False) -> None:
    if not (value >= 0 if or_zero else value > 0):
        raise DomainError(
            name,
            expected=f"{argument} {'>=' if or_zero else '>'} 0",
            got=f"{argument}={value!r}",
            fix="it is the distance at which the loss becomes linear",
        )


def poisson_nll_loss(
    input: TensorLike,
    target: TensorLike,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood of counts under a Poisson distribution.

    Parameters
    ----------
    input : Tensor
        Log rates, or rates if not `log_input`.
    target : Tensor
        Counts.
    log_input : bool
    full : bool
        Add Stirling's approximation of ``log(target!)``, where the target exceeds 1.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    eps : float
        Added to rates before their log.
    reduction : {"mean", "sum", "none"}
    """
    reduction = reduction_of("poisson_nll_loss", reduction, size_average, reduce)
    x, t = as_tensor(input, "poisson_nll_loss"), as_tensor(target, "poisson_nll_loss")
    loss = exp(x) - t * x if log_input else x - t * log(x + eps)
    if full:
        big = gt(t, 1)
        n = where(big, cast(t, loss.array.dtype), 1.0)
        loss = loss + where(big, n * log(n) - n + 0.5 * log(2.0 * math.pi * n), 0.0)
    return reduced(loss, reduction)


def gaussian_nll_loss(
    input: TensorLike,
    target: TensorLike,
    var: TensorLike,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood of `target` under normals of mean `input` and variance `var`.

    Parameters
    ----------
    input, target : Tensor
    var : Tensor or float
        Of the input's shape, or without its last dim, or with size 1 there.
    full : bool
        Add the constant ``log(2 * pi) / 2``.
    eps : float
        Smaller variances count as `eps`, with the gradient of larger ones.
    reduction : {"mean", "sum", "none"}

    Raises
    ------
    DomainError
        If a variance is negative.
    """
    reduction = reduction_of("gaussian_nll_loss", reduction)
    x, t = as_tensor(input, "gaussian_nll_loss"), as_tensor(target, "gaussian_nll_loss")
    v = to_float(as_tensor(var, "gaussian_nll_loss"))
    shape = x.array.shape
    if v.array.ndim and v.array.shape != shape:
        if v.array.shape == shape[:-1]:
            v = unsqueeze(v, -1)
        elif v.array.shape != (*shape[:-1], 1):
            raise ShapeError(
                "gaussian_nll_loss",
                expected=f"var of shape {shape}, {shape[:-1]} or {(*shape[:-1], 1)}",
                got=str(v.array.shape),
                fix="one variance per element, or one for all elements of the last dim",
            )
    # A number is looked at, so that a compiled function looks again.
    if bool(v < 0) if is_number(var) else v.array.size and v.array.min() < 0:
        raise DomainError(
            "gaussian_nll_loss",
            expected="var >= 0",
            got=str(float(v.array.min())),
            fix="pass exp or softplus of what the network gives",
        )
    v = where(lt(v, eps), v - v.detach() + eps, v)
    d = x - t
    loss = (log(v) + d * d / v) * 0.5
    return reduced(loss + 0.5 * math.log(2.0 * math.pi) if full else loss, reduction)


# ----------------------------------------------------------------------------------- classification


def binary_cross_entropy(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood of 0-1 targets; `input` holds probabilities.

    Logs are cut at -100, where the gradient is 0. With logits at hand use
    `binary_cross_entropy_with_logits`, which loses no digits.

    Parameters
    ----------
    input, target : Tensor, of one shape, in [0, 1]
    weight : Tensor, optional
        Factors, broadcast to the shape.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    reduction : {"mean", "sum", "none"}

    Raises
    ------
    DomainError
        If an input is outside [0, 1].
    """
    name = "binary_cross_entropy"
    reduction = reduction_of(name, reduction, size_average, reduce)
    x, t = as_tensor(input, name), as_tensor(target, name)
    same_shape(name, x, t)
    _in_unit_interval(
        name, "input", x, fix="apply sigmoid first, or use binary_cross_entropy_with_logits"
    )
    _in_unit_interval(
        name, "target", t, fix="targets are classes 0 and 1, or probabilities of class 1"
    )
    loss = -(t * cut_log(x) + (1.0 - t) * cut_log(1.0 - x))
    return reduced(loss if weight is None else loss * weight, reduction)


def _in_unit_interval(name: str, argument: str, x: Tensor, *, fix: str) -> None:
    data = x.array
    if data.size and not (data.min() >= 0 and data.max() <= 1):
        raise DomainError(
            name,
            expected=f"all elements of {argument} between 0 and 1",
            got=f"{float(data.min())} to {float(data.max())}",
            fix=fix,
        )


def binary_cross_entropy_with_logits(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: TensorLike | None = None,
) -> Tensor:
    """Negative log likelihood of 0-1 targets; `input` holds logits of any size.

    Parameters
    ----------
    input, target : Tensor, of one shape
    weight : Tensor, optional
        Factors, broadcast to the shape.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    reduction : {"mean", "sum", "none"}
    pos_weight : Tensor, optional
        Factors for positive targets, broadcast to the shape.
    """
    name = "binary_cross_entropy_with_logits"
    reduction = reduction_of(name, reduction, size_average, reduce)
    x, t = as_tensor(input, name), as_tensor(target, name)
    same_shape(name, x, t)
    warn_of_probabilities(name, x, "leave sigmoid out, or use binary_cross_entropy")
    rest = softplus(-x)
    if pos_weight is not None:
        rest = rest * ((as_tensor(pos_weight, name) - 1.0) * t + 1.0)
    loss = (1.0 - t) * x + rest
    return reduced(loss if weight is None else loss * weight, reduction)


def kl_div(
    input: TensorLike,
    target: TensorLike,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """``target * (log(target) - input)``: the terms of the KL divergence from input to target.

    Parameters
    ----------
    input : Tensor
        Log probabilities.
    target : Tensor
        Probabilities, or their logs with `log_target`.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    reduction : {"mean", "batchmean", "sum", "none"}
        "batchmean", the sum divided by the first size, is the divergence; "mean" is not.
    log_target : bool
    """
    reduction = reduction_of("kl_div", reduction, size_average, reduce)
    x, t = as_tensor(input, "kl_div"), as_tensor(target, "kl_div")
    real_only("kl_div", x, t)
    warn_of_probabilities("kl_div", x, "it takes their logarithms: log_softmax")
    loss = exp(t) * (t - x) if log_target else xlogy(t, t) - t * x
    if reduction == "batchmean":
        return ops.sum(loss) / float(x.array.shape[0] if x.array.ndim else 1)
    return reduced(loss, reduction)
