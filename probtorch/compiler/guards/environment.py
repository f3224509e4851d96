"""What a function reads from Python besides its arguments: `Environment`, a snapshot of it.

A recording freezes the Python values it met: a global number, an attribute such as
``net.training``, a list of layers. `Environment` walks from a function to all it can reach without
running it (globals that its code names, closure cells, defaults, attributes of objects and of
modules, items of containers, the functions and classes among them) and notes what is there. As long
as `changed` finds nothing, what was recorded still holds.

Of every object that the walk meets one of three things is true (`kinds`):

- nothing that a program does changes it, or nothing that it is reaches a number;
- it is entered, and what it consists of is watched: by identity, by value, arrays by elements;
- it is `opaque`, and whoever uses the snapshot has to stay eager.

Tensors are noted by identity, since compiled code reads their elements anew. Functions and classes
of libraries, ours among them, are not entered: their code keeps no state of its own. Which of their
attributes code names is watched, since somebody may put others in their place; a function of ours
that reads state says so by an attribute `__reads__`, which returns roots. A function of a
library that may answer otherwise each time makes the snapshot `suspicious`: whether it is called is
for `calls` to hear.
"""

import zlib
from collections import Counter

from probtorch.compiler.guards import dict_versions
from probtorch.compiler.guards.dict_versions import DictVersions
from probtorch.compiler.guards.reading import (
    Way,
    name_of,
)
from probtorch.compiler.guards.walk import Known, Walk
from probtorch.core.rng import Generator, default_generator, generator_for
from probtorch.core.sameness import PLAIN, is_value, token
from probtorch.core.tensor_base import is_tensor

__all__ = ["Environment", "kept_by_structure", "objects_among"]

# With more to watch, looking would take longer than running.
MAX_ENTRIES = 100_000
# Visits: to count takes as long as one.
BETWEEN_COUNTS = 16
# Attributes of tensors that are no part of their elements.
_OF_TENSORS = {"requires_grad", "is_leaf"}
# What tells how far a generator has come.
_OF_GOING = {
    *("gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom"),
    *("getgeneratorstate", "getgeneratorlocals"),
}
# Attributes by which a view leads to the tensor whose memory it has.
_WHOSE = {"_base", "_is_view", "untyped_storage"}


def objects_among(leaves):
    """Return names and values of those of a call's arguments that may change, tensors aside."""
    return [
        (f"argument {i} ({type(x).__name__})", x)
        for i, x in enumerate(leaves)
        if not is_tensor(x) and not is_value(x)
    ]


def kept_by_structure(structure):
    """Return names and values of objects that distributions among a call's arguments have besides
    their parameters: attributes of classes that users wrote.
    """
    found, todo = [], [structure]
    while todo:
        x = todo.pop()
        if not isinstance(x, tuple) or not x:
            continue
        if not isinstance(x[0], type):  # what is below a node, or a leaf
            todo += x
        elif len(x) >= 5 and getattr(x[0], "__static_fields__", ()) == ("_others",):
            (others,) = x[3]
            found += [
                (f"{name} of an argument ({x[0].__name__})", value)
                for name, value in others
                if name[:1] != "_" and not is_value(value)
            ]
            todo.append(x[2])
        else:
            todo += x[1:3] if x[0] is dict else x[1:]
    return found


