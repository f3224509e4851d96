"""Random draws as ops of (seed, stream, counter).

`philox` makes 64 random bits for each counter and `bits_to_uniform` a double in the open interval (0, 1); both are elementwise ops,
so a draw can be compiled into a loop. Everything else is built on them and on a `Generator`, whose state is three integers.
"""

import math

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core import rng
from probtorch.core.dispatch import as_tensor, cast, recorder
from probtorch.core.shape import parse_size
from probtorch.ops.families import elementwise
from probtorch.ops.movement import reshape
from probtorch.ops.special import ndtri

__all__ = ["bits_to_uniform", "philox", "rand", "randn"]


def _run_philox(seed, stream, counter):
    seed, stream, counter = np.broadcast_arrays(seed, stream, counter)
    if seed.size and seed.min() == seed.max() and stream.min() == stream.max():
        bits = rng.philox_bits(int(seed.flat[0]), int(stream.flat[0]), counter.astype(np.uint64))
    else:
        flat = [
            rng.philox_bits(int(a), int(b), int(c))
            for a, b, c in zip(seed.flat, stream.flat, counter.flat, strict=True)
        ]
        bits = np.array(flat, np.uint64).reshape(seed.shape)
    return np.asarray(bits, np.uint64).view(np.int64)


philox = elementwise(
    "philox",
    formula=lambda s, seed, stream, counter: s.philox(seed, stream, counter),
    partials=(None, None, None),
    domain=("integer", "integer", "integer"),
    eager=_run_philox,
    reference=lambda seed, stream, counter: np.vectorize(
        lambda a, b, c: np.uint64(rng.philox_bits(int(a), int(b), int(c))).view(np.int64),
        otypes=[np.int64],
    )(seed, stream, counter),
    extra={"integers_only": True},
    doc="64 random bits (as int64) for each counter of a stream: Philox 4x32-10.",
)
bits_to_uniform = elementwise(
    "bits_to_uniform",
    formula=lambda s, bits: s.bits_to_uniform(bits),
    partials=(None,),
    domain=("integer",),
    eager=lambda bits: rng.bits_to_uniform(np.asarray(bits).view(np.uint64)),
    reference=lambda bits: ((bits.astype(np.uint64) >> np.uint64(11)) | np.uint64(1)) * 2.0**-53,
    extra={"integers_only": True},
    doc="A float64 in the open interval (0, 1) from 64 random bits.",
)


def _uniforms(size, generator):
    generator = rng.default_generator if generator is None else generator
    count = math.prod(size)
    first = generator.advance(count)
    bits = rng.consecutive_bits(generator.seed(), generator.stream, first, count)
    return as_tensor(rng.bits_to_uniform(np.asarray(bits, np.uint64)).reshape(size))


def rand(*size, generator=None, dtype=None, device=None, requires_grad=False):
    """Return draws from the uniform distribution on (0, 1)."""
    u = _uniforms(parse_size(size), generator)
    u = cast(u, dtypes.default_dtype() if dtype is None else dtypes.as_dtype(dtype))
    return u.requires_grad_() if requires_grad else u


def randn(*size, generator=None, dtype=None, device=None, requires_grad=False):
    """Return draws from the standard normal distribution."""
    z = ndtri(_uniforms(parse_size(size), generator))
    z = cast(z, dtypes.default_dtype() if dtype is None else dtypes.as_dtype(dtype))
    return z.requires_grad_() if requires_grad else z
