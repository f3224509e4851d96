"""`run_steps`: the loop around the steps of a fit, with progress, Ctrl-C and checkpoints."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.control import Interrupt
from probtorch.infer.model_calls import check_model_call
from probtorch.infer.model_runs import lifted
from probtorch.infer.objectives.protocol import Objective
from probtorch.infer.objectives.runs import is_precise
from probtorch.infer.run_record import RunRecord
from probtorch.infer.vi.converged import Until, as_rule, is_met, warn_of_the_end
from probtorch.infer.vi.step_progress import StepProgress
from probtorch.infer.vi.svi_arguments import check_count
from probtorch.infer.vi.svi_result import SVIResult

if TYPE_CHECKING:
    from probtorch.infer.vi.svi import SVI

__all__ = ["run_steps"]


def run_steps(
    svi: SVI,
    num_steps: int,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    checkpoints: tuple[str | os.PathLike[str] | Checkpoint | None, int | None],
    progress_bar: bool,
    callback: Callable[[int, float], object] | None,
    until: Until,
    max_seconds: float | None,
) -> SVIResult:
    """Take many steps; see `SVI.run`. `checkpoints` is where they are kept, and how often."""
    check_count(num_steps, args)
    rule = as_rule(until)
    if isinstance(svi.objective, Objective):
        check_model_call(svi.model, args, kwargs, "svi.run", "num_steps, ")
    if is_precise(svi.guide):
        # Once, and not at every step.
        args, kwargs = lifted(args), lifted(kwargs)
    record = RunRecord(svi, args, kwargs, *checkpoints)
    losses = record.losses
    shown = StepProgress(num_steps, done=len(losses), shown=progress_bar)
    with record, Interrupt("SVI.run", max_seconds) as interrupt, shown as progress:
        interrupt.shows(
            lambda: _so_far(svi, args, kwargs, losses, record.elapsed) if losses else None
        )
        met = is_met(rule, losses)  # a run that was saved where it ended
        # The clock is asked last: a run that is complete was not interrupted.
        while len(losses) < num_steps and not (record.stopped or met or interrupt.asked):
            # Many at once where nobody wants to see each.
            room = record.room(num_steps)
            if rule is not None:
                room = min(room, rule.next_look(len(losses)) - len(losses))
            new = svi.compiled.many(room, args, kwargs) if callback is None else []
            new = new or [svi.step(*args, **kwargs)]
            losses += new
            progress.update(*new)
            if callback is not None:
                record.stopped = callback(len(losses) - 1, losses[-1]) is True
            met = is_met(rule, losses)
            record.update()
        svi.compiled.compare_at_the_end(args, kwargs)
        record.close()
    if rule is not None and not (met or interrupt.heeded or record.stopped):
        warn_of_the_end(rule, losses)
    svi.resume(args, kwargs)  # a finished run was restored, and there was no step
    return SVIResult(
        params=svi.get_params(),
        losses=np.array(losses),
        svi=svi,
        args=args,
        kwargs=kwargs,
        interrupted=interrupt.heeded,
        seconds=record.elapsed,
        converged=None if rule is None else met,
    )


def _so_far(
    svi: SVI,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    losses: Sequence[float],
    seconds: float,
) -> SVIResult | None:
    """What a run would return that ended now, around a copy of what goes on."""
    if svi.waiting is not None:
        return None  # read from a file, before the first step has made the parameters
    return SVIResult(
        params=svi.get_params(),
        losses=np.array(losses),
        svi=copy.deepcopy(svi),
        args=args,
        kwargs=kwargs,
        interrupted=True,
        seconds=seconds,
    )
