"""Posterior draws by a kernel: chains that run until their draws are as good as independent."""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.rng import Generator
from probtorch.diagnostics.convergence import ess_bulk
from probtorch.errors import InferenceError
from probtorch.infer.calibration.calibrated import INDEPENDENT
from probtorch.infer.calibration.replications import Drawn, Interrupted
from probtorch.infer.calibration.simulated import Arrays, SimulatedTarget
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernel import Kernel

__all__ = ["ChainDrawer", "least_ess", "thinned"]

# Thinning to begin with, and the most that is tried before the draws are taken as they are.
FIRST_THINNING, MAX_THINNING = 2, 32
# Draws of each member of an ensemble, at least: effective sizes are told from them.
FEWEST = 8


class ChainDrawer:
    """Draws by a kernel on a target whose data are exchanged by who calls.

    Parameters
    ----------
    target : SimulatedTarget
    kernel : Kernel
    num_samples, warmup_steps, num_chains : int
    thinning : int or None
        None runs each replication until its draws are worth as many independent ones.
    """

    def __init__(
        self,
        target: SimulatedTarget,
        kernel: Kernel,
        *,
        num_samples: int,
        warmup_steps: int,
        num_chains: int,
        thinning: int | None,
    ) -> None:
        self.target, self.kernel, self.fixed = target, kernel, thinning
        self.num_samples, self.warmup_steps = num_samples, warmup_steps
        self.num_chains = num_chains
        # Members of an ensemble are chains of the result, and share the draws out among them.
        self.each = max(-(-num_samples // (kernel.members or 1)), min(FEWEST, num_samples))
        self._needed: list[float] = []  # thinning that would have done, by replication

    @property
    def name(self) -> str:
        """That of the kernel."""
        return self.kernel.name

    def forget(self) -> None:
        """Choose the thinning anew."""
        self._needed = []

    def __call__(self, data: Arrays, stream: Generator) -> Drawn:
        """Run the chains; the target has the data already."""
        positions, divergences, ess = self._sample(stream)
        points = thinned(positions, self.each).reshape(1, -1, self.target.dim)
        points = thinned(points, self.num_samples * self.num_chains)[0]
        return Drawn(points, ess, positions.shape[1] // self.each, divergences)

    def _sample(self, stream: Generator) -> tuple[np.ndarray, int, float]:
        """Positions (chain, draw, dim) before thinning, divergences, effective draws."""
        wanted = self.each
        mcmc = MCMC(
            self.kernel,
            wanted * (self.fixed or self._thinning()),
            self.warmup_steps,
            num_chains=self.num_chains,
            seed=stream,
            progress_bar=False,
        )
        mcmc.diagnose = False  # it is the ranks that are looked at
        positions, divergences = self._draw(mcmc)
        while True:
            ess = least_ess(positions)
            length = positions.shape[1]
            enough = INDEPENDENT * self.num_samples * self.num_chains
            self._needed.append(length / wanted * enough / max(ess, 1.0))
            if self.fixed or ess >= enough or length >= MAX_THINNING * wanted:
                return positions, divergences, ess
            self._needed.pop()
            more = min(max(int(length * (enough / max(ess, 1.0) - 1.0)), wanted), 3 * length)
            mcmc.post_warmup_state = mcmc.last_state
            mcmc.num_samples = min(more, MAX_THINNING * wanted - length)
            further, diverged = self._draw(mcmc)
            positions = np.concatenate([positions, further], axis=1)
            divergences += diverged

    def _draw(self, mcmc: MCMC) -> tuple[np.ndarray, int]:
        draws = mcmc.run()
        if draws.attrs.get("interrupted"):
            raise Interrupted("Ctrl-C")
        if draws.num_chains < self.num_chains:
            raise InferenceError(
                "sbc",
                expected=f"{self.num_chains} chains",
                got=f"{draws.num_chains}; {draws.attrs.get('failed_chains')}",
                fix="see the error of the chain that failed",
            )
        return draws.positions, int(np.sum(draws.sample_stats.get("diverging", 0)))

    def _thinning(self) -> int:
        """What would have done for most of the last replications."""
        if not self._needed:
            return FIRST_THINNING
        # Draws cost less than a second run.
        guess = math.ceil(np.quantile(self._needed[-20:], 0.8))
        return min(max(guess, 1), MAX_THINNING)


def thinned(positions: np.ndarray, wanted: int) -> np.ndarray:
    """Return so many draws of each chain, evenly spaced, of positions (chain, draw, dim)."""
    rows = np.arange(1, wanted + 1) * positions.shape[1] // wanted - 1
    return positions[:, rows]


def least_ess(positions: np.ndarray) -> float:
    """Return effective draws of the coordinate that has fewest; 0 for one that does not move."""
    return float(np.min(np.nan_to_num(ess_bulk(positions), nan=0.0)))
