"""Scans: running products, sums of exponentials, extremes and differences along one dim.

`linear_recurrence`, y[j] = a[j] * y[j - 1] + b[j], carries the derivatives of the others and its
own: reversed in time it is its own transpose. So the gradient of cumprod divides by nothing and is
exact with zeros, and that of logcumsumexp only multiplies weights below 1. `cumsum`, which is
linear, is in reduction.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.casting import cast, converted, to_float, to_inexact
from probtorch.core.dispatch import apply
from probtorch.core.dtype import int64, promote_types
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.outputs import takes_out
from probtorch.core.shape import broadcast_shapes, normalize_dim
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.accumulate import wider
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponentials import exp
from probtorch.ops.families import structured
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, reshape, slice_
from probtorch.ops.named import ValuesIndices
from probtorch.ops.pieces import cat, flip
from probtorch.ops.reduction import cumsum, sum
from probtorch.ops.running import recurrence, recurrence_back, running

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op

__all__ = [
    "cummax",
    "cummin",
    "cumprod",
    "cumulative_trapezoid",
    "diff",
    "linear_recurrence",
    "logcumsumexp",
    "trapezoid",
]


def _part(x: TensorBase, dim: int, start: int, stop: int) -> TensorBase:
    """Elements start to stop - 1 along `dim`."""
    shape = x.array.shape
    return slice_(
        x, tuple((start, 1, stop - start) if i == dim else (0, 1, n) for i, n in enumerate(shape))
    )


def _delayed(x: TensorBase, dim: int, first: float) -> TensorBase:
    """Move `x` one place later along `dim`, with the number `first` at its start."""
    n = x.array.shape[dim]
    if n == 0:
        return x
    start = _part(x, dim, 0, 1) * 0.0 + first
    return cat([start, _part(x, dim, 0, n - 1)], dim)


def _advanced(x: TensorBase, dim: int) -> TensorBase:
    """Move `x` one place earlier along `dim`, with 0 at its end."""
    return flip(_delayed(flip(x, dim), dim, 0.0), dim)


def _backward(a: TensorBase, b: TensorBase, dim: int) -> TensorBase:
    """Solve h[j] = b[j] + a[j + 1] h[j + 1] from the end."""
    short = recurrence_back(a, b, dim)
    if short is not None:
        return short
    step = _advanced(a, dim)
    return flip(apply(_RECURRENCE, (flip(step, dim), flip(b, dim)), {"dim": dim}), dim)


def _dim_and_tensor(name: str, x: TensorLike, dim: int) -> tuple[TensorBase, int]:
    x = as_tensor(x, name)
    return x, normalize_dim(dim, x.array.ndim, name)


# --------------------------------------------------------------------------------------- recurrence


def _run_recurrence(a: np.ndarray, b: np.ndarray, dim: int) -> np.ndarray:
    dtype, native = b.dtype, recurrence(a, b, dim)
    if native is not None:
        return native
    a, b = wider(a).swapaxes(0, dim), wider(b).swapaxes(0, dim)
    out = namespace(b).empty_like(b)
    last = 0.0
    for j in range(b.shape[0]):
        last = out[j] = a[j] * last + b[j] if j else b[j]
    return out.swapaxes(0, dim).astype(dtype, copy=False)


def _recurrence_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase | None, TensorBase]:
    dim = attrs["dim"]
    h = _backward(inputs[0], g, dim)
    return h * _delayed(out, dim, 0.0) if needs[0] else None, h


def _recurrence_jvp(
    tangents: tuple[TensorBase | None, ...],
    out: TensorBase,
    inputs: tuple[TensorBase, TensorBase],
    attrs: Attrs,
) -> TensorBase:
    dim = attrs["dim"]
    push = None if tangents[0] is None else tangents[0] * _delayed(out, dim, 0.0)
    if tangents[1] is not None:
        push = tangents[1] if push is None else push + tangents[1]
    return apply(_RECURRENCE, (inputs[0], push), attrs)


def _recurrence_reference(a: np.ndarray, b: np.ndarray, dim: int) -> np.ndarray:
    a, b = np.moveaxis(a, dim, -1), np.moveaxis(b, dim, -1)
    n = b.shape[-1]
    terms = [
        np.sum([b[..., i] * np.prod(a[..., i + 1 : j + 1], axis=-1) for i in range(j + 1)], axis=0)
        for j in range(n)
    ]
    return np.moveaxis(np.stack(terms, -1), -1, dim)


_RECURRENCE = structured(
    "linear_recurrence",
    "scan",
    run=_run_recurrence,
    vjp=_recurrence_vjp,
    jvp=_recurrence_jvp,
    saves="a out",
    core="dim",
    native="scan",
    samples=lambda rng: [
        ((rng.standard_normal((2, 4)), rng.standard_normal((2, 4))), {"dim": 1}),
        ((rng.standard_normal((3, 2)), rng.standard_normal((3, 2))), {"dim": 0}),
        ((rng.standard_normal((1,)), rng.standard_normal((1,))), {"dim": 0}),
    ],
    reference=_recurrence_reference,
    complex=True,
    doc="y[j] = a[j] * y[j - 1] + b[j] along one dim, with y[-1] = 0.",
)


def linear_recurrence(a: TensorBase, b: TensorBase, dim: int = -1) -> TensorBase:
    """Return y with ``y[j] = a[j] * y[j - 1] + b[j]`` along `dim`, starting from 0.

    Parameters
    ----------
    a, b : Tensor
        Broadcast together; ``a[0]`` is not used.
    dim : int
        Counted in the broadcast shape.

    Returns
    -------
    Tensor

    Notes
    -----
    Differentiable in both to every order, in time linear in the length.
    """
    a, b = to_float(as_tensor(a, "linear_recurrence")), to_float(as_tensor(b, "linear_recurrence"))
    shape = broadcast_shapes(a.array.shape, b.array.shape, op="linear_recurrence")
    if not shape:
        raise ShapeError(
            "linear_recurrence",
            expected="at least one dim, the one to run along",
            got="0-d tensors",
            fix="reshape them to (1,)",
        )
    dtype = promote_types(a.array.dtype, b.array.dtype)
    dim = normalize_dim(dim, len(shape), "linear_recurrence")
    return apply(
        _RECURRENCE, (expand(cast(a, dtype), shape), expand(cast(b, dtype), shape)), {"dim": dim}
    )


# ----------------------------------------------------------------------------------------- products


def _cumprod_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    dim = attrs["dim"]
    return (_backward(inputs[0], g, dim) * _delayed(out, dim, 1.0),)


def _cumprod_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    dim = attrs["dim"]
    push = tangents[0] * _delayed(out, dim, 1.0)
    return apply(_RECURRENCE, (inputs[0], push), {"dim": dim})


_CUMPROD = structured(
    "cumprod",
    "scan",
    run=lambda x, dim: running("running_product", x, dim),
    vjp=_cumprod_vjp,
    jvp=_cumprod_jvp,
    saves="x out",
    core="dim",
    native="scan",
    samples=lambda rng: [
        ((rng.standard_normal((2, 4)),), {"dim": 1}),
        ((np.array([2.0, 0.0, 3.0, 0.0]),), {"dim": 0}),
        ((rng.standard_normal((0, 2)),), {"dim": 0}),
    ],
    reference=lambda x, dim: np.multiply.accumulate(x, dim),
    complex=True,
    doc="Running product along one dim.",
)


@takes_out
def cumprod(
    input: TensorLike,
    dim: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the running product along `dim`; without it, of the flattened tensor.

    Cast to `dtype` first where that is given. The gradient is exact where elements are 0.
    """
    input = converted(input, dtype, "cumprod")
    if dim is None:
        input, dim = reshape(input, -1), 0
    input, dim = _dim_and_tensor("cumprod", input, dim)
    if dtype is None and input.array.dtype.kind in "bui":
        input = cast(input, int64)
    return apply(_CUMPROD, (input,), {"dim": dim}) if input.array.ndim else input


