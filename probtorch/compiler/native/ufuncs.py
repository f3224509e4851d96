"""Native code as NumPy's ufuncs: what eager operations call.

A ufunc is the cheapest way from Python to native code with arrays: NumPy finds places and steps,
makes the results and gives up the interpreter lock, all in 0.4 us; by `ctypes` the place of one
array costs that. Ours have core dims (NumPy's "generalised ufuncs"): rows, in most of them.

They are made by NumPy's C interface, a table of functions whose order never changes, with the
inner loops of `render/runtime/rows.py`. What they are made of lives as long as the process.
"""

from __future__ import annotations

import ctypes
import functools
from importlib import import_module

import numpy as np

__all__ = ["ELEMENTS", "ROWS", "STEPS", "ufunc"]


def _numbers(given: int, made: int) -> str:
    """The core dims of a function of numbers."""
    return f"{','.join(['()'] * given)}->{','.join(['()'] * made)}"


# The modules of native code for rows, and the functions of each: core dims of operands and results
# ("n" the row, "1" what is kept of it, "m" the rows where sums go over them, "g" a row for each of
# several gates, "v" rows that others are added to, "c" channels, "k" the first few), and their
# types ("r" that of the row, "d" float64, "l" int64).
ROWS: dict[str, dict[str, tuple[str, str]]] = {
    "softmax": {
        "softmax": ("(n)->(n)", "r->r"),
        "softmax_slope": ("(n),(n)->(n)", "rr->r"),
    },
    "log_softmax": {
        "log_softmax": ("(n)->(n)", "r->r"),
        "log_softmax_slope": ("(n),(n)->(n)", "rr->r"),
    },
    "class_log_probs": {
        "class_log_probs": ("(n),()->(),(n)", "rl->rr"),
        "class_slope": ("(n),(),()->(n)", "rlr->r"),
    },
    "logsumexp": {
        "logsumexp": ("(n)->()", "r->r"),
        "logsumexp_slope": ("(n),(),()->(n)", "rrr->r"),
    },
    "standardise": {
        "standardise": ("(n),()->(n),(1),(1)", "rr->rrr"),
        "standardise_slope": ("(n),(n),(1),()->(n)", "rrrr->r"),
    },
    "lstm": {
        "lstm": ("(g),(g),(n)->(n),(n),(n),(g)", "rrr->rrrr"),
        "lstm_slope": ("(n),(n),(g),(n),(n)->(g),(n)", "rrrrr->rr"),
    },
    "gru": {
        "gru": ("(g),(g),(n)->(n),(g)", "rrr->rr"),
        "gru_slope": ("(n),(g),(g),(n)->(g),(g),(n)", "rrrr->rrr"),
    },
    "running": {
        "running_sum": ("(n)->(n)", "r->r"),
        "running_sum_back": ("(n)->(n)", "r->r"),
        "running_product": ("(n)->(n)", "r->r"),
    },
    "recurrence": {
        "recurrence": ("(n),(n)->(n)", "rr->r"),
        "recurrence_back": ("(n),(n)->(n)", "rr->r"),
    },
    "firsts": {
        "largest": ("(n),(k)->(k),(k)", "rr->rl"),
        "smallest": ("(n),(k)->(k),(k)", "rr->rl"),
    },
    "added_rows": {
        "added_rows": ("(m),(m,n),(v)->(v,n)", "lrr->r"),
        "rows_added_to": ("(m),(m,n),(v,n)->(v,n)", "lrr->r"),
    },
    "batch_norm": {
        "batch_norm": ("(m,c,n),(c),(c),()->(m,c,n),(c),(c),(c)", "rrrr->rddd"),
        "batch_norm_slope": ("(m,c,n),(m,c,n),(c),(c),(c)->(m,c,n),(c),(c)", "rrrdd->rdd"),
    },
    "layer_norm": {
        "layer_norm": ("(n),(n),(n),()->(n)", "rrrr->r"),
        "layer_norm_slope": ("(m,n),(m,n),(n),()->(m,n),(n),(n)", "rrrr->rdd"),
    },
}

# Ops of numbers whose formula, made of the vector functions of lang/routines/elementary.py, is a
# ufunc of its own, in a module of the same name; activations with their slopes, after a cotangent.
# For each function how many operands are arrays, and how many numbers follow, which are mostly the
# same for all elements.
_ACTIVATIONS = {
    "huber": 1,
    "smooth_l1": 1,
    "elu": 1,
    "selu": 2,
    "celu": 1,
    "leaky_relu": 1,
    "hardtanh": 2,
    "hardsigmoid": 0,
    "hardswish": 0,
    "hardshrink": 1,
    "softshrink": 1,
}
ELEMENTS = {name: {name: (1, 0)} for name in ("erf", "log_sigmoid", "sigmoid", "softplus")} | {
    name: {name: (1, more), f"{name}_slope": (2, more)} for name, more in _ACTIVATIONS.items()
}
ROWS |= {
    module: {
        name: (_numbers(arrays + more, 1), f"{'r' * (arrays + more)}->r")
        for name, (arrays, more) in functions.items()
    }
    for module, functions in ELEMENTS.items()
}

# Steps of optimizers, in one pass over arrays that are written to: how many of these there are, the
# first operands, and how many numbers follow the gradient behind them.
STEPS = {
    "sgd_step": (1, 1),
    "momentum_step": (2, 2),
    "adam_step": (3, 7),
    "rmsprop_step": (2, 4),
    "rmsprop_momentum_step": (3, 5),
    "adagrad_step": (2, 2),
    "adadelta_step": (3, 4),
}
ROWS |= {
    name: {name: (_numbers(count + 1 + more, count), f"{'r' * (count + 1 + more)}->{'r' * count}")}
    for name, (count, more) in STEPS.items()
}

# Places in the table of the ufunc interface (numpy/_core/code_generators/numpy_api.py).
_MAKE = 31
_NO_IDENTITY = -1

_alive: list[object] = []


def ufunc(name: str, signature: str, types: str, loop: int) -> np.ufunc:
    """Return a ufunc of one inner loop.

    Parameters
    ----------
    name : str
    signature : str
        Core dims, as "(n),()->(n)"; a ufunc of numbers has none, and its loop is given all of them
        at once.
    types : str
        Characters of dtypes, as "dd->d".
    loop : int
        The address of a function of places, sizes, steps and nothing.
    """
    given, _, made = types.partition("->")
    numbers = bytes(np.dtype(c).num for c in given + made)
    loops, data = (ctypes.c_void_p * 1)(loop), (ctypes.c_void_p * 1)(None)
    texts = [ctypes.create_string_buffer(t) for t in (numbers, name.encode(), signature.encode())]
    _alive.extend((loops, data, *texts))
    kinds, called, core = texts
    dims = core if any(letter in signature for letter in "mngvck1") else None
    return _maker()(
        loops, data, kinds, 1, len(given), len(made), _NO_IDENTITY, called, called, 0, dims
    )


@functools.cache
def _maker():
    """PyUFunc_FromFuncAndDataAndSignature."""
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    # NumPy's type stubs do not tell of it.
    table = import_module("numpy._core._multiarray_umath")._UFUNC_API
    functions = (ctypes.c_void_p * (_MAKE + 1)).from_address(pointer(table, None))
    address = functions[_MAKE]
    assert address is not None
    place, number = ctypes.c_void_p, ctypes.c_int
    types = (*[place] * 3, *[number] * 4, *[place] * 2, number, place)
    return ctypes.PYFUNCTYPE(ctypes.py_object, *types)(address)
