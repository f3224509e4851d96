"""What a function reads from Python besides its arguments: `Environment`, a snapshot of it.

A recording freezes the Python values it met: a global number, an attribute such as
``net.training``, a list of layers. `Environment` walks from a function to all it can reach without
running it (globals that its code names, closure cells, defaults, attributes of the user's objects
and of modules, items of lists, tuples and dicts, the functions and classes among them) and notes
what is there. As long as `changed` finds nothing, what was recorded still holds.

Tensors are noted by identity, since compiled code reads their elements anew; small arrays by their
contents, since it does not. The walk stops at the standard library, at installed packages and at
our own code, whose functions keep no state of their own; of our objects it enters modules and
functions that wrap the user's, of the library's those that only hold things (`_HOLDERS`): what
decorators leave in a class, namespaces, queues, views. It also stops after `MAX_ENTRIES` entries.
Of a list or dict of more than `MAX_ITEMS` the items are noted, but not what is in them. An
iterator gives another value each time: where one is met, nothing that was recorded can hold.
"""

import array
import builtins
import collections
import contextvars
import dis
import functools
import gc
import importlib.util
import operator
import os
import random
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase

__all__ = ["Entries", "Environment"]

MAX_ENTRIES = 20_000
# Longer arrays are data, which is not compared; the items of longer lists are, but not entered.
MAX_ITEMS = 512

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
# Modules whose types only hold what others put there.
_HOLDERS = {"builtins", "types", "functools", "operator", "collections", "argparse", "itertools"}
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
        self._opaque = None
        self._sizes = _Watch(lambda x, _: len(x), "the number of items in a {0}")
        self._orders = _Watch(lambda x, _: tuple(x), "the items of a {0}", _alike)
        self._variables = _Watch(lambda x, _: x.get(None), "a context variable")
        self._dicts = _Watch(dict.get, "{1}")
        self._classes = _Watch(types.MappingProxyType.get, "{1}")
        self._slots = _Watch(lambda x, name: getattr(x, name, None), "{1}")
        self._lists = _Watch(operator.getitem, "item {1} of a list")
        self._cells = _Watch(lambda x, _: _contents(x), "a variable of an enclosing function")
        # Sizes first, so that no item is looked for where there is none.
        self._watches = (
            self._sizes,
            self._orders,
            self._variables,
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
        # Which attributes of modules count follows from the names in all code that was met.
        self._modules, self._named = {}, {}
        self.extend(roots)

    def extend(self, roots):
        """Note what these objects depend on, too, as it is now."""
        todo = list(roots)
        while todo and len(self) < MAX_ENTRIES:
            self._visit(todo.pop(), todo)
            if not todo:
                self._attributes(todo)

    def __len__(self):
        return sum(len(watch.values) for watch in self._watches)

    def changed(self):
        """Return the name of something that is not what it was, None if all is."""
        if self._opaque is not None:
            return self._opaque
        for watch in self._watches:
            found = watch.changed()
            if found is not None:
                return found
        for x, copy in self._arrays:
            if x.shape != copy.shape or x.tobytes() != copy.tobytes():
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
        elif isinstance(x, np.ndarray):
            if x.dtype == object:
                self._items(x.ravel(), list(x.flat), todo)
            elif x.size <= MAX_ITEMS:
                self._arrays.append((x, x.copy()))
        elif isinstance(x, Entries):
            self._entries(x.items, x.keys, [])
        elif isinstance(x, np.random.Generator):
            self._generators.append(
                (lambda: str(x.bit_generator.state), str(x.bit_generator.state))
            )
        elif isinstance(x, random.Random):
            self._generators.append((x.getstate, x.getstate()))
        elif isinstance(x, type):
            self._class(x, todo)
        elif isinstance(x, types.ModuleType):
            if not _in_library(x.__name__):
                self._modules[id(x)] = x
        elif isinstance(x, contextvars.ContextVar):
            self._variables.add(x, None, x.get(None))
            todo.append(x.get(None))
        else:
            self._container(x, todo)
            if hasattr(x, "_modules") or not _in_library(type(x).__module__):
                self._object(x, todo)
            elif type(x).__module__ == "_thread" and hasattr(x, "__dict__"):
                # Another value in each thread: looked up, not noted where this one has it.
                for name, value in vars(x).items():
                    self._slots.add(x, name, value)
                    todo.append(value)
            elif type(x).__module__ in _HOLDERS:
                self._holder(x, todo)

    def _container(self, x, todo):
        if isinstance(x, dict):
            if len(x) > 1:
                self._orders.add(x, None, tuple(x))
            else:  # most of those in modules, and quicker
                self._sizes.add(x, None, len(x))
            if len(x) <= MAX_ITEMS:
                self._entries(x, list(x), todo)
            else:
                self._items(x.values(), tuple(x.values()), todo)
        elif isinstance(x, list) and len(x) > MAX_ITEMS:
            self._items(x, x, todo)
        elif isinstance(x, list):
            self._sizes.add(x, None, len(x))
            for i, item in enumerate(x):
                self._lists.add(x, i, item)
            todo += x
        elif isinstance(x, (tuple, frozenset)):
            todo += x if len(x) <= MAX_ITEMS else ()
        elif isinstance(x, (set, collections.deque, bytearray, array.array)):
            self._items(x, x, todo)

    def _items(self, place, items, todo):
        """Note all items of a container that has no places by which they could be looked up."""
        self._orders.add(place, None, tuple(items))
        todo += items if len(items) <= MAX_ITEMS else ()

    def _holder(self, x, todo):
        if isinstance(x, Iterator):
            self._opaque = f"the state of a {type(x).__name__}"
        elif hasattr(x, "__wrapped__"):  # functools.cache keeps results, which follow from others
            todo.append(x.__wrapped__)
        elif hasattr(x, "__dict__") and not isinstance(x, functools.partial):
            self._sizes.add(x.__dict__, None, len(x.__dict__))
            self._entries(x.__dict__, list(x.__dict__), todo)
        elif not isinstance(x, (list, dict, tuple, set, frozenset, collections.deque)):
            todo += gc.get_referents(x)

    def _attributes(self, todo):
        """Note attributes of the modules that were met, by the names that code was seen to use."""
        for x in list(self._modules.values()):
            found = [n for n in self._named if n in x.__dict__ and (id(x), n) not in self._seen]
            for name in found:
                self._seen[id(x), name] = None
            self._entries(x.__dict__, found, todo)

    def _class(self, x, todo):
        if _in_library(x.__module__):
            return
        self._sizes.add(x.__dict__, None, len(x.__dict__))
        self._entries(x.__dict__, _own_names(x), todo)
        todo += (type(x), *x.__mro__[1:])

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
            for name, slot in cls.__dict__.items():
                if isinstance(slot, types.MemberDescriptorType):
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
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._slots.add(fn, name, getattr(fn, name))
        todo += (fn.__defaults__, fn.__kwdefaults__, fn.__dict__)
        names = _names(fn.__code__)
        self._named.update(dict.fromkeys(names))
        known = fn.__globals__
        for name in names:
            if name in known or hasattr(builtins, name):
                # A global may come to hide what is built in.
                self._dicts.add(known, name, known.get(name))
                todo.append(known.get(name))
        for name in _imports(fn.__code__, known.get("__package__")):
            module = sys.modules.get(name)
            self._dicts.add(sys.modules, name, module)
            todo.append(module)


class _Watch:
    """Places of one kind, and what was found there."""

    def __init__(self, get, name, same=operator.is_):
        self.get, self.name, self.same = get, name, same
        self.places, self.keys, self.values = [], [], []

    def add(self, place, key, value):
        self.places.append(place)
        self.keys.append(key)
        self.values.append(value)

    def changed(self):
        """Return the name of the first place with another value, None if there is none."""
        # Nearly always all is the very same, which takes no step of Python per place to see.
        if all(map(self.same, map(self.get, self.places, self.keys), self.values)):
            return None
        for place, key, value in zip(self.places, self.keys, self.values, strict=True):
            now = self.get(place, key)
            if now is not value and not _equal(now, value):
                return self.name.format(type(place).__name__, key)
        return None


def _own_names(cls):
    """Names that a class defines, its bookkeeping aside."""
    return [
        n
        for n, x in cls.__dict__.items()
        if not (n.startswith("__") and n.endswith("__"))
        or isinstance(x, (types.FunctionType, classmethod, staticmethod, property))
    ]


def _codes(code):
    """A code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code):
    """Names that code may look up: as a global, as an attribute, or by a text (`getattr`)."""
    found = {}
    for c in _codes(code):
        found.update(dict.fromkeys(c.co_names))
        if not {"getattr", "globals", "vars"}.isdisjoint(c.co_names):
            found.update((x, None) for x in c.co_consts if isinstance(x, str) and x.isidentifier())
    return list(found)


def _imports(code, package):
    """Names of the modules that code imports when it runs."""
    found = {}
    for c in _codes(code):
        if dis.opmap["IMPORT_NAME"] not in c.co_code[::2]:
            continue
        steps = list(dis.get_instructions(c))
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, name = steps[i - 2].argval, step.argval
                if isinstance(level, int) and level and package:
                    name = importlib.util.resolve_name("." * level + name, package)
                found[name] = None
    return list(found)


def _alike(a, b):
    """Whether two tuples have the very same items."""
    return len(a) == len(b) and all(map(operator.is_, a, b))


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
