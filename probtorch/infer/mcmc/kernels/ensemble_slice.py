"""Ensemble slice sampling: walkers that are slice sampled along the differences of others.

Each walker is updated along the difference of two others (`slice_along` in slice.py), so directions
have the covariance of the walkers. The one setting, how long the first interval is in such
differences, is tuned in warm-up until intervals are stepped out as often as they are shrunk.

References
----------
M. Karamanis, F. Beutler, "Ensemble slice sampling: parallel, black-box and gradient-free inference
for correlated and multimodal distributions", Statistics and Computing 31 (2021).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace
from probtorch.infer.mcmc.kernel import setting, statistic, tuned
from probtorch.infer.mcmc.kernels.ensembles import EnsembleKernel, others_of
from probtorch.infer.mcmc.kernels.random_walk import PointState
from probtorch.infer.mcmc.kernels.slice import slice_along
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.infer.mcmc.warm_up.adaptation import AcceptanceTuner, Warmup
from probtorch.ops.arithmetic import maximum
from probtorch.ops.control import while_loop
from probtorch.ops.indexing import index_put

__all__ = ["ESS", "EnsembleSliceInfo"]


# What is carried from walker to walker: its number, all positions and log densities, the counter,
# and how often the interval of each was expanded and contracted.
_Update: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase]


@record
class EnsembleSliceInfo:
    """For each walker: its log density, what it took, and how its interval was found."""

    lp: TensorBase = statistic("lp")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)
    expansions: TensorBase = statistic()
    contractions: TensorBase = statistic()

    @property
    def expanding(self) -> TensorBase:
        """The share of the expansions in what was done to intervals, of all walkers together."""
        out, back = self.expansions.sum(-1), self.contractions.sum(-1)
        return out / maximum(out + back, 1.0)


class ESS(EnsembleKernel):
    """Ensemble slice sampling with differential moves [karamanis2021]_; `zeus`'s, NumPyro's `ESS`.

    It needs no gradient, rejects nothing, and copes with densities that have jumps. A move costs
    about five evaluations of the density. For elliptical slice sampling see `EllipticalSlice`.

    Each walker is a chain of the result, as for `AIES`: ``num_chains`` ensembles make ``num_chains
    * walkers`` chains. Walkers of one ensemble move along each other, so R-hat between them says
    less than between ensembles: run several.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`. Starting points that are given have a row for each walker of each ensemble.
    walkers : int
        Points of an ensemble, twice the dimensions at least.
    mu : float
        Half the length of the first interval, in differences of two walkers, to begin with or to
        keep. It decides what a draw costs, hardly how good it is.
    tune_mu : bool
        Whether warm-up tunes it.

    References
    ----------
    [karamanis2021]_.

    Examples
    --------
    >>> from probtorch.infer import ESS, MCMC, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(ESS(target, walkers=6), num_samples=1000, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(6 chains x 1000 draws: x (2))
    """

    info = EnsembleSliceInfo
    fewest = 3

    mu: float | TensorBase = tuned(default=1.0, between=(0.0, math.inf))
    tune_mu: bool = setting(default=True)

    @property
    def warmup(self) -> Warmup:
        """The length is tuned until intervals are expanded as often as contracted."""
        tuner = AcceptanceTuner.around(float(self.mu), 0.5, follows="expanding", searches=False)
        return Warmup(tuner=replace(tuner, tunes="mu"), tunes=bool(self.tune_mu))

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "tune_mu": bool(self.tune_mu)}

    def step(self, key: Key, state: PointState) -> tuple[PointState, EnsembleSliceInfo]:
        """Return ``(state, info)`` after an update of each walker along a line."""
        count, _ = state.position.shape
        drawn = uniform(key, state.counter + wrap(np.arange(2 * count).reshape(2, count)))
        first, second = others_of(drawn, count, 2)

        def update(carry: _Update) -> _Update:
            k, position, logdensity, counter, expansions, contractions = carry
            direction = position[(k + first[k]) % count] - position[(k + second[k]) % count]
            walker = PointState(position[k], logdensity[k], counter)
            # Of a difference the interval has 2 mu lengths, as in zeus.
            new = slice_along(self.density, key, walker, direction, 2.0 * self.mu)
            return (
                k + 1,
                index_put(position, (k,), new.state.position),
                index_put(logdensity, (k,), new.state.logdensity),
                new.state.counter,
                index_put(expansions, (k,), new.expansions.double()),
                index_put(contractions, (k,), new.contractions.double()),
            )

        none, counter = wrap(np.zeros(count)), state.counter + 2 * count
        start = wrap(np.array(0)), state.position, state.logdensity, counter, none, none
        _, position, logdensity, counter, expansions, contractions = while_loop(
            lambda carry: carry[0] < count, update, start
        )
        taken = (expansions + contractions).long() + 2
        info = EnsembleSliceInfo(logdensity, taken, expansions, contractions)
        return PointState(position, logdensity, counter), info
