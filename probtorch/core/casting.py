"""`cast`, the one op that promotion needs, from one dtype to another; `to_float`, `to_inexact`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probtorch.backends.registry import array_module
from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import apply
from probtorch.core.making import as_tensor
from probtorch.core.op import REGISTRY, Attrs, Op, register
from probtorch.core.refusals import complex_refused
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number, number_alone
from probtorch.core.typed import DType, DTypeLike, TensorLike

__all__ = ["CAST", "cast", "cast_array", "converted", "to_float", "to_inexact"]


def _run_cast(x: np.ndarray, dtype: DTypeLike | None) -> np.ndarray:
    kind = np.dtype(dtype).kind
    if x.dtype.kind == "f" and kind in "iu":
        return _to_integers(x, np.dtype(dtype))
    return x.astype(dtype)


def _to_integers(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Return floats as integers, the same on every processor and in compiled code.

    Floats beyond the range become its largest or smallest integer, nan becomes 0. The dtypes of
    one and two bytes take the last bits of an int32, as in PyTorch.
    """
    wide = dtypes.int32 if dtype.itemsize < 4 or dtype == dtypes.int32 else dtypes.int64
    out = x.astype(wide)
    if x.dtype.itemsize == 2:
        x = x.astype(dtypes.float32)
    beyond = 2.0 ** (8 * wide.itemsize - 1)
    inside = (x > -beyond) & (x < beyond)
    if not inside.all():
        xp, limits = array_module(x), np.iinfo(wide)
        out = xp.where(x >= beyond, limits.max, xp.where(x <= -beyond, limits.min, out))
        out = xp.where(x != x, 0, out).astype(wide)
    return out.astype(dtype, copy=False)


def _cast_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    dtype = inputs[0].array.dtype
    if g.array.dtype.kind == "c" and dtype.kind != "c":
        # Of a real number only the real part can change. By its name, as the op is made later.
        g = apply(REGISTRY["real"], (g,))
    return (cast(g, dtype),)


def _cast_jvp(
    tangents: Sequence[TensorBase],
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> TensorBase:
    return cast(tangents[0], attrs["dtype"])


CAST = register(
    Op(
        "cast",
        "cast",
        _run_cast,
        _cast_vjp,
        _cast_jvp,
        saves=(),
        core="()->()",
        samples=lambda rng: [
            ((rng.standard_normal((2, 3)).astype(np.float32),), {"dtype": dtypes.float64}),
            ((np.arange(3),), {"dtype": dtypes.float64}),
            ((rng.standard_normal(4),), {"dtype": dtypes.int32}),
        ],
        reference=lambda x, dtype: x.astype(dtype),
        doc="Convert to another dtype.",
    )
)


def cast(x: TensorBase, dtype: DType) -> TensorBase:
    """Return `x` in `dtype`: the same tensor if it already is, and stands for no Python number.

    Complex numbers are converted to complex ones and to truth values; that they lose their
    imaginary part in silence would be a mistake that nobody sees.
    """
    if x.array.dtype == dtype:
        return x if x._extra is None or not is_number(x) else number_alone(x)
    if x.array.dtype.kind == "c" and np.dtype(dtype).kind not in "cb":
        raise complex_refused(CAST)
    return apply(CAST, (x,), {"dtype": dtype})


def cast_array(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Return an array in `dtype`, as `cast` does a tensor."""
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        raise complex_refused(CAST)
    return _run_cast(x, dtype)


def converted(x: TensorLike, dtype: DTypeLike | None, op: str) -> TensorBase:
    """Return `x` as a tensor, in `dtype` where that is given."""
    x = as_tensor(x, op)
    return x if dtype is None else cast(x, dtypes.as_dtype(dtype))


def to_float(x: TensorBase) -> TensorBase:
    """Return `x` in the default float dtype if it is of integers or booleans; refuse complex."""
    return x if x.array.dtype.kind == "f" else cast(x, dtypes.default_dtype())


def to_inexact(x: TensorBase) -> TensorBase:
    """Return `x` in the default float dtype if it is of integers or booleans; complex as it is."""
    return x if x.array.dtype.kind in "fc" else cast(x, dtypes.default_dtype())
