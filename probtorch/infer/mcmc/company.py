"""`Company`: chains that go together, segment by segment, as the rows of arrays.

What a `ChainRun` does between two calls of its program, done for many of them: with small models
that is most of a run. What is out of the ordinary (a chain that stands still or fails, the one that
compares its density with Python's) is left to the `ChainRun` itself. Draws, and all that is learnt,
are what the chains would have come to by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self, cast

import numpy as np

from probtorch.config import settings
from probtorch.infer.control import CALL_SECONDS, GROWTH
from probtorch.infer.mcmc.kernel import statistics
from probtorch.infer.mcmc.recording import DrawRecord, Info
from probtorch.infer.mcmc.rows import TOGETHER, ChainRows, RowTrace, as_slice
from probtorch.infer.mcmc.standstill import IN_A_ROW, are_short
from probtorch.infer.mcmc.tally import (
    ACCEPTED,
    DIVERGENCES,
    EVALUATIONS,
    ITERATION,
    NUMBERS,
    STEP_SIZE,
    WARMUP_EVALUATIONS,
    tallies_of,
)
from probtorch.infer.mcmc.warm_up.adaptation import (
    LARGEST_STEP_SIZE,
    SMALLEST_STEP_SIZE,
    AcceptanceTuner,
    Segment,
    check_found,
)
from probtorch.infer.mcmc.warm_up.mass_matrix import MassMatrices, MassMatrix

if TYPE_CHECKING:
    from probtorch.infer.control import Control
    from probtorch.infer.mcmc.chain import ChainRun

__all__ = ["Company"]

# How much longer a call may take by the clock than it is meant to take of a processor.
LONGER = 4.0


class Company:
    """Chains that go together; `of` says whether they can.

    Parameters
    ----------
    runs : sequence of ChainRun
    rows : ChainRows
    """

    def __init__(self, runs: Sequence[ChainRun], rows: ChainRows) -> None:
        self.runs, self.rows = list(runs), rows
        kernel, size = runs[0].kernel, runs[0].runner.chain.state.position.array.size
        self._warmup, self._size = runs[0].warmup, size
        self._fields = {s.name: s.field for s in statistics(kernel.info) if s.name is not None}
        # Those that nothing is wrong with, by block of the rows that run together.
        self._well = np.ones(len(runs), bool)
        self._numbers = np.arange(len(runs))
        # What is told of them, and parts of their courses: rows of tables.
        self._tallies = tallies_of(runs)
        ahead = sum(s.length for s in runs[0].segments[runs[0].segment :])
        self._course = np.empty((len(runs), ahead if runs[0].warming_up else 0))
        self._followed = np.zeros(len(runs), int)
        self._passed = np.zeros(len(runs), int)
        self._matrices: MassMatrices | None = None
        self._verifying = [i for i, run in enumerate(runs) if run.verifying]
        # Where the last transitions led, and who may be standing still.
        self._ends, self._began = np.full((len(runs), size), np.nan), False
        for i, run in enumerate(runs):
            if (last := run.standstill.last) is not None:
                self._ends[i] = last
        self._standing = np.array([run.standstill.is_counting for run in runs])
        # Transitions of a chain, times chains, that the next call may have; chains that have begun
        # go on at their pace.
        self._work = rows.work

    @classmethod
    def of(cls, runs: Sequence[ChainRun]) -> Self | None:
        """Return the company of some chains, None where each has to go alone."""
        first = runs[0]
        if len(runs) < 2 or not settings.jit or not all(_plain(run, first) for run in runs):
            return None
        learns = None if first.learner is None else first.learner.learns
        rows = ChainRows.of([run.runner for run in runs], learns)
        return None if rows is None else cls(runs, rows)

    # ----------------------------------------------------------------------------------- two stages

    def warm_up(self, control: Control) -> None:
        """Warm up to the end, or until `control` says stop; exceptions are in the runs' `error`."""
        self._stage(control, self._warm_up)

    def sample(self, control: Control) -> None:
        """Draw to the end, or until `control` says stop; exceptions are in the runs' `error`."""
        self._stage(control, self._sample)

    def _stage(self, control: Control, go: Callable[[Control], None]) -> None:
        for run in self.runs:
            run.begin_stage()
        try:
            self.rows.sit_down()
            go(control)
        except BaseException as error:
            for run in self.runs:
                run.error = run.error or error
        finally:
            self.rows.stand_up()
        for i, (run, length) in enumerate(zip(self.runs, self._followed.tolist())):
            if length:
                run.course.append(self._course[i, :length])
            if self._passed[i]:
                run.passed(int(self._passed[i]))
            if self._began:
                run.standstill.stands_at(self._ends[i])
            run.end_stage()

    def _warm_up(self, control: Control) -> None:
        first = self.runs[0]
        if first.learner is not None:
            self._matrices = MassMatrices.of([cast("MassMatrix", run.learner) for run in self.runs])
        rest = first.segments[first.segment :]
        for number, segment in enumerate(rest):
            for name, value in segment.values.items():
                self.rows.set(name, value)
            self._tallies[:, ACCEPTED] = 0.0
            pairs = None
            if segment.learn and self._matrices is not None:
                pairs = np.empty((len(self.runs), 2, segment.length, self._size))
            whole = self._advance(
                segment.length,
                control,
                search=segment.search,
                adapt=self._warmup.follows,
                pairs=pairs,
            )
            if not whole:
                return
            if self._matrices is not None and pairs is not None:
                self._learn(self._matrices, pairs, segment)
            after = rest[number + 1 :]
            if after and segment.learn and not after[0].learn:
                self.rows.refocus()
            self._passed[self._well] += 1
        if self._matrices is not None:
            self._matrices.windows.let_go()

    def _sample(self, control: Control) -> None:
        first = self.runs[0]
        if first.segment < len(first.segments):
            return
        if first.warming_up and first.segments and self._warmup.follows:
            self.rows.settle()
        for run in self.runs:
            run.warm()
        self._advance(first.num_samples, control)

    def _learn(self, matrices: MassMatrices, pairs: np.ndarray, segment: Segment) -> None:
        """Let what was drawn count, and set what it says."""
        chosen = self._numbers[self._well]
        if not chosen.size:
            return
        matrices.end_segment(chosen, pairs, switch=segment.switch)
        if segment.update:
            name = MassMatrix.learns
            changed, found = matrices.learnt(
                chosen, self.rows.field(name), choose=segment.choose, last=segment.last
            )
            if changed.size:
                self.rows.put(name, found, changed)

    # ---------------------------------------------------------------------------------- transitions

    def _blocks(self, count: int) -> Iterator[np.ndarray]:
        """Numbers of chains that are well, those of a call of so many transitions of each."""
        for first in range(0, len(self.runs), TOGETHER):
            block = self._numbers[first : first + TOGETHER]
            block, at = block[self._well[block]], 0
            while at < len(block):
                # What a call may have is known better after each.
                width = max(self._work // count, 1)
                yield block[at : at + width]
                at += width

    def _advance(
        self,
        length: int,
        control: Control,
        *,
        search: bool = False,
        adapt: bool = False,
        pairs: np.ndarray | None = None,
    ) -> bool:
        """Run `length` transitions; returns whether all were made."""
        done = 0
        while done < length and self._well.any():
            each = self._work // min(self._work, TOGETHER, len(self.runs))
            count = min(length - done, self.rows.capacity, each)
            for block in self._blocks(count):
                if not self._goes_on(control):
                    return False
                self._call(block, count, search and not done, adapt, done, pairs)
            done, self._began = done + count, True
        return True

    def _call(
        self,
        block: np.ndarray,
        count: int,
        search: bool,
        adapt: bool,
        done: int,
        pairs: np.ndarray | None,
    ) -> None:
        start, busy = time.perf_counter(), time.thread_time()
        trace = self.rows.run(block, count, search=search, adapt=adapt)
        seconds, own = time.perf_counter() - start, time.thread_time() - busy
        # Chains of one density: its costs are those of all of them.
        self.runs[0].context.density.costs.native += own
        if pairs is not None:
            whose = as_slice(block)
            pairs[whose, 0, done : done + count] = trace.positions
            pairs[whose, 1, done : done + count] = 0.0 if trace.grads is None else trace.grads
        well = self._checked(block, trace, search)
        if well is None:
            self._report(block, trace, slice(None))
        else:
            self._report(block[well], trace, well)
        # Where others have the processors too, calls may take longer by the clock.
        each = max(own, seconds / LONGER, 1e-9) / (count * len(block))
        self._work = max(1, min(int(CALL_SECONDS / each), GROWTH * self._work, 2**20))
        self.rows.work = self._work

    def _checked(self, block: np.ndarray, trace: RowTrace, search: bool) -> np.ndarray | None:
        """Keep the errors of chains that failed; the rows of the others, None for all of them."""
        sizes = self._told(trace.info, "step_size") if search else None
        failed = trace.statuses != 0
        if sizes is not None:
            first = sizes[:, 0]
            failed |= ~np.isnan(first) & ~(
                (first > SMALLEST_STEP_SIZE) & (first < LARGEST_STEP_SIZE)
            )
        looked_at = {*trace.errors, *(failed.nonzero()[0].tolist() if failed.any() else ())}
        for number in self._verifying:
            looked_at.update((block == number).nonzero()[0].tolist())
        wrong = []
        for i in sorted(looked_at):
            run = self.runs[block[i]]
            try:
                if i in trace.errors:
                    raise trace.errors[i]
                if run.verifying:
                    run.verify_now_and_then(trace.positions[i, -1], 0.0)
                if failed[i]:
                    self.rows.program.check(int(trace.statuses[i]))
                    assert sizes is not None
                    check_found(float(sizes[i, 0]))
            except BaseException as error:
                run.error, self._well[block[i]] = error, False
                wrong.append(i)
        return np.delete(np.arange(len(block)), wrong) if wrong else None

    def _report(self, block: np.ndarray, trace: RowTrace, at: slice | np.ndarray) -> None:
        """Have the runs of some rows of the trace, or of all, know what their chains have done."""
        runs = [self.runs[i] for i in block.tolist()]
        if not runs:
            return
        whose = as_slice(block)
        positions, info = trace.positions[at], trace.info
        count = positions.shape[1]

        def told(name: str) -> np.ndarray | None:
            return getattr(info, self._fields[name])[at] if name in self._fields else None

        warming = runs[0].warming_up
        # First: who finds a chain at its end finds its draws.
        self._record(runs, positions, lambda name: np.asarray(getattr(info, name))[at])
        self._stand(block, positions, told)
        steps, sizes, lp, diverging = map(told, ("n_steps", "step_size", "lp", "diverging"))
        taken = 0 if steps is None else steps.sum(axis=1)
        more = np.zeros((len(runs), NUMBERS))
        more[:, ITERATION], more[:, EVALUATIONS] = count, taken
        if warming:
            more[:, WARMUP_EVALUATIONS] = taken
            accepted = more[:, ACCEPTED]
            accepted[:, 1], accepted[:, 2] = taken, count
            if self._warmup.tuner is not None:
                rates = np.asarray(getattr(info, self._warmup.tuner.follows))[at]
                accepted[:, 0] = rates.sum(axis=1)
        elif diverging is not None:
            more[:, DIVERGENCES] = diverging.sum(axis=1)
        self._tallies[whose] += more
        if sizes is not None:
            self._tallies[whose, STEP_SIZE] = sizes[:, -1]
        if lp is not None:
            for run, height in zip(runs, lp[:, -1].tolist()):
                run.trace.add(height)
        if lp is not None and warming:
            begin = self._followed[block[0]]  # as far as all of a block
            self._course[whose, begin : begin + count] = lp
            self._followed[whose] += count

    def _record(self, runs: list[ChainRun], positions: np.ndarray, info: Info) -> None:
        """Keep what was drawn, where it is to be kept."""
        if runs[0].recording is None:
            return
        records = [run.recording for run in runs]
        in_memory = [x for x in records if isinstance(x, DrawRecord)]
        if len(in_memory) == len(records) and DrawRecord.add_together(in_memory, positions, info):
            return
        kind = self.runs[0].kernel.info
        names = [s.field for s in statistics(kind)]
        for row, (record, drawn) in enumerate(zip(records, positions)):
            assert record is not None  # all keep what they draw, or none
            record.add(drawn, kind(**{name: info(name)[row] for name in names}))

    def _stand(
        self,
        block: np.ndarray,
        positions: np.ndarray,
        told: Callable[[str], np.ndarray | None],
    ) -> None:
        """Tell who stands still; nearly always the last transition led somewhere."""
        ends, whose = positions[:, -1], as_slice(block)
        before = self._ends[whose]
        previous = positions[:, -2] if positions.shape[1] > 1 else before
        went = previous[:, 0] != ends[:, 0]
        if (saturated := told("reached_max_treedepth")) is not None and saturated[:, -1].any():
            depths, sizes = told("tree_depth"), told("step_size")
            assert depths is not None and sizes is not None  # told with that they were reached
            went &= ~(saturated[:, -1] & are_short(depths[:, -1], sizes[:, -1]))
        if went.all() and not self._standing[whose].any():
            self._ends[whose] = ends
            return
        for i in (went & self._standing[whose]).nonzero()[0].tolist():
            self.runs[block[i]].standstill.went_on()
        for i in self._paused(block, positions, told, (~went).nonzero()[0]).tolist():

            def of_run(name: str, i: int = i) -> np.ndarray | None:
                values = told(name)
                return None if values is None else values[i]

            standstill = self.runs[block[i]].standstill
            if self._began:
                standstill.stands_at(before[i].copy())
            standstill.update(positions[i], of_run)
        self._standing[whose], self._ends[whose] = ~went, ends

    def _paused(
        self,
        block: np.ndarray,
        positions: np.ndarray,
        told: Callable[[str], np.ndarray | None],
        still: np.ndarray,
    ) -> np.ndarray:
        """Tell of chains whose last transitions led nowhere; returns those that may stand still."""
        saturated, refused = told("reached_max_treedepth"), told("acceptance_rate")
        steps = positions.shape[1] - 1
        if not still.size or not steps or steps >= IN_A_ROW:
            return still
        stays = (positions[still, 1:] == positions[still, :-1]).all(axis=2)
        if refused is not None:
            stays &= refused[still, 1:] < 1.0
        moved = ~stays.all(axis=1)
        if saturated is not None:
            moved &= ~saturated[still, -1]
        for i, count in zip(still[moved].tolist(), stays[moved, ::-1].argmin(axis=1).tolist()):
            self.runs[block[i]].standstill.paused(count)
        return still[~moved]

    def _told(self, info: object, name: str) -> np.ndarray | None:
        return getattr(info, self._fields[name]) if name in self._fields else None

    def _goes_on(self, control: Control) -> bool:
        """Whether to make another call; waits while the run is paused."""
        if not control.paused:
            return control.go_on()
        began = time.perf_counter()
        going = control.go_on()
        for run in self.runs:
            run.waited(time.perf_counter() - began)
        return going


def _plain(run: ChainRun, first: ChainRun) -> bool:
    """Whether a chain is of the kind, and where, the first is, and nothing else is to be done."""
    learner, tuner = run.learner, run.warmup.tuner
    return (
        not run.alone
        and run.error is None
        and run.kernel is first.kernel
        and not run.kernel.members
        # Processes that share rows evaluate in one order, which here depends on the clock.
        and run.target.parts.ranks == 1
        and run.runner.density is first.runner.density
        and (learner is None or type(learner) is MassMatrix)
        and (learner is None) == (first.learner is None)
        and (tuner is None or (type(tuner) is AcceptanceTuner and not tuner.target.array.ndim))
        and run.warming_up == first.warming_up
        and not run.done
        and run.segments[run.segment :] == first.segments[first.segment :]
        and (run.recording is None) == (first.recording is None)
        and run.num_samples == first.num_samples
    )
