"""Random draws: from counters to bits, from bits to uniforms, and from there to everything else.

`philox` and `bits_to_uniform` are elementwise ops, so programs that carry their own counters
(samplers, compiled steps) draw the same numbers eagerly and compiled. The functions on top take a
`Generator`, reserve as many counters as they need and return tensors: uniforms lie in the open
interval (0, 1), normals are quantiles of uniforms.

Gamma draws are made in log space, so that small shapes do not underflow, and carry implicit
gradients (Figurnov, Mohamed, Mnih 2018): the derivative at a fixed quantile. They, Poisson and
binomial draws come from NumPy's rejection samplers on a Philox stream of their own, keyed by the
reserved counters; NumPy's global state is never touched.

Read core/rng.py first.
"""

import math

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import apply, as_tensor, cast, recorder, wrap
from probtorch.core.rng import bits_to_uniform as uniform_of_bits
from probtorch.core.rng import consecutive_bits, default_generator, philox_bits
from probtorch.core.shape import broadcast_shapes, parse_size
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.ops.elementwise import clamp, eq, log, to_float, where
from probtorch.ops.families import elementwise, structured
from probtorch.ops.sorting import first_above
from probtorch.ops.special import gamma_log_implicit, ndtri

__all__ = [
    "bernoulli",
    "binomial",
    "bits_to_uniform",
    "categorical",
    "exponential",
    "multinomial",
    "normal",
    "philox",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "standard_gamma",
    "standard_log_gamma",
    "uniform",
]

# --------------------------------------------------------------------------------------------- bits


def _philox_reference(seed, stream, counter):
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


def _signed(word):
    """Return an unsigned 64-bit number as the signed one of the same bits."""
    return word - (1 << 64) if word >> 63 else word


def _reserve(name, generator, count):
    """Return (seed, stream, first counter) of `count` draws; a recording cannot repeat them."""
    if recorder() is not None:
        recorder().refuse(f"{name}: a draw from a Generator")
    generator = default_generator if generator is None else generator
    first = generator.advance(count)
    return generator.initial_seed(), generator.stream, first


def _uniform_tensor(name, shape, generator):
    """Return float64 draws from (0, 1) as a tensor of `shape`; a recording repeats the drawing."""
    active = recorder()
    if active is None:
        return wrap(_uniforms(name, shape, generator))
    generator = default_generator if generator is None else generator
    count = math.prod(shape)
    words = active.draw(name, generator, count)
    if words is None:
        first = generator.advance(count)
        bits = consecutive_bits(generator.initial_seed(), generator.stream, first, count)
        return wrap(uniform_of_bits(bits).reshape(shape))
    seed, stream, first = words
    return bits_to_uniform(philox(seed, stream, first + wrap(np.arange(count)))).reshape(shape)


def _uniforms(name, shape, generator):
    """Return float64 draws from (0, 1) as an array of `shape`."""
    count = math.prod(shape)
    seed, stream, first = _reserve(name, generator, count)
    return uniform_of_bits(consecutive_bits(seed, stream, first, count)).reshape(shape)


def _words(name, shape, generator):
    """Return uint64 random bits as an array of `shape`."""
    count = math.prod(shape)
    seed, stream, first = _reserve(name, generator, count)
    return consecutive_bits(seed, stream, first, count).reshape(shape)


def _numpy_generator(name, generator, count):
    """Return a NumPy generator of its own for one call that makes `count` draws."""
    seed, stream, first = _reserve(name, generator, max(count, 1))
    # NumPy counts in the first word; ours in the second keeps the calls 2**64 blocks apart.
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, first, 0, 0]))


# ------------------------------------------------------------------------------- uniform and normal


def _open(u, dtype):
    """Return float64 uniforms in `dtype`, where rounding must not reach 0 or 1."""
    if dtype == np.float64:
        return u
    limits = dtypes.finfo(dtype)
    top = np.nextafter(dtype.type(1), dtype.type(0))
    return clamp(cast(u, dtype), float(limits.smallest_normal), float(top))


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
    return _placed(wrap(np.asarray(array).astype(dtype, copy=False)), device, requires_grad)


