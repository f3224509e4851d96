"""Rational-quadratic splines: alone and autoregressive; coupling layers are in `spline_coupling`.

A number in [-bound, bound] goes through a monotone curve of K pieces, each the quotient of two
quadratic polynomials, with given widths, heights and slopes at the knots; outside the curve is the
identity, which it joins with slope 1. Both directions are closed forms, and so are the
log-derivatives (Durkan, Bekasov, Murray and Papamakarios 2019; Gregory and Delbourgo 1982).

Free parameters of 0 give the identity exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.transforms.flows.autoregressive import Autoregressive, InContext
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.transforms.vector import last_part
from probtorch.errors import ArgumentError
from probtorch.nn import init
from probtorch.nn.arguments import whole
from probtorch.nn.autoregressive import AutoRegressiveNN, ConditionalAutoRegressiveNN, DenseNN
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, sqrt, where
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.exponentials import log, softplus
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, reshape, squeeze, transpose, unsqueeze
from probtorch.ops.pieces import cat, stack, unbind
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "ConditionalSpline",
    "ConditionalSplineAutoregressive",
    "Spline",
    "SplineAutoregressive",
    "conditional_spline",
    "conditional_spline_autoregressive",
    "spline",
    "spline_autoregressive",
]

# Least width and height of a piece, as a share of the box, and least slope at a knot, so that no
# piece degenerates [durkan2019, reference code].
LEAST_SHARE = 1e-3
LEAST_SLOPE = 1e-3
# softplus of it, with the least slope, is 1.
SLOPE_OFFSET = math.log(math.expm1(1.0 - LEAST_SLOPE))


def knots(
    widths: Tensor, heights: Tensor, slopes: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return positions and slopes of a spline's knots from free parameters.

    Parameters
    ----------
    widths, heights : Tensor, shape (..., K)
    slopes : Tensor, shape (..., K - 1)
        At the inner knots.
    bound : float

    Returns
    -------
    x, y, slope : Tensor, shape (..., K + 1)
        The first two ascending from -bound to bound.
    """
    ends = slopes.new_zeros((*slopes.array.shape[:-1], 1))
    inner = LEAST_SLOPE + softplus(slopes + SLOPE_OFFSET)
    slope = cat([ends + 1.0, inner, ends + 1.0], -1)
    return _positions(widths, bound), _positions(heights, bound), slope


def _positions(free: Tensor, bound: float) -> Tensor:
    pieces = free.array.shape[-1]
    shares = LEAST_SHARE + (1.0 - LEAST_SHARE * pieces) * softmax(free, -1)
    # The last knot is the bound itself, and not a sum that rounding has moved.
    inner = 2.0 * bound * last_part(cumsum(shares, -1), 0, -1) - bound
    end = free.new_zeros((*free.array.shape[:-1], 1)) + bound
    return cat([-end, inner, end], -1)


def _piece(positions: Tensor, value: Tensor) -> Tensor:
    """Return, for each value in the box, the number of its piece, shape (..., 1)."""
    inner = last_part(positions, 1, -1)
    return total((unsqueeze(value, -1) >= inner).long(), -1, keepdim=True)


