"""The native program that moves particles: every particle by a few steps of a kernel.

mutation.py says by how many, and how large; the program is compiled once per kernel and dtype.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from probtorch.compiler.program import NativeProgram
from probtorch.config import settings
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, record, replace
from probtorch.core.typed import Tree
from probtorch.infer.mcmc.kernel import Kernel, State, statistics
from probtorch.infer.mcmc.randomness import Key, bits
from probtorch.infer.mcmc.warm_up.adaptation import Tuner
from probtorch.infer.sequential.tempering import TemperedHandle
from probtorch.ops.control import cond, while_loop
from probtorch.ops.indexing import index_put

__all__ = [
    *(
        "MoveTask",
        "Moved",
        "PartialMove",
        "PilotTask",
        "as_number",
        "move_particles",
        "named_field",
    ),
    *("program_of", "tune"),
]

# Compiled programs that are kept, the latest ones.
MAX_PROGRAMS = 16


@record
class Moved:
    """Where particles stand after their moves.

    Parameters
    ----------
    positions : shape (particles, kept, dim)
    ratios : shape (particles, kept)
        Log density at the end of the path less that at its start.
    logdensity : shape (particles, kept)
        At the temperature in force.
    accept, spent : shape (particles,)
        Sums of acceptance probabilities and of evaluations over the moves, as the kernel tells.
    """

    positions: TensorBase
    ratios: TensorBase
    logdensity: TensorBase
    accept: TensorBase
    spent: TensorBase


@dataclass
class PartialMove:
    """A move of many particles as far as it has got.

    Attributes
    ----------
    first : int
        Number of the first particle's stream.
    moved : ndarray of bool, shape (particles,)
    found : tuple of ndarray
        The fields of `Moved`; rows of particles that have not been moved mean nothing.
    """

    first: int
    moved: np.ndarray
    found: tuple[np.ndarray, ...]

    def snapshot(self) -> Tree:
        """Return a copy as plain values; others may go on writing meanwhile."""
        moved = self.moved.copy()
        return {
            "first": self.first,
            "moved": moved,
            "found": [x.copy() for x in self.found],
        }

    @classmethod
    def restored(cls, saved: Tree) -> PartialMove:
        """Return what `snapshot` was of."""
        found = tuple(np.array(x) for x in saved["found"])
        return cls(int(saved["first"]), np.array(saved["moved"]), found)


@record
class MoveTask:
    """The argument of the program that moves."""

    kernel: Kernel
    key: Key
    positions: TensorBase  # (BLOCK, dim)
    first: TensorBase  # number of the first particle's stream, 0-d int64
    count: TensorBase
    steps: TensorBase


@record
class PilotTask:
    """The argument of the program that tunes."""

    kernel: Kernel
    key: Key
    tuner: Tuner
    positions: TensorBase
    first: TensorBase
    count: TensorBase
    search: TensorBase


def _stream(key: Key, number: TensorBase) -> Key:
    """The key of one particle's moves."""
    return Key(key.seed, bits(key, number))


def as_number(x: int | float | bool) -> TensorBase:
    """Return a number as a tensor."""
    return wrap(np.asarray(x))


def named_field(kind: type, name: str) -> str | None:
    """The field of a class of infos that results have under this name."""
    return next((s.field for s in statistics(kind) if s.name == name), None)


_Inner = tuple[TensorBase, State, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase]
_Outer = tuple[TensorBase, Moved]


