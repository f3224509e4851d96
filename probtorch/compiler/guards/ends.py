"""Objects whose end counts: code of the user's runs then, or looks whether they are gone.

A snapshot holds what it has met, so that what it knows by its number stays itself. An object that
the script drops would then go on living, and what its end does would be put off: whoever meets one
has to let it go, and run eagerly. What nothing but a weak reference leads to is not held in the
first place (`entering.py`).
"""

import dis
import functools
import gc
import types
import weakref

from probtorch.compiler.guards.kinds import in_library, is_of_library, module_of
from probtorch.core.tensor_base import TensorBase

__all__ = ["HOLD_WEAKLY", "looked_for", "referents", "runs_when_dropped"]

HOLD_WEAKLY = (
    *(weakref.ReferenceType, weakref.WeakSet),
    *(weakref.WeakKeyDictionary, weakref.WeakValueDictionary),
)


def runs_when_dropped(x):
    """Whether code of the user's runs as soon as nobody holds an object any more.

    That is its `__del__`, what a weak reference or a finalizer calls, or what a generator has left
    to do in a ``finally`` or a ``with``.
    """
    if any(_is_of_users(ref.__callback__) for ref in weakref.getweakrefs(x)):
        return True
    if type(x) is not types.GeneratorType:
        owner_of_it = next((c for c in type(x).__mro__ if "__del__" in c.__dict__), None)
        return owner_of_it is not None and not in_library(module_of(owner_of_it))
    if x.gi_frame is None or is_of_library(x.gi_code, x.gi_frame.f_globals.get("__name__")):
        return False
    inside = gc.get_referents(x)
    return _handles(x.gi_code) or any(
        type(y) is types.GeneratorType and runs_when_dropped(y) for y in inside
    )


def _is_of_users(callback):
    if isinstance(callback, weakref.finalize):
        found = callback.peek()
        return found is not None and _is_of_users(found[1])
    if isinstance(callback, types.MethodType):
        return _is_of_users(callback.__func__)
    if isinstance(callback, functools.partial):
        return _is_of_users(callback.func)
    if isinstance(callback, types.FunctionType):
        return not is_of_library(callback.__code__, callback.__module__)
    if isinstance(callback, types.BuiltinFunctionType):
        return not isinstance(callback.__self__, (types.ModuleType, type(None)))
    kind = callback if isinstance(callback, type) else type(callback)
    return callback is not None and not in_library(module_of(kind))


@functools.lru_cache(64)
def _handles(code):
    return any(step.opname == "PUSH_EXC_INFO" for step in dis.get_instructions(code))


def referents(x):
    """Return the weak references of a container of such, or the one that this is."""
    if isinstance(x, weakref.ReferenceType):
        return [x]
    found = x.valuerefs() if isinstance(x, weakref.WeakValueDictionary) else x.data
    return [y for y in list(found) if isinstance(y, weakref.ReferenceType)]


def looked_for(weakly, held):
    """Return tensors and objects of the user's that code may find gone, with the ways to them.

    Parameters
    ----------
    weakly : iterable of (weak reference, Way)
    held : dict
        What a snapshot holds, by the ids.
    """
    found = [(ref(), path) for ref, path in weakly]
    found = [(x.__self__ if isinstance(x, types.MethodType) else x, path) for x, path in found]
    return [
        (x, path)
        for x, path in found
        if x is not None
        and held.get(id(x)) is x
        and not isinstance(x, type)
        and (isinstance(x, TensorBase) or not in_library(module_of(type(x))))
    ]
