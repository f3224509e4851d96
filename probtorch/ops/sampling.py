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
import operator
from collections.abc import Callable
from typing import TypeGuard

from probtorch.backends.registry import device_of, to_host
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import recorder
from probtorch.core.making import as_tensor
from probtorch.core.memory_format import memory_format as MemoryFormat
from probtorch.core.outputs import takes_out
from probtorch.core.rng import Generator
from probtorch.core.shape import broadcast_shapes, sizes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number
from probtorch.core.typed import DType, DTypeLike, SizeLike, TensorLike
from probtorch.errors import DomainError, DTypeError, ShapeError
from probtorch.ops.demands import check_allowed, demand
from probtorch.ops.random_numbers import draws_of, inside_open_interval, placed, scaled

__all__ = [
    "exponential",
    "normal",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "uniform",
]


_uniform_tensor = functools.partial(draws_of, "uniforms")
_normal_tensor = functools.partial(draws_of, "normals")
_exponential_tensor = functools.partial(draws_of, "exponentials")


def _float_dtype(name: str, dtype: DTypeLike | None) -> DType:
    dtype = dtypes.default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    if dtype.kind != "f":
        raise DTypeError(
            name,
            expected="a floating dtype",
            got=str(dtype),
            fix="use randint or bernoulli for integers, or cast the result",
        )
    return dtype


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


def _located(
    name: str,
    operands: tuple[TensorLike, ...],
    size: SizeLike | None,
    generator: Generator | None,
    dtype: DTypeLike | None,
    draws: Callable[..., TensorBase] = _uniform_tensor,
) -> tuple[list[TensorBase | float], TensorBase, DType]:
    """Return operands as float tensors or numbers, draws of their common shape, dtype."""
    tensors = [as_tensor(x, name) for x in operands]
    floats = [x for x, given in zip(tensors, operands, strict=True) if not _is_number(given)]
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
        x if _is_number(x) else cast(t, dtype) for x, t in zip(operands, tensors, strict=True)
    ]
    return located, drawn, dtype


def _is_number(x: object) -> TypeGuard[float]:
    return isinstance(x, (int, float)) or is_number(x)


def _of_sizes(op: str, name: str, value: TensorLike, *, zero: bool = False) -> TensorLike:
    """Return a parameter, or raise DomainError where it is no size; each replay asks again."""
    holds = operator.ge if zero else operator.gt
    expected = "numbers >= 0" if zero else "numbers > 0"
    if _is_number(value):
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
