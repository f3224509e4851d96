"""Floats where a recording leaves tensors that stood for them: `floats_again`.

While a call is recorded, `Number`s are in the places of floats that change between calls, and code
of the user's puts them elsewhere, too: it computes an attribute anew, turns a list round, keeps the
last value. Whatever becomes of the recording, the user has floats afterwards, the ones that eager
execution would have left.
"""

import collections
import contextlib
import types
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from probtorch.compiler.guards.environment import Environment
from probtorch.compiler.guards.kinds import names_of_slots
from probtorch.compiler.guards.reading import attribute, contents, has_dict, slot
from probtorch.compiler.record.number import Number
from probtorch.core.tensor_base import TensorBase

__all__ = ["floats_again"]

# Of tuples that lie deeper in each other nothing is taken apart.
_MAX_DEPTH = 8


@contextlib.contextmanager
def floats_again(
    before: Environment, now: Callable[[], Environment], others: Iterable[object]
) -> Iterator[None]:
    """Context manager: a recording leaves no `Number` in what the function reaches.

    Parameters
    ----------
    before : Environment
        What the function reaches ahead of the recording.
    now : callable
        Returns another one, of what it reaches when it is called.
    others : iterable
        Containers among the arguments.
    """
    raised: list[object] = []
    try:
        yield
    except BaseException as error:
        raised.append(error)
        raise
    finally:
        for x in (*before.objects(), *now().objects(), *others, *raised):
            _put_floats(x)


def _put_floats(x):
    """Put floats in the place of what an object itself holds of tensors that stand for them."""
    kind = type(x)  # never by what a class of the user's says
    if isinstance(x, np.ndarray):
        if x.dtype == object and x.flags.writeable and _any_holds(x.flat):
            _in_array(x)
        return
    if issubclass(kind, (list, collections.deque)):
        _in_list(x, list if issubclass(kind, list) else collections.deque)
    elif issubclass(kind, dict):
        ordered = issubclass(kind, collections.OrderedDict)
        _in_dict(x, collections.OrderedDict if ordered else dict)
    elif issubclass(kind, set):
        _in_set(x)
    elif issubclass(kind, types.FunctionType):
        _in_function(x)
    elif issubclass(kind, type):
        _in_attributes(x, dict(type.__getattribute__(x, "__dict__")), type.__setattr__)
        return
    if has_dict(x):
        own = attribute(x, "__dict__")
        if isinstance(own, dict):
            _in_dict(own, dict)
    if not issubclass(kind, TensorBase):
        names = names_of_slots(kind)  # type: ignore[arg-type]  # a class can be hashed
        own = {name: slot(x, name) for name in names}
        _in_attributes(x, own, object.__setattr__)
    if issubclass(kind, BaseException):
        _in_attributes(x, {"args": slot(x, "args")}, object.__setattr__)


def _any_holds(items):
    """Whether one of the items of a container is, or may hold, such a tensor; long ones are data,
    and looked at by their types alone.
    """
    kinds = list(map(type, items))
    return any(
        k is Number or issubclass(k, tuple) for k in dict(zip(map(id, kinds), kinds)).values()
    )


def _holds(x):
    """Whether something is, or a tuple holds, a tensor that stands for a float."""
    return type(x) is Number or (issubclass(type(x), tuple) and _float(x) is not x)


def _float(x, depth=0):
    """What is in the place of something afterwards: a float, or a tuple with floats."""
    if type(x) is Number:
        return x.array.item()
    if not issubclass(type(x), tuple) or depth == _MAX_DEPTH:
        return x
    items = list(tuple.__iter__(x))
    found = [_float(y, depth + 1) for y in items]
    if all(a is b for a, b in zip(items, found, strict=True)):
        return x
    return tuple.__new__(type(x), found)


def _in_array(x):
    for i, y in enumerate(x.flat):
        if _holds(y):
            x.flat[i] = _float(y)


def _in_list(x, base):
    items = list(base.__iter__(x))
    for i, y in enumerate(items) if _any_holds(items) else ():
        if _holds(y):
            base.__setitem__(x, i, _float(y))


def _in_dict(x, base):
    if _any_holds(dict.keys(x)) and any(map(_holds, dict.keys(x))):
        items = [(_float(key), y) for key, y in base.items(x)]
        base.clear(x)
        for key, y in items:
            base.__setitem__(x, key, y)
    held = dict.items(x) if _any_holds(dict.values(x)) else ()
    for key in [key for key, y in held if _holds(y)]:
        dict.__setitem__(x, key, _float(dict.__getitem__(x, key)))


def _in_set(x):
    items = list(set.__iter__(x))
    if _any_holds(items):
        set.clear(x)
        set.update(x, map(_float, items))


def _in_function(fn):
    for cell in fn.__closure__ or ():
        if _holds(contents(cell)):
            cell.cell_contents = _float(contents(cell))
    for name in {*fn.__code__.co_names} & fn.__globals__.keys():
        if _holds(fn.__globals__[name]):
            fn.__globals__[name] = _float(fn.__globals__[name])


def _in_attributes(x, own, put):
    for name, y in own.items():
        if _holds(y):
            # Past a property of the same name, which a derived class may have.
            with contextlib.suppress(AttributeError, TypeError):
                put(x, name, _float(y))
