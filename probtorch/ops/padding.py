"""Padding: a border around the last dims, of a constant or of the elements inside.

Compositions of movement ops, so every mode differentiates any number of times and compiles. Widths
are listed as PyTorch lists them: ``(left, right)`` of the last dim first, then of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probtorch.backends.registry import array_module as namespace
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.shape import parse_size
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.ops.movement import expand, slice_, unslice
from probtorch.ops.pieces import cat

__all__ = ["beside", "pad"]


def beside(x: TensorBase, array: np.ndarray) -> TensorBase:
    """Return a NumPy array as a tensor on the device of `x`."""
    return as_tensor(namespace(x.array).asarray(array))


def _part(x: TensorBase, dim: int, start: int, step: int, count: int) -> TensorBase:
    spec = [(0, 1, n) for n in x.array.shape]
    spec[dim] = (start, step, count)
    return slice_(x, tuple(spec))


def _constant(
    x: TensorBase, dim: int, left: int, right: int, value: float | None
) -> tuple[TensorBase, TensorBase]:
    def block(width: int) -> TensorBase:
        shape = list(x.array.shape)
        shape[dim] = width
        return expand(beside(x, np.asarray(value).astype(x.array.dtype)), shape)

    return block(left), block(right)


def _reflect(
    x: TensorBase, dim: int, left: int, right: int, value: float | None
) -> tuple[TensorBase, TensorBase]:
    n = x.array.shape[dim]
    return _part(x, dim, left, -1, left), _part(x, dim, n - 2, -1, right)


def _replicate(
    x: TensorBase, dim: int, left: int, right: int, value: float | None
) -> tuple[TensorBase, TensorBase]:
    def block(width: int, at: int) -> TensorBase:
        shape = list(x.array.shape)
        shape[dim] = width
        return expand(_part(x, dim, at, 1, 1), shape)

    return block(left, 0), block(right, x.array.shape[dim] - 1)


def _circular(
    x: TensorBase, dim: int, left: int, right: int, value: float | None
) -> tuple[TensorBase, TensorBase]:
    n = x.array.shape[dim]
    return _part(x, dim, n - left, 1, left), _part(x, dim, 0, 1, right)


# Each gives the two borders of one dim; the second number of a row says by how much a border must
# be narrower than the dim.
_MODES = {
    "constant": (_constant, None),
    "reflect": (_reflect, 1),
    "replicate": (_replicate, None),
    "circular": (_circular, 0),
}


@in_our_words
def pad(
    input: TensorLike, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> TensorBase:
    """Return `input` with a border around its last dims.

    Parameters
    ----------
    input : Tensor
    pad : sequence of int
        ``(left, right)`` of the last dim, then of the dim before it, and so on. Negative widths
        cut off, in mode "constant".
    mode : {"constant", "reflect", "replicate", "circular"}
        "reflect" mirrors at the outermost element without repeating it.
    value : float, optional
        Of the border in mode "constant"; 0 by default.

    Returns
    -------
    Tensor

    Raises
    ------
    ArgumentError
        For an unknown mode, an odd number of widths, or a value in another mode.
    ShapeError
        If there are more widths than dims, or a border needs more elements than there are.

    Examples
    --------
    >>> import probtorch
    >>> pad(probtorch.tensor([1, 2, 3]), (1, 2), "reflect")
    tensor([2, 1, 2, 3, 2, 1])
    """
    x = as_tensor(input, "pad")
    widths = parse_size((pad,))
    _check(x, widths, mode, value)
    pairs = [widths[i : i + 2] for i in range(0, len(widths), 2)]
    ndim = x.array.ndim
    if mode == "constant":
        x = _cropped(x, pairs)
        pairs = [(max(a, 0), max(b, 0)) for a, b in pairs]
        if not value:
            return _zeros(x, pairs)
    for i, (left, right) in enumerate(pairs):
        if left or right:
            before, after = _MODES[mode][0](x, ndim - 1 - i, left, right, value)
            x = cat([before, x, after], ndim - 1 - i)
    return x


def _cropped(x: TensorBase, pairs: list[tuple[int, ...]]) -> TensorBase:
    """Cut off where a width is negative."""
    spec = [(0, 1, n) for n in x.array.shape]
    for i, (left, right) in enumerate(pairs):
        start, stop = max(-left, 0), x.array.shape[-1 - i] - max(-right, 0)
        spec[-1 - i] = (start, 1, stop - start)
    return slice_(x, tuple(spec)) if min((w for p in pairs for w in p), default=0) < 0 else x


def _zeros(x: TensorBase, pairs: list[tuple[int, ...]]) -> TensorBase:
    shape = list(x.array.shape)
    spec = [(0, 1, n) for n in shape]
    for i, (left, right) in enumerate(pairs):
        spec[-1 - i] = (left, 1, shape[-1 - i])
        shape[-1 - i] += left + right
    return unslice(x, tuple(spec), tuple(shape)) if tuple(shape) != x.array.shape else x


def _check(x: TensorBase, widths: tuple[int, ...], mode: str, value: float | None) -> None:
    if mode not in _MODES:
        raise ArgumentError(
            "pad", expected=f"a mode among {', '.join(_MODES)}", got=repr(mode), fix="check mode"
        )
    if len(widths) % 2 or (value and mode != "constant"):
        raise ArgumentError(
            "pad",
            expected="pairs (left, right) per dim, and a value only in mode 'constant'",
            got=f"pad={widths}, mode={mode!r}, value={value!r}",
            fix="the last dim comes first: (left, right, top, bottom)",
        )
    shape = x.array.shape
    room = _MODES[mode][1]
    for i in range(len(widths) // 2):
        n = shape[-1 - i] if i < len(shape) else 0
        pair = widths[2 * i : 2 * i + 2]
        fits = i < len(shape) and (
            sum(w for w in pair if w < 0) + n >= 0
            if mode == "constant"
            else min(pair) >= 0 and (max(pair) == 0 or n > 0)
        )
        if not fits or (room is not None and max(pair) > n - room):
            limit = "" if room is None else f", at most {n - room} in mode {mode!r}"
            raise ShapeError(
                "pad",
                expected=f"widths that go with shape {shape}{limit}",
                got=f"{widths}",
                fix="the last dim comes first: (left, right, top, bottom)",
            )
