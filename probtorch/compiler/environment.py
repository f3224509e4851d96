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
import contextlib
import contextvars
import dis
import functools
import gc
import importlib.util
import itertools
import operator
import os
import random
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from probtorch.compiler import dict_versions
from probtorch.compiler.dict_versions import DictVersions
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
    busy : bool
        Whether other entries of the dict change all the time.
    """

    items: Any
    keys: Any
    busy: bool = False


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
        self._options = (values, None if values is None else values())
        self._opaque = None
        # Containers first, so that no item is looked for where there is none.
        self._items = _Contents(iter, _item_name)
        self._keys = _Contents(iter, _item_name, texts=True)
        self._values = _Contents(dict.values, _key_name)
        self._dicts = _Watch()
        self._places = _Watch()
        self._of_dicts: tuple[Any, ...] = self._keys, self._values, self._dicts
        self._others: tuple[Any, ...] = self._items, self._places
        # Of all dicts above, where there is such a thing; made when it is first asked for.
        self._versions = None
        self._arrays = []  # (array, copy)
        # (function that tells the state of a random generator, state)
        self._generators = [(f, f()) for f in (random.getstate, _numpy_state)]
        self._seen = {}
        # Which attributes of modules count follows from the names in all code that was met.
        self._modules, self._named = {}, {}
        self.extend(roots)

    def extend(self, roots):
        """Note what these objects depend on, too, as it is now."""
        self._versions = None
        todo = list(roots)
        while todo and len(self) < MAX_ENTRIES:
            self._visit(todo.pop(), todo)
            if not todo:
                self._attributes(todo)

    def __len__(self):
        return sum(map(len, (*self._of_dicts, *self._others)))

    def changed(self):
        """Return the name of something that is not what it was, None if all is."""
        if self._opaque is not None:
            return self._opaque
        for watch in self._others:
            found = watch.changed()
            if found is not None:
                return found
        if self._versions is None or not self._versions.same():
            # Tags before contents: what changes in between is then noticed the next time.
            places = {id(d): d for watch in self._of_dicts for d in watch.places}
            versions = DictVersions(places.values()) if dict_versions.available() else None
            for watch in self._of_dicts:
                found = watch.changed()
                if found is not None:
                    return found
            self._versions = versions
        for x, copy in self._arrays:
            if x.shape != copy.shape or x.tobytes() != copy.tobytes():
                return "the elements of an array"
        values, before = self._options
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
                self._items.add(x.ravel())
                todo += x.flat if x.size <= MAX_ITEMS else ()
            elif x.size <= MAX_ITEMS:
                self._arrays.append((x, x.copy()))
        elif isinstance(x, Entries):
            for key in x.keys:
                watch = self._places if x.busy else self._dicts
                watch.add(dict.get, x.items, key, x.items[key])
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
            self._places.add(_variable, x, "a context variable", x.get(None))
            todo.append(x.get(None))
        else:
            self._container(x, todo)
            if hasattr(x, "_modules") or not _in_library(type(x).__module__):
                self._object(x, todo)
            elif type(x).__module__ == "_thread" and hasattr(x, "__dict__"):
                # Another value in each thread: looked up, not noted where this one has it.
                for name, value in vars(x).items():
                    self._places.add(_attribute, x, name, value)
                    todo.append(value)
            elif type(x).__module__ in _HOLDERS:
                self._holder(x, todo)

    def _container(self, x, todo):
        if isinstance(x, dict):
            self._whole(x, todo)
        elif isinstance(x, (tuple, frozenset)):
            todo += x if len(x) <= MAX_ITEMS else ()
        elif isinstance(x, (list, set, collections.deque, bytearray, array.array)):
            self._items.add(x)
            todo += x if len(x) <= MAX_ITEMS else ()

    def _whole(self, d, todo):
        """Note all keys and values of a dict, or of the read-only view that stands for one."""
        if not isinstance(d, dict):
            self._items.add(d)
            self._entries(d, list(d) if len(d) <= MAX_ITEMS else (), todo)
            return
        # An OrderedDict keeps its order beside the dict.
        (self._keys if type(d).__iter__ is dict.__iter__ else self._items).add(d)
        self._values.add(d)
        todo += (*d, *d.values()) if len(d) <= MAX_ITEMS else ()

    def _holder(self, x, todo):
        if isinstance(x, Iterator):
            self._opaque = f"the state of a {type(x).__name__}"
        elif hasattr(x, "__wrapped__"):  # functools.cache keeps results, which follow from others
            todo.append(x.__wrapped__)
        elif isinstance(x, types.GenericAlias):
            # Its attributes, `__dict__` among them, are those of the class before the brackets.
            todo += (x.__origin__, x.__args__)
        elif hasattr(x, "__dict__") and not isinstance(x, functools.partial):
            self._whole(x.__dict__, todo)
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
        self._items.add(x.__dict__)
        self._places.add(getattr, x, "__bases__", x.__bases__)
        self._entries(x.__dict__, _own_names(x), todo)
        todo += (type(x), *x.__mro__[1:])

    def _entries(self, d, keys, todo):
        # Not among the dicts: in a script, a loop writes another global at each turn.
        get = dict.get if isinstance(d, dict) else types.MappingProxyType.get
        for key in keys:
            self._places.add(get, d, key, d[key])
            todo.append(d[key])

    def _object(self, x, todo):
        own = getattr(x, "__dict__", None)
        self._places.add(getattr, x, "__class__", type(x))
        if own is not None:
            self._places.add(getattr, x, "__dict__", own)
            self._whole(own, todo)
        for cls in type(x).__mro__:
            if _in_library(cls.__module__):
                continue
            todo.append(cls)
            for name, slot in cls.__dict__.items():
                if isinstance(slot, types.MemberDescriptorType):
                    value = getattr(x, name, None)
                    self._places.add(getattr if hasattr(x, name) else _attribute, x, name, value)
                    todo.append(value)

    def _function(self, fn, todo):
        for cell in fn.__closure__ or ():
            value = _contents(cell)
            get = _contents if value is None else getattr
            self._places.add(get, cell, "cell_contents", value)
            todo.append(value)
        wrapped = getattr(fn, "__wrapped__", None)
        if wrapped is not None:
            todo.append(wrapped)
        if _in_library(fn.__module__):
            return
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._places.add(getattr, fn, name, getattr(fn, name))
        todo += (fn.__defaults__, fn.__kwdefaults__, fn.__dict__)
        names = _names(fn.__code__)
        self._named.update(dict.fromkeys(names))
        known = fn.__globals__
        for name in names:
            if name in known or hasattr(builtins, name):
                # A global may come to hide what is built in.
                self._places.add(dict.get, known, name, known.get(name))
                todo.append(known.get(name))
        for name in _imports(fn.__code__, known.get("__package__")):
            module = sys.modules.get(name)
            self._places.add(dict.get, sys.modules, name, module)
            todo.append(module)


# What is said of an attribute that is not there, and of a cell that is not filled yet.
_ABSENT = (AttributeError, ValueError)


def _variable(x, _):
    return x.get(None)


def _attribute(x, name):
    """An attribute that may be absent; where it is there `getattr` is quicker."""
    return getattr(x, name, None)


class _Watch:
    """Places of all kinds, and what was found there."""

    def __init__(self):
        self.getters, self.places, self.keys, self.values = [], [], [], []

    def __len__(self):
        return len(self.values)

    def add(self, get, place, key, value):
        """Note that ``get(place, key)`` is `value`; None where it raises one of `_ABSENT`."""
        self.getters.append(get)
        self.places.append(place)
        self.keys.append(key)
        self.values.append(value)

    def changed(self):
        """Return the name of the first place with another value, None if there is none."""
        # Nearly always all is the very same, which takes no step of Python per place to see.
        try:
            found = map(operator.call, self.getters, self.places, self.keys)
            if all(map(operator.is_, found, self.values)):
                return None
        except _ABSENT:
            pass
        rows = zip(self.getters, self.places, self.keys, self.values, strict=True)
        for i, (get, place, key, value) in enumerate(rows):
            try:
                now = get(place, key)
            except _ABSENT:
                now = None
            if now is not value:
                if not _equal(now, value):
                    is_cell = isinstance(place, types.CellType)
                    return "a variable of an enclosing function" if is_cell else str(key)
                self.values[i] = now
        return None


class _Contents:
    """Containers of which everything counts, in its order: one pass over all of them.

    Parameters
    ----------
    items : callable
        From a container to an iterable over what counts.
    name : callable
        From a container and a position to what to call what is there.
    texts : bool
        Compare those that hold nothing but str by value, which is faster: for keys, of which no
        equal one can take the place.
    """

    def __init__(self, items, name, texts=False):
        self.items, self.name, self.texts = items, name, texts
        self.places, self.sizes, self.values = [], [], []
        # Those that are not empty, by the way in which they are compared.
        self._texts, self._before, self._filled, self._found = [], [], [], []
        self._count = 0

    def __len__(self):
        return self._count

    def add(self, place):
        found = self._listed(place)
        self._count += len(found) if len(found) <= MAX_ITEMS else 1
        self.places.append(place)
        self.sizes.append(len(found))
        self.values.append(found)
        if found and self.texts and all(type(x) is str for x in found):
            self._texts.append(place)
            self._before.append(found)
        elif found:
            self._filled.append(place)
            self._found += found

    def _listed(self, place):
        """The items as a list, also while another thread adds to them."""
        for _ in range(100):
            with contextlib.suppress(RuntimeError):
                return list(self.items(place))
        return list(self.items(place))

    def changed(self):
        """Return the name of the first item that is another, None if there is none."""
        # Nearly always all is the very same, which takes no step of Python per item to see.
        try:
            found = itertools.chain.from_iterable(map(self.items, self._filled))
            if (
                list(map(len, self.places)) == self.sizes
                and list(map(list, map(self.items, self._texts))) == self._before
                and all(map(operator.is_, found, self._found))
            ):
                return None
        except Exception:  # another thread adds to one while we look, or a key refuses comparison
            pass
        for place, before in zip(self.places, self.values, strict=True):
            now = self._listed(place)
            if len(now) != len(before):
                return f"the number of items in a {type(place).__name__}"
            for i, (a, b) in enumerate(zip(now, before, strict=True)):
                if a is not b and not _equal(a, b):
                    return self.name(place, i)
        return None


def _item_name(place, i):
    if isinstance(place, list) and len(place) <= MAX_ITEMS:
        return f"item {i} of a list"
    return f"the items of a {type(place).__name__}"


def _key_name(place, i):
    return str(next(itertools.islice(dict.__iter__(place), i, None), "a value"))


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


def _numpy_state():
    state: Any = np.random.get_state()
    return state[1].tobytes(), *state[2:]


def _contents(cell, _=None):
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
    if isinstance(now, complex):  # where -0.0 is equal to 0.0, too
        return repr(now) == repr(before)
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
