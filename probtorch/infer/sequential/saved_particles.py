"""What runs of particles keep on the disk, show and do on Ctrl-C, whatever they are.

A run of particles (`SMC`, `ABCSMC`, `SVGD`) is a function of its generators and of arrays:
`SavedParticles` puts them into a `Checkpoint` every few seconds, and hands them to the same run in
another process. Which run a folder belongs to is told as of chains: by settings and seed, by the
bytes of the arguments, and by a density at particles that were saved (`check_densities`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError
from probtorch.infer.checkpoint import Checkpoint, RunClaim, settings_that_differ
from probtorch.infer.run_identity import digests
from probtorch.infer.vi.step_progress import BAR, StepProgress

if TYPE_CHECKING:
    from probtorch.infer.sequential.mutation import Mutation

__all__ = [
    *("EVERY", "ParticleProgress", "SavedParticles", "check_densities", "put_back", "seed_text"),
    "taken_down",
]

# Seconds between two checkpoints, unless told.
EVERY = 5.0
# What runs put into their files, and how, by their class. A reader refuses others: a later layout
# gets a later number. The first release with files wrote no number.
LAYOUTS = {
    "ABCSMC": 1, "AIS": 1, "ASVGD": 1, "InvolutiveMCMC": 1, "NestedSampler": 1,
    "ParticleGibbs": 1, "SMC": 1, "SVGD": 1, "SteinVI": 1,
}  # fmt: skip
# Log densities of one point that differ by more than rounding are of another model or other data.
TOLERANCE = 1e-6
# Particles by which a model is known again.
KNOWN = 8


class _Way(Protocol):
    positions: np.ndarray


class SavedParticles:
    """The checkpoints of one run; does nothing without a folder.

    Parameters
    ----------
    owner : str
        The class whose `run` it is, for messages.
    checkpoint : Checkpoint, path or None
    every : float or None
        Seconds between files.
    settings : dict
        What the run was asked for.
    args, kwargs
        What the model is called with.
    began : float
        When the run began, by `time.perf_counter`.

    Attributes
    ----------
    values : tree or None
        What was saved last by another process, None at the beginning.
    """

    def __init__(
        self,
        owner: str,
        checkpoint: str | os.PathLike[str] | Checkpoint | None,
        every: float | None,
        settings: Mapping[str, object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        began: float,
    ) -> None:
        self.values: Tree = None
        self._before, self._began = 0.0, began
        self._checkpoint: Checkpoint | None = None
        self._claim: RunClaim | None = None
        self._every = _checked_every(owner, checkpoint, every)
        if checkpoint is None:
            return
        self._checkpoint = (
            checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        )
        self._identity = {name: str(x) for name, x in settings.items()}
        self._identity |= {f"data ({k})": x for k, x in digests(args, kwargs).items()}
        self._owner = owner
        self._claim = RunClaim(self._checkpoint, self._subject)
        try:
            self._step, saved = self._checkpoint.restore(self._check)
        except BaseException:
            self.__exit__()
            raise
        self._next = time.perf_counter() + self._every
        if saved is not None:
            self.values, self._before = saved["run"], saved["seconds"]

    def __enter__(self) -> SavedParticles:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others write to the folder."""
        if self._claim is not None:
            self._claim.end()

    def _check(self, saved: Tree) -> None:
        """Refuse what is saved there if it is of another run, or laid out in another way."""
        layout = saved.get("layout", 1) if isinstance(saved, dict) else None
        if layout != LAYOUTS[self._owner]:
            raise self._refusal(
                f"values in layout {LAYOUTS[self._owner]}, as this release writes them",
                "a checkpoint of another kind" if layout is None else f"layout {layout!r}",
                "end the run with the release that began it, or choose another folder",
            )
        known = saved.get("identity") if isinstance(saved, dict) else None
        if known == self._identity:
            return
        raise self._refusal(
            "the run that is saved there, with its settings and data",
            settings_that_differ(known, self._identity)
            if known
            else "a checkpoint of another kind",
            "set them as they were, or choose another folder",
        )

    def _refusal(self, expected: str, got: str, fix: str) -> ArgumentError:
        return ArgumentError(self._subject, expected=expected, got=got, fix=fix)

    @property
    def _subject(self) -> str:
        assert self._checkpoint is not None
        return f"{self._owner}.run(checkpoint={os.fspath(self._checkpoint.path)!r})"

    @property
    def seconds(self) -> float:
        """Seconds of the whole run up to now, earlier processes included."""
        return self._before + time.perf_counter() - self._began

    def update(self, values: Callable[[], Tree], *, last: bool = False) -> None:
        """Write a file, if it is time or the last one; a disk that is full is a warning."""
        if self._checkpoint is None or not (last or time.perf_counter() >= self._next):
            return
        self._step += 1
        saved = {
            "layout": LAYOUTS[self._owner],
            "identity": self._identity,
            "run": values(),
            "seconds": self.seconds,
        }
        self._checkpoint.try_to_save(self._step, saved)
        self._next = time.perf_counter() + self._every


