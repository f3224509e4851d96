"""Random numbers from counters: bits, uniform, normal and exponential numbers, whoever makes them.

`philox`, `bits_to_uniform` and `normal_of_uniform` are elementwise ops, so programs that carry
their own counters (samplers, compiled steps) draw the same numbers eagerly and compiled. Draws of a
`Generator` reserve as many counters as they need; while a function is recorded, they are recorded
as those ops on counters that each replay takes anew, else they come from one native loop.

Read core/rng.py first, and then sampling.py, whose functions are made of these.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled, recorder, unheard, wrap
from probtorch.core.philox import consecutive_uniforms, native_numbers, philox_bits
from probtorch.core.rng import Generator, generator_for
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import drawn
from probtorch.core.typed import DType
from probtorch.ops.arithmetic import clamp
from probtorch.ops.exact import log as exact_log
from probtorch.ops.exact import normal_quantile, of_uniforms
from probtorch.ops.exponentials import log
from probtorch.ops.families import elementwise
from probtorch.ops.special.declaration import scipy_value

__all__ = [
    "array_of",
    "bits_to_uniform",
    "draws_of",
    "element_counters",
    "finished",
    "inside_open_interval",
    "is_plain",
    "normal_of_uniform",
    "philox",
    "placed",
    "recorded_bits",
    "reserved",
    "rounded_array",
    "scaled",
]


def _philox_reference(seed: np.ndarray, stream: np.ndarray, counter: np.ndarray) -> np.ndarray:
    seed, stream, counter = np.broadcast_arrays(seed, stream, counter)
    bits = [
        philox_bits(int(s), int(t), int(c))
        for s, t, c in zip(seed.flat, stream.flat, counter.flat, strict=True)
    ]
    return np.array(bits, np.uint64).reshape(counter.shape).view(np.int64)


philox = elementwise(
    "philox",
    formula=lambda s, seed, stream, counter: s.philox(seed, stream, counter),
    partials=(None, None, None),
    domain=("integer", "integer", "integer"),
    reference=_philox_reference,
    extra={"integers_only": True, "result_dtype": dtypes.int64},
    doc="The 64 random bits that belong to (seed, stream, counter), as int64.",
)
bits_to_uniform = elementwise(
    "bits_to_uniform",
    formula=lambda s, bits: s.bits_to_uniform(bits),
    partials=(None,),
    domain=("integer",),
    reference=lambda bits: ((bits.view(np.uint64) >> np.uint64(11)) | np.uint64(1)) / 2.0**53,
    extra={"integers_only": True, "input_dtype": dtypes.int64, "result_dtype": dtypes.float64},
    doc="64 random bits, as int64, to a float64 in the open interval (0, 1).",
)


def _run_normal(u: np.ndarray) -> np.ndarray:
    host = np.asarray(to_host(u), np.float64)
    return to_device(of_uniforms(normal_quantile, host.reshape(-1)).reshape(u.shape), device_of(u))


normal_of_uniform = elementwise(
    "normal_of_uniform",
    formula=lambda s, u: s.normal_of_uniform(s.wide(u)),
    eager=_run_normal,
    partials=(None,),
    domain=("probability",),
    reference=lambda u: -math.sqrt(2.0) * scipy_value("erfcinv", 2.0 * u),
    result="float",
    doc="The standard normal number that belongs to a uniform one; the same bits wherever.",
)


def element_counters(
    name: str, shape: tuple[int, ...], generator: Generator | None
) -> tuple[TensorBase, TensorBase, TensorBase]:
    """Return seed and stream, 0-d, and a counter per element of `shape`, as int64 tensors.

    A recording takes them anew at each replay, or refuses.
    """
    generator = generator_for(generator)
    count = math.prod(shape)
    words = drawn(name, generator, count)
    if words is None:
        numbers = (generator.initial_seed(), generator.stream, generator.advance(count))
        seed, stream, first = (wrap(np.array(w, np.uint64).view(np.int64)) for w in numbers)
    else:
        seed, stream, first = words
    # In this shape, so that what is drawn shares a loop nest with the counters.
    return seed, stream, first + wrap(np.arange(count).reshape(shape))


def recorded_bits(name: str, shape: tuple[int, ...], generator: Generator | None) -> TensorBase:
    """Return 64 random bits per element, as an int64 tensor whose drawing is recorded."""
    return philox(*element_counters(name, shape, generator))


def reserved(shape: tuple[int, ...], generator: Generator | None) -> tuple[int, int, int, int]:
    """Return seed, stream, first counter and number of the draws of `shape`, which are taken."""
    generator = generator_for(generator)
    count = math.prod(shape)
    first = generator.advance(count)
    return generator._seed, generator._stream, first, count


# What becomes of uniform numbers, by the name of it in native code: as a formula, and as ops.
_KINDS = {
    "uniforms": (lambda s, u: u, lambda u: u),
    "normals": (normal_quantile, normal_of_uniform),
    "exponentials": (lambda s, u: -exact_log(s, u), lambda u: -log(u)),
}


def array_of(
    kind: str,
    shape: tuple[int, ...],
    generator: Generator | None,
    scale: float = 1.0,
    shift: float = 0.0,
) -> np.ndarray:
    """Return ``scale x + shift`` for draws x of a kind, as a float64 array of `shape`."""
    numbers = reserved(shape, generator)
    found = native_numbers(kind, *numbers, scale, shift)
    if found is None:
        found = of_uniforms(_KINDS[kind][0], consecutive_uniforms(*numbers)) * scale + shift
    return found if len(shape) == 1 else found.reshape(shape)


def draws_of(
    kind: str, name: str, shape: tuple[int, ...], generator: Generator | None
) -> TensorBase:
    """Return float64 draws of a kind as a tensor; a recording repeats the drawing."""
    if recorder() is None:
        return wrap(array_of(kind, shape, generator))
    return _KINDS[kind][1](bits_to_uniform(recorded_bits(name, shape, generator)))


def is_plain(*operands: object) -> bool:
    """Whether nobody asks how draws with these parameters come about: neither tape nor recorder."""
    if not unheard():
        return False
    for x in operands:
        if isinstance(x, TensorBase) and x.requires_grad:
            return not grad_enabled()
    return True


_ONE, _ZERO = np.array(1.0), np.array(0.0)


def scaled(
    kind: str,
    shape: tuple[int, ...],
    scale: TensorBase | None = None,
    shift: TensorBase | None = None,
    *,
    generator: Generator | None,
    dtype: DType,
    device: str | None = None,
    name: str = "sample",
) -> TensorBase:
    """Return ``scale * x + shift`` for draws x of "uniforms", "normals" or "exponentials".

    Differentiable in both, which are 1 and 0 if None; where nothing is recorded or taped, without
    further arrays.
    """
    if device is not None or not is_plain(scale, shift):
        x = placed(_rounded(kind, draws_of(kind, name, shape, generator), dtype), device, False)
        return _affine(x, scale, shift)
    if scale is None and shift is None:
        return wrap(rounded_array(kind, array_of(kind, shape, generator), dtype))
    a = scale.array if isinstance(scale, TensorBase) else _ONE
    b = shift.array if isinstance(shift, TensorBase) else _ZERO
    if a.ndim == b.ndim == 0 and dtype == np.float64:
        return wrap(array_of(kind, shape, generator, a.item(), b.item()))
    out = rounded_array(kind, array_of(kind, shape, generator), dtype)
    if not all(y.ndim == 0 or (y.dtype == dtype and _fits(y.shape, shape)) for y in (a, b)):
        return _affine(wrap(out), scale, shift)
    # Numbers take part in the dtype of the draws.
    if a is not _ONE:
        np.multiply(out, a.astype(dtype) if a.ndim == 0 else a, out=out)
    if b is not _ZERO:
        np.add(out, b.astype(dtype) if b.ndim == 0 else b, out=out)
    return wrap(out)


def _affine(x: TensorBase, scale: TensorBase | None, shift: TensorBase | None) -> TensorBase:
    x = x if scale is None else x * scale
    return x if shift is None else x + shift


def _fits(inner: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether `inner` broadcasts to `shape`."""
    pad = len(shape) - len(inner)
    return pad >= 0 and all(a in (1, b) for a, b in zip(inner, shape[pad:], strict=True))


