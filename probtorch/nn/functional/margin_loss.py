"""Losses with a margin: between scores, between classes, and between distances of vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.nn.arguments import reduction_of
from probtorch.nn.functional.linear import pairwise_distance
from probtorch.nn.functional.loss import reduced
from probtorch.ops.arithmetic import minimum, relu, sqrt, where
from probtorch.ops.comparisons import eq, ne
from probtorch.ops.exponentials import log_sigmoid, pow, softplus
from probtorch.ops.gathering import gather
from probtorch.ops.indexing import getitem
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.reduction import mean, sum
from probtorch.ops.scattering import one_hot
from probtorch.tensor import Tensor

__all__ = [
    "cosine_embedding_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]

# From two tensors to how far they are from each other.
Distance: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def margin_ranking_loss(
    input1: TensorLike,
    input2: TensorLike,
    target: TensorLike,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, -target * (x1 - x2) + margin)``: x1 should rank higher where the target is 1.

    Parameters
    ----------
    input1, input2, target : Tensor, of one shape
        Targets are 1 or -1.
    margin : float
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    reduction : {"mean", "sum", "none"}
    """
    reduction = reduction_of("margin_ranking_loss", reduction, size_average, reduce)
    a, b, t = (as_tensor(x, "margin_ranking_loss") for x in (input1, input2, target))
    if not a.array.ndim == b.array.ndim == t.array.ndim:
        raise ShapeError(
            "margin_ranking_loss",
            expected="inputs and target with as many dims",
            got=f"{a.array.shape}, {b.array.shape} and {t.array.shape}",
            fix="reshape them to one shape",
        )
    return reduced(relu(-t * (a - b) + margin), reduction)


