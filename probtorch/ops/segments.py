"""Reductions of the parts of a dim: `segment_reduce`."""

from __future__ import annotations

import math

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.shape import normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.arithmetic import add, maximum, minimum, mul, where
from probtorch.ops.extremes import amax, amin
from probtorch.ops.movement import expand, reshape
from probtorch.ops.reduction import prod, sum
from probtorch.ops.take_put import near, take

__all__ = ["segment_reduce"]

# What an element that is not there counts as, and a segment without elements is.
_NOTHING = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_REDUCTIONS = {"sum": sum, "mean": sum, "prod": prod, "max": amax, "min": amin}
_JOINED = {"sum": add, "mean": add, "prod": mul, "max": maximum, "min": minimum}


def segment_reduce(
    data: TensorLike,
    reduce: str,
    *,
    lengths: TensorLike | None = None,
    indices: TensorLike | None = None,
    offsets: TensorLike | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> TensorBase:
    """Reduce each of the segments that follow each other along a dim.

    Parameters
    ----------
    data : Tensor of floats
    reduce : {"sum", "mean", "max", "min", "prod"}
    lengths : Tensor of integers, shape (*data.shape[:axis], segments)
        Of the segments; they add up to the size of the dim.
    offsets : Tensor of integers, shape (*data.shape[:axis], segments + 1)
        In the place of `lengths`: where segments begin, and the last ends.
    axis : int
    unsafe : bool
        Lengths may add up to less.
    initial : float, optional
        With which each reduction begins, and what segments without elements are; left out, these
        are 0 for sums, 1 for products, nan for means, and infinite for extremes.

    Returns
    -------
    Tensor, shape (*data.shape[:axis], segments, *data.shape[axis + 1:])

    Raises
    ------
    ShapeError
        If lengths do not fit.

    Notes
    -----
    Segments are laid side by side, as long as the longest of them, so one that is much longer than
    the others costs memory.
    """
    x = as_tensor(data, "segment_reduce")
    if reduce not in _NOTHING:
        raise ArgumentError(
            "segment_reduce",
            expected=f"reduce: {', '.join(map(repr, _NOTHING))}",
            got=repr(reduce),
            fix="use one of these",
        )
    if x.array.dtype.kind != "f":
        raise DTypeError(
            "segment_reduce", expected="floats", got=str(x.array.dtype), fix="call .float() first"
        )
    if indices is not None or (lengths is None) is (offsets is None):
        raise ArgumentError(
            "segment_reduce",
            expected="either lengths= or offsets=",
            got="both, neither, or indices=",
            fix="give the lengths; with an index for each element use scatter_reduce",
        )
    if not x.array.ndim:
        raise ShapeError(
            "segment_reduce", expected="at least one dim", got="a 0-d tensor", fix="reshape it"
        )
    axis = normalize_dim(axis, x.array.ndim, "segment_reduce")
    starts, counts = _segments(x, lengths, offsets, axis, unsafe)
    return _reduced(x, reduce, axis, starts, counts, initial)


def _segments(
    x: TensorBase,
    lengths: TensorLike | None,
    offsets: TensorLike | None,
    axis: int,
    unsafe: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return where segments begin, and how long they are, checked."""
    given = as_tensor(offsets if lengths is None else lengths, "segment_reduce")
    read("segment_reduce", given)
    host = to_host(given.array)
    lead, n = x.array.shape[:axis], x.array.shape[axis]
    if host.dtype.kind not in "iu" or host.shape[:-1] != lead or not host.ndim:
        raise ShapeError(
            "segment_reduce",
            expected=f"integers, of shape {lead} and one dim more",
            got=f"{host.dtype} of shape {host.shape}",
            fix="give them for each row before the axis",
        )
    counts = host.astype(np.int64)
    if lengths is None:
        starts, counts = counts[..., :-1], np.diff(counts, axis=-1)
    else:
        starts = np.cumsum(counts, -1) - counts
    total = counts.sum(-1)
    if (counts < 0).any() or (total > n).any() or (not unsafe and (total != n).any()):
        raise ShapeError(
            "segment_reduce",
            expected=f"lengths that are not negative and add up to {n}, the size of dim {axis}",
            got=f"sums {np.unique(total).tolist()[:5]}, the least one {np.min(counts, initial=0)}",
            fix="check the lengths",
        )
    return starts, counts


def _reduced(
    x: TensorBase,
    reduce: str,
    axis: int,
    starts: np.ndarray,
    counts: np.ndarray,
    initial: float | None,
) -> TensorBase:
    shape, longest = x.array.shape, int(counts.max(initial=0))
    n, rest = shape[axis], shape[axis + 1 :]
    found: TensorBase
    if longest:
        rows = np.arange(math.prod(shape[:axis])).reshape((*shape[:axis], 1, 1)) * n
        place = np.arange(longest)
        there = place < counts[..., None]
        at = np.where(there, rows + starts[..., None] + place, 0)
        flat = reshape(x, (math.prod(shape[: axis + 1]), *rest))
        (mask,) = near(x, [wrap(there.reshape(there.shape + (1,) * len(rest)))], None)
        padded = where(mask, take(flat, (0,), [wrap(at)]), _NOTHING[reduce])
        found = _REDUCTIONS[reduce](padded, axis + 1)
    else:
        nothing = wrap(np.asarray(_NOTHING[reduce], x.array.dtype))
        found = expand(nothing, (*counts.shape, *rest))
    if initial is not None:
        found = _JOINED[reduce](found, initial)
    if reduce == "mean":
        (count,) = near(x, [wrap(counts.reshape(counts.shape + (1,) * len(rest)))], None)
        least = 1 if initial is not None else 0
        found = found / maximum(count, least).to(x.array.dtype)
    return found
