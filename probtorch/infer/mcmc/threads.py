"""Chains in threads: who runs which, what the main thread does meanwhile, and Ctrl-C.

A thread takes the next chains that wait and runs them to their ends, without the interpreter lock
most of the time: several in step (in_step.py), or, where each has a thread, one. The main thread
shows progress, writes checkpoints and listens.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from probtorch.compiler.native.threads import occupied
from probtorch.distributed.group import hurry, is_main
from probtorch.distributions.validation import validation_enabled, validation_in_force
from probtorch.infer.blas_threads import blas_shared_out
from probtorch.infer.control import Control, control_here
from probtorch.infer.mcmc.chain import ChainRun
from probtorch.infer.mcmc.in_step import at_once, in_groups, sample_in_step, warm_up_in_step
from probtorch.infer.mcmc.progress import Progress, log_line
from probtorch.infer.mcmc.saved import SavedRun
from probtorch.infer.mcmc.standstill import tell_of_standstill

__all__ = ["run_chains", "stages", "tell_of_interrupt"]

# What a thread does with a chain.
Stage: TypeAlias = Callable[[ChainRun, Control], None]

# How often the main thread looks at the chains, in seconds.
POLL = 0.05
# And whether one stands still.
LOOK = 0.25


def run_chains(
    runs: list[ChainRun],
    count: int,
    saved: SavedRun,
    *,
    shown: bool,
    look: Callable[[list[ChainRun]], list[ChainRun]],
    seconds: float | None = None,
    control: Control | None = None,
    stacklevel: int = 2,
) -> str:
    """Run all chains in `count` threads, to their ends, for so many seconds, or until Ctrl-C.

    All chains warm up before one samples.

    Parameters
    ----------
    runs : list of ChainRun
        One that fails keeps its error; the others go on.
    count : int
    saved : SavedRun
        Told now and then, so that it can write checkpoints.
    shown : bool
        Whether to show progress.
    look : callable
        Is given the chains that are warm, and returns those that shall go on warming up.
    seconds : float, optional
        When to stop, from now; pauses do not count.
    control : Control, optional
        By which others stop and pause the run.
    stacklevel : int
        Of warnings about chains that stand still, from here.

    Returns
    -------
    str
        What ended it early: "interrupted" by Ctrl-C, "timed out" or "aborted"; else empty. A second
        Ctrl-C is raised.
    """
    # The end of these chains is not that of all that runs in this thread.
    control, ended = control or Control(control_here()), threading.Semaphore(0)
    control.line = functools.partial(log_line, runs)
    deadline = None if seconds is None else time.perf_counter() + seconds
    timed_out = False
    told: set[int] = set()
    # What threads say themselves: one may have drawn, and Ctrl-C come, before its start returns.
    at_work: set[threading.Thread] = set()
    at_rest: set[threading.Thread] = set()

    # What holds in this thread holds in those that work for it.
    checked = validation_in_force()

    failures: list[BaseException] = []

    def work(waiting: queue.SimpleQueue[list[ChainRun]], stage: Stage) -> None:
        at_work.add(threading.current_thread())
        try:
            with contextlib.suppress(queue.Empty), validation_enabled(checked), occupied():
                while control.go_on():
                    group = waiting.get_nowait()
                    in_step = warm_up_in_step if stage is ChainRun.warm_up else sample_in_step
                    in_step(group, control)
        except BaseException as error:
            # Raised where the run was asked for: nobody looks at a thread that has ended.
            failures.append(error)
            control.stop()
        at_rest.add(threading.current_thread())
        ended.release()

    def start(chosen: list[ChainRun], stage: Stage) -> int:
        waiting: queue.SimpleQueue[list[ChainRun]] = queue.SimpleQueue()
        # Where each chain has a thread, it draws at a pace of its own.
        together = stage is ChainRun.warm_up or len(chosen) > count
        groups = in_groups(chosen, count) if together else [[run] for run in chosen]
        most = at_once(count) if len(groups) < len(chosen) else count
        for group in groups:
            waiting.put(group)
        # Daemons: after a second Ctrl-C nothing waits for them.
        threads = [
            threading.Thread(
                target=work, args=(waiting, stage), name=f"probtorch chain {i}", daemon=True
            )
            for i in range(min(most, len(groups)))
        ]
        then = len(at_rest) + len(threads)
        for thread in threads:
            thread.start()
        return then

    try:
        with blas_shared_out(count), Progress(runs, shown=shown) as progress:
            for chosen, stage in stages(runs, look):
                then, looked = start(chosen, stage), time.perf_counter()
                while len(at_rest) < then:
                    ended.acquire(timeout=POLL)
                    progress.update()
                    saved.update(runs)
                    if time.perf_counter() > looked + LOOK:
                        tell_of_standstill(runs, told, stacklevel + 1)
                        looked = time.perf_counter()
                    if (
                        deadline is not None
                        and not control.paused
                        and time.perf_counter() >= deadline + control.waited
                    ):
                        timed_out = True
                        control.stop()
                if failures:
                    raise failures[0]
                # Those that were at rest before anyone looked.
                tell_of_standstill(runs, told, stacklevel + 1)
                if control.stopped:
                    break
        return "timed out" if timed_out else "aborted" if control.stopped else ""
    except KeyboardInterrupt:
        control.stop()
        # Other processes may stop elsewhere: a chain that waits for them is not to do so for long.
        hurry()
        tell_of_interrupt(runs)
        while len(at_rest) < len(at_work):
            ended.acquire(timeout=POLL)
        return "interrupted"
    finally:
        control.stop()


def tell_of_interrupt(runs: Sequence[ChainRun]) -> None:
    """Say on stderr what becomes of a run after Ctrl-C."""
    if not is_main():
        return  # the first of several processes has said so
    drawn = any(run.draws.complete for run in runs)
    print(
        "interrupted: keeping what was drawn (Ctrl-C again to give it up)"
        if drawn
        else "interrupted during warm-up: there are no draws yet, so none are kept",
        file=sys.stderr,
        flush=True,
    )


def stages(
    runs: Sequence[ChainRun], look: Callable[[list[ChainRun]], list[ChainRun]]
) -> Iterator[tuple[list[ChainRun], Stage]]:
    """Which chains are to do what, one stage after the other: pairs of chains and a method."""
    cold = [run for run in runs if run.warming_up]
    # Nobody samples before all are warm, but where a chain failed and is taken up again.
    begun = len(cold) < len(runs)
    while cold:
        yield cold, ChainRun.warm_up
        # What a chain does depends on all of them: those that failed are not asked.
        cold = [] if begun else look([run for run in runs if run.error is None])
    yield [run for run in runs if run.error is None], ChainRun.sample
