"""`OfDraws`: what results have that are told by draws, which are made when they are asked for."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

import numpy as np

from probtorch.core.rng import Generator
from probtorch.diagnostics.summary import Summary
from probtorch.infer.results import ArvizGroups, SampledDraws
from probtorch.infer.vi.guide_quality import verdict

if TYPE_CHECKING:
    import arviz
    import xarray

__all__ = ["OfDraws"]


class OfDraws(abc.ABC):
    """Base of results with independent draws and their importance ratios.

    `draws` keeps in `_made` what it has drawn.
    """

    @abc.abstractmethod
    def draws(self) -> SampledDraws:
        """Return draws as one chain, with ``attrs["pareto_k"]``."""

    @property
    def pareto_k(self) -> float:
        """Shape of the tail of the importance ratios of 1000 draws; see `draws`."""
        return float(self.draws().attrs["pareto_k"])

    @property
    def samples(self) -> dict[str, np.ndarray]:
        """1000 draws by site, each (draw, *shape)."""
        return self.draws().get_samples()

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
        return dataclasses.replace(table, notes=(*table.notes, verdict(draws)))

    def predict(
        self, *args: object, seed: int | Generator | None = None, **kwargs: object
    ) -> dict[str, np.ndarray]:
        """Draw what the model predicts, one replication per draw; see `SampledDraws.predict`."""
        return self.draws().predict(*args, seed=seed, **kwargs)

    def to_arviz(self, **groups: Unpack[ArvizGroups]) -> arviz.InferenceData | xarray.DataTree:
        """Return the draws for ArviZ, as one chain; keywords are those of `SampledDraws`."""
        return self.draws().to_arviz(**groups)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the draws to a file; see `Draws.save`."""
        self.draws().save(path)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made": {}}  # drawn again when asked for
