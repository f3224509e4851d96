"""Whether draws will fit on the disk: what their files take by now, and a warning in time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from probtorch.infer.checkpoint import warn_of_checkpoint

__all__ = ["on_disk", "warn_of_room"]


def on_disk(path: Path) -> int:
    """Return the bytes that a file takes, 0 if there is none: a run that goes on has some."""
    with contextlib.suppress(OSError):
        return 512 * os.stat(path).st_blocks
    return 0


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
