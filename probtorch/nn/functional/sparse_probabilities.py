"""Probabilities some of which are 0: projections to the simplex in the place of `softmax`.

Both are powers of ``max(x - t, 0)`` with a threshold t at which they sum to 1. Which elements are
above it is found by sorting; t is then a formula of those alone, and the gradient that of the
formula, exact wherever the elements above it stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.casting import cast, to_float
from probtorch.core.dtype import float16, float32
from probtorch.core.making import as_tensor
from probtorch.core.shape import normalize_dim
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.ops.arithmetic import clamp, sqrt, where
from probtorch.ops.comparisons import gt, isfinite, le
from probtorch.ops.extremes import amax
from probtorch.ops.gathering import gather
from probtorch.ops.movement import movedim, reshape
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.sorting import sort
from probtorch.tensor import Tensor

__all__ = ["entmax15", "sparsemax"]


def sparsemax(input: TensorLike, dim: int = -1) -> Tensor:
    """Return the point of the simplex that is nearest to `input`, with zeros where it has its end.

    Parameters
    ----------
    input : Tensor
        Scores; -inf has probability 0.
    dim : int
        Along which results sum to 1.

    Returns
    -------
    Tensor, shape as input
        nan along rows with nan or inf, or with -inf alone, as for `softmax`.

    Notes
    -----
    Adding a number to all scores changes nothing; a largest one that is ahead of all others by 1
    or more has probability 1. The gradient is that of a linear function of the elements
    that are not 0, and the second one is 0. Costs a sort.

    References
    ----------
    A. F. T. Martins, R. F. Astudillo, "From softmax to sparsemax: a sparse model of attention and
    multi-label classification", ICML 2016, algorithm 1.

    Examples
    --------
    >>> from probtorch import tensor
    >>> sparsemax(tensor([1.0, 0.8, -1.0]))
    tensor([0.6000, 0.4000, 0.0000])
    """
    x, back = _rows("sparsemax", input, dim, 1.0)
    if not x.array.size:
        return back(x)
    with no_grad():
        ordered, counts = _ordered(x)
        sums = cumsum(ordered, -1)
        inside = gt(ordered * counts + 1.0, sums)
        above = gt(x, _last(inside, (sums - 1.0) / counts))
    threshold = (total(where(above, x, 0.0), -1, keepdim=True) - 1.0) / _size(above, x)
    return back(where(above, x - threshold, 0.0))


def entmax15(input: TensorLike, dim: int = -1) -> Tensor:
    """Return probabilities between those of `softmax` and `sparsemax`: smooth, and sparse.

    They are ``argmax(p @ x + H(p))`` over the simplex, where ``H(p) = sum(p - p ** 1.5) / 0.75`` is
    Tsallis's entropy of order 1.5.

    Parameters
    ----------
    input : Tensor
        Scores; -inf has probability 0.
    dim : int
        Along which results sum to 1.

    Returns
    -------
    Tensor, shape as input
        nan along rows with nan or inf, or with -inf alone, as for `softmax`.

    Notes
    -----
    Probabilities go to 0 smoothly, so the gradient is continuous, which that of `sparsemax` is not.
    Costs a sort.

    References
    ----------
    B. Peters, V. Niculae, A. F. T. Martins, "Sparse sequence-to-sequence models", ACL 2019,
    algorithm 2.

    Examples
    --------
    >>> from probtorch import tensor
    >>> entmax15(tensor([1.0, 0.8, -1.0]))
    tensor([0.5705, 0.4295, 0.0000])
    """
    x, back = _rows("entmax15", input, dim, 0.5)
    if not x.array.size:
        return back(x)
    with no_grad():
        ordered, counts = _ordered(x)
        mean = cumsum(ordered, -1) / counts
        spread = cumsum(ordered * ordered, -1) - counts * mean * mean
        thresholds = mean - sqrt(clamp((1.0 - spread) / counts, min=0.0))
        inside = le(thresholds, ordered)
        above = gt(x, _last(inside, thresholds))
    size = _size(above, x)
    mean = total(where(above, x, 0.0), -1, keepdim=True) / size
    away = where(above, x - mean, 0.0)
    spread = total(away * away, -1, keepdim=True)
    root = where(above, away + sqrt((1.0 - spread) / size), 0.0)
    return back(root * root)


def _rows(
    name: str, input: TensorLike, dim: int, scale: float
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Scores as rows whose largest is 0, and what brings probabilities back to where they were."""
    given = to_float(as_tensor(input, name))
    half = given.array.dtype == float16
    x = cast(given, float32) if half else given
    if not x.array.ndim:
        x, dim = reshape(x, (1,)), normalize_dim(dim, 1, name)
    at = normalize_dim(dim, x.array.ndim, name)
    x = movedim(x, at, -1)
    if not x.array.size:
        return x, lambda p: given
    with no_grad():
        largest = amax(x, -1, keepdim=True)
        known = isfinite(largest)
        largest = where(known, largest, 0.0)

    def back(p: Tensor) -> Tensor:
        p = movedim(where(known, p, math.nan), -1, at)
        p = reshape(p, given.array.shape)
        return cast(p, float16) if half else p

    return where(known, (x - largest) * scale, 0.0), back


def _ordered(x: Tensor) -> tuple[Tensor, Tensor]:
    """The scores that may count, in falling order, and how many are at least as large as each.

    A probability is at most 1, so what is below the largest score, 0, by 1 or more has none.
    """
    ordered = sort(clamp(x, min=-1.0), -1, descending=True)[0]
    return ordered, x.new_tensor(np.arange(1.0, x.array.shape[-1] + 1.0))


def _last(inside: Tensor, values: Tensor) -> Tensor:
    """The last value of each row that is inside; the first ones are."""
    return gather(values, -1, total(inside, -1, keepdim=True) - 1)


def _size(above: Tensor, x: Tensor) -> Tensor:
    return total(cast(above, x.array.dtype), -1, keepdim=True)


explain_calls(globals())
