"""Reading and writing at integer tensors and slices: the primitives of indexing, with gradients.

`take` and its transpose `untake` serve integer tensors; `put` writes values at integer tensors,
`slice_put` at slices. (`slice` and `unslice`, in movement.py, read them.) Integer indices out of
bounds raise; negative ones count from the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.backends.registry import device_of
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, around, wrap
from probtorch.core.dtype import int64
from probtorch.core.op import Op
from probtorch.core.shape import ALL_DIMS, broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType
from probtorch.errors import TensorIndexError
from probtorch.ops.families import structured, unbroadcast
from probtorch.ops.index_keys import bad_key
from probtorch.ops.movement import python_slices, slice_
from probtorch.ops.native_rows import native_elements

if TYPE_CHECKING:
    from probtorch.core.op import Attrs

__all__ = ["near", "put", "slice_put", "take", "take_along", "take_of_rows", "untake"]


def take(x: TensorBase, dims: tuple[int, ...], index: list[TensorBase]) -> TensorBase:
    """Return the elements of `x` at a list of integer tensors, one for each of `dims`."""
    if len(index) > 1:
        broadcast_shapes(*(i.array.shape for i in index), op="index")
    return apply(_TAKE, (x, *near(x, index)), {"dims": dims})


def take_along(x: TensorBase, index: TensorBase, dim: int) -> TensorBase | None:
    """Return ``x[i, index[i, j]]``, here for dim 1; None where that is not the shorter way.

    `index` is known to have as many dims, and nothing below 0.
    """
    shape = index.array.shape
    if type(x.array) is not np.ndarray or type(index.array) is not np.ndarray or not shape:
        return None
    if index.array.dtype is not int64 or max(shape) > _PLACES:
        return None
    axes = [index if i == dim else around(_places(n, i, len(shape))) for i, n in enumerate(shape)]
    return apply(_TAKE, (x, *axes), {"dims": ALL_DIMS[len(shape)]})


def take_of_rows(x: TensorBase, index: TensorBase) -> TensorBase:
    """Return ``x[i, index[i]]`` of a matrix of NumPy's, for int64 that are at least 0."""
    n = x.array.shape[0]
    rows = around(_places(n, 0, 1)) if n <= _PLACES else wrap(np.arange(n))
    return apply(_TAKE, (x, rows, index), {"dims": (0, 1)})


_PLACES = 4096  # of so many at most they are kept


@functools.lru_cache(64)
def _places(n: int, dim: int, ndim: int) -> np.ndarray:
    """Return 0, 1, ..., n - 1 along a dim, read-only."""
    places = np.arange(n).reshape([-1 if i == dim else 1 for i in range(ndim)])
    places.setflags(write=False)
    return places


def untake(
    g: TensorBase, dims: tuple[int, ...], index: list[TensorBase], shape: tuple[int, ...]
) -> TensorBase:
    """Return zeros of a shape with `g` added at integer tensors: the transpose of `take`."""
    return apply(_UNTAKE, (g, *near(g, index)), {"dims": dims, "shape": shape})


def put(
    x: TensorBase,
    value: TensorBase,
    dims: tuple[int, ...],
    index: list[TensorBase],
    accumulate: bool,
) -> TensorBase:
    """Return a copy of `x` with `value` written or added at integer tensors, one for each dim."""
    if not value.array.ndim:
        (value,) = near(x, [value], None)
    return apply(_PUT, (x, value, *near(x, index)), {"dims": dims, "accumulate": accumulate})


def slice_put(x: TensorBase, value: TensorBase, spec: tuple[tuple[int, ...], ...]) -> TensorBase:
    """Return a copy of `x` with `value` written at the slice of a spec; see `slice_`."""
    return apply(_SLICE_PUT, (x, value), {"spec": spec})


