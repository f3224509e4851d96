"""A compiled module still is a module: what `probtorch.compile(module)` returns.

Its calls go through a compiled function. In all else it is the module that was given: of its class,
with the very same parameters, buffers, children, hooks and settings, since both share one table of
attributes. So `train()`, `to()` and `state_dict()` may be asked of either, and names of parameters
are those of the module.

The compiler asks a callable for `__compiled__`, so neither has to import the other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import new_class
from typing import TYPE_CHECKING, SupportsIndex, cast

if TYPE_CHECKING:
    from probtorch.compiler.compiled_function import CompiledFunction
    from probtorch.nn.module import Module

__all__ = ["compiled_module"]


class _Told:
    """An attribute of the compiled function; names of the module's own come first."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, module: Module | None, owner: type | None = None) -> object:
        if module is None:
            return self
        for table in ("_parameters", "_buffers", "_modules"):
            if self.name in module.__dict__[table]:
                return module.__dict__[table][self.name]
        return getattr(cast(_Head, module)._compiled, self.name)


class _Head:
    """What a compiled module does in another way than its class."""

    _compiled: CompiledFunction

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self._compiled(*args, **kwargs)

    def _get_name(self) -> str:
        return type(self._compiled.fn).__name__

    # What was compiled stays behind; a copy makes its own.
    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        function = self._compiled
        return _again, (type(function), function.fn, function.verify)

    def __deepcopy__(self, memo: dict[int, object]) -> Module:
        function = self._compiled
        return _again(type(function), copy.deepcopy(function.fn, memo), function.verify)


class _Tail:
    """What it has besides."""

    explain, source, reason = _Told("explain"), _Told("source"), _Told("reason")
    paths, last = _Told("paths"), _Told("last")


def compiled_module(module: Module, make: Callable[[Module], CompiledFunction]) -> Module:
    """Return a module whose calls are compiled, by `make`, and that is `module` in all else."""
    if isinstance(module, _Head):
        module = module._compiled.fn
    cls = type(module)
    own: dict[str, object] = {"__slots__": ("_compiled",), "__module__": __name__}
    # It is saved as what it was compiled from.
    own |= {"__doc__": cls.__doc__, "_plain": getattr(cls, "_plain", cls)}
    name, bases = f"Compiled{cls.__name__}", (_Head, cls, _Tail)
    made_for_it = new_class(name, bases, exec_body=lambda names: names.update(own))
    made = cast("Module", object.__new__(made_for_it))
    made.__dict__ = module.__dict__
    # Past a module's own way of taking attributes, into a slot that the two do not share.
    object.__setattr__(made, "_compiled", make(module))
    return made


def _again(kind: type[CompiledFunction], module: Module, verify: bool) -> Module:
    return compiled_module(module, lambda m: kind(m, verify=verify))
