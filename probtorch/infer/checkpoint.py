"""`Checkpoint`: a folder of files that hold where a run stands, so that a killed run goes on.

A file is written every so many steps and has all that the next steps depend on: the states of the
objects it was given, the default generator, and whatever values the caller adds. Files are those of
`probtorch.save`: whole or not there, and checked when they are read. The newest few are kept; when
the newest turns out damaged, the one before it serves.

`SVI.run` uses it through `RunRecord`, which adds the losses so far.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from probtorch.core.arguments import count_of
from probtorch.core.rng import default_generator
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.distributed.group import is_main
from probtorch.errors import ArgumentError, FileError, user_frame
from probtorch.serialization import load, save
from probtorch.serialization.claims import FolderClaim
from probtorch.serialization.files import TEMPORARY, remove, replacing

__all__ = ["Checkpoint", "CheckpointWarning", "Restored"]

# The reader of a checkpoint refuses others: a later layout gets a later number.
FORMAT = 1
_NAME = re.compile(r"step-(\d{9,})\.ckpt")
# A file that does not load is kept under another name, for whoever wants to know what happened.
_DAMAGED = ".damaged"


class CheckpointWarning(UserWarning):
    """A checkpoint that could not be written or read; the run goes on."""


class Restored(NamedTuple):
    """Where a run stands: steps taken, and the values that were saved (None at the beginning)."""

    step: int
    values: Tree


class Checkpoint:
    """A folder with the state of a run, written every so many steps.

    Parameters
    ----------
    path : str or path-like
        A folder of this run's own; made if it is not there.
    objects : dict of str to object, optional
        Whose state to save: anything with `state_dict` and `load_state_dict` (modules, optimizers,
        schedulers, loaders, SVI) or `get_state` and `set_state` (generators). The default generator
        is always saved.
    every : int
        Steps between two files.
    keep : int
        How many files to keep. 2 or more, so that there is another if one is damaged.
    resume : bool
        False refuses a folder that has checkpoints in it already.
    map_location : optional
        Where tensors go when a checkpoint is read, as `probtorch.load` takes it: "cpu" goes on
        without the GPU that a run began with.

    Raises
    ------
    ArgumentError
        If the counts are none, or an object has no state.

    Notes
    -----
    A file that cannot be written (the disk is full) loses nothing: those before it stay, a
    `CheckpointWarning` names the path, and the run goes on to the next. When `restore` begins a
    run, though, a folder that cannot be written to is an error.

    Of failures in a row the first alone is told, and that it works again.

    Only one process may write to a folder at a time: from `restore` or `save` on until `release`,
    or until nothing refers to the object any more. Another one is refused.

    Examples
    --------
    >>> import tempfile
    >>> from probtorch.nn import Linear
    >>> from probtorch.optim import Adam
    >>> net = Linear(2, 1)
    >>> optimizer = Adam(net.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Checkpoint(folder, {"net": net, "optimizer": optimizer}, every=10)
    ...     step, _ = run.restore()
    ...     while step < 100:
    ...         # loss, backward, optimizer.step() ...
    ...         step += 1
    ...         _ = run.update(step)
    ...     run.restore().step
    100
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        objects: Mapping[str, object] | None = None,
        *,
        every: int = 100,
        keep: int = 2,
        resume: bool = True,
        map_location: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.every = count_of("Checkpoint", "every", every)
        self.keep = count_of("Checkpoint", "keep", keep)
        self.resume, self.map_location = resume, map_location
        self.objects = dict(objects or {})
        for name, thing in self.objects.items():
            _kind(name, thing)
        self._claim = FolderClaim(self.path, f"Checkpoint({os.fspath(self.path)!r})")
        self._failed = 0  # files in a row that could not be written

    def files(self) -> list[Path]:
        """Return the checkpoints that are there, the newest first."""
        with contextlib.suppress(FileNotFoundError):
            found = [p for p in self.path.iterdir() if _NAME.fullmatch(p.name)]
            return sorted(found, key=_step_of, reverse=True)
        return []

    def newest(self) -> str:
        """Return the path of the newest checkpoint, "" if there is none."""
        return next((os.fspath(p) for p in self.files()), "")

    # ------------------------------------------------------------------------------------- writing

    def save(self, step: int, values: Tree = None) -> Path:
        """Write a file now.

        Parameters
        ----------
        step : int
            Steps taken so far.
        values : tree, optional
            What to save besides, as `probtorch.save` takes it: losses, the number of the epoch.

        Returns
        -------
        Path
            Of the file. Older ones beyond `keep` are deleted when it is safely on the disk.

        Raises
        ------
        FileError
            If it cannot be written, or another process writes to the folder.
        """
        path = self.path / f"step-{step:09d}.ckpt"
        state = {
            "format": FORMAT,
            "step": step,
            "objects": {name: _state(name, thing) for name, thing in self.objects.items()},
            "default_generator": tuple(default_generator.get_state()),
            "values": values,
        }
        self._make_folder()
        save(state, path)
        for old in self.files()[self.keep :]:
            remove(old)
        return path

    def update(self, step: int, values: Tree = None) -> bool:
        """Write a file if `step` is a multiple of `every`; a failure is a warning.

        Parameters
        ----------
        step, values
            As for `save`; `values` may be a function, asked only when a file is written.

        Returns
        -------
        bool
            Whether a file was written.

        Warns
        -----
        CheckpointWarning
            If it could not be, and the one before could; if it could, and the one before not.
        """
        return step % self.every == 0 and self.try_to_save(step, values)

    def try_to_save(self, step: int, values: Tree = None) -> bool:
        """Write a file now, as `update` does when it is time."""
        try:
            self.save(step, values() if callable(values) else values)
        except FileError as error:
            self._failed += 1
            if self._failed == 1:
                warn_of_checkpoint(
                    f"no checkpoint at step {step}: the run goes on without it, and you will be "
                    f"told when checkpoints can be written again\n{error}"
                )
            return False
        if self._failed:
            warn_of_checkpoint(
                f"checkpoints can be written again, from step {step} on; {self._failed} before it "
                "could not"
            )
            self._failed = 0
        return True

    def release(self) -> None:
        """Let other processes write to the folder; the next `save` claims it again."""
        self._claim.drop()

    # ------------------------------------------------------------------------------------- reading

    def restore(self, check: Callable[[Tree], None] | None = None) -> Restored:
        """Bring all objects to where the newest checkpoint has them; call it once, at the start.

        Parameters
        ----------
        check : callable, optional
            ``check(values)`` sees the values that were saved before anything is changed, and raises
            if they are not of this run.

        Returns
        -------
        Restored
            ``step`` and ``values`` of the checkpoint; 0 and None if there is none yet.

        Raises
        ------
        ArgumentError
            If it holds other objects, or there is one and `resume` is False.
        FileError
            If the folder cannot be written to, another process writes to it, or it has checkpoints
            and none of them is whole.

        Warns
        -----
        CheckpointWarning
            If the newest is damaged and an older one is used.
        """
        if is_main():
            self._prepare()
        files, damaged = self.files(), []
        if files and not self.resume:
            raise ArgumentError(
                f"Checkpoint({os.fspath(self.path)!r})",
                expected="a folder without checkpoints, as resume=False",
                got=f"{files[0].name}",
                fix="delete the folder, choose another, or leave resume out to go on",
            )
        for path in files:
            try:
                state = load(path, self.map_location)
            except FileError as error:
                damaged.append((path, error))
                continue
            _check_format(state, path)
            if check is not None:
                check(state["values"])
            self._apply(state, path)
            for bad, reason in damaged:
                os.replace(bad, f"{bad}{_DAMAGED}")
                warn_of_checkpoint(
                    f"{bad.name} is damaged: going on from step {state['step']}\n{reason}"
                )
            return Restored(state["step"], state["values"])
        if damaged:
            raise FileError(
                f"Checkpoint({os.fspath(self.path)!r})",
                expected="one checkpoint that is whole",
                got=f"{len(damaged)} that are not; {damaged[0][0].name}: {damaged[0][1].got}",
                fix="restore the folder from a backup, or delete it to begin anew",
            ) from damaged[0][1]
        return Restored(0, None)

    def _prepare(self) -> None:
        """Make the folder, see that it can be written to, and clear away unfinished files."""
        self._make_folder()
        for path in self.path.iterdir():
            if path.name.startswith(".step-") and path.suffix == TEMPORARY:
                remove(path)
        probe = self.path / "step-probe"
        with replacing(probe):
            pass
        remove(probe)

    def _make_folder(self, claim: FolderClaim | None = None) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise FileError(
                f"Checkpoint({os.fspath(self.path)!r})",
                expected="a folder, there or not",
                got="a file",
                fix="give the folder that the checkpoints are to be in",
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"Checkpoint({os.fspath(self.path)!r})",
                expected="a folder that is there or can be made",
                got=f"{type(error).__name__}: {error.strerror}",
                fix="choose one where you may write",
            ) from error
        claim_folder(claim or self._claim)

    def _apply(self, state: Tree, path: Path) -> None:
        saved = state["objects"]
        if set(saved) != set(self.objects):
            raise ArgumentError(
                f"checkpoint {path}",
                expected=f"states of {listed(self.objects)}",
                got=f"states of {listed(saved)}",
                fix="give Checkpoint the objects it had when it was written, or another folder",
            )
        for name, thing in self.objects.items():
            getattr(thing, _kind(name, thing)[1])(saved[name])
        default_generator.set_state(state["default_generator"])

    def __repr__(self) -> str:
        files = self.files()
        last = f"at step {_step_of(files[0])}" if files else "empty"
        return f"Checkpoint({os.fspath(self.path)!r}, every={self.every}, {last})"


def _check_format(state: Tree, path: Path) -> None:
    """Refuse a file that `Checkpoint` did not write, or one of another release with other parts."""
    known = isinstance(state, dict) and {"format", "step", "objects", "values"} <= set(state)
    if known and isinstance(state["objects"], dict) and state["format"] == FORMAT:
        return
    raise ArgumentError(
        f"checkpoint {path}",
        expected=f"a file that Checkpoint wrote, of format {FORMAT}",
        got=f"format {state['format']!r}" if known else "another one",
        fix="load it with probtorch.load, or delete it",
    )


_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


def methods_of(thing: object) -> tuple[str, str] | None:
    """Names of the methods that take and bring back the state of an object, if it has them."""
    for methods in _METHODS:
        if all(callable(getattr(thing, method, None)) for method in methods):
            return methods
    return None


def _kind(name: str, thing: object) -> tuple[str, str]:
    """The same, of an object that has to have them."""
    methods = methods_of(thing)
    if methods is not None:
        return methods
    raise ArgumentError(
        f"Checkpoint: object {name!r}",
        expected="state_dict and load_state_dict, or get_state and set_state",
        got=type(thing).__name__,
        fix="save plain values with update(step, values)",
    )


def _state(name: str, thing: object) -> Tree:
    taken = getattr(thing, _kind(name, thing)[0])()
    return tuple(taken) if isinstance(taken, tuple) else taken


def _step_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def listed(names: Iterable[str]) -> str:
    shown = list(itertools.islice(sorted(map(repr, names)), 10))
    return ", ".join(shown) or "nothing"


def claim_folder(claim: FolderClaim) -> None:
    """Take a claim, with our error where its file cannot be made."""
    try:
        claim.take()
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            claim.subject,
            expected="a folder that can be written to",
            got=f"{type(error).__name__}: {error.strerror or error}",
            fix="make room, or choose one where you may write",
        ) from error


