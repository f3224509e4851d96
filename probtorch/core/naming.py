"""Objects that stand where a function stood: how they are found again by name.

A decorated function of a module is pickled by its name, as any function is. The object inside it,
the function as it was written, has the same name and can no longer be found by it.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["importable_name"]


def importable_name(obj: Any) -> str | None:
    """Return the dotted name of `obj` inside its module, or None if another object is found there.

    Parameters
    ----------
    obj : object
        With ``__module__`` and ``__qualname__``, as `functools.update_wrapper` sets them.
    """
    found = sys.modules.get(getattr(obj, "__module__", None) or "")
    name = getattr(obj, "__qualname__", None)
    if found is None or not isinstance(name, str):
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is obj else None
