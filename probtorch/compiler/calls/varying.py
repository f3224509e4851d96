"""`VaryingNumbers`: floats of Python's that change between calls, and become inputs.

The weight of a term in a loss rises from epoch to epoch, a temperature falls: an attribute of an
object or a class, a global, an entry of a dict or a list, a variable of an enclosing function, an
argument. The first
recording takes each for a constant. Where one is another float later, and nothing else has changed,
the next recording has a tensor of no dims in its place, which replays fill anew (`followed.py`);
that of an argument is one of the tensors that are given.

Python may tell a tensor from a float: `isinstance`, `math.exp`, a format, the dtype of what is made
of it. So that call is made twice, with the floats first, and unless both come to the same, by what
they return and what they leave, these floats stay constants, each value with a path of its own.

So it is with a tensor that another one comes in the place of, which a recording then knows by its
place (`placed.py`): no other form of value, so that no comparison is needed.
"""

import contextlib
from collections import Counter

from probtorch.compiler.calls.versions import what_is_alike
from probtorch.compiler.record.followed import is_input
from probtorch.compiler.record.number import stand_in
from probtorch.compiler.record.placed import is_plain

__all__ = ["VaryingNumbers", "as_they_were", "others_by_now", "values_of"]

# In place of the number of a watch, in labels.
_ARGUMENT = -1
# Calls that find the tensor of a place elsewhere, too, each of which is a recording.
MOST_SHARED = 8
# What is in a place where there is nothing.
_NOTHING = object()


class VaryingNumbers:
    """Which floats are inputs of a function's paths."""

    def __init__(self):
        self._awaited = []  # labels of another process's
        self._places = {}  # by who holds one and its key: both, and the label
        self._arguments = {}  # by the structure of arguments: the numbers of leaves
        self._constant = set()  # what has to stay a constant
        self._tensors = {}  # as `_places`, of tensors in whose places others come
        self._shared = Counter()  # how often the tensor in a place was found elsewhere, too
        self._met = {}  # the first version of those that differ in numbers alone
        self._new = set()  # names of those that no recording has had yet

    @property
    def labels(self):
        """What tells another process which floats are inputs, for `resume`: tuples of int."""
        numbers = dict.fromkeys(i for x in self._arguments.values() for i in sorted(x))
        return [*(x for _, _, x in self._places.values()), *((_ARGUMENT, i) for i in numbers)]

    def __bool__(self):
        return bool(self._arguments) or any(x[0] == _ARGUMENT for x in self._awaited)

    def resume(self, labels):
        """Make inputs of floats that another process did, as soon as there is something to see."""
        self._awaited = [tuple(x) for x in labels if tuple(x) not in self.labels]

    def find(self, snapshot):
        """Look for those in snapshots; ``snapshot(places)`` takes one without the places given."""
        while self._awaited:
            where = self._awaited.pop(0)
            place = snapshot(self.places()).number_at(where)
            if place is not None and is_input(place[0][place[1]]):
                self._places[_name_of(*place)] = *place, where

    def inputs(self, structure):
        """Whether there are any in a call with arguments of a structure."""
        return structure in self._arguments or bool(self.places())

    @property
    def unsettled(self):
        """Whether there are some that no recording has had yet."""
        return bool(self._new)

    def settle(self):
        """Note that a recording had all of them, and came to what Python does."""
        self._new.clear()

    def leave(self, structure, *, for_good=True):
        """Let those of these be constants that no recording has had yet, or else all; those outside
        arguments until they change again, unless `for_good`.
        """
        numbers = {(structure, i) for i in self._arguments.get(structure, ())}
        names = {_name_of(t, key) for t, key in self.places()}
        left = (numbers | names) & self._new or numbers | names
        self._new -= left
        for name in names & left:
            self._places.pop(name)
            if for_good:
                self._constant.add(name)
        self._constant |= numbers & left
        kept = {i for name, i in numbers - left}
        if kept:
            self._arguments[structure] = kept
        else:
            self._arguments.pop(structure, None)

    # --------------------------------------------------------------------------- outside arguments

    def places(self):
        """Return where there are floats now that are inputs, a list of ``(table, key)``."""
        return [(t, key) for t, key, _ in self._places.values() if is_input(_value(t, key))]

    def follow_changed(self, environment):
        """Make inputs of floats that have changed since a snapshot, if nothing else has; returns
        whether there are any.
        """
        found = False
        for where in environment.numbers_changed():
            t, key = environment.number_at(where)
            if _name_of(t, key) in self._constant:
                continue
            if is_plain(t[key]):
                if _name_of(t, key) in self._tensors:
                    self.leave_shared([(t, key)])  # it counts, although it is left out
                else:
                    self._tensors[_name_of(t, key)] = t, key
                found = True
            elif is_input(t[key]):
                self._places[_name_of(t, key)] = t, key, where
                self._new.add(_name_of(t, key))
                found = True
        return found

    def tensors(self):
        """Return where there are tensors now in whose places others come, as `places` does."""
        return [(t, key) for t, key in self._tensors.values() if is_plain(_value(t, key))]

    def leave_tensors(self, places):
        """Know the tensors in some places by who they are, for good."""
        names = {_name_of(t, key) for t, key in places}
        self._constant |= names
        for name in names:
            self._tensors.pop(name, None)

    def leave_shared(self, places):
        """Note that a call knows the tensors in some places by who they are, since it finds them
        elsewhere, too; for good where that was so again and again.
        """
        self._shared.update(_name_of(t, key) for t, key in places)
        self.leave_tensors([p for p in places if self._shared[_name_of(*p)] > MOST_SHARED])

    @contextlib.contextmanager
    def standing_in(self, rec, places):
        """Context manager: tensors of a recording are in the places of floats."""
        given = [(t, key, t[key], rec.float_of(t, key)) for t, key in places]
        try:
            for t, key, _, x in given:
                t[key] = x
            yield
        finally:
            for t, key, before, x in given:
                if _value(t, key) is x:
                    t[key] = before
                else:
                    rec.refuse("a number that it changes, and that changes between calls, too")

    # -------------------------------------------------------------------------------- of arguments

    def new_arguments(self, key):
        """Return which leaves of a version are floats, and others than in another one that is like
        it in all else; and that other one. None where there is no such version.
        """
        other = self._met.setdefault(what_is_alike(key), key)
        changed = [i for i, (a, b) in enumerate(zip(other[1], key[1], strict=True)) if a != b]
        fixed = any((key[0], i) in self._constant or not _may_be_input(key[1][i]) for i in changed)
        return None if fixed or not changed else (changed, other)

    def follow_arguments(self, structure, numbers):
        """Make inputs of leaves of arguments."""
        self._inputs_of(structure).update(numbers)
        self._new |= {(structure, i) for i in numbers}

    def _inputs_of(self, structure):
        return self._arguments.setdefault(structure, set())

    def as_inputs(self, leaves, structure):
        """Return leaves with tensors in the place of floats that are inputs."""
        awaited = [x for x in self._awaited if x[0] == _ARGUMENT]
        if awaited:
            self._awaited = [x for x in self._awaited if x[0] != _ARGUMENT]
            # Not among the new ones: a recording of another process had them.
            self._inputs_of(structure).update(i for _, i in awaited if i < len(leaves))
        numbers = self._arguments.get(structure, ())
        return [stand_in(x) if i in numbers and is_input(x) else x for i, x in enumerate(leaves)]


