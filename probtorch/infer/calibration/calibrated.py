"""`Calibration`: ranks of many replications, whether they are uniform, and what was noticed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.infer.calibration.sbc_plot import ecdf_difference_figure
from probtorch.infer.calibration.uniformity import holm, uniformity_pvalue

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["INDEPENDENT", "Calibration"]

# Effective draws per draw that are as good as independence: ranks among 63 draws worth 50 have a
# variance that is 1 % too large, which takes 10^5 replications to see.
INDEPENDENT = 0.8
# Rows of a repr.
SHOWN = 30


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """What `sbc` found.

    Attributes
    ----------
    ranks : dict of str to ndarray of int, each (replications,)
        How many of `num_draws` posterior draws lie below the value that the data were made with, by
        quantity; ties are broken at random.
    pvalues : dict of str to float
        Of uniformity, by quantity; exact (`uniformity.py`).
    adjusted : dict of str to float
        The same, adjusted for the number of quantities (Holm).
    level : float
        Chance of a false alarm that the verdict keeps to.
    num_draws : int
        Posterior draws per replication, of all chains.
    name : str
        Of the model and of what sampled it.
    ess : ndarray, shape (replications,)
        Effective draws before thinning, of the parameter that has fewest; of weighted draws by
        their weights; nan where it is not known (particles of `SMC`).
    thinning : ndarray of int, shape (replications,)
    divergences : ndarray of int, shape (replications,)
    failed : dict of int to Exception
        Replications that could not be run, by number; they have no ranks.
    wanted : int
        Replications that were asked for.
    """

    ranks: dict[str, np.ndarray]
    level: float
    num_draws: int
    name: str
    ess: np.ndarray
    thinning: np.ndarray
    divergences: np.ndarray
    failed: dict[int, Exception]
    wanted: int
    pvalues: dict[str, float] = field(init=False)
    adjusted: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        found = {name: uniformity_pvalue(x, self.num_draws) for name, x in self.ranks.items()}
        adjusted = holm(np.array(list(found.values())))
        object.__setattr__(self, "pvalues", found)
        object.__setattr__(self, "adjusted", dict(zip(found, map(float, adjusted))))

    @property
    def replications(self) -> int:
        """Replications that have ranks."""
        return len(self.ess)

    @property
    def calibrated(self) -> bool:
        """Whether no quantity's ranks speak against uniformity, at `level` for all together."""
        return min(self.adjusted.values()) > self.level

    @property
    def verdicts(self) -> dict[str, bool]:
        """Whether each quantity is calibrated, as far as can be seen."""
        return {name: p > self.level for name, p in self.adjusted.items()}

    def plot(
        self, path: str | os.PathLike[str] | None = None, names: Iterable[str] | None = None
    ) -> Figure | str:
        """Draw, for each quantity, how far the ECDF of its ranks is from uniform, with its band.

        Parameters
        ----------
        path : str or path-like, optional
            File to write; the ending chooses the format (png, pdf, svg).
        names : sequence of str, optional
            Which quantities; at most 20 are drawn, those with the smallest p-values.

        Returns
        -------
        str or matplotlib.figure.Figure
            The path; without one the figure.

        Notes
        -----
        A curve leaves its band somewhere with probability `level` divided by the number of
        quantities, if inference is right: so any curve outside is a verdict. A curve above 0 has
        too many small ranks: draws lie too high. Up, then down: draws too narrow; down, then up:
        too wide.
        """
        return ecdf_difference_figure(self, path, names)

    def __repr__(self) -> str:
        order = sorted(self.pvalues, key=lambda name: self.pvalues[name])
        width = max(len("quantity"), *(len(name) for name in order[:SHOWN]))
        of = "" if self.wanted == self.replications else f" of {self.wanted}"
        done = f"{self.replications}{of} replications, {self.num_draws} draws each"
        lines = [
            f"Calibration of {self.name}: {done}",
            f"{'quantity':{width}}  p-value  adjusted  ranks",
        ]
        for name in order[:SHOWN]:
            shape = "uniform" if self.verdicts[name] else _shape(self.ranks[name], self.num_draws)
            p, adjusted = _shown(self.pvalues[name]), _shown(self.adjusted[name])
            lines.append(f"{name:{width}}  {p:>7}  {adjusted:>8}  {shape}")
        if len(order) > SHOWN:
            lines.append(f"and {len(order) - SHOWN} more with larger p-values")
        bad = sum(not good for good in self.verdicts.values())
        chance = f"(chance of a false alarm: {self.level:g})"
        lines.append(
            f"calibrated, as far as this can tell {chance}"
            if not bad
            else f"not calibrated: {bad} of {len(order)} quantities {chance}"
        )
        lines += self.notes()
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """Return what happened on the way that bears on the verdict, a line each."""
        notes, of = [], self.replications
        if self.failed:
            number, error = next(iter(self.failed.items()))
            first = f"{type(error).__name__}: {error}".splitlines()[0]
            notes.append(f"{len(self.failed)} replications failed; number {number}: {first}")
        diverging = int((self.divergences > 0).sum())
        if diverging:
            notes.append(f"{diverging} of {of} replications had divergences")
        few = int((self.ess < INDEPENDENT * self.num_draws).sum())
        if few:
            notes.append(
                f"{few} of {of} replications have fewer effective draws than draws: their ranks "
                "are too often small or large; more warmup_steps, more draws or a larger thinning "
                "would tell"
            )
        return notes


def _shown(p: float) -> str:
    return f"{p:.3f}" if p >= 1e-3 else f"{p:.0e}"


def _shape(ranks: np.ndarray, num_draws: int) -> str:
    """What ranks that are not uniform look like, in words."""
    share = (ranks + 0.5) / (num_draws + 1) - 0.5
    shift = share.mean() * math.sqrt(12.0 * len(ranks))
    # The fourth moment of a uniform variable on (-1/2, 1/2) is 1/80.
    spread = ((share**2).mean() - 1.0 / 12.0) / math.sqrt((1 / 80 - 1 / 144) / len(ranks))
    words = []
    if abs(spread) > 2.5:
        words.append("draws too narrow, or not independent" if spread > 0 else "draws too wide")
    if abs(shift) > 2.5:
        words.append("draws too low" if shift > 0 else "draws too high")
    return "; ".join(words) or "not uniform"


explain_calls(globals())
