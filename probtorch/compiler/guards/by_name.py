"""`ByName`: attributes of modules and of libraries' classes count where code names them.

A module of a library has thousands, a class of one hundreds; what a function does depends on those
that it names. Names are collected from all code that the walk meets (walk.py), and when it has
nothing else to visit, it goes on with what bears one of them.
"""

import gc
import types

from probtorch.compiler.guards import dict_versions
from probtorch.compiler.guards.bystanders import COUNTED, all_names, named_parts, unread
from probtorch.compiler.guards.caches import WatchedCaches
from probtorch.compiler.guards.kinds import (
    impure,
    in_library,
    is_of_library,
    module_of,
    module_part,
)
from probtorch.compiler.guards.reading import Way, item_name, key_name, length, none_of
from probtorch.compiler.guards.watches import Contents, Places, WatchedArrays, WatchedParts
from probtorch.core.op import Op
from probtorch.core.tensor_base import TensorBase

__all__ = ["ByName"]

# Code with one of these names asks whether something is there.
_ASKING = {"getattr", "hasattr", "AttributeError", "Exception", "__getattr__"}


# What functions and classes tell of themselves, which hardly any code asks.
_OF_THEMSELVES = {"__annotations__", "__doc__", "__module__", "__name__", "__qualname__"}
# Functions that ask on behalf of others.
_ASKED_FOR = {"get_type_hints", "get_annotations", "signature", "getfullargspec", "getdoc"}


