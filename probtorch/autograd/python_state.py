"""Python values that functions reach by name, put back after a run that was only a trial.

A step, a body or a branch that is run for its operations alone may append to a list, count in a
variable or set an attribute. `PythonState` notes what is there before, and puts it back.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable

from probtorch.core.tensor_base import TensorBase
from probtorch.errors import is_ours

__all__ = ["PythonState"]

# Values looked at, the nearest first, and elements of one container that are: a function may reach
# a whole program and its data, of which its steps hardly change what is far away.
MOST, MOST_ELEMENTS = 2_000, 100

_EMPTY = object()


class PythonState:
    """What functions reach from their closures, defaults and globals, as it is now: tensors,
    and what may change.

    Looked through are the containers of the standard library, not of classes made of these, and
    objects of classes that are not of this package. Contents are compared by identity.
    """

    def __init__(self, *fns: object) -> None:
        self.tensors: list[TensorBase] = []
        self._kept: list[Callable[[], bool]] = []  # each puts one value back
        seen: dict[int, object] = {}
        todo = deque(fns)
        while todo and len(seen) < MOST:
            x = todo.popleft()
            if id(x) not in seen and type(x) not in _PLAIN:
                seen[id(x)] = x
                todo += itertools.islice(self._look(x), MOST_ELEMENTS)

    def put_back(self) -> bool:
        """Put back what is not as it was; returns whether anything was not."""
        return sum(restore() for restore in self._kept) > 0

    def _look(self, x: object) -> Iterable[object]:
        """Note what may change in one value; returns what else it leads to."""
        kind = type(x)  # asked for by no code of the user's, as isinstance() may be
        if issubclass(kind, TensorBase):
            assert isinstance(x, TensorBase)
            self.tensors.append(x)
        elif kind is types.FunctionType:
            assert isinstance(x, types.FunctionType)
            return self._function(x)
        elif kind is types.MethodType:
            assert isinstance(x, types.MethodType)
            return x.__func__, x.__self__
        elif kind is functools.partial:
            assert isinstance(x, functools.partial)
            return x.func, x.args, x.keywords
        elif issubclass(kind, tuple):
            assert isinstance(x, tuple)
            return tuple.__iter__(x)
        elif kind in _TABLES:
            assert isinstance(x, dict)
            return self._table(x)
        elif kind in (list, set, deque):
            assert isinstance(x, (list, set, deque))
            return self._container(x)
        elif not issubclass(kind, (type, types.ModuleType)) and not _of_ours(kind):
            try:
                table = object.__getattribute__(x, "__dict__")
            except AttributeError:
                table = None
            if type(table) is dict:
                return self._table(table, kind)
        return ()

    def _function(self, fn: types.FunctionType) -> Iterable[object]:
        cells = [(cell, _contents(cell)) for cell in fn.__closure__ or ()]
        if is_ours(fn.__code__.co_filename):  # which keeps books of its own, and calls the user's
            return [x for _, x in cells if type(x) in _CALLED]
        for cell, value in cells:
            self._kept.append(functools.partial(_fill, cell, value))
        found = [x for _, x in cells]
        found += [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
        for name in _names(fn.__code__):
            if name in fn.__globals__:
                found.append(fn.__globals__[name])
                row = fn.__globals__, name, found[-1]
                self._kept.append(functools.partial(_set_global, *row))
        return found

    def _container(self, x: list[object] | set[object] | deque[object]) -> Iterable[object]:
        before = list(x)

        def restore() -> bool:
            if _same(x, before):
                return False
            x.clear()
            (x.update if isinstance(x, set) else x.extend)(before)
            return True

        self._kept.append(restore)
        return before

    def _table(self, x: dict[object, object], cls: type | None = None) -> Iterable[object]:
        before = dict(x)

        def restore() -> bool:
            # What an object computes once, and keeps, is no change of it.
            new = [k for k in x if k not in before]
            kept = {
                k: x[k] for k in new if isinstance(_of_class(cls, k), functools.cached_property)
            }
            wanted = {**before, **kept}
            if _same(x, wanted) and _same(x.values(), wanted.values()):
                return False
            x.clear()
            x.update(wanted)
            return True

        self._kept.append(restore)
        return before.values()


_TABLES = (dict, OrderedDict, defaultdict, Counter)
_PLAIN = {int, bool, float, complex, str, bytes, type(None), types.BuiltinFunctionType}


_CALLED = (types.FunctionType, types.MethodType, functools.partial)


def _same(now: Collection[object], before: Collection[object]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _contents(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _EMPTY


def _fill(cell: types.CellType, value: object) -> bool:
    if _contents(cell) is value:
        return False
    if value is _EMPTY:
        del cell.cell_contents
    else:
        cell.cell_contents = value
    return True


def _set_global(table: dict[str, object], name: str, value: object) -> bool:
    if table.get(name, _EMPTY) is value:
        return False
    table[name] = value
    return True


@functools.lru_cache(1024)
def _names(code: types.CodeType) -> frozenset[str]:
    """Names that code may look up as globals, among others."""
    inner = (x for x in code.co_consts if isinstance(x, types.CodeType))
    return frozenset(code.co_names).union(*map(_names, inner))


def _of_class(cls: type | None, name: object) -> object:
    return getattr(cls, name, None) if isinstance(name, str) else None


def _of_ours(cls: type) -> bool:
    """Whether a class, and so what it keeps for itself, is of this package."""
    module = sys.modules.get(cls.__module__)
    return is_ours(getattr(module, "__file__", None) or "")
