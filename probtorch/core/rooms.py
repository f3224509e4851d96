"""What a room offers, where its names are not all imported by itself.

`late_names` is for rooms that offer hundreds of names from a hundred modules, of which a program
uses ten. Such a room states its names for type checkers, which never run it, and in a table for
Python; a test compares the two. `late_beside` is for rooms that import their names at once: those
that offer a few besides, or tell of names that they have not. These are in a table, too, of which
`core.absent` says more. Modules that other libraries have in a room's place are in
`core.other_modules`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence

from probtorch.core import other_modules  # noqa: F401  finds them from now on
from probtorch.core.absent import no_such_name, tell_of_modules

__all__ = ["is_module", "late_beside", "late_names"]

# What such a room imports for its tables, and does not offer.
_HELPERS = {"INSTEAD", "TYPE_CHECKING", "late_beside", "late_names"}


def late_names(
    package: str,
    homes: Mapping[str, str],
    *,
    beside: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package that imports late.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : dict
        From modules to the names that they own, with blanks between. Modules are named from
        `package` on, those elsewhere in full. Of a module without names it is the module itself
        that the package offers.
    beside : dict, optional
        The same for names that are found here, too, but are no part of ``__all__``.
    instead : dict, optional
        What does the work of names that are not there, as in `core.absent`.
    within : sequence of str
        Packages inside of this one that a name which is not here is looked for in.
    """
    places = _places(package, homes)
    offered = sorted(places)
    places |= _places(package, beside or {})
    room = vars(sys.modules[package])
    if instead is not None:
        tell_of_modules(package, instead)

    def fetch(name: str) -> object:
        if name in places:
            found: object = importlib.import_module(places[name])
            if places[name] != f"{package}.{name}":
                found = getattr(found, name)
            room[name] = found
            return found
        # Protocols of Python and of notebooks ask for names with underscores on any module.
        if not name.startswith("_"):
            if "__path__" in room and is_module(f"{package}.{name}"):
                return importlib.import_module(f"{package}.{name}")
            if instead is not None:
                known = offered or room.get("__all__", shown())
                raise no_such_name(package, instead, name, known, within)
        elif name == "__path__" and instead is not None:
            return []  # without one nobody would be asked for modules of a room in one file
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)

    def shown() -> list[str]:
        return sorted({*room, *offered} - _HELPERS)

    return offered, fetch, shown


def late_beside(
    package: str,
    names: Mapping[str, str],
    instead: Mapping[str, str],
    within: Sequence[str] = (),
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a room that imports its own names at once.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    names : dict
        As `homes` of `late_names`: names that the room offers besides, from rooms above it.
    instead : dict
        As there: what does the work of names that are not there.
    within : sequence of str
        As there.
    """
    _, fetch, shown = late_names(package, {}, beside=names, instead=instead, within=within)
    return fetch, lambda: sorted({*shown(), *_places(package, names)})


def is_module(name: str) -> bool:
    """Whether there is a module of that name, whose package there is."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # with words about what to use
        return False


def _places(package: str, homes: Mapping[str, str]) -> dict[str, str]:
    """Return the modules of names, in full."""
    places = {}
    for home, names in homes.items():
        module = home if home.startswith("probtorch.") else f"{package}.{home}"
        places.update(dict.fromkeys(names.split() or [home], module))
    return places