class Environment(Walk):
    """A snapshot of what functions and objects depend on.

    Parameters
    ----------
    roots : iterable
        Functions, and objects, containers or `Entries` whose contents count.
    values : callable, optional
        Returns a tuple of further values.
    arguments : iterable of (str, object), optional
        Further roots, and how to call them.
    apart : iterable of (dict, key), optional
        Numbers that do not count: whoever uses the snapshot reads them anew.

    Attributes
    ----------
    opaque : str or None
        The first object met that can be neither entered nor watched, by the way to it.
    suspicious : bool
        Whether a function was met that may answer otherwise each time.
    asks_who, asks_id : bool
        Whether code was met that may ask which object another one is, or for its number.
    """

    def __init__(self, roots, values=None, arguments=(), apart=()):
        super().__init__()
        for table, key in apart:
            self._follow(getattr(table, "holder", table), {key: None})
        self._options = (values, None if values is None else values())
        # Of all dicts that are watched, where there is such a thing; made when it is first asked
        # for.
        self._versions = None
        self._filled = None  # what of the rest watches anything, listed when it is first asked for
        self._answers = []  # what tensors say of the tape, where code asks for that
        self.extend(roots, arguments)
        self._late = True

    def extend(self, roots, arguments=()):
        """Note what these objects depend on, too, as it is now."""
        self._versions = self._filled = None
        todo = [(x, Way(None, name_of(x))) for x in roots]
        todo += [(x, Way(None, name)) for name, x in arguments]
        self._seen.update((id(x), x) for k in roots if isinstance(k, Known) for x in k.objects)
        visits = 0
        while todo or self._attributes(todo):
            x, path = todo.pop()
            if type(x) in PLAIN or id(x) in self._seen:
                continue
            visits += 1
            if not visits % BETWEEN_COUNTS and len(self) > MAX_ENTRIES:
                self.opaque = self.opaque or (
                    f"{path} and what else it reaches, more than {MAX_ENTRIES} "
                    "Python values (make tensors of data)"
                )
                return
            self._seen[id(x)] = x  # kept, so that the id stays its own
            found = []
            try:
                self._visit(x, path, found)
            except Exception as error:
                # A class of the user's has its say wherever it is looked at: in `__getattribute__`,
                # `__class__`, a metaclass. What it does there is its own affair.
                kind = type.__getattribute__(type(x), "__name__")
                told = f"{type(error).__name__} in code of a {kind}"
                self.opaque = self.opaque or f"{path}, which cannot be looked at: {told}"
                continue
            todo += found
        if self._followed:
            blind = self._anywhere or self._computed
            self.watch_followed(lambda names: blind or not self._named.keys().isdisjoint(names))
        looks_in = self._anywhere or self._computed or not _OF_GOING.isdisjoint(self._named)
        if self.going and looks_in and self.opaque is None:
            (_, x), *_ = self.going.values()
            self.opaque = f"{x.__qualname__}, a generator whose attributes code may look at"
        self._let_referents_go()
        if self.holds_back:
            why = self.opaque
            super().__init__()
            self.opaque = why
        if not _OF_TENSORS.isdisjoint(self._named):
            tensors = self.tensors().values()
            self._answers = [(t, t.requires_grad, t.grad_fn is None) for t in tensors]

    def watch_elements(self, tensors):
        """Watch tensors, given with what they held; returns whether they hold it still."""
        for t, _ in tensors:
            self._arrays.add_of(t)
        self._filled = None
        return all(t.array.tobytes() == before.tobytes() for t, before in tensors)

    def __len__(self):
        return sum(map(len, (*self._of_dicts, *self._others)))

    def changed(self):
        """Return the name of something that is not what it was, None if all is."""
        if self.opaque is not None:
            return self.opaque
        if self._filled is None:
            self._filled = [watch for watch in self._others if watch]
        for watch in self._filled:
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
        for t, wanted, leaf in self._answers:
            if t.requires_grad is not wanted or (t.grad_fn is None) is not leaf:
                return "requires_grad of a tensor"
        values, before = self._options
        if values is not None:
            now = values()
            if now is not before and token(now) != token(before):
                return "an option"
        return None

    def numbers_changed(self):
        """Return where floats of Python's, or plain tensors, are others by now, if nothing else is
        another: a list of what `number_at` takes, the same in another process.
        """
        if self.opaque is not None or any(
            watch.changed() is not None
            for watch in (self._keys, self._parts, self._caches, self._arrays)
        ):
            return []
        found = []
        for i, watch in enumerate(self._with_numbers()):
            rows = watch.numbers()
            if rows is None:
                return []
            found += [(i, _number_of(watch.number(row)[1]), *row) for row in rows]
        return found

    def number_at(self, where):
        """Return ``(table, key)``: where a float is that was found by `numbers_changed`, here or in
        a like snapshot; None where there is none.
        """
        watch, key, *row = where
        found = self._with_numbers()[watch].number(tuple(row))
        return found if found is not None and _number_of(found[1]) == key else None

    def _with_numbers(self):
        return self._values, self._dicts, self._places, self._items

    def tells_apart(self, places, tensors):
        """Return those of some places whose tensors code may tell from any others in their stead,
        or find in another way, too: among `tensors`, those of a call's arguments.
        """
        if self.asks_id or not _WHOSE.isdisjoint(self._named):
            return places
        found = [table[key] for table, key in places]
        ways = Counter(map(id, (*found, *tensors, *self.tensors().values())))
        return [place for place, t in zip(places, found, strict=True) if ways[id(t)] > 1]

    def follows(self, table):
        """Whether a dict was met of which replays read something anew."""
        return id(getattr(table, "holder", table)) in self._followed

    def owns(self, x):
        """Whether an object was met that has such dicts."""
        return id(x) in self._owners

    def watch_followed(self, named=lambda names: True):
        """Watch what replays read anew as well, where code has names for it."""
        self._filled = None
        for table, values, known in self._followed.values():
            for key in [key for key in values if known[key] is not None and named(known[key])]:
                self._places.add(dict.get, table, key, values.pop(key))

    def objects(self):
        """Return all objects that were met, a list."""
        return [x for x in self._seen.values() if x is not None]

    def boxes(self, everything=False):
        """Return the lists and dicts that were met, as a dict by their ids; tuples and
        distributions, too, with `everything`.
        """
        return {
            id(x): x
            for x in self._seen.values()
            if type(x) is list
            or type(x) is dict
            or (everything and (isinstance(x, tuple) or hasattr(type(x), "__tree_fields__")))
        }

    def tensors(self):
        """Return the tensors that were met, and those of which they are views, by their ids."""
        found = {id(x): x for x in self._seen.values() if is_tensor(x)}
        bases = [x._base for x in found.values() if x._base is not None]
        return found | {id(x): x for x in bases}

    def generators(self):
        """Return the random generators that were met, and the one that draws are made from now."""
        found = {id(x): x for x in self._seen.values() if isinstance(x, Generator)}
        found |= {id(g): g for g in (default_generator, generator_for(None))}
        return list(found.values())

    def drew(self):
        """Return the name of a random generator of Python or NumPy that was used, whose draws
        cannot be replayed; None without one.
        """
        return next((name for state, before, name in self._generators if state() != before), None)


def _number_of(key):
    """A number for the name of an attribute or a variable, the same in every process."""
    return zlib.crc32(repr(key).encode())
