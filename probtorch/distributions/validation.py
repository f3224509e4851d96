"""The checks of parameters and values of distributions, and what they say.

The message for a value outside its set tells which parameter, which set, the first bad value with
its index, how many are bad, and what usually cures it.

While a function is recorded for the compiler, a check that holds is recorded too: the native code
demands it at every run, and what it refuses is evaluated eagerly, which raises the error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import recorder, set_grad_enabled, wrap
from probtorch.core.typed import Shape
from probtorch.core.validation import (
    enable_validation,
    is_validation_enabled,
    validation_enabled,
    validation_in_force,
)
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.errors import DomainError
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributions.fields import WithFields

__all__ = [
    "check_parameter",
    "check_value",
    "enable_validation",
    "is_validation_enabled",
    "require",
    "validation_enabled",
    "validation_in_force",
    "without_tape",
]

# ------------------------------------------------------------------------------ checks


def check_parameter(
    owner: str, name: str, value: Tensor, constraint: Constraint, instance: WithFields
) -> None:
    """Raise DomainError unless a parameter of the distribution `instance` is in its set."""
    active = recorder()
    if isinstance(constraint, constraints.Dependent):
        constraint = constraint.resolve(instance)
    elif active is not None and not active.is_constant(value):
        if active.demanded(value, constraint):
            return
        if isinstance(_inner(constraint), constraints.Real) and active.without_nan(value):
            return
    elif value.array.ndim == 0 and _number_inside(constraint, value.array.item()):
        return
    inside = without_tape(constraint.check, value)

    def error() -> DomainError:
        bound = getattr(constraint, "lower_bound", None)
        fields = () if bound is None else instance._fields
        other = next((n for n in fields if instance.__dict__.get(n) is bound), None)
        return _bad_parameter(owner, name, value, constraint, inside, other)

    require(inside, error)


def check_value(owner: str, value: Tensor, support: Constraint) -> bool:
    """Raise DomainError unless all of a value lies in the support; return whether that is known.

    It is not where the support depends on a site that is summed out, as that of a count of at most
    n does on n: under some of its values the data are impossible, and that is no error.
    """
    active = recorder()
    if type(support) is constraints.Real and value.array.ndim == 0:
        # Most data are, and come one by one in loops over time.
        fixed = active is None or active.is_constant(value)
        if fixed and _number_inside(support, value.array.item()):
            return True
    inside = without_tape(support.check, value)
    if active is not None and active.excuses(inside):
        return False
    require(inside, lambda: _bad_value(owner, value, support, inside))
    return True


def require(inside: Tensor, error: Callable[[], Exception]) -> None:
    """Raise ``error()`` unless a boolean tensor is true throughout; each replay of what is being
    recorded requires the same.
    """
    active = recorder()
    if active is not None:
        active.demand(inside, error)
    elif not inside.array.all():
        raise error()


def _number_inside(constraint: Constraint, number: float) -> bool:
    """Whether a number is inside a constraint."""
    if type(constraint) is constraints.Real:
        return number == number
    return _known_inside(constraint, number)


@functools.lru_cache(4096)
def _known_inside(constraint: Constraint, number: float) -> bool:
    """The same, of one that models repeat."""
    return bool(constraint.check(wrap(np.array(number))).array)


def without_tape(fn: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """Return ``fn(value)``, of which no gradient is wanted."""
    before = set_grad_enabled(False)
    try:
        return fn(value)
    finally:
        set_grad_enabled(before)


# ------------------------------------------------------------------------------ messages

_POSITIVE = (
    "declare it with param({name!r}, init, constraint=constraints.positive), or pass softplus(x)"
)
_CURES = {
    constraints.GreaterThan: _POSITIVE,
    constraints.Interval: "pass sigmoid(x), or logits= where the distribution takes them",
    constraints.Simplex: "pass softmax(x, -1), or logits= where the distribution takes them",
    constraints.LowerCholesky: "pass cholesky(covariance)",
    constraints.CorrCholesky: "pass transform_to(constraints.corr_cholesky)(x)",
    constraints.PositiveDefinite: "pass scale_tril=, or add 1e-6 * trace / n to the diagonal",
    constraints.IntegerGreaterThanEq: "pass whole numbers, if need be rounded with round()",
}


def _describe(
    value: Tensor, inside: Tensor, event_dim: int
) -> tuple[np.ndarray, tuple[int, ...], int, int]:
    """Return the array on the host, the first bad batch index, the counts of bad and of all."""
    bad = ~to_host(inside.array)
    array = to_host(value.array)
    # A value without batch dims may be outside the bounds of some batch elements.
    start = array.ndim - event_dim
    batch = np.broadcast_shapes(bad.shape, array.shape[:start])
    bad, array = np.broadcast_to(bad, batch), np.broadcast_to(array, batch + array.shape[start:])
    return array, tuple(int(i) for i in np.argwhere(bad)[0]), int(bad.sum()), bad.size


def _found(array: np.ndarray, index: Shape, count: int, size: int) -> str:
    first = array[index]
    shown = f"{first:g}" if first.ndim == 0 else np.array2string(first, threshold=8, precision=4)
    if not size > 1:
        return shown
    return f"{shown} at index {index}, the first of {count} bad among {size}"


def _bad_parameter(
    owner: str,
    name: str,
    value: Tensor,
    constraint: Constraint,
    inside: Tensor,
    other: str | None = None,
) -> DomainError:
    """Error for a parameter outside its constraint; `other` is the parameter that bounds it."""
    array, index, count, size = _describe(value, inside, constraint.event_dim)
    found = _found(array, index, count, size)
    first, inner = array[index], _inner(constraint)
    if np.isnan(first).any():
        maker = value.grad_fn.op.name if value.grad_fn is not None else None
        cure = (
            f"the last op that made it was {maker}: look at what went into it"
            if maker
            else f"check the data that {name} comes from"
        )
    elif isinstance(constraint, constraints.PositiveDefinite) and first.ndim == 2:
        least = np.linalg.eigvalsh((first + first.T) / 2)[0]
        apart = np.abs(first - first.T).max()
        what = f"least eigenvalue {least:g}"
        cure = _CURES[constraints.PositiveDefinite]
        if least > 0.0 and apart > 1e-6 * np.abs(first).max():
            what = f"elements that differ by {apart:g} from those across the diagonal"
            cure = "make it symmetric: (x + x.mT) / 2"
        found = f"a matrix with {what}" + found[found.rfind("]") + 1 :]
    elif other is not None:
        cure = (
            f"write {owner}({other}=smaller, {name}=larger); to infer it, pass "
            f"{other} + width with a positive width"
        )
    elif isinstance(inner, constraints.IntegerGreaterThanEq) and first % 1 == 0:
        cure = f"pass numbers of at least {inner.lower_bound}"
        if owner in ("Binomial", "BetaBinomial"):
            cure += f", or write Extended{owner}, which has no mass where {name} is negative"
    else:
        kinds = [k for k in _CURES if isinstance(inner, k)]
        if name == "probs" and constraint.event_dim:
            kinds = [constraints.Simplex]
        cure = _CURES[kinds[-1]] if kinds else "pass values in {constraint!r}"
        cure = cure.format(name=name, constraint=constraint)
    return DomainError(
        f"{owner}: parameter {name}", expected=f"values in {constraint!r}", got=found, fix=cure
    )


def _bad_value(owner: str, value: Tensor, support: Constraint, inside: Tensor) -> DomainError:
    """Error for a value outside the support, in log_prob."""
    array, index, count, size = _describe(value, inside, support.event_dim)
    nan = np.isnan(array[index]).any() if array.dtype.kind == "f" else False
    return DomainError(
        f"{owner}.log_prob: value outside the support",
        expected=f"values in {support!r}",
        got=_found(array, index, count, size),
        fix="mask missing data with .mask(~isnan(value))"
        if nan
        else "check the data, or pass validate_args=False to get -inf there",
    )


def _inner(constraint: Constraint) -> Constraint:
    return getattr(constraint, "base_constraint", constraint)
