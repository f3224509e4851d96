"""What draws were made from, where the draws alone do not say it any more.

A draw that was rounded to a bound, or to 0 and 1, has lost what it came from, on which its density
depends. So that is kept beside the tensor, which stays as it is; distributions ask for it by the
very tensor that was drawn. An equal tensor is another one, and a changed one too.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence

from probtorch.core.casting import cast
from probtorch.core.dispatch import last_change
from probtorch.core.saved import changed_since
from probtorch.core.typed import TensorLike
from probtorch.distributions.source import Source
from probtorch.tensor import Tensor

__all__ = ["like_origin", "origin_of", "remember"]

# By id of a draw: a weak reference, the way it was made, what it was before, and the tick after
# which a change in place would make that untrue.
_ORIGINS: dict[int, tuple] = {}


def remember(y: Tensor, x: Tensor, way: Sequence[object], rng: Source | None = None) -> Tensor:
    """Return `y` in the dtype of a source, and know from now on that it was made of `x`.

    Parameters
    ----------
    y, x : Tensor
    way : sequence of object
        How `y` is made of `x`; only who goes the very same way is told.
    rng : Source, optional
        In whose dtype the caller will see the draw, who gets this very tensor.
    """
    y = y if rng is None else cast(y, rng.dtype)
    key = id(y)
    alive = weakref.ref(y, lambda _: _ORIGINS.pop(key, None))
    _ORIGINS[key] = alive, tuple(way), x, last_change()
    return y


def like_origin(y: Tensor, part: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a part of `y`, which from now on is known to be made of that part of its origin.

    Parameters
    ----------
    y : Tensor
    part : Tensor
        ``of(y)``.
    of : callable
        Takes the part of a tensor of this shape.
    """
    found = _ORIGINS.get(id(y))
    if found is None or found[0]() is not y or changed_since(y, found[3]):
        return part
    return remember(part, of(found[2]), found[1])


def origin_of(y: TensorLike, way: Sequence[object]) -> Tensor | None:
    """Return what `y` was made of in this way, or None."""
    found = _ORIGINS.get(id(y))
    if found is None or found[0]() is not y or changed_since(y, found[3]):
        return None
    same = len(found[1]) == len(way) and all(map(operator.is_, found[1], way))
    return found[2] if same else None
