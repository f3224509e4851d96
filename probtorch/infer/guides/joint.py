"""Guides over all latent numbers at once, as one unconstrained vector.

`AutoContinuous` cuts the vector into sites, `ScaledGuide` gives it a location and scales. Their
subclasses say how the vector is distributed: `AutoDiagonalNormal` without correlations,
`AutoMultivariateNormal` with a full covariance, `AutoLowRankMultivariateNormal` with a few
directions beside the diagonal, `AutoLaplaceApproximation` at the mode, with the curvature there.
"""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.jacobians import hessian
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributions import constraints
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.uniform import Delta
from probtorch.effects.params import ParamStore
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.errors import InferenceError, users_stacklevel
from probtorch.infer.guides.base import AutoGuide, as_quantiles, check_scale, off_tape
from probtorch.infer.guides.low_rank import LowRankNormal, check_rank, directions
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.starts.initialization import Strategy, init_to_median
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.movement import expand, reshape
from probtorch.ops.special import ndtri

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution


__all__ = [
    "AutoContinuous",
    "AutoDiagonalNormal",
    "AutoLaplaceApproximation",
    "AutoLowRankMultivariateNormal",
    "AutoMultivariateNormal",
    "ScaledGuide",
]


class AutoContinuous(AutoGuide):
    """Base of guides over one unconstrained vector.

    Parameters
    ----------
    model, init_loc_fn, prefix, dtype
        See `AutoGuide`.

    Raises
    ------
    InferenceError
        At the first call: if a latent site is in a plate that works on subsamples.
    """

    def __init__(
        self,
        model: Callable[..., object],
        init_loc_fn: Strategy = init_to_median,
        *,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn, prefix=prefix, dtype=dtype)

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model once to find its latent sites."""
        if self.latents:
            return
        super().setup(*args, **kwargs)
        for latent in self.latents.values():
            for frame in latent.frames:
                if frame.subsampled:
                    self.latents = {}
                    raise InferenceError(
                        f"{self.__name__}: site {latent.name!r} is in plate {frame.name!r}, which "
                        f"works on {frame.size} of {frame.full_size} rows",
                        expected="latent sites that are all there at every step",
                        got="one with a value for each row",
                        fix="use AutoNormal, alone or for this site in an AutoGuideList",
                        at=latent.location,
                    )

    @property
    def dim(self) -> int:
        """Length of the vector."""
        return sum(latent.size for latent in self.latents.values())

    @abc.abstractmethod
    def distribution(self) -> Distribution:
        """Return the distribution of the vector, made from `param` statements."""

    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """State all latent sites; see `AutoGuide.draw`."""
        helper = {"is_auxiliary": True}
        vector = sample(f"_{self.prefix}_latent", self.distribution(), infer=helper)
        return self._put(vector, plates)

    def _put(self, vector: TensorBase, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """State the sites whose values are the parts of a vector."""
        values = {}
        for name, free in self._cut(vector).items():
            latent = self.latents[name]
            with self._within(latent, plates):
                values[name] = self._state(latent, free)
        return values

    def _cut(self, vector: TensorBase, batch_ndim: int | None = None) -> dict[str, TensorBase]:
        """The parts of a vector by site; particles stay to the left of the plates."""
        lead, found, start = vector.array.shape[:-1], {}, 0
        for name, latent in self.latents.items():
            part = vector[..., start : start + latent.size]
            start += latent.size
            # Particles come with a dim of size 1 for each plate, which the site's rows fill.
            padding = latent.batch_ndim if batch_ndim is None else batch_ndim
            kept = lead[: max(len(lead) - padding, 0)]
            found[name] = reshape(part, (*kept, *latent.free_shape))
        return found

    def _start(self) -> np.ndarray:
        """The starting point as a vector."""
        parts = [latent.free_init.reshape(-1) for latent in self.latents.values()]
        return np.concatenate(parts).astype(self.dtype)

    def get_posterior(self) -> Distribution:
        """Return the distribution of the unconstrained vector."""
        with self._asked():
            return off_tape(self.distribution())

    def free_distribution(self) -> Distribution:
        """Return the distribution of the vector; see `AutoGuide.free_distribution`."""
        return self.get_posterior()

    def _constrained(self, vectors: TensorBase) -> dict[str, TensorBase]:
        parts = self._cut(vectors, 0)
        return off_tape({n: self.latents[n].transform(x) for n, x in parts.items()})

    def median(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Return medians by name; see `AutoGuide.median`."""
        posterior = self.get_posterior()
        with self._asked():
            return self._constrained(posterior.mean)

    def quantiles(
        self, quantiles: Iterable[float], *args: object, **kwargs: object
    ) -> dict[str, TensorBase]:
        """Return quantiles of each number on its own, by name; see `AutoGuide.quantiles`."""
        levels = as_quantiles(quantiles)
        posterior = self.get_posterior()
        with self._asked():
            z = wrap(to_host(ndtri(wrap(levels)).array).astype(self.dtype)[:, None])
            return self._constrained(posterior.mean + z * sqrt(posterior.variance))

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws on the unconstrained scale; see `AutoGuide.free_draws`."""
        return self._cut(self.get_posterior().sample(shape, generator), 0)


class ScaledGuide(AutoContinuous):
    """Base of guides over one vector that has a location and a scale for each number.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the location starts; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    prefix, dtype
        See `AutoGuide`.
    """

    def __init__(
        self,
        model: Callable[..., object],
        init_loc_fn: Strategy = init_to_median,
        init_scale: float = 0.1,
        *,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, init_loc_fn, prefix=prefix, dtype=dtype)
        self.init_scale = check_scale(self.__name__, init_scale)

    def _loc_and_scale(self, share: float = 1.0) -> tuple[TensorBase, TensorBase]:
        """Return the parameters; scales start at `share` of the standard deviation."""
        loc = param(f"{self.prefix}_loc", self._start)
        scale = param(
            f"{self.prefix}_scale",
            lambda: np.full(self.dim, self.init_scale * share, self.dtype),
            constraints.softplus_positive,
        )
        return loc, scale


class AutoDiagonalNormal(ScaledGuide):
    """Independent normals, as one vector: `AutoNormal` for models without subsampled local sites.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the mean starts; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    prefix, dtype
        See `AutoGuide`.

    Notes
    -----
    Parameters are ``auto_loc`` and ``auto_scale``, of shape (dim,).
    """

    def distribution(self) -> Distribution:
        """Return the normal of the vector."""
        return Normal(*self._loc_and_scale()).to_event(1)


class AutoMultivariateNormal(ScaledGuide):
    """A normal with a full covariance.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the mean starts; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    prefix, dtype
        See `AutoGuide`.

    Notes
    -----
    Parameters are ``auto_loc``, ``auto_scale`` (one per number) and ``auto_scale_tril`` (lower
    triangular with a diagonal of ones): the Cholesky factor of the covariance is
    ``scale[:, None] * scale_tril``, so that steps are of the size of the scales.
    """

    def distribution(self) -> MultivariateNormal:
        """Return the normal of the vector."""
        loc, scale = self._loc_and_scale()
        tril = param(
            f"{self.prefix}_scale_tril",
            lambda: np.eye(self.dim, dtype=self.dtype),
            constraints.unit_lower_cholesky,
        )
        return MultivariateNormal(loc, scale_tril=scale.unsqueeze(-1) * tril, validate_args=False)


class AutoLowRankMultivariateNormal(ScaledGuide):
    """A normal whose covariance is a diagonal plus a few directions.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the mean starts; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    rank : int, optional
        Number of directions; the square root of the number of latent numbers by default.
    prefix, dtype
        See `AutoGuide`.

    Notes
    -----
    Parameters are ``auto_loc``, ``auto_scale`` of shape (dim,) and ``auto_cov_factor`` of shape
    (dim, rank): the covariance is ``S (I + F F^T) S`` with S the diagonal matrix of the scales.
    """

    def __init__(
        self,
        model: Callable[..., object],
        init_loc_fn: Strategy = init_to_median,
        init_scale: float = 0.1,
        rank: int | None = None,
        *,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, init_loc_fn, init_scale, prefix=prefix, dtype=dtype)
        check_rank(rank, self.__name__, "the number of latent numbers")
        self.rank = rank

    def distribution(self) -> LowRankNormal:
        """Return the normal of the vector."""
        n = self.dim
        rank = self.rank or math.isqrt(n - 1) + 1
        # Half of the variance each for the diagonal and for the directions.
        loc, scale = self._loc_and_scale(math.sqrt(0.5))
        factor = param(f"{self.prefix}_cov_factor", lambda: directions((n, rank), self.dtype))
        return LowRankNormal(loc, scale.unsqueeze(-1) * factor, scale * scale)


class AutoLaplaceApproximation(AutoContinuous):
    """The normal with the mode of the posterior as its mean, and the curvature there.

    While it is optimised the guide is a point on the unconstrained scale, ``auto_loc``, which moves
    to the mode; `laplace_approximation` then gives the normal.

    Parameters
    ----------
    model, init_loc_fn, prefix, dtype
        See `AutoGuide`.
    """

    def distribution(self) -> Delta:
        """Return the point."""
        return Delta(param(f"{self.prefix}_loc", self._start), event_dim=1)

    def laplace_approximation(self, *args: object, **kwargs: object) -> AutoMultivariateNormal:
        """Return the normal guide at the point reached.

        Parameters
        ----------
        *args, **kwargs
            The model's arguments: all the data.

        Returns
        -------
        AutoMultivariateNormal
            A guide with parameters of its own.

        Raises
        ------
        InferenceError
            If the log density is not concave there, so that it is no mode.

        Notes
        -----
        The precision is minus the Hessian of the log density on the unconstrained scale, computed
        exactly, forward over reverse.
        """
        with self._asked():
            loc = to_host(self.distribution().v.array).astype(np.float64)
            target = ModelTarget(self.model, args, kwargs, whole=True)
            rows = self._rows_in(target)
            q = np.empty(target.dim)
            q[rows] = loc
        curvature = to_host(hessian(target.logdensity)(wrap(q)).array)
        precision = -curvature[np.ix_(rows, rows)]
        least = float(np.linalg.eigvalsh(precision).min()) if np.isfinite(precision).all() else None
        if least is None or least <= 0.0:
            raise InferenceError(
                f"{self.__name__}.laplace_approximation",
                expected="a mode: a log density that is concave at the point reached",
                got="a Hessian that is not finite"
                if least is None
                else f"a precision matrix with least eigenvalue {least:.3g}",
                fix="take more steps, or start elsewhere with init_loc_fn",
            )
        # With rows and columns reversed the factor of P is the transposed inverse of the factor of
        # the covariance.
        reverse = np.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]
        tril = np.tril(np.linalg.inv(reverse.T))
        scale = np.diag(tril).copy()
        guide = AutoMultivariateNormal(
            self.model, self.init_loc_fn, prefix=self.prefix, dtype=self.dtype
        )
        guide.latents, guide._store = self.latents, ParamStore()
        values = {
            "loc": (loc, constraints.real),
            "scale": (scale, constraints.softplus_positive),
            "scale_tril": (tril / scale[:, None], constraints.unit_lower_cholesky),
        }
        for name, (array, constraint) in values.items():
            init = array.astype(self.dtype)
            guide._store.setdefault(f"{self.prefix}_{name}", init, constraint)
        return guide

    def _rows_in(self, target: Target) -> np.ndarray:
        """Where the numbers of this guide's vector are in the target's."""
        parts = [np.arange(target.slots[n].start, target.slots[n].stop) for n in self.latents]
        return np.concatenate(parts)

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return the point on the unconstrained scale, as often as asked for."""
        posterior = self.get_posterior()
        assert isinstance(posterior, Delta)
        found = self._cut(posterior.v, 0)
        return {n: expand(x, (*shape, *x.array.shape)) for n, x in found.items()}

    def sample_posterior(
        self, sample_shape: int | tuple[int, ...] = (), *, generator: Generator | None = None
    ) -> dict[str, TensorBase]:
        """Return the point, as often as asked for.

        Warns
        -----
        InferenceWarning
            If more than one draw is asked for: NumPyro's guide gives those of the normal.
        """
        if sample_shape not in ((), 1, (1,)):
            warnings.warn(
                "draws of AutoLaplaceApproximation are the mode, all of them: the normal's are\n"
                "guide.laplace_approximation(*args).sample_posterior(...)",
                InferenceWarning,
                stacklevel=users_stacklevel(),
            )
        return super().sample_posterior(sample_shape, generator=generator)

    def quantiles(
        self, quantiles: Iterable[float], *args: object, **kwargs: object
    ) -> dict[str, TensorBase]:
        """Refuse: a point has no quantiles; ask the guide of `laplace_approximation`."""
        raise InferenceError(
            f"{self.__name__}.quantiles",
            expected="a guide with a spread",
            got="the point that is being optimised",
            fix="write guide.laplace_approximation(*args).quantiles(...)",
        )
