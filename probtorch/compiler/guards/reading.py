"""What an object holds, read past what a class of the user's may do; and how it was reached.

The walk of `Environment` asks objects nothing, as their answers may be code: attributes, slots and
cells are read as Python itself keeps them. States that modules keep for all (the context of
decimal, how NumPy meets errors) and those of random generators are read as something that can be
compared. A `Way` is what messages call an object.
"""

import functools
import itertools
import random
import sys
import types
from typing import Any

import numpy as np

from probtorch.core.sameness import PLAIN

__all__ = [
    "GENERATORS",
    "OF_MODULES",
    "Way",
    "abc_token",
    "attribute",
    "contents",
    "decimal_context",
    "has_dict",
    "is_filled",
    "item_name",
    "key_label",
    "key_name",
    "length",
    "name_of",
    "none_of",
    "numpy_errors",
    "own_names",
    "pandas_options",
    "print_options",
    "slot",
    "stands_for_another",
    "teller",
    "to_enter",
    "variable",
    "warning_filters",
]

# Of longer dicts and lists the items are not named in messages.
MAX_ITEMS = 512

# ----------------------------------------------------------------------------- parts of an object

attribute = object.__getattribute__


def has_dict(x):
    """Whether an object has attributes of its own besides slots."""
    try:
        attribute(x, "__dict__")
    except AttributeError:
        return False
    return True


def stands_for_another(x):
    """Whether an object says that its class is another one, as proxies and doubles of tests do."""
    kind = type(x)
    return x.__class__ is not kind and kind is not types.GenericAlias


def slot(x, name):
    """What a slot holds, None where it is empty."""
    try:
        return attribute(x, name)
    except AttributeError:
        return None


def contents(cell, _=None):
    """What the cell of a closure holds, None where it is not filled yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def is_filled(cell):
    """Whether the cell of a closure holds anything."""
    try:
        cell.cell_contents  # noqa: B018 - asked whether it is there
    except ValueError:
        return False
    return True


def none_of(d, names):
    """Whether a dict has none of some keys."""
    return d.keys().isdisjoint(names)


def length(x, _):
    """How many items a list has."""
    return list.__len__(x)


def variable(x, _):
    """What a context variable holds, None where it is not set."""
    return x.get(None)


def own_names(cls):
    """Names that a class defines, its bookkeeping aside."""
    return [
        n
        for n, x in cls.__dict__.items()
        if not (n.startswith("__") and n.endswith("__")) or n not in _BOOKKEEPING
    ]


_BOOKKEEPING = {
    "__module__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__qualname__",
    "__firstlineno__",
    "__static_attributes__",
    "__annotations__",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
    "__parameters__",
    "__orig_bases__",
    "__abstractmethods__",
    "__slotnames__",
}

# ------------------------------------------------------------------------ states that modules keep


def decimal_context(module, _):
    """What decimal rounds to in this thread."""
    return repr(module.getcontext())


def numpy_errors(module, _):
    """What NumPy, or `scipy.special`, does about overflow and its kin in this thread."""
    return repr(module.geterr())


# A variable of the context, from NumPy 2.2 on: another dict each time an option is set.
_PRINTING = getattr(sys.modules.get("numpy._core.printoptions"), "format_options", None)
_printing: tuple[object, str] = (None, "")  # the last one, as a text


def print_options(module, _):
    """How NumPy prints arrays in this thread."""
    global _printing
    found = None if _PRINTING is None else _PRINTING.get()
    if found is None or found is not _printing[0]:
        _printing = found, repr(module.get_printoptions())
    return _printing[1]


def pandas_options():
    """The options of pandas, a dict; None where it was not imported."""
    module = sys.modules.get("pandas._config.config")
    return getattr(module, "_global_config", None)


# What the filters of warnings were, by their contents, and a number for it.
_FILTERS: dict[tuple, int] = {}


def warning_filters(module, _):
    """A number for what becomes of warnings in this thread."""
    # From Python 3.14 on a context may have its own.
    found = getattr(module, "_get_filters", lambda: module.filters)()
    return _FILTERS.setdefault(tuple(found), len(_FILTERS))


def abc_token(module, _):
    """What changes with each class that is registered as an abstract one."""
    return module.get_cache_token()


def _numpy_state():
    state: Any = np.random.get_state()
    return state[1].tobytes(), *state[2:]


# The generators that belong to modules: how each tells its state.
OF_MODULES = {"random": random.getstate, "numpy.random": _numpy_state}

_TELLERS = {
    np.random.Generator: lambda x: str(x.bit_generator.state),
    np.random.RandomState: lambda x: str(x.get_state(legacy=False)),
    np.random.BitGenerator: lambda x: str(x.state),
    random.Random: lambda x: x.getstate(),
}
GENERATORS = tuple(_TELLERS)


def teller(generator):
    """Return the function that tells the state of one of `GENERATORS`."""
    tell = next(t for kind, t in _TELLERS.items() if isinstance(generator, kind))
    return functools.partial(tell, generator)


# ---------------------------------------------------------------------------------- ways and names


class Way:
    """How an object was reached.

    Parameters
    ----------
    before : Way or None
        How what holds it was reached.
    label : str
        Where in that it is.
    inside : int, optional
        How many objects of libraries keep it, one within the other; ours count once.
    """

    __slots__ = ("before", "inside", "label")

    def __init__(self, before, label, inside=None):
        self.before, self.label = before, label
        self.inside = inside if inside is not None else before.inside if before is not None else 0

    def __str__(self):
        labels, way = [], self
        while way is not None:
            labels.append(way.label)
            way = way.before
        return "".join(reversed(labels))


def to_enter(items, path):
    """What there is to enter among the items of a container, and how to call it."""
    return [(x, Way(path, f"[{i}]")) for i, x in enumerate(items) if type(x) not in PLAIN]


def name_of(x):
    """What messages call a root."""
    return getattr(x, "__qualname__", None) or type(x).__name__


def item_name(place, i, way):
    """What messages call item `i` of a container, reached by a way."""
    which, whose = "the items", f"a {type(place).__name__}"
    if isinstance(place, list) and list.__len__(place) <= MAX_ITEMS:
        which = f"item {i}"
    return f"{which} of {way and way + ', '}{whose}"


def key_label(key):
    """What follows the way to a dict on the way to a value; no key of a user's class is asked."""
    return f"[{key!r:.40}]" if type(key) in PLAIN else f"[a {type(key).__name__}]"


def key_name(place, i, _way):
    """What messages call value `i` of a dict."""
    return str(next(itertools.islice(dict.__iter__(place), i, None), "a value"))
