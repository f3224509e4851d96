"""Kullback-Leibler divergences: the registry of closed forms, exact sums, estimates from draws.

`kl_divergence(p, q)` looks for the rule of the most specific pair of classes. The rules are in
`divergences/`, and beside the classes that bring their own; they say in their own words where the
divergence is infinite: where p has mass outside the support of q.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ArgumentError, NoClosedFormError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import eq, isfinite
from probtorch.ops.exponentials import exp
from probtorch.ops.reduction import mean
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["kl_divergence", "register_kl"]

_Rule = TypeVar("_Rule", bound=Callable[..., Tensor])
_RULES: dict[tuple[type[Distribution], type[Distribution]], Callable[..., Tensor]] = {}


def register_kl(type_p: type[Distribution], type_q: type[Distribution]) -> Callable[[_Rule], _Rule]:
    """Decorator: use ``fn(p, q)`` for KL(p || q) of these classes and their subclasses."""

    def add(fn: _Rule) -> _Rule:
        _RULES[type_p, type_q] = fn
        return fn

    return add


def kl_divergence(
    p: Distribution,
    q: Distribution,
    *,
    num_samples: int | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Return KL(p || q), the mean of log p(x) - log q(x) over draws x of p, in nats.

    Parameters
    ----------
    p, q : Distribution
        Of one event shape; batch shapes broadcast.
    num_samples : int, optional
        Estimate it from that many draws of p instead, for any pair. The estimate has no bias, and
        neither has its gradient; its standard error falls like ``num_samples ** -0.5``.
    generator : Generator, optional
        Of those draws; the default generator if None.

    Returns
    -------
    Tensor, shape of the broadcast batch

    Raises
    ------
    NoClosedFormError
        A NotImplementedError: if there is no closed form for the pair, p has no finite support to
        sum over, and no `num_samples` is given.
    ShapeError
        If the events of an estimate have different shapes.
    ArgumentError
        If `num_samples` is below 1.

    Notes
    -----
    Where p has a finite support that can be enumerated and the pair has no rule, the value is the
    sum over that support.
    """
    if num_samples is not None:
        return _estimated(p, q, num_samples, generator)
    found = [
        (type(p).__mro__.index(a), type(q).__mro__.index(b), fn)
        for (a, b), fn in _RULES.items()
        if isinstance(p, a) and isinstance(q, b)
    ]
    if found:
        value = min(found, key=lambda f: f[:2])[2](p, q)
    elif p.has_enumerate_support and p._event_shape == q._event_shape:
        value = sum_over(p, q, p.enumerate_support())
    else:
        raise no_closed_form(p, q)
    return q._to_batch(p._to_batch(value))


def no_closed_form(p: Distribution, q: Distribution, why: str = "") -> NoClosedFormError:
    """Return the error that names the pair, and why its rule does not hold if there is one."""
    return NoClosedFormError(
        "kl_divergence",
        expected=why or "a pair of classes with a registered closed form",
        got=f"{type(p).__name__} and {type(q).__name__}",
        fix="estimate it from draws, kl_divergence(p, q, num_samples=1000), or register_kl",
    )


def sum_over(p: Distribution, q: Distribution, x: Tensor) -> Tensor:
    """Sum p(x) log(p(x) / q(x)) over the first dim of `x`, all that p can take and more."""
    log_p = p._to_batch(p._density(p._as_value(x), False))
    log_q = q._to_batch(q._density(q._as_value(x), False))
    # What p never takes adds nothing, whatever q says of it.
    none = eq(log_p, -math.inf)
    gap = where(none, 0.0, log_p) - where(none, 0.0, log_q)
    return total(where(none, 0.0, exp(where(none, 0.0, log_p)) * gap), 0)


def _estimated(
    p: Distribution, q: Distribution, num_samples: int, generator: Generator | None
) -> Tensor:
    if p._event_shape != q._event_shape:
        raise ShapeError(
            "kl_divergence",
            expected="distributions of one event shape",
            got=f"{tuple(p._event_shape)} and {tuple(q._event_shape)}",
            fix="check the distributions, or to_event() the one with fewer event dims",
        )
    if num_samples < 1:
        raise ArgumentError(
            "kl_divergence",
            expected="num_samples, a number of draws from 1 on",
            got=repr(num_samples),
            fix="a thousand draws give about two digits",
        )
    x, log_p = p.sample_and_log_prob((num_samples,), generator)
    gap = log_p - q._to_batch(q._density(q._as_value(x), False))
    if not p.has_rsample and log_p.requires_grad:
        # The draws do not move with the parameters, their probabilities do: the score's share.
        known = where(isfinite(gap), gap, 0.0).detach()
        gap = gap + known * (log_p - log_p.detach())
    return q._to_batch(p._to_batch(mean(gap, 0)))


explain_calls(globals())
