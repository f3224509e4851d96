"""`RunDraws`: draws of whole runs of a model, each of which may have sites of its own.

What all runs have in one shape are arrays as of any other draws; what each has is kept by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.draws import Draws
from probtorch.errors import InferenceError
from probtorch.infer.prediction.each_run import UNSHARED, Values
from probtorch.infer.results import SampledDraws

__all__ = ["RunDraws", "mean_over_runs"]


@dataclass(frozen=True, eq=False, repr=False)
class RunDraws(SampledDraws):
    """Draws of runs of a model: what all of them have as arrays, and each by itself.

    Parameters
    ----------
    values : sequence of sequence of dict
        By chain and draw, all values of the run by name. Not kept by `save`.
    """

    values: Sequence[Sequence[Values]] = field(default_factory=tuple)

    def expectation(self, of: Callable[[Values], ArrayLike]) -> np.ndarray:
        """Return the mean over all draws of a function of one draw; see `mean_over_runs`."""
        return mean_over_runs(self, self.values, of)

    def without_first(self, count: int) -> RunDraws:
        """Return the draws of each chain but for the first `count`."""
        return replace(
            self,
            positions=None if self.positions is None else self.positions[:, count:],
            posterior={name: x[:, count:] for name, x in self.posterior.items()},
            sample_stats={name: x[:, count:] for name, x in self.sample_stats.items()},
            values=tuple(chain[count:] for chain in self.values),
        )


def mean_over_runs(
    draws: Draws, values: Sequence[Sequence[Values]], of: Callable[[Values], ArrayLike]
) -> np.ndarray:
    """Return the mean over all draws of a function of one, a dict of arrays by name.

    Parameters
    ----------
    draws : Draws
    values : sequence of sequence of dict
        By chain and draw; empty where all there is of a draw is in `draws`.
    of : callable
        Returns a number, or an array of the same shape for every draw.

    Raises
    ------
    InferenceError
        If runs had sites of their own, which the file that the draws were read from has not.
    """
    if not values and draws.attrs.get(UNSHARED):
        raise InferenceError(
            "the mean over runs",
            expected="draws that have each run by itself",
            got=f"draws read from a file, without {draws.attrs[UNSHARED]}, which some runs had",
            fix="keep them by pickle, or take the mean before they are saved",
        )
    if not values:
        each, posterior = range(draws.num_draws), draws.posterior
        values = [
            [{name: x[i, j] for name, x in posterior.items()} for j in each]
            for i in range(draws.num_chains)
        ]
    return np.mean([np.asarray(of(draw)) for chain in values for draw in chain], axis=0)


explain_calls(globals())
