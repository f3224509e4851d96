"""Types of tensors beside the plain one, as files know them.

A file of probtorch.serialization holds no Python names. Whoever defines a type of tensors that
files shall hold registers it here, under the name that it has in them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from probtorch.core.tensor_base import TensorBase

__all__ = ["LEAF_TYPES", "LeafType", "leaf_type_of", "register_leaf_type"]


@dataclass(frozen=True)
class LeafType:
    """How tensors of one class are saved.

    Attributes
    ----------
    kind : str
        Its name in files, which stays.
    cls : type
    note : callable
        From a tensor to the one bool that is saved beside its elements.
    make : callable
        ``make(tensor, note)`` from a plain tensor to one of the class, on the same memory.
    wants_gradient : bool
        Whether the note is that a gradient is wanted.
    """

    kind: str
    cls: type[TensorBase]
    note: Callable[[Any], bool]
    make: Callable[[TensorBase, bool], TensorBase]
    wants_gradient: bool


# By their names in files.
LEAF_TYPES: dict[str, LeafType] = {}


def register_leaf_type(
    kind: str,
    cls: type[TensorBase],
    *,
    note: Callable[[Any], bool],
    make: Callable[[TensorBase, bool], TensorBase],
    wants_gradient: bool,
) -> None:
    """Let files hold tensors of a class; see `LeafType`."""
    LEAF_TYPES[kind] = LeafType(kind, cls, note, make, wants_gradient)


def leaf_type_of(t: TensorBase) -> LeafType | None:
    """Return how a tensor's class is saved, None if nobody registered that very class."""
    return next((found for found in LEAF_TYPES.values() if found.cls is type(t)), None)