# ------------------------------------------------------------------------------------- logcumsumexp


def _run_logcumsumexp(x: np.ndarray, dim: int) -> np.ndarray:
    xp, wide = namespace(x), wider(x)
    if xp is np:
        return np.logaddexp.accumulate(wide, axis=dim).astype(x.dtype, copy=False)
    moved = wide.swapaxes(0, dim)
    out = xp.empty_like(moved)
    for j in range(moved.shape[0]):
        out[j] = xp.logaddexp(out[j - 1], moved[j]) if j else moved[j]
    return out.swapaxes(0, dim).astype(x.dtype, copy=False)


def _share(x: TensorBase, y: TensorBase) -> TensorBase:
    """exp(x - y) for x <= y: 1 where both are +inf, 0 where x is -inf."""
    same = eq(x, y)
    weight = exp(where(same, 0.0, x - where(same, 0.0, y)))
    return where(eq(x, -math.inf), 0.0, weight)


def _logcumsumexp_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    dim = attrs["dim"]
    carried = _share(_delayed(out, dim, -math.inf), out)
    return (_backward(carried, g, dim) * _share(inputs[0], out),)


def _logcumsumexp_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    dim = attrs["dim"]
    carried = _share(_delayed(out, dim, -math.inf), out)
    return apply(_RECURRENCE, (carried, tangents[0] * _share(inputs[0], out)), {"dim": dim})


