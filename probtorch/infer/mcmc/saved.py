"""Chains as plain data, and the checkpoints of a run that is killed.

Between two calls of the native program a chain is a handful of arrays: kernel, state, key and
adaptation (`Chain`), how far it is in which segment of the warm-up, and what it drew.
`chain_leaves` and `chain_of` turn the first to a list of arrays and back. A `ChainRun` takes
snapshots of all of it in its own thread; `SavedRun` puts the latest of every chain into a file,
from the main thread. Chains need not stand at the same iteration: each is a function of its seed.
Between two files they write down what they draw by themselves (journal.py).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, flatten, replace, unflatten
from probtorch.distributed.group import is_main, note_checkpoint
from probtorch.errors import ArgumentError
from probtorch.infer.checkpoint import Checkpoint, RunClaim, settings_that_differ
from probtorch.infer.mcmc.chunk import Chain
from probtorch.infer.mcmc.journal import ChainJournal, Transitions, caught_up, clear
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.pace import Pace
from probtorch.infer.mcmc.randomness import Key
from probtorch.infer.mcmc.settings import without_places

if TYPE_CHECKING:
    from probtorch.infer.mcmc.chain import ChainRun
    from probtorch.infer.mcmc.standing import ChainSnapshot
    from probtorch.infer.mcmc.starts import Start
    from probtorch.infer.mcmc.store import DrawStore


__all__ = ["SavedRun", "chain_leaves", "chain_of"]

# Log densities of one point that differ by more than rounding are of another model or other data.
TOLERANCE = 1e-6


def chain_leaves(chain: Chain) -> list[np.ndarray]:
    """Return the arrays of a chain, without the density it was drawn from."""
    bare = replace(chain, kernel=replace(chain.kernel, density=None))
    return [np.asarray(leaf.array) for leaf in flatten(bare)[0]]


def chain_of(kernel: Kernel, leaves: Sequence[np.ndarray]) -> Chain:
    """Return the chain of such arrays, without a density.

    One that was saved by an earlier release goes on as the kernel was then; see `Kernel.earlier`.

    Parameters
    ----------
    kernel : Kernel
        The settings it was drawn with.
    leaves : list of ndarray

    Raises
    ------
    ArgumentError
        If they are of another kernel.
    """
    given = [np.asarray(x) for x in leaves]
    for made in (kernel, kernel.earlier()):
        structure = None if made is None else _structure(made, given)
        if structure is not None:
            return unflatten(structure, [wrap(x.copy()) for x in given])
    for built, (other, fix) in kernel.mistaken().items():
        if _structure(other, given) is not None:
            raise ArgumentError(
                "the saved state of a chain",
                expected=f"that of {kernel.stated()}",
                got=f"that of {built}",
                fix=fix,
            )
    raise ArgumentError(
        "the saved state of a chain",
        expected=f"that of a {kernel.name} kernel with these settings",
        got="arrays of other shapes",
        fix="build the kernel as it was when the state was saved",
    )


def _structure(kernel: Kernel, given: Sequence[np.ndarray]) -> Structure | None:
    """That of a chain of the kernel which has such arrays; None if its arrays are others."""
    try:
        dim = kernel.dim_of(given)
        values = kernel.blank_values(dim, given)
    except IndexError:  # what they are read from is not where it would be
        return None
    none = wrap(np.zeros((), np.int64))
    blank = kernel.in_use(_flat, **values)
    position = wrap(np.zeros((kernel.members, dim) if kernel.members else dim))
    state = blank.init(position, none)
    template = Chain(replace(blank, density=None), state, Key(none, none), kernel.warmup.tuner)
    expected, structure = flatten(template)
    alike = [(x.array.shape, x.array.dtype) for x in expected] == [
        (x.shape, x.dtype) for x in given
    ]
    return structure if alike else None


def _flat(position: TensorBase) -> tuple[TensorBase, TensorBase]:
    """A density, for the shapes of a state."""
    return wrap(np.zeros(())), wrap(np.zeros(position.array.shape))


class SavedRun:
    """The checkpoints of one run of `MCMC`; does nothing without a folder.

    Parameters
    ----------
    checkpoint : Checkpoint, path or None
    every : float or None
        Seconds between files; None saves as often as is cheap (pace.py).
    settings : dict
        What the run was asked for; a checkpoint of another run is refused.
    any_number : bool
        Whether a run that is there is gone on with whatever its number of draws.

    Attributes
    ----------
    num_samples : int
        Draws after warm-up that the run is of.
    every : float or None
        As it was given.
    active : bool
        Whether there is a folder.
    seconds : float
        That earlier processes took.
    store : DrawStore or None
        Where draws go, if not into memory; `update` has it tell of what is there.
    store_id : str
        Of the store of the run that goes on; empty if it has none, or is of an earlier release.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | Checkpoint | None,
        every: float | None,
        settings: dict[str, object],
        *,
        any_number: bool = False,
    ) -> None:
        if checkpoint is None and every is not None:
            raise ArgumentError(
                "MCMC.run(checkpoint_every=...)",
                expected="a folder to write to",
                got="none",
                fix='write mcmc.run(checkpoint="folder", checkpoint_every=10.0)',
            )
        self.seconds = 0.0
        self.store: DrawStore | None = None
        self.store_id = ""
        self._claim: RunClaim | None = None
        self.every, self.active = None if every is None else _seconds(every), checkpoint is not None
        self._pace = Pace(self.every)
        self._written = 0  # transitions of all chains in the last file
        self._chains: list[ChainSnapshot] = []
        self._drawn: list[list[Transitions]] = []  # by the chains since that file
        self._kept: list[list[int]] = []  # transitions of each chain in the files that are there
        self._extended = 0  # extensions of warm-ups in the last file
        self._checkpoint: Checkpoint | None = None
        self._folder: Checkpoint | None = None  # also where another process writes to it
        self._extensions = 0  # that were asked for
        self._settings, self._any_number = settings, any_number
        if checkpoint is None:
            return
        self._checkpoint = self._folder = (
            checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        )
        subject = f"MCMC.run(checkpoint={str(self._checkpoint.path)!r})"
        note_checkpoint(self._checkpoint.newest)
        self._claim = RunClaim(self._checkpoint, subject)
        try:
            self._restore(self._checkpoint, subject)
        except BaseException:
            self.close()
            raise

    def _restore(self, checkpoint: Checkpoint, subject: str) -> None:
        values = checkpoint.restore().values
        self._began = time.perf_counter()
        if values is None:
            return
        settings = self._settings
        saved = values.get("settings") if isinstance(values, dict) else None
        saved = without_places(saved) if isinstance(saved, dict) else None
        if saved and self._any_number and "num_samples" in saved:
            settings = self._settings = {**settings, "num_samples": saved["num_samples"]}
        if saved and "seed" not in saved:
            settings = {k: v for k, v in settings.items() if k != "seed"}  # of an earlier release
        if saved != settings:
            raise ArgumentError(
                subject,
                expected="the settings of the run that is saved there",
                got=settings_that_differ(saved, settings) if saved else "another kind of run",
                fix="delete this folder, and draw that part anew"
                if self._any_number
                else "set them as they were, or choose another folder",
            )
        chains: list[ChainSnapshot] = values["chains"]
        self._extended = sum(len(c["extensions"]) for c in chains)
        self._chains, self._drawn = caught_up(checkpoint.path, chains)
        self.seconds = values["seconds"]
        self.store_id = values.get("store", "")

    def __enter__(self) -> SavedRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let others write to the folders, if the run cannot begin."""
        if kind is not None:
            self.close()

    def close(self) -> None:
        """Let others write to the folders."""
        if self._claim is not None:
            self._claim.end()
        if self.store is not None:
            self.store.release()

    def __bool__(self) -> bool:
        """Whether there is a run to go on with."""
        return bool(self._chains)

    @property
    def num_samples(self) -> int:
        """Draws after warm-up that the run is of."""
        return int(cast(int, self._settings["num_samples"]))

    def extension(self, settings: dict[str, object], states: Sequence[Chain]) -> SavedRun:
        """Return the checkpoints of the next run that goes on from this one.

        They have a folder in that of this run, and belong to the very states they go on from.

        Parameters
        ----------
        settings : dict
            What it is asked for; an extension that is there is gone on with if it has more draws
            or fewer, which depend on how many seemed to be missing then.
        states : sequence of Chain
            Where chains stand.
        """
        if self._folder is None:
            return SavedRun(None, None, settings)
        self._extensions += 1
        inner = Checkpoint(
            self._folder.path / f"extension-{self._extensions}",
            keep=self._folder.keep, resume=self._folder.resume,
            map_location=self._folder.map_location,
        )  # fmt: skip
        goes_on = {**settings, "goes_on_from": _digest(states)}
        return SavedRun(inner, self.every, goes_on, any_number=True)

    def chains(self, kernel: Kernel, resume: Callable[[list[Chain]], list[Start]]) -> list[Start]:
        """Return pairs of a chain and the context of its density, as they were saved.

        Parameters
        ----------
        kernel : Kernel
        resume : callable
            From chains without densities to the pairs, with log densities computed anew.

        Raises
        ------
        ArgumentError
            If a log density is not what it was: model or data have changed.
        """
        bare = [chain_of(kernel, saved["leaves"]) for saved in self._chains]
        pairs = []
        for before, (chain, context) in zip(bare, resume(bare), strict=True):
            was, now = (np.ravel(c.state.logdensity.array) for c in (before, chain))
            if not np.allclose(was, now, rtol=TOLERANCE, atol=TOLERANCE):
                was, now = max(zip(was, now), key=lambda pair: abs(pair[0] - pair[1]))
                raise ArgumentError(
                    "MCMC.run(checkpoint=...)",
                    expected=f"the log density of the saved run, {was:.10g} where a chain stands",
                    got=f"{now:.10g}",
                    fix="give the model and the data it was begun with, or choose another folder",
                )
            # The same to the bit, even where another compiler computes it.
            pairs.append((replace(chain, state=before.state), context))
        return pairs

    def share(self) -> None:
        """Let the first of several processes that make the same run write its checkpoints."""
        if not is_main():
            self._checkpoint = None

    def begin(self, runs: Sequence[ChainRun], *, here: bool = True) -> None:
        """Bring runs to where they were.

        Parameters
        ----------
        runs : sequence of ChainRun
        here : bool
            Whether they are driven in this process, so that they can write down what they draw.
        """
        resumed = bool(self._chains)
        for run, saved, drawn in zip(runs, self._chains, self._drawn):
            run.restore(saved, drawn)
        self._chains, self._drawn = [], []
        # Files that are asked for by the clock are written by the clock, and nothing besides.
        if self._checkpoint is None or self.every is not None or not here:
            return
        folder = self._checkpoint.path
        if not resumed:
            clear(folder)
        journals: list[ChainJournal] = []
        extensions = sum(len(run.extensions) for run in runs)
        for i, run in enumerate(runs):
            run.journal = ChainJournal(
                folder, i, run.kernel.info, run.iteration, journals, extensions
            )

    def update(self, runs: Sequence[ChainRun], *, last: bool = False) -> None:
        """Write a file with the latest snapshot of every chain, if it is time or the last one."""
        if self.store is not None:
            self.store.update(failed=last and any(run.error is not None for run in runs))
        if self._checkpoint is None:
            return
        chains = [run.snapshot for run in runs if run.snapshot is not None]
        done = sum(c["iteration"] for c in chains)
        journals = [run.journal for run in runs if run.journal is not None]
        # Without a file that knows of it, the journal of a longer warm-up is of no use.
        extended = sum(len(c["extensions"]) for c in chains)
        told = not journals or extended == self._extended
        if not last and done == self._written and told:
            return
        each = (done - self._written) // max(len(chains), 1)
        if not (last or not told or self._pace.due(each, beside=self._beside(journals))):
            return
        with self._pace.saving():
            if self.store is not None:
                # Rows that a checkpoint counts on are on the disk before it is.
                self.store.sync()
            values = {
                "settings": self._settings,
                "chains": chains,
                "seconds": self.seconds + time.perf_counter() - self._began,
                "store": "" if self.store is None else self.store.id,
            }
            saved = self._checkpoint.try_to_save(done, values)
        # Also of a file that could not be written: the next one is due when it is due.
        self._written, self._extended = done, extended
        if last:
            for journal in journals:
                journal.end()
        if not saved:
            return
        self._kept = [*self._kept, [c["iteration"] for c in chains]][-self._checkpoint.keep :]
        for i, journal in enumerate(journals):
            journal.turn(min(counts[i] for counts in self._kept))
        # A chain that failed has no snapshot of where it stood.
        if last and all(run.iteration == c["iteration"] for run, c in zip(runs, chains)):
            clear(self._checkpoint.path)

    def _beside(self, journals: Sequence[ChainJournal]) -> bool:
        """Whether all that is drawn since the last file is in journals that go on from it."""
        if not self._kept or not any(journal.kept for journal in journals):
            return False
        return all(
            journal.kept is not False and journal.since <= iteration
            for journal, iteration in zip(journals, self._kept[-1], strict=True)
        )


def _digest(states: Sequence[Chain]) -> str:
    """What tells states of chains from all others."""
    told = hashlib.sha256()
    for chain in states:
        for leaf in chain_leaves(chain):
            told.update(np.ascontiguousarray(leaf).tobytes())
    return told.hexdigest()[:16]


def _seconds(every: float) -> float:
    if isinstance(every, (int, float)) and not isinstance(every, bool) and every > 0:
        return float(every)
    raise ArgumentError(
        "MCMC.run(checkpoint_every=...)",
        expected="a number of seconds above 0",
        got=repr(every),
        fix="leave it out: it is as often as is cheap",
    )
