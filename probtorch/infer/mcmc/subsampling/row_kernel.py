"""Kernels that look at some rows of the data at a time, which they draw in their own program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import replace
from probtorch.core.typed import TensorLike
from probtorch.infer.mcmc.kernel import Kernel, State
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.infer.mcmc.subsampling.subsampled import SubsampledTarget
from probtorch.infer.potential import Target
from probtorch.ops.arithmetic import floor
from probtorch.ops.pieces import cat

if TYPE_CHECKING:
    from probtorch.compiler.density import NativeDensity

__all__ = ["RowKernel"]

S = TypeVar("S", bound=State)


class RowKernel(Kernel[S]):
    """A kernel that evaluates the density of some rows of a `SubsampledTarget` at a time.

    Attributes
    ----------
    batch : int
        Rows at a time, 0 for all; found in the model.
    rows : Tensor, 0-d
        How many there are.
    """

    moves_particles = False

    batch: int = dataclasses.field(default=0, init=False, metadata={"static": True})
    rows: float | TensorBase = dataclasses.field(default=0.0, init=False)

    def target(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        init_params: TensorLike | Mapping[str, TensorLike] | None = None,
    ) -> Target:
        """Return the `SubsampledTarget` of the model for the arguments of a run."""
        if self.model is None or isinstance(self.model, Target):
            return super().target(args, kwargs, init_params)
        return self.target_of(self.model, tuple(args), dict(kwargs))

    def target_of(
        self, model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> SubsampledTarget:
        """Return the target of a model."""
        return SubsampledTarget(model, args, kwargs)

    def on(self, target: Target) -> Self:
        """Return it with the numbers of rows of a target."""
        if not isinstance(target, SubsampledTarget):
            return self
        return replace(self, batch=target.batch, rows=wrap(np.array(float(target.rows))))

    def native(self, target: Target) -> NativeDensity:
        """Return the density of rows, if the model has a plate that draws them."""
        return target.row_density if isinstance(target, SubsampledTarget) else target.density

    def evaluated_at(self, position: np.ndarray) -> np.ndarray:
        """Return a position with the numbers of the first rows behind it."""
        return np.concatenate([position, np.arange(float(self.batch))])

    def drawn_rows(self, key: Key, counter: TensorBase) -> TensorBase:
        """Return the numbers of as many rows as a batch has, each drawn from all."""
        return floor(self.rows * uniform(key, counter + wrap(np.arange(self.batch))))

    def density_of(self, position: TensorBase, rows: TensorBase) -> tuple[TensorBase, TensorBase]:
        """Return log density and gradient at a position, estimated from rows."""
        if not self.batch:
            return self.density(position)
        value, grad = self.density(cat([position, rows]))
        return value, grad[: position.array.shape[0]]