class ByName:
    """What is watched: places, containers, arrays, and what names lead to.

    Attributes
    ----------
    suspicious : bool
        Whether a function was met that may answer otherwise each time.
    opaque : str or None
        The first object met that can be neither entered nor watched, by the way to it.
    unread : dict
        By their identity those bystanders through which nobody may go unheard.
    """

    def __init__(self):
        self.suspicious = False
        # Containers first, so that no item is looked for where there is none.
        self._items = Contents(iter, item_name)
        self._keys = Contents(iter, item_name, texts=True)
        self._values = Contents(dict.values, key_name)
        self._dicts = Places()
        self._places = Places()
        self._parts = WatchedParts()
        self._caches = WatchedCaches()
        self._ways_to_caches = []
        self._arrays = WatchedArrays()
        self._of_dicts: tuple[Contents | Places, ...] = self._keys, self._values, self._dicts
        self._others: tuple[
            Contents | Places | WatchedParts | WatchedCaches | WatchedArrays, ...
        ] = (
            self._items,
            self._places,
            self._parts,
            self._caches,
            self._arrays,
        )
        self._seen = {}
        # Which attributes of modules count follows from the names in all code that was met.
        self._modules, self._named = {}, {}
        # So it is with those of classes of libraries, by id, with the ways to them.
        self._library_classes = {}
        self._classes_of(TensorBase.__subclasses__(), Way(None, "Tensor"))
        # Functions and classes of the user's, how they are asked for attributes, and the way there.
        self._told_by_name = []
        self._anywhere = self._computed = False
        self._bystanders = []  # with the ways to them
        self.unread: dict[int, object] = {}
        # Generators that have not come to their end, by the ids of their frames, with these; and
        # whether it is too late to hear who goes on with more of them.
        self.going: dict[int, tuple[types.FrameType, types.GeneratorType]] = {}
        self._late = False
        self.opaque: str | None = None
        self._asks_locks = False
        # Of dicts, and cells, by id, what a replay reads anew: values by keys, and the names in
        # code that make them count all the same; None of those that never do.
        self._followed = {}

    def _follow(self, table, names):
        _, values, known = self._followed.setdefault(id(table), (table, {}, {}))
        values |= {key: table[key] for key in names if names[key] is not None}
        known |= names

    def _is_followed(self, table, key):
        return id(table) in self._followed and key in self._followed[id(table)][2]

    def _others_of(self, d):
        """Note the keys of a dict of which replays read something anew, and what they do not."""
        self._items.add(d)
        others = [(k, x) for k, x in dict.items(d) if k not in self._followed[id(d)][2]]
        for key, x in others:
            self._places.add(dict.get, d, key, x)
        return others

    def _other_items(self, x):
        """As `_others_of` for a list; returns all its items, with None where replays read anew."""
        self._places.add(length, x, "the number of items", list.__len__(x))
        found = [None if self._is_followed(x, i) else y for i, y in enumerate(list.__iter__(x))]
        for i, y in enumerate(found):
            if not self._is_followed(x, i):
                self._places.add(list.__getitem__, x, i, y)
        return found

    def _suspect(self, name):
        if name is not None and in_library(module_part(name)) and impure(name):
            self.suspicious = True

    def _attributes(self, todo):
        """Note attributes of the modules that were met, by the names that code was seen to use;
        returns what there is to visit.
        """
        for x, path in list(self._modules.values()):
            own = x.__dict__
            library = in_library(x.__name__)
            whole = (self._anywhere or self._computed) and not library
            if whole and (id(x), None) not in self._seen:
                self._seen[id(x), None] = None
                self._items.add(own)
                named = [n for n in own if not (n.startswith("__") and n.endswith("__"))]
            else:
                named = list(self._named)
            if not library and "__getattr__" in own:  # for what else is asked of the module
                named.append("__getattr__")
            found = [n for n in named if n in own and (id(x), n) not in self._seen]
            for name in found:
                self._seen[id(x), name] = None
            if not library and not _ASKING.isdisjoint(named):
                # What is not there now may come.
                absent = [
                    n for n in named if n not in own and (id(x), n, "absent") not in self._seen
                ]
                self._seen.update(((id(x), n, "absent"), None) for n in absent)
                if absent:
                    self._places.add(none_of, own, frozenset(absent), True)
            if library:
                for name in found:
                    self._dicts.add(dict.get, own, name, own[name])
                    todo.append((own[name], Way(path, f".{name}")))
            else:
                self._entries(own, found, path, todo)
        for x, path in self._library_classes.values():
            own = vars(x)
            for name in sorted(self._named.keys() & own.keys()):
                if (id(x), name) in self._seen:
                    continue
                self._seen[id(x), name] = None
                self._dicts.add(dict.get, _dict_behind(own), name, own[name])
                if not _is_librarys(own[name]):
                    todo.append((own[name], Way(path, f".{name}")))
        if self._ways_to_caches and "cache_info" in self._named and self.opaque is None:
            # Its hits are calls, which a replay does not make.
            self.opaque = f"{self._ways_to_caches[0]}, a cache that is asked how often it was used"
        told = _OF_THEMSELVES & self._named.keys()
        if not _ASKED_FOR.isdisjoint(self._named):
            told = _OF_THEMSELVES
        for get, x, path in self._told_by_name if told else ():
            for name in sorted(n for n in told if (id(x), n) not in self._seen):
                self._seen[id(x), name] = None
                value = _told(get, x, name)
                self._places.add(get, x, name, value)
                todo.append((value, Way(path, f".{name}")))
        for x, path in self._bystanders:
            if unread(x):
                self.unread[id(x)] = x
                self.suspicious = True
            if self._asks_locks and hasattr(type(x), "acquire") and self.opaque is None:
                self.opaque = f"{path}, a lock, which the function asks whether it is free"
            asked = all_names(x) if self._computed or self._anywhere else ()
            names = [n for n in (*self._named, COUNTED, *asked) if (id(x), n) not in self._seen]
            self._seen.update(((id(x), n), None) for n in names)
            parts, called = named_parts(x, names)
            self.suspicious = self.suspicious or called
            for get, place, name, value in parts:
                self._places.add(get, place, name, value)
                todo.append((value, Way(path, f".{name}")))
        return todo

    def _classes_of(self, order, path):
        """Note the classes of libraries in an order of resolution; returns the others to visit."""
        others = []
        for c in order:
            if not in_library(module_of(c)):
                others.append((c, path))
            elif id(c) not in self._library_classes:
                self._library_classes[id(c)] = c, path
                if module_of(c).partition(".")[0] == "probtorch" and dict_versions.available():
                    # Ours, whole: methods call others, and somebody may replace those.
                    self._keys.add(_dict_behind(vars(c)))
                    self._values.add(_dict_behind(vars(c)))
        return others

    def _entries(self, d, keys, path, todo, cls=None):
        # Not among the dicts: in a script, a loop writes another global at each turn.
        get = dict.get if isinstance(d, dict) else types.MappingProxyType.get
        for key in keys:
            if self._is_followed(d if cls is None else cls, key):
                continue
            self._places.add(get, d, key, d[key], cls)
            todo.append((d[key], Way(path, f".{key}")))


def _told(get, x, name):
    """What a function or a class says of itself; None where it says nothing."""
    try:
        return get(x, name)
    except AttributeError:
        return None


def _is_librarys(x):
    """Whether an attribute of a library's class is its own, and was not lent to it by a user."""
    if isinstance(x, property):
        x = x.fget
    if isinstance(x, types.FunctionType):
        return is_of_library(x.__code__, x.__module__)
    return isinstance(x, Op)


def _dict_behind(proxy):
    """The dict of a class, which keeps versions, unlike the view that stands for it."""
    return gc.get_referents(proxy)[0]