def hinge_embedding_loss(
    input: TensorLike,
    target: TensorLike,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Distances where the target is 1, ``max(0, margin - x)`` where it is -1."""
    reduction = reduction_of("hinge_embedding_loss", reduction, size_average, reduce)
    x, t = as_tensor(input, "hinge_embedding_loss"), as_tensor(target, "hinge_embedding_loss")
    near, far = where(ne(t, -1), x, 0.0), where(ne(t, 1), relu(margin - x), 0.0)
    return reduced(near + far, reduction)


def cosine_embedding_loss(
    input1: TensorLike,
    input2: TensorLike,
    target: TensorLike,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``1 - cos(x1, x2)`` where the target is 1, ``max(0, cos(x1, x2) - margin)`` where it is -1.

    Parameters
    ----------
    input1, input2 : Tensor, shape (N, D) or (D,)
    target : Tensor, shape (N,) or (), of 1 and -1
    margin : float
        From -1 to 1.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    reduction : {"mean", "sum", "none"}
    """
    name = "cosine_embedding_loss"
    reduction = reduction_of(name, reduction, size_average, reduce)
    a, b, t = (as_tensor(x, name) for x in (input1, input2, target))
    if a.array.shape != b.array.shape or t.array.shape != a.array.shape[:-1]:
        raise ShapeError(
            name,
            expected="inputs (N, D) and a target (N,), or (D,) and ()",
            got=f"{a.array.shape}, {b.array.shape} and {t.array.shape}",
            fix="one target per pair of vectors",
        )
    # 1e-12 as in PyTorch: what the cosine of a zero vector is then divided by.
    squares = (sum(a * a, -1) + 1e-12) * (sum(b * b, -1) + 1e-12)
    cosine = sum(a * b, -1) / sqrt(squares)
    loss = where(eq(t, 1), 1.0 - cosine, where(eq(t, -1), relu(cosine - margin), 0.0))
    return reduced(loss, reduction)


@in_our_words
def triplet_margin_loss(
    anchor: TensorLike,
    positive: TensorLike,
    negative: TensorLike,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, margin + d(anchor, positive) - d(anchor, negative))``.

    Parameters
    ----------
    anchor, positive, negative : Tensor, shape (N, D) or (D,)
    margin : float
    p, eps : float
        Of `pairwise_distance`.
    swap : bool
        Measure the negative from the positive where that is closer.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    reduction : {"mean", "sum", "none"}
    """
    reduction = reduction_of("triplet_margin_loss", reduction, size_average, reduce)
    if margin <= 0:
        raise ArgumentError(
            "triplet_margin_loss", expected="margin > 0", got=str(margin), fix="1 is usual"
        )
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(relu(near - far + margin), reduction)


@in_our_words
def triplet_margin_with_distance_loss(
    anchor: TensorLike,
    positive: TensorLike,
    negative: TensorLike,
    *,
    distance_function: Distance | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with another distance.

    Parameters
    ----------
    anchor, positive, negative : Tensor
    distance_function : callable, optional
        Of two tensors, for example ``lambda x, y: 1.0 - cosine_similarity(x, y)``;
        `pairwise_distance` if None.
    margin : float
    swap : bool
        Measure the negative from the positive where that is closer.
    reduction : {"mean", "sum", "none"}

    Raises
    ------
    ArgumentError
        If the margin is not positive.
    ShapeError
        If the tensors differ in their number of dims.
    """
    name = "triplet_margin_with_distance_loss"
    reduction = reduction_of(name, reduction)
    if not margin > 0:
        raise ArgumentError(name, expected="margin > 0", got=str(margin), fix="1 is usual")
    a, p, n = (as_tensor(t, name) for t in (anchor, positive, negative))
    if not a.array.ndim == p.array.ndim == n.array.ndim:
        raise ShapeError(
            name,
            expected="three tensors with equally many dims",
            got=f"{a.array.shape}, {p.array.shape} and {n.array.shape}",
            fix="unsqueeze the missing dims",
        )
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(a, p), distance(a, n)
    if swap:
        far = minimum(far, distance(p, n))
    return reduced(relu(near - far + margin), reduction)


def soft_margin_loss(
    input: TensorLike,
    target: TensorLike,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``log(1 + exp(-target * x))`` for targets 1 and -1."""
    reduction = reduction_of("soft_margin_loss", reduction, size_average, reduce)
    x, t = as_tensor(input, "soft_margin_loss"), as_tensor(target, "soft_margin_loss")
    return reduced(softplus(-t * x), reduction)


def multilabel_soft_margin_loss(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean over classes of the logistic loss of 0-1 targets (..., C); `weight` is per class."""
    name = "multilabel_soft_margin_loss"
    reduction = reduction_of(name, reduction, size_average, reduce)
    x, t = as_tensor(input, name), as_tensor(target, name)
    loss = -(t * log_sigmoid(x) + (1.0 - t) * log_sigmoid(-x))
    return reduced(mean(loss if weight is None else loss * weight, -1), reduction)


def _rows(
    name: str, input: TensorLike, target: TensorLike, per_row: bool
) -> tuple[Tensor, Tensor, bool]:
    """Return the input as (N, C), the target as (N,) or (N, C), and whether there was no batch."""
    x, t = as_tensor(input, name), as_tensor(target, name)
    single = x.array.ndim == 1
    if single:
        x, t = unsqueeze(x, 0), reshape(t, (1, *t.array.shape) if not per_row else (1,))
    shape = x.array.shape[:1] if per_row else x.array.shape
    if x.array.ndim != 2 or t.array.shape != shape:
        raise ShapeError(
            name,
            expected=f"an input (N, C) or (C,) and a target {'(N,) or ()' if per_row else 'alike'}",
            got=f"{x.array.shape} and {t.array.shape}",
            fix="reshape the target",
        )
    if t.array.dtype.kind not in "iu":
        raise DTypeError(
            name, expected="integer classes", got=str(t.array.dtype), fix="use .long() first"
        )
    low = 0 if per_row else -1
    if t.array.size and not low <= t.array.min() <= t.array.max() < x.array.shape[1]:
        raise TensorIndexError(
            name,
            expected=f"class indices in [{low}, {x.array.shape[1] - 1}]",
            got=f"{int(t.array.min())} to {int(t.array.max())}",
            fix="number the classes from 0",
        )
    return x, t, single


def multi_margin_loss(
    input: TensorLike,
    target: TensorLike,
    p: float = 1,
    margin: float = 1.0,
    weight: TensorLike | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Mean over the other classes' ``max(0, margin - x[target] + x[i]) ** p``, divided by C.

    Parameters
    ----------
    input : Tensor, shape (N, C) or (C,)
    target : integer Tensor, shape (N,) or ()
    p : {1, 2}
    margin : float
    weight : Tensor, shape (C,), optional
        Weight of each target class.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    reduction : {"mean", "sum", "none"}
    """
    reduction = reduction_of("multi_margin_loss", reduction, size_average, reduce)
    if p not in (1, 2):
        raise ArgumentError("multi_margin_loss", expected="p: 1 or 2", got=str(p), fix="use 1")
    x, t, single = _rows("multi_margin_loss", input, target, True)
    score = gather(x, 1, unsqueeze(t, 1))
    loss = pow(relu(x - score + margin), float(p))
    loss = where(eq(one_hot(t, x.array.shape[1]), 1), 0.0, loss)
    if weight is not None:
        loss = loss * unsqueeze(getitem(as_tensor(weight, "multi_margin_loss"), t), 1)
    loss = mean(loss, 1)
    return reduced(reshape(loss, ()) if single else loss, reduction)


def multilabel_margin_loss(
    input: TensorLike,
    target: TensorLike,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Sum of ``max(0, 1 - (x[j] - x[i]))`` over target classes j and other classes i, over C.

    Parameters
    ----------
    input : Tensor, shape (N, C) or (C,)
    target : integer Tensor, of the input's shape
        Each row lists its classes; the first -1 ends the list.
    size_average, reduce : bool, optional
        Old spelling of `reduction`.
    reduction : {"mean", "sum", "none"}
    """
    name = "multilabel_margin_loss"
    reduction = reduction_of(name, reduction, size_average, reduce)
    x, t, single = _rows(name, input, target, False)
    count = x.array.shape[1]
    labels = t.cpu().numpy()
    listed = np.minimum.accumulate(labels >= 0, axis=1)
    chosen = np.zeros(labels.shape, bool)
    rows = np.broadcast_to(np.arange(len(labels))[:, None], labels.shape)
    chosen[rows[listed], labels[listed]] = True
    pairs = as_tensor(chosen[:, :, None] & ~chosen[:, None, :]).to(x.device)
    gaps = relu(1.0 - unsqueeze(x, 2) + unsqueeze(x, 1))  # (N, target class, other class)
    # A choice, not a product: other gaps may be infinite.
    loss = sum(where(pairs, gaps, 0.0), (1, 2)) / float(count)
    return reduced(reshape(loss, ()) if single else loss, reduction)
