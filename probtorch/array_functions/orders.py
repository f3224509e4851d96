"""Quantiles and sorting along NumPy's axes."""

import numpy as np

from probtorch.array_functions.arguments import (
    UnknownArgument,
    absent,
    flat,
    kept,
    one_axis,
    one_of,
    tensor_of,
)
from probtorch.core.casting import cast
from probtorch.core.shape import normalize_dims
from probtorch.core.tensor_base import TensorBase
from probtorch.ops import movement, order_statistics, reduction, sorting

__all__ = ["ORDERS"]

_KINDS = (None, "quicksort", "heapsort", "mergesort", "stable")


def _sorted_by(fn):
    def handler(a, axis=-1, kind=None, order=None, *, stable=None, descending=False):
        # Where nan comes in a descending order is NumPy's to say, from 2.5 on.
        absent({"order": order, "descending": True if descending else None})
        one_of("kind", kind, *_KINDS)
        if kind is not None and stable is not None:
            raise UnknownArgument("stable")
        x = tensor_of(a)
        return fn(flat(x), 0) if axis is None else fn(x, one_axis(axis, x, "sort"))

    return handler


def _median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    return _quantile(a, 0.5, axis, out, overwrite_input, "linear", keepdims)


def _quantile(
    a,
    q,
    axis=None,
    out=None,
    overwrite_input=False,
    method="linear",
    keepdims=False,
    *,
    weights=None,
):
    absent({"out": out, "weights": weights})
    one_of("method", method, "linear", "lower", "higher", "midpoint")
    x, level = tensor_of(a), tensor_of(q)
    if x.array.dtype.kind == "b" or (x.array.dtype.kind in "iu" and method in ("lower", "higher")):
        raise UnknownArgument("a")  # no mean of two of them, or one of them itself
    x = x if x.array.dtype.kind in "fc" else cast(x, np.dtype(np.float64))
    dims = normalize_dims(axis, x.array.ndim, "quantile")
    rest = tuple(d for d in range(x.array.ndim) if d not in dims)
    lines = movement.permute(x, (*rest, *dims))
    shape = tuple(x.array.shape)
    left = tuple(shape[d] for d in rest)
    count = int(np.prod([shape[d] for d in dims], dtype=int))
    lines = movement.reshape(lines, (*left, count))
    found = order_statistics.quantile(lines, flat(level), -1, interpolation=method)
    left = reduction.kept_shape(shape, dims) if kept(keepdims) else left
    return movement.reshape(found, (*level.array.shape, *left))


def _percentile(a, q, *args, **kwargs):
    level = q if isinstance(q, TensorBase) else np.asarray(q, float)
    return _quantile(a, level / 100.0, *args, **kwargs)


ORDERS = {
    np.median: _median,
    np.quantile: _quantile,
    np.percentile: _percentile,
    np.sort: _sorted_by(lambda x, dim: sorting.sort(x, dim)[0]),
    np.argsort: _sorted_by(lambda x, dim: sorting.argsort(x if x.array.ndim else flat(x), dim)),
}
