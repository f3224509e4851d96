"""NumPy's functions on tensors: which operation of ours each one is.

`array_protocols.py` looks them up. A function takes NumPy's arguments, and raises `UnknownArgument`
for one that it does not know; then NumPy's own answers, where no gradient is lost by that.
"""

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.ops import (
    arithmetic,
    cholesky_factors,
    comparisons,
    contraction,
    determinants,
    diagonals,
    extremes,
    linalg,
    movement,
    order_statistics,
    pieces,
    reduction,
    repeating,
    scans,
    sorting,
)

__all__ = ["FUNCTIONS", "LOOKS", "REDUCE", "UnknownArgument", "plain_arrays", "reduced"]

REDUCE = {
    np.add: reduction.sum,
    np.multiply: reduction.prod,
    np.maximum: extremes.amax,
    np.minimum: extremes.amin,
    np.logical_and: reduction.all,
    np.logical_or: reduction.any,
}


class UnknownArgument(Exception):
    """An argument that an entry of the table does not know."""


def plain_arrays(x, force=False):
    """The same with arrays in the place of tensors; a recording hears of it."""
    if isinstance(x, TensorBase):
        return x.numpy(force=force)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return x
    if isinstance(x, (list, tuple)):
        return type(x)(plain_arrays(item, force) for item in x)
    if isinstance(x, dict):
        return {k: plain_arrays(v, force) for k, v in x.items()}
    return x


def reduced(fn, x, axis, keepdims, **more):
    """Return a reduction of ours along NumPy's axis."""
    x = as_tensor(x)
    if axis is None:
        axis = tuple(range(x.array.ndim))
    if isinstance(axis, int):
        return fn(x, axis, keepdim=bool(keepdims), **more)
    axis = tuple(i % x.array.ndim for i in axis)
    if fn in (reduction.sum, reduction.mean, reduction.var, reduction.std):
        return fn(x, axis, keepdim=bool(keepdims), **more) if axis else fn(x[None], 0, **more)
    for i in sorted(axis, reverse=True):
        x = fn(x, i, keepdim=bool(keepdims), **more)
    return x if axis else as_tensor(x)


def _absent(kwargs, *known):
    """Refuse arguments that were given and are not known here."""
    for name, value in kwargs.items():
        if name not in known and value is not None and value is not np._NoValue:
            raise UnknownArgument(name)


def _is_given(x):
    return x is not None and x is not np._NoValue


def _reduction(fn):
    def handler(a, axis=None, dtype=None, out=None, keepdims=False, **kwargs):
        _absent({**kwargs, "out": out})
        keepdims = keepdims if _is_given(keepdims) else False
        found = reduced(fn, a, axis, keepdims)
        return cast(found, np.dtype(dtype)) if dtype is not None else found

    return handler


def _extremum(fn):
    def handler(a, axis=None, out=None, keepdims=False, **kwargs):
        _absent({**kwargs, "out": out})
        return reduced(fn, a, axis, keepdims if _is_given(keepdims) else False)

    return handler


def _spread(fn):
    def handler(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, **kwargs):
        _absent({**kwargs, "out": out, "dtype": dtype})
        ddof = kwargs.get("correction", ddof)
        keepdims = keepdims if _is_given(keepdims) else False
        return reduced(fn, a, axis, keepdims, correction=ddof)

    return handler


def _running(fn):
    def handler(a, axis=None, dtype=None, out=None):
        _absent({"out": out, "dtype": dtype})
        x = as_tensor(a)
        return fn(movement.reshape(x, (-1,)), 0) if axis is None else fn(x, axis)

    return handler


def _place(fn):
    def handler(a, axis=None, out=None, *, keepdims=False):
        _absent({"out": out})
        keepdims = keepdims if _is_given(keepdims) else False
        return fn(as_tensor(a), axis, keepdim=keepdims) if axis is not None else fn(as_tensor(a))

    return handler


def _dot(a, b, out=None):
    _absent({"out": out})
    a, b = as_tensor(a), as_tensor(b)
    if not a.array.ndim or not b.array.ndim:
        return arithmetic.mul(a, b)
    if b.array.ndim == 1:
        return contraction.matmul(a, b)
    if a.array.ndim <= 2 and b.array.ndim == 2:
        return contraction.matmul(a, b)
    return contraction.tensordot(a, b, ([a.array.ndim - 1], [b.array.ndim - 2]))


def _where(condition, *choices):
    if not choices:
        return np.where(plain_arrays(condition, force=True))
    return arithmetic.where(as_tensor(condition), *choices)


def _joined(fn):
    def handler(arrays, axis=0, out=None, **kwargs):
        _absent({**kwargs, "out": out})
        items = [as_tensor(x) for x in arrays]
        if axis is None:
            return fn([movement.reshape(x, (-1,)) for x in items], 0)
        return fn(_of_one_dtype(items), axis)

    return handler


def _of_one_dtype(items):
    dtype = np.result_type(*(x.array.dtype for x in items))
    return [cast(x, dtype) for x in items]


def _at_least(x, ndim):
    x = as_tensor(x)
    return movement.reshape(x, (1,) * (ndim - x.array.ndim) + tuple(x.array.shape))


