"""Chains of one thread: a `Company` where they can go together, else segment by segment in turns.

Between two segments of its warm-up a chain computes a mass matrix from few numbers, so that for
many chains NumPy's calls would be most of a run. A company has them computed for all at once; what
a chain is given does not depend on who is there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from probtorch.infer.mcmc.company import Company

if TYPE_CHECKING:
    from probtorch.infer.control import Control
    from probtorch.infer.mcmc.chain import ChainRun
    from probtorch.infer.mcmc.warm_up.adaptation import Segment

__all__ = ["at_once", "in_groups", "sample_in_step", "warm_up_in_step"]

# Chains of a group: enough that NumPy's calls are shared by many, few enough that groups are many.
MOST = 256


def in_groups(runs: Sequence[ChainRun], threads: int) -> list[list[ChainRun]]:
    """Return chains by group: as many groups as may run at once, and more of many chains."""
    if any(run.hook is not None for run in runs):
        return [[run] for run in runs]  # one after the other
    size = min(-(-len(runs) // at_once(threads)), MOST)
    return [list(runs[i : i + size]) for i in range(0, len(runs), size)]


def at_once(threads: int) -> int:
    """Return how many groups are to run at a time: more only wait for the interpreter's lock."""
    return max(min(threads, os.cpu_count() or 1), 1)


def warm_up_in_step(runs: Sequence[ChainRun], control: Control) -> None:
    """Warm chains up to the end, or until `control` says stop; exceptions are in their `error`."""
    company = Company.of(runs)
    if company is not None:
        company.warm_up(control)
        return
    for run in runs:
        run.begin_stage()
    going = list(runs)
    while going:
        there = [(run, segment) for run in going if (segment := run.walk(control)) is not None]
        for run, segment in there:
            try:
                _learn(run, segment)
            except Exception as error:
                run.error = error
        going = [run for run, segment in there if run.error is None and run.pass_on(segment)]
    for run in runs:
        run.end_stage()


def sample_in_step(runs: Sequence[ChainRun], control: Control) -> None:
    """Draw to the ends, or until `control` says stop; exceptions are in their `error`."""
    company = Company.of(runs)
    if company is not None:
        company.sample(control)
        return
    for run in runs:
        run.sample(control)


def _learn(run: ChainRun, segment: Segment) -> None:
    """Let what a chain drew count, and set what it says."""
    learner = run.learner
    if not segment.learn or learner is None:
        return
    learner.end_segment(switch=segment.switch)
    if segment.update:
        before = run.held()
        after = learner.learnt(before, choose=segment.choose, last=segment.last)
        if after is not before:
            run.set_learnt(after)
