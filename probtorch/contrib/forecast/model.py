"""`ForecastingModel`: a model over the time that its covariates cover."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass

from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.pyro_module import PyroModule
from probtorch.effects.runtime import Handler, draw
from probtorch.effects.site import Site
from probtorch.errors import ModelError, ShapeError
from probtorch.ops.movement import expand, reshape
from probtorch.ops.pieces import cat
from probtorch.tensor import Tensor

__all__ = ["ForecastingModel", "continued", "covariates_for", "duration_of"]


@dataclass(frozen=True)
class _Window:
    """Data of the steps that are known, and how many steps there are."""

    data: Tensor
    known: int
    duration: int


class ForecastingModel(PyroModule, abc.ABC):
    """Base of models of series, which forecasters fit and let go on.

    A subclass writes `model`, with `time_plate` around what each step has of its own, and ends it
    with `predict` or `observe`.

    Examples
    --------
    A level that wanders, and covariates with coefficients:

    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.forecast import ForecastingModel
    >>> class Wandering(ForecastingModel):
    ...     def model(self, zero_data, covariates):
    ...         prior = dist.Normal(0.0, 1.0).expand([covariates.shape[-1]]).to_event(1)
    ...         weight = probtorch.sample("weight", prior)
    ...         scale = probtorch.sample("scale", dist.LogNormal(-3.0, 1.0))
    ...         noise = probtorch.sample("noise", dist.LogNormal(-2.0, 1.0))
    ...         with self.time_plate:
    ...             step = probtorch.sample("step", dist.Normal(0.0, 1.0))
    ...         level = (scale * step).cumsum(-1).unsqueeze(-1)
    ...         mean = level + (covariates * weight).sum(-1, keepdim=True)
    ...         self.predict(dist.Normal(0.0, noise), mean)
    """

    @abc.abstractmethod
    def model(self, zero_data: Tensor, covariates: Tensor) -> None:
        """State the model.

        Parameters
        ----------
        zero_data : Tensor, shape (..., duration, dim)
            Zeros of the shape of the data over all the time; the values are not to be known here.
        covariates : Tensor, shape (..., duration, features)
        """

    @property
    def time_plate(self) -> plate:
        """The plate of steps, the rightmost dim: sites inside are independent from step to step.

        Others have ``dim=-2`` and further left. Sums over the steps (`cumsum`) of such sites are
        what goes on.
        """
        return plate("time", self._now("time_plate").duration, dim=-1)

    def predict(self, noise_dist: Distribution, prediction: Tensor) -> None:
        """State that data are a prediction and noise.

        Parameters
        ----------
        noise_dist : Distribution
            Of numbers, or of the vectors of a step: independent from step to step. With steps in
            its event (`GaussianHMM` of the duration of `prediction`) noise goes on from the
            residuals that are known.
        prediction : Tensor, shape (..., duration, dim)

        Raises
        ------
        ShapeError
            If `prediction` has not the duration and size of the data.
        """
        window = self._now("predict")
        self._check(prediction.shape, window, "predict(prediction)")
        t = window.known
        in_time = len(noise_dist.event_shape) == 2
        if in_time:
            if t == window.duration:
                sample("residual", noise_dist, obs=window.data - prediction)
                return
            self._check(noise_dist.event_shape, window, "predict(noise_dist)")
            known = window.data - prediction[..., :t, :]
            rest = sample("residual", _after(noise_dist, known, "predict(noise_dist)"))
            self._found(prediction[..., t:, :] + rest)
            return
        noise_dist = _by_steps(noise_dist, tuple(prediction.shape))
        with self.time_plate:
            if t == window.duration:
                sample("residual", noise_dist, obs=window.data - prediction)
            else:
                self._found((prediction + sample("residual", noise_dist))[..., t:, :])

    def observe(self, distribution: Distribution) -> None:
        """State the distribution of the data itself, where noise is not added: of counts, for one.

        Parameters
        ----------
        distribution : Distribution, shape (..., duration, dim) of batch and event
            Of numbers, or of the vectors of a step: independent from step to step.
        """
        window = self._now("observe")
        shape = (*distribution.batch_shape, *distribution.event_shape)
        self._check(shape, window, "observe(distribution)")
        distribution = _by_steps(distribution, shape)
        with self.time_plate:
            if window.known == window.duration:
                sample("data", distribution, obs=window.data)
            else:
                self._found(sample("data", distribution)[..., window.known :, :])

    def forward(self, data: TensorLike, covariates: TensorLike) -> Tensor | None:
        """Run the model: over the data, or on beyond them.

        Parameters
        ----------
        data : Tensor, shape (..., t, dim)
        covariates : Tensor, shape (..., duration, features)
            With ``t`` steps the model is one of the data; with more it goes on.

        Returns
        -------
        Tensor, shape (..., duration - t, dim), or None
            A draw of the steps to come.

        Raises
        ------
        ShapeError
            If there are fewer covariates than data.
        ModelError
            If `model` did not come to `predict` or `observe`.
        """
        data, covariates = as_tensor(data, "ForecastingModel"), as_tensor(covariates, "covariates")
        known, duration = duration_of(data, covariates)
        window = _Window(data, known, duration)
        shape = (*data.shape[:-2], duration, data.shape[-1])
        self.__dict__["_window"], self.__dict__["_forecast"] = window, None
        self.model(data.new_zeros(shape), covariates)
        found = self.__dict__["_forecast"]
        if known < duration and found is None:
            raise ModelError(
                f"{type(self).__name__}.model",
                expected="a model that ends with self.predict(...) or self.observe(...)",
                got="neither",
                fix="state what the data are by one of them",
            )
        return found

    def _found(self, forecast: Tensor) -> None:
        self.__dict__["_forecast"] = forecast

    def _now(self, what: str) -> _Window:
        window = self.__dict__.get("_window")
        if window is None:
            raise ModelError(
                f"{type(self).__name__}.{what}",
                expected="a call of the model, which knows the time",
                got="none yet",
                fix="use it in model(), and call the module with data and covariates",
            )
        return window

    def _check(self, shape: tuple[int, ...], window: _Window, what: str) -> None:
        wanted = (window.duration, window.data.shape[-1])
        if tuple(shape[-2:]) != wanted:
            raise ShapeError(
                f"{type(self).__name__}.{what}",
                expected=f"shape (..., {wanted[0]}, {wanted[1]}): steps and numbers of a step",
                got=str(tuple(shape)),
                fix="values of a step have a last dim, of size 1 for a single series: "
                "unsqueeze(-1)",
            )


def covariates_for(data: Tensor, covariates: TensorLike | None) -> Tensor:
    """Return covariates as a tensor; if there are none, no numbers for each step of the data."""
    if covariates is None:
        return data.new_zeros((*data.shape[-2:-1], 0))
    return as_tensor(covariates, "covariates")


def duration_of(data: Tensor, covariates: Tensor) -> tuple[int, int]:
    """Return the steps that are known and those that there are, after checks of both."""
    for name, x in (("data", data), ("covariates", covariates)):
        if x.array.ndim < 2:
            raise ShapeError(
                name,
                expected="shape (..., steps, numbers of a step)",
                got=str(tuple(x.shape)),
                fix="x.unsqueeze(-1) for one number a step; zeros(duration, 0) for no covariates",
            )
    known, duration = int(data.shape[-2]), int(covariates.shape[-2])
    if known > duration or known == 0:
        raise ShapeError(
            "covariates",
            expected=f"as many steps as the {known} of the data, or more; and some data",
            got=f"{duration} steps",
            fix="cut both to one window: data[..., :t, :], covariates[..., :t, :]",
        )
    return known, duration


def _by_steps(d: Distribution, shape: tuple[int, ...]) -> Distribution:
    """Return a distribution of the vectors of each step."""
    if len(d.event_shape) > 1:
        raise ShapeError(
            "ForecastingModel",
            expected="a distribution of numbers, or of the vectors of a step",
            got=f"event shape {tuple(d.event_shape)}",
            fix="leave out to_event() for the steps: they belong to the time plate",
        )
    if len(d.event_shape) == 0:
        d = d.expand(broadcast_shapes(tuple(d.batch_shape), shape, op="predict")).to_event(1)
    return d.expand(broadcast_shapes(tuple(d.batch_shape), shape[:-1], op="predict"))


def _after(d: Distribution, known: Tensor, what: str) -> Distribution:
    """Return the distribution of the steps to come, given the first ones."""
    if not hasattr(d, "prefix_condition"):
        raise ModelError(
            what,
            expected="independent steps, or a distribution that goes on from the first ones "
            "(GaussianHMM)",
            got=type(d).__name__,
            fix="state steps inside self.time_plate, and sum them up: steps.cumsum(-1)",
        )
    return d.prefix_condition(known)


class continued(Handler):
    """Give sites the values of a fit; where time goes on, draw what the fit has not.

    Parameters
    ----------
    values : dict
        Of latent sites, as they were fitted.
    """

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__(None)
        self.values = values

    def on_sample(self, site: Site) -> None:
        """Give the site its value."""
        if site.observed or site.name not in self.values:
            return
        known, fn = as_tensor(self.values[site.name], site.name), site.fn
        shape = (*fn.batch_shape, *fn.event_shape)
        event = len(fn.event_shape)
        known = reshape(known, ((1,) * (len(shape) - known.array.ndim) + known.array.shape))
        time = [f for f in site.plates if f.name == "time" and f.dim == -1]
        if known.array.shape == tuple(shape):
            site.value = known
        elif time:
            at = len(fn.batch_shape) - 1
            t = known.array.shape[at]
            drawn = draw(site)
            wanted = (*shape[:at], t, *shape[at + 1 :])
            after = (slice(None),) * at + (slice(t, None),)
            site.value = cat([expand(known, wanted), drawn[after]], at)
        elif event >= 1:
            rest = _after(fn, known, f"site {site.name!r}")
            site.value = cat([known, draw_of(site, rest)], len(fn.batch_shape))
        else:
            raise ShapeError(
                f"site {site.name!r}",
                expected=f"shape {tuple(known.array.shape)}, as when it was fitted",
                got=str(tuple(shape)),
                fix="what has a value for each step stands inside self.time_plate",
            )


def draw_of(site: Site, fn: Distribution) -> Tensor:
    """Draw from another distribution than the site's own, by the same generator."""
    before, site.fn = site.fn, fn
    try:
        return draw(site)
    finally:
        site.fn = before
