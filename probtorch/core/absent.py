"""The error for a name that a room of ours has not, and what to use in its place.

PyTorch's, Pyro's and NumPyro's users type the names that they know. A room keeps a table of those
that it does not have, with what does their work here, and raises what `no_such_name` makes of it.
The reasons are in docs/reference/differences.md.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Mapping
from types import FrameType

from probtorch.core.signatures import closest
from probtorch.errors import UnknownImportError, UnknownNameError

__all__ = ["asked_by_import", "no_such_name"]


def no_such_name(
    module: str, instead: Mapping[str, str], name: str, known: Iterable[str] = ()
) -> UnknownNameError | UnknownImportError:
    """Return the error for `name`, made in the ``__getattr__`` of the module that lacks it.

    Parameters
    ----------
    module : str
        The room's ``__name__``.
    instead : dict of str to str
        What does the work of names that are not there.
    name : str
    known : iterable of str
        Names that are there.

    Returns
    -------
    UnknownNameError, or UnknownImportError where a ``from ... import`` asks
    """
    near = closest(name, known)
    if name in instead:
        fix = instead[name]
    elif near is not None:
        fix = f"did you mean {near}?"
    else:
        fix = f"see dir({module}) for what there is"
    cls = UnknownImportError if asked_by_import(sys._getframe(2)) else UnknownNameError
    return cls(
        f"module {module!r} has no attribute {name!r}",
        expected="a name that this module has",
        got=repr(name),
        fix=fix,
    )


def asked_by_import(frame: FrameType) -> bool:
    """Whether a frame is at a ``from ... import``, which would replace an AttributeError's text."""
    code = frame.f_code.co_code
    return frame.f_lasti >= 0 and code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]
