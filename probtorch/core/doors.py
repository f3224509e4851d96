"""Doors: where a lower room reaches a higher one, which it must not import.

A room imports only from lower floors. The few things below that need one from above have a name for
it in their own module, which the module above fills when it is imported. All such names are listed
here, each with its reason; tests/contracts/test_doors.py counts them and finds whoever makes
another. What many may fill (the registry of ops, of divergences, of types that files hold) is a
registry and no door.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType

if TYPE_CHECKING:
    from probtorch.core.history import ViewOps
    from probtorch.core.surroundings import Surroundings


__all__ = [
    "DOORS",
    "Door",
    "errors_raised",
    "native_code",
    "nesting",
    "statements",
    "tensor_class",
    "views",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Door(Generic[T]):
    """A name of a lower module that a higher one fills.

    Attributes
    ----------
    module, name : str
        What is filled. Code there reads a global of its own, which costs nothing.
    owner : str
        The module above that fills it.
    reason : str
        Why the lower one needs it.
    """

    module: str
    name: str
    owner: str
    reason: str

    def fill(self, value: T) -> T:
        """Fill the door; the owner does so, once, when it is imported."""
        setattr(sys.modules[self.module], self.name, value)
        return value

    def open(self) -> T:
        """Return what fills the door, importing the owner for it, which may take long."""
        import_module(self.owner)
        return getattr(sys.modules[self.module], self.name)


errors_raised: Door[Callable[[BaseException], None]] = Door(
    "probtorch.errors",
    "_tell_raised",
    owner="probtorch.core.dispatch",
    reason="an error that depends on the elements of tensors is made anywhere, and whoever listens "
    "to the computation has to hear of it",
)
tensor_class: Door[type[TensorBase]] = Door(
    "probtorch.core.dispatch",
    "_Tensor",
    owner="probtorch.tensor",
    reason="operations make tensors, whose class has the operations as its methods",
)
nesting: Door[Callable[[Sequence[object], DType | None, str], TensorBase]] = Door(
    "probtorch.core.making",
    "_nesting",
    owner="probtorch.nesting",
    reason="operands may be nested sequences, and tensors among them are stacked by an operation",
)
views: Door[ViewOps] = Door(
    "probtorch.core.history",
    "_views",
    owner="probtorch.ops.view_places",
    reason="a view that is changed on the tape is written into its root and read from it again, by "
    "operations",
)
statements: Door[Surroundings] = Door(
    "probtorch.core.surroundings",
    "_surroundings",
    owner="probtorch.effects.params",
    reason="the compiler has to know whether a function performs model statements, and what they "
    "read",
)
native_code: Door[Callable[[str], Callable[..., np.ndarray] | None]] = Door(
    "probtorch.core.native_code",
    "_find",
    owner="probtorch.compiler.machine.eager_code",
    reason="long draws and operations on rows of eager code are done by native code, which the "
    "compiler writes and loads on first use",
)

DOORS = (errors_raised, tensor_class, nesting, views, statements, native_code)
