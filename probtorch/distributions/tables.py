"""Distributions given by a table: a density by its values at points, or outcomes with masses."""

from __future__ import annotations

import math
from typing import Self

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import int64
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import (
    INSTANCE_STATE,
    Given,
    Parameter,
    Values,
    as_parameter,
    one_of,
    param,
)
from probtorch.distributions.source import Source
from probtorch.errors import DomainError, ShapeError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.comparisons import eq
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import log
from probtorch.ops.extremes import amax, amin
from probtorch.ops.indexing import vindex
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.pieces import cat, stack
from probtorch.ops.reduction import all as every
from probtorch.ops.reduction import any as some
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import xlogy
from probtorch.tensor import Tensor

__all__ = ["FiniteDiscrete", "Interpolated", "JointCategorical"]


def same_length(owner: str, first: Tensor, second: Tensor, names: str) -> None:
    """Raise ShapeError unless the last dims of two parameters have the same size."""
    if first.array.shape[-1] != second.array.shape[-1]:
        raise ShapeError(
            owner,
            expected=f"{names} of the same length",
            got=f"{first.array.shape[-1]} and {second.array.shape[-1]}",
            fix="give one value for each",
        )


class Interpolated(Distribution):
    """A density on an interval, by straight lines between its values at points.

    What is left of an experiment when only a histogram, or a posterior density on a grid, is known.

    Density ``f(x) = lines(x, x_points, pdf_points) / integral(lines(t, x_points, pdf_points) for t
    in between(x_points[0], x_points[n - 1]))`` with ``n = len(x_points)``.

    There `lines` is what joins the points.

    Parameters
    ----------
    x_points : Tensor, shape (..., n), increasing
    pdf_points : Tensor, shape (..., n), nonnegative
        Values at the points; they are scaled so that the density integrates to 1.
    """

    x_points: Parameter = param(constraints.ordered_vector)
    pdf_points: Parameter = param(constraints.independent(constraints.nonnegative, 1))

    @constraints.dependent_property(event_dim=0, is_discrete=False)
    def support(self) -> Constraint:
        """From the first point to the last."""
        return constraints.interval(self.x_points[..., 0], self.x_points[..., -1])

    def _infer_event_shape(self) -> Shape:
        same_length("Interpolated", self.x_points, self.pdf_points, "x_points and pdf_points")
        return ()

    def _pieces(self) -> tuple[Tensor, Tensor]:
        """Return widths of the pieces and their integrals, before scaling."""
        x, y = self.x_points, self.pdf_points
        width = x[..., 1:] - x[..., :-1]
        return width, 0.5 * width * (y[..., 1:] + y[..., :-1])

    def _ends(self, at: Tensor, points: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the number of the piece between whose `points` a value lies, and its corners."""
        i = total((unsqueeze(at, -1) >= points[..., 1:-1]).long(), -1)
        x, y = ([vindex(p, (..., i + k)) for k in (0, 1)] for p in (self.x_points, self.pdf_points))
        return i, x, y

    def _piece(self, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the number of the piece that holds a value, the value's start and its density."""
        i, (x0, x1), (y0, y1) = self._ends(at, self.x_points)
        share = (at - x0) / (x1 - x0)
        return i, x0, y0 + (y1 - y0) * share

    def _log_prob(self, x: Tensor) -> Tensor:
        return log(self._piece(x)[2]) - log(total(self._pieces()[1], -1))

    def _cumulative(self) -> Tensor:
        """Return integrals up to each point, before scaling."""
        areas = self._pieces()[1]
        return cat([areas[..., :1] * 0.0, cumsum(areas, -1)], -1)

    def _cdf(self, x: Tensor) -> Tensor:
        x = clamp(x, self.x_points[..., 0], self.x_points[..., -1])
        below = self._cumulative()
        i, x0, y = self._piece(x)
        part = 0.5 * (x - x0) * (vindex(self.pdf_points, (..., i)) + y)
        return (vindex(below, (..., i)) + part) / below[..., -1]

    def _icdf(self, p: Tensor) -> Tensor:
        below = self._cumulative()
        goal = p * below[..., -1]
        i, (x0, x1), (y0, y1) = self._ends(goal, below)
        rest = maximum(goal - vindex(below, (..., i)), 0.0)
        slope = (y1 - y0) / (x1 - x0)
        # rest = y0 t + slope t^2 / 2, the root without a difference
        root = sqrt(maximum(y0 * y0 + 2.0 * slope * rest, 0.0))
        both = y0 + root
        t = where(both > 0.0, 2.0 * rest / where(both > 0.0, both, 1.0), 0.0)
        return minimum(x0 + t, x1)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return self._icdf(rng.uniform(shape) + self.x_points[..., 0] * 0.0)

    def _raw(self, order: int, center: Tensor | float = 0.0) -> Tensor:
        """E[(x - center) ** order], by Gauss's rule with three nodes, exact to degree 5."""
        width, areas = self._pieces()
        y = self.pdf_points
        if isinstance(center, Tensor):
            center = unsqueeze(center, -1)
        sum_: float | Tensor = 0.0
        for node, weight in zip(*np.polynomial.legendre.leggauss(3), strict=True):
            share = 0.5 * (1.0 + float(node))
            x = self.x_points[..., :-1] + width * share - center
            value = y[..., :-1] + (y[..., 1:] - y[..., :-1]) * share
            sum_ = sum_ + 0.5 * float(weight) * width * value * x**order
        assert isinstance(sum_, type(width))  # there are three nodes
        return total(sum_, -1) / total(areas, -1)

    def _mean(self) -> Tensor:
        return self._raw(1)

    def _variance(self) -> Tensor:
        return self._raw(2, self._raw(1))

    def _skewness(self) -> Tensor:
        mean = self._raw(1)
        return self._raw(3, mean) / self._raw(2, mean) ** 1.5

    def _kurtosis(self) -> Tensor:
        mean = self._raw(1)
        return self._raw(4, mean) / self._raw(2, mean) ** 2 - 3.0

    def _entropy(self) -> Tensor:
        # On a piece from a to b the integral of y log y over its width is, with F(y) =
        # y^2 (2 log y - 1) / 4, (F(b) - F(a)) / (b - a); of nearly equal ends the mean of Gauss.
        width, areas = self._pieces()
        a, b = self.pdf_points[..., :-1], self.pdf_points[..., 1:]
        near = absolute(b - a) < 0.5 * (a + b)
        gap = where(near, 1.0, b - a)
        far = (0.5 * (xlogy(b * b, b) - xlogy(a * a, a)) - 0.25 * (b * b - a * a)) / gap
        smooth = far * 0.0
        for node, weight in zip(*np.polynomial.legendre.leggauss(12), strict=True):
            y = where(near, a + (b - a) * (0.5 * (1.0 + float(node))), 1.0)
            smooth = smooth + 0.5 * float(weight) * xlogy(y, y)
        size = total(areas, -1)
        return log(size) - total(width * where(near, smooth, far), -1) / size

    def _mode(self) -> Tensor:
        top = amax(self.pdf_points, -1, True)
        at = where(eq(self.pdf_points, top), self.x_points, math.inf)
        return amin(at, -1)


class Among(Constraint):
    """The numbers of a list."""

    is_discrete = True

    def __init__(self, outcomes: Tensor) -> None:
        self.outcomes = outcomes

    def check(self, value: Tensor) -> Tensor:
        return some(eq(unsqueeze(value, -1), self.outcomes), -1)

    def interior(self, value: Tensor) -> float | Tensor:
        return self.outcomes[..., 0]


class FiniteDiscrete(Distribution):
    """A finite list of numbers with their probabilities.

    Probability ``p(x) = sum(probs[i] if outcomes[i] == x else 0 for i in range(len(probs)))``.

    Parameters
    ----------
    outcomes : Tensor, shape (..., n), increasing
    probs : Tensor, shape (..., n), optional
        Nonnegative, summing to 1.
    logits : Tensor, shape (..., n), optional
        Log probabilities up to a constant; exactly one of the two is given.
    """

    outcomes: Parameter = param(constraints.ordered_vector)
    probs: Parameter = param(constraints.simplex, default=None)
    logits: Parameter = param(constraints.real_vector, default=None)
    given = one_of("probs", "logits")

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]  # depends on the outcomes
        """Whether all of the batch has the same outcomes."""
        return self.outcomes.array.ndim == 1

    @constraints.dependent_property(event_dim=0, is_discrete=True)
    def support(self) -> Constraint:
        """The outcomes."""
        return Among(self.outcomes)

    def _infer_event_shape(self) -> Shape:
        masses = self.logits if self._given("logits") else self.probs
        same_length("FiniteDiscrete", self.outcomes, masses, "outcomes and their probabilities")
        return ()

    def _log_masses(self) -> Tensor:
        if self._given("probs"):
            return log(self.probs)
        return self.logits - logsumexp(self.logits, -1, True)

    def _probs(self) -> Tensor:
        return self._log_masses().exp()

    def _logits(self) -> Tensor:
        return log(self.probs)

    def _enumerate_support(self) -> Tensor:
        return self.outcomes

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        i = rng.categorical(self.probs, shape)
        return vindex(self.outcomes, (..., i))

    def _log_prob(self, x: Tensor) -> Tensor:
        here = eq(unsqueeze(x, -1), self.outcomes)
        return logsumexp(where(here, self._log_masses(), -math.inf), -1)

    def _cdf(self, x: Tensor) -> Tensor:
        below = self.outcomes <= unsqueeze(x, -1)
        # All of them have probability 1, whatever the rounding of the sum.
        return where(every(below, -1), 1.0, total(where(below, self.probs, 0.0), -1))

    def _icdf(self, p: Tensor) -> Tensor:
        sums = cumsum(self.probs, -1)[..., :-1]
        i = total((unsqueeze(p, -1) > sums).long(), -1)
        return vindex(self.outcomes, (..., i))

    def _mean(self) -> Tensor:
        return total(self.probs * self.outcomes, -1)

    def _variance(self) -> Tensor:
        apart = self.outcomes - unsqueeze(self._mean(), -1)
        return total(self.probs * apart * apart, -1)

    def _mode(self) -> Tensor:
        p = self.probs
        return amin(where(eq(p, amax(p, -1, True)), self.outcomes, math.inf), -1)

    def _entropy(self) -> Tensor:
        p = self.probs
        some_ = p > 0.0
        return -total(where(some_, p * where(some_, self._log_masses(), 0.0), 0.0), -1)


