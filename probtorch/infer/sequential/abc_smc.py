"""`ABCSMC`: particles that come closer to the observations, stage by stage [delmoral2012]_.

A random walk moves them, which accepts what simulates data close enough, with as many moves as it
takes nearly all to have moved [drovandi2011]_. `abc.py` has plain rejection, simulations.py what
the two have in common.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.typed import TensorLike, Tree
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import InferenceError, user_frame
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.control import Interrupt
from probtorch.infer.mcmc.kernel import checked
from probtorch.infer.potential import ModelTarget
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential.abc import SimulationWarning
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.saved_particles import (
    ParticleProgress,
    SavedParticles,
    check_densities,
    seed_text,
)
from probtorch.infer.sequential.simulations import (
    Distance,
    Simulating,
    SimulationProblem,
    Summary,
)
from probtorch.infer.sequential.weights import ancestors, uniforms

__all__ = ["ABCSMC"]

# Moves of a stage: until this share of the particles has moved, as the acceptance says, or so many.
MOVED, MOST_MOVES = 0.95, 30
# Moves by which the acceptance of a stage is found, before it is known how many it takes.
PILOT_MOVES = 2
# Scale of the random walk: 2.38^2 / dim times the covariance [roberts1997].
SCALE = 2.38
MOST_STAGES = 100
# Particles that a covariance is taken of.
FEWEST = 5


class _ParametersOnly(Handler):
    """Take all sites but the parameters out of the density, and give them any value."""

    def __init__(self, names: Sequence[str], values: Mapping[str, Site]) -> None:
        super().__init__()
        self.names, self.values = set(names), values

    def on_sample(self, site: Site) -> None:
        if site.name in self.names:
            return
        if site.value is None:
            site.value, site.observed = self.values[site.name].value, True
        site.mask = False


class ABCSMC(Simulating):
    """Approximate Bayesian computation by sequential Monte Carlo [delmoral2012]_.

    Parameters
    ----------
    model, summary, distance, parameters, seed
        As for `ABC`; the unit of the distance is found among draws of the prior.
    num_particles : int
    epsilon : float, optional
        Go on until this distance; without it until particles hardly move any more.
    quantile : float, in (0, 1)
        Share of the particles that each stage keeps.
    min_acceptance : float, in (0, 1)
        Below this acceptance of moves it stops.
    progress_bar : bool
        Whether to show the distances as they are come to.

    References
    ----------
    [delmoral2012]_, [drovandi2011]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import ABCSMC
    >>> def model():
    ...     loc = probtorch.sample("loc", dist.Normal(0.0, 20.0))
    ...     probtorch.sample("y", dist.Normal(loc, 1.0).expand([20]).to_event(1))
    >>> y = 1.0 + np.linspace(-1.5, 1.5, 20)
    >>> smc = ABCSMC(model, 200, summary=lambda data: data["y"].mean(), epsilon=0.01, seed=0)
    >>> bool(abs(smc.run({"y": y})["loc"].mean() - 1.0) < 0.1)
    True
    """

    @explained("ABCSMC", meant={"num_samples": "num_particles", "draws": "num_particles"})
    def __init__(
        self,
        model: Callable[..., object],
        num_particles: int = 1000,
        *,
        summary: Summary | None = None,
        distance: Distance | None = None,
        epsilon: float | None = None,
        quantile: float = 0.5,
        min_acceptance: float = 0.05,
        parameters: Sequence[str] | None = None,
        seed: int | Generator | None = None,
        progress_bar: bool = True,
    ) -> None:
        super().__init__(model, summary, distance, epsilon, parameters, seed)
        self.progress_bar = bool(progress_bar)
        self.num_particles = checked_count("ABCSMC", "num_particles", num_particles, 10)
        self.quantile = checked("ABCSMC", "quantile", quantile, 0.0, 1.0)
        self.min_acceptance = checked("ABCSMC", "min_acceptance", min_acceptance, 0.0, 1.0)

    def __repr__(self) -> str:
        return f"ABCSMC({self._model_name()}, num_particles={self.num_particles})"

    def run(
        self,
        observed: Mapping[str, TensorLike],
        *args: object,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> SampledDraws:
        """Bring particles close to the data.

        Parameters
        ----------
        observed, *args, **kwargs
            As for `ABC.run`.
        checkpoint, checkpoint_every
            As for `SMC.run`.
        max_seconds : float, optional
            End the run after this time, as Ctrl-C does.

        Returns
        -------
        SampledDraws
            One chain; `attrs` has the ``epsilon`` that was come to, and of each stage ``epsilons``
            and ``acceptance_rates``. After Ctrl-C the particles are as close as they were then, and
            ``attrs["interrupted"]`` is true.

        Raises
        ------
        InferenceError
            If too few simulations of the prior have a distance at all.
        ModelError, ShapeError
            As for `ABC.run`.
        ArgumentError
            If the folder has a run with other settings, another model, other data, or another
            summary or distance.
        KeyboardInterrupt
            On Ctrl-C before the first stage.

        Warns
        -----
        SimulationWarning
            If `epsilon` was not come to.
        """
        began = time.perf_counter()
        problem = self._problem(observed, args, kwargs)
        start, rng, moves = (self._generator or default_generator).spawn(3)
        only = _ParametersOnly(problem.parameters, problem.first)
        target = ModelTarget(only(self.model), problem.args, problem.kwargs, whole=True)
        # From here on the default generator stands where a run that is saved had it.
        saved = SavedParticles(
            "ABCSMC", checkpoint, checkpoint_every, self._settings(), (observed, *args), kwargs,
            began,
        )  # fmt: skip
        goal = 0.0 if self.epsilon is None else self.epsilon
        with (
            saved,
            Interrupt("ABCSMC.run", max_seconds) as interrupt,
            ParticleProgress(shown=self.progress_bar) as progress,
        ):
            stages = _Stages(self, problem, target, rng, moves, saved, progress)
            if saved.values is None:
                stages.start(start)
            else:
                stages.restore(saved.values)
            interrupt.shows(lambda: self._result(stages, True) if stages.epsilons else None)
            while not interrupt.asked and stages.advance(goal):
                stages.look()
            saved.update(stages.snapshot, last=True)
        if interrupt.heeded:
            if not stages.epsilons:
                raise interrupt.without("the first stage")
            print(
                f"{interrupt.told}: keeping the particles, which are within {stages.epsilon:.3g} "
                "of the data",
                file=sys.stderr,
                flush=True,
            )
        elif self.epsilon is not None and stages.epsilon > self.epsilon:
            warnings.warn_explicit(
                "ABCSMC stopped before it was as close to the data as was asked for\n"
                f"  expected: an epsilon of {self.epsilon:g}\n"
                f"  got:      {stages.epsilon:.3g}, where {stages.acceptance[-1]:.1%} of the moves "
                "were accepted\n"
                "  fix:      allow a larger epsilon, a smaller min_acceptance, or compare fewer "
                "numbers by summary",
                SimulationWarning,
                *(user_frame() or ("<unknown>", 0)),
            )
        return self._result(stages, interrupt.heeded)

    def _result(self, stages: _Stages, interrupted: bool) -> SampledDraws:
        """The particles as they are; later moves do not change them."""
        found = stages.target.constrain_many(stages.q)
        facts: dict[str, object] = {
            "epsilon": stages.epsilon,
            "epsilons": list(stages.epsilons),
            "acceptance_rates": list(stages.acceptance),
            "num_simulations": stages.simulations,
            "interrupted": interrupted,
        }
        params = {n: found[n] for n in stages.problem.parameters}
        return self._draws(stages.problem, params, stages.away.copy(), facts)

    def _settings(self) -> dict[str, object]:
        """What a checkpoint has to agree in."""
        return {
            "num_particles": self.num_particles,
            "epsilon": self.epsilon,
            "quantile": self.quantile,
            "min_acceptance": self.min_acceptance,
            "parameters": self.parameters,
            "seed": seed_text(self._generator),
        }


# What a snapshot has of the particles of `ABCSMC` under the names of their attributes.
FIELDS = (
    "q", "away", "log_prior", "simulations", "epsilon", "epsilons", "acceptance", "root", "rates",
    "compared",
)  # fmt: skip


class _Stages:
    """The particles of one run of `ABCSMC`, and the stage at hand."""

    def __init__(
        self,
        smc: ABCSMC,
        problem: SimulationProblem,
        target: ModelTarget,
        rng: Generator,
        moves: Generator,
        saved: SavedParticles,
        progress: ParticleProgress,
    ) -> None:
        self.smc, self.problem, self.target = smc, problem, target
        self.rng, self.moves, self.saved, self.progress = rng, moves, saved, progress
        self.q, self.away, self.log_prior = np.empty((0, 0)), np.empty(0), np.empty(0)
        self.simulations = 0
        self.epsilon = math.inf
        self.epsilons: list[float] = []
        self.acceptance: list[float] = []
        # Of the stage at hand: its random walk, and the share that each move took; none between.
        self.root: np.ndarray | None = None
        self.rates: list[float] = []
        # How a few simulations compare with the data, by which a checkpoint knows the distance.
        self.compared: Tree = None

    def start(self, generator: Generator) -> None:
        """Begin at draws of the prior."""
        found = self.problem.simulated(generator, None, self.smc.num_particles)
        self.away = self.problem.distances(found)
        if np.isfinite(self.away).sum() < FEWEST:
            raise InferenceError(
                "ABCSMC: distances of simulations of the prior",
                expected=f"finite numbers, {FEWEST} at least",
                got=f"{int(np.isfinite(self.away).sum())} of {self.away.size} that are",
                fix="look at what the model simulates, and at summary and distance",
            )
        names = self.target.slots
        self.q = np.stack(
            [
                self.target.unconstrain({n: found[n][i] for n in names})
                for i in range(len(self.away))
            ]
        )
        self.log_prior = self._prior(self.q)
        self.simulations = len(self.q)
        self.compared = self.problem.comparison(
            {n: found[n][:FEWEST] for n in self.problem.observed}
        )

    def look(self) -> None:
        """Write a checkpoint and show how far they are, if it is time."""
        self.saved.update(self.snapshot)
        text = f"within {self.epsilon:.3g}, {self.simulations} simulations"
        self.progress.tell(text, len(self.epsilons) / MOST_STAGES)

    def snapshot(self) -> Tree:
        """Return all that the rest depends on, as plain values."""
        return {
            **{name: getattr(self, name) for name in FIELDS},
            "generators": (tuple(self.rng.get_state()), tuple(self.moves.get_state())),
            "scale": self.problem.scale,
        }

    def restore(self, saved: Tree) -> None:
        """Go on from what `snapshot` returned in another process.

        Raises
        ------
        ArgumentError
            If it is of another prior, or compares data by another summary or distance.
        """
        for name in FIELDS:
            value = saved[name]
            setattr(self, name, np.array(value) if isinstance(value, np.ndarray) else value)
        check_densities("ABCSMC", self.log_prior, self._prior(self.q))
        for generator, state in zip((self.rng, self.moves), saved["generators"], strict=True):
            generator.set_state(state)
        self.problem.scale = saved["scale"]
        self.problem.check_comparison("ABCSMC", self.compared)

    def advance(self, goal: float) -> bool:
        """Go on by a move, or to the next epsilon; whether there is more to come."""
        if self.root is None:
            # A finished run that is called again ends as it did.
            return not self._finished(goal) and self._begin_stage(goal)
        self.rates.append(self._move(self.root))
        if len(self.rates) < PILOT_MOVES:
            return True
        rate = max(float(np.mean(self.rates[:PILOT_MOVES])), 1.0 / (PILOT_MOVES * len(self.q)))
        wanted = math.log(1.0 - MOVED) / math.log(max(1.0 - rate, 1e-12))
        if len(self.rates) < min(MOST_MOVES, math.ceil(wanted)):
            return True
        self.acceptance.append(float(np.mean(self.rates)))
        self.root, self.rates = None, []
        return not self._finished(goal)

    def _finished(self, goal: float) -> bool:
        """Whether the stages up to now are all there will be."""
        if not self.acceptance:
            return False
        enough = self.acceptance[-1] >= self.smc.min_acceptance
        return self.epsilon <= goal or not enough or len(self.epsilons) >= MOST_STAGES

    def _begin_stage(self, goal: float) -> bool:
        """Choose an epsilon and resample; whether there is a smaller one."""
        smc, count = self.smc, len(self.q)
        finite = self.away[np.isfinite(self.away)]
        fewest = np.partition(finite, FEWEST - 1)[FEWEST - 1]
        epsilon = max(float(np.quantile(finite, smc.quantile)), float(fewest), goal)
        if epsilon >= self.epsilon and (closer := finite[finite < self.epsilon]).size:
            # Of distances that are many times the same, those that are less.
            epsilon = max(float(np.max(closer)), goal) if closer.size >= FEWEST else epsilon
        kept = self.away <= epsilon
        if epsilon >= self.epsilon:
            return False
        rows = ancestors(kept / kept.sum(), count, self.rng, "systematic")
        spread = np.cov(self.q[kept].T).reshape(self.target.dim, self.target.dim)
        self.q, self.away, self.log_prior = self.q[rows], self.away[rows], self.log_prior[rows]
        self.epsilon = epsilon
        self.epsilons.append(epsilon)
        scale = SCALE / math.sqrt(self.target.dim)
        # A ridge for particles that lie in a plane.
        ridge = 1e-10 * (1.0 + np.trace(spread)) * np.eye(self.target.dim)
        self.root = scale * np.linalg.cholesky(spread + ridge)
        return True

    def _move(self, root: np.ndarray) -> float:
        """Propose a step for each particle; return the share that was taken."""
        count, dim = self.q.shape
        proposed = self.q + _normals(self.moves, count * dim).reshape(count, dim) @ root.T
        log_prior = self._prior(proposed)
        # The prior decides first: what it refuses need not be simulated.
        tried = np.log(uniforms(self.moves, count)) < log_prior - self.log_prior
        if not tried.any():
            return 0.0
        params = self.target.constrain_many(proposed[tried])
        params = {name: params[name] for name in self.problem.parameters}
        found = self.problem.simulated(self.moves, params, int(tried.sum()))
        away = self.problem.distances(found)
        self.simulations += len(away)
        close = away <= self.epsilon
        moved = np.flatnonzero(tried)[close]
        self.q[moved], self.away[moved] = proposed[moved], away[close]
        self.log_prior[moved] = log_prior[moved]
        return moved.size / count

    def _prior(self, q: np.ndarray) -> np.ndarray:
        """Log prior densities of unconstrained parameters; -inf where there is none."""
        values = self.target.value_and_grad_many(q)[0]
        return np.where(np.isnan(values), -np.inf, values)


def _normals(generator: Generator, count: int) -> np.ndarray:
    """Standard normal draws by Box and Muller's formula."""
    half = (count + 1) // 2
    radius = np.sqrt(-2.0 * np.log(uniforms(generator, half)))
    angle = 2.0 * math.pi * uniforms(generator, half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


explain_calls(globals())
