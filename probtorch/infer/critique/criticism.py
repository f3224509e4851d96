"""Leave-one-out where importance sampling fails, and K-fold cross-validation.

`loo` (diagnostics/criteria.py) weights draws of the posterior of all data. Where an observation
moves the posterior much, the weights have too heavy a tail. `loo_moment_match` then moves the draws
to where the posterior without the observation is; `reloo` runs inference again without it, and
`loo_kfold` without whole groups. A model is fitted to some of its data by a handler that masks the
others (`_Without`), so nothing is asked of how it is written.

The transformations and their mixture with the original draws are those of Paananen et al. (2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.dispatch import wrap
from probtorch.core.late import special
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.diagnostics.criteria import Elpd, Pointwise, pointwise_of, warn_of_ratios
from probtorch.diagnostics.drawn import HasDraws
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.psis import pareto_k_limit, psis
from probtorch.effects.runtime import STATE, Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer.mapping import DrawMap
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.potential import ModelTarget
from probtorch.infer.remote.all_of import all_of
from probtorch.infer.remote.pools import ExecutorLike, check_executor
from probtorch.infer.results import SampledDraws, with_model
from probtorch.ops.comparisons import logical_and

__all__ = ["loo_kfold", "loo_moment_match", "reloo"]

# Draws per dimension from which a covariance is worth estimating [paananen2021, sec. 3.4].
DRAWS_PER_DIM = 10
# Transformations of one observation: each has to make k smaller, so a handful is what is needed.
MAX_MOVES = 30
# Draws are moved until weights have a variance with room to spare: one move more costs one sweep of
# densities, and what is just below the limit is above it again for the mixture.
GOAL = 0.3

# From a model, without some of its data, to draws of its posterior.
Fit = Callable[[Callable[[], object]], Draws]


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
    found = _quiet_loo(data) if elpd is None else elpd
    q = draws.positions.reshape(-1, target.dim)
    densities = _Densities(target, data.var_name)
    numbers = found.unreliable
    if len(numbers):
        lp = densities.prior_and_data(q)
        moved = [_Matched(densities, data, q, lp, int(i)).estimate() for i in numbers]
        elpds, ks = (np.array(x) for x in zip(*moved))
        keep = ks < np.asarray(found.pareto_k).reshape(-1)[numbers]
        found = found.replaced(numbers[keep], elpds[keep], ks[keep])
    warn_of_ratios(found, "reloo(draws, elpd) fits the model without them", stacklevel=3)
    return found


def reloo(
    draws: SampledDraws | HasDraws,
    elpd: Elpd | None = None,
    *,
    var_name: str | None = None,
    fit: Fit | None = None,
    seed: int = 0,
    executor: ExecutorLike | None = None,
) -> Elpd:
    """Mend leave-one-out estimates by fits without the observations that are unreliable.

    Parameters
    ----------
    draws : SampledDraws
        Of a model.
    elpd : Elpd, optional
        What `loo` or `loo_moment_match` returned; the former by default.
    var_name : str, optional
        Which observed site, where there are several.
    fit : callable, optional
        ``fit(model)`` returns draws of a model without arguments. By default NUTS, with as many
        chains, draws and warm-up steps as `draws` have.
    seed : int
        For these runs.
    executor : concurrent.futures.Executor or callable, optional
        Where the fits run; here, one after the other, by default. The result does not depend on it.

    Returns
    -------
    Elpd
        ``pareto_k`` is -inf at the observations that were fitted without.

    Raises
    ------
    InferenceError
        If the draws do not know their model.

    References
    ----------
    [vehtari2017]_

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS, reloo
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 3.0))
    ...     with probtorch.plate("row", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> mcmc = MCMC(NUTS(model), 200, 200, num_chains=2, seed=0, progress_bar=False)
    >>> draws = mcmc.run(probtorch.tensor([0.0, 0.5, 1.0, 9.0]))
    >>> len(reloo(draws).unreliable)
    0
    """
    draws, target = with_model(draws, "reloo")
    data = pointwise_of(draws, var_name or (elpd.var_name if elpd else None), "reloo")
    found = _quiet_loo(data) if elpd is None else elpd
    numbers = found.unreliable
    refits = _Refits(draws, target, data, fit, seed)
    values = [x[0] for x in refits.without_each([np.array([i]) for i in numbers], executor)]
    return found.replaced(numbers, values, np.full(len(numbers), -np.inf))


def loo_kfold(
    draws: SampledDraws | HasDraws,
    k: int = 10,
    *,
    folds: ArrayLike | None = None,
    var_name: str | None = None,
    fit: Fit | None = None,
    seed: int = 0,
    executor: ExecutorLike | None = None,
) -> Elpd:
    """Estimate the log predictive density by fits that leave out one part of the data each.

    Use it where much of the data depends on few parameters (groups, time), or observations are so
    influential that `loo` does not help.

    Parameters
    ----------
    draws : SampledDraws
        Of a model with all data.
    k : int
        Number of parts, drawn at random, of as equal size as can be.
    folds : array_like of int, shape (*observations), optional
        The part that each observation belongs to instead: groups that are to be predicted whole.
    var_name : str, optional
        Which observed site, where there are several.
    fit : callable, optional
        ``fit(model)`` returns draws of a model without arguments. By default NUTS, with as many
        chains, draws and warm-up steps as `draws` have.
    seed : int
        For the parts and the runs.
    executor : concurrent.futures.Executor or callable, optional
        Where the fits run; here, one after the other, by default. The result does not depend on it.

    Returns
    -------
    Elpd

    Raises
    ------
    ArgumentError
        If there are fewer than two parts, or more than observations.
    ShapeError
        If `folds` does not have one number per observation.
    InferenceError
        If the draws do not know their model.

    References
    ----------
    [vehtari2017]_

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS, loo_kfold
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 3.0))
    ...     with probtorch.plate("row", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> mcmc = MCMC(NUTS(model), 200, 200, num_chains=2, seed=0, progress_bar=False)
    >>> draws = mcmc.run(probtorch.tensor([0.0, 0.5, 1.0, 1.5]))
    >>> loo_kfold(draws, 2).pointwise.shape
    (4,)
    """
    draws, target = with_model(draws, "loo_kfold")
    data = pointwise_of(draws, var_name, "loo_kfold")
    number = math.prod(data.shape)
    if folds is None:
        if isinstance(k, bool) or not 2 <= k <= number:
            raise ArgumentError(
                "loo_kfold(k=...)", expected=f"2 to {number} parts of {number} observations",
                got=repr(k), fix=f"for example k={min(10, max(number, 2))}",
            )  # fmt: skip
        parts = np.random.default_rng(seed).permutation(np.arange(number) % k)
    else:
        parts = np.asarray(folds)
        if parts.shape != data.shape:
            raise ShapeError(
                "loo_kfold(folds=...)", expected=f"shape {data.shape}, one number per observation",
                got=f"shape {parts.shape}", fix="number the parts 0, 1, 2, ...",
            )  # fmt: skip
        parts = parts.reshape(-1)
    pointwise = np.empty(number)
    left_out = [np.flatnonzero(parts == part) for part in np.unique(parts)]
    refits = _Refits(draws, target, data, fit, seed)
    for rows, values in zip(left_out, refits.without_each(left_out, executor)):
        pointwise[rows] = values
    return Elpd(
        "kfold",
        pointwise.reshape(data.shape),
        (data.lpd - pointwise).reshape(data.shape),
        data.var_name,
    )


def _quiet_loo(data: Pointwise) -> Elpd:
    """What `loo` returns, without its warning: what is unreliable is about to be mended."""
    weights, k = data.without_each()
    pointwise = special.logsumexp(weights + data.values.T, axis=1)
    return Elpd(
        "loo",
        pointwise.reshape(data.shape),
        (data.lpd - pointwise).reshape(data.shape),
        data.var_name,
        np.asarray(k).reshape(data.shape),
        pareto_k_limit(len(data.values)),
    )


# ---------------------------------------------------------------------------------- matched moments


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


# ------------------------------------------------------------------------------------------- refits


class _Without(Handler):
    """Leave some elements of an observed site out of the density."""

    def __init__(self, name: str, kept: np.ndarray) -> None:
        super().__init__()
        self.name, self.kept = name, kept

    def on_sample(self, site: Site) -> None:
        if site.name == self.name and site.observed:
            kept = wrap(self.kept)
            if site.mask is None or site.mask is True:
                site.mask = kept
            elif site.mask is not False:
                site.mask = logical_and(site.mask, kept)


class _Refits:
    """Fits of a model to some of its data, and what they say of the rest."""

    def __init__(
        self,
        draws: SampledDraws,
        target: ModelTarget,
        data: Pointwise,
        fit: Fit | None,
        seed: int,
    ) -> None:
        self.target, self.data, self.fit, self.seed = target, data, fit, seed
        self.num_samples, self.num_chains = max(draws.num_draws, 1), draws.num_chains
        self.warmup_steps = int(draws.attrs.get("tuning_steps", 1000))

    def without_each(
        self, left_out: Sequence[np.ndarray], executor: ExecutorLike | None
    ) -> list[np.ndarray]:
        """Return the log predictive densities of each of these parts of the observations."""
        if executor is not None:
            check_executor(executor, "loo_kfold")
        done = all_of(
            without,
            self,
            list(zip(left_out, Generator(self.seed).spawn(len(left_out)))),
            executor=executor,
            names=[f"the fit without part {i}" for i in range(len(left_out))],
            what="a model, its data and its draws",
        )
        if done.failed:
            raise done.failed[min(done.failed)]
        if done.interrupted:
            raise KeyboardInterrupt
        return [done.results[i] for i in range(len(left_out))]

    def without(self, left_out: np.ndarray, stream: Generator) -> np.ndarray:
        """Return the log predictive densities of the observations with these numbers."""
        kept = np.ones(self.data.values.shape[1], bool)
        kept[left_out] = False
        handler = _Without(self.data.var_name, kept.reshape(self.data.shape))

        def model() -> object:
            return self.target.run(*STATE.handlers, handler)

        model.__name__ = self.target.name
        found = self._nuts(model, stream) if self.fit is None else self.fit(model)
        positions = getattr(found, "positions", None)
        if positions is None or positions.shape[-1] != self.target.dim:
            raise InferenceError(
                "fit(model)",
                expected="draws of the model, as MCMC(NUTS(model)).run() returns them",
                got=f"{type(found).__name__}",
                fix="return mcmc.run(), or svi.run(steps).draws()",
            )
        log_density = self.target.log_likelihood(positions)[self.data.var_name]
        count = positions.shape[0] * positions.shape[1]
        values = log_density.reshape(count, -1)[:, left_out]
        weights = found.sample_stats.get("log_weight")
        log_weights = -math.log(count) if weights is None else weights.reshape(count, 1)
        return special.logsumexp(values + log_weights, axis=0)

    def _nuts(self, model: Callable[[], object], stream: Generator) -> Draws:
        return MCMC(
            NUTS(model),
            num_samples=self.num_samples,
            warmup_steps=self.warmup_steps,
            num_chains=self.num_chains,
            seed=stream,
            progress_bar=False,
        ).run()


def without(refits: _Refits, part: tuple[np.ndarray, Generator]) -> np.ndarray:
    """A fit, in whatever process this is; see `_Refits.without`."""
    return refits.without(*part)


explain_calls(globals())
