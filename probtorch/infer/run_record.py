"""`RunRecord`: what `SVI.run` writes into a `Checkpoint`, the losses so far, and reads again."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.distributed.group import is_main, note_checkpoint
from probtorch.errors import ArgumentError
from probtorch.infer.checkpoint import (
    Checkpoint,
    RunClaim,
    listed,
    methods_of,
    warn_of_checkpoint,
)
from probtorch.infer.run_identity import differences, digests, site_densities

if TYPE_CHECKING:
    from probtorch.infer.vi.svi import SVI

__all__ = ["RunRecord"]


class RunRecord:
    """What `SVI.run` has done so far: its losses, and the checkpoints they are part of.

    Parameters
    ----------
    svi : SVI
    args, kwargs
        Of the run; modules, loaders and other objects with a state among them are saved too.
    checkpoint : Checkpoint, path or None
    every : int or None
        Steps between files, of a path.

    Attributes
    ----------
    losses : list of float
        Of the whole run, earlier processes included.
    seconds : float
        Taken by earlier processes.
    stopped : bool
        Whether the callback has ended the run.
    """

    def __init__(
        self,
        svi: SVI,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        checkpoint: str | os.PathLike[str] | Checkpoint | None,
        every: int | None,
    ) -> None:
        self.svi, self.losses, self.seconds, self.stopped = svi, [], 0.0, False
        self._began = time.perf_counter()
        self._saved = 0
        self._claim: RunClaim | None = None
        named = {f"args.{i}": x for i, x in enumerate(args)}
        named |= {f"kwargs.{name}": x for name, x in kwargs.items()}
        found = {name: x for name, x in named.items() if methods_of(x) is not None}
        # The state of SVI comes last: it knows best where the loaders of its plates stand.
        self.checkpoint = _checkpoint(checkpoint, every, {**found, "svi": svi})
        if self.checkpoint is None:
            return
        self._args, self._kwargs = args, kwargs
        self._writes = is_main() or not svi.in_company
        note_checkpoint(self.checkpoint.newest)
        self._sites: frozenset[str] | None = (
            None  # those by which the model is known; not found out yet
        )
        self._identity = {**svi.identity, "data": digests(args, kwargs)}
        if self._writes:
            self._claim = RunClaim(self.checkpoint, f"SVI.run(checkpoint={self._folder!r})")
        try:
            self._restore(self.checkpoint)
        except BaseException:
            self.__exit__()
            raise

    def _restore(self, checkpoint: Checkpoint) -> None:
        step, values = checkpoint.restore(self._check)
        if values is not None:
            self._check_model(values.get("run"))
            self._saved = step
            self.losses = values["losses"].tolist()
            self.seconds, self.stopped = values["seconds"], values["stopped"]
            # Where earlier releases saved it.
            self.svi.failures = values.get("failures", self.svi.failures)

    def __enter__(self) -> RunRecord:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others write to the folder."""
        if self._claim is not None:
            self._claim.end()

    @property
    def _folder(self) -> str:
        return "" if self.checkpoint is None else os.fspath(self.checkpoint.path)

    def _check(self, values: Tree) -> None:
        """Refuse what is saved there if it is of another run."""
        if not self._writes:
            return  # the first process looks; others have data of their own
        saved = values.get("run") if isinstance(values, dict) else None
        if saved is not None:
            self._refuse(differences(saved, self._identity))

    def _check_model(self, saved: Mapping[str, Tree] | None) -> None:
        """The same for what only a model that is where it was can tell."""
        if self.checkpoint is None or not self._writes:
            return
        if saved is None:
            warn_of_checkpoint(
                f"{self.checkpoint.path} was written by an earlier release: whether model, data, "
                "seed and optimizer are those that it was begun with cannot be told"
            )
            return
        self.svi.resume(self._args, self._kwargs)
        self._sites = frozenset(saved["sites"])
        here = site_densities(self.svi, self._args, self._kwargs, self._sites)
        self._refuse(differences(saved, {**self._identity, "sites": here}))

    def _refuse(self, different: Sequence[str]) -> None:
        if different and self.checkpoint is not None:
            raise ArgumentError(
                f"SVI.run(checkpoint={self._folder!r})",
                expected="the run that is saved there, with the model, guide, data, seed and "
                "optimizer it was begun with",
                got="; ".join(different[:5]),
                fix="give what it was begun with to go on, or choose another folder for this run",
            )

    @property
    def elapsed(self) -> float:
        """Seconds of the whole run up to now."""
        return self.seconds + time.perf_counter() - self._began

    def room(self, num_steps: int) -> int:
        """Steps until the next checkpoint or the end of the run, whichever comes first."""
        left = num_steps - len(self.losses)
        if self.checkpoint is None:
            return left
        return min(left, self.checkpoint.every - len(self.losses) % self.checkpoint.every)

    def update(self) -> None:
        """Write a checkpoint if it is time."""
        if self.checkpoint is not None and len(self.losses) % self.checkpoint.every == 0:
            self._save()

    def close(self) -> None:
        """Write the last checkpoint, unless it is there."""
        if self.checkpoint is not None and self._saved != len(self.losses):
            self._save()

    def _save(self) -> None:
        if self.checkpoint is None or not self._writes:
            return
        sites = site_densities(self.svi, self._args, self._kwargs, self._sites)
        self._sites = frozenset(sites) if self._sites is None else self._sites
        values = {
            "run": {**self._identity, "sites": sites},
            "losses": np.array(self.losses, np.float64),
            "seconds": self.elapsed,
            "stopped": self.stopped,
        }
        self.checkpoint.try_to_save(len(self.losses), values)
        self._saved = len(self.losses)


def _checkpoint(
    given: str | os.PathLike[str] | Checkpoint | None, every: int | None, objects: dict[str, object]
) -> Checkpoint | None:
    """The checkpoint of a run: a path made one, with the run's own objects added."""
    if given is None:
        if every is not None:
            raise ArgumentError(
                "SVI.run(checkpoint_every=...)",
                expected="a folder to write to",
                got="none",
                fix='write svi.run(1000, checkpoint="folder", checkpoint_every=100)',
            )
        return None
    if not isinstance(given, Checkpoint):
        return Checkpoint(given, objects, every=100 if every is None else every)
    if every is not None:
        raise ArgumentError(
            "SVI.run(checkpoint_every=...)",
            expected="a path as checkpoint",
            got="a Checkpoint, which says itself how often",
            fix="write Checkpoint(path, every=...)",
        )
    both = set(objects) & set(given.objects)
    if both:
        raise ArgumentError(
            "SVI.run(checkpoint=...)",
            expected="objects beside those that the run saves itself",
            got=listed(both),
            fix="leave it out, or give it another name",
        )
    return Checkpoint(
        given.path,
        {**given.objects, **objects},
        every=given.every,
        keep=given.keep,
        resume=given.resume,
        map_location=given.map_location,
    )


explain_calls(globals())
