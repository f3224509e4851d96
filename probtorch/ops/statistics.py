"""Statistics of samples: moments that skip nan, the mode, covariances, distances, differences.

Compositions of reductions and order statistics. What is not a number is left out by the functions
named `nan...`; where nothing is left, a mean, a median or a quantile is nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, to_float, to_inexact
from probtorch.core.dispatch import unwatched, wrap
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import normalize_dim, normalize_dims
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number, number_alone
from probtorch.core.typed import Dims, DTypeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.accumulate import add_up
from probtorch.ops.arithmetic import ceil, clamp, floor, minimum, round, sqrt, where
from probtorch.ops.comparisons import eq, isnan, logical_not, ne
from probtorch.ops.complex_numbers import complex, real
from probtorch.ops.contraction import matmul
from probtorch.ops.extremes import amax, amin, argmax
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, movedim, reshape, unsqueeze
from probtorch.ops.named import ValuesIndices
from probtorch.ops.norms import norm
from probtorch.ops.order_statistics import levels
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import (
    count_over,
    cumsum,
    kept_shape,
    mean,
    quick_variance,
    std,
    sum,
    var,
)
from probtorch.ops.reshaping import adjoint
from probtorch.ops.scattering import scatter_add
from probtorch.ops.sorting import argsort, sort

__all__ = [
    "MinMax",
    "aminmax",
    "corrcoef",
    "count_nonzero",
    "cov",
    "dist",
    "gradient",
    "mode",
    "msort",
    "nanmean",
    "nanmedian",
    "nanquantile",
    "nansum",
    "renorm",
    "std_mean",
    "var_mean",
]


class MinMax(NamedTuple):
    """The least and the largest element."""

    min: TensorBase
    max: TensorBase


# ----------------------------------------------------------------------------------- together


@takes_out
def aminmax(
    input: TensorLike,
    *,
    dim: int | None = None,
    keepdim: bool = False,
    out: tuple[TensorBase, ...] | None = None,
) -> MinMax:
    """Return ``(min, max)`` along `dim`, or of all elements."""
    input = as_tensor(input, "aminmax")
    return MinMax(amin(input, dim, keepdim), amax(input, dim, keepdim))


@takes_out
def var_mean(
    input: TensorLike,
    dim: Dims = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    unbiased: bool | None = None,
    out: tuple[TensorBase, ...] | None = None,
) -> tuple[TensorBase, TensorBase]:
    """Return the variance, as `var` gives it, and the mean."""
    input = to_inexact(as_tensor(input, "var_mean"))
    quick = _moments("var_mean", input, dim, correction if unbiased is None else unbiased, keepdim)
    if quick is not None:
        return wrap(quick[0]), wrap(quick[1])
    return var(input, dim, correction, keepdim, unbiased=unbiased), mean(input, dim, keepdim)


@takes_out
def std_mean(
    input: TensorLike,
    dim: Dims = None,
    correction: float = 1,
    keepdim: bool = False,
    *,
    unbiased: bool | None = None,
    out: tuple[TensorBase, ...] | None = None,
) -> tuple[TensorBase, TensorBase]:
    """Return the standard deviation, as `std` gives it, and the mean."""
    input = to_inexact(as_tensor(input, "std_mean"))
    quick = _moments("std_mean", input, dim, correction if unbiased is None else unbiased, keepdim)
    if quick is not None:
        return wrap(np.sqrt(quick[0])), wrap(quick[1])
    return std(input, dim, correction, keepdim, unbiased=unbiased), mean(input, dim, keepdim)


def _moments(
    op: str, x: TensorBase, dim: Dims, correction: float, keepdim: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return variance and mean, as `var` and `mean` compute them; None where operations are asked
    for, or something else is unusual.
    """
    dims = normalize_dims(dim, x.array.ndim, op)
    variance = quick_variance(x, dims, correction, keepdim)
    if variance is None:
        return None
    return variance, add_up(x.array, dims, keepdim) / float(count_over(x, dims))


def count_nonzero(input: TensorLike, dim: Dims = None) -> TensorBase:
    """Return how many elements are not 0, over `dim` or in all; nan is not 0."""
    input = as_tensor(input, "count_nonzero")
    if dim is None and unwatched(input):
        return wrap(np.asarray(np.count_nonzero(input.array)))
    return sum(cast(ne(input, 0), dtypes.int64), dim)


# ----------------------------------------------------------------------------------- without nan


