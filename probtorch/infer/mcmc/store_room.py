"""Whether draws will fit on the disk: what their files take by now, a warning in time, and room
that is set aside for what has to be written when they do not.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from probtorch.infer.checkpoint import warn_of_checkpoint
from probtorch.serialization.files import reserve

__all__ = ["on_disk", "set_aside", "warn_of_room"]


def on_disk(path: Path) -> int:
    """Return the bytes that a file takes, 0 if there is none: a run that goes on has some."""
    with contextlib.suppress(OSError):
        return 512 * os.stat(path).st_blocks
    return 0


def set_aside(folder: Path, size: int) -> int | None:
    """Return the descriptor of a file without a name that takes so many bytes until it is closed.

    None where there is no such room any more, or files keep their names while they are open.
    """
    with contextlib.suppress(OSError):
        descriptor, path = tempfile.mkstemp(dir=folder)
        try:
            os.unlink(path)
            reserve(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    return None


def warn_of_room(path: Path, needed: int) -> None:
    """Tell at the beginning of a run that its draws will not fit on the disk at its end.

    Parameters
    ----------
    path : path
        The folder they go to.
    needed : int
        Bytes, beside those that its files take.
    """
    if not hasattr(os, "statvfs"):
        return
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        warn_of_checkpoint(
            f"MCMC.run(store={str(path)!r}): the draws will not fit on the disk\n"
            f"  expected: room for {_size(needed)} more\n"
            f"  got:      {_size(free)}\n"
            "  fix:      make room while the run goes on, or end it and give a folder on "
            "another disk; thinning= keeps fewer draws"
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
