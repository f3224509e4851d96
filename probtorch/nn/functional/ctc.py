"""Connectionist temporal classification: the likelihood of a sequence of labels without its timing.

The forward recursion of [graves2006]_ over the labels with blanks between them, in logarithms, as a
`scan` over time: derivatives of any order follow from it, and compiled it is one loop.
"""

from __future__ import annotations

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.core.casting import cast
from probtorch.core.dtype import int64
from probtorch.core.making import as_tensor
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.nn.arguments import reduction_of
from probtorch.nn.functional.loss import reduced
from probtorch.ops.arithmetic import clamp, where
from probtorch.ops.comparisons import ge, gt, lt, ne
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.gathering import gather, index_select
from probtorch.ops.movement import expand, reshape, slice_, unsqueeze
from probtorch.ops.padding import beside
from probtorch.ops.pieces import cat, stack
from probtorch.ops.scans import cumsum
from probtorch.tensor import Tensor

__all__ = ["ctc_loss"]

# Logarithms of what is impossible. Finite, so that no gradient subtracts infinities; what began
# with it stays below a thousandth of it for any length of sequence.
_NEVER = -1e30


def ctc_loss(
    log_probs: TensorLike,
    targets: TensorLike,
    input_lengths: TensorLike,
    target_lengths: TensorLike,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Negative log probability of label sequences, summed over all alignments with the input.

    Parameters
    ----------
    log_probs : Tensor, shape (T, N, C) or (T, C)
        Logarithms of the probabilities of the classes at each step, from `log_softmax`.
    targets : integer Tensor, shape (N, S) or (sum of target lengths,)
        Labels, padded to one length or one sequence after the other; none of them is the blank.
    input_lengths, target_lengths : integer Tensor or tuple of int, shape (N,)
        How many steps and labels of each sequence count.
    blank : int
        The class that stands for no label.
    reduction : {"mean", "sum", "none"}
        "mean" divides each loss by the length of its target before the mean over the batch.
    zero_infinity : bool
        Count targets that are too long for their input as 0 instead of infinity.

    Returns
    -------
    Tensor, shape (), or (N,) without reduction

    Raises
    ------
    ShapeError
        If the shapes or lengths do not go together.
    TensorIndexError
        If a label is no class.
    ArgumentError
        If the blank is no class.
    DTypeError
        If labels or lengths are not integers.

    Notes
    -----
    The gradient is that of this function in `log_probs`: PyTorch adds ``exp(log_probs)`` to it,
    which the gradient of `log_softmax` takes away again.
    """
    reduction = reduction_of("ctc_loss", reduction)
    lp, labels = as_tensor(log_probs, "ctc_loss"), as_tensor(targets, "ctc_loss")
    if lp.array.ndim not in (2, 3) or lp.array.dtype.kind != "f":
        raise ShapeError(
            "ctc_loss",
            expected="log_probs of shape (T, N, C) or (T, C), floats",
            got=f"{lp.array.dtype} of shape {lp.array.shape}",
            fix="time comes first: transpose a batch that does",
        )
    single = lp.array.ndim == 2
    lp = unsqueeze(lp, 1) if single else lp
    steps, batch, classes = lp.array.shape
    if isinstance(blank, bool) or not hasattr(blank, "__index__") or not 0 <= blank < classes:
        raise ArgumentError(
            "ctc_loss",
            expected=f"blank in [0, {classes - 1}]",
            got=repr(blank),
            fix="it is one of the classes",
        )
    if single and labels.array.ndim == 1:
        labels = unsqueeze(labels, 0)
    durations = _lengths("input_lengths", input_lengths, batch, steps)
    sizes = _lengths("target_lengths", target_lengths, batch, None)
    labels = _rows(labels, sizes, batch)
    bad = (labels.array < 0) | (labels.array >= classes)
    used = np.arange(labels.array.shape[1])[None, :] < sizes.array[:, None]
    if (bad & used).any():
        raise TensorIndexError(
            "ctc_loss",
            expected=f"labels in [0, {classes - 1}], log_probs having {classes} classes",
            got=f"target {int(labels.array[bad & used].reshape(-1)[0])}",
            fix="number the labels as the classes are, the blank among them",
        )
    loss = _alignments(lp, _usable(labels, classes), durations, sizes, int(blank))
    impossible = gt(loss, -0.001 * _NEVER)
    loss = where(impossible, 0.0 if zero_infinity else float("inf"), loss)
    if reduction == "mean":
        loss = loss / cast(clamp(sizes, 1), loss.array.dtype)
    return reduced(reshape(loss, ()) if single else loss, reduction)


def _lengths(name: str, given: TensorLike, batch: int, most: int | None) -> Tensor:
    """Return lengths as a tensor (N,), checked."""
    t = as_tensor(given, "ctc_loss")
    if t.array.dtype.kind not in "iu":
        raise DTypeError(
            "ctc_loss",
            expected=f"{name}: integers",
            got=str(t.array.dtype),
            fix="convert them with .long()",
        )
    t = reshape(t, (1,)) if t.array.size == 1 else t
    if t.array.shape != (batch,):
        raise ShapeError(
            "ctc_loss",
            expected=f"{name} of shape ({batch},), the batch of log_probs",
            got=str(t.array.shape),
            fix="one length per sequence",
        )
    if batch and (t.array.min() < 0 or (most is not None and t.array.max() > most)):
        raise ShapeError(
            "ctc_loss",
            expected=f"{name} of at least 0" + ("" if most is None else f" and at most {most}"),
            got=f"{int(t.array.min())} to {int(t.array.max())}",
            fix="log_probs is (T, N, C): time comes first",
        )
    return cast(t, int64)


def _rows(labels: Tensor, sizes: Tensor, batch: int) -> Tensor:
    """Return labels as (N, S), with anything behind the end of a row."""
    if labels.array.dtype.kind not in "iu":
        raise DTypeError(
            "ctc_loss",
            expected="integer targets",
            got=str(labels.array.dtype),
            fix="convert them with .long()",
        )
    shape, longest = labels.array.shape, int(sizes.array.max()) if batch else 0
    if len(shape) == 2 and shape[0] == batch and shape[1] >= longest:
        return cast(labels, int64)
    if len(shape) != 1 or shape[0] < int(sizes.array.sum()):
        raise ShapeError(
            "ctc_loss",
            expected=f"targets ({batch}, S) with S >= {longest}, or ({int(sizes.array.sum())},)",
            got=str(shape),
            fix="target_lengths says how many labels each sequence has",
        )
    if not shape[0]:
        return cast(reshape(labels, (1, 0)).expand((batch, 0)), int64)
    # Rows of the longest that could be: lengths may be others when this is run again.
    start = unsqueeze(cumsum(sizes, 0) - sizes, 1)
    at = clamp(start + beside(labels, np.arange(shape[0])), max=shape[0] - 1)
    found = index_select(labels, 0, reshape(at, (batch * shape[0],)))
    return cast(reshape(found, (batch, shape[0])), int64)


def _usable(labels: Tensor, classes: int) -> Tensor:
    """Return labels that are classes, also behind the end of a row."""
    return clamp(labels, 0, classes - 1)


def _alignments(lp: Tensor, labels: Tensor, durations: Tensor, sizes: Tensor, blank: int) -> Tensor:
    """Return minus the log of the sum over all alignments, shape (N,)."""
    (steps, batch, _), most = lp.array.shape, labels.array.shape[1]
    states = 2 * most + 1
    gap = expand(beside(labels, np.asarray(blank, np.int64)), labels.array.shape)
    between = reshape(stack([gap, labels], -1), (batch, 2 * most))
    # Blank, label, blank, label, ..., blank.
    path = cat([between, expand(beside(labels, np.asarray(blank, np.int64)), (batch, 1))], 1)
    seen = gather(lp, 2, expand(path, (steps, batch, states)))
    never = beside(lp, np.full((batch, 2), _NEVER, lp.array.dtype))
    before = beside(lp, np.where(np.arange(states) == 0, 0.0, _NEVER).astype(lp.array.dtype))
    # A label may follow the one before it without a blank, unless they are equal.
    behind = slice_(path, ((0, 1, batch), (0, 1, max(states - 2, 0))))
    ahead = slice_(path, ((0, 1, batch), (min(2, states), 1, max(states - 2, 0))))
    skips = cat(
        [
            beside(path, np.zeros((batch, min(2, states)), bool)),
            ne(ahead, behind) & ne(ahead, blank),
        ],
        1,
    )

    def reached(alpha: Tensor) -> Tensor:
        """Return the log probability to stay, to go on by one or to skip a blank."""
        wide = cat([never, alpha], 1)
        one = slice_(wide, ((0, 1, batch), (1, 1, states)))
        two = slice_(wide, ((0, 1, batch), (0, 1, states)))
        return logsumexp(stack([alpha, one, where(skips, two, _NEVER)]), 0)

    def step(carry: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], None]:
        alpha, t = carry
        going = unsqueeze(lt(t, durations), 1)
        return (where(going, reached(alpha) + x, alpha), t + 1), None

    # Before the first step only the first state is there, from which the second is reached as well.
    start = expand(before, (batch, states))
    (alpha, _), _ = scan(step, (start, beside(lp, np.zeros((), np.int64))), seen)
    ends = unsqueeze(sizes * 2, 1)
    blank_last = gather(alpha, 1, ends)
    label_last = gather(alpha, 1, clamp(ends - 1, 0))
    label_last = where(ge(ends, 1), label_last, _NEVER)
    return -reshape(logsumexp(cat([blank_last, label_last], 1), 1), (batch,))
