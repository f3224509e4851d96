"""`Mutation`: any kernel moves particles, each for so many steps, as one native call per block.

A particle is a short chain: the kernel's state is made at its position, steps are taken with random
numbers of its own stream, and what is left is where it stands. Between temperatures the kernel is
fitted to the particles: what its warm-up would learn from draws (a metric) it learns from them, and
what it would tune (a step size) is tuned by a pilot run whose moves are thrown away. So the moves
that count are those of a fixed kernel, which leaves the density at its temperature invariant.

How particles are shared out over threads changes nothing in their moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np

from probtorch.compiler.density import DensityContext
from probtorch.compiler.native.threads import occupied
from probtorch.compiler.program import NativeProgram
from probtorch.config import settings
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, record, replace
from probtorch.distributions.validation import validation_enabled, validation_in_force
from probtorch.infer.mcmc.kernel import Kernel, State, statistics
from probtorch.infer.mcmc.randomness import Key, bits, key_of
from probtorch.infer.mcmc.warm_up.adaptation import Tuner, check_found
from probtorch.infer.potential import Target
from probtorch.infer.sequential.tempering import TemperedHandle, TemperedPath
from probtorch.infer.sequential.weights import uniforms
from probtorch.ops.control import cond, while_loop
from probtorch.ops.indexing import index_put

__all__ = ["Moved", "Mutation"]

# Particles per native call, and transitions of the pilot run: enough for a step size to settle.
BLOCK, PILOT = 64, 200
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


@record
class _Task:
    """The argument of the program that moves."""

    kernel: Kernel
    key: Key
    positions: TensorBase  # (BLOCK, dim)
    first: TensorBase  # number of the first particle's stream, 0-d int64
    count: TensorBase
    steps: TensorBase


@record
class _Trial:
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


def _number(x: int | float | bool) -> TensorBase:
    return wrap(np.asarray(x))


def _named(kind: type, name: str) -> str | None:
    """The field of a class of infos that results have under this name."""
    return next((s.field for s in statistics(kind) if s.name == name), None)


_Inner = tuple[TensorBase, State, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase]
_Outer = tuple[TensorBase, Moved]


def _move(task: _Task, keep: int) -> Moved:
    """Move the particles of a block; `keep` is 1 for the last position, else for all."""
    kernel, block = task.kernel, task.positions.array.shape[0]
    dim = task.positions.array.shape[1]
    density = kernel.density
    assert isinstance(density, TemperedHandle)
    accept, spent = _named(kernel.info, "acceptance_rate"), _named(kernel.info, "n_steps")
    zero = _number(0)

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


def _tune(trial: _Trial) -> tuple[Tuner, TensorBase]:
    """Return the tuner after one move each of many, and what its search found."""
    kernel, tuner, zero, tunes = trial.kernel, trial.tuner, _number(0), trial.tuner.tunes
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
        tuner, values = tuner.updated(info, _number(True))
        return at + 1, values, tuner

    first = {name: getattr(kernel, name) for name in tuner.fields} | {tunes: found}
    _, _, tuner = while_loop(going, step, (zero, first, tuner))
    return tuner, found


_programs: dict[Hashable, NativeProgram] = {}
_lock = threading.Lock()


def _program(fn: Callable[..., object], task: _Task | _Trial, *options: int) -> NativeProgram:
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


class Mutation:
    """A kernel on a path of densities, fitted to particles again and again.

    Parameters
    ----------
    kernel : Kernel
        As the user made it.
    path : TemperedPath
    generator : Generator
        Source of all randomness.
    num_threads : int

    Attributes
    ----------
    evaluations : int
        Of the density with its gradient, so far; those of kernels that do not tell are not in it.
    """

    def __init__(
        self, kernel: Kernel, path: TemperedPath, generator: Generator, num_threads: int
    ) -> None:
        self.kernel, self.path, self.num_threads = kernel, path, num_threads
        self.evaluations = 0
        moves, self._shuffle = generator.spawn(2)
        self._key = key_of(moves)
        self._streams = 0
        self._context = path.density.context()
        self._contexts: list[DensityContext] = [self._context]
        self._in_use = kernel.in_use(path.handle(self._context, 0.0))
        self._fitted = False

    @property
    def settings(self) -> dict[str, float]:
        """What is tuned, as it stands."""
        tuner = self.kernel.warmup.tuner
        if tuner is None:
            return {}
        return {name: float(getattr(self._in_use, name).array) for name in tuner.fields}

    def ratios(self, positions: np.ndarray) -> np.ndarray:
        """Return the log ratio of end to start at positions (n, dim), shape (n,)."""
        found = np.empty(len(positions))
        for i, q in enumerate(positions):
            # At 1/2: both ends count, and neither is multiplied by 0.
            value, grad = self._context.value_and_grad(np.append(q, 0.5))
            found[i] = grad[-1] if value > -np.inf else -np.inf
        self.evaluations += len(positions)
        return found

    def fit(self, target: Target, positions: np.ndarray, temperature: float) -> None:
        """Fit the kernel to particles (n, dim) that are draws at a temperature."""
        order = np.argsort(uniforms(self._shuffle, len(positions)), kind="stable")
        positions = np.ascontiguousarray(positions[order])
        kernel = replace(self._in_use, density=self.path.handle(self._context, temperature))
        warmup = self.kernel.warmup
        state = kernel.init(wrap(positions[0].copy()), _number(0))
        self._context.raise_error()
        if not self._fitted:
            warming = warmup.does_something
            kernel = replace(kernel, **self.kernel.first_values(target, state, None, warming))
        if warmup.learner is not None:
            learner = warmup.learner(target, positions[-1])
            grads = self._gradients(positions, temperature) if hasattr(state, "grad") else None
            learner.add(positions, grads)
            learner.end_segment(switch=False)
            now = getattr(kernel, learner.learns)
            new = learner.learnt(now, choose=True, last=True)
            kernel = replace(kernel, **{learner.learns: new})
        if warmup.follows:
            kernel = self._tuned(kernel, positions)
        self._in_use, self._fitted = kernel, True

    def _gradients(self, positions: np.ndarray, temperature: float) -> np.ndarray:
        grads = np.empty(positions.shape)
        for i, q in enumerate(positions):
            grads[i] = self._context.value_and_grad(np.append(q, temperature))[1][:-1]
        self.evaluations += len(positions)
        return grads

    def _tuned(self, kernel: Kernel, positions: np.ndarray) -> Kernel:
        """The kernel with a step size, say, that a pilot run settles on."""
        tuner = self.kernel.warmup.tuner
        assert tuner is not None
        value = getattr(kernel, tuner.tunes)
        search = not self._fitted and self.kernel.warmup.searches
        trial = _Trial(
            kernel,
            self._key,
            tuner.restarted(value).refocused(),
            wrap(_filled(positions[:BLOCK])),
            _number(self._streams),
            _number(PILOT),
            _number(search),
        )
        self._streams += PILOT + 1
        tuner, found = _program(_tune, trial)(trial)
        self._context.raise_error()
        if search:
            check_found(float(found.array))
        return replace(kernel, **tuner.settled())

    def move(
        self, positions: np.ndarray, temperature: float, steps: int, *, keep: int = 1
    ) -> Moved:
        """Move particles.

        Parameters
        ----------
        positions : ndarray, shape (n, dim)
        temperature : float
        steps : int
            Transitions of each.
        keep : int
            1 to keep the last position, or ``steps + 1`` to keep all, the first included.
        """
        starts = range(0, len(positions), BLOCK)
        workers = min(self.num_threads, len(starts))
        while len(self._contexts) < workers:
            self._contexts.append(self.path.density.context())
        first, self._streams = self._streams, self._streams + len(positions)

        def task(begin: int, context: DensityContext) -> _Task:
            rows = positions[begin : begin + BLOCK]
            handle = self.path.handle(context, temperature)
            return _Task(
                replace(self._in_use, density=handle),
                self._key,
                wrap(_filled(rows)),
                _number(first + begin),
                _number(len(rows)),
                _number(steps),
            )

        program = _program(_move, task(0, self._context), keep)
        checked = validation_in_force()

        def work(worker: int) -> dict[int, list[np.ndarray]]:
            context, run, done = self._contexts[worker], program.bind(), {}
            with validation_enabled(checked), occupied() if workers > 1 else nullcontext():
                for begin in starts[worker::workers]:
                    moved = run(task(begin, context))
                    context.raise_error()
                    count = len(positions[begin : begin + BLOCK])
                    done[begin] = [x.array[:count] for x in flatten(moved)[0]]
            return done

        if workers == 1:
            parts = work(0)
        else:
            with ThreadPoolExecutor(workers) as pool:
                parts = {k: x for part in pool.map(work, range(workers)) for k, x in part.items()}
        found = Moved(*(wrap(np.concatenate(x)) for x in zip(*(parts[i] for i in starts))))
        self.evaluations += int(found.spent.array.sum()) + found.ratios.array.size + len(positions)
        return found


def _filled(rows: np.ndarray) -> np.ndarray:
    """Rows repeated up to the size of a block."""
    return np.ascontiguousarray(np.resize(rows, (BLOCK, rows.shape[1])))