_LOGCUMSUMEXP = structured(
    "logcumsumexp",
    "scan",
    run=_run_logcumsumexp,
    vjp=_logcumsumexp_vjp,
    jvp=_logcumsumexp_jvp,
    saves="x out",
    core="dim",
    native="scan",
    samples=lambda rng: [
        ((rng.standard_normal((2, 4)),), {"dim": 1}),
        ((rng.standard_normal((3, 2)),), {"dim": 0}),
    ],
    reference=lambda x, dim: np.log(np.cumsum(np.exp(x), dim)),
    doc="log of the running sum of exp(x) along one dim, without overflow.",
)


@takes_out
def logcumsumexp(input: TensorLike, dim: int, *, out: TensorBase | None = None) -> TensorBase:
    """Return ``log(cumsum(exp(input)))`` along `dim` without overflow.

    A prefix of -inf gives -inf with gradient 0.
    """
    input, dim = _dim_and_tensor("logcumsumexp", input, dim)
    input = to_float(input)
    return apply(_LOGCUMSUMEXP, (input,), {"dim": dim}) if input.array.ndim else input


# --------------------------------------------------------------------------------- running extremes


def _run_extreme_index(name: str) -> Callable[[np.ndarray, int], np.ndarray]:
    def run(x: np.ndarray, dim: int) -> np.ndarray:
        xp = namespace(x)
        best = getattr(xp, name).accumulate(x, axis=dim)
        order = xp.arange(x.shape[dim]).reshape([-1 if i == dim else 1 for i in range(x.ndim)])
        # The last of several equal ones, as in PyTorch; the first nan stays for good.
        return xp.maximum.accumulate(xp.where((x == best) | (x != x), order, 0), axis=dim)

    return run


def _extreme_index_reference(
    pick: Callable[[np.ndarray], np.ndarray],
) -> Callable[[np.ndarray, int], np.ndarray]:
    def reference(x: np.ndarray, dim: int) -> np.ndarray:
        moved = np.moveaxis(x, dim, -1)
        out = np.zeros(moved.shape, np.int64)
        for at in np.ndindex(moved.shape):
            row = moved[at[:-1]][: at[-1] + 1]
            out[at] = max(i for i, v in enumerate(row) if v == pick(row))
        return np.moveaxis(out, -1, dim)

    return reference


def _extreme_index(name: str, ufunc: str, pick: Callable[[np.ndarray], np.ndarray]) -> Op:
    return structured(
        name,
        "scan",
        run=_run_extreme_index(ufunc),
        core="dim",
        native="scan",
        samples=lambda rng: [
            ((rng.standard_normal((2, 5)),), {"dim": 1}),
            ((np.array([1.0, 3.0, 3.0, 2.0]),), {"dim": 0}),
        ],
        reference=_extreme_index_reference(pick),
        doc="Index of the running extreme along one dim, the last of equal ones.",
    )


_CUMMAX = _extreme_index("cummax_index", "maximum", max)
_CUMMIN = _extreme_index("cummin_index", "minimum", min)


