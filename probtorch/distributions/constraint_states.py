"""Constraints as plain data, for files: `constraint_state` and `constraint_of`.

A constraint is told by the name that `constraints` exports it under, or by its class there and
the arguments of its constructor. Nothing else can be named, so what a file says is looked up and
never run.
"""

from __future__ import annotations

from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint, Dependent
from probtorch.errors import ArgumentError

__all__ = ["constraint_of", "constraint_state"]

_CLASSES = {
    name: found
    for name, found in vars(constraints).items()
    if isinstance(found, type)
    and issubclass(found, Constraint)
    and not issubclass(found, Dependent)
    and found.__module__.startswith(f"{constraints.__name__}.")
}


def constraint_state(constraint: Constraint) -> Tree:
    """Return a constraint as a tree that `probtorch.save` takes.

    Raises
    ------
    ArgumentError
        If it is of a class that is not the library's.
    """
    name = constraint.__dict__.get("_name")
    if name is not None and getattr(constraints, name, None) == constraint:
        return name
    cls = type(constraint)
    if _CLASSES.get(cls.__name__) is not cls:
        raise ArgumentError(
            f"saving the constraint {constraint!r}",
            expected="one of probtorch.distributions.constraints",
            got=f"a {cls.__module__}.{cls.__qualname__}",
            fix="save the values, and state the constraint when they are loaded",
        )
    return {"class": cls.__name__, "arguments": _plain(constraint._fields())}


def constraint_of(state: Tree) -> Constraint:
    """Return the constraint of what `constraint_state` returned.

    Raises
    ------
    ArgumentError
        If it is none.
    """
    if isinstance(state, str):
        found = getattr(constraints, state, None)
        if isinstance(found, Constraint) and not isinstance(found, Dependent):
            return found
    elif isinstance(state, dict) and state.get("class") in _CLASSES:
        try:
            return _CLASSES[state["class"]](**_made(state["arguments"]))
        except (TypeError, KeyError, AttributeError):
            pass
    raise ArgumentError(
        "loading a constraint",
        expected="the name of one of probtorch.distributions.constraints, or a class of them",
        got=f"{state!r:.80}",
        fix="load it with the version of the library that saved it",
    )


def _plain(value: object) -> Tree:
    if isinstance(value, Constraint):
        return {"constraint": constraint_state(value)}
    if isinstance(value, dict):
        return {name: _plain(x) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    return value.detach() if isinstance(value, TensorBase) else value


def _made(value: Tree) -> Tree:
    if isinstance(value, dict):
        if set(value) == {"constraint"}:
            return constraint_of(value["constraint"])
        return {name: _made(x) for name, x in value.items()}
    return [_made(x) for x in value] if isinstance(value, list) else value
