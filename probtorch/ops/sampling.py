"""Random draws: uniform and normal numbers, integers, permutations, categories.

The functions take a `Generator`, reserve as many counters as they need and return tensors: uniforms
lie in the open interval (0, 1), normals are quantiles of uniforms.

While a function is recorded, draws are recorded as ops on counters that each replay takes anew. So
are the conditions on parameters: a replay in which one fails runs eagerly, and raises the error.
NumPy's global state is never touched. Draws by rejection are in variates.py.

Read core/rng.py and random_numbers.py first.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast, to_float
from probtorch.core.dispatch import apply, recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.memory_format import memory_format as MemoryFormat
from probtorch.core.native import NativeFunction
from probtorch.core.outputs import takes_out
from probtorch.core.rng import (
    Generator,
    consecutive_bits,
    native_draw,
)
from probtorch.core.shape import broadcast_shapes, parse_size, sizes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike, SizeLike, TensorLike
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.ops.arithmetic import minimum
from probtorch.ops.exponentials import log
from probtorch.ops.families import structured
from probtorch.ops.movement import expand, permute, reshape
from probtorch.ops.random_numbers import (
    array_of,
    draws_of,
    inside_open_interval,
    placed,
    recorded_bits,
    reserved,
    scaled,
)
from probtorch.ops.reduction import all as all_of
from probtorch.ops.reduction import cumsum, sum
from probtorch.ops.sorting import argsort, first_above, searchsorted

__all__ = [
    "bernoulli",
    "categorical",
    "check_allowed",
    "check_elements",
    "demand",
    "distinct",
    "exponential",
    "multinomial",
    "normal",
    "probabilities",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "uniform",
]


def _run_demand(x: np.ndarray, ok: np.ndarray) -> np.ndarray:
    return x.copy()


# Eager execution raises the error beforehand, so there the flag is always true.
_DEMAND = structured(
    "demand",
    "sampling",
    run=_run_demand,
    vjp=lambda g, out, inputs, attrs, needs: (g, None),
    jvp=lambda tangents, out, inputs, attrs: tangents[0],
    saves="",
    core="(),()->()",
    samples=lambda rng: [((rng.standard_normal((2, 3)), np.ones((2, 1), bool)), {})],
    reference=lambda x, ok: x,
    complex=True,
    doc="x unchanged; a replay in which a flag is false ends, and the function runs eagerly.",
)


def demand(x: TensorBase, ok: TensorBase) -> TensorBase:
    """Return `x`; where a boolean tensor that broadcasts with it is not true throughout, a replay
    of what is being recorded ends, and the function runs eagerly.
    """
    return apply(_DEMAND, (x, ok))


def _words(shape, generator):
    """Return uint64 random bits as an array of `shape`."""
    return consecutive_bits(*reserved(shape, generator)).reshape(shape)


def _uniforms(shape, generator):
    """Return float64 draws from (0, 1) as an array of `shape`."""
    return array_of("uniforms", shape, generator)


_uniform_tensor = functools.partial(draws_of, "uniforms")
_normal_tensor = functools.partial(draws_of, "normals")
_exponential_tensor = functools.partial(draws_of, "exponentials")


# ------------------------------------------------------------------------------- uniform and normal


def _float_dtype(name, dtype):
    dtype = dtypes.default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    if dtype.kind != "f":
        raise DTypeError(
            name,
            expected="a floating dtype",
            got=str(dtype),
            fix="use randint or bernoulli for integers, or cast the result",
        )
    return dtype


def _finish(array, dtype, device, requires_grad):
    return placed(wrap(np.asarray(array).astype(dtype, copy=False)), device, requires_grad)


@takes_out
def rand(
    *shape: SizeLike,
    size: SizeLike | None = None,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return draws from the uniform distribution on the open interval (0, 1).

    Parameters
    ----------
    *shape, size : int or tuple of int
        By place, or all by name.
    generator : Generator, optional
        The default generator if None.
    dtype, device, requires_grad
        As in `zeros`.

    Returns
    -------
    Tensor, shape `size`

    Notes
    -----
    float64 draws are odd multiples of 2**-53; others are those rounded, never to 0 or 1.
    """
    kind = _float_dtype("rand", dtype)
    u = scaled("uniforms", sizes("rand", shape, size), generator=generator, dtype=kind, name="rand")
    return placed(u, device, requires_grad)


