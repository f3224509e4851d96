"""Writing a file so that it is there as a whole or not at all.

`replacing` gives a stream on a new file in the same folder. When all went well the file is synced,
renamed over the one that was there, and the folder is synced, so that not even a power cut leaves
less than one of the two. The file that was there is not touched before that.

On Linux the new file has no name while it is written, so a process that is killed leaves nothing.
Where it needs a name, or file systems know no other files, its writer holds a lock on it: what
nobody holds was left by a process that died, and goes when the same path is written the next time.

`reading` opens a file to be read: a file, and nothing that would keep its reader waiting.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import IO

from probtorch.errors import FileError

__all__ = ["TEMPORARY", "lock", "reading", "remove", "replacing", "replacing_folder", "reserve"]

# Ends the names of files that are being written; one that is left was left by a process that died.
TEMPORARY = ".tmp"
_RANDOM = 8
# Of a file that a library locks in its own way: it goes when nobody has written to it for so many
# seconds.
_SHARED = "s"
STALE = 3600.0


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, shared: bool = False) -> Iterator[IO[bytes]]:
    """Context manager: a stream whose content becomes the file `path` when the block ends well.

    Parameters
    ----------
    path : str or path-like
        A link is followed: what it points to is replaced. A file that was there hands down its
        mode.
    shared : bool
        Whether a library will open the file by the `name` of the stream, and perhaps lock it.

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
    temporary = None
    try:
        target = os.path.realpath(path)
        before = _check_target(path)
        folder, name = os.path.split(target)
        _clear(folder, name)
        descriptor, temporary = _new_file(folder, name, shared)
        place = temporary or f"/proc/self/fd/{descriptor}"
        with open(place, "rb+", opener=lambda *_: descriptor) as f:
            if before is not None:
                _hand_down(before, descriptor)
            yield f
            f.flush()
            os.fsync(descriptor)
            if temporary is None:
                temporary = _with_name(descriptor, folder, name)
            os.replace(temporary, target)
        _sync_folder(folder)
    except FileError:
        raise
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        if temporary is not None:
            remove(temporary)


@contextlib.contextmanager
def replacing_folder(path: str | os.PathLike[str], *, marks: Sequence[str]) -> Iterator[str]:
    """Context manager: the path of a new folder, which becomes `path` when the block ends well.

    Parameters
    ----------
    path : str or path-like
        Where nothing is yet, or a folder with one of the `marks` in it, which is replaced: there is
        a moment at which neither is there.
    marks : sequence of str
        Names of files by which a folder of the kind is known.

    Raises
    ------
    FileError
        If something else is there, or the folder cannot be written. What was at `path` is there
        still.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    there = os.path.lexists(target)
    if there and not any(os.path.exists(os.path.join(target, mark)) for mark in marks):
        raise FileError(
            f"writing {os.fspath(path)}",
            expected=f"a new path, or a folder with {' or '.join(marks)} in it",
            got="something else",
            fix="give another path, or delete what is there",
        )
    new, old = _temporary(folder, name), _temporary(folder, name)
    try:
        os.mkdir(new)
        yield new
        if there:
            os.rename(target, old)
        os.rename(new, target)
        _sync_folder(folder)
    except OSError as error:
        if os.path.exists(old):
            os.rename(old, target)
        raise _cannot_write(path, error) from error
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)


def _new_file(folder: str, name: str, shared: bool) -> tuple[int, str | None]:
    """A descriptor of a new file in the folder, and its name, None if it has none yet."""
    flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    if not shared and hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # not every file system has such files
            return os.open(folder, flags | os.O_TMPFILE, 0o666), None
    while True:
        temporary = _temporary(folder, name, _SHARED if shared else "")
        descriptor = os.open(temporary, flags | os.O_CREAT | os.O_EXCL, 0o666)
        if shared:
            return descriptor, temporary
        lock(descriptor)
        # Somebody who clears up may have come before the lock.
        if os.name != "posix" or os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)


def _temporary(folder: str, name: str, mark: str = "") -> str:
    return os.path.join(folder, f".{name}.{secrets.token_hex(_RANDOM)}{mark}{TEMPORARY}")


def _with_name(descriptor: int, folder: str, name: str) -> str:
    temporary = _temporary(folder, name)
    here = os.open(folder, os.O_RDONLY)
    try:
        # With a folder, Python has the link to the open file followed; else it would link the link.
        os.link(f"/proc/self/fd/{descriptor}", temporary, src_dir_fd=here, follow_symlinks=True)
    finally:
        os.close(here)
    return temporary


def _hand_down(before: os.stat_result, descriptor: int) -> None:
    """Give a new file the mode of the one it replaces, and its owner, where root writes."""
    if not hasattr(os, "fchown"):
        return
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, before.st_uid, before.st_gid)
    if stat.S_IMODE(new.st_mode) != stat.S_IMODE(before.st_mode):
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def lock(descriptor: int, *, unknown: bool = False) -> bool:
    """Lock an open file if nobody has, until it is closed or its process ends.

    Parameters
    ----------
    descriptor : int
    unknown : bool
        What to return where the file system knows no locks.

    Returns
    -------
    bool
        Whether nobody else has.
    """
    try:
        fcntl = import_module("fcntl")
    except ModuleNotFoundError:  # on Windows a file that is open cannot be deleted anyway
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        return unknown and error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


def _clear(folder: str, name: str) -> None:
    """Delete what processes left that died while they wrote this file."""
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{{2 * _RANDOM}}}({_SHARED}?){TEMPORARY}")
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            found = pattern.fullmatch(entry.name)
            if found is None:
                continue
            with contextlib.suppress(OSError):
                if found[1] and time.time() - entry.stat().st_mtime < STALE:
                    continue
                descriptor = os.open(entry.path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
                try:
                    if lock(descriptor):
                        os.unlink(entry.path)
                finally:
                    os.close(descriptor)


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Context manager: a stream on a file to read.

    Raises
    ------
    FileNotFoundError, PermissionError ...
        As `open` raises them.
    FileError
        If it is a pipe, a socket or a device: its reader would wait for whoever writes to it.
    """
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    with open(descriptor, "rb", closefd=True) as unnamed:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileError(
                f"loading {os.fspath(path)}",
                expected="a file",
                got="a device, pipe or socket",
                fix="read it into an io.BytesIO first, and load that",
            )
        yield unnamed


def reserve(descriptor: int, size: int) -> None:
    """Have the disk set aside the first bytes of an open file, where it can.

    Raises
    ------
    OSError
        If it has no room for them.
    """
    if not hasattr(os, "posix_fallocate") or not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a file if it is there and lets itself be deleted."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _check_target(path: str | os.PathLike[str]) -> os.stat_result | None:
    """The status of what is there; a device, a pipe or a folder is not to be replaced."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise FileError(
            f"writing {path}",
            expected="the path of a file, new or old",
            got="a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket",
            fix="give the name of a file in the folder",
        )
    return status


def _sync_folder(folder: str) -> None:
    # On Windows folders cannot be opened, and renames are durable by themselves.
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> FileError:
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
