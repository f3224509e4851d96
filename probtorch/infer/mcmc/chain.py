"""One chain from its first to its last draw: segments of warm-up, windows closed, draws kept.

`ChainRun` runs in a thread of its own. Between two calls of the native program it looks whether it
should stop, stores what was drawn and lets others see how far it is; within a call it holds no
interpreter lock.
"""

import time

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tree import replace
from probtorch.errors import InferenceError
from probtorch.infer.mcmc.adaptation import (
    LARGEST_STEP_SIZE,
    SMALLEST_STEP_SIZE,
    inverse_mass_of,
    moments_start,
)
from probtorch.infer.mcmc.saved import chain_leaves
from probtorch.infer.mcmc.standstill import Standstill

__all__ = ["ChainRun", "Recording"]

# A call of the native program is sized to take this long (seconds): short enough for Ctrl-C and the
# progress display, long enough that what happens between calls costs nothing.
CALL_SECONDS = 0.05
# The first calls feel their way: how much more than the last one a call may do.
GROWTH = 8

# Statistics under ArviZ's names, from the fields of HMCInfo, with how several iterations become one
# when draws are thinned.
STATISTICS = {
    "acceptance_rate": ("accept_prob", np.float64, None),
    "diverging": ("diverging", np.bool_, np.logical_or),
    "energy": ("energy", np.float64, None),
    "energy_error": ("energy_error", np.float64, None),
    "lp": ("lp", np.float64, None),
    "n_steps": ("n_steps", np.int64, np.add),
    "reached_max_treedepth": ("reached_max_treedepth", np.bool_, np.logical_or),
    "step_size": ("step_size", np.float64, None),
    "tree_depth": ("tree_depth", np.int64, np.maximum),
}


