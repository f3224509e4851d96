"""Runs that go on until there is enough: a first run, and runs that go on from where it stands.

`ExtendedRun` has the draws of all of them as one result; `RunUntilEnough` drives them in a thread
of its own, for a handle (handle.py). Each is a `OneRun`; a `Budget` says what is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from probtorch.compiler.native.pages import sparing
from probtorch.core.tree import replace
from probtorch.infer.control import Control
from probtorch.infer.mcmc.budget import Budget
from probtorch.infer.mcmc.chain import ChainRun
from probtorch.infer.mcmc.chunk import Chain
from probtorch.infer.mcmc.collect import (
    KeptDraws,
    draws_so_far,
    sampled_draws,
    states_of,
    survivors,
    warn_of_failed,
)
from probtorch.infer.mcmc.one_run import OneRun, chains_of
from probtorch.infer.mcmc.pilot import FormsOfSites
from probtorch.infer.mcmc.recording import DrawRecord
from probtorch.infer.mcmc.saved import SavedRun
from probtorch.infer.mcmc.settings import RunSettings
from probtorch.infer.mcmc.store import DrawStore, StoreEnd, tell_of
from probtorch.infer.mcmc.stored_record import StoredRecord
from probtorch.infer.potential import Target
from probtorch.infer.results import SampledDraws, joined

__all__ = ["ExtendedRun", "RunUntilEnough"]


class ExtendedRun:
    """Draws of chains that go on, those of the first run and of all that followed it.

    Parameters
    ----------
    asked : RunSettings
        What the runs are asked for, but for their number of draws.
    target : Target
    forms : FormsOfSites or None
    first : SavedRun
        Of the first run; what follows is saved if it was.
    draws : SampledDraws
    states : sequence of Chain
    seconds : float
        That sampling took so far.
    store_id : str
        Of the store that has the draws, if one has.

    Attributes
    ----------
    draws : SampledDraws
        Those that are there.
    states : sequence of Chain
        Where the chains stand.
    seconds : float
    store_id : str
    """

    def __init__(
        self,
        asked: RunSettings,
        target: Target,
        forms: FormsOfSites | None,
        first: SavedRun,
        draws: SampledDraws,
        states: Sequence[Chain],
        seconds: float,
        store_id: str = "",
    ) -> None:
        self._asked, self._target, self._forms, self._first = asked, target, forms, first
        self.draws, self.states, self.seconds = draws, states, seconds
        self.store_id = store_id
        self._under_way: OneRun | None = None
        self._failed: list[tuple[int, dict[int, BaseException]]] = []
        self._lock = threading.Lock()  # of the draws, and of the map to the model's space

    def until_enough(self, budget: Budget, drive: Callable[[OneRun], str], more: int = 0) -> None:
        """Draw so many more, and then until nothing is missing.

        Parameters
        ----------
        budget : Budget
        drive : callable
            Runs chains, and returns what ended them early, if anything did.
        more : int
            Draws of each chain, before thinning.
        """
        while more := more or self._missing(budget):
            self._add(more, drive)
            more = 0
        if budget.late:
            self.draws = replace(self.draws, attrs={**self.draws.attrs, "interrupted": True})
            if self._asked.store is not None:
                tell_of(self._asked.store, self.store_id, self.draws.attrs)

    def _missing(self, budget: Budget) -> int:
        """How many draws are missing; what it takes to tell does not stay in memory."""
        with sparing(self._asked.store is not None):
            return budget.missing(self.draws)

    def _add(self, num_samples: int, drive: Callable[[OneRun], str]) -> None:
        """Draw so many more of each chain, before thinning, and append them."""
        run = self._begun(num_samples)
        self._under_way = run
        ended = drive(run)
        with self._lock:
            self._under_way = None
            self.seconds += run.seconds
            _, failed = survivors(run.chain_runs)
            if failed:
                self._failed.append((len(run.chain_runs), failed))
            self.states = states_of(run.chain_runs)
            attrs: dict[str, object] = {"interrupted": bool(ended), "sampling_time": self.seconds}
            self.draws = self._with(run, [x.draws.complete for x in run.chain_runs], attrs)
            if run.store is not None:
                run.store.close(self.draws, range(len(run.chain_runs)))

    def so_far(self) -> SampledDraws:
        """Return all draws that are there, those of a run that goes on too."""
        with self._lock:
            run = self._under_way
            if run is None:
                return self.draws
            return self._with(run, [x.draws.readable for x in run.chain_runs], {})

    def warn(self, stacklevel: int) -> None:
        """Tell of chains that failed after the first run."""
        for chains, failed in self._failed:
            warn_of_failed(chains, failed, stacklevel + 1)

    def _begun(self, num_samples: int) -> OneRun:
        """A run that goes on from where the chains stand; a saved one has its number of draws."""
        num_samples = -(-num_samples // self._asked.thinning) * self._asked.thinning
        states = tuple(self.states)
        asked = replace(
            self._asked, num_samples=num_samples, resumed_from=states, num_chains=len(states)
        )
        if asked.store is not None:
            cut = bool(self.draws.attrs.get("interrupted"))
            asked = replace(asked, store_end=StoreEnd(self.store_id, self.draws.num_draws, cut))
        with self._first.extension(asked.agreed(), states) as saved:
            asked = replace(asked, num_samples=saved.num_samples)
            chains = chains_of(asked, self._target, saved)
            run = OneRun(asked, self._target, self._forms, chains, saved)
        if run.store is not None:
            self.store_id = run.store.id
            # Of shorter files, which have no names any more, nothing is held.
            self.draws = self._stored(run.store, run, 0)
        return run

    def _with(self, run: OneRun, rows: Sequence[int], attrs: dict[str, object]) -> SampledDraws:
        """The draws that are there, and as many of a run as all its chains have."""
        old, length = self.draws, min(rows)
        if not length or any(x.error is not None for x in run.chain_runs):
            # Chains of other lengths make no array; what there was stays.
            return replace(old, attrs={**old.attrs, "interrupted": True})
        attrs = {**old.attrs, "interrupted": True, **attrs}
        if run.store is not None:
            return replace(self._stored(run.store, run, length), attrs=attrs)
        new = run.asked.selected(sampled_draws(self._target, run.chain_runs, length, {}))
        return replace(joined(old, new), attrs=attrs)

    def _stored(self, store: DrawStore, run: OneRun, length: int) -> SampledDraws:
        """The draws before a run and so many of each chain from it, mapped from the disk."""
        old = self.draws
        found = store.draws(range(len(run.chain_runs)), length, {})
        posterior = {name: found.posterior[name] for name in old.posterior}
        return replace(
            old, posterior=posterior, sample_stats=found.sample_stats, positions=found.positions
        )


class RunUntilEnough:
    """A run in the background, with whatever is drawn beyond its first draws.

    Parameters
    ----------
    run : OneRun
    saved : SavedRun
    budget : Budget
    asked : RunSettings
        Of what follows the run.

    Attributes
    ----------
    lineages : list of list of ChainRun
        Of each chain the runs it goes through, one after the other.
    extended : ExtendedRun or None
        What followed; None while it is the first run that goes on, and if that ended early.
    kept : KeptDraws or None
        The end of the first run, where something follows.
    error : BaseException or None
        What ended it badly after the first run.
    """

    def __init__(self, run: OneRun, saved: SavedRun, budget: Budget, asked: RunSettings) -> None:
        self._run, self._saved, self._budget, self._asked = run, saved, budget, asked
        self.lineages: list[list[ChainRun]] = [[chain] for chain in run.chain_runs]
        self.extended: ExtendedRun | None = None
        self.kept: KeptDraws | None = None
        self.error: BaseException | None = None
        self._lock = threading.Lock()  # of the map to the model's space

    def drive(self, control: Control) -> str:
        """Run all chains until there is enough; returns what ended the first run early."""
        self._budget.control = control
        try:
            ended = self._drive(self._run, control)
            if not ended and self._budget.until_ess is not None:
                try:
                    self._extend(control)
                except BaseException as error:  # for who asks for the draws
                    self.error = error
            return ended
        finally:
            control.stop()

    def so_far(self) -> SampledDraws | None:
        """Return what is drawn, None before the first draw after warm-up."""
        with self._lock:
            return draws_so_far(self._run) if self.extended is None else self.extended.so_far()

    def _drive(self, run: OneRun, control: Control) -> str:
        # The end of these chains is not that of those that go on from them.
        return run.drive_quietly(self._budget, Control(control))

    def _extend(self, control: Control) -> None:
        run = self._run
        with self._lock:
            self.kept = kept = KeptDraws(run, "")
            extended = self.extended = ExtendedRun(
                self._asked, run.target, run.forms, self._saved,
                kept.draws(), kept.states, run.seconds, kept.store_id,
            )  # fmt: skip
        well = kept.numbers

        def drive(part: OneRun) -> str:
            for i, chain in zip(well, part.chain_runs, strict=True):
                before = self.lineages[i][-1].draws
                if isinstance(chain.draws, DrawRecord) and isinstance(before, DrawRecord):
                    chain.draws.follows(before)
                elif isinstance(chain.draws, StoredRecord) and isinstance(before, StoredRecord):
                    chain.draws.follows(before)
                self.lineages[i].append(chain)
            return self._drive(part, control)

        extended.until_enough(self._budget, drive)
