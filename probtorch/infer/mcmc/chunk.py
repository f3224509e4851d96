"""Many transitions as one call: the loop over draws, with adaptation, as a program in tensor ops.

`run_chunk` is pure: a `Task` in, the chain's new state and the `ChunkTrace` of its draws out. The
driver compiles it once per kind of kernel, dimension and capacity (`program_for`), and calls it
again and again; how a run is cut into calls changes nothing in its draws. The model is not part of
the program: its density is an address in the task. On a GPU, where there are no addresses to call,
it is (inlined.py), and the chain's memory stays there between calls.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.backends.registry import copy_into, to_host
from probtorch.compiler.program import NativeProgram
from probtorch.config import settings
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import Structure, flatten, map_tree, record, replace, unflatten
from probtorch.core.typed import DType
from probtorch.infer.mcmc.inlined import InlinedDensity
from probtorch.infer.mcmc.integrators import DensityHandle
from probtorch.infer.mcmc.kernel import Kernel, State, statistics
from probtorch.infer.mcmc.randomness import Key
from probtorch.infer.mcmc.warm_up.adaptation import Tuner
from probtorch.ops.control import cond, while_loop
from probtorch.ops.indexing import index_put
from probtorch.ops.rooms import room

if TYPE_CHECKING:
    from probtorch.compiler.density import DensityContext, NativeDensity
    from probtorch.infer.mcmc.stacked import ChainStack

__all__ = [
    "Chain",
    "ChunkPlan",
    "ChunkRunner",
    "ChunkTrace",
    "Task",
    "capacity_for",
    "empty_trace",
    "program_for",
    "run_chunk",
]

# Room for this many numbers of draws in one call: enough that a call costs little, few enough to
# stay in the cache, and of 32 chains of ten dims to be kept for the next run (rows.py).
_NUMBERS_PER_CHUNK = 2**14
_FEWEST, _MOST = 16, 512


@record
class Chain:
    """One chain between two calls: everything that its future depends on.

    Parameters
    ----------
    kernel : Kernel
        With the values in use of what is tuned.
    state : record
        The kernel's.
    key : Key
    tuner : Tuner or None
    """

    kernel: Kernel
    state: State
    key: Key
    tuner: Tuner | None


@record
class ChunkPlan:
    """What to do in one call.

    Parameters
    ----------
    count : Tensor, 0-d int64
        Transitions, at most the capacity of the program.
    search : Tensor, 0-d bool
        Whether to ask the kernel for a first guess of what is tuned, and start around it.
    adapt : Tensor, 0-d bool
        Whether the tuner's value is followed.
    """

    count: TensorBase
    search: TensorBase
    adapt: TensorBase


@record
class Task:
    """The argument of the program."""

    chain: Chain
    plan: ChunkPlan


@record
class ChunkTrace:
    """What was drawn.

    Positions and the gradients there, if states have them, have shape (capacity, *position), what
    is in an info (capacity,), or (capacity, members).
    """

    positions: TensorBase
    grads: TensorBase | None
    info: object


def capacity_for(size: int) -> int:
    """Return how many positions of so many numbers one call has room for."""
    return max(_FEWEST, min(_MOST, _NUMBERS_PER_CHUNK // max(size, 1)))


# What the loop over draws carries: their number, state, tuned values, tuner and what was drawn.
Carry: TypeAlias = tuple[TensorBase, State, dict[str, TensorBase], Tuner | None, ChunkTrace]


def run_chunk(task: Task, capacity: int) -> tuple[Chain, ChunkTrace]:
    """Run up to `capacity` transitions of one chain.

    Parameters
    ----------
    task : Task
    capacity : int

    Returns
    -------
    chain : Chain
    trace : Trace
        Of rows from ``plan.count`` on nothing is known.
    """
    plan, chain = task.plan, task.chain
    if chain.tuner is not None and chain.tuner.searches:
        chain = cond(plan.search, _searched, lambda chain: chain, chain)
    key, kernel = chain.key, chain.kernel
    # What the loop carries of the kernel: only what is tuned, not, say, a metric.
    names = () if chain.tuner is None else chain.tuner.fields

    def going(carry: Carry) -> TensorBase:
        return carry[0] < plan.count

    def learn(
        tuner: Tuner, values: dict[str, TensorBase], info: object
    ) -> tuple[Tuner, dict[str, TensorBase]]:
        tuner, tuned = tuner.updated(info, plan.adapt)
        return tuner, {n: tuned[n] for n in values}

    def transition(carry: Carry) -> Carry:
        at, state, values, tuner, trace = carry
        state, info = replace(kernel, **values).step(key, state)
        if tuner is not None:
            # A branch: what a transition after the warm-up would learn is not computed.
            tuner, values = cond(plan.adapt, learn, lambda *same: same[:2], tuner, values, info)
        rows = ChunkTrace(state.position, getattr(state, "grad", None), info)
        trace = map_tree(lambda whole, row: index_put(whole, (at,), row), trace, rows)
        return at + 1, state, values, tuner, trace

    start = (
        wrap(np.zeros((), np.int64)),
        chain.state,
        {name: getattr(kernel, name) for name in names},
        chain.tuner,
        _room_for(empty_trace(chain, capacity), chain.state.position),
    )
    _, state, values, tuner, trace = while_loop(going, transition, start)
    return Chain(replace(kernel, **values), state, key, tuner), trace


def _room_for(trace: ChunkTrace, like: TensorBase) -> ChunkTrace:
    """Memory of the shapes of a trace: most calls write a few rows, and clearing all takes long."""
    columns, structure = flatten(trace)
    rooms = [room(like, x.array.shape, x.array.dtype, i) for i, x in enumerate(columns)]
    return unflatten(structure, rooms)


def _searched(chain: Chain) -> Chain:
    kernel, tuner = chain.kernel, chain.tuner
    assert tuner is not None
    value, state = kernel.first_guess(chain.key, chain.state)
    return replace(
        chain,
        kernel=replace(kernel, **{tuner.tunes: value}),
        state=state,
        tuner=tuner.restarted(value),
    )


def empty_trace(chain: Chain, capacity: int) -> ChunkTrace:
    """Return the `ChunkTrace` of a chain with room for so many draws, all zero."""
    shape = chain.state.position.array.shape

    def column(shape: tuple[int, ...], dtype: DType | type = np.float64) -> TensorBase:
        return wrap(np.broadcast_to(np.zeros((), dtype), (capacity, *shape)))

    info = chain.kernel.info(
        **{
            s.field: column(
                shape[:-1] if s.like is None else getattr(chain.kernel, s.like).array.shape, s.dtype
            )
            for s in statistics(chain.kernel.info)
        }
    )
    grads = column(shape) if hasattr(chain.state, "grad") else None
    return ChunkTrace(column(shape), grads, info)


# ------------------------------------------------------------------------------------ compiled once

_programs: dict[Hashable, NativeProgram] = {}
_lock = threading.Lock()
# Programs that are kept, the latest ones: one per number of dimensions, 1 MB each. Those that
# chains are running live anyway.
MAX_PROGRAMS = 32


def program_for(task: Task, capacity: int) -> NativeProgram:
    """Return the `NativeProgram` for tasks like this one.

    It is compiled on first use, and shared by all models and chains from then on; after
    `MAX_PROGRAMS` others it is forgotten.
    """
    key = _key(*flatten(task), capacity)
    with _lock:
        found = _programs.pop(key, None) or NativeProgram(
            lambda task: run_chunk(task, capacity), task, name="the sampler"
        )
        _programs[key] = found
        while len(_programs) > MAX_PROGRAMS:
            forgotten = _programs.pop(next(iter(_programs)))
            for seats in _free.values():
                seats[:] = [seat for seat in seats if seat.program.owner is not forgotten]
        return found


def _key(items: list[TensorBase], structure: Structure, capacity: int) -> Hashable:
    shapes = tuple((x.array.shape, x.array.dtype) for x in items)
    return structure, shapes, capacity, settings.jit


class Seat:
    """A program with memory of its own, in which chains of one kind run, one after the other.

    Parameters
    ----------
    chain : Chain
        The first of them.
    capacity : int

    Attributes
    ----------
    program : Resident
    leaves : int
        Numbers and arrays of a chain: so many inputs, and results, come first.
    structure
        Of the chain.
    fields : dict
        By the name of a field of the kernel, its structure and its inputs.
    changing : list of int
        Inputs that a call changes.
    has_grads : bool
        Whether states have gradients.
    info : type
        The kernel's class of infos.
    """

    def __init__(self, chain: Chain, capacity: int) -> None:
        plan = ChunkPlan(*map(wrap, (np.array(0), np.array(False), np.array(False))))
        task = Task(chain, plan)
        items, self.structure = flatten(chain)
        self.leaves = len(items)
        trace = empty_trace(chain, capacity)
        self.has_grads, self.info = trace.grads is not None, type(trace.info)
        self.program = self._program(task, capacity).resident(task)
        self.fields, self.changing, at = {}, list[int](), 0
        for name in chain.kernel.__tree_fields__:
            parts, structure = flatten(getattr(chain.kernel, name))
            self.fields[name] = structure, self.program.inputs[at : at + len(parts)]
            # Of the kernel the program itself changes only what is tuned: not, say, the metric.
            if chain.tuner is not None and name in chain.tuner.fields:
                self.changing += range(at, at + len(parts))
            at += len(parts)
        self.changing += range(at, self.leaves)

    def _program(self, task: Task, capacity: int) -> NativeProgram:
        return program_for(task, capacity)

    def bare_leaves(self) -> list[np.ndarray]:
        """Return copies of the arrays of the chain, without the density."""
        _, of_density = self.fields["density"]
        left_out = {id(x) for x in of_density}
        leaves = self.program.inputs[: self.leaves]
        return [to_host(x).copy() for x in leaves if id(x) not in left_out]

    @property
    def nbytes(self) -> int:
        """The size of its memory."""
        return sum(x.nbytes for x in (*self.program.inputs, *self.program.outputs))

    def put(self, items: list[TensorBase]) -> None:
        """Let a chain with these leaves take the place of the last one."""
        self.write(self.program.inputs, [leaf.array for leaf in items])

    def write(self, places: list[np.ndarray], values: Iterable[np.ndarray | int]) -> None:
        """Write into inputs, of which there may be more than values."""
        for place, value in zip(places, values):
            place[...] = value

    def chain(self) -> Chain:
        """Return the chain as it stands, a copy."""
        leaves = self.program.inputs[: self.leaves]
        return unflatten(self.structure, [wrap(to_host(x).copy()) for x in leaves])

    def run(
        self, count: int, search: bool, adapt: bool, *, grads: bool
    ) -> tuple[np.ndarray, np.ndarray | None, object]:
        """Run `count` transitions; see `ChunkRunner.run`."""
        inputs = self.program.inputs
        self.write(inputs[self.leaves :], (count, search, adapt))
        self.program.run()
        results = self.program.outputs
        self.write([inputs[i] for i in self.changing], [results[i] for i in self.changing])
        positions, *trace = [x[:count] for x in results[self.leaves :]]
        found = trace.pop(0) if self.has_grads else None
        found = None if found is None or not grads else to_host(found)
        return to_host(positions), found, self.info(*map(to_host, trace))


class DeviceSeat(Seat):
    """A seat whose memory is a GPU's: of what a call does only its draws come to the host."""

    def _program(self, task: Task, capacity: int) -> NativeProgram:
        """The program with the chain's density in it, which goes with that density."""
        density = task.chain.kernel.density
        assert isinstance(density, InlinedDensity)
        key = _key(*flatten(task), capacity)
        return density.of.program(key, lambda task: run_chunk(task, capacity), task)

    def write(self, places: list[np.ndarray], values: Iterable[np.ndarray | int]) -> None:
        """Write into inputs, of which there may be more than values."""
        for place, value in zip(places, values):
            copy_into(place, np.asarray(value) if isinstance(value, (bool, int)) else value)