class Recording:
    """Draws of one chain and their statistics.

    Parameters
    ----------
    iterations : int
        How many transitions there will be.
    dim : int
    thinning : int
        Each row stands for this many transitions and holds the last of them; divergences and steps
        are those of all.
    """

    def __init__(self, iterations, dim, thinning=1):
        self.thinning = thinning
        self.positions = np.empty((iterations // thinning, dim))
        self.stats = {
            name: np.zeros(iterations // thinning, dtype)
            for name, (_, dtype, _) in STATISTICS.items()
        }
        self._seen = 0

    def add(self, positions, info):
        """Store the next transitions."""
        count = len(positions)
        rows = (self._seen + np.arange(count)) // self.thinning
        fits = rows < len(self.positions)
        rows = rows[fits]
        self._seen += count
        # Of repeated indices the last one stays.
        self.positions[rows] = positions[fits]
        for name, (field, _, combine) in STATISTICS.items():
            values = getattr(info, field)[fits]
            if combine is None:
                self.stats[name][rows] = values
            else:
                combine.at(self.stats[name], rows, values)

    @property
    def complete(self):
        """Number of rows whose transitions are all there."""
        return min(self._seen // self.thinning, len(self.positions))

    def snapshot(self):
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

    def restore(self, saved):
        """Take over what `snapshot` returned."""
        self._seen = saved["seen"]
        row = self.complete
        for name, x in {"position": self.positions, **self.stats}.items():
            x[:row] = saved["rows"][name]
            if saved["begun"]:
                x[row] = saved["begun"][name][0]


class ChainRun:
    """One chain of a run.

    Parameters
    ----------
    runner : ChunkRunner
    context : Context
        Of the density, kept alive, and asked for errors that happened inside native code.
    segments : list of Segment
        The warm-up; empty to go on with what is adapted already.
    num_samples, thinning : int
    kernel : GradientKernel
        The user's settings.
    keep_warmup : bool
    hook : callable, optional
        ``hook(position, stage, iteration)`` after each transition.
    snapshot_every : float, optional
        Seconds between snapshots; none are taken if None.
    verifying : bool
        Whether it is this chain that compares the density with Python's now and then.

    Attributes
    ----------
    iteration, divergences, leapfrogs : int
        So far; divergences after warm-up only.
    step_size : float
    warming_up : bool
    seconds : float
        Time spent, up to now or to the end.
    error : BaseException or None
    draws, warmup : Recording
    adapted : Chain or None
        The chain as warm-up left it.
    snapshot : dict or None
        All that the rest of the run depends on, as it was not long ago; see `restore`.
    """

    def __init__(
        self,
        runner,
        context,
        segments,
        num_samples,
        thinning,
        kernel,
        *,
        keep_warmup=False,
        hook=None,
        snapshot_every=None,
        verifying=False,
    ):
        self.runner, self.context, self.segments, self.kernel, self.hook = (
            runner,
            context,
            segments,
            kernel,
            hook,
        )
        self.num_warmup, self.num_samples = sum(s.length for s in segments), num_samples
        dim = runner.chain.state.position._data.shape[0]
        self.dense = runner.chain.moments.squares._data.ndim == 2
        self.draws = Recording(num_samples, dim, thinning)
        self.warmup = Recording(self.num_warmup, dim) if keep_warmup else None
        self.iteration = self.divergences = self.leapfrogs = 0
        self.verifying, self._calls = verifying, 0
        self.standstill = Standstill()
        self.step_size = float(runner.chain.kernel.step_size._data)
        self.warming_up = bool(segments)
        self.error = self.adapted = None
        self._count, self._began, self._ended = 1, None, None
        # Where the run stands: segments that are behind it, and transitions of the present one.
        self._segment = self._done = 0
        self._snapshot_every, self._next_snapshot = snapshot_every, 0.0
        self.snapshot = None
        self._take_snapshot()

    @property
    def seconds(self):
        """Seconds since the chain began, until it ended."""
        return 0.0 if self._began is None else (self._ended or time.perf_counter()) - self._began

    @property
    def finished(self):
        """Whether the chain has ended, well or badly."""
        return self._ended is not None

    def run(self, stop):
        """Run to the end, or until `stop`, an Event, is set; an exception is kept in `error`."""
        self._began = time.perf_counter()
        try:
            for segment in self.segments[self._segment :]:
                self._warm_up(segment, stop)
            if self._segment == len(self.segments):
                if self.segments:
                    self._end_warmup()
                self.warming_up = False
                self.adapted = self.runner.chain
                self._advance(self.num_samples, self.draws, stop)
            self._take_snapshot()
        except BaseException as error:
            self.error = error
        self._ended = time.perf_counter()

    # ----------------------------------------------------------------------------------- snapshots

    def restore(self, saved):
        """Go on from a `snapshot` of another process; the chain itself is that of the runner."""
        self._segment, self._done = saved["segment"], saved["done"]
        self.iteration, self.divergences = saved["iteration"], saved["divergences"]
        self.leapfrogs = saved["leapfrogs"]
        self.warming_up = self._segment < len(self.segments)
        self.draws.restore(saved["draws"])
        if self.warmup is not None:
            self.warmup.restore(saved["warmup"])
        self._take_snapshot()

    def _take_snapshot(self):
        if self._snapshot_every is None:
            return
        self._next_snapshot = time.perf_counter() + self._snapshot_every
        self.snapshot = {
            "leaves": [x.copy() for x in chain_leaves(self.runner.chain)],
            "segment": self._segment,
            "done": self._done,
            "iteration": self.iteration,
            "divergences": self.divergences,
            "leapfrogs": self.leapfrogs,
            "draws": self.draws.snapshot(),
            "warmup": None if self.warmup is None else self.warmup.snapshot(),
        }

    # ------------------------------------------------------------------------------------ stretches

    def _warm_up(self, segment, stop):
        self._advance(
            segment.length,
            self.warmup,
            stop,
            search=segment.search,
            adapt=self.kernel.adapt_step_size,
            collect=segment.collect,
        )
        if self._done < segment.length:
            return
        if segment.close:
            self._close_window()
        self._segment, self._done = self._segment + 1, 0

    def _close_window(self):
        chain = self.runner.chain
        dim = chain.state.position._data.shape[0]
        metric = type(chain.kernel.metric).from_inverse_mass(
            inverse_mass_of(chain.moments, regularize=self.kernel.regularize)
        )
        self.runner.chain = replace(
            chain,
            kernel=replace(chain.kernel, metric=metric),
            moments=moments_start(dim, self.dense),
        )

    def _end_warmup(self):
        chain = self.runner.chain
        if self.kernel.adapt_step_size:
            step_size = wrap(np.exp(chain.averaging.log_step_mean._data))
            self.runner.chain = replace(chain, kernel=replace(chain.kernel, step_size=step_size))

    def _advance(self, length, recording, stop, *, search=False, adapt=False, collect=False):
        """Run `length` transitions, less those done before, in calls of a good size."""
        search = search and not self._done
        while self._done < length and not stop.is_set():
            count = min(length - self._done, self._count, self.runner.capacity)
            start = time.perf_counter()
            positions, info = self.runner.run(count, search=search, adapt=adapt, collect=collect)
            seconds = time.perf_counter() - start
            self.context.raise_error()
            self._calls += 1
            if self.verifying and _is_power_of_four(self._calls):
                self.context.density.verify(np.array(positions[-1]), self.context)
            if search:
                self._check_step_size(float(info.step_size[0]))
            search = False
            if recording is not None:
                recording.add(positions, info)
            self._report(positions, info)
            self._done += count
            fitting = int(CALL_SECONDS / max(seconds / count, 1e-9))
            self._count = max(1, min(fitting, GROWTH * self._count))
            if self._snapshot_every is not None and time.perf_counter() >= self._next_snapshot:
                self._take_snapshot()

    def _report(self, positions, info):
        if self.hook is not None:
            stage = "Warmup" if self.warming_up else "Sample"
            for i, position in enumerate(positions):
                self.hook(position, stage, self.iteration + i)
        self.standstill.update(positions, info)
        self.iteration += len(positions)
        self.leapfrogs += int(info.n_steps.sum())
        self.step_size = float(info.step_size[-1])
        if not self.warming_up:
            self.divergences += int(info.diverging.sum())

    def _check_step_size(self, step_size):
        if SMALLEST_STEP_SIZE < step_size < LARGEST_STEP_SIZE:
            return
        got, fix = (
            ("rejection down to 1e-30", "look for a jump in the log density, or a wrong gradient")
            if step_size <= SMALLEST_STEP_SIZE
            else ("acceptance up to 1e7", "the posterior is flat: give parameters proper priors")
        )
        raise InferenceError(
            "no step size for the sampler",
            expected="a leapfrog step that is accepted with probability near 0.8",
            got=got,
            fix=fix,
        )


def _is_power_of_four(n):
    return n & (n - 1) == 0 and n.bit_length() % 2 == 1
