"""Indexing: Python's and NumPy's index syntax, translated into four primitives that have gradients.

`slice` and `unslice` (movement.py) serve basic indices; `take` and its transpose `untake` serve
integer tensors; `put` writes values at integer tensors, `slice_put` at slices. Boolean masks become
integer tensors first, which fixes their shape. Integer indices out of bounds raise; negative ones
count from the end.
"""

import math

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.backends.registry import device_of
from probtorch.core.dispatch import (
    Node,
    apply,
    as_tensor,
    assign,
    cast,
    grad_enabled,
    mark_changed,
    recorder,
    root_of,
    take_over,
    use_views,
    wrap,
)
from probtorch.core.dtype import int64
from probtorch.core.op import Op
from probtorch.core.shape import broadcast_shapes, normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import (
    ArgumentError,
    AutogradError,
    DeviceError,
    DTypeError,
    InferenceError,
    ProbtorchError,
    ShapeError,
    TensorIndexError,
)
from probtorch.ops.elementwise import lt, where
from probtorch.ops.families import structured, unbroadcast
from probtorch.ops.movement import (
    broadcast_tensors,
    expand,
    permute,
    python_slices,
    reshape,
    slice_,
    stack,
    unslice,
)

__all__ = [
    "Vindex",
    "gather",
    "getitem",
    "index_put",
    "index_select",
    "masked_select",
    "nonzero",
    "one_hot",
    "place_in",
    "read_place",
    "scatter",
    "setitem",
    "vindex",
    "written",
]


def _key(ndim, dims, index):
    key = [slice(None)] * ndim
    for d, i in zip(dims, index, strict=True):
        key[d] = i
    return tuple(key)


def _check_bounds(shape, dims, index):
    for d, i in zip(dims, index, strict=True):
        if i.size and (int(i.min()) < -shape[d] or int(i.max()) >= shape[d]):
            bad = i.max() if int(i.max()) >= shape[d] else i.min()
            raise TensorIndexError(
                "index",
                expected=f"indices in [{-shape[d]}, {shape[d] - 1}] for dim {d} of shape {shape}",
                got=f"{int(bad)}",
                fix="check the index tensor; categories are numbered from 0",
            )


def _run_take(x, *index, dims):
    _check_bounds(x.shape, dims, index)
    return x[_key(x.ndim, dims, index)]


def _run_untake(g, *index, dims, shape):
    out = namespace(g).zeros(shape, g.dtype)
    if isinstance(g, np.ndarray):
        np.add.at(out, _key(len(shape), dims, index), g)
    else:
        namespace(g).add.at(out, _key(len(shape), dims, index), g)
    return out


def _take_vjp(g, out, inputs, attrs, needs):
    x, *index = inputs
    gx = apply(_UNTAKE, (g, *index), {"dims": attrs["dims"], "shape": x._data.shape})
    return (gx, *[None] * len(index))


def _untake_vjp(g, out, inputs, attrs, needs):
    return (apply(_TAKE, (g, *inputs[1:]), {"dims": attrs["dims"]}), *[None] * (len(inputs) - 1))


def _first_only(op):
    def jvp(tangents, out, inputs, attrs):
        return apply(op(), (tangents[0], *inputs[1:]), attrs)

    return jvp


def _take_samples(rng):
    x = rng.standard_normal((4, 3, 5))
    i, j = np.array([[0, 3, 3], [1, -1, 0]]), np.array([2, 0, 2])
    return [
        ((x, i), {"dims": (0,)}),
        ((x, i, j), {"dims": (0, 1)}),
        ((x, i, j), {"dims": (0, 2)}),
        ((x, np.array(2)), {"dims": (1,)}),
    ]


def _untake_samples(rng):
    i = np.array([0, 3, 3])
    return [((rng.standard_normal((3, 2)), i), {"dims": (0,), "shape": (4, 2)})]


def _untake_reference(g, i, dims, shape):
    out = np.zeros(shape)
    for k, place in enumerate(i):
        out[place] += g[k]
    return out


_TAKE = structured(
    "take",
    "indexing",
    run=_run_take,
    vjp=_take_vjp,
    jvp=_first_only(lambda: _TAKE),
    samples=_take_samples,
    reads_inputs=slice(1, None),
    reference=lambda x, *index, dims: x[_key(x.ndim, dims, index)],
    doc="Elements at integer indices along some dims.",
)
_UNTAKE = structured(
    "untake",
    "indexing",
    run=_run_untake,
    vjp=_untake_vjp,
    jvp=_first_only(lambda: _UNTAKE),
    samples=_untake_samples,
    reads_inputs=slice(1, None),
    reference=_untake_reference,
    doc="Zeros with values added at integer indices: the transpose of `take`.",
)


