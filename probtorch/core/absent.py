"""The error for a name that a room of ours has not, and what to use in its place.

PyTorch's, Pyro's and NumPyro's users type the names that they know. A room keeps a table of those
that it does not have, with what does their work here: a row a name, or one named "" for all others.
It gives the table to `core.rooms`, whose functions make its ``__getattr__``, and is done: names and
modules of the table are told of where they are asked for, be it by ``room.name``, by ``from room
import name`` or by ``import room.name.more``. The reasons are in docs/reference/differences.md.
"""

from __future__ import annotations

import dis
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, ModuleType

from probtorch.core.signatures import closest
from probtorch.errors import UnknownImportError, UnknownModuleError, UnknownNameError

__all__ = ["asked_by_import", "no_such_name", "tell_of_modules"]

# What rooms have not, by their names: for imports of modules inside them.
_TABLES: dict[str, Mapping[str, str]] = {}


def no_such_name(
    module: str,
    instead: Mapping[str, str],
    name: str,
    known: Iterable[str] = (),
    within: Sequence[str] = (),
) -> UnknownNameError | UnknownImportError:
    """Return the error for `name`, made in the ``__getattr__`` of the module that lacks it.

    Parameters
    ----------
    module : str
        The room's ``__name__``.
    instead : dict of str to str
        What does the work of names that are not there, and by "" that of any other.
    name : str
    known : iterable of str
        Names that are there.
    within : sequence of str
        Packages inside of the module that may have the name.

    Returns
    -------
    UnknownNameError, or UnknownImportError where a ``from ... import`` asks
    """
    public = (n for n in known if not n.startswith("_"))
    near = closest(name, [*public, *filter(None, instead)])
    if name in instead:
        fix = instead[name]
    elif (inside := _inside(module, within, name)) is not None:
        fix = f"it is {module}.{inside}.{name}"
    elif near is not None:
        fix = f"did you mean {near}?" + (f" {instead[near]}" if near in instead else "")
    else:
        fix = instead.get("", f"see dir({module}) for what there is")
    cls = UnknownImportError if asked_by_import(sys._getframe(2)) else UnknownNameError
    return cls(
        f"module {module!r} has no attribute {name!r}",
        expected="a name that this module has",
        got=repr(name),
        fix=fix,
    )


def _inside(module: str, within: Sequence[str], name: str) -> str | None:
    """The first of some packages of a module that has a name."""
    for package in within:
        if name in importlib.import_module(f"{module}.{package}").__all__:
            return package
    return None


def asked_by_import(frame: FrameType) -> bool:
    """Whether a frame is at a ``from ... import``, which would replace an AttributeError's text."""
    code = frame.f_code.co_code
    return frame.f_lasti >= 0 and code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]


def tell_of_modules(room: str, instead: Mapping[str, str]) -> None:
    """Have imports of modules that `room` has not tell what its table says of them."""
    _TABLES[room] = instead


class _Absent:
    """Asked by Python for modules that nobody has found; raises for those of a table."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        room, _, name = fullname.rpartition(".")
        if name and name in _TABLES.get(room, ()):
            error = UnknownModuleError(
                f"No module named {fullname!r}",
                expected=f"a module of {room}",
                got=repr(name),
                fix=_TABLES[room][name],
            )
            error.name = fullname  # by which Python knows whose module is not there
            raise error


sys.meta_path.append(_Absent)
