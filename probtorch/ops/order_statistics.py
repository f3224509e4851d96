"""Order statistics: the largest few, the k-th smallest, medians, quantiles.

Places come from non-differentiable ops, values are gathered with them, so gradients flow to the
elements chosen. nan sorts after everything else. `median`, `kthvalue` and `quantile` are PyTorch's;
equal candidates of a median share its gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.backends.registry import device_of, to_host
from probtorch.core.casting import cast, to_float
from probtorch.core.dispatch import apply, recorder, unheard, unseen, wrap
from probtorch.core.dtype import float64, int64
from probtorch.core.making import as_tensor
from probtorch.core.native import Routine
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_constant, is_number, number_alone
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.ops.accumulate import add_up
from probtorch.ops.arithmetic import ceil, floor, round, where
from probtorch.ops.comparisons import eq, ge, isinf, isnan, le, logical_and
from probtorch.ops.families import structured
from probtorch.ops.gathering import index_select
from probtorch.ops.movement import movedim, reshape, slice_
from probtorch.ops.named import ValuesIndices
from probtorch.ops.native_rows import native_rows
from probtorch.ops.orders import FEW, first_of_order, order
from probtorch.ops.reduction import any as any_of
from probtorch.ops.reduction import kept_shape, sum
from probtorch.ops.sorting import ARGSORT, argsort, sort, taken_at, with_dim
from probtorch.ops.workspace import sorting_space

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = ["kthvalue", "levels", "median", "quantile", "topk"]


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
    input, dim, added = with_dim("topk", input, dim)
    n = input.array.shape[dim]
    if not 0 <= k <= n:
        raise ArgumentError(
            "topk", expected=f"k from 0 to {n}, the size of dim {dim}", got=f"k={k}", fix="reduce k"
        )
    found = _first_of_rows(input, k, dim, bool(largest))
    if found is not None and unseen(input):
        values, index = wrap(found[0]), wrap(found[1])
    else:
        index = wrap(found[1]) if found is not None else _places_of_first(input, k, dim, largest)
        values = taken_at(input, dim, index)
    if added and k == 1:
        values, index = reshape(values, ()), reshape(index, ())
    return ValuesIndices(values, index)


# Of more elements, or in longer rows by themselves, others find the first ones sooner.
_KEPT, _LONGEST = 16, 4096


def _first_of_rows(
    x: TensorBase, k: int, dim: int, largest: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the first `k` elements of rows and their places by native code, if there is some."""
    array = x.array
    if not unheard() or not 0 < k <= _KEPT or dim != array.ndim - 1:
        return None
    if array.ndim == 1 and array.size > _LONGEST:
        return None
    native = native_rows("largest" if largest else "smallest", array, (dim,))
    return None if native is None else native(array, np.empty(k, array.dtype))


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
    return slice_(apply(ARGSORT, (x,), {"dim": dim, "descending": bool(largest)}), spec)


# From so many elements on parting them takes less time than sorting: half of it for 6,400, a fifth
# for a million.
_LONG = 1000


def _run_order_statistic(x: np.ndarray, dims: tuple[int, ...], k: int, keepdim: bool) -> np.ndarray:
    (dim,), before = dims, (slice(None),) * dims[0]
    if type(x) is not np.ndarray:
        ordered = namespace(x).sort(x, axis=dim)
    else:
        ordered = np.partition(x, k, dim) if x.shape[dim] >= _LONG else np.sort(x, dim)
    chosen = ordered[(*before, slice(k, k + 1) if keepdim else k)]
    return chosen.copy() if isinstance(chosen, np.ndarray) else chosen


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
    if unseen(g, x, out):  # `_chosen`, times the cotangent, on arrays
        kept = kept_shape(x.array.shape, dims)
        share = (x.array == out.array.reshape(kept)).astype(out.array.dtype)
        share /= add_up(share, dims, True)
        share *= g.array.reshape(kept)
        return (wrap(share),)
    return (_chosen(x, out, dims) * reshape(g, kept_shape(x.array.shape, dims)),)


def _order_statistic_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
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
    input, dim, added = with_dim("kthvalue", input, dim)
    n = input.array.shape[dim]
    if not 1 <= k <= n:
        raise ArgumentError(
            "kthvalue",
            expected=f"k from 1 to {n}, the size of dim {dim}",
            got=f"k={k}",
            fix="k counts from 1",
        )
    values = _kth(input, k, dim, keepdim and not added)
    return ValuesIndices(values, _place_of_kth(input, k, dim, values.array.shape))


def _kth(x: TensorBase, k: int, dim: int, keepdim: bool) -> TensorBase:
    return apply(_ORDER_STATISTIC, (x,), {"dims": (dim,), "k": int(k) - 1, "keepdim": keepdim})


def _place_of_kth(x: TensorBase, k: int, dim: int, shape: tuple[int, ...]) -> TensorBase:
    if unheard() and type(x.array) is np.ndarray:
        found = order(x.array, dim, False)[(slice(None),) * dim + (k - 1,)]
        return wrap(np.array(found).reshape(shape))
    spec = tuple((k - 1, 1, 1) if i == dim else (0, 1, s) for i, s in enumerate(x.array.shape))
    return reshape(slice_(argsort(x, dim), spec), shape)


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
    middle = (n + 1) // 2
    if whole and unheard():
        values = _kth(input, middle, 0, keepdim)  # nobody asks for its place
    else:
        values, index = kthvalue(input, middle, dim, keepdim)
    if input.array.dtype.kind == "f" and not _has_no_nan(input):
        spoiled = any_of(isnan(input), dim, keepdim) if input.array.ndim else isnan(input)
        values = where(spoiled, math.nan, values)
    return values if whole else ValuesIndices(values, index)


def _has_no_nan(x: TensorBase) -> bool:
    """Whether that is seen, where nobody listens who would have to hear of it."""
    if not unheard() or type(x.array) is not np.ndarray:
        return False
    return not x.array.size or not math.isnan(np.maximum.reduce(x.array, None))


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


def levels(q: TensorLike, x: TensorBase) -> TensorBase:
    """Return the quantiles asked for as a tensor in double precision, which are in [0, 1]."""
    q = number_alone(q) if is_number(q) else q
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
