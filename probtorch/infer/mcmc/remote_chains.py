"""Chains on an executor: `run_chains` of threads.py, with the chains in other processes.

A chain travels as what a checkpoint holds of it, without its draws. A worker goes on with it for a
stretch of some seconds and sends back where it stands and what it drew; the `ChainRun` here takes
that over, so displays, checkpoints, the guard of the warm-up and Ctrl-C see what they see when
chains run in threads. The stages are the same, and a chain is a function of its seed: so are the
draws. A worker that dies costs a stretch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from probtorch.core.tree import replace
from probtorch.errors import InferenceError
from probtorch.infer.blas_threads import blas_shared_out
from probtorch.infer.control import Control, control_here
from probtorch.infer.mcmc.chain import ChainRun
from probtorch.infer.mcmc.chunk import ChunkRunner
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.progress import Progress
from probtorch.infer.mcmc.saved import TOLERANCE, SavedRun, chain_of
from probtorch.infer.mcmc.standing import ChainCopy
from probtorch.infer.mcmc.standstill import tell_of_standstill
from probtorch.infer.mcmc.starts import resumed_chains
from probtorch.infer.mcmc.threads import stages, tell_of_interrupt
from probtorch.infer.potential import Target
from probtorch.infer.remote.jobs import Crew, Job
from probtorch.infer.remote.parcels import pack
from probtorch.infer.remote.pools import ExecutorLike

__all__ = ["run_chains_on"]

# Seconds of a chain's first stretch and of the longest: what a worker's death may cost, and how
# long Ctrl-C waits. A stretch costs some milliseconds more than its transitions.
FIRST, LONGEST = 0.25, 2.0


@dataclass(frozen=True)
class ChainPlan:
    """What all stretches of a run have in common; see `ChainRun`."""

    kernel: Kernel
    target: Target
    num_warmup: int
    num_samples: int
    thinning: int
    keep_warmup: bool
    chains: int


@dataclass(frozen=True)
class Stretch:
    """What a worker is given: a chain, and what to do with it for so many seconds."""

    number: int
    chain: ChainCopy
    sampling: bool
    seconds: float


class _Clock(Control):
    """Tells a chain to stop when the time of its stretch is up, after one call at least."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._until = time.perf_counter() + seconds
        self._asked = False

    def go_on(self) -> bool:
        """Return whether to make another call."""
        if self._asked and time.perf_counter() >= self._until:
            self.stop()
        self._asked = True
        return not self.stopped


def advance(plan: ChainPlan, stretch: Stretch) -> tuple[ChainCopy, bool]:
    """Go on with a chain, in a worker; returns it, and whether it is through with the stage.

    Raises
    ------
    Exception
        What the chain raised.
    """
    bare = chain_of(plan.kernel, stretch.chain.snapshot["leaves"])
    [(chain, context)] = resumed_chains(plan.target, [bare], 1)
    was, now = (np.ravel(c.state.logdensity.array) for c in (bare, chain))
    if not np.allclose(was, now, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        raise InferenceError(
            "MCMC(executor=...)",
            expected=f"the log density that was found where the run began, {was[0]:.10g}",
            got=f"{now[0]:.10g} in the worker",
            fix="workers need the releases and files that the model has here; it may read nothing "
            "that changes",
        )
    run = ChainRun(
        # The same to the bit, even where another compiler computes it.
        ChunkRunner(replace(chain, state=bare.state)),
        context,
        plan.num_warmup,
        plan.target,
        plan.num_samples,
        plan.thinning,
        plan.kernel,
        keep_warmup=plan.keep_warmup,
        verifying=stretch.number == 0,
    )
    run.arrive(stretch.chain)
    clock = _Clock(stretch.seconds)
    with blas_shared_out(plan.chains):
        (run.sample if stretch.sampling else run.warm_up)(clock)
    if run.error is not None:
        raise run.error
    return run.come_back(), not clock.stopped


class _ChainJob(Job):
    """One stage of one chain."""

    def __init__(self, number: int, run: ChainRun, *, sampling: bool, until: float) -> None:
        self.name, self.number, self.run = f"chain {number}", number, run
        self.sampling, self.until, self._seconds = sampling, until, FIRST

    def argument(self) -> Stretch:
        left = max(self.until - time.perf_counter(), 0.0)
        return Stretch(self.number, self.run.leave(), self.sampling, min(self._seconds, left))

    def take(self, result: tuple[ChainCopy, bool]) -> bool:
        copy, done = result
        self.run.settle(copy, chain_of(self.run.kernel, copy.snapshot["leaves"]))
        self._seconds = min(2.0 * self._seconds, LONGEST)
        if done:
            self.run.end()
        return done

    def fail(self, error: Exception) -> None:
        self.run.end(error)

    def where(self) -> str:
        run = self.run
        return f" at iteration {run.iteration} of {run.num_warmup + run.num_samples}"


def run_chains_on(
    executor: ExecutorLike,
    runs: list[ChainRun],
    saved: SavedRun,
    *,
    shown: bool,
    look: Callable[[list[ChainRun]], list[ChainRun]],
    seconds: float | None = None,
    control: Control | None = None,
    stacklevel: int = 2,
) -> str:
    """Run all chains to their ends on an executor; otherwise as `run_chains`."""
    control = control or Control(control_here())
    deadline = math.inf if seconds is None else time.perf_counter() + seconds
    timed_out, told = False, set[int]()
    numbers = {id(run): i for i, run in enumerate(runs)}
    first = runs[0]
    plan = ChainPlan(
        first.kernel,
        first.target,
        first.num_warmup,
        first.num_samples,
        first.draws.thinning,
        first.warmup_draws is not None,
        len(runs),
    )
    shared = pack(plan, "a model, its data and its kernel")

    with Crew(executor, advance, shared) as crew, Progress(runs, shown=shown) as progress:

        def poll() -> None:
            nonlocal timed_out
            progress.update()
            saved.update(runs)
            tell_of_standstill(runs, told, stacklevel + 4)
            if not control.paused and time.perf_counter() >= deadline + control.waited:
                timed_out = True
                control.stop()

        try:
            for chosen, stage in stages(runs, look):
                sampling = stage is ChainRun.sample
                until = deadline + control.waited
                crew.run(
                    [
                        _ChainJob(numbers[id(run)], run, sampling=sampling, until=until)
                        for run in chosen
                    ],
                    control,
                    poll,
                )
                if control.stopped:
                    break
            return "timed out" if timed_out else "aborted" if control.stopped else ""
        except KeyboardInterrupt:
            control.stop()
            tell_of_interrupt(runs)
            crew.run([], control)
            return "interrupted"
        finally:
            control.stop()
            for run in runs:
                if not run.finished:
                    run.end(run.error)
            crew.warn(stacklevel + 1)
