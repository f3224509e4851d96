"""Searching sorted numbers, and counting how many fall where."""

from __future__ import annotations

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.casting import cast, to_float
from probtorch.core.dispatch import apply, unheard, wrap
from probtorch.core.dtype import int32, int64
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.ops.families import structured
from probtorch.ops.gathering import gather
from probtorch.ops.indexing import index_put

__all__ = ["bincount", "bucketize", "first_above", "histc", "searchsorted"]


@in_our_words
def bincount(
    input: TensorLike, weights: TensorLike | None = None, minlength: int = 0
) -> TensorBase:
    """Return how often 0, 1, ... occur in a vector of integers, or the sums of `weights` there.

    Parameters
    ----------
    input : Tensor of integers, shape (n,)
        Nonnegative.
    weights : Tensor, shape (n,), optional
        Differentiable.
    minlength : int
        Least length of the result.
    """
    input = as_tensor(input, "bincount")
    if input.array.dtype.kind not in "iub" or input.array.ndim != 1:
        raise DTypeError(
            "bincount",
            expected="a vector of integers",
            got=f"shape {input.array.shape} and dtype {input.array.dtype}",
            fix="use .long() and reshape(-1)",
        )
    read("bincount", input)
    if input.array.size and int(input.array.min()) < 0:
        raise DomainError(
            "bincount",
            expected="integers >= 0",
            got=str(int(input.array.min())),
            fix="shift the values",
        )
    if weights is None and unheard() and type(input.array) is np.ndarray:
        return wrap(np.bincount(input.array, minlength=int(minlength)))
    length = max(int(input.array.max()) + 1 if input.array.size else 0, int(minlength))
    values = as_tensor(1 if weights is None else weights, "bincount")
    zeros = wrap(namespace(input.array).zeros(length, values.array.dtype))
    return index_put(zeros, (cast(input, int64),), values, accumulate=True)


