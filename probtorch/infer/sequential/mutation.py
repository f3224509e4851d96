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
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import numpy as np

from probtorch.compiler.density_context import DensityContext
from probtorch.compiler.native.threads import occupied
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, replace
from probtorch.core.typed import Tree
from probtorch.distributions.validation import validation_enabled, validation_in_force
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.chunk import Chain
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.randomness import Key, key_of
from probtorch.infer.mcmc.saved import chain_leaves, chain_of
from probtorch.infer.mcmc.warm_up.adaptation import check_found
from probtorch.infer.potential import Target
from probtorch.infer.sequential.moves import (
    Moved,
    MoveTask,
    PartialMove,
    PilotTask,
    as_number,
    move_particles,
    program_of,
    tune,
)
from probtorch.infer.sequential.tempering import TemperedPath
from probtorch.infer.sequential.weights import uniforms

__all__ = ["Mutation", "check_moves_particles"]

# Particles per native call, and transitions of the pilot run: enough for a step size to settle.
BLOCK, PILOT = 64, 200
# Seconds that a native call may take, for Ctrl-C and checkpoints; between two looks.
PIECE_SECONDS, POLL = 0.5, 0.05


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
        self._costs = 0.0  # seconds per transition of a particle, as the last call had it

    @property
    def settings(self) -> dict[str, float | list[float]]:
        """What is tuned, as it stands."""
        tuner = self.kernel.warmup.tuner
        return {} if tuner is None else self._in_use.tuned_values(tuner.fields)

    def ratios(self, positions: np.ndarray, *, count: bool = True) -> np.ndarray:
        """Return the log ratio of end to start at positions (n, dim), shape (n,)."""
        found = np.empty(len(positions))
        for i, q in enumerate(positions):
            # At 1/2: both ends count, and neither is multiplied by 0.
            value, grad = self._context.value_and_grad(np.append(q, 0.5))
            found[i] = grad[-1] if value > -np.inf else -np.inf
        self.evaluations += len(positions) * count
        return found

    def fit(self, target: Target, positions: np.ndarray, temperature: float) -> None:
        """Fit the kernel to particles (n, dim) that are draws at a temperature."""
        order = np.argsort(uniforms(self._shuffle, len(positions)), kind="stable")
        positions = np.ascontiguousarray(positions[order])
        kernel = replace(self._in_use, density=self.path.handle(self._context, temperature))
        warmup = self.kernel.warmup
        state = kernel.init(wrap(positions[0].copy()), as_number(0))
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
        trial = PilotTask(
            kernel,
            self._key,
            tuner.restarted(value).refocused(),
            wrap(_filled(positions[:BLOCK])),
            as_number(self._streams),
            as_number(PILOT),
            as_number(search),
        )
        self._streams += PILOT + 1
        tuner, found = program_of(tune, trial)(trial)
        self._context.raise_error()
        if search:
            for value in np.ravel(found.array):
                check_found(float(value))
        return replace(kernel, **tuner.settled())

    def begun(self, count: int, keep: int = 1) -> PartialMove:
        """Return a `move` of so many particles that is to begin, with streams of its own."""
        first, self._streams = self._streams, self._streams + count
        dim = self.path.target.dim
        return PartialMove(
            first,
            np.zeros(count, bool),
            (
                np.empty((count, keep, dim)),
                np.empty((count, keep)),
                np.empty((count, keep)),
                np.empty(count),
                np.empty(count, np.int64),
            ),
        )

    def move(
        self,
        positions: np.ndarray,
        temperature: float,
        steps: int,
        *,
        keep: int = 1,
        pieces: PartialMove | None = None,
        look: Callable[[], None] = lambda: None,
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
        pieces : PartialMove, optional
            From `begun`; one that was saved half done is completed.
        look : callable
            Called between pieces, from this thread; what it raises ends the move.
        """
        pieces = self.begun(len(positions), keep) if pieces is None else pieces
        # Of a block the first ones may have been moved already.
        begins = range(0, len(positions), BLOCK)
        done = [int(pieces.moved[i : i + BLOCK].sum()) for i in begins]
        blocks = [(i + k, min(i + BLOCK, len(positions))) for i, k in zip(begins, done)]
        blocks = [(i, end) for i, end in blocks if i < end]
        workers = max(min(self.num_threads, len(blocks)), 1)
        while len(self._contexts) < workers:
            self._contexts.append(self.path.density.context())

        def task(begin: int, end: int, context: DensityContext) -> MoveTask:
            handle = self.path.handle(context, temperature)
            return MoveTask(
                replace(self._in_use, density=handle),
                self._key,
                wrap(_filled(positions[begin:end])),
                as_number(pieces.first + begin),
                as_number(end - begin),
                as_number(steps),
            )

        program = program_of(move_particles, task(0, 1, self._context), keep)
        checked = validation_in_force()
        stopped = threading.Event()

        def work(worker: int) -> Iterator[None]:
            context, run = self._contexts[worker], program.bind()
            for begin, last in blocks[worker::workers]:
                while begin < last and not stopped.is_set():
                    end = min(last, begin + self._piece(steps))
                    start = time.perf_counter()
                    moved = run(task(begin, end, context))
                    context.raise_error()
                    self._costs = (time.perf_counter() - start) / (steps * (end - begin))
                    for whole, part in zip(pieces.found, flatten(moved)[0]):
                        whole[begin:end] = part.array[: end - begin]
                    pieces.moved[begin:end] = True
                    begin = end
                    yield

        def work_aside(worker: int) -> None:
            with validation_enabled(checked), occupied():
                for _ in work(worker):
                    pass

        if workers == 1:
            for _ in work(0):
                look()
        else:
            with ThreadPoolExecutor(workers) as pool:
                try:
                    waiting = {pool.submit(work_aside, i) for i in range(workers)}
                    while waiting:
                        ended, waiting = wait(waiting, timeout=POLL, return_when=FIRST_EXCEPTION)
                        for future in ended:
                            future.result()
                        look()
                finally:
                    stopped.set()
        found = Moved(*map(wrap, pieces.found))
        self.evaluations += int(found.spent.array.sum()) + found.ratios.array.size + len(positions)
        return found

    def _piece(self, steps: int) -> int:
        """How many particles to move in one call; their moves do not depend on it."""
        return max(1, min(BLOCK, int(PIECE_SECONDS / max(self._costs * steps, 1e-9))))

    # ------------------------------------------------------------------------------------- saving

    def half_way(self, positions: np.ndarray) -> np.ndarray:
        """Return log densities at positions (n, dim) at temperature 1/2, by which to know them."""
        at = self._context
        return np.array([at.value_and_grad(np.append(q, 0.5))[0] for q in positions])

    def snapshot(self, position: np.ndarray) -> Tree:
        """Return all that further moves depend on, given any position (dim,)."""
        return {
            # Before it is fitted a kernel is as it was made.
            "chain": chain_leaves(self._chain(position)) if self._fitted else None,
            "key": (int(self._key.seed.array), int(self._key.stream.array)),
            "streams": self._streams,
            "shuffle": tuple(self._shuffle.get_state()),
            "evaluations": self.evaluations,
            "fitted": self._fitted,
        }

    def restore(self, saved: Tree) -> None:
        """Go on from what `snapshot` returned in another process."""
        if saved["chain"] is not None:
            self._in_use = chain_of(self.kernel, saved["chain"]).kernel
        self._key = Key(*map(as_number, saved["key"]))
        self._streams, self.evaluations = saved["streams"], saved["evaluations"]
        self._shuffle.set_state(saved["shuffle"])
        self._fitted = saved["fitted"]

    def _chain(self, position: np.ndarray) -> Chain:
        """The kernel with its key as a chain, as which it is saved."""
        handle = self.path.handle(self._context, 1.0)
        kernel = replace(self._in_use, density=handle)
        state = kernel.init(wrap(np.array(position)), as_number(0))
        self._context.raise_error()
        return Chain(kernel, state, self._key, self.kernel.warmup.tuner)


def check_moves_particles(owner: str, kernel: Kernel) -> None:
    """Refuse what is no kernel that moves one point and leaves any density as it is.

    Parameters
    ----------
    owner : str
        The class that is to have particles moved, for messages.
    kernel : Kernel
    """
    if not isinstance(kernel, Kernel):
        raise ArgumentError(
            f"{owner}(kernel)",
            expected="a kernel such as NUTS(model)",
            got=type(kernel).__name__,
            fix=f"wrap the model: {owner}(NUTS(model), num_particles=1000)",
        )
    if kernel.members:
        raise ArgumentError(
            f"{owner}(kernel)",
            expected="a kernel whose state is one point",
            got=f"{kernel.name}, whose state is {kernel.members} points",
            fix="use NUTS, MALA or RandomWalk: the particles are an ensemble already",
        )
    if kernel.posterior_alone:
        raise ArgumentError(
            f"{owner}(kernel)",
            expected="a kernel that leaves each density between prior and posterior as it is",
            got=f"{kernel.name} with a {kernel.posterior_alone}, which knows the posterior alone",
            fix='move these sites by "conjugate", which finds its law at each temperature, by '
            '"conditional" or by a kernel',
        )
    if not kernel.moves_particles:
        raise ArgumentError(
            f"{owner}(kernel)",
            expected="a kernel that leaves each density between prior and posterior as it is "
            "from its first step on",
            got=f"{kernel.name}, which does not",
            fix="use NUTS, MALA, RandomWalk or another that does",
        )


def _filled(rows: np.ndarray) -> np.ndarray:
    """Rows repeated up to the size of a block."""
    return np.ascontiguousarray(np.resize(rows, (BLOCK, rows.shape[1])))
