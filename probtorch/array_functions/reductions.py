"""Sums, extremes, spreads, quantiles and orders along NumPy's axes."""

import numpy as np

from probtorch.array_functions.arguments import UnknownArgument, absent, flat, is_given, tensor_of
from probtorch.core.casting import cast
from probtorch.core.tensor_base import TensorBase
from probtorch.ops import (
    extremes,
    order_statistics,
    reduction,
    scans,
    sorting,
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
    """Return a reduction of ours along NumPy's axis."""
    x = tensor_of(x)
    if axis is None:
        axis = tuple(range(x.array.ndim))
    if isinstance(axis, int):
        return fn(x, axis, keepdim=bool(keepdims), **more)
    axis = tuple(i % x.array.ndim for i in axis)
    if fn in (reduction.sum, reduction.mean, reduction.var, reduction.std):
        return fn(x, axis, keepdim=bool(keepdims), **more) if axis else fn(x[None], 0, **more)
    for i in sorted(axis, reverse=True):
        x = fn(x, i, keepdim=bool(keepdims), **more)
    return x if axis else tensor_of(x)


def _reduction(fn):
    def handler(a, axis=None, dtype=None, out=None, keepdims=False, **kwargs):
        absent({**kwargs, "out": out})
        keepdims = keepdims if is_given(keepdims) else False
        found = reduced(fn, a, axis, keepdims)
        return cast(found, np.dtype(dtype)) if dtype is not None else found

    return handler


def _extremum(fn):
    def handler(a, axis=None, out=None, keepdims=False, **kwargs):
        absent({**kwargs, "out": out})
        return reduced(fn, a, axis, keepdims if is_given(keepdims) else False)

    return handler


def _spread(fn):
    def handler(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, **kwargs):
        absent({**kwargs, "out": out, "dtype": dtype})
        ddof = kwargs.get("correction", ddof)
        keepdims = keepdims if is_given(keepdims) else False
        return reduced(fn, a, axis, keepdims, correction=ddof)

    return handler


def _running(fn):
    def handler(a, axis=None, dtype=None, out=None):
        absent({"out": out, "dtype": dtype})
        x = tensor_of(a)
        return fn(flat(x), 0) if axis is None else fn(x, axis)

    return handler


def _place(fn):
    def handler(a, axis=None, out=None, *, keepdims=False):
        absent({"out": out})
        keepdims = keepdims if is_given(keepdims) else False
        return fn(tensor_of(a), axis, keepdim=keepdims) if axis is not None else fn(tensor_of(a))

    return handler


def _diff(a, n=1, axis=-1, **kwargs):
    absent(kwargs)
    return scans.diff(tensor_of(a), n, axis)


def _sort(a, axis=-1, **kwargs):
    absent({k: v for k, v in kwargs.items() if k != "kind"})
    x = tensor_of(a)
    x, axis = (flat(x), 0) if axis is None else (x, axis)
    return sorting.sort(x, axis)[0]


def _argsort(a, axis=-1, **kwargs):
    absent({k: v for k, v in kwargs.items() if k != "kind"})
    return sorting.argsort(tensor_of(a), axis)


def _average(a, axis=None, weights=None, returned=False, **kwargs):
    absent(kwargs)
    if returned:
        raise UnknownArgument("returned")
    if weights is None:
        return reduced(reduction.mean, a, axis, False)
    a, w = tensor_of(a), tensor_of(weights)
    if w.array.shape != a.array.shape:
        raise UnknownArgument("weights")
    return reduced(reduction.sum, a * w, axis, False) / reduced(reduction.sum, w, axis, False)


def _median(a, axis=None, **kwargs):
    return _quantile(a, 0.5, axis, **kwargs)


def _quantile(a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False):
    absent({"out": out, "method": None if method == "linear" else method})
    if not (axis is None or isinstance(axis, int)):
        raise UnknownArgument("axis")
    x = tensor_of(a)
    keepdims = is_given(keepdims) and bool(keepdims)
    if axis is None and not keepdims:
        x, axis = flat(x), 0
    elif axis is None:
        raise UnknownArgument("keepdims")
    x = x if x.array.dtype.kind == "f" else cast(x, np.dtype(np.float64))
    q = cast(tensor_of(q), x.array.dtype)
    return order_statistics.quantile(x, q, axis, keepdim=keepdims)


def _percentile(a, q, *args, **kwargs):
    level = q if isinstance(q, TensorBase) else np.asarray(q, float)
    return _quantile(a, level / 100.0, *args, **kwargs)


def _without_nan(fn):
    def handler(a, axis=None, dtype=None, out=None, keepdims=False, **kwargs):
        absent({**kwargs, "out": out, "dtype": dtype})
        axis = axis if axis is None or isinstance(axis, int) else tuple(axis)
        return fn(tensor_of(a), axis, bool(is_given(keepdims) and keepdims))

    return handler


def _range(a, axis=None, out=None, keepdims=False):
    absent({"out": out})
    keepdims = is_given(keepdims) and keepdims
    return reduced(extremes.amax, a, axis, keepdims) - reduced(extremes.amin, a, axis, keepdims)


def _covariance(m, y=None, rowvar=True, bias=False, ddof=None, **kwargs):
    absent({**kwargs, "y": y})
    x = tensor_of(m)
    x = x if rowvar or x.array.ndim < 2 else x.mT
    return statistics.cov(x, correction=int(not bias) if ddof is None else ddof)


def _correlation(x, y=None, rowvar=True, **kwargs):
    absent({**kwargs, "y": y})
    x = tensor_of(x)
    return statistics.corrcoef(x if rowvar or x.array.ndim < 2 else x.mT)


REDUCTIONS = {
    np.sum: _reduction(reduction.sum),
    np.mean: _reduction(reduction.mean),
    np.prod: _reduction(reduction.prod),
    np.max: _extremum(extremes.amax),
    np.amax: _extremum(extremes.amax),
    np.min: _extremum(extremes.amin),
    np.amin: _extremum(extremes.amin),
    np.any: _extremum(reduction.any),
    np.all: _extremum(reduction.all),
    np.ptp: _range,
    np.var: _spread(reduction.var),
    np.std: _spread(reduction.std),
    np.average: _average,
    np.nansum: _without_nan(statistics.nansum),
    np.nanmean: _without_nan(statistics.nanmean),
    np.median: _median,
    np.quantile: _quantile,
    np.percentile: _percentile,
    np.cov: _covariance,
    np.corrcoef: _correlation,
    np.argmax: _place(extremes.argmax),
    np.argmin: _place(extremes.argmin),
    np.cumsum: _running(reduction.cumsum),
    np.cumprod: _running(scans.cumprod),
    np.diff: _diff,
    np.sort: _sort,
    np.argsort: _argsort,
}
