"""Times at which the lines of descent of a sample meet, going back from its leaves (Kingman 1982).

Each pair of lines meets at the same rate, which may change over time. In a time that runs at that
rate the process is one and the same, so everything is stated for a rate of 1 and carried over by
the integral of the rate. Later times are more recent; going back, leaves add a line and coalescent
events take one.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.core.casting import cast
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given, Parameter, as_parameter, param
from probtorch.distributions.source import Source
from probtorch.distributions.transforms.registry import biject_to, transform_to
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.validation import validation_in_force
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.ops.arithmetic import clamp, floor, maximum, minimum, where
from probtorch.ops.exponentials import exp, log
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, movedim, unsqueeze
from probtorch.ops.pieces import cat, flip, stack
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.sorting import sort
from probtorch.tensor import Tensor

__all__ = ["CoalescentRateLikelihood", "CoalescentTimes", "CoalescentTimesWithRate"]


def _history(leaves: Tensor, events: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all times from the latest on, the number of lines after each, and which are events."""
    batch = broadcast_shapes(leaves.array.shape[:-1], events.array.shape[:-1], op="coalescent")
    n, m = leaves.array.shape[-1], events.array.shape[-1]
    times, order = sort(
        cat([expand(leaves, (*batch, n)), expand(events, (*batch, m))], -1), -1, True
    )
    is_event, one = order >= n, times.new_tensor(1.0)
    return times, cumsum(where(is_event, -one, one), -1), is_event


def _pairs(lines: Tensor) -> Tensor:
    return lines * (lines - 1.0) * 0.5


def _log_density(leaves: Tensor, events: Tensor) -> Tensor:
    """Log density of events where each pair meets at the rate 1."""
    times, lines, is_event = _history(leaves, events)
    pairs = _pairs(lines)[..., :-1]
    survived = total(pairs * (times[..., :-1] - times[..., 1:]), -1)
    met = is_event[..., 1:]
    return total(log(where(met, maximum(pairs, 1.0), 1.0)), -1) - survived


