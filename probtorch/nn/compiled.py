"""A compiled module still is a module: what `probtorch.compile(module)` returns.

Its calls go through a compiled function. In all else it is the module that was given: of its class,
with the very same parameters, buffers, children, hooks and settings, since both share one table of
attributes. So `train()`, `to()` and `state_dict()` may be asked of either, and names of parameters
are those of the module.
"""

from __future__ import annotations

import copy
from types import new_class
from typing import SupportsIndex, cast

from probtorch.compiler.compile import FORMS, CompiledFunction
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
        return compiled_module, (self._compiled.fn, self._compiled.verify)

    def __deepcopy__(self, memo: dict[int, object]) -> Module:
        return compiled_module(copy.deepcopy(self._compiled.fn, memo), self._compiled.verify)


class _Tail:
    """What it has besides."""

    explain, source, reason = _Told("explain"), _Told("source"), _Told("reason")
    paths, last = _Told("paths"), _Told("last")


def compiled_module(module: Module, verify: bool = True) -> Module:
    """Return a module whose calls are compiled, and that is `module` in all else."""
    if isinstance(module, _Head):
        module = module._compiled.fn
    cls = type(module)
    own: dict[str, object] = {"__slots__": ("_compiled",), "__module__": __name__}
    # It is saved as what it was compiled from.
    own |= {"__doc__": cls.__doc__, "_plain": getattr(cls, "_plain", cls)}
    bases = (_Head, cls, _Tail)
    made = cast(
        Module,
        object.__new__(
            new_class(f"Compiled{cls.__name__}", bases, None, lambda names: names.update(own))
        ),
    )
    made.__dict__ = module.__dict__
    # Past a module's own way of taking attributes, into a slot that the two do not share.
    object.__setattr__(made, "_compiled", CompiledFunction(module, verify=verify))
    return made


FORMS.append((Module, compiled_module))