def values_of(places):
    """Return what is in places now, as `others_by_now` takes it."""
    return [(t, key, _value(t, key, _NOTHING)) for t, key in places]


def others_by_now(numbers):
    """Return those of what `values_of` found in whose places something else is, or nothing."""
    rows = [(t, key, then, _value(t, key, _NOTHING)) for t, key, then in numbers]
    return [row for row in rows if not (row[2] is row[3] or _same_float(row[2], row[3]))]


@contextlib.contextmanager
def as_they_were(others):
    """Context manager: in the places that `others_by_now` found is what was there at a call, for
    its gradient; afterwards what is there by now, or nothing.
    """
    done = []
    try:
        for t, key, then, now in others:
            with contextlib.suppress(LookupError):  # a list is shorter by now, which is noticed
                _put(t, key, then)
                done.append((t, key, now))
        yield
    finally:
        for t, key, now in done:
            _put(t, key, now)


def _same_float(a, b):
    return type(a) is type(b) is float and a.hex() == b.hex()


def _put(table, key, value):
    if value is not _NOTHING:
        table[key] = value
    elif _value(table, key, _NOTHING) is not _NOTHING:
        del table[key]


def _may_be_input(token):
    return token[0] is float and is_input(float.fromhex(token[1]))


def _value(table, key, nothing=None):
    """What is in a place, None where there is nothing any more."""
    try:
        return table[key]
    except (LookupError, ValueError, AttributeError):
        return nothing


def _name_of(table, key):
    return id(getattr(table, "holder", table)), key
