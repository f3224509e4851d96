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

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import InferenceError, ModelError
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.control import Interrupt
from probtorch.infer.mcmc.budget import Budget
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.model_runs import OUTSIDE, in_float64, lifted, untraced
from probtorch.infer.sequential.importance import checked_count, refuse_subsample
from probtorch.infer.sequential.run_draws import RunDraws, shared_sites, unshared_sites
from probtorch.infer.sequential.saved_particles import (
    ParticleProgress,
    SavedParticles,
    check_densities,
    seed_text,
)
from probtorch.infer.sequential.weights import ancestors, normalised, uniforms

__all__ = ["ParticleGibbs"]

# Tries to find a first run that can have made the data.
FIRST_SWEEPS = 20


class _Stop(Exception):
    """Leaves a model in its middle, at the statement that it was to run to."""


@dataclass
class _Particle:
    """A run in its middle: the values met so far, and what the last statement weighed."""

    values: dict[str, TensorBase]
    gained: float = 0.0
    finished: bool = False


class _Running(Handler):
    """Give sites the values that they had, and stop at an observed statement.

    Parameters
    ----------
    known : dict of str to Tensor
    stop : int or None
        The number of the statement to stop after, from 1; None runs to the end.
    """

    def __init__(self, known: Mapping[str, TensorBase], stop: int | None) -> None:
        super().__init__()
        self.known, self.stop = known, stop
        self.values: dict[str, TensorBase] = {}
        self.computed: dict[str, TensorBase] = {}
        self.names: set[str] = set()
        # Of each observed statement its log density, and how many values came before it.
        self.gains: list[float] = []
        self.marks: list[int] = []
        self.log_joint = 0.0

    def on_sample(self, site: Site) -> None:
        """Take the value, if it is known."""
        if not site.observed and site.value is None and site.name in self.known:
            site.value = self.known[site.name]

    def after_sample(self, site: Site) -> None:
        """Keep the value; weigh what is observed."""
        refuse_subsample(site)
        if site.name in self.names:
            raise ModelError(
                f"Multiple sample sites named {site.name!r}",
                expected="a name of its own for every site of a run",
                got="the same name twice",
                fix=f"in a loop write f'{site.name}_{{i}}'",
                at=site.location,
            )
        self.names.add(site.name)
        counted = self.stop is None or len(self.gains) + 1 == self.stop
        if not site.observed:
            self.values[site.name] = site.value
            self.log_joint += _log_prob(site) if self.stop is None else 0.0
            return
        self.gains.append(_log_prob(site) if counted else 0.0)
        self.log_joint += self.gains[-1]
        self.marks.append(len(self.values))
        if len(self.gains) == self.stop:
            raise _Stop

    after_factor = after_sample

    def after_deterministic(self, site: Site) -> None:
        """Keep the value."""
        self.computed[site.name] = site.value


def _log_prob(site: Site) -> float:
    """The log density of a site; -inf where it cannot have that value."""
    try:
        return float(to_host(site.compute_log_prob_sum().array))
    except OUTSIDE:
        return -math.inf


