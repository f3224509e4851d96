"""`MCMC`: runs chains of a kernel, and keeps what they drew.

What users call is here. The course of a run: a target is made of the model, chains start and each
runs in a thread (one_run.py), and what they drew is put together (collect.py). A chain's draws
depend on the seed and its number only: they are the same bit for bit for any number of threads, and
however often the chunks are cut.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from probtorch.compiler.native.pages import sparing
from probtorch.core.arguments import count_of
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tree import replace
from probtorch.core.typed import TensorLike
from probtorch.diagnostics.checks import warn_about
from probtorch.diagnostics.stored import let_go
from probtorch.distributed.group import is_main
from probtorch.errors import ArgumentError, InferenceError, users_stacklevel
from probtorch.infer.checkpoint import settings_that_differ
from probtorch.infer.control import shown_to_any_thread
from probtorch.infer.display import activity
from probtorch.infer.mcmc.budget import Budget
from probtorch.infer.mcmc.chunk import Chain
from probtorch.infer.mcmc.collect import KeptDraws, draws_so_far
from probtorch.infer.mcmc.extended import ExtendedRun, RunUntilEnough
from probtorch.infer.mcmc.handle import RunHandle
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.one_run import OneRun, chains_of, target_of
from probtorch.infer.mcmc.pilot import FormsOfSites
from probtorch.infer.mcmc.run_results import RunResults, checked_fields
from probtorch.infer.mcmc.saved import SavedRun, chain_leaves, chain_of
from probtorch.infer.mcmc.settings import (
    MEANT,
    RunSettings,
    check_settings,
    count,
    one_of,
    the_device,
    the_kernel,
)
from probtorch.infer.mcmc.starts import Params
from probtorch.infer.remote.pools import ExecutorLike
from probtorch.infer.results import SampledDraws

if TYPE_CHECKING:
    from probtorch.infer.checkpoint import Checkpoint
    from probtorch.tensor import Tensor

__all__ = ["MCMC"]

# Draws and gradients together tell so much that more warm-up gains nothing (benchmarks/warmup.py).
DEFAULT_WARMUP = 400
# Of draws on the disk so many numbers are judged, but at least so many draws of a chain.
JUDGED, FEWEST_JUDGED = 2**18, 250


class MCMC(RunResults):
    """Run Markov chains and keep their draws.

    Parameters
    ----------
    kernel : Kernel
        `NUTS(model)`, say. NumPyro's `sampler`.
    num_samples : int
        Draws per chain after warm-up, before thinning.
    warmup_steps : int, optional
        Iterations of adaptation, 400 by default. NumPyro's `num_warmup`.
    initial_params : dict or array_like, optional
        Where chains start, in unconstrained space: one value per site, or with a leading dim of
        size `num_chains`. Constrained ones, of some sites or all, are the kernel's:
        ``init_strategy=init_to_value(values={...})``.
    num_chains : int
    hook_fn : callable, optional
        ``hook_fn(kernel, params, stage, i)`` after each iteration, with the constrained values by
        name and stage "Warmup" or "Sample". Chains then run one after the other.
    thinning : int
        Keep every so many-th draw. Divergences and steps of the draws between are counted with the
        one that is kept.
    chain_method : {"parallel", "sequential", "vectorized"}
        A thread per chain, or one thread for all; "vectorized" is the same as "parallel". The draws
        do not depend on it.
    num_threads : int, optional
        Threads to use instead.
    seed : int or Generator, optional
        Source of all randomness; a child of the default generator, which `manual_seed` sets, if
        None.
    keep_warmup : bool
        Whether to keep the draws of the warm-up, as groups of their own.
    save_params : sequence of str, optional
        Variables to keep; all by default.
    executor : concurrent.futures.Executor or callable, optional
        Where chains run instead of in threads: a process pool, that of a Dask client, an MPI pool,
        or a function that makes one. The draws do not depend on it.
    device : str, optional
        "cuda": a GPU on which all walkers of a kernel that has many (`ChEESHMC`, `SNAPERHMC`,
        `MEADS`) move at once, with the model's density and its data. The draws are those of the
        CPU, to rounding.
    progress_bar : bool
        Whether to show progress; `disable_progbar` is the same the other way round,
        ``PROBTORCH_PROGRESS=0`` switches it off for the process.
    mp_context, disable_validation, jit_model_args
        Accepted so that scripts run unchanged: chains are threads, and everything is compiled.
    transforms, postprocess_fn
        Only None.

    Attributes
    ----------
    draws : Draws
        The result of the last run.
    target : Target
    last_state : tuple of Chain
        Where each chain stands; `post_warmup_state` set to it makes the next run go on from there,
        bit for bit.
    seconds : dict of str to float
        Time taken for "model", "compile" and "sampling".
    forms : FormsOfSites or None
        What ``NUTS(model, reparam="auto")`` chose; `draws.attrs` has it as "reparam".
    diagnose : bool
        Whether a run ends with `diagnose`, and warns of what it finds; worth setting to False for
        thousands of short runs that are judged together.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> y = probtorch.tensor([1.0, 1.0, 0.0, 1.0])
    >>> mcmc = MCMC(NUTS(coin), num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run(y)
    Draws(4 chains x 500 draws: p)
    >>> mcmc.get_samples()["p"].shape
    Size([2000])
    """

    @explained("MCMC", meant=MEANT)
    def __init__(
        self,
        kernel: Kernel | None = None,
        num_samples: int | None = None,
        warmup_steps: int | None = None,
        initial_params: TensorLike | Mapping[str, TensorLike] | None = None,
        num_chains: int = 1,
        hook_fn: Callable[[Kernel, dict[str, Tensor], str, int], object] | None = None,
        mp_context: str | None = None,
        disable_progbar: bool = False,
        disable_validation: bool = True,
        transforms: None = None,
        save_params: Sequence[str] | None = None,
        *,
        sampler: Kernel | None = None,
        num_warmup: int | None = None,
        thinning: int = 1,
        postprocess_fn: None = None,
        chain_method: str = "parallel",
        progress_bar: bool = True,
        jit_model_args: bool = False,
        num_threads: int | None = None,
        seed: int | Generator | None = None,
        keep_warmup: bool = False,
        executor: ExecutorLike | None = None,
        device: str | None = None,
    ) -> None:
        self.kernel = the_kernel(kernel, sampler)
        check_settings(chain_method, initial_params, transforms, postprocess_fn, executor, hook_fn)
        self.num_samples = count("num_samples", num_samples, 1)
        given = one_of("warmup_steps", warmup_steps, "num_warmup", num_warmup)
        self.num_warmup = DEFAULT_WARMUP if given is None else count("warmup_steps", given, 0)
        self.num_chains = count("num_chains", num_chains, 1)
        self.thinning = count("thinning", thinning, 1)
        if self.thinning > self.num_samples:
            raise ArgumentError(
                "MCMC(thinning=...)",
                expected=f"at most num_samples, {self.num_samples}",
                got=str(thinning),
                fix="num_samples counts draws before thinning",
            )
        default = (
            1 if chain_method == "sequential" else min(self.num_chains, 4 * (os.cpu_count() or 1))
        )
        self.num_threads = default if num_threads is None else count("num_threads", num_threads, 1)
        self.initial_params, self.hook_fn, self.save_params = initial_params, hook_fn, save_params
        self.executor, self.device = executor, the_device(device, self.kernel, executor)
        self.progress_bar = bool(progress_bar) and not disable_progbar
        self.keep_warmup = bool(keep_warmup)
        self.seed = seed
        self.diagnose = True

        self.post_warmup_state: Sequence[Chain] | None = None
        self.seconds: dict[str, float] = {}
        self.forms: FormsOfSites | None = None
        self._under_way: RunHandle | None = None
        self._store: str | None = None
        self._store_id = ""
        self._row: dict[str, object] = {}
        self._draws = None
        self._extra_fields = ()

    # -------------------------------------------------------------------------------------- running

    @overload
    def run(
        self,
        *args: object,
        init_params: TensorLike | Mapping[str, TensorLike] | None = None,
        extra_fields: Sequence[str] = (),
        rng_key: int | Generator | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        store: str | os.PathLike[str] | None = None,
        until_ess: float | None = None,
        max_seconds: float | None = None,
        blocking: Literal[True] = True,
        **kwargs: object,
    ) -> SampledDraws: ...
    @overload
    def run(
        self,
        *args: object,
        init_params: TensorLike | Mapping[str, TensorLike] | None = None,
        extra_fields: Sequence[str] = (),
        rng_key: int | Generator | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        store: str | os.PathLike[str] | None = None,
        until_ess: float | None = None,
        max_seconds: float | None = None,
        blocking: Literal[False],
        **kwargs: object,
    ) -> RunHandle: ...
    def run(
        self,
        *args: object,
        init_params: TensorLike | Mapping[str, TensorLike] | None = None,
        extra_fields: Sequence[str] = (),
        rng_key: int | Generator | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        store: str | os.PathLike[str] | None = None,
        until_ess: float | None = None,
        max_seconds: float | None = None,
        blocking: bool = True,
        **kwargs: object,
    ) -> SampledDraws | RunHandle:
        """Warm up and sample, given the arguments of the model.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        init_params : dict or array_like, optional
            As `initial_params` of the constructor.
        extra_fields : sequence of str
            Statistics that `get_extra_fields` returns; all are kept anyway.
        rng_key : int or Generator, optional
            As `seed` of the constructor.
        checkpoint : path or Checkpoint, optional
            A folder in which chains and draws are saved as the run goes on, for a run that is
            killed: the same call goes on from there, in the middle of the warm-up too, and its
            draws are those of a run without a break, bit for bit.
        checkpoint_every : float, optional
            Seconds between two checkpoints. By default a kill loses at most 50 draws of a chain or
            two seconds, whichever is less, as far as saving takes no more than 1 % of the
            processor's time: half a second for a fast chain of few draws, longer for many draws
            without `store`, all of which are in each file.
        store : path, optional
            A folder that draws go to as they are drawn, so that memory does not grow with the run.
            The result maps its files; ``Draws.load(store)`` reads it while the run goes on, or
            after it was killed. What the warm-up draws stays in memory.
        until_ess : float, optional
            Go on beyond `num_samples` until bulk and tail effective size of every parameter are at
            least this, over all chains. With a checkpoint that is saved, too, in folders beside the
            files of the first `num_samples`. With a store its files are copied into longer ones
            each time that more turns out to be missing.
        max_seconds : float, optional
            Stop after this time, warm-up included and compiling not, and keep what was drawn.
        blocking : bool
            False returns as soon as the chains have begun; they go on in the background.

        Returns
        -------
        Draws
            If `blocking`; else a `RunHandle`, by which the run is paused, looked at and ended, and
            whose `result` is the draws.

        Raises
        ------
        InferenceError
            If no chain could start or go on; if the time was up before the first draw.
        ArgumentError
            If the folder has a run with other settings, another model or other data; if an extra
            field is not among the statistics.
        FileError
            If a folder cannot be written to when the run begins. Later on a checkpoint that fails
            is a warning (see `Checkpoint`); a `store` that takes no more draws ends the run.
        KeyboardInterrupt
            On Ctrl-C before any draw after warm-up, or on a second Ctrl-C. A first one later on
            keeps what was drawn.

        Warns
        -----
        InferenceWarning
            For divergences, chains that disagree, and whatever else `diagnose` finds; for chains
            that failed.
        """
        self._extra_fields = checked_fields(self.kernel, extra_fields)
        budget = Budget(until_ess, max_seconds)
        self._check_idle("MCMC.run")
        self._store = None if store is None else os.path.abspath(os.fspath(store))
        asked = self._asked(self.num_samples, init_params, rng_key)
        saved = SavedRun(checkpoint, checkpoint_every, asked.agreed())
        if not blocking:
            run = self._begun(args, kwargs, asked, saved)
            self._under_way = self._in_background(run, saved, budget)
            return self._under_way
        level = users_stacklevel() + 1
        self._run(args, kwargs, asked, saved, budget, level)
        if budget.until_ess is not None:
            self._extended(0, budget, level, saved)
        self._judge(self.draws, level)
        return self.draws

    def more(
        self,
        num_samples: int,
        *,
        until_ess: float | None = None,
        max_seconds: float | None = None,
    ) -> SampledDraws:
        """Go on from where the last run ended, and append what is drawn.

        Parameters
        ----------
        num_samples : int
            Draws per chain, before thinning.
        until_ess, max_seconds : float, optional
            As for `run`.

        Returns
        -------
        Draws
            All of them, those of the last run first. They are what one longer run would have drawn.

        Raises
        ------
        InferenceError
            If there was no run.
        ArgumentError
            If the draws of the last run are not in its `store` any more; if `thinning` or
            `save_params` are not what they were.

        Notes
        -----
        With a `store` its files are copied into longer ones, which takes as long as the disk needs
        for what is there, and once more the room of the largest until that is done. Draws that were
        returned before stay as they are; while something refers to them, so does their room.
        """
        self._check_idle("MCMC.more")
        if self._draws is None or self.target is None:
            raise InferenceError(
                "MCMC.more", expected="a finished run", got="none", fix="call run() first"
            )
        now = self._asked(0).row()
        if now != self._row:
            raise ArgumentError(
                "MCMC.more",
                expected="settings of draws that are those of the run that it goes on from",
                got=settings_that_differ(self._row, now),
                fix="set them as they were, or call run(): draws.select takes fewer variables",
            )
        budget = Budget(until_ess, max_seconds)
        more = count_of(
            "MCMC.more", "num_samples", num_samples, self.thinning, fix="for example 1000"
        )
        level = users_stacklevel() + 1
        self._extended(more, budget, level, SavedRun(None, None, {}))
        self._judge(self.draws, level)
        return self.draws

    def _extended(self, more: int, budget: Budget, stacklevel: int, first: SavedRun) -> None:
        """Append so many draws, and what is missing then; saved if the first run was."""
        asked = self._asked(self.num_samples)
        extended = ExtendedRun(
            asked, self.target, self.forms, first,
            self.draws, self.last_state, self.seconds["sampling"], self._store_id,
        )  # fmt: skip
        self._draws = None  # who holds them holds the room of their files

        def drive(run: OneRun) -> str:
            return run.drive(budget, stacklevel + 4)

        try:
            with shown_to_any_thread(extended.so_far):
                extended.until_enough(budget, drive, more)
        finally:
            self._take(extended)
        extended.warn(stacklevel)

    def _take(self, extended: ExtendedRun) -> None:
        """Keep what an extended run has come to."""
        self._draws, self.last_state = extended.draws, extended.states
        self.seconds["sampling"], self._store_id = extended.seconds, extended.store_id

    def warmup(
        self,
        *args: object,
        init_params: Params | None = None,
        collect_warmup: bool = False,
        rng_key: int | Generator | None = None,
        **kwargs: object,
    ) -> None:
        """Warm up only; the next `run` goes on from there.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        init_params, rng_key
            As for `run`.
        collect_warmup : bool
            Whether `get_samples` returns the draws of the warm-up until then.
        """
        self._check_idle("MCMC.warmup")
        self.post_warmup_state = self._store = None
        keep, self.keep_warmup = self.keep_warmup, collect_warmup or self.keep_warmup
        try:
            asked = self._asked(0, init_params, rng_key)
            self._run(args, kwargs, asked, SavedRun(None, None, {}), Budget(), stacklevel=3)
        finally:
            self.keep_warmup = keep
        self.post_warmup_state = self.last_state

    def _asked(
        self,
        num_samples: int,
        init_params: Params | None = None,
        rng_key: int | Generator | None = None,
    ) -> RunSettings:
        """What one run is asked for, as it stands now."""
        return RunSettings(
            kernel=self.kernel,
            num_samples=num_samples,
            num_warmup=self.num_warmup,
            num_chains=self.num_chains,
            thinning=self.thinning,
            num_threads=self.num_threads,
            params=self.initial_params if init_params is None else init_params,
            seed=self.seed,
            rng_key=rng_key,
            resumed_from=self.post_warmup_state,
            hook_fn=self.hook_fn,
            executor=self.executor,
            device=self.device,
            save_params=self.save_params,
            progress_bar=self.progress_bar,
            keep_warmup=self.keep_warmup,
            diagnose=self.diagnose,
            store=self._store,
        )

    def _run(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        asked: RunSettings,
        saved: SavedRun,
        budget: Budget,
        stacklevel: int,
    ) -> SampledDraws | None:
        run = self._begun(args, kwargs, asked, saved)
        with shown_to_any_thread(functools.partial(draws_so_far, run)):
            ended = run.drive(budget, stacklevel + 1)
        return self._collect(run, ended, stacklevel + 1)

    def _begun(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        asked: RunSettings,
        saved: SavedRun,
    ) -> OneRun:
        """A run whose chains are ready to go."""
        self._draws, self._row = None, asked.row()
        began = time.perf_counter()
        with saved, activity("compiling the model", shown=self.progress_bar):
            # Who asks why a chain could not start has the target to look at.
            self.target, self.forms = target_of(asked, args, kwargs)
            chains = chains_of(asked, self.target, saved)
        prepared = time.perf_counter()
        with saved, activity("compiling the sampler", shown=self.progress_bar):
            run = OneRun(asked, self.target, self.forms, chains, saved)
        self.seconds = {
            "model": prepared - began,
            "compile": time.perf_counter() - prepared,
            "sampling": run.seconds,
        }
        return run

    def _in_background(self, run: OneRun, saved: SavedRun, budget: Budget) -> RunHandle:
        whole = RunUntilEnough(run, saved, budget, self._asked(self.num_samples))

        def finish(ended: str, stacklevel: int) -> SampledDraws:
            self._under_way = None
            run.warn(stacklevel)
            if whole.kept is None or whole.extended is None:
                draws = self._collect(run, ended, stacklevel + 1)
                assert draws is not None  # there were samples to draw
            else:
                whole.kept.warn(stacklevel)
                whole.extended.warn(stacklevel)
                self._take(whole.extended)
                draws = self.draws
                if whole.error is not None:
                    raise whole.error
            self._judge(draws, stacklevel + 1)
            return draws

        return RunHandle(whole.lineages, whole.drive, finish, whole.so_far)

    def _check_idle(self, what: str) -> None:
        """Refuse to begin anew while a run goes on in the background."""
        if self._under_way is not None:
            raise InferenceError(
                what,
                expected="an MCMC whose last run has ended",
                got="a run in the background whose draws were not asked for",
                fix="call result() or abort() of its handle, or make another MCMC",
            )

    def _collect(self, run: OneRun, ended: str, stacklevel: int) -> SampledDraws | None:
        """Keep where the chains stand, and what they drew."""
        self.seconds["sampling"] = run.seconds
        kept = KeptDraws(run, ended)
        kept.warn(stacklevel)
        self.last_state, self._store_id = kept.states, kept.store_id
        self._draws = kept.draws() if run.asked.num_samples else kept.warmup_draws()
        return self._draws if run.asked.num_samples else None

    def _judge(self, draws: SampledDraws, stacklevel: int) -> None:
        """Warn of what is doubtful, if that is wanted."""
        # Processes that share rows have the same draws: one tells of them.
        if not self.diagnose or (self.target.parts.ranks > 1 and not is_main()):
            return
        every = 1
        if self._store is not None:
            numbers = sum(x.size for x in draws.posterior.values())
            every = max(1, min(-(-numbers // JUDGED), draws.num_draws // FEWEST_JUDGED))
        with sparing(self._store is not None):
            warn_about(draws, every=every, stacklevel=stacklevel)
        let_go(draws.sample_stats.values())

    # ------------------------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, list[list[np.ndarray]]]:
        """Return where the chains of the last run stand, for `probtorch.save`.

        Returns
        -------
        dict
            ``{"chains": lists of arrays}``.

        Raises
        ------
        InferenceError
            If there was no run.
        """
        if self.last_state is None:
            raise InferenceError(
                "MCMC.state_dict", expected="a finished run", got="none", fix="call run() first"
            )
        return {"chains": [chain_leaves(chain) for chain in self.last_state]}

    def load_state_dict(self, state: dict[str, list[list[np.ndarray]]]) -> None:
        """Let the next run go on, adapted, from where `state_dict` was taken.

        Parameters
        ----------
        state : dict

        Raises
        ------
        ArgumentError
            If it is of another kernel.
        """
        self.post_warmup_state = tuple(chain_of(self.kernel, x) for x in state["chains"])

    def __getstate__(self) -> dict[str, object]:
        # Threads and executors stay where they are.
        return {**self.__dict__, "_under_way": None, "executor": None, "_states": self.last_state}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        # Draws leave their model behind, which is here.
        if self._draws is not None and self._draws.target is None:
            self._draws = replace(self._draws, target=self.target)

    def __repr__(self) -> str:
        sizes = ("num_samples", "num_warmup", "num_chains")
        return f"MCMC({self.kernel!r}, {', '.join(f'{n}={getattr(self, n)}' for n in sizes)})"


explain_calls(globals())
