"""Draws of categories: one of two, one of many by weights, and many with or without replacement."""

from __future__ import annotations

import math

import numpy as np

from probtorch.backends.registry import device_of, to_host
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import recorder
from probtorch.core.making import as_tensor
from probtorch.core.outputs import takes_out
from probtorch.core.philox import native_draw
from probtorch.core.rng import Generator
from probtorch.core.shape import broadcast_shapes, parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import SizeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.arithmetic import minimum
from probtorch.ops.demands import check_elements, demand, probabilities
from probtorch.ops.exponentials import log
from probtorch.ops.movement import expand, permute, reshape
from probtorch.ops.random_numbers import array_of, draws_of, finished, reserved
from probtorch.ops.reduction import all as all_of
from probtorch.ops.reduction import cumsum, sum
from probtorch.ops.searching import first_above, searchsorted
from probtorch.ops.sorting import argsort

__all__ = ["bernoulli", "categorical", "multinomial"]


def _uniforms(shape: tuple[int, ...], generator: Generator | None) -> np.ndarray:
    """Return float64 draws from (0, 1) as an array of `shape`."""
    return array_of("uniforms", shape, generator)


def _device(x: TensorLike) -> str:
    return device_of(as_tensor(x).array)


@takes_out
def bernoulli(
    input: TensorLike, *, generator: Generator | None = None, out: TensorBase | None = None
) -> TensorBase:
    """Return 1 with probability `input`, else 0, in its dtype; exactly 0 or 1 where `input` is.

    Raises
    ------
    DomainError
        If a probability is outside [0, 1] or nan.
    """
    input = probabilities("bernoulli", input).detach()
    if recorder() is not None:
        u = draws_of("uniforms", "bernoulli", input.array.shape, generator).to(
            device_of(input.array)
        )
        draw = u < cast(demand(input, (input >= 0.0) & (input <= 1.0)), dtypes.float64)
        return cast(draw, input.array.dtype)
    found = _uniforms(input.array.shape, generator) < to_host(input.array)
    return finished(found, input.array.dtype, device_of(input.array), False)


def _weights(name: str, weights: TensorLike) -> np.ndarray:
    """Return float64 weights with a last dim, nonnegative and of positive sum."""
    w = to_host(as_tensor(weights, name).array).astype(np.float64)
    if w.ndim == 0 or w.shape[-1] == 0:
        raise ShapeError(
            name,
            expected="weights with the categories along the last dim",
            got=f"shape {w.shape}",
            fix="give one weight per category",
        )
    check_elements(
        name, w, ~((w >= 0.0) & (w < np.inf)), "finite weights >= 0", "use exp or softmax"
    )
    total = w.sum(-1)
    check_elements(
        name, total, total <= 0.0, "at least one positive weight per row", "check for rows of zeros"
    )
    return w


# Times this, a float becomes its neighbour towards 0.
_BELOW_ONE = 1.0 - 2.0**-53


def _pick(
    w: np.ndarray, rows: np.ndarray, shape: tuple[int, ...], generator: Generator | None
) -> np.ndarray:
    """Draw categories by inversion; `rows` tells which row of the weights `w` a draw uses."""
    cumulative = np.cumsum(w, axis=-1)
    native = native_draw("categories", 90_000.0 + 60.0 * rows.size) if len(w) == 1 else None
    if native is not None:
        draws = native(*reserved(shape, generator), cumulative[0], _BELOW_ONE)
        return draws.reshape(shape)
    total = cumulative[:, -1][rows]
    # Below the total even after rounding, so that a category of weight 0 is never the first above.
    v = np.minimum(_uniforms(shape, generator) * total, total * _BELOW_ONE)
    return first_above(cumulative, rows, v)


def _recorded_weights(weights: TensorLike, least: int = 1) -> TensorBase:
    """Return weights as a float64 tensor; a replay demands what `_weights` checks, and at least so
    many positive ones in each row.
    """
    w = cast(as_tensor(weights).detach(), dtypes.float64)
    fine = all_of((w >= 0.0) & (w < math.inf), -1, True)
    return demand(w, fine & (sum((w > 0.0).long(), -1, True) >= least))


def _recorded_pick(
    name: str, w: TensorBase, shape: tuple[int, ...], generator: Generator | None
) -> TensorBase:
    """`_pick` in recorded ops: draws of `shape`, which ends with the leading dims of `w`."""
    cumulative = cumsum(w, -1)
    total = cumulative[..., -1]
    u = draws_of("uniforms", name, shape, generator).to(device_of(w.array))
    v = minimum(u * total, total * _BELOW_ONE)
    # Rows to the front, the draws from each behind them.
    extra = len(shape) - (w.array.ndim - 1)
    order = (*range(extra, len(shape)), *range(extra))
    turned = permute(v, order)
    full = shape[extra:]
    rows = expand(cumulative, (*full, w.array.shape[-1]))
    found = searchsorted(rows, reshape(turned, (*full, math.prod(shape[:extra]))), right=True)
    back = tuple(order.index(d) for d in range(len(shape)))
    return permute(reshape(found, turned.array.shape), back)


