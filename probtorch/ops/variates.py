"""Random variates by rejection: gamma, von Mises and Polya-gamma draws and counts as ops.

An op takes the parameters, the seed and stream of a generator, and a counter for each element; the
numbers are those of ops/rejection.py, whoever draws them. So a compiled function makes the draws
that the eager one would make, and a tensor of draws can be made in parts.

Gamma draws are made in log space, so that small shapes do not underflow. They and von Mises draws
carry implicit gradients (Figurnov, Mohamed, Mnih 2018): the derivative at a fixed quantile, not
that of the algorithm with its bits held fixed, which jumps where a proposal is rejected.

Read ops/rejection.py and ops/sampling.py first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.casting import cast, to_float
from probtorch.core.dispatch import apply, wrap
from probtorch.core.dtype import float64
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.native import NativeFunction
from probtorch.core.rng import Generator
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import NotDifferentiableError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq
from probtorch.ops.demands import check_allowed, probabilities
from probtorch.ops.exponentials import exp, log
from probtorch.ops.families import structured
from probtorch.ops.lanes import gauss_rule, on_chunks
from probtorch.ops.movement import expand
from probtorch.ops.random_numbers import element_counters, is_plain, reserved
from probtorch.ops.rejection import draw
from probtorch.ops.special import gamma_log_implicit, log_ndtr, ndtr
from probtorch.ops.trigonometry import atan

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op
    from probtorch.ops.algebra import Branching, Number

__all__ = [
    "binomial",
    "poisson",
    "polya_gamma",
    "progeny",
    "standard_gamma",
    "standard_log_gamma",
    "von_mises",
]


def _sampler(
    name: str,
    sampler: str,
    *parameters: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray],
    doc: str,
    slope: Callable[[TensorBase, TensorBase], TensorBase] | None = None,
) -> Op:
    """Declare an op of parameters, seed, stream and counters; `parameters` give its test inputs.

    With ``slope(input, y)``, the derivative of a draw in its first input, it carries gradients.
    """
    vjp, jvp = (None, None) if slope is None else _implicit(slope)

    def run(first: np.ndarray, *others: np.ndarray) -> np.ndarray:
        *given, seed, stream, counters = first, *others
        like = given[-1]
        draws = draw(sampler, int(seed), int(stream), to_host(counters), *map(to_host, given))
        return to_device(draws.astype(like.dtype, copy=False), device_of(like))

    def samples(rng: np.random.Generator) -> list[tuple[tuple[np.ndarray, ...], Attrs]]:
        counters = np.arange(7, 19).reshape(3, 4)
        arrays = [make(rng, (3, 4)) for make in parameters]
        return [((*arrays, np.array(3), np.array(5), counters), {})]

    return structured(
        name,
        "sampling",
        run=run,
        samples=samples,
        vjp=vjp,
        jvp=jvp,
        saves=None if vjp is None else "first out",
        native=NativeFunction(f"draw_{sampler}", refuses=True),
        extra={"random": True, "implicit": vjp is not None, "sampler": sampler},
        doc=doc,
    )


def _implicit(
    slope: Callable[[TensorBase, TensorBase], TensorBase],
) -> tuple[Callable[..., Sequence[TensorBase | None]], Callable[..., TensorBase]]:
    """Return vjp and jvp of draws whose derivative in their first input is ``slope(input, y)``."""

    def vjp(
        g: TensorBase,
        y: TensorBase,
        inputs: tuple[TensorBase, TensorBase, TensorBase, TensorBase],
        attrs: Attrs,
        needs: Sequence[bool],
    ) -> tuple[TensorBase, None, None, None]:
        return (g * slope(inputs[0], y), None, None, None)

    def jvp(
        tangents: list[TensorBase], y: TensorBase, inputs: list[TensorBase], attrs: Attrs
    ) -> TensorBase:
        return tangents[0] * slope(inputs[0], y)

    return vjp, jvp


def _drawn(op: Op, parameters: tuple[TensorBase, ...], generator: Generator | None) -> TensorBase:
    """Apply a sampler to parameters of one shape."""
    like = parameters[-1].array
    if is_plain(*parameters) and all(device_of(p.array) == "cpu" for p in parameters):
        seed, stream, first, _ = reserved(like.shape, generator)
        draws = draw(op.extra["sampler"], seed, stream, first, *(p.array for p in parameters))
        return wrap(draws.astype(like.dtype, copy=False))
    return apply(op, (*parameters, *element_counters(op.name, like.shape, generator)))


# -------------------------------------------------------------------------------------------- gamma


def _gamma_slope(a: TensorBase, x: TensorBase) -> TensorBase:
    """Derivative of a draw in its shape; 0 where it underflowed, the limit of x log x."""
    gone = eq(x, 0.0)
    return where(gone, 0.0, x * gamma_log_implicit(a, log(where(gone, 1.0, x))))


def _shapes(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(0.3, 5.0, size)


_STANDARD_LOG_GAMMA = _sampler(
    "standard_log_gamma",
    "log_gamma",
    _shapes,
    slope=gamma_log_implicit,
    doc="Logarithms of draws from the gamma distribution with a given shape and unit rate.",
)
_STANDARD_GAMMA = _sampler(
    "standard_gamma",
    "gamma",
    _shapes,
    slope=_gamma_slope,
    doc="Draws from the gamma distribution with a given shape and unit rate.",
)


def _is_positive(x: np.ndarray) -> np.ndarray:
    return (x > 0.0) & (x < math.inf)


def _draw_gamma(op: Op, concentration: TensorLike, generator: Generator | None) -> TensorBase:
    a = to_float(as_tensor(concentration, op.name))
    check_allowed(
        op.name, to_host(a.array), _is_positive, "a finite concentration > 0",
        "use softplus or exp to make it positive",
    )  # fmt: skip
    return _drawn(op, (a,), generator)


def standard_gamma(concentration: TensorLike, *, generator: Generator | None = None) -> TensorBase:
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


def standard_log_gamma(
    concentration: TensorLike, *, generator: Generator | None = None
) -> TensorBase:
    """Return natural logarithms of what `standard_gamma` draws; they never underflow."""
    return _draw_gamma(_STANDARD_LOG_GAMMA, concentration, generator)


# ------------------------------------------------------------------------------------------- counts


_POISSON = _sampler(
    "poisson_draw", "poisson", lambda rng, size: rng.uniform(0.0, 40.0, size), doc="Poisson draws."
)
_BINOMIAL = _sampler(
    "binomial_draw",
    "binomial",
    lambda rng, size: np.floor(rng.uniform(0.0, 90.0, size)),
    lambda rng, size: rng.uniform(0.0, 1.0, size),
    doc="Binomial draws from counts and probabilities.",
)


def poisson(input: TensorLike, *, generator: Generator | None = None) -> TensorBase:
    """Return Poisson draws, one per element of `input` and in its dtype.

    Parameters
    ----------
    input : Tensor
        Expected counts, nonnegative and finite, of any size.
    generator : Generator, optional

    Raises
    ------
    DomainError
        If a rate is negative, nan or infinite.
    """
    input = to_float(as_tensor(input, "poisson"))
    check_allowed(
        "poisson",
        to_host(input.array),
        lambda x: (x >= 0.0) & (x < math.inf),
        "a finite rate >= 0",
        "use softplus or exp to make it positive",
    )
    return _drawn(_POISSON, (input.detach(),), generator)


@in_our_words
def binomial(
    count: TensorLike, prob: TensorLike, *, generator: Generator | None = None
) -> TensorBase:
    """Return binomial draws: successes in `count` trials of probability `prob`.

    Parameters
    ----------
    count : Tensor
        Whole numbers from 0 to 2**63 - 1, as integers or floats; counts above 2**53 are rounded to
        float64.
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
    p = probabilities("binomial", prob)
    shape = broadcast_shapes(count.array.shape, p.array.shape, op="binomial")
    check_allowed(
        "binomial", to_host(count.array),
        lambda n: (n >= 0) & (n < 2.0**63) & (n // 1 == n),
        "whole counts from 0 to 2**63 - 1",
        "round the counts first",
    )  # fmt: skip
    wide = cast(count.detach(), float64)
    return _drawn(_BINOMIAL, (expand(wide, shape), expand(p.detach(), shape)), generator)


_PROGENY = _sampler(
    "progeny_draw",
    "progeny",
    lambda rng, size: rng.uniform(0.1, 40.0, size),
    lambda rng, size: rng.uniform(0.0, 0.99, size),
    doc="Sizes of family trees from mean numbers of founders and of children of each.",
)


def progeny(
    rate: TensorLike, excess: TensorLike, *, generator: Generator | None = None
) -> TensorBase:
    """Return sizes of family trees: generalized Poisson draws.

    Parameters
    ----------
    rate : Tensor
        Mean number of founders, positive and finite.
    excess : Tensor
        Mean number of children of each member, in [0, 1); broadcast with `rate`.
    generator : Generator, optional

    Returns
    -------
    Tensor of float64

    Raises
    ------
    DomainError
        If a number is outside.
    """
    m, c = (cast(as_tensor(x, "progeny").detach(), float64) for x in (rate, excess))
    shape = broadcast_shapes(m.array.shape, c.array.shape, op="progeny")
    check_allowed(
        "progeny", to_host(m.array), _is_positive, "a finite rate > 0",
        "use softplus or exp to make it positive",
    )  # fmt: skip
    check_allowed(
        "progeny", to_host(c.array), lambda x: (x >= 0.0) & (x < 1.0), "a mean in [0, 1)",
        "use sigmoid to bring it there",
    )  # fmt: skip
    return _drawn(_PROGENY, (expand(m, shape), expand(c, shape)), generator)


# ---------------------------------------------------------------------------------------- von Mises


def angle_slope(s: Branching[Number], k: Number, x: Number) -> Number:
    """Derivative of a von Mises angle in k, over an algebra as in ops/incomplete.py.

    It is the integral from 0 to x of (A - cos t) exp(k (cos t - cos x)) dt, where A is the mean
    cosine. From 0 to pi it is 0: so unless |x| is small on the scale 1 / sqrt(k) of the density, it
    is minus the integral from |x| on, as far as the exponential is above e^-40.
    """
    end = s.abs(x)
    inner = end * s.sqrt(k) < 1.5
    # cos(start) = cos(end) - 40 / k, in half angles so that nothing cancels.
    half = s.sin(end * 0.5)
    turn = half * half
    far = s.sqrt(s.minimum(turn + 20.0 / k, 1.0))
    start = s.where(inner, 0.0, s.asin(far) * 2.0)
    shortfall = 1.0 - s.i1e(k) / s.i0e(k)

    def integrand(
        s: Branching[Number], t: Number, k: Number, turn: Number, shortfall: Number
    ) -> Number:
        half = s.sin(t * 0.5)
        part = half * half
        return (part * 2.0 - shortfall) * s.exp(k * 2.0 * (turn - part))

    low, width = s.minimum(start, end), s.abs(start - end)
    integral = s.quadrature(gauss_rule(64), integrand, low, width, (k, turn, shortfall))
    sign = s.where(x == 0.0, x, s.copysign(1.0, x))
    return s.where(inner, integral, -integral) * sign


def _run_angle_slope(concentration: np.ndarray, x: np.ndarray) -> np.ndarray:
    device, dtype = device_of(x), x.dtype
    slope = on_chunks(angle_slope, to_host(concentration), to_host(x))
    return to_device(slope.astype(dtype, copy=False), device)


def _once(*_: object) -> NoReturn:
    raise NotDifferentiableError(
        "von_mises",
        expected="at most one derivative of a draw",
        got="a second",
        fix="detach() the gradient, or use create_graph=False",
    )


def _angle_slope_reference(k: np.ndarray, x: np.ndarray) -> np.ndarray:
    from scipy.integrate import quad
    from scipy.special import i0e as bessel0
    from scipy.special import i1e as bessel1

    out = np.empty(np.broadcast_shapes(k.shape, x.shape))
    for at, (a, b) in enumerate(np.broadcast(k, x)):
        mean = bessel1(a) / bessel0(a)
        # From 0 to pi this is 0: the end on whose way the sign never changes loses no digits.
        start = 0.0 if np.cos(b) > mean else np.copysign(np.pi, b)
        out.flat[at] = quad(
            lambda t, a=a, b=b, m=mean: (m - np.cos(t)) * np.exp(a * (np.cos(t) - np.cos(b))),
            start,
            b,
            epsabs=0.0,
            epsrel=1e-12,
        )[0]
    return out


_ANGLE_SLOPE = structured(
    "von_mises_slope",
    "special",
    run=_run_angle_slope,
    vjp=_once,
    jvp=_once,
    saves="",
    core="(),()->()",
    native=NativeFunction("von_mises_slope"),
    samples=lambda rng: [
        ((rng.uniform(0.2, 9.0, (3, 4)), rng.uniform(-3.0, 3.0, (3, 4))), {}),
    ],
    reference=_angle_slope_reference,
    extra={"not_differentiable": (0, 1)},
    doc="Derivative of a von Mises angle around 0 in the concentration, at a fixed quantile.",
)


def _tangent_slope(k: TensorBase, t: TensorBase) -> TensorBase:
    """Derivative of tan(angle / 2)."""
    slope = apply(_ANGLE_SLOPE, (k, atan(t) * 2.0))
    return slope * ((t * t + 1.0) * 0.5)


_VON_MISES = _sampler(
    "von_mises_draw",
    "von_mises",
    lambda rng, size: rng.uniform(0.2, 9.0, size),
    slope=_tangent_slope,
    doc="Tangents of half the angles of von Mises draws around 0.",
)


def von_mises(concentration: TensorLike, *, generator: Generator | None = None) -> TensorBase:
    """Return angles of the von Mises distribution around 0, one per element of `concentration`.

    Parameters
    ----------
    concentration : Tensor
        Positive; near 0 the draws are uniform on the circle.
    generator : Generator, optional

    Returns
    -------
    Tensor of the shape and dtype of `concentration`
        Radians, in [-pi, pi].

    Raises
    ------
    DomainError
        If a concentration is not positive and finite.

    Notes
    -----
    Differentiable once, by implicit reparameterisation; right for functions of the angle with
    period 2 pi.
    """
    k = to_float(as_tensor(concentration, "von_mises"))
    check_allowed(
        "von_mises", to_host(k.array), _is_positive, "a finite concentration > 0",
        "use softplus or exp to make it positive",
    )  # fmt: skip
    half = atan(_drawn(_VON_MISES, (cast(k, float64),), generator))
    return cast(half * 2.0, k.array.dtype)


# -------------------------------------------------------------------------------------- Polya-gamma


_POLYA_GAMMA = _sampler(
    "polya_gamma_draw",
    "polya_gamma",
    lambda rng, size: np.floor(rng.uniform(0.0, 4.0, size)),
    lambda rng, size: rng.uniform(0.0, 4.0, size),
    lambda rng, size: rng.uniform(0.1, 0.9, size),
    doc="4 times Polya-gamma draws, from counts, tilts and shares of proposals from above.",
)


def polya_gamma(
    count: TensorLike, tilt: TensorLike, *, generator: Generator | None = None
) -> TensorBase:
    """Return sums of `count` Polya-gamma draws of shape 1.

    Parameters
    ----------
    count : Tensor
        Whole numbers from 0 on; the cost grows with them.
    tilt : Tensor
        Finite numbers; broadcast with `count`.
    generator : Generator, optional

    Returns
    -------
    Tensor of float64

    Raises
    ------
    DomainError
        If a count is negative or not whole, or a tilt is not finite.
    """
    n, t = (cast(as_tensor(x, "polya_gamma").detach(), float64) for x in (count, tilt))
    shape = broadcast_shapes(n.array.shape, t.array.shape, op="polya_gamma")
    check_allowed(
        "polya_gamma", to_host(n.array),
        lambda n: (n >= 0) & (n < 2.0**53) & (n // 1 == n),
        "whole counts from 0 on",
        "round the counts first",
    )  # fmt: skip
    check_allowed(
        "polya_gamma", to_host(t.array), np.isfinite, "finite tilts", "look where they come from"
    )
    z = absolute(t) * 0.5
    # Masses of proposals on both sides of 0.64, times exp(z).
    cut, rate = 0.64, z * z * 0.5 + math.pi**2 / 8.0
    above = exp(z - rate * cut) * (0.5 * math.pi) / rate
    image = exp(z * 2.0 + log_ndtr((z * cut + 1.0) * (-1.0 / math.sqrt(cut))))
    below = (ndtr((z * cut - 1.0) * (1.0 / math.sqrt(cut))) + image) * 2.0
    parameters = (expand(p, shape) for p in (n, z, above / (above + below)))
    return _drawn(_POLYA_GAMMA, tuple(parameters), generator) * 0.25
