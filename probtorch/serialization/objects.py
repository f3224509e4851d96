"""Modules as data: the names of their classes and functions, and what those names may stand for.

A module is saved as the address of its class, ``("probtorch.nn.linear", "Linear")``, and its
attributes, which are plain data, tensors, other modules and addresses of functions. Loading makes
an object of the class without calling its constructor and gives it the attributes.

So a file decides which classes and functions are used, and must not decide it freely. By default it
may name classes of modules and functions of tensors of this package, and what was allowed by
`add_safe_globals`; importing anything is left to those who say ``weights_only=False``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import FunctionType
from typing import TypeAlias, cast

from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.nn.module import Module
from probtorch.nn.utils.parametrize import class_with

__all__ = [
    "NotAllowedError",
    "add_safe_globals",
    "address_of",
    "clear_safe_globals",
    "filled",
    "get_safe_globals",
    "is_saved_whole",
    "resolved",
    "safe_globals",
]

# A class or a function that a file may name.
Named: TypeAlias = Callable[..., object]

# Rooms whose classes of modules and functions of tensors every file may name.
OWN = ("probtorch.nn.", "probtorch.ops.", "probtorch.distributions.")
_TABLES: dict[str, type] = {"_parameters": TensorBase, "_buffers": TensorBase, "_modules": Module}


class NotAllowedError(Exception):
    """A file names a class or function that it may not; its text is the name."""


class _Allowed:
    """What files may name beside what is our own, by address."""

    def __init__(self) -> None:
        self.named: dict[tuple[str, str], Named] = {}


_ALLOWED = _Allowed()


def add_safe_globals(safe_globals: Sequence[Named]) -> None:
    """Let files that `load` reads name these classes of modules and functions from now on.

    Parameters
    ----------
    safe_globals : list
        Classes and functions that are defined at the top level of a module of Python.

    Raises
    ------
    ArgumentError
        If one has no address: it is defined inside a function, or is neither.
    """
    found = {}
    for named in safe_globals:
        address = address_of(named)
        if address is None:
            raise ArgumentError(
                "add_safe_globals",
                expected="classes and functions defined at the top level of a module",
                got=f"{type(named).__name__} {named!r:.60}",
                fix="move the definition out of the function it is in",
            )
        found[address] = named
    _ALLOWED.named.update(found)


def get_safe_globals() -> list[Named]:
    """Return what was allowed by `add_safe_globals`."""
    return list(_ALLOWED.named.values())


def clear_safe_globals() -> None:
    """Forget what was allowed by `add_safe_globals`."""
    _ALLOWED.named = {}


@contextlib.contextmanager
def safe_globals(safe_globals: Sequence[Named]) -> Iterator[None]:
    """Context manager: files may name these classes and functions; see `add_safe_globals`.

    Examples
    --------
    >>> from probtorch.nn import Linear
    >>> with safe_globals([Linear]):
    ...     get_safe_globals()
    [<class 'probtorch.nn.linear.Linear'>]
    """
    before = dict(_ALLOWED.named)
    try:
        add_safe_globals(safe_globals)
        yield
    finally:
        _ALLOWED.named = before


# ------------------------------------------------------------------------------------- to a file


def is_saved_whole(value: object) -> bool:
    """Whether a value is saved as a class and its attributes: modules, and how they are filled."""
    return getattr(type(value), "_saved_whole", False)


def address_of(named: object) -> tuple[str, str] | None:
    """Return module and name of a class or function, None if they do not lead back to it."""
    if not isinstance(named, (type, FunctionType)):
        return None
    path, name = named.__module__, named.__qualname__
    return (path, name) if _found(path, name) is named else None


def _found(path: str, name: str) -> object:
    """What a name of a module stands for, None if it does not."""
    try:
        found: object = import_module(path)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found


# ----------------------------------------------------------------------------------- from a file


def resolved(path: object, name: object, trusted: bool) -> Named:
    """Return the class or function at an address.

    Parameters
    ----------
    path, name : str
    trusted : bool
        Whether anything that can be imported may be named.

    Raises
    ------
    NotAllowedError
        If it may not be named here.
    ValueError
        If there is none.
    """
    if not isinstance(path, str) or not isinstance(name, str):
        raise ValueError("an address that is no text")
    known = _ALLOWED.named.get((path, name))
    if known is not None:
        return known
    if not trusted and not path.startswith(OWN):
        raise NotAllowedError(f"{path}.{name}"[:200])
    found = _found(path, name)
    if address_of(found) != (path, name):
        raise ValueError(f"no class or function {path}.{name}"[:200])
    if not trusted and not _is_ours(path, found):
        raise NotAllowedError(f"{path}.{name}"[:200])
    return cast(Named, found)


def _is_ours(path: str, found: object) -> bool:
    """Whether any file may name something of this package."""
    if isinstance(found, type):
        return getattr(found, "_saved_whole", False)
    return not path.startswith("probtorch.distributions.")


def filled(cls: Named, parametrized: object, state: Mapping[str, Tree]) -> object:
    """Return an object of a class with these attributes, its constructor not called.

    Raises
    ------
    ValueError
        If it is no class whose objects are saved whole, or the attributes are not those of one.
    """
    if not isinstance(cls, type) or not getattr(cls, "_saved_whole", False):
        raise ValueError("an object that is no module")
    for name in state:
        if callable(getattr(cls, name, None)):
            raise ValueError(f"an attribute in the place of the method {name}")
    if issubclass(cls, Module):
        for table, kind in _TABLES.items():
            entries = state.get(table)
            if type(entries) is not dict or not all(
                isinstance(name, str) and (x is None or isinstance(x, kind))
                for name, x in entries.items()
            ):
                raise ValueError(f"a module whose {table} are others")
        if type(state.get("_non_persistent")) is not set or state.get("_hooks") is not None:
            raise ValueError("a module that is none")
        if parametrized:
            cls = class_with(cls, parametrized, state["_modules"].get("parametrizations"))
    made = object.__new__(cls)
    made.__dict__.update(state)
    return made


explain_calls(globals())