def _running(name: str, op: Op, x: TensorLike, dim: int) -> ValuesIndices:
    x, dim = _dim_and_tensor(name, x, dim)
    if x.array.ndim == 0:
        x = reshape(x, (1,))
        index = apply(op, (x,), {"dim": 0})
        return ValuesIndices(reshape(x, ()), reshape(index, ()))
    index = apply(op, (x,), {"dim": dim})
    return ValuesIndices(gather(x, dim, index), index)


@takes_out
def cummax(
    input: TensorLike, dim: int, *, out: tuple[TensorBase, ...] | None = None
) -> ValuesIndices:
    """Return ``(values, indices)`` of the largest element so far along `dim`.

    nan wins; of equal elements the last is the index, and receives the gradient.
    """
    return _running("cummax", _CUMMAX, input, dim)


@takes_out
def cummin(
    input: TensorLike, dim: int, *, out: tuple[TensorBase, ...] | None = None
) -> ValuesIndices:
    """Return ``(values, indices)`` of the smallest element so far along `dim`; as `cummax`."""
    return _running("cummin", _CUMMIN, input, dim)


# -------------------------------------------------------------------------------------- differences


@takes_out
def diff(
    input: TensorBase,
    n: int = 1,
    dim: int = -1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
    *,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return the n-th differences of neighbours along `dim`; booleans give whether they differ.

    Parameters
    ----------
    input : Tensor
    n : int
        How often differences are taken; each time the dim gets one shorter.
    dim : int
    prepend, append : Tensor, optional
        Joined to `input` along `dim` first.
    """
    input, dim = _dim_and_tensor("diff", input, dim)
    if n < 0 or input.array.ndim == 0:
        raise ArgumentError(
            "diff",
            expected="n >= 0 and at least one dim",
            got=f"n={n} and shape {input.array.shape}",
            fix="check the order and the shape",
        )
    ends = [as_tensor(e, "diff") if e is not None else None for e in (prepend, append)]
    input = (
        cat([t for t in (ends[0], input, ends[1]) if t is not None], dim)
        if any(e is not None for e in ends)
        else input
    )
    for _ in range(n):
        size = input.array.shape[dim]
        if size == 0:
            break
        later, earlier = _part(input, dim, 1, size), _part(input, dim, 0, size - 1)
        input = later != earlier if input.array.dtype.kind == "b" else later - earlier
    return input


def _panels(y: TensorLike, x: TensorLike | None, dx: float, dim: int) -> tuple[TensorBase, int]:
    """Areas between neighbours, and the dim."""
    y, dim = _dim_and_tensor("trapezoid", y, dim)
    if not y.array.ndim:
        raise ShapeError(
            "trapezoid", expected="at least one dim", got="a 0-d tensor", fix="reshape it to (1,)"
        )
    y = to_inexact(y)
    size = y.array.shape[dim]
    heights = _part(y, dim, 1, size) + _part(y, dim, 0, size - 1)
    if x is None:
        return heights * (0.5 * dx), dim
    x = to_inexact(as_tensor(x, "trapezoid"))
    if x.array.ndim == 1:
        x = reshape(x, [-1 if i == dim else 1 for i in range(y.array.ndim)])
    return heights * diff(x, dim=dim - y.array.ndim) * 0.5, dim


@in_our_words
def trapezoid(
    y: TensorLike, x: TensorLike | None = None, *, dx: float = 1.0, dim: int = -1
) -> TensorBase:
    """Return the integral of `y` along `dim` by the trapezoidal rule.

    Parameters
    ----------
    y : Tensor
    x : Tensor, optional
        Where `y` was taken: a vector, or of a shape that broadcasts with `y`.
    dx : float
        Distance of the points where `x` is not given.
    dim : int
    """
    areas, dim = _panels(y, x, dx, dim)
    return sum(areas, dim)


@in_our_words
def cumulative_trapezoid(
    y: TensorBase, x: TensorBase | None = None, *, dx: float = 1.0, dim: int = -1
) -> TensorBase:
    """Return the running integral of `y` along `dim`, one element shorter; as `trapezoid`."""
    areas, dim = _panels(y, x, dx, dim)
    return cumsum(areas, dim)