def near(x: TensorBase, tensors: list[TensorBase], dtype: DType | None = int64) -> list[TensorBase]:
    """Return indices or numbers in a dtype, on the device of `x`."""
    if dtype is int64:
        if type(x.array) is np.ndarray:
            for t in tensors:
                if t.array.dtype is not int64 or type(t.array) is not np.ndarray:
                    break
            else:
                return tensors
        for t in tensors:
            if t.array.dtype.kind not in "iu" and t.array.size:
                raise bad_key(t)
    found = tensors if dtype is None else [cast(t, dtype) for t in tensors]
    return [t if type(t.array) is type(x.array) else t.to(device=device_of(x.array)) for t in found]


def _nothing(g: TensorBase) -> TensorBase:
    """Return the number 0 beside `g`."""
    (zero,) = near(g, [wrap(np.zeros((), g.array.dtype))], None)
    return zero


def _key(ndim: int, dims: tuple[int, ...], index: Sequence[np.ndarray]) -> tuple[Any, ...]:
    key: list[slice | np.ndarray] = [slice(None)] * ndim
    for d, i in zip(dims, index, strict=True):
        key[d] = i
    return tuple(key)


def _check_bounds(
    shape: tuple[int, ...], dims: tuple[int, ...], index: tuple[np.ndarray, ...]
) -> None:
    for d, i in zip(dims, index, strict=True):
        if i.size and (int(i.min()) < -shape[d] or int(i.max()) >= shape[d]):
            bad = i.max() if int(i.max()) >= shape[d] else i.min()
            raise TensorIndexError(
                "index",
                expected=f"indices in [{-shape[d]}, {shape[d] - 1}] for dim {d} of shape {shape}",
                got=f"{int(bad)}",
                fix="check the index tensor; categories are numbered from 0",
            )