@takes_out
def randn(
    *shape: SizeLike,
    size: SizeLike | None = None,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return draws from the standard normal distribution; arguments as in `rand`.

    Notes
    -----
    Quantiles of uniforms: one counter per draw, and magnitudes up to 8.3.
    """
    kind = _float_dtype("randn", dtype)
    z = scaled(
        "normals", sizes("randn", shape, size), generator=generator, dtype=kind, name="randn"
    )
    return placed(z, device, requires_grad)


def rand_like(
    input: TensorLike,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat | None = None,
) -> TensorBase:
    """Return draws from (0, 1) in the shape of `input`, as a rule in its dtype on its device."""
    input = as_tensor(input, "rand_like")
    shape, dtype = input.array.shape, dtype or input.array.dtype
    device = device or device_of(input.array)
    return rand(shape, generator=generator, dtype=dtype, device=device, requires_grad=requires_grad)


def randn_like(
    input: TensorLike,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat | None = None,
) -> TensorBase:
    """Return standard normal draws in the shape of `input`; dtype and device as in `rand_like`."""
    input = as_tensor(input, "randn_like")
    shape, dtype = input.array.shape, dtype or input.array.dtype
    device = device or device_of(input.array)
    return randn(
        shape, generator=generator, dtype=dtype, device=device, requires_grad=requires_grad
    )


def _located(name, operands, size, generator, dtype, draws=_uniform_tensor):
    """Return operands as float tensors or numbers, draws of their common shape, dtype."""
    tensors = [as_tensor(x, name) for x in operands]
    floats = [
        x for x, given in zip(tensors, operands, strict=True) if not isinstance(given, (int, float))
    ]
    if dtype is None:
        dtype = dtypes.promote([x.array for x in floats]) if floats else dtypes.default_dtype()
        dtype = dtype if dtype.kind == "f" else dtypes.default_dtype()
    dtype = _float_dtype(name, dtype)
    shape = broadcast_shapes(*(x.array.shape for x in tensors), op=name)
    if size is not None:
        size = sizes("normal", (size,))
        if broadcast_shapes(shape, size, op=name) != size:
            raise ShapeError(
                name,
                expected=f"a size that the parameters, of shape {shape}, broadcast to",
                got=str(size),
                fix="let size end with the shape of the parameters",
            )
        shape = size
    drawn = draws(name, shape, generator)
    located = [
        x if isinstance(x, (int, float)) else cast(t, dtype)
        for x, t in zip(operands, tensors, strict=True)
    ]
    return located, drawn, dtype


def _of_sizes(op: str, name: str, value: TensorLike, *, zero: bool = False) -> TensorLike:
    """Return a parameter, or raise DomainError where it is no size; each replay asks again."""
    holds = operator.ge if zero else operator.gt
    expected = "numbers >= 0" if zero else "numbers > 0"
    if isinstance(value, (int, float)):
        if not holds(value, 0.0):
            raise DomainError(
                f"{op}: {name}", expected=expected, got=repr(value), fix=f"check {name}"
            )
        return value
    x = as_tensor(value, op)
    check_allowed(
        f"{op}: {name}", to_host(x.array), lambda v: holds(v, 0.0), expected, "use exp or softplus"
    )
    return x if recorder() is None else demand(x, holds(x, 0.0))


def uniform(
    low: TensorLike = 0.0,
    high: TensorLike = 1.0,
    size: SizeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
) -> TensorBase:
    """Return ``low + (high - low) * u`` with u uniform on (0, 1); differentiable in both bounds.

    Parameters
    ----------
    low, high : float or Tensor
    size : tuple of int, optional
        Shape of the result, the common shape of the bounds if None.
    """
    (a, b), u, kind = _located("uniform", (low, high), size, generator, dtype)
    return inside_open_interval(u, kind) * (b - a) + a


@takes_out
def normal(
    mean: TensorLike = 0.0,
    std: TensorLike = 1.0,
    size: SizeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return ``mean + std * z`` with z standard normal; differentiable in both parameters.

    Parameters
    ----------
    mean, std : float or Tensor
    size : tuple of int, optional
        Shape of the result, the common shape of the parameters if None.

    Raises
    ------
    DomainError
        If a standard deviation is negative or nan.
    """
    std = _of_sizes("normal", "std", std, zero=True)
    parameters = (mean, std), size, generator, dtype
    (loc, scale), z, kind = _located("normal", *parameters, draws=_normal_tensor)
    return cast(z, kind) * scale + loc


def exponential(
    rate: TensorLike = 1.0,
    size: SizeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
) -> TensorBase:
    """Return ``-log(u) / rate`` with u uniform on (0, 1), always positive; differentiable.

    Parameters
    ----------
    rate : float or Tensor
    size : tuple of int, optional
        Shape of the result, that of `rate` if None.

    Raises
    ------
    DomainError
        If a rate is not positive.
    """
    rate = _of_sizes("exponential", "rate", rate)
    parameters = (rate,), size, generator, dtype
    (rates,), x, kind = _located("exponential", *parameters, draws=_exponential_tensor)
    return cast(x, kind) / rates


# ----------------------------------------------------------------------------------------- integers


def _high_product(a: np.ndarray, b: int) -> np.ndarray:
    """Return the high 64 bits of the products of uint64 arrays with the integer `b` < 2**64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1 = a & low, a >> half
    if b <= 0xFFFFFFFF:
        return a1 * np.uint64(b) + (a0 * np.uint64(b) >> half) >> half
    b0, b1 = np.uint64(b & 0xFFFFFFFF), np.uint64(b >> 32)
    middle = a1 * b0 + (a0 * b0 >> half)
    cross = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (cross >> half)


def _run_integers(bits: np.ndarray, low: int, span: int) -> np.ndarray:
    words = np.asarray(to_host(bits)).view(np.uint64)
    found = _high_product(words, span) + np.uint64(low & 0xFFFFFFFFFFFFFFFF)
    return to_device(np.asarray(found).view(np.int64), device_of(bits))


def _integers_reference(bits, low, span):
    words = [low + ((int(b) % 2**64) * span >> 64) for b in bits.flat]
    return np.array(words, np.int64).reshape(bits.shape)


def _signed(word):
    """Return an unsigned 64-bit number as the signed one of the same bits."""
    return word - (1 << 64) if word >> 63 else word


def _numbers(low, span):
    return [_signed(n % 2**64) for n in (low, span)]


_INTEGERS = structured(
    "bits_to_integers",
    "sampling",
    run=_run_integers,
    core="()->()",
    native=NativeFunction("bits_to_integers", numbers=_numbers),
    samples=lambda rng: [
        ((rng.integers(-(2**63), 2**63, (2, 3)),), {"low": -5, "span": 12}),
        ((rng.integers(-(2**63), 2**63, (4,)),), {"low": -(2**63), "span": 2**64 - 1}),
    ],
    reference=_integers_reference,
    doc="64 random bits to integers low, ..., low + span - 1.",
)


@takes_out
def randint(
    low: int,
    high: int | None = None,
    size: SizeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = dtypes.int64,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return integers uniform on {low, ..., high - 1}; `randint(high, size)` starts at 0.

    Parameters
    ----------
    low, high : int
    size : tuple of int
    generator : Generator, optional
    dtype : dtype
        int64 unless given.

    Raises
    ------
    ArgumentError
        If the range is empty or `size` is missing.

    Notes
    -----
    ``floor(bits * (high - low) / 2**64)``: no value is more likely than another by more than
    2**-64.
    """
    if size is None:
        low, high, size = 0, low, high
    if (
        size is None
        or not isinstance(low, (int, np.integer))
        or not isinstance(high, (int, np.integer))
    ):
        raise ArgumentError(
            "randint",
            expected="randint(low, high, size) or randint(high, size)",
            got=f"low={low!r}, high={high!r}, size={size!r}",
            fix="pass the size as a tuple, () for one number",
        )
    span = int(high) - int(low)
    if not 0 < span < 1 << 64:
        raise ArgumentError(
            "randint",
            expected="low < high",
            got=f"low={low}, high={high}",
            fix="the upper end is exclusive: randint(0, 2, size) gives 0 and 1",
        )
    shape, dtype = sizes("randint", (size,)), dtypes.as_dtype(dtype)
    attrs = {"low": int(low), "span": span}
    if recorder() is not None:
        found = apply(_INTEGERS, (recorded_bits("randint", shape, generator),), attrs)
        return placed(cast(found, dtype), device, requires_grad)
    words = _words(shape, generator).view(np.int64)
    return _finish(_run_integers(words, **attrs), dtype, device, requires_grad)


def randint_like(
    input: TensorLike,
    low: int,
    high: int | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    memory_format: MemoryFormat | None = None,
) -> TensorBase:
    """Return integers uniform on {low, ..., high - 1} in the shape of `input`, by default in its
    dtype and on its device; `randint_like(x, high)` starts at 0.
    """
    input = as_tensor(input, "randint_like")
    low, high = (0, low) if high is None else (low, high)
    dtype, device = dtype or input.array.dtype, device or device_of(input.array)
    shape = input.array.shape
    return randint(
        low,
        high,
        shape,
        generator=generator,
        dtype=dtype,
        device=device,
        requires_grad=requires_grad,
    )


@takes_out
def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = dtypes.int64,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return a random permutation of 0, ..., n - 1: the order of n random words."""
    if n < 0:
        raise ArgumentError("randperm", expected="n >= 0", got=f"n = {n}", fix="check the size")
    dtype = dtypes.as_dtype(dtype)
    if recorder() is not None:
        # Turned over, the sign bit orders signed numbers as it does unsigned ones.
        bits = recorded_bits("randperm", (int(n),), generator) ^ -(2**63)
        return placed(cast(argsort(bits), dtype), device, requires_grad)
    return _finish(
        np.argsort(_words((int(n),), generator), kind="stable"), dtype, device, requires_grad
    )


def check_elements(
    name: str, x: float | np.ndarray, bad: np.bool_ | np.ndarray, expected: str, fix: str
) -> None:
    """Raise DomainError if any element of the mask `bad` is set, showing the first of `x`."""
    if bad.any():
        at = tuple(int(i[0]) for i in np.nonzero(bad)) if np.ndim(bad) else ()
        raise DomainError(
            name,
            expected=expected,
            got=f"{float(np.asarray(x)[at])!r}" + (f" at index {at}" if at else ""),
            fix=fix,
        )


def check_allowed(
    name: str, x: np.ndarray, allows: Callable[[np.ndarray], np.ndarray], expected: str, fix: str
) -> None:
    """Raise DomainError unless ``allows(x)`` holds throughout, for an array or a number."""
    if x.ndim == 0:
        if allows(x.item()):
            return
    else:
        x = distinct(x)
    check_elements(name, x, np.logical_not(allows(x)), expected, fix)


def distinct(x: np.ndarray) -> np.ndarray:
    """Return a view of an array in which what broadcasting has repeated is there once."""
    if 0 not in x.strides:
        return x
    return x[tuple(slice(None) if step else slice(1) for step in x.strides)]


def probabilities(name: str, p: TensorLike) -> TensorBase:
    """Return probabilities as a float tensor, checked."""
    p = to_float(as_tensor(p, name))
    check_allowed(
        name, to_host(p.array), lambda x: (x >= 0.0) & (x <= 1.0), "probabilities in [0, 1]",
        "pass sigmoid(logits) if these are logits",
    )  # fmt: skip
    return p


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
        u = _uniform_tensor("bernoulli", input.array.shape, generator).to(device_of(input.array))
        draw = u < cast(demand(input, (input >= 0.0) & (input <= 1.0)), dtypes.float64)
        return cast(draw, input.array.dtype)
    draw = _uniforms(input.array.shape, generator) < to_host(input.array)
    return _finish(draw, input.array.dtype, device_of(input.array), False)


def _weights(name, weights):
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


def _recorded_weights(weights, least=1):
    """Return weights as a float64 tensor; a replay demands what `_weights` checks, and at least so
    many positive ones in each row.
    """
    w = cast(as_tensor(weights).detach(), dtypes.float64)
    fine = all_of((w >= 0.0) & (w < math.inf), -1, True)
    return demand(w, fine & (sum((w > 0.0).long(), -1, True) >= least))


def _recorded_pick(name, w, shape, generator):
    """`_pick` in recorded ops: draws of `shape`, which ends with the leading dims of `w`."""
    cumulative = cumsum(w, -1)
    total = cumulative[..., -1]
    u = _uniform_tensor(name, shape, generator).to(device_of(w.array))
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
    return _finish(draws, dtypes.int64, _device(weights), False)


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
    return _finish(draws.reshape((*w.shape[:-1], shape[1])), dtypes.int64, _device(input), False)


def _recorded_multinomial(weights, shape, replacement, generator):
    """`multinomial` in recorded ops; `shape` is that of the draws from matrices."""
    w = _recorded_weights(weights, 1 if replacement else shape[1])
    flat = reshape(w, (-1, w.array.shape[-1]))
    if replacement:
        u = _uniform_tensor("multinomial", shape, generator).to(device_of(w.array))
        cumulative = cumsum(flat, -1)
        total = cumulative[:, -1:]
        draws = searchsorted(cumulative, minimum(u * total, total * _BELOW_ONE), right=True)
    else:
        u = _uniform_tensor("multinomial", flat.array.shape, generator).to(device_of(w.array))
        times = -log(u) / flat
        draws = argsort(times, -1)[:, : shape[1]]
    return reshape(draws, (*w.array.shape[:-1], shape[1]))


def _device(x):
    return device_of(as_tensor(x).array)
