"""Chains of many data sets in step: one native call moves all of them on, each with its own data.

What a data set costs, beside its transitions, is Python between the segments of a warm-up. Here a
block of chains goes through its segments together: their states are the rows of arrays, the program
is that of `chunk.py`, run for one row after the other (`compiler/machine/lanes.py`), and mass
matrices are learnt for all at once (windows.py). A chain is what `ChainRun` would make of it.
Whatever is out of the ordinary (no start, a warm-up that is to be longer, an error) is not dealt
with here: such data sets are left to be fitted alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np

from probtorch.compiler.data_density import DataDensity
from probtorch.compiler.machine.lanes import ProgramLanes
from probtorch.compiler.native.threads import occupied
from probtorch.compiler.verify import ReplayError
from probtorch.config import settings
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, unflatten
from probtorch.distributions.validation import validation_enabled, validation_in_force
from probtorch.infer.control import Control, control_here, ended_amid_fit
from probtorch.infer.forgotten import NEAR, NEAR_POINTS
from probtorch.infer.many.windows import DenseWindows
from probtorch.infer.mcmc.chunk import Chain, ChunkPlan, Task, program_for
from probtorch.infer.mcmc.kernel import Kernel, statistics
from probtorch.infer.mcmc.kernels.hmc import HMCState
from probtorch.infer.mcmc.kernels.stepping import SteppingKernel
from probtorch.infer.mcmc.randomness import key_of
from probtorch.infer.mcmc.starts import new_chains
from probtorch.infer.mcmc.warm_up.adaptation import LARGEST_STEP_SIZE, SMALLEST_STEP_SIZE, Segment
from probtorch.infer.mcmc.warm_up.forms import Dense
from probtorch.infer.mcmc.warm_up.guard import WarmupGuard
from probtorch.infer.starts.initialization import init_to_uniform, search, uniform_point

if TYPE_CHECKING:
    from probtorch.compiler.data_density import DataLanes
    from probtorch.infer.many.data_sets import ModelCall
    from probtorch.infer.many.many_target import ManyTarget
    from probtorch.infer.mcmc.chain import ChainRun

__all__ = ["InStep", "draw_in_step", "goes_in_step"]

# Transitions of one call: memory for the draws of a block stays in the cache.
CAPACITY = 64


@dataclass(frozen=True)
class InStep:
    """What chains in step have drawn.

    Attributes
    ----------
    done : ndarray of int
        Which data sets of the block: those that went through.
    positions : ndarray, shape (done, chains, draws, dim)
    divergences : ndarray, shape (done,)
        After the warm-up.
    accept : ndarray, shape (done,)
        Mean acceptance.
    """

    done: np.ndarray
    positions: np.ndarray
    divergences: np.ndarray
    accept: np.ndarray


def goes_in_step(kernel: Kernel, target: ManyTarget, num_warmup: int) -> bool:
    """Whether chains of a kernel can go in step.

    NUTS, HMC and their kin can, with a dense metric that is learnt, from random starts: what is
    the default of `fit_many` for up to 30 coordinates.
    """
    strategy = kernel.init_strategy
    while isinstance(strategy, functools.partial):
        strategy = strategy.func
    return (
        settings.jit
        and num_warmup > 0
        and isinstance(kernel, SteppingKernel)
        and kernel.takes_any_density()
        and strategy is init_to_uniform
        and kernel.adapt_mass_matrix
        and kernel.inverse_mass_matrix is None
        and type(kernel.form_for(target)) is Dense
        and isinstance(target.density, DataDensity)
    )


def draw_in_step(
    kernel: Kernel,
    target: ManyTarget,
    calls: Sequence[ModelCall],
    streams: Sequence[Generator],
    numbers: Sequence[int],
    *,
    num_warmup: int,
    num_samples: int,
    num_chains: int,
    thinning: int,
    threads: int,
) -> InStep:
    """Draw from the posteriors of many data sets.

    Parameters
    ----------
    kernel, target
        For which `goes_in_step` holds.
    calls, streams, numbers
        Of the data sets.
    threads : int
        Threads to share them out over; what is drawn does not depend on it.
    """
    shares = [np.arange(len(calls))[i::threads] for i in range(min(threads, len(calls)))]

    checked, control = validation_in_force(), control_here()

    def work(share: np.ndarray) -> InStep:
        among: AbstractContextManager[None] = occupied() if threads > 1 else nullcontext()
        with among, validation_enabled(checked), np.errstate(all="ignore"):
            lanes = _ChainLanes(kernel, target, num_chains, num_warmup, control)
            return lanes.run(
                share,
                [calls[i] for i in share],
                [streams[i] for i in share],
                [numbers[i] for i in share],
                num_samples,
                thinning,
            )

    if len(shares) == 1:
        found = [work(shares[0])]
    else:
        with ThreadPoolExecutor(len(shares)) as pool:
            found = list(pool.map(work, shares))
    done = np.concatenate([x.done for x in found])
    order = np.argsort(done)
    return InStep(
        done[order],
        *(
            np.concatenate([getattr(x, name) for x in found])[order]
            for name in ("positions", "divergences", "accept")
        ),
    )


class _ChainLanes:
    """The chains of some data sets, those of one beside each other."""

    def __init__(
        self,
        kernel: Kernel,
        target: ManyTarget,
        num_chains: int,
        num_warmup: int,
        control: Control | None,
    ) -> None:
        assert isinstance(kernel, SteppingKernel)
        self.kernel, self.target, self.chains = kernel, target, num_chains
        self.num_warmup, self.warmup, self.control = num_warmup, kernel.warmup, control
        self._fields = {s.name or s.field: s.field for s in statistics(kernel.info)}

    def run(
        self,
        share: np.ndarray,
        calls: Sequence[ModelCall],
        streams: Sequence[Generator],
        numbers: Sequence[int],
        num_samples: int,
        thinning: int,
    ) -> InStep:
        """Fit all data sets of a share."""
        self.sets, dim = len(calls), self.target.dim
        # Data sets that nothing is wrong with.
        self.well = np.ones(self.sets, bool)
        self._starts(calls, streams)
        if self.well.any():
            self._stack(calls, streams)
            self._warm_up()
        if self.well.any():
            self._look()
            self._verify(numbers)
        done = np.flatnonzero(self.well)
        rows = num_samples // thinning
        drawn = np.empty((len(self.q), rows, dim))
        diverging, accept = np.zeros(len(self.q)), np.zeros(len(self.q))
        if done.size:
            drawn, diverging, accept = self._sample(num_samples, thinning)
            done = np.flatnonzero(self.well)
        shape = (self.sets, self.chains)
        return InStep(
            share[done],
            drawn.reshape(*shape, rows, dim)[done],
            diverging.reshape(shape).sum(axis=1)[done],
            accept.reshape(shape).mean(axis=1)[done],
        )

    def _lose(self, lanes: np.ndarray) -> None:
        """Leave the data sets of some chains, a bool array, to others."""
        self.well &= ~lanes.reshape(self.sets, self.chains).any(axis=1)

    @property
    def _going(self) -> np.ndarray:
        return np.flatnonzero(np.repeat(self.well, self.chains))

    # --------------------------------------------------------------------------------------- starts

    def _starts(self, calls: Sequence[ModelCall], streams: Sequence[Generator]) -> None:
        """Find a point for each chain, with a key of its own, as `new_chains` does."""
        density, group, dim = self.target.density, self.target.group, self.target.dim
        data = np.zeros((self.sets, group.size))
        for i, call in enumerate(calls):
            try:
                data[i] = group.packed(call)
            except Exception:
                self.well[i] = False
        self.data = density.lanes(np.repeat(data, self.chains, axis=0))
        lanes = self.sets * self.chains
        self.q, self.grads = np.zeros((2, lanes, dim))
        self.values = np.zeros(lanes)
        self.keys = np.zeros((2, lanes), np.int64)
        for i, stream in enumerate(streams):
            state = stream.get_state()
            starts, *own = stream.spawn(1 + self.chains)
            stream.set_state(state)  # who fits it alone begins at the beginning
            if not self.well[i]:
                continue
            for k, child in enumerate(starts.spawn(self.chains)):
                at = i * self.chains + k
                place = _Place(self.target, self.data, at)
                try:
                    found = search(place, child, self.kernel.init_strategy)  # type: ignore[arg-type]  # of a target it uses what a place has
                except Exception:
                    self.well[i] = False
                    break
                self.q[at], self.values[at], self.grads[at], _ = found
                key = key_of(own[k])
                self.keys[:, at] = key.seed.array, key.stream.array
        self._refuse_flat()

    def _refuse_flat(self) -> None:
        """Leave densities that may be no distribution to `refuse_flat`, which says so."""
        generator = Generator(0)
        moves = [uniform_point(generator, (self.target.dim,), NEAR) for _ in range(NEAR_POINTS)]
        flat = np.zeros(len(self.q), bool)
        for lane in self._going[:: self.chains]:
            grads = [self.data.value_and_grad(lane, self.q[lane] + move)[1] for move in moves]
            flat[lane] = (np.stack(grads) == self.grads[lane]).all(axis=0).any()
        self._lose(flat)

    def _stack(self, calls: Sequence[ModelCall], streams: Sequence[Generator]) -> None:
        """Make the arguments of the program: those of one chain, and what differs between them."""
        one = int(np.flatnonzero(self.well)[0])
        state = streams[one].get_state()
        (chain, self._context), *_ = new_chains(
            self.kernel, self.target.at(calls[one]), None, 1, streams[one]
        )
        streams[one].set_state(state)
        plan = ChunkPlan(*map(wrap, (np.array(0), np.array(False), np.array(False))))
        items, self._structure = flatten(chain)
        self._leaves = len(items)
        task = Task(chain, plan)
        lanes = len(self.q)
        inputs = [np.repeat(x.array[None], lanes, axis=0) for x in flatten(task)[0]]
        self.program = ProgramLanes(program_for(task, CAPACITY), inputs)
        self.at = unflatten(self._structure, range(self._leaves))
        where = self.at
        assert type(chain.state) is HMCState
        for place, value in (
            (where.state.position, self.q),
            (where.state.logdensity, self.values),
            (where.state.grad, self.grads),
            (where.key.seed, self.keys[0]),
            (where.key.stream, self.keys[1]),
            (where.kernel.density.context, self.data.contexts),
            (where.kernel.metric.factor, DenseWindows.first(self.grads)),
        ):
            inputs[place][...] = value
        # What the program changes: not the kernel, but for what is tuned.
        tuned = () if chain.tuner is None else chain.tuner.fields
        kept = {getattr(where.kernel, name) for name in tuned}
        of_kernel = len(flatten(chain.kernel)[0])
        self._changing = [*kept, *range(of_kernel, self._leaves)]
        self.lp = np.zeros((lanes, self.num_warmup))

    # ---------------------------------------------------------------------------------- transitions

    def _call(
        self, length: int, *, search: bool = False, adapt: bool = False
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Run so many transitions of all chains that are well.

        Returns
        -------
        positions, grads : ndarray, each (lanes, length, dim)
        info : dict of str to ndarray, each (lanes, length)
            By the names of results, or by field where they have none.
        """
        inputs, outputs = self.program.inputs, self.program.outputs
        parts: list[list[np.ndarray]] = []
        done = 0
        while done < length:
            if self.control is not None and not self.control.go_on():
                raise ended_amid_fit()
            count = min(length - done, CAPACITY)
            for place, value in zip(inputs[self._leaves :], (count, search, adapt)):
                place[...] = value
            going = self._going
            bad = self.program.run(going) != 0
            try:
                self.data.raise_error()
            except Exception:
                bad[:] = True  # whose it was is not known
            for i in self._changing:
                inputs[i][going] = outputs[i][going]
            parts.append([x[:, :count].copy() for x in outputs[self._leaves :]])
            lost = np.zeros(len(self.q), bool)
            lost[going[bad]] = True
            if search:
                first = parts[-1][2 + list(self._fields).index("step_size")][:, 0]
                lost[going] |= ~((first > SMALLEST_STEP_SIZE) & (first < LARGEST_STEP_SIZE))[going]
            self._lose(lost)
            search, done = False, done + count
            if not self.well.any():
                break
        whole = [np.concatenate(x, axis=1) for x in zip(*parts)]
        return whole[0], whole[1], dict(zip(self._fields, whole[2:]))

    def _stacked(self) -> Chain:
        """The chains as one, whose leaves are stacked."""
        return unflatten(self._structure, [wrap(x) for x in self.program.inputs[: self._leaves]])

    def _put(self, part: str, new: object) -> None:
        """Write what a stacked part, a tree, has become."""
        places = flatten(getattr(self.at, part))[0]
        for place, leaf in zip(places, flatten(new)[0]):
            self.program.inputs[place][...] = leaf.array

    def _warm_up(self) -> None:
        """Go through the segments of the warm-up; see `ChainRun`."""
        segments = self.warmup.segments(self.num_warmup)
        self.windows = DenseWindows(self.q, self.num_warmup)
        done = 0
        for number, segment in enumerate(segments):
            self._run_segment(segment, done)
            if not self.well.any():
                return
            done += segment.length
            rest = segments[number + 1 :]
            if rest and segment.learn and not rest[0].learn:
                tuner = self._stacked().tuner
                if tuner is not None:
                    self._put("tuner", tuner.refocused())

    def _run_segment(self, segment: Segment, done: int) -> None:
        inputs, where = self.program.inputs, self.at
        for name, value in segment.values.items():
            inputs[getattr(where.kernel, name)][...] = value
        positions, grads, info = self._call(
            segment.length, search=segment.search, adapt=self.warmup.follows
        )
        if not self.well.any():
            return
        self.lp[:, done : done + segment.length] = info["lp"]
        tuner = self.warmup.tuner
        assert tuner is not None
        self.followed = info[tuner.follows].mean(axis=1)
        self.effort = info["n_steps"].mean(axis=1)
        if segment.learn:
            self.windows.end_segment(positions, grads, switch=segment.switch)
            if segment.update:
                factor = inputs[where.kernel.metric.factor]
                factor[...] = self.windows.learnt(factor)

    def _look(self) -> None:
        """Leave those to others whose warm-up is to go on, and settle what was tuned."""
        stacked = self._stacked()
        tuner = stacked.tuner
        assert tuner is not None
        settled = tuner.settled() if self.warmup.follows else {}
        shifts = self.windows.shift()
        factor = stacked.kernel.metric.factor.array  # type: ignore[attr-defined]  # a metric kernel
        logs = np.log(np.diagonal(factor, axis1=1, axis2=2))
        determinants = 2.0 * logs.sum(axis=1)
        steps = (settled or {tuner.tunes: stacked.kernel.step_size})[tuner.tunes].array  # type: ignore[attr-defined]
        for i in np.flatnonzero(self.well):
            lanes = range(i * self.chains, (i + 1) * self.chains)
            views = [
                _WarmChain(
                    self,
                    self.lp[lane],
                    float(steps[lane]),
                    float(self.followed[lane]),
                    float(self.effort[lane]),
                    float(shifts[lane]),
                    float(determinants[lane]),
                )
                for lane in lanes
            ]
            runs = cast("list[ChainRun]", views)
            if WarmupGuard(runs).look(runs):
                self.well[i] = False
        for name, value in settled.items():
            self.program.inputs[getattr(self.at.kernel, name)][...] = value.array

    def _verify(self, numbers: Sequence[int]) -> None:
        """Compare compiled code with Python's answer now and then, less and less often."""
        if not settings.verify:
            return
        positions = self.program.inputs[self.at.state.position]
        for i in np.flatnonzero(self.well).tolist():
            if numbers[i] & (numbers[i] - 1) == 0:
                lane = i * self.chains
                try:
                    self.data.verify(lane, positions[lane])
                except ReplayError:
                    self.well[i] = False

    def _sample(self, num_samples: int, thinning: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw: positions (lanes, rows, dim), divergences and mean acceptance (lanes,)."""
        rows = num_samples // thinning
        positions, _, info = self._call(num_samples)
        combined = {s.name: s.combine for s in statistics(self.kernel.info)}

        def of_rows(name: str) -> np.ndarray:
            if name not in info:
                return np.full((len(self.q), rows), 0.0 if name == "diverging" else np.nan)
            values = info[name][:, : rows * thinning].reshape(-1, rows, thinning)
            how = combined[name]
            return values[..., -1] if how is None else how.reduce(values, axis=2)

        kept = positions[:, thinning - 1 : rows * thinning : thinning]
        return kept, of_rows("diverging").sum(axis=1), of_rows("acceptance_rate").mean(axis=1)


class _Place:
    """A target as the search for a start knows it: of one data set."""

    def __init__(self, target: ManyTarget, data: DataLanes, lane: int) -> None:
        self.dim, self.slots, self.name = target.dim, target.slots, target.name
        self.value_and_grad: Callable[..., tuple[float, np.ndarray]] = functools.partial(
            data.value_and_grad, lane
        )


class _WarmChain:
    """A chain as the guard knows a `ChainRun`; one that is to go on is only noted."""

    warming_up = True

    def __init__(
        self,
        lanes: _ChainLanes,
        course: np.ndarray,
        step_size: float,
        acceptance: float,
        effort: float,
        shift: float,
        determinant: float,
    ) -> None:
        self.warmup, self.num_warmup = lanes.warmup, lanes.num_warmup
        self.course, self.extensions = [course], list[int]()
        self.step_size, self.acceptance, self.effort = step_size, acceptance, effort
        self.learner = SimpleNamespace(shift=lambda: None if np.isnan(shift) else shift)
        metric = SimpleNamespace(log_determinant=lambda: determinant)
        self.runner = SimpleNamespace(chain=None, row=None, settled=dict, held=lambda _: metric)

    def extend(self, length: int, moved_to: object = None) -> None:
        """Nothing: who is told to go on is fitted alone."""
