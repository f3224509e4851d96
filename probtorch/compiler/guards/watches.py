"""Watches: what was found in many places, compared with what is there now.

Each kind of watch compares in one pass of C code, by identity, which nearly always suffices: then
nothing has changed. Only where something is another object do values count (`sameness`).
"""

import array
import collections
import ctypes
import itertools
import operator
import types
import zlib

import numpy as np

from probtorch.compiler.record.placed import is_plain
from probtorch.core.sameness import token

__all__ = ["Contents", "Held", "Places", "WatchedArrays", "WatchedParts", "raw", "same_value"]

# Containers of Python's own, whose subclasses may say anything of their items.
_CONTAINERS = (
    *(collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque),
    *(bytearray, array.array),
)
_OWN = {id(kind): kind for kind in _CONTAINERS}

# Of longer containers the items are not named in messages.
MANY = 512
# Of lists in which more floats change at a time none is followed: they are data.
MOST_OF_A_LIST = 16
# Longer arrays are compared by a checksum: a copy would take as much memory again.
_LONG = 1 << 26

# What is said of an attribute or item that is not there, and of a cell that is not filled yet.
_ABSENT = (AttributeError, ValueError, IndexError)
_MISSED = object()


def same_value(now, before):
    """Whether what is another object by now is the same value."""
    if isinstance(now, types.MethodType) and type(before) is type(now):
        return now.__self__ is before.__self__ and now.__func__ is before.__func__
    return type(now) is type(before) and token(now) == token(before)


def raw(kind):
    """How a container of a type is asked for its items and its size, past what its class says."""
    # By identity: a metaclass of the user's may say how its classes compare.
    if id(kind) in _OWN:
        return iter, len
    mro = {id(c) for c in type.__dict__["__mro__"].__get__(kind)}
    base = next((c for c in _CONTAINERS if id(c) in mro), None)
    return (iter, len) if base is None else operator.attrgetter("__iter__", "__len__")(base)


class Places:
    """Places of all kinds, and what was found there."""

    def __init__(self):
        self.getters, self.places, self.keys, self.values = [], [], [], []
        self._classes = {}  # by the rows that are attributes of these

    def __len__(self):
        return len(self.values)

    def add(self, get, place, key, value, cls=None):
        """Note that ``get(place, key)`` is `value`; None where it raises one of `_ABSENT`. Of a
        view of the attributes of a class, `cls` is that class.
        """
        if cls is not None:
            self._classes[len(self.values)] = cls
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
            if not same_value(now, value):
                is_cell = isinstance(self.places[i], types.CellType)
                if is_cell:
                    return "a variable of an enclosing function"
                return f"item {self.keys[i]}" if type(self.keys[i]) is int else str(self.keys[i])
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
        """Return the rows in which floats, or plain tensors, are others by now; None where anything
        else is.
        """
        found = []
        for i, now, value in self._other_objects():
            if same_value(now, value):
                continue
            if not (_may_follow(now, value) and self.number((i,)) is not None):
                return None
            found.append((i,))
        return found

    def number(self, row):
        """Return where the number of a row is, as ``(table, key)``; None where there is none."""
        if not row[0] < len(self.places):
            return None
        get, place, key = self.getters[row[0]], self.places[row[0]], self.keys[row[0]]
        cls = self._classes.get(row[0])
        if cls is not None:
            return Held(cls, _of_class, type.__setattr__, type.__delattr__), key
        if isinstance(place, types.CellType):
            return Held(place, getattr, setattr, delattr), key
        if get is object.__getattribute__:
            alone = not isinstance(place, (dict, list))  # whose items are told apart by keys, too
            held = Held(place, get, object.__setattr__, object.__delattr__)
            return (held, key) if alone else None
        if isinstance(place, dict):
            # That of a class of a library's is not to be written to.
            return None if dict.__contains__(place, "__module__") else (_as_table(place), key)
        return (_as_table(place), key) if isinstance(place, list) else None


class Held:
    """What holds a value that is no entry of a dict, and is asked and told past what a class of the
    user's may do: a cell of a closure, an object with slots, a class, a list.

    Parameters
    ----------
    holder : object
    get, put, drop : callable
        ``get(holder, key)``, ``put(holder, key, value)`` and ``drop(holder, key)``.
    """

    def __init__(self, holder, get, put, drop):
        self.holder, self._get, self._put, self._drop = holder, get, put, drop

    def __getitem__(self, key):
        return self._get(self.holder, key)

    def __setitem__(self, key, value):
        self._put(self.holder, key, value)

    def __delitem__(self, key):
        self._drop(self.holder, key)


def _of_class(cls, name):
    return cls.__dict__[name]


def _as_table(x):
    """A list, or a dict of any class."""
    if type(x) is dict:
        return x
    if isinstance(x, dict):
        return Held(x, _entry, dict.__setitem__, dict.__delitem__)
    return Held(x, list.__getitem__, list.__setitem__, _leave_no_gap)


def _entry(x, key):
    """What is in a dict; of what it misses, which `dict.__getitem__` may have it make, nothing."""
    found = dict.get(x, key, _MISSED)
    if found is _MISSED:
        raise KeyError(key)
    return found


def _leave_no_gap(x, i):
    raise IndexError(f"a list without item {i} has other items there")


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
        if self.texts and set(map(type, found)) == {str}:
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
            try:
                return list(iterate(place))
            except RuntimeError:
                continue
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
                if a is not b and not same_value(a, b):
                    return self.name(place, i, str(way))
        return None

    def numbers(self):
        """As that of `Places`, for values of dicts and items of lists."""
        found = []
        rows = zip(self.places, self.values, self._ways_in, strict=True)
        for row, (place, before, iterate) in enumerate(rows):
            now = self._listed(place, iterate)
            if len(now) != len(before):
                return None
            pairs = enumerate(zip(now, before, strict=True))
            others = [(i, a, b) for i, (a, b) in pairs if not (a is b or same_value(a, b))]
            if others and not (self._holds_numbers(place) and all(map(_is_pair, others))):
                return None
            if type(place) is list and len(others) > MOST_OF_A_LIST:
                return None
            found += [(row, i) for i, _, _ in others]
        return found

    def number(self, row):
        """As that of `Places`."""
        if not (row[0] < len(self.places) and row[1] < len(self.values[row[0]])):
            return None
        place, i = self.places[row[0]], row[1]
        if not self._holds_numbers(place):
            return None
        return _as_table(place), (i if type(place) is list else list(dict.keys(place))[i])

    def _holds_numbers(self, place):
        """Whether what is compared of a container is what can be put into it."""
        if self.items is dict.values:
            return isinstance(place, dict)
        return type(place) is list and self.items is iter


def _is_pair(row):
    return _may_follow(row[1], row[2])


def _may_follow(now, before):
    """Whether a float has come in the place of a float, or a plain tensor in that of another."""
    return type(now) is type(before) is float or (is_plain(now) and is_plain(before))


class WatchedParts:
    """Objects of libraries that have their own way to tell what they consist of."""

    def __init__(self):
        self._rows = []

    def __len__(self):
        return sum(len(found) for _, _, found in self._rows)

    def __bool__(self):
        return bool(self._rows)  # what has no parts may get some

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
                a is b or same_value(a, b) for a, b in zip(now, before, strict=True)
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
