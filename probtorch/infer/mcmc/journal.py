"""What chains drew since the last checkpoint: a file per chain that is only ever appended to.

A checkpoint holds all of a run, so it costs the more the longer the run is. Between two of them a
chain writes down, in its own thread and every few dozen transitions, where it stands and what it
drew: a tenth of a millisecond. Arrays that are as they were at the last record, a metric say, are
not written again. `caught_up` brings the chains of a checkpoint to where their journals end.

A record counts if it is whole, follows what is there without a gap, and was written after as many
extensions of warm-ups, of all chains together, as the checkpoint knows of: they are decided with
all chains at their ends, and would be decided otherwise if one had gone on from there already. What
is left out is drawn again, to the bit.

Records are not synced: they outlive the process, not a power cut. Each has its length and a CRC-32;
a file is read up to the first that does not fit. Nothing in it is executed.

    magic, then records: length (uint64), CRC-32 (uint32), length of the header (uint32), header,
    arrays. The header is JSON: what `ChainRun` tells of itself, with arrays by their numbers in a
    table of dtypes and shapes, or of numbers in the table of the record before.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.typed import Tree
from probtorch.infer.mcmc.kernel import statistics

if TYPE_CHECKING:
    from probtorch.infer.mcmc.standing import ChainSnapshot

__all__ = ["ChainJournal", "Transitions", "caught_up", "clear"]

MAGIC = b"\x89CHAIN\r\n"
_NAME = re.compile(r"chain-(\d+)-(\d+)\.journal")
# Kinds of dtypes that chains consist of.
_KINDS = frozenset("biuf")
# A record is due after so many draws or seconds, and as long as records take no more than a share
# of the chain's time.
DRAWS, SECONDS, SHARE = 25, 0.5, 0.006
# Seconds for a byte that is drawn, to copy, to sum and to write (0.43 GB/s measured); where that
# alone takes half of the share no journal is kept.
PER_BYTE = 3e-9
# Where draws take less than this, checkpoints alone have to do: they are two seconds old at most.
CHEAP = 2e-4
# What draws and records take are means of so many or so; once begun, a journal is kept at half of
# what it takes to begin one.
CALLS = 8


@dataclass(frozen=True)
class Transitions:
    """Transitions of one stage.

    Attributes
    ----------
    sampling : bool
        Whether the warm-up was over.
    positions : ndarray, shape (n, *position)
    stats : dict of ndarray
        By the fields of the kernel's info, those that results have.
    """

    sampling: bool
    positions: np.ndarray
    stats: Mapping[str, np.ndarray]

    def after(self, count: int) -> Transitions:
        """Return it without its first transitions."""
        return Transitions(
            self.sampling, self.positions[count:], {n: x[count:] for n, x in self.stats.items()}
        )

    def info(self, kind: type) -> object:
        """Return the infos of a kernel: what results do not have is zero."""
        shape = self.positions.shape[:-1]
        found = {s.field: np.zeros(shape, s.dtype) for s in statistics(kind)}
        return kind(**{**found, **self.stats})


class ChainJournal:
    """The journal of one chain, for the thread that runs it.

    Parameters
    ----------
    folder : Path
    number : int
        Of the chain.
    info : type
        The kernel's.
    iteration : int
        Transitions of the chain so far.
    company : list of ChainJournal
        Those of all chains of the run, to which it adds itself.
    extensions : int
        Of the warm-ups of all these chains, so far.

    Attributes
    ----------
    kept : bool or None
        Whether draws are written down at present; None before the first.
    since : int
        The transition from which on all are.
    based : bool
        Whether there was a checkpoint since the journal was begun.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        info: type,
        iteration: int,
        company: list[ChainJournal],
        extensions: int,
    ) -> None:
        self._company, self._extensions = company, extensions
        company.append(self)
        self._folder, self._number = folder, number
        there = _files(folder, number)
        # Of an earlier process: of use until the next checkpoint.
        self._closed = [(path, 0) for _, path in there]
        self._next = 1 + max((n for n, _ in there), default=0)
        self._names = [s.field for s in statistics(info) if s.name is not None]
        self._stretches: list[Transitions] = []
        self.since = self._begin = self._end = iteration
        self._file: int | None = None
        self._path: Path | None = None
        self._turn = self._failed = self._over = False
        self._lock = threading.Lock()
        self._before: list[_Written] = []
        self._written, self._cost = time.perf_counter(), 0.0
        self._each = self._bytes = 0.0  # seconds and bytes of a transition
        self.kept: bool | None = None
        self.based = False

    # ------------------------------------------------------------------- in the thread of the chain

    def fitting(self) -> int:
        """Return how many transitions one call may have."""
        if not self.kept:
            return 2**62
        return max(DRAWS, math.ceil(self._cost / SHARE / self._each))

    def add(
        self, sampling: bool, positions: np.ndarray, info: object, seconds: float, iteration: int
    ) -> bool:
        """Take in transitions, and return whether a record is due.

        Parameters
        ----------
        sampling : bool
        positions : ndarray
        info : record of arrays
            Both valid until the next call.
        seconds : float
            That they took.
        iteration : int
            Transitions of the chain by now.
        """
        count = len(positions)
        stats = {name: getattr(info, name) for name in self._names}
        size = positions.nbytes + sum(x.nbytes for x in stats.values())
        self._know(seconds / count, size / count)
        self._end = iteration
        if not self.kept:
            self._stretches, self.since, self._begin = [], iteration, iteration
            return False
        # Copies: the memory is that of the next call, too.
        copies = {name: x.copy() for name, x in stats.items()}
        self._stretches.append(Transitions(sampling, positions.copy(), copies))
        elapsed = time.perf_counter() - self._written
        enough = iteration - self._begin >= DRAWS or elapsed >= SECONDS
        return enough and elapsed * SHARE >= self._cost

    def _know(self, seconds: float, size: float) -> None:
        """Decide whether draws are to be written down, by what they take and are."""
        if self.kept is None:
            self._each, self._bytes = seconds, size
        self._each += (seconds - self._each) / CALLS
        self._bytes += (size - self._bytes) / CALLS
        least = max(CHEAP, self._bytes * PER_BYTE / (0.5 * SHARE))
        self.kept = self._each >= (0.5 * least if self.kept else least) and not self._failed

    def write(self, stand: ChainSnapshot) -> None:
        """Append a record: all that is at hand, and where the chain stands, without draws."""
        with self._lock:  # after a second Ctrl-C nobody waits for the thread of a chain
            if not self._over:
                self._append(stand)

    def _append(self, stand: ChainSnapshot) -> None:
        try:
            if self._file is None or self._turn:
                self._open()
            began = time.thread_time()
            tree = {
                "extensions": self._extensions,
                "begin": self._begin,
                "end": self._end,
                "stand": {**stand, "draws": None, "warmup": None},
                "drawn": [[s.sampling, s.positions, dict(s.stats)] for s in self._stretches],
            }
            record, self._before = _encoded(tree, self._before)
            assert self._file is not None
            _write_all(self._file, record)
            cost = time.thread_time() - began
            self._cost = self._cost + (cost - self._cost) / CALLS if self._cost else cost
        except (OSError, TypeError):
            # A full disk, of which the next checkpoint warns; or a learner of the user's, which
            # tells what only checkpoints can hold.
            self._failed = True
            self._close()
        self._stretches, self._begin = [], self._end
        self._written = time.perf_counter()

    def _open(self) -> None:
        self._close()
        self._turn, self._before = False, []
        self._path = self._folder / f"chain-{self._number}-{self._next}.journal"
        self._next += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(self._path, flags | getattr(os, "O_BINARY", 0), 0o666)
        _write_all(self._file, MAGIC)

    def _close(self) -> None:
        if self._file is not None and self._path is not None:
            os.close(self._file)
            self._closed.append((self._path, self._begin))
            self._file = None

    # ------------------------------------------------------------------------ in the main thread

    def extended(self) -> None:
        """Take down that the warm-up of its chain was made longer, while all chains are at rest."""
        for journal in self._company:
            journal._extensions += 1

    def end(self) -> None:
        """Write no more."""
        with self._lock:
            self._over = True
            self._close()

    def turn(self, before: int) -> None:
        """Have the next record begin a file, as a checkpoint was written.

        Parameters
        ----------
        before : int
            Files that end with this transition, or sooner, are deleted.
        """
        for path, end in list(self._closed):
            if end <= before:
                with contextlib.suppress(OSError):
                    path.unlink()
                self._closed.remove((path, end))
        self._failed, self._turn, self.based = False, True, True


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


