"""Where a chain stands, as plain data: for checkpoints, journals and other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from probtorch.core.typed import Tree

if TYPE_CHECKING:
    from probtorch.infer.mcmc.running import RunningTrace
    from probtorch.infer.mcmc.standstill import Standstill

__all__ = ["ChainCopy", "ChainSnapshot"]


class ChainSnapshot(TypedDict):
    """A chain between two stretches, as it is saved: what `ChainRun` has under these names."""

    leaves: list[np.ndarray]
    segment: int
    done: int
    iteration: int
    divergences: int
    evaluations: int
    warmup_evaluations: int
    warming_up: bool
    extensions: list[int]
    moved: bool
    course: np.ndarray
    accepted: np.ndarray
    learner: Tree
    draws: Tree
    warmup: Tree


@dataclass(frozen=True)
class ChainCopy:
    """A chain as it travels, to a worker and back.

    Attributes
    ----------
    snapshot : ChainSnapshot
        Of its draws the row that is being filled, and those drawn since it left.
    step_size : float
    trace : RunningTrace
    standstill : Standstill
    """

    snapshot: ChainSnapshot
    step_size: float
    trace: RunningTrace
    standstill: Standstill
