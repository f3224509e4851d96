"""Draws that go to the disk as they are drawn: `DrawStore`, a folder, and `StoredRecord`, a chain.

A chain collects some rows, a megabyte, takes them to the model's space, and writes them where they
belong in files of their final size (`diagnostics/stored.py` has the layout). What stays in memory
does not depend on the length of the run. A row is written a second time only by a run that goes on
from a checkpoint, and then it is the same to the bit: nothing has to be undone.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from probtorch.core.tree import map_tree
from probtorch.core.typed import Tree
from probtorch.diagnostics.arviz_ import json_ready
from probtorch.diagnostics.stored import (
    Manifest,
    file_of,
    new_array,
    of_chains,
    read_manifest,
    write_manifest,
)
from probtorch.errors import ArgumentError, FileError
from probtorch.infer.mapping import FEW
from probtorch.infer.mcmc.kernel import statistics
from probtorch.infer.mcmc.recording import DrawRecord
from probtorch.infer.mcmc.running import BatchMoments
from probtorch.infer.potential import DensityTarget, Target
from probtorch.infer.results import SampledDraws, make_draws

__all__ = ["DrawStore", "StoredRecord"]

# Bytes of a block of positions that a chain collects before it writes them, and its rows at most.
BLOCK_BYTES, MOST_ROWS = 2**20, 4096
# Seconds between two looks of `update`, which let those who read the folder know of more rows.
EVERY = 2.0
# The variable of the unconstrained draws: (chain, draw, dim).
POSITIONS = "positions"


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

    Raises
    ------
    ArgumentError
        If there are other draws in the folder; if a run is to go on and there are none.
    FileError
        If the folder cannot be made.
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
    ) -> None:
        self.path, self.target, self.names = Path(path), target, names
        self._settings = {name: str(value) for name, value in settings.items()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failed(error) from error
        there = read_manifest(self.path)
        same = there is not None and there["settings"] == self._settings
        if resumed and not same:
            raise ArgumentError(
                f"MCMC.run(store={str(path)!r}, checkpoint=...)",
                expected="the folder with the draws of the run that goes on",
                got="a folder without" if there is None else "draws of another run",
                fix="give the folder it was begun with, or another checkpoint to begin anew",
            )
        if there is not None and not resumed and not (anew and same):
            raise ArgumentError(
                f"MCMC.run(store={str(path)!r})",
                expected="a folder without draws",
                got="draws of this run, which has no checkpoint"
                if same
                else "draws of another run",
                fix="give another folder, or delete this one; with checkpoint= a run that was "
                "killed goes on",
            )
        self._resumed = resumed
        self._files: dict[str, tuple[int, int, tuple[int, ...], np.dtype]] = {}
        self._arrays: dict[str, dict[str, Manifest]] = {}
        self._records: list[StoredRecord] = []
        self._lock = threading.Lock()  # of the map to the model's space
        self._next = 0.0
        self._attrs: dict[str, object] = {"inference_library": "probtorch", "interrupted": True}
        self._chains: list[int] = []

    # ------------------------------------------------------------------------------------ the files

    def begin(
        self, positions: np.ndarray, iterations: int, info: type, thinning: int
    ) -> list[StoredRecord]:
        """Make the files, and return the records of the chains.

        Parameters
        ----------
        positions : ndarray, shape (chains, dim) or (chains, members, dim)
            Where the chains are.
        iterations : int
        info : type
        thinning : int
        """
        members = math.prod(positions.shape[1:-1])
        chains, rows = len(positions) * members, iterations // thinning
        self._chains = list(range(chains))
        self._members = members
        example = positions.reshape(-1, positions.shape[-1])
        plan: dict[str, dict[str, tuple[tuple[int, ...], np.dtype]]] = {
            POSITIONS: {POSITIONS: (example.shape[1:], example.dtype)}
        }
        # As many as are worth compiling for: in this thread, and once.
        found = self._constrained(np.resize(example, (max(FEW, chains), example.shape[-1])))
        plan["posterior"] = {name: (x.shape[1:], x.dtype) for name, x in found.items()}
        plan["sample_stats"] = {
            s.name: ((), np.dtype(s.dtype)) for s in statistics(info) if s.name is not None
        }
        try:
            for group, variables in plan.items():
                for name, (shape, dtype) in variables.items():
                    self._make(group, name, (chains, rows, *shape), dtype)
            for group in ("observed_data", "constant_data"):
                for name, x in getattr(self.target, group).items():
                    file = file_of(group, name)
                    np.save(self.path / file, x, allow_pickle=False)
                    self._listed(group)[name] = {"file": file, "drawn": False}
        except OSError as error:
            raise self._failed(error) from error
        if isinstance(self.target, DensityTarget):
            # Its variables are parts of the positions.
            for name, slot in self.target.slots.items():
                if self.names is None or name in self.names:
                    self._listed("posterior")[name] = {
                        **self._listed(POSITIONS)[POSITIONS],
                        "slice": [slot.start, slot.stop],
                        "shape": list(slot.shape),
                    }
        self._records = [
            StoredRecord(self, i, rows, positions.shape[1:], info, thinning)
            for i in range(len(positions))
        ]
        if not self._resumed:
            self.sync()
        return self._records

    def _listed(self, group: str) -> dict[str, Manifest]:
        return self._arrays.setdefault(group, {})

    def _make(self, group: str, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        file = file_of(group, name)
        path = self.path / file
        if self._resumed and path.exists():
            with open(path, "rb") as f:
                np.lib.format.read_magic(f)
                np.lib.format.read_array_header_1_0(f)
                start = f.tell()
        else:
            start = new_array(path, shape, dtype)
        self._files[file] = (os.open(path, os.O_RDWR), start, shape, dtype)
        self._listed(group)[name] = {"file": file, "drawn": True}

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
        """Write complete rows of one chain, which begin at `row`.

        Raises
        ------
        FileError
            If the disk does not take them.
        """
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

    def update(self) -> None:
        """Let readers know of the rows that are there, every few seconds."""
        if time.perf_counter() >= self._next:
            self._next = time.perf_counter() + EVERY
            self._tell()

    def sync(self, rows: int | None = None) -> None:
        """Have all that was written on the disk, and tell of it, or of so many rows."""
        rows = self._rows() if rows is None else rows
        for descriptor, *_ in self._files.values():
            os.fsync(descriptor)
        self._tell(rows)

    def _rows(self) -> int:
        return min((record.readable for record in self._records), default=0)

    def _tell(self, rows: int | None = None) -> None:
        manifest = {
            "settings": self._settings,
            "rows": self._rows() if rows is None else rows,
            "chains": self._chains,
            "arrays": self._arrays,
            "dims": self.target.dims,
            "coords": json_ready({name: list(x) for name, x in self.target.coords.items()}),
            "attrs": json_ready(self._attrs),
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
        """Return the first draws of some chains, mapped from the disk.

        Parameters
        ----------
        kept : sequence of int
            Numbers of chains; of ensembles all members.
        length : int
        attrs : dict
        warmup_positions, warmup_stats : optional
            As for `make_draws`.
        """
        rows = self._of(kept)
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for group in (POSITIONS, "posterior", "sample_stats"):
            for name, file in self._arrays.get(group, {}).items():
                x: np.ndarray = np.load(self.path / file["file"], mmap_mode="r")
                x = of_chains(x, rows)[:, :length]
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
            posterior=arrays["posterior"],
        )

    def close(self, draws: SampledDraws, kept: Sequence[int]) -> None:
        """Write the last manifest, with what is known of the run now, and close the files."""
        self._attrs, self._chains = dict(draws.attrs), self._of(kept)
        self.sync(draws.num_draws)
        for descriptor, *_ in self._files.values():
            os.close(descriptor)
        self._files = {}

    def _of(self, runs: Sequence[int]) -> list[int]:
        """The chains of the result that such chains are, members of an ensemble each."""
        return [i * self._members + j for i in runs for j in range(self._members)]

    def _failed(self, error: OSError) -> FileError:
        return FileError(
            f"MCMC.run(store={str(self.path)!r})",
            expected="a folder that can be written to, and room for all draws",
            got=f"{type(error).__name__}: {error.strerror or error}",
            fix="make room, or give a folder on another disk; thinning= keeps fewer draws",
        )


class StoredRecord:
    """What one chain drew, on the disk: as `DrawRecord`, with no more than a block in memory.

    Parameters
    ----------
    store : DrawStore
    number : int
        Of the chain.
    rows : int
        How many there will be.
    shape : tuple of int
        Of a position.
    info : type
    thinning : int

    Attributes
    ----------
    members : int
        Chains of the result that it is, more than one for an ensemble.
    size : int
        Numbers in a row.
    """

    def __init__(
        self,
        store: DrawStore,
        number: int,
        rows: int,
        shape: tuple[int, ...],
        info: type,
        thinning: int,
    ) -> None:
        self.store, self.number, self.rows, self.thinning = store, number, rows, thinning
        in_block = max(1, min(MOST_ROWS, BLOCK_BYTES // (8 * max(math.prod(shape), 1)), rows))
        self._block = DrawRecord(in_block * thinning, shape, info, thinning)
        self._room = in_block
        self.members, self.size = math.prod(shape[:-1]), math.prod(shape)
        self._moments = BatchMoments(self.size)
        self._lock = threading.Lock()
        self._written = 0

    def add(self, positions: np.ndarray, info: object) -> None:
        """Take in the next transitions, and write what makes a block."""
        while len(positions):
            count = min(self._room * self.thinning - self._block.seen, len(positions))
            self._block.add(positions[:count], map_tree(lambda x, n=count: x[:n], info))
            positions, info = positions[count:], map_tree(lambda x, n=count: x[n:], info)
            if self._block.complete == self._room:
                self.flush()

    def flush(self) -> None:
        """Write the rows that are complete."""
        rows = min(self._block.complete, self.rows - self._written)
        if rows:
            positions = self._block.positions[:rows]
            stats = {name: x[:rows] for name, x in self._block.stats.items()}
            by_member = positions.reshape(rows, self.members, -1)
            for j in range(self.members):
                of_member = {n: x.reshape(rows, self.members)[:, j] for n, x in stats.items()}
                chain = self.number * self.members + j
                self.store.write(chain, self._written, by_member[:, j], of_member)
            with self._lock:
                self._moments.add(positions.reshape(rows, -1))
                self._written += rows
        self._block.drop(self._block.complete)

    def append(self, saved: Tree) -> None:
        """Take in what a `DrawRecord` drew elsewhere: its `snapshot` from our last row on."""
        rows, at = saved["rows"], 0
        count = len(rows["position"])
        while at < count:
            here = self._block.complete
            part = slice(at, min(at + self._room - here, count))
            seen = (here + part.stop - at) * self.thinning
            of_part = {name: x[part] for name, x in rows.items()}
            self._block.restore({"seen": seen, "rows": of_part, "begun": {}})
            at = part.stop
            if self._block.complete == self._room:
                self.flush()
        seen = self._block.complete * self.thinning + saved["seen"] % self.thinning
        none = {name: x[:0] for name, x in rows.items()}
        self._block.restore({"seen": seen, "rows": none, "begun": saved["begun"]})

    def tail(self) -> Tree:
        """Return how many transitions there were, and the row that is being filled."""
        tail = self._block.tail()
        return {**tail, "seen": self._written * self.thinning + tail["seen"]}

    @property
    def empty(self) -> bool:
        """Whether nothing was drawn yet."""
        return not self._written and self._block.empty

    @property
    def complete(self) -> int:
        """Number of rows whose transitions are all there."""
        return min(self._written + self._block.complete, self.rows)

    @property
    def readable(self) -> int:
        """Number of rows on the disk."""
        return self._written

    def moments(self) -> BatchMoments:
        """Return a copy of the moments of what is on the disk."""
        with self._lock:
            return self._moments.copy()

    def snapshot(self) -> Tree:
        """Return what is not on the disk, and how much is."""
        self.flush()
        block, moments = self._block.snapshot(), self._moments.snapshot()
        return {"written": self._written, "block": block, "moments": moments}

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self._written = saved["written"]
        self._block.restore(saved["block"])
        self._moments.restore(saved["moments"])
