"""Guides without correlations: `AutoDelta`, a point, and `AutoNormal`, a normal for each number."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.normal import Normal
from probtorch.distributions.uniform import Delta
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.infer.guides.base import AutoGuide, as_quantiles, check_scale, off_tape
from probtorch.infer.guides.latents import Latent
from probtorch.infer.starts.initialization import Strategy, init_to_feasible, init_to_median
from probtorch.ops.arithmetic import mul
from probtorch.ops.movement import expand, reshape
from probtorch.ops.pieces import cat
from probtorch.ops.special import ndtri

__all__ = ["AutoDelta", "AutoNormal"]


class AutoDelta(AutoGuide):
    """A point for each latent site: the guide of maximum a posteriori estimation.

    Parameters
    ----------
    model, init_loc_fn, create_plates, prefix, dtype
        See `AutoGuide`.

    Notes
    -----
    The point is where the density of the constrained values is largest, without Jacobians.
    Parameters are called ``{site}_auto_loc``.
    """

    def __init__(
        self,
        model: Callable[..., object],
        init_loc_fn: Strategy = init_to_median,
        *,
        create_plates: Callable[..., plate | Iterable[plate]] | None = None,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model, init_loc_fn=init_loc_fn, create_plates=create_plates, prefix=prefix, dtype=dtype
        )

    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """State all latent sites; see `AutoGuide.draw`."""
        values = {}
        for name, latent in self.latents.items():
            with self._within(latent, plates):
                loc = self._loc(latent, latent.event_dim)
                values[name] = sample(name, Delta(loc, 0.0, latent.event_dim))
        return values

    def _loc(self, latent: Latent, event_dim: int | None = None) -> TensorBase:
        """The point, of the rows in use inside the site's plates."""
        name = f"{latent.name}_{self.prefix}_loc"
        return param(name, lambda: self._init(latent, free=False), latent.support, event_dim)

    def median(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Return the points by name; see `AutoGuide.median`."""
        with self._asked():
            return off_tape({n: self._loc(latent) for n, latent in self.latents.items()})

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return the points, unconstrained, as often as asked for."""
        found = {n: self.latents[n].transform.inv(x) for n, x in self.median().items()}
        return {n: expand(x, (*shape, *x.array.shape)) for n, x in found.items()}


class AutoNormal(AutoGuide):
    """An independent normal for each unconstrained number.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the means start; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    create_plates, prefix, dtype
        See `AutoGuide`.

    Notes
    -----
    Parameters are called ``{site}_auto_loc`` and ``{site}_auto_scale``. A site whose support is all
    of R^n gets its normal directly, so `TraceMeanField_ELBO` has its divergence in closed form; the
    others are made from a helper site ``{site}_unconstrained``.
    """

    def __init__(
        self,
        model: Callable[..., object],
        init_loc_fn: Strategy = init_to_feasible,
        init_scale: float = 0.1,
        *,
        create_plates: Callable[..., plate | Iterable[plate]] | None = None,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model, init_loc_fn=init_loc_fn, create_plates=create_plates, prefix=prefix, dtype=dtype
        )
        self.init_scale = check_scale("AutoNormal", init_scale)

    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """State all latent sites; see `AutoGuide.draw`."""
        values = {}
        for name, latent in self.latents.items():
            with self._within(latent, plates):
                event = latent.free_event_ndim
                normal = Normal(*self._moments(latent, event)).to_event(event)
                if latent.is_real:
                    values[name] = sample(name, normal, infer={"inside": True})
                else:
                    helper = {"is_auxiliary": True}
                    free = sample(f"{name}_unconstrained", normal, infer=helper)
                    values[name] = self._state(latent, free)
        return values

    def _moments(
        self, latent: Latent, event_dim: int | None = None
    ) -> tuple[TensorBase, TensorBase]:
        """Mean and standard deviation, of the rows in use inside the site's plates."""

        def scales() -> float | np.ndarray:
            return self._init(latent) * 0.0 + self.init_scale

        stem = f"{latent.name}_{self.prefix}"
        loc = param(f"{stem}_loc", lambda: self._init(latent), constraints.real, event_dim)
        return loc, param(f"{stem}_scale", scales, constraints.softplus_positive, event_dim)

    def get_posterior(self) -> dict[str, Normal]:
        """Return the normal of every site on the unconstrained scale."""
        with self._asked():
            moments = {n: self._moments(latent) for n, latent in self.latents.items()}
            return {n: Normal(*off_tape(m)) for n, m in moments.items()}

    def free_distribution(self) -> Distribution:
        """Return the normals as one of a vector; see `AutoGuide.free_distribution`."""
        parts = self.get_posterior().values()
        loc, scale = (
            cat([reshape(getattr(d, name), (d.loc.array.size,)) for d in parts])
            for name in ("loc", "scale")
        )
        return Normal(loc, scale).to_event(1)

    def median(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Return medians by name; see `AutoGuide.median`."""
        posterior = self.get_posterior()
        with self._asked():
            return off_tape({n: self.latents[n].transform(d.loc) for n, d in posterior.items()})

    def quantiles(
        self, quantiles: Iterable[float], *args: object, **kwargs: object
    ) -> dict[str, TensorBase]:
        """Return quantiles by name; see `AutoGuide.quantiles`."""
        levels, found = as_quantiles(quantiles), {}
        posterior = self.get_posterior()
        with self._asked():
            for name, normal in posterior.items():
                scores = to_host(ndtri(wrap(levels)).array).astype(self.dtype)
                z = wrap(scores.reshape(-1, *(1,) * normal.loc.array.ndim))
                found[name] = self.latents[name].transform(normal.loc + mul(z, normal.scale))
        return found

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws on the unconstrained scale; see `AutoGuide.free_draws`."""
        return {n: d.sample(shape, generator) for n, d in self.get_posterior().items()}
