"""Watches: what was found in many places, compared with what is there now.

Each kind of watch compares in one pass of C code, by identity, which nearly always suffices: then
nothing has changed. Only where something is another object do values count (`sameness`).
"""

import array
import collections
import contextlib
import ctypes
import itertools
import operator
import types
import zlib

import numpy as np

from probtorch.core.sameness import token

__all__ = ["CellTable", "Contents", "Places", "WatchedArrays", "WatchedParts", "raw"]

# Containers of Python's own, whose subclasses may say anything of their items.
_CONTAINERS = (
    *(collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque),
    *(bytearray, array.array),
)

# Of longer containers the items are not named in messages.
MANY = 512
# Longer arrays are compared by a checksum: a copy would take as much memory again.
_LONG = 1 << 26

# What is said of an attribute that is not there, and of a cell that is not filled yet.
_ABSENT = (AttributeError, ValueError)


def _same(now, before):
    """Whether what is another object by now is the same value."""
    if isinstance(now, types.MethodType) and type(before) is type(now):
        return now.__self__ is before.__self__ and now.__func__ is before.__func__
    return type(now) is type(before) and token(now) == token(before)


def raw(kind):
    """How a container of a type is asked for its items and its size, past what its class says."""
    # By identity: a metaclass of the user's may say how its classes compare.
    base = next((c for c in _CONTAINERS if issubclass(kind, c)), kind)
    return (iter, len) if base is kind else operator.attrgetter("__iter__", "__len__")(base)


class Places:
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
        for i, now, value in self._other_objects():
            if not _same(now, value):
                is_cell = isinstance(self.places[i], types.CellType)
                return "a variable of an enclosing function" if is_cell else str(self.keys[i])
            self.values[i] = now
        return None

    def _other_objects(self):
        """Yield rows where there is another object now, what it is and what it was."""
        rows = zip(self.getters, self.places, self.keys, self.values, strict=True)
        for i, (get, place, key, value) in enumerate(rows):
            try:
                now = get(place, key)
            except _ABSENT:
                now = None
            if now is not value:
                yield i, now, value

    def numbers(self):
        """Return the rows in which floats are others by now; None where anything else is."""
        found = []
        for i, now, value in self._other_objects():
            if _same(now, value):
                continue
            if not (type(now) is type(value) is float and self.number((i,)) is not None):
                return None
            found.append((i,))
        return found

    def number(self, row):
        """Return where the number of a row is, as ``(table, key)``; None where there is none."""
        if not row[0] < len(self.places):
            return None
        place, key = self.places[row[0]], self.keys[row[0]]
        if isinstance(place, types.CellType):
            return CellTable(place), key
        return (place, key) if type(place) is dict else None


class CellTable:
    """The variable of an enclosing function, as a dict of one entry."""

    def __init__(self, cell):
        self.cell = cell

    def __getitem__(self, key):
        return self.cell.cell_contents

    def __setitem__(self, key, value):
        self.cell.cell_contents = value


