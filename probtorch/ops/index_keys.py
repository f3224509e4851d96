"""What an index key means: its entries, the slices, masks and integer tensors among them.

A key is a tuple of slices, integers, None, Ellipsis, truth values, lists, arrays and tensors.
`parse` turns it into a slice spec (movement.py) and integer tensors by dim. Boolean masks become
integer tensors first, which fixes their shape: `nonzero` says where they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Literal, TypeAlias, TypeGuard, overload

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import read
from probtorch.core.typed import Index, TensorLike
from probtorch.errors import (
    ArgumentError,
    DTypeError,
    InferenceError,
    MaskError,
    ProbtorchError,
    TensorIndexError,
)
from probtorch.ops.arithmetic import where
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import stack

# What an index consists of, once lists and arrays are tensors.
Entry: TypeAlias = slice | EllipsisType | int | TensorBase | None

__all__ = ["bad_key", "nonzero", "nonzero_static", "parse", "with_masks_of_dims"]


def with_masks_of_dims(x: TensorBase, key: Index) -> tuple[TensorBase, list[Entry]]:
    """Return ``(x, key)`` without truth values and masks of no dims, which select in a dim of 1."""
    entries = _entries(key)
    if not any(_is_truth(k) for k in entries):
        return x, entries
    have, at = x.array.shape, 0
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


def _is_truth(k: Entry) -> TypeGuard[bool | TensorBase]:
    if isinstance(k, TensorBase):
        return not k.array.ndim and k.array.dtype.kind == "b"
    return type(k) is bool


def _dims_of(k: Entry) -> int:
    """How many dims of a tensor an entry stands for."""
    if k is None or k is Ellipsis or _is_truth(k):
        return 0
    return k.array.ndim if isinstance(k, TensorBase) and k.array.dtype.kind == "b" else 1


def parse(
    x: TensorBase, entries: Sequence[Entry]
) -> tuple[tuple[tuple[int, int, int], ...], list[int | str], dict[int, TensorBase]]:
    """Split entries into slices, the places where dims appear or vanish, and integer tensors.

    Returns ``(spec, layout, index)``: a slice spec, a layout list for the basic part (source dims,
    or "new"), `index` a dict from source dim to integer tensor.
    """
    shape = x.array.shape
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
            for t in _mask(k, shape, d) if k.array.dtype.kind == "b" else (k,):
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


def _entries(key: Index) -> list[Entry]:
    """Return the entries of an index: slices, None, Ellipsis, integers, tensors, truth values."""
    return [_entry(k) for k in (key if isinstance(key, tuple) else (key,))]


def _entry(k: object) -> Entry:
    if k is None or type(k) is slice or type(k) is int:
        return k
    if k is Ellipsis:
        return Ellipsis
    if isinstance(k, TensorBase):
        t = k
    elif isinstance(k, (bool, np.bool_)):
        return bool(k)
    elif isinstance(k, (list, range)):
        t = _listed(k)
    elif isinstance(k, np.ndarray) or (
        hasattr(k, "__cuda_array_interface__") and hasattr(k, "dtype")
    ):
        if k.dtype.kind not in "biufc":
            raise bad_key(k)
        t = as_tensor(k, "index")
    elif hasattr(k, "__index__"):
        return k.__index__()
    elif hasattr(k, "__array__"):  # a column of a data frame
        return _entry(np.asarray(k))
    else:
        raise bad_key(k)
    dtype = t.array.dtype
    if dtype.kind not in "biu" or (dtype.itemsize == 1 and dtype.kind == "u"):
        raise bad_key(k)
    return t


def _listed(k: Sequence[int]) -> TensorBase:
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
    return t if t.array.size else cast(t, int64)  # NumPy takes no elements for floats


def _slice_of(k: slice, n: int) -> tuple[int, ...]:
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


def _mask(mask: TensorBase, shape: tuple[int, ...], d: int) -> tuple[TensorBase, ...]:
    if mask.array.shape != shape[d : d + mask.array.ndim]:
        raise MaskError(
            "boolean index",
            expected=f"a mask of shape {shape[d : d + mask.array.ndim]}",
            got=str(mask.array.shape),
            fix="the mask must have the shape of the dims it selects from",
        )
    return nonzero(mask, as_tuple=True)


def bad_key(k: object) -> TensorIndexError:
    """Return the error for an entry that is no index."""
    dtype = k.array.dtype if isinstance(k, TensorBase) else getattr(k, "dtype", None)
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


@overload
def nonzero(
    input: TensorLike, *, as_tuple: Literal[False] = False, out: TensorBase | None = None
) -> TensorBase: ...
@overload
def nonzero(
    input: TensorLike, *, as_tuple: Literal[True], out: tuple[TensorBase, ...] | None = None
) -> tuple[TensorBase, ...]: ...
@takes_out
def nonzero(
    input: TensorLike,
    *,
    as_tuple: bool = False,
    out: TensorBase | tuple[TensorBase, ...] | None = None,
) -> TensorBase | tuple[TensorBase, ...]:
    """Return the places where `input` is not 0 (or is True), in the order of its elements.

    Parameters
    ----------
    input : Tensor
    as_tuple : bool
        Return the places dim by dim instead, as an index takes them.

    Returns
    -------
    Tensor of int64, shape (n, ndim); or a tuple of `ndim` of shape (n,)
        A 0-d tensor counts as one of shape (1,) in the tuple form.
    """
    input = as_tensor(input, "nonzero")
    read("nonzero", input)
    places = tuple(wrap(i) for i in namespace(input.array).atleast_1d(input.array).nonzero())
    if as_tuple:
        return places
    if not input.array.ndim:
        return wrap(namespace(input.array).zeros((len(places[0].array), 0), np.int64))
    return stack(places, -1)


@takes_out
def nonzero_static(
    input: TensorLike, *, size: int, fill_value: int = -1, out: TensorBase | None = None
) -> TensorBase:
    """Return the first `size` places where `input` is not 0, shape (size, ndim), as `nonzero` does.

    Where there are fewer, rows of `fill_value` follow.
    """
    if size < 0:
        raise ArgumentError(
            "nonzero_static", expected="size >= 0", got=str(size), fix="say how many rows to give"
        )
    found = nonzero(input).array[:size]
    rows = namespace(found).full((size, found.shape[1]), fill_value, np.int64)
    rows[: len(found)] = found
    return wrap(rows)


def _places(condition: TensorBase) -> tuple[TensorBase, ...]:
    return nonzero(condition, as_tuple=True)


# where(c) means the places where c holds.
where.op.extra["other_counts"] = {1: _places}
