"""What modules and functionals do with arguments: check names and numbers, read PyTorch's forms."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

import numpy as np

from probtorch.backends.registry import device_of, parse_device
from probtorch.core import dtype as dtypes
from probtorch.core.late import difflib
from probtorch.core.memory_format import memory_format as MemoryFormat
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType, DTypeLike
from probtorch.errors import ArgumentError, DTypeError

__all__ = [
    "check_keywords",
    "destination",
    "documented_by",
    "fraction",
    "reduction_of",
    "shown",
    "whole",
]


def whole(owner: str, least: int = 1, **numbers: object) -> None:
    """Check that each number is an integer of at least `least`.

    Raises
    ------
    ArgumentError
        Naming the first that is not.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
            raise ArgumentError(
                owner,
                expected=f"{name}: an integer >= {least}",
                got=f"{name}={value!r}",
                fix=f"check {name}",
            )


def fraction(owner: str, name: str, value: float) -> None:
    """Check that `value` is a probability."""
    if not 0.0 <= value <= 1.0:
        raise ArgumentError(
            owner,
            expected=f"{name}: a probability in [0, 1]",
            got=f"{name}={value!r}",
            fix="p is the share of elements that are dropped",
        )


def reduction_of(
    owner: str, reduction: str, size_average: bool | None = None, reduce: bool | None = None
) -> str:
    """Return the reduction, which old code spells by two booleans (with a warning).

    Raises
    ------
    ArgumentError
        Unless it is "none", "mean" or "sum" (or "batchmean", for the KL divergence).
    """
    if size_average is not None or reduce is not None:
        old = "none" if reduce is False else "sum" if size_average is False else "mean"
        warnings.warn(
            f"size_average and reduce are deprecated: use reduction={old!r}", stacklevel=3
        )
        return old
    allowed = ("none", "mean", "sum", "batchmean")[: 4 if owner == "kl_div" else 3]
    if reduction not in allowed:
        raise ArgumentError(
            owner,
            expected=f"reduction among {', '.join(map(repr, allowed))}",
            got=repr(reduction),
            fix="use 'mean', the default",
        )
    return reduction


class Place(TypedDict):
    """Where the parameters of a layer are made, and of which dtype."""

    device: str | None
    dtype: DTypeLike | None


def destination(
    *args: Any,
    device: str | None = None,
    dtype: DTypeLike | None = None,
    non_blocking: bool = False,
    memory_format: MemoryFormat | None = None,
) -> tuple[str | None, DType | None]:
    """Return (device, dtype) from the ways of calling `to`; `non_blocking` changes nothing here."""
    for a in args:
        if isinstance(a, TensorBase):
            device, dtype = device_of(a.array), a.array.dtype
        elif a is None or isinstance(a, bool):
            continue
        elif isinstance(a, np.dtype) or isinstance(a, type):
            dtype = a
        else:
            device = a
    if dtype is not None:
        dtype = dtypes.as_dtype(dtype)
        if dtype.kind != "f":
            raise DTypeError(
                "Module.to",
                expected="a floating dtype",
                got=str(dtype),
                fix="parameters are floats: use float32 or float64",
            )
    if device is not None:
        parse_device(device)
    return device, dtype


@functools.cache
def _keywords(cls: Any) -> tuple[str, ...] | None:
    """Names that ``cls(...)`` takes by keyword, or None if it takes any."""
    try:
        found = inspect.signature(cls.__init__).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in found):
        return None
    return tuple(p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))[1:]


def check_keywords(cls: type, kwargs: Mapping[str, object]) -> None:
    """Refuse misspelt arguments by name, before Python does it without a hint."""
    allowed = _keywords(cls) if kwargs else None
    if allowed is None:
        return
    also: Mapping[str, object] = getattr(vars(cls).get("__init__"), "also", {})
    for name in kwargs:
        if name not in allowed and name not in also:
            near = difflib.get_close_matches(name, allowed, n=1)
            raise ArgumentError(
                f"{cls.__name__} got an unexpected keyword argument {name!r}",
                expected=f"{cls.__name__}({', '.join(allowed)})",
                got=f"{name}={kwargs[name]!r:.40}",
                fix=f"did you mean {near[0]!r}?" if near else "take the argument out",
            )


def shown(module: object, *names: str) -> str:
    """Return ``name=value, ...`` of some attributes, with ``inplace=True`` last if it is so."""
    parts = [f"{name}={getattr(module, name)!r}" for name in names]
    if getattr(module, "inplace", False):
        parts.append("inplace=True")
    return ", ".join(parts)


_Class = TypeVar("_Class", bound=type)


def documented_by(base: type) -> Callable[[_Class], _Class]:
    """Decorator: the docstring of a class goes on with that of `base` after its first paragraph."""

    def decorate(cls: _Class) -> _Class:
        # The indentation of what the source says is there before Python 3.13 and not from it on;
        # under -OO there are no docstrings at all.
        own, others = inspect.cleandoc(cls.__doc__ or ""), inspect.cleandoc(base.__doc__ or "")
        cls.__doc__ = "\n\n".join(filter(None, (own, others.partition("\n\n")[2]))) or None
        return cls

    return decorate
