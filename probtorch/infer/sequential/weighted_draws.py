"""`WeightedDraws`: draws of a proposal with their importance weights, and how far to believe them.

What the importance samplers of this room return. The draws themselves are those of the proposal:
expectations take the weights into account, and `draws` makes draws of the posterior of them, which
summaries, predictions and what ArviZ gets are made of (of_draws.py). The weights are smoothed by
PSIS (diagnostics/psis.py), whose `pareto_k` says when not to trust them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.diagnostics.psis import MIN_DRAWS, pareto_k_limit, psis
from probtorch.distributions.empirical import Empirical
from probtorch.errors import ArgumentError, InferenceError, user_frame
from probtorch.infer.names import unknown_name
from probtorch.infer.of_draws import OfDraws
from probtorch.infer.potential import Target
from probtorch.infer.prediction.called_model import CalledModel
from probtorch.infer.prediction.each_run import Values, unshared_sites
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.infer.sequential.run_draws import RunDraws
from probtorch.infer.sequential.weights import ancestors, effective_size, log_mean
from probtorch.tensor import Tensor

__all__ = ["ImportanceWarning", "WeightedDraws", "weighted"]

# Ratios within rounding of each other; and how many draws have to have the largest one for it to
# be the end of the tail.
TIED, SEEN_OFTEN = 1e-9, 5


class ImportanceWarning(InferenceWarning):
    """Importance weights that cannot be trusted."""


@dataclass(frozen=True, eq=False, repr=False)
class WeightedDraws(OfDraws):
    """Draws of a proposal, and what each of them weighs.

    Attributes
    ----------
    samples : dict of str to ndarray, each (num_samples, *shape)
        Values of the sites that every draw has, in one shape.
    log_ratios : ndarray, shape (num_samples,)
        Log joint density minus log density of the proposal, as found.
    log_weights : ndarray, shape (num_samples,)
        Log weights that sum to 1, smoothed where the tail of the ratios could be fitted.
    pareto_k : float
        Shape of that tail; above ``pareto_k_limit(num_samples)`` the weights are unreliable. Nan
        for fewer than 25 draws, -inf where the largest weight has come up five times or more.
    log_evidence, log_evidence_error : float
        Log of the mean ratio, an estimate of the log marginal likelihood, and its standard error.
    ess : float
        How many draws of the posterior these are worth: ``1 / sum(w^2)``.
    values : sequence of dict
        Draw by draw, all that it has: of a model whose sites change from run to run.
    dims, coords : dict
        Names of dims, and labels along them.
    attrs : dict
        Facts of the run.
    groups : dict of str to dict
        Data, which go with the draws: ``observed_data`` and ``constant_data``.
    call : CalledModel or None
        The model and its arguments, where there is no `target`. Not kept by pickle.
    target, positions
        The density that was sampled, and the draws as points of it, shape (num_samples, dim). The
        density is not kept by pickle.
    """

    samples: Mapping[str, np.ndarray]
    log_ratios: np.ndarray
    log_weights: np.ndarray
    pareto_k: float
    log_evidence: float
    log_evidence_error: float
    values: Sequence[Values] = ()
    dims: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    coords: Mapping[str, Sequence[object]] = field(default_factory=dict)
    attrs: Mapping[str, object] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    call: CalledModel | None = None
    target: Target | None = None
    positions: np.ndarray | None = None
    _made: dict[object, SampledDraws] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """Number of draws."""
        return self.log_ratios.size

    @property
    def weights(self) -> np.ndarray:
        """The weights, shape (num_samples,); they sum to 1."""
        return np.exp(self.log_weights)

    @property
    def ess(self) -> float:
        """Effective number of draws; see the class."""
        return effective_size(self.log_weights)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the draws of a site, shape (num_samples, *its shape), unweighted."""
        if name not in self.samples:
            raise unknown_name(f"no site {name!r} that every draw has", name, self.samples)
        return self.samples[name]

    def __contains__(self, name: object) -> bool:
        return name in self.samples

    def __iter__(self) -> Iterator[str]:
        return iter(self.samples)

    def __repr__(self) -> str:
        names = ", ".join(self.samples) or "no site in every draw"
        return (
            f"WeightedDraws({self.num_samples} draws worth {self.ess:.0f}: {names}; "
            f"log evidence {self.log_evidence:.3f} +- {self.log_evidence_error:.2g}, "
            f"Pareto k {self.pareto_k:.2f})"
        )

    def expectation(self, of: str | Callable[[Values], ArrayLike]) -> np.ndarray:
        """Return the posterior mean of a site, or of a function of a draw.

        Parameters
        ----------
        of : str or callable
            The name of a site; or a function of one draw, a dict of arrays by name, that returns a
            number or an array. Which sites a draw has may differ from draw to draw.

        Returns
        -------
        ndarray, of the site's or the function's shape
        """
        if isinstance(of, str):
            rows = self[of]
        else:
            rows = np.stack([np.asarray(of(draw)) for draw in self._each()])
        return np.tensordot(self.weights, rows.astype(np.float64), 1)

    def quantile(self, name: str, q: ArrayLike) -> np.ndarray:
        """Return posterior quantiles of a site.

        Parameters
        ----------
        name : str
        q : array_like, in [0, 1]

        Returns
        -------
        ndarray, shape (*q's shape, *the site's)
            The smallest draw at which the weights add up to `q`.
        """
        levels = np.asarray(q, np.float64)
        if not ((levels >= 0.0) & (levels <= 1.0)).all():
            raise ArgumentError(
                "WeightedDraws.quantile",
                expected="levels in [0, 1]",
                got=repr(q),
                fix="write 0.05 for 5 %",
            )
        x = self[name]
        flat = x.reshape(len(x), -1)
        found = np.empty((levels.size, flat.shape[1]), x.dtype)
        for j in range(flat.shape[1]):
            order = np.argsort(flat[:, j], kind="stable")
            edges = np.cumsum(self.weights[order])
            # Rounding must not push a level past the last draw, nor 0 before the first of weight.
            wanted = np.clip(levels.reshape(-1) * edges[-1], np.finfo(float).tiny, edges[-1])
            found[:, j] = flat[order[np.searchsorted(edges, wanted)], j]
        return found.reshape(*levels.shape, *x.shape[1:])

    def draws(
        self, num_draws: int | None = None, *, seed: int | Generator | None = 0
    ) -> SampledDraws:
        """Return draws of the posterior: those of the proposal, resampled by their weights.

        Parameters
        ----------
        num_draws : int, optional
            As many as there are weighted ones by default. Heavy ones appear several times.
        seed : int or Generator, optional
            Where random numbers come from; an int gives the same draws every time. The default
            generator if None.

        Returns
        -------
        SampledDraws
            One chain; `attrs` has the evidence, the effective size and `pareto_k`. `RunDraws` where
            sites change from draw to draw.

        Raises
        ------
        InferenceError
            If there is no site that every draw has.
        """
        if not self.samples:
            raise InferenceError(
                "draws of importance samples",
                expected="a site that every run of the model has, in one shape",
                got="none",
                fix="read .values, one dict a draw, or use expectation(fn)",
            )
        count = self.num_samples if num_draws is None else num_draws
        key, again = (count, seed), isinstance(seed, int)
        if again and key in self._made:
            return self._made[key]
        rows = ancestors(self.weights / self.weights.sum(), count, generator_of(seed), "stratified")
        made = self._resampled(rows)
        if again:
            self._made[key] = made
        return made

    def _resampled(self, rows: np.ndarray) -> SampledDraws:
        """Return the draws in these rows, equal in weight."""
        posterior = {name: x[rows][None] for name, x in self.samples.items()}
        facts = {
            "log_evidence": self.log_evidence,
            "log_evidence_error": self.log_evidence_error,
            "pareto_k": self.pareto_k,
            "weighted_ess": self.ess,
        }
        attrs: dict[str, object] = {**self.attrs, **facts}
        if self.target is not None and self.positions is not None:
            return make_draws(
                self.target, self.positions[rows][None], {}, attrs, posterior=posterior
            )
        values = (tuple(self.values[i] for i in rows),) if self.values else ()
        shown = {*posterior, *self.groups.get("observed_data", ())}
        made = SampledDraws(
            posterior,
            dims={name: names for name, names in self.dims.items() if name in shown},
            coords=self.coords,
            groups=self.groups,
            attrs=attrs | unshared_sites(values, posterior),
            call=self.call,
        )
        return RunDraws(**vars(made), values=values) if values else made

    def _verdict(self, draws: SampledDraws) -> str:
        worth = f"{self.num_samples} weighted draws are worth {self.ess:.0f}"
        if math.isnan(self.pareto_k):
            return f"{worth}."
        limit = pareto_k_limit(self.num_samples)
        word = "within" if self.pareto_k <= limit else "above"
        return f"{worth}; Pareto k of their weights: {self.pareto_k:.2f}, {word} {limit:.2f}."

    def __getstate__(self) -> dict[str, object]:
        # A model is code, which the process that reads them may not have.
        return {**OfDraws.__getstate__(self), "target": None, "call": None}

    def marginal(self, name: str) -> Empirical:
        """Return the weighted draws of one site as a distribution."""
        return Empirical(Tensor(self[name]), Tensor(self.log_weights))

    def get_ESS(self) -> float:
        """Return `ess`, under Pyro's name."""
        return self.ess

    def get_log_normalizer(self) -> float:
        """Return `log_evidence`, under Pyro's name."""
        return self.log_evidence

    def get_normalized_weights(self, log_scale: bool = False) -> np.ndarray:
        """Return the weights, or their logs, under Pyro's name."""
        return self.log_weights if log_scale else self.weights

    def _each(self) -> Iterator[Values]:
        if self.values:
            yield from self.values
            return
        for i in range(self.num_samples):
            yield {name: x[i] for name, x in self.samples.items()}


