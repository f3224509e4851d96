"""Running sums and products along a dim of arrays, and the products of all other elements.

Those of single and half precision are computed in the next wider dtype and rounded once. Native
code goes along rows; elsewhere, and without it, NumPy serves.
"""

from __future__ import annotations

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.dispatch import unseen, wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.ops.accumulate import wider
from probtorch.ops.movement import slice_
from probtorch.ops.native_rows import native_rows
from probtorch.ops.pieces import cat, flip

__all__ = ["others", "recurrence", "recurrence_back", "running", "sums_back"]

_UFUNCS = {"running_sum": np.add, "running_product": np.multiply}
_METHODS = {"running_sum": "cumsum", "running_product": "cumprod"}


def running(kind: str, x: np.ndarray, dim: int) -> np.ndarray:
    """Return "running_sum" or "running_product" of the array `x` along `dim`, in its dtype."""
    if type(x) is not np.ndarray:
        made: np.ndarray = getattr(wider(x), _METHODS[kind])(axis=dim)
        return made.astype(x.dtype, copy=False)
    found = _by_rows(kind, x, dim)
    if found is not None:
        return found
    return _UFUNCS[kind].accumulate(wider(x), dim).astype(x.dtype, copy=False)


def _by_rows(name: str, x: np.ndarray, dim: int, *others: np.ndarray) -> np.ndarray | None:
    last = x.ndim - 1
    if x.dtype.char not in "fd":
        return None
    arrays = [a if dim == last else a.swapaxes(dim, last) for a in (x, *others)]
    rows = [a if a.flags.c_contiguous else a.copy() for a in arrays]
    native = native_rows(name, rows[0], (last,))
    if native is None:
        return None
    made = native(*rows)
    return made if dim == last else made.swapaxes(dim, last).copy()


def recurrence(a: np.ndarray, b: np.ndarray, dim: int) -> np.ndarray | None:
    """Return y[j] = a[j] y[j - 1] + b[j] along `dim`, y[-1] being 0; None without native code."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return None
    if a.shape != b.shape or a.dtype is not b.dtype:
        return None
    return _by_rows("recurrence", a, dim, b)


def recurrence_back(a: TensorBase, b: TensorBase, dim: int) -> TensorBase | None:
    """Return h[j] = b[j] + a[j + 1] h[j + 1] along `dim`; None where operations are to be seen, and
    without native code.
    """
    if not unseen(a, b) or a.array.shape != b.array.shape or a.array.dtype is not b.array.dtype:
        return None
    found = _by_rows("recurrence_back", a.array, dim, b.array)
    return None if found is None else wrap(found)


def sums_back(g: TensorBase, dim: int) -> TensorBase | None:
    """Return the sums of each element and all behind it; None where operations are to be seen."""
    if not unseen(g):
        return None
    found = _by_rows("running_sum_back", g.array, dim)
    if found is None:
        back = (slice(None),) * dim + (slice(None, None, -1),)
        found = running("running_sum", g.array[back], dim)[back].copy()
    return wrap(found)


def others(x: TensorBase) -> TensorBase:
    """Product of all other elements along the last dim: exact with zeros, as nothing is divided."""
    if unseen(x) and x.array.dtype.kind == "f" and x.array.size:
        a = x.array
        before, behind = np.ones_like(a), np.ones_like(a)
        before[..., 1:] = running("running_product", a[..., :-1], a.ndim - 1)
        behind[..., -2::-1] = running("running_product", a[..., :0:-1], a.ndim - 1)
        return wrap(before * behind)
    return _before(x) * flip(_before(flip(x, -1)), -1)


def _before(x: TensorBase) -> TensorBase:
    """Product of the elements before each one along the last dim, in log2(n) doubling steps."""
    *rest, n = x.array.shape
    full = tuple((0, 1, s) for s in rest)
    x = _shift(x, full, 1)
    step = 1
    while step < n:
        x = x * _shift(x, full, step)
        step *= 2
    return x


def _shift(x: TensorBase, full: tuple[tuple[int, ...], ...], step: int) -> TensorBase:
    """Move the last dim by `step` places to the right, filling up with ones."""
    n = x.array.shape[-1]
    if not n:
        return x
    ones = as_tensor(namespace(x.array).ones((*x.array.shape[:-1], step), x.array.dtype))
    return cat([ones, slice_(x, (*full, (0, 1, n - step)))], -1)
