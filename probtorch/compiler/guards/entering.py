"""What counts of objects that know better than a walk over their attributes: `parts_of`.

Data frames keep caches beside their blocks, weak references and caches of results hide what they
hold, types of extensions show it under names of their own. Each rule says for which types it is,
and returns a function from an object to the list of what it consists of: objects that are the very
same as long as nothing has changed. Objects of ours join by a method `__environment__`.
"""

import functools
import gc
import logging
import threading
import types
import weakref
from typing import Any

import numpy as np

from probtorch.compiler.guards.kinds import (
    all_in_the_open,
    in_library,
    module_of,
    names_of_slots,
)
from probtorch.compiler.guards.reading import attribute, slot
from probtorch.core.tensor_base import TensorBase

__all__ = ["called_with", "parts_of", "tensors_kept"]


def parts_of(x):
    """Return the function that lists the parts of objects of this type; None without one."""
    kind: Any = type(x)
    if hasattr(kind, "__environment__"):
        return kind.__environment__
    if isinstance(x, weakref.ReferenceType):
        return _referent
    if isinstance(x, threading.local):
        return _of_this_thread
    if isinstance(x, functools._lru_cache_wrapper):
        return _cached
    if isinstance(x, logging.Logger):
        return _levels
    if module_of(kind).partition(".")[0] == "pandas":  # from 3 on, of that module itself
        found = _of_pandas(kind)
        return None if found is _extension_array and not _extension_array(x) else found
    return None


def _referent(x):
    y = x()
    return _inside(y.__self__, y.__func__) if isinstance(y, types.MethodType) else _inside(y)


def _inside(x, *others):
    """What an object consists of, but not the object: it must end where nothing else holds it."""
    kind: Any = type(x)
    if (
        in_library(module_of(kind))
        or isinstance(x, (TensorBase, np.ndarray, type, types.FunctionType))
        or isinstance(x, (list, dict, set, frozenset, tuple))
        or parts_of(x) is not None
        or not all_in_the_open(kind)
    ):
        return [x, *others]
    return [kind, *others, *(slot(x, name) for name in ("__dict__", *names_of_slots(kind)))]


def called_with(x):
    """Return what a partial calls, and with what."""
    return [x.func, x.args, x.keywords]


def _levels(x):
    return [x.level, x.disabled, x.propagate, x.manager.disable, x.parent, x.name]


def _of_this_thread(x):
    return [*vars(x), *vars(x).values()]


def _cached(x):
    # How often the function was run tells whether results were forgotten; it does not tell that
    # they were made anew as often, or that one was changed.
    return [x.__wrapped__, x.cache_info().misses, *_results_kept(x)]


# A cache that holds more than so many objects is not looked through to its end.
_MOST_KEPT = 100_000


def _results_kept(cache):
    """Return what a cache of functools has kept, a list: keys, each with its result, in an order
    that is the same whichever was used last.
    """
    own = attribute(cache, "__dict__")
    found = gc.get_referents(cache)[1:]  # behind its type
    dicts = [i for i, x in enumerate(found) if type(x) is dict and x is not own]
    end = dicts[-1] if dicts else 0
    table = found[end] if dicts else {}
    rows = table.items()
    if end:  # of a limited one: ahead of the dict, each with the type of its place in that
        kind = type(next(iter(table.values())))
        both = [x for x in found[:end] if x is not kind]
        rows = zip(both[::2], both[1::2], strict=True)
    return [x for row in sorted(rows, key=lambda row: id(row[0])) for x in row]


def tensors_kept(cache):
    """Return the tensors among the arguments and results that a cache of functools has kept."""
    found, seen, todo = [], {id(cache), id(cache.__wrapped__)}, [cache]
    while todo and len(seen) < _MOST_KEPT:
        for x in gc.get_referents(todo.pop()):
            if id(x) in seen or isinstance(x, (type, types.ModuleType, types.FunctionType)):
                continue
            seen.add(id(x))
            if isinstance(x, TensorBase):
                found.append(x)
            else:
                todo.append(x)
    return found


# ------------------------------------------------------------------------------------------ pandas


@functools.cache
def _of_pandas(kind):
    names = {c.__name__ for c in kind.__mro__}
    if "NDFrame" in names:
        return _frame
    if "BaseBlockManager" in names:
        return _manager
    if "Index" in names:
        return _index
    if "ExtensionArray" in names or kind.__module__.startswith("pandas.core.arrays"):
        return _extension_array
    return None


# What a frame notes for itself.
_OWN = {"_item_cache", "_cacher", "_flags", "_mgr", "_is_copy"}


def _frame(x):
    return [x._mgr, *(v for k, v in vars(x).items() if k not in _OWN)]


# What an index notes for itself.
_OF_INDEX = {"_cache", "_id", "_references", "_no_setting_name"}


def _index(x):
    return [v for k, v in vars(x).items() if k not in _OF_INDEX]


def _manager(x):
    return [*x.axes, *x.arrays]


_FIELDS = (
    "_ndarray",
    "_data",
    "_mask",
    "_pa_array",
    "_left",
    "_right",
    "_sparse_values",
    "_dtype",
)


def _extension_array(x):
    return [getattr(x, name) for name in _FIELDS if hasattr(x, name)]
