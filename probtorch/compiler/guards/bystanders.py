"""Bystanders: locks, loggers' handlers, streams, progress bars, consoles and figures.

They serve to lock, to log or to show, hold much that changes all the time, and have no say in any
number as long as code does only that with them. Code that has a name for something that they hold
(`bar.n`, `handler.level`) may compute with it: then that is watched. What it names and is no plain
attribute is computed by a call, and so the calls of such a function are listened to: those that
only show (`SHOWING`) are nobody's affair, others make it run eagerly.
"""

import collections
import types
from collections.abc import Callable

import numpy as np

from probtorch.compiler.guards.reading import attribute, has_dict

__all__ = ["COUNTED", "SHOWING", "all_names", "named_parts", "unread"]

# Methods that lock, log or show, of whatever class.
SHOWING = frozenset(
    """
    acquire release debug info warning error critical exception handle emit format write writelines
    flush print log rule print_exception print_json update set_description set_description_str
    set_postfix set_postfix_str refresh display clear close reset unpause advance start stop
    __init__ __new__ __enter__ __exit__ __iter__ __del__ __call__
    """.split()
)
# A bar that was made outside is gone through without a name for what it counts. What is none of
# these kinds cannot be watched: loaders and the like, which go on each time.
COUNTED = "iterable"
_WATCHED = (list, tuple, dict, set, range, collections.deque, np.ndarray)
# Those of whoever runs tests, which nobody's model asks for anything.
_OF_TESTS = ("_pytest", "pluggy")
_STORED = (types.MemberDescriptorType, types.GetSetDescriptorType)


def named_parts(x, names):
    """Return what of a bystander has one of these names.

    Returns
    -------
    places : list of (callable, object, str, object)
        Attributes, as `Places.add` takes them.
    called : bool
        Whether something is not there to be read, but computed by a method or property.
    """
    own = attribute(x, "__dict__") if has_dict(x) else None
    own, called = own if type(own) is dict else {}, False
    places: list[tuple[Callable[..., object], object, str, object]] = []
    for name in names:
        if name == COUNTED and type(own.get(name)) not in _WATCHED:
            continue
        if name in own:
            places.append((dict.get, own, name, own[name]))
        elif name not in SHOWING and not name.startswith("__"):
            kinds = (vars(c) for c in type(x).__mro__)
            member = next((found[name] for found in kinds if name in found), None)
            if isinstance(member, _STORED):
                places.append((_stored, x, name, _stored(x, name)))
            elif member is not None:
                called = True
    return places, called


def unread(x):
    """Whether a bystander counts what cannot be watched: going through it is a call to hear."""
    own = attribute(x, "__dict__") if has_dict(x) else None
    counted = own.get(COUNTED) if type(own) is dict else None
    return counted is not None and type(counted) not in _WATCHED


def all_names(x):
    """Names of all that a bystander holds, for code that asks by a name that it computes."""
    if type(x).__module__.partition(".")[0] in _OF_TESTS:
        return ()
    own = attribute(x, "__dict__") if has_dict(x) else {}
    stored = (n for c in type(x).__mro__ for n, m in vars(c).items() if isinstance(m, _STORED))
    return [n for n in (*own, *stored) if type(n) is str and not n.startswith("__")]


def _stored(x, name):
    """What an attribute holds that C keeps; None where there is no answer."""
    try:
        return attribute(x, name)
    except Exception:
        return None
