"""One writer to a folder: `FolderClaim`, held by a run for as long as it writes there.

Two runs in one folder would overwrite each other's files and delete them as old ones. Who writes
holds a lock on a file `.lock` in the folder, which says who that is. The lock is the system's, so
it ends with its process however that dies: a file that is left is nobody's. On Linux it holds
across the machines that mount a folder by NFS, too. Where there are no such locks (Windows, some
network file systems) nobody is refused.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import threading
import weakref
from importlib import import_module

from probtorch.errors import FileError
from probtorch.serialization.files import lock

__all__ = ["FolderClaim"]

NAME = ".lock"
# Of the text in the file no more is shown.
MOST = 200


class _Held:
    """The lock on one folder, and the claims of this process on it."""

    def __init__(self, path: str, descriptor: int | None) -> None:
        self.path, self.descriptor = path, descriptor
        self.claims: dict[int, str] = {}  # the kind of each


# By the folder's real path.
_held: dict[str, _Held] = {}
_guard = threading.RLock()


class FolderClaim:
    """The right to write to a folder, once it is taken.

    Parameters
    ----------
    folder : path
    subject : str
        Who claims it, for the message of the error.
    kind : str
        What a run writes there. In one process a folder has one claim of each kind; those without
        one do not exclude each other.

    Notes
    -----
    It is dropped when nothing refers to it any more, too. A forked child has none.
    """

    def __init__(self, folder: str | os.PathLike[str], subject: str, kind: str = "") -> None:
        self.folder, self.subject, self._kind = os.path.realpath(folder), subject, kind
        weakref.finalize(self, _drop, self.folder, id(self))

    def take(self) -> None:
        """Claim the folder, which is there.

        Raises
        ------
        FileError
            If another process writes to it, or another run of this one.
        OSError
            If the folder cannot be written to.
        """
        with _guard:
            held = _held.get(self.folder)
            if held is None:
                held = _held[self.folder] = _locked(self.folder, self.subject)
            others = [number for number in held.claims if number != id(self)]
            if self._kind and self._kind in (held.claims[number] for number in others):
                raise _refusal(self.subject, "another run in this process")
            held.claims[id(self)] = self._kind

    def drop(self) -> None:
        """Let others write to it; nothing happens if it was not taken."""
        _drop(self.folder, id(self))


def _drop(folder: str, number: int) -> None:
    with _guard:
        held = _held.get(folder)
        if held is None or held.claims.pop(number, None) is None or held.claims:
            return
        del _held[folder]
        if held.descriptor is not None:
            # Deleted while it is locked: who has opened it by now sees that it is gone.
            with contextlib.suppress(OSError):
                os.unlink(held.path)
            os.close(held.descriptor)


def _locked(folder: str, subject: str) -> _Held:
    """The lock of a folder."""
    path = os.path.join(folder, NAME)
    try:
        import_module("fcntl")
    except ModuleNotFoundError:
        return _Held(path, None)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            if not lock(descriptor, unknown=True):
                text = os.pread(descriptor, MOST, 0).decode("utf-8", "replace").strip()
                raise _refusal(subject, text or "another process")
            if _is_there(path, descriptor):
                _sign(descriptor)
                return _Held(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_there(path: str, descriptor: int) -> bool:
    """Whether the path is still that of the open file."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _sign(descriptor: int) -> None:
    """Write down who holds the lock. On a disk without room nobody is told."""
    now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {platform.node()}, {now}\n".encode(), 0)


def _refusal(subject: str, who: str) -> FileError:
    return FileError(
        subject,
        expected="a folder that nobody else writes to",
        got=f"a folder that is written to by {who}",
        fix="wait until that run has ended, or end it, or choose another folder",
    )


def _forget() -> None:
    """In a forked child: its descriptors of the locks of its parent would outlive the parent."""
    global _guard
    _guard = threading.RLock()  # some other thread of the parent may have had it
    for held in _held.values():
        if held.descriptor is not None:
            os.close(held.descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
