"""`RunCourse`: chains of whole runs of a model, which take turns, are saved and go on.

What `ParticleGibbs` and `InvolutiveMCMC` have in common: a state is a run, the values of all its
sites by name (`Particle`), and something makes of one run the next (`RunMoves`). `Running` runs a
model with the values of such a state, and tells what it met.
"""

from __future__ import annotations

import contextlib
import copy
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import ModelError
from probtorch.infer.control import Interrupt
from probtorch.infer.model_runs import OUTSIDE
from probtorch.infer.sequential.importance import refuse_subsample
from probtorch.infer.sequential.saved_particles import (
    ParticleProgress,
    SavedParticles,
    check_densities,
)

__all__ = ["Particle", "RunCourse", "RunMoves", "Running", "run_up_to"]


class _Stop(Exception):
    """Leaves a model in its middle, at the statement that it was to run to."""


@dataclass
class Particle:
    """A run in its middle: the values met so far, and what the last statement weighed."""

    values: dict[str, TensorBase]
    gained: float = 0.0
    finished: bool = False


class Running(Handler):
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


def run_up_to(
    stop: int | None,
    known: Mapping[str, TensorBase],
    model: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Running:
    """Run a model with known values up to an observed statement, or to its end, and say it all.

    Parameters
    ----------
    stop, known
        See `Running`.
    model, args, kwargs
    """
    with Running(known, stop) as handler, contextlib.suppress(_Stop):
        model(*args, **kwargs)
    return handler


class RunMoves(Protocol):
    """What makes runs of a model."""

    def running(self, known: Mapping[str, TensorBase], stop: int | None) -> Running:
        """Return what a run says that has these values."""

    def first(self, generator: Generator) -> Particle:
        """Return a run that can have made the data."""

    def sweep(self, kept: Particle | None, generator: Generator) -> Particle | None:
        """Return the next run after one."""


class CourseSettings(Protocol):
    """What a course is asked for."""

    warmup_steps: int
    num_samples: int
    progress_bar: bool


# Values, log joint density and whether it moved, of a draw.
_Draw: TypeAlias = tuple[dict[str, np.ndarray], float, bool]


class RunCourse:
    """The chains of one run, as far as they have got.

    Parameters
    ----------
    owner : str
        The class whose `run` it is, for messages.
    settings : CourseSettings
    generators : sequence of Generator
        One for each chain.
    saved : SavedParticles
    interrupt : Interrupt
    """

    def __init__(
        self,
        owner: str,
        settings: CourseSettings,
        generators: Sequence[Generator],
        saved: SavedParticles,
        interrupt: Interrupt,
    ) -> None:
        self.owner, self.settings, self.generators = owner, settings, generators
        self.saved, self.interrupt = saved, interrupt
        self.chains: list[list[_Draw]] = [[] for _ in generators]
        self.done = 0  # sweeps of all of them together
        self.kept: list[Particle | None] = [None for _ in generators]  # where each of them stands
        self.more = 0  # draws of each beyond those that were asked for at first
        self.ended = False  # before its time

    def to_the_end(self, sweeps: RunMoves) -> None:
        """Make all draws, or as many as there is time for; chains take turns, sweep by sweep."""
        warmup, count = self.settings.warmup_steps, len(self.generators)
        total = (warmup + self.settings.num_samples + self.more) * count
        with ParticleProgress(shown=self.settings.progress_bar) as progress:
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
        begun = self.begun()
        if begun is None:
            raise self.interrupt.without("the first draw")
        self.chains = begun.chains
        self._tell()

    def begun(self) -> RunCourse | None:
        """Return the course as if it had ended here, with as many draws of each chain.

        Chains that have no draw yet would leave nothing of the others; None if none has.
        """
        begun = [chain for chain in self.chains if chain]
        if not begun:
            return None
        cut = copy.copy(self)
        cut.chains, cut.ended = [chain[: len(begun[-1])] for chain in begun], True
        return cut

    def extend(self, count: int, sweeps: RunMoves) -> None:
        """Make so many more draws of each chain, or as many as there is time for."""
        self.more += count
        self.to_the_end(sweeps)

    def _tell(self) -> None:
        """Say that not all draws were made."""
        print(
            f"{self.interrupt.told}: keeping {len(self.chains)} chains of {len(self.chains[0])} "
            "draws",
            file=sys.stderr,
            flush=True,
        )

    def _sweep(self, chain: int, sweeps: RunMoves, *, kept: bool) -> None:
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
            "more": self.more,
            "kept": [
                None if last is None else {n: to_host(x.array) for n, x in last.values.items()}
                for last in self.kept
            ],
            "generators": [tuple(g.get_state()) for g in self.generators],
        }

    def restore(self, saved: Tree, sweeps: RunMoves) -> None:
        """Go on from what `snapshot` returned in another process.

        Raises
        ------
        ArgumentError
            If it is of another model or of other data.
        """
        self.chains = [[(dict(a), lp, moved) for a, lp, moved in c] for c in saved["chains"]]
        self.done, self.more = saved["done"], saved.get("more", 0)  # of an earlier release: none
        for i, (chain, last) in enumerate(zip(self.chains, saved["kept"], strict=True)):
            if last is None:
                continue
            self.kept[i] = kept = Particle({n: wrap(np.array(x)) for n, x in last.items()})
            if chain:
                was, now = chain[-1][1], sweeps.running(kept.values, None).log_joint
                check_densities(self.owner, np.array([was]), np.array([now]))
        for generator, state in zip(self.generators, saved["generators"], strict=True):
            generator.set_state(state)
