"""What counts of objects that know better than a walk over their attributes: `parts_of`.

Data frames keep caches beside their blocks, weak references hide what they hold, types of
extensions show it under names of their own. Each rule says for which types it is,
and returns a function from an object to the list of what it consists of: objects that are the very
same as long as nothing has changed. Objects of ours join by a method `__environment__`.
"""

import functools
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
from probtorch.compiler.guards.reading import slot
from probtorch.core.tensor_base import TensorBase

__all__ = ["called_with", "parts_of"]


def parts_of(x):
    """Return the function that lists the parts of objects of this type; None without one."""
    kind: Any = type(x)
    if hasattr(kind, "__environment__"):
        return kind.__environment__
    if isinstance(x, weakref.ReferenceType):
        return _referent
    if isinstance(x, threading.local):
        return _of_this_thread
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