def _vstack(tup, **kwargs):
    _absent(kwargs)
    return pieces.cat(_of_one_dtype([_at_least(x, 2) for x in tup]), 0)


def _hstack(tup, **kwargs):
    _absent(kwargs)
    items = _of_one_dtype([_at_least(x, 1) for x in tup])
    return pieces.cat(items, 0 if items[0].array.ndim == 1 else 1)


def _column_stack(tup):
    items = [_at_least(x, 1) for x in tup]
    items = [x if x.array.ndim > 1 else movement.reshape(x, (-1, 1)) for x in items]
    return pieces.cat(_of_one_dtype(items), 1)


def _transpose(a, axes=None):
    a = as_tensor(a)
    return movement.permute(a, tuple(range(a.array.ndim))[::-1] if axes is None else tuple(axes))


def _reshape(a, /, shape=None, order="C", *, copy=None, **kwargs):
    _absent({**kwargs, "order": None if order == "C" else order, "copy": copy})
    return movement.reshape(as_tensor(a), shape)


def _ravel(a, order="C"):
    _absent({"order": None if order == "C" else order})
    return movement.reshape(as_tensor(a), (-1,))


def _squeeze(a, axis=None):
    return movement.squeeze(as_tensor(a)) if axis is None else movement.squeeze(as_tensor(a), axis)


def _expand_dims(a, axis):
    if not isinstance(axis, int):
        raise UnknownArgument("axis")
    return movement.unsqueeze(as_tensor(a), axis)


def _broadcast_to(array, shape, subok=False):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return movement.expand(as_tensor(array), shape)


def _roll(a, shift, axis=None):
    if axis is None:
        a = as_tensor(a)
        flat = repeating.roll(movement.reshape(a, (-1,)), shift, 0)
        return movement.reshape(flat, tuple(a.array.shape))
    return repeating.roll(as_tensor(a), shift, axis)


