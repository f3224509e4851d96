"""`AIS`: annealed importance sampling, weighted particles from the prior to the posterior.

Each particle goes its way alone: at each temperature its weight takes up by how much its density
rises, and a kernel moves it a few steps that leave the density there as it is. Nobody is resampled,
so weights are those of importance sampling, on the space of ways: their mean is an estimate of the
evidence without bias, whatever the kernel and however short its moves.

For that neither temperatures nor kernel may follow from the particles that are weighted. So a
second, smaller set of particles, a pilot, goes ahead: it is resampled and moved as in `SMC`, and
says how far the next temperature may be and what suits the kernel there.

All that the rest of the way depends on is plain arrays between two looks, in the midst of a move
too, so that a run that is killed goes on where it was.

References
----------
R. M. Neal, "Annealed importance sampling", Statistics and Computing 11 (2001).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.typed import Tree
from probtorch.distributions.distribution import Distribution
from probtorch.errors import InferenceError
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.mcmc.kernel import Kernel, checked
from probtorch.infer.potential import Target
from probtorch.infer.sequential.course import MOST_STAGES, check_ratios, next_temperature
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.moved_particles import MovedParticles, ParticleRun
from probtorch.infer.sequential.moves import PartialMove
from probtorch.infer.sequential.saved_particles import put_back, taken_down
from probtorch.infer.sequential.smc import ladder
from probtorch.infer.sequential.tempering import TemperedPath
from probtorch.infer.sequential.weighted_draws import WeightedDraws, weighted
from probtorch.infer.sequential.weights import ancestors, normalised

__all__ = ["AIS"]

# Particles of the pilot, and transitions that each takes at a temperature, at least.
PILOT, PILOT_STEPS = 200, 3
# What a snapshot has of a way under the names of its attributes: numbers, lists and arrays.
FIELDS = (
    "positions", "ratios", "log_weights", "pilot", "pilot_ratios", "temperatures", "aim", "ahead",
)  # fmt: skip


class AIS(MovedParticles["_Way"]):
    """Annealed importance sampling with any kernel: weighted draws, and the evidence without bias.

    Where `SMC` resamples, this weighs: the exponential of ``log_evidence`` has the evidence for its
    mean at any number of particles and temperatures, which bounds and comparisons of models rest
    on. It takes more temperatures than `SMC` for the same error.

    Parameters
    ----------
    kernel : Kernel
        Moves the particles: ``AIS(HMC(model, num_steps=5))``.
    num_particles : int
    num_steps : int
        Transitions of each particle at each temperature.
    ess_threshold : float, in (0, 1)
        How many particles of the pilot each next temperature leaves, in effective number and as a
        share: the nearer to 1, the more temperatures.
    temperatures : sequence of float, optional
        Those to go through instead, ascending, the last one 1.
    reference : Distribution, optional
        Where to begin instead of the prior, a distribution of the unconstrained vector; needed for
        a density that is no model.
    num_threads : int, optional
        As many as there are processors. The draws do not depend on it.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.
    progress_bar : bool
        Whether to show temperatures as they are come to.

    Raises
    ------
    ArgumentError
        If a setting is out of its range, or the kernel moves ensembles or needs a chain of its own.

    References
    ----------
    [neal2001]_.

    Examples
    --------
    >>> import math
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import AIS, RandomWalk
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> tosses = probtorch.tensor([1.0, 1.0, 1.0, 0.0])
    >>> found = AIS(RandomWalk(coin), num_particles=400, seed=0, progress_bar=False).run(tosses)
    >>> abs(found.log_evidence - math.log(1 / 20)) < 4 * found.log_evidence_error < 0.2
    True
    """

    _name = "AIS"

    @explained("AIS", meant={"n_particles": "num_particles", "num_samples": "num_particles"})
    def __init__(
        self,
        kernel: Kernel,
        num_particles: int = 1000,
        *,
        num_steps: int = 1,
        ess_threshold: float = 0.98,
        temperatures: Sequence[float] | None = None,
        reference: Distribution | None = None,
        num_threads: int | None = None,
        seed: int | Generator | None = None,
        progress_bar: bool = True,
    ) -> None:
        super().__init__(kernel, reference, num_threads, seed, progress_bar)
        self.num_particles = checked_count("AIS", "num_particles", num_particles, 2)
        self.num_steps = checked_count("AIS", "num_steps", num_steps)
        self.ess_threshold = checked("AIS", "ess_threshold", ess_threshold, 0.0, 1.0)
        self.temperatures = None if temperatures is None else ladder("AIS", temperatures)

    def __repr__(self) -> str:
        return f"AIS({self.kernel!r}, num_particles={self.num_particles})"

    def run(
        self,
        *args: object,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> WeightedDraws:
        """Go from the prior to the posterior, given the arguments of the model.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        checkpoint, checkpoint_every
            As for `SMC.run`.
        max_seconds : float, optional
            Give up after this time: weights say nothing before the end. With a checkpoint the same
            call goes on from there.

        Returns
        -------
        WeightedDraws
            ``attrs["temperatures"]`` are those that were gone through.

        Raises
        ------
        InferenceError
            If no particle has any weight, or the log likelihood is infinite; or the time was up.
        ArgumentError
            If the folder has a run with other settings, another model or other data.
        FileError
            If the folder cannot be written to when the run begins.
        KeyboardInterrupt
            On Ctrl-C.

        Warns
        -----
        ImportanceWarning
            If Pareto k of the weights is above what so many draws can bear.
        """
        run, way, _ = self._run(args, kwargs, checkpoint, checkpoint_every, max_seconds, streams=4)
        return self._result(run, way)

    def _result(self, run: ParticleRun, way: _Way, *, ended: bool = True) -> WeightedDraws:
        """The particles with their weights, at the end of their way or on it."""
        positions = way.positions if ended else way.positions.copy()
        found = run.target.constrain_many(positions[None])
        facts = {
            **run.kernel.attrs(),
            "inference_library": "probtorch",
            "inference_method": "AIS",
            "temperatures": way.weighed_at,
            "num_steps": self.num_steps,
            "evaluations": run.mutation.evaluations,
            "interrupted": not ended,
        }
        return weighted(
            {name: x[0] for name, x in found.items()},
            way.log_weights,
            "AIS",
            cure="write ess_threshold=0.995 for more temperatures, num_steps=10 for longer moves, "
            "take another kernel, or use SMC",
            dims=run.target.dims,
            coords=run.target.coords,
            attrs=facts,
            target=run.target,
            positions=positions,
            warns=ended,
        )

    def _so_far(self, run: ParticleRun, way: _Way) -> WeightedDraws | None:
        return self._result(run, way, ended=False) if way.weighed_at else None

    def _path(self, target: Target) -> TemperedPath:
        return TemperedPath(target, self.reference)

    def _course(self, run: ParticleRun) -> _Way:
        return _Way(self, run)

    def _own_settings(self) -> dict[str, object]:
        return {
            "num_particles": self.num_particles,
            "num_steps": self.num_steps,
            "ess_threshold": self.ess_threshold,
            "temperatures": self.temperatures,
        }


class _Way:
    """The particles, their weights, and the pilot that goes ahead of them.

    Parameters
    ----------
    ais : AIS
    run : ParticleRun
        Its streams are those of the first particles, of the pilot's resampling, and of the first
        of the pilot.

    Attributes
    ----------
    positions, ratios, log_weights : ndarray, shapes (particles, dim), (particles,), (particles,)
        Where particles stand, their log likelihoods there, and their weights so far.
    pilot, pilot_ratios : ndarray, shapes (PILOT, dim), (PILOT,)
    temperatures : list of float
        Those that all particles have moved at.
    aim : float or None
        The temperature that they are on their way to, None between two of them.
    ahead : bool
        Whether the pilot has moved at that one.
    """

    def __init__(self, ais: AIS, run: ParticleRun) -> None:
        self.ais, self.run = ais, run
        self._first, self._resampling, self._first_of_pilot = run.streams
        self.positions, self.ratios, self.log_weights = np.empty((0, 0)), np.empty(0), np.empty(0)
        self.pilot, self.pilot_ratios = np.empty((0, 0)), np.empty(0)
        self.temperatures: list[float] = []
        self.aim: float | None = None
        self.ahead = False
        self._pieces: PartialMove | None = None  # of the move at hand

    def start(self) -> None:
        """Begin at draws of the prior."""
        self.positions = self.run.path.draws(self.ais.num_particles, self._first)
        self.log_weights = np.zeros(len(self.positions))
        self.pilot = self.run.path.draws(PILOT, self._first_of_pilot)
        self.ratios = self.run.mutation.ratios(self.positions)
        self.pilot_ratios = self.run.mutation.ratios(self.pilot)

    @property
    def now(self) -> float:
        """The last temperature that all particles have moved at."""
        return self.temperatures[-1] if self.temperatures else 0.0

    @property
    def weighed_at(self) -> list[float]:
        """The temperatures up to the one whose density the weights are of."""
        return [*self.temperatures, *([] if self.aim is None else [self.aim])]

    def to_the_end(self) -> bool:
        """Go on to temperature 1."""
        steps = self.ais.num_steps
        while self.now < 1.0:
            if self.aim is None:
                self.aim = self._weigh()
            if not self.ahead:
                most = max(steps, PILOT_STEPS)
                self.pilot, self.pilot_ratios = self._moved(self.pilot, self.aim, most)
                self.ahead = True
            self.positions, self.ratios = self._moved(self.positions, self.aim, steps)
            self.temperatures = [*self.temperatures, self.aim]
            self.aim, self.ahead = None, False
        self.run.saved.update(self.snapshot, last=True)
        return True

    def _weigh(self) -> float:
        """Choose the next temperature, take up weights, resample the pilot and fit the kernel."""
        for each in (self.ratios, self.pilot_ratios):
            check_ratios("AIS", self.run.target.name, each)
        new = self._next(self.pilot_ratios, self.now)
        rise = new - self.now
        with np.errstate(invalid="ignore"):  # of particles that have no weight any more
            self.log_weights = self.log_weights + rise * self.ratios
        kept = normalised(rise * self.pilot_ratios)
        self.pilot = self.pilot[ancestors(kept, PILOT, self._resampling)]
        self.run.mutation.fit(self.run.target, self.pilot, new)
        return new

    def _moved(
        self, positions: np.ndarray, temperature: float, steps: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions after moves at a temperature, and log likelihoods there."""
        if self._pieces is None:
            self._pieces = self.run.mutation.begun(len(positions))
        moved = self.run.mutation.move(
            positions, temperature, steps, pieces=self._pieces, look=self._look
        )
        self._pieces = None
        return moved.positions.array[:, -1], moved.ratios.array[:, -1]

    def judge(self) -> None:
        """Nothing: the weights are judged where they become a result."""

    def _next(self, ratios: np.ndarray, now: float) -> float:
        """The next temperature."""
        ais, done = self.ais, len(self.temperatures)
        if ais.temperatures is not None:
            return ais.temperatures[done]
        if done == MOST_STAGES:
            raise InferenceError(
                f"AIS on {self.run.target.name}",
                expected=f"an end after at most {MOST_STAGES} temperatures",
                got=f"temperature {now:.3g}",
                fix="write ess_threshold=0.8, or give a reference that is nearer to the posterior",
            )
        return next_temperature(ratios, now, ais.ess_threshold)

    def _look(self) -> None:
        """Write a checkpoint and show how far it is, if it is time; end where that is asked for."""
        run = self.run
        stopped = run.interrupt.asked
        run.saved.update(self.snapshot, last=stopped)
        if stopped:
            raise run.interrupt.without("the last temperature")
        run.progress.tell(f"temperature {self.now:.3g}, stage {len(self.temperatures)}", self.now)

    # ------------------------------------------------------------------------------------- saving

    def snapshot(self) -> Tree:
        """Return all that the rest of the way depends on, as plain values."""
        return {
            **taken_down(self, FIELDS, self.run.mutation),
            "resampling": tuple(self._resampling.get_state()),
            "pieces": None if self._pieces is None else self._pieces.snapshot(),
        }

    def restore(self, saved: Tree) -> None:
        """Go on from what `snapshot` returned in another process.

        Raises
        ------
        ArgumentError
            If it is of another model or of other data.
        """
        put_back("AIS", self, FIELDS, self.run.mutation, saved)
        self._resampling.set_state(saved["resampling"])
        if saved["pieces"] is not None:
            self._pieces = PartialMove.restored(saved["pieces"])


explain_calls(globals())