# -------------------------------------------------------------------------------------- one record


# An array as it was written, with its bytes.
_Written = tuple[np.ndarray, bytes]
_PLAIN = frozenset((int, float, str, bool, type(None)))


def _encoded(tree: Tree, before: Sequence[_Written]) -> tuple[bytes, list[_Written]]:
    """A record, and its arrays; those that are as they were in the last one are not in it."""
    arrays: list[_Written] = []
    known = {id(x): i for i, (x, _) in enumerate(before)}
    table: list[Tree] = []
    parts: list[bytes] = []

    def array(x: np.ndarray) -> int:
        number = len(arrays)
        at = known.get(id(x))
        if at is not None:
            arrays.append(before[at])
            table.append(at)
            return number
        data = x.tobytes()
        arrays.append((x, data))
        if number < len(before):
            old, its = before[number]
            if its == data and old.dtype == x.dtype and old.shape == x.shape:
                table.append(number)
                return number
        parts.append(data)
        table.append((x.dtype.str, x.shape))
        return number

    def plain(x: Tree) -> Tree:
        kind = type(x)
        if kind is np.ndarray:
            return "a", array(x)
        if kind in _PLAIN:
            return x
        if kind is list:
            return "l", [plain(value) for value in x]
        if kind is dict:
            return {_text(name): plain(value) for name, value in x.items()}
        if kind is tuple:
            return "t", [plain(value) for value in x]
        if isinstance(x, np.generic):
            return "s", array(np.asarray(x))
        raise TypeError(kind)

    text = json.dumps({"tree": plain(tree), "arrays": table}, separators=(",", ":")).encode("ascii")
    body = b"".join([struct.pack("<I", len(text)), text, *parts])
    return struct.pack("<QI", len(body), zlib.crc32(body)) + body, arrays


