"""Draws that go to the disk as they are drawn: `DrawStore`, a folder.

A chain (stored_record.py) collects some rows, a megabyte, takes them to the model's space, and
writes them where they belong in files of their final size (`diagnostics/stored.py` has the layout).
What stays in memory does not depend on the length of the run. A row is written a second time only
by a run that goes on from a checkpoint, and then it is the same to the bit: nothing has to be
undone. A run that goes on from where the draws of another one end (`StoreEnd`) makes the files
longer first, one by one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from probtorch.compiler.native.pages import give_back
from probtorch.diagnostics.arviz_ import json_ready
from probtorch.diagnostics.stored import (
    MANIFEST,
    Manifest,
    file_of,
    layout_of,
    lengthen,
    new_array,
    of_chains,
    read_manifest,
    write_manifest,
)
from probtorch.errors import ArgumentError, FileError
from probtorch.infer.checkpoint import claim_folder
from probtorch.infer.mapping import FEW
from probtorch.infer.mcmc.kernel import statistics
from probtorch.infer.mcmc.recording import most_draws
from probtorch.infer.mcmc.settings import without_places
from probtorch.infer.mcmc.store_room import on_disk, set_aside, warn_of_room
from probtorch.infer.mcmc.stored_record import StoredRecord
from probtorch.infer.potential import DensityTarget, Target
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.serialization.claims import FolderClaim
from probtorch.serialization.files import remove, replacing

__all__ = ["DrawStore", "StoreEnd", "tell_of"]

# Seconds between two looks of `update`, which let those who read the folder know of more rows.
EVERY = 2.0
# Among the open files the one that holds room for the last manifest, and its bytes at least.
SPARE, SPARE_BYTES = "", 2**15
# The variable of the unconstrained draws: (chain, draw, dim).
POSITIONS = "positions"
# Shape of a row and dtype of variables, by group and name.
_Plan: TypeAlias = dict[str, dict[str, tuple[tuple[int, ...], np.dtype]]]


@dataclasses.dataclass(frozen=True)
class StoreEnd:
    """Where the draws in a folder end: what a run that goes on from there appends to.

    Parameters
    ----------
    id : str
        Of the store that has them.
    rows : int
        Of each chain.
    cut : bool
        Whether chains have rows beyond these, of a run that was broken off. They are lost then, and
        a checkpoint that counts on them fits no more.
    """

    id: str
    rows: int
    cut: bool


class DrawStore:
    """The folder of one run.

    Parameters
    ----------
    path : path
    target : Target
    settings : dict
        What the run was asked for.
    resumed : bool
        Whether a checkpoint goes on with what is there.
    anew : bool
        Whether what a run with these settings has left there may be overwritten.
    names : sequence of str or None
        Variables of the posterior to keep.
    resumed_id : str
        The `id` of the store that is gone on with, if that is known.
    end : StoreEnd, optional
        Where the draws end that the run goes on from.

    Attributes
    ----------
    id : str
        Tells the draws of one run from those of another with the same settings.

    Raises
    ------
    ArgumentError
        If there are other draws in the folder; if a run is to go on, and there are none.
    FileError
        If the folder cannot be made, or another process writes to it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        target: Target,
        settings: Mapping[str, object],
        *,
        resumed: bool,
        anew: bool,
        names: Sequence[str] | None,
        resumed_id: str = "",
        end: StoreEnd | None = None,
    ) -> None:
        self.path, self.target, self.names = Path(path), target, names
        self._settings = {name: str(value) for name, value in settings.items()}
        self._files: dict[str, tuple[int, int, tuple[int, ...], np.dtype]] = {}
        # Of a run that ends without any draws nobody asks for them.
        weakref.finalize(self, _close, self._files)
        self._arrays: dict[str, dict[str, Manifest]] = {}
        self._attrs: dict[str, object] = {"inference_library": "probtorch", "interrupted": True}
        # Rows of each chain that are those of earlier runs, and the chains of the files that are
        # those of this one, if some had failed by then.
        self._before = 0 if end is None else end.rows
        self._numbers: list[int] | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failed(error) from error
        self._claim = FolderClaim(self.path, f"MCMC.run(store={str(path)!r})", "draws")
        claim_folder(self._claim)
        try:
            if end is None:
                self._take_over(resumed, anew, resumed_id)
            else:
                self._append_to(end, resumed, resumed_id)
        except BaseException:
            self.release()
            raise
        self._resumed = resumed
        self._records: list[StoredRecord] = []
        self._lock = threading.Lock()  # of the map to the model's space
        self._next = 0.0
        # What the result has; of a run that goes on `_tell` looks.
        self._rows: int | None = None
        self._chains: list[int] = []

    def _take_over(self, resumed: bool, anew: bool, resumed_id: str) -> None:
        """Refuse draws in the folder that are not those of this run."""
        path = os.fspath(self.path)
        there = read_manifest(self.path)
        same = there is not None and without_places(there["settings"]) == self._settings
        its = "" if there is None else there.get("id", "")
        if resumed and resumed_id and its:
            same = same and its == resumed_id
        self.id = its if resumed and its else secrets.token_hex(8)
        if resumed and not same:
            raise ArgumentError(
                f"MCMC.run(store={path!r}, checkpoint=...)",
                expected="the folder with the draws of the run that goes on",
                got="a folder without" if there is None else "draws of another run",
                fix="give the folder it was begun with, or another checkpoint to begin anew",
            )
        if there is not None and not resumed and not (anew and same):
            raise ArgumentError(
                f"MCMC.run(store={path!r})",
                expected="a folder without draws",
                got="draws of this run, which has no checkpoint"
                if same
                else "draws of another run",
                fix="give another folder, or delete this one; with checkpoint= a run that was "
                "killed goes on",
            )

    def _append_to(self, end: StoreEnd, resumed: bool, resumed_id: str) -> None:
        """Take the draws in the folder for the first ones, and refuse others."""
        there = read_manifest(self.path)
        if there is None or there.get("id") != end.id or (resumed and resumed_id != end.id):
            raise ArgumentError(
                f"draws beyond those in {os.fspath(self.path)!r}",
                expected="the folder with the draws of the run that is gone on from",
                got="a folder without" if there is None else "draws of another run",
                fix="bring it back; or set mcmc.post_warmup_state = mcmc.last_state, and run to "
                "another folder",
            )
        self.id = secrets.token_hex(8) if end.cut else end.id
        self._settings, self._arrays = there["settings"], there["arrays"]
        self._numbers, self.names = there["chains"], list(there["arrays"].get("posterior", ()))
        self._attrs = {**there["attrs"], "interrupted": True}

    def release(self) -> None:
        """Let others write to the folder."""
        self._claim.drop()

    # ------------------------------------------------------------------------------------ the files

    def begin(
        self, positions: np.ndarray, iterations: int, info: type, thinning: int
    ) -> list[StoredRecord]:
        """Make the files, or make them longer, and return the records of the chains.

        Parameters
        ----------
        positions : ndarray, shape (chains, dim) or (chains, members, dim)
            Where the chains are.
        iterations : int
        info : type
        thinning : int
        """
        self._members = math.prod(positions.shape[1:-1])
        chains, rows = len(positions) * self._members, iterations // thinning
        try:
            if self._numbers is None:
                self._make_all(positions, chains, rows, info)
            else:
                self._lengthen_all(self._before + rows)
        except BaseException as error:
            self._close_files()
            if isinstance(error, FileError) or not isinstance(error, OSError):
                raise  # says itself which file it is
            raise self._failed(error) from error
        self._records = [
            StoredRecord(self, i, rows, positions.shape[1:], info, thinning)
            for i in range(len(positions))
        ]
        if not self._resumed:
            self.sync()
        spare = set_aside(self.path, 2 * on_disk(self.path / MANIFEST) + SPARE_BYTES)
        if spare is not None:
            self._files[SPARE] = (spare, 0, (), np.dtype(bool))
        return self._records

    def _make_all(self, positions: np.ndarray, chains: int, rows: int, info: type) -> None:
        """Make the files of a run that begins, or open those of one that goes on."""
        example = positions.reshape(-1, positions.shape[-1])
        plan: _Plan = {POSITIONS: {POSITIONS: (example.shape[1:], example.dtype)}}
        # As many as are worth compiling for: in this thread, and once.
        found = self._constrained(np.resize(example, (max(FEW, chains), example.shape[-1])))
        plan["posterior"] = {name: (x.shape[1:], x.dtype) for name, x in found.items()}
        plan["sample_stats"] = {
            s.name: ((), np.dtype(s.dtype)) for s in statistics(info) if s.name is not None
        }
        needed = 0
        for group, variables in plan.items():
            for name, (shape, dtype) in variables.items():
                needed += chains * rows * math.prod(shape) * dtype.itemsize
                needed -= on_disk(self.path / file_of(group, name))
        warn_of_room(self.path, needed)
        if not self._resumed:
            # Readers are told of none of the draws that are written over.
            remove(self.path / MANIFEST)
        try:
            for group, variables in plan.items():
                for name, (shape, dtype) in variables.items():
                    self._make(group, name, (chains, rows, *shape), dtype)
            data = {
                "observed_data": self.target.data_at(positions),
                "constant_data": self.target.constant_data,
            }
            for group, arrays in data.items():
                for name, x in arrays.items():
                    file = file_of(group, name)
                    self._listed(group)[name] = {"file": file, "drawn": False}
                    with replacing(self.path / file) as stream:
                        np.save(stream, x, allow_pickle=False)
        except OSError:
            if not self._resumed:
                self._remove()
            raise
        if isinstance(self.target, DensityTarget):
            # Its variables are parts of the positions.
            for name, slot in self.target.slots.items():
                if self.names is None or name in self.names:
                    self._listed("posterior")[name] = {
                        **self._listed(POSITIONS)[POSITIONS],
                        "slice": [slot.start, slot.stop],
                        "shape": list(slot.shape),
                    }

    def _lengthen_all(self, rows: int) -> None:
        """Open the files that are there, with room for so many rows of each chain.

        A process that is killed meanwhile leaves files of both lengths, in each of which are the
        rows that the manifest tells of.
        """
        listed = [v for variables in self._arrays.values() for v in variables.values()]
        files = dict.fromkeys(v["file"] for v in listed if v["drawn"])
        layouts = {file: layout_of(self.path / file) for file in files}
        short = [file for file, (_, shape, _) in layouts.items() if shape[1] < rows]
        needed = max((on_disk(self.path / file) for file in short), default=0)
        for file, (_, (chains, _, *shape), dtype) in layouts.items():
            needed += chains * rows * math.prod(shape) * dtype.itemsize
            needed -= on_disk(self.path / file)
        warn_of_room(self.path, needed)
        for file in files:
            if file in short:
                lengthen(self.path / file, rows, self._numbers or (), self._before)
            self._open(file)

    def _remove(self) -> None:
        """Delete the files of a run that could not begin."""
        for variables in self._arrays.values():
            for file in variables.values():
                remove(self.path / file["file"])

    def _listed(self, group: str) -> dict[str, Manifest]:
        return self._arrays.setdefault(group, {})

    def _make(self, group: str, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        file = file_of(group, name)
        self._listed(group)[name] = {"file": file, "drawn": True}
        if not (self._resumed and (self.path / file).exists()):
            new_array(self.path / file, shape, dtype)
        self._open(file)

    def _open(self, file: str) -> None:
        """Open a file to write rows to, which may be longer than this run needs."""
        layout = layout_of(self.path / file)
        self._files[file] = (os.open(self.path / file, os.O_RDWR), *layout)

    def _constrained(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Variables that have files of their own, for positions (rows, dim)."""
        if isinstance(self.target, DensityTarget):
            return {}
        with self._lock:
            found = self.target.constrain_many(positions)
        return {n: x for n, x in found.items() if self.names is None or n in self.names}

    def write(
        self, chain: int, row: int, positions: np.ndarray, stats: Mapping[str, np.ndarray]
    ) -> None:
        """Write complete rows of one chain of this run, which begin at `row`.

        Raises
        ------
        FileError
            If the disk does not take them.
        """
        row += self._before
        chain = chain if self._numbers is None else self._numbers[chain]
        try:
            self._put(file_of(POSITIONS, POSITIONS), chain, row, positions)
            for name, x in self._constrained(positions).items():
                self._put(file_of("posterior", name), chain, row, x)
            for name, x in stats.items():
                self._put(file_of("sample_stats", name), chain, row, x)
        except OSError as error:
            raise self._failed(error) from error

    def _put(self, file: str, chain: int, row: int, values: np.ndarray) -> None:
        descriptor, start, (_, rows, *shape), dtype = self._files[file]
        size = dtype.itemsize * math.prod(shape)
        rest = np.ascontiguousarray(values, dtype).reshape(-1).view(np.uint8).data
        at = start + (chain * rows + row) * size
        while rest:
            written = os.pwrite(descriptor, rest, at)
            rest, at = rest[written:], at + written

    # --------------------------------------------------------------------------------- the manifest

    def update(self, *, failed: bool = False) -> None:
        """Let readers know of the rows that are there, every few seconds, and where chains fail."""
        if failed:
            if SPARE in self._files:  # of a disk that is full
                os.close(self._files.pop(SPARE)[0])
            with contextlib.suppress(FileError):  # the chain's own error is the one to be seen
                self._tell()
        elif time.perf_counter() >= self._next:
            self._next = time.perf_counter() + EVERY
            self._tell()
            give_back()

    def sync(self) -> None:
        """Have all that was written on the disk, and tell of it."""
        try:
            for descriptor, *_ in self._files.values():
                os.fsync(descriptor)
        except OSError as error:
            raise self._failed(error) from error
        self._tell()

    def _tell(self) -> None:
        rows, chains, attrs = self._rows, self._chains, self._attrs
        if rows is None:
            # One chain that is long in its warm-up hides the draws of no other.
            counts = {record.number: record.readable for record in self._records}
            if self._numbers is None:
                kept, rows = most_draws(counts)
                chains = self._of(kept)
                if rows and len(kept) < len(counts):
                    attrs = attrs | {"missing_chains": sorted(counts.keys() - set(kept))}
            else:  # no chain is left out whose draws were there
                rows, chains = self._before + min(counts.values()), self._numbers
        manifest = {
            "settings": self._settings,
            "id": self.id,
            "rows": rows,
            "chains": chains,
            "arrays": self._arrays,
            "dims": self.target.dims,
            "coords": json_ready({name: list(x) for name, x in self.target.coords.items()}),
            "attrs": json_ready(attrs),
        }
        write_manifest(self.path, manifest)

    # -------------------------------------------------------------------------------------- reading

    def draws(
        self,
        kept: Sequence[int],
        length: int,
        attrs: Mapping[str, object],
        *,
        warmup_positions: np.ndarray | None = None,
        warmup_stats: Mapping[str, np.ndarray] | None = None,
    ) -> SampledDraws:
        """Return the first draws of some chains, mapped from the disk, with those before the run.

        Parameters
        ----------
        kept : sequence of int
            Numbers of chains; of ensembles all members.
        length : int
            Draws of each that this run has added.
        attrs : dict
        warmup_positions, warmup_stats : optional
            As for `make_draws`.
        """
        rows = self._of(kept)
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for group in (POSITIONS, "posterior", "sample_stats"):
            for name, file in self._arrays.get(group, {}).items():
                x: np.ndarray = np.load(self.path / file["file"], mmap_mode="r")
                x = of_chains(x, rows)[:, : self._before + length]
                if "slice" in file:
                    part = x[..., slice(*file["slice"])]
                    x = part.reshape(*part.shape[:2], *file["shape"])
                arrays.setdefault(group, {})[name] = x
        return make_draws(
            self.target,
            arrays[POSITIONS][POSITIONS],
            arrays["sample_stats"],
            attrs,
            warmup_positions=warmup_positions,
            warmup_stats=warmup_stats,
            posterior=arrays.get("posterior", {}),
        )

    def close(self, draws: SampledDraws, kept: Sequence[int]) -> None:
        """Write the last manifest, with what is known of the run now, and close the files."""
        self._attrs, self._chains = dict(draws.attrs), self._of(kept)
        self._rows = draws.num_draws
        self.sync()
        give_back()
        self._close_files()

    def _close_files(self) -> None:
        _close(self._files)

    def _of(self, runs: Sequence[int]) -> list[int]:
        """The chains of the files that such chains are, members of an ensemble each."""
        found = [i * self._members + j for i in runs for j in range(self._members)]
        return found if self._numbers is None else [self._numbers[i] for i in found]

    def _failed(self, error: OSError) -> FileError:
        return FileError(
            f"MCMC.run(store={str(self.path)!r})",
            expected="a folder that can be written to, and room for all draws",
            got=f"{type(error).__name__}: {error.strerror or error}",
            fix="make room, or give a folder on another disk; thinning= keeps fewer draws",
        )


def _close(files: dict[str, tuple[int, int, tuple[int, ...], np.dtype]]) -> None:
    """Close files that are open, by name."""
    while files:
        os.close(files.popitem()[1][0])


def tell_of(path: str | os.PathLike[str], end_id: str, attrs: Mapping[str, object]) -> None:
    """Tell in the manifest of a store that is closed what is known of its run by now."""
    folder = Path(path)
    there = read_manifest(folder)
    if there is not None and there.get("id") == end_id:
        write_manifest(folder, {**there, "attrs": json_ready(dict(attrs))})