def _run_put(x, v, *index, dims, accumulate):
    _check_bounds(x.shape, dims, index)
    out = x.copy()
    if accumulate:
        namespace(x).add.at(out, _key(x.ndim, dims, index), v)
    else:
        out[_key(x.ndim, dims, index)] = v
    return out


def _put_vjp(g, out, inputs, attrs, needs):
    _, v, *index = inputs
    dims = attrs["dims"]
    gx = g if attrs["accumulate"] else apply(_PUT, (g, _nothing(g), *index), attrs)
    gv = unbroadcast(apply(_TAKE, (g, *index), {"dims": dims}), v._data.shape)
    return (gx if needs[0] else None, gv if needs[1] else None, *[None] * len(index))


def _put_jvp(tangents, out, inputs, attrs):
    x, v, *index = inputs
    tx = x * 0.0 if tangents[0] is None else tangents[0]
    tv = v * 0.0 if tangents[1] is None else tangents[1]
    return apply(_PUT, (tx, tv, *index), attrs)


def _put_samples(rng):
    x = rng.standard_normal((4, 3))
    i = np.array([0, 3])
    return [
        ((x, rng.standard_normal((2, 3)), i), {"dims": (0,), "accumulate": False}),
        ((x, rng.standard_normal((3,)), np.array([1, 1])), {"dims": (0,), "accumulate": True}),
        ((x, rng.standard_normal(()), np.array(-1)), {"dims": (1,), "accumulate": False}),
    ]


def _put_reference(x, v, *index, dims, accumulate):
    out = x.copy()
    at = _key(x.ndim, dims, index)
    v = np.broadcast_to(v, out[at].shape)
    for place in np.ndindex(*index[0].shape):
        one = _key(x.ndim, dims, [i[place] for i in index])
        out[one] = v[place] + (out[one] if accumulate else 0.0)
    return out


_PUT = structured(
    "put",
    "indexing",
    run=_run_put,
    vjp=_put_vjp,
    jvp=_put_jvp,
    samples=_put_samples,
    reference=_put_reference,
    reads_inputs=slice(2, None),
    doc="A copy with values written (or added) at integer indices along some dims.",
)


def _run_slice_put(x, v, spec):
    out = x.copy()
    out[python_slices(spec)] = v
    return out


def _slice_put_vjp(g, out, inputs, attrs, needs):
    _, v = inputs
    gx = apply(_SLICE_PUT, (g, _nothing(g)), attrs) if needs[0] else None
    return gx, unbroadcast(slice_(g, attrs["spec"]), v._data.shape) if needs[1] else None


def _slice_put_jvp(tangents, out, inputs, attrs):
    x, v = inputs
    tx = x * 0.0 if tangents[0] is None else tangents[0]
    tv = v * 0.0 if tangents[1] is None else tangents[1]
    return apply(_SLICE_PUT, (tx, tv), attrs)


def _slice_put_samples(rng):
    x = rng.standard_normal((4, 3))
    return [
        ((x, rng.standard_normal((2, 3))), {"spec": ((3, -2, 2), (0, 1, 3))}),
        ((x, rng.standard_normal(())), {"spec": ((1, 1, 2), (2, 1, 1))}),
    ]


_SLICE_PUT = structured(
    "slice_put",
    "indexing",
    run=_run_slice_put,
    vjp=_slice_put_vjp,
    jvp=_slice_put_jvp,
    samples=_slice_put_samples,
    reads_inputs=False,
    reference=_run_slice_put,
    doc="A copy with values written at slices.",
)

# ------------------------------------------------------------------------------------- index syntax


def nonzero(x, *, as_tuple=False):
    """Return the places where `x` is not 0 (or is True), in the order of its elements.

    Parameters
    ----------
    x : Tensor
    as_tuple : bool
        Return the places dim by dim instead, as an index takes them.

    Returns
    -------
    Tensor of int64, shape (n, ndim); or a tuple of `ndim` of shape (n,)
        A 0-d tensor counts as one of shape (1,) in the tuple form.
    """
    x = as_tensor(x, "nonzero")
    if recorder() is not None:
        recorder().data_dependent("nonzero", x)
    places = tuple(wrap(i) for i in namespace(x._data).atleast_1d(x._data).nonzero())
    if as_tuple:
        return places
    if not x._data.ndim:
        return wrap(namespace(x._data).zeros((len(places[0]._data), 0), np.int64))
    return stack(places, -1)


def _places(condition):
    return nonzero(condition, as_tuple=True)


