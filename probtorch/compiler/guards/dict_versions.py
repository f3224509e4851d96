"""`DictVersions`: whether any of some dicts has changed, by one native look at version tags.

CPython gives a dict another number at each change of its keys or values (PEP 509). Reading a
hundred of them takes a fraction of a microsecond, looking through the dicts a hundred times that.
The tag is private to CPython: it is used in releases where it is known to lie (3.11 and 3.12, which
TorchDynamo's guards rely on too) and, in this very process, was seen to follow changes; elsewhere
`available` says no, and whoever asks looks through the dicts.
"""

import ctypes
import functools
import sys

import numpy as np

from probtorch.compiler.lang.llvm import LlvmModule
from probtorch.compiler.machine import engine
from probtorch.compiler.nests.loops import address

__all__ = ["DictVersions", "available"]

# Behind the reference count, the type and the number of items.
_OFFSET = 3 * ctypes.sizeof(ctypes.c_void_p)
_RELEASES = ((3, 11), (3, 12))
# Of fewer dicts the tags are read one by one: a call of native code takes as long as 16 of them.
_FEW = 16


@functools.cache
def available():
    """Whether dicts have version tags, where we look for them."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in _RELEASES:
        return False
    probe = {str(i): i for i in range(20)}
    changes = (
        lambda: probe.update(a=1),
        lambda: probe.update(a=2),
        lambda: probe.pop("a"),
        lambda: probe.clear(),
    )
    seen = [_tag(probe)]
    for change in changes:
        list(probe.items())
        if _tag(probe) != seen[-1]:
            return False
        change()
        seen.append(_tag(probe))
    return len(set(seen)) == len(seen)


class DictVersions:
    """The versions that dicts had when this was made.

    Parameters
    ----------
    dicts : iterable of dict
        Kept alive.
    """

    def __init__(self, dicts):
        self._dicts = list(dicts)
        self._places = np.array([id(d) + _OFFSET for d in self._dicts], np.uintp)
        self._tags = np.array([_tag(d) for d in self._dicts], np.uint64)
        self._arguments = address(self._places), address(self._tags), len(self._dicts)
        self._cells = list(map(_cell, self._dicts)) if len(self._dicts) < _FEW else None
        self._few = self._tags.tolist()

    def same(self):
        """Whether none has changed since."""
        if self._cells is not None:
            return [cell.value for cell in self._cells] == self._few
        return _native()[0](*self._arguments) == len(self._dicts)


def _cell(d):
    return ctypes.c_uint64.from_address(id(d) + _OFFSET)


def _tag(d):
    return _cell(d).value


def _written():
    """Return the text of a function that counts the tags before the first other one."""
    module = LlvmModule()
    w = module.function("pt_same_tags", "i64", ["ptr", "ptr", "i64"])
    places, tags, n = w.arguments
    with w.loop(0, n) as i:
        now = w.load(w.load(places, i, "ptr"), 0, "i64")
        w.leave_if(now != w.load(tags, i, "i64"), i)
    w.finish(n)
    return module.text()


@functools.cache
def _native():
    module = engine.compile_module(_written())
    types = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *types)(module.address("pt_same_tags"))
    return function, module  # which keeps the code alive
