"""Leave-one-out where importance sampling fails, and K-fold cross-validation.

`loo` (diagnostics/criteria.py) weights draws of the posterior of all data. Where an observation
moves the posterior much, the weights have too heavy a tail. `loo_moment_match` (moment_match.py)
then moves the draws to where the posterior without the observation is; `reloo` runs inference again
without it, and `loo_kfold` without whole groups. A model is fitted to some of its data by a handler
that masks the others (`_Without`), so nothing is asked of how it is written.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.dispatch import wrap
from probtorch.core.late import special
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.criteria import Elpd, Pointwise, pointwise_of, quiet_loo
from probtorch.diagnostics.drawn import HasDraws
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.effects.runtime import STATE, Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError, ShapeError, user_frame
from probtorch.infer.control import ended_before
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.potential import ModelTarget
from probtorch.infer.remote.all_of import all_of
from probtorch.infer.remote.pools import ExecutorLike, check_executor
from probtorch.infer.results import SampledDraws, with_model
from probtorch.ops.comparisons import logical_and

__all__ = ["loo_kfold", "reloo"]

# A log density that draws say more roughly than this, in nats, is warned of: where it hangs on a
# few draws in a tail it comes out too low, and its error with it.
ROUGH = 0.25

# From a model, without some of its data, to draws of its posterior.
Fit = Callable[[Callable[[], object]], Draws]


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

    Warns
    -----
    InferenceWarning
        If an observation is so far out that few of the draws without it say what it is worth.

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
    >>> draws = mcmc.run(probtorch.tensor([0.0, 0.5, 1.0, 3.0]))
    >>> len(reloo(draws).unreliable)
    0
    """
    draws, target = with_model(draws, "reloo")
    data = pointwise_of(draws, var_name or (elpd.var_name if elpd else None), "reloo")
    found = quiet_loo(data) if elpd is None else elpd
    numbers = found.unreliable
    refits = _Refits(draws, target, data, fit, seed)
    each = refits.without_each([np.array([i]) for i in numbers], executor)
    values, errors = np.concatenate(each, axis=1) if each else np.empty((2, 0))
    _warn_of_few("reloo", numbers, errors)
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

    Warns
    -----
    InferenceWarning
        If an observation is so far out that few of the draws without it say what it is worth.

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
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 2 <= k <= number:
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
    pointwise, errors = np.empty(number), np.empty(number)
    left_out = [np.flatnonzero(parts == part) for part in np.unique(parts)]
    refits = _Refits(draws, target, data, fit, seed)
    for rows, values in zip(left_out, refits.without_each(left_out, executor)):
        pointwise[rows], errors[rows] = values
    _warn_of_few("loo_kfold", np.arange(number), errors)
    return Elpd(
        "kfold",
        data.of_each(pointwise),
        data.of_each(data.lpd - pointwise),
        data.var_name,
    )


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
        """Return what `without` does of each of these parts of the observations."""
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
            raise ended_before("loo_kfold", "all fits")
        return [done.results[i] for i in range(len(left_out))]

    def without(self, left_out: np.ndarray, stream: Generator) -> np.ndarray:
        """Return the log predictive densities of the observations with these numbers, shape (2, n).

        The second row has their Monte Carlo errors, of independent draws.
        """
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
        logs = values + log_weights
        found = special.logsumexp(logs, axis=0)
        squares = np.exp(special.logsumexp(2.0 * (logs - found), axis=0))
        return np.stack([found, np.sqrt(np.maximum(squares - 1.0 / count, 0.0))])

    def _nuts(self, model: Callable[[], object], stream: Generator) -> Draws:
        draws = MCMC(
            NUTS(model),
            num_samples=self.num_samples,
            warmup_steps=self.warmup_steps,
            num_chains=self.num_chains,
            seed=stream,
            progress_bar=False,
        ).run()
        if draws.attrs["interrupted"]:
            raise ended_before("loo_kfold", "all fits")
        return draws


def _warn_of_few(owner: str, numbers: np.ndarray, errors: np.ndarray) -> None:
    """Warn of densities that hang on few draws."""
    rough = np.flatnonzero(errors > ROUGH)
    if rough.size:
        shown = ", ".join(str(i) for i in numbers[rough][:5])
        warnings.warn_explicit(
            f"{owner}: {rough.size} of {numbers.size} log densities hang on few draws\n"
            f"  expected: a Monte Carlo error of at most {ROUGH} nats\n"
            f"  got:      {errors.max():.2f} or more, at observations {shown}"
            f"{' ...' if rough.size > 5 else ''}\n"
            "  fix:      such an observation is far from all that the others predict: look at it; "
            "a likelihood with heavier tails (StudentT), or many more draws",
            InferenceWarning,
            *(user_frame() or ("<unknown>", 0)),
        )


def without(refits: _Refits, part: tuple[np.ndarray, Generator]) -> np.ndarray:
    """A fit, in whatever process this is; see `_Refits.without`."""
    return refits.without(*part)


explain_calls(globals())
