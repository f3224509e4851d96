"""Whether distributions check their parameters and values, the checks, and what they say.

The message for a value outside its set tells which parameter, which set, the first bad value with
its index, how many are bad, and what usually cures it.

A process has one default, and a thread that is inside a `validation_enabled` block has its own: so
an inference that looks past bad values does not switch off the checks of what runs beside it.
"""

import functools
import threading

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import set_grad_enabled, wrap
from probtorch.distributions import constraints
from probtorch.errors import DomainError

__all__ = [
    "check_parameter",
    "check_value",
    "enable_validation",
    "validation_enabled",
    "validation_in_force",
]

_DEFAULT = True


class _Thread(threading.local):
    """What the block that this thread is in says; None outside of any."""

    chosen: bool | None = None


_THREAD = _Thread()


def validation_in_force():
    """Return the default of `validate_args` for distributions that this thread makes now."""
    chosen = _THREAD.chosen
    return _DEFAULT if chosen is None else chosen


def enable_validation(is_validate=True):
    """Switch the default of `validate_args` on or off for distributions made from now on.

    For all threads; within a `validation_enabled` block for this thread, to the end of the block.

    Parameters
    ----------
    is_validate : bool
    """
    global _DEFAULT
    if _THREAD.chosen is None:
        _DEFAULT = bool(is_validate)
    else:
        _THREAD.chosen = bool(is_validate)


class validation_enabled:
    """Context manager: the default of `validate_args` for this thread inside its block.

    Parameters
    ----------
    is_validate : bool
    """

    def __init__(self, is_validate=True):
        self._value = bool(is_validate)

    def __enter__(self):
        self._before, _THREAD.chosen = _THREAD.chosen, self._value

    def __exit__(self, *exc):
        _THREAD.chosen = self._before


# ------------------------------------------------------------------------------ checks


def check_parameter(owner, name, value, constraint, instance):
    """Raise DomainError unless a parameter of the distribution `instance` is in its set."""
    if constraints.is_dependent(constraint):
        constraint = constraint.resolve(instance)
    elif value._data.ndim == 0 and _number_inside(constraint, value._data.item()):
        return
    inside = _without_tape(constraint.check, value)
    if not inside._data.all():
        bound = getattr(constraint, "lower_bound", None)
        other = next((n for n in instance._fields if instance.__dict__.get(n) is bound), None)
        raise _bad_parameter(owner, name, value, constraint, inside, other)


def check_value(owner, value, support):
    """Raise DomainError unless all of a value lies in the support."""
    inside = _without_tape(support.check, value)
    if not inside._data.all():
        raise _bad_value(owner, value, support, inside)


@functools.lru_cache(4096)
def _number_inside(constraint, number):
    """Whether a number is inside a constraint; models repeat the same few numbers."""
    return bool(constraint.check(wrap(np.array(number)))._data)


def _without_tape(fn, value):
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


def _describe(value, inside, event_dim):
    """Return the array on the host, the first bad batch index, the counts of bad and of all."""
    bad = ~to_host(inside._data)
    array = to_host(value._data)
    bad = np.broadcast_to(bad, array.shape[: array.ndim - event_dim])
    return array, tuple(int(i) for i in np.argwhere(bad)[0]), int(bad.sum()), bad.size


def _found(array, index, count, size):
    first = array[index]
    shown = f"{first:g}" if first.ndim == 0 else np.array2string(first, threshold=8, precision=4)
    if not size > 1:
        return shown
    return f"{shown} at index {index}, the first of {count} bad among {size}"


def _bad_parameter(owner, name, value, constraint, inside, other=None):
    """Error for a parameter outside its constraint; `other` is the parameter that bounds it."""
    array, index, count, size = _describe(value, inside, constraint.event_dim)
    found = _found(array, index, count, size)
    first = array[index]
    if np.isnan(first).any():
        maker = value.grad_fn.name if value.grad_fn is not None else None
        cure = (
            f"the last op that made it was {maker}: look at what went into it"
            if maker
            else f"check the data that {name} comes from"
        )
    elif isinstance(constraint, constraints.PositiveDefinite) and first.ndim == 2:
        least = np.linalg.eigvalsh((first + first.T) / 2)[0]
        found = f"a matrix with least eigenvalue {least:g}" + found[found.rfind("]") + 1 :]
        cure = _CURES[constraints.PositiveDefinite]
    elif other is not None:
        cure = (
            f"write {owner}({other}=smaller, {name}=larger); to infer it, pass "
            f"{other} + width with a positive width"
        )
    else:
        kinds = [k for k in _CURES if isinstance(_inner(constraint), k)]
        cure = _CURES[kinds[-1]] if kinds else "pass values in {constraint!r}"
        cure = cure.format(name=name, constraint=constraint)
    return DomainError(
        f"{owner}: parameter {name}", expected=f"values in {constraint!r}", got=found, fix=cure
    )


def _bad_value(owner, value, support, inside):
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


def _inner(constraint):
    return getattr(constraint, "base_constraint", constraint)
