"""Short texts of objects: what they were made with, in the form of the call that makes them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping

from probtorch.core.tensor_base import TensorBase

__all__ = ["call_of", "short"]

# Letters of one value, and names of a dict, that are shown.
WIDTH, NAMES = 40, 3


def call_of(obj: object, *hidden: str) -> str:
    """Return ``Class(first, name=value)``: required arguments, and options other than the default.

    Parameters
    ----------
    obj : object
        Keeps arguments of ``__init__`` as attributes of the same names; others are left out.
    *hidden : str
        Arguments that are left out all the same.
    """
    parts = []
    for p in list(inspect.signature(type(obj).__init__).parameters.values())[1:]:
        if p.name in hidden or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        missing = object()
        value = vars(obj).get(p.name, missing)
        if value is missing or value is p.default or (p.default is None and _empty(value)):
            continue
        if p.default is p.empty or p.name == "fn":
            parts.append(short(value))
        elif not _same(value, p.default):
            parts.append(f"{p.name}={short(value)}")
    return f"{type(obj).__name__}({', '.join(parts)})"


def short(value: object) -> str:
    """Return a value in a few letters: functions by name, tensors by shape, dicts by their keys."""
    if isinstance(value, TensorBase):
        return f"Tensor{tuple(value.array.shape)}"
    if isinstance(value, Mapping):
        names = [str(name) for name in list(value)[:NAMES]]
        more = f" and {len(value) - NAMES} more" if len(value) > NAMES else ""
        return f"{{{', '.join(names)}{more}}}"
    if isinstance(value, (list, tuple, set, frozenset)) and len(value) > 2 * NAMES:
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, functools.partial):
        return short(value.args[0] if value.args else value.func)
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name
    text = " ".join(repr(value).split())
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 4]} ..."


def _empty(value: object) -> bool:
    return isinstance(value, (Mapping, list, tuple)) and not value


def _same(a: object, b: object) -> bool:
    try:
        return bool(a == b)
    except Exception:  # what has no truth value is no default
        return False
