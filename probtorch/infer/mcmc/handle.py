"""`RunHandle`: a run of `MCMC` that goes on by itself, and what it can be told and asked.

``mcmc.run(..., blocking=False)`` builds and compiles the model, so that what is wrong with it is
said at once, starts a thread that does for the chains what the caller's else does, and returns. The
result is put together in the thread that asks for it, where its warnings belong. What any handle
does is in infer/background.py.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probtorch.core.signatures import explain_calls
from probtorch.infer.background import BackgroundRun
from probtorch.infer.mcmc.progress import log_line, phase_of, share, table_of, worst

if TYPE_CHECKING:
    from probtorch.infer.control import Control
    from probtorch.infer.mcmc.chain import ChainRun
    from probtorch.infer.results import SampledDraws

__all__ = ["ChainProgress", "RunHandle", "RunProgress"]


@dataclass(frozen=True)
class ChainProgress:
    """How far one chain is.

    Parameters
    ----------
    phase : str
        "waiting", "warm-up", "sampling", "paused", "done", "stopped" or "failed".
    iteration, total : int
        Transitions made, and those of warm-up and sampling together.
    draws : int
        That are kept, after thinning.
    divergences : int
        After warm-up.
    step_size : float
        Nan if the kernel has none.
    seconds : float
        Since it began; pauses do not count.
    """

    phase: str
    iteration: int
    total: int
    draws: int
    divergences: int
    step_size: float
    seconds: float


@dataclass(frozen=True)
class RunProgress:
    """How far a run is, at the moment it was asked.

    Parameters
    ----------
    chains : tuple of ChainProgress
    share : float
        What is done of all transitions, from 0 to 1. With `until_ess`, of those that were planned
        so far: it falls when more turn out to be missing.
    rhat, ess : float
        The worst split R-hat and the least effective size of all unconstrained parameters, of the
        draws so far; by batch means, so that it costs little to ask. Nan where there are too few.
    line : str
        All in one line, as logs have it.
    """

    chains: tuple[ChainProgress, ...]
    share: float
    rhat: float
    ess: float
    line: str

    def __str__(self) -> str:
        return self.line


class RunHandle(BackgroundRun["SampledDraws"]):
    """A run that goes on in the background; made by ``MCMC.run(..., blocking=False)``.

    Parameters
    ----------
    lineages : sequence of list of ChainRun
        Of each chain the runs it goes through, one after the other; the last is under way.
    drive : callable
        Runs all chains, given a `Control`; returns what ended them early, if anything did.
    finish : callable
        Makes the result, given what ended the chains and the stack level of warnings.
    draws_so_far : callable
        Makes draws of what is there.

    Notes
    -----
    Chains answer between two calls of their native program, some 50 ms apart. The process does not
    wait for a run in the background when it ends: call `result`, or give the run a checkpoint.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.infer import MCMC, NUTS, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(NUTS(target), num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> run = mcmc.run(blocking=False)
    >>> run.pause()
    >>> run.resume()
    >>> run.result()
    Draws(4 chains x 500 draws: x (2))
    >>> run.progress.share
    1.0
    """

    def __init__(
        self,
        lineages: Sequence[list[ChainRun]],
        drive: Callable[[Control], str],
        finish: Callable[[str, int], SampledDraws],
        draws_so_far: Callable[[], SampledDraws | None],
    ) -> None:
        self._lineages, self._draws_so_far = lineages, draws_so_far
        super().__init__(drive, lambda ended: finish(str(ended), 6))

    # --------------------------------------------------------------------------------------- asking

    @property
    def progress(self) -> RunProgress:
        """How far the chains are, a `RunProgress`; its text is one line."""
        # Copies: who drives the chains adds to them.
        lineages, done, total = [list(x) for x in self._lineages], 0.0, 0
        runs = [lineage[-1] for lineage in lineages]
        chains = []
        for lineage, run in zip(lineages, runs):
            planned = sum(part.num_warmup + part.num_samples for part in lineage)
            chains.append(
                ChainProgress(
                    phase="paused" if self.paused and not run.finished else phase_of(run),
                    iteration=sum(part.iteration for part in lineage),
                    total=planned,
                    draws=sum(part.draws.complete for part in lineage),
                    divergences=sum(part.divergences for part in lineage),
                    step_size=run.step_size,
                    seconds=sum(part.seconds for part in lineage),
                )
            )
            done += sum(share(part) * (part.num_warmup + part.num_samples) for part in lineage)
            total += planned
        rhat, ess = worst(runs)
        return RunProgress(
            chains=tuple(chains),
            share=min(done / max(total, 1), 1.0),
            rhat=rhat,
            ess=ess,
            line=_line(lineages),
        )

    def peek(self, timeout: float | None = None) -> SampledDraws | None:
        """Return the draws so far, while the run goes on; None before the first after warm-up.

        Parameters
        ----------
        timeout : float, optional
            Of other runs; nothing is waited for here.

        Returns
        -------
        Draws or None
            As many of each chain as keep the most of all: its first draws, to the bit those of the
            result, whenever they are asked for. With `store` those that are on the disk.
        """
        return self._draws_so_far()

    def _repr_html_(self) -> str:
        runs = [lineage[-1] for lineage in self._lineages]
        return table_of(runs) + f"<p>{html.escape(repr(self))}</p>"


def _line(lineages: Sequence[list[ChainRun]]) -> str:
    """What chains are at in one line, and how many draws they had before."""
    earlier = sum(part.draws.complete for lineage in lineages for part in lineage[:-1])
    line = log_line([lineage[-1] for lineage in lineages])
    return f"beyond {earlier} draws: {line}" if earlier else line


explain_calls(globals())
