"""`WithRatios`: results whose draws are independent and come with importance ratios."""

from __future__ import annotations

import numpy as np

from probtorch.infer.of_draws import OfDraws
from probtorch.infer.results import SampledDraws
from probtorch.infer.vi.guide_quality import verdict

__all__ = ["WithRatios"]


class WithRatios(OfDraws):
    """Base of results with independent draws and their importance ratios.

    ``draws().attrs["pareto_k"]`` is the verdict on them.
    """

    @property
    def pareto_k(self) -> float:
        """Shape of the tail of the importance ratios of 1000 draws; see `draws`."""
        return float(self.draws().attrs["pareto_k"])

    @property
    def samples(self) -> dict[str, np.ndarray]:
        """1000 draws by site, each (draw, *shape)."""
        return self.draws().get_samples()

    def _verdict(self, draws: SampledDraws) -> str:
        return verdict(draws)
