"""NumPy's functions on tensors: `np.exp(t)`, `np.dot(X, t)`, `np.where(mask, t, 0.0)`.

NumPy hands a call with a tensor among its arguments to the tensor. Where an operation of ours says
the same, it is carried out: the result is a Tensor and keeps the gradient, and a recording goes on.
Everything else is NumPy's own on the arrays, for tensors without a gradient; with one it is an
error that says what to write.

Two tables: `_UFUNCS` for what NumPy and SciPy compute element by element, `_FUNCTIONS` for the
rest. An entry that does not know an argument (``out=``, ``where=``) returns NotImplemented, and the
call goes on as if there were none.
"""

import sys
from types import FrameType

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled, wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import AutogradError
from probtorch.ops import (
    arithmetic,
    cholesky_factors,
    comparisons,
    contraction,
    determinants,
    diagonals,
    exponentials,
    extremes,
    linalg,
    movement,
    norms,
    order_statistics,
    pieces,
    reduction,
    repeating,
    scans,
    sorting,
    special,
    trigonometry,
)

__all__ = ["array_function", "array_ufunc", "refuse_array"]

# NumPy's name, and ours where it differs.
_UFUNC_TABLE = (
    "add subtract=sub multiply=mul true_divide=div power=pow float_power=pow negative=neg "
    "absolute=abs fabs=abs exp exp2 expm1 log log2 log10 log1p sqrt square sin cos tan sinh cosh "
    "tanh arcsin=asin arccos=acos arctan=atan arctan2=atan2 arcsinh=asinh arccosh=acosh "
    "arctanh=atanh maximum minimum equal=eq not_equal=ne less=lt less_equal=le greater=gt "
    "greater_equal=ge logical_and logical_or logical_xor logical_not isnan isfinite isinf signbit "
    "copysign floor ceil sign remainder floor_divide logaddexp reciprocal cbrt rint=round trunc "
    "fmod bitwise_and bitwise_or bitwise_xor invert=bitwise_not"
)
_SCIPY_TABLE = (
    "expit=sigmoid logit gammaln=lgamma psi=digamma digamma erf erfc erfinv xlogy expm1 log1p exp2 "
    "cbrt i0 log_expit=log_sigmoid ndtr log_ndtr ndtri i0e i1 i1e iv ive erfcx xlog1py betaln entr "
    "betainc gammainc gammaincc"
)


def _named(name):
    """Our operation of that name, None without one."""
    for module in (arithmetic, comparisons, exponentials, trigonometry, special):
        if hasattr(module, name):
            return getattr(module, name)
    return None


def _table(source, entries):
    found = {}
    for entry in entries.split():
        name, _, ours = entry.partition("=")
        ufunc, op = getattr(source, name, None), _named(ours or name)
        if ufunc is not None and op is not None:
            found[ufunc] = op
    return found


_UFUNCS = _table(np, _UFUNC_TABLE)
_UFUNCS[np.matmul] = contraction.matmul
_UFUNCS[np.positive] = as_tensor
_scipy_ufuncs: dict = {}
_REDUCE = {
    np.add: reduction.sum,
    np.multiply: reduction.prod,
    np.maximum: extremes.amax,
    np.minimum: extremes.amin,
    np.logical_and: reduction.all,
    np.logical_or: reduction.any,
}


def _operation(ufunc):
    """Our operation for a ufunc, None without one."""
    op = _UFUNCS.get(ufunc)
    if op is None and not _scipy_ufuncs and "scipy.special" in sys.modules:
        # Only now: importing it takes longer than everything else of a front door.
        _scipy_ufuncs.update(_table(sys.modules["scipy.special"], _SCIPY_TABLE))
        _UFUNCS.update(_scipy_ufuncs)
        op = _UFUNCS.get(ufunc)
    return op


# ---------------------------------------------------------------------------------- the protocols