# where(c) means the places where c holds.
where.op.extra["other_counts"] = {1: _places}


def _entries(key):
    """Return the entries of an index: slices, None, Ellipsis, integers, tensors, truth values."""
    return [_entry(k) for k in (key if isinstance(key, tuple) else (key,))]


def _entry(k):
    kind = type(k)
    if k is None or k is Ellipsis or kind is slice or kind is int:
        return k
    if isinstance(k, TensorBase):
        t = k
    elif isinstance(k, (bool, np.bool_)):
        return bool(k)
    elif isinstance(k, (list, range)):
        t = _listed(k)
    elif isinstance(k, np.ndarray) or hasattr(k, "__cuda_array_interface__"):
        if k.dtype.kind not in "biufc":
            raise _bad_key(k)
        t = as_tensor(k, "index")
    elif hasattr(k, "__index__"):
        return k.__index__()
    elif hasattr(k, "__array__"):  # a column of a data frame
        return _entry(np.asarray(k))
    else:
        raise _bad_key(k)
    dtype = t._data.dtype
    if dtype.kind not in "biu" or (dtype.itemsize == 1 and dtype.kind == "u"):
        raise _bad_key(k)
    return t


def _listed(k):
    """Return a list of indices as a tensor."""
    try:
        t = as_tensor(list(k), "index")
    except InferenceError:  # an element says why it has no number
        raise
    except (ValueError, DTypeError):
        raise TensorIndexError(
            "index",
            expected="a list of integers or truth values, its rows of equal length",
            got=f"{k!r:.60}",
            fix="separate the indices of several dims by commas, x[i, j], or pad the rows",
        ) from None
    return t if t._data.size else cast(t, int64)  # NumPy takes no elements for floats


def _with_masks_of_dims(x, key):
    """Return ``(x, key)`` without truth values and masks of no dims, which select in a dim of 1."""
    entries = _entries(key)
    if not any(_is_truth(k) for k in entries):
        return x, entries
    have, at = x._data.shape, 0
    rest = max(len(have) - sum(map(_dims_of, entries)), 0)  # the dims that ... stands for
    shape, out = [], []
    for k in entries:
        if _is_truth(k):
            shape.append(1)
            (k,) = _places(k) if isinstance(k, TensorBase) else (wrap(np.zeros(int(k), np.int64)),)
        else:
            count = rest if k is Ellipsis else _dims_of(k)
            shape += have[at : at + count]
            at += count
        out.append(k)
    return reshape(x, (*shape, *have[at:])), out


def _is_truth(k):
    if isinstance(k, TensorBase):
        return not k._data.ndim and k._data.dtype.kind == "b"
    return type(k) is bool


def _dims_of(k):
    """How many dims of a tensor an entry stands for."""
    if k is None or k is Ellipsis or _is_truth(k):
        return 0
    return k._data.ndim if isinstance(k, TensorBase) and k._data.dtype.kind == "b" else 1


def _parse(x, entries):
    """Split entries into slices, the places where dims appear or vanish, and integer tensors.

    Returns ``(spec, layout, index)``: a slice spec, a layout list for the basic part (source dims,
    or "new"), `index` a dict from source dim to integer tensor.
    """
    shape = x._data.shape
    used = sum(map(_dims_of, entries))
    if used > len(shape):
        raise TensorIndexError(
            "index",
            expected=f"at most {len(shape)} indices for shape {shape}",
            got=str(used),
            fix="remove an index",
        )
    ellipses = [i for i, k in enumerate(entries) if k is Ellipsis]
    at = ellipses[0] if ellipses else len(entries)
    # A second one stands for no dim.
    rest = [k for k in entries[at:] if k is not Ellipsis]
    items = [*entries[:at], *[slice(None)] * (len(shape) - used), *rest]
    spec, index, d = [], {}, 0
    layout: list[int | str] = []
    for k in items:
        if k is None:
            layout.append("new")
            continue
        n = shape[d]
        if isinstance(k, slice):
            start, stop, step = _slice_of(k, n)
            spec.append((start, step, len(range(start, stop, step))))
            layout.append(d)
        elif isinstance(k, TensorBase):
            for t in _mask(k, shape, d) if k._data.dtype.kind == "b" else (k,):
                spec.append((0, 1, shape[d]))
                layout.append(d)
                index[d] = t
                d += 1
            continue
        else:
            if not -n <= k < n:
                raise TensorIndexError(
                    "index",
                    expected=f"an index in [{-n}, {n - 1}] for dim {d} of shape {shape}",
                    got=str(k),
                    fix="dims are numbered from 0; the last element is -1",
                )
            spec.append((k % n, 1, 1))
        d += 1
    return tuple(spec), layout, index


