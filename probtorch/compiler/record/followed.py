"""Numbers in Python that a replay reads anew, and calls that change them, which it makes, too.

The learning rate of a group is a number that schedules change between steps, or in a step. An
optimizer asks for it by `told.number`, and computes with a 0-d tensor that each replay fills with
what the group says by then. So it is with floats of the user's that were seen to change
(`calls/varying.py`). A schedule's `step` is an `Act`: Python's own call, ahead of the native
run where a later step of the optimizer reads what it changes, else after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from probtorch.compiler.graph import GraphValue
from probtorch.compiler.record.number import stand_in
from probtorch.core.dispatch import set_recorder, wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, flatten, unflatten

__all__ = ["Act", "FollowedNumbers", "Numbers", "is_input"]


class Remembers(Protocol):
    """What has methods that replays call."""

    def remember(self) -> tuple[object, list[dict[str, object]]]:
        """Return its state, and the options that it may change."""
        ...

    def recall(self, state: tuple[object, list[dict[str, object]]]) -> None:
        """Put both back."""
        ...


@dataclass(frozen=True)
class Act:
    """A call that each replay makes.

    Attributes
    ----------
    number : int
        How many there were before.
    method : callable
    owner : object
        Its first argument, with methods `remember` and `recall`.
    leaves, structure
        Of the others.
    told : sequence of (GraphValue, array)
        Tensors among them, and what they held when it was recorded.
    """

    number: int
    method: Callable[..., object]
    owner: Remembers
    leaves: list[object]
    structure: Structure
    told: Sequence[tuple[GraphValue, object]]

    @property
    def what(self):
        """The name of the call."""
        return f"{type(self.owner).__name__}.{self.method.__name__}()"

    def __call__(self, arrays):
        """Call, with these arrays in place of the tensors."""
        walk = iter(arrays)
        items = [wrap(next(walk)) if isinstance(x, TensorBase) else x for x in self.leaves]
        args, kwargs = unflatten(self.structure, items)
        self.method(self.owner, *args, **kwargs)


class FollowedNumbers:
    """What a recording hears of such numbers.

    Attributes
    ----------
    read : list of (int, dict, key, int or None, Tensor)
        How many acts came before, where the number is (its place in a tuple), what stands for it.
    floats : set of int
        Tensors, by id, that stand for nothing but floats.
    acts : list of Act
    shown : bool
        Whether Python looks at such numbers by itself, too, or one of them is none.
    """

    def __init__(self):
        self.read, self.acts, self.shown = [], [], False
        self.floats = set()
        self._now = {}  # tensors by dict, key and place, until the next act

    def number(self, table, key, bind):
        """Return what stands for a number, or for those in a tuple; `bind` notes a new tensor."""
        value = table[key]
        if type(value) is tuple:
            return tuple(self._tensor(table, key, i, x, bind) for i, x in enumerate(value))
        return self._tensor(table, key, None, value, bind)

    def float(self, table, key, bind):
        """Return what stands for a number that has to stay a float."""
        t = stand_in(table[key])
        bind(t)
        self.read.append((len(self.acts), table, key, None, t))
        self.floats.add(id(t))
        return t

    def _tensor(self, table, key, index, value, bind):
        if not _is_number(value):  # a tensor, which counts as the object that it is
            self.shown = True
            return value
        place = id(table), key, index
        t = self._now.get(place)
        if t is None:
            t = self._now[place] = wrap(np.array(value, np.float64))
            bind(t)
            self.read.append((len(self.acts), table, key, index, t))
        return t

    def act(self, method, owner, args, kwargs, value_of, refuse):
        """Note a call, and make it unheard."""
        leaves, structure = flatten((args, kwargs))
        told = [(value_of(x), x.array) for x in leaves if isinstance(x, TensorBase)]
        act = Act(len(self.acts), method, owner, leaves, structure, told)
        self.acts.append(act)
        self._now.clear()
        before = set_recorder(None)
        try:
            groups = owner.remember()[1]
            if any(isinstance(x, TensorBase) for g in groups for x in g.values()):
                refuse(f"{act.what} where an option of the optimizer is a tensor")
            return method(owner, *args, **kwargs)
        finally:
            set_recorder(before)

    def obstacles(self):
        """Return why replays cannot make the acts, a list of texts."""
        last = max((before for before, *_ in self.read), default=0)
        return [
            f"{act.what} with a tensor, ahead of a step that reads what it changes"
            for act in self.acts
            if act.told and act.number < last
        ]

    def outputs(self):
        """Return the values of tensors that acts are told of."""
        return [v for act in self.acts for v, _ in act.told]

    def judge(self, environment, refuse):
        """Look whether the function has all this from outside; numbers that Python looks at by
        itself, too, have to stay what they are.
        """
        for act in self.acts:
            if not environment.owns(act.owner):
                refuse(f"{act.what} of an object that the function makes")
        if self.shown or not all(environment.follows(table) for _, table, *_ in self.read):
            environment.watch_followed()


def _is_number(x):
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def is_input(x):
    """Whether a value may be an input: a float that Python divides by, and squares, as tensors do,
    without an error.
    """
    return type(x) is float and 1e-100 < abs(x) < 1e100


class Numbers:
    """What replays do about them.

    Parameters
    ----------
    followed : FollowedNumbers
    """

    def __init__(self, followed):
        self._read, acts, self._floats = followed.read, followed.acts, followed.floats
        last = max((before for before, *_ in self._read), default=0)
        self._early, self._late = acts[:last], acts[last:]
        self.owners = list({id(act.owner): act.owner for act in acts}.values())
        self.outputs = len(followed.outputs())

    def __bool__(self):
        return bool(self._read or self.owners)

    @property
    def acts(self):
        """Whether there are acts."""
        return bool(self.owners)

    def fill(self):
        """Read numbers anew, among the acts ahead of the last one.

        Returns
        -------
        list or None
            For `undo`; None where there is no number any more, and nothing has changed.
        """
        before = [(x, x.remember()) for x in self.owners] if self._early else []
        done = 0
        for position, table, key, index, t in self._read:
            try:
                while done < position:
                    self._early[done](())
                    done += 1
                value = table[key] if index is None else table[key][index]
            except Exception:  # the call itself raises it
                value = None
            if not _is_number(value) or (id(t) in self._floats and not is_input(value)):
                self.undo(before)
                return None
            t.array[()] = value
        return before

    def undo(self, before):
        """Take back the acts of `fill`."""
        for owner, state in before:
            owner.recall(state)

    def act(self, arrays):
        """Make the calls that come after the native run."""
        first = 0
        for act in self._late:
            count = len(act.told)
            act(arrays[first : first + count])
            first += count