def settings_that_differ(
    saved: Mapping[str, object] | None, now: Mapping[str, object], *, most: int = 5
) -> str:
    """Say in which settings a saved run and the one at hand differ, with the values of both.

    Parameters
    ----------
    saved, now : dict
    most : int
        How many to name.

    Returns
    -------
    str
        ``num_samples=500 (saved was 1000); ...``; empty if none does.
    """
    saved, none = saved or {}, object()
    found = []
    for name in sorted({*saved, *now}):
        one, other = now.get(name, none), saved.get(name, none)
        if one != other:
            one, other = ("none" if x is none else _short(x) for x in (one, other))
            found.append(f"{name}={one} (saved was {other})" if one != other else f"another {name}")
    rest = f"; and {len(found) - most} more" if len(found) > most else ""
    return "; ".join(found[:most]) + rest


def _short(value: object) -> str:
    text = str(value)
    # What is known by its SHA-256 alone says nothing by that.
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return "other values"
    return text if len(text) <= 60 else f"{text[:57]}..."


class RunClaim:
    """The folder of its checkpoints, for one run: nobody else writes there until it ends.

    Parameters
    ----------
    checkpoint : Checkpoint
    subject : str
        Of the error if somebody does.
    """

    def __init__(self, checkpoint: Checkpoint, subject: str) -> None:
        self._checkpoint = checkpoint
        self._claim = FolderClaim(checkpoint.path, subject, "checkpoints")
        # One process of several that make a run together writes.
        if is_main():
            checkpoint._make_folder(self._claim)

    def end(self) -> None:
        """Let others write there."""
        self._claim.drop()
        self._checkpoint.release()


def warn_of_checkpoint(message: str) -> None:
    warnings.warn_explicit(message, CheckpointWarning, *(user_frame() or ("<unknown>", 0)))


explain_calls(globals())
