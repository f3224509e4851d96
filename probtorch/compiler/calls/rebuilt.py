"""`Rebuilt`: arguments around stand-ins, whose containers are the caller's all the same.

Where something else stands in the place of a tensor, the containers, tuples and distributions
around it are made anew: one for each that there is. All others, and those that the function finds
elsewhere, too, are the caller's own. What the function puts into one (``batch["z"] = z``,
``seen.append(x)``, ``options.pop("k")``), or sets of a distribution, is handed over to the
caller's where it was made anew; and the function, whose replays could not repeat it, stays eager.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from probtorch.compiler.guards.watches import raw
from probtorch.core.tensor_base import is_tensor
from probtorch.core.tree import Structure, flatten, is_leaf_type, names_of, stored, unflatten

__all__ = ["Given", "Rebuilt", "boxes", "is_tree"]

Given: TypeAlias = tuple[tuple[object, ...], Mapping[str, object]]


def boxes(given: Given, everything: bool = False) -> list[object]:
    """Return the lists and dicts among the arguments of a call; tuples and distributions, too, of
    which Python can only ask who they are, with `everything`.
    """
    found: list[object] = []
    todo: list[object] = [*given[0], *given[1].values()]
    while todo:
        x = todo.pop()
        if type(x) is dict:
            found.append(x)
            todo += x.values()
        elif type(x) is list:
            found.append(x)
            todo += x
        elif issubclass(type(x), tuple):
            if everything:
                found.append(x)
            todo += tuple.__iter__(x)  # type: ignore[arg-type]  # a tuple by its type
        elif everything and not is_tensor(x) and is_tree(x):
            found.append(x)
            todo += [stored(x, name) for name in names_of(x)]
    return found


def is_tree(x: object) -> bool:
    """Whether an object is taken to pieces as an argument and is no tuple, list or dict."""
    return not is_leaf_type(type(x)) and hasattr(type(x), "__tree_fields__")


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
        given: Given,
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
        if _same_leaves(given, made):
            self._watch(given, way)
            return given
        if isinstance(given, tuple) and isinstance(made, tuple):
            found = [self._paired(x, y, f"{way}[{i}]") for i, (x, y) in _each(given, made)]
            made = type(made)._make(found) if hasattr(made, "_make") else tuple(found)
            self._own[id(made)], self._made[id(given)] = (made, given), made
            return made
        self._own[id(made)] = made, given
        if isinstance(given, dict) and isinstance(made, dict):
            self._made[id(given)] = made
            for key, x in made.items():
                made[key] = self._paired(given[key], x, f"{way}[{key!r:.40}]")
        elif isinstance(given, list) and isinstance(made, list):
            self._made[id(given)] = made
            made[:] = [self._paired(x, y, f"{way}[{i}]") for i, (x, y) in _each(given, made)]
        elif is_tree(made):
            self._made[id(given)] = made
        else:
            return made
        self._containers.append((given, made, _contents(made), way))
        return made

    def _watch(self, given: object, way: str) -> None:
        """Note what the caller's own containers hold, which the function gets as they are."""
        below: Iterable[tuple[object, object]] = ()
        # Not by methods of a class of the caller's.
        if isinstance(given, dict):
            below = dict.items(given)
        elif isinstance(given, (list, tuple)):
            below = enumerate(raw(type(given))[0](given))
        elif not is_tree(given):
            return
        self._made[id(given)] = given
        if not isinstance(given, tuple):
            self._containers.append((given, given, _contents(given), way))
        for key, x in below:
            self._watch(x, f"{way}[{key!r:.40}]")

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
            if given is made:
                continue
            if isinstance(given, dict) and isinstance(made, dict):
                given.clear()
                given.update({key: self._callers(x) for key, x in made.items()})
            elif isinstance(given, list) and isinstance(made, list):
                given[:] = [self._callers(x) for x in made]
            else:
                had = dict(zip(before[::2], before[1::2], strict=True))
                for name, x in zip(now[::2], now[1::2], strict=True):
                    if had.get(name, self) is not x:
                        setattr(given, str(name), self._callers(x))
                for name in had.keys() - set(now[::2]):
                    delattr(given, str(name))
        return changed

    def _callers(self, x: object) -> object:
        """What the caller has for something; in containers that the function made, in its place."""
        if id(x) in self._own:
            return self._own[id(x)][1]
        if type(x) is tuple:
            found = tuple(map(self._callers, x))
            return x if all(a is b for a, b in zip(found, x, strict=True)) else found
        if isinstance(x, list) and type(x) is list:
            x[:] = [self._callers(y) for y in x]
        elif isinstance(x, dict) and type(x) is dict:
            x.update({key: self._callers(y) for key, y in x.items()})
        return x


def _same_leaves(given, made):
    """Whether nothing is in the place of anything of the caller's."""
    one, other = flatten(given)[0], flatten(made)[0]
    return len(one) == len(other) and all(a is b for a, b in zip(one, other))


def _each(given, made) -> Iterator[tuple[int, tuple[object, object]]]:
    return enumerate(zip(given, made, strict=True))


def _contents(container: object) -> list[object]:
    """Keys and values, items, or names and values of fields."""
    if isinstance(container, dict):
        return [y for x in dict.items(container) for y in x]
    if isinstance(container, list):
        return list(list.__iter__(container))
    return [y for name in names_of(container) for y in (name, stored(container, name))]
