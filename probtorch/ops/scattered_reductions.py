"""Scatters and indexed writes that combine what meets in one place: sums, products, extremes."""

from __future__ import annotations

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, TensorLike
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import clone, div, floor_divide, neg, where
from probtorch.ops.comparisons import bitwise_not, eq, isfinite
from probtorch.ops.gathering import along, grid
from probtorch.ops.movement import expand, reshape, slice_
from probtorch.ops.pieces import cat
from probtorch.ops.scattering import fitting_slices, other_dtype
from probtorch.ops.sorting import argsort
from probtorch.ops.take_put import near, put, take

__all__ = ["index_reduce", "scatter_reduce"]


@takes_out
def scatter_reduce(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    src: TensorLike,
    reduce: str,
    *,
    include_self: bool = True,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return a copy of `input` with what falls on one place combined.

    ``out[index[i][j]][j]`` combines all ``src[i][j]`` of that index, here for dim 0.

    Parameters
    ----------
    input : Tensor
    dim : int
    index : Tensor of integers
        As many dims as `input`.
    src : Tensor
        At least of the shape of `index`.
    reduce : {"sum", "mean", "amax", "amin"}
        Equal extremes share the gradient.
    include_self : bool
        Whether the element of `input` is one of those combined. Places on which nothing falls
        keep it.
    """
    input, index = as_tensor(input, "scatter_reduce"), as_tensor(index, "scatter_reduce")
    src = as_tensor(src, "scatter_reduce")
    if src.array.dtype != input.array.dtype:
        raise other_dtype("scatter_reduce", input, src)
    dim = along(index, dim, input, "scatter_reduce")
    if not input.array.ndim:
        found = scatter_reduce(
            reshape(input, (1,)),
            0,
            reshape(index, (1,)),
            reshape(src, -1),
            reduce,
            include_self=include_self,
        )
        return reshape(found, ())
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise ArgumentError(
            "scatter_reduce",
            expected="reduce: 'sum', 'mean', 'amax' or 'amin'",
            got=repr(reduce),
            fix="for products of positive numbers, add up their logarithms",
        )
    values = slice_(src, tuple((0, 1, n) for n in index.array.shape))
    (lin,) = near(input, [wrap(np.zeros((), np.int64))])
    for at, n in zip(grid(index, dim, input, "scatter_reduce"), input.array.shape, strict=True):
        lin = lin * n + near(input, [at])[0]
    lin = reshape(expand(lin, index.array.shape), -1)
    if not lin.array.size:
        return clone(input)
    found = _combined(reshape(input, -1), lin, reshape(values, -1), reduce, include_self)
    return reshape(found, input.array.shape)


@takes_out
def index_reduce(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    source: TensorLike,
    reduce: str,
    *,
    include_self: bool = True,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return a copy of `input` with the slices of `source` that fall on one index combined.

    Parameters and gradients are as for `scatter_reduce`, the index a vector as for `index_add`.
    """
    input, source = as_tensor(input, "index_reduce"), as_tensor(source, "index_reduce")
    whole, dim, at, values = fitting_slices("index_reduce", input, dim, index, source)
    along_dim = [-1 if d == dim else 1 for d in range(values.array.ndim)]
    found = scatter_reduce(
        whole,
        dim,
        expand(reshape(at, along_dim), values.array.shape),
        values,
        reduce,
        include_self=include_self,
    )
    return reshape(found, input.array.shape)


def _combined(
    x: TensorBase, lin: TensorBase, values: TensorBase, reduce: str, include_self: bool
) -> TensorBase:
    """Return a vector `x` with `values` combined at the places `lin`."""
    counts = put(_zeros(x, dtypes.int64), _one(x), (0,), [lin], True)
    if reduce in ("amax", "amin"):
        found = _extreme(x, lin, values, reduce == "amin", include_self)
    else:
        (nothing,) = near(x, [wrap(np.zeros((), x.array.dtype))], None)
        found = put(
            x if include_self else where(eq(counts, 0), x, nothing), values, (0,), [lin], True
        )
        if reduce == "mean":
            number = counts + int(include_self)
            divide = div if x.array.dtype.kind in "fc" else floor_divide
            found = cast(divide(found, where(eq(counts, 0), 1, number)), x.array.dtype)
    return where(eq(counts, 0), x, found)


def _zeros(x: TensorBase, dtype: DType) -> TensorBase:
    return near(x, [wrap(np.zeros(x.array.shape, dtype))], None)[0]


def _one(x: TensorBase) -> TensorBase:
    return near(x, [wrap(np.ones((), np.int64))], None)[0]


def _extreme(
    x: TensorBase, lin: TensorBase, values: TensorBase, least: bool, include_self: bool
) -> TensorBase:
    """Return the largest or least of the values at each place, equal ones with equal gradients."""
    size = x.array.shape[0]
    if include_self:
        (here,) = near(x, [wrap(np.arange(size))])
        lin, values = cat([here, lin]), cat([x, values])
    keys = values.detach()
    if least:
        keys = neg(keys) if keys.array.dtype.kind == "f" else bitwise_not(keys)
    # By place, and at each place by value: nan, which sorts last, wins. The last of each place is
    # written there, all others at a place of no one.
    by_value = argsort(keys, 0, stable=True)
    order = take(by_value, (0,), [argsort(take(lin, (0,), [by_value]), 0, stable=True)])
    lin_in_order = take(lin, (0,), [order])
    goes_on = eq(lin_in_order[1:], lin_in_order[:-1])
    targets = cat([where(goes_on, size, lin_in_order[:-1]), lin_in_order[-1:]])
    room = cat([x.detach(), x.detach()[:1]])
    winner = put(room, take(values.detach(), (0,), [order]), (0,), [targets], False)[:size]
    if x.array.dtype.kind != "f":
        return winner
    # The same number again, as the mean of those equal to it.
    wins = eq(values, take(winner, (0,), [lin]))
    shares = put(_zeros(x, dtypes.int64), cast(wins, dtypes.int64), (0,), [lin], True)
    shared = put(_zeros(x, x.array.dtype), where(wins, values, 0), (0,), [lin], True)
    shared = shared / where(eq(shares, 0), 1, shares)
    return where(isfinite(shared), winner + (shared - shared.detach()), winner)
