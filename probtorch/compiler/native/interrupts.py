"""What stopped a loop in native code, raised in Python: see `render/runtime/interrupts.py`."""

import ctypes
import threading

import numpy as np

__all__ = ["attach", "raise_pending"]

_restore = ctypes.pythonapi.PyErr_Restore
_restore.argtypes, _restore.restype = [ctypes.c_void_p] * 3, None
_words: np.ndarray | None = None


def attach(address):
    """Take over the module that has just been linked; `address` gives a function's by its name."""
    global _words
    place = ctypes.CFUNCTYPE(ctypes.c_void_p)(address("pt_interrupt"))()
    _words = np.ctypeslib.as_array(ctypes.cast(place, ctypes.POINTER(ctypes.c_uint64)), (4,))


def raise_pending():
    """Raise what a signal handler raised while native code of this thread ran, if one did.

    To be called wherever native code has returned a status other than 0.
    """
    if _words is not None and _words[0] == threading.get_ident():
        kind, value, traceback = map(int, _words[1:])
        _words[0] = 0
        _restore(kind or None, value or None, traceback or None)