@takes_out
def histc(
    input: TensorLike,
    bins: int = 100,
    min: float = 0,
    max: float = 0,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the counts of a histogram with equal bins from `min` to `max`.

    Equal ends stand for the range of the data. Elements outside are left out; the last bin includes
    its upper end. No gradient.
    """
    input = to_float(as_tensor(input, "histc"))
    read("histc", input)
    host = to_host(input.array).reshape(-1)
    if min == max and host.size:
        min, max = float(host.min()), float(host.max())
        min, max = (min - 1.0, max + 1.0) if min == max else (min, max)
    if bins < 1 or not np.isfinite([min, max]).all() or not min <= max:
        raise ArgumentError(
            "histc",
            expected="bins >= 1 and finite min <= max",
            got=f"bins={bins}, min={min}, max={max}",
            fix="remove nan and infinities from the data, or give the range",
        )
    counts = np.histogram(host, bins, (min, max))[0]
    return wrap(to_device(counts.astype(input.array.dtype), device_of(input.array)))


def first_above(
    rows: np.ndarray, row: np.ndarray, v: np.ndarray, *, right: bool = True
) -> np.ndarray:
    """Return the first column where an ascending row exceeds `v` (or reaches it, unless `right`).

    Parameters
    ----------
    rows : ndarray, shape (m, n)
        Each row in ascending order, nan last.
    row, v : ndarray of one shape
        Which row to search, and for what.

    Returns
    -------
    ndarray of int64, n where no element does.
    """
    low, high = np.zeros(v.shape, np.int64), np.full(v.shape, rows.shape[-1], np.int64)
    for _ in range(int(rows.shape[-1]).bit_length()):
        middle = (low + high) // 2
        inside = low < high
        element = rows[row, np.minimum(middle, rows.shape[-1] - 1)]
        # In the order that sorting makes, where nan is larger than all numbers.
        if right:
            beyond = (element > v) | (np.isnan(element) & ~np.isnan(v))
        else:
            beyond = ~((element < v) | (np.isnan(v) & ~np.isnan(element)))
        high = np.where(inside & beyond, middle, high)
        low = np.where(inside & ~beyond, middle + 1, low)
    return low


def _run_searchsorted(sequence: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    device = device_of(values)
    sequence, values = to_host(sequence), to_host(values)
    if not sequence.size:
        found = np.zeros(values.shape, np.int64)
    elif sequence.ndim == 1:
        found = np.searchsorted(sequence, values, side="right" if right else "left")
    else:
        flat = sequence.reshape(-1, sequence.shape[-1])
        row = np.arange(flat.shape[0]).reshape(*sequence.shape[:-1], 1)
        found = first_above(flat, np.broadcast_to(row, values.shape), values, right=right)
    return to_device(np.asarray(found, np.int64), device)


def _searchsorted_reference(sequence: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    sequence = np.broadcast_to(sequence, values.shape[:-1] + sequence.shape[-1:])
    below = (
        sequence[..., None, :] <= values[..., :, None]
        if right
        else sequence[..., None, :] < values[..., :, None]
    )
    return below.sum(-1)


_SEARCHSORTED = structured(
    "searchsorted",
    "sorting",
    run=_run_searchsorted,
    samples=lambda rng: [
        ((np.sort(rng.standard_normal(6)), rng.standard_normal((2, 3))), {"right": False}),
        (
            (np.sort(rng.integers(0, 4, (2, 6)) * 1.0), rng.integers(0, 4, (2, 3)) * 1.0),
            {"right": True},
        ),
    ],
    reference=_searchsorted_reference,
    doc="Where values would be inserted into ascending rows.",
)


@takes_out
def searchsorted(
    sorted_sequence: TensorLike,
    values: TensorLike,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorLike | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return where `values` would be inserted into an ascending sequence, as int64.

    Parameters
    ----------
    sorted_sequence : Tensor, shape (n,) or (..., n)
    values : Tensor
        Any shape for a vector of boundaries, else with the same leading dims.
    right : bool
        Whether equal elements are passed over: the first place above, instead of the first not
        below.
    side : {"left", "right"}, optional
        NumPy's way of saying it.
    sorter : Tensor of integers, optional
        Places that put the sequence in order, as from `argsort`, where it is not.
    out_int32 : bool
        Return int32.

    Raises
    ------
    ArgumentError
        If `side` is another word, or contradicts ``right=True``.
    """
    if side not in (None, "left", "right") or (right and side == "left"):
        raise ArgumentError(
            "searchsorted",
            expected="side 'left' or 'right', as right says if that is given, too",
            got=f"side={side!r}, right={right}",
            fix="give one of the two",
        )
    if sorter is not None:
        sorted_sequence = gather(as_tensor(sorted_sequence, "searchsorted"), -1, sorter)
    sequence, values = as_tensor(sorted_sequence, "searchsorted"), as_tensor(values, "searchsorted")
    lead = sequence.array.shape[:-1]
    if sequence.array.ndim == 0 or (lead and lead != values.array.shape[:-1]):
        raise ShapeError(
            "searchsorted",
            expected="a vector, or values with the leading dims of the sequence",
            got=f"{sequence.array.shape} and {values.array.shape}",
            fix="expand the values",
        )
    # NumPy's promotion, which keeps every integer; ours is for results.
    dtype = np.result_type(sequence.array.dtype, values.array.dtype)
    operands = (cast(sequence, dtype), cast(values, dtype))
    found = apply(_SEARCHSORTED, operands, {"right": bool(right or side == "right")})
    return cast(found, int32) if out_int32 else found


@takes_out
def bucketize(
    input: TensorLike,
    boundaries: TensorLike,
    *,
    out_int32: bool = False,
    right: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the bucket of each value: `searchsorted` with its arguments swapped."""
    return searchsorted(boundaries, input, right=right, out_int32=out_int32)
