"""One chain from its first to its last draw: segments of warm-up, what is learnt set, draws kept.

`ChainRun` runs in a thread of its own, first `warm_up`, then, when all chains are there, `sample`.
Between two calls of the native program it looks whether it should stop, stores what was drawn and
lets others see how far it is; within a call it holds no interpreter lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.verify import QUICK, WARM_SHARE
from probtorch.core.dispatch import wrap
from probtorch.core.tree import replace
from probtorch.infer.control import CALL_SECONDS, GROWTH, Control
from probtorch.infer.mcmc.in_step import warm_up_in_step
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.pace import Pace
from probtorch.infer.mcmc.recording import DrawRecord
from probtorch.infer.mcmc.standing import ChainCopy, ChainSnapshot
from probtorch.infer.mcmc.stored_record import StoredRecord
from probtorch.infer.mcmc.tally import ChainTally
from probtorch.infer.mcmc.warm_up.adaptation import Learner, Segment, Warmup, check_found

if TYPE_CHECKING:
    from probtorch.compiler.density import DensityContext
    from probtorch.infer.mcmc.chunk import Chain, ChunkRunner
    from probtorch.infer.mcmc.journal import ChainJournal, Transitions
    from probtorch.infer.potential import Target

__all__ = ["ChainRun"]


class ChainRun(ChainTally):
    """One chain of a run; what is told of it is in `ChainTally`.

    Parameters
    ----------
    runner : ChunkRunner
    context : Context or None
        Of the density, kept alive, and asked for errors that happened inside native code; None if
        the runner has it, or makes one.
    num_warmup : int
        Iterations of warm-up; 0 to go on with what is adapted already.
    target : Target
    num_samples, thinning : int
    kernel : Kernel
        As the user made it.
    keep_warmup : bool
    hook : callable, optional
        ``hook(position, stage, iteration)`` after each transition.
    pace : Pace, optional
        When to take snapshots; none are taken without.
    verifying : bool
        Whether it is this chain that compares the density with Python's now and then.
    draws : DrawRecord or StoredRecord, optional
        Where draws go, instead of into memory of its own.
    warmup : Warmup, optional
        The kernel's, where it is made already.

    Attributes
    ----------
    warmup : Warmup
    learner : Learner or None
    segment, done : int
        Segments of the warm-up that are behind it, and transitions of the present one.
    extensions : list of int
        Iterations by which the warm-up was made longer; see `extend`.
    moved : bool
        Whether it was sent to where another chain stood.
    seconds : float
        Time spent, up to now or to the end.
    error : BaseException or None
    draws : DrawRecord or StoredRecord
    warmup_draws : DrawRecord or None
    snapshot : ChainSnapshot or None
        All that the rest of the run depends on, as it was not long ago; see `restore`.
    journal : ChainJournal or None
        Where what it draws is written down between two checkpoints.
    """

    def __init__(
        self,
        runner: ChunkRunner,
        context: DensityContext | None,
        num_warmup: int,
        target: Target,
        num_samples: int,
        thinning: int,
        kernel: Kernel,
        *,
        keep_warmup: bool = False,
        hook: Callable[[np.ndarray, str, int], object] | None = None,
        pace: Pace | None = None,
        verifying: bool = False,
        draws: DrawRecord | StoredRecord | None = None,
        warmup: Warmup | None = None,
    ) -> None:
        self.runner, self.hook = runner, hook
        if context is not None:
            runner.use(context)
        self.target = target
        self.warmup = kernel.warmup if warmup is None else warmup
        self.segments = self.warmup.segments(num_warmup)
        self.num_warmup, self.num_samples = num_warmup, num_samples
        size, warming_up = runner.held("step_size"), bool(self.segments)
        super().__init__(kernel, size, self.warmup.tuner, warming_up=warming_up)
        position = runner.position
        self.learner = None
        if self.warmup.learner is not None and num_warmup:
            self.learner = self.warmup.learner(target, position)
        self.draws = draws or DrawRecord(num_samples, position.shape, kernel.info, thinning)
        self.warmup_draws = (
            DrawRecord(num_warmup, position.shape, kernel.info) if keep_warmup else None
        )
        self.extensions: list[int] = []
        self.moved = False
        # Calls so far, and the first after which the density may be compared with Python's again.
        self.verifying, self._calls, self._due = verifying, 0, 1
        self.error: BaseException | None = None
        self._count = 1
        self._arrived: list[int] = []
        self._began: float | None = None
        self._ended: float | None = None
        self.segment = self.done = 0
        self._pace = pace
        self.snapshot: ChainSnapshot | None = None
        self.journal: ChainJournal | None = None
        self._snapped = 0  # iterations at the last snapshot
        self._take_snapshot()

    @property
    def context(self) -> DensityContext:
        """That of the density, where the chain runs."""
        found = self.runner.context
        assert found is not None  # it was given, or is made
        return found

    @property
    def seconds(self) -> float:
        """Seconds since the chain began, until it ended."""
        return 0.0 if self._began is None else (self._ended or time.perf_counter()) - self._began

    @property
    def finished(self) -> bool:
        """Whether the chain has ended, well or badly."""
        return self._ended is not None

    def warm_up(self, control: Control) -> None:
        """Warm up to the end, or until `control` says stop; an exception is in `error`."""
        warm_up_in_step([self], control)

    def sample(self, control: Control) -> None:
        """Draw to the end, or until `control` says stop; an exception is kept in `error`."""
        self.begin_stage()
        try:
            self._sample(control)
        except BaseException as error:
            self.error = error
        self.end_stage()

    def begin_stage(self) -> None:
        """Begin to warm up, or to sample."""
        self._began, self._ended = time.perf_counter() - self.seconds, None

    def end_stage(self) -> None:
        """Be done with it, well or badly."""
        try:
            if self.error is None:
                self.draws.flush()
                self.runner.stand_up()
                self._take_snapshot()
        except BaseException as error:
            self.error = error
        self._ended = time.perf_counter()

    def walk(self, control: Control) -> Segment | None:
        """Run the transitions of the present segment of the warm-up, and return it.

        None if there is none, if `control` said stop, or if it failed.
        """
        if self.segment == len(self.segments):
            return None
        segment = self.segments[self.segment]
        try:
            self._run_segment(segment, control)
        except BaseException as error:
            self.error = error
            return None
        return segment if self.done == segment.length else None

    def held(self) -> object:
        """Return what its learner sets, as it was set last."""
        assert self.learner is not None  # there is one where something is learnt
        return self.runner.held(self.learner.learns)

    def set_learnt(self, value: object) -> None:
        """Set what its learner has found."""
        assert self.learner is not None
        self.runner.set(self.learner.learns, value)

    def pass_on(self, segment: Segment) -> bool:
        """Go on to the next segment, when what this one taught is set; return if there is one."""
        self.passed()
        rest = self.segments[self.segment :]
        if rest and segment.learn and not rest[0].learn:
            chain = self.runner.chain
            if chain.tuner is not None:
                self.runner.chain = replace(chain, tuner=chain.tuner.refocused())
        return bool(rest)

    def passed(self, count: int = 1) -> None:
        """Leave segments of the warm-up behind."""
        self.segment, self.done = self.segment + count, 0

    def warm(self) -> None:
        """Be warm: what is drawn from now on counts."""
        self.warming_up = False
        self.learner = None  # what it holds is as much as the draws of the warm-up

    @property
    def recording(self) -> DrawRecord | StoredRecord | None:
        """Where draws are kept at present."""
        return self.warmup_draws if self.warming_up else self.draws

    @property
    def alone(self) -> bool:
        """Whether others look at it between calls: a hook, or who saves it."""
        return self.hook is not None or self._pace is not None or self.journal is not None

    def _sample(self, control: Control) -> None:
        if self.segment < len(self.segments):
            return
        if self.warming_up and self.segments:
            self._end_warmup()
        self.warm()
        self._advance(self.num_samples, self.draws, control)

    # --------------------------------------------------------------------------- a longer warm-up

    def extend(self, length: int, moved_to: Chain | None = None) -> None:
        """Let `warm_up` go on for so many iterations more.

        Parameters
        ----------
        length : int
        moved_to : Chain, optional
            Begin at the position and with what is tuned of another chain.
        """
        self.extensions.append(length)
        self.segments = [*self.segments, *self.warmup.segments(length, search=False)]
        if self.learner is not None:
            self.learner.forget()
        self.course = []
        if moved_to is not None:
            self.moved = True
            chain = self.runner.chain
            kernel = replace(moved_to.kernel, density=chain.kernel.density)
            state = replace(moved_to.state, counter=chain.state.counter)
            self.runner.chain = replace(moved_to, kernel=kernel, state=state, key=chain.key)
        if self.journal is not None:
            self.journal.extended()
        self._take_snapshot()

    # ----------------------------------------------------------------------------------- snapshots

    def restore(self, saved: ChainSnapshot, drawn: Sequence[Transitions] = ()) -> None:
        """Go on from a `snapshot` of another process; the chain itself is that of the runner.

        Parameters
        ----------
        saved : ChainSnapshot
        drawn : sequence of Transitions
            What its draws lack.
        """
        self._stand_at(saved)
        self.draws.restore(saved["draws"])
        if self.warmup_draws is not None:
            self.warmup_draws.restore(saved["warmup"])
        for stretch in drawn:
            recording = self.draws if stretch.sampling else self.warmup_draws
            if recording is not None:
                recording.add(stretch.positions, stretch.info(self.kernel.info))
        self._take_snapshot()

    def _stand_at(self, saved: ChainSnapshot) -> None:
        """Take over all of a snapshot but draws."""
        for length in saved["extensions"][len(self.extensions) :]:
            self.extensions.append(length)
            self.segments = [*self.segments, *self.warmup.segments(length, search=False)]
        self.segment, self.done = saved["segment"], saved["done"]
        self.moved = saved["moved"]
        self.accepted = saved["accepted"].copy()
        self.course = [saved["course"]]
        if self.learner is not None and saved["learner"] is not None:
            self.learner.restore(saved["learner"])
        self.iteration, self.divergences = saved["iteration"], saved["divergences"]
        self.evaluations = saved["evaluations"]
        self.warmup_evaluations = saved["warmup_evaluations"]
        self.warming_up = saved["warming_up"]

    def _take_snapshot(self) -> None:
        if self._pace is None:
            return
        self._snapped = self.iteration
        with self._pace.saving():
            snapshot: ChainSnapshot = {**self._stand(), "draws": self.draws.snapshot()}
            if self.warmup_draws is not None:
                snapshot["warmup"] = self.warmup_draws.snapshot()
            self.snapshot = snapshot

    def _stand(self) -> ChainSnapshot:
        """A snapshot, of draws only what is being filled."""
        return {
            "leaves": self.runner.bare_leaves(),
            "segment": self.segment,
            "done": self.done,
            "iteration": self.iteration,
            "divergences": self.divergences,
            "evaluations": self.evaluations,
            "warmup_evaluations": self.warmup_evaluations,
            "warming_up": self.warming_up,
            "extensions": list(self.extensions),
            "moved": self.moved,
            "course": np.concatenate([*self.course, np.zeros(0)]),
            "accepted": self.accepted.copy(),
            "learner": self.learner.snapshot() if self.learner and self.warming_up else None,
            "draws": self.draws.tail(),
            "warmup": None if self.warmup_draws is None else self.warmup_draws.tail(),
        }

    # ------------------------------------------------------------------------------------ elsewhere

    def leave(self) -> ChainCopy:
        """Return what another process needs to go on with this chain: there it will `arrive`."""
        if self._began is None or self._ended is not None:
            self._began, self._ended = time.perf_counter() - self.seconds, None
        return ChainCopy(self._stand(), self.step_size, self.trace, self.standstill)

    def arrive(self, copy: ChainCopy) -> None:
        """Be the chain that left another process."""
        self._settle(copy)
        records = (self.draws, self.warmup_draws)
        self._arrived = [0 if x is None else x.complete for x in records]

    def come_back(self) -> ChainCopy:
        """Return where the chain stands, with what it has drawn since it arrived."""
        stand = self._stand()
        assert isinstance(self.draws, DrawRecord)  # disks are written to at home
        stand["draws"] = self.draws.snapshot(self._arrived[0])
        if self.warmup_draws is not None:
            stand["warmup"] = self.warmup_draws.snapshot(self._arrived[1])
        return ChainCopy(stand, self.step_size, self.trace, self.standstill)

    def settle(self, copy: ChainCopy, bare: Chain) -> None:
        """Take over what it has done elsewhere; `bare` is the chain of the copy's leaves."""
        kernel = replace(bare.kernel, density=self.runner.chain.kernel.density)
        self.runner.chain = replace(bare, kernel=kernel)
        self._settle(copy)
        self._take_snapshot()

    def _settle(self, copy: ChainCopy) -> None:
        saved = copy.snapshot
        # First: who finds a chain at its end finds its draws.
        self.draws.append(saved["draws"])
        if self.warmup_draws is not None:
            self.warmup_draws.append(saved["warmup"])
        self._stand_at(saved)
        self.step_size, self.trace, self.standstill = copy.step_size, copy.trace, copy.standstill

    def end(self, error: BaseException | None = None) -> None:
        """Be done with a stage that ran elsewhere."""
        self.error, self._ended = error, time.perf_counter()
        self.draws.flush()

    # ------------------------------------------------------------------------------------ stretches

    def _run_segment(self, segment: Segment, control: Control) -> None:
        learner = self.learner if segment.learn else None
        if not self.done:
            self.accepted = np.zeros(3)
            for name, value in segment.values.items():
                self.runner.set(name, wrap(np.asarray(value)))
        self._advance(
            segment.length,
            self.warmup_draws,
            control,
            search=segment.search,
            adapt=self.warmup.follows,
            learner=learner,
        )

    def _end_warmup(self) -> None:
        chain = self.runner.chain
        if self.warmup.follows and chain.tuner is not None:
            kernel = replace(chain.kernel, **chain.tuner.settled())
            self.runner.chain = replace(chain, kernel=kernel)

    def _advance(
        self,
        length: int,
        recording: DrawRecord | StoredRecord | None,
        control: Control,
        *,
        search: bool = False,
        adapt: bool = False,
        learner: Learner | None = None,
    ) -> None:
        """Run `length` transitions, less those done before, in calls of a good size."""
        search = search and not self.done
        while self.done < length and self._goes_on(control):
            count = min(length - self.done, self._count, self.runner.capacity)
            start, busy = time.perf_counter(), time.thread_time()
            positions, grads, info = self.runner.run(
                count, search=search, adapt=adapt, grads=learner is not None
            )
            seconds, own = time.perf_counter() - start, time.thread_time() - busy
            self.context.raise_error()
            self.verify_now_and_then(positions[-1].reshape(-1, positions.shape[-1])[-1], own)
            if search and (step_size := self.told(info, "step_size")) is not None:
                if not np.isnan(step_size[0]).all():  # there is one
                    check_found(float(np.min(step_size[0])))
            search = False
            if recording is not None:
                recording.add(positions, info)
            if learner is not None:
                learner.add(positions, grads)
            self._show(positions)
            self.report(positions, info)
            self.done += count
            fitting = int(CALL_SECONDS / max(seconds / count, 1e-9))
            if self.journal is not None:
                fitting = min(fitting, self._write_down(positions, info, seconds))
            self._count = max(1, min(fitting, GROWTH * self._count))
            written = self.journal is not None and bool(self.journal.based and self.journal.kept)
            if self._pace is not None and self._pace.due(
                self.iteration - self._snapped, beside=written
            ):
                self._take_snapshot()

    def _write_down(self, positions: np.ndarray, info: object, seconds: float) -> int:
        """Have the journal know of a call; returns how many transitions the next may have."""
        assert self.journal is not None
        if self.journal.add(not self.warming_up, positions, info, seconds, self.iteration):
            self.journal.write(self._stand())
        return self.journal.fitting()

    def _goes_on(self, control: Control) -> bool:
        """Whether to make another call; waits while the run is paused."""
        if not control.paused:
            return control.go_on()
        # Nothing of what is done by now is lost, should a paused run be killed.
        self._take_snapshot()
        began = time.perf_counter()
        going = control.go_on()
        self.waited(time.perf_counter() - began)
        return going

    def waited(self, seconds: float) -> None:
        """Do not count so many seconds."""
        if self._began is not None:
            self._began += seconds

    def verify_now_and_then(self, position: np.ndarray, seconds: float) -> None:
        """Compare the density with Python's, after a call that took so many seconds of a processor.

        By the clock, what waits for others would count as native time.
        """
        self._calls += 1
        density, costs = self.context.density, self.context.density.costs
        costs.native += seconds
        if not self.verifying:
            return
        # Where a warm-up has ended, in the midst of the posterior: the first whatever it takes.
        warm = not self.warming_up and self.draws.empty
        quick = costs.eager <= QUICK and costs.allow_another(share=WARM_SHARE)
        warm = warm and (not costs.compared or quick)
        if warm or (self._calls >= self._due and costs.allow_another()):
            self._due = 4 * self._calls
            began = time.thread_time()
            point = self.runner.chain.kernel.evaluated_at(np.array(position))
            density.verify(point, self.context)
            costs.compared += time.thread_time() - began

    def _show(self, positions: np.ndarray) -> None:
        """Call the hook for each of some transitions."""
        if self.hook is None:
            return
        stage = "Warmup" if self.warming_up else "Sample"
        for i, position in enumerate(positions):
            for member in position.reshape(-1, position.shape[-1]):
                self.hook(member, stage, self.iteration + i)
