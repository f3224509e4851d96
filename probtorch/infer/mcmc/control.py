"""`Control`: by which the threads of a run are told to stop, to wait, and to go on.

A chain asks between two calls of the native program, some 50 ms apart. Who tells may be any thread:
the one that listens for Ctrl-C, a clock, the user's, by a `RunHandle`.
"""

from __future__ import annotations

import threading
import time

__all__ = ["CALL_SECONDS", "GROWTH", "Control"]

# A call of the native program is sized to take this long (seconds): short enough for Ctrl-C and the
# progress display, long enough that what happens between calls costs nothing.
CALL_SECONDS = 0.05
# The first calls feel their way: how much more than the last one a call may do.
GROWTH = 8


class Control:
    """What the chains of one run are to do.

    Attributes
    ----------
    aborted : bool
        Whether it was the user who ended the run.
    """

    def __init__(self) -> None:
        self.aborted = False
        self._stopped = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._lock = threading.Lock()
        self._paused_at = 0.0
        self._waited = 0.0

    @property
    def stopped(self) -> bool:
        """Whether the chains are to end."""
        return self._stopped.is_set()

    @property
    def paused(self) -> bool:
        """Whether the chains are to wait."""
        return not self._going.is_set()

    @property
    def waited(self) -> float:
        """Seconds of all pauses together, the present one included."""
        with self._lock:
            return self._waited + (time.perf_counter() - self._paused_at if self.paused else 0.0)

    def stop(self) -> None:
        """Let chains end after their present call; those that wait end, too."""
        self._stopped.set()
        self.resume()

    def pause(self) -> None:
        """Let chains wait after their present call."""
        with self._lock:
            if self._going.is_set() and not self.stopped:
                self._paused_at = time.perf_counter()
                self._going.clear()

    def resume(self) -> None:
        """Let chains that wait go on."""
        with self._lock:
            if not self._going.is_set():
                self._waited += time.perf_counter() - self._paused_at
                self._going.set()

    def go_on(self) -> bool:
        """Return whether a chain is to make another call; while the run is paused, wait first."""
        self._going.wait()
        return not self.stopped
