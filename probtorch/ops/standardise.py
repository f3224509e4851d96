"""Standardising as one op: subtract the mean over dims and divide by the standard deviation.

Layer, group, batch and instance normalisation are this op and a scale. Statistics of half precision
are computed in single precision; those of single precision keep their digits beside a large mean.
The derivative is the one that Ioffe and Szegedy (2015) write out for batch normalisation.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import to_float
from probtorch.core.dispatch import apply, unheard, unseen, wrap
from probtorch.core.dtype import float16, float32
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import DTypeError
from probtorch.ops.accumulate import add_up, floats
from probtorch.ops.arithmetic import rsqrt
from probtorch.ops.families import structured, unbroadcast
from probtorch.ops.movement import expand
from probtorch.ops.native_rows import alike, as_rows, native_rows
from probtorch.ops.reduction import centred, mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from probtorch.core.op import Attrs


__all__ = ["layer_norm_rows", "standardise"]


def _run_standardise(x: np.ndarray, dims: tuple[int, ...], eps: float) -> tuple[np.ndarray, ...]:
    x = floats(x)
    if x.dtype == float16:
        return tuple(a.astype(x.dtype) for a in _run_standardise(x.astype(float32), dims, eps))
    native = native_rows("standardise", x, dims, several=True)
    if native is not None:
        return _by_rows(native, x, dims, eps)
    xp, n = namespace(x), math.prod(x.shape[d] for d in dims)
    centre = add_up(x, dims, True) / n
    d = x - centre
    if x.dtype == float32:
        shift = add_up(d, dims, True) / n
        centre, d = centre + shift, d - shift
    spread = add_up(d * d, dims, True) / n
    return xp.divide(d, xp.sqrt(spread + eps), out=d if d.ndim else None), centre, spread


def _by_rows(
    native: Callable[..., tuple[np.ndarray, ...]], x: np.ndarray, dims: tuple[int, ...], eps: float
) -> tuple[np.ndarray, ...]:
    if len(dims) == 1:
        return native(x, eps)
    kept = *x.shape[: x.ndim - len(dims)], *[1] * len(dims)
    y, centre, spread = native(as_rows(x, dims), eps)
    return y.reshape(x.shape), centre.reshape(kept), spread.reshape(kept)


def _standardise_vjp(
    g: tuple[TensorBase | None, ...],
    out: tuple[TensorBase, ...],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    (gy, gm, gv), (y, _, spread), dims = g, out, attrs["dims"]
    if (
        gy is not None
        and gm is None
        and gv is None
        and unseen(gy, y, spread)
        and gy.array.dtype != float16
    ):
        return (_slope(gy.array, y.array, spread.array, dims, attrs["eps"]),)
    r, out_x = rsqrt(spread + attrs["eps"]), None
    if gy is not None:
        out_x = (gy - mean(gy, dims, True) - y * mean(gy * y, dims, True)) * r
    n = max(y.array.size, 1) / max(spread.array.size, 1)
    for part in (
        None if gm is None else gm / n + y * 0.0,
        None if gv is None else y * (gv * (2.0 / n)) / r,
    ):
        if part is not None:
            out_x = part if out_x is None else out_x + part
    return (out_x,)


def _slope(
    g: np.ndarray, y: np.ndarray, spread: np.ndarray, dims: tuple[int, ...], eps: float
) -> TensorBase:
    """Gradient in x of the standardised y alone, whose gradient is g, in few passes."""
    native = native_rows("standardise_slope", y, dims, several=True)
    if native is not None and alike(g, y):
        g_rows, y_rows = as_rows(g, dims), as_rows(y, dims)
        kept = spread.reshape(*y_rows.shape[:-1], 1) if len(dims) > 1 else spread
        return wrap(native(g_rows, y_rows, kept, eps).reshape(y.shape))
    n = max(y.size, 1) / max(spread.size, 1)
    slope = np.asarray(y * g)
    along = add_up(slope, dims, True) / n
    np.multiply(y, along, out=slope)
    np.subtract(g, slope, out=slope)
    slope -= add_up(g, dims, True) / n
    slope /= np.sqrt(spread + eps)
    return wrap(slope)


def _standardise_jvp(
    tangents: tuple[TensorBase, ...],
    out: tuple[TensorBase, ...],
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> tuple[TensorBase, ...]:
    (t,), (y, _, spread), dims = tangents, out, attrs["dims"]
    r = rsqrt(spread + attrs["eps"])
    moved = mean(t, dims, True)
    along = mean(t * y, dims, True)
    return (t - moved - y * along) * r, moved, along * 2.0 / r


def _decomposed_standardise(
    x: TensorBase, dims: tuple[int, ...], eps: float
) -> tuple[TensorBase, TensorBase, TensorBase]:
    x = to_float(x)
    centre = mean(x, dims, True)
    d = centred(x, dims)
    spread = mean(d * d, dims, True)
    return d * rsqrt(spread + eps), centre, spread


def _reference(
    x: np.ndarray, dims: tuple[int, ...], eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = max(math.prod(x.shape[d] for d in dims), 1)
    centre = x.sum(axis=dims, keepdims=True) / n
    spread = ((x - centre) ** 2).sum(axis=dims, keepdims=True) / n
    return (x - centre) / np.sqrt(spread + eps), centre, spread


_STANDARDISE = structured(
    "standardise",
    "reduction",
    run=_run_standardise,
    vjp=_standardise_vjp,
    jvp=_standardise_jvp,
    saves="out",
    num_outputs=3,
    core="dims",
    samples=lambda rng: [
        ((rng.standard_normal((2, 3, 4)),), {"dims": (1, 2), "eps": 1e-5}),
        ((rng.standard_normal((4, 3)),), {"dims": (0,), "eps": 0.1}),
    ],
    reference=_reference,
    doc="(x - mean) / sqrt(variance + eps) over dims, the mean and the variance (by n).",
    extra={"decompose": _decomposed_standardise},
)


def standardise(
    x: TensorBase, dims: tuple[int, ...], eps: float
) -> tuple[TensorBase, TensorBase, TensorBase]:
    """Return (standardised x, mean, variance) over `dims`, the last two with dims of size 1."""
    if x.array.dtype.kind != "f":
        raise DTypeError(
            "normalisation",
            expected="a floating dtype",
            got=str(x.array.dtype),
            fix="call .float() first",
        )
    dims = tuple(d % x.array.ndim for d in dims)
    return apply(_STANDARDISE, (x,), {"dims": dims, "eps": float(eps)})


# ------------------------------------------------------------------------------ scaled and shifted


def _run_layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    native = native_rows("layer_norm", x, (x.ndim - 1,))
    if native is not None and weight.flags.c_contiguous and bias.flags.c_contiguous:
        return native(x, weight, bias, eps)
    return _run_standardise(x, (x.ndim - 1,), eps)[0] * floats(weight) + floats(bias)


def _layer_norm_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, ...]:
    (x, weight, bias), eps = inputs, attrs["eps"]
    dims = (x.array.ndim - 1,)
    if unseen(g, x, weight) and weight.array.ndim == 1 and alike(g.array, x.array):
        native = native_rows("layer_norm_slope", x.array, dims)
        if native is not None and weight.array.flags.c_contiguous:
            shape, dtype = x.array.shape, x.array.dtype
            rows = -1, shape[-1]
            slope, *sums = native(g.array.reshape(rows), x.array.reshape(rows), weight.array, eps)
            return wrap(slope.reshape(shape)), *(wrap(s.astype(dtype, copy=False)) for s in sums)
    y, _, spread = standardise(x, dims, eps)
    of_x = None
    if needs[0]:
        gy = g * weight
        last = (gy.array.ndim - 1,)
        of_x = (gy - mean(gy, last, True) - y * mean(gy * y, last, True)) * rsqrt(spread + eps)
        of_x = unbroadcast(of_x, x.array.shape)
    return (
        of_x,
        unbroadcast(g * y, weight.array.shape) if needs[1] else None,
        unbroadcast(g, bias.array.shape) if needs[2] else None,
    )


def _layer_norm_jvp(
    tangents: tuple[TensorBase | None, ...],
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
) -> TensorBase:
    (tx, tw, tb), (x, weight, _), dims = tangents, inputs, (inputs[0].array.ndim - 1,)
    stats = standardise(x, dims, attrs["eps"])
    parts = [tb] if tb is not None else []
    parts += [stats[0] * tw] if tw is not None else []
    if tx is not None:
        moved = _standardise_jvp((tx,), stats, (x,), {"dims": dims, "eps": attrs["eps"]})[0]
        parts.append(moved * weight)
    return expand(functools.reduce(operator.add, parts), out.array.shape)


def _decomposed_layer_norm(
    x: TensorBase, weight: TensorBase, bias: TensorBase, eps: float
) -> TensorBase:
    return _decomposed_standardise(x, (x.array.ndim - 1,), eps)[0] * weight + bias


_LAYER_NORM = structured(
    "layer_norm",
    "reduction",
    run=_run_layer_norm,
    vjp=_layer_norm_vjp,
    jvp=_layer_norm_jvp,
    saves="x weight",
    core="(n),(n),(n)->(n)",
    samples=lambda rng: [
        (tuple(rng.standard_normal(s) for s in ((3, 4), (4,), (4,))), {"eps": 1e-5}),
        (tuple(rng.standard_normal(s) for s in ((2, 3, 20), (20,), (20,))), {"eps": 0.1}),
        (tuple(rng.standard_normal((2, 5)) for _ in range(3)), {"eps": 0.1}),
    ],
    reference=lambda x, weight, bias, eps: _reference(x, (x.ndim - 1,), eps)[0] * weight + bias,
    doc="Rows standardised, scaled by weight and shifted by bias.",
    extra={"decompose": _decomposed_layer_norm},
)


def layer_norm_rows(
    x: TensorBase, weight: TensorBase, bias: TensorBase, eps: float
) -> TensorBase | None:
    """Return `x` standardised over its last dim, times `weight` plus `bias`, as one operation; None
    where that is not the shorter way. The shapes (..., n), (n,) and (n,) are known to fit.

    Recordings take the parts, which they fuse with what is around them.
    """
    if not unheard() or not x.array.dtype == weight.array.dtype == bias.array.dtype:
        return None
    if native_rows("layer_norm", x.array, (x.array.ndim - 1,)) is None:
        return None
    return apply(_LAYER_NORM, (x, weight, bias), {"eps": float(eps)})
