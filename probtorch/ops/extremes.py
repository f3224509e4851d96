"""Largest and smallest elements along dims, and where they are.

Ties of amax and amin share the gradient evenly. `max` and `min` are PyTorch's: without a dim a
tensor, with one a pair, with a second tensor the elementwise one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, whole_door
from probtorch.core.outputs import takes_out
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Dims, TensorLike
from probtorch.errors import ShapeError
from probtorch.ops.accumulate import over_short_rows, reduced
from probtorch.ops.comparisons import eq
from probtorch.ops.families import structured
from probtorch.ops.named import ValuesIndices

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op
from probtorch.ops.reduction import (
    Sample,
    count_over,
    laid_over,
    reduction_arguments,
    reduction_samples,
    sum,
)

# Elements from which on a reduction is the faster way to the largest of them.
_MANY = 512

__all__ = [
    "amax",
    "amin",
    "argmax",
    "argmin",
    "max",
    "min",
]


def _extreme_vjp(
    g: TensorBase,
    out: TensorBase,
    inputs: tuple[TensorBase, ...],
    attrs: Attrs,
    needs: Sequence[bool],
) -> tuple[TensorBase, ...]:
    (x,), dims = inputs, attrs["dims"]
    at = cast(eq(x, laid_over(out, x, dims)), g.array.dtype)
    share = at / sum(at, dims, True)
    return (share * laid_over(g, x, dims),)


def _extreme_jvp(
    tangents: tuple[TensorBase, ...], out: TensorBase, inputs: tuple[TensorBase, ...], attrs: Attrs
) -> TensorBase:
    (x,), dims = inputs, attrs["dims"]
    at = cast(eq(x, laid_over(out, x, dims)), out.array.dtype)
    return sum(at * tangents[0], dims, attrs["keepdim"]) / sum(at, dims, attrs["keepdim"])


def _extreme(name: str, method: str, reference: Callable[..., object], doc: str) -> Op:
    ufunc = {"max": np.maximum, "min": np.minimum}[method]

    place = {"max": np.ndarray.argmax, "min": np.ndarray.argmin}[method]

    def run(x: np.ndarray, dims: tuple[int, ...], keepdim: bool) -> np.ndarray:
        if x.ndim == len(dims) == 1 and type(x) is np.ndarray and 0 < x.size < _MANY:
            # To find where it is takes a sixth of what the reduction takes to begin. The place
            # of nan is that of both.
            at = place(x)
            return x[at : at + 1].copy() if keepdim else x[at]
        short = over_short_rows(x, dims, keepdim, ufunc)
        if short is not None:
            return short
        if type(x) is np.ndarray:
            return reduced(ufunc, x, dims, keepdim)
        return getattr(x, method)(axis=dims, keepdims=keepdim)

    return structured(
        name,
        "reduction",
        run=run,
        vjp=_extreme_vjp,
        jvp=_extreme_jvp,
        saves="x out",
        core="dims",
        native="reduce",
        samples=reduction_samples,
        doc=doc,
        reference=lambda x, dims, keepdim: reference(x, axis=dims, keepdims=keepdim),
        extra={"picks": True},
    )


_AMAX = _extreme("amax", "max", np.max, "Largest element over dims.")


# What is taken off before `exp`, and put back after: whatever it is, it cancels, so that no
# derivative has to go through it. For decompositions; the maximum that users call is `amax`.
_PEAK = structured(
    "peak",
    "reduction",
    run=_AMAX.run,
    core="dims",
    native="reduce",
    samples=reduction_samples,
    doc="Largest element over dims, a constant of every derivative.",
    reference=_AMAX.reference,
)


_AMIN = _extreme("amin", "min", np.min, "Smallest element over dims.")


def _extremum(
    op: Op, x: TensorLike, dim: Dims, keepdim: bool, axis: Dims, keepdims: bool
) -> TensorBase:
    x, dims = reduction_arguments(x, dim, axis, op.name)
    if op.vjp is None and len(dims) not in (1, x.array.ndim) and x.array.ndim:
        raise ShapeError(
            op.name,
            expected="one dim, or none for the flattened tensor",
            got=f"dim={axis if dim is None else dim!r}",
            fix="pass a number",
        )
    if not x.array.size and count_over(x, dims) == 0:
        raise ShapeError(
            op.name,
            expected="at least one element",
            got=f"shape {x.array.shape}",
            fix="check for empty data",
        )
    return apply(op, (x,), {"dims": dims, "keepdim": keepdim or keepdims})


@functools.partial(whole_door, _AMAX)
@takes_out
def amax(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Largest element over `dim`; nan wins, ties share the gradient."""
    return _extremum(_AMAX, input, dim, keepdim, axis, keepdims)