def _slice_of(k, n):
    try:
        return k.indices(n)
    except ProbtorchError:  # a bound says why it has no number
        raise
    except (TypeError, ValueError):
        raise TensorIndexError(
            "index",
            expected="slices of integers, with a step that is not 0",
            got=f"{k.start}:{k.stop}:{k.step}",
            fix="convert the bounds with int()",
        ) from None


def _mask(mask, shape, d):
    if mask._data.shape != shape[d : d + mask._data.ndim]:
        raise ShapeError(
            "boolean index",
            expected=f"a mask of shape {shape[d : d + mask._data.ndim]}",
            got=str(mask._data.shape),
            fix="the mask must have the shape of the dims it selects from",
        )
    return nonzero(mask, as_tuple=True)


def _bad_key(k):
    dtype = k._data.dtype if isinstance(k, TensorBase) else getattr(k, "dtype", None)
    fix = "convert the index with .long()"
    if dtype is None:
        kind, fix = f"{type(k).__name__} {k!r:.40}", "index by numbers, or convert it to them"
    elif isinstance(k, TensorBase):
        kind = f"a tensor of dtype {dtype}"
        if dtype == np.uint8:
            fix = "convert it: .bool() for a mask, .long() for positions"
    else:
        kind = f"an array of dtype {dtype}"
        fix = "convert it to integers, astype(int)"
        if dtype.kind in "OSU":
            fix += "; of names, number them first (in pandas: column.astype('category').cat.codes)"
        elif dtype == np.uint8:
            fix = "convert it: astype(bool) for a mask, astype(int) for positions"
    return TensorIndexError(
        "index",
        expected="integers, slices, None, Ellipsis, integer or boolean tensors",
        got=kind,
        fix=fix,
    )


def getitem(x, key):
    """x[key] with NumPy's rules; differentiable in `x`."""
    if type(key) is int and x._data.ndim:
        n = x._data.shape[0]
        if -n <= key < n:
            rest = x._data.shape[1:]
            return reshape(slice_(x, ((key % n, 1, 1), *((0, 1, s) for s in rest))), rest)
    x, entries = _with_masks_of_dims(x, key)
    spec, layout, index = _parse(x, entries)
    shape = x._data.shape
    if any(s != (0, 1, n) for s, n in zip(spec, shape, strict=True)):
        x = slice_(x, spec)
    x = reshape(x, tuple(1 if d == "new" else spec[d][2] for d in layout))
    if not index:
        return x
    index = {layout.index(d): i for d, i in index.items()}
    if len(index) > 1:
        # As in PyTorch, a 0-d tensor is an integer: its dim goes before the others are looked at.
        for d in sorted((d for d, i in index.items() if not i._data.ndim), reverse=True):
            if len(index) > 1:
                x = _take(x, (d,), [index.pop(d)])
                index = {k - (k > d): i for k, i in index.items()}
    return _take(x, tuple(index), list(index.values()))


def _take(x, dims, index):
    broadcast_shapes(*(i._data.shape for i in index), op="index")
    return apply(_TAKE, (x, *_near(x, index)), {"dims": dims})


def _put(x, value, dims, index, accumulate):
    if not value._data.ndim:
        (value,) = _near(x, [value], None)
    return apply(_PUT, (x, value, *_near(x, index)), {"dims": dims, "accumulate": accumulate})


def _near(x, tensors, dtype=int64):
    """Return indices or numbers in a dtype, on the device of `x`."""
    if dtype is int64:
        for t in tensors:
            if t._data.dtype.kind not in "iu" and t._data.size:
                raise _bad_key(t)
    found = (t if dtype is None else cast(t, dtype) for t in tensors)
    return [t if type(t._data) is type(x._data) else t.to(device=device_of(x._data)) for t in found]


def _nothing(g):
    """Return the number 0 beside `g`."""
    (zero,) = _near(g, [wrap(np.zeros((), g._data.dtype))], None)
    return zero


