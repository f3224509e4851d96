"""One chain from its first to its last draw: segments of warm-up, what is learnt set, draws kept.

`ChainRun` runs in a thread of its own, first `warm_up`, then, when all chains are there, `sample`.
Between two calls of the native program it looks whether it should stop, stores what was drawn and
lets others see how far it is; within a call it holds no interpreter lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tree import replace
from probtorch.core.typed import Tree
from probtorch.infer.mcmc.adaptation import Learner, Segment, check_found, mean_restarted
from probtorch.infer.mcmc.kernel import Kernel, statistics
from probtorch.infer.mcmc.saved import chain_leaves
from probtorch.infer.mcmc.standstill import Standstill

if TYPE_CHECKING:
    from probtorch.compiler.density import DensityContext
    from probtorch.infer.mcmc.chunk import Chain, ChunkRunner
    from probtorch.infer.potential import Target

__all__ = ["ChainRun", "ChainSnapshot", "DrawRecord"]

# A call of the native program is sized to take this long (seconds): short enough for Ctrl-C and the
# progress display, long enough that what happens between calls costs nothing.
CALL_SECONDS = 0.05
# The first calls feel their way: how much more than the last one a call may do.
GROWTH = 8

# Share of the native time that comparing a density with Python's may take, but for the first
# comparison where a warm-up has ended, in the midst of the posterior.
VERIFYING_SHARE = 0.1


class DrawRecord:
    """Draws of one chain and their statistics.

    Parameters
    ----------
    iterations : int
        How many transitions there will be.
    shape : tuple of int
        Of a position: (dim,) or (members, dim).
    info : type
        The kernel's class of infos.
    thinning : int
        Each row stands for this many transitions and holds the last of them; statistics that are
        declared with ``combine`` are those of all.
    """

    def __init__(
        self, iterations: int, shape: tuple[int, ...], info: type, thinning: int = 1
    ) -> None:
        self.thinning, rows = thinning, iterations // thinning
        self.positions = np.empty((rows, *shape))
        self._declared = {s.name: s for s in statistics(info) if s.name is not None}
        self.stats = {
            name: np.zeros((rows, *shape[:-1]), s.dtype) for name, s in self._declared.items()
        }
        self._seen = 0

    def add(self, positions: np.ndarray, info: object) -> None:
        """Store the next transitions."""
        count = len(positions)
        rows = (self._seen + np.arange(count)) // self.thinning
        fits = rows < len(self.positions)
        rows = rows[fits]
        self._seen += count
        # Of repeated indices the last one stays.
        self.positions[rows] = positions[fits]
        for name, s in self._declared.items():
            values = getattr(info, s.field)[fits]
            if s.combine is None:
                self.stats[name][rows] = values
            else:
                s.combine.at(self.stats[name], rows, values)

    @property
    def empty(self) -> bool:
        """Whether nothing was stored yet."""
        return not self._seen

    @property
    def complete(self) -> int:
        """Number of rows whose transitions are all there."""
        return min(self._seen // self.thinning, len(self.positions))

    def snapshot(self) -> Tree:
        """Return what is there, as a tree for `probtorch.save`.

        Complete rows are views: they change no more. The row that is being filled is a copy.
        """
        row = self.complete
        parts = {"position": self.positions, **self.stats}
        begun = row < len(self.positions) and self._seen % self.thinning
        return {
            "seen": self._seen,
            "rows": {name: x[:row] for name, x in parts.items()},
            "begun": {name: x[row : row + 1].copy() for name, x in parts.items()} if begun else {},
        }

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""
        self._seen = saved["seen"]
        row = self.complete
        for name, x in {"position": self.positions, **self.stats}.items():
            x[:row] = saved["rows"][name]
            if saved["begun"]:
                x[row] = saved["begun"][name][0]


class ChainSnapshot(TypedDict):
    """A chain between two stretches, as it is saved: what `ChainRun` has under these names."""

    leaves: list[np.ndarray]
    segment: int
    done: int
    iteration: int
    divergences: int
    evaluations: int
    warmup_evaluations: int
    warming_up: bool
    extensions: list[int]
    moved: bool
    course: np.ndarray
    accepted: np.ndarray
    learner: Tree
    draws: Tree
    warmup: Tree


class ChainRun:
    """One chain of a run.

    Parameters
    ----------
    runner : ChunkRunner
    context : Context
        Of the density, kept alive, and asked for errors that happened inside native code.
    num_warmup : int
        Iterations of warm-up; 0 to go on with what is adapted already.
    target : Target
    num_samples, thinning : int
    kernel : Kernel
        As the user made it.
    keep_warmup : bool
    hook : callable, optional
        ``hook(position, stage, iteration)`` after each transition.
    snapshot_every : float, optional
        Seconds between snapshots; none are taken if None.
    verifying : bool
        Whether it is this chain that compares the density with Python's now and then.

    Attributes
    ----------
    iteration, divergences, evaluations, warmup_evaluations : int
        So far, where the kernel tells; divergences after warm-up only.
    warmup : Warmup
    learner : Learner or None
    extensions : list of int
        Iterations by which the warm-up was made longer; see `extend`.
    moved : bool
        Whether it was sent to where another chain stood.
    course : list of array
        Log densities during warm-up, in parts.
    acceptance : float
        Mean of what the tuner follows in the last segment of the warm-up.
    effort : float
        Mean number of evaluations of a transition there.
    step_size : float
        Nan if the kernel tells of none.
    warming_up : bool
    seconds : float
        Time spent, up to now or to the end.
    error : BaseException or None
    draws, warmup_draws : Recording
    adapted : Chain or None
        The chain as warm-up left it.
    snapshot : ChainSnapshot or None
        All that the rest of the run depends on, as it was not long ago; see `restore`.
    """

    def __init__(
        self,
        runner: ChunkRunner,
        context: DensityContext,
        num_warmup: int,
        target: Target,
        num_samples: int,
        thinning: int,
        kernel: Kernel,
        *,
        keep_warmup: bool = False,
        hook: Callable[[np.ndarray, str, int], object] | None = None,
        snapshot_every: float | None = None,
        verifying: bool = False,
    ) -> None:
        self.runner, self.context, self.kernel, self.hook = runner, context, kernel, hook
        self.warmup = kernel.warmup
        self.segments = self.warmup.segments(num_warmup)
        self.num_warmup, self.num_samples = num_warmup, num_samples
        chain = runner.chain
        position = chain.state.position.array
        self.learner = None
        if self.warmup.learner is not None and num_warmup:
            self.learner = self.warmup.learner(target, position)
        self.draws = DrawRecord(num_samples, position.shape, kernel.info, thinning)
        self.warmup_draws = (
            DrawRecord(num_warmup, position.shape, kernel.info) if keep_warmup else None
        )
        self._fields = {s.name: s.field for s in statistics(kernel.info)}
        self.iteration = self.divergences = self.evaluations = self.warmup_evaluations = 0
        self.extensions: list[int] = []
        self.moved = False
        self.course: list[np.ndarray] = []
        self._accepted = np.zeros(3)
        self.verifying, self._calls = verifying, 0
        self.standstill = Standstill()
        self.step_size = np.nan
        if (name := "step_size") in self._fields:
            self.step_size = float(getattr(chain.kernel, name).array)
        self.warming_up = bool(self.segments)
        self.error: BaseException | None = None
        self.adapted: Chain | None = None
        self._count = 1
        self._began: float | None = None
        self._ended: float | None = None
        # Where the run stands: segments that are behind it, and transitions of the present one.
        self._segment = self._done = 0
        self._snapshot_every, self._next_snapshot = snapshot_every, 0.0
        self.snapshot: ChainSnapshot | None = None
        self._take_snapshot()

    @property
    def seconds(self) -> float:
        """Seconds since the chain began, until it ended."""
        return 0.0 if self._began is None else (self._ended or time.perf_counter()) - self._began

    @property
    def finished(self) -> bool:
        """Whether the chain has ended, well or badly."""
        return self._ended is not None

    @property
    def acceptance(self) -> float:
        """Mean of what the tuner follows since something learnt was set last; nan before."""
        total, _, count = self._accepted
        return total / count if count else np.nan

    @property
    def effort(self) -> float:
        """Mean number of evaluations of a transition since then; nan before."""
        _, total, count = self._accepted
        return total / count if count else np.nan

    def warm_up(self, stop: threading.Event) -> None:
        """Warm up to the end, or until `stop`, an Event, is set; an exception is in `error`."""
        self._in_time(self._warm_up, stop)

    def sample(self, stop: threading.Event) -> None:
        """Draw to the end, or until `stop` is set; an exception is kept in `error`."""
        self._in_time(self._sample, stop)

    def _in_time(self, stage: Callable[[threading.Event], None], stop: threading.Event) -> None:
        self._began, self._ended = time.perf_counter() - self.seconds, None
        try:
            stage(stop)
            self._take_snapshot()
        except BaseException as error:
            self.error = error
        self._ended = time.perf_counter()

    def _warm_up(self, stop: threading.Event) -> None:
        for segment in self.segments[self._segment :]:
            self._run_segment(segment, stop)

    def _sample(self, stop: threading.Event) -> None:
        if self._segment < len(self.segments):
            return
        if self.warming_up and self.segments:
            self._end_warmup()
        self.warming_up = False
        if self.adapted is None:
            self.adapted = self.runner.chain
        self._advance(self.num_samples, self.draws, stop)

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
        self._take_snapshot()

    # ----------------------------------------------------------------------------------- snapshots

    def restore(self, saved: ChainSnapshot) -> None:
        """Go on from a `snapshot` of another process; the chain itself is that of the runner."""
        for length in saved["extensions"]:
            self.extensions.append(length)
            self.segments = [*self.segments, *self.warmup.segments(length, search=False)]
        self._segment, self._done = saved["segment"], saved["done"]
        self.moved = saved["moved"]
        self._accepted = saved["accepted"].copy()
        self.course = [saved["course"]]
        if self.learner is not None and saved["learner"] is not None:
            self.learner.restore(saved["learner"])
        self.iteration, self.divergences = saved["iteration"], saved["divergences"]
        self.evaluations = saved["evaluations"]
        self.warmup_evaluations = saved["warmup_evaluations"]
        self.warming_up = saved["warming_up"]
        self.draws.restore(saved["draws"])
        if self.warmup_draws is not None:
            self.warmup_draws.restore(saved["warmup"])
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        if self._snapshot_every is None:
            return
        self._next_snapshot = time.perf_counter() + self._snapshot_every
        self.snapshot = {
            "leaves": [x.copy() for x in chain_leaves(self.runner.chain)],
            "segment": self._segment,
            "done": self._done,
            "iteration": self.iteration,
            "divergences": self.divergences,
            "evaluations": self.evaluations,
            "warmup_evaluations": self.warmup_evaluations,
            "warming_up": self.warming_up,
            "extensions": list(self.extensions),
            "moved": self.moved,
            "course": np.concatenate([*self.course, np.zeros(0)]),
            "accepted": self._accepted.copy(),
            "learner": self.learner.snapshot() if self.learner and self.warming_up else None,
            "draws": self.draws.snapshot(),
            "warmup": None if self.warmup_draws is None else self.warmup_draws.snapshot(),
        }

    # ------------------------------------------------------------------------------------ stretches

    def _run_segment(self, segment: Segment, stop: threading.Event) -> None:
        learner = self.learner if segment.learn else None
        if not self._done:
            self._accepted = np.zeros(3)
            for name, value in segment.values.items():
                self.runner.set(name, wrap(np.asarray(value)))
        self._advance(
            segment.length,
            self.warmup_draws,
            stop,
            search=segment.search,
            adapt=self.warmup.follows,
            learner=learner,
        )
        if self._done < segment.length:
            return
        if learner is not None:
            learner.end_segment(switch=segment.switch)
            if segment.update:
                now = self.runner.held(learner.learns)
                new = learner.learnt(now, choose=segment.choose, last=segment.last)
                if new is not now:
                    self.runner.set(learner.learns, new)
        self._segment, self._done = self._segment + 1, 0
        rest = self.segments[self._segment :]
        if rest and segment.learn and not rest[0].learn:
            chain = self.runner.chain
            if chain.tuner is not None:
                tuner = replace(chain.tuner, averaging=mean_restarted(chain.tuner.averaging))
                self.runner.chain = replace(chain, tuner=tuner)

    def _end_warmup(self) -> None:
        chain = self.runner.chain
        if self.warmup.follows and chain.tuner is not None:
            settled = {chain.tuner.tunes: chain.tuner.settled()}
            self.runner.chain = replace(chain, kernel=replace(chain.kernel, **settled))

    def _advance(
        self,
        length: int,
        recording: DrawRecord | None,
        stop: threading.Event,
        *,
        search: bool = False,
        adapt: bool = False,
        learner: Learner | None = None,
    ) -> None:
        """Run `length` transitions, less those done before, in calls of a good size."""
        search = search and not self._done
        while self._done < length and not stop.is_set():
            count = min(length - self._done, self._count, self.runner.capacity)
            start = time.perf_counter()
            positions, grads, info = self.runner.run(count, search=search, adapt=adapt)
            seconds = time.perf_counter() - start
            self.context.raise_error()
            self._calls += 1
            self._verify_now_and_then(positions[-1].reshape(-1, positions.shape[-1])[-1], seconds)
            if search and (step_size := self._told(info, "step_size")) is not None:
                check_found(float(step_size[0]))
            search = False
            if recording is not None:
                recording.add(positions, info)
            if learner is not None:
                learner.add(positions, grads)
            self._report(positions, info)
            self._done += count
            fitting = int(CALL_SECONDS / max(seconds / count, 1e-9))
            self._count = max(1, min(fitting, GROWTH * self._count))
            if self._snapshot_every is not None and time.perf_counter() >= self._next_snapshot:
                self._take_snapshot()

    def _verify_now_and_then(self, position: np.ndarray, seconds: float) -> None:
        """Compare the density with Python's, after a call that took so many seconds."""
        density, costs = self.context.density, self.context.density.costs
        costs.native += seconds
        if not self.verifying:
            return
        warm = not self.warming_up and self.draws.empty
        if costs.allow_another(VERIFYING_SHARE):
            due = warm or _is_power_of_four(self._calls)
        else:
            due = warm and not costs.compared
        if due:
            began = time.perf_counter()
            density.verify(np.array(position), self.context)
            costs.compared += time.perf_counter() - began

    def _told(self, info: object, name: str) -> np.ndarray | None:
        """What an info tells under a name of results, None if it does not."""
        return getattr(info, self._fields[name]) if name in self._fields else None

    def _report(self, positions: np.ndarray, info: object) -> None:
        if self.hook is not None:
            stage = "Warmup" if self.warming_up else "Sample"
            for i, position in enumerate(positions):
                for member in position.reshape(-1, position.shape[-1]):
                    self.hook(member, stage, self.iteration + i)
        self.standstill.update(positions, lambda name: self._told(info, name))
        self.iteration += len(positions)
        taken = self._told(info, "n_steps")
        evaluations = 0 if taken is None else int(taken.sum())
        self.evaluations += evaluations
        if (step_size := self._told(info, "step_size")) is not None:
            self.step_size = float(step_size[-1].mean())
        if self.warming_up:
            self.warmup_evaluations += evaluations
            if (lp := self._told(info, "lp")) is not None:
                self.course.append(lp.copy() if lp.ndim == 1 else lp.mean(axis=1))
            followed = 0.0
            if self.warmup.tuner is not None:
                followed = getattr(info, self.warmup.tuner.follows).sum()
            self._accepted += (followed, evaluations, len(positions))
        elif (diverging := self._told(info, "diverging")) is not None:
            self.divergences += int(diverging.sum())


def _is_power_of_four(n: int) -> bool:
    return n & (n - 1) == 0 and n.bit_length() % 2 == 1