@functools.partial(whole_door, _AMIN)
@takes_out
def amin(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Smallest element over `dim`; nan wins, ties share the gradient."""
    return _extremum(_AMIN, input, dim, keepdim, axis, keepdims)


def peak(input: TensorBase, dims: tuple[int, ...]) -> TensorBase:
    """Largest elements over `dims`, which are kept, as a constant of every derivative."""
    return apply(_PEAK, (input,), {"dims": dims, "keepdim": True})


def _run_arg(method: str) -> Callable[..., np.ndarray]:
    def run(x: np.ndarray, dims: tuple[int, ...], keepdim: bool) -> np.ndarray:
        if len(dims) == x.ndim:
            flat = getattr(x.reshape(-1), method)()
            return flat.reshape((1,) * x.ndim) if keepdim else flat
        return getattr(x, method)(axis=dims[0], keepdims=keepdim)

    return run


def _arg_samples(rng: np.random.Generator) -> list[Sample]:
    x = rng.standard_normal((2, 3, 4))
    return [((x,), {"dims": (0, 1, 2), "keepdim": False}), ((x,), {"dims": (1,), "keepdim": True})]


def _arg(name: str, reference: Callable[..., object], doc: str) -> Op:
    return structured(
        name,
        "reduction",
        run=_run_arg(name),
        native="reduce",
        samples=_arg_samples,
        doc=doc,
        reference=lambda x, dims, keepdim: reference(
            x, None if len(dims) == x.ndim else dims[0], keepdims=keepdim
        ),
    )


_ARGMAX = _arg("argmax", np.argmax, "Index of the first largest element.")


_ARGMIN = _arg("argmin", np.argmin, "Index of the first smallest element.")


@takes_out
def argmax(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Index of the first largest element along `dim`, or in the flattened tensor."""
    return _extremum(_ARGMAX, input, dim, keepdim, axis, keepdims)


@takes_out
def argmin(
    input: TensorLike,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    axis: Dims = None,
    keepdims: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Index of the first smallest element along `dim`, or in the flattened tensor."""
    return _extremum(_ARGMIN, input, dim, keepdim, axis, keepdims)


@overload
def max(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase: ...
@overload
def max(
    input: TensorLike, dim: int, keepdim: bool = False, *, out: tuple[TensorBase, ...] | None = None
) -> ValuesIndices: ...
@overload
def max(
    input: TensorLike,
    *,
    axis: int,
    keepdims: bool = False,
    out: tuple[TensorBase, ...] | None = None,
) -> ValuesIndices: ...
@overload
def max(
    input: TensorLike, dim: TensorBase | np.ndarray, *, out: TensorBase | None = None
) -> TensorBase: ...
@functools.partial(whole_door, _AMAX)
@takes_out
def max(
    input: TensorLike,
    dim: int | TensorBase | np.ndarray | None = None,
    keepdim: bool = False,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    out: TensorBase | tuple[TensorBase, ...] | None = None,
) -> TensorBase | ValuesIndices:
    """Largest element; with `dim` a pair (values, indices).

    With a tensor as second argument the elementwise maximum, as in PyTorch.
    """
    dim = axis if dim is None else dim
    return _max_or_min(input, dim, keepdim or keepdims, "maximum", _AMAX, _ARGMAX)


@overload
def min(input: TensorLike, *, out: TensorBase | None = None) -> TensorBase: ...
@overload
def min(
    input: TensorLike, dim: int, keepdim: bool = False, *, out: tuple[TensorBase, ...] | None = None
) -> ValuesIndices: ...
@overload
def min(
    input: TensorLike,
    *,
    axis: int,
    keepdims: bool = False,
    out: tuple[TensorBase, ...] | None = None,
) -> ValuesIndices: ...
@overload
def min(
    input: TensorLike, dim: TensorBase | np.ndarray, *, out: TensorBase | None = None
) -> TensorBase: ...
@functools.partial(whole_door, _AMIN)
@takes_out
def min(
    input: TensorLike,
    dim: int | TensorBase | np.ndarray | None = None,
    keepdim: bool = False,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    out: TensorBase | tuple[TensorBase, ...] | None = None,
) -> TensorBase | ValuesIndices:
    """Smallest element; with `dim` a pair (values, indices).

    With a tensor as second argument the elementwise minimum, as in PyTorch.
    """
    dim = axis if dim is None else dim
    return _max_or_min(input, dim, keepdim or keepdims, "minimum", _AMIN, _ARGMIN)


def _max_or_min(
    x: TensorLike,
    dim: int | TensorBase | np.ndarray | None,
    keepdim: bool,
    pairwise: str,
    extreme: Op,
    arg: Op,
) -> TensorBase | ValuesIndices:
    if dim is None:
        return _extremum(extreme, x, None, False, None, False)
    if isinstance(dim, (TensorBase, np.ndarray)):
        return getattr(x, pairwise)(dim)
    values, indices = (_extremum(op, x, dim, keepdim, None, False) for op in (extreme, arg))
    return ValuesIndices(values, indices)
