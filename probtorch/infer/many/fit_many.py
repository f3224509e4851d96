"""`fit_many`: thousands of independent posteriors of one model.

Data sets that are alike share one compiled density, whose data are exchanged (many_target.py), and
one compiled sampler: what a further data set costs is its transitions. They are fitted block after
block, here or by the workers of an executor, those of a block in step where that can be
(in_step.py); each has a stream of random numbers of its own, so that its draws depend on the seed,
its number and its data alone.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probtorch.compiler.native.threads import get_num_threads
from probtorch.config import configure, settings
from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.diagnostics.convergence import statistics
from probtorch.infer.calibration.displays import TurnProgress
from probtorch.infer.calibration.simulated import kernel_for
from probtorch.infer.control import (
    Control,
    control_here,
    ended_amid_fit,
    ended_before,
    told_to_end,
)
from probtorch.infer.many.approximated import (
    Approximator,
    approximate,
    approximator_for,
    check_one_chain,
)
from probtorch.infer.many.data_sets import ModelCall, calls_of, grouped, padded
from probtorch.infer.many.in_step import draw_in_step, goes_in_step
from probtorch.infer.many.many_fits import FitGroup, ManyFits
from probtorch.infer.many.many_target import ManyTarget, check_meaning
from probtorch.infer.mcmc.chain import ChainRun
from probtorch.infer.mcmc.chunk import ChunkRunner
from probtorch.infer.mcmc.collect import by_chain
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.recording import DrawRecord
from probtorch.infer.mcmc.settings import count
from probtorch.infer.mcmc.starts import new_chains
from probtorch.infer.mcmc.threads import stages
from probtorch.infer.mcmc.warm_up.guard import WarmupGuard
from probtorch.infer.remote.all_of import all_of
from probtorch.infer.remote.pools import ExecutorLike, check_executor
from probtorch.infer.remote.workers import portable, this_worker
from probtorch.infer.starts.initialization import init_to_uniform

__all__ = ["fit_many"]

# Data sets that are fitted in one task, and the numbers that a block's draws may take.
BLOCK, BLOCK_NUMBERS = 64, 2**22
# In step, blocks may be larger, as long as there are so many of them for workers to share.
LARGE_BLOCK, BLOCKS = 256, 16
# Coordinates for which a dense metric costs nothing beside the rest of a transition.
DENSE = 30


@dataclass(frozen=True)
class ManyPlan:
    """What the fits of data sets that are alike have in common."""

    target: ManyTarget
    kernel: Kernel | Approximator
    num_samples: int
    num_warmup: int
    num_chains: int
    thinning: int
    in_step: bool = False
    threads: int = 1

    @property
    def together(self) -> bool:
        """Whether data sets of a block are fitted together, so that large ones are better."""
        return self.in_step or not isinstance(self.kernel, Kernel)


@dataclass(frozen=True)
class DataBlock:
    """Data sets to be fitted, each with its number and its randomness."""

    numbers: list[int]
    calls: list[ModelCall]
    streams: list[Generator]


@dataclass(frozen=True)
class FittedBlock:
    """What came of a block: rows are of those data sets that are not in `failed`."""

    posterior: dict[str, np.ndarray]
    diagnostics: dict[str, np.ndarray]
    failed: dict[int, Exception]

    def __getstate__(self) -> dict[str, object]:
        worker = this_worker()
        told = {number: portable(error, worker) for number, error in self.failed.items()}
        return {**self.__dict__, "failed": told}


@explained("fit_many")
def fit_many(
    model: Callable[..., object],
    datasets: Sequence[object] | Mapping[object, object],
    kernel: Callable[..., Kernel | Approximator] | Kernel | Approximator | None = None,
    *,
    num_samples: int = 500,
    warmup_steps: int = 300,
    num_chains: int = 1,
    thinning: int = 1,
    mask: str | None = None,
    seed: int | Generator | None = None,
    executor: ExecutorLike | None = None,
    progress_bar: bool = True,
) -> ManyFits:
    """Sample the posterior of one model given each of many data sets.

    Use it for one small model per shop, patient, gene or simulation, where the model says nothing
    of what they have in common; a hierarchical model says it.

    Parameters
    ----------
    model : callable
    datasets : sequence or mapping
        What the model is called with for each: a tuple of arguments, a dict of named ones, or the
        only argument. The keys of a mapping are the labels of the result, else numbers.
    kernel : class, callable or kernel, optional
        ``kernel(model)`` makes the kernel, `NUTS` for example; or a kernel, whose settings are then
        used. By default NUTS from random starts, with a dense metric for up to 30 coordinates:
        what costs least where a posterior takes milliseconds. Or an approximation:
        `LaplaceApproximation`, `Pathfinder` or `DADVI`, by class or as an object or function with
        its settings; then there are independent draws, and ``diagnostics["pareto_k"]`` in place of
        those of chains.
    num_samples, warmup_steps, num_chains, thinning : int
        For each data set, as for `MCMC`.
    mask : str, optional
        For data sets of different lengths: the model's argument that takes a bool tensor, False for
        rows that are no data. All are then as long as the longest, their last rows repeated.
        Without it data sets of each length are compiled for themselves.
    seed : int or Generator, optional
        Source of all randomness; a child of the default generator if None.
    executor : concurrent.futures.Executor or callable, optional
        Where blocks of data sets are fitted; here, one after the other, by default. The draws do
        not depend on it.
    progress_bar : bool

    Returns
    -------
    ManyFits
        ``fits.draws`` has all draws with a dim "data_set", ``fits[label]`` those of one,
        ``fits.diagnostics`` and ``fits.doubtful`` a verdict on each, ``fits.failed`` the errors of
        those that could not be fitted. After Ctrl-C, of those that were done.

    Raises
    ------
    ArgumentError
        For settings that are no counts; if there are no data sets.
    Exception
        That of the first data set, if none could be fitted.
    KeyboardInterrupt
        On Ctrl-C before the first is done.

    Notes
    -----
    Arrays and floats are data, which the model gets as tensors; whole numbers, text and the shapes
    of arrays are what the model is compiled for, once for each combination. Other objects (tables
    in dicts, sparse matrices) are compiled for, too, each for itself: pass the same object where it
    is the same. Whole numbers in arrays are data up to 2**53. A model that turns data into Python
    numbers works, at the speed of Python. Data in closures are the same for all.

    Examples
    --------
    >>> import numpy as np
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import fit_many
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 10.0))
    ...     with probtorch.plate("row", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> rng = np.random.default_rng(0)
    >>> data = {shop: rng.normal(shop, 1.0, 20) for shop in range(5)}
    >>> fits = fit_many(model, data, seed=0, progress_bar=False)
    >>> fits.draws.posterior["mu"].shape, fits[3].posterior["mu"].shape
    ((1, 500, 5), (1, 500))
    """
    chains = count("num_chains", num_chains, 1)
    samples, warmup = count("num_samples", num_samples, 1), count("warmup_steps", warmup_steps, 0)
    thinning = count("thinning", thinning, 1)
    if executor is not None:
        check_executor(executor, "fit_many")
    if not issubclass(type(datasets), (Mapping, str, bytes)) and hasattr(datasets, "__iter__"):
        datasets = list(datasets)
    calls = calls_of(datasets)
    if mask is not None:
        calls = padded(calls, mask)
    generator = default_generator if seed is None else seed
    if not isinstance(generator, Generator):
        generator = Generator(generator)
    labels = list(calls)
    streams = dict(zip(labels, generator.spawn(len(labels))))
    numbers = {label: i for i, label in enumerate(labels)}
    began = time.perf_counter()
    groups: list[FitGroup] = []
    failed: dict[object, Exception] = {}
    interrupted = False
    with TurnProgress(len(labels), "data sets", shown=progress_bar) as progress:
        for alike in grouped(calls):
            target, alike = _first_target(model, calls, alike, failed, progress)
            if target is None:
                continue
            if mask is None:
                check_meaning(target, datasets[alike[0]])  # type: ignore[call-overload]  # by its label
            plan = _planned(target, kernel, executor, (samples, warmup, chains, thinning))
            per_set = chains * (samples // thinning) * (target.dim + target.group.size + 8)
            most = (
                BLOCK if not plan.together else max(BLOCK, min(LARGE_BLOCK, len(alike) // BLOCKS))
            )
            size = max(1, min(most, BLOCK_NUMBERS // max(per_set, 1)))
            parts = [alike[i : i + size] for i in range(0, len(alike), size)]
            blocks = [
                DataBlock([numbers[x] for x in p], [calls[x] for x in p], [streams[x] for x in p])
                for p in parts
            ]
            done = all_of(
                fit_block,
                plan,
                blocks,
                executor=executor,
                names=[f"data sets {p[0]!r} to {p[-1]!r}" for p in parts],
                what="a model, its data and its kernel",
                finished=functools.partial(_tell_of, progress, parts),
            )
            interrupted = done.interrupted
            group = _joined(target, parts, done.results, failed, labels)
            for i, error in done.failed.items():
                failed |= dict.fromkeys(parts[i], error)
            if group is not None:
                groups.append(group)
            if interrupted:
                break
    if not groups:
        if interrupted:
            raise ended_before("fit_many", "the first block of data sets")
        raise next(iter(failed.values()))
    found = ManyFits(
        getattr(model, "__name__", type(model).__name__),
        groups,
        failed,
        seconds=time.perf_counter() - began,
        interrupted=interrupted,
    )
    if interrupted:
        print(f"interrupted: keeping {len(found)} data sets", file=sys.stderr, flush=True)
    return found


def _planned(
    target: ManyTarget, kernel: object, executor: ExecutorLike | None, settings: Sequence[int]
) -> ManyPlan:
    """What is done with data sets like the target's."""
    samples, warmup, chains, thinning = settings
    engine = None if kernel is None else approximator_for(kernel, target)
    if engine is not None:
        check_one_chain(chains, thinning)
        return ManyPlan(target, engine, samples, warmup, chains, thinning)
    made = kernel_for(kernel or _cheap_nuts, target, "fit_many")
    in_step = goes_in_step(made, target, warmup)
    threads = get_num_threads() if executor is None else 1
    return ManyPlan(target, made, samples, warmup, chains, thinning, in_step, threads)


def _cheap_nuts(target: ManyTarget) -> NUTS:
    """What spends its time in transitions, not in Python around them (decisions/scale.md)."""
    return NUTS(target, init_strategy=init_to_uniform, full_mass=target.dim <= DENSE or None)


def _tell(progress: TurnProgress, done: int) -> None:
    for _ in range(done):
        progress.update(math.nan)


def _tell_of(progress: TurnProgress, parts: Sequence[Sequence[object]], number: int) -> None:
    _tell(progress, len(parts[number]))


def _first_target(
    model: Callable[..., object],
    calls: Mapping[object, ModelCall],
    alike: list[object],
    failed: dict[object, Exception],
    progress: TurnProgress,
) -> tuple[ManyTarget | None, list[object]]:
    """A target of the first data set that the model can be run on, and what comes from there."""
    for at, label in enumerate(alike):
        try:
            return ManyTarget(model, calls[label]), alike[at:]
        except Exception as error:
            failed[label] = error
            _tell(progress, 1)
    return None, []


def _joined(
    target: ManyTarget,
    parts: Sequence[Sequence[object]],
    results: Mapping[int, FittedBlock],
    failed: dict[object, Exception],
    labels: Sequence[object],
) -> FitGroup | None:
    """All blocks of data sets that are alike as one group, failures by their labels."""
    blocks = [results[i] for i in sorted(results)]
    for block in blocks:
        failed |= {labels[number]: error for number, error in block.failed.items()}
    kept = [x for i in sorted(results) for x in parts[i] if x not in failed]
    whole = [b for b in blocks if b.posterior]
    if not whole:
        return None

    def together(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return FitGroup(
        kept,
        together([b.posterior for b in whole]),
        together([b.diagnostics for b in whole]),
        target.dims,
        target.coords,
    )


# --------------------------------------------------------------------------------------- a data set


def fit_block(plan: ManyPlan, block: DataBlock) -> FittedBlock:
    """Fit the data sets of a block: in step where that can be, else one after the other."""
    if not isinstance(plan.kernel, Kernel):
        return _approximated_block(plan, plan.kernel, block)
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    failed: dict[int, Exception] = {}
    if plan.in_step:
        fits = draw_in_step(
            plan.kernel,
            plan.target,
            block.calls,
            block.streams,
            block.numbers,
            num_warmup=plan.num_warmup,
            num_samples=plan.num_samples,
            num_chains=plan.num_chains,
            thinning=plan.thinning,
            threads=plan.threads,
        )
        for i, drawn, *stats in zip(fits.done, fits.positions, fits.divergences, fits.accept):
            found[int(i)] = drawn, np.array(stats)
    for i, (number, call, stream) in enumerate(zip(block.numbers, block.calls, block.streams)):
        if i in found:
            continue
        # Compiled code is compared with Python's answer now and then, less and less often.
        verify = settings.verify and number & (number - 1) == 0
        try:
            with configure(verify=verify):
                target = plan.target.at(call)
                records = list(_draw(plan, target, stream, verify))
        except Exception as error:
            if told_to_end():  # which may be why
                raise ended_amid_fit() from error
            failed[number] = error
            continue
        stats = [np.sum(_stat(records, "diverging")), np.mean(_stat(records, "acceptance_rate"))]
        found[i] = by_chain([r.positions for r in records], 1), np.array(stats)
    if not found:
        return FittedBlock({}, {}, failed)
    drawn = np.stack([found[i][0] for i in sorted(found)])
    data = [plan.target.group.packed(block.calls[i]) for i in sorted(found)]
    posterior = plan.target.values(drawn, np.stack(data))
    sets, chains, draws, dim = drawn.shape
    columns = statistics(np.moveaxis(drawn, 0, 2).reshape(chains, draws, sets * dim))
    worst = {name: columns[name].reshape(sets, dim) for name in ("r_hat", "ess_bulk")}
    divergences, accept = np.stack([found[i][1] for i in sorted(found)]).T
    diagnostics = {
        "r_hat": worst["r_hat"].max(axis=1),
        "ess": worst["ess_bulk"].min(axis=1),
        "divergences": divergences.astype(int),
        "accept": accept,
    }
    return FittedBlock(posterior, diagnostics, failed)


def _approximated_block(plan: ManyPlan, engine: Approximator, block: DataBlock) -> FittedBlock:
    """Approximate the posteriors of a block."""
    found = approximate(engine, plan.target, block.calls, block.streams, plan.num_samples)
    if told_to_end():
        raise ended_amid_fit()
    failed = {number: x for number, x in zip(block.numbers, found) if isinstance(x, Exception)}
    done = [(x, call) for x, call in zip(found, block.calls) if not isinstance(x, Exception)]
    if not done:
        return FittedBlock({}, {}, failed)
    data = np.stack([plan.target.group.packed(call) for _, call in done])
    drawn = np.stack([points for (points, _), _ in done])[:, None]
    k = np.array([k for (_, k), _ in done])
    return FittedBlock(plan.target.values(drawn, data), {"pareto_k": k}, failed)


def _draw(
    plan: ManyPlan, target: ManyTarget, stream: Generator, verify: bool
) -> Iterator[DrawRecord]:
    """Run the chains of one data set to their ends."""
    assert isinstance(plan.kernel, Kernel)
    runs = [
        ChainRun(
            ChunkRunner(chain),
            context,
            plan.num_warmup,
            target,
            plan.num_samples,
            plan.thinning,
            plan.kernel,
            verifying=verify and i == 0,
        )
        for i, (chain, context) in enumerate(
            new_chains(
                plan.kernel, target, None, plan.num_chains, stream, warming=plan.num_warmup > 0
            )
        )
    ]
    control = Control(control_here())
    for chosen, stage in stages(runs, WarmupGuard(runs).look):
        for run in chosen:
            stage(run, control)
            if run.error is not None:
                raise run.error
            if control.stopped:
                raise ended_amid_fit()
    for run in runs:
        assert isinstance(run.draws, DrawRecord)
        yield run.draws


def _stat(records: Sequence[DrawRecord], name: str) -> np.ndarray:
    """A statistic of all draws; nan for a kernel that does not tell."""
    if name not in records[0].stats:
        return np.full(1, 0.0 if name == "diverging" else math.nan)
    return np.stack([r.stats[name] for r in records])


explain_calls(globals())