class ParticleGibbs:
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
        check_model(model, "ParticleGibbs")
        self.progress_bar = bool(progress_bar)
        self.model = model
        self.num_particles = checked_count("ParticleGibbs", "num_particles", num_particles, 2)
        self.num_samples = checked_count("ParticleGibbs", "num_samples", num_samples)
        self.warmup_steps = checked_count("ParticleGibbs", "warmup_steps", warmup_steps, 0)
        self.num_chains = checked_count("ParticleGibbs", "num_chains", num_chains)
        self._generator = seed if isinstance(seed, Generator) or seed is None else Generator(seed)

    def __repr__(self) -> str:
        name = getattr(self.model, "__name__", type(self.model).__name__)
        return f"ParticleGibbs({name}, num_particles={self.num_particles})"

    def run(
        self,
        *args: object,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        until_ess: float | None = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> RunDraws:
        """Draw runs of the model given its data.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        checkpoint, checkpoint_every
            As for `SMC.run`; all draws are in each file.
        until_ess : float, optional
            Go on beyond `num_samples` until bulk and tail effective size of all numbers that every
            run has are at least this, over all chains.
        max_seconds : float, optional
            End the run after this time, as Ctrl-C does.

        Returns
        -------
        RunDraws
            `posterior` has the sites that all runs have in one shape, `values` all of each run.
            `sample_stats` has ``lp``, the log joint density, and ``moved``, whether the draw is
            another run than the one before. After Ctrl-C they are of as many draws as every chain
            with a draw has, and ``attrs["interrupted"]`` is true.

        Raises
        ------
        InferenceError
            If no run was found that can have made the data, or a plate works on a subsample.
        ModelError
            If two sites of a run share a name.
        ArgumentError
            If the folder has a run with other settings, another model or other data.
        KeyboardInterrupt
            On Ctrl-C before the first draw.
        """
        began = time.perf_counter()
        budget = Budget(until_ess, None, "ParticleGibbs.run")
        budget.refuse_with(background=False, store=None, checkpoint=checkpoint)
        interrupt = Interrupt("ParticleGibbs.run", max_seconds)
        check_model_call(self.model, args, kwargs, "ParticleGibbs(...).run")
        generators = (self._generator or default_generator).spawn(self.num_chains)
        saved = SavedParticles(
            "ParticleGibbs", checkpoint, checkpoint_every, self._settings(), args, kwargs, began
        )
        course = _Course(self, generators, saved, interrupt)
        with no_grad(), in_float64(), untraced(), interrupt:
            sweeps = _Sweeps(self.model, lifted(args), lifted(kwargs), self.num_particles)
            if saved.values is not None:
                course.restore(saved.values, sweeps)
            course.to_the_end(sweeps)
            draws = self._draws(course)
            while more := budget.missing(draws):
                course.extend(more, sweeps)
                draws = self._draws(course)
        return draws

    def _draws(self, course: _Course) -> RunDraws:
        """The draws of a course, as they are now."""
        chains = course.chains
        values = tuple(tuple(draw for draw, _, _ in chain) for chain in chains)
        stats = {
            "lp": np.array([[lp for _, lp, _ in chain] for chain in chains]),
            "moved": np.array([[moved for _, _, moved in chain] for chain in chains]),
        }
        attrs = {
            "inference_library": "probtorch",
            "inference_method": "ParticleGibbs",
            "model_name": getattr(self.model, "__name__", type(self.model).__name__),
            "num_particles": self.num_particles,
            "interrupted": course.ended,
        }
        shared = shared_sites(values)
        attrs |= unshared_sites(values, shared)
        return RunDraws(shared, stats, attrs=attrs, values=values)

    def _settings(self) -> dict[str, object]:
        """What a checkpoint has to agree in."""
        return {
            "num_particles": self.num_particles,
            "num_samples": self.num_samples,
            "warmup_steps": self.warmup_steps,
            "num_chains": self.num_chains,
            "seed": seed_text(self._generator),
        }


# Values, log joint density and whether it moved, of a draw.
_Draw: TypeAlias = tuple[dict[str, np.ndarray], float, bool]


class _Course:
    """The chains of one run, as far as they have got."""

    def __init__(
        self,
        gibbs: ParticleGibbs,
        generators: Sequence[Generator],
        saved: SavedParticles,
        interrupt: Interrupt,
    ) -> None:
        self.gibbs, self.generators, self.saved = gibbs, generators, saved
        self.interrupt = interrupt
        self.chains: list[list[_Draw]] = [[] for _ in generators]
        self.done = 0  # sweeps of all of them together
        self.kept: list[_Particle | None] = [None for _ in generators]  # where each of them stands
        self.ended = False  # before its time

    def to_the_end(self, sweeps: _Sweeps) -> None:
        """Make all draws, or as many as there is time for; chains take turns, sweep by sweep."""
        warmup, count = self.gibbs.warmup_steps, len(self.generators)
        total = (warmup + self.gibbs.num_samples) * count
        with ParticleProgress(shown=self.gibbs.progress_bar) as progress:
            while self.done < total:
                if self.interrupt.asked:
                    self.ended = True
                    break
                self._sweep(self.done % count, sweeps, kept=self.done >= warmup * count)
                self.done += 1
                self.saved.update(self.snapshot)
                progress.tell(f"{count} chains, {self.done}/{total} sweeps", self.done / total)
            self.saved.update(self.snapshot, last=True)
        if not self.ended:
            return
        # Chains that have no draw yet would leave nothing of the others.
        begun = [chain for chain in self.chains if chain]
        if not begun:
            raise self.interrupt.without("the first draw")
        self.chains = [chain[: len(begun[-1])] for chain in begun]
        self._tell()

    def extend(self, count: int, sweeps: _Sweeps) -> None:
        """Make so many more draws of each chain, or as many as there is time for."""
        length = len(self.chains[0])
        with ParticleProgress(shown=self.gibbs.progress_bar) as progress:
            for i in range(count):
                for chain in range(len(self.chains)):
                    if self.interrupt.asked:
                        self.ended = True
                        self.chains = [draws[: length + i] for draws in self.chains]
                        return self._tell()
                    self._sweep(chain, sweeps, kept=True)
                progress.tell(f"{i + 1}/{count} more sweeps of each chain", (i + 1) / count)
        return None

    def _tell(self) -> None:
        """Say that not all draws were made."""
        print(
            f"{self.interrupt.told}: keeping {len(self.chains)} chains of {len(self.chains[0])} "
            "draws",
            file=sys.stderr,
            flush=True,
        )

    def _sweep(self, chain: int, sweeps: _Sweeps, *, kept: bool) -> None:
        """Make one sweep of a chain, and keep what it drew."""
        generator, before = self.generators[chain], self.kept[chain]
        with seed_handler(None, generator):
            if before is None:
                before = sweeps.first(generator)
            # The run that is kept always has weight.
            new = sweeps.sweep(before, generator) or before
            self.kept[chain] = new
            if not kept:
                return
            done = sweeps.running(new.values, None)
            everything = {**done.values, **done.computed}
            arrays = {n: to_host(x.array) for n, x in everything.items()}
            moved = new.values is not before.values
            self.chains[chain].append((arrays, done.log_joint, moved))

    def snapshot(self) -> Tree:
        """Return all that the rest depends on, as plain values."""
        return {
            "chains": [[tuple(draw) for draw in chain] for chain in self.chains],
            "done": self.done,
            "kept": [
                None if last is None else {n: to_host(x.array) for n, x in last.values.items()}
                for last in self.kept
            ],
            "generators": [tuple(g.get_state()) for g in self.generators],
        }

    def restore(self, saved: Tree, sweeps: _Sweeps) -> None:
        """Go on from what `snapshot` returned in another process.

        Raises
        ------
        ArgumentError
            If it is of another model or of other data.
        """
        self.chains = [[(dict(a), lp, moved) for a, lp, moved in c] for c in saved["chains"]]
        self.done = saved["done"]
        for i, (chain, last) in enumerate(zip(self.chains, saved["kept"], strict=True)):
            if last is None:
                continue
            self.kept[i] = kept = _Particle({n: wrap(np.array(x)) for n, x in last.items()})
            if chain:
                was, now = chain[-1][1], sweeps.running(kept.values, None).log_joint
                check_densities("ParticleGibbs", np.array([was]), np.array([now]))
        for generator, state in zip(self.generators, saved["generators"], strict=True):
            generator.set_state(state)


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

    def running(self, known: Mapping[str, TensorBase], stop: int | None) -> _Running:
        """What a run said that has these values and goes up to a statement."""
        with _Running(known, stop) as handler, contextlib.suppress(_Stop):
            self.model(*self.args, **self.kwargs)
        return handler

    def first(self, generator: Generator) -> _Particle:
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

    def sweep(self, kept: _Particle | None, generator: Generator) -> _Particle | None:
        """A new run, given one to keep to; None where all particles died."""
        particles = [_Particle({}) for _ in range(self.count)]
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

    def _advance(self, particle: _Particle, stage: int) -> None:
        """Run a particle to its next observed statement."""
        run = self.running(particle.values, stage)
        particle.values = run.values
        particle.finished = len(run.gains) < stage
        particle.gained = 0.0 if particle.finished else run.gains[-1]

    def _follow(self, particle: _Particle, kept: _Particle, whole: _Running, stage: int) -> None:
        """Let a particle go where the last run went."""
        particle.finished = len(whole.gains) < stage
        if particle.finished:
            particle.values, particle.gained = kept.values, 0.0
            return
        before = list(whole.values.items())[: whole.marks[stage - 1]]
        particle.values, particle.gained = dict(before), whole.gains[stage - 1]

    def _resampled(
        self, particles: list[_Particle], weights: np.ndarray, keeps: bool, generator: Generator
    ) -> list[_Particle]:
        """Copies of particles by weight; the first one stays where it is kept."""
        free = ancestors(weights, self.count - keeps, generator, "multinomial")
        chosen = [*([0] if keeps else []), *free.tolist()]
        return [_Particle(particles[i].values, 0.0, particles[i].finished) for i in chosen]


explain_calls(globals())
