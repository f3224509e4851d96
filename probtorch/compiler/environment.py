"""What a function reads from Python besides its arguments: `Environment`, a snapshot of it.

A recording freezes the Python values it met: a global number, an attribute such as
``net.training``, a list of layers. `Environment` walks from a function to all it can reach without
running it (globals that its code names, closure cells, defaults, attributes of the user's objects
and of modules, items of lists, tuples and dicts, the functions and classes among them) and notes
what is there. As long as `changed` finds nothing, what was recorded still holds.

Tensors are noted by identity, since compiled code reads their elements anew; small arrays by their
contents, since it does not. The walk stops at the standard library, at installed packages and at
our own code, whose functions keep no state of their own; of our objects it enters modules and
functions that wrap the user's. It also stops after `MAX_ENTRIES` entries, and at the items of a
list, dict or array of more than `MAX_ITEMS`.
"""

import functools
import operator
import os
import random
import sys
import sysconfig
import types
from typing import Any, NamedTuple

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase

__all__ = ["Entries", "Environment"]

MAX_ENTRIES = 20_000
# Longer lists and arrays are data: their length counts, not their items.
MAX_ITEMS = 512

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_ROOTS = {
    os.path.realpath(p) + os.sep
    for p in (
        *(sysconfig.get_paths().get(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.path.dirname(__file__)),
    )
    if p
}


class Entries(NamedTuple):
    """A root: what is found under some keys of a dict, by identity; the walk does not enter it.

    Attributes
    ----------
    items : dict
    keys : tuple
    """

    items: Any
    keys: Any


class Environment:
    """A snapshot of what functions and objects depend on.

    Parameters
    ----------
    roots : iterable
        Functions, and objects, containers or `Entries` whose contents count.
    values : callable, optional
        Returns a tuple of further values.
    """

    def __init__(self, roots, values=None):
        self._values = (values, None if values is None else values())
        self._sizes = _Watch(lambda x, _: len(x), "the number of items in a {0}")
        self._dicts = _Watch(dict.get, "{1}")
        self._classes = _Watch(types.MappingProxyType.get, "{1}")
        self._slots = _Watch(lambda x, name: getattr(x, name, None), "{1}")
        self._lists = _Watch(operator.getitem, "item {1} of a list")
        self._cells = _Watch(lambda x, _: _contents(x), "a variable of an enclosing function")
        # Sizes first, so that no item is looked for where there is none.
        self._watches = (
            self._sizes,
            self._dicts,
            self._classes,
            self._slots,
            self._lists,
            self._cells,
        )
        self._arrays = []  # (array, copy)
        # (function that tells the state of a random generator, state)
        self._generators = [(f, f()) for f in (random.getstate, _numpy_state)]
        self._seen = {}
        todo = list(roots)
        while todo and len(self) < MAX_ENTRIES:
            self._visit(todo.pop(), todo)

    def __len__(self):
        return sum(len(watch.values) for watch in self._watches)

    def changed(self):
        """Return the name of something that is not what it was, None if all is."""
        for watch in self._watches:
            found = watch.changed()
            if found is not None:
                return found
        for array, copy in self._arrays:
            if array.shape != copy.shape or array.tobytes() != copy.tobytes():
                return "the elements of an array"
        values, before = self._values
        if values is not None and not _equal(values(), before):
            return "an option"
        return None

    def drew(self):
        """Whether a random generator of Python or NumPy was used: its draws cannot be replayed."""
        return any(state() != before for state, before in self._generators)

    # ---------------------------------------------------------------------------------- the walk

    def _visit(self, x, todo):
        if isinstance(x, (*_SCALARS, TensorBase, Generator, np.generic)) or id(x) in self._seen:
            return
        self._seen[id(x)] = x  # kept, so that the id stays its own
        if isinstance(x, types.FunctionType):
            self._function(x, todo)
        elif isinstance(x, types.MethodType):
            todo += (x.__self__, x.__func__)
        elif isinstance(x, functools.partial):
            todo += (x.func, x.args, x.keywords)
        elif isinstance(x, np.ndarray):
            if x.size <= MAX_ITEMS and x.dtype != object:
                self._arrays.append((x, x.copy()))
        elif isinstance(x, Entries):
            self._entries(x.items, x.keys, [])
        elif isinstance(x, np.random.Generator):
            self._generators.append(
                (lambda: str(x.bit_generator.state), str(x.bit_generator.state))
            )
        elif isinstance(x, random.Random):
            self._generators.append((x.getstate, x.getstate()))
        elif isinstance(x, dict):
            self._sizes.add(x, None, len(x))
            if len(x) <= MAX_ITEMS:
                self._entries(x, list(x), todo)
        elif isinstance(x, list):
            self._sizes.add(x, None, len(x))
            if len(x) <= MAX_ITEMS:
                for i, item in enumerate(x):
                    self._lists.add(x, i, item)
                todo += x
        elif isinstance(x, (tuple, frozenset)):
            if len(x) <= MAX_ITEMS:
                todo += x
        elif isinstance(x, set):
            self._sizes.add(x, None, len(x))
        elif isinstance(x, type):
            if not _in_library(x.__module__):
                self._entries(x.__dict__, _own_names(x), todo)
        elif isinstance(x, types.ModuleType):
            pass  # the functions that use it note the attributes they name
        elif hasattr(x, "_modules") or not _in_library(type(x).__module__):
            self._object(x, todo)

    def _entries(self, d, keys, todo):
        watch = self._dicts if isinstance(d, dict) else self._classes
        for key in keys:
            watch.add(d, key, d[key])
            todo.append(d[key])

    def _object(self, x, todo):
        own = getattr(x, "__dict__", None)
        if own is not None:
            self._sizes.add(own, None, len(own))
            self._entries(own, list(own), todo)
        for cls in type(x).__mro__:
            if _in_library(cls.__module__):
                continue
            todo.append(cls)
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                value = getattr(x, name, None)
                self._slots.add(x, name, value)
                todo.append(value)

    def _function(self, fn, todo):
        for cell in fn.__closure__ or ():
            value = _contents(cell)
            self._cells.add(cell, None, value)
            todo.append(value)
        wrapped = getattr(fn, "__wrapped__", None)
        if wrapped is not None:
            todo.append(wrapped)
        if _in_library(fn.__module__):
            return
        todo += fn.__defaults__ or ()
        todo += (fn.__kwdefaults__ or {}).values()
        names = _names(fn.__code__)
        known = fn.__globals__
        for name in names:
            if name not in known:
                continue
            value = known[name]
            self._dicts.add(known, name, value)
            todo.append(value)
            if isinstance(value, types.ModuleType) and not _in_library(value.__name__):
                found = [n for n in names if n in value.__dict__]
                self._entries(value.__dict__, found, todo)


class _Watch:
    """Places of one kind, and what was found there."""

    def __init__(self, get, name):
        self.get, self.name = get, name
        self.places, self.keys, self.values = [], [], []

    def add(self, place, key, value):
        self.places.append(place)
        self.keys.append(key)
        self.values.append(value)

    def changed(self):
        """Return the name of the first place with another value, None if there is none."""
        # Nearly always all is the very same, which takes no step of Python per place to see.
        if all(map(operator.is_, map(self.get, self.places, self.keys), self.values)):
            return None
        for place, key, value in zip(self.places, self.keys, self.values, strict=True):
            now = self.get(place, key)
            if now is not value and not _equal(now, value):
                return self.name.format(type(place).__name__, key)
        return None


def _own_names(cls):
    """Names that a class defines, its bookkeeping aside."""
    return [n for n in cls.__dict__ if not (n.startswith("__") and n.endswith("__"))] + [
        n for n in ("__init__", "__call__") if n in cls.__dict__
    ]


def _names(code):
    """Names that a code object, or one nested in it, may look up globally."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _names(constant)
    return list(dict.fromkeys(names))


def _numpy_state():
    state: Any = np.random.get_state()
    return state[1].tobytes(), *state[2:]


def _contents(cell):
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _equal(now, before):
    """Whether two scalars, or tuples of scalars, are the same value."""
    if type(now) is not type(before):
        return False
    if isinstance(now, tuple):
        return len(now) == len(before) and all(
            a is b or _equal(a, b) for a, b in zip(now, before, strict=True)
        )
    if isinstance(now, float):
        return now.hex() == before.hex()
    if isinstance(now, types.MethodType):
        return now.__self__ is before.__self__ and now.__func__ is before.__func__
    return isinstance(now, _SCALARS) and now == before


@functools.cache
def _in_library(name):
    """Whether a module of this name is part of Python, an installed package or probtorch."""
    if name is None or name == "builtins":
        return True
    if name == "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        # Modules written in C, or code that was compiled from a string: the latter is the user's.
        return name in sys.builtin_module_names
    return any(os.path.realpath(file).startswith(root) for root in _ROOTS)
