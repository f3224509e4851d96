"""`OfDraws`: what results have that are told by draws, which are made when they are asked for.

So a fitted guide, an approximation and weighted particles answer to the calls that `SampledDraws`
(results.py) answers to.
"""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from probtorch.core.rng import Generator
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.summary import Summary
from probtorch.infer.results import ArvizGroups, SampledDraws

if TYPE_CHECKING:
    import arviz
    import xarray

__all__ = ["OfDraws"]


class OfDraws(abc.ABC):
    """Base of results with a method `draws`, which keeps in `_made` what it has drawn."""

    @abc.abstractmethod
    def draws(self) -> SampledDraws:
        """Return draws of equal weight as one chain, the same ones every time."""

    @abc.abstractmethod
    def _verdict(self, draws: SampledDraws) -> str:
        """How far the draws are to be believed, as a sentence."""

    def get_samples(
        self, group_by_chain: bool = False, names: str | Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return `draws` by site, each (draw, *shape); see `Draws.get_samples`."""
        return self.draws().get_samples(group_by_chain, names)

    def summary(
        self,
        *,
        names: str | Sequence[str] | None = None,
        hdi_prob: float = 0.9,
        round_to: int | None = None,
    ) -> Summary:
        """Return a table of mean, sd and interval per scalar parameter, with a verdict.

        Parameters
        ----------
        names, hdi_prob, round_to
            See `probtorch.diagnostics.summary`.

        Returns
        -------
        Summary
        """
        draws = self.draws()
        table = draws.summary(names=names, hdi_prob=hdi_prob, round_to=round_to)
        return dataclasses.replace(table, notes=(*table.notes, self._verdict(draws)))

    def predict(
        self, *args: object, seed: int | Generator | None = None, **kwargs: object
    ) -> dict[str, np.ndarray]:
        """Draw what the model predicts, one replication per draw; see `SampledDraws.predict`."""
        return self.draws().predict(*args, seed=seed, **kwargs)

    def log_likelihood(self) -> dict[str, np.ndarray]:
        """Return the log density of each observation; see `SampledDraws.log_likelihood`."""
        return self.draws().log_likelihood()

    def replications(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return replications of the data, one per draw; see `SampledDraws.replications`."""
        return self.draws().replications(seed)

    def extended(self, **groups: Unpack[ArvizGroups]) -> SampledDraws:
        """Return the draws with more groups of ArviZ's schema; see `SampledDraws.extended`."""
        return self.draws().extended(**groups)

    def to_arviz(self, **groups: Unpack[ArvizGroups]) -> arviz.InferenceData | xarray.DataTree:
        """Return the draws for ArviZ, as one chain; keywords are those of `SampledDraws`."""
        return Draws.to_arviz(self.extended(**groups))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the draws to a file; see `Draws.save`."""
        self.draws().save(path)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": {}}  # drawn again when asked for
