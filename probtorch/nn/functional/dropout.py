"""Dropout: random zeros in training, the identity otherwise.

The draws come from the default generator, one per element (or per channel), so that a seed fixes
them. What survives is divided by its probability: the expectation does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from probtorch.core.in_place import assign
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.typed import Shape, TensorLike
from probtorch.errors import ShapeError
from probtorch.nn.arguments import fraction
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import ge
from probtorch.ops.sampling import rand
from probtorch.tensor import Tensor

__all__ = [
    "alpha_dropout",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "feature_alpha_dropout",
]

# -scale * alpha of SELU: what it gives for inputs far below 0.
_SELU_FLOOR = -1.7580993408473766


def _kept(x: Tensor, p: float, shape: Sequence[int]) -> Tensor:
    """Return a boolean tensor of `shape`, True with probability 1 - p."""
    return ge(rand(shape, dtype=x.array.dtype, device=x.device), p)


def _drop(
    name: str,
    input: TensorLike,
    p: float,
    training: bool,
    inplace: bool,
    mask_shape: Callable[[Shape], Shape],
) -> Tensor:
    x = as_tensor(input, name)
    fraction(name, "p", p)
    if not training or p == 0.0:
        return x
    if p == 1.0:
        y = x * 0.0
    else:
        y = where(_kept(x, p, mask_shape(x.array.shape)), x / (1.0 - p), 0.0)
    return assign(x, y, name) if inplace else y


@in_our_words
def dropout(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Set each element to 0 with probability `p`, in training; scale the others by 1 / (1 - p)."""
    return _drop("dropout", input, p, training, inplace, lambda shape: shape)


def _channels(name: str, n: int) -> Callable[[Shape], Shape]:
    def mask_shape(shape: Shape) -> Shape:
        if len(shape) not in (n + 1, n + 2):
            raise ShapeError(
                name,
                expected=f"an input with {n + 1} or {n + 2} dims, channels before {n} others",
                got=str(shape),
                fix="use dropout to drop single elements",
            )
        return (*shape[: len(shape) - n], *[1] * n)

    return mask_shape


@in_our_words
def dropout1d(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Set whole channels of (N, C, L) or (C, L) to 0 with probability `p`; see `dropout`."""
    return _drop("dropout1d", input, p, training, inplace, _channels("dropout1d", 1))


@in_our_words
def dropout2d(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Set whole channels of (N, C, H, W) or (C, H, W) to 0 with probability `p`; see `dropout`."""
    return _drop("dropout2d", input, p, training, inplace, _channels("dropout2d", 2))


@in_our_words
def dropout3d(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Set whole channels of (N, C, D, H, W) to 0 with probability `p`; see `dropout`."""
    return _drop("dropout3d", input, p, training, inplace, _channels("dropout3d", 3))


@in_our_words
def alpha_dropout(
    input: TensorLike, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Dropout that keeps mean 0 and variance 1, for networks of SELU units.

    Dropped elements take SELU's lower limit, then all are scaled and shifted back
    (Klambauer et al. 2017, sec. 2).
    """
    return _drop_to_floor("alpha_dropout", input, p, training, inplace, lambda shape: shape)


@in_our_words
def feature_alpha_dropout(
    input: TensorLike, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Drop whole channels of (N, C, *) as `alpha_dropout` drops elements."""

    def mask_shape(shape: Shape) -> Shape:
        if len(shape) < 2:
            raise ShapeError(
                "feature_alpha_dropout",
                expected="an input (N, C, *) with at least 2 dims",
                got=str(shape),
                fix="use alpha_dropout to drop single elements",
            )
        return (*shape[:2], *[1] * (len(shape) - 2))

    return _drop_to_floor("feature_alpha_dropout", input, p, training, inplace, mask_shape)


def _drop_to_floor(
    name: str,
    input: TensorLike,
    p: float,
    training: bool,
    inplace: bool,
    mask_shape: Callable[[Shape], Shape],
) -> Tensor:
    x = as_tensor(input, name)
    fraction(name, "p", p)
    if not training or p == 0.0:
        return x
    if p == 1.0:
        y = x * 0.0
    else:
        scale = 1.0 / np.sqrt((1.0 - p) * (1.0 + p * _SELU_FLOOR**2))
        shift = -scale * _SELU_FLOOR * p
        kept = _kept(x, p, mask_shape(x.array.shape))
        y = where(kept, x, _SELU_FLOOR) * float(scale) + float(shift)
    return assign(x, y, name) if inplace else y