def setitem(x, key, value):
    """x[key] = value in place, on the tape where a gradient is wanted."""
    value = as_tensor(value, "index assignment")
    if type(value._data) is not type(x._data):
        value = _moved_there(value, x)
    if value._base is not None and _is_there(value, x, key):
        return  # the end of x[key] += y, whose view has been written to
    if type(key) is not int and type(key) is not slice:
        x, key = _with_masks_of_dims(x, key)
    root = root_of(x)
    taped = grad_enabled() and (
        x.requires_grad or value.requires_grad or (root is not None and root.requires_grad)
    )
    if recorder() is not None or taped or _mixes_integers_and_tensors(key):
        assign(x, _updated(x, key, cast(value, x._data.dtype)), "index assignment")
        return
    if not x._data.flags.writeable:
        raise ArgumentError(
            "index assignment",
            expected="writable memory",
            got="a read-only array",
            fix="clone() the tensor first",
        )
    if type(key) is list:
        key = tuple(k._data if isinstance(k, TensorBase) else k for k in key)
    try:
        x._data[key] = value._data
    except (IndexError, TypeError) as e:
        raise TensorIndexError(
            "index assignment",
            expected=f"an index into shape {x._data.shape}",
            got=str(e),
            fix="dims and elements are numbered from 0",
        ) from None
    except ValueError as e:
        raise ShapeError(
            "index assignment",
            expected="a value that broadcasts into the place",
            got=str(e),
            fix="reshape or expand the value",
        ) from None
    mark_changed(x)


def _is_there(value, x, key):
    """Whether `value` is the view ``x[key]`` itself."""
    if value._base is not (x if x._base is None else x._base):
        return False
    if any(type(k) not in _BASIC for k in (key if isinstance(key, tuple) else (key,))):
        return False
    # With an Ellipsis, as an index by integers alone makes a number.
    key = key if isinstance(key, tuple) else (key,)
    try:
        a, b = value._data, x._data[key if Ellipsis in key else (*key, ...)]
    except (IndexError, ValueError):
        return False
    return (
        a.shape == b.shape
        and a.strides == b.strides
        and a.dtype == b.dtype
        and _address(a) == _address(b)
    )


_BASIC = frozenset((int, slice, type(None), type(Ellipsis)))


def _moved_there(value, x):
    """Return `value`, of which one element lies on another device, where `x` is."""
    if value._data.ndim:
        raise DeviceError(
            "index assignment",
            expected=f"a value on {device_of(x._data)}, numbers of shape () aside",
            got=f"one of shape {value._data.shape} on {device_of(value._data)}",
            fix="move it there with .to(device)",
        )
    return value.to(device=device_of(x._data))


def _mixes_integers_and_tensors(key):
    """Whether NumPy would place the dims of ``x[key]`` differently: integers come first here."""
    if type(key) is not list:
        return False
    tensors = [k for k in key if isinstance(k, TensorBase)]
    return bool(tensors) and (
        any(type(k) is int for k in key) or any(not t._data.ndim for t in tensors)
    )


def _updated(x, key, value):
    """Return a copy of `x` with `value` at `key`."""
    shape = x._data.shape
    spec, layout, index = _parse(x, key if type(key) is list else [key])
    if not index:
        value = _fit(value, tuple(1 if d == "new" else spec[d][2] for d in layout))
        if value._data.ndim:
            value = reshape(value, tuple(n for _, _, n in spec))
        return apply(_SLICE_PUT, (x, value), {"spec": spec})
    if len(layout) == len(spec) and spec == tuple((0, 1, n) for n in shape):
        places = broadcast_shapes(*(i._data.shape for i in index.values()), op="index assignment")
        dims = tuple(index)
        if dims == tuple(range(dims[0], dims[0] + len(dims))):
            value = _fit(value, shape[: dims[0]] + places + shape[dims[-1] + 1 :])
            return _put(x, value, dims, list(index.values()), False)
    # Integer tensors together with partial slices, integers or None: find the flat positions.
    size = math.prod(shape)
    at = getitem(wrap(np.arange(size).reshape(shape)), tuple(key))
    flat = _put(reshape(x, -1), _fit(value, at._data.shape), (0,), [at], False)
    return reshape(flat, shape)


def _fit(value, shape):
    """Return `value` ready for a place of `shape`; a 0-d value is left to broadcast."""
    have = value._data.shape
    extra = len(have) - len(shape)
    if extra > 0 and have[:extra] == (1,) * extra:
        value, extra = reshape(value, have[extra:]), 0
    if not value._data.ndim or value._data.shape == shape:
        return value
    have_now = value._data.shape
    tail = shape[len(shape) - len(have_now) :]
    if extra > 0 or any(a not in (1, b) for a, b in zip(have_now, tail)):
        raise ShapeError(
            "index assignment",
            expected=f"a value that broadcasts to shape {shape}, that of the place",
            got=f"shape {have}",
            fix="reshape or expand the value",
        )
    return expand(value, shape)


def _write_through_view(view, base, value, op):
    """Change a view in place on the tape: its base takes the values, the view reads them there."""
    place = place_in(view._data, base._data, op)
    assign(base, written(base, value, place), op)
    owner = base if base._base is None else base._base
    take_over(view, read_place(base, place), owner._version)
    return view


