"""Chains in threads: who runs which, what the main thread does meanwhile, and Ctrl-C.

A thread takes the next chain that waits and runs it to its end, without the interpreter lock most
of the time. The main thread shows progress, writes checkpoints and listens.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading

from probtorch.compiler.threads import occupied
from probtorch.distributions.validation import validation_enabled, validation_in_force
from probtorch.infer.mcmc.chain import ChainRun
from probtorch.infer.mcmc.progress import Progress
from probtorch.infer.mcmc.saved import SavedRun
from probtorch.infer.mcmc.standstill import tell_of_standstill

__all__ = ["run_chains"]

# How often the main thread looks at the chains, in seconds.
POLL = 0.05


def run_chains(
    runs: list[ChainRun], count: int, saved: SavedRun, *, shown: bool, stacklevel: int = 2
) -> bool:
    """Run all chains in `count` threads, to their ends or until Ctrl-C.

    Parameters
    ----------
    runs : list of ChainRun
        One that fails keeps its error; the others go on.
    count : int
    saved : SavedRun
        Told now and then, so that it can write checkpoints.
    shown : bool
        Whether to show progress.
    stacklevel : int
        Of warnings about chains that stand still, from here.

    Returns
    -------
    bool
        Whether Ctrl-C ended it. A second Ctrl-C is raised.
    """
    stop, waiting, ended = threading.Event(), queue.SimpleQueue(), threading.Semaphore(0)
    for run in runs:
        waiting.put(run)

    # What holds in this thread holds in those that work for it.
    checked = validation_in_force()

    def work():
        with contextlib.suppress(queue.Empty), validation_enabled(checked), occupied():
            while not stop.is_set():
                waiting.get_nowait().run(stop)
        ended.release()

    # Daemons: after a second Ctrl-C nothing waits for them.
    threads = [
        threading.Thread(target=work, name=f"probtorch chain {i}", daemon=True)
        for i in range(count)
    ]
    left, told = count, set()
    try:
        with Progress(runs, shown=shown) as progress:
            for thread in threads:
                thread.start()
            while left:
                left -= ended.acquire(timeout=POLL)
                progress.update()
                saved.update(runs)
                tell_of_standstill(runs, told, stacklevel + 1)
        return False
    except KeyboardInterrupt:
        stop.set()
        drawn = any(run.draws.complete for run in runs)
        print(
            "interrupted: keeping what was drawn (Ctrl-C again to give it up)"
            if drawn
            else "interrupted during warm-up: there are no draws yet, so none are kept",
            file=sys.stderr,
            flush=True,
        )
        while left:
            left -= ended.acquire(timeout=POLL)
        return True
    finally:
        stop.set()
