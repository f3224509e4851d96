"""`ParticleGibbs`: a chain of whole runs of a model, whose sites may come and go.

A run is a trajectory through the model's statements. In a sweep, particles run the model from one
observed statement to the next, are weighted by it and resampled; one of them keeps to the run of
the last sweep, whatever happens to it [andrieu2010]_. At the end one of the particles is the new
run. That leaves the posterior invariant for any number of particles of at least 2, for any program:
a site is known by its name, and branches and loops may meet others in every run.

Particles go on by running the model anew with the values that they have so far, up to the statement
that they were stopped at: so a sweep costs of the order of the square of the number of observed
statements. A plate that observes all its rows at once is one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import InferenceError
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.run_course import Particle, RunMoves, Running, run_up_to
from probtorch.infer.sequential.run_engine import RunEngine
from probtorch.infer.sequential.weights import ancestors, normalised, uniforms

__all__ = ["ParticleGibbs"]

# Tries to find a first run that can have made the data.
FIRST_SWEEPS = 20


class ParticleGibbs(RunEngine):
    """Particle Gibbs for any model that can be run, also one whose sites come and go.

    Each draw is a whole run of the model. The more observed statements there are between the draw
    of a site and the end, the more particles it takes to change it; a model with fixed continuous
    sites is better served by `NUTS`.

    Parameters
    ----------
    model : callable
        Observes in statements of their own what comes one after the other.
    num_particles : int, at least 2
        One of them keeps to the run before.
    num_samples : int
        Draws per chain.
    warmup_steps : int
        Sweeps before these.
    num_chains : int
        They take turns.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.
    progress_bar : bool

    Raises
    ------
    ArgumentError
        If a number is no integer, or too small.

    References
    ----------
    [andrieu2010]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import ParticleGibbs
    >>> def model(y):
    ...     if probtorch.sample("coin", dist.Bernoulli(0.5)).item():
    ...         loc = probtorch.sample("loc", dist.Normal(0.0, 1.0))
    ...     else:
    ...         loc = 2.0
    ...     probtorch.sample("y", dist.Normal(loc, 1.0), obs=y)
    >>> gibbs = ParticleGibbs(model, num_particles=5, num_samples=50, warmup_steps=5, seed=0)
    >>> draws = gibbs.run(probtorch.tensor(2.5))
    >>> draws["coin"].shape, bool(draws.expectation(lambda run: "loc" in run) > 0.0)
    ((1, 50), True)
    """

    _name = "ParticleGibbs"

    @explained("ParticleGibbs", meant={"num_warmup": "warmup_steps", "draws": "num_samples"})
    def __init__(
        self,
        model: Callable[..., object],
        num_particles: int = 20,
        num_samples: int = 1000,
        warmup_steps: int = 100,
        *,
        num_chains: int = 1,
        seed: int | Generator | None = None,
        progress_bar: bool = True,
    ) -> None:
        super().__init__(model, num_samples, warmup_steps, num_chains, seed, progress_bar)
        self.num_particles = checked_count("ParticleGibbs", "num_particles", num_particles, 2)

    def __repr__(self) -> str:
        name = getattr(self.model, "__name__", type(self.model).__name__)
        return f"ParticleGibbs({name}, num_particles={self.num_particles})"

    def _moves(self, args: tuple[object, ...], kwargs: dict[str, object]) -> RunMoves:
        return _Sweeps(self.model, args, kwargs, self.num_particles)

    def _facts(self, moves: RunMoves) -> dict[str, object]:
        return {"num_particles": self.num_particles}

    def _own_settings(self) -> dict[str, object]:
        return {"num_particles": self.num_particles}


class _Sweeps:
    """Sweeps over one model."""

    def __init__(
        self,
        model: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        count: int,
    ) -> None:
        self.model, self.args, self.kwargs, self.count = model, args, kwargs, count

    def running(self, known: Mapping[str, TensorBase], stop: int | None) -> Running:
        """What a run said that has these values and goes up to a statement."""
        return run_up_to(stop, known, self.model, self.args, self.kwargs)

    def first(self, generator: Generator) -> Particle:
        """A run that can have made the data, by sweeps without one to keep to."""
        for _ in range(FIRST_SWEEPS):
            found = self.sweep(None, generator)
            if found is not None:
                return found
        raise InferenceError(
            "ParticleGibbs: no run of the model can have made the data",
            expected=f"a run with a finite density in {FIRST_SWEEPS} sweeps",
            got=f"none among {FIRST_SWEEPS * self.count} particles",
            fix="look at priors and data, or take more particles",
        )

    def sweep(self, kept: Particle | None, generator: Generator) -> Particle | None:
        """A new run, given one to keep to; None where all particles died."""
        particles = [Particle({}) for _ in range(self.count)]
        whole = None if kept is None else self.running(kept.values, None)
        stage = 0
        while True:
            stage += 1
            for i, particle in enumerate(particles):
                if kept is not None and whole is not None and not i:
                    self._follow(particle, kept, whole, stage)
                elif not particle.finished:
                    self._advance(particle, stage)
                else:
                    particle.gained = 0.0
            if all(p.finished for p in particles):
                break
            weights = normalised(np.array([p.gained for p in particles]))
            if not weights.any():
                return None
            particles = self._resampled(particles, weights, kept is not None, generator)
        chosen = min(int(uniforms(generator, 1)[0] * self.count), self.count - 1)
        return kept if kept is not None and not chosen else particles[chosen]

    def _advance(self, particle: Particle, stage: int) -> None:
        """Run a particle to its next observed statement."""
        run = self.running(particle.values, stage)
        particle.values = run.values
        particle.finished = len(run.gains) < stage
        particle.gained = 0.0 if particle.finished else run.gains[-1]

    def _follow(self, particle: Particle, kept: Particle, whole: Running, stage: int) -> None:
        """Let a particle go where the last run went."""
        particle.finished = len(whole.gains) < stage
        if particle.finished:
            particle.values, particle.gained = kept.values, 0.0
            return
        before = list(whole.values.items())[: whole.marks[stage - 1]]
        particle.values, particle.gained = dict(before), whole.gains[stage - 1]

    def _resampled(
        self, particles: list[Particle], weights: np.ndarray, keeps: bool, generator: Generator
    ) -> list[Particle]:
        """Copies of particles by weight; the first one stays where it is kept."""
        free = ancestors(weights, self.count - keeps, generator, "multinomial")
        chosen = [*([0] if keeps else []), *free.tolist()]
        return [Particle(particles[i].values, 0.0, particles[i].finished) for i in chosen]


explain_calls(globals())
