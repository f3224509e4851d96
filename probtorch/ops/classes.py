"""Log softmax at one class of each row, and minus its mean: what the loss of a classifier takes.

Each is one operation; the mean where nothing records: one entry of the tape instead of three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, to_float
from probtorch.core.dispatch import apply, unseen, wrap
from probtorch.core.shape import ALL_DIMS, broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.ops.accumulate import add_up, floats
from probtorch.ops.comparisons import eq
from probtorch.ops.exponential_sums import (
    has_few_columns,
    log_softmax,
    run_log_softmax,
    shares,
)
from probtorch.ops.exponentials import exp
from probtorch.ops.families import structured, unbroadcast
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, movedim, squeeze, unsqueeze
from probtorch.ops.native_rows import native_rows
from probtorch.ops.reduction import Sample, sum
from probtorch.ops.take_put import take_of_rows, untake

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = ["class_log_probs", "class_loss", "class_mean"]


def _run_class_log_probs(x: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    few = has_few_columns(x, (x.ndim - 1,))
    if not few and index.shape == x.shape[:-1] and index.dtype is dtypes.int64:
        native = native_rows("class_log_probs", x, (x.ndim - 1,))
        if native is not None:
            at_class, logp = native(x, index)
            return np.asarray(at_class), logp
    logp = run_log_softmax(x, (x.ndim - 1,))
    if index.shape != x.shape[:-1]:
        shape = broadcast_shapes(index.shape, x.shape[:-1])
        xp = namespace(x)
        index = xp.broadcast_to(index, shape)
        logp = xp.ascontiguousarray(xp.broadcast_to(logp, (*shape, x.shape[-1])))
    if logp.ndim == 2:
        return logp[_rows(logp), index], logp
    return namespace(x).take_along_axis(logp, index[..., None], -1)[..., 0], logp


def _rows(x: np.ndarray) -> np.ndarray:
    return namespace(x).arange(x.shape[0])


def _decomposed_class_log_probs(x: TensorBase, index: TensorBase) -> tuple[TensorBase, TensorBase]:
    shape = broadcast_shapes(index.array.shape, x.array.shape[:-1])
    logp = expand(log_softmax(x, -1), (*shape, x.array.shape[-1]))
    return _at_class(logp, expand(index, shape)), logp


def _at_class(x: TensorBase, index: TensorBase) -> TensorBase:
    return squeeze(gather(x, -1, unsqueeze(index, -1)), -1)


def _class_log_probs_vjp(
    g: Sequence[TensorBase | None],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    (at_class, of_all), (_, logp), (x, index) = g, out, inputs
    if (
        at_class is not None
        and of_all is None
        and unseen(at_class, logp)
        and logp.array.ndim == 2
        and x.array.shape == logp.array.shape
    ):
        few = has_few_columns(logp.array, (1,))
        native = None if few else native_rows("class_slope", logp.array, (1,))
        if native is not None and index.array.dtype is dtypes.int64:
            return wrap(native(logp.array, index.array, at_class.array)), None
        slope = np.exp(logp.array)
        slope *= -at_class.array[:, None]
        slope[_rows(slope), index.array] += at_class.array
        return wrap(slope), None
    if at_class is not None:
        classes = wrap(namespace(logp.array).arange(logp.array.shape[-1]))
        hot = cast(eq(unsqueeze(index, -1), classes), logp.array.dtype)
        mine = hot * unsqueeze(at_class, -1)
        of_all = mine if of_all is None else of_all + mine
    assert of_all is not None
    slopes = of_all - exp(logp) * sum(of_all, -1, True)
    return unbroadcast(slopes, x.array.shape), None


def _class_log_probs_jvp(
    tangents: list[TensorBase],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
) -> tuple[TensorBase, TensorBase]:
    (_, logp), index = out, inputs[1]
    moved = expand(tangents[0] - sum(exp(logp) * tangents[0], -1, True), logp.array.shape)
    return _at_class(moved, expand(index, logp.array.shape[:-1])), moved


def _class_samples(rng: np.random.Generator) -> list[Sample]:
    return [
        ((rng.standard_normal((4, 3)), np.array([0, 2, 1, 2])), {}),
        ((rng.standard_normal((2, 3, 4)), rng.integers(0, 4, (2, 3))), {}),
        ((rng.standard_normal(3), np.array(1)), {}),
    ]


def _class_reference(x: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logp = np.log(shares(x, (x.ndim - 1,)))
    return np.take_along_axis(logp, np.asarray(index)[..., None], -1)[..., 0], logp


_CLASS_LOG_PROBS = structured(
    "class_log_probs",
    "reduction",
    run=_run_class_log_probs,
    vjp=_class_log_probs_vjp,
    jvp=_class_log_probs_jvp,
    saves="index out",
    num_outputs=2,
    core="(c),()->(),(c)",
    samples=_class_samples,
    reference=_class_reference,
    doc="Log softmax over the last dim, at one class of each row and at all.",
    extra={"decompose": _decomposed_class_log_probs},
)


def class_log_probs(
    x: TensorBase, index: TensorBase, dim: int = -1
) -> tuple[TensorBase, TensorBase]:
    """Return `log_softmax` of `x` at one class of each row, and at all of them (which see `dim`
    last): as one operation, what the loss of a classifier takes.

    Parameters
    ----------
    x : Tensor of floats
        Its dim `dim` is that of the classes.
    index : Tensor of int64, in the shape of `x` without that dim
        Numbers of classes, known to be in range.
    """
    last = x.array.ndim - 1
    return apply(_CLASS_LOG_PROBS, (x if dim in (last, -1) else movedim(x, dim, last), index))


# ------------------------------------------------------------------------------------ of all rows


def _run_class_loss(x: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    at_class, logp = _run_class_log_probs(x, index)
    return add_up(at_class, ALL_DIMS[at_class.ndim], False) / -float(at_class.size), logp


def _class_loss_vjp(
    g: Sequence[TensorBase | None],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    loss, of_all = g
    shape = out[1].array.shape[:-1]
    each = None if loss is None else expand(loss / -float(math.prod(shape)), shape)
    return _class_log_probs_vjp((each, of_all), out, inputs, attrs, needs)


def _class_loss_jvp(
    tangents: list[TensorBase],
    out: tuple[TensorBase, TensorBase],
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
) -> tuple[TensorBase, TensorBase]:
    at_class, moved = _class_log_probs_jvp(tangents, out, inputs, attrs)
    return sum(at_class) / -float(at_class.array.size), moved


def _decomposed_class_loss(x: TensorBase, index: TensorBase) -> tuple[TensorBase, TensorBase]:
    at_class, logp = _decomposed_class_log_probs(x, index)
    return sum(at_class) / -float(at_class.array.size), logp


def _class_loss_reference(x: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    shape = np.broadcast_shapes(np.shape(index), x.shape[:-1])
    wide = np.broadcast_to(x, (*shape, x.shape[-1]))
    at_class, logp = _class_reference(wide, np.broadcast_to(index, shape))
    return -at_class.mean(), logp


_CLASS_LOSS = structured(
    "class_loss",
    "reduction",
    run=_run_class_loss,
    vjp=_class_loss_vjp,
    jvp=_class_loss_jvp,
    saves="index out",
    num_outputs=2,
    samples=_class_samples,
    reference=_class_loss_reference,
    doc="Minus the mean of the log softmax over the last dim at one class of each row; and at all.",
    extra={"decompose": _decomposed_class_loss},
)


def class_loss(x: TensorBase, index: TensorBase, dim: int = -1) -> TensorBase:
    """Return minus the mean of `class_log_probs`, whose arguments these are, at the classes."""
    last = x.array.ndim - 1
    x = x if dim in (last, -1) else movedim(x, dim, last)
    loss: TensorBase = apply(_CLASS_LOSS, (x, index))[0]
    return loss


def _class_mean_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, None]:
    x, index = inputs
    count = x.array.shape[0]
    if unseen(g, x):
        slope = np.zeros(x.array.shape, x.array.dtype)
        slope[np.arange(count), index.array] = g.array / -float(count)
        return wrap(slope), None
    each = expand(g / -float(count), (count,))
    rows = wrap(namespace(x.array).arange(count))
    return untake(each, (0, 1), [rows, index], x.array.shape), None


def _class_mean(x: TensorBase, index: TensorBase) -> TensorBase:
    return sum(take_of_rows(to_float(x), index)) / -float(x.array.shape[0])


_CLASS_MEAN = structured(
    "class_mean",
    "reduction",
    run=lambda x, index: add_up(floats(x)[_rows(x), index], (0,), False) / -float(x.shape[0]),
    vjp=_class_mean_vjp,
    jvp=lambda tangents, out, inputs, attrs: _class_mean(tangents[0], inputs[1]),
    saves="index",
    samples=lambda rng: [
        ((rng.standard_normal((4, 3)), np.array([0, 2, 1, 2])), {}),
        ((rng.standard_normal((1, 2)), np.array([1])), {}),
    ],
    reference=lambda x, index: -x[np.arange(len(x)), index].mean(),
    doc="Minus the mean of the elements of a matrix at one column of each row.",
    extra={"decompose": _class_mean},
)


def class_mean(x: TensorBase, index: TensorBase) -> TensorBase:
    """Return minus the mean of the elements of `x` at one column of each row: the loss of log
    probabilities. The index is of int64, and known to be in range.
    """
    mean: TensorBase = apply(_CLASS_MEAN, (x, index))
    return mean
