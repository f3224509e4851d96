"""Fields: how a distribution states its parameters, once.

`param(constraint)` is a tensor parameter, `setting()` an argument that is not a tensor (a size),
and `one_of("probs", "logits")` says that exactly one of several is given; the others are computed
when asked for, by the methods `_probs`, `_logits`. From the fields `Distribution` makes `__init__`,
validation, `batch_shape`, `repr` and tree leaves.

The second half holds the messages for values outside their constraint: which parameter, which set,
the first bad value with its index, how many are bad, and what usually cures it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import as_tensor, wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions import constraints
from probtorch.errors import ArgumentError, DomainError
from probtorch.ops.elementwise import to_float
from probtorch.tensor import Tensor

__all__ = [
    "MISSING",
    "Parameter",
    "as_parameter",
    "bad_parameter",
    "bad_value",
    "bind",
    "check_alternatives",
    "one_of",
    "param",
    "setting",
]

MISSING = object()


class Parameter:
    """One argument of a distribution; on an instance it reads as the value.

    A value given at construction lies in the instance's `__dict__` and is found there first. Only a
    parameter left out (see `one_of`) gets here, and is computed afresh at each access: a stored
    copy could outlive the tape it was made on.
    """

    __slots__ = ("constraint", "default", "name")

    if TYPE_CHECKING:
        # For type checkers: what `__init__` takes.
        def __set__(self, instance: Any, value: Tensor | np.ndarray | Sequence | float | None): ...

    def __init__(self, constraint, default):
        self.constraint = constraint
        self.default = default
        self.name = ""

    def __set_name__(self, owner, name):
        self.name = name

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Parameter: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> Tensor: ...
    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        derive = getattr(instance, "_" + self.name, None)
        if derive is None:
            raise AttributeError(f"{type(instance).__name__} was made without {self.name!r}")
        return derive()

    def __repr__(self):
        return f"<parameter {self.name}: {self.constraint!r}>"

    def convert(self, value):
        """Return ``(value, weak)``; see `as_parameter`."""
        if self.constraint is None:
            return value, True
        return as_parameter(value, self.name)


def as_parameter(value, name, *, as_is=False):
    """Return ``(tensor, weak)``: the parameter, and whether it came from a Python number.

    Python numbers become float64 tensors without dims: exact, and weak in promotion. Integers
    become floats unless `as_is`.
    """
    if isinstance(value, TensorBase):
        t = value
    elif type(value) in (float, int, bool):
        whole = as_is and type(value) is not float
        return wrap(np.array(value, np.int64 if whole else np.float64)), True
    else:
        t = as_tensor(value, name)
    return (t if as_is else to_float(t)), False


def param(constraint: Any, *, default: Any = MISSING) -> Any:
    """State a tensor parameter.

    Parameters
    ----------
    constraint : Constraint
        The set it lies in; its `event_dim` rightmost dims of the parameter belong to one event.
        A `constraints.dependent` one may look at the other parameters.
    default : number or None, optional
        None for an alternative that may be left out (see `one_of`).
    """
    return Parameter(constraint, default)


def setting(*, default: Any = MISSING, kw_only: bool = False) -> Any:
    """State an argument that is not a tensor; `kw_only` is for type checkers."""
    return Parameter(None, default)


class one_of:
    """Say that exactly one of the named parameters is given; `Distribution` keeps the names."""

    def __init__(self, *names):
        self.names = names

    def __set_name__(self, owner, name):
        owner._alternatives = self.names


def check_alternatives(owner, names, values):
    """Raise ArgumentError unless `values` holds exactly one of `names`."""
    given = [n for n in names if values.get(n) is not None]
    if len(given) != 1:
        raise ArgumentError(
            owner,
            expected=f"exactly one of {', '.join(names)}",
            got=" and ".join(given) if given else "none of them",
            fix=f"call {owner}({names[0]}=...)",
        )


def bind(cls, fields, args, kwargs):
    """Return a dict from field name to argument, as Python binds a call; missing ones left out.

    Raises
    ------
    ArgumentError
        For too many, unknown or repeated arguments.
    """
    if len(args) > len(fields):
        raise ArgumentError(
            cls.__name__,
            expected=f"at most {len(fields)} arguments ({', '.join(fields)})",
            got=f"{len(args)}",
            fix="pass a batch as one tensor per parameter",
        )
    values = dict(zip(fields, args))
    for name, value in kwargs.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            raise ArgumentError(
                cls.__name__,
                expected=f"arguments named {', '.join(fields)}",
                got=name,
                fix=f"did you mean {near[0]}?" if near else "see the signature of the class",
            )
        if name in values:
            raise ArgumentError(
                cls.__name__,
                expected=f"one value for {name}",
                got="one by position and one by name",
                fix=f"drop {name}=, or name the other arguments too",
            )
        values[name] = value
    return values


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


def bad_parameter(owner, name, value, constraint, inside):
    """Error for a parameter outside its constraint."""
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
    else:
        kinds = [k for k in _CURES if isinstance(_inner(constraint), k)]
        cure = _CURES[kinds[-1]] if kinds else "pass values inside {constraint!r}"
        cure = cure.format(name=name, constraint=constraint)
    return DomainError(
        f"{owner}: parameter {name}", expected=f"values in {constraint!r}", got=found, fix=cure
    )


def bad_value(owner, value, support, inside):
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
