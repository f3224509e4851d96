"""`SameCall`: what makes a call of a compiled function the same version as the one before.

Most calls are like the one before: tensors of the same shapes, the same numbers. To see that takes
a fraction of the time in which a version's key is made and looked up. What is not seen here to be
the same goes the long way; the guards of the path that is found hold either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.compiler.calls.versions import FIXED
from probtorch.core.sameness import token
from probtorch.core.tensor_base import is_tensor
from probtorch.core.tree import is_leaf_type

if TYPE_CHECKING:
    from probtorch.compiler.calls.replay import Path

__all__ = ["SameCall", "same_call"]

_ndarray = np.ndarray

# How an argument is compared: a tensor by shape, dtype and place on the tape, ...
_TENSOR, _VALUE, _OBJECT, _ITEMS, _ENTRIES = range(5)
# Type, how it is compared, with what, and a tensor's dtype.
_Form: TypeAlias = tuple[type, int, object, object]


class SameCall:
    """The form of a call's arguments.

    Attributes
    ----------
    path : Path
        What served it.
    modes : tuple
        What else of the version's key may change.
    epoch : int
        How often the paths of the function had changed.
    """

    __slots__ = ("_count", "_forms", "_several", "epoch", "modes", "path")

    def __init__(
        self, path: Path, modes: tuple[object, ...], epoch: int, forms: list[_Form], several: bool
    ) -> None:
        self.path, self.modes, self.epoch = path, modes, epoch
        self._forms, self._count, self._several = forms, len(forms), several

    def arrays(self, args: tuple[object, ...]) -> list[np.ndarray] | None:
        """Return the arrays of the tensors among arguments of the same form, None for others."""
        found: list[np.ndarray] = []
        if len(args) != self._count or not _fit(args, self._forms, found):
            return None
        # One array is one tensor's, or it is not told from here.
        if self._several and len(set(map(id, found))) != len(found):
            return None
        return found


def same_call(
    args: tuple[object, ...], path: Path, modes: tuple[object, ...], epoch: int
) -> SameCall | None:
    """Return the form of a call that `path` has just served; None where the next one is not told
    from it quickly.
    """
    forms = _forms(args)
    found: list[np.ndarray] = []
    if forms is None or not _fit(args, forms, found):
        return None
    if len(set(map(id, found))) != len(found):
        return None
    return SameCall(path, modes, epoch, forms, len(found) > 1)


def _forms(items: Iterable[object]) -> list[_Form] | None:
    forms = []
    for x in items:
        form = _form(x)
        if form is None:
            return None
        forms.append(form)
    return forms


def _form(x: object) -> _Form | None:
    kind = type(x)
    if is_tensor(x):
        if hasattr(x, "__dict__"):
            return None  # a user's class, which may be given attributes
        return kind, _TENSOR, x.array.shape, x.array.dtype
    if kind in FIXED:
        return kind, _VALUE, x, None
    if isinstance(x, dict) and kind is dict:
        below = _forms(x.values())
        named = all(type(key) is str for key in x)
        return (kind, _ENTRIES, below, tuple(x)) if below is not None and named else None
    if isinstance(x, (tuple, list)) and kind in (tuple, list):
        below = _forms(x)
        return None if below is None else (kind, _ITEMS, below, None)
    # The path's environment keeps the objects among its arguments.
    if is_leaf_type(kind) and token(x) == (kind, id(x)):
        return kind, _OBJECT, x, None
    return None


def _fit(items, forms, found):
    """Whether as many items have these forms; appends the arrays of tensors among them."""
    for x, (kind, how, what, rest) in zip(items, forms):
        if type(x) is not kind:
            return False
        if not how:
            array = x.array
            if (
                array.dtype is not rest
                or array.shape != what
                or x.requires_grad
                or type(array) is not _ndarray
            ):
                return False
            found.append(array)
        elif how == _VALUE:
            # Equal floats may differ in the sign of zero.
            if x is not what and (x != what or kind is complex or (kind is float and not x)):
                return False
        elif how == _OBJECT:
            if x is not what:
                return False
        elif how == _ITEMS:
            if len(x) != len(what) or not _fit(x, what, found):
                return False
        else:
            if tuple(x) != rest or any(type(key) is not str for key in x):
                return False
            if not _fit(x.values(), what, found):
                return False
    return True