def _placed(t, device, requires_grad):
    t = t if device is None else t.to(device)
    return t.requires_grad_() if requires_grad else t


def rand(*size, generator=None, dtype=None, device=None, requires_grad=False):
    """Return draws from the uniform distribution on the open interval (0, 1).

    Parameters
    ----------
    *size : int or tuple of int
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
    dtype = _float_dtype("rand", dtype)
    u = _uniform_tensor("rand", parse_size(size), generator)
    return _placed(_open(u, dtype), device, requires_grad)


def randn(*size, generator=None, dtype=None, device=None, requires_grad=False):
    """Return draws from the standard normal distribution; arguments as in `rand`.

    Notes
    -----
    Quantiles of uniforms: one counter per draw, and magnitudes up to 8.3.
    """
    dtype = _float_dtype("randn", dtype)
    u = _uniform_tensor("randn", parse_size(size), generator)
    return _placed(cast(ndtri(u), dtype), device, requires_grad)


def rand_like(x, *, generator=None, dtype=None, device=None, requires_grad=False):
    """Return draws from (0, 1) in the shape of `x`, by default in its dtype and on its device."""
    x = as_tensor(x, "rand_like")
    dtype, device = dtype or x._data.dtype, device or device_of(x._data)
    return rand(
        x._data.shape, generator=generator, dtype=dtype, device=device, requires_grad=requires_grad
    )


def randn_like(x, *, generator=None, dtype=None, device=None, requires_grad=False):
    """Return standard normal draws in the shape of `x`; dtype and device as in `rand_like`."""
    x = as_tensor(x, "randn_like")
    dtype, device = dtype or x._data.dtype, device or device_of(x._data)
    return randn(
        x._data.shape, generator=generator, dtype=dtype, device=device, requires_grad=requires_grad
    )


def _located(name, operands, size, generator, dtype):
    """Return operands as float tensors or numbers, uniforms of their common shape, dtype."""
    tensors = [as_tensor(x, name) for x in operands]
    floats = [
        x for x, given in zip(tensors, operands, strict=True) if not isinstance(given, (int, float))
    ]
    if dtype is None:
        dtype = dtypes.promote([x._data for x in floats]) if floats else dtypes.default_dtype()
        dtype = dtype if dtype.kind == "f" else dtypes.default_dtype()
    dtype = _float_dtype(name, dtype)
    shape = broadcast_shapes(*(x._data.shape for x in tensors), op=name)
    if size is not None:
        size = parse_size((size,))
        if broadcast_shapes(shape, size, op=name) != size:
            raise ShapeError(
                name,
                expected=f"a size that the parameters, of shape {shape}, broadcast to",
                got=str(size),
                fix="let size end with the shape of the parameters",
            )
        shape = size
    u = _uniform_tensor(name, shape, generator)
    located = [
        x if isinstance(x, (int, float)) else cast(t, dtype)
        for x, t in zip(operands, tensors, strict=True)
    ]
    return located, u, dtype


def uniform(low=0.0, high=1.0, size=None, *, generator=None, dtype=None):
    """Return ``low + (high - low) * u`` with u uniform on (0, 1); differentiable in both bounds.

    Parameters
    ----------
    low, high : float or Tensor
    size : tuple of int, optional
        Shape of the result, the common shape of the bounds if None.
    """
    (low, high), u, dtype = _located("uniform", (low, high), size, generator, dtype)
    return _open(u, dtype) * (high - low) + low


def normal(mean=0.0, std=1.0, size=None, *, generator=None, dtype=None):
    """Return ``mean + std * z`` with z standard normal; differentiable in both parameters.

    Parameters
    ----------
    mean, std : float or Tensor
    size : tuple of int, optional
        Shape of the result, the common shape of the parameters if None.
    """
    (mean, std), u, dtype = _located("normal", (mean, std), size, generator, dtype)
    return cast(ndtri(u), dtype) * std + mean


def exponential(rate=1.0, size=None, *, generator=None, dtype=None):
    """Return ``-log(u) / rate`` with u uniform on (0, 1), always positive; differentiable.

    Parameters
    ----------
    rate : float or Tensor
    size : tuple of int, optional
        Shape of the result, that of `rate` if None.
    """
    (rate,), u, dtype = _located("exponential", (rate,), size, generator, dtype)
    return cast(-log(u), dtype) / rate


# ----------------------------------------------------------------------------------------- integers


def _high_product(a, b):
    """Return the high 64 bits of the products of uint64 arrays with the integer `b` < 2**64."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1 = a & low, a >> half
    b0, b1 = np.uint64(b & 0xFFFFFFFF), np.uint64(b >> 32)
    middle = a1 * b0 + (a0 * b0 >> half)
    cross = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (cross >> half)