@takes_out
def nansum(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the sum over `dim` of what is not nan."""
    input = as_tensor(input, "nansum")
    return sum(_nan_as(input, 0.0), dim, keepdim, dtype=dtype)


@takes_out
def nanmean(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the mean over `dim` of what is not nan; nan where all is."""
    input = as_tensor(input, "nanmean")
    if input.array.dtype.kind != "f":
        raise DTypeError(
            "nanmean",
            expected="a floating-point tensor",
            got=str(input.array.dtype),
            fix="integers have no nan: use mean of x.float()",
        )
    total = nansum(input, dim, keepdim, dtype=dtype)
    there = sum(cast(logical_not(isnan(input)), dtypes.int64), dim, keepdim)
    return total / cast(there, total.array.dtype)


def _nan_as(x: TensorBase, value: float) -> TensorBase:
    return where(isnan(x), value, x) if x.array.dtype.kind in "fc" else x


@takes_out
def nanmedian(
    input: TensorLike,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    out: TensorBase | tuple[TensorBase, ...] | None = None,
) -> TensorBase | ValuesIndices:
    """Return the median of what is not nan, of an even number of elements the lower one.

    Along one dim ``(values, indices)``, without it the median of all elements.
    """
    input = as_tensor(input, "nanmedian")
    whole = dim is None
    if dim is None:
        input, dim = reshape(input, -1), 0
    ndim = input.array.ndim
    dim = normalize_dim(dim, ndim, "nanmedian")
    input = reshape(input, (1,)) if not ndim else input
    _not_empty("nanmedian", input, dim)
    order = argsort(input, dim)
    there = sum(cast(logical_not(isnan(input)), dtypes.int64), dim, True)
    place = clamp((there - 1) // 2, min=0)
    index = gather(order, dim, place)
    shape = kept_shape(input.array.shape, (dim,))
    rest = shape if keepdim and ndim and not whole else shape[:dim] + shape[dim + 1 :]
    values, index = reshape(gather(input, dim, index), rest), reshape(index, rest)
    return values if whole else ValuesIndices(values, index)


@takes_out
def nanquantile(
    input: TensorLike,
    q: TensorLike,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    out: TensorBase | None = None,
) -> TensorBase:
    """Return quantiles along `dim` of what is not nan; parameters and errors as of `quantile`."""
    input = to_float(as_tensor(input, "nanquantile"))
    ways = ("linear", "lower", "higher", "nearest", "midpoint")
    if interpolation not in ways:
        raise ArgumentError(
            "nanquantile",
            expected=f"interpolation in {ways}",
            got=repr(interpolation),
            fix='use "linear"',
        )
    level = levels(q, input)
    ndim = input.array.ndim
    if dim is None:
        kept = (1,) * ndim
        input = reshape(input, (-1,))
    else:
        dim = normalize_dim(dim, ndim, "nanquantile")
        kept = kept_shape(input.array.shape, (dim,))
        input = movedim(input, dim, -1) if ndim else reshape(input, (1,))
    _not_empty("nanquantile", input, -1)
    ordered = sort(input, -1)[0]
    there = sum(cast(logical_not(isnan(input)), input.array.dtype), -1, True)
    last = clamp(there - 1.0, min=0.0)
    place = last * cast(reshape(level, (-1,)), input.array.dtype)
    low, high = floor(place.detach()), minimum(ceil(place.detach()), last)
    if interpolation in ("lower", "higher", "nearest"):
        at = {"lower": low, "higher": high, "nearest": round(place.detach())}[interpolation]
        out = gather(ordered, -1, cast(at, dtypes.int64))
    else:
        a, b = (gather(ordered, -1, cast(at, dtypes.int64)) for at in (low, high))
        weight = where(eq(low, high), 0.0, 0.5) if interpolation == "midpoint" else place - low
        same = eq(a, b)  # equal infinities have no difference
        gap = where(same, 0.0, b) - where(same, 0.0, a)
        out = where(same, a, a + gap * cast(weight, input.array.dtype))
    out = movedim(out, -1, 0)
    single = not level.array.ndim
    if keepdim:
        return reshape(out, kept if single else (level.array.shape[0], *kept))
    return reshape(out, out.array.shape[1:]) if single else out


def _not_empty(op: str, x: TensorBase, dim: int) -> None:
    if x.array.shape[dim] == 0:
        raise ShapeError(
            op,
            expected="at least one element",
            got=f"shape {x.array.shape}",
            fix="check for empty data",
        )


# ----------------------------------------------------------------------------------- the mode


@takes_out
def mode(
    input: TensorLike,
    dim: int = -1,
    keepdim: bool = False,
    *,
    out: tuple[TensorBase, ...] | None = None,
) -> ValuesIndices:
    """Return the most frequent value along `dim`, the least of several, and where it is last."""
    input = as_tensor(input, "mode")
    ndim = input.array.ndim
    dim = normalize_dim(dim, ndim, "mode")
    moved = movedim(input, dim, -1) if ndim else reshape(input, (1,))
    _not_empty("mode", moved, -1)
    order = argsort(moved, -1, stable=True)
    ordered = gather(moved, -1, order).detach()
    begins = cast(ne(ordered[..., 1:], ordered[..., :-1]), dtypes.int64)
    run = (
        cat([begins[..., :1] * 0, cumsum(begins, -1)], -1) if begins.array.shape[-1] else order * 0
    )
    length = scatter_add(run * 0, -1, run, run * 0 + 1)
    place = argmax(gather(length, -1, run), -1, True)
    last = place + gather(length, -1, gather(run, -1, place)) - 1
    index = gather(order, -1, last)
    values = gather(moved, -1, index)
    if not ndim:
        return ValuesIndices(reshape(values, ()), reshape(index, ()))
    if keepdim:
        return ValuesIndices(movedim(values, -1, dim), movedim(index, -1, dim))
    rest = moved.array.shape[:-1]
    return ValuesIndices(reshape(values, rest), reshape(index, rest))


@takes_out
def msort(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase:
    """Return `input` sorted along its first dim."""
    input = as_tensor(input, "msort")
    return sort(input, 0)[0] if input.array.ndim else input


# ----------------------------------------------------------------------------------- covariances


def cov(
    input: TensorLike,
    *,
    correction: int = 1,
    fweights: TensorLike | None = None,
    aweights: TensorLike | None = None,
) -> TensorBase:
    """Return the covariances of the rows of a matrix; of a vector its variance.

    Parameters
    ----------
    input : Tensor, shape (variables, observations)
    correction : int
        Taken from the number of observations.
    fweights : Tensor of integers, shape (observations,), optional
        How often each observation was made.
    aweights : Tensor, shape (observations,), optional
        How much each counts.
    """
    input = as_tensor(input, "cov")
    if input.array.ndim > 2 or input.array.dtype.kind == "b":
        raise ShapeError(
            "cov",
            expected="a matrix with a row for each variable, of numbers",
            got=f"{input.array.dtype} of shape {input.array.shape}",
            fix="reshape it to (variables, observations)",
        )
    rows = to_inexact(reshape(input, (1, -1)) if input.array.ndim < 2 else input)
    n = rows.array.shape[1]
    weight, total = None, cast(wrap(np.array(float(n))), rows.array.dtype)
    for given, name in ((fweights, "fweights"), (aweights, "aweights")):
        if given is None:
            continue
        w = as_tensor(given, "cov")
        if w.array.shape != (n,) or (name == "fweights" and w.array.dtype.kind not in "iu"):
            raise ShapeError(
                "cov",
                expected=f"{name} of shape ({n},)" + (", integers" if name == "fweights" else ""),
                got=f"{w.array.dtype} of shape {w.array.shape}",
                fix="give one for each observation",
            )
        w = cast(w, rows.array.dtype)
        weight = w if weight is None else weight * w
    if weight is None:
        centre, scaled = mean(rows, 1, True), None
        left = total - correction
    else:
        total = sum(weight)
        centre = sum(rows * weight, 1, True) / total
        left = total
        if correction:
            spread = total if aweights is None else sum(weight * _as(aweights, rows)) / total
            left = total - correction * (spread if aweights is not None else 1.0)
    apart = rows - centre
    scaled = apart if weight is None else apart * weight
    out = matmul(apart, adjoint(scaled)) / clamp(real(left), min=0.0)
    return reshape(out, ()) if out.array.size == 1 else out


def _as(w: TensorLike, like: TensorBase) -> TensorBase:
    return cast(as_tensor(w, "cov"), like.array.dtype)


def corrcoef(input: TensorLike) -> TensorBase:
    """Return the correlations of the rows of a matrix, between -1 and 1; of a vector 1."""
    c = cov(input)
    if not c.array.ndim:
        return c / c
    spread = sqrt(real(c.diagonal()))
    found = c / unsqueeze(spread, 1) / unsqueeze(spread, 0)
    if found.array.dtype.kind == "c":
        return complex(*(clamp(part, min=-1.0, max=1.0) for part in (found.real, found.imag)))
    return clamp(found, min=-1.0, max=1.0)


# ----------------------------------------------------------------------------------- distances


def dist(input: TensorLike, other: TensorLike, p: float = 2) -> TensorBase:
    """Return the p-norm of ``input - other``, which broadcast."""
    return norm(as_tensor(input, "dist") - as_tensor(other, "dist"), p)


@takes_out
def renorm(
    input: TensorLike, p: float, dim: int, maxnorm: float, *, out: TensorBase | None = None
) -> TensorBase:
    """Return `input` with each slice along `dim` scaled down to a p-norm of at most `maxnorm`."""
    input = as_tensor(input, "renorm")
    if input.array.ndim < 2:
        raise ShapeError(
            "renorm",
            expected="at least two dims",
            got=f"shape {input.array.shape}",
            fix="unsqueeze it",
        )
    dim = normalize_dim(dim, input.array.ndim, "renorm")
    others = tuple(d for d in range(input.array.ndim) if d != dim)
    size = norm(input, p, others, True)
    return input * where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)


@in_our_words
def gradient(
    input: TensorLike,
    *,
    spacing: float | Sequence[TensorLike] = 1,
    dim: Dims = None,
    edge_order: int = 1,
) -> tuple[TensorBase, ...]:
    """Return the derivative along each dim by differences: central inside, one-sided at the edges.

    Parameters
    ----------
    input : Tensor
        Values of a function on a grid.
    spacing : float, sequence of float, or sequence of vectors
        Distance of the points, one for all dims or one for each; or their coordinates.
    dim : int or sequence of int, optional
        All by default.
    edge_order : {1, 2}
        Of the differences at the edges.

    Returns
    -------
    tuple of Tensor
        One for each dim, of the shape of `input`.
    """
    input = as_tensor(input, "gradient")
    dims = range(input.array.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = [normalize_dim(d, input.array.ndim, "gradient") for d in dims]
    if edge_order not in (1, 2):
        raise ArgumentError(
            "gradient", expected="edge_order: 1 or 2", got=repr(edge_order), fix="1 is usual"
        )
    spaced = [spacing] * len(dims) if isinstance(spacing, (int, float)) else list(spacing)
    if isinstance(spacing, TensorBase):
        spaced = [spacing]
    if len(spaced) != len(dims):
        raise ArgumentError(
            "gradient",
            expected=f"one spacing for each of {len(dims)} dims",
            got=f"{len(spaced)} of them",
            fix="give a number for all dims, or one for each",
        )
    return tuple(
        _slope(to_float(input), d, h, edge_order) for d, h in zip(dims, spaced, strict=True)
    )


def _slope(x: TensorBase, dim: int, spacing: TensorLike, order: int) -> TensorBase:
    n = x.array.shape[dim]
    if n < order + 1:
        raise ShapeError(
            "gradient",
            expected=f"at least {order + 1} points along dim {dim}",
            got=f"shape {x.array.shape}",
            fix="leave the dim out",
        )
    x = movedim(x, dim, -1)
    if isinstance(spacing, (int, float)):
        steps = wrap(np.full(n - 1, float(spacing)))
    else:
        at = number_alone(spacing) if is_number(spacing) else as_tensor(spacing, "gradient")
        if not at.array.ndim:
            steps = expand(at, (n - 1,))
        elif at.array.shape != (n,):
            raise ShapeError(
                "gradient",
                expected=f"{n} coordinates, the size of dim {dim}",
                got=f"shape {at.array.shape}",
                fix="give a coordinate for each point",
            )
        else:
            steps = at[1:] - at[:-1]
    h = cast(steps, x.array.dtype)
    slopes = (x[..., 1:] - x[..., :-1]) / h
    a, b = h[:-1], h[1:]
    if isinstance(spacing, (int, float)):  # an infinite point between them takes no part
        inner = (x[..., 2:] - x[..., :-2]) / (2.0 * spacing)
    else:
        inner = (slopes[..., :-1] * b + slopes[..., 1:] * a) / (a + b)
    if order == 1:
        first, last = slopes[..., :1], slopes[..., -1:]
    else:
        first = slopes[..., :1] + (slopes[..., :1] - slopes[..., 1:2]) * h[0] / (h[0] + h[1])
        last = slopes[..., -1:] + (slopes[..., -1:] - slopes[..., -2:-1]) * h[-1] / (h[-1] + h[-2])
    return movedim(cat([first, inner, last], -1), -1, dim)
