"""What takes long to import and few programs come to, imported where it is first used.

`scipy.optimize` brings half of SciPy along, `scipy.special` the documentation of all its functions:
together most of the time that it took to import our rooms of inference. Modules that need them now
and then take them from here; a function that does so at each call may as well import them itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import difflib
    import pickletools

    import opt_einsum
    from scipy import optimize, special

__all__ = [
    "difflib",
    "opt_einsum",
    "optimize",
    "pickletools",
    "special",
]


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
