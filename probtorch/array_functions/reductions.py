"""Sums, extremes, means and spreads along NumPy's axes, and running ones."""

import math

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    flat,
    is_given,
    kept,
    of_one_dtype,
    one_axis,
    tensor_of,
    where_true,
)
from probtorch.core.casting import cast, to_inexact
from probtorch.core.dispatch import wrap
from probtorch.core.shape import normalize_dims
from probtorch.errors import AutogradError, DivisionByZeroError, ShapeError
from probtorch.ops import (
    arithmetic,
    extremes,
    movement,
    pieces,
    reduction,
    scans,
    statistics,
)

__all__ = ["REDUCE", "REDUCTIONS", "reduced"]

REDUCE = {
    np.add: reduction.sum,
    np.multiply: reduction.prod,
    np.maximum: extremes.amax,
    np.minimum: extremes.amin,
    np.logical_and: reduction.all,
    np.logical_or: reduction.any,
}


def reduced(fn, x, axis, keepdims, **more):
    """Return a reduction of ours along NumPy's axis: None for all, () for none of them."""
    x = tensor_of(x)
    dims = normalize_dims(axis, x.array.ndim, fn.__name__)
    if dims:
        return fn(x, dims, keepdim=kept(keepdims), **more)
    # Of one element each: the same numbers, as a reduction gives them.
    return fn(x[None], 0, **more)


def _begun(found, initial, combined):
    """A result with the number that the reduction begins with."""
    if not is_given(initial):
        return found
    number = tensor_of(initial)
    kinds = found.array.dtype.kind, number.array.dtype.kind
    # A number of the kind of the result, or one that it holds.
    holds = kinds[0] in "iufc" and "biufc".index(kinds[1]) <= "biufc".index(kinds[0])
    if number.array.ndim or not holds:
        raise UnknownArgument("initial")
    return combined(found, cast(number, found.array.dtype))


def _without(fn, neutral, combined):
    """A sum or product: `neutral` counts for what is left out."""

    def handler(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None):
        absent({"out": out})
        x = tensor_of(a)
        if is_given(where) and where is not True:
            x = where_true(where, x, neutral)
        dtype = None if dtype is None else np.dtype(dtype)
        return _begun(reduced(fn, x, axis, keepdims, dtype=dtype), initial, combined)

    return handler


def _of_floats(dtype):
    """A dtype in which means are computed, None for that of what is given."""
    if dtype is not None and np.dtype(dtype).kind not in "fc":
        raise UnknownArgument("dtype")
    return None if dtype is None else np.dtype(dtype)


def _mean(a, axis=None, dtype=None, out=None, keepdims=False, *, where=True):
    absent({"out": out})
    dtype = _of_floats(dtype)
    if not is_given(where) or where is True:
        return reduced(reduction.mean, a, axis, keepdims, dtype=dtype)
    x = tensor_of(a)
    x = to_inexact(x) if dtype is None else cast(x, dtype)
    total = reduced(reduction.sum, where_true(where, x, 0.0), axis, keepdims)
    counted = movement.expand(cast(tensor_of(where), x.array.dtype), tuple(x.array.shape))
    return total / reduced(reduction.sum, counted, axis, keepdims)


def _extremum(fn, combined):
    def handler(a, axis=None, out=None, keepdims=False, initial=None, where=None):
        absent({"out": out})
        x = tensor_of(a)
        if is_given(where) and where is not True:
            if not is_given(initial) or x.array.dtype.kind != "f":
                raise UnknownArgument("where")
            x = where_true(where, x, cast(tensor_of(initial), x.array.dtype))
        elif is_given(initial) and not x.array.size:
            raise UnknownArgument("initial")
        return _begun(reduced(fn, x, axis, keepdims), initial, combined)

    return handler


