"""`ABC`: posteriors of models that can be run and have no density.

Approximate Bayesian computation keeps the parameters whose simulated data come within `epsilon` of
the real ones. `ABC` draws from the prior and keeps the closest; `ABCSMC` (abc_smc.py) brings
particles closer stage by stage.

A model says what it simulates in sample statements or by `deterministic`; the names of these sites
are the keys of what was observed. Simulations of all particles are one run where the model bears
that (predictive.py); simulations.py has them, and what the two have in common.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.typed import TensorLike
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import InferenceError
from probtorch.infer.control import Interrupt
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.simulations import (
    Arrays,
    Distance,
    Simulating,
    SimulationProblem,
    Summary,
)

__all__ = ["ABC", "SimulationWarning"]

# Simulations of rejection between two looks at the clock.
BLOCK = 1000


class SimulationWarning(InferenceWarning):
    """Simulations that do not come as close to the data as was asked for."""


class ABC(Simulating):
    """Approximate Bayesian computation by rejection: draws of the prior whose data come close.

    Parameters
    ----------
    model : callable
        Simulates data in sample statements, or under names given by `deterministic`.
    num_samples : int
        How many draws to keep, the closest ones.
    num_simulations : int, optional
        How many to simulate; 20 times as many by default.
    summary : callable, optional
        From a dict of one simulation's data to numbers that are compared; all data by default.
    distance : callable, optional
        ``distance(simulated, real)`` from summaries (simulations, numbers) and (numbers,) to
        distances (simulations,). By default the root mean square of differences, in units of the
        median absolute deviation of each number among the first simulations.
    epsilon : float, optional
        The largest distance that may be kept: then as many as there are, `num_samples` at most.
    parameters : sequence of str, optional
        What draws are kept of; all continuous latent sites by default. Others are nuisance.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.

    References
    ----------
    [pritchard1999]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import ABC
    >>> def model():
    ...     loc = probtorch.sample("loc", dist.Normal(0.0, 2.0))
    ...     probtorch.sample("y", dist.Normal(loc, 1.0).expand([20]).to_event(1))
    >>> y = 1.0 + np.linspace(-1.5, 1.5, 20)
    >>> draws = ABC(model, 200, summary=lambda data: data["y"].mean(), seed=0).run({"y": y})
    >>> bool(abs(draws["loc"].mean() - 1.0) < 0.1)
    True
    """

    @explained("ABC", meant={"draws": "num_samples"})
    def __init__(
        self,
        model: Callable[..., object],
        num_samples: int = 1000,
        num_simulations: int | None = None,
        *,
        summary: Summary | None = None,
        distance: Distance | None = None,
        epsilon: float | None = None,
        parameters: Sequence[str] | None = None,
        seed: int | Generator | None = None,
    ) -> None:
        super().__init__(model, summary, distance, epsilon, parameters, seed)
        self.num_samples = checked_count("ABC", "num_samples", num_samples)
        self.num_simulations = checked_count(
            "ABC",
            "num_simulations",
            20 * self.num_samples if num_simulations is None else num_simulations,
            self.num_samples,
        )

    def __repr__(self) -> str:
        return f"ABC({self._model_name()}, num_samples={self.num_samples})"

    def run(
        self,
        observed: Mapping[str, TensorLike],
        *args: object,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> SampledDraws:
        """Simulate and keep.

        Parameters
        ----------
        observed : dict of str to array_like
            The data, by the names of the sites that simulate them.
        *args, **kwargs
            What the model is called with.
        max_seconds : float, optional
            Simulate no more after this time, as after Ctrl-C: draws are kept of what there is, in
            the share that was asked for, and ``attrs["interrupted"]`` is true.

        Returns
        -------
        SampledDraws
            One chain of independent draws, the closest first; `sample_stats` has ``distance``, and
            `attrs` the ``epsilon`` that was kept to, and ``num_simulations``.

        Raises
        ------
        InferenceError
            If no simulation is within `epsilon`.
        ModelError
            If the model has not the sites, or no continuous latent one.
        ShapeError
            If simulated data have not the shape of the real ones.
        """
        interrupt = Interrupt("ABC.run", max_seconds)
        problem = self._problem(observed, args, kwargs)
        rng = self._generator or default_generator
        parts: list[dict[str, np.ndarray]] = []
        with interrupt:
            # Their own copy: the unit of the distance is found among all simulations.
            interrupt.shows(
                lambda: self._closest(dataclasses.replace(problem), parts, True) if parts else None
            )
            for begin in range(0, self.num_simulations, BLOCK):
                if begin and interrupt.asked:
                    break
                size = min(BLOCK, self.num_simulations - begin)
                parts.append(problem.simulated(rng, None, size))
        draws = self._closest(problem, parts, interrupt.heeded)
        if draws is None:
            within = "a finite distance" if self.epsilon is None else f"within {self.epsilon:g}"
            raise InferenceError(
                "ABC: no simulation is close to the data",
                expected=f"one at least {within}",
                got=f"none of {sum(len(next(iter(part.values()))) for part in parts)}",
                fix="simulate more, allow a larger epsilon, or use ABCSMC",
            )
        return draws

    def _closest(
        self, problem: SimulationProblem, parts: Sequence[Arrays], interrupted: bool
    ) -> SampledDraws | None:
        """The closest of all simulations; None where none is close enough."""
        found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        away = problem.distances(found)
        # As close as asked for: of fewer simulations fewer are kept.
        wanted = -(-self.num_samples * len(away) // self.num_simulations)
        order = np.argsort(away, kind="stable")[:wanted]
        limit = math.inf if self.epsilon is None else self.epsilon
        kept = order[np.isfinite(away[order]) & (away[order] <= limit)]
        if not kept.size:
            return None
        params = {name: found[name][kept] for name in problem.parameters}
        epsilon = float(away[kept].max()) if self.epsilon is None else self.epsilon
        facts: dict[str, object] = {
            "epsilon": epsilon, "num_simulations": len(away), "interrupted": interrupted,
        }  # fmt: skip
        return self._draws(problem, params, away[kept], facts)


explain_calls(globals())