def randint(low, high=None, size=None, *, generator=None, dtype=dtypes.int64, device=None):
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
    words = _words("randint", parse_size((size,)), generator)
    offset = np.uint64(int(low) & 0xFFFFFFFFFFFFFFFF)
    return _finish(
        (_high_product(words, span) + offset).view(np.int64), dtypes.as_dtype(dtype), device, False
    )


def randperm(n, *, generator=None, dtype=dtypes.int64, device=None):
    """Return a random permutation of 0, ..., n - 1: the order of n random words."""
    if n < 0:
        raise ArgumentError("randperm", expected="n >= 0", got=f"n = {n}", fix="check the size")
    order = np.argsort(_words("randperm", (int(n),), generator), kind="stable")
    return _finish(order, dtypes.as_dtype(dtype), device, False)


def _checked(name, x, bad, expected, fix):
    """Raise DomainError if any element of the mask `bad` is set, showing the first of `x`."""
    if np.any(bad):
        at = tuple(int(i[0]) for i in np.nonzero(bad)) if np.ndim(bad) else ()
        raise DomainError(
            name,
            expected=expected,
            got=f"{float(np.asarray(x)[at])!r}" + (f" at index {at}" if at else ""),
            fix=fix,
        )


def _probabilities(name, p):
    p = to_float(as_tensor(p, name))
    host = to_host(p._data)
    _checked(
        name, host, ~((host >= 0.0) & (host <= 1.0)), "probabilities in [0, 1]",
        "pass sigmoid(logits) if these are logits",
    )  # fmt: skip
    return p, host


def bernoulli(p, *, generator=None):
    """Return 1 with probability `p`, else 0, in the dtype of `p`; exactly 0 or 1 where `p` is.

    Raises
    ------
    DomainError
        If a probability is outside [0, 1] or nan.
    """
    p, host = _probabilities("bernoulli", p)
    draw = _uniforms("bernoulli", host.shape, generator) < host
    return _finish(draw, host.dtype, device_of(p._data), False)


def _weights(name, weights):
    """Return float64 weights with a last dim, nonnegative and of positive sum."""
    w = to_host(as_tensor(weights, name)._data).astype(np.float64)
    if w.ndim == 0 or w.shape[-1] == 0:
        raise ShapeError(
            name,
            expected="weights with the categories along the last dim",
            got=f"shape {w.shape}",
            fix="give one weight per category",
        )
    _checked(name, w, ~((w >= 0.0) & (w < np.inf)), "finite weights >= 0", "use exp or softmax")
    total = w.sum(-1)
    _checked(
        name, total, total <= 0.0, "at least one positive weight per row", "check for rows of zeros"
    )
    return w


def _pick(name, w, rows, shape, generator):
    """Draw categories by inversion; `rows` tells which row of the weights `w` a draw uses."""
    cumulative = np.cumsum(w, axis=-1)
    total = cumulative[:, -1][rows]
    # Below the total even after rounding, so that a category of weight 0 is never the first above.
    v = np.minimum(_uniforms(name, shape, generator) * total, np.nextafter(total, 0.0))
    return first_above(cumulative, rows, v)


