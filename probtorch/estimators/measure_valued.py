"""`MeasureValued`: gradients from differences of costs at two draws.

The derivative of a density in a parameter is a difference of two densities times a constant,

    d q(z; theta) / d theta = c (p(z) - n(z)),

so the gradient of E_q[f] is c (E_p[f] - E_n[f]): no derivative of the cost is needed, and no score
(Pflug 1989; Mohamed et al. 2020, sec. 6, whose table 1 is extended here). The two draws are made
from common noise. `WEAK_DERIVATIVES` has one function per distribution; it yields the parameter,
the constant, and the draws.

Elements that make one cost together are moved one at a time: two evaluations each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.casting import cast
from probtorch.core.dispatch import recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tree import record
from probtorch.core.typed import Shape
from probtorch.distributions.bernoulli import Bernoulli, Geometric
from probtorch.distributions.categorical import Categorical, OneHotCategorical
from probtorch.distributions.counts import Binomial, Poisson
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.location_scale import Laplace
from probtorch.distributions.normal import HalfNormal, LogNormal, Normal
from probtorch.distributions.positive import Exponential, Weibull
from probtorch.estimators.protocol import Estimated, Estimator, Problem, Refusal
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.exponentials import exp
from probtorch.ops.families import unbroadcast
from probtorch.ops.movement import expand, reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import mean
from probtorch.tensor import Tensor

__all__ = ["WEAK_DERIVATIVES", "MeasureValued", "WeakDerivative"]


class WeakDerivative(NamedTuple):
    """The derivative of a distribution in one of its parameters.

    Attributes
    ----------
    parameter : Tensor, broadcasting to B
    constant : Tensor or float, broadcasting to B
    plus, minus : Tensor, shape (n, *B, *E)
        Draws of the positive and of the negative part.
    """

    parameter: Tensor
    constant: float | Tensor
    plus: Tensor
    minus: Tensor


_Rule = TypeVar("_Rule", bound=Callable[..., Iterator[WeakDerivative]])

# By class: a generator of its weak derivatives over (q, problem, draws of q).
WEAK_DERIVATIVES: dict[type, Callable[..., Iterator[WeakDerivative]]] = {}

# Parameters in which no weak derivative is known, by class.
UNKNOWN: dict[type, tuple[str, ...]] = {Gamma: ("concentration",)}


def weak_derivative(kind: type) -> Callable[[_Rule], _Rule]:
    """Decorator: register the weak derivatives of a class."""

    def register(fn: _Rule) -> _Rule:
        WEAK_DERIVATIVES[kind] = fn
        return fn

    return register


def _wanted(parameter: Tensor) -> bool:
    """Whether a gradient may be asked for; forward mode keeps tangents elsewhere."""
    return parameter.requires_grad or recorder() is not None


@weak_derivative(Bernoulli)
def _bernoulli(q: Bernoulli, problem: Problem, drawn: Tensor) -> Iterator[WeakDerivative]:
    shape = (problem.num_samples, *q.batch_shape)
    ones = wrap(np.ones(shape, q.probs.array.dtype))
    yield WeakDerivative(q.probs, 1.0, ones, ones * 0.0)


@weak_derivative(Binomial)
def _binomial(q: Binomial, problem: Problem, drawn: Tensor) -> Iterator[WeakDerivative]:
    rest = problem.draws.sample(_fewer(q), problem.num_samples)
    yield WeakDerivative(q.probs, q.total_count, where(q.total_count > 0.0, rest + 1.0, rest), rest)


def _fewer(q: Binomial) -> Distribution:
    n = where(q.total_count > 0.0, q.total_count - 1.0, 0.0)
    return Binomial(n, q.probs.detach()).expand(q.batch_shape)


@weak_derivative(Categorical)
@weak_derivative(OneHotCategorical)
def _categories(
    q: Categorical | OneHotCategorical, problem: Problem, drawn: Tensor
) -> Iterator[WeakDerivative]:
    # The changes of the probabilities add up to 0, so what is subtracted is free: the draw itself.
    weights, values = q._weights(), q.enumerate_support()
    for k in range(q.num_categories):
        at = expand(reshape(values[k], (1, *values.array.shape[1:])), drawn.array.shape)
        yield WeakDerivative(weights[..., k], 1.0, at, drawn)


@weak_derivative(Poisson)
def _poisson(q: Poisson, problem: Problem, drawn: Tensor) -> Iterator[WeakDerivative]:
    yield WeakDerivative(q.rate, 1.0, drawn + 1.0, drawn)


@weak_derivative(Geometric)
def _geometric(q: Geometric, problem: Problem, drawn: Tensor) -> Iterator[WeakDerivative]:
    yield WeakDerivative(q.probs, 1.0 / q.probs, drawn, 1.0 + drawn + problem.sample())


@weak_derivative(Exponential)
def _exponential(q: Exponential, problem: Problem, drawn: Tensor) -> Iterator[WeakDerivative]:
    yield WeakDerivative(q.rate, 1.0 / q.rate, drawn, drawn + problem.sample())


@weak_derivative(Gamma)
def _gamma(q: Gamma, problem: Problem, drawn: Tensor) -> Iterator[WeakDerivative]:
    waiting = Exponential(q.rate.detach()).expand(q.batch_shape)
    more = problem.draws.sample(waiting, problem.num_samples)
    yield WeakDerivative(q.rate, q.concentration / q.rate, drawn, drawn + more)


@weak_derivative(Normal)
def _normal(
    q: Normal | LogNormal,
    problem: Problem,
    drawn: Tensor,
    onto: Callable[[Tensor], Tensor] = lambda x: x,
) -> Iterator[WeakDerivative]:
    loc, scale, n = q.loc.detach(), q.scale.detach(), problem.num_samples
    one = expand(wrap(np.ones((), scale.array.dtype)), tuple(q.batch_shape))
    if _wanted(q.loc):
        w = problem.draws.sample(Weibull(one * math.sqrt(2.0), one * 2.0), n) * scale
        constant = 1.0 / (scale * math.sqrt(2.0 * math.pi))
        yield WeakDerivative(q.loc, constant, onto(loc + w), onto(loc - w))
    if _wanted(q.scale):
        m = _maxwell(problem, one) * scale
        m = m * _signs(problem, m)
        # A uniform share of it is normal.
        rest = m * problem.uniform(m)
        yield WeakDerivative(q.scale, 1.0 / scale, onto(loc + m), onto(loc + rest))


@weak_derivative(LogNormal)
def _log_normal(q: LogNormal, problem: Problem, drawn: Tensor) -> Iterator[WeakDerivative]:
    yield from _normal(q, problem, drawn, exp)


@weak_derivative(HalfNormal)
def _half_normal(q: HalfNormal, problem: Problem, drawn: Tensor) -> Iterator[WeakDerivative]:
    scale = q.scale.detach()
    one = expand(wrap(np.ones((), scale.array.dtype)), tuple(q.batch_shape))
    m = _maxwell(problem, one) * scale
    yield WeakDerivative(q.scale, 1.0 / scale, m, m * problem.uniform(m))


@weak_derivative(Laplace)
def _laplace(q: Laplace, problem: Problem, drawn: Tensor) -> Iterator[WeakDerivative]:
    loc, scale, n = q.loc.detach(), q.scale.detach(), problem.num_samples
    unit = Exponential(expand(wrap(np.ones((), scale.array.dtype)), tuple(q.batch_shape)))
    e = problem.draws.sample(unit, n) * scale
    if _wanted(q.loc):
        yield WeakDerivative(q.loc, 0.5 / scale, loc + e, loc - e)
    if _wanted(q.scale):
        sign = _signs(problem, e)
        more = problem.draws.sample(unit, n) * scale
        yield WeakDerivative(q.scale, 1.0 / scale, loc + sign * (e + more), loc + sign * e)


def _maxwell(problem: Problem, one: Tensor) -> Tensor:
    """Lengths of three standard normal numbers: the root of twice a gamma of shape 3/2."""
    return sqrt(problem.draws.sample(Gamma(one * 1.5, one), problem.num_samples) * 2.0)


def _signs(problem: Problem, like: Tensor) -> Tensor:
    return where(problem.uniform(like) < 0.5, -1.0, 1.0)


@record
class MeasureValued(Estimator):
    """Measure-valued, or weak, derivatives (Pflug 1989; Mohamed et al. 2020, sec. 6).

    Applies to the distributions of `WEAK_DERIVATIVES`, and to every cost. Two evaluations per
    sample and parameter; where several elements make one cost together, per element too.
    """

    name: ClassVar[str] = "measure_valued"

    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why there is no weak derivative."""
        kind = type(q)
        if kind not in WEAK_DERIVATIVES:
            known = ", ".join(sorted(c.__name__ for c in WEAK_DERIVATIVES))
            return Refusal(
                f"a distribution whose weak derivative is known: {known}", f"a {kind.__name__}"
            )
        for name in UNKNOWN.get(kind, ()):
            if getattr(q, name).requires_grad:
                return Refusal(
                    f"parameters of {kind.__name__} in which a weak derivative is known",
                    f"a gradient that is wanted in {name!r}",
                )
        return None

    def estimate(self, problem: Problem) -> Estimated:
        """Return the mean cost of draws of q; its surrogate has the differences."""
        q = problem.q
        drawn = problem.sample()
        value = mean(problem.cost(drawn), 0)
        shape = value.array.shape
        surrogate, batch = value, tuple(q.batch_shape)
        for weak in WEAK_DERIVATIVES[type(q)](q, problem, drawn):
            if not _wanted(weak.parameter):
                continue
            constant = as_tensor(weak.constant).detach()
            slope = self._differences(problem, shape, drawn, weak.plus, weak.minus)
            term = expand(weak.parameter, batch) * (constant * slope).detach()
            surrogate = surrogate + unbroadcast(term, shape)
        return Estimated(value, surrogate)

    def _differences(
        self, problem: Problem, shape: Shape, drawn: Tensor, plus: Tensor, minus: Tensor
    ) -> Tensor:
        """Mean difference of costs for each element moved on its own, shape B."""
        batch = tuple(problem.q.batch_shape)
        with no_grad():
            if problem.joint_elements(shape) <= 1:
                return self._difference(problem, plus, minus)
            common = tuple(b if c != b else 1 for b, c in zip(batch, shape))
            found = None
            for j in range(math.prod(common)):
                here = np.zeros(math.prod(common), bool)
                here[j] = True
                mask = wrap(np.broadcast_to(here.reshape(common), batch).copy())
                wide = reshape(mask, (*batch, *(1,) * len(problem.q.event_shape)))
                difference = self._difference(
                    problem, where(wide, plus, drawn), where(wide, minus, drawn)
                )
                part = where(mask, difference, 0.0)
                found = part if found is None else found + part
            assert found is not None  # there are several elements
            return found

    def _difference(self, problem: Problem, plus: Tensor, minus: Tensor) -> Tensor:
        n, dtype = plus.array.shape[0], plus.array.dtype
        cost = problem.cost(cat([plus, cast(minus, dtype)], 0))
        return mean(cost[:n] - cost[n:], 0)


explain_calls(globals())
