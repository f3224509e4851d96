"""Softmax over very many classes, of which few are frequent [grave2017]_."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from probtorch.core.dispatch import recorder
from probtorch.core.making import as_tensor
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.nn import functional as F
from probtorch.nn.arguments import Place, whole
from probtorch.nn.containers import ModuleList, Sequential
from probtorch.nn.linear import Linear
from probtorch.nn.module import Module
from probtorch.ops.arithmetic import clamp, where
from probtorch.ops.comparisons import ge, lt
from probtorch.ops.extremes import argmax
from probtorch.ops.gathering import gather, index_select
from probtorch.ops.movement import reshape, squeeze, unsqueeze
from probtorch.ops.padding import beside
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import mean
from probtorch.ops.scattering import index_add
from probtorch.tensor import Tensor

__all__ = ["ASMoutput", "AdaptiveLogSoftmaxWithLoss"]


class ASMoutput(NamedTuple):
    """What `AdaptiveLogSoftmaxWithLoss` returns.

    Attributes
    ----------
    output : Tensor, shape (N,) or ()
        Log probabilities of the targets.
    loss : Tensor, shape ()
        Minus their mean.
    """

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """Log softmax in two levels: frequent classes at once, rare ones in clusters.

    Classes are numbered by how frequent they are, the most frequent being 0. The head decides
    between the classes below ``cutoffs[0]`` and one entry for each cluster; the tail of a cluster
    decides within it, from a projection of the input that is the smaller the rarer its classes are.

    Shapes: inputs (N, in_features) or (in_features,), targets (N,) or ().

    Parameters
    ----------
    in_features, n_classes : int
    cutoffs : sequence of int
        Where clusters begin, ascending, below `n_classes`.
    div_value : float
        The inputs of tail i, from 0 on, have size ``in_features / div_value ** (i + 1)``.
    head_bias : bool
        Whether the head has a bias.
    device, dtype
        Of the parameters.

    Raises
    ------
    ArgumentError
        If `cutoffs` does not ascend between 0 and `n_classes`.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        whole("AdaptiveLogSoftmaxWithLoss", in_features=in_features, n_classes=n_classes)
        given = list(cutoffs)
        ends = [0, *given, n_classes]
        if not given or any(int(c) != c for c in given) or sorted(set(ends)) != ends:
            raise ArgumentError(
                "AdaptiveLogSoftmaxWithLoss",
                expected=f"cutoffs: ascending integers from 1 to {n_classes - 1}, none twice",
                got=repr(cutoffs),
                fix="classes from cutoffs[0] on are rare: those below are in the head",
            )
        self.in_features, self.n_classes, self.cutoffs = in_features, n_classes, ends[1:]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = self.cutoffs[0], len(given)
        self.head_size = self.shortlist_size + self.n_clusters
        place: Place = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, head_bias, **place)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            inner = int(in_features // (div_value ** (i + 1)))
            self.tail.append(
                Sequential(
                    Linear(in_features, inner, False, **place),
                    Linear(inner, self.cutoffs[i + 1] - self.cutoffs[i], False, **place),
                )
            )

    def reset_parameters(self) -> None:
        """Give head and tails new initial values."""
        self.head.reset_parameters()
        for projection in self.tail:
            for part in projection.children():
                part.reset_parameters()

    def forward(self, input: TensorLike, target: TensorLike) -> ASMoutput:
        """Return the log probabilities of the targets, and minus their mean."""
        x, t = self._input(input), as_tensor(target, "AdaptiveLogSoftmaxWithLoss")
        single = x.array.ndim == 1
        if t.array.shape != x.array.shape[:-1]:
            raise ShapeError(
                "AdaptiveLogSoftmaxWithLoss",
                expected=f"targets of shape {x.array.shape[:-1]}",
                got=str(t.array.shape),
                fix="one class per row of the input",
            )
        if t.array.dtype.kind not in "iu":
            raise DTypeError(
                "AdaptiveLogSoftmaxWithLoss",
                expected="integer classes",
                got=str(t.array.dtype),
                fix="convert them with .long()",
            )
        if t.array.size and not 0 <= t.array.min() <= t.array.max() < self.n_classes:
            raise TensorIndexError(
                "AdaptiveLogSoftmaxWithLoss",
                expected=f"classes in [0, {self.n_classes - 1}]",
                got=f"{int(t.array.min())} to {int(t.array.max())}",
                fix="number the classes from 0",
            )
        x, t = (unsqueeze(x, 0), unsqueeze(t, 0)) if single else (x, t)
        head = F.log_softmax(self.head(x), 1)
        entry = clamp(t, max=self.shortlist_size - 1)
        for i, low in enumerate(self.cutoffs[:-1]):
            entry = where(ge(t, low), self.shortlist_size + i, entry)
        output = squeeze(gather(head, 1, unsqueeze(entry, 1)), 1)
        for i, (low, high) in enumerate(zip(self.cutoffs[:-1], self.cutoffs[1:], strict=True)):
            output = output + self._within(i, x, t, low, high)
        loss = -mean(output)
        return ASMoutput(reshape(output, ()) if single else output, loss)

    def _within(self, i: int, x: Tensor, t: Tensor, low: int, high: int) -> Tensor:
        """Return log probabilities within cluster `i`, 0 for targets that are not in it."""
        inside = ge(t, low) & lt(t, high)
        if recorder() is not None:
            # Whose rows these are is known when it is run: all are computed, and chosen.
            found = F.log_softmax(self.tail[i](x), 1)
            place = unsqueeze(clamp(t - low, 0, high - low - 1), 1)
            return where(inside, squeeze(gather(found, 1, place), 1), 0.0)
        none = beside(x, np.zeros(t.array.shape, x.array.dtype))
        (rows,) = inside.array.nonzero()
        if not len(rows):
            return none
        at = beside(x, rows)
        found = F.log_softmax(self.tail[i](index_select(x, 0, at)), 1)
        place = unsqueeze(index_select(t, 0, at) - low, 1)
        return index_add(none, 0, at, squeeze(gather(found, 1, place), 1))

    def _input(self, input: TensorLike) -> Tensor:
        x = as_tensor(input, "AdaptiveLogSoftmaxWithLoss")
        if x.array.ndim not in (1, 2) or x.array.shape[-1] != self.in_features:
            raise ShapeError(
                "AdaptiveLogSoftmaxWithLoss",
                expected=f"an input (N, {self.in_features}) or ({self.in_features},)",
                got=str(x.array.shape),
                fix="in_features is the last size of the input",
            )
        return x

    def log_prob(self, input: TensorLike) -> Tensor:
        """Return the log probabilities of all classes, shape (N, n_classes) or (n_classes,)."""
        x = self._input(input)
        head = F.log_softmax(self.head(x), -1)
        parts = [head[..., : self.shortlist_size]]
        for i, tail in enumerate(self.tail):
            cluster = unsqueeze(head[..., self.shortlist_size + i], -1)
            parts.append(F.log_softmax(tail(x), -1) + cluster)
        return cat(parts, -1)

    def predict(self, input: TensorLike) -> Tensor:
        """Return the most probable class of each row, shape (N,) or ()."""
        return argmax(self.log_prob(input), -1)