def categorical(weights, shape=None, *, generator=None):
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
    rows = np.broadcast_to(np.arange(math.prod(batch)).reshape(batch), shape)
    draws = _pick("categorical", w.reshape(-1, w.shape[-1]), rows, shape, generator)
    return _finish(draws, dtypes.int64, _device(weights), False)


def multinomial(weights, num_samples, replacement=False, *, generator=None):
    """Return `num_samples` category numbers per row of `weights`.

    Parameters
    ----------
    weights : Tensor, shape (categories,) or (rows, categories)
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
    w = _weights("multinomial", weights)
    flat = w.reshape(-1, w.shape[-1])
    shape = (flat.shape[0], int(num_samples))
    if replacement:
        rows = np.broadcast_to(np.arange(shape[0])[:, None], shape)
        draws = _pick("multinomial", flat, rows, shape, generator)
    else:
        available = int((flat > 0.0).sum(-1).min()) if flat.size else 0
        if num_samples > available:
            raise ArgumentError(
                "multinomial",
                expected=f"at most {available} samples, the number of positive weights",
                got=f"num_samples={num_samples}",
                fix="pass replacement=True",
            )
        # Waiting times with rates w: their order is that of drawing without replacement.
        with np.errstate(divide="ignore"):
            times = -np.log(_uniforms("multinomial", flat.shape, generator)) / flat
        draws = np.argsort(times, axis=-1, kind="stable")[:, : shape[1]]
    return _finish(draws.reshape((*w.shape[:-1], shape[1])), dtypes.int64, _device(weights), False)


def _device(x):
    return device_of(as_tensor(x)._data)


# -------------------------------------------------------------------------------------------- gamma


def _log_gamma_draws(a, seed, stream, counter):
    """Return float64 logarithms of standard gamma draws; a pure function of its arguments."""
    rng = np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, counter, 0, 0]))
    a = to_host(a).astype(np.float64)
    # G(a) = G(a + 1) U^(1/a) in distribution: below 1 the power is taken in log space, where it
    # cannot underflow.
    low = a < 1.0
    y = np.log(rng.standard_gamma(np.where(low, a + 1.0, a)))
    return np.where(low, y + np.log1p(-rng.random(a.shape)) / np.where(low, a, 1.0), y)


def _run_standard_log_gamma(a, seed, stream, counter):
    y = _log_gamma_draws(a, seed, stream, counter)
    return to_device(y.astype(a.dtype), device_of(a))


def _run_standard_gamma(a, seed, stream, counter):
    y = _log_gamma_draws(a, seed, stream, counter)
    return to_device(np.exp(y).astype(a.dtype), device_of(a))


def _gamma_slope(a, x):
    """Derivative of a draw in its shape; 0 where it underflowed, the limit of x log x."""
    gone = eq(x, 0.0)
    return where(gone, 0.0, x * gamma_log_implicit(a, log(where(gone, 1.0, x))))


def _gamma_samples(rng):
    return [((rng.uniform(0.3, 5.0, (2, 3)),), {"seed": 3, "stream": 0, "counter": 7})]


# The derivative is that of the quantile function at the draw's quantile, not of `run` with its bits
# held fixed, which jumps where a proposal is rejected: hence "implicit".
_STANDARD_LOG_GAMMA = structured(
    "standard_log_gamma", "sampling", run=_run_standard_log_gamma,
    samples=_gamma_samples, reads_output=True,
    vjp=lambda g, y, inputs, attrs, needs: (g * gamma_log_implicit(inputs[0], y),),
    jvp=lambda tangents, y, inputs, attrs: tangents[0] * gamma_log_implicit(inputs[0], y),
    extra={"random": True, "implicit": True},
    doc="Logarithms of draws from the gamma distribution with a given shape and unit rate.",
)  # fmt: skip
_STANDARD_GAMMA = structured(
    "standard_gamma", "sampling", run=_run_standard_gamma,
    samples=_gamma_samples, reads_output=True,
    vjp=lambda g, x, inputs, attrs, needs: (g * _gamma_slope(inputs[0], x),),
    jvp=lambda tangents, x, inputs, attrs: tangents[0] * _gamma_slope(inputs[0], x),
    extra={"random": True, "implicit": True},
    doc="Draws from the gamma distribution with a given shape and unit rate.",
)  # fmt: skip


def _draw_gamma(op, concentration, generator):
    a = to_float(as_tensor(concentration, op.name))
    host = to_host(a._data)
    _checked(
        op.name, host, ~((host > 0.0) & (host < np.inf)), "a finite concentration > 0",
        "use softplus or exp to make it positive",
    )  # fmt: skip
    seed, stream, counter = _reserve(op.name, generator, max(host.size, 1))
    return apply(op, (a,), {"seed": seed, "stream": stream, "counter": counter})


def standard_gamma(concentration, *, generator=None):
    """Return draws from the gamma distribution with shape `concentration` and unit rate.

    Parameters
    ----------
    concentration : Tensor
        Positive; one draw per element.
    generator : Generator, optional

    Returns
    -------
    Tensor of the shape and dtype of `concentration`
        Draws below the smallest float are 0: `standard_log_gamma` keeps them.

    Raises
    ------
    DomainError
        If a concentration is not positive and finite.

    Notes
    -----
    Differentiable, by implicit reparameterisation: the derivative at a fixed quantile.
    """
    return _draw_gamma(_STANDARD_GAMMA, concentration, generator)


def standard_log_gamma(concentration, *, generator=None):
    """Return natural logarithms of what `standard_gamma` draws; they never underflow."""
    return _draw_gamma(_STANDARD_LOG_GAMMA, concentration, generator)


# ------------------------------------------------------------------------------------------- counts

# NumPy's sampler returns int64. From here on a normal approximation differs by less than the
# spacing of float64.
_HUGE_RATE = 1e18


def poisson(rate, *, generator=None):
    """Return Poisson draws, one per element of `rate` and in its dtype.

    Parameters
    ----------
    rate : Tensor
        Expected counts, nonnegative and finite, of any size.
    generator : Generator, optional

    Raises
    ------
    DomainError
        If a rate is negative, nan or infinite.
    """
    rate = to_float(as_tensor(rate, "poisson"))
    host = to_host(rate._data)
    _checked(
        "poisson", host, ~((host >= 0.0) & (host < np.inf)), "a finite rate >= 0",
        "use softplus or exp to make it positive",
    )  # fmt: skip
    wide = host.astype(np.float64)
    rng = _numpy_generator("poisson", generator, wide.size)
    huge = wide > _HUGE_RATE
    draws = np.asarray(rng.poisson(np.where(huge, 0.0, wide)), np.float64)
    if huge.any():
        draws = np.where(
            huge, np.rint(wide + np.sqrt(wide) * rng.standard_normal(wide.shape)), draws
        )
    return _finish(draws, host.dtype, device_of(rate._data), False)


def binomial(count, prob, *, generator=None):
    """Return binomial draws: successes in `count` trials of probability `prob`.

    Parameters
    ----------
    count : Tensor
        Whole numbers from 0 to 2**63 - 1, as integers or floats.
    prob : Tensor
        In [0, 1]; broadcast with `count`.
    generator : Generator, optional

    Returns
    -------
    Tensor
        In the dtype of `prob`.

    Raises
    ------
    DomainError
        If a count is negative or not whole, or a probability is outside [0, 1].
    """
    count = as_tensor(count, "binomial")
    p, host = _probabilities("binomial", prob)
    n = to_host(count._data)
    shape = broadcast_shapes(n.shape, host.shape, op="binomial")
    _checked(
        "binomial", n, ~((n >= 0) & (n < 2.0**63) & (np.floor(n) == n)),
        "whole counts from 0 to 2**63 - 1",
        "round the counts first",
    )  # fmt: skip
    rng = _numpy_generator("binomial", generator, math.prod(shape))
    n, q = (
        np.broadcast_to(n, shape).astype(np.int64),
        np.broadcast_to(host, shape).astype(np.float64),
    )
    return _finish(rng.binomial(n, q), host.dtype, device_of(p._data), False)
