"""Leave-one-out by moving the draws to where the posterior without an observation is.

The transformations and their mixture with the original draws are those of Paananen et al. (2021).
criticism.py has what runs inference again in place of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probtorch.core.late import special
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.diagnostics.criteria import Elpd, Pointwise, pointwise_of, quiet_loo, warn_of_ratios
from probtorch.diagnostics.drawn import HasDraws
from probtorch.diagnostics.psis import psis
from probtorch.infer.mapping import DrawMap
from probtorch.infer.potential import ModelTarget
from probtorch.infer.results import SampledDraws, with_model

__all__ = ["loo_moment_match"]

# Draws per dimension from which a covariance is worth estimating [paananen2021, sec. 3.4].
DRAWS_PER_DIM = 10
# Transformations of one observation: each has to make k smaller, so a handful is what is needed.
MAX_MOVES = 30
# Draws are moved until weights have a variance with room to spare: one move more costs one sweep of
# densities, and what is just below the limit is above it again for the mixture.
GOAL = 0.3


def loo_moment_match(
    draws: SampledDraws | HasDraws, elpd: Elpd | None = None, *, var_name: str | None = None
) -> Elpd:
    """Mend leave-one-out estimates by moving the draws to where each posterior is.

    Use it where `loo` warns of a few observations: it costs some thousand densities for each, and
    no new run.

    Parameters
    ----------
    draws : SampledDraws
        Of a model, by `MCMC`.
    elpd : Elpd, optional
        What `loo` returned; found by default.
    var_name : str, optional
        Which observed site, where there are several.

    Returns
    -------
    Elpd
        `pareto_k` of the observations that were moved is that of the moved draws.

    Raises
    ------
    InferenceError
        If the draws do not know their model, or are of a guide.

    Warns
    -----
    InferenceWarning
        If some observations are still unreliable: `reloo` fits without them.

    Notes
    -----
    Unconstrained draws get the mean, then the marginal variances, then the covariance that the
    weights say the posterior without the observation has, as long as k becomes smaller. The
    estimate is from half of the draws moved and half as they were, weighted as draws of the
    mixture, so that its error stays bounded.

    References
    ----------
    [paananen2021]_

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS, loo_moment_match
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 3.0))
    ...     with probtorch.plate("row", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> mcmc = MCMC(NUTS(model), 300, 200, num_chains=2, seed=0, progress_bar=False)
    >>> draws = mcmc.run(probtorch.tensor([0.0, 0.5, 1.0, 6.0]))
    >>> bool((loo_moment_match(draws).pareto_k < 0.7).all())
    True
    """
    draws, target = with_model(draws, "loo_moment_match")
    data = pointwise_of(draws, var_name or (elpd.var_name if elpd else None), "loo_moment_match")
    found = quiet_loo(data) if elpd is None else elpd
    q = draws.positions.reshape(-1, target.dim)
    densities = _Densities(target, data.var_name)
    numbers = found.unreliable
    if len(numbers):
        lp = densities.prior_and_data(q)
        moved = [_Matched(densities, data, q, lp, int(i)).estimate() for i in numbers]
        elpds, ks = (np.array(x) for x in zip(*moved))
        keep = ks < np.asarray(found.pareto_k).reshape(-1)[numbers]
        found = found.replaced(numbers[keep], elpds[keep], ks[keep])
    warn_of_ratios(found, "reloo(draws, elpd) fits the model without them")
    return found


class _Densities:
    """Log densities at many points by compiled loops."""

    def __init__(self, target: ModelTarget, name: str) -> None:
        self.target, self.name = target, name
        self._both = DrawMap(self._one)

    def _one(self, inputs: dict[str, TensorBase]) -> dict[str, TensorBase]:
        q = inputs["q"]
        terms = self.target.log_likelihood_at(q)[self.name].reshape(-1)
        return {"lp": self.target.logdensity(q), "ll": terms[inputs["i"]]}

    def prior_and_data(self, q: np.ndarray) -> np.ndarray:
        """Return the log posterior density, unnormalised, (draws,)."""
        return self.both(q, 0)[0]

    def both(self, q: np.ndarray, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the log posterior density and that of observation `i`, each (draws,)."""
        found = self._both({"q": q, "i": np.full(len(q), i)})
        # Where a density cannot be computed, a draw has no weight.
        lp = np.where(np.isnan(found["lp"]), -np.inf, found["lp"])
        return lp, np.where(np.isfinite(lp), found["ll"], 0.0)


@dataclass(frozen=True)
class _Move:
    """An affine map ``x -> matrix (x - origin) + image``; `matrix` is its Cholesky factors' ratio.

    `scale` is a vector, or the two factors (new, old) whose quotient the matrix is, or None.
    """

    origin: np.ndarray
    image: np.ndarray
    scale: np.ndarray | tuple[np.ndarray, np.ndarray] | None

    def forward(self, x: np.ndarray) -> np.ndarray:
        x = x - self.origin
        if isinstance(self.scale, tuple):
            new, old = self.scale
            x = np.linalg.solve(old, x.T).T @ new.T
        elif self.scale is not None:
            x = x * self.scale
        return x + self.image

    def backward(self, x: np.ndarray) -> np.ndarray:
        x = x - self.image
        if isinstance(self.scale, tuple):
            new, old = self.scale
            x = np.linalg.solve(new, x.T).T @ old.T
        elif self.scale is not None:
            x = x / self.scale
        return x + self.origin

    @property
    def log_det(self) -> float:
        if isinstance(self.scale, tuple):
            new, old = self.scale
            return float(np.log(np.diag(new)).sum() - np.log(np.diag(old)).sum())
        return 0.0 if self.scale is None else float(np.log(self.scale).sum())


class _Matched:
    """Draws moved towards the posterior without observation `i`."""

    def __init__(
        self, densities: _Densities, data: Pointwise, q: np.ndarray, lp: np.ndarray, i: int
    ) -> None:
        self.densities, self.data, self.i = densities, data, i
        self.q, self.lp, self.base = q, lp, data.log_weights

    def _weigh(self, log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
        if not np.isfinite(log_ratios.max()):
            return log_ratios, math.inf
        weights, k = psis(log_ratios, reff=self.data.reff)
        return weights, float(k)

    def estimate(self) -> tuple[float, float]:
        """Return the log predictive density and the k of its weights."""
        moves: list[_Move] = []
        x, weights = self.q, self._weigh(self.base - self.data.values[:, self.i])
        while len(moves) < MAX_MOVES and weights[1] > GOAL:
            for move in self._proposed(x, np.exp(weights[0])):
                moved = move.forward(x)
                lp, ll = self.densities.both(moved, self.i)
                found = self._weigh(self.base + lp - ll - self.lp)
                if found[1] < weights[1]:
                    x, weights = moved, found
                    moves.append(move)
                    break
            else:
                break
        return self._mixed(moves)

    def _proposed(self, x: np.ndarray, weights: np.ndarray) -> list[_Move]:
        """Moves to the weighted mean, variances and covariance of the draws."""
        base = np.exp(self.base)
        mean, image = base @ x, weights @ x
        moves = [_Move(mean, image, None)]
        variance, wanted = base @ (x - mean) ** 2, weights @ (x - image) ** 2
        if (variance > 0.0).all() and (wanted > 0.0).all():
            moves.append(_Move(mean, image, np.sqrt(wanted / variance)))
        if len(x) >= DRAWS_PER_DIM * x.shape[1] and x.shape[1] > 1:
            try:
                old, new = (
                    np.linalg.cholesky((w[:, None] * (x - m)).T @ (x - m))
                    for w, m in ((base, mean), (weights, image))
                )
                moves.append(_Move(mean, image, (new, old)))
            except np.linalg.LinAlgError:
                pass  # weights on few draws: their covariance is singular
        return moves

    def _mixed(self, moves: list[_Move]) -> tuple[float, float]:
        """The estimate from half of the draws moved, half not, as draws of the mixture of both."""
        x = self.q.copy()
        half = np.arange(len(x)) % 2 == 0
        moved = x[half]
        for move in moves:
            moved = move.forward(moved)
        x[half] = moved
        lp, ll = self.densities.both(x, self.i)
        # The density of moved draws at x is that of draws at the point that is moved to x.
        origin, log_det = x, 0.0
        for move in reversed(moves):
            origin, log_det = move.backward(origin), log_det + move.log_det
        other = self.densities.both(origin, self.i)[0] - log_det
        # exp(base) are weights that make the draws those of the posterior.
        weights, k = self._weigh(self.base + lp - ll - np.logaddexp(lp, other))
        return float(special.logsumexp(weights + ll)), k


explain_calls(globals())