def array_ufunc(ufunc, method, inputs, kwargs):
    """Carry out ``getattr(ufunc, method)(*inputs, **kwargs)``; see ``Tensor.__array_ufunc__``."""
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    rest = {k: v for k, v in kwargs.items() if v is not None}
    out = rest.pop("out", (None,))
    dtype = rest.pop("dtype", None)
    result = NotImplemented
    if not rest or (method == "reduce" and rest.keys() <= {"axis", "keepdims"}):
        if method == "__call__" and _operation(ufunc) is not None:
            # NumPy's double is a float of Python's: it has no say about the dtype.
            weak = (float(x) if isinstance(x, float) else as_tensor(x) for x in inputs)
            result = _operation(ufunc)(*weak)
        elif method == "reduce" and ufunc in _REDUCE:
            axis = kwargs.get("axis", 0)
            result = _reduced(_REDUCE[ufunc], inputs[0], axis, rest.get("keepdims", False))
        elif method == "outer" and _operation(ufunc) is not None and len(inputs) == 2:
            x, y = map(as_tensor, inputs)
            result = _operation(ufunc)(x[(..., *(None,) * y.ndim)], y)
    if result is NotImplemented:
        _refuse_taped(f"np.{name}", (*inputs, *out, rest))
        given = {k: _plain(v) for k, v in kwargs.items()}
        found = getattr(ufunc, method)(*map(_plain, inputs), **given)
        kept = out if out[0] is not None else (None,) * (len(found) if type(found) is tuple else 1)
        return _wrapped(found, kept)
    if dtype is not None:
        result = cast(result, np.dtype(dtype))
    return result if out[0] is None else _written(f"np.{name}", result, out[0])


def array_function(func, args, kwargs):
    """Carry out ``func(*args, **kwargs)``, a function of NumPy's; see ``__array_function__``."""
    handler = _FUNCTIONS.get(func)
    if handler is not None:
        try:
            result = handler(*args, **kwargs)
        except _Unknown:
            result = NotImplemented
        if result is not NotImplemented:
            return result
    if func in _LOOKS:
        # Their results are facts or Python's booleans: nothing goes on from them.
        return func(*_plain(args, force=True), **_plain(kwargs, force=True))
    _refuse_taped(_name_of(func), (args, kwargs))
    return func(*_plain(args), **_plain(kwargs))


def refuse_array(tensor, asker=""):
    """Return the error for `tensor`, which requires grad, when its array is asked for by others."""
    package, function = _caller()
    if asker:
        what = f"{asker} asked for the numbers of a tensor that requires grad"
        fix = "fill the array first, x.filled(numpy.nan), and compute with the tensor of it"
    elif package in (None, "numpy"):
        fix = (
            "let tensors hold it: mu = probtorch.zeros(n); mu[:25] = b, probtorch.tensor([b, c]) "
            "and probtorch.stack keep the gradient, and so does X @ b for X.dot(b) (to look at the "
            "numbers: .numpy(force=True))"
        )
        what = "NumPy asked for the numbers of a tensor that requires grad"
    elif package == "pandas":
        what = f"pandas asked for the numbers of a tensor that requires grad ({function})"
        fix = "convert the data first: X = probtorch.tensor(df.to_numpy()), then X @ b"
    else:
        what = f"{package}.{function} asked for the numbers of a tensor that requires grad"
        fix = _instead(function)
    return AutogradError(
        f"Can't call numpy() on Tensor that requires grad: {what}",
        expected="operations that keep the gradient",
        got=f"a tensor of shape {tuple(tensor.array.shape)} with requires_grad=True",
        fix=fix,
    )


def _caller():
    """``(package, function)`` of installed code between the user and the conversion, or Nones."""
    frame: FrameType | None = sys._getframe(2)
    found: tuple[str | None, str | None] = (None, None)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        if package in ("pandas", "scipy", "sklearn", "xarray", "numpy", "statsmodels"):
            found = package, frame.f_code.co_name
        elif package != "probtorch" or found[0] is not None:
            return found
        frame = frame.f_back
    return found


def _instead(name):
    """What to write in place of a function of somebody else's."""
    rooms = (reduction, norms, linalg)
    if name and (_named(name) is not None or any(hasattr(m, name) for m in rooms)):
        return (
            f"probtorch has it with its gradient: call {name} on the tensor itself, x.{name}(...)"
        )
    return (
        "write it in operations of probtorch, or as a probtorch.autograd.Function with its "
        "derivative"
    )


# --------------------------------------------------------------------------------------- helpers


class _Unknown(Exception):
    """An argument that an entry of the table does not know."""


def _taped(x):
    return isinstance(x, TensorBase) and x.requires_grad and grad_enabled()


def _inside(x):
    """Everything in nested arguments."""
    if isinstance(x, (list, tuple)):
        for item in x:
            yield from _inside(item)
    elif isinstance(x, dict):
        yield from _inside(list(x.values()))
    else:
        yield x


