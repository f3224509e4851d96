"""How much a posterior depends on its prior and on its likelihood, each raised to a power.

The draws that there are stand for the posteriors with a prior, or a likelihood, to the power of a
little more and a little less than 1: weights are all that it takes. How far the distribution of
each parameter moves, per doubling of the power, says whether prior and data agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.drawn import HasDraws
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.layout import chosen, entry_labels, flat_entries, real_parts
from probtorch.diagnostics.psis import psis
from probtorch.errors import ArgumentError
from probtorch.infer.results import SampledDraws, with_model

__all__ = ["Sensitivity", "power_sensitivity"]

# The powers are this and its inverse: near enough to 1 for weights that are nearly equal.
POWER = 1.01
# A normal posterior whose mean moves by 0.3 standard deviations per doubling has about this much
# [kallioinen2024, sec. 2.5].
THRESHOLD = 0.05
SHOWN = 30


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity:
    """How far parameters move as prior and likelihood are raised to a power; prints as a table.

    Attributes
    ----------
    labels : tuple of str
        Of the scalars.
    prior, likelihood : ndarray, shape (scalars,)
        Distance per doubling of the power: cumulative Jensen-Shannon, normalised, its root.
    threshold : float
        Above it a parameter is sensitive.
    pareto_k : float
        The largest of the weights that stand for the powers.
    """

    labels: tuple[str, ...]
    prior: np.ndarray
    likelihood: np.ndarray
    threshold: float
    pareto_k: float

    @property
    def verdicts(self) -> dict[str, str]:
        """What each scalar shows: empty where its prior does not matter."""
        found = {}
        for label, p, y in zip(self.labels, self.prior, self.likelihood):
            words = ""
            if p > self.threshold:
                words = (
                    "prior and data disagree"
                    if y > self.threshold
                    else "the prior is strong, or the data say little"
                )
            found[label] = words
        return found

    @property
    def sensitive(self) -> tuple[str, ...]:
        """The scalars that depend on their prior, most first."""
        order = np.argsort(-self.prior)
        return tuple(self.labels[i] for i in order if self.prior[i] > self.threshold)

    def __repr__(self) -> str:
        width = max(9, *map(len, self.labels))
        lines = [f"{'parameter':{width}}  prior  likelihood"]
        order = np.argsort(-self.prior)
        for i in order[:SHOWN]:
            words = self.verdicts[self.labels[i]]
            lines.append(
                f"{self.labels[i]:{width}}  {self.prior[i]:5.3f}  {self.likelihood[i]:10.3f}  "
                f"{words}".rstrip()
            )
        if len(order) > SHOWN:
            lines.append(f"and {len(order) - SHOWN} more that depend less on the prior")
        return "\n".join(lines)


def power_sensitivity(
    draws: SampledDraws | HasDraws,
    names: str | Iterable[str] | None = None,
    *,
    threshold: float = THRESHOLD,
) -> Sensitivity:
    """Find out how much each parameter depends on its prior, and on the data.

    Parameters
    ----------
    draws : SampledDraws, or what has some
        Of the posterior of a model with data, by a sampler.
    names : str or sequence of str, optional
        Which variables; all latent and deterministic ones by default.
    threshold : float
        Above it a parameter counts as sensitive.

    Returns
    -------
    Sensitivity

    Raises
    ------
    InferenceError
        If the draws do not know their model.
    ArgumentError
        If nothing is observed, or the threshold is not positive.

    Notes
    -----
    A parameter that moves with both the power of its prior and that of the likelihood sits between
    two that disagree; one that moves with the prior alone is not told much by the data. All priors
    are raised together: where a hierarchy's inner priors belong to the model rather than to what
    is believed, look at the outer parameters.

    References
    ----------
    [kallioinen2024]_

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS, power_sensitivity
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("row", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> mcmc = MCMC(NUTS(model), 300, 200, num_chains=2, seed=0, progress_bar=False)
    >>> power_sensitivity(mcmc.run(probtorch.tensor([9.0, 10.0, 11.0]))).verdicts
    {'mu': 'prior and data disagree'}
    """
    draws, target = with_model(draws, "power_sensitivity")
    if not threshold > 0.0:
        raise ArgumentError(
            "power_sensitivity(threshold=...)", expected="a positive number", got=repr(threshold),
            fix="leave it out for 0.05",
        )  # fmt: skip
    q = draws.positions.reshape(-1, target.dim)
    terms = [x.reshape(len(q), -1).sum(axis=1) for x in draws.log_likelihood().values()]
    if not terms:
        raise ArgumentError(
            "power_sensitivity(draws)", expected="a model that observes data",
            got="no log densities of observations",
            fix="run inference with data: draws of the prior do not depend on any",
        )  # fmt: skip
    likelihood = np.sum(terms, axis=0)
    prior = target.log_joint(q) - likelihood
    wanted = {n: draws.posterior[n] for n in chosen(names, draws.posterior, "power_sensitivity")}
    labels, columns = _scalars(wanted, draws)
    found, ks = [], []
    for log_density in (prior, likelihood):
        both = np.zeros(columns.shape[1])
        for power in (1.0 / POWER, POWER):
            log_weights, k = psis((power - 1.0) * log_density)
            ks.append(float(k))
            weights = np.exp(log_weights)
            both += np.array([_distance(x, weights) for x in columns.T])
        found.append(both / (2.0 * math.log2(POWER)))
    return Sensitivity(tuple(labels), found[0], found[1], threshold, max(ks))


def _scalars(variables: dict[str, np.ndarray], draws: Draws) -> tuple[list[str], np.ndarray]:
    """Labels and values (draws, scalars)."""
    labels, columns = [], []
    for name, x in real_parts(variables):
        labels += entry_labels(name, x.shape[2:], draws.dims, draws.coords)
        flat = flat_entries(x)
        columns.append(flat.reshape(-1, flat.shape[-1]).astype(np.float64))
    return labels, np.concatenate(columns, axis=1)


def _distance(x: np.ndarray, weights: np.ndarray) -> float:
    """Root of the normalised cumulative Jensen-Shannon distance of weighted and plain draws."""
    order = np.argsort(x, kind="stable")
    x, w = x[order], weights[order]
    bins = np.diff(x)
    if not bins.sum() > 0.0:
        return 0.0
    p, q = np.arange(1, x.size) / x.size, np.minimum(np.cumsum(w)[:-1], 1.0)
    # Of distribution functions, and of what they leave: neither end of a distribution is special.
    return math.sqrt(max(_divergence(p, q, bins), _divergence(1.0 - p, 1.0 - q, bins)))


def _divergence(p: np.ndarray, q: np.ndarray, bins: np.ndarray) -> float:
    """Of two distribution functions on bins [kallioinen2024, eq. 7], between 0 and 1."""
    middle = 0.5 * (p + q)

    def towards(a: np.ndarray) -> np.ndarray:
        there = (a > 0.0) & (middle > 0.0)
        ratio = np.divide(a, middle, out=np.ones_like(a), where=there)
        return np.where(there, a * np.log2(ratio), 0.0)

    # The linear parts of the two directions cancel.
    found = float((bins * (towards(p) + towards(q))).sum() / (bins * (p + q)).sum())
    return max(found, 0.0)


explain_calls(globals())
