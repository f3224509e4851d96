"""Pickles read as data: a small machine that knows the opcodes of plain data and runs nothing.

A pickle is a program for a stack machine, and Python's own would call any function that it names.
This one has the opcodes of `_Machine.step` and no others, finds no name by itself, and calls only
what its owner put into a table (`torch_.py`: how PyTorch puts a tensor together). It takes memory
in proportion to the pickle, makes no key whose hash could take long, and needs no recursion.

Opcodes are told apart by Python's `pickletools`, which only looks at them; what they mean is
described there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from probtorch.core.late import pickletools

__all__ = ["Name", "PickleRefusedError", "read"]

T = TypeVar("T")

# Bytes that an opcode takes in memory, more or less: a reference, or an object and its place in a
# list, a dict, or the memo. What a call makes may be a tensor.
_COST, _SMALL_COST, _CALL_COST = 100, 8, 700
_SMALL = frozenset("MARK NONE NEWTRUE NEWFALSE BININT1 BINGET LONG_BINGET PROTO FRAME".split())
# So many times the length of a pickle may be taken, and something beside that. What Python's own
# pickler writes stays below 60.
_GROWTH, _ALLOWANCE = 100, 2**24
# Entries of a tuple that is a key, and the largest whole number that is one: Python finds keys by
# hashes, and many that have the same one take long.
_MAX_KEY, _MAX_INTEGER = 100, 2**60


class PickleRefusedError(ValueError):
    """What a pickle holds beyond plain data."""


@dataclass(frozen=True)
class Name:
    """A function or class that a pickle names; never looked up."""

    text: str


class _Mark:
    """Where the arguments of a later opcode begin on the stack."""


_MARK = _Mark()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# Whose argument, as pickletools reads it, is the value.
_VALUES = frozenset(
    "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "SHORT_BINBYTES BINBYTES BINBYTES8".split()
)
_EMPTY: dict[str, Callable[[], object]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PASSED = frozenset(("PROTO", "FRAME"))


def read(
    data: bytes,
    calls: Mapping[str, Callable[..., object]],
    values: Mapping[str, object],
    persistent: Callable[[object], object],
    plain: Callable[[object], object],
) -> object:
    """Return the plain data of a pickle.

    Parameters
    ----------
    data : bytes
    calls : dict
        The functions that the pickle may call, by "module name".
    values : dict
        What other names stand for, such as dtypes.
    persistent : callable
        What an identifier stands for that the pickle leaves to its owner.
    plain : callable
        What a value of `values` is where it stands among the data.

    Raises
    ------
    PickleRefusedError
        If anything else is in it.
    LookupError, TypeError, ValueError
        If it is no pickle.
    """
    machine = _Machine(calls, values, persistent, plain, _ALLOWANCE + _GROWTH * len(data))
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "STOP":
            return machine.result()
        machine.step(opcode.name, argument)
    raise ValueError("it ends early")


class _Machine:
    """A stack, and what was put aside from it by number."""

    def __init__(
        self,
        calls: Mapping[str, Callable[..., object]],
        values: Mapping[str, object],
        persistent: Callable[[object], object],
        plain: Callable[[object], object],
        budget: int,
    ) -> None:
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}
        self._calls, self._values = calls, values
        self._persistent, self._plain = persistent, plain
        self._budget = budget

    def result(self) -> object:
        """What is left at the end."""
        (found,) = self._stack
        return self._data(found)

    def step(self, name: str, argument: object) -> None:
        """Carry out one opcode."""
        self._budget -= _SMALL_COST if name in _SMALL else _COST
        if self._budget < 0:
            raise PickleRefusedError("one that takes far more memory than its length")
        push, pop = self._stack.append, self._stack.pop
        if name in _VALUES:
            push(argument)
        elif name in _CONSTANTS:
            push(_CONSTANTS[name])
        elif name in _EMPTY:
            push(_EMPTY[name]())
        elif name == "MARK":
            push(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            number = len(self._memo) if name == "MEMOIZE" else argument
            assert isinstance(number, int)
            self._memo[number] = self._stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            assert isinstance(argument, int)
            push(self._memo[argument])
        elif name in _TUPLES:
            count = _TUPLES[name]
            if len(self._stack) < count:
                raise ValueError("an empty stack")
            items = self._stack[-count:]
            del self._stack[-count:]
            push(tuple(items))
        elif name == "TUPLE":
            push(tuple(self._marked()))
        elif name in ("SETITEM", "SETITEMS"):
            items = self._marked() if name == "SETITEMS" else [pop(-2), pop()]
            target = self._target(dict)
            for key, value in zip(items[::2], items[1::2], strict=True):
                target[_key(key)] = self._data(value)
        elif name in ("APPEND", "APPENDS"):
            items = self._marked() if name == "APPENDS" else [pop()]
            self._target(list).extend(map(self._data, items))
        elif name == "ADDITEMS":
            items = self._marked()
            self._target(set).update(map(_key, items))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            text = argument if name == "GLOBAL" else f"{pop(-2)} {pop()}"
            push(self._named(str(text)))
        elif name == "BINPERSID":
            push(self._persistent(pop()))
        elif name == "REDUCE":
            arguments, function = pop(), pop()
            push(self._called(function, arguments))
        elif name == "BUILD":
            # Attributes of a dict, such as the `_metadata` of a state dict, are no data.
            state = pop()
            if not isinstance(state, dict) or not isinstance(self._stack[-1], dict):
                raise PickleRefusedError(f"the inside of a {type(self._stack[-1]).__name__}")
        elif name not in _PASSED:
            raise PickleRefusedError(f"the opcode {name}, which plain data have no need of")

    def _marked(self) -> list[object]:
        """All above the last mark."""
        for i in range(len(self._stack) - 1, -1, -1):
            if self._stack[i] is _MARK:
                items = self._stack[i + 1 :]
                del self._stack[i:]
                return items
        raise ValueError("a mark that is missing")

    def _target(self, kind: type[T]) -> T:
        found = self._stack[-1]
        if not isinstance(found, kind):
            raise ValueError(f"a {type(found).__name__} in the place of a {kind.__name__}")
        return found

    def _named(self, text: str) -> object:
        if text in self._values:
            return self._values[text]
        if text not in self._calls:
            raise _unknown(text)
        return Name(text)

    def _called(self, function: object, arguments: object) -> object:
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ValueError("a call of something that is no function")
        self._budget -= _CALL_COST
        return self._calls[function.text](*arguments)

    def _data(self, value: object) -> object:
        """What may stand in a list or as a value of a dict: no functions and no marks."""
        if type(value) is tuple:
            return tuple(self._entry(x) for x in value)
        return self._entry(value)

    def _entry(self, x: object) -> object:
        if isinstance(x, Name):
            raise _unknown(x.text)
        if x is _MARK:
            raise ValueError("a mark among the data")
        return self._plain(x)


def _unknown(text: str) -> PickleRefusedError:
    """The error for a name that is not known."""
    module, _, name = text.partition(" ")
    return PickleRefusedError(
        f"a pickle that needs {module}.{name}, which is no plain data".replace("\n", " ")[:200]
    )


def _key(value: object) -> Hashable:
    entries: Sequence[object] = value if type(value) is tuple else (value,)
    plain = all(
        x is None
        or type(x) in (str, bytes, bool, float)
        or (type(x) is int and abs(x) < _MAX_INTEGER)
        for x in entries
    )
    if not plain or len(entries) > _MAX_KEY:
        raise PickleRefusedError(f"a key of a dict that is no text or number: {value!r:.60}")
    return value
