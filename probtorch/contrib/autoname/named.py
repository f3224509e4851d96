"""Objects whose places are names of sites: ``state.x.sample_(Normal(0.0, 1.0))``.

An `Object` makes its attributes when they are asked for, and each knows its address. `sample_` and
`param_` state a site of that name, and put its value in the attribute's place. Containers are
`List` and `Dict`. All are written once: what has a value keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import SupportsIndex

from probtorch.effects import primitives
from probtorch.errors import ModelError

__all__ = ["Dict", "List", "Object"]


def _taken(address: str) -> ModelError:
    return ModelError(
        f"named {address}",
        expected="a place that has no value yet",
        got="one that has",
        fix="use another name: these objects are written once",
    )


class Object:
    """A place: empty, with a value, or with places inside.

    Parameters
    ----------
    name : str
        Its address.

    Examples
    --------
    >>> state = Object("state")
    >>> str(state.x.y)
    'state.x.y'
    >>> state.xs = List()
    >>> str(state.xs.add())
    'state.xs[0]'
    """

    def __init__(self, name: str, _put: Callable[[object], None] | None = None) -> None:
        # Past __setattr__, which makes places of what it is given.
        self.__dict__.update(_name=name, _put=_put, _empty=True)

    def __str__(self) -> str:
        return str(self.__dict__["_name"])

    __repr__ = __str__

    def __getattr__(self, key: str) -> Object:
        if key.startswith("__"):
            raise AttributeError(key)
        place = Object(f"{self}.{key}", lambda value: self.__dict__.__setitem__(key, value))
        self.__dict__.update({key: place, "_empty": False})
        return place

    def __setattr__(self, key: str, value: object) -> None:
        _check_empty(self.__dict__.get(key), f"{self}.{key}")
        if isinstance(value, (List, Dict)):
            value._call(f"{self}.{key}")
        self.__dict__.update({key: value, "_empty": False})

    def sample_(self, fn: object, *args: object, **kwargs: object) -> object:
        """State a random site here; returns its value, as `probtorch.sample` does."""
        return self._state(primitives.sample, fn, *args, **kwargs)

    def param_(self, *args: object, **kwargs: object) -> object:
        """State a parameter here; returns its value, as `probtorch.param` does."""
        return self._state(primitives.param, *args, **kwargs)

    def _state(self, statement: Callable[..., object], *args: object, **kwargs: object) -> object:
        put = self.__dict__["_put"]
        if put is None or not self.__dict__["_empty"]:
            raise _taken(str(self))
        value = statement(str(self), *args, **kwargs)
        put(value)
        self.__dict__["_empty"] = False
        return value


class List(list[object]):
    """A list of places, which `add` makes; give it a name, or an attribute of an `Object`."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self._name = name

    def __str__(self) -> str:
        return str(self._name)

    def _call(self, name: str) -> None:
        _check_nameless(self, name)
        self._name = name

    def add(self) -> Object:
        """Return a new place at the end."""
        _check_named(self)
        i = len(self)
        place = Object(f"{self._name}[{i}]", lambda value: list.__setitem__(self, i, value))
        self.append(place)
        return place

    def __setitem__(self, i: SupportsIndex, value: object) -> None:  # type: ignore[override]
        _check_value(self[i], value, f"{self._name}[{i}]")
        super().__setitem__(i, value)


class Dict(dict[object, object]):
    """A dict that makes places for keys that it has not; named like a `List`."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self._name = name

    def __str__(self) -> str:
        return str(self._name)

    def _call(self, name: str) -> None:
        _check_nameless(self, name)
        self._name = name

    def __missing__(self, key: object) -> Object:
        _check_named(self)
        place = Object(f"{self._name}[{key!r}]", lambda value: dict.__setitem__(self, key, value))
        dict.__setitem__(self, key, place)
        return place

    def __setitem__(self, key: object, value: object) -> None:
        _check_value(self.get(key), value, f"{self._name}[{key!r}]")
        super().__setitem__(key, value)


def _check_empty(before: object, address: str) -> None:
    if before is None:
        return
    if not isinstance(before, Object) or not before.__dict__["_empty"]:
        raise _taken(address)


def _check_value(before: object, value: object, address: str) -> None:
    """See that a container may have `value` at `address`; a container is named by it."""
    _check_empty(before, address)
    if isinstance(value, Object):
        raise ModelError(
            f"named {address}",
            expected="a value, a List or a Dict",
            got=f"the place {value}",
            fix="places in containers are made by add(), or by asking for a key",
        )
    if isinstance(value, (List, Dict)):
        value._call(address)


def _check_nameless(container: List | Dict, name: str) -> None:
    if container._name is not None or container:
        raise ModelError(
            f"named {name}",
            expected="a container without name and contents",
            got=f"{type(container).__name__} {container._name!r} of {len(container)}",
            fix="put a new one there, and fill it after",
        )


def _check_named(container: List | Dict) -> None:
    if container._name is None:
        raise ModelError(
            f"named.{type(container).__name__}",
            expected="a container with a name",
            got="none",
            fix='write List("xs"), or make it an attribute: state.xs = List()',
        )