def _refuse_taped(name, arguments):
    """Refuse a call that would take a tensor off the tape."""
    for x in _inside(arguments):
        if _taped(x):
            raise AutogradError(
                f"{name} of a tensor that requires grad",
                expected="an operation that probtorch differentiates",
                got=f"a tensor of shape {tuple(x.array.shape)} with requires_grad=True, whose "
                "gradient would be lost",
                fix=_instead(name.removeprefix("np.").removeprefix("linalg.")),
            )


def _plain(x, force=False):
    """The same with arrays in the place of tensors; a recording hears of it."""
    if isinstance(x, TensorBase):
        return x.numpy(force=force)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return x
    if isinstance(x, (list, tuple)):
        return type(x)(_plain(item, force) for item in x)
    if isinstance(x, dict):
        return {k: _plain(v, force) for k, v in x.items()}
    return x


def _wrapped(found, out):
    """Results of NumPy's as tensors; what was written somewhere is what it was written to."""
    if type(found) is tuple:
        return tuple(_wrapped(x, (o,)) for x, o in zip(found, out, strict=True))
    if out[0] is not None:
        return out[0]
    numeric = isinstance(found, (np.ndarray, np.generic)) and found.dtype.kind in "biufc"
    return wrap(np.asarray(found)) if numeric else found


def _written(name, result, out):
    """Put a result where ``out=`` says."""
    if isinstance(out, TensorBase):
        return out.copy_(result)
    if _taped(result):
        raise AutogradError(
            f"{name} into an array",
            expected="a new tensor for the result, which has a gradient",
            got=f"an array of shape {out.shape} to write it to (x += t, or out=)",
            fix="write x = x + t; or make x a tensor first, x = probtorch.tensor(x)",
        )
    np.copyto(out, result.numpy(), casting="same_kind")
    return out


def _name_of(func):
    module = getattr(func, "__module__", "numpy").replace("numpy", "np", 1)
    return f"{module}.{func.__name__}"


# ---------------------------------------------------------------------------------- the functions


def _reduced(fn, x, axis, keepdims, **more):
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
            raise _Unknown(name)


def _is_given(x):
    return x is not None and x is not np._NoValue


def _reduction(fn):
    def handler(a, axis=None, dtype=None, out=None, keepdims=False, **kwargs):
        _absent({**kwargs, "out": out})
        keepdims = keepdims if _is_given(keepdims) else False
        found = _reduced(fn, a, axis, keepdims)
        return cast(found, np.dtype(dtype)) if dtype is not None else found

    return handler


def _extremum(fn):
    def handler(a, axis=None, out=None, keepdims=False, **kwargs):
        _absent({**kwargs, "out": out})
        return _reduced(fn, a, axis, keepdims if _is_given(keepdims) else False)

    return handler


def _spread(fn):
    def handler(a, axis=None, dtype=None, out=None, ddof=0, keepdims=False, **kwargs):
        _absent({**kwargs, "out": out, "dtype": dtype})
        ddof = kwargs.get("correction", ddof)
        keepdims = keepdims if _is_given(keepdims) else False
        return _reduced(fn, a, axis, keepdims, correction=ddof)

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
        return np.where(_plain(condition, force=True))
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
        raise _Unknown("axis")
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
        raise _Unknown("ord")
    if axis is None:
        axis = tuple(range(x.array.ndim))
    return arithmetic.sqrt(_reduced(reduction.sum, arithmetic.square(x), axis, keepdims))


def _average(a, axis=None, weights=None, returned=False, **kwargs):
    _absent(kwargs)
    if returned:
        raise _Unknown("returned")
    if weights is None:
        return _reduced(reduction.mean, a, axis, False)
    a, w = as_tensor(a), as_tensor(weights)
    if w.array.shape != a.array.shape:
        raise _Unknown("weights")
    return _reduced(reduction.sum, a * w, axis, False) / _reduced(reduction.sum, w, axis, False)


def _ours(fn, most=2):
    """An entry for a function with the same arguments."""

    def handler(*args, **kwargs):
        if kwargs or len(args) > most:
            raise _Unknown("arguments")
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
        raise _Unknown("subscripts")
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


_FUNCTIONS = {
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
_LOOKS = {
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
