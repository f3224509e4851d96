"""Sorting and order statistics, counting and searching.

Indices come from non-differentiable ops, values are gathered with them, so gradients flow to the
elements chosen. nan sorts after everything else. `median`, `kthvalue` and `quantile` are PyTorch's;
equal candidates of a median share its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.casting import cast, to_float
from probtorch.core.dispatch import apply, recorder, unheard, unseen, wrap
from probtorch.core.dtype import float64, int32, int64
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_constant, read
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.ops.arithmetic import ceil, floor, round, where
from probtorch.ops.comparisons import eq, ge, isinf, isnan, le, logical_and
from probtorch.ops.families import structured
from probtorch.ops.gathering import gather, index_select
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import movedim, reshape, slice_
from probtorch.ops.named import ValuesIndices
from probtorch.ops.orders import FEW, first_of_order, order
from probtorch.ops.reduction import any as any_of
from probtorch.ops.reduction import kept_shape, sum
from probtorch.ops.workspace import sorting_space

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = [
    "argsort",
    "bincount",
    "bucketize",
    "first_above",
    "histc",
    "kthvalue",
    "levels",
    "median",
    "quantile",
    "searchsorted",
    "sort",
    "topk",
    "unique",
]

# ------------------------------------------------------------------------------------------ sorting


def _argsort_reference(x, dim, descending):
    moved = np.moveaxis(x, dim, -1)
    out = np.zeros(moved.shape, np.int64)
    for at in np.ndindex(moved.shape[:-1]):
        out[at] = sorted(
            range(moved.shape[-1]), key=lambda i: -moved[at][i] if descending else moved[at][i]
        )
    return np.moveaxis(out, -1, dim)


_ARGSORT = structured(
    "argsort",
    "sorting",
    run=order,
    core="dim",
    native=Routine(
        "argsort_{type}",
        "x count n descending out space",
        outputs="out",
        keeps="x",
        space=sorting_space,
    ),
    samples=lambda rng: [
        ((rng.standard_normal((2, 5)),), {"dim": 1, "descending": False}),
        ((rng.integers(0, 3, (6, 2)) * 1.0,), {"dim": 0, "descending": True}),
    ],
    reference=_argsort_reference,
    doc="Indices that sort along one dim; equal elements keep their order.",
)


def _with_dim(name, x, dim) -> tuple[TensorBase, int, bool]:
    """Return `x` with at least one dim, its normalised dim, and whether a dim was added."""
    x = as_tensor(x, name)
    dim = normalize_dim(dim, x.array.ndim, name)
    return (x, dim, False) if x.array.ndim else (reshape(x, (1,)), 0, True)


def _at(x: TensorBase, dim: int, index: TensorBase) -> TensorBase:
    """Return the elements of `x` at places along `dim`, which are known to be there."""
    if not unseen(x):
        return gather(x, dim, index)
    if x.array.ndim == 1:
        return wrap(x.array[index.array])
    return wrap(np.take_along_axis(x.array, index.array, dim))


@takes_out
def argsort(
    input: TensorLike,
    dim: int = -1,
    descending: bool = False,
    stable: bool = True,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the indices that sort `input` along `dim`; ties keep their order, nan comes last.

    Descending order is the ascending one reversed, so nan then comes first. `stable` is accepted
    for PyTorch's sake.
    """
    input, dim, added = _with_dim("argsort", input, dim)
    index = apply(_ARGSORT, (input,), {"dim": dim, "descending": bool(descending)})
    return reshape(index, ()) if added else index


@takes_out
def sort(
    input: TensorLike,
    dim: int = -1,
    descending: bool = False,
    stable: bool = True,
    *,
    out: tuple[TensorBase, ...] | None = None,
) -> ValuesIndices:
    """Return ``(values, indices)`` sorted along `dim`, as `argsort`; differentiable."""
    input, dim, added = _with_dim("sort", input, dim)
    index = apply(_ARGSORT, (input,), {"dim": dim, "descending": bool(descending)})
    values = _at(input, dim, index)
    if added:
        values, index = reshape(values, ()), reshape(index, ())
    return ValuesIndices(values, index)


@takes_out
def topk(
    input: TensorLike,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    *,
    out: tuple[TensorBase, ...] | None = None,
) -> ValuesIndices:
    """Return ``(values, indices)`` of the `k` largest (or smallest) elements along `dim`, in order.

    Raises
    ------
    ArgumentError
        If `k` exceeds the size of the dim.
    """
    input, dim, added = _with_dim("topk", input, dim)
    n = input.array.shape[dim]
    if not 0 <= k <= n:
        raise ArgumentError(
            "topk", expected=f"k from 0 to {n}, the size of dim {dim}", got=f"k={k}", fix="reduce k"
        )
    index = _places_of_first(input, k, dim, largest)
    values = _at(input, dim, index)
    if added and k == 1:
        values, index = reshape(values, ()), reshape(index, ())
    return ValuesIndices(values, index)