def _truth(fn, neutral):
    def handler(a, axis=None, out=None, keepdims=False, *, where=True):
        absent({"out": out})
        x = tensor_of(a)
        if is_given(where) and where is not True:
            x = where_true(where, cast(x, np.dtype(bool)), neutral)
        return reduced(fn, x, axis, keepdims)

    return handler


def _spread(fn):
    def handler(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, **kwargs):
        absent({k: v for k, v in kwargs.items() if k != "correction" and v is not True}, "out")
        absent({"out": out})
        correction = kwargs.get("correction", np._NoValue)
        if is_given(correction) and ddof:
            raise UnknownArgument("correction")
        ddof = correction if is_given(correction) else ddof
        x, dtype = tensor_of(a), _of_floats(dtype)
        if dtype is not None:
            if dtype.kind == "c":
                raise UnknownArgument("dtype")
            x = cast(x, dtype)
        dims = normalize_dims(axis, x.array.ndim, fn.__name__)
        count = math.prod(x.array.shape[d] for d in dims)
        if count <= ddof:
            # NumPy divides by 0 there, and says so.
            raise UnknownArgument("ddof")
        return reduced(fn, x, axis, keepdims, correction=ddof)

    return handler


def _running(fn):
    def handler(a, axis=None, dtype=None, out=None):
        absent({"out": out})
        x = tensor_of(a)
        dim = 0 if axis is None else one_axis(axis, x, fn.__name__)
        x = flat(x) if axis is None or not x.array.ndim else x
        return fn(x, dim, dtype=None if dtype is None else np.dtype(dtype))

    return handler


def _place(fn):
    def handler(a, axis=None, out=None, *, keepdims=False):
        absent({"out": out})
        x = tensor_of(a)
        dim = None if axis is None else one_axis(axis, x, fn.__name__)
        return fn(x, dim, keepdim=kept(keepdims))

    return handler


def _diff(a, n=1, axis=-1, prepend=None, append=None):
    x = tensor_of(a)
    if n == 0:
        return x
    if not x.array.ndim:
        return scans.diff(x)  # an error
    dim = one_axis(axis, x, "diff")

    def end(given):
        values = tensor_of(given)
        if values.array.ndim:
            return values
        shape = [1 if d == dim else s for d, s in enumerate(x.array.shape)]
        return movement.expand(values, shape)

    ends = [[end(e)] if is_given(e) else [] for e in (prepend, append)]
    if ends[0] or ends[1]:
        x = pieces.cat(of_one_dtype([*ends[0], x, *ends[1]]), dim)
    return scans.diff(x, n, dim)


def _average(a, axis=None, weights=None, returned=False, *, keepdims=False):
    x = tensor_of(a)
    dims = normalize_dims(axis, x.array.ndim, "average")
    if weights is None:
        found = reduced(reduction.mean, x, axis, keepdims)
        count = math.prod(x.array.shape[d] for d in dims)
        total = wrap(np.full(found.array.shape, count, found.array.dtype))
    else:
        w = tensor_of(weights)
        if w.array.shape != x.array.shape:
            w = _laid_along(w, x, axis)
        w = cast(w, np.result_type(w.array.dtype, x.array.dtype, np.float32))
        total = reduced(reduction.sum, movement.expand(w, tuple(x.array.shape)), axis, keepdims)
        if _some_zero(total):
            raise DivisionByZeroError(
                "average",
                expected="weights that do not add up to 0",
                got=f"weights that add up to 0, axis={axis!r}",
                fix="divide np.sum(a * weights) by the number that is meant",
            )
        found = reduced(reduction.sum, x * w, axis, keepdims) / total
    return (found, total) if returned else found


def _some_zero(x):
    try:
        return bool((x == 0).any())  # which a recording keeps as its condition
    except AutogradError:
        return False  # slices of a batch have no branch of their own, and divide by 0


