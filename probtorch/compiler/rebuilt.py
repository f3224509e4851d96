"""`Rebuilt`: arguments around stand-ins, whose lists and dicts are the caller's all the same.

A function is recorded on tensors in whose place others may come, so the lists and dicts among its
arguments are made anew around those. What it puts into one (``batch["z"] = z``, ``seen.append(x)``,
``options.pop("k")``) would be lost: it is handed over to the caller's own, and the function, whose
replays could not repeat it, stays eager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from probtorch.core.tree import Structure, unflatten

__all__ = ["Rebuilt"]

_Container: TypeAlias = list[object] | dict[object, object]


class Rebuilt:
    """Arguments of a call, made anew around other leaves.

    Parameters
    ----------
    given : (tuple, dict)
        The arguments of the call.
    structure : Structure
    items : list
        What stands in the place of their leaves.

    Attributes
    ----------
    args, kwargs
    """

    def __init__(
        self,
        given: tuple[tuple[object, ...], Mapping[str, object]],
        structure: Structure,
        items: list[object],
    ) -> None:
        self.args, self.kwargs = unflatten(structure, items)
        # (the caller's container, the one made in its place, what that held, what to call it)
        self._containers: list[tuple[_Container, _Container, list[object], str]] = []
        self._own: dict[int, object] = {}  # of what was put into them, by id, the caller's
        for i, (x, y) in enumerate(zip(given[0], self.args, strict=True)):
            self._pair(x, y, f"argument {i}")
        for name, x in given[1].items():
            self._pair(x, self.kwargs[name], f"argument {name!r}")

    def _pair(self, given: object, made: object, way: str) -> None:
        self._own[id(made)] = given
        if given is made:
            return  # a leaf, of whatever type, which the walk over Python values watches
        if isinstance(given, dict) and isinstance(made, dict):
            self._containers.append((given, made, _contents(made), way))
            for key, x in made.items():
                self._pair(given[key], x, f"{way}[{key!r:.40}]")
        elif isinstance(given, (list, tuple)) and isinstance(made, (list, tuple)):
            if isinstance(given, list) and isinstance(made, list):
                self._containers.append((given, made, _contents(made), way))
            for i, (x, y) in enumerate(zip(given, made, strict=True)):
                self._pair(x, y, f"{way}[{i}]")

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
                given.update({key: self._own.get(id(x), x) for key, x in made.items()})
            elif isinstance(given, list):
                given[:] = [self._own.get(id(x), x) for x in made]
        return changed


def _contents(container: _Container) -> list[object]:
    if isinstance(container, dict):
        return [y for x in container.items() for y in x]
    return list(container)
