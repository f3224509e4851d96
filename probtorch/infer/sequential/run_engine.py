"""`RunEngine`: what engines of whole runs share: settings, the course of a run, its result."""

from __future__ import annotations

import abc
import dataclasses
import os
import time
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, default_generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.effects.handlers import substitute
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.control import Interrupt
from probtorch.infer.labels import array_arguments, labels_of, with_gaps
from probtorch.infer.mcmc.budget import Budget
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.model_runs import in_float64, lifted, out_of_sight, untraced
from probtorch.infer.prediction.called_model import CalledModel
from probtorch.infer.prediction.each_run import shared_sites, unshared_sites
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.run_course import RunCourse, RunMoves
from probtorch.infer.sequential.run_draws import RunDraws
from probtorch.infer.sequential.saved_particles import SavedParticles, seed_text

__all__ = ["RunEngine"]


class RunEngine(abc.ABC):
    """Chains of whole runs of a model; a subclass says how one run is made of another.

    Parameters
    ----------
    model, num_samples, warmup_steps, num_chains, seed, progress_bar
        As of `ParticleGibbs`.
    """

    # The class at the front door, whatever is derived from it: for messages and checkpoints.
    _name: ClassVar[str]

    def __init__(
        self,
        model: Callable[..., object],
        num_samples: int,
        warmup_steps: int,
        num_chains: int,
        seed: int | Generator | None,
        progress_bar: bool,
    ) -> None:
        name = self._name
        check_model(model, name)
        self.model = model
        self.num_samples = checked_count(name, "num_samples", num_samples)
        self.warmup_steps = checked_count(name, "warmup_steps", warmup_steps, 0)
        self.num_chains = checked_count(name, "num_chains", num_chains)
        self._generator = None if seed is None else generator_of(seed)
        self.progress_bar = bool(progress_bar)

    @abc.abstractmethod
    def _moves(self, args: tuple[object, ...], kwargs: dict[str, object]) -> RunMoves:
        """What makes runs of the model, called with these."""

    @abc.abstractmethod
    def _facts(self, moves: RunMoves) -> dict[str, object]:
        """What attributes of the draws tell besides."""

    @abc.abstractmethod
    def _own_settings(self) -> dict[str, object]:
        """What a checkpoint has to agree in besides."""

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
            run has are at least this, over all chains. With a checkpoint, draws that an earlier
            call added are there, whatever is asked for now.
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
            If no run was found that can have made the data, a plate works on a subsample, or a run
            cannot be made of the one before (see the class).
        ModelError
            If two sites of a run share a name.
        ArgumentError
            If the folder has a run with other settings, another model or other data.
        KeyboardInterrupt
            On Ctrl-C before the first draw.
        """
        began, name = time.perf_counter(), self._name
        budget = Budget(until_ess, None, f"{name}.run")
        interrupt = Interrupt(f"{name}.run", max_seconds)
        check_model_call(self.model, args, kwargs, f"{name}(...).run")
        called = CalledModel(self.model, lifted(args), lifted(kwargs), (), ())
        generators = (self._generator or default_generator).spawn(self.num_chains)
        saved = SavedParticles(
            name, checkpoint, checkpoint_every, self._settings(), args, kwargs, began
        )
        with saved, no_grad(), in_float64(), untraced(), interrupt:
            course = RunCourse(name, self, generators, saved, interrupt)
            moves = self._moves(called.args, dict(called.kwargs))
            if saved.values is not None:
                course.restore(saved.values, moves)
            interrupt.shows(lambda: self._so_far(course, moves, called))
            course.to_the_end(moves)
            draws = self._draws(course, moves, called)
            while more := budget.missing(draws):
                course.extend(more, moves)
                draws = self._draws(course, moves, called)
        return draws

    def _so_far(self, course: RunCourse, moves: RunMoves, called: CalledModel) -> RunDraws | None:
        """As many draws as all chains have that have begun, if one has."""
        begun = course.begun()
        return None if begun is None else self._draws(begun, moves, called)

    def _draws(self, course: RunCourse, moves: RunMoves, called: CalledModel) -> RunDraws:
        """The draws of a course, as they are now."""
        values = tuple(tuple(draw for draw, _, _ in chain) for chain in course.chains)
        stats = {
            "lp": np.array([[lp for _, lp, _ in chain] for chain in course.chains]),
            "moved": np.array([[moved for _, _, moved in chain] for chain in course.chains]),
        }
        attrs = {
            "inference_library": "probtorch",
            "inference_method": self._name,
            "model_name": getattr(self.model, "__name__", type(self.model).__name__),
            **self._facts(moves),
            "interrupted": course.ended,
        }
        shared = shared_sites(values)
        attrs |= unshared_sites(values, shared)
        return _labelled(RunDraws(shared, stats, attrs=attrs, values=values), called)

    def _settings(self) -> dict[str, object]:
        """What a checkpoint has to agree in."""
        return {
            **self._own_settings(),
            "num_samples": self.num_samples,
            "warmup_steps": self.warmup_steps,
            "num_chains": self.num_chains,
            "seed": seed_text(self._generator),
        }


def _labelled(draws: RunDraws, called: CalledModel) -> RunDraws:
    """Draws with what the first of the runs tells: names, data, the model with its sites."""
    values, shared = draws.values[0][0], draws.posterior
    known = {name: wrap(x) for name, x in values.items()}
    args, kwargs = called.args, dict(called.kwargs)
    with no_grad(), out_of_sight(substitute(data=known), precise=True) as seen:
        called.model(*args, **kwargs)
    labels = labels_of(seen, shared, array_arguments(called.model, args, kwargs))
    dims = {n: d for n, d in labels.dims.items() if n in shared or n in labels.observed}
    used = {d for names in dims.values() for d in names}
    observed = with_gaps(labels.observed, [seen])
    latent = tuple(n for n in values if n in seen.stochastic_nodes)
    return dataclasses.replace(
        draws,
        dims=dims,
        coords={d: c for d, c in labels.coords.items() if d in used},
        groups={"observed_data": observed, "constant_data": labels.constant},
        call=dataclasses.replace(called, latent=latent, observed=tuple(observed)),
    )


explain_calls(globals())
