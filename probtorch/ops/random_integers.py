"""Random integers and permutations."""

from __future__ import annotations

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, recorder
from probtorch.core.making import as_tensor
from probtorch.core.memory_format import memory_format as MemoryFormat
from probtorch.core.native import NativeFunction
from probtorch.core.outputs import takes_out
from probtorch.core.philox import WORD, consecutive_bits
from probtorch.core.rng import Generator
from probtorch.core.shape import sizes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike, SizeLike, TensorLike
from probtorch.errors import ArgumentError
from probtorch.ops.families import structured
from probtorch.ops.random_numbers import finished, placed, recorded_bits, reserved
from probtorch.ops.sorting import argsort

__all__ = ["randint", "randint_like", "randperm"]

# Up to so many products of Python's integers take less time than NumPy's calls.
_FEW = 16


def _words(shape: tuple[int, ...], generator: Generator | None) -> np.ndarray:
    """Return uint64 random bits as an array of `shape`."""
    return consecutive_bits(*reserved(shape, generator)).reshape(shape)


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
    if type(bits) is np.ndarray:
        words = bits.view(np.uint64)
        if words.size <= _FEW:
            few = [(w * span >> 64) + low & WORD for w in words.ravel().tolist()]
            return np.array(few, np.uint64).reshape(words.shape).view(np.int64)
        found = _high_product(words, span)
        if low:
            found = found + np.uint64(low & 0xFFFFFFFFFFFFFFFF)
        return np.asarray(found).view(np.int64)
    words = np.asarray(to_host(bits)).view(np.uint64)
    found = _high_product(words, span) + np.uint64(low & 0xFFFFFFFFFFFFFFFF)
    return to_device(np.asarray(found).view(np.int64), device_of(bits))


def _integers_reference(bits: np.ndarray, low: int, span: int) -> np.ndarray:
    words = [low + ((int(b) % 2**64) * span >> 64) for b in bits.flat]
    return np.array(words, np.int64).reshape(bits.shape)


def _signed(word: int) -> int:
    """Return an unsigned 64-bit number as the signed one of the same bits."""
    return word - (1 << 64) if word >> 63 else word


def _numbers(low: int, span: int) -> list[int]:
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
    low: int | None = None,
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
    if low is None:
        low = 0
    elif size is None:
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
    return finished(_run_integers(words, **attrs), dtype, device, requires_grad)


def randint_like(
    input: TensorLike,
    low: int | None = None,
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
    if low is None or high is None:
        low, high = 0, low if high is None else high
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
    return finished(
        np.argsort(_words((int(n),), generator), kind="stable"), dtype, device, requires_grad
    )