def _view_node(view, base):
    """Return a node that reads `view` from `base`."""
    return Node(_READ, (base,), {"place": place_in(view._data, base._data, "view")})


def place_in(view, base, op):
    """Return where the elements of the array `view` lie in `base`, whose memory it shares.

    Returns
    -------
    spec : tuple or None
        Of the slice of `base` with the same elements, if there is one.
    at : ndarray or None
        Else the positions in the flattened `base`, in the shape of the view.
    shape : tuple
        That of the view.
    """
    spec = _spec(view, base)
    if spec is not None:
        return spec, None, view.shape
    unit, order = base.itemsize, np.arange(base.size)
    offset = _address(view) - _address(base)
    at = _offsets(view.shape, view.strides) + offset
    have = _offsets(base.shape, base.strides).ravel()
    if not base.flags.c_contiguous:
        sorting = np.argsort(have, kind="stable")
        have, order = have[sorting], order[sorting]
    found = np.minimum(np.searchsorted(have, at), max(have.size - 1, 0))
    if view.itemsize != unit or not np.array_equal(have[found] if have.size else at, at):
        raise AutogradError(
            f"{op}: in-place change of a view inside a recorded computation",
            expected="a view whose elements are elements of its base",
            got=f"a view of dtype {view.dtype} and strides {view.strides} of a tensor of dtype "
            f"{base.dtype}, shape {base.shape} and strides {base.strides}",
            fix="assign through the base, base[index] = value, or clone() the view first",
        )
    return None, order[found], view.shape


def _spec(view, base):
    """Return the spec of the slice of `base` that has the elements of `view`, None without one."""
    if not view.size or not base.flags.c_contiguous or view.dtype != base.dtype:
        return None
    offset = _address(view) - _address(base)
    if view.size == base.size and not offset and view.flags.c_contiguous:
        return tuple((0, 1, n) for n in base.shape)
    # Dims of one element mean nothing; the others must be dims of the base, in order.
    have = [(n, s) for n, s in zip(view.shape, view.strides, strict=True) if n != 1]
    spec = []
    s = view.itemsize * base.size
    for n in base.shape:
        s //= n
        start, offset = divmod(offset, s)
        count, step = 1, 1
        if have and have[0][1] % s == 0:
            count, step = have[0][0], have[0][1] // s
            if 0 <= start + step * (count - 1) < n and step:
                have.pop(0)
            else:
                count, step = 1, 1
        if not 0 <= start < n:
            return None
        spec.append((start, step, count))
    return None if have or offset else tuple(spec)


def _address(array):
    if isinstance(array, np.ndarray):
        return array.__array_interface__["data"][0]
    return array.data.ptr


def _offsets(shape, strides):
    out = np.zeros((1,) * len(shape), np.int64)
    for d, (n, s) in enumerate(zip(shape, strides, strict=True)):
        out = out + (np.arange(n) * s).reshape([-1 if k == d else 1 for k in range(len(shape))])
    return np.broadcast_to(out, shape)


def read_place(base, place):
    """Return the elements of `base` at a place; see `place_in`."""
    spec, at, shape = place
    if spec is None:
        return _take(reshape(base, -1), (0,), [wrap(at)])
    if any(s != (0, 1, n) for s, n in zip(spec, base._data.shape, strict=True)):
        base = slice_(base, spec)
    return reshape(base, shape)


def written(base, value, place):
    """Return a copy of `base` with `value` at a place."""
    spec, at, _ = place
    if spec is None:
        flat = _put(reshape(base, -1), value, (0,), [wrap(at)], False)
        return reshape(flat, base._data.shape)
    value = reshape(value, tuple(n for _, _, n in spec))
    return apply(_SLICE_PUT, (base, value), {"spec": spec})


def _read_vjp(g, out, inputs, attrs, needs):
    spec, at, _ = attrs["place"]
    shape = inputs[0]._data.shape
    if spec is not None:
        return (unslice(reshape(g, tuple(n for _, _, n in spec)), spec, shape),)
    dims = {"dims": (0,), "shape": (inputs[0]._data.size,)}
    (at,) = _near(g, [wrap(at)])
    return (reshape(apply(_UNTAKE, (g, at), dims), shape),)


# Never run: a view is there already. Its nodes say where its elements lie in its root by now.
_READ = Op("view", "movement", lambda x, place: None, _read_vjp, reads_inputs=False)
use_views(_write_through_view, _view_node)