def categorical(
    weights: TensorLike, shape: SizeLike | None = None, *, generator: Generator | None = None
) -> TensorBase:
    """Return category numbers drawn with probabilities proportional to `weights`.

    Parameters
    ----------
    weights : Tensor, shape (..., categories)
        Nonnegative; rows need not sum to 1. A category of weight 0 is never drawn.
    shape : tuple of int, optional
        Shape of the result, to which the leading dims broadcast; those dims if None.
    generator : Generator, optional

    Returns
    -------
    Tensor of int64

    Raises
    ------
    DomainError
        If a weight is negative, nan or infinite, or a row sums to 0.
    """
    w = _weights("categorical", weights)
    batch = w.shape[:-1]
    shape = batch if shape is None else parse_size((shape,))
    if broadcast_shapes(batch, shape, op="categorical") != shape:
        raise ShapeError(
            "categorical",
            expected=f"a shape that {batch} broadcasts to",
            got=str(shape),
            fix="let the shape end with the leading dims of the weights",
        )
    if recorder() is not None:
        return _recorded_pick("categorical", _recorded_weights(weights), shape, generator)
    rows = np.broadcast_to(np.arange(math.prod(batch)).reshape(batch), shape)
    draws = _pick(w.reshape(-1, w.shape[-1]), rows, shape, generator)
    return finished(draws, dtypes.int64, _device(weights), False)


@takes_out
def multinomial(
    input: TensorLike,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return `num_samples` category numbers per row of `input`.

    Parameters
    ----------
    input : Tensor, shape (categories,) or (rows, categories)
        Nonnegative; rows need not sum to 1. A category of weight 0 is never drawn.
    num_samples : int
    replacement : bool
        Whether a category may be drawn again. Without, categories come in the order of drawing.
    generator : Generator, optional

    Returns
    -------
    Tensor of int64, shape (num_samples,) or (rows, num_samples)

    Raises
    ------
    ArgumentError
        If without replacement a row has fewer positive weights than samples are asked for.
    DomainError
        As in `categorical`.
    """
    if not isinstance(num_samples, (int, np.integer)) or num_samples < 0:
        raise ArgumentError(
            "multinomial",
            expected="num_samples: a number >= 0",
            got=repr(num_samples),
            fix="say how many categories to draw per row",
        )
    w = _weights("multinomial", input)
    flat = w.reshape(-1, w.shape[-1])
    shape = (flat.shape[0], int(num_samples))
    if recorder() is not None and (replacement or flat.size):
        return _recorded_multinomial(input, shape, replacement, generator)
    if replacement:
        rows = np.broadcast_to(np.arange(shape[0])[:, None], shape)
        draws = _pick(flat, rows, shape, generator)
    else:
        rows = (flat > 0.0).sum(-1)
        available = int(rows.min()) if rows.size else flat.shape[-1]
        if num_samples > available:
            raise ArgumentError(
                "multinomial",
                expected=f"at most {available} samples, the number of positive weights",
                got=f"num_samples={num_samples}",
                fix="pass replacement=True",
            )
        # Waiting times with rates w: their order is that of drawing without replacement.
        with np.errstate(divide="ignore"):
            times = -np.log(_uniforms(flat.shape, generator)) / flat
        draws = np.argsort(times, axis=-1, kind="stable")[:, : shape[1]]
    return finished(draws.reshape((*w.shape[:-1], shape[1])), dtypes.int64, _device(input), False)


def _recorded_multinomial(
    weights: TensorLike, shape: tuple[int, ...], replacement: bool, generator: Generator | None
) -> TensorBase:
    """`multinomial` in recorded ops; `shape` is that of the draws from matrices."""
    w = _recorded_weights(weights, 1 if replacement else shape[1])
    flat = reshape(w, (-1, w.array.shape[-1]))
    if replacement:
        u = draws_of("uniforms", "multinomial", shape, generator).to(device_of(w.array))
        cumulative = cumsum(flat, -1)
        total = cumulative[:, -1:]
        draws = searchsorted(cumulative, minimum(u * total, total * _BELOW_ONE), right=True)
    else:
        u = draws_of("uniforms", "multinomial", flat.array.shape, generator).to(device_of(w.array))
        times = -log(u) / flat
        draws = argsort(times, -1)[:, : shape[1]]
    return reshape(draws, (*w.array.shape[:-1], shape[1]))
