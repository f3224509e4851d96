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
from probtorch.core.typed import TensorLike
from probtorch.errors import DomainError, DTypeError, ShapeError, TensorIndexError, users_stacklevel
from probtorch.nn.arguments import reduction_of
from probtorch.ops import reduction as ops
from probtorch.ops.arithmetic import abs, where
from probtorch.ops.comparisons import gt, le, lt, ne
from probtorch.ops.exponential_sums import log_softmax
from probtorch.ops.exponentials import exp, log, softplus
from probtorch.ops.gathering import gather
from probtorch.ops.indexing import getitem
from probtorch.ops.movement import broadcast_tensors, expand, reshape, squeeze, unsqueeze
from probtorch.ops.special import xlogy
from probtorch.tensor import Tensor

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "gaussian_nll_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "poisson_nll_loss",
    "reduced",
    "smooth_l1_loss",
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


def _same_shape(name: str, x: Tensor, t: Tensor) -> None:
    if x.array.shape != t.array.shape:
        raise ShapeError(
            name,
            expected=f"a target of the input's shape {x.array.shape}",
            got=str(t.array.shape),
            fix="reshape or unsqueeze the target",
        )


# --------------------------------------------------------------------------------------- regression


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
    if v.array.size and v.array.min() < 0:
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


@in_our_words
def cross_entropy(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Negative log of the softmax probability of the target class.

    Parameters
    ----------
    input : Tensor, shape (N, C, ...) or (C,)
        Unnormalised log probabilities (logits).
    target : Tensor, shape (N, ...) or (), integers; or the input's shape, probabilities
    weight : Tensor, shape (C,), optional
        One weight per class; the mean over class indices divides by the sum of those used.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    ignore_index : int
        Targets that do not count.
    reduction : {"mean", "sum", "none"}
    label_smoothing : float, in [0, 1]
        Share of the target that is spread evenly over the classes.

    Raises
    ------
    ShapeError
        If the shapes do not go together.
    TensorIndexError
        If a class index is not in [0, C).
    """
    reduction = reduction_of("cross_entropy", reduction, size_average, reduce)
    if not 0.0 <= label_smoothing <= 1.0:
        raise DomainError(
            "cross_entropy",
            expected="label_smoothing in [0, 1]",
            got=str(label_smoothing),
            fix="0.1 is a usual value",
        )
    x, t = as_tensor(input, "cross_entropy"), as_tensor(target, "cross_entropy")
    dim = _class_dim("cross_entropy", x)
    logp = log_softmax(x, dim)
    if t.array.dtype.kind == "f":
        _same_shape("cross_entropy", x, t)
        return _soft_targets(logp, t, weight, reduction, label_smoothing, dim)
    return _nll("cross_entropy", logp, t, weight, ignore_index, reduction, label_smoothing, dim)


def _class_dim(name: str, x: Tensor) -> int:
    if x.array.ndim == 0:
        raise ShapeError(
            name, expected="an input (N, C, ...) or (C,)", got="a 0-d tensor", fix="add dims"
        )
    return 1 if x.array.ndim > 1 else 0


def _along_classes(weight: TensorLike, x: Tensor, dim: int) -> Tensor:
    """Return the class weights in a shape that broadcasts with `x`."""
    w = as_tensor(weight, "weight")
    if w.array.shape != (x.array.shape[dim],):
        raise ShapeError(
            "weight",
            expected=f"one weight per class, shape ({x.array.shape[dim]},)",
            got=str(w.array.shape),
            fix="classes are dim 1 of the input",
        )
    return reshape(w, (-1, *[1] * (x.array.ndim - dim - 1)))


def _soft_targets(
    logp: Tensor, t: Tensor, weight: TensorLike | None, reduction: str, smoothing: float, dim: int
) -> Tensor:
    if smoothing:
        t = t * (1.0 - smoothing) + smoothing / max(logp.array.shape[dim], 1)
    loss = logp * t
    if weight is not None:
        loss = loss * _along_classes(weight, logp, dim)
    return reduced(-ops.sum(loss, dim), reduction)


def nll_loss(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Negative of the input at the target class; `input` holds log probabilities.

    Arguments as for `cross_entropy`, which is this of a `log_softmax`.
    """
    reduction = reduction_of("nll_loss", reduction, size_average, reduce)
    x, t = as_tensor(input, "nll_loss"), as_tensor(target, "nll_loss")
    real_only("nll_loss", x, t)
    dim = _class_dim("nll_loss", x)
    return _nll("nll_loss", x, t, weight, ignore_index, reduction, 0.0, dim)


def _nll(
    name: str,
    logp: Tensor,
    t: Tensor,
    weight: TensorLike | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
    dim: int,
) -> Tensor:
    shape = logp.array.shape
    if t.array.dtype.kind not in "iu":
        raise DTypeError(
            name,
            expected="integer class indices",
            got=str(t.array.dtype),
            fix="convert them with .long()",
        )
    if t.array.shape != shape[:dim] + shape[dim + 1 :]:
        raise ShapeError(
            name,
            expected=f"a target of shape {shape[:dim] + shape[dim + 1 :]}, "
            f"for an input of shape {shape}",
            got=str(t.array.shape),
            fix="the target has the input's shape without the class dim (dim 1)",
        )
    counted = ne(t, ignore_index)
    _check_classes(name, t, counted, shape[dim])
    safe = where(counted, t, 0)
    loss = -squeeze(gather(logp, dim, unsqueeze(safe, dim)), dim)
    share = cast(counted, logp.array.dtype)
    if weight is not None:
        across = _along_classes(weight, logp, dim)
        share = share * getitem(reshape(across, -1), safe)
    # Not loss * share: an ignored element may hold infinity.
    loss = where(counted, loss, 0.0) * share
    if smoothing:
        spread = ops.sum(logp * across if weight is not None else logp, dim)
        spread = where(counted, -spread, 0.0) / float(shape[dim])
        loss = loss * (1.0 - smoothing) + spread * smoothing
    if reduction == "mean":
        return ops.sum(loss) / ops.sum(share)
    return reduced(loss, reduction)


def _check_classes(name: str, t: Tensor, counted: Tensor, classes: int) -> None:
    bad = ((t.array < 0) | (t.array >= classes)) & counted.array
    if bad.any():
        raise TensorIndexError(
            name,
            expected=f"class indices in [0, {classes - 1}], the input having {classes} classes",
            got=f"target {int(t.array[bad].reshape(-1)[0])} is out of bounds",
            fix="number the classes from 0; ignore_index marks targets that do not count",
        )


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
    _same_shape(name, x, t)
    _in_unit_interval(
        name, "input", x, fix="apply sigmoid first, or use binary_cross_entropy_with_logits"
    )
    _in_unit_interval(
        name, "target", t, fix="targets are classes 0 and 1, or probabilities of class 1"
    )
    loss = -(t * _cut_log(x) + (1.0 - t) * _cut_log(1.0 - x))
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


def _cut_log(x: Tensor) -> Tensor:
    """Return log(x), and -100 with slope 0 where it is less."""
    cut = le(x, math.exp(-100.0))
    return where(cut, -100.0, log(where(cut, 1.0, x)))


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
    _same_shape(name, x, t)
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
    loss = exp(t) * (t - x) if log_target else xlogy(t, t) - t * x
    if reduction == "batchmean":
        return ops.sum(loss) / float(x.array.shape[0] if x.array.ndim else 1)
    return reduced(loss, reduction)
