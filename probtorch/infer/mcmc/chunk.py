"""Many transitions as one call: the loop over draws, with adaptation, as a program in tensor ops.

`run_chunk` is pure: a `Task` in, the chain's new state and the `Trace` of its draws out. The driver
compiles it once per kind of kernel, dimension and capacity (`program_for`), and calls it again and
again; how a run is cut into calls changes nothing in its draws. The model is not part of the
program: its density is an address in the task.
"""

import threading
from typing import Any

import numpy as np

from probtorch.compiler.program import NativeProgram
from probtorch.config import settings
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, map_tree, record, replace, unflatten
from probtorch.infer.mcmc.adaptation import (
    DualAveraging,
    dual_averaging_start,
    dual_averaging_update,
    find_step_size,
)
from probtorch.infer.mcmc.hmc import DEEPEST, HMCInfo, HMCState
from probtorch.infer.mcmc.randomness import Key
from probtorch.ops.control import cond, while_loop
from probtorch.ops.elementwise import exp, where
from probtorch.ops.indexing import index_put

__all__ = [
    "Chain",
    "ChunkRunner",
    "Plan",
    "Task",
    "Trace",
    "capacity_for",
    "program_for",
    "run_chunk",
]

# Room for this many numbers of draws in one call: enough that a call costs little, few enough to
# stay in the cache.
_NUMBERS_PER_CHUNK = 2**16
_FEWEST, _MOST = 16, 1024


@record
class Chain:
    """One chain between two calls: everything that its future depends on.

    Parameters
    ----------
    kernel : HMCKernel or NUTSKernel
        With the step size and metric in use.
    state : HMCState
    key : Key
    averaging : DualAveraging
    """

    kernel: Any
    state: HMCState
    key: Key
    averaging: DualAveraging


@record
class Plan:
    """What to do in one call.

    Parameters
    ----------
    count : Tensor, 0-d int64
        Transitions, at most the capacity of the program.
    search : Tensor, 0-d bool
        Whether to look for a step size first and start dual averaging around it.
    adapt : Tensor, 0-d bool
        Whether the step size follows dual averaging.
    depth : Tensor, 0-d int64
        Doublings that a trajectory may take; see the kernels.
    target_accept_prob : Tensor, 0-d float64
    """

    count: TensorBase
    search: TensorBase
    adapt: TensorBase
    depth: TensorBase
    target_accept_prob: TensorBase


@record
class Task:
    """The argument of the program."""

    chain: Chain
    plan: Plan


@record
class Trace:
    """What was drawn.

    Positions and the gradients there have shape (capacity, dim), what is in `HMCInfo` (capacity,).
    """

    positions: TensorBase
    grads: TensorBase
    info: HMCInfo


