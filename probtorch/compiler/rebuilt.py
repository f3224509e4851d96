"""`Rebuilt`: arguments around stand-ins, whose containers are the caller's all the same.

A function is recorded on tensors in whose place others may come, so the lists and dicts among its
arguments are made anew around those: one for each that there is. Those that the function finds
elsewhere, too, stay themselves. What it puts into one (``batch["z"] = z``, ``seen.append(x)``,
``options.pop("k")``), or sets of a distribution, would be lost: it is handed over to the caller's
own, and the function, whose replays could not repeat it, stays eager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from probtorch.core.tree import Structure, unflatten

__all__ = ["Rebuilt", "boxes"]

_Container: TypeAlias = list[object] | dict[object, object]
_Given: TypeAlias = tuple[tuple[object, ...], Mapping[str, object]]


def boxes(given: _Given) -> list[_Container]:
    """Return the lists and dicts among the arguments of a call."""
    found: list[_Container] = []
    todo: list[object] = [*given[0], *given[1].values()]
    while todo:
        x = todo.pop()
        if isinstance(x, dict) and type(x) is dict:
            found.append(x)
            todo += x.values()
        elif isinstance(x, list) and type(x) is list:
            found.append(x)
            todo += x
        elif isinstance(x, tuple):
            todo += x
    return found


class Rebuilt:
    """Arguments of a call, made anew around other leaves.

    Parameters
    ----------
    given : (tuple, dict)
        The arguments of the call.
    structure : Structure
    items : list
        What stands in the place of their leaves.
    kept : collection of int
        The ids of containers that stay themselves.

    Attributes
    ----------
    args, kwargs
    """

    def __init__(
        self,
        given: _Given,
        structure: Structure,
        items: list[object],
        kept: Collection[int] = (),
    ) -> None:
        # (the caller's, the one made in its place, what that held, what to call it)
        self._containers: list[tuple[object, object, list[object], str]] = []
        # What is in the place of something of the caller's, by its id, with that.
        self._own: dict[int, tuple[object, object]] = {}
        self._made: dict[int, object] = {}  # by the id of the caller's container
        self._kept = kept
        args, kwargs = unflatten(structure, items)
        self.args = tuple(
            self._paired(x, y, f"argument {i}") for i, (x, y) in _each(given[0], args)
        )
        self.kwargs = {
            name: self._paired(x, kwargs[name], f"argument {name!r}")
            for name, x in given[1].items()
        }

    def _paired(self, given: object, made: object, way: str) -> object:
        """Note what stands in the place of an argument, or of a part of one; returns it."""
        if given is made:
            return made
        if id(given) in self._kept:
            return given
        if id(given) in self._made:
            return self._made[id(given)]
        if isinstance(given, tuple) and isinstance(made, tuple):
            found = [self._paired(x, y, f"{way}[{i}]") for i, (x, y) in _each(given, made)]
            made = type(made)._make(found) if hasattr(made, "_make") else tuple(found)
            self._own[id(made)] = made, given
            return made
        self._own[id(made)] = made, given
        if isinstance(given, dict) and isinstance(made, dict):
            self._made[id(given)] = made
            for key, x in made.items():
                made[key] = self._paired(given[key], x, f"{way}[{key!r:.40}]")
        elif isinstance(given, list) and isinstance(made, list):
            self._made[id(given)] = made
            made[:] = [self._paired(x, y, f"{way}[{i}]") for i, (x, y) in _each(given, made)]
        elif not hasattr(made, "__tree_fields__"):
            return made
        self._containers.append((given, made, _contents(made), way))
        return made

    def hand_over(self) -> str | None:
        """Do to the caller's containers what was done to those in their place; returns what to call
        the first one that was changed, None where none was.
        """
        changed = None
        for given, made, before, way in self._containers:
            now = _contents(made)
            if len(now) == len(before) and all(a is b for a, b in zip(now, before)):
                continue
            changed = changed or f"{way}, a {type(made).__name__}"
            if isinstance(given, dict) and isinstance(made, dict):
                given.clear()
                given.update({key: self._callers(x) for key, x in made.items()})
            elif isinstance(given, list) and isinstance(made, list):
                given[:] = [self._callers(x) for x in made]
            else:
                for name, x, y in zip(_fields(made), now, before):
                    if x is not y:
                        setattr(given, name, self._callers(x))
        return changed

    def _callers(self, x: object) -> object:
        return self._own.get(id(x), (x, x))[1]


def _each(given, made) -> Iterator[tuple[int, tuple[object, object]]]:
    return enumerate(zip(given, made, strict=True))


def _fields(x: object) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(x, "__tree_fields__", ())
    return names


def _contents(container: object) -> list[object]:
    if isinstance(container, dict):
        return [y for x in container.items() for y in x]
    if isinstance(container, list):
        return list(container)
    return [getattr(container, name) for name in _fields(container)]
