"""What a constraint is, and constraints whose bounds an instance has to tell."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, TypeVar

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_constant
from probtorch.errors import ArgumentError
from probtorch.tensor import Tensor

__all__ = [
    "Constraint",
    "Dependent",
    "dependent",
    "dependent_property",
    "how_to_say",
    "infinite_somewhere",
    "is_dependent",
    "named",
]


class Constraint:
    """A set of values, with a test for membership.

    Attributes
    ----------
    event_dim : int
        Number of rightmost dims that together form one element.
    is_discrete : bool
        Whether the set is made of isolated points.
    open_ends : tuple of two bools
        Whether a set of numbers lacks its lower end, and its upper end.
    """

    event_dim: int = 0
    is_discrete: bool = False
    open_ends: tuple[bool, bool] = (False, False)
    _name: str

    def check(self, value: Tensor) -> Tensor:
        """Return whether each element lies in the set.

        Parameters
        ----------
        value : Tensor, shape (..., *event)

        Returns
        -------
        Tensor of bool, shape (...)
        """
        raise NotImplementedError(f"{type(self).__name__} does not define check")

    def interior(self, value: Tensor) -> float | Tensor:
        """Return an element of the set, a number or a tensor that broadcasts against `value`."""
        raise NotImplementedError(f"{type(self).__name__} does not define interior")

    def ends(self) -> tuple[float | Tensor | None, float | Tensor | None]:
        """Return the least and the largest number of a set of them; None for an infinity."""
        return getattr(self, "lower_bound", None), getattr(self, "upper_bound", None)

    def __call__(self, value: Tensor) -> Tensor:
        return self.check(value)

    def __repr__(self) -> str:
        if "_name" in self.__dict__:
            return self._name
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()
        fields = ", ".join(f"{k}={_short(v)}" for k, v in self._fields().items())
        return f"{name}({fields})"

    def _fields(self) -> dict[str, object]:
        """Return what tells this constraint from others of its class."""
        return {k: v for k, v in self.__dict__.items() if k not in _DERIVED}

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and _same(self._fields(), other._fields())

    def __hash__(self) -> int:
        return hash(type(self))


_DERIVED = ("_name", "event_dim", "is_discrete")


def _same(a: Mapping[str, object], b: Mapping[str, object]) -> bool:
    """Whether two field tables agree; tensors agree only when they are the same object."""
    return a.keys() == b.keys() and all(
        a[k] is b[k]
        or (not isinstance(a[k], TensorBase) and not isinstance(b[k], TensorBase) and a[k] == b[k])
        for k in a
    )


def _short(bound: object) -> str:
    if isinstance(bound, TensorBase):
        return (
            f"{bound.array.item():g}" if bound.array.size == 1 else f"<shape {bound.array.shape}>"
        )
    return f"{bound:g}" if isinstance(bound, float) else repr(bound)


_AnyConstraint = TypeVar("_AnyConstraint", bound=Constraint)


def named(name: str, constraint: _AnyConstraint) -> _AnyConstraint:
    """Give `constraint` the name under which this module exports it, for its repr."""
    constraint._name = name
    return constraint


class Dependent(Constraint):
    """A set that is known only for an instance: ``resolve(instance)`` tells it."""

    def __init__(
        self,
        resolve: Callable[..., Constraint] | None = None,
        *,
        event_dim: int = 0,
        is_discrete: bool = False,
    ) -> None:
        self._resolve = resolve
        self.event_dim = event_dim
        self.is_discrete = is_discrete

    def resolve(self, owner: object) -> Constraint:
        """Return the constraint that holds for `owner`."""
        assert self._resolve is not None  # the sets of a distribution have it
        return self._resolve(owner)

    def check(self, value: Tensor) -> Tensor:
        raise ArgumentError(
            "dependent constraint",
            expected="a constraint of one distribution, such as Uniform(0, 1).support",
            got="the constraint of a class, whose bounds are not known yet",
            fix="ask an instance for its support",
        )

    def __repr__(self) -> str:
        return "dependent"


dependent = Dependent


class dependent_property(property, Dependent):
    """Decorator for a `support` that depends on the parameters.

    On the class it is a `Dependent` constraint that knows `event_dim` and `is_discrete`; on an
    instance, the constraint itself.
    """

    def __init__(
        self,
        fn: Callable[..., Constraint] | None = None,
        *,
        event_dim: int = 0,
        is_discrete: bool = False,
    ) -> None:
        property.__init__(self, fn)
        Dependent.__init__(self, fn, event_dim=event_dim, is_discrete=is_discrete)

    def __call__(self, fn: Callable[..., Constraint]) -> dependent_property:  # type: ignore[override]  # a decorator
        return type(self)(fn, event_dim=self.event_dim, is_discrete=self.is_discrete)

    def __get__(self, instance: object, owner: object = None) -> Any:
        return self if instance is None else self.resolve(instance)

    __hash__ = Constraint.__hash__


def is_dependent(constraint: object) -> TypeGuard[Dependent]:
    """Whether `constraint` is one whose bounds are known only for an instance."""
    return isinstance(constraint, Dependent)


def how_to_say(given: object) -> str:
    """What to write in place of what is no constraint: its class, its name or anything else."""
    if isinstance(given, type) and issubclass(given, Constraint):
        return f"call it: {given.__name__}({', '.join(inspect.signature(given).parameters)})"
    named = given if isinstance(given, str) and given.isidentifier() else "positive"
    return f"write constraint=constraints.{named}"


def infinite_somewhere(*bounds: float | Tensor | None) -> bool:
    """Whether a bound is known to be infinite, so that there is none in at least one row."""
    return any(
        bound is not None
        and (not isinstance(bound, TensorBase) or is_constant(bound))
        and bool(np.isinf(bound.array if isinstance(bound, TensorBase) else bound).any())
        for bound in bounds
    )


explain_calls(globals())