def _text(name: object) -> str:
    if type(name) is str:
        return name
    raise TypeError("keys that are no texts")


def _decoded(body: memoryview, before: Sequence[np.ndarray]) -> tuple[Tree, list[np.ndarray]]:
    """The tree of a record, and its arrays; raises what Python raises where it does not fit."""
    (length,) = struct.unpack_from("<I", body)
    header, at = json.loads(bytes(body[4 : 4 + length])), 4 + length
    arrays: list[np.ndarray] = []
    for entry in header["arrays"]:
        if isinstance(entry, int):
            arrays.append(before[entry])
            continue
        dtype, shape = np.dtype(entry[0]), tuple(entry[1])
        if dtype.kind not in _KINDS:
            raise ValueError(dtype)
        size = dtype.itemsize * math.prod(shape)
        arrays.append(np.frombuffer(body[at : at + size], dtype).reshape(shape).copy())
        at += size
    if at != len(body):
        raise ValueError("bytes behind the arrays")

    def tree(x: Tree) -> Tree:
        if isinstance(x, dict):
            return {name: tree(value) for name, value in x.items()}
        if not isinstance(x, list):
            return x
        kind, value = x
        if kind == "a":
            return arrays[value]
        if kind == "s":
            return arrays[value][()]
        parts = [tree(part) for part in value]
        return tuple(parts) if kind == "t" else parts

    return tree(header["tree"]), arrays


# ----------------------------------------------------------------------------------------- reading


def _files(folder: Path, number: int) -> list[tuple[int, Path]]:
    """The journals of a chain, the oldest first, with their numbers."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name and int(name[1]) == number:
                found.append((int(name[2]), path))
    return sorted(found)


def _records(path: Path) -> Iterator[Tree]:
    """The records of a file, up to the first that is not whole."""
    try:
        data = memoryview(path.read_bytes())
    except OSError:
        return
    at, arrays = len(MAGIC), list[np.ndarray]()
    if bytes(data[:at]) != MAGIC:
        return
    while len(data) - at > 12:
        length, check = struct.unpack_from("<QI", data, at)
        body = data[at + 12 : at + 12 + length]
        if len(body) < length or zlib.crc32(body) != check:
            return
        try:
            tree, arrays = _decoded(body, arrays)
        except (ValueError, TypeError, KeyError, IndexError, struct.error):
            return
        yield tree
        at += 12 + length


def caught_up(
    folder: Path, chains: Sequence[ChainSnapshot]
) -> tuple[list[ChainSnapshot], list[list[Transitions]]]:
    """Bring the chains of a checkpoint to the ends of their journals.

    Parameters
    ----------
    folder : Path
    chains : list of ChainSnapshot

    Returns
    -------
    chains : list of ChainSnapshot
        Where they stand; their draws are those of the checkpoint.
    drawn : list of list of Transitions
        What each has drawn since.
    """
    stands, drawn = [], []
    extensions = sum(len(base["extensions"]) for base in chains)
    for number, base in enumerate(chains):
        stand, stretches = base, list[Transitions]()
        for _, path in _files(folder, number):
            for record in _records(path):
                found: ChainSnapshot = record["stand"]
                at = stand["iteration"]
                same = record["extensions"] == extensions
                if not (same and record["begin"] <= at < record["end"]):
                    continue
                skipped = at - record["begin"]
                for part in record["drawn"]:
                    stretch = Transitions(*part)
                    stretches.append(stretch.after(skipped))
                    skipped = max(skipped - len(stretch.positions), 0)
                stand = {**found, "draws": base["draws"], "warmup": base.get("warmup")}
        stands.append(stand)
        drawn.append([s for s in stretches if len(s.positions)])
    return stands, drawn


def clear(folder: Path) -> None:
    """Delete all journals in a folder."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()
