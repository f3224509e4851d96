"""`MovedParticles`: what engines share whose particles a kernel moves, from the prior on.

`SMC` raises temperatures, `NestedSampler` levels of the likelihood; before that and after it both
do the same: find the target, make the program that moves, take up what was saved, listen for
Ctrl-C, go to the end and judge. A subclass says on which path (`_path`) and by which course
(`_course`).
"""

from __future__ import annotations

import abc
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from probtorch.core.rng import Generator, default_generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.distributions.distribution import Distribution
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.control import Interrupt
from probtorch.infer.forgotten import warn_of_no_data
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.pilot import in_form
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.mutation import Mutation, check_moves_particles
from probtorch.infer.sequential.saved_particles import (
    ParticleProgress,
    SavedParticles,
    seed_text,
)
from probtorch.infer.sequential.tempering import TemperedPath

__all__ = ["MovedParticles", "ParticleCourse", "ParticleRun"]


@dataclass(frozen=True)
class ParticleRun:
    """What the course of one run has to work with.

    Attributes
    ----------
    target : Target
    path : TemperedPath
    mutation : Mutation
        Moves particles by `kernel`.
    kernel : Kernel
        In the form that suits the model.
    streams : list of Generator
        All but that of the moves.
    saved : SavedParticles
    interrupt : Interrupt
    progress : ParticleProgress
    """

    target: Target
    path: TemperedPath
    mutation: Mutation
    kernel: Kernel
    streams: list[Generator]
    saved: SavedParticles
    interrupt: Interrupt
    progress: ParticleProgress


class ParticleCourse(Protocol):
    """The particles of one run, from the prior to the end."""

    def start(self) -> None:
        """Draw the first particles."""

    def restore(self, saved: Tree) -> None:
        """Go on from what was saved."""

    def to_the_end(self) -> bool:
        """Go on to the end; whether nothing stopped it before."""

    def judge(self) -> None:
        """Warn of what makes the result doubtful."""


C = TypeVar("C", bound=ParticleCourse)


class MovedParticles(abc.ABC, Generic[C]):
    """Particles that a kernel moves; a subclass says which way they go.

    Parameters
    ----------
    kernel : Kernel
    reference, num_threads, seed, progress_bar
        As of `SMC`.
    """

    # The class at the front door, whatever is derived from it: for messages and checkpoints.
    _name: ClassVar[str]

    def __init__(
        self,
        kernel: Kernel,
        reference: Distribution | None,
        num_threads: int | None,
        seed: int | Generator | None,
        progress_bar: bool,
    ) -> None:
        name = self._name
        check_moves_particles(name, kernel)
        self.kernel, self.reference = kernel, reference
        self.num_threads = os.cpu_count() or 1
        if num_threads is not None:
            self.num_threads = checked_count(name, "num_threads", num_threads)
        self._generator = None if seed is None else generator_of(seed)
        self.progress_bar = bool(progress_bar)

    @abc.abstractmethod
    def _path(self, target: Target) -> TemperedPath:
        """The densities on the way."""

    @abc.abstractmethod
    def _course(self, run: ParticleRun) -> C:
        """The particles of a run, before its first step."""

    @abc.abstractmethod
    def _so_far(self, run: ParticleRun, course: C) -> object:
        """What a run would return that ended now; None where there is nothing yet."""

    @abc.abstractmethod
    def _own_settings(self) -> Mapping[str, object]:
        """What a checkpoint has to agree in besides."""

    def _run(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        checkpoint: str | os.PathLike[str] | Checkpoint | None,
        checkpoint_every: float | None,
        max_seconds: float | None,
        streams: int,
    ) -> tuple[ParticleRun, C, bool]:
        """Go from the beginning, or from a checkpoint, to the end.

        Parameters
        ----------
        args, kwargs, checkpoint, checkpoint_every, max_seconds
            As of `SMC.run`.
        streams : int
            Sources of random numbers, of which the third is that of the moves.

        Returns
        -------
        run : ParticleRun
        course : ParticleCourse
        interrupted : bool
            Whether it was stopped before its end.
        """
        began, name = time.perf_counter(), self._name
        kernel, _ = in_form(self.kernel, args, kwargs, shown=False)
        example = None
        if kernel.model is None and self.reference is not None:
            example = np.zeros(tuple(self.reference.event_shape))
        target = kernel.target(args, kwargs, example)
        if isinstance(target, ModelTarget):
            warn_of_no_data(target.without_data, target.array_arguments)
        path = self._path(target)
        sources = (self._generator or default_generator).spawn(streams)
        moves = sources.pop(2)
        # From here on the default generator stands where a run that is saved had it.
        saved = SavedParticles(
            name, checkpoint, checkpoint_every, self._settings(), args, kwargs, began
        )
        with (
            saved,
            Interrupt(f"{name}.run", max_seconds) as interrupt,
            ParticleProgress(shown=self.progress_bar) as progress,
        ):
            mutation = Mutation(kernel, path, moves, self.num_threads)
            run = ParticleRun(target, path, mutation, kernel, sources, saved, interrupt, progress)
            course = self._course(run)
            if saved.values is None:
                course.start()
            else:
                course.restore(saved.values)
            interrupt.shows(lambda: self._so_far(run, course))
            interrupted = not course.to_the_end()
        if not interrupted:
            course.judge()
        return run, course, interrupted

    def _settings(self) -> dict[str, object]:
        """What a checkpoint has to agree in."""
        return {
            **self.kernel.attrs(),
            **self._own_settings(),
            "reference": "none" if self.reference is None else repr(self.reference),
            "seed": seed_text(self._generator),
        }


explain_calls(globals())