def _flip(m, axis=None):
    m = as_tensor(m)
    axes = range(m.array.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    return pieces.flip(m, list(axes))


def _diff(a, n=1, axis=-1, **kwargs):
    _absent(kwargs)
    return scans.diff(as_tensor(a), n, axis)


def _diag(v, k=0):
    v = as_tensor(v)
    return diagonals.diag_embed(v, k) if v.array.ndim == 1 else diagonals.diagonal(v, k)


def _diagonal(a, offset=0, axis1=0, axis2=1):
    return diagonals.diagonal(as_tensor(a), offset, axis1, axis2)


def _trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    _absent({"dtype": dtype, "out": out})
    return reduction.sum(diagonals.diagonal(as_tensor(a), offset, axis1, axis2), -1)


def _clip(a, a_min=None, a_max=None, out=None, *, min=None, max=None, **kwargs):
    _absent({**kwargs, "out": out})
    low = a_min if _is_given(a_min) else min
    high = a_max if _is_given(a_max) else max
    x = as_tensor(a)
    x = arithmetic.maximum(x, as_tensor(low)) if _is_given(low) else x
    return arithmetic.minimum(x, as_tensor(high)) if _is_given(high) else x


def _sort(a, axis=-1, **kwargs):
    _absent({k: v for k, v in kwargs.items() if k != "kind"})
    x = as_tensor(a)
    x, axis = (movement.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    return sorting.sort(x, axis)[0]


def _argsort(a, axis=-1, **kwargs):
    _absent({k: v for k, v in kwargs.items() if k != "kind"})
    return sorting.argsort(as_tensor(a), axis)


def _take(a, indices, axis=None, out=None, mode="raise"):
    _absent({"out": out, "mode": None if mode == "raise" else mode})
    x = as_tensor(a)
    if axis is None:
        return movement.reshape(x, (-1,))[as_tensor(indices)]
    return x[(slice(None),) * (axis % x.array.ndim) + (as_tensor(indices),)]


def _full_like(value):
    def handler(a, fill_value=value, dtype=None, **kwargs):
        _absent({k: v for k, v in kwargs.items() if k not in ("order", "subok")})
        dtype = a.array.dtype if dtype is None else np.dtype(dtype)
        if isinstance(fill_value, TensorBase):
            shape = tuple(a.array.shape)
            return arithmetic.clone(movement.expand(cast(fill_value, dtype), shape))
        return wrap(np.full(a.array.shape, fill_value, dtype))

    return handler


def _norm(x, ord=None, axis=None, keepdims=False):
    x = as_tensor(x)
    if ord is not None or not (axis is None or isinstance(axis, int)):
        raise UnknownArgument("ord")
    if axis is None:
        axis = tuple(range(x.array.ndim))
    return arithmetic.sqrt(reduced(reduction.sum, arithmetic.square(x), axis, keepdims))


def _average(a, axis=None, weights=None, returned=False, **kwargs):
    _absent(kwargs)
    if returned:
        raise UnknownArgument("returned")
    if weights is None:
        return reduced(reduction.mean, a, axis, False)
    a, w = as_tensor(a), as_tensor(weights)
    if w.array.shape != a.array.shape:
        raise UnknownArgument("weights")
    return reduced(reduction.sum, a * w, axis, False) / reduced(reduction.sum, w, axis, False)


def _ours(fn, most=2):
    """An entry for a function with the same arguments."""

    def handler(*args, **kwargs):
        if kwargs or len(args) > most:
            raise UnknownArgument("arguments")
        return fn(*(as_tensor(x) for x in args))

    return handler


def _as_given(fn):
    """The same for one whose further arguments are no tensors."""

    def handler(a, *args, **kwargs):
        _absent(kwargs)
        return fn(as_tensor(a), *args)

    return handler


def _tensordot(a, b, axes=2):
    return contraction.tensordot(as_tensor(a), as_tensor(b), axes)


def _einsum(subscripts, *operands, **kwargs):
    _absent({k: v for k, v in kwargs.items() if k != "optimize"})
    if not isinstance(subscripts, str):
        raise UnknownArgument("subscripts")
    return contraction.einsum(subscripts, *map(as_tensor, operands))


def _nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    x = as_tensor(x)
    limits = np.finfo(x.array.dtype) if x.array.dtype.kind == "f" else None
    if limits is None:
        return x
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    x = arithmetic.where(comparisons.isnan(x), float(nan), x)
    x = arithmetic.where(x == np.inf, float(high), x)
    return arithmetic.where(x == -np.inf, float(low), x)


FUNCTIONS = {
    np.sum: _reduction(reduction.sum),
    np.mean: _reduction(reduction.mean),
    np.prod: _reduction(reduction.prod),
    np.max: _extremum(extremes.amax),
    np.amax: _extremum(extremes.amax),
    np.min: _extremum(extremes.amin),
    np.amin: _extremum(extremes.amin),
    np.any: _extremum(reduction.any),
    np.all: _extremum(reduction.all),
    np.var: _spread(reduction.var),
    np.std: _spread(reduction.std),
    np.average: _average,
    np.argmax: _place(extremes.argmax),
    np.argmin: _place(extremes.argmin),
    np.cumsum: _running(reduction.cumsum),
    np.cumprod: _running(scans.cumprod),
    np.diff: _diff,
    np.dot: _dot,
    np.inner: _ours(contraction.inner),
    np.outer: lambda a, b, out=None: contraction.outer(_ravel(a), _ravel(b)),
    np.vdot: lambda a, b: contraction.dot(_ravel(a), _ravel(b)),
    np.tensordot: _tensordot,
    np.einsum: _einsum,
    np.where: _where,
    np.concatenate: _joined(pieces.cat),
    np.stack: _joined(pieces.stack),
    np.vstack: _vstack,
    np.hstack: _hstack,
    np.column_stack: _column_stack,
    np.reshape: _reshape,
    np.ravel: _ravel,
    np.transpose: _transpose,
    np.squeeze: _squeeze,
    np.expand_dims: _expand_dims,
    np.swapaxes: _as_given(movement.swapaxes),
    np.moveaxis: _as_given(movement.movedim),
    np.broadcast_to: _broadcast_to,
    np.tile: lambda A, reps: repeating.tile(as_tensor(A), np.atleast_1d(reps).tolist()),
    np.roll: _roll,
    np.flip: _flip,
    np.flipud: lambda m: _flip(m, 0),
    np.fliplr: lambda m: _flip(m, 1),
    np.tril: _as_given(diagonals.tril),
    np.triu: _as_given(diagonals.triu),
    np.diag: _diag,
    np.diagonal: _diagonal,
    np.trace: _trace,
    np.clip: _clip,
    np.nan_to_num: _nan_to_num,
    np.sort: _sort,
    np.argsort: _argsort,
    np.median: lambda a, axis=None, **kwargs: _median(a, axis, **kwargs),
    np.take: _take,
    np.copy: lambda a, order="K", subok=False: arithmetic.clone(as_tensor(a)),
    np.zeros_like: _full_like(0),
    np.ones_like: _full_like(1),
    np.empty_like: _full_like(0),
    np.full_like: _full_like(0),
    np.linalg.norm: _norm,
    np.linalg.cholesky: _ours(cholesky_factors.cholesky, 1),
    np.linalg.inv: _ours(linalg.inv, 1),
    np.linalg.solve: _ours(linalg.solve),
    np.linalg.det: _ours(determinants.det, 1),
    np.linalg.slogdet: lambda a: tuple(determinants.slogdet(as_tensor(a))),
}


LOOKS = {
    np.shape,
    np.ndim,
    np.size,
    np.result_type,
    np.can_cast,
    np.iscomplexobj,
    np.isrealobj,
    np.shares_memory,
    np.may_share_memory,
    np.allclose,
    np.array_equal,
    np.array_equiv,
    np.isclose,
    np.array_repr,
    np.array_str,
    np.array2string,
    np.savetxt,
    np.save,
    np.savez,
    np.nonzero,
    np.flatnonzero,
    np.argwhere,
    np.count_nonzero,
    np.searchsorted,
    np.digitize,
}


def _median(a, axis, **kwargs):
    _absent(kwargs)
    x = as_tensor(a)
    x, axis = (movement.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    return order_statistics.quantile(x, 0.5, axis)
