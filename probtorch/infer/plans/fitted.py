"""`Fitted`: what `fit` returns, draws of any engine with the plan that made them and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.rng import Generator
from probtorch.effects.handlers import uncondition
from probtorch.infer.plans.planning import Plan
from probtorch.infer.prediction.predictive import Predictive, log_likelihood
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.run_draws import (
    Values,
    log_likelihood_by_runs,
    mean_over_runs,
    predicted_by_runs,
)

__all__ = ["Fitted", "CalledModel"]


@dataclass(frozen=True)
class CalledModel:
    """A model, what it was called with, and its sites.

    Attributes
    ----------
    model : callable
    args, kwargs
    latent, observed : tuple of str
    """

    model: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    latent: tuple[str, ...]
    observed: tuple[str, ...]

    def predict(
        self,
        draws: Fitted,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        seed: int | Generator | None,
    ) -> dict[str, np.ndarray]:
        """Return what the model predicts from draws; without arguments, replications of the data.

        Returns
        -------
        dict of str to ndarray, each (chain, draw, *shape)
        """
        model, again = self.model, not (args or kwargs)
        if again:
            model, args, kwargs = uncondition(model), self.args, self.kwargs
        if draws.values:
            found = predicted_by_runs(model, args, kwargs, draws.values, seed)
        else:
            predictive = Predictive(model, self._latent(draws), batch_ndims=2, seed=seed)
            found = {name: np.asarray(x) for name, x in predictive(*args, **kwargs).items()}
        return {n: found[n] for n in self.observed if n in found} if again else found

    def log_likelihood(self, draws: Fitted) -> dict[str, np.ndarray]:
        """Return the log density of each observation at each draw.

        Returns
        -------
        dict of str to ndarray, each (chain, draw, *observations)
        """
        if draws.values:
            return log_likelihood_by_runs(self.model, self.args, self.kwargs, draws.values)
        called = partial(self.model, *self.args, **self.kwargs)
        return log_likelihood(called, self._latent(draws), batch_ndims=2)

    def _latent(self, draws: Fitted) -> dict[str, np.ndarray]:
        return {name: draws[name] for name in self.latent if name in draws}


@dataclass(frozen=True, eq=False, repr=False)
class Fitted(SampledDraws):
    """What `fit` returns: draws that know how they were made, and whether to believe them.

    Parameters
    ----------
    plan : Plan
        What was run, and why.
    engine : object
        What ran: `MCMC`, an `SVIResult`, a `PathfinderResult`, `WeightedDraws`, `RunDraws`; None
        for exact draws. Not kept by
        `save` and by pickle.
    verdict : str
        Whether to believe the draws, in words.
    trusted : bool
        The same as yes or no.
    values : sequence of sequence of dict
        By chain and draw, all values of a run by name: of models whose sites change from run to
        run, empty for others. Not kept by `save`.
    call : CalledModel or None
        The model and its arguments, where the draws are of no density. Not kept by `save` and by
        pickle.
    """

    plan: Plan | None = None  # gone where draws were read from a file
    engine: object = None
    verdict: str = ""
    trusted: bool = True
    values: Sequence[Sequence[Values]] = ()
    call: CalledModel | None = None

    def explain(self) -> str:
        """Return what was decided, each decision with its reason, and the verdict."""
        plan = [] if self.plan is None else [self.plan.explain()]
        return "\n".join([*plan, f"verdict: {self.verdict}"])

    def __repr__(self) -> str:
        return f"{SampledDraws.__repr__(self)}\n{self.verdict}"

    def __getstate__(self) -> dict[str, object]:
        return {**SampledDraws.__getstate__(self), "engine": None, "call": None}

    def expectation(self, of: Callable[[Values], ArrayLike]) -> np.ndarray:
        """Return the mean over all draws of a function of one draw, a dict of arrays by name.

        Parameters
        ----------
        of : callable
            Returns a number or an array. Which sites a draw has may differ from draw to draw.

        Raises
        ------
        InferenceError
            If they did, and the draws were read from a file, which has only what all share.
        """
        return mean_over_runs(self, self.values, of)

    def predict(
        self, *args: object, seed: int | Generator | None = None, **kwargs: object
    ) -> dict[str, np.ndarray]:
        """Draw what the model predicts, one replication per draw; see `SampledDraws.predict`.

        Where sites change from run to run, it is run once for each draw, and sites that not all
        runs have in one shape are left out.
        """
        if self.call is None:
            return SampledDraws.predict(self, *args, seed=seed, **kwargs)
        return self.call.predict(self, args, kwargs, seed)

    def _log_likelihood_anew(self) -> dict[str, np.ndarray]:
        if self.call is None:
            return SampledDraws._log_likelihood_anew(self)
        return self.call.log_likelihood(self)

    def _without_data(self) -> Callable[[], object]:
        if self.call is None:
            return SampledDraws._without_data(self)
        return partial(uncondition(self.call.model), *self.call.args, **self.call.kwargs)

    def replications(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return replications of the data, one per draw; see `SampledDraws.replications`."""
        if self.call is None or "posterior_predictive" in self.groups:
            return SampledDraws.replications(self, seed)
        return self.predict(seed=seed)

    def log_likelihood(self) -> dict[str, np.ndarray]:
        """Return the log density of each observation at each draw, computed where it is missing.

        See `SampledDraws.log_likelihood`. Where sites change from run to run, the model is run once
        for each draw, and observed sites that not all runs have in one shape are left out.
        """
        if self.call is None or "log_likelihood" in self.groups:
            return SampledDraws.log_likelihood(self)
        return self.call.log_likelihood(self)
