"""One run of chains: its target, its chains where they begin, and the drive to their ends.

`target_of` and `chains_of` say what is run from where: from new starts (starts.py), from where an
earlier run stands, or from a checkpoint (saved.py). A `OneRun` makes a `ChainRun` (chain.py) of
each chain and drives them all, in threads (threads.py) or on an executor (remote_chains.py). What
they drew is made `Draws` in collect.py.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.paths import CompileWarning
from probtorch.config import settings
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, default_generator
from probtorch.distributed.group import is_main
from probtorch.errors import CompileError, users_stacklevel
from probtorch.infer.forgotten import warn_of_no_data
from probtorch.infer.mcmc.chain import ChainRun
from probtorch.infer.mcmc.chunk import ChunkRunner
from probtorch.infer.mcmc.inlined import InlinedDensity, brought_home
from probtorch.infer.mcmc.pace import Pace
from probtorch.infer.mcmc.pilot import FormsOfSites, in_form
from probtorch.infer.mcmc.recording import DrawBlock, DrawRecord
from probtorch.infer.mcmc.remote_chains import run_chains_on
from probtorch.infer.mcmc.settings import check_shared_run
from probtorch.infer.mcmc.starts import (
    Start,
    first_chain,
    new_chains,
    resumed_chains,
    runners_of,
)
from probtorch.infer.mcmc.store import DrawStore
from probtorch.infer.mcmc.stored_record import StoredRecord
from probtorch.infer.mcmc.threads import run_chains
from probtorch.infer.mcmc.warm_up.guard import WarmupGuard
from probtorch.infer.potential import ModelTarget, Target

if TYPE_CHECKING:
    from probtorch.infer.control import Control
    from probtorch.infer.mcmc.budget import Budget
    from probtorch.infer.mcmc.saved import SavedRun
    from probtorch.infer.mcmc.settings import RunSettings

__all__ = ["OneRun", "chains_of", "target_of"]


def target_of(
    asked: RunSettings, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[Target, FormsOfSites | None]:
    """Return what a run draws from, and the forms of sites that a pilot chose, if one did."""
    device = None
    if asked.kernel.moves_rows:
        (args, kwargs), device = brought_home((args, kwargs))
    example = asked.params if asked.kernel.model is None else None
    kernel, forms = in_form(asked.kernel, args, kwargs, shown=asked.progress_bar)
    target = kernel.target(args, kwargs, first_chain(example, asked.num_chains))
    target.device = device or target.device
    if isinstance(target, ModelTarget) and asked.num_samples:
        warn_of_no_data(target.without_data, target.array_arguments)
    return target, forms


def chains_of(asked: RunSettings, target: Target, saved: SavedRun) -> Sequence[Start]:
    """Return the chains as they begin: saved ones, those of an earlier run, or new ones."""
    if saved:
        return saved.chains(
            asked.kernel, lambda bare: resumed_chains(target, bare, asked.num_chains)
        )
    if asked.resumed_from is not None:
        return resumed_chains(target, asked.resumed_from, asked.num_chains)
    seed = default_generator if asked.source is None else asked.source
    generator = seed if isinstance(seed, Generator) else Generator(seed)
    warming = asked.num_warmup > 0
    return new_chains(
        asked.kernel, target, asked.params, asked.num_chains, generator, warming=warming
    )


class OneRun:
    """Chains that are ready to go.

    Parameters
    ----------
    asked : RunSettings
    target : Target
    forms : FormsOfSites or None
    chains : sequence
        Of `chains_of`.
    saved : SavedRun

    Attributes
    ----------
    chain_runs : list of ChainRun
    start_gradients : int
        Gradients that it took to find the starts.
    seconds : float
        That sampling took, in earlier processes too.
    """

    def __init__(
        self,
        asked: RunSettings,
        target: Target,
        forms: FormsOfSites | None,
        chains: Sequence[Start],
        saved: SavedRun,
    ) -> None:
        self.asked, self.target, self.forms, self._saved = asked, target, forms, saved
        self._shared = target.parts.ranks > 1
        if self._shared:
            check_shared_run(store=asked.store, executor=asked.executor)
            saved.share()
        self.start_gradients: int = getattr(chains, "gradients", 0)
        self.chain_runs = self._chain_runs(runners_of(chains))
        saved.begin(self.chain_runs, here=asked.executor is None)
        self.seconds = saved.seconds
        self._guard = WarmupGuard(self.chain_runs)

    @property
    def store(self) -> DrawStore | None:
        """Where draws go, if not into memory."""
        return self._saved.store

    def drive(self, budget: Budget, stacklevel: int) -> str:
        """Run all chains to their ends; returns what ended them early, if anything did."""
        began = time.perf_counter()
        ended = self._driven(budget, stacklevel + 1)
        self.seconds += time.perf_counter() - began
        self.warn(stacklevel)
        return ended

    def drive_quietly(self, budget: Budget, control: Control) -> str:
        """Run all chains in a thread of their own; `warn` is for who asks for the draws."""
        began = time.perf_counter()
        ended = self._driven(budget, 2, control)
        self.seconds += time.perf_counter() - began - control.waited
        return ended

    def warn(self, stacklevel: int) -> None:
        """Tell what is wrong with the warm-up of chains, if that is wanted."""
        if self.asked.diagnose and (is_main() or not self._shared):
            self._guard.warn(stacklevel + 1)

    def _driven(self, budget: Budget, stacklevel: int, control: Control | None = None) -> str:
        if self._shared:
            check_shared_run(max_seconds=budget.max_seconds)
        try:
            if self.asked.executor is not None:
                return run_chains_on(
                    self.asked.executor,
                    self.chain_runs,
                    self._saved,
                    shown=self.asked.progress_bar,
                    look=self._guard.look,
                    seconds=budget.seconds_left(),
                    control=control,
                    stacklevel=stacklevel + 1,
                )
            return run_chains(
                self.chain_runs,
                self._thread_count(),
                self._saved,
                shown=self.asked.progress_bar,
                look=self._guard.look,
                seconds=budget.seconds_left(),
                control=control,
                stacklevel=stacklevel + 1,
            )
        finally:
            try:
                self._saved.update(self.chain_runs, last=True)
            finally:
                self._saved.close()

    def _thread_count(self) -> int:
        # Eager code and hooks run under the interpreter lock and share its state.
        alone = self.asked.hook_fn is not None or not settings.jit
        # Processes that share rows have to evaluate in one order.
        alone = alone or self._shared
        # A GPU has one queue: threads would only wait for each other there.
        alone = alone or self.chain_runs[0].runner.inlined is not None
        return 1 if alone else min(self.asked.num_threads, len(self.chain_runs))

    def _chain_runs(self, runners: list[ChunkRunner]) -> list[ChainRun]:
        asked, saved = self.asked, self._saved
        shape, info = runners[0].position.shape, asked.kernel.info
        if asked.save_params is not None:
            first = wrap(runners[0].position.reshape(-1, shape[-1])[0])
            asked.check_kept(self.target.constrain(first))
        if asked.store is not None and asked.num_samples:
            saved.store = DrawStore(
                asked.store,
                self.target,
                asked.agreed(),
                resumed=bool(saved),
                resumed_id=saved.store_id,
                anew=saved.active,
                names=asked.save_params,
                end=asked.store_end,
            )
            positions = np.stack([runner.position for runner in runners])
            stored = saved.store.begin(positions, asked.num_samples, info, asked.thinning)
            records: Sequence[DrawRecord | StoredRecord] = stored
        else:
            # What is drawn is where it will stay: nothing is put together at the end.
            block = DrawBlock(len(runners), asked.num_samples // asked.thinning, shape, info)
            records = [
                DrawRecord(asked.num_samples, shape, info, asked.thinning, block, i)
                for i in range(len(runners))
            ]
        adapts = asked.resumed_from is None
        warmup = asked.kernel.warmup
        runs = [
            ChainRun(
                runner,
                None,
                asked.num_warmup if adapts else 0,
                self.target,
                asked.num_samples,
                asked.thinning,
                asked.kernel,
                keep_warmup=asked.keep_warmup and adapts,
                hook=self._hook(),
                pace=Pace.of_a_chain(saved.every) if saved.active else None,
                verifying=i == 0,
                draws=records[i],
                warmup=warmup,
            )
            for i, runner in enumerate(runners)
        ]
        self._go_to_device(runners)
        # What cannot be compiled is told here; the others sit down where they run.
        runners[0].prepare()
        return runs

    def _go_to_device(self, runners: list[ChunkRunner]) -> None:
        """Have chains run on the GPU that was asked for, or that has the data.

        Raises
        ------
        CompileError
            If their program has no form there, and the GPU was asked for.
        """
        asked, density = self.asked, runners[0].density
        if not asked.kernel.moves_rows or asked.executor is not None or density is None:
            return
        device = asked.device or self.target.device or density.device
        if device is None or not settings.jit:
            return
        try:
            inlined = InlinedDensity.made(density, runners[0].position[0], device)
            for runner in runners:
                runner.inlined = inlined
            runners[0].prepare()
        except CompileError as error:
            if asked.device is not None:
                raise
            for runner in runners:
                runner.inlined = None
            told = f"chains stay on the CPU\n{error}"
            warnings.warn(told, CompileWarning, stacklevel=users_stacklevel())

    def _hook(self) -> Callable[[np.ndarray, str, int], None] | None:
        hook_fn, kernel, target = self.asked.hook_fn, self.asked.kernel, self.target
        if hook_fn is None:
            return None

        def hook(position: np.ndarray, stage: str, iteration: int) -> None:
            hook_fn(kernel, target.constrain(wrap(np.array(position))), stage, iteration)

        return hook