def move_particles(task: MoveTask, keep: int) -> Moved:
    """Move the particles of a block; `keep` is 1 for the last position, else for all."""
    kernel, block = task.kernel, task.positions.array.shape[0]
    dim = task.positions.array.shape[1]
    density = kernel.density
    assert isinstance(density, TemperedHandle)
    accept, spent = named_field(kernel.info, "acceptance_rate"), named_field(kernel.info, "n_steps")
    zero = as_number(0)

    def particle(carry: _Outer) -> _Outer:
        i, out = carry
        key = _stream(task.key, task.first + i)
        state = kernel.init(task.positions[i], zero)

        def going(inner: _Inner) -> TensorBase:
            return inner[0] < task.steps

        def step(inner: _Inner) -> _Inner:
            at, state, accepted, evaluations, positions, ratios, values = inner
            state, info = kernel.step(key, state)
            if accept is not None:
                accepted = accepted + getattr(info, accept)
            if spent is not None:
                evaluations = evaluations + getattr(info, spent)
            if keep > 1:
                positions = index_put(positions, (i, at + 1), state.position)
                ratios = index_put(ratios, (i, at + 1), density.ratio(state.position))
                values = index_put(values, (i, at + 1), state.logdensity)
            return at + 1, state, accepted, evaluations, positions, ratios, values

        positions, ratios, values = out.positions, out.ratios, out.logdensity
        if keep > 1:
            positions = index_put(positions, (i, zero), state.position)
            ratios = index_put(ratios, (i, zero), density.ratio(state.position))
            values = index_put(values, (i, zero), state.logdensity)
        start = zero, state, wrap(np.zeros(())), zero, positions, ratios, values
        _, state, accepted, evaluations, positions, ratios, values = while_loop(going, step, start)
        if keep == 1:
            positions = index_put(positions, (i, zero), state.position)
            ratios = index_put(ratios, (i, zero), density.ratio(state.position))
            values = index_put(values, (i, zero), state.logdensity)
        return i + 1, Moved(
            positions,
            ratios,
            values,
            index_put(out.accept, (i,), accepted),
            index_put(out.spent, (i,), evaluations),
        )

    blank = Moved(
        wrap(np.zeros((block, keep, dim))),
        wrap(np.zeros((block, keep))),
        wrap(np.zeros((block, keep))),
        wrap(np.zeros(block)),
        wrap(np.zeros(block, np.int64)),
    )
    return while_loop(lambda carry: carry[0] < task.count, particle, (zero, blank))[1]


_Tuned = tuple[TensorBase, dict[str, TensorBase], Tuner]


def tune(trial: PilotTask) -> tuple[Tuner, TensorBase]:
    """Return the tuner after one move each of many, and what its search found."""
    kernel, tuner, zero, tunes = trial.kernel, trial.tuner, as_number(0), trial.tuner.tunes
    block = trial.positions.array.shape[0]
    found = getattr(kernel, tunes)
    if tuner.searches:

        def search(value: TensorBase, tuner: Tuner) -> tuple[TensorBase, Tuner]:
            key = _stream(trial.key, trial.first)
            state = kernel.init(trial.positions[zero], zero)
            value, _ = replace(kernel, **{tunes: value}).first_guess(key, state)
            return value, tuner.restarted(value)

        found, tuner = cond(trial.search, search, lambda v, t: (v, t), found, tuner)

    def going(carry: _Tuned) -> TensorBase:
        return carry[0] < trial.count

    def step(carry: _Tuned) -> _Tuned:
        at, values, tuner = carry
        key = _stream(trial.key, trial.first + 1 + at)
        now = replace(kernel, **values)
        _, info = now.step(key, now.init(trial.positions[at % block], zero))
        tuner, values = tuner.updated(info, as_number(True))
        return at + 1, values, tuner

    first = {name: getattr(kernel, name) for name in tuner.fields} | {tunes: found}
    _, _, tuner = while_loop(going, step, (zero, first, tuner))
    return tuner, found


_programs: dict[Hashable, NativeProgram] = {}
_lock = threading.Lock()


def program_of(
    fn: Callable[..., object], task: MoveTask | PilotTask, *options: int
) -> NativeProgram:
    """The compiled program for tasks like this one; see `chunk.program_for`."""
    items, structure = flatten(task)
    shapes = tuple((x.array.shape, x.array.dtype) for x in items)
    with _lock:
        key = (fn, structure, shapes, options, settings.jit)
        found = _programs.pop(key, None) or NativeProgram(
            lambda task: fn(task, *options), task, name="the moves of particles"
        )
        _programs[key] = found
        while len(_programs) > MAX_PROGRAMS:
            del _programs[next(iter(_programs))]
        return found
