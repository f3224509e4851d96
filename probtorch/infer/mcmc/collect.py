"""What chains drew, as `Draws`: which of them count, how many draws of each, with what statistics.

`KeptDraws` is the end of a run: a chain that failed is left out. After Ctrl-C chains have
got to different lengths, and the rectangle that keeps the most draws is cut out of them.
`draws_so_far` is the same of a run that goes on.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from probtorch.core.tree import replace
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import InferenceError
from probtorch.infer.control import TimeIsUp
from probtorch.infer.levels import Structure
from probtorch.infer.mcmc.chain import ChainRun
from probtorch.infer.mcmc.chunk import Chain, ChunkRunner
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.recording import DrawRecord, most_draws
from probtorch.infer.mcmc.stored_record import StoredRecord
from probtorch.infer.mcmc.warm_up.adapted import aims_of
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.results import SampledDraws, make_draws

if TYPE_CHECKING:
    from probtorch.infer.mcmc.one_run import OneRun

__all__ = [
    "KeptDraws",
    "LastStates",
    "by_chain",
    "draws_so_far",
    "sampled_draws",
    "states_of",
    "survivors",
    "warn_of_failed",
]


class KeptDraws:
    """What is left of a run that has ended: chains that are well, and equally many draws of each.

    Parameters
    ----------
    run : OneRun
    ended : str
        What ended it early, "interrupted", "timed out" or "aborted"; else empty.

    Attributes
    ----------
    states : LastStates
        Where the chains stand.
    numbers : list of int
        Which chains they are.
    store_id : str
        Of the store that has what was drawn, if one has.

    Raises
    ------
    BaseException
        The error of the first chain, if none is well.
    KeyboardInterrupt, InferenceError
        If a run that was to sample ended before its first draw.
    """

    def __init__(self, run: OneRun, ended: str) -> None:
        asked, runs = run.asked, run.chain_runs
        self._run, self._ended = run, ended
        self.store_id = "" if run.store is None else run.store.id
        self.numbers, self._failed = survivors(runs)
        self._length = asked.num_samples // asked.thinning
        if ended:
            self.numbers, self._length = kept_after_interrupt(
                runs, self.numbers, ended=ended if asked.num_samples else ""
            )
        self._chain_runs = [runs[i] for i in self.numbers]
        self.states = states_of(self._chain_runs)

    def warn(self, stacklevel: int) -> None:
        """Tell of chains that failed."""
        warn_of_failed(len(self._run.chain_runs), self._failed, stacklevel + 1)

    def draws(self) -> SampledDraws:
        """Return what was drawn after warm-up; a store is closed with it."""
        run = self._run
        attrs = _attrs(run, self.numbers, interrupted=bool(self._ended))
        attrs["warmup_gradients"] = run.start_gradients + sum(
            chain_run.warmup_evaluations for chain_run in run.chain_runs
        )
        if self._failed:
            attrs["failed_chains"] = {
                str(i): f"{type(e).__name__}: {e}" for i, e in self._failed.items()
            }
        draws = sampled_draws(run.target, self._chain_runs, self._length, attrs)
        draws = run.asked.selected(draws)
        if more := self._of_run(draws):
            draws = replace(draws, attrs={**draws.attrs, **more})
        stored = run.chain_runs[0].draws
        if isinstance(stored, StoredRecord):
            stored.store.close(draws, self.numbers)
        return draws

    def warmup_draws(self) -> SampledDraws | None:
        """Return the draws of the warm-up alone, None if they are not kept or there are none."""
        positions, stats = _warmup_of(self._chain_runs)
        length = min((record.complete for record in _warmups(self._chain_runs)), default=0)
        if positions is None or stats is None or not length:
            return None
        stats = {name: x[:, :length] for name, x in stats.items()}
        attrs = {"inference_library": "probtorch", "warming_up": True}
        return make_draws(self._run.target, positions[:, :length], stats, attrs)

    def _of_run(self, draws: SampledDraws) -> dict[str, object]:
        """Attributes that tell more of the run, say what divergences come from."""
        target, kernel = self._run.target, self._run.asked.kernel
        attrs = dict(kernel.of_run(target, _Kernels(self.states), draws))
        if isinstance(target, ModelTarget) and np.any(draws.sample_stats.get("diverging")):
            attrs["centred_sites"] = target.centred_sites(draws.positions[0, -1])
        return attrs


def draws_so_far(run: OneRun) -> SampledDraws | None:
    """Return what is drawn in a run that goes on, None before the first draw after warm-up."""
    runs = run.chain_runs
    well = {i: chain.draws.readable for i, chain in enumerate(runs) if chain.error is None}
    kept, length = most_draws(well) if well else ([], 0)
    if not length:
        return None
    attrs = _attrs(run, kept, interrupted=True)
    return run.asked.selected(sampled_draws(run.target, [runs[i] for i in kept], length, attrs))


class LastStates(Sequence[Chain]):
    """Where chains that have ended stand, without the densities they are drawn from.

    Each is made when it is first asked for: of a thousand chains mostly none is.

    Parameters
    ----------
    runners : sequence of ChunkRunner
    """

    def __init__(self, runners: Sequence[ChunkRunner]) -> None:
        self._runners = list(runners)
        self._made: dict[int, Chain] = {}

    def __len__(self) -> int:
        return len(self._runners)

    @overload
    def __getitem__(self, i: int) -> Chain: ...
    @overload
    def __getitem__(self, i: slice) -> list[Chain]: ...
    def __getitem__(self, i: int | slice) -> Chain | list[Chain]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if i not in self._made:
            chain = self._runners[i].chain
            self._made[i] = replace(chain, kernel=replace(chain.kernel, density=None))
        return self._made[i]


class _Kernels(Sequence[Kernel]):
    """Those of chains."""

    def __init__(self, states: LastStates) -> None:
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, i: int) -> Kernel: ...
    @overload
    def __getitem__(self, i: slice) -> list[Kernel]: ...
    def __getitem__(self, i: int | slice) -> Kernel | list[Kernel]:
        if isinstance(i, slice):
            return [chain.kernel for chain in self._states[i]]
        return self._states[i].kernel


def states_of(runs: Sequence[ChainRun]) -> LastStates:
    """Return where chains stand that have ended."""
    return LastStates([run.runner for run in runs])


def _attrs(run: OneRun, kept: list[int], *, interrupted: bool) -> dict[str, object]:
    asked, runs = run.asked, run.chain_runs
    attrs = {
        **asked.kernel.attrs(),
        "inference_library": "probtorch",
        "sampling_time": run.seconds,
        "tuning_steps": asked.num_warmup,
        "thinning": asked.thinning,
        "num_threads": asked.num_threads,
        "interrupted": interrupted,
    }
    if "target_accept_prob" in attrs:
        attrs |= _aims([runs[i] for i in kept])
    if asked.executor is not None:
        attrs["executor"] = type(asked.executor).__name__
    if run.forms is not None:
        attrs["reparam"] = dict(run.forms.forms)
    if isinstance(asked.seed, int):
        attrs["seed"] = asked.seed
    if len(kept) < len(runs):
        attrs["missing_chains"] = [i for i in range(len(runs)) if i not in kept]
    if isinstance(run.target, ModelTarget):
        slots = run.target.slots
        if improper := [name for name, slot in slots.items() if not slot.falls_off]:
            attrs["improper_sites"] = improper
        structures = {n: s.levels for n, s in slots.items() if isinstance(s.levels, Structure)}
        if structures:
            attrs["machinery_sites"] = {n: s.described() for n, s in structures.items()}
    for name, chosen in (
        ("extended_chains", [i for i, chain_run in enumerate(runs) if chain_run.extensions]),
        ("moved_chains", [i for i, chain_run in enumerate(runs) if chain_run.moved]),
    ):
        if chosen:
            attrs[name] = chosen
    return attrs


def _aims(runs: Sequence[ChainRun]) -> dict[str, object]:
    """What the step sizes of chains were tuned to: one number, or a list where they differ."""
    # Rounding of a product is no part of it.
    aims = [np.round(aim, 12).tolist() for aim in aims_of(runs)]
    if not aims or not all(isinstance(aim, float) for aim in aims):
        return {}
    return {"target_accept_prob": aims[0] if len(set(aims)) == 1 else aims}


def survivors(runs: Sequence[ChainRun]) -> tuple[list[int], dict[int, BaseException]]:
    """Return the numbers of the chains that are well, and the errors of the others by number.

    Raises
    ------
    BaseException
        The error of the first chain, if none is well.
    """
    alive = [i for i, run in enumerate(runs) if run.error is None]
    failed = {i: run.error for i, run in enumerate(runs) if run.error is not None}
    if not alive:
        raise failed[0]
    return alive, failed


def warn_of_failed(chains: int, failed: Mapping[int, BaseException], stacklevel: int) -> None:
    """Tell of each chain that failed, of so many."""
    for i, error in failed.items():
        warnings.warn(
            f"chain {i} failed and is missing from the result\n  expected: {chains} chains\n"
            f"  got:      {type(error).__name__}: {error}\n"
            "  fix:      see the error; chains that are well came to their end",
            InferenceWarning,
            stacklevel=stacklevel + 1,
        )


def kept_after_interrupt(
    runs: Sequence[ChainRun], alive: Sequence[int], *, ended: str
) -> tuple[list[int], int]:
    """Return which chains to keep, and how many draws of each; says so.

    Parameters
    ----------
    runs : sequence of ChainRun
    alive : sequence of int
    ended : str
        What ended a run that was to sample, "interrupted", "timed out" or "aborted"; else empty.

    Raises
    ------
    KeyboardInterrupt, InferenceError
        If a run that was to sample had no draw yet.
    """
    kept, length = most_draws({i: runs[i].draws.complete for i in alive})
    if ended == "interrupted" and not length:
        raise KeyboardInterrupt("interrupted before the first draw after warm-up")
    if ended and not length:
        aborted = ended == "aborted"
        raise (InferenceError if aborted else TimeIsUp)(
            "RunHandle.abort" if aborted else "MCMC.run(max_seconds=...)",
            expected="time for the warm-up and some draws",
            got=f"{max(run.iteration for run in runs)} iterations of warm-up at most",
            fix="look at handle.progress before"
            if aborted
            else "give it more time, or fewer warmup_steps",
        )
    message = f"kept {len(kept)} of {len(runs)} chains with {length} draws each"
    print(message, file=sys.stderr, flush=True)
    return kept, length


def sampled_draws(
    target: Target, runs: Sequence[ChainRun], length: int, attrs: Mapping[str, object]
) -> SampledDraws:
    """Return the first `length` draws of each chain, and those of the warm-up if they are kept."""
    positions, stats = _warmup_of(runs)
    draws = [run.draws for run in runs]
    in_memory = [x for x in draws if isinstance(x, DrawRecord)]
    stored = [x for x in draws if isinstance(x, StoredRecord)]
    if stored:
        return stored[0].store.draws(
            [x.number for x in stored],
            length,
            attrs,
            warmup_positions=positions,
            warmup_stats=stats,
        )
    return make_draws(
        target,
        *_together(in_memory, length),
        attrs,
        warmup_positions=positions,
        warmup_stats=stats,
    )


def _warmups(runs: Sequence[ChainRun]) -> list[DrawRecord]:
    return [run.warmup_draws for run in runs if run.warmup_draws is not None]


def _warmup_of(
    runs: Sequence[ChainRun],
) -> tuple[np.ndarray, dict[str, np.ndarray]] | tuple[None, None]:
    """Positions and statistics of the warm-up, if kept."""
    kept = _warmups(runs)
    if not kept or not runs[0].num_warmup:
        return None, None
    return by_chain([x.positions for x in kept], 1), _stacked(kept, runs[0].num_warmup)


def _together(
    records: Sequence[DrawRecord], length: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Positions and statistics of several chains: where they are, if they are all of a block."""
    block = records[0].block
    of_block = [record.number for record in records if record.block is block]
    whole = of_block == list(range(len(block.positions))) and block.positions.shape[1] == length
    if whole and block.positions.ndim == 3:
        return block.positions, dict(block.stats)
    return by_chain([x.positions[:length] for x in records], 1), _stacked(records, length)


def _stacked(recordings: Sequence[DrawRecord], length: int) -> dict[str, np.ndarray]:
    """Statistics of several chains as arrays (chain, draw)."""
    return {
        name: by_chain([r.stats[name][:length] for r in recordings], 0)
        for name in recordings[0].stats
    }


def by_chain(parts: list[np.ndarray], event_dims: int) -> np.ndarray:
    """Arrays (draw, *event) or (draw, members, *event) as one, (chain, draw, *event).

    Members of an ensemble are chains of the result, as in ArviZ's converters.
    """
    if parts[0].ndim > 1 + event_dims:
        parts = [member for part in parts for member in np.moveaxis(part, 1, 0)]
    return np.stack(parts)
