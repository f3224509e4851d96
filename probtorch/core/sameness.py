"""`token`: what makes two Python values the same to any code that could look at them.

Equality is too coarse: ``0.0 == -0.0``, ``1 == True``, ``Decimal("1.0") == Decimal("1.000")``, and
a class may say of anything that it is equal. Identity is too fine: numbers are made anew all the
time. `token` gives immutable values a token of their type and all that they hold, and tells
everything else by identity.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import re
import types
import uuid
from typing import Any

import numpy as np

__all__ = ["CLOCKS", "PLAIN", "is_value", "token"]

# Exact types: an instance of a subclass may hold more than its value.
PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_BY_EQUALITY = {bool, int, str, bytes, type(None), type(Ellipsis), type(NotImplemented)}
# Immutable, and of equal representation only if nothing can tell them apart.
_BY_TEXT = {
    complex,
    range,
    datetime.date,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
    pathlib.WindowsPath,
    pathlib.PureWindowsPath,
}
# Immutable, if their time zone is.
CLOCKS = {datetime.datetime, datetime.time}


def token(x: Any) -> object:
    """Return what tells `x` from everything that is not the very same to Python.

    Returns
    -------
    hashable
        With the identity of `x` in it where it is no immutable value: then keep `x` alive.
    """
    kind = type(x)
    if kind in _BY_EQUALITY:
        return kind, x
    if kind is float:
        return kind, x.hex()
    if kind is tuple or kind is frozenset:  # a metaclass may say that it is equal to these
        return kind, kind(map(token, x))
    if kind is slice:
        return kind, token((x.start, x.stop, x.step))
    if kind in _BY_TEXT:
        return kind, repr(x)
    if kind in CLOCKS:
        return kind, repr(x.replace(tzinfo=None)), x.fold, token(x.tzinfo)
    # By the type: `isinstance` asks objects of other classes what theirs is.
    if issubclass(kind, datetime.timezone):
        return kind, repr(x)
    if _is_number(kind) and kind.__module__ == "numpy":
        return kind, x.dtype.str, x.tobytes()
    if issubclass(kind, tuple) and hasattr(x, "_fields") and not hasattr(x, "__dict__"):
        return kind, tuple(map(token, x))
    if _is_frozen(kind) and list(vars(x)) == [f.name for f in dataclasses.fields(kind)]:
        return kind, tuple(map(token, vars(x).values()))
    return kind, id(x)


def _is_number(kind: type) -> bool:
    """Whether a type is one of NumPy's for a number, and none with fields, which may change."""
    return issubclass(kind, np.generic) and not issubclass(kind, np.void)


def _is_frozen(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return (
        parameters is not None
        and parameters.frozen
        and hasattr(kind, "__dict__")
        and all(not hasattr(c, "__slots__") for c in kind.__mro__[:-1])
    )


def is_value(x: Any) -> bool:
    """Whether `x` is immutable and holds nothing that could change."""
    kind = type(x)
    if kind in PLAIN:
        return True
    if kind is tuple or kind is frozenset:  # a metaclass may say that it is equal to these
        return all(map(is_value, x))
    if kind is slice:
        return is_value((x.start, x.stop, x.step))
    if kind in CLOCKS:
        return x.tzinfo is None or isinstance(x.tzinfo, datetime.timezone)
    return (
        kind in _BY_EQUALITY
        or kind in _BY_TEXT
        or issubclass(kind, (datetime.timezone, np.dtype, re.Pattern, types.CodeType))
        or _is_number(kind)
        or (issubclass(kind, enum.Flag) and kind.__module__ in ("re", "enum"))
    )
