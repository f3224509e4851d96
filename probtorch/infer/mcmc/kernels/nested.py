"""Kernels that run another kernel: what they take over of it.

`NestedKernel` is constructed with a kernel that has a metric, and lends it density and metric at
each step. Model, warm-up and starts are that kernel's; what warm-up tunes, step size and metric,
are fields of the outer one, where the driver finds them. `ReplicaExchange` in replica_exchange.py
and `HMCECS` in hmcecs.py are such kernels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar, cast

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, record, replace
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.kernel import Kernel, State, statistics, tuned
from probtorch.infer.mcmc.kernels.random_walk import PointState
from probtorch.infer.mcmc.kernels.stepping import MetricKernel
from probtorch.infer.mcmc.randomness import Key
from probtorch.infer.mcmc.warm_up.adaptation import DEEPEST, Warmup

if TYPE_CHECKING:
    from probtorch.infer.mcmc.kernels.hmc import HMCInfo
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.potential import Target

__all__ = ["NestedKernel", "Told"]

S = TypeVar("S", bound=State)


@record
class Told:
    """What any kernel's step comes to; all 0-d tensors.

    Parameters
    ----------
    accept_prob : Tensor
        1 where the kernel rejects nothing.
    followed : Tensor
        What its step size is tuned by.
    diverging : Tensor, bool
    n_steps : Tensor, int64
    """

    accept_prob: TensorBase
    followed: TensorBase
    diverging: TensorBase
    n_steps: TensorBase


class NestedKernel(Kernel[S]):
    """A kernel around another one, which has a metric.

    Attributes
    ----------
    inner : Kernel
    step_size, metric, depth : Tensor or record
        Of the inner kernel; None or without effect where it has none.
    """

    moves_particles = False

    inner: MetricKernel[PointState] | None = tuned(default=None)
    step_size: float | TensorBase | None = tuned(default=None)
    metric: object = tuned(default=None)
    depth: int | TensorBase = tuned(default=DEEPEST)

    def _surround(self, kernel: MetricKernel[PointState]) -> None:
        """Take over a kernel, in constructors."""
        if not isinstance(kernel, MetricKernel) or not kernel.takes_any_density():
            raise ArgumentError(
                f"{self.name}(kernel)",
                expected="a kernel with a metric that evaluates the log density and its gradient, "
                "such as HMC(model)",
                got=f"{kernel!r:.60}",
                fix=f"write {self.name}(NUTS(model))",
            )
        self._set(
            model=kernel.model,
            potential_fn=kernel.potential_fn,
            init_strategy=kernel.init_strategy,
            reparam=kernel.reparam,
            density=None,
            inner=kernel,
            step_size=getattr(kernel, "step_size", None),
            metric=kernel.metric,
            depth=DEEPEST,
        )

    @abstractmethod
    def first_of(self, state: S) -> PointState:
        """Return the inner kernel's state at the position, with the counter."""

    @abstractmethod
    def kernel_of(self, state: S) -> MetricKernel[PointState]:
        """Return the inner kernel at work in that state."""

    # ----------------------------------------------------------------------- as the inner one says

    @property
    def _inner(self) -> MetricKernel[PointState]:
        assert self.inner is not None
        return self.inner

    @property
    def warmup(self) -> Warmup:
        """That of the inner kernel, by what `followed` says."""
        warmup = self._inner.warmup
        if warmup.tuner is None:
            return warmup
        return replace(warmup, tuner=replace(warmup.tuner, follows="followed"))

    def first_values(
        self, target: Target, state: S, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return what the inner kernel begins with."""
        return self._inner.first_values(target, self.first_of(state), spectrum, warming)

    def blank_values(self, dim: int, leaves: Sequence[np.ndarray]) -> Mapping[str, object]:
        """Return what a saved chain has of the inner kernel."""
        return self._inner.blank_values(dim, leaves[: -self._behind()])

    def dim_of(self, leaves: Sequence[np.ndarray]) -> int:
        """Return the number of coordinates, from the first array of the state."""
        return leaves[-self._behind()].shape[-1]

    def _behind(self) -> int:
        """How many arrays of a chain come behind the kernel: of state, key and tuner."""
        state = self.in_use(_flat).init(wrap(np.zeros(1)))
        return len(flatten(state)[0]) + 2 + len(flatten(self.warmup.tuner)[0])

    def earlier(self) -> Self | None:
        """Return it with the inner kernel as that was."""
        inner = self._inner.earlier()
        return None if inner is None else replace(self, inner=inner)

    def first_guess(self, key: Key, state: S) -> tuple[TensorBase, S]:
        """Return a step size, and the state after the search for it."""
        step_size, first = self.kernel_of(state).first_guess(key, self.first_of(state))
        return step_size, replace(state, counter=first.counter)

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**self._inner.attrs(), "kernel": self.name, "inner_kernel": self._inner.name}

    def in_use(self, density: Density, **values: object) -> Self:
        """Return it on a density, which the inner kernel is lent at each step."""
        inner = self._inner.in_use(cast("Density", None), step_size=None, metric=None, depth=None)
        return super().in_use(density, **{"inner": inner, **values})

    # ------------------------------------------------------------------------------- at each step

    def surrounding(self, density: Density, metric: object) -> MetricKernel[PointState]:
        """Return the inner kernel on a density, with a metric, and what is tuned."""
        shared = {"step_size": self.step_size, "depth": self.depth}
        has = {name: x for name, x in shared.items() if name in self._inner.__tree_fields__}
        return replace(self._inner, density=density, metric=metric, **has)

    def told(self, info: object) -> Told:
        """Return what the info of a step of the inner kernel says."""
        fields = {s.field for s in statistics(self._inner.info)}
        follows = getattr(self._inner, "follows", "accept_prob")
        # Of any info, what it has of this one is read.
        found, one = cast("HMCInfo", info), wrap(np.ones(()))
        return Told(
            found.accept_prob if "accept_prob" in fields else one,
            getattr(found, follows) if follows in fields else one,
            found.diverging if "diverging" in fields else found.n_steps < 0,
            found.n_steps,
        )


def _flat(position: TensorBase) -> tuple[TensorBase, TensorBase]:
    """A density, for the shapes of a state."""
    return wrap(np.zeros(())), 0.0 * position
