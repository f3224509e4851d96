"""`OfSeries`: what filters return for a series given by functions, asked as any other result is.

There is no model with sites to run again. Draws of the states are named ``states``, the data
``observations``; densities of the data and replications come from the observation's distribution,
time by time.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Unpack

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.arguments import count_of
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.validation import validation_enabled
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.model_runs import in_float64
from probtorch.infer.of_draws import OfDraws
from probtorch.infer.results import ArvizGroups, SampledDraws

__all__ = ["Given", "OfSeries"]

# A distribution of what comes next, given states (particles, *event) and the time.
Given = Callable[[TensorBase, int], Distribution]
STATES, DATA = "states", "observations"


class OfSeries(OfDraws):
    """Base of the states of a series.

    A subclass keeps in `_made` what was drawn, and has the data in `observations`, shape (times,
    *event); None where they are not known.
    """

    observations: np.ndarray | None
    _made: dict[object, SampledDraws]

    @abc.abstractmethod
    def _states(self, num_draws: int, generator: Generator) -> np.ndarray:
        """Draws of the states, shape (num_draws, times, *event)."""

    @abc.abstractmethod
    def _observation(self) -> Given | None:
        """What an observation is drawn from, given states (draws, *event) and the time."""

    def _drawn(self, num_draws: int, seed: int | Generator) -> SampledDraws:
        """Draws of the states as one chain, with the data and their densities."""
        name = f"{type(self).__name__}.draws"
        count = count_of(name, "num_draws", num_draws)
        key, again = (count, seed), not isinstance(seed, Generator)
        if again and key in self._made:
            return self._made[key]
        states = self._states(count, generator_of(seed))
        groups: dict[str, dict[str, np.ndarray]] = {}
        if self.observations is not None:
            groups["observed_data"] = {DATA: self.observations}
            densities = self._densities(states)
            if densities is not None:
                groups["log_likelihood"] = {DATA: densities[None]}
        made = SampledDraws(
            {STATES: states[None]},
            dims={STATES: ("time",), DATA: ("time",)} if groups else {STATES: ("time",)},
            coords={"time": np.arange(states.shape[1])},
            groups=groups,
            attrs={
                "inference_library": "probtorch",
                "inference_method": type(self).__name__,
                "model_name": "series",
            },
        )
        if again:
            self._made[key] = made
        return made

    def _densities(self, states: np.ndarray) -> np.ndarray | None:
        """Of the observation of each time at each draw, (draws, times), 0 where it is missing.

        None where a part of one is missing, or nothing is known of how states are observed.
        """
        observation, y = self._observation(), self.observations
        assert y is not None  # who asks has looked
        gaps = np.isnan(y.reshape(len(y), -1)) if y.dtype.kind == "f" else np.zeros((len(y), 1))
        missing = gaps.all(axis=1)
        if observation is None or (gaps.any(axis=1) & ~missing).any():
            return None
        found = np.zeros(states.shape[:2])
        with no_grad(), in_float64(), validation_enabled(False):
            for t in np.flatnonzero(~missing).tolist():
                fn = observation(wrap(states[:, t]), t)
                found[:, t] = to_host(fn.log_prob(wrap(y[t])).array)
        return found

    def predict(
        self, *args: object, seed: int | Generator | None = None, **kwargs: object
    ) -> dict[str, np.ndarray]:
        """Draw the observations again, a series for each of the states in ``draws()``.

        Parameters
        ----------
        seed : int or Generator, optional
            Where random numbers come from; the default generator if None.
        *args, **kwargs
            None: there is no model to call.

        Returns
        -------
        dict of str to ndarray, {"observations": (1, draws, times, *event)}

        Raises
        ------
        ArgumentError
            If there are arguments.
        InferenceError
            If what observes the states is not known: the result was read from a file.
        """
        kind = type(self).__name__
        if args or kwargs:
            raise ArgumentError(
                f"{kind}.predict",
                expected="a seed alone: the series is drawn again from its states",
                got=f"{len(args) + len(kwargs)} arguments",
                fix="to go on beyond its end, call the transition with the states of the last time",
            )
        observation = self._observation()
        if observation is None:
            raise InferenceError(
                f"{kind}.predict",
                expected="states that know how they are observed",
                got="states read from a file or a pickle",
                fix="run the filter again",
            )
        states, generator = self.draws()[STATES][0], generator_of(seed)
        count, times = states.shape[:2]
        rows = []
        with no_grad(), in_float64():
            for t in range(times):
                fn = observation(wrap(states[:, t]), t)
                lacking = () if tuple(fn.batch_shape) == (count,) else (count,)
                rows.append(to_host(fn.sample(lacking, generator=generator).array))
        return {DATA: np.stack(rows, axis=1)[None]}

    def replications(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return `predict` with this seed."""
        return self.predict(seed=seed)

    def extended(self, **groups: Unpack[ArvizGroups]) -> SampledDraws:
        """Return the draws with more groups of ArviZ's schema; see `SampledDraws.extended`."""
        if groups.get("posterior_predictive") is True:
            groups["posterior_predictive"] = self.predict(seed=groups.get("seed"))
        return self.draws().extended(**groups)
