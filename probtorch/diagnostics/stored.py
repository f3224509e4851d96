"""Draws in a folder: one NumPy file per variable, and a file that says what they are.

An array (chain, draw, *event) is a ``.npy`` file of its final size from the beginning, sparse where
nothing was drawn yet, so a sampler writes rows where they belong, and anything that reads NumPy's
format can map the file. ``draws.json`` says how many rows of each chain are there, which file has
which variable of which group, and the labels. It is replaced as a whole. For more draws than there
is room for, a file is copied into a longer one that takes its place (`lengthen`): readers find the
rows that the manifest tells of in either.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import quote

import numpy as np

from probtorch.diagnostics.layout import GROUP_DIMS
from probtorch.errors import FileError
from probtorch.serialization.files import reading, replacing

__all__ = [
    "MANIFEST",
    "ZARR",
    "Manifest",
    "by_entries",
    "every_th",
    "file_of",
    "is_mapped",
    "layout_of",
    "lengthen",
    "let_go",
    "new_array",
    "of_chains",
    "read_folder",
    "read_manifest",
    "write_manifest",
]

MANIFEST = "draws.json"
# Files by which a Zarr store is known, of its formats 2 and 3.
ZARR = (".zgroup", "zarr.json")
# What JSON holds, by name.
Manifest: TypeAlias = dict[str, Any]
# The reader refuses others: a later layout gets a later number.
FORMAT = 1
# A touch of a mapped page brings in its neighbours, where the system has them: so many bytes on
# Linux. Of a map so many bytes are brought in before they are let go.
TOUCHED, WINDOW = 2**16, 2**22
# Bytes of draws on the disk that are in memory at once where each entry is wanted by itself. To
# sort them and the like takes twelve times as much.
HELD = 2**22


def file_of(group: str, name: str) -> str:
    """Return the name of the file that has a variable of a group."""
    return f"{group}.{quote(name, safe='$')}.npy"


def new_array(path: Path, shape: Sequence[int], dtype: np.dtype | type) -> int:
    """Make a file for an array, all zero, and return where its numbers begin.

    Raises
    ------
    OSError
        If it cannot be made, or the disk can never hold it.
    """
    with open(path, "wb") as f:
        return _empty(f, shape, np.dtype(dtype))


def _empty(f: IO[bytes], shape: Sequence[int], dtype: np.dtype) -> int:
    """Make an open file that of an array, all zero; returns where its numbers begin."""
    fields = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(f, fields)
    start = f.tell()
    f.truncate(start + dtype.itemsize * math.prod(shape))
    return start


def layout_of(path: Path) -> tuple[int, tuple[int, ...], np.dtype]:
    """Return where the numbers of a file of `new_array` begin, and shape and dtype of its array.

    Raises
    ------
    FileError
        If there is no such file, or it is not as long as its array.
    """
    try:
        with open(path, "rb") as f:
            np.lib.format.read_magic(f)
            shape, _, dtype = np.lib.format.read_array_header_1_0(f)
            start, length = f.tell(), os.fstat(f.fileno()).st_size
        if length < start + dtype.itemsize * math.prod(shape):
            raise ValueError(f"{length} bytes, less than an array of shape {shape} has")
    except (OSError, ValueError) as error:
        raise _not_as_written(path, error) from error
    return start, shape, dtype


def lengthen(path: Path, rows: int, chains: Iterable[int], kept: int) -> None:
    """Give an array (chain, draw, *event) room for so many rows.

    Parameters
    ----------
    path : path
        A file of `new_array`. A longer one takes its place when all of it is on the disk; whoever
        has mapped the shorter one keeps that.
    rows : int
        Draws of a chain that there is to be room for.
    chains : iterable of int
        Chains whose first `kept` rows are copied. The rest is zero.
    kept : int

    Raises
    ------
    FileError
        If it cannot be written; the file is then as it was.
    """
    start, shape, dtype = layout_of(path)
    size = dtype.itemsize * math.prod(shape[2:])
    with open(path, "rb") as old, replacing(path) as new:
        begin = _empty(new, (shape[0], rows, *shape[2:]), dtype)
        for chain in chains:
            old.seek(start + chain * shape[1] * size)
            new.seek(begin + chain * rows * size)
            for at in range(0, kept * size, WINDOW):
                new.write(old.read(min(WINDOW, kept * size - at)))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a folder.

    Raises
    ------
    FileError
        If it cannot be written.
    """
    text = json.dumps({"format": FORMAT, **manifest}, default=str)
    with replacing(folder / MANIFEST) as stream:
        stream.write(text.encode())


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, None if there is none.

    Raises
    ------
    FileError
        If it is damaged, or of another format.
    """
    try:
        with reading(folder / MANIFEST) as stream:
            found = json.loads(stream.read())
        known = found["format"] == FORMAT
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        known = False
    if not known:
        raise FileError(
            f"draws in {folder}",
            expected=f"{MANIFEST} of format {FORMAT}",
            got="another format, or a damaged file",
            fix="read it with the release that wrote it",
        )
    return found


def read_folder(path: str | os.PathLike[str]) -> Manifest:
    """Return the fields of the `Draws` in a folder, of a run that has ended or goes on.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    dict
        The arguments of `Draws`. Arrays are mapped, so that only what is looked at is read.

    Raises
    ------
    FileError
        If it is no such folder, a file is missing or has another size, or nothing was drawn yet.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    if manifest is None:
        zarr = any((folder / mark).exists() for mark in ZARR)
        raise FileError(
            f"draws in {folder}",
            expected=f"a folder that MCMC.run(store=...) wrote to, with {MANIFEST} in it",
            got="a Zarr store" if zarr else "a folder without",
            fix='it is for others: xarray.open_datatree(path, engine="zarr"); save what is to be '
            "loaded again in a file, .nc or .npz"
            if zarr
            else "give the folder itself",
        )
    rows = manifest["rows"]
    if not rows:
        raise FileError(
            f"draws in {folder}",
            expected="draws after warm-up",
            got="none yet",
            fix="wait for them, or let the run go on from its checkpoint",
        )
    groups: dict[str, dict[str, np.ndarray]] = {}
    for group, variables in manifest["arrays"].items():
        if group not in GROUP_DIMS:  # what is for the sampler alone
            continue
        for name, file in variables.items():
            array = _mapped(folder, file)
            if "slice" in file:
                array = array[..., slice(*file["slice"])].reshape(*array.shape[:2], *file["shape"])
            if file["drawn"]:
                array = of_chains(array, manifest["chains"])[:, :rows]
            groups.setdefault(group, {})[name] = array
    labels = {"dims": manifest["dims"], "coords": manifest["coords"], "attrs": manifest["attrs"]}
    return {
        "posterior": groups.pop("posterior", {}),
        "sample_stats": groups.pop("sample_stats", {}),
        "groups": groups,
        **labels,
    }