def check_densities(owner: str, was: np.ndarray, now: np.ndarray) -> None:
    """Refuse to go on with another model: log densities of the same points have to be the same.

    Raises
    ------
    ArgumentError
        If one is not what it was.
    """
    if np.allclose(was, now, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        return
    worst = int(np.argmax(np.nan_to_num(abs(was - now), nan=np.inf)))
    raise ArgumentError(
        f"{owner}.run(checkpoint=...)",
        expected=f"the log density of the saved run, {was[worst]:.10g} at one of its particles",
        got=f"{now[worst]:.10g}",
        fix="give the model and the data it was begun with, or choose another folder",
    )


def taken_down(way: _Way, names: Sequence[str], mutation: Mutation) -> dict[str, Tree]:
    """Return attributes of particles on their way, what moves them, and densities at some of them.

    Parameters
    ----------
    way
        With `positions`, shape (particles, dim).
    names : sequence of str
        Attributes that are numbers, lists or arrays, or None.
    mutation : Mutation
    """
    known = way.positions[:KNOWN]
    each = {name: getattr(way, name) for name in names}
    return {
        **{name: x.copy() if isinstance(x, np.ndarray) else x for name, x in each.items()},
        "mutation": mutation.snapshot(way.positions[0]),
        "known": (mutation.half_way(known), mutation.ratios(known, count=False)),
    }


def put_back(owner: str, way: _Way, names: Sequence[str], mutation: Mutation, saved: Tree) -> None:
    """Give particles and what moves them all that `taken_down` returned in another process.

    Raises
    ------
    ArgumentError
        If it is of another model or of other data.
    """
    for name in names:
        value = saved[name]
        if isinstance(value, np.ndarray):
            value = np.array(value) if value.ndim else value.item()
        setattr(way, name, value)
    known = way.positions[:KNOWN]
    now = mutation.half_way(known), mutation.ratios(known, count=False)
    check_densities(owner, np.concatenate(saved["known"]), np.concatenate(now))
    mutation.restore(saved["mutation"])


def seed_text(generator: Generator | None) -> str:
    """Return what identifies a seed; a run without one goes on with the generators it has."""
    return "none" if generator is None else f"{generator.initial_seed()}, {generator.stream}"


def _checked_every(owner: str, checkpoint: object, every: float | None) -> float:
    if every is None:
        return EVERY
    wrong = isinstance(every, bool) or not isinstance(every, (int, float)) or every < 0
    if checkpoint is not None and not wrong:
        return float(every)
    raise ArgumentError(
        f"{owner}.run(checkpoint_every=...)",
        expected="a number of seconds, and a folder as checkpoint",
        got=repr(every) if wrong else "no checkpoint",
        fix=f'write run(checkpoint="folder", checkpoint_every={EVERY:g})',
    )


class ParticleProgress(StepProgress):
    """One line on stderr about particles on their way.

    Parameters
    ----------
    shown : bool
    """

    def __init__(self, *, shown: bool) -> None:
        super().__init__(1, shown=shown)
        self.text, self.share = "", 0.0

    def tell(self, text: str, share: float) -> None:
        """Show how far they are, if it is time.

        Parameters
        ----------
        text : str
        share : float, in [0, 1]
        """
        self.text, self.share = text, share
        self.update(float("nan"))

    def line(self) -> str:
        """Return the line as it is now."""
        seconds = time.perf_counter() - self._start
        filled = min(int(BAR * self.share), BAR)
        return f"[{'#' * filled}{'.' * (BAR - filled)}] {self.text}, {seconds:.0f} s"