def _places_of_first(x: TensorBase, k: int, dim: int, largest: bool) -> TensorBase:
    """Return the first `k` of what `argsort` returns along `dim`."""
    n = x.array.shape[dim]
    if (
        recorder() is None
        and type(x.array) is np.ndarray
        and 0 < k <= n // 4
        and n >= FEW
        and x.array.size
    ):
        found = first_of_order(x.array, k, dim, largest)
        if found is not None:
            return wrap(found)
    if unheard() and type(x.array) is np.ndarray:
        return wrap(order(x.array, dim, bool(largest))[(*[slice(None)] * dim, slice(k))])
    spec = tuple((0, 1, k if i == dim else s) for i, s in enumerate(x.array.shape))
    return slice_(apply(_ARGSORT, (x,), {"dim": dim, "descending": bool(largest)}), spec)


# --------------------------------------------------------------------------------- order statistics


def _run_order_statistic(x: np.ndarray, dims: tuple[int, ...], k: int, keepdim: bool) -> np.ndarray:
    xp, (dim,) = namespace(x), dims
    chosen = xp.take(xp.sort(x, axis=dim), [k], axis=dim)
    return chosen if keepdim else chosen.reshape(x.shape[:dim] + x.shape[dim + 1 :])


def _chosen(x: TensorBase, y: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    """Weights of the elements equal to the statistic: they share it evenly."""
    at = cast(eq(x, reshape(y, kept_shape(x.array.shape, dims))), y.array.dtype)
    return at / sum(at, dims, True)


def _order_statistic_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    (x,), dims = inputs, attrs["dims"]
    return (_chosen(x, out, dims) * reshape(g, kept_shape(x.array.shape, dims)),)


def _order_statistic_jvp(tangents, out, inputs, attrs: Attrs):
    dims = attrs["dims"]
    return sum(_chosen(inputs[0], out, dims) * tangents[0], dims, attrs["keepdim"])


_ORDER_STATISTIC = structured(
    "order_statistic",
    "sorting",
    run=_run_order_statistic,
    vjp=_order_statistic_vjp,
    jvp=_order_statistic_jvp,
    saves="x out",
    core="dims",
    native=Routine(
        "order_statistic_{type}",
        "x count n k out space",
        outputs="out",
        keeps="x",
        space=sorting_space,
    ),
    samples=lambda rng: [
        ((rng.standard_normal((2, 5)),), {"dims": (1,), "k": 2, "keepdim": False}),
        ((rng.standard_normal((4, 3)),), {"dims": (0,), "k": 0, "keepdim": True}),
    ],
    reference=lambda x, dims, k, keepdim: np.expand_dims(
        np.moveaxis(np.partition(x, k, dims[0]), dims[0], 0)[k], dims if keepdim else ()
    ),
    doc="The k-th smallest element along one dim, counted from 0.",
)


@takes_out
def kthvalue(
    input: TensorLike,
    k: int,
    dim: int = -1,
    keepdim: bool = False,
    *,
    out: tuple[TensorBase, ...] | None = None,
) -> ValuesIndices:
    """Return ``(values, indices)`` of the `k`-th smallest element along `dim`, counted from 1."""
    input, dim, added = _with_dim("kthvalue", input, dim)
    n = input.array.shape[dim]
    if not 1 <= k <= n:
        raise ArgumentError(
            "kthvalue",
            expected=f"k from 1 to {n}, the size of dim {dim}",
            got=f"k={k}",
            fix="k counts from 1",
        )
    keep = keepdim and not added
    values = apply(_ORDER_STATISTIC, (input,), {"dims": (dim,), "k": int(k) - 1, "keepdim": keep})
    spec = tuple((k - 1, 1, 1) if i == dim else (0, 1, s) for i, s in enumerate(input.array.shape))
    index = reshape(slice_(argsort(input, dim), spec), values.array.shape)
    return ValuesIndices(values, index)


@overload
def median(
    input: TensorLike, dim: None = None, keepdim: bool = False, *, out: TensorBase | None = None
) -> TensorBase: ...
@overload
def median(
    input: TensorLike, dim: int, keepdim: bool = False, *, out: tuple[TensorBase, ...] | None = None
) -> ValuesIndices: ...
@takes_out
def median(
    input: TensorLike,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    out: TensorBase | tuple[TensorBase, ...] | None = None,
) -> TensorBase | ValuesIndices:
    """Return the median: of an even number of elements the lower of the middle two, as in PyTorch.

    Parameters
    ----------
    input : Tensor
    dim : int, optional
        Along one dim the result is ``(values, indices)``; without it the median of all elements.
    keepdim : bool

    Notes
    -----
    nan if any element is nan. Elements equal to the median share its gradient.
    """
    input = as_tensor(input, "median")
    if dim is None:
        input, dim, whole = reshape(input, (-1,)), 0, True
    else:
        whole = False
    n = input.array.shape[normalize_dim(dim, input.array.ndim, "median")] if input.array.ndim else 1
    if n == 0:
        raise ShapeError(
            "median",
            expected="at least one element",
            got=f"shape {input.array.shape}",
            fix="check for empty data",
        )
    values, index = kthvalue(input, (n + 1) // 2, dim, keepdim)
    if input.array.dtype.kind == "f":
        spoiled = any_of(isnan(input), dim, keepdim) if input.array.ndim else isnan(input)
        values = where(spoiled, math.nan, values)
    return values if whole else ValuesIndices(values, index)


_BETWEEN = ("linear", "lower", "higher", "nearest", "midpoint")


@takes_out
def quantile(
    input: TensorLike,
    q: TensorLike,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: TensorBase | None = None,
) -> TensorBase:
    """Return quantiles along `dim` (of all elements if None).

    Parameters
    ----------
    input : Tensor
    q : float, or sequence or 1-d tensor of floats, in [0, 1]
        Several quantiles become a new first dim.
    dim : int, optional
    keepdim : bool
    interpolation : {"linear", "lower", "higher", "nearest", "midpoint"}
        How to read between two elements.

    Returns
    -------
    Tensor
        nan where an element is nan. Differentiable in `input`, and in `q` for linear interpolation.

    Raises
    ------
    DomainError
        If a quantile is outside [0, 1].
    """
    input = to_float(as_tensor(input, "quantile"))
    if interpolation not in _BETWEEN:
        raise ArgumentError(
            "quantile",
            expected=f"interpolation in {_BETWEEN}",
            got=repr(interpolation),
            fix='use "linear"',
        )
    level = levels(q, input)
    ndim = input.array.ndim
    if dim is None:
        kept = (1,) * ndim
        input = reshape(input, (-1,))
    else:
        dim = normalize_dim(dim, ndim, "quantile")
        kept = kept_shape(input.array.shape, (dim,))
        input = movedim(input, dim, -1) if ndim else reshape(input, (1,))
    n = input.array.shape[-1]
    if n == 0:
        raise ShapeError(
            "quantile",
            expected="at least one element",
            got=f"shape {input.array.shape}",
            fix="check for empty data",
        )
    ordered = sort(input, -1)[0]
    place = reshape(level, (-1,)) * (n - 1.0)
    low, high = floor(place.detach()), ceil(place.detach())
    at = {"lower": low, "higher": high, "nearest": round(place.detach())}.get(interpolation)
    if at is not None:
        out = index_select(ordered, -1, cast(at, int64))
    else:
        a = index_select(ordered, -1, cast(low, int64))
        b = index_select(ordered, -1, cast(high, int64))
        weight = where(eq(low, high), 0.0, 0.5) if interpolation == "midpoint" else place - low
        # Equal infinities have no difference; other equal elements share the slope by the weights.
        same = logical_and(eq(a, b), isinf(a))
        gap = where(same, 0.0, b) - where(same, 0.0, a)
        out = where(same, a, a + gap * cast(weight, input.array.dtype))
    out = where(any_of(isnan(input), -1, True), math.nan, out)
    out = movedim(out, -1, 0)
    rest = kept if keepdim else out.array.shape[1:]
    return reshape(out, (*level.array.shape, *rest))


def levels(q, x):
    """Return the quantiles asked for as a tensor in double precision, which are in [0, 1]."""
    level = q if isinstance(q, TensorBase) else wrap(np.asarray(q, np.float64))
    level = cast(level, float64).to(device_of(x.array))
    found = to_host(level.array)
    if level.array.ndim > 1 or not ((found >= 0.0) & (found <= 1.0)).all():
        raise DomainError(
            "quantile",
            expected="q in [0, 1], a number or a vector",
            got=f"{found.tolist()}",
            fix="divide percentages by 100",
        )
    if not is_constant(level):
        # At each run: out of bounds, where compiled code looks for that.
        return where(logical_and(ge(level, 0.0), le(level, 1.0)), level, 2.0)
    return level


# ----------------------------------------------------------------------------------------- counting


@overload
def unique(
    input: TensorLike,
    sorted: bool = True,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    dim: int | None = None,
) -> TensorBase: ...
@overload
def unique(
    input: TensorLike,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> TensorBase | tuple[TensorBase, ...]: ...
def unique(
    input: TensorLike,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> TensorBase | tuple[TensorBase, ...]:
    """Return the distinct elements in ascending order, or distinct slices along `dim`.

    With `return_inverse` also, for every element, its place among them; with `return_counts` also
    how often each occurs. No gradient; `sorted` is accepted for PyTorch's sake.
    """
    input = as_tensor(input, "unique")
    read("unique", input)
    if dim is not None:
        dim = normalize_dim(dim, input.array.ndim, "unique")
        dim = dim if input.array.ndim else None
    found = np.unique(to_host(input.array), return_inverse=True, return_counts=True, axis=dim)
    device = device_of(input.array)
    values, inverse, counts = (wrap(to_device(a, device)) for a in found)
    if dim is None:
        inverse = reshape(inverse, input.array.shape)
    out = [values] + [inverse] * bool(return_inverse) + [counts] * bool(return_counts)
    return out[0] if len(out) == 1 else tuple(out)


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


# ---------------------------------------------------------------------------------------- searching


def first_above(rows, row, v, *, right=True):
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


def _searchsorted_reference(sequence, values, right):
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