def of_chains(x: np.ndarray, chains: Sequence[int]) -> np.ndarray:
    """Return these chains of an array (chain, ...): a view, if they are evenly spaced."""
    step = chains[1] - chains[0] if len(chains) > 1 else 1
    if list(chains) == list(range(chains[0], chains[-1] + 1, step)):
        return x[chains[0] : chains[-1] + 1 : step]
    return x[list(chains)]


def every_th(x: np.ndarray, every: int) -> np.ndarray:
    """Return every so many-th draw of an array (chain, draw, *event), in memory.

    Of an array on the disk no more than a window is in memory besides, however long it is.
    """
    chosen = x[:, ::every]
    made = np.empty(chosen.shape, chosen.dtype)
    touched = chosen.itemsize * math.prod(chosen.shape[2:]) + TOUCHED
    step = max(1, WINDOW // touched)
    for i in range(len(chosen)):
        for start in range(0, chosen.shape[1], step):
            made[i, start : start + step] = chosen[i, start : start + step]
            let_go([x])
    return made


def by_entries(x: np.ndarray) -> Iterator[np.ndarray]:
    """Return an array (chain, draw, entry) some entries at a time, each part in memory.

    An array on the disk is written anew in parts, into a file without a name beside its own, so
    that each of its pages is read once. One in memory is returned as it is.

    Raises
    ------
    FileError
        If there is no room for that file.
    """
    if not is_mapped(x):
        yield x
        return
    chains, draws, entries = x.shape
    of_entry = x.itemsize * chains * draws
    count = -(-entries // max(1, HELD // max(of_entry, 1)))
    if count < 2:
        yield every_th(x, 1)
        return
    # All about as large: what is done to them is done in blocks, and of small ones in another way.
    parts = [(i * entries // count, (i + 1) * entries // count) for i in range(count)]
    with tempfile.TemporaryFile(dir=_folder_of(x)) as f:
        try:
            _take_apart(x, parts, f)
        except OSError as error:
            raise FileError(
                "judging draws on the disk",
                expected=f"room for {x.nbytes:,} bytes more, for a while",
                got=f"{type(error).__name__}: {error.strerror or error}",
                fix="make room; diagnose(draws, every=100) looks at some draws and needs none",
            ) from error
        for first, last in parts:
            f.seek(first * of_entry)
            part = np.fromfile(f, x.dtype, chains * draws * (last - first))
            yield part.reshape(chains, draws, last - first)


def _take_apart(x: np.ndarray, parts: Sequence[tuple[int, int]], f: IO[bytes]) -> None:
    """Write ranges of the entries of an array (chain, draw, entry) one after the other."""
    chains, draws, entries = x.shape
    rows = max(1, WINDOW // (x.itemsize * entries))
    for i in range(chains):
        for row in range(0, draws, rows):
            window = np.array(x[i, row : row + rows])
            let_go([x])
            for first, last in parts:
                at = first * chains * draws + (i * draws + row) * (last - first)
                f.seek(at * x.itemsize)
                f.write(np.ascontiguousarray(window[:, first:last]).data)
    f.flush()


def is_mapped(x: np.ndarray) -> bool:
    """Return whether an array is on the disk."""
    return _map_of(x) is not None


def _map_of(x: np.ndarray) -> mmap.mmap | None:
    """The map of a file that an array is in, None if it is in memory."""
    base: object = x
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None


def _folder_of(x: np.ndarray) -> str | None:
    """The folder of the file that an array is in, if it can be written to; else None."""
    base: object = x
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.filename is not None:
            folder = os.path.dirname(base.filename)
            return folder if os.access(folder, os.W_OK) else None
        base = base.base
    return None


def let_go(arrays: Iterable[np.ndarray]) -> None:
    """Give the memory of mapped files back; what is looked at again is read again.

    Pages that were read count as memory of the process until the system wants them, which is what
    limits of containers and batch systems look at. Arrays in memory are left alone.
    """
    for x in arrays:
        mapped = _map_of(x)
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(folder: Path, file: Manifest) -> np.ndarray:
    try:
        array: np.ndarray = np.load(folder / file["file"], mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _not_as_written(folder / file["file"], error) from error
    return array


def _not_as_written(path: Path, error: Exception) -> FileError:
    return FileError(
        f"draws in {path.parent}",
        expected=f"the file {path.name}, as it was written",
        got=f"{type(error).__name__}: {error}",
        fix="bring the whole folder from where it was written",
    )
