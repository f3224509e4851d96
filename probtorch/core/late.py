"""What takes long to import and few programs come to, imported where it is first used.

`scipy.optimize` brings half of SciPy along, `scipy.special` the documentation of all its functions:
together most of the time that it took to import our rooms of inference. Modules that need them now
and then take them from here; a function that does so at each call may as well import them itself.

`late_names` is for rooms of our own that offer hundreds of names from a hundred modules, of which a
program uses ten. Such a room states its names for type checkers, which never run it, and in a
table for Python; a test compares the two.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import difflib
    import pickletools

    import opt_einsum
    from scipy import optimize, special

__all__ = [
    "difflib",
    "late_beside",
    "late_names",
    "opt_einsum",
    "optimize",
    "pickletools",
    "special",
]


def late_names(
    package: str,
    homes: Mapping[str, str],
    *,
    beside: Mapping[str, str] | None = None,
    missing: Callable[[str, list[str]], Exception] | None = None,
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
    missing : callable, optional
        Makes the error for a name that is not there, of it and ``__all__``.
    """
    places = _places(package, homes)
    offered = sorted(places)
    places |= _places(package, beside or {})
    room = vars(sys.modules[package])

    def fetch(name: str) -> object:
        if name in places:
            found: object = importlib.import_module(places[name])
            if places[name] != f"{package}.{name}":
                found = getattr(found, name)
            room[name] = found
            return found
        # Protocols of Python and of notebooks ask for names with underscores on any module.
        inner = f"{package}.{name}"
        if not name.startswith("_"):
            if "__path__" in room and importlib.util.find_spec(inner) is not None:
                return importlib.import_module(inner)
            if missing is not None:
                raise missing(name, offered or room["__all__"])
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)

    return offered, fetch, lambda: sorted({*room, *offered})


def late_beside(
    package: str,
    names: Mapping[str, str],
    missing: Callable[[str, list[str]], Exception],
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a room that imports its own names at once.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    names : dict
        As `homes` of `late_names`: names that the room offers besides, from rooms above it.
    missing : callable
        Makes the error for a name that is not there, of it and the names that are.
    """
    _, fetch, shown = late_names(package, {}, beside=names, missing=missing)
    return fetch, lambda: sorted({*shown(), *_places(package, names)})


def _places(package: str, homes: Mapping[str, str]) -> dict[str, str]:
    """Return the modules of names, in full."""
    places = {}
    for home, names in homes.items():
        module = home if home.startswith("probtorch.") else f"{package}.{home}"
        places.update(dict.fromkeys(names.split() or [home], module))
    return places


class _Late:
    """Stands for a module until something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        found = getattr(importlib.import_module(self._name), name)
        if not (name.startswith("__") and name.endswith("__")):
            setattr(self, name, found)  # the next time it is there
        return found

    def __repr__(self) -> str:
        return f"<{self._name}, imported when it is used>"


if not TYPE_CHECKING:
    optimize, special = _Late("scipy.optimize"), _Late("scipy.special")
    opt_einsum = _Late("opt_einsum")
    # Of the standard library: what messages and files of PyTorch's need.
    difflib, pickletools = _Late("difflib"), _Late("pickletools")
