"""Draws as NumPy's own files: `.npz`, read with nothing installed but NumPy."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import IO, Any, TypeAlias

import numpy as np

from probtorch.diagnostics.arviz_ import json_ready
from probtorch.errors import ArgumentError, FileError, ProbtorchError
from probtorch.serialization.files import reading

__all__ = ["read_npz", "write_npz"]

# What is in a file, by name.
Contents: TypeAlias = dict[str, Any]
# The reader of a .npz file refuses others: a later layout gets a later number.
NPZ_FORMAT = 1


def write_npz(
    stream: IO[bytes],
    variables: Mapping[str, Mapping[str, Sequence[object] | np.ndarray]],
    dims: Mapping[str, Sequence[str | None]],
    attrs: Mapping[str, object],
    groups: Sequence[str],
) -> None:
    """Write variables by group and name (coords are a group, too) as numbered arrays, and one JSON
    text that says what they are: names never become file names.
    """
    arrays: Contents = {}
    places = []
    for group, named in variables.items():
        for name, values in named.items():
            places.append([group, name])
            arrays[f"array_{len(places) - 1}"] = values
    contents = {
        "format": NPZ_FORMAT,
        "places": places,
        "dims": {name: list(given) for name, given in dims.items()},
        "attrs": json_ready(attrs),
        "groups": list(groups),
    }
    np.savez(stream, contents=np.array(json.dumps(contents)), **arrays)


def read_npz(path: str | os.PathLike[str]) -> Contents:
    """Return the fields of the draws in a file."""
    with reading(path) as stream:
        try:
            _check_members(stream)
            return _npz_fields(stream, path)
        except ProbtorchError:
            raise
        except (zipfile.BadZipFile, LookupError, TypeError, ValueError, EOFError) as error:
            raise FileError(
                f"loading {path}", expected="a file written by Draws.save",
                got=f"{type(error).__name__}: {error}",
                fix="copy it again from where it came from",
            ) from error  # fmt: skip


def _check_members(stream: IO[bytes]) -> None:
    """Refuse arrays that would take more memory than the file says: bombs are not unpacked."""
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{member.filename} is compressed")
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                header = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = header(file)
                if dtype.hasobject:
                    raise ValueError(f"{member.filename} has pickled objects (allow_pickle=False)")
                if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
                    raise ValueError(f"{member.filename} has another size than it says")
    stream.seek(0)


def _npz_fields(stream: IO[bytes], path: str | os.PathLike[str]) -> Contents:
    with np.load(stream, allow_pickle=False) as file:
        contents = json.loads(str(file["contents"])) if "contents" in file.files else {}
        if contents.get("format") != NPZ_FORMAT:
            raise ArgumentError(
                path, expected=f"a file written by Draws.save, format {NPZ_FORMAT}",
                got=f"format {contents.get('format')}",
                fix="save it again, or read it with the version that wrote it",
            )  # fmt: skip
        groups = {"posterior": {}, "sample_stats": {}, "coords": {}}
        groups |= {name: {} for name in contents["groups"]}
        for index, (group, name) in enumerate(contents["places"]):
            groups[group][name] = file[f"array_{index}"]
    return {
        "posterior": groups.pop("posterior"),
        "sample_stats": groups.pop("sample_stats"),
        "coords": groups.pop("coords"),
        "groups": groups,
        "dims": contents["dims"],
        "attrs": contents["attrs"],
    }
