"""Bags of rows of a table: looked up and summed, averaged or compared, one result for each bag."""

from __future__ import annotations

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.nn.functional.linear import embedding
from probtorch.ops.arithmetic import maximum, where
from probtorch.ops.comparisons import eq
from probtorch.ops.movement import expand, reshape, slice_, unsqueeze
from probtorch.ops.padding import beside
from probtorch.ops.scattered_reductions import index_reduce
from probtorch.ops.scattering import index_add
from probtorch.ops.searching import searchsorted
from probtorch.tensor import Tensor

__all__ = ["embedding_bag"]


def embedding_bag(
    input: TensorLike,
    weight: TensorLike,
    offsets: TensorLike | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: TensorLike | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Look up rows of a table and combine those of each bag.

    Parameters
    ----------
    input : integer Tensor, shape (B, N) or (n,)
        Row numbers: B bags of N rows each, or all bags one after the other.
    weight : Tensor, shape (rows, features)
    offsets : integer Tensor, shape (B,), optional
        Where each bag begins in an input of one dim; the first is 0.
    max_norm, norm_type : float
        Rows that are looked up and longer are scaled down to `max_norm`, in place, before.
    scale_grad_by_freq : bool
        Divide each row's gradient by how often the row was looked up; not in mode "max".
    mode : {"mean", "sum", "max"}
        Bags without rows are 0.
    sparse : bool
        Not supported: gradients are dense.
    per_sample_weights : Tensor, of the input's shape, optional
        A factor for each row, in mode "sum".
    include_last_offset : bool
        Whether `offsets` has one more number, where the last bag ends.
    padding_idx : int, optional
        Row that counts in no bag.

    Returns
    -------
    Tensor, shape (B, features)

    Raises
    ------
    ShapeError
        If input, offsets and weights do not go together.
    ArgumentError
        For another mode, or options that do not go with it.
    TensorIndexError
        If a number is negative or beyond the last row, or offsets do not ascend from 0.
    DTypeError
        If the numbers are not integers.
    """
    index, w = as_tensor(input, "embedding_bag"), as_tensor(weight, "embedding_bag")
    _check_mode(mode, scale_grad_by_freq, per_sample_weights is not None)
    begins = None if offsets is None else as_tensor(offsets, "embedding_bag")
    _check_shapes(index, begins)
    rows = w.array.shape[0] if w.array.ndim else 0
    if padding_idx is not None:
        if not isinstance(padding_idx, (int, np.integer)) or not -rows <= padding_idx < rows:
            raise ArgumentError(
                "embedding_bag",
                expected=f"padding_idx in [{-rows}, {rows - 1}]",
                got=str(padding_idx),
                fix="it is the number of a row of the table",
            )
        padding_idx %= rows
    flat = reshape(index, (index.array.size,))
    found = embedding(flat, w, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    if per_sample_weights is not None:
        factor = as_tensor(per_sample_weights, "embedding_bag")
        if factor.array.shape != index.array.shape:
            raise ShapeError(
                "embedding_bag",
                expected=f"per_sample_weights of the input's shape {index.array.shape}",
                got=str(factor.array.shape),
                fix="one factor per row that is looked up",
            )
        found = found * unsqueeze(reshape(factor, flat.array.shape), -1)
    bag, count = _bags(index, begins, include_last_offset)
    if padding_idx is not None:
        bag = where(eq(flat, padding_idx), count, bag)
    return _combined(found, bag, count, mode)


def _check_mode(mode: str, by_frequency: bool, weighted: bool) -> None:
    if not isinstance(mode, str) or mode not in ("mean", "sum", "max"):
        raise ArgumentError(
            "embedding_bag",
            expected="mode 'mean', 'sum' or 'max'",
            got=repr(mode),
            fix="use 'mean', the default",
        )
    if weighted and mode != "sum":
        raise ArgumentError(
            "embedding_bag",
            expected="per_sample_weights in mode 'sum'",
            got=f"mode={mode!r}",
            fix="divide the weights by their sum for a mean",
        )
    if by_frequency and mode == "max":
        raise ArgumentError(
            "embedding_bag",
            expected="scale_grad_by_freq in mode 'sum' or 'mean'",
            got="mode='max'",
            fix="leave the argument out",
        )


def _check_shapes(index: Tensor, offsets: Tensor | None) -> None:
    wanted = index.array.ndim == 2 and offsets is None
    if not wanted and (index.array.ndim != 1 or offsets is None or offsets.array.ndim != 1):
        raise ShapeError(
            "embedding_bag",
            expected="an input (B, N) without offsets, or (n,) with offsets (B,)",
            got=f"{index.array.shape} and "
            + ("no offsets" if offsets is None else f"offsets {offsets.array.shape}"),
            fix="offsets say where each bag begins",
        )
    if offsets is None:
        return
    if offsets.array.dtype.kind not in "iu":
        raise DTypeError(
            "embedding_bag",
            expected="integer offsets",
            got=str(offsets.array.dtype),
            fix="convert them with .long()",
        )
    begins = offsets.array
    if begins.size and (
        begins[0] != 0 or begins.max() > index.array.size or (begins[1:] < begins[:-1]).any()
    ):
        raise TensorIndexError(
            "embedding_bag",
            expected=f"offsets that ascend from 0 to at most {index.array.size}",
            got=f"{int(begins[0])} to {int(begins[-1])}",
            fix="the first bag begins at 0",
        )


def _bags(index: Tensor, offsets: Tensor | None, last: bool) -> tuple[Tensor, int]:
    """Return the number of the bag of each row that is looked up, and how many bags there are."""
    if offsets is None:
        count, size = index.array.shape
        return beside(index, np.repeat(np.arange(count), size)), count
    places = beside(index, np.arange(index.array.size))
    bag = searchsorted(cast(offsets, int64), places, right=True) - 1
    count = offsets.array.shape[0]
    if not last:
        return bag, count
    if not count:
        raise ShapeError(
            "embedding_bag",
            expected="at least one offset with include_last_offset",
            got="none",
            fix="the last offset is where the last bag ends",
        )
    return bag, count - 1


def _combined(found: Tensor, bag: Tensor, count: int, mode: str) -> Tensor:
    """Combine rows by the numbers of their bags; those with the number `count` belong to none."""
    features = found.array.shape[1]
    start = beside(found, np.zeros((count + 1, features), found.array.dtype))
    if not found.array.size:
        out = start
    elif mode == "max":
        out = index_reduce(start, 0, bag, found, "amax", include_self=False)
    else:
        out = index_add(start, 0, bag, found)
        if mode == "mean":
            one = beside(found, np.ones((), found.array.dtype))
            none = beside(found, np.zeros(count + 1, found.array.dtype))
            sizes = index_add(none, 0, bag, expand(one, bag.array.shape))
            out = out / unsqueeze(maximum(sizes, 1.0), -1)
    return slice_(out, ((0, 1, count), (0, 1, features)))
