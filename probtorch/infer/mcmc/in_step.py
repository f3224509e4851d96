"""Chains that warm up in step: a segment of each, then what they learnt from it, all together.

Between two segments of its warm-up a chain computes a mass matrix from few numbers, so that for
many chains NumPy's calls would be most of a run. One thread has several chains: what they are given
is computed in stacks (`learnt_together`), and does not depend on who is in the stack.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from probtorch.infer.mcmc.company import Company
from probtorch.infer.mcmc.warm_up.mass_matrix import MassMatrix, end_segments, learnt_together

if TYPE_CHECKING:
    from probtorch.infer.control import Control
    from probtorch.infer.mcmc.chain import ChainRun
    from probtorch.infer.mcmc.metrics import Metric
    from probtorch.infer.mcmc.warm_up.adaptation import Segment

__all__ = ["in_groups", "sample_in_step", "warm_up_in_step"]

# Chains of a group: enough that NumPy's calls are shared by many, few enough that groups are many.
MOST = 256


def in_groups(runs: Sequence[ChainRun], threads: int) -> list[list[ChainRun]]:
    """Return chains by group: as many groups as may run at once, and more of many chains."""
    if any(run.hook is not None for run in runs):
        return [[run] for run in runs]  # one after the other
    at_once = max(min(threads, os.cpu_count() or 1), 1)
    size = min(-(-len(runs) // at_once), MOST)
    return [list(runs[i : i + size]) for i in range(0, len(runs), size)]


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
        for some, segment in _alike(there):
            try:
                _learn(some, segment)
            except Exception as error:
                for run in some:
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


def _alike(
    there: Sequence[tuple[ChainRun, Segment]],
) -> Iterator[tuple[list[ChainRun], Segment]]:
    """Chains that learn the same way from the same kind of segment."""
    kinds: dict[object, tuple[list[ChainRun], Segment]] = {}
    for run, segment in there:
        if segment.learn and run.learner is not None:
            who = run.kernel if type(run.learner) is MassMatrix else run
            how = segment.switch, segment.update, segment.choose, segment.last
            kinds.setdefault((id(who), how), ([], segment))[0].append(run)
    yield from kinds.values()


def _learn(runs: Sequence[ChainRun], segment: Segment) -> None:
    """Let what was drawn count, and set what it says."""
    learners = [run.learner for run in runs]
    matrices = [learner for learner in learners if type(learner) is MassMatrix]
    if len(matrices) == len(runs):
        end_segments(matrices, switch=segment.switch)
        if segment.update:
            now = [cast("Metric", run.held()) for run in runs]
            new = learnt_together(matrices, now, choose=segment.choose, last=segment.last)
            for run, old, metric in zip(runs, now, new):
                if metric is not old:
                    run.set_learnt(metric)
        return
    for run, learner in zip(runs, learners):
        assert learner is not None  # it has learnt
        learner.end_segment(switch=segment.switch)
        if segment.update:
            before = run.held()
            after = learner.learnt(before, choose=segment.choose, last=segment.last)
            if after is not before:
                run.set_learnt(after)
