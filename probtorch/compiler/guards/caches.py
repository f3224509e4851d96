"""Caches of functools: what they have kept, and whether that is still the same.

A cache says nothing of its results, so they are found where the collector finds them: a table by
keys, and in a cache of limited size the results beside it. That is private to CPython. Where it is
not found as expected, the cache cannot be watched, and who reaches it runs eagerly.
"""

import functools
import gc
import operator
import types
from typing import cast

from probtorch.compiler.guards import dict_versions
from probtorch.compiler.guards.dict_versions import DictVersions
from probtorch.compiler.guards.reading import attribute, contents
from probtorch.compiler.guards.watches import MANY, same_value
from probtorch.core.tensor_base import TensorBase

__all__ = ["WatchedCaches", "is_cache", "looked_up", "tensors_kept"]

# Elsewhere a cache is a function with a dict in its closure, and watched as that.
_CACHE = getattr(functools, "_lru_cache_wrapper", None)
# A cache that holds more than so many objects is not looked through to its end.
_MOST_KEPT = 100_000
# Looks at one that other threads fill meanwhile.
_LOOKS = 10


def is_cache(x):
    """Whether something is a function with a cache of functools around it."""
    return isinstance(_CACHE, type) and isinstance(x, _CACHE)


def _kept_by(cache):
    """Return the table of a cache, a dict by keys, and a list of the keys and results that it has
    kept; None where they are not found.
    """
    for _ in range(_LOOKS):
        found = _found_in(cache)
        if found is not None:
            return found
    return None


def _found_in(cache):
    own, info = attribute(cache, "__dict__"), cache.cache_info()
    found = gc.get_referents(cache)
    # The table comes behind what a limited cache has kept, which may be dicts, too.
    places = [i for i, x in enumerate(found) if type(x) is dict and x is not own]
    if not places or (info.maxsize is None and len(places) > 1):
        return None
    table = found[places[-1]]
    keys, values = list(table), list(table.values())
    if not len(keys) == len(values) == info.currsize:
        return None
    if info.maxsize is None or not keys:
        return table, [*keys, *values]
    # Ahead of it each key with its result, and the type of what has their place in the table.
    inside = [x for x in found[: places[-1]] if x is not type(values[0])]
    known = set(map(id, inside))
    whole = len(inside) >= 2 * len(keys) and all(id(key) in known for key in keys)
    return (table, inside) if whole else None


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


def looked_up(fn):
    """Return where a function that functools dispatches by type keeps what it has found for types;
    None of other functions. It follows from the table of functions and from who counts as an
    instance of abstract classes, so it need not be watched, and each new type adds to it.
    """
    if fn.__code__ is not _BY_TYPE:
        return None
    chooses = _closed_over(fn, "dispatch")
    return _closed_over(chooses, "dispatch_cache") if type(chooses) is types.FunctionType else None


# What stands in the place of each function that is dispatched by type.
_BY_TYPE = cast("types.FunctionType", functools.singledispatch(len)).__code__


def _closed_over(fn, name):
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or ())
    return next((contents(cell) for own, cell in cells if own == name), None)


class WatchedCaches:
    """Caches of functools, by how often their function was run, and by their tables.

    The count alone does not tell that results were made anew as often; the table alone does not
    tell that the same place in it has another result, which takes a run.
    """

    def __init__(self):
        self._rows = []

    def __len__(self):
        return sum(min(len(row.keys), MANY) + 1 for row in self._rows)

    def __bool__(self):
        return bool(self._rows)

    def add(self, cache):
        """Note what a cache has kept now; returns what it consists of, a list, or None where that
        is not found.
        """
        found = _kept_by(cache)
        if found is None:
            return None
        table, inside = found
        self._rows.append(_Row(cache, table))
        return [cache.__wrapped__, attribute(cache, "__dict__"), *inside]

    def changed(self):
        """Return how to call a cache that has changed, None if none has."""
        for row in self._rows:
            if row.changed():
                return f"the contents of a {type(row.cache).__name__}"
        return None


class _Row:
    def __init__(self, cache, table):
        self.cache, self.table = cache, table
        self.wrapped, self.misses = cache.__wrapped__, cache.cache_info().misses
        self.versions = _versions(table)
        self.keys, self.values = list(table), list(table.values())

    def changed(self):
        """Whether the function or what it has kept are others by now."""
        cache = self.cache
        if cache.__wrapped__ is not self.wrapped or cache.cache_info().misses != self.misses:
            return True
        if self.versions is not None and self.versions.same():
            return False
        # Before the table is looked at: what changes in between is then noticed the next time.
        versions = _versions(self.table)
        now = list(self.table), list(self.table.values())
        for found, before in zip(now, (self.keys, self.values), strict=True):
            if len(found) != len(before):
                return True
            if not all(map(operator.is_, found, before)) and not all(
                a is b or same_value(a, b) for a, b in zip(found, before, strict=True)
            ):
                return True
        (self.keys, self.values), self.versions = now, versions
        return False


def _versions(table):
    return DictVersions([table]) if dict_versions.available() else None