def index_put(x, indices, values, accumulate=False):
    """Return a copy of `x` with `values` written or added at integer tensors, first dims first."""
    x, values = as_tensor(x, "index_put"), as_tensor(values, "index_put")
    indices = [as_tensor(i, "index_put") for i in indices]
    places = broadcast_shapes(*(i._data.shape for i in indices), op="index_put")
    values = _fit(cast(values, x._data.dtype), places + x._data.shape[len(indices) :])
    return _put(x, values, tuple(range(len(indices))), indices, accumulate)


def index_select(x, dim, index):
    """Return the slices of `x` at the 1-d integer tensor `index` along `dim`."""
    x = as_tensor(x, "index_select")
    dim = normalize_dim(dim, x._data.ndim, "index_select")
    index = as_tensor(index, "index_select")
    if not x._data.ndim and index._data.size == 1 and index._data.ndim < 2:
        return reshape(index_select(reshape(x, (1,)), 0, index), ())
    if not x._data.ndim or index._data.ndim > 1:
        raise ShapeError(
            "index_select",
            expected="a tensor with dims, and an index of one dim or none",
            got=f"shapes {x._data.shape} and {index._data.shape}",
            fix="use x[index] for others",
        )
    return _take(x, (dim,), [_counted_from_0(index, dim, x, "index_select")])


def gather(x, dim, index):
    """Return ``out[i][j][k] = x[index[i][j][k]][j][k]`` for dim 0, and likewise for other dims."""
    x, index = as_tensor(x, "gather"), as_tensor(index, "gather")
    if index._data.ndim != x._data.ndim:
        raise ShapeError(
            "gather",
            expected=f"an index with {x._data.ndim} dims",
            got=str(index._data.shape),
            fix="unsqueeze it",
        )
    dim = normalize_dim(dim, x._data.ndim, "gather")
    if not x._data.ndim:
        return reshape(gather(reshape(x, (1,)), 0, reshape(index, (1,))), ())
    return _take(x, tuple(range(x._data.ndim)), _grid(index, dim, x, "gather"))


def scatter(x, dim, index, src, *, accumulate=False):
    """Return a copy of `x` with ``out[index[i][j]][j] = src[i][j]``, here for dim 0."""
    x, index = as_tensor(x, "scatter"), as_tensor(index, "scatter")
    src = cast(as_tensor(src, "scatter"), x._data.dtype)
    if src._data.ndim:
        sizes, wanted = src._data.shape, index._data.shape
        # A slice beyond the end would silently be shorter here, and wrong when compiled.
        if len(sizes) != len(wanted) or any(n < m for n, m in zip(sizes, wanted, strict=True)):
            raise ShapeError(
                "scatter",
                expected=f"a source of at least the shape of the index, {wanted}",
                got=str(sizes),
                fix="expand the source, or pass a number",
            )
        src = slice_(src, tuple((0, 1, n) for n in index._data.shape))
    if index._data.ndim != x._data.ndim:
        raise ShapeError(
            "scatter",
            expected=f"an index with {x._data.ndim} dims",
            got=str(index._data.shape),
            fix="unsqueeze it",
        )
    dim = normalize_dim(dim, x._data.ndim, "scatter")
    if not x._data.ndim:
        x, index, src = (reshape(t, (1,)) for t in (x, index, src))
        return reshape(scatter(x, 0, index, src, accumulate=accumulate), ())
    at = _grid(index, dim, x, "scatter")
    return _put(x, src, tuple(range(x._data.ndim)), at, accumulate)


def _grid(index, dim, x, op):
    """Return the index for every dim that `index` along `dim` means."""
    shape = index._data.shape
    index = _counted_from_0(index, dim, x, op)
    axes = [
        wrap(np.arange(n).reshape([-1 if j == i else 1 for j in range(len(shape))]))
        for i, n in enumerate(shape)
    ]
    axes[dim] = index
    return axes


def _counted_from_0(index, dim, x, op):
    """Return `index`, of which no element may be negative."""
    if index._data.dtype.kind not in "iu" and index._data.size:
        raise _bad_key(index)
    if index._data.dtype.kind == "i" and index._data.size and int(index._data.min()) < 0:
        raise TensorIndexError(
            op,
            expected=f"indices in [0, {x._data.shape[dim] - 1}] for dim {dim}",
            got=str(int(index._data.min())),
            fix="add the size of the dim to count from the end, or use x[index]",
        )
    if recorder() is not None and not recorder().is_constant(index):
        # At each run: out of bounds, where compiled code looks for that.
        return where(index < 0, x._data.shape[dim], index)
    return index