def _drawn(leaves: Tensor, rng: Source, shape: Shape) -> Tensor:
    """Draw events where each pair meets at the rate 1, of the shape (..., leaves - 1)."""
    batch, n = shape[:-1], leaves.array.shape[-1]
    leaves = expand(sort(leaves, -1, True)[0], (*batch, n))
    noise = movedim(rng.exponential((*batch, 2 * n - 2)), -1, 0)
    one = leaves[..., 0] * 0.0 + 1.0

    def step(state: tuple[Tensor, Tensor, Tensor], e: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        t, lines, seen = state
        some = lines > 1.5
        event = where(some, t - e / _pairs(where(some, lines, 2.0)), -math.inf)
        place = cast(minimum(seen, n - 1.0), int64)
        leaf = gather(leaves, -1, unsqueeze(place, -1))[..., 0]
        # The wait has no memory: at a leaf a new one begins.
        joins = (seen < n) & (leaf >= event)
        new = where(joins, leaf, event)
        change = where(joins, one, -one)
        return (new, lines + change, seen + where(joins, one, one * 0.0)), where(
            joins, math.inf, event
        )

    _, events = scan(step, (leaves[..., 0], one, one), noise)
    return sort(movedim(events, 0, -1), -1)[0][..., : n - 1]


class CoalescentConstraint(Constraint):
    """Ordered times at which lines meet, such that there are always lines to meet."""

    event_dim = 1

    def __init__(self, leaf_times: Tensor) -> None:
        self.leaf_times = leaf_times

    def check(self, value: Tensor) -> Tensor:
        ordered = every(value[..., 1:] >= value[..., :-1], -1)
        _, lines, _ = _history(self.leaf_times, value)
        return ordered & every(lines > 0.5, -1)

    def interior(self, value: Tensor) -> float | Tensor:
        first = self.leaf_times.amin(-1, True)
        return first - value.new_tensor(np.arange(value.array.shape[-1], 0.0, -1.0))


class CoalescentTransform(Transform):
    """Vectors of reals onto ordered times of events, from the latest on.

    Each is exp(x) before the one after it, or before the leaf that it needs, whichever is earlier.
    """

    domain = constraints.real_vector

    def __init__(self, codomain: CoalescentConstraint) -> None:
        self.codomain, self.leaf_times = codomain, codomain.leaf_times

    def _limits(self) -> Tensor:
        """The leaf that each event needs, from the latest event on."""
        return sort(self.leaf_times, -1, True)[0][..., 1:]

    def _call(self, x: Tensor) -> Tensor:
        limits, before = self._limits(), exp(x)
        events = [limits[..., 0] - before[..., 0]]
        for k in range(1, x.array.shape[-1]):
            events.append(minimum(events[-1], limits[..., k]) - before[..., k])
        return flip(stack(events, -1), (-1,))

    def _inverse(self, y: Tensor) -> Tensor:
        events, limits = flip(y, (-1,)), self._limits()
        later = minimum(events[..., :-1], limits[..., 1:])
        batch = broadcast_shapes(later.array.shape[:-1], limits.array.shape[:-1], op="coalescent")
        first = expand(limits[..., :1], (*batch, 1))
        return log(cat([first, expand(later, (*batch, later.array.shape[-1]))], -1) - events)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return total(x, -1)


def _transform(constraint: CoalescentConstraint) -> Transform:
    return CoalescentTransform(constraint)


biject_to.register(CoalescentConstraint, _transform)
transform_to.register(CoalescentConstraint, _transform)


class _Coalescent(Distribution, abc.ABC):
    """Both kinds: the time that runs at the rate, back from it, and the rate."""

    leaf_times: Parameter = param(constraints.real_vector)

    @constraints.dependent_property(event_dim=1)
    def support(self) -> Constraint:
        """Ordered times of events, each before the leaves that it needs."""
        return CoalescentConstraint(self.leaf_times)

    def _infer_event_shape(self) -> Shape:
        n = self.leaf_times.array.shape[-1]
        if n < 2:
            raise ShapeError(
                type(self).__name__,
                expected="leaf_times of shape (..., n), n from 2 on",
                got=f"shape {self.leaf_times.array.shape}",
                fix="give the time of each leaf",
            )
        return (n - 1,)

    @abc.abstractmethod
    def _clock(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """Return the integral of the rate, and its inverse."""

    @abc.abstractmethod
    def _rate_at(self, x: Tensor) -> Tensor:
        """Return the rate at some times."""

    def _log_prob(self, x: Tensor) -> Tensor:
        forth, _ = self._clock()
        density = _log_density(forth(self.leaf_times), forth(x))
        return density + total(log(self._rate_at(x)), -1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        forth, back = self._clock()
        return back(_drawn(forth(self.leaf_times), rng, shape))


class CoalescentTimes(_Coalescent):
    """Times at which lines of descent meet, where each pair meets at one rate.

    Density ``f(x) = prod(rate * binom(lines_at(v), 2) for v in each(x)) * exp(-rate *
    integral(binom(lines_at(t), 2) for t in between(x[0], max(leaf_times))))``.

    There `lines_at` counts the lines at a time, k in the formula: the leaves that are later, less
    the meetings that are later.

    Parameters
    ----------
    leaf_times : Tensor, shape (..., n)
        Times at which the leaves were sampled; larger is later.
    rate : Tensor or number, positive
        Of each pair; 1 over the effective size of the population.

    Notes
    -----
    Values are n - 1 times in increasing order. Their support has a bijection, so that they can be
    unknown under NUTS. The signature is Pyro's.

    References
    ----------
    Kingman (1982), "On the genealogy of large populations".
    """

    leaf_times: Parameter = param(constraints.real_vector)
    rate: Parameter = param(constraints.positive, default=1.0)

    def _clock(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        rate = unsqueeze(self.rate, -1)
        return lambda t: t * rate, lambda s: s / rate

    def _rate_at(self, x: Tensor) -> Tensor:
        return unsqueeze(self.rate, -1) + x * 0.0


class CoalescentTimesWithRate(_Coalescent):
    """Times at which lines of descent meet, where the rate of each pair changes from step to step.

    Density ``f(x) = prod(rate_at(v) * binom(lines_at(v), 2) for v in each(x)) *
    exp(-integral(rate_at(t) * binom(lines_at(t), 2) for t in between(x[0], max(leaf_times))))``.

    There `lines_at` counts the lines at a time, k in the formula, and `rate_at` is the rate at it.

    Parameters
    ----------
    leaf_times : Tensor, shape (..., n)
        Times at which the leaves were sampled; larger is later.
    rate_grid : Tensor, shape (..., steps), positive
        Rates before time 1, between 1 and 2, and so on, and after ``steps - 1``.

    Notes
    -----
    Values are n - 1 times in increasing order. The signature is Pyro's; draws are new.

    References
    ----------
    Popinga, Vaughan, Stadler, Drummond (2015), "Inferring epidemiological dynamics with Bayesian
    coalescent inference".
    """

    leaf_times: Parameter = param(constraints.real_vector)
    rate_grid: Parameter = param(constraints.independent(constraints.positive, 1))

    @property
    def duration(self) -> int:
        """Number of steps of the grid."""
        return self.rate_grid.array.shape[-1]

    def _step(self, t: Tensor) -> Tensor:
        return cast(clamp(floor(t), 0.0, self.duration - 1.0), int64)

    def _rate_at(self, x: Tensor) -> Tensor:
        return _entries(self.rate_grid, self._step(x))

    def _clock(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        rates = self.rate_grid
        starts = cumsum(rates, -1) - rates

        def forth(t: Tensor) -> Tensor:
            k = self._step(t)
            return _entries(starts, k) + _entries(rates, k) * (t - k)

        def back(s: Tensor) -> Tensor:
            later = unsqueeze(s, -1) >= unsqueeze(starts[..., 1:], -2)
            k = total(cast(later, int64), -1)
            return k + (s - _entries(starts, k)) / _entries(rates, k)

        return forth, back


def _entries(x: Tensor, place: Tensor) -> Tensor:
    """x[..., place] for places of any batch shape that broadcasts."""
    batch = broadcast_shapes(x.array.shape[:-1], place.array.shape[:-1], op="coalescent")
    wide = expand(x, (*batch, x.array.shape[-1]))
    return gather(wide, -1, expand(place, (*batch, place.array.shape[-1])))


class CoalescentRateLikelihood:
    """The log density of `CoalescentTimesWithRate` as a sum over the steps of the rate grid.

    Given times, each step has a term of its own, so that rates may be drawn in a plate or one after
    another: their sum is the log density of the times.

    Parameters
    ----------
    leaf_times : Tensor, shape (..., n)
    coal_times : Tensor, shape (..., n - 1)
        In any order.
    duration : int, from 2 on
        Number of steps of the grid.
    validate_args : bool, optional
        Whether to check that the times are possible.

    Raises
    ------
    DomainError
        If a line meets another before there are two.
    """

    def __init__(
        self,
        leaf_times: Given,
        coal_times: Given,
        duration: int,
        *,
        validate_args: bool | None = None,
    ) -> None:
        leaves = as_parameter(leaf_times, "leaf_times")[0]
        events = as_parameter(coal_times, "coal_times")[0]
        if leaves.array.shape[-1:] != (events.array.shape[-1] + 1,):
            raise ShapeError(
                "CoalescentRateLikelihood",
                expected="one time of coalescence fewer than leaves",
                got=f"leaf_times of shape {leaves.array.shape}, coal_times {events.array.shape}",
                fix="give n times of leaves and n - 1 times at which two lines meet",
            )
        if not isinstance(duration, int) or duration < 2:
            raise ArgumentError(
                "CoalescentRateLikelihood",
                expected="duration, a whole number from 2 on",
                got=repr(duration),
                fix="pass the size of the last dim of the rates",
            )
        times, lines, is_event = _history(leaves, events)
        check = validation_in_force() if validate_args is None else validate_args
        if check and not (lines.array > 0.5).all():
            raise DomainError(
                "CoalescentRateLikelihood",
                expected="at each time of coalescence two lines or more",
                got="a time later than the second leaf, or too many times after some leaf",
                fix="larger times are later: lines meet before their leaves",
            )
        pairs = _pairs(lines)[..., :-1]
        grid = np.arange(1.0, duration)
        start = times.new_tensor(np.concatenate([[-math.inf], grid]))
        end = times.new_tensor(np.concatenate([grid, [math.inf]]))
        upper = minimum(unsqueeze(times[..., :-1], -1), end)
        lower = maximum(unsqueeze(times[..., 1:], -1), start)
        self._linear = -total(unsqueeze(pairs, -1) * maximum(upper - lower, 0.0), -2)
        step = clamp(floor(times[..., 1:]), 0.0, duration - 1.0)
        here = unsqueeze(step, -1).eq(times.new_tensor(np.arange(float(duration))))
        here = here & unsqueeze(is_event[..., 1:], -1)
        self._log = total(cast(here, times.array.dtype), -2)
        self._const = total(where(here, log(maximum(unsqueeze(pairs, -1), 1.0)), 0.0), -2)

    def __call__(self, rate_grid: TensorLike, t: int | slice = slice(None)) -> Tensor:
        """Return the terms of the log density for rates of all steps, or of one.

        Parameters
        ----------
        rate_grid : Tensor, shape (..., steps), or that of `t`
        t : int or slice
            The steps that `rate_grid` is of.
        """
        rates = as_tensor(rate_grid, "CoalescentRateLikelihood")
        return self._const[..., t] + self._linear[..., t] * rates + self._log[..., t] * log(rates)


explain_calls(globals())