def _rounded(kind: str, x: TensorBase, dtype: DType) -> TensorBase:
    return inside_open_interval(x, dtype) if kind == "uniforms" else cast(x, dtype)


def inside_open_interval(u: TensorBase, dtype: DType) -> TensorBase:
    """Return float64 uniforms in `dtype`, where rounding must not reach 0 or 1."""
    if dtype == np.float64:
        return u
    least, most = _ends(dtype)
    return clamp(cast(u, dtype), float(least), float(most))


def rounded_array(kind: str, x: np.ndarray, dtype: DType) -> np.ndarray:
    """`_rounded` of an array that is nobody else's."""
    if dtype == np.float64:
        return x
    x = x.astype(dtype)
    if kind == "uniforms":
        least, most = _ends(dtype)
        np.minimum(x, most, out=x)
        if least > 2.0**-53:
            np.maximum(x, least, out=x)
    return x


@functools.cache
def _ends(dtype: DType) -> tuple[np.floating, np.floating]:
    """The least and the greatest number of a dtype that a uniform draw may be."""
    return dtypes.finfo(dtype).smallest_normal, np.nextafter(dtype.type(1), dtype.type(0))


def placed(t: TensorBase, device: str | None, requires_grad: bool) -> TensorBase:
    """Return a tensor on a device, with a gradient if one is wanted."""
    if device is not None and not (device == "cpu" and type(t.array) is np.ndarray):
        t = t.to(device)
    return t.requires_grad_() if requires_grad else t


def finished(
    array: np.ndarray, dtype: DType, device: str | None, requires_grad: bool
) -> TensorBase:
    """Return drawn numbers as a tensor of a dtype on a device, as `placed` does."""
    return placed(wrap(np.asarray(array).astype(dtype, copy=False)), device, requires_grad)
