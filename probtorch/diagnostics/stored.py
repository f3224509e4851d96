"""Draws in a folder: one NumPy file per variable, and a file that says what they are.

An array (chain, draw, *event) is a ``.npy`` file of its final size from the beginning, sparse where
nothing was drawn yet, so a sampler writes rows where they belong, and anything that reads NumPy's
format can map the file. ``draws.json`` says how many rows of each chain are there, which file has
which variable of which group, and the labels. It is replaced as a whole.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np

from probtorch.diagnostics.layout import GROUP_DIMS
from probtorch.errors import FileError
from probtorch.serialization.files import reading, replacing

__all__ = [
    "MANIFEST",
    "Manifest",
    "every_th",
    "file_of",
    "let_go",
    "new_array",
    "of_chains",
    "read_folder",
    "read_manifest",
    "write_manifest",
]

MANIFEST = "draws.json"
# What JSON holds, by name.
Manifest: TypeAlias = dict[str, Any]
# The reader refuses others: a later layout gets a later number.
FORMAT = 1
# A touch of a mapped page brings in its neighbours, where the system has them: so many bytes on
# Linux. Of a map so many bytes are brought in before they are let go.
TOUCHED, WINDOW = 2**16, 2**22


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
    dtype = np.dtype(dtype)
    with open(path, "wb") as f:
        fields = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(f, fields)
        start = f.tell()
        f.truncate(start + dtype.itemsize * math.prod(shape))
    return start


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
        raise FileError(
            f"draws in {folder}",
            expected=f"a folder that MCMC.run(store=...) wrote to, with {MANIFEST} in it",
            got="a folder without",
            fix="give the folder itself",
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


def let_go(arrays: Iterable[np.ndarray]) -> None:
    """Give the memory of mapped files back; what is looked at again is read again.

    Pages that were read count as memory of the process until the system wants them, which is what
    limits of containers and batch systems look at. Arrays in memory are left alone.
    """
    for x in arrays:
        base: object = x
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)


def _mapped(folder: Path, file: Manifest) -> np.ndarray:
    try:
        array: np.ndarray = np.load(folder / file["file"], mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FileError(
            f"draws in {folder}",
            expected=f"the file {file['file']}, as it was written",
            got=f"{type(error).__name__}: {error}",
            fix="bring the whole folder from where it was written",
        ) from error
    return array
