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

from probtorch.compiler import engine
from probtorch.compiler.nests.loops import address

__all__ = ["DictVersions", "available"]

# Behind the reference count, the type and the number of items.
_OFFSET = 3 * ctypes.sizeof(ctypes.c_void_p)
_RELEASES = ((3, 11), (3, 12))

_IR = """
define i64 @pt_same_tags(ptr %places, ptr %tags, i64 %n) {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %out
body:
  %place.p = getelementptr ptr, ptr %places, i64 %i
  %place = load ptr, ptr %place.p
  %now = load i64, ptr %place
  %tag.p = getelementptr i64, ptr %tags, i64 %i
  %tag = load i64, ptr %tag.p
  %i.next = add i64 %i, 1
  %same = icmp eq i64 %now, %tag
  br i1 %same, label %head, label %out
out:
  ret i64 %i
}
"""


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

    def same(self):
        """Whether none has changed since."""
        return _native()[0](*self._arguments) == len(self._dicts)


def _tag(d):
    return ctypes.c_uint64.from_address(id(d) + _OFFSET).value


@functools.cache
def _native():
    module = engine.compile_module(_IR)
    types = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *types)(module.address("pt_same_tags"))
    return function, module  # which keeps the code alive
