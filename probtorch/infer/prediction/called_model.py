"""`CalledModel`: a model as it was called, for draws that are of no density on R^n.

Particles, runs with sites of their own and simulators come without a `ModelTarget` (potential.py);
what `SampledDraws` (results.py) asks of that, predictions and densities of the data, it asks of
this in its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.diagnostics.draws import Draws
from probtorch.effects.handlers import condition, uncondition
from probtorch.effects.params import ParamStore
from probtorch.effects.runtime import STATE, Handler
from probtorch.errors import InferenceError
from probtorch.infer.model_runs import untraced
from probtorch.infer.potential import ModelTarget
from probtorch.infer.prediction.each_run import (
    UNSHARED,
    Values,
    log_likelihood_by_runs,
    predicted_by_runs,
)
from probtorch.infer.prediction.predictive import Predictive, log_likelihood

__all__ = ["CalledModel"]


def _handlers_here() -> tuple[Handler, ...]:
    with untraced():
        return STATE.handlers


@dataclass(frozen=True)
class CalledModel:
    """A model, what it was called with, its sites, and the handlers and parameters around it.

    Attributes
    ----------
    model : callable
    args, kwargs
    latent, observed : tuple of str
        Sites that there are draws of, and those with data.
    unseen : tuple of str
        Latent sites without draws: inside of plates that work on subsamples, or nuisance.
    data : dict of str to ndarray
        Of a simulator the data by site, which it is not called with.
    handlers : tuple of Handler
    params : ParamStore or None
    """

    model: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    latent: tuple[str, ...]
    observed: tuple[str, ...]
    unseen: tuple[str, ...] = ()
    data: Mapping[str, np.ndarray] = field(default_factory=dict)
    handlers: tuple[Handler, ...] = field(default_factory=_handlers_here)
    params: ParamStore | None = field(default_factory=lambda: STATE.params)

    def predict(
        self,
        draws: Draws,
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
        with self._around():
            if self.is_run_by_run(draws):
                found = predicted_by_runs(model, args, kwargs, _values(draws), seed)
            else:
                sites = self.observed if again else ()
                predictive = Predictive(
                    model, self._latent(draws), return_sites=sites, batch_ndims=2, seed=seed
                )
                found = {name: np.asarray(x) for name, x in predictive(*args, **kwargs).items()}
        return {n: found[n] for n in self.observed if n in found} if again else found

    def log_likelihood(self, draws: Draws) -> dict[str, np.ndarray]:
        """Return the log density of each observation at each draw.

        Returns
        -------
        dict of str to ndarray, each (chain, draw, *observations)

        Raises
        ------
        InferenceError
            If there are data, and none at a sample statement; or of a simulator that draws more
            than what there are draws of.
        """
        if self.data and self.unseen:
            raise _no_density(f"a simulator that draws {_listed(self.unseen)} anew in each run")
        with self._around():
            if self.is_run_by_run(draws):
                values = _values(draws)
                found = log_likelihood_by_runs(self.model, self.args, self.kwargs, values)
            else:
                called = partial(self._with_data(), *self.args, **self.kwargs)
                found = log_likelihood(called, self._latent(draws), batch_ndims=2)
        if self.observed and not found:
            raise _no_density(f"data at {_listed(self.observed)}, which have none")
        return found

    def without_data(self) -> object:
        """Run the model as it was called, with the data taken away."""
        with self._around():
            return uncondition(self.model)(*self.args, **self.kwargs)

    def target(self) -> ModelTarget:
        """Return the posterior of the model as it was called, as a density on R^n.

        Raises
        ------
        InferenceError, ModelError
            If it has none.
        """
        with self._around():
            return ModelTarget(self._with_data(), self.args, dict(self.kwargs))

    def positions(self, draws: Draws, target: ModelTarget) -> np.ndarray:
        """Return the draws as points of the target, shape (chain, draw, dim)."""
        latent, sizes = self._latent(draws), (draws.num_chains, draws.num_draws)
        found = np.empty((*sizes, target.dim))
        for i, j in np.ndindex(*sizes):
            found[i, j] = target.unconstrain({name: x[i, j] for name, x in latent.items()})
        return found

    def is_quick(self, draws: Draws) -> bool:
        """Return whether densities of the data are had for all draws at once."""
        return not (self.data or self.unseen or self.is_run_by_run(draws))

    def is_run_by_run(self, draws: Draws) -> bool:
        """Return whether the model is run once for each draw, in Python: where sites differ."""
        narrowed = any(name not in draws for name in self.latent)
        return bool(_values(draws)) and (bool(draws.attrs.get(UNSHARED)) or narrowed)

    def _with_data(self) -> Callable[..., object]:
        """The model with the data of a simulator at their sites."""
        if not self.data:
            return self.model
        return condition(self.model, {name: wrap(x) for name, x in self.data.items()}, strict=False)

    def _latent(self, draws: Draws) -> dict[str, np.ndarray]:
        missing = [name for name in self.latent if name not in draws]
        if missing:
            raise InferenceError(
                "predictions and densities of the data from draws",
                expected=f"draws of {_listed(self.latent)}",
                got=f"draws without {_listed(missing)}",
                fix="ask before you select some of the variables",
            )
        return {name: draws[name] for name in self.latent}

    @contextlib.contextmanager
    def _around(self) -> Iterator[None]:
        """What held around the inference holds again, inside of what holds now."""
        before = STATE.handlers, STATE.params
        STATE.handlers, STATE.params = (*before[0], *self.handlers), self.params
        try:
            yield
        finally:
            STATE.handlers, STATE.params = before


def _no_density(got: str) -> InferenceError:
    return InferenceError(
        "log densities of the observations",
        expected="data at sample statements that all runs have, given draws of all other sites",
        got=got,
        fix="compare the data with predictions instead: draws.predict()",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _values(draws: Draws) -> Sequence[Sequence[Values]]:
    """Of draws of whole runs each run, by chain and draw; of others nothing."""
    return getattr(draws, "values", ())