def _ends(tables: Sequence[Tensor], index: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """Return the values of several tables at the left and at the right end of the chosen pieces."""
    values = stack(tables, -2)
    lead, rows = index.array.shape[:-1], len(tables)
    values = expand(values, (*lead, *values.array.shape[-2:]))
    index = expand(unsqueeze(index, -1), (*lead, rows, 1))
    return tuple(unbind(squeeze(gather(values, -1, i), -1), -1) for i in (index, index + 1))


def rational_quadratic(
    value: TensorLike, parameters: Sequence[Tensor], bound: float, inverse: bool = False
) -> tuple[Tensor, Tensor]:
    """Return a spline's value, or that of its inverse, and the log of the spline's slope there.

    Parameters
    ----------
    value : Tensor, shape (...)
    parameters : tuple of Tensor, shapes (..., K), (..., K), (..., K - 1)
        Free parameters of widths, heights and slopes.
    bound : float
    inverse : bool

    Returns
    -------
    result, log_slope : Tensor, shape (...)
        `log_slope` is dy/dx of the spline, in either direction.
    """
    inside = absolute(value) < bound
    # Outside the formula is evaluated at the bound, and its result is not used.
    v = clamp(value, -bound, bound)
    widths, heights, inner_slopes = parameters
    at_x, at_y, slopes = knots(widths, heights, inner_slopes, bound)
    index = _piece(at_y if inverse else at_x, v)
    (x0, y0, d0), (x1, y1, d1) = _ends((at_x, at_y, slopes), index)
    width, height = x1 - x0, y1 - y0
    mean = height / width
    bend = d0 + d1 - 2.0 * mean
    if inverse:
        # A quadratic equation for the share t of the piece; this form of the root does not cancel.
        rise = v - y0
        a = height * (mean - d0) + rise * bend
        b = height * d0 - rise * bend
        c = -mean * rise
        t = 2.0 * c / (-b - sqrt(clamp(b * b - 4.0 * a * c, min=0.0)))
    else:
        t = (v - x0) / width
    rest = 1.0 - t
    both, square = t * rest, t * t
    below = mean + bend * both
    log_slope = log(d1 * square + 2.0 * mean * both + d0 * rest * rest) + 2.0 * log(mean / below)
    if inverse:
        result = x0 + t * width
    else:
        result = y0 + height * (mean * square + d0 * both) / below
    return where(inside, result, value), where(inside, log_slope, 0.0)


def _check(owner: str, count_bins: int, bound: float, order: str) -> None:
    whole(owner, 2, count_bins=count_bins)
    if not bound > 0.0:
        raise ArgumentError(owner, expected="bound > 0", got=f"bound={bound}", fix="bound=3.0")
    if order != "quadratic":
        raise ArgumentError(
            f"{owner}(order=...)",
            expected="'quadratic', the rational-quadratic spline",
            got=repr(order),
            fix="leave it out",
        )


class ConditionedSpline(Transform):
    """A spline of each number, with given parameters.

    Parameters
    ----------
    parameters : tuple of Tensor, shapes (..., K), (..., K), (..., K - 1)
        Free parameters of widths, heights and inner slopes.
    bound : float
    """

    domain = constraints.real
    codomain = constraints.real

    def __init__(self, parameters: Sequence[Tensor], bound: float = 3.0) -> None:
        self._given, self.bound = parameters, bound

    def _parameters_now(self) -> Sequence[Tensor]:
        return self._given

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_slope(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return self._inverse_and_ladj(y)[0]

    def _inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return rational_quadratic(y, self._parameters_now(), self.bound, inverse=True)

    def call_and_slope(self, x: TensorLike) -> tuple[Tensor, Tensor]:
        """Return y and the log of its derivative."""
        return rational_quadratic(x, self._parameters_now(), self.bound)

    call_and_ladj = call_and_slope

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_slope(x)[1]


class Spline(ConditionedSpline, TransformModule):
    """A learned rational-quadratic spline for each number of a vector, independently.

    Parameters
    ----------
    input_dim : int
    count_bins : int
        Pieces of each curve.
    bound : float
        Outside of [-bound, bound] it is the identity.
    order : {"quadratic"}
        Accepted for Pyro's sake, whose default is "linear".

    References
    ----------
    [durkan2019]_
    """

    def __init__(
        self, input_dim: int, count_bins: int = 8, bound: float = 3.0, order: str = "quadratic"
    ) -> None:
        TransformModule.__init__(self)
        _check("Spline", count_bins, bound, order)
        whole("Spline", input_dim=input_dim)
        self.input_dim, self.count_bins, self.bound = input_dim, count_bins, bound
        for name, count in (("widths", 0), ("heights", 0), ("slopes", 1)):
            shape = (input_dim, count_bins - count)
            self.parameter(f"unnormalized_{name}", shape, init=init.uniform(-0.5, 0.5))

    def _parameters_now(self) -> tuple[Tensor, ...]:
        return self.unnormalized_widths, self.unnormalized_heights, self.unnormalized_slopes


class ConditionalSpline(ConditionalTransformModule):
    """A spline whose parameters are the outputs of a network of the context.

    Parameters
    ----------
    nn : callable
        From the context to three parameters of ``input_dim`` times K, K and K - 1 numbers.
    input_dim, count_bins, bound, order
        See `Spline`.
    """

    def __init__(
        self,
        nn: Module,
        input_dim: int,
        count_bins: int = 8,
        bound: float = 3.0,
        order: str = "quadratic",
    ) -> None:
        super().__init__()
        _check("ConditionalSpline", count_bins, bound, order)
        self.nn, self.input_dim, self.count_bins, self.bound = nn, input_dim, count_bins, bound

    def condition(self, context: Tensor) -> ConditionedSpline:
        """Return the transform for a context."""
        parameters = tuple(
            reshape(p, (*p.array.shape[:-1], self.input_dim, p.array.shape[-1] // self.input_dim))
            for p in self.nn(context)
        )
        return ConditionedSpline(parameters, self.bound)


class SplineAutoregressive(Autoregressive):
    """Splines whose parameters are functions of the numbers before.

    Parameters
    ----------
    input_dim : int
    autoregressive_nn : callable
        An `AutoRegressiveNN` with ``param_dims=[K, K, K - 1]``.
    count_bins, bound, order
        See `Spline`.

    References
    ----------
    [durkan2019]_
    """

    def __init__(
        self,
        input_dim: int,
        autoregressive_nn: Any,
        count_bins: int = 8,
        bound: float = 3.0,
        order: str = "quadratic",
    ) -> None:
        super().__init__(autoregressive_nn)
        _check("SplineAutoregressive", count_bins, bound, order)
        self.input_dim, self.count_bins, self.bound = input_dim, count_bins, bound

    def _forward(self, parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        parameters = tuple(transpose(p, -1, -2) for p in parameters)
        return rational_quadratic(x, parameters, self.bound)

    def _backward(self, parameters: Sequence[Tensor], y: Tensor) -> Tensor:
        parameters = tuple(transpose(p, -1, -2) for p in parameters)
        return rational_quadratic(y, parameters, self.bound, inverse=True)[0]


class ConditionalSplineAutoregressive(ConditionalTransformModule):
    """`SplineAutoregressive` whose network also sees a context.

    Parameters
    ----------
    input_dim : int
    autoregressive_nn : ConditionalAutoRegressiveNN
    **kwargs
        Settings of `SplineAutoregressive`.
    """

    def __init__(self, input_dim: int, autoregressive_nn: Any, **kwargs: Any) -> None:
        super().__init__()
        self.input_dim, self.nn, self.kwargs = input_dim, autoregressive_nn, kwargs

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        return SplineAutoregressive(self.input_dim, InContext(self.nn, context), **self.kwargs)


def parameter_sizes(count_bins: int, numbers: int = 1) -> list[int]:
    """Numbers of parameters that a network has to give for the splines of so many numbers."""
    return [numbers * count_bins, numbers * count_bins, numbers * (count_bins - 1)]


def spline(input_dim: int, **kwargs: Any) -> Spline:
    """Return new splines, one per number; keywords are those of `Spline`.

    Parameters
    ----------
    input_dim : int
    **kwargs

    Returns
    -------
    Spline
    """
    return Spline(input_dim, **kwargs)


def conditional_spline(
    input_dim: int,
    context_dim: int,
    hidden_dims: Sequence[int] | None = None,
    count_bins: int = 8,
    bound: float = 3.0,
    order: str = "quadratic",
) -> ConditionalSpline:
    """Return new splines with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.
    count_bins, bound, order
        See `Spline`.

    Returns
    -------
    ConditionalSpline
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    network = DenseNN(context_dim, layers, parameter_sizes(count_bins, input_dim))
    return ConditionalSpline(network, input_dim, count_bins, bound, order)


def spline_autoregressive(
    input_dim: int,
    hidden_dims: Sequence[int] | None = None,
    count_bins: int = 8,
    bound: float = 3.0,
    order: str = "quadratic",
) -> SplineAutoregressive:
    """Return a new autoregressive spline flow.

    Parameters
    ----------
    input_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.
    count_bins, bound, order
        See `Spline`.

    Returns
    -------
    SplineAutoregressive
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    network = AutoRegressiveNN(input_dim, layers, parameter_sizes(count_bins))
    return SplineAutoregressive(input_dim, network, count_bins, bound, order)


def conditional_spline_autoregressive(
    input_dim: int,
    context_dim: int,
    hidden_dims: Sequence[int] | None = None,
    count_bins: int = 8,
    bound: float = 3.0,
    order: str = "quadratic",
) -> ConditionalSplineAutoregressive:
    """Return a new autoregressive spline flow with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.
    count_bins, bound, order
        See `Spline`.

    Returns
    -------
    ConditionalSplineAutoregressive
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    network = ConditionalAutoRegressiveNN(
        input_dim, context_dim, layers, parameter_sizes(count_bins)
    )
    return ConditionalSplineAutoregressive(
        input_dim, network, count_bins=count_bins, bound=bound, order=order
    )


explain_calls(globals())
