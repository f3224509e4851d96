"""`Routines`: functions in the kernel language that another room has for itself.

Inference climbs to where chains start, and diagnostics rank draws, by loops that Python would take
too long for. Such routines stand beside what calls them, and are compiled when they are first
called; after that the disk cache has them, for as long as neither they nor the compiler change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.machine import engine
from probtorch.compiler.native import host
from probtorch.compiler.native.sources import sources_with
from probtorch.compiler.render import runtime

__all__ = ["Routines"]


class Routines:
    """Routines of one file, which call each other by name.

    Parameters
    ----------
    file : str
        ``__file__`` of where they are written.
    routines : mapping of str to KernelRoutine
        Those whose names begin with "pt_" can be called from Python, see `function`.
    others : str
        Further files that they are written from; all else must be in the compiler.
    """

    def __init__(self, file: str, routines: Mapping[str, KernelRoutine], *others: str) -> None:
        self.file, self.routines, self.others = file, routines, others
        self._functions: dict[str, Callable[..., int]] = {}

    @functools.cached_property
    def module(self) -> engine.NativeModule:
        """The compiled module."""
        write = functools.partial(runtime.text_of, runtime.of_routines(self.routines))
        return engine.module_by_sources(self.file, write, sources_with(self.file, *self.others))

    def function(self, symbol: str) -> Callable[..., int]:
        """Return a function for Python, good for the life of this object; it takes addresses and
        numbers.
        """
        found = self._functions.get(symbol)
        if found is None:
            routine = self.routines[symbol]
            with host.lock:
                address = self.module.address(symbol)
            found = engine.python_function(address, routine.result, routine.types)
            self._functions[symbol] = found
        return found