def _run_take(x: np.ndarray, *index: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    if type(x) is not np.ndarray:
        _check_bounds(x.shape, dims, index)  # of GPUs' arrays nothing else looks
    try:
        if len(dims) == 1:
            # Three times as fast as by a key.
            return x.take(index[0], dims[0])
        return x[_key(x.ndim, dims, index)]
    except IndexError:
        _check_bounds(x.shape, dims, index)
        raise


def _added_rows(
    g: np.ndarray, index: tuple[np.ndarray, ...], shape: tuple[int, ...]
) -> np.ndarray | None:
    """`_run_untake` along the first dims by native code, in the order of the indices; None where
    NumPy serves.
    """
    native = native_elements("added_rows", g)
    if native is None or not g.size:
        return None
    places = _row_numbers(shape, index)
    rows = np.ascontiguousarray(g).reshape(places.size, -1)
    return native(places, rows, np.empty(math.prod(shape[: len(index)]), g.dtype)).reshape(shape)


def _row_numbers(shape: tuple[int, ...], index: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the places of indices of the first dims in these dims as one, as a vector."""
    count, places = shape[0], index[0]
    for n, i in zip(shape[1:], index[1:], strict=False):
        places = places % count * n + i % n
        count *= n
    if places.dtype is not int64 or not places.flags.c_contiguous:
        places = places.astype(int64, order="C")
    return places.reshape(-1)


def _with_rows_added(
    x: np.ndarray, v: np.ndarray, index: tuple[np.ndarray, ...]
) -> np.ndarray | None:
    """`_run_put` that adds rows of `v` at one index of the first dim, by native code in the order
    of the index; None where NumPy serves.
    """
    (i,) = index
    if v.shape != (*i.shape, *x.shape[1:]) or v.dtype is not x.dtype or not x.size or not v.size:
        return None
    native = native_elements("rows_added_to", x)
    if native is None:
        return None
    _check_bounds(x.shape, (0,), index)
    rows, onto = (np.ascontiguousarray(a).reshape(n, -1) for a, n in ((v, i.size), (x, len(x))))
    return native(_row_numbers(x.shape, index), rows, onto).reshape(x.shape)


def _run_untake(
    g: np.ndarray, *index: np.ndarray, dims: tuple[int, ...], shape: tuple[int, ...]
) -> np.ndarray:
    if type(g) is np.ndarray and dims == ALL_DIMS[len(dims)]:
        rows = _added_rows(g, index, shape)
        if rows is not None:
            return rows
    out = namespace(g).zeros(shape, g.dtype)
    if not g.size:
        return out  # of nothing NumPy takes from any place
    if isinstance(g, np.ndarray):
        np.add.at(out, _key(len(shape), dims, index), g)
    else:
        namespace(g).add.at(out, _key(len(shape), dims, index), g)
    return out


def _take_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, None]:
    x, *index = inputs
    gx = apply(_UNTAKE, (g, *index), {"dims": attrs["dims"], "shape": x.array.shape})
    return (gx, *[None] * len(index))


def _untake_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    return (apply(_TAKE, (g, *inputs[1:]), {"dims": attrs["dims"]}), *[None] * (len(inputs) - 1))


def _first_only(op: Callable[[], Op]) -> Callable[..., TensorBase]:
    def jvp(
        tangents: tuple[TensorBase, ...],
        out: TensorBase,
        inputs: tuple[TensorBase, ...],
        attrs: Attrs,
    ) -> TensorBase:
        return apply(op(), (tangents[0], *inputs[1:]), attrs)

    return jvp


def _take_samples(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray, ...], Attrs]]:
    x = rng.standard_normal((4, 3, 5))
    i, j = np.array([[0, 3, 3], [1, -1, 0]]), np.array([2, 0, 2])
    return [
        ((x, i), {"dims": (0,)}),
        ((x, i, j), {"dims": (0, 1)}),
        ((x, i, j), {"dims": (0, 2)}),
        ((x, np.array(2)), {"dims": (1,)}),
    ]


def _untake_samples(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray, ...], Attrs]]:
    i = np.array([0, 3, 3])
    return [((rng.standard_normal((3, 2)), i), {"dims": (0,), "shape": (4, 2)})]


def _untake_reference(
    g: np.ndarray, *index: np.ndarray, dims: tuple[int, ...], shape: tuple[int, ...]
) -> np.ndarray:
    out = np.zeros(shape, g.dtype)
    places = np.arange(out.size).reshape(shape)[_key(len(shape), dims, index)]
    for place, part in zip(places.flat, g.flat, strict=True):
        out.flat[place] += part
    return out


_TAKE = structured(
    "take",
    "indexing",
    run=_run_take,
    vjp=_take_vjp,
    jvp=_first_only(lambda: _TAKE),
    samples=_take_samples,
    saves="index",
    reference=lambda x, *index, dims: x[_key(x.ndim, dims, index)],
    complex=True,
    doc="Elements at integer indices along some dims.",
)
_UNTAKE = structured(
    "untake",
    "indexing",
    run=_run_untake,
    vjp=_untake_vjp,
    jvp=_first_only(lambda: _UNTAKE),
    samples=_untake_samples,
    saves="index",
    reference=_untake_reference,
    complex=True,
    doc="Zeros with values added at integer indices: the transpose of `take`.",
)


# From so many numbers on it pays to count elements in a row before they are added up.
_MANY = 256


def _element_numbers(
    x: np.ndarray, v: np.ndarray, index: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return which elements of the memory of `x` are meant by indices of its first dims, and what
    goes there, each as a vector; None where an index is not from 0 to below its size.

    NumPy adds at places of a vector in a fifth of the time that it takes with several dims.
    """
    rest = x.shape[len(index) :]
    shape = (*np.broadcast_shapes(*[i.shape for i in index]), *rest)
    if not math.prod(shape) or np.broadcast_shapes(v.shape, shape) != shape:
        return None
    numbers: np.ndarray | int = 0
    for n, i in zip(x.shape, index, strict=False):
        if i.min() < 0 or i.max() >= n:
            return None
        numbers = numbers * n + i
    if rest:
        inner = math.prod(rest)
        numbers = np.add.outer(numbers * inner, np.arange(inner))
    numbers = np.broadcast_to(np.asarray(numbers).reshape(shape), shape)
    return numbers.reshape(-1), np.broadcast_to(v, shape).reshape(-1)


def _run_put(
    x: np.ndarray, v: np.ndarray, *index: np.ndarray, dims: tuple[int, ...], accumulate: bool
) -> np.ndarray:
    if type(x) is not np.ndarray:
        _check_bounds(x.shape, dims, index)  # of GPUs' arrays nothing else looks
    elif accumulate and dims == (0,):
        added = _with_rows_added(x, v, index)
        if added is not None:
            return added
    out, key = x.copy(), _key(x.ndim, dims, index)
    try:
        if accumulate and type(x) is np.ndarray:
            found = None
            if max(v.size, index[0].size) >= _MANY and dims == ALL_DIMS[len(dims)]:
                found = _element_numbers(out, v, index)
            if found is None:
                np.add.at(out, key, v)
            else:
                np.add.at(out.reshape(-1), *found)
        elif accumulate:
            namespace(x).add.at(out, key, v)
        else:
            out[key] = v
    except IndexError:
        _check_bounds(x.shape, dims, index)
        raise
    return out


def _put_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    _, v, *index = inputs
    dims = attrs["dims"]
    gx = g if attrs["accumulate"] else apply(_PUT, (g, _nothing(g), *index), attrs)
    gv = unbroadcast(apply(_TAKE, (g, *index), {"dims": dims}), v.array.shape)
    return (gx if needs[0] else None, gv if needs[1] else None, *[None] * len(index))


def _put_jvp(
    tangents: tuple[TensorBase | None, ...],
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> TensorBase:
    x, v, *index = inputs
    tx = x * 0.0 if tangents[0] is None else tangents[0]
    tv = v * 0.0 if tangents[1] is None else tangents[1]
    return apply(_PUT, (tx, tv, *index), attrs)


def _put_samples(
    rng: np.random.Generator,
) -> list[tuple[tuple[np.ndarray, np.ndarray, np.ndarray], dict[str, object]]]:
    x = rng.standard_normal((4, 3))
    i = np.array([0, 3])
    return [
        ((x, rng.standard_normal((2, 3)), i), {"dims": (0,), "accumulate": False}),
        ((x, rng.standard_normal((3,)), np.array([1, 1])), {"dims": (0,), "accumulate": True}),
        ((x, rng.standard_normal(()), np.array(-1)), {"dims": (1,), "accumulate": False}),
    ]


def _put_reference(
    x: np.ndarray, v: np.ndarray, *index: np.ndarray, dims: tuple[int, ...], accumulate: bool
) -> np.ndarray:
    out = x.copy()
    places = np.arange(x.size).reshape(x.shape)[_key(x.ndim, dims, index)]
    for place, part in zip(places.flat, np.broadcast_to(v, places.shape).flat, strict=True):
        out.flat[place] = part + (out.flat[place] if accumulate else 0.0)
    return out


_PUT = structured(
    "put",
    "indexing",
    run=_run_put,
    vjp=_put_vjp,
    jvp=_put_jvp,
    samples=_put_samples,
    reference=_put_reference,
    saves="index",
    complex=True,
    doc="A copy with values written (or added) at integer indices along some dims.",
)


def _run_slice_put(x: np.ndarray, v: np.ndarray, spec: tuple[tuple[int, ...], ...]) -> np.ndarray:
    out = x.copy()
    out[python_slices(spec)] = v
    return out


def _slice_put_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    _, v = inputs
    gx = apply(_SLICE_PUT, (g, _nothing(g)), attrs) if needs[0] else None
    return gx, unbroadcast(slice_(g, attrs["spec"]), v.array.shape) if needs[1] else None


def _slice_put_jvp(
    tangents: tuple[TensorBase | None, ...],
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> TensorBase:
    x, v = inputs
    tx = x * 0.0 if tangents[0] is None else tangents[0]
    tv = v * 0.0 if tangents[1] is None else tangents[1]
    return apply(_SLICE_PUT, (tx, tv), attrs)


def _slice_put_samples(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray, ...], Attrs]]:
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
    saves="",
    reference=_run_slice_put,
    complex=True,
    doc="A copy with values written at slices.",
)
