"""Losses of classification among several classes: cross entropy and negative log likelihood.

Classes are dim 1 of the input. Where targets are numbers of classes the loss is one operation,
`class_log_probs`, and what is done about targets that do not count.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import unheard
from probtorch.core.dtype import float32, float64, int64
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.refusals import real_only
from probtorch.core.typed import TensorLike
from probtorch.errors import DomainError, DTypeError, ShapeError, TensorIndexError
from probtorch.nn.arguments import reduction_of
from probtorch.nn.functional.loss import reduced, same_shape, warn_of_probabilities
from probtorch.ops import reduction as ops
from probtorch.ops.arithmetic import where
from probtorch.ops.classes import class_log_probs, class_loss, class_mean
from probtorch.ops.comparisons import ne
from probtorch.ops.exponential_sums import log_softmax
from probtorch.ops.gathering import gather
from probtorch.ops.indexing import getitem
from probtorch.ops.movement import reshape, squeeze, unsqueeze
from probtorch.ops.take_put import take_of_rows
from probtorch.tensor import Tensor

__all__ = ["cross_entropy", "nll_loss"]


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
    warn_of_probabilities(
        "cross_entropy", x, "leave it out: cross_entropy takes the softmax itself"
    )
    if t.array.dtype.kind == "f":
        if t.array.shape == x.array.shape[:dim] + x.array.shape[dim + 1 :] != x.array.shape:
            raise DTypeError(
                "cross_entropy",
                expected="class indices of an integer dtype, or probabilities of all classes",
                got=f"a target of shape {t.array.shape} and dtype {t.array.dtype}, for an input of "
                f"shape {x.array.shape}",
                fix="write target.long() for class indices",
            )
        logp = log_softmax(x, dim)
        same_shape("cross_entropy", x, t)
        return _soft_targets(logp, t, weight, reduction, label_smoothing, dim)
    if x.array.dtype in (float32, float64) and not label_smoothing:
        if reduction == "mean" and weight is None and _all_count(x, t, ignore_index, dim):
            return class_loss(x, t, dim)

        def at_classes(classes: Tensor) -> Tensor:
            return class_log_probs(x, cast(classes, int64), dim)[0]

        return _nll("cross_entropy", x, at_classes, t, weight, ignore_index, reduction, dim)
    logp = log_softmax(x, dim)
    spread = label_smoothing, logp
    return _nll(
        "cross_entropy", logp, _picked(logp, dim), t, weight, ignore_index, reduction, dim, spread
    )


def _all_count(x: Tensor, t: Tensor, ignore_index: int, dim: int) -> bool:
    """Whether targets are classes without exception, none of them to be ignored, and nobody asks
    how their loss comes about.
    """
    a, shape = t.array, x.array.shape
    if not unheard() or a.dtype is not int64 or not a.size or type(a) is not np.ndarray:
        return False
    if a.shape != shape[:dim] + shape[dim + 1 :] or 0 <= ignore_index < shape[dim]:
        return False
    return bool(a.view(np.uint64).max() < shape[dim])  # numbers below 0 are large ones as well


def _picked(logp: Tensor, dim: int) -> Callable[[Tensor], Tensor]:
    """Return the function from class indices to the elements of `logp` at them."""
    if logp.array.ndim == 2 and type(logp.array) is np.ndarray and unheard():
        return lambda classes: take_of_rows(logp, cast(classes, int64))
    return lambda classes: squeeze(gather(logp, dim, unsqueeze(classes, dim)), dim)


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
    warn_of_probabilities(
        "nll_loss",
        x,
        "it takes their logarithms: log_softmax, or use cross_entropy on what softmax was given",
    )
    if x.array.ndim == 2 and x.array.dtype in (float32, float64) and reduction == "mean":
        if weight is None and _all_count(x, t, ignore_index, dim):
            return class_mean(x, t)
    return _nll("nll_loss", x, _picked(x, dim), t, weight, ignore_index, reduction, dim)


def _nll(
    name: str,
    x: Tensor,
    at_classes: Callable[[Tensor], Tensor],
    t: Tensor,
    weight: TensorLike | None,
    ignore_index: int,
    reduction: str,
    dim: int,
    spread_out: tuple[float, Tensor | None] = (0.0, None),
) -> Tensor:
    shape = x.array.shape
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
            fix=_cure_of_shape(t, x, dim),
        )
    smoothing, logp = spread_out
    a, classes = t.array, shape[dim]
    # Numbers below 0 are large ones as well.
    known = unheard() and a.dtype is int64 and (not a.size or a.view(np.uint64).max() < classes)
    if known and not 0 <= ignore_index < classes:
        counted = None  # all do
    else:
        counted = ne(t, ignore_index)
        if not known:
            _check_classes(name, t, counted, classes)
    everybody = counted is None or (unheard() and counted.array.all())
    if weight is None and not smoothing and everybody:
        at = at_classes(t)
        if reduction == "mean" and at.array.size:  # the same bits, by one operation less
            return ops.sum(at) / float(-at.array.size)
        return reduced(-at, reduction)
    if counted is None:
        counted = ne(t, ignore_index)
    safe = cast(where(counted, t, 0), int64)
    loss = -at_classes(safe)
    share = cast(counted, x.array.dtype)
    if weight is not None:
        across = _along_classes(weight, x, dim)
        share = share * getitem(reshape(across, -1), safe)
    # Not loss * share: an ignored element may hold infinity.
    loss = where(counted, loss, 0.0) * share
    if smoothing and logp is not None:
        spread = ops.sum(logp * across if weight is not None else logp, dim)
        spread = where(counted, -spread, 0.0) / float(shape[dim])
        loss = loss * (1.0 - smoothing) + spread * smoothing
    if reduction == "mean":
        return ops.sum(loss) / ops.sum(share)
    return reduced(loss, reduction)


def _cure_of_shape(t: Tensor, x: Tensor, dim: int) -> str:
    """What to do about class indices of another shape than the input has without its classes."""
    rest, shape = x.array.shape[:dim] + x.array.shape[dim + 1 :], t.array.shape
    if shape == x.array.shape:
        return "one-hot rows are probabilities: target.float(), or target.argmax(1) for indices"
    if shape == (*rest, 1):
        return "write target.squeeze(-1)"
    if x.array.ndim == 3 and shape == x.array.shape[:2]:
        return "classes are dim 1 of the input, not the last: input.transpose(1, 2)"
    return "the target has the input's shape without the class dim (dim 1)"


def _check_classes(name: str, t: Tensor, counted: Tensor, classes: int) -> None:
    bad = ((t.array < 0) | (t.array >= classes)) & counted.array
    if bad.any():
        raise TensorIndexError(
            name,
            expected=f"class indices in [0, {classes - 1}], the input having {classes} classes",
            got=f"target {int(t.array[bad].reshape(-1)[0])} is out of bounds",
            fix="number the classes from 0; ignore_index marks targets that do not count",
        )
