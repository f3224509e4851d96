"""What kernels with many walkers have in common: their settings, their starts, whom they look at.

A step moves each walker once, one after the other; where it is sent depends on where some of the
others stand by then. Each walker's move leaves the target invariant given the others, so the whole
step leaves the product of targets invariant. `AIES` (aies.py), `DEMetropolis`
(differential_evolution.py) and `ESS` (ensemble_slice.py) say what a move is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.mcmc.kernel import Kernel, statistic
from probtorch.infer.mcmc.kernels.random_walk import PointState, accept_probability
from probtorch.ops.arithmetic import floor, where
from probtorch.ops.control import while_loop
from probtorch.ops.indexing import index_put

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.potential import Target

__all__ = ["EnsembleInfo", "EnsembleKernel", "Proposal", "others_of"]

# Where a walker is sent, the log of what its move does to volumes, and a uniform number: below the
# acceptance probability it goes there.
Proposal: TypeAlias = tuple[TensorBase, TensorBase, TensorBase]


@record
class EnsembleInfo:
    """For each walker: the acceptance of its proposal, its log density, and one evaluation."""

    accept_prob: TensorBase = statistic("acceptance_rate")
    lp: TensorBase = statistic("lp")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


def others_of(drawn: TensorBase, walkers: int, count: int) -> list[TensorBase]:
    """Return how many places after a walker others stand that are drawn without replacement.

    Parameters
    ----------
    drawn : Tensor, shape (count, walkers)
        Uniform on (0, 1).
    walkers : int
    count : int

    Returns
    -------
    list of Tensor, each (walkers,), int64
        For each walker, different numbers from 1 to ``walkers - 1``.
    """
    chosen: list[TensorBase] = []
    for i in range(count):
        # The n-th of those that are left: past each chosen one that is not behind it, in order.
        place = 1 + floor((walkers - 1 - i) * drawn[i]).long()
        for before in _ascending(chosen):
            place = where(place >= before, place + 1, place)
        chosen.append(place)
    return chosen


def _ascending(numbers: list[TensorBase]) -> list[TensorBase]:
    """Sort up to two tensors, element by element."""
    assert len(numbers) <= 2
    if len(numbers) < 2:
        return numbers
    first, second = numbers
    return [where(first < second, first, second), where(first < second, second, first)]


class EnsembleKernel(Kernel[PointState]):
    """A kernel whose state has a number of walkers, each of which is a chain of the result.

    Parameters
    ----------
    walkers : int
        Points of an ensemble, twice the dimensions at least.
    """

    walkers: int = static(default=32)

    # Walkers that a move needs, the one that moves among them.
    fewest: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.walkers, int) and self.walkers >= self.fewest):
            raise ArgumentError(
                f"{self.name}(walkers=...)",
                expected=f"an int of at least {self.fewest}",
                got=repr(self.walkers),
                fix="give twice the dimensions of the posterior, or more",
            )

    @property
    def members(self) -> int:
        """How many points a state holds."""
        return self.walkers

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "walkers": self.walkers}

    def first_values(
        self, target: Target, state: PointState, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return nothing, after a look at the walkers.

        Raises
        ------
        ArgumentError
            If they are fewer than twice the dimensions.
        InferenceError
            If they all lie in a plane, which no move leaves.
        """
        if self.walkers < 2 * target.dim:
            raise ArgumentError(
                f"{self.name}(walkers=...)",
                expected=f"at least {2 * target.dim}, twice the dimensions",
                got=str(self.walkers),
                fix=f"write {self.name}(model, walkers={2 * target.dim}), or use NUTS",
            )
        spread = state.position.array - state.position.array.mean(axis=0)
        rank = int(np.linalg.matrix_rank(spread / np.maximum(spread.std(axis=0), 1e-300)))
        if rank < target.dim:
            raise InferenceError(
                f"{self.name}: where the walkers start",
                expected=f"points that span {target.dim} dimensions",
                got=f"points that span {rank}",
                fix="give initial_params a row for each walker, or leave them out",
            )
        return {}

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> PointState:
        """Return the state at positions, shape (walkers, dim)."""

        def evaluate(carry: tuple[TensorBase, TensorBase]) -> tuple[TensorBase, TensorBase]:
            k, values = carry
            return k + 1, index_put(values, (k,), self.density(position[k])[0])

        start = wrap(np.array(0)), wrap(np.zeros(self.walkers))
        _, values = while_loop(lambda carry: carry[0] < self.walkers, evaluate, start)
        return PointState(position, values, as_tensor(counter))

    def moved(
        self,
        state: PointState,
        propose: Callable[[TensorBase, TensorBase], Proposal],
        used: int,
    ) -> tuple[PointState, EnsembleInfo]:
        """Return ``(state, info)`` after one proposal for each walker, in turn.

        Parameters
        ----------
        state : PointState
        propose : callable
            ``propose(k, position)`` for walker k, with all where they stand by then.
        used : int
            Random numbers for each walker.
        """
        count = state.position.shape[0]

        def move(
            carry: tuple[TensorBase, TensorBase, TensorBase, TensorBase],
        ) -> tuple[TensorBase, TensorBase, TensorBase, TensorBase]:
            k, position, logdensity, accept = carry
            proposal, log_ratio, threshold = propose(k, position)
            value, _ = self.density(proposal)
            accept_prob = accept_probability(log_ratio + value - logdensity[k])
            accepted = threshold < accept_prob
            return (
                k + 1,
                index_put(position, (k,), where(accepted, proposal, position[k])),
                index_put(logdensity, (k,), where(accepted, value, logdensity[k])),
                index_put(accept, (k,), accept_prob),
            )

        none = wrap(np.zeros(count))
        start = wrap(np.array(0)), state.position, state.logdensity, none
        _, position, logdensity, accept = while_loop(lambda c: c[0] < count, move, start)
        new = PointState(position, logdensity, state.counter + used * count)
        return new, EnsembleInfo(accept, logdensity, wrap(np.ones(count, np.int64)))