class Contents:
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
        self.places, self.ways, self.sizes, self.values = [], [], [], []
        # How each is asked for its items and its size: never by methods of a user's class.
        self._ways_in, self._lengths = [], []
        # Those that are not empty, by the way in which they are compared.
        self._texts, self._before, self._filled, self._found = [], [], [], []
        self._into_texts, self._into_filled = [], []
        self._count = 0

    def __len__(self):
        return self._count

    def __bool__(self):
        return bool(self.places)  # an empty container counts: it may be filled

    def add(self, place, way=""):
        """Note the items of a container, reached by a way; returns them as a list."""
        iterate, size = raw(type(place))
        if self.items is not iter:
            iterate = self.items
        found = self._listed(place, iterate)
        self._count += len(found) if len(found) <= MANY else 1
        self.places.append(place)
        self.ways.append(way)
        self.sizes.append(len(found))
        self.values.append(found)
        self._ways_in.append(iterate)
        self._lengths.append(size)
        if found and self.texts and all(type(x) is str for x in found):
            self._texts.append(place)
            self._into_texts.append(iterate)
            self._before.append(found)
        elif found:
            self._filled.append(place)
            self._into_filled.append(iterate)
            self._found += found
        return found

    @staticmethod
    def _listed(place, iterate):
        """The items as a list, also while another thread adds to them."""
        for _ in range(100):
            with contextlib.suppress(RuntimeError):
                return list(iterate(place))
        return list(iterate(place))

    def changed(self):
        """Return the name of the first item that is another, None if there is none."""
        # Nearly always all is the very same, which takes no step of Python per item to see.
        try:
            call = operator.call
            found = itertools.chain.from_iterable(map(call, self._into_filled, self._filled))
            if (
                list(map(call, self._lengths, self.places)) == self.sizes
                and list(map(list, map(call, self._into_texts, self._texts))) == self._before
                and all(map(operator.is_, found, self._found))
            ):
                return None
        except Exception:  # another thread adds to one while we look, or a key refuses comparison
            pass
        rows = zip(self.places, self.ways, self.values, self._ways_in, strict=True)
        for place, way, before, iterate in rows:
            now = self._listed(place, iterate)
            if len(now) != len(before):
                kind, way = type(place).__name__, str(way)
                return f"the number of items in {way and way + ', '}a {kind}"
            for i, (a, b) in enumerate(zip(now, before, strict=True)):
                if a is not b and not _same(a, b):
                    return self.name(place, i, str(way))
        return None

    def numbers(self):
        """As that of `Places`, for values of dicts."""
        found = []
        rows = zip(self.places, self.values, self._ways_in, strict=True)
        for row, (place, before, iterate) in enumerate(rows):
            now = self._listed(place, iterate)
            if len(now) != len(before):
                return None
            for i, (a, b) in enumerate(zip(now, before, strict=True)):
                if a is b or _same(a, b):
                    continue
                if not (type(place) is dict and type(a) is type(b) is float):
                    return None
                found.append((row, i))
        return found

    def number(self, row):
        """As that of `Places`."""
        if not (row[0] < len(self.places) and row[1] < len(self.values[row[0]])):
            return None
        place = self.places[row[0]]
        return (place, list(place)[row[1]]) if type(place) is dict else None


class WatchedParts:
    """Objects of libraries that have their own way to tell what they consist of."""

    def __init__(self):
        self._rows = []

    def __len__(self):
        return len(self._rows)

    def add(self, place, parts):
        """Note what ``parts(place)`` returns, a list; returns it."""
        found = parts(place)
        self._rows.append((place, parts, found))
        return found

    def changed(self):
        """Return the name of the first object with another part, None if there is none."""
        for place, parts, before in self._rows:
            now = parts(place)
            if len(now) != len(before) or not all(
                a is b or _same(a, b) for a, b in zip(now, before, strict=True)
            ):
                return f"the contents of a {type(place).__name__}"
        return None


class WatchedArrays:
    """NumPy arrays, by their elements and their flags."""

    def __init__(self):
        self._rows = []
        self._flags = []  # arrays, and what their flags were
        self._holders = []  # tensors, and the arrays that they have to keep

    def __len__(self):
        return len(self._flags) + len(self._holders)

    def add_of(self, t):
        """Note the elements of a tensor, and that it has this memory."""
        self.add(t.array)
        self._holders.append((t, t.array))

    def add(self, x):
        """Note flags and elements of an array; no elements where nobody can ever write to them."""
        self._flags.append((x, x.flags.num))
        if not _can_change(x):
            return
        flat = x.flags.c_contiguous
        kept = x.copy(order="C") if not flat or x.nbytes <= _LONG else _checksum(x)
        self._rows.append((x, x.shape, x.dtype, flat, kept))

    def changed(self):
        """Return how to call what has changed, None if nothing has."""
        for t, x in self._holders:
            if t.array is not x:
                return "the memory of a tensor"
        for x, flags in self._flags:
            if x.flags.num != flags:
                return "the flags of an array"
        for x, shape, dtype, flat, kept in self._rows:
            if x.shape != shape or x.dtype != dtype:
                return "the elements of an array"
            if flat:
                same = (
                    _equal_bytes(x, kept)
                    if isinstance(kept, np.ndarray)
                    else (_checksum(x) == kept)
                )
            else:
                same = isinstance(kept, np.ndarray) and x.tobytes() == kept.tobytes()
            if not same:
                return "the elements of an array"
        return None


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _equal_bytes(a, b):
    if a.nbytes <= MANY * 8:
        return a.tobytes() == b.tobytes()
    return _memcmp(a.ctypes.data, b.ctypes.data, a.nbytes) == 0


def _checksum(x):
    return zlib.crc32(x.reshape(-1).view(np.uint8))


def _can_change(x):
    """Whether the memory of an array may be written to, by whatever name; one that is locked may be
    opened again by who owns it.
    """
    while isinstance(x, np.ndarray):
        x = x.base
    return not isinstance(x, bytes)