def weighted(
    samples: Mapping[str, np.ndarray],
    log_ratios: np.ndarray,
    owner: str,
    *,
    cure: str = "give a guide that is closer and wider, draw more, or use SMC",
    values: Sequence[Values] = (),
    dims: Mapping[str, Sequence[str | None]] | None = None,
    coords: Mapping[str, Sequence[object]] | None = None,
    attrs: Mapping[str, object] | None = None,
    groups: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    call: CalledModel | None = None,
    target: Target | None = None,
    positions: np.ndarray | None = None,
    warns: bool = True,
) -> WeightedDraws:
    """Judge importance ratios, warn where they are bad, and put them beside their draws.

    Parameters
    ----------
    samples, log_ratios, values, dims, coords, attrs, groups, call, target, positions
        See `WeightedDraws`.
    owner : str
        What made the draws, for messages.
    cure : str
        What to do where the weights are bad.
    warns : bool
        Whether to warn then: of weights on their way it would be said too soon.

    Raises
    ------
    InferenceError
        If no draw has any weight, or a ratio is nan or infinite.

    Warns
    -----
    ImportanceWarning
        If Pareto k is above what so many draws can bear.
    """
    count, largest = log_ratios.size, log_ratios.max()
    if np.isnan(log_ratios).any() or not np.isfinite(largest):
        bad = "nan" if np.isnan(log_ratios).any() else f"a largest log ratio of {largest}"
        raise InferenceError(
            f"{owner}: the importance weights",
            expected=f"finite log ratios, at least one of {count}",
            got=bad,
            fix="look for a density that is not finite"
            if bad == "nan" or largest > 0.0
            else "no draw of the proposal can have made the data: use a wider guide",
        )
    evidence, error = log_mean(log_ratios)
    log_weights, k = log_ratios - (evidence + math.log(count)), math.nan
    if count >= MIN_DRAWS:
        log_weights, k = psis(log_ratios)
        if k == math.inf and np.count_nonzero(log_ratios > largest - TIED) >= SEEN_OFTEN:
            # Of discrete sites: the largest weight there is has come up again and again.
            k = -math.inf
    made = WeightedDraws(
        samples, log_ratios, log_weights, k, evidence, error, values, dims or {}, coords or {},
        attrs or {}, groups or {}, call, target, positions,
    )  # fmt: skip
    if warns and count >= MIN_DRAWS and k > pareto_k_limit(count):
        warnings.warn_explicit(
            f"{owner}: the proposal is far from the posterior\n"
            f"  expected: a Pareto k of at most {pareto_k_limit(count):.2f}\n"
            f"  got:      {k:.2f} from {count} draws, worth {made.ess:.1f}\n"
            f"  fix:      {cure}",
            ImportanceWarning,
            *(user_frame() or ("<unknown>", 0)),
        )
    return made


explain_calls(globals())
