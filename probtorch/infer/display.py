"""What all displays of progress have in common: their pace, and a word on what takes long.

Nothing is shown before a run has lasted a third of a second; all goes to stderr.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from probtorch.config import settings
from probtorch.distributed.group import is_main

__all__ = ["LOG_EVERY", "PATIENCE", "REFRESH", "activity", "is_shown"]

# Seconds: before anything is shown, between refreshes of a live display, between lines of a log,
# before an activity is named.
PATIENCE = 0.3
REFRESH = 0.2
LOG_EVERY = 10.0
ACTIVITY_AFTER = 1.0


def is_shown(wanted: bool) -> bool:
    """Whether to show what is wanted: displays are on, and this is no process beside the first."""
    return wanted and settings.progress and is_main()


@contextlib.contextmanager
def activity(what: str, *, shown: bool = True) -> Iterator[None]:
    """Say what is being done if it takes longer than a second, and how long it took.

    Parameters
    ----------
    what : str
        For example "compiling the sampler".
    shown : bool
    """
    if not is_shown(shown):
        yield
        return
    start, said = time.perf_counter(), threading.Event()

    def say() -> None:
        said.set()
        print(f"{what} ...", file=sys.stderr, flush=True)

    timer = threading.Timer(ACTIVITY_AFTER, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if said.is_set():
            print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
