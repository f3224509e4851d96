"""What warm-up made of each chain: its step size and its mass matrix, by site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from probtorch.infer.mcmc.chain import ChainRun
    from probtorch.infer.mcmc.chunk import Chain
    from probtorch.infer.mcmc.metrics import Metric
    from probtorch.infer.potential import Target


__all__ = ["AdaptedChain", "adapted_chains", "aims_of"]


@dataclass(frozen=True)
class AdaptedChain:
    """Step size and mass matrix of a chain.

    Parameters
    ----------
    step_size : float
        Nan for a kernel without.
    metric : str
        "diag", "low_rank", "dense" or "blocks".
    variance : dict of str to ndarray
        The diagonal of the inverse mass matrix, by site, in the shape of its unconstrained values:
        what ``NUTS(inverse_mass_matrix=...)`` takes.
    """

    step_size: float
    metric: str
    variance: dict[str, np.ndarray]
    _metric: Metric = field(repr=False)

    def inverse_mass(self) -> np.ndarray:
        """Return the inverse mass matrix, shape (dim,) where it is diagonal, else (dim, dim)."""
        if self.metric == "diag":
            return self._metric.variance()
        return self._metric.inverse_mass()


def adapted_chains(chains: Sequence[Chain], target: Target) -> list[AdaptedChain]:
    """Return what is adapted in each `Chain` of a target; without a metric, nothing is."""
    found = []
    for chain in chains:
        metric = getattr(chain.kernel, "metric", None)
        if metric is None:
            continue
        variance = metric.variance()
        by_site = {
            name: variance[slot.start : slot.stop].reshape(slot.free_shape)
            for name, slot in target.slots.items()
        }
        step_size = getattr(chain.kernel, "step_size", None)
        step_size = np.nan if step_size is None else float(step_size.array)
        found.append(AdaptedChain(step_size, metric.name, by_site, metric))
    return found


def aims_of(runs: Sequence[ChainRun]) -> list[np.ndarray]:
    """Return what the tuner of each chain aims at as it stands; none where any has no tuner.

    Parameters
    ----------
    runs : sequence of ChainRun

    Returns
    -------
    list of ndarray
        0-d each, but where several numbers are tuned to aims of their own.
    """
    found, stacks = [], dict[int, np.ndarray]()
    for run in runs:
        row = run.runner.row
        # Chains that are rows together are asked together.
        if row is not None and id(row[0]) in stacks:
            found.append(stacks[id(row[0])][row[1]])
            continue
        tuner = run.runner.chain.tuner if row is None else row[0].tuners()
        if tuner is None:
            return []
        aims = tuner.aimed_at().array
        if row is None:
            found.append(aims)
        else:
            stack, number = row
            stacks[id(stack)] = aims
            found.append(aims[number])
    return found