def _laid_along(w, x, axis):
    """Weights of the axes alone in a shape that broadcasts with all of `x`."""
    axes = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    places = [one_axis(i, x, "average") for i in axes]
    if tuple(w.array.shape) != tuple(x.array.shape[i] for i in places) or not places:
        raise ShapeError(
            "average",
            expected="weights of the shape of a, or of its axes that are averaged",
            got=f"weights of shape {tuple(w.array.shape)}, a of {tuple(x.array.shape)}, "
            f"axis={axis!r}",
            fix="pass axis=, or expand the weights",
        )
    w = movement.permute(w, tuple(int(i) for i in np.argsort(places)))
    shape = [s if d in places else 1 for d, s in enumerate(x.array.shape)]
    return movement.reshape(w, shape)


def _nansum(a, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None):
    absent({"out": out})
    x = tensor_of(a)
    x = x if not is_given(where) or where is True else where_true(where, x, 0)
    dtype = None if dtype is None else np.dtype(dtype)
    found = reduced(statistics.nansum, x, axis, keepdims, dtype=dtype)
    return _begun(found, initial, arithmetic.add)


def _nanmean(a, axis=None, dtype=None, out=None, keepdims=False, *, where=True):
    absent({"out": out})
    x, dtype = tensor_of(a), _of_floats(dtype)
    if x.array.dtype.kind != "f":
        return _mean(x, axis, dtype, None, keepdims, where=where)
    x = x if not is_given(where) or where is True else where_true(where, x, math.nan)
    return reduced(statistics.nanmean, x, axis, keepdims, dtype=dtype)


def _range(a, axis=None, out=None, keepdims=False):
    absent({"out": out})
    x = tensor_of(a)
    if x.array.dtype.kind == "b":
        raise UnknownArgument("a")
    return reduced(extremes.amax, x, axis, keepdims) - reduced(extremes.amin, x, axis, keepdims)


def _observed(m, y, rowvar, dtype):
    """Rows of variables: those of `m`, and of `y` below."""

    def rows(given):
        x = tensor_of(given)
        x = to_inexact(x) if dtype is None else cast(x, dtype)
        return x if rowvar or x.array.ndim < 2 else x.mT

    if y is None:
        return rows(m)
    if any(tensor_of(x).array.ndim > 2 for x in (m, y)):
        raise UnknownArgument("y")
    both = [rows(x) for x in (m, y)]
    both = [x if x.array.ndim == 2 else movement.reshape(x, (1, -1)) for x in both]
    return pieces.cat(of_one_dtype(both), 0)


def _covariance(
    m, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, *, dtype=None
):
    dtype = _of_floats(dtype)
    if ddof is None:
        ddof = int(not bias)
    elif ddof != int(ddof):
        raise UnknownArgument("ddof")
    return statistics.cov(
        _observed(m, y, rowvar, dtype), correction=ddof, fweights=fweights, aweights=aweights
    )


def _correlation(x, y=None, rowvar=True, *, dtype=None):
    return statistics.corrcoef(_observed(x, y, rowvar, _of_floats(dtype)))


REDUCTIONS = {
    np.sum: _without(reduction.sum, 0, arithmetic.add),
    np.prod: _without(reduction.prod, 1, arithmetic.mul),
    np.mean: _mean,
    np.max: _extremum(extremes.amax, arithmetic.maximum),
    np.amax: _extremum(extremes.amax, arithmetic.maximum),
    np.min: _extremum(extremes.amin, arithmetic.minimum),
    np.amin: _extremum(extremes.amin, arithmetic.minimum),
    np.any: _truth(reduction.any, False),
    np.all: _truth(reduction.all, True),
    np.ptp: _range,
    np.var: _spread(reduction.var),
    np.std: _spread(reduction.std),
    np.average: _average,
    np.nansum: _nansum,
    np.nanmean: _nanmean,
    np.cov: _covariance,
    np.corrcoef: _correlation,
    np.argmax: _place(extremes.argmax),
    np.argmin: _place(extremes.argmin),
    np.cumsum: _running(reduction.cumsum),
    np.cumprod: _running(scans.cumprod),
    np.diff: _diff,
}
