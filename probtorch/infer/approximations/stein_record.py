"""`SteinRecord`: what runs of `SVGD` and `SteinVI` keep on the disk, and go on from.

Between two steps a run is its particles, the optimizer's state, generators and the number of steps:
a `FitState`, which `SavedParticles` writes every few seconds. Which run a folder belongs to is told
as of other particles: by settings and seed, by the bytes of the arguments, and by densities at the
particles that were saved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from probtorch.core.rng import Generator, default_generator
from probtorch.core.typed import Tree
from probtorch.infer.approximations.stein_kernels import SteinKernel
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.sequential.saved_particles import SavedParticles, check_densities, seed_text
from probtorch.infer.vi.fit_state import FitState
from probtorch.infer.vi.updater import Updater

__all__ = ["SteinRecord"]


class _Stein(Protocol):
    """What moves particles by Stein's forces, once they are there."""

    num_steps: int
    _updater: Updater
    _seeded: Generator | None

    def _settings(self) -> dict[str, object]:
        """What a checkpoint has to agree in."""


class SteinRecord:
    """The steps of one run and the checkpoints they are part of; see `SavedParticles`.

    Parameters
    ----------
    owner : str
        The class whose `run` it is, for messages.
    stein : SVGD or SteinVI
        Its particles are there, and go to where an earlier process left them.
    kernel : SteinKernel
    checkpoint : Checkpoint, path or None
    every : float or None
        Seconds between files.
    args, kwargs
        What the model is called with.
    known : callable
        From nothing to an array of densities at the particles as they are, by which a model is
        known again.
    began : float
        When the run began, by `time.perf_counter`.

    Attributes
    ----------
    done : int
        Steps of the whole run, earlier processes included.
    losses : list of float
        Of these steps, where they have losses.
    stopped : bool
        Whether the callback has ended the run.
    """

    def __init__(
        self,
        owner: str,
        stein: _Stein,
        kernel: SteinKernel,
        checkpoint: str | os.PathLike[str] | Checkpoint | None,
        every: float | None,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        known: Callable[[], np.ndarray],
        began: float,
    ) -> None:
        self._stein, self._known = stein, known
        self.done, self.stopped = 0, False
        self.losses: list[float] = []
        # Functions in a kernel have another address in each process.
        shown = re.sub(r" at 0x[0-9a-f]+", "", repr(kernel))
        settings = {**stein._settings(), "kernel": shown, "seed": seed_text(stein._seeded)}
        self._saved = SavedParticles(owner, checkpoint, every, settings, args, kwargs, began)
        try:
            if self._saved.values is not None:
                self._restore(owner, self._saved.values)
        except BaseException:
            self._saved.__exit__()
            raise
        self._written = self.done

    def __enter__(self) -> SteinRecord:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others write to the folder."""
        self._saved.__exit__()

    @property
    def seconds(self) -> float:
        """Seconds of the whole run up to now, earlier processes included."""
        return self._saved.seconds

    def update(self) -> None:
        """Count a step, and write a file if it is time."""
        self.done += 1
        self._saved.update(self._values)

    def close(self) -> None:
        """Write the last file, unless the run was complete before."""
        if self.done != self._written:
            self._saved.update(self._values, last=True)

    def _state(self) -> FitState:
        """Where particles, optimizer and generators stand, as copies."""
        stein = self._stein
        own = None if stein._seeded is None else stein._seeded.get_state()[:]
        taken = stein._updater.take()
        return FitState(
            params=taken["params"],
            optimizer=taken["optimizer"],
            buffers={},
            objective={},
            generators=(own, default_generator.get_state()[:]),
            loaders={},
            step=stein.num_steps,
        )

    def _values(self) -> dict[str, Tree]:
        return {
            "state": self._state().to_dict(),
            "done": self.done,
            "losses": np.array(self.losses, np.float64),
            "stopped": self.stopped,
            "known": self._densities(),
        }

    def _densities(self) -> np.ndarray:
        """Those by which the model is known; what it draws by itself for them is drawn again."""
        before = default_generator.get_state()[:]
        try:
            return self._known()
        finally:
            default_generator.set_state(before)

    def _restore(self, owner: str, saved: Tree) -> None:
        """Go to what `_values` returned in another process, if it is of this model."""
        stein, state = self._stein, FitState.of_dict(saved["state"])
        before = self._state()
        stein._updater.load(state, stein._updater.parameters)
        stein._updater.put(state)
        try:
            check_densities(owner, saved["known"], self._densities())
        except BaseException:
            stein._updater.put(before)
            raise
        own, _ = state.generators  # the default one stands there since the file was read
        if own is not None and stein._seeded is not None:
            stein._seeded.set_state(own)
        stein.num_steps, self.done = state.step, saved["done"]
        self.losses, self.stopped = saved["losses"].tolist(), saved["stopped"]
