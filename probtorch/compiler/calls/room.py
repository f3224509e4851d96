"""Which versions of a compiled function are made, and which stay, where it meets ever more shapes.

Each shape of its arguments is a version: recorded, compiled and kept, a quarter of a megabyte for a
step of SVI. Batches whose last one is shorter make two, sequences as long as they happen to be make
as many as there are lengths, and some functions never meet a shape again.

So a shape that is met among others runs in Python the first time, and is compiled when it comes
back (`Shapes`): compiling takes a hundred times as long as a call, or a thousand. The first shape
of all is compiled at once. And there is room for `MAX_SHAPES` (`Room`). When it is full, a version
gives way to another that has been met twice since it was called last itself: what comes and goes in
turn stays, what is new each time runs in Python, and old shapes make room for those of another
task.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable

from probtorch.compiler.calls.versions import shapes_apart, too_many, what_is_alike
from probtorch.compiler.paths import CompileWarning, Paths
from probtorch.errors import user_frame

__all__ = ["MAX_SHAPES", "Admissions", "Room", "Shapes"]

MAX_SHAPES = 128
# Versions that differ only in numbers or other Python values among the arguments.
MAX_VERSIONS = 8
# Shapes that are remembered without a version, per shape that has one.
_REMEMBERED = 8


class Shapes:
    """Knows the shapes of arguments that a function met, and which of them came back."""

    def __init__(self) -> None:
        # What versions have in common that differ in shapes alone -> shapes, whether once only.
        self._met: dict[Hashable, dict[Hashable, bool]] = {}

    def is_new(self, rest: Hashable, shapes: Hashable) -> bool:
        """Whether arguments have shapes that none had, where others had some: notes them."""
        met = self._met.setdefault(rest, {})
        new = bool(met) and shapes not in met
        if self.count() >= _REMEMBERED * MAX_SHAPES:
            self._met = {rest: (met := {})}
        met[shapes] = new
        return new

    def forget(self, rest: Hashable, shapes: Hashable) -> None:
        """Know nothing of shapes with which the function ended in an error."""
        self._met.get(rest, {}).pop(shapes, None)

    def count(self, *, once: bool = False) -> int:
        """Return how many shapes are known, or of those how many were met once and not compiled."""
        return sum(sum(met.values()) if once else len(met) for met in self._met.values())


class Room:
    """Counts calls, once it is full, and says who gives way.

    Parameters
    ----------
    most : int
        Versions that there is room for.
    always : bool
        Whether a new version is admitted at once, in place of the one called least recently.

    Attributes
    ----------
    full : bool
        Whether calls are to be counted, by `met`.
    """

    def __init__(self, most: int = MAX_SHAPES, *, always: bool = False) -> None:
        self.most, self.always, self.full = most, always, False
        self._clock = 0
        self._calls: dict[Hashable, int] = {}  # when each was met last, the latest at the end
        self._before = 0  # when the one at hand was met before this call

    def met(self, key: Hashable) -> None:
        """Count a call."""
        self._clock += 1
        self._before = self._calls.pop(key, 0)
        self._calls[key] = self._clock
        if len(self._calls) > _REMEMBERED * self.most:
            del self._calls[next(iter(self._calls))]

    def place(self, kept: Collection[Hashable]) -> tuple[bool, Hashable | None]:
        """Say whether the version that was just `met` may be made, and which one goes for it.

        Parameters
        ----------
        kept : collection
            The keys of the versions that there are.
        """
        if len(kept) < self.most:
            return True, None
        self.full = True
        oldest = min(kept, key=lambda key: self._calls.get(key, 0))
        if self.always or self._calls.get(oldest, 0) < self._before:
            return True, oldest
        return False, None


class Admissions:
    """Says which versions of a function may be made.

    Parameters
    ----------
    paths : Paths
        Of the function, by version.
    taped : dict
        Versions whose result needs a gradient.
    at_once : bool
        Whether every shape is compiled when it is first met.
    """

    def __init__(self, paths: Paths, taped: dict, *, at_once: bool) -> None:
        self._paths, self._taped, self._at_once = paths, taped, at_once
        self._alike: dict[Hashable, set] = {}  # what versions have in common -> their keys
        self.room = Room(always=at_once)
        self._shapes = Shapes()

    @property
    def full(self) -> bool:
        """Whether there is no room for a version more, so that calls are to be counted."""
        return self.room.full

    def met(self, key: tuple) -> None:
        """Count a call, where there is no room."""
        if self.room.full:
            self.room.met(key)

    def admit(self, key: tuple) -> bool:
        """Whether a new version may be recorded: not if numbers keep changing."""
        if not self.admit_shapes(key):
            return False
        alike = what_is_alike(key)
        known = self._alike.setdefault(alike, set())
        if key not in known and len(known) <= MAX_VERSIONS:
            known.add(key)
            if len(known) == MAX_VERSIONS + 1:
                reason = too_many(MAX_VERSIONS, alike, key)
                self._paths.aside = self._paths.aside or (reason, "")
                self._paths.warn(reason)
        return len(known) <= MAX_VERSIONS

    def admit_shapes(self, key: tuple) -> bool:
        """Whether there is room for a version, and its shapes are not met for the first time."""
        return self._has_room(key) and self._came_back(key)

    def dismiss(self, key: tuple, *, counted: bool) -> None:
        """Know nothing of arguments that were refused: they are no version of their own."""
        self._shapes.forget(*shapes_apart(key))
        if counted:
            self._alike.get(what_is_alike(key), set()).discard(key)

    def notes(self) -> tuple[str, ...]:
        """Return what `explain` says of shapes."""
        once = self._shapes.count(once=True)
        calls = "1 call" if once == 1 else f"{once} calls"
        said = f"{calls} of new shapes ran eagerly: shapes among others are compiled when met again"
        return (said,) if once else ()

    def _came_back(self, key: tuple) -> bool:
        """Whether a new version is no first call with shapes that are new among others."""
        if self._at_once or self._paths.whole or self.room.full:
            return True
        return not self._shapes.is_new(*shapes_apart(key))

    def _has_room(self, key: tuple) -> bool:
        """Whether there is room for another version, perhaps in place of an old one."""
        kept = {*self._paths.versions, *self._taped}
        told = self.room.full
        admitted, oldest = self.room.place(kept)
        if oldest is not None:
            self._paths.forget(oldest)
            self._taped.pop(oldest, None)
            self._alike.pop(what_is_alike(oldest), None)
        if self.room.full and not told:
            _warn_crowded(self._paths, self.room, key[1])
        return admitted


def _warn_crowded(paths: Paths, room: Room, arguments: Collection[object]) -> None:
    """Say, once, that a function meets more shapes than there is room for."""
    if not room.always:
        reason = f"where arguments have shapes that are new after {room.most} others"
        paths.aside = reason, ""
    shapes = ", ".join(str(tuple(x[0])) for x in arguments if isinstance(x, tuple) and len(x) > 2)
    then = (
        "each shape that comes back after that many others is compiled again, which is slower"
        if room.always
        else "shapes that come back replace those that no longer do; others run eagerly, which is "
        "slower"
    )
    message = (
        f"{paths.name} has met more than {room.most} shapes of its arguments\n"
        f"  expected: at most {room.most}: each is compiled, and kept in memory, by itself\n"
        f"  got:      one more, {shapes or 'and other values'}; {then}\n"
        "  fix:      pad batches to a few sizes, or leave out the last, shorter one "
        "(DataLoader(drop_last=True))"
    )
    warnings.warn_explicit(message, CompileWarning, *(user_frame() or ("<unknown>", 0)))
