"""What a finished run of `MCMC` is asked for: draws, statistics, tables, what was adapted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack, cast

import numpy as np

from probtorch.core.late import difflib
from probtorch.core.making import as_tensor
from probtorch.core.rng import default_generator
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.convergence import ess_bulk, rhat
from probtorch.diagnostics.layout import chosen, judged
from probtorch.diagnostics.summary import Summary
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.mcmc.kernel import Kernel, statistics
from probtorch.infer.mcmc.settings import count
from probtorch.infer.mcmc.warm_up.adapted import AdaptedChain, adapted_chains
from probtorch.infer.results import ArvizGroups, SampledDraws
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    import arviz
    import xarray

    from probtorch.infer.mcmc.chunk import Chain
    from probtorch.infer.potential import Target


__all__ = ["RunResults", "checked_fields"]

# NumPyro's names of the statistics that have another one here.
STAT_ALIASES = {
    "accept_prob": "acceptance_rate",
    "num_steps": "n_steps",
    "adapt_state.step_size": "step_size",
}


def checked_fields(kernel: Kernel, names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names of statistics of a kernel as a tuple; an unknown one is an ArgumentError."""
    names = (names,) if isinstance(names, str) else tuple(names)
    told = [s.name for s in statistics(kernel.info) if s.name is not None]
    aliases = [alias for alias, name in STAT_ALIASES.items() if name in told]
    known = [*told, *aliases, *(["potential_energy"] if "lp" in told else [])]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            raise ArgumentError(
                "MCMC.run(extra_fields=...)",
                expected=f"names among {', '.join(known)}",
                got=repr(name),
                fix=f"did you mean {close[0]!r}?" if close else "drop the name",
            )
    return names


class RunResults:
    """The results of a run; `MCMC` is one.

    Attributes
    ----------
    target : Target
    last_state : tuple of Chain
    """

    # None before the first run.
    target: Target = cast("Target", None)
    _states: Sequence[Chain] | None = None
    _draws: SampledDraws | None = None
    _extra_fields: tuple[str, ...] = ()

    @property
    def last_state(self) -> tuple[Chain, ...]:
        """Where each chain stands; None before the first run."""
        if self._states is None:
            return cast("tuple[Chain, ...]", None)
        if not isinstance(self._states, tuple):
            self._states = tuple(self._states)
        return self._states

    @last_state.setter
    def last_state(self, states: Sequence[Chain]) -> None:
        self._states = states

    @property
    def adapted(self) -> list[AdaptedChain]:
        """Step size and mass matrix of each chain, a list of `AdaptedChain`."""
        if self.last_state is None:
            raise InferenceError(
                "MCMC.adapted", expected="a finished run", got="none", fix="call run() first"
            )
        return adapted_chains(self.last_state, self.target)

    @property
    def draws(self) -> SampledDraws:
        """The `Draws` of the last run."""
        if self._draws is None:
            raise InferenceError(
                "MCMC", expected="a finished run", got="no draws yet", fix="call run() first"
            )
        return self._draws

    def get_samples(
        self, num_samples: int | None = None, group_by_chain: bool = False
    ) -> dict[str, Tensor]:
        """Return the draws as tensors by name.

        Parameters
        ----------
        num_samples : int, optional
            So many of them, drawn at random with replacement from all chains; all in order by
            default.
        group_by_chain : bool
            Keep a leading chain dim.

        Returns
        -------
        dict of str to Tensor, each (chain * draw, *event) or (chain, draw, *event)
        """
        samples = self.draws.get_samples(group_by_chain=group_by_chain and num_samples is None)
        if num_samples is None:
            return {name: as_tensor(x) for name, x in samples.items()}
        wanted = count("num_samples", num_samples, 1)
        total = self.draws.num_chains * self.draws.num_draws
        (generator,) = default_generator.spawn(1)
        rows = np.random.default_rng([generator.initial_seed(), generator.stream]).integers(
            total, size=wanted
        )
        if group_by_chain:
            return {name: as_tensor(x[rows][None]) for name, x in samples.items()}
        return {name: as_tensor(x[rows]) for name, x in samples.items()}

    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, np.ndarray]:
        """Return statistics of the sampler as arrays by name.

        Parameters
        ----------
        group_by_chain : bool
            Keep a leading chain dim.

        Returns
        -------
        dict of str to ndarray
            Those asked for in `run`, under the names asked for; all of them, under ArviZ's names,
            if none were.
        """
        stats = self.draws.sample_stats
        names = self._extra_fields or tuple(stats)
        found = {name: self._statistic(name, stats) for name in names}
        return found if group_by_chain else {name: x.reshape(-1) for name, x in found.items()}

    @staticmethod
    def _statistic(name: str, stats: Mapping[str, np.ndarray]) -> np.ndarray:
        if name == "potential_energy":
            return -stats["lp"]
        return stats[STAT_ALIASES.get(name, name)]

    def summary(
        self,
        prob: float = 0.9,
        *,
        names: str | Sequence[str] | None = None,
        round_to: int | None = None,
    ) -> Summary:
        """Return a table of mean, sd, interval, effective sizes and R-hat per scalar parameter.

        Parameters
        ----------
        prob : float, in (0, 1)
            Share of the draws in the highest density interval.
        names, round_to
            See `probtorch.diagnostics.summary`.

        Returns
        -------
        Summary
        """
        return self.draws.summary(names=names, hdi_prob=prob, round_to=round_to)

    def print_summary(self, prob: float = 0.9, exclude_deterministic: bool = True) -> None:
        """Print the table of `summary`; deterministic sites only if they are asked for."""
        names = chosen(judged(None, self.draws), self.draws.posterior, "print_summary")
        if exclude_deterministic:
            names = [name for name in names if name in self.target.slots] or names
        print(self.draws.summary(names=names, hdi_prob=prob))

    def diagnostics(self) -> dict[str, dict[str, object]]:
        """Return convergence statistics by variable, and divergences and acceptance by chain.

        Returns
        -------
        dict
            For each variable ``{"n_eff": array, "r_hat": array}`` of its shape (bulk effective
            size, rank-normalised split R-hat); "divergences" with the numbers of the divergent
            draws, and "acceptance rate", per chain, where the kernel tells of them.
        """
        found: dict[str, dict[str, object]] = {
            name: {"n_eff": ess_bulk(x), "r_hat": rhat(x)}
            for name, x in self.draws.posterior.items()
        }
        stats = self.draws.sample_stats
        chains = range(self.draws.num_chains)
        if "diverging" in stats:
            found["divergences"] = {
                f"chain {i}": np.flatnonzero(stats["diverging"][i]).tolist() for i in chains
            }
        if "acceptance_rate" in stats:
            found["acceptance rate"] = {
                f"chain {i}": float(stats["acceptance_rate"][i].mean()) for i in chains
            }
        return found

    def to_arviz(self, **groups: Unpack[ArvizGroups]) -> arviz.InferenceData | xarray.DataTree:
        """Return the draws for ArviZ; keywords are those of `SampledDraws.to_arviz`."""
        return self.draws.to_arviz(**groups)


explain_calls(globals(), methods={"RunResults": "get_samples summary"})