def masked_select(x, mask):
    """Return the elements of `x` where `mask` is True, as a 1-d tensor; the two broadcast."""
    x, mask = as_tensor(x, "masked_select"), as_tensor(mask, "masked_select")
    if mask._data.dtype.kind != "b":
        raise DTypeError(
            "masked_select", expected="a boolean mask", got=str(mask._data.dtype), fix="use .bool()"
        )
    x, mask = broadcast_tensors(x, mask)
    return getitem(reshape(x, -1), reshape(mask, -1))


def one_hot(x, num_classes=-1):
    """Return int64 indicator vectors along a new last dim."""
    x = as_tensor(x, "one_hot")
    if recorder() is not None and num_classes < 0:
        recorder().data_dependent("one_hot without num_classes", x)
    if x._data.dtype.kind not in "iu":
        raise DTypeError(
            "one_hot", expected="integers", got=str(x._data.dtype), fix="use .long() first"
        )
    if num_classes < 0 and not x._data.size:
        raise ArgumentError(
            "one_hot",
            expected="num_classes, for no elements",
            got=f"shape {x._data.shape} alone",
            fix="pass num_classes=",
        )
    n = int(x._data.max()) + 1 if num_classes < 0 else num_classes
    if x._data.size and int(x._data.min()) < 0:
        raise TensorIndexError(
            "one_hot",
            expected="classes >= 0",
            got=str(int(x._data.min())),
            fix="categories are numbered from 0",
        )
    if recorder() is not None:
        # A replay checks bounds, but would count from the end: there is no place for n.
        x = where(lt(x, 0), n, x)
    # Written at places, not compared: so that bounds are checked when compiled too.
    (zeros,) = _near(x, [wrap(np.zeros((*x._data.shape, n), np.int64))])
    return scatter(zeros, -1, x.unsqueeze(-1), 1)


# ------------------------------------------------------------------------------ indices in batches


def vindex(x, key):
    """Index the rightmost dims of `x`, with all batch dims broadcast against each other.

    A leading ``...`` stands for the batch dims of `x`; the other entries, one per remaining dim,
    are integers, integer tensors whose dims are all batch dims, or ``:``. So an expression for one
    element, such as ``x[i, j, :]``, becomes one for batches: ``Vindex(x)[..., i, j, :]``.

    Parameters
    ----------
    x : Tensor
    key : tuple

    Returns
    -------
    Tensor, shape ``broadcast(batch of x, i.shape, j.shape) + (sizes of the : dims)``

    Raises
    ------
    TensorIndexError
        If ``...`` is not leading, a slice is not ``:``, or there are too many entries.

    Examples
    --------
    >>> from probtorch.ops.indexing import Vindex
    >>> import probtorch
    >>> x = probtorch.arange(24).reshape(2, 3, 4)
    >>> i = probtorch.tensor([[0], [1]])
    >>> Vindex(x)[..., i, :].shape
    Size([2, 2, 4])
    """
    x = as_tensor(x, "vindex")
    key = key if isinstance(key, tuple) else (key,)
    if key and key[0] is Ellipsis:
        key = key[1:]
    else:
        key = key + (slice(None),) * (x._data.ndim - len(key))
    whole = [isinstance(k, slice) and k == slice(None) for k in key]
    if len(key) > x._data.ndim or any(
        not w and (k is None or k is Ellipsis or isinstance(k, slice))
        for k, w in zip(key, whole, strict=True)
    ):
        raise TensorIndexError(
            "vindex",
            expected=f"`...` on the left only, then at most {x._data.ndim} integers, integer "
            "tensors or `:`",
            got=repr(key),
            fix="slice the tensor first, then index it",
        )
    lead = x._data.ndim - len(key)
    at = [i + lead for i, w in enumerate(whole) if not w]
    kept = [i + lead for i, w in enumerate(whole) if w]
    x = permute(x, (*range(lead), *at, *kept))
    index = [as_tensor(k, "vindex") for k, w in zip(key, whole, strict=True) if not w]
    if not index:
        return x
    batch = x._data.shape[:lead]
    if not any(i._data.ndim for i in index):
        return getitem(x, (*(slice(None),) * lead, *index))
    rows = [wrap(np.arange(n).reshape((n,) + (1,) * (lead - 1 - d))) for d, n in enumerate(batch)]
    return _take(x, tuple(range(lead + len(index))), [*rows, *index])


class Vindex:
    """``Vindex(x)[..., i, :]`` is ``vindex(x, (..., i, slice(None)))``; see `vindex`.

    Parameters
    ----------
    x : Tensor
    """

    def __init__(self, x):
        self._x = x

    def __getitem__(self, key):
        return vindex(self._x, key)
