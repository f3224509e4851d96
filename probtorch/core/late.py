"""Libraries that take long to import and that few programs come to: imported where first used.

`scipy.optimize` brings half of SciPy along, `scipy.special` the documentation of all its functions:
together most of the time that it took to import our rooms of inference. Modules that need them now
and then take them from here; a function that does so at each call may as well import them itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scipy import optimize, special

__all__ = ["optimize", "special"]


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
