"""`Forecaster` and `HMCForecaster`: a fit of a model, called for draws of what is to come."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.contrib.forecast.model import (
    ForecastingModel,
    continued,
    covariates_for,
    duration_of,
)
from probtorch.core.making import as_tensor
from probtorch.core.rng import generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.typed import TensorLike
from probtorch.effects import handlers
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.infer.guides.joint import AutoMultivariateNormal
from probtorch.infer.guides.mean_field import AutoNormal
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.objectives.elbo import Trace_ELBO
from probtorch.infer.prediction.predictive import Predictive
from probtorch.infer.starts.initialization import Strategy, init_to_median
from probtorch.infer.vi.svi import SVI
from probtorch.infer.vi.updater import Optim
from probtorch.ops.pieces import stack
from probtorch.optim.adam import ClippedAdam
from probtorch.tensor import Tensor

__all__ = ["Forecaster", "HMCForecaster"]

# Latent numbers whose correlations the default guide learns: 125 000 of them.
MANY = 500

_NOT_HERE = {
    "create_plates": "plates of the model may subsample by themselves: plate(subsample_size=)",
    "time_reparam": "give a guide with correlations: guide=AutoMultivariateNormal(model)",
    "dct_gradients": "give a guide with correlations: guide=AutoMultivariateNormal(model)",
    "subsample_aware": "leave it out",
    "vectorize_particles": "leave it out: steps are compiled",
    "jit_compile": "leave it out: densities are compiled",
    "warm_start": "leave it out; init_loc_fn= says where to begin",
    "log_every": "leave it out: progress_bar=True shows the loss, and .losses keeps it",
}


class _Fit(abc.ABC):
    """A fitted model: what forecasters share."""

    model: ForecastingModel

    def _begin(
        self,
        model: ForecastingModel,
        data: TensorLike,
        covariates: TensorLike | None,
        seed: int | None,
    ) -> tuple[Tensor, Tensor]:
        name = type(self).__name__
        if not isinstance(model, ForecastingModel):
            raise DTypeError(
                name,
                expected="an instance of a ForecastingModel",
                got=type(model).__name__,
                fix="derive the model from ForecastingModel, and make it: Model()",
            )
        data = as_tensor(data, "data")
        covariates = covariates_for(data, covariates)
        known, duration = duration_of(data, covariates)
        if known != duration:
            raise ShapeError(
                name,
                expected=f"covariates of the {known} steps of the data, to fit them",
                got=f"{duration} steps",
                fix="fit with covariates[..., :t, :], and give all of them to the forecaster",
            )
        self.model, self._known = model, known
        self._rng = generator_of(seed)
        return data, covariates

    def __call__(
        self,
        data: TensorLike,
        covariates: TensorLike,
        num_samples: int = 100,
        batch_size: int | None = None,
    ) -> Tensor:
        """Draw what is to come.

        Parameters
        ----------
        data : Tensor, shape (..., t, dim)
            Those of the fit.
        covariates : Tensor, shape (..., duration, features)
            Of these steps and those to come; ``zeros(duration, 0)`` if there are none.
        num_samples : int
        batch_size : int, optional
            Pyro's: draws are made one by one, whatever it is.

        Returns
        -------
        Tensor, shape (num_samples, ..., duration - t, dim)

        Raises
        ------
        ShapeError
            If the data have not the steps of the fit, or nothing is to come.
        """
        data, covariates = as_tensor(data, "data"), as_tensor(covariates, "covariates")
        known, duration = duration_of(data, covariates)
        if known != self._known or known == duration:
            raise ShapeError(
                type(self).__name__,
                expected=f"the {self._known} steps of the data that were fitted, and covariates "
                "of more",
                got=f"{known} and {duration} steps",
                fix="give covariates for the steps to come, zeros(duration, 0) if there are none; "
                "a later forecast needs another fit",
            )
        found = []
        with no_grad():
            for values in self._draws(num_samples):
                fit = handlers.substitute(data=self._values())
                with handlers.seed(rng_seed=self._rng), fit, continued(values):
                    found.append(self.model(data, covariates))
        return stack(found)

    @abc.abstractmethod
    def _draws(self, count: int) -> Iterator[Mapping[str, Tensor]]:
        """Yield values of the latent sites of the fit."""

    def _values(self) -> dict[str, Tensor]:
        """Values of parameters."""
        return {}


def _advice(args: object, kwargs: Mapping[str, object]) -> str | None:
    return next((text for name, text in _NOT_HERE.items() if name in kwargs), None)


class Forecaster(_Fit):
    """A model fitted by variational inference.

    Parameters
    ----------
    model : ForecastingModel
    data : Tensor, shape (..., t, dim)
    covariates : Tensor, shape (..., t, features), optional
    guide : callable, optional
        A guide of the model. By default `AutoMultivariateNormal` where the model has at most 500
        latent numbers, else `AutoNormal`.
    init_loc_fn : callable
        Where the default guide begins; `init_scale` is its scale there.
    optim : optimizer, optional
        By default `ClippedAdam`, with the four settings that follow.
    learning_rate : float
    betas : tuple of float
    learning_rate_decay : float
        What is left of the learning rate at the end.
    clip_norm : float
    num_steps, num_particles : int
    seed : int, optional
    progress_bar : bool

    Attributes
    ----------
    losses : list of float
    svi : SVI

    Notes
    -----
    Call it for draws: ``forecaster(data, covariates, num_samples)``. The fit draws the past of each
    site, the model the rest. Arguments are Pyro's, and so is the form of the learning rate; those
    of subsampling and of reparametrisation in time are not here. `AutoNormal` takes steps as
    independent, so that a level which is their sum is less certain at its end than it should be:
    for a long series with such a level, `HMCForecaster` is better.
    """

    @explained("Forecaster", advice=_advice)
    def __init__(
        self,
        model: ForecastingModel,
        data: TensorLike,
        covariates: TensorLike | None = None,
        *,
        guide: Callable[..., object] | None = None,
        init_loc_fn: Strategy = init_to_median,
        init_scale: float = 0.1,
        optim: Optim | None = None,
        learning_rate: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        learning_rate_decay: float = 0.1,
        clip_norm: float = 10.0,
        num_steps: int = 1001,
        num_particles: int = 1,
        seed: int | None = None,
        progress_bar: bool = False,
    ) -> None:
        self._data = self._begin(model, data, covariates, seed)
        if not (learning_rate > 0.0 and 0.0 < learning_rate_decay <= 1.0 and num_steps >= 1):
            raise ArgumentError(
                "Forecaster",
                expected="a learning rate above 0, a decay in (0, 1], and one step or more",
                got=f"learning_rate={learning_rate}, learning_rate_decay={learning_rate_decay}, "
                f"num_steps={num_steps}",
                fix="leave them out for 0.01, 0.1 and 1001",
            )
        if guide is None:
            guide = self._default_guide()(model, init_loc_fn, init_scale)
        if optim is None:
            optim = ClippedAdam(
                {
                    "lr": learning_rate,
                    "betas": betas,
                    "lrd": learning_rate_decay ** (1.0 / num_steps),
                    "clip_norm": clip_norm,
                }
            )
        elbo = Trace_ELBO(num_particles=num_particles)
        self.guide = guide
        self.svi = SVI(model, guide, optim, elbo, seed=seed)
        self.losses = list(self.svi.run(num_steps, *self._data, progress_bar=progress_bar).losses)

    def _default_guide(self) -> type[AutoMultivariateNormal] | type[AutoNormal]:
        with handlers.seed(rng_seed=0), no_grad():
            sites = handlers.trace(self.model).get_trace(*self._data)
        sizes = [
            as_tensor(s.value, s.name).numel()
            for s in sites.values()
            if s.kind == "sample" and not s.observed
        ]
        return AutoMultivariateNormal if sum(sizes) <= MANY else AutoNormal

    def _draws(self, count: int) -> Iterator[Mapping[str, Tensor]]:
        draws = Predictive(self.guide, num_samples=count, params=self._values(), seed=self._rng)
        found = draws(*self._data)
        for i in range(count):
            yield {name: x[i] for name, x in found.items()}

    def _values(self) -> dict[str, Tensor]:
        return self.svi.get_params()


class HMCForecaster(_Fit):
    """A model fitted by NUTS.

    Parameters
    ----------
    model : ForecastingModel
    data : Tensor, shape (..., t, dim)
    covariates : Tensor, shape (..., t, features), optional
    num_warmup, num_samples, num_chains : int
        By chain.
    dense_mass : bool
    max_tree_depth : int
    seed : int, optional
    progress_bar : bool

    Attributes
    ----------
    mcmc : MCMC
        With `summary()` and all else.

    Notes
    -----
    Call it for draws: ``forecaster(data, covariates, num_samples)``. They go on from draws of the
    posterior that are spread over the run.
    """

    @explained("HMCForecaster", advice=_advice)
    def __init__(
        self,
        model: ForecastingModel,
        data: TensorLike,
        covariates: TensorLike | None = None,
        *,
        num_warmup: int = 1000,
        num_samples: int = 1000,
        num_chains: int = 1,
        dense_mass: bool = False,
        max_tree_depth: int = 10,
        seed: int | None = None,
        progress_bar: bool = False,
    ) -> None:
        self._data = self._begin(model, data, covariates, seed)
        kernel = NUTS(model, dense_mass=dense_mass, max_tree_depth=max_tree_depth)
        self.mcmc = MCMC(
            kernel,
            num_samples,
            num_warmup=num_warmup,
            num_chains=num_chains,
            seed=seed,
            progress_bar=progress_bar,
        )
        self.mcmc.run(*self._data)

    def _draws(self, count: int) -> Iterator[Mapping[str, Tensor]]:
        found = self.mcmc.get_samples()
        total = len(next(iter(found.values())))
        chosen = np.linspace(0, total - 1, count).round().astype(int)
        for i in chosen:
            yield {name: x[int(i)] for name, x in found.items()}


explain_calls(globals())
