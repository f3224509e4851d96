"""`assert_close`: equality up to the rounding that a dtype deserves.

A failure shows how many elements differ and the worst of them, because one number is what a reader
needs first.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType

__all__ = ["TOLERANCES", "assert_close", "to_array", "tolerances"]

# Relative and absolute, per dtype: about 2e4, 20 and 2 units in the last place, which leaves room
# for a few dozen roundings, and an absolute part for results that should be 0.
TOLERANCES = {
    np.dtype(np.float64): (5e-12, 1e-13),
    np.dtype(np.float32): (3e-6, 1e-6),
    np.dtype(np.float16): (2e-3, 1e-3),
    np.dtype(np.complex128): (5e-12, 1e-13),
    np.dtype(np.complex64): (3e-6, 1e-6),
}


def to_array(x: object) -> np.ndarray:
    """Return `x` (tensor, array, number or nested sequence) as a host array, gradient or not."""
    if isinstance(x, TensorBase):
        return np.asarray(to_host(x.array))
    if isinstance(x, (list, tuple)):
        return np.asarray([to_array(item) for item in x])
    return np.asarray(x)


def tolerances(*dtypes: DType) -> tuple[float, float]:
    """Return ``(rtol, atol)`` of the coarsest of some dtypes; zeros for integers and booleans."""
    found = [TOLERANCES[d] for d in dtypes if d in TOLERANCES]
    return max(found, default=(0.0, 0.0))


def assert_close(
    actual: object,
    expected: object,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    check_dtype: bool = False,
    msg: str = "",
) -> None:
    """Raise AssertionError unless ``|actual - expected| <= atol + rtol * |expected|`` everywhere.

    Parameters
    ----------
    actual : Tensor, array, or a tree of them
        Sequences and mappings of tensors are compared item by item, as deep as they go.
    expected : Tensor, array, number or nested sequence, or a tree like `actual`
        Must have the shape of `actual`. Its dtype counts for the tolerance only if it is a tensor
        or an array.
    rtol, atol : float, optional
        Tolerances; by default those of the coarser dtype, see `TOLERANCES`.
    equal_nan : bool
        Whether nan equals nan. Infinities must agree in sign and place in any case.
    check_dtype : bool
        Whether the dtypes must be equal.
    msg : str
        Put before the message.

    Raises
    ------
    AssertionError
        With the number of wrong elements and the worst of them, and where in a tree they are.
    """
    head = f"{msg}: " if msg else ""
    if isinstance(actual, Mapping) or (_is_tree(actual) and isinstance(expected, (list, tuple))):
        mine, theirs = _items(actual), _items(expected)
        if list(mine) != list(theirs):
            there = list(theirs) if theirs else type(expected).__name__
            raise AssertionError(f"{head}items differ: got {list(mine)}, expected {there}")
        for key, item in mine.items():
            assert_close(
                item,
                theirs[key],
                rtol=rtol,
                atol=atol,
                equal_nan=equal_nan,
                check_dtype=check_dtype,
                msg=f"{msg}[{key!r}]",
            )
        return
    a, e = to_array(actual), to_array(expected)
    if check_dtype and a.dtype != e.dtype:
        raise AssertionError(f"{head}dtypes differ: got {a.dtype}, expected {e.dtype}")
    if a.shape != e.shape:
        raise AssertionError(f"{head}shapes differ: got {a.shape}, expected {e.shape}")
    typed = isinstance(expected, (TensorBase, np.ndarray, np.generic))
    default = tolerances(a.dtype, *([e.dtype] if typed else []))
    rtol = default[0] if rtol is None else rtol
    atol = default[1] if atol is None else atol
    if np.isclose(a, e, rtol=rtol, atol=atol, equal_nan=equal_nan).all():
        return
    raise AssertionError(head + _explain(a, e, rtol, atol, equal_nan))


def _is_tree(x: object) -> bool:
    """Whether something holds tensors or arrays, and is not numbers alone."""
    if isinstance(x, Mapping):
        return True
    return isinstance(x, (list, tuple)) and any(
        isinstance(item, (TensorBase, np.ndarray)) or _is_tree(item) for item in x
    )


def _items(x: object) -> dict[object, object]:
    """The items of a sequence or a mapping by their keys, in an order of their own."""
    if isinstance(x, Mapping):
        return {key: x[key] for key in sorted(x, key=repr)}
    return dict(enumerate(x)) if isinstance(x, (list, tuple)) else {}


def _explain(a: np.ndarray, e: np.ndarray, rtol: float, atol: float, equal_nan: bool) -> str:
    wrong = ~np.isclose(a, e, rtol=rtol, atol=atol, equal_nan=equal_nan)
    wide = np.complex128 if np.iscomplexobj(a) or np.iscomplexobj(e) else np.float64
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = np.abs(np.asarray(a, wide) - np.asarray(e, wide))
        excess = np.where(wrong, gap / (atol + rtol * np.abs(np.asarray(e, wide))), -1.0)
    excess = np.where(wrong & ~np.isfinite(excess), np.inf, excess)
    worst = np.unravel_index(int(np.argmax(excess)), a.shape)
    where = tuple(int(i) for i in worst)
    finite = np.isfinite(gap[worst]) and np.isfinite(e[worst]) and e[worst] != 0
    relative = gap[worst] / abs(e[worst]) if finite else np.inf
    return "\n".join(
        [
            f"{int(wrong.sum())} of {a.size} elements differ; the worst is at {where}",
            f"  got:      {a[worst]!r}",
            f"  expected: {e[worst]!r}",
            f"  apart by: {gap[worst]:.3g} absolute, {relative:.3g} relative",
            f"  allowed:  {atol:.3g} absolute plus {rtol:.3g} relative",
        ]
    )


explain_calls(globals())
