"""Writing a file so that it is there as a whole or not at all.

`replacing` gives a stream on a new file in the same folder. When all went well the file is synced,
renamed over the one that was there, and the folder is synced, so that not even a power cut leaves
less than one of the two. The file that was there is not touched before that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from typing import IO, Any

from probtorch.errors import FileError

__all__ = ["TEMPORARY", "remove", "replacing"]

# Ends the names of files that are being written; one that is left was left by a process that died.
TEMPORARY = ".tmp"


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Context manager: a stream whose content becomes the file `path` when the block ends well.

    Parameters
    ----------
    path : str or path-like
        A link is replaced, not followed.

    Yields
    ------
    stream : binary file, open for reading and writing, with a `name`

    Raises
    ------
    FileError
        If the file cannot be written: no room, no permission, no such folder. What was at `path`
        is there still.
    """
    path = os.fspath(path)
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        _check_target(path)
        with open(temporary, "xb+") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        _sync_folder(folder)
    except FileError:
        raise
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        remove(temporary)


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a file if it is there and lets itself be deleted."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _check_target(path):
    """Refuse to put a file in the place of a device, a pipe or a folder."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        raise FileError(
            f"writing {path}",
            expected="the path of a file, new or old",
            got="a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket",
            fix="give the name of a file in the folder",
        )


def _sync_folder(folder):
    # On Windows folders cannot be opened, and renames are durable by themselves.
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: Any, error: OSError) -> FileError:
    if isinstance(error, FileNotFoundError):
        fix = "make the folder first"
    elif isinstance(error, PermissionError):
        fix = "choose a folder that you may write to"
    else:
        fix = "make room, or write to another disk"
    return FileError(
        f"writing {path}",
        expected="a file that can be written",
        got=f"{type(error).__name__}: {error.strerror or error}",
        fix=f"{fix}; what was there before is unchanged",
    )
