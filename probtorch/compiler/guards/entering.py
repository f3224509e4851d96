"""What counts of objects that know better than a walk over their attributes: `parts_of`.

Data frames keep caches beside their blocks, weak references and caches of results hide what they
hold, types of extensions show it under names of their own. Each rule says for which types it is,
and returns a function from an object to the list of what it consists of: objects that are the very
same as long as nothing has changed. Objects of ours join by a method `__environment__`.
"""

import functools
import threading
import weakref
from typing import Any

from probtorch.compiler.guards.kinds import module_of

__all__ = ["parts_of"]


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
    if module_of(kind).startswith("pandas."):
        found = _of_pandas(kind)
        return None if found is _extension_array and not _extension_array(x) else found
    return None


def _referent(x):
    return [x()]


def _of_this_thread(x):
    return [*vars(x), *vars(x).values()]


def _cached(x):
    # Results that are kept follow from the function, unless they were kept before a change: how
    # often the function was run tells whether they were forgotten.
    return [x.__wrapped__, x.cache_info().misses]


# ------------------------------------------------------------------------------------------ pandas


@functools.cache
def _of_pandas(kind):
    names = {c.__name__ for c in kind.__mro__}
    if "NDFrame" in names:
        return _frame
    if kind.__module__ == "pandas.core.internals.managers" and hasattr(kind, "axes"):
        return _manager
    if kind.__module__.startswith("pandas.core.arrays"):
        return _extension_array
    return None


# What a frame notes for itself.
_OWN = {"_item_cache", "_cacher", "_flags", "_mgr", "_attrs", "_is_copy"}


def _frame(x):
    return [x._mgr, *(v for k, v in vars(x).items() if k not in _OWN)]


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