def capacity_for(dim):
    """Return how many draws of a given dimension one call has room for."""
    return max(_FEWEST, min(_MOST, _NUMBERS_PER_CHUNK // max(dim, 1)))


def run_chunk(task, capacity):
    """Run up to `capacity` transitions of one chain.

    Parameters
    ----------
    task : Task
    capacity : int

    Returns
    -------
    chain : Chain
    trace : Trace
        Rows from ``plan.count`` on are zero.
    """
    plan = task.plan
    chain = cond(plan.search, _searched, lambda chain: chain, task.chain)
    dim = chain.state.position._data.shape[0]
    key, kernel = chain.key, chain.kernel

    def going(carry):
        return carry[0] < plan.count

    def transition(carry):
        at, state, step_size, averaging, trace = carry
        state, info = replace(kernel, step_size=step_size).step(key, state, plan.depth)
        updated = dual_averaging_update(averaging, info.accept_symmetric, plan.target_accept_prob)
        averaging = map_tree(lambda new, old: where(plan.adapt, new, old), updated, averaging)
        step_size = where(plan.adapt, exp(updated.log_step), step_size)
        rows = Trace(state.position, state.grad, info)
        trace = map_tree(lambda whole, row: index_put(whole, (at,), row), trace, rows)
        return at + 1, state, step_size, averaging, trace

    start = (
        wrap(np.zeros((), np.int64)),
        chain.state,
        kernel.step_size,
        chain.averaging,
        _empty_trace(capacity, dim),
    )
    _, state, step_size, averaging, trace = while_loop(going, transition, start)
    kernel = replace(kernel, step_size=step_size)
    return Chain(kernel, state, key, averaging), trace


def _searched(chain):
    kernel, state = chain.kernel, chain.state
    step_size, counter = find_step_size(
        kernel.density, kernel.metric, chain.key, state.counter, state, kernel.step_size
    )
    return replace(
        chain,
        kernel=replace(kernel, step_size=step_size),
        state=replace(state, counter=counter),
        averaging=dual_averaging_start(step_size),
    )


def _empty_trace(capacity, dim):
    def column(dtype):
        return wrap(np.broadcast_to(np.zeros((), dtype), (capacity,)))

    number, count, flag = column(np.float64), column(np.int64), column(np.bool_)
    info = HMCInfo(
        accept_prob=number,
        accept_symmetric=number,
        diverging=flag,
        energy=number,
        energy_error=number,
        lp=number,
        step_size=number,
        n_steps=count,
        tree_depth=count,
        reached_max_treedepth=flag,
    )
    rows = wrap(np.broadcast_to(0.0, (capacity, dim)))
    return Trace(rows, rows, info)


# ------------------------------------------------------------------------------------ compiled once

_programs: dict[Any, NativeProgram] = {}
_lock = threading.Lock()
# Programs that are kept, the latest ones: one per number of dimensions, 1 MB each. Those that
# chains are running live anyway.
MAX_PROGRAMS = 32


def program_for(task, capacity):
    """Return the `NativeProgram` for tasks like this one.

    It is compiled on first use, and shared by all models and chains from then on; after
    `MAX_PROGRAMS` others it is forgotten.
    """
    items, structure = flatten(task)
    shapes = tuple((x._data.shape, x._data.dtype) for x in items)
    with _lock:
        key = (structure, shapes, capacity, settings.jit)
        found = _programs.pop(key, None) or NativeProgram(
            lambda task: run_chunk(task, capacity), task, name="the sampler"
        )
        _programs[key] = found
        while len(_programs) > MAX_PROGRAMS:
            del _programs[next(iter(_programs))]
        return found


class ChunkRunner:
    """One chain's program with the chain's memory.

    Parameters
    ----------
    chain : Chain
        Where to begin.
    target_accept_prob : float

    Attributes
    ----------
    capacity : int
        Most transitions per call.
    """

    def __init__(self, chain, target_accept_prob):
        self.capacity = capacity_for(chain.state.position._data.shape[0])
        self._target = target_accept_prob
        self._load(chain)

    def _load(self, chain):
        plan = (
            np.array(0),
            np.array(False),
            np.array(False),
            np.array(DEEPEST),
            np.array(self._target),
        )
        task = Task(chain, Plan(*map(wrap, plan)))
        items, self._structure = flatten(chain)
        self._leaves = len(items)
        self._program = program_for(task, self.capacity).resident(task)
        self._know_metric(chain.kernel.metric, items)

    @property
    def chain(self):
        """The chain as it stands, a copy; it may be set to one with another kind of metric."""
        return unflatten(
            self._structure, [wrap(x.copy()) for x in self._program.inputs[: self._leaves]]
        )

    @chain.setter
    def chain(self, chain):
        items, structure = flatten(chain)
        if structure != self._structure:
            self._load(chain)
            return
        for place, leaf in zip(self._program.inputs, items):
            place[...] = leaf._data
        self._know_metric(chain.kernel.metric, items)

    def _know_metric(self, metric, items):
        parts, structure = flatten(metric)
        first = next(i for i, x in enumerate(items) if x is parts[0])
        self._metric, self._metric_structure = metric, structure
        self._metric_places = self._program.inputs[first : first + len(parts)]

    @property
    def metric(self):
        """The metric in use; set, it is as `chain` set with another, at a fraction of the cost."""
        return self._metric

    @metric.setter
    def metric(self, metric):
        items, structure = flatten(metric)
        if structure != self._metric_structure:
            chain = self.chain
            self.chain = replace(chain, kernel=replace(chain.kernel, metric=metric))
            return
        for place, leaf in zip(self._metric_places, items):
            place[...] = leaf._data
        self._metric = metric

    def run(self, count, *, search=False, adapt=False, depth=DEEPEST):
        """Run `count` transitions.

        Returns
        -------
        positions, grads : ndarray, shape (count, dim)
        info : HMCInfo of arrays, each (count,)
            All valid until the next call.
        """
        for place, value in zip(
            self._program.inputs[self._leaves :], (count, search, adapt, depth)
        ):
            place[...] = value
        self._program.run()
        results = self._program.outputs
        for place, value in zip(self._program.inputs[: self._leaves], results):
            place[...] = value
        positions, grads, *info = (x[:count] for x in results[self._leaves :])
        return positions, grads, HMCInfo(*info)
