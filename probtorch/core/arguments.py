"""Checks that many calls make of their arguments, which say what was expected, got, and to do."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import numpy as np

from probtorch.errors import ArgumentError

__all__ = ["choice_of", "count_of"]

T = TypeVar("T")


def count_of(
    call: str,
    name: str,
    value: object,
    least: int = 1,
    *,
    expected: str = "an integer",
    fix: str = "leave it out for the default",
) -> int:
    """Return an argument as an int of at least `least`.

    Parameters
    ----------
    call, name : str
        Whose argument it is, and which.
    value : object
    least : int
    expected, fix : str
        What it is, and one thing to do about it.

    Raises
    ------
    ArgumentError
        If it is none.
    """
    index = getattr(value, "__index__", None)
    if index is None or isinstance(value, (bool, np.bool_)) or index() < least:
        raise ArgumentError(
            f"{call}({name}=...)",
            expected=f"{expected} of at least {least}",
            got=f"{value!r:.60}",
            fix=fix,
        )
    return int(index())


def choice_of(
    call: str,
    name: str,
    value: T,
    known: Collection[object],
    fix: str = "leave it out for the default",
) -> T:
    """Return an argument that is one of `known`.

    Parameters
    ----------
    call, name : str
        Whose argument it is, and which.
    value : object
    known : collection
    fix : str
        One thing to do about it.

    Raises
    ------
    ArgumentError
        If it is none of them.
    """
    if value not in known:
        shown = [repr(choice) for choice in known]
        raise ArgumentError(
            f"{call}({name}=...)",
            expected=" or ".join(shown) if len(shown) < 3 else f"one of {', '.join(shown)}",
            got=f"{value!r:.60}",
            fix=fix,
        )
    return value