class JointCategorical(Distribution):
    """Several categories at once, by a table of the probabilities of all their combinations.

    Probability ``p(x) = probs[tuple(x)] / sum(probs)``.

    Parameters
    ----------
    probs : Tensor, shape (..., K1, ..., Kn), nonnegative
        Weights: they are divided by their sum. ``probs[i, j]`` is that of ``[i, j]``.
    num_variables : int, optional
        The n of them: how many of the last dims are the table's, the others being a batch. All if
        left out.

    Notes
    -----
    A draw has shape (n,). The table has as many entries as there are combinations: for more than a
    few variables write a model, in which each depends on few others.

    Examples
    --------
    >>> from probtorch.distributions import JointCategorical
    >>> d = JointCategorical([[0.1, 0.2], [0.3, 0.4]])
    >>> d.log_prob([1, 0]).exp()
    tensor(0.3000)
    """

    __tree_fields__ = ("base_dist",)
    __static_fields__ = ("sizes", *INSTANCE_STATE)
    has_enumerate_support = True
    _takes_integers = True

    def __init__(
        self,
        probs: Given,
        num_variables: int | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        table = as_parameter(probs, "probs")[0]
        shape = tuple(table.array.shape)
        n = len(shape) if num_variables is None else num_variables
        whole = isinstance(n, (int, np.integer)) and not isinstance(n, bool)
        if not whole or not 1 <= n <= len(shape):
            raise ShapeError(
                "JointCategorical",
                expected="a table with a dim for each variable",
                got=f"shape {shape}, num_variables={num_variables!r}",
                fix="give probs of shape (..., K1, ..., Kn) and num_variables=n",
            )
        batch, sizes = shape[: len(shape) - n], shape[len(shape) - n :]
        flat = reshape(table, (*batch, math.prod(sizes)))
        try:
            base = Categorical(probs=flat, validate_args=validate_args)
        except DomainError as error:
            raise DomainError(
                "JointCategorical: parameter probs",
                expected="entries of 0 or more, not all of them 0",
                got=error.got,
                fix="entries are divided by the sum of all: of logarithms pass log_probs.exp()",
            ) from None
        self._over(base, sizes)

    def _over(self, base: Categorical, sizes: Shape) -> None:
        """Set the distribution of the number of the combination, and the shapes."""
        self.base_dist, self.sizes = base, sizes
        self._set_shapes(
            base._batch_shape,
            (len(sizes),),
            dtype=base._dtype,
            device=base._device,
            validate_args=base._validate_args,
        )

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        made = object.__new__(cls)
        made._over(values["base_dist"], values["sizes"])
        return made

    def _tree_names(self) -> tuple[str, ...]:
        return ("base_dist", "sizes")

    @property
    def probs(self) -> Tensor:
        """The table, divided by its sum."""
        flat = self.base_dist.probs
        return reshape(flat, (*flat.array.shape[:-1], *self.sizes))

    @constraints.dependent_property(event_dim=1, is_discrete=True)
    def support(self) -> Constraint:
        """Vectors of category numbers."""
        last = wrap(np.array(self.sizes) - 1.0)
        return constraints.independent(constraints.integer_interval(0, last), 1)

    def _strides(self) -> list[int]:
        return [math.prod(self.sizes[i + 1 :]) for i in range(len(self.sizes))]

    def _parted(self, number: Tensor) -> Tensor:
        """Return the categories of the number of a combination, along a new last dim."""
        parts = zip(self._strides(), self.sizes, strict=True)
        whole = cast(number, int64)
        return stack([(whole // stride) % size for stride, size in parts], -1)

    def _log_prob(self, x: Tensor) -> Tensor:
        x = cast(x, int64)
        return self.base_dist._log_prob(total(x * x.new_tensor(self._strides()), -1))

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return self._parted(self.base_dist._sample(rng, shape[:-1]))

    def _enumerate_support(self) -> Tensor:
        return self._parted(wrap(np.arange(math.prod(self.sizes))))

    def _mode(self) -> Tensor:
        return self._parted(self.base_dist._mode())


explain_calls(globals())