# Seats that no chain has, by what chains are like; how many are kept of each, of which size.
_free: dict[Hashable, list[Seat]] = {}
MAX_FREE, MAX_BYTES = 16, 2**20


def _seat_of(chain: Chain, capacity: int) -> tuple[Hashable, Seat]:
    items, structure = flatten(chain)
    key = _key(items, structure, capacity)
    with _lock:
        free = _free.get(key)
        seat = free.pop() if free else None
    if seat is None:
        inlined = isinstance(chain.kernel.density, InlinedDensity)
        seat = DeviceSeat(chain, capacity) if inlined else Seat(chain, capacity)
    else:
        seat.put(items)
    return key, seat


def _give_back(key: Hashable, seat: Seat) -> None:
    if isinstance(seat, DeviceSeat):
        return  # the memory of a GPU is for whoever needs it next
    with _lock:
        free = _free.setdefault(key, [])
        kept = any(seat.program.owner is program for program in _programs.values())
        if kept and len(free) < MAX_FREE and seat.nbytes <= MAX_BYTES:
            free.append(seat)


class ChunkRunner:
    """A chain, and the program's memory while it runs.

    Parameters
    ----------
    chain : Chain or tuple of ChainStack and int
        Where to begin.
    context : DensityContext, optional
        What its density is evaluated in where it runs by itself. Without one the chain's density is
        as it is, or, if it is of a stack, a context is made when there is need of it.

    Attributes
    ----------
    capacity : int
        Most transitions per call.
    row : tuple of ChainStack and int, or None
        Where the chain is, if it is kept, or goes, together with others.
    density : NativeDensity or None
    inlined : InlinedDensity or None
        To be set before it runs: the chain then runs where that does.
    """

    def __init__(
        self, chain: Chain | tuple[ChainStack, int], context: DensityContext | None = None
    ) -> None:
        self._chain: Chain | None = None
        self._seat: Seat | None = None
        self.row: tuple[ChainStack, int] | None = None
        self.density: NativeDensity | None = None
        if isinstance(chain, tuple):
            self.row, self.density = chain, chain[0].density
        else:
            self._chain = chain
        self.capacity = capacity_for(
            chain[0].size if isinstance(chain, tuple) else self.position.size
        )
        self._context: DensityContext | None = None
        # The density as part of the program, on a GPU, instead of an address to call.
        self.inlined: InlinedDensity | None = None
        if context is not None:
            self.use(context)
        self._key: Hashable = None
        # Fields of the kernel as they were set last.
        self._held: dict[str, object] = {}

    def use(self, context: DensityContext) -> None:
        """Evaluate the density in this context where the chain runs by itself."""
        self._context, self.density = context, context.density

    def own_context(self) -> DensityContext | None:
        """Return the context in which it runs by itself; None if whoever made it has that."""
        if self._context is None and self.density is not None:
            self._context = self.density.context()
        return self._context

    @property
    def context(self) -> DensityContext | None:
        """The context in which it runs: that of the chains it goes together with, or its own."""
        together = None if self.row is None else self.row[0].context
        return self.own_context() if together is None else together

    @property
    def position(self) -> np.ndarray:
        """Where the chain stands."""
        if self.row is not None:
            rows, number = self.row
            return rows.position(number)
        return self.chain.state.position.array

    def sit_down(self) -> Seat:
        """Take memory to run in, which compiles the program where it is the first of its kind."""
        if self._seat is None:
            chain, context = self.chain, self.own_context()
            density = self.inlined or (None if context is None else DensityHandle.of(context))
            if density is not None:
                chain = replace(chain, kernel=replace(chain.kernel, density=density))
            self._key, self._seat = _seat_of(chain, self.capacity)
            self.row = None
        return self._seat

    def prepare(self) -> None:
        """Have the program compiled; a chain that is kept with others stays there."""
        if self.row is None:
            self.sit_down()
        else:
            _give_back(*_seat_of(self.chain, self.capacity))

    def stand_up(self) -> None:
        """Give the memory back, for other chains: this one does not run for a while."""
        if self._seat is None:
            return
        self.chain = self._seat.chain()

    def stand_in(self, rows: ChainStack, number: int) -> None:
        """Let the chain be a row of others from now on, until it is set or runs by itself."""
        self._let_go()
        self.row, self._held = (rows, number), {}

    @property
    def chain(self) -> Chain:
        """The chain as it stands; it may be set to one with another kind of metric."""
        if self._seat is not None:
            return self._seat.chain()
        if self.row is not None:
            rows, number = self.row
            return rows.chain(number)
        assert self._chain is not None  # it is there, in its seat, or a row
        return self._chain

    @chain.setter
    def chain(self, chain: Chain) -> None:
        self._let_go()
        self._chain, self.row = chain, None
        self._held = {}

    def _let_go(self) -> None:
        """Give the seat back."""
        seat, self._seat = self._seat, None
        if seat is not None:
            _give_back(self._key, seat)

    def bare_leaves(self) -> list[np.ndarray]:
        """Return copies of the arrays of the chain, without the density; see `chain_leaves`."""
        if self._seat is None:
            chain = self.chain
            bare = replace(chain, kernel=replace(chain.kernel, density=None))
            return [x.array.copy() for x in flatten(bare)[0]]
        return self._seat.bare_leaves()

    def settled(self) -> dict[str, np.ndarray]:
        """Return what its tuner would have fields of the kernel be after warm-up."""
        tuner = self.chain.tuner
        return {} if tuner is None else {n: x.array for n, x in tuner.settled().items()}

    def held(self, name: str) -> object:
        """Return a field of the kernel as it was set last; None where it has no such field."""
        if self.row is not None:
            rows, number = self.row
            return rows.field(name)[number] if rows.has(name) else None
        if name not in self._held:
            self._held[name] = getattr(self.chain.kernel, name, None)
        return self._held[name]

    def set(self, name: str, value: object) -> None:
        """Set a field of the kernel: as `chain` set with another one, at a fraction of the cost."""
        items, structure = flatten(value)
        known, places = self.sit_down().fields[name]
        if structure != known:
            chain = self.chain
            self.chain = replace(chain, kernel=replace(chain.kernel, **{name: value}))
            return
        self.sit_down().write(places, [leaf.array for leaf in items])
        self._held[name] = value

    def run(
        self, count: int, *, search: bool = False, adapt: bool = False, grads: bool = True
    ) -> tuple[np.ndarray, np.ndarray | None, object]:
        """Run `count` transitions.

        Parameters
        ----------
        count : int
        search, adapt : bool
            As in a `ChunkPlan`.
        grads : bool
            Whether gradients are wanted: from a GPU they come only then.

        Returns
        -------
        positions, grads : ndarray, shape (count, *position)
            The latter None if states have none, or they are not wanted.
        info : record of arrays
            The kernel's, each (count,), or (count, members). All valid until the next call.
        """
        return self.sit_down().run(count, search, adapt, grads=grads)
